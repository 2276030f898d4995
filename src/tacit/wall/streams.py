"""Secret random words of a step, from the key of its run: ChaCha20, or AES-256 where a step needs very many.

Every use of a key has a nonce of its own (the opening text of `keys`; docs/proofs/lattice.md, A1), so no
two words of a run come from the same place of the same stream. OpenSSL makes them all.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from jaxtyping import UInt32

from tacit.wall.keys import BITS, BY_CHACHA, FOLD, LENGTH, SPLIT, TAG, WORDS, WORDS_AT_ONCE, cipher

KEY_WORDS = LENGTH // 4


def chacha(secret: bytes, use: int, number: int, count: int) -> UInt32[np.ndarray, "count"]:
    """Return the first words of the key stream for one use of a key (RFC 8439, section 2.3).

    Privacy: secret, like the key.
    """
    return np.frombuffer(cipher(secret, (use, number, 0)).update(bytes(4 * count)), "<u4")


def child(secret: bytes, number: int) -> bytes:
    """Return the child key of a number, as ``jax.random.fold_in`` does for these keys."""
    return chacha(secret, FOLD, number, KEY_WORDS).tobytes()


def of_step(secret: bytes, step: int, count: int) -> UInt32[np.ndarray, "count"]:
    """Return the words of a step: two for each coordinate of the noise, then those of the subset.

    Privacy: secret; depends on no record but by their number (docs/proofs/lattice.md, A1).
    """
    if count <= BY_CHACHA:
        return chacha(child(secret, 2 * step), BITS, 0, count)
    aes = AESGCM(chacha(secret, WORDS, 2 * step, KEY_WORDS).tobytes())

    def stream(nonce: int, size: int) -> UInt32[np.ndarray, "size"]:
        made = aes.encrypt(nonce.to_bytes(12, "little"), bytes(4 * size), None)
        return np.frombuffer(made[: 4 * size], "<u4")  # without the tag that GCM adds

    words = []
    for start in range(0, count, WORDS_AT_ONCE):
        size = min(WORDS_AT_ONCE, count - start)
        last = min(TAG, size)
        words += [stream(2 * start, size - last), stream(2 * start + 1, last)]
    return np.concatenate(words)


def further(secret: bytes, step: int, place: int) -> tuple[int, int, int]:
    """Return three more words for the word at a place of a step, where that one does not decide on a value."""
    return tuple(chacha(child(secret, 2 * step + 1), FOLD, place, 3).tolist())


def of_record(secret: bytes, step: int, slot: int) -> bytes:
    """Return the secret key of the record in a slot of a step's subset (docs/proofs/clipping.md, "A key of its own").

    Privacy: secret. It is used in this step for this record alone.
    """
    record_key = chacha(secret, SPLIT, 0, KEY_WORDS).tobytes()
    return child(child(record_key, step), slot)
