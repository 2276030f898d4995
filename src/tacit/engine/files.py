"""Records in npy files: checked and hashed whole when they are sealed, read a record or a block at a time.

The tag of a run is made of that hash (docs/proofs/replay.md); files that change afterwards are not read.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from tacit import system
from tacit.facts.files import none_on_error
from tacit.facts.schema import Schema
from tacit.wall.precision import single_precision
from tacit.wall.storage import Storage

WINDOW, READERS = 1 << 27, 2
"""Bytes of a larger file that a thread looks at before it lets go of them, and how many threads do so."""
FAR = 1 << 19
"""Bytes between two records of a group, on average, beyond which mapping takes longer than reading at each place."""
BLOCK = 1 << 18
"""Records that are checked, hashed or converted at once, at most."""
BLOCK_BYTES = 1 << 25
TYPES = ("<f4", "<i4", "|b1")


class Field(NamedTuple):
    """One column within a file: where in a record's words it begins, its type and the shape of one value."""

    name: str
    first: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def words(self) -> int:
        """How many words a value takes."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class File:
    """One npy file: a column, or with a structured type several, of which a record's values stand together."""

    path: Path
    descriptor: int
    memory: mmap.mmap
    stays: bool
    begin: int
    count: int
    fields: tuple[Field, ...]
    word: np.dtype[Any]

    @property
    def width(self) -> int:
        """How many words a record has."""
        return sum(field.words for field in self.fields)

    @property
    def stride(self) -> int:
        """How many bytes a record has."""
        return self.width * self.word.itemsize

    def read(self, first: int, count: int, out: Any = None) -> Shaped[np.ndarray, "count words"]:
        """Return the words of some records that stand together."""
        words = np.empty((count, self.width), self.word) if out is None else out
        held = words.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(held):
            got = system.read_into(self.descriptor, held[done:], self.begin + first * self.stride + done)
            if not got:
                raise _changed()
            done += got
        return words

    def gather(
        self,
        places: Shaped[np.ndarray, " n"],
        out: Shaped[np.ndarray, "room words"],
        slots: Shaped[np.ndarray, " n"],
        *,
        cold: bool,
    ) -> None:
        """Write the words of some records, wherever they stand, to slots of memory."""
        stride, descriptor = self.stride, self.descriptor
        if cold:
            for start in (places.astype(np.int64) * stride + self.begin).tolist():
                system.prefetch(descriptor, start, stride)
        if self.stays:
            out[slots] = np.take(self._mapped(), places, axis=0, mode="clip")
        elif len(places) * FAR >= self.count * stride:
            self._gather_by_windows(places, out, slots)
        else:
            read, starts = system.read_at, (places.astype(np.int64) * stride + self.begin).tolist()
            found = b"".join([read(descriptor, stride, start) for start in starts])
            if len(found) != len(places) * stride:
                raise _changed()
            out[slots] = np.frombuffer(found, self.word).reshape(len(places), self.width)

    def _gather_by_windows(
        self, places: Shaped[np.ndarray, " n"], out: Shaped[np.ndarray, "room words"], slots: Shaped[np.ndarray, " n"]
    ) -> None:
        """Look at the file from front to back, and let go of what was looked at.

        A page is looked up once for all records of the group that are on it.
        """
        # Sixteen bits are sorted in one pass: by parts of the file, in which the order does not matter.
        parts = max(1, -(-self.count >> 16))
        order = np.argsort((places // parts).astype(np.uint16), kind="stable")
        places, slots = places[order], slots[order]
        each = max(parts, WINDOW // self.stride // parts * parts)
        ends = np.searchsorted(places // parts, np.arange(0, self.count + each, each) // parts).tolist()
        mapped, windows = self._mapped(), range(len(ends) - 1)

        def charge(mine: range) -> None:
            for window in mine:
                here = slice(ends[window], ends[window + 1])
                out[slots[here]] = np.take(mapped, places[here], axis=0, mode="clip")
                begin, end = (self.begin + edge * each * self.stride for edge in (window, window + 1))
                system.release_pages(self.memory, begin, min(end, len(self.memory)))

        with ThreadPoolExecutor(READERS, "tacit-read") as threads:
            list(threads.map(charge, (windows[i::READERS] for i in range(READERS))))

    def _mapped(self) -> Shaped[np.ndarray, "count words"]:
        words = np.frombuffer(self.memory, self.word, self.count * self.width, self.begin)
        return words.reshape(self.count, self.width)

    def stamp(self) -> tuple[int, ...]:
        """Return what the file system says of the file's state."""
        now = os.fstat(self.descriptor)
        return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


@final
class Stored(Storage):
    """Sealed records in files. Nothing but the wall holds one.

    Privacy: reads records: all of them once, to check and to hash them.
    """

    @single_precision
    def __init__(self, files: Sequence[File], schema: Schema | None) -> None:
        self.files, self.count = tuple(files), files[0].count
        self.fields = tuple(field for file in files for field in file.fields)
        zeros = {field.name: jnp.zeros(field.shape, field.dtype) for field in self.fields}
        self.placeholder = zeros if schema is None else jax.tree.map(jnp.asarray, schema.placeholder())
        self.stand_in = self.placeholder
        self._stamps = [file.stamp() for file in files]
        self.digest = _digest(self.files, schema)
        self.unchanged()
        for file in files:
            # Records are far apart: what stands beside one is not read along with it.
            system.expect_random_access(file.descriptor, None if file.stays else file.memory)
            weakref.finalize(self, os.close, file.descriptor)

    @property
    def stride(self) -> int:
        """How many bytes a record has in all files."""
        return sum(file.stride for file in self.files)

    def unchanged(self) -> None:
        """Refuse files that somebody wrote to since they were sealed: what was hashed is not what would be read."""
        if [file.stamp() for file in self.files] != self._stamps:
            raise _changed()

    def record(self, place: int) -> dict[str, Any]:
        """Read one record."""
        return self.records([jnp.asarray(file.read(place, 1)[0]) for file in self.files])

    def records(self, words: Sequence[Any]) -> dict[str, Any]:
        """Return the columns of records whose words were read, one array of words for each file."""
        columns = {}
        for file, held in zip(self.files, words, strict=True):
            for field in file.fields:
                part = held[..., field.first : field.first + field.words]
                values = part != 0 if field.dtype == bool else jax.lax.bitcast_convert_type(part, field.dtype)
                columns[field.name] = values.reshape(*held.shape[:-1], *field.shape)
        return columns

    def blocks(self) -> Iterator[dict[str, Any]]:
        """Return all records, block by block; the last is filled up with the records at its end."""
        size = max(1, min(BLOCK, self.count, BLOCK_BYTES // self.stride))
        for first in range(0, self.count, size):
            begin = max(0, min(first, self.count - size))
            yield self.records([jnp.asarray(file.read(begin, size)) for file in self.files])


def opened(path: Path, most: int) -> File:
    """Open a npy file; up to so many bytes stay mapped into memory."""
    found = none_on_error(lambda: np.load(path, mmap_mode="r", allow_pickle=False))
    if not isinstance(found, np.memmap) or found.ndim == 0 or not found.flags.c_contiguous:
        raise ValueError(
            f"The file {path.name!r} is not a npy file with the records along its leading axis, in C order. Write it "
            "with numpy.save, or convert a table with tacit.write_columns."
        )
    names = found.dtype.names
    parts = [(name, found.dtype[name]) for name in names] if names else [(path.stem, found.dtype)]
    fields, first = [], 0
    for name, dtype in parts:
        shape = dtype.shape if names else found.shape[1:]
        fields.append(Field(name, first, dtype.base, shape))
        first += fields[-1].words
    types = {field.dtype.str for field in fields}
    word = np.dtype(np.uint8 if types == {"|b1"} else np.uint32)
    if not types <= set(TYPES) or (names and (found.ndim > 1 or "|b1" in types)) or not first:
        raise TypeError(
            f"The file {path.name!r} has values of another type than float32, int32 or bool (within a structured type: "
            "float32 or int32). Convert it, or let tacit.write_columns do so."
        )
    if found.nbytes != len(found) * first * word.itemsize:
        raise TypeError(f"The file {path.name!r} has gaps between its columns. Let tacit.write_columns write it.")
    descriptor = os.open(path, os.O_RDONLY | system.BINARY)
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return File(path, descriptor, memory, found.nbytes <= most, found.offset, len(found), tuple(fields), word)


def _digest(files: Sequence[File], schema: Schema | None) -> bytes:
    """Check every value and hash every byte.

    What the file system says of a file (its time, its size) would be cheaper and is no proof: a file can be changed and
    its time put back, and the noise of a step would then meet other records.
    """
    _check_columns([field for file in files for field in file.fields], schema)
    digest = hashlib.sha256()
    for file in files:
        digest.update(repr((file.count, file.fields)).encode())
        size = max(1, min(BLOCK, BLOCK_BYTES // file.stride))
        for first in range(0, file.count, size):
            words = file.read(first, min(size, file.count - first))
            digest.update(words.data)
            for field in file.fields:
                _check_values(field, words, schema)
    return digest.digest()


def _check_columns(fields: Sequence[Field], schema: Schema | None) -> None:
    if schema is None:
        return
    stored = {field.name: (field.dtype, field.shape) for field in fields}
    declared = {name: (column.dtype, column.shape) for name, column in schema.columns.items()}
    if stored != declared:
        odd = sorted(name for name in {*stored, *declared} if stored.get(name) != declared.get(name))
        raise ValueError(
            f"The files and the schema differ in the columns {odd}: in their names, types or shapes. Correct the "
            "schema, or convert the table with tacit.write_columns."
        )
    if schema.max_records > 1:
        raise ValueError("Records on disk are not grouped into units. Use read_parquet, which holds them in memory.")


def _check_values(field: Field, words: Shaped[np.ndarray, "n words"], schema: Schema | None) -> None:
    if field.dtype == bool:
        return
    values = words[:, field.first : field.first + field.words].view(field.dtype)
    if field.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(
            f"{field.name!r} has missing or infinite values. Convert the table with tacit.write_columns, under a "
            "schema that says what a missing value means."
        )
    if schema is not None and values.size:
        column = schema.columns[field.name]
        low, high = (0, len(column.levels) - 1) if column.levels is not None else (column.low, column.high)
        # Rounded as the values were when they were moved inside.
        if values.min() < field.dtype.type(low) or values.max() > field.dtype.type(high):
            raise ValueError(
                f"Column {field.name!r} has values outside its declared bounds or levels. tacit.write_columns moves or "
                "refuses them when it converts a table."
            )


def _changed() -> RuntimeError:
    return RuntimeError(
        "The files of the records were changed since they were sealed. Noise must not meet two versions of them, so "
        "nothing is released; seal them again, and nobody may write to them meanwhile."
    )
