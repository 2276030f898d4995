"""Secret keys and random words as the engine makes them: children for many steps at once, words on all cores.

Where a step needs very many words OpenSSL makes them, outside of JAX. Its AES in counter mode is fastest as the inside
of GCM, on processors that have instructions for it; the tag that GCM adds is written over. Which streams there are is
said in ``tacit.wall.keys``.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from jaxtyping import Array, Int32, UInt32

from tacit import system
from tacit.types import Key
from tacit.wall.keys import BITS as BITS
from tacit.wall.keys import BLOCKS_AT_ONCE as BLOCKS_AT_ONCE
from tacit.wall.keys import BY_CHACHA as BY_CHACHA
from tacit.wall.keys import CHACHA20 as CHACHA20
from tacit.wall.keys import CONSTANTS as CONSTANTS
from tacit.wall.keys import FOLD as FOLD
from tacit.wall.keys import LENGTH as LENGTH
from tacit.wall.keys import QUARTERS as QUARTERS
from tacit.wall.keys import SEED as SEED
from tacit.wall.keys import SPLIT as SPLIT
from tacit.wall.keys import TAG as TAG
from tacit.wall.keys import WORDS as WORDS
from tacit.wall.keys import WORDS_AT_ONCE as WORDS_AT_ONCE
from tacit.wall.keys import block as block
from tacit.wall.keys import cipher
from tacit.wall.keys import fixed as fixed
from tacit.wall.keys import from_bytes as from_bytes
from tacit.wall.keys import normalised as normalised
from tacit.wall.keys import to_bytes as to_bytes

_ZEROS = bytes(4 * WORDS_AT_ONCE)
"""What OpenSSL encrypts, kept: new memory costs the operating system twice the time of the cipher."""


def fresh() -> Key:
    """Draw a secret key from the operating system.

    Privacy: the key must never leave the curator: with it the noise can be taken off again.
    """
    return from_bytes(os.urandom(LENGTH))


def fold_in(keys: Key, data: UInt32[Array, "..."] | Int32[Array, "..."]) -> Key:
    """Return child keys for an array of numbers, of the broadcast shape; for secret and public keys alike."""
    shape = jnp.broadcast_shapes(keys.shape, data.shape)
    flat = jax.vmap(jax.random.fold_in)(jnp.broadcast_to(keys, shape).ravel(), jnp.broadcast_to(data, shape).ravel())
    return flat.reshape(shape)


def words(
    secret: bytes, data: Sequence[int], out: npt.NDArray[np.uint32], least: npt.NDArray[np.uint32], group: int
) -> None:
    """Write uniform words that belong to a key and a number, a row for each number.

    The least of each group of so many words, the last of which may be short, is written to ``least``. OpenSSL does it,
    outside of JAX, on all cores.

    Privacy: secret, like the 32 bytes of the key.
    """
    # A key of its own for each number; a nonce of its own for each call.
    keys = [cipher(secret, (WORDS, number, 0)).update(bytes(LENGTH)) for number in data]
    # In parts that are still in the core's cache when their least words are looked for.
    part, length = group * (WORDS_AT_ONCE // group), out.shape[1]

    def write(parts: list[tuple[int, int]]) -> None:
        spare = np.empty(2 * TAG, "<u4")
        for i, start in parts:
            # A cipher of its own: threads that share one wait for each other.
            cipher, row, found = AESGCM(keys[i]), out[i], least[i]
            stop = min(start + part, length)
            cut = max(start, stop - TAG)
            # GCM adds a tag, which the last words of the part are then written over.
            _write(cipher, 2 * start, row[start:stop])
            _write(cipher, 2 * start + 1, spare[: stop - cut + TAG])
            row[cut:stop] = spare[: stop - cut]
            full = start + (stop - start) // group * group
            np.min(row[start:full].reshape(-1, group), axis=1, out=found[start // group : full // group])
            if full < stop:
                found[full // group] = row[full:stop].min()

    parts = list(itertools.product(range(len(keys)), range(0, length, part)))
    workers = min(len(system.cores()), max(1, len(parts)))
    with ThreadPoolExecutor(workers, "tacit-words") as threads:
        list(threads.map(write, (parts[k::workers] for k in range(workers))))


def _write(cipher: AESGCM, nonce: int, out: npt.NDArray[np.uint32]) -> None:
    """Fill an array with the key stream of a nonce, but for its last words, where the tag goes."""
    if len(out) > TAG:
        zeros = memoryview(_ZEROS)[: 4 * (len(out) - TAG)]
        cipher.encrypt_into(nonce.to_bytes(12, "little"), zeros, None, out.view(np.uint8).data)


def room(*shape: int) -> npt.NDArray[np.uint32]:
    """Return memory that begins where JAX takes it as it is, without another copy.

    Privacy: public, while it is empty.
    """
    size = 4 * math.prod(shape)
    memory = np.zeros(size + 64, np.uint8)
    first = -memory.ctypes.data % 64
    return memory[first : first + size].view("<u4").reshape(shape)
