"""ChaCha20 keys, from what a script calls a key."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.adapters.d3p.warning import warn
from tacit.engine import random as chacha
from tacit.types import Array, Key


def chacha_key(key: Any) -> Key:
    """Return the ChaCha20 key for what a script calls a key; one of jax.random is stretched, with a warning."""
    key = jnp.asarray(key)
    if key.dtype == jnp.uint32:
        key = jax.random.wrap_key_data(key)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"A key is needed, not an array of {key.dtype}. Write tacit.adapters.d3p.random.PRNGKey().")
    if key.dtype == CHACHA:
        return key
    warn(
        "A key of jax.random has 64 bits at most and can be searched: the noise could be taken off again. Write "
        "tacit.adapters.d3p.random.PRNGKey() for a secret one."
    )
    return key_of_words(jax.random.bits(key, (8,), jnp.uint32))


def key_of_words(words: Array) -> Key:
    """Return the ChaCha20 key of eight random words."""
    return jax.random.wrap_key_data(words, impl=chacha.CHACHA20)


CHACHA = jax.eval_shape(lambda: chacha.fixed(0)).dtype


def random_words(secret: Key, *sizes: int) -> tuple[Key, list[Array]]:
    """Draw all random words of a step at once, and a key for more bits: every call of the cipher is compiled apart."""
    words = jax.random.bits(secret, (8 + sum(sizes),), jnp.uint32)
    key, *parts = jnp.split(words, np.cumsum([8, *sizes])[:-1])
    return key_of_words(key)[None], parts
