"""Secret randomness: ChaCha20 as a JAX generator, seeded by the operating system, and AES-256 for many words.

A key is the cipher's 256-bit key. The uses of a key are kept apart by the nonce, and the block counter runs inside a
use, so no (key, nonce, counter) is ever evaluated for two purposes:

    bits     nonce (1, 0, 0)      block i gives output words 16 i .. 16 i + 15
    fold_in  nonce (2, data, 0)   block 0 gives the child key
    split    nonce (3, 0, 0)      block i gives child i
    words    nonce (5, data, 0)   block 0 gives the key of AES-256, whose counter mode gives the words: nonces 2 i and
                                  2 i + 1 those of the part that begins at word i

``jax.random.key(int)`` holds 32 bits and can be searched; a key of ours comes from ``os.urandom`` unless a run is a
declared simulation. Printing a key prints the secret.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from jax.extend.random import define_prng_impl
from jaxtyping import Array, UInt32

from tacit.types import Key

BITS, FOLD, SPLIT, SEED, WORDS = 1, 2, 3, 4, 5
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
"""The ASCII text "expand 32-byte k" of RFC 8439."""
LENGTH = 32
"""Bytes of a key."""
BY_CHACHA = 1 << 14
"""Random words of a step up to which ChaCha20 makes them; of more AES-256 does."""
BLOCKS_AT_ONCE = 8192
"""Sixteen arrays of this many words stay in a core's cache."""
WORDS_AT_ONCE = 1 << 18
"""Words of a part, which a thread writes at once: it fits a core's cache, and outlasts the Python around it. Other
parts are other words, so this number is in a run's tag."""
TAG = 4
"""Words of the tag that GCM adds."""


def fixed(seed: int) -> Key:
    """Make the key of a simulation from a number that anyone may know.

    Privacy: protects nobody; a run that uses it says so on its certificate.
    """
    # As jax.random.key(seed, impl=CHACHA20) would, without compiling anything.
    first = (int(seed) & 0xFFFFFFFF).to_bytes(LENGTH, "little")
    return from_bytes(cipher(first, (SEED, 0, 0)).update(bytes(LENGTH)))


def from_bytes(secret: bytes) -> Key:
    """Make a key of 32 secret bytes."""
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secret, "<u4")), impl=CHACHA20)


def to_bytes(key: Key) -> bytes:
    """Return the 32 secret bytes of a key, for the run folder's secret file."""
    return np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()


def normalised(key: Key) -> Key:
    """Return a public key of JAX's default kind, made of any other.

    Bits that "rbg" draws for one record depend on how many are drawn beside them, so no such key enters a step.

    Privacy: public.
    """
    if jax.random.key_impl(key) == "threefry2x32":
        return key
    words = np.asarray(jax.random.key_data(key)).tobytes()
    return jax.random.wrap_key_data(
        jnp.asarray(np.frombuffer(hashlib.sha256(words).digest()[:8], "<u4")), impl="threefry2x32"
    )


def cipher(secret: bytes, nonce: tuple[int, int, int]) -> CipherContext:
    """Return ChaCha20 under a key, at the beginning of the stream of a nonce."""
    start = np.asarray([0, *nonce], "<u4").tobytes()  # the block counter comes first
    return Cipher(algorithms.ChaCha20(secret, start), mode=None).encryptor()


def block(key: UInt32[Array, "8"], counter: UInt32[Array, "n"], nonce: tuple[Any, Any, Any]) -> UInt32[Array, "n 16"]:
    """Return the ChaCha20 key stream blocks of RFC 8439, section 2.3, at the given counters."""
    words = [*CONSTANTS, *(key[i] for i in range(8)), counter, *nonce]
    start = tuple(jnp.broadcast_to(jnp.asarray(word, jnp.uint32), counter.shape) for word in words)

    # A loop, not ten copies: unrolled, the compiler takes half a minute.
    end = jax.lax.fori_loop(0, 10, _double_round, start)
    return jnp.stack([x + y for x, y in zip(start, end, strict=True)], axis=-1)


QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)


def _double_round(_: Any, x: tuple[Array, ...]) -> tuple[Array, ...]:
    state = list(x)
    for a, b, c, d in QUARTERS:
        for first, second, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[first] = state[first] + state[second]
            mixed = state[third] ^ state[first]
            state[third] = (mixed << turn) | (mixed >> (32 - turn))
    return tuple(state)


def _words(key: UInt32[Array, "8"], count: int, nonce: tuple[Any, Any, Any]) -> UInt32[Array, "count"]:
    blocks = math.ceil(count / 16)
    if blocks <= BLOCKS_AT_ONCE:
        stream = block(key, jnp.arange(blocks, dtype=jnp.uint32), nonce)
    else:
        counters = jnp.arange(math.ceil(blocks / BLOCKS_AT_ONCE) * BLOCKS_AT_ONCE, dtype=jnp.uint32)
        stream = jax.lax.map(lambda c: block(key, c, nonce), counters.reshape(-1, BLOCKS_AT_ONCE))
    return stream.reshape(-1)[:count]


def _random_bits(key: UInt32[Array, "8"], bit_width: int, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if bit_width == 64:
        pair = _words(key, 2 * count, (BITS, 0, 0)).astype(jnp.uint64).reshape(*shape, 2)
        return (pair[..., 0] << 32) | pair[..., 1]
    dtype = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[bit_width]
    return _words(key, count, (BITS, 0, 0)).reshape(shape).astype(dtype)


def _fold_in(key: UInt32[Array, "8"], data: Any) -> UInt32[Array, "8"]:
    return _words(key, 8, (FOLD, jnp.asarray(data).astype(jnp.uint32), 0))


def _split(key: UInt32[Array, "8"], shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    children = block(key, jnp.arange(math.prod(shape), dtype=jnp.uint32), (SPLIT, 0, 0))
    return children[:, :8].reshape(*shape, 8)


def _seed(seed: Array) -> UInt32[Array, "8"]:
    key = jnp.zeros(8, jnp.uint32).at[0].set(seed.astype(jnp.uint32))
    return _words(key, 8, (SEED, 0, 0))


CHACHA20 = define_prng_impl(
    key_shape=(8,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="chacha20",
)
