"""The names of d3p.random: keys and draws of ChaCha20."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tacit.adapters.d3p.keys import chacha_key
from tacit.engine import random as chacha
from tacit.types import Array, Key

__all__ = [
    "PRNGKey",
    "PRNGState",
    "convert_to_jax_rng_key",
    "fold_in",
    "normal",
    "randint",
    "random_bits",
    "split",
    "uniform",
]


PRNGState = jax.Array


def PRNGKey(seed: Any = None) -> Key:
    """Make a ChaCha20 key: a secret one from the operating system, or that of a number or of at most 32 bytes.

    Privacy: whoever knows the seed can take the noise off again.
    """
    if seed is None:
        return chacha.fresh()
    try:
        given = seed if isinstance(seed, bytes) else np.asarray(seed).tobytes() if np.ndim(seed) else int(seed)
        return chacha.from_bytes((given if isinstance(given, bytes) else given.to_bytes(32, "little")).ljust(32, b"\0"))
    except (OverflowError, ValueError) as error:
        raise ValueError(
            "A seed must be a number from 0 to 2**256 - 1, or at most 32 bytes: a key has 256 bits. Write PRNGKey() "
            "for a secret one."
        ) from error


def _chacha20(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of jax.random that takes the keys of this module.

    Privacy: ``normal`` and ``uniform`` are for scripts. Neither noise nor subsets come from them, for float noise can
    be told apart from other float noise, and ``uniform() <= q`` does not have the rate q.
    """
    return functools.wraps(function)(lambda key, *args, **kwargs: function(chacha_key(key), *args, **kwargs))


split, fold_in, uniform, normal, randint = (
    _chacha20(function)
    for function in (jax.random.split, jax.random.fold_in, jax.random.uniform, jax.random.normal, jax.random.randint)
)


def random_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Return random words of 8, 16, 32 or 64 bits. Privacy: as secret as the key."""
    return jax.random.bits(chacha_key(key), shape, f"uint{bit_width}")


def convert_to_jax_rng_key(rng_key: Any) -> Array:
    """Return a key for jax.random. Privacy: for public randomness; it does not show the key it came from."""
    return random_bits(rng_key, 32, (2,))


from tacit.adapters.d3p.random import debug  # noqa: E402, F401
