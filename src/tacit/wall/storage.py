"""Where sealed records are, if not in arrays of this process: on disk, or dealt out to shards."""

from __future__ import annotations

from collections.abc import Iterator

from tacit.types import PyTree, Record


class Storage:
    """Sealed records that are kept elsewhere. Nothing but the wall holds one.

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
    """

    count: int
    number: int | None = None
    placeholder: Record
    stand_in: PyTree
    max_records: int = 1
    digest: bytes

    def record(self, place: int) -> Record:
        """Read one record.

        Privacy: reads a record.
        """
        raise NotImplementedError

    def blocks(self) -> Iterator[PyTree]:
        """Read all records, block by block.

        Privacy: reads records.
        """
        raise NotImplementedError

    def unchanged(self) -> None:
        """Refuse records that somebody wrote to since they were sealed."""
