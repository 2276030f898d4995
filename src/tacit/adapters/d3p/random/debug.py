"""The names of d3p.random.debug: keys and draws of jax.random, which are no secret."""

from __future__ import annotations

import secrets
from typing import Any

import jax
from jax.random import fold_in, normal, randint, split, uniform

from tacit.types import Array

PRNGState = jax.Array

__all__ = ["PRNGKey", "PRNGState", "convert_to_jax_rng_key", "fold_in", "normal"]
__all__ += ["randint", "random_bits", "split", "uniform"]


def PRNGKey(seed: Any = None) -> Array:
    """Make a key of jax.random. Privacy: for tests only; such a key can be searched."""
    return jax.random.PRNGKey(secrets.randbits(32) if seed is None else seed)


def random_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Return random words of 8, 16, 32 or 64 bits. Privacy: for tests only."""
    return jax.random.bits(key, shape, f"uint{bit_width}")


def convert_to_jax_rng_key(rng_key: Any) -> Any:
    """Return the key itself. Privacy: for tests only."""
    return rng_key
