"""Where sealed records are: in arrays of this process, on disk, or dealt out to shards."""

from __future__ import annotations

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from tacit.types import PyTree, Record


class Storage(ABC):
    """Sealed records. Nothing but the wall holds one.

    Attributes
    ----------
    count
        How many records there are, which is private.
    number
        Into how many shards they are dealt out, or None.
    placeholder, stand_in, max_records
        As in `PrivateData`.
    digest
        A hash of every byte of them.
    arrays
        The records, where they are in arrays of this process.
    """

    count: int
    number: int | None = None
    placeholder: Record
    stand_in: PyTree
    max_records: int = 1
    digest: bytes
    arrays: PyTree = None

    @abstractmethod
    def record(self, place: int) -> Record:
        """Read one record.

        Privacy: reads a record.
        """

    @abstractmethod
    def blocks(self) -> Iterator[PyTree]:
        """Read all records, block by block.

        Privacy: reads records.
        """

    def unchanged(self) -> None:  # noqa: B027 - nobody writes to arrays of this process
        """Refuse records that somebody wrote to since they were sealed."""

    def tag(self, secret: bytes, program: list[Any], machine: list[Any], key: np.ndarray) -> str:
        """Hash the records with what else decides the bits of a step, keyed by the secret.

        Privacy: reads records; the hash shows nothing to who does not have the secret.
        """
        described = repr([*program, machine]).encode() + key.tobytes()
        return hmac.new(secret, described + self.digest, "sha256").hexdigest()


class Memory(Storage):
    """Records in arrays of this process."""

    def __init__(self, arrays: PyTree) -> None:
        self.arrays = arrays

    @property
    def digest(self) -> bytes:  # type: ignore[override]
        """Hash every byte of the records, and their shapes and types."""
        digest = hashlib.sha256()
        for leaf in map(np.asarray, jax.tree.leaves(self.arrays)):
            digest.update(repr((leaf.shape, leaf.dtype.str)).encode())
            digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
        return digest.digest()

    def record(self, place: int) -> Record:
        """Read one record."""
        return jax.tree.map(lambda leaf: leaf[place], self.arrays)

    def blocks(self) -> Iterator[PyTree]:
        """Read all records at once."""
        yield self.arrays


def storage_of(records: PyTree | Storage) -> Storage:
    """Return the storage of what `PrivateData` holds."""
    return records if isinstance(records, Storage) else Memory(records)
