"""Records on disk: more of them than memory holds, read a subset at a time, ahead of the step that needs it.

    a thread     noise and subsets of the coming steps    the same secret bits as in memory
                 the records of these subsets             read from the files, into room for the largest subset
    the device   contributions, clip, integer sum, noise, update, of the steps before

What is handed over has a public shape, as in memory. Files are hashed whole when they are sealed; the tag of a run is
made of that hash (docs/proofs/replay.md).
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Shaped, UInt8, UInt32

from tacit import system
from tacit.engine import alias, lattice, random
from tacit.facts.files import import_arrow, none_on_error
from tacit.facts.schema import Schema
from tacit.ledger.file import partial_of, remove_partial
from tacit.types import Key, PyTree, State
from tacit.wall import trace
from tacit.wall.precision import single_precision
from tacit.wall.storage import Storage

MAPPED = 1 << 30
"""Files up to this size stay mapped into memory: records are found some twenty times as fast. Of larger ones what was
looked at is let go again, so that what is resident does not grow with them."""
WINDOW, READERS = 1 << 27, 2
"""Bytes of a larger file that a thread looks at before it lets go of them, and how many threads do so."""
FAR = 1 << 19
"""Bytes between two records of a group, on average, beyond which mapping takes longer than reading at each place."""
HANDED_AT_ONCE = 1 << 25
"""Bytes of records that are handed over at once: those of several steps, or a part of one."""
WORDS_AT_ONCE = 3 << 22
"""Random words drawn for the steps that are handed over at once."""
GROUP_STEPS, GROUPS = 512, 200
"""Steps handed over at once, at most, and the least number of groups in a run: while one is computed the next is
read, and what is drawn beyond the end of a segment is lost."""
BLOCK = 1 << 18
"""Records that are checked, hashed or converted at once, at most."""
BLOCK_BYTES = 1 << 25
COLD = 5e-6
"""Seconds a record; where reading takes longer, the disk is asked for all of a group's records at once beforehand."""
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

    # What `_facts` compares.
    @property
    def shape(self) -> tuple[int, ...]:
        """The number of records."""
        return (self.count,)

    @property
    def dtype(self) -> str:
        """The columns in words."""
        return repr([(field.name, field.dtype.str, field.shape) for field in self.fields])

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


class Ahead(NamedTuple):
    """What is handed over for some steps, or for a part of one: noise, subsets, and the words of their records."""

    noise: list[Int32[Array, "steps _"]]
    subsets: Int32[Array, "steps width"]
    words: tuple[UInt32[Array, "steps width _"] | UInt8[Array, "steps width _"], ...]


class Fetch:
    """The programs for records on disk, and the thread that draws and reads for the coming steps meanwhile.

    Several steps are handed over at once; a step with more records than that is handed over in parts, which add up
    exactly.
    """

    def __init__(self, step: Any, stored: Stored, state: State, secret: Key, key: Key) -> None:
        self.step, self.stored = step, stored
        fits = HANDED_AT_ONCE // max(1, stored.stride)
        self.parted = step.everyone or step.width > fits
        self.width = min(step.width, max(1, fits // step.chunk) * step.chunk)
        # Subsets of many steps lie closer in the file, and a page is looked up once for all of them.
        run = max(1 if step.alone else 64, step.mechanism.steps // GROUPS)
        most = min(GROUP_STEPS, run, WORDS_AT_ONCE // step.words, fits // step.width)
        self.together = 1 if self.parted else max(1, most)
        self._rooms = [[_room(self.together, self.width, file) for file in stored.files] for _ in range(2)]
        self._words = step.room_for(self.together)
        self._cold = False
        self._drawn: tuple[int, Any, Any] = (-1, None, None)
        steps = jax.ShapeDtypeStruct((self.together,), jnp.int32)
        given: Any = self._words and tuple(jax.ShapeDtypeStruct(room.shape, jnp.uint32) for room in self._words)
        ahead = self.shapes()
        lowered = [trace.lower(jax.jit(self._draw_for), secret, steps, given)]
        if self.parted:
            totals = jax.eval_shape(step.zero)
            lowered.append(trace.lower(jax.jit(self._add_part), state, totals, 0, 0, ahead, secret, key))
            lowered.append(trace.lower(jax.jit(self._finish), state, totals, 0, ahead.noise, key))
        else:
            lowered.append(trace.lower(jax.jit(self._take), state, 0, 0, ahead, secret, key))
        self.text = "".join(text for _, text in lowered)
        self._draw, *self.programs = [one.compile(compiler_options=step.options) for one, _ in lowered]

    def shapes(self) -> Any:
        """Return the public shapes of what is handed over."""
        noise: Any = [jax.ShapeDtypeStruct((self.together, size), jnp.int32) for size in self.step.blocks]
        subsets: Any = jax.ShapeDtypeStruct((self.together, self.width), jnp.int32)
        words: Any = tuple(jax.ShapeDtypeStruct(room.shape, room.dtype) for room in self._rooms[0])
        return Ahead(noise, subsets, words)

    def advance(self, state: State, first: int, stop: int, secret: Key, key: Key) -> State:
        """Take charged steps. A group's memory is written again two groups later, when what it was for is done."""
        self.stored.unchanged()
        with ThreadPoolExecutor(1, "tacit-fetch") as thread:
            coming: Future[tuple[Ahead, bool]] = thread.submit(self._group, secret, first, stop, 0, 0)
            start, part, turn, totals = first, 0, 0, None
            while start < stop:
                ahead, last = coming.result()
                state, totals = jax.block_until_ready((state, totals))
                turn = 1 - turn
                next_start, next_part = (start + self.together, 0) if last else (start, part + 1)
                if next_start < stop:
                    coming = thread.submit(self._group, secret, next_start, stop, next_part, turn)
                if not self.parted:
                    state = self.programs[0](state, start, min(next_start, stop), ahead, secret, key)
                else:
                    totals = self.step.zero() if totals is None else totals
                    begin = part * self.width // self.step.chunk
                    totals = self.programs[0](state, totals, start, begin, ahead, secret, key)
                    if last:
                        state, totals = self.programs[1](state, totals, start, ahead.noise, key), None
                start, part = next_start, next_part
            state = jax.block_until_ready(state)
        # Before anything leaves: what was read is what was hashed.
        self.stored.unchanged()
        return state

    def _take(self, state: State, first: Any, stop: Any, ahead: Ahead, secret: Key, key: Key) -> State:
        """Take steps whose noise, subsets and records are given: the same bits as from memory."""
        step, steps = self.step, first + jnp.arange(self.together)
        keys, record_key = random.fold_in(key, steps), step.record_keys(secret, steps)

        def one(i: Array, state: State) -> State:
            mine = None if record_key is None else record_key[i]
            noise = [block[i] for block in ahead.noise]
            totals = step.sum(state, self._rows(ahead), ahead.subsets, i, keys[i], mine, self.stored.count, noise=noise)
            return step.finish(state, step.whole(totals), keys[i])

        return jax.lax.fori_loop(0, stop - first, one, state)

    def _add_part(
        self, state: State, totals: Any, t: Any, begin: Any, ahead: Ahead, secret: Key, key: Key
    ) -> list[lattice.Sum]:
        """Add a part of a step's subset, from a chunk on, to its exact sum."""
        step, steps = self.step, jnp.asarray(t)[None]
        record_key = step.record_keys(secret, steps)
        more = step.sum(
            state, self._rows(ahead), ahead.subsets, jnp.int32(0), random.fold_in(key, steps)[0],
            None if record_key is None else record_key[0], self.stored.count, begin,
        )  # fmt: skip
        return list(map(lattice.plus, totals, more))

    def _finish(self, state: State, totals: Any, t: Any, noise: list[Int32[Array, "1 _"]], key: Key) -> State:
        noisy = [lattice.add(total, block[0]) for total, block in zip(totals, noise, strict=True)]
        return self.step.finish(state, self.step.whole(noisy), random.fold_in(key, jnp.asarray(t)[None])[0])

    def _rows(self, ahead: Ahead) -> Callable[[Array, Any, Array], PyTree]:
        def rows(positions: Array, row: Any, first: Array) -> PyTree:
            size = len(positions)
            parts = (jax.lax.dynamic_slice(held, (row, first, 0), (1, size, held.shape[2])) for held in ahead.words)
            return self.stored.records([part[0] for part in parts])

        return rows

    def _draw_for(self, secret: Key, steps: Any, given: Any) -> tuple[list[Array], Array | None]:
        words = None if given is None else alias.Words(given[0], None, given[1])
        noise, subsets = self.step.draw(secret, steps, words)
        return noise, None if self.step.everyone else subsets  # everyone's places are known, and many

    @single_precision
    def _group(self, secret: Key, first: int, stop: int, part: int, turn: int) -> tuple[Ahead, bool]:
        """Draw and read for some steps, or for a part of one; and say whether that was its last."""
        if self._drawn[0] != first or not part:
            steps = np.arange(first, first + self.together, dtype=np.int32)
            if self._words is not None:
                self.step.write_words(secret, range(first, min(first + self.together, stop)), *self._words)
            noise, subsets = jax.block_until_ready(self._draw(secret, steps, self._words))
            self._drawn = first, noise, None if subsets is None else np.asarray(subsets)
        _, noise, places = self._drawn
        begin, count = part * self.width, self.stored.count
        if places is None:
            here = np.minimum(np.arange(begin, begin + self.width, dtype=np.int32), count)[None]
            last = begin + self.width >= count
        else:
            here = places[:, begin : begin + self.width]
            here = np.pad(here, ((0, 0), (0, self.width - here.shape[1])), constant_values=count)
            last = not self.parted or begin + self.width >= int(np.count_nonzero(places < count))
        rooms = self._rooms[turn]
        started = time.perf_counter()
        mine = here[: min(self.together, stop - first)].reshape(-1)
        slots = np.flatnonzero(mine < count)
        for file, room in zip(self.stored.files, rooms, strict=True):
            if places is None:
                file.read(begin, len(slots), room[0, : len(slots)])
            else:
                file.gather(mine[slots], room.reshape(-1, file.width), slots, cold=self._cold)
        self._cold = time.perf_counter() - started > COLD * (1 + len(slots))
        return Ahead(noise, jnp.asarray(here), tuple(map(jax.device_put, rooms))), last


def write_columns(source: Any, schema: Schema, folder: str | os.PathLike[str]) -> None:
    """Convert a table to records on disk, once, for `read_columns`; memory holds a part of it at a time.

    Numbers are moved inside their bounds, levels become codes, missing values follow each column's rule, as in
    `PrivateData`. The folder is readable by its owner only. It holds the records as they are: guard it like the table.

    Privacy: reads records, and writes them to a file. Errors name columns, never values or counts.

    Parameters
    ----------
    source
        The path of a Parquet file, or tables (dictionaries, data frames, Arrow tables) one after the other.
    schema
        The public facts. Each record must be a unit of its own: there is no column of ids.
    folder
        Where to write; it must not hold records yet.
    """
    if schema.max_records > 1:
        raise ValueError(
            f"The schema says that a {schema.unit} may have {schema.max_records} records. Records on disk are not "
            "grouped; give one record for each unit, or use read_parquet, which holds them in memory."
        )
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "records.npy"
    if file.exists():
        raise FileExistsError(f"The folder {str(folder)!r} holds records already. Read them, or choose another folder.")
    remove_partial(file)  # what a conversion left that was killed
    partial = partial_of(file)
    try:
        _convert(source, schema, partial)
    except BaseException:
        partial.unlink(missing_ok=True)  # it holds records
        raise
    schema.write(folder / "schema.toml")
    os.chmod(partial, 0o400)
    os.replace(partial, file)


def read_columns(
    folder: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    size: int | None = None,
    ledger: Any = None,
    mapped: int | None = None,
) -> Any:
    """Seal records that stay on disk: a folder of npy files, larger than memory if need be.

    Each file has the records along its leading axis: one column named like the file, or a structured type with several.
    Types are float32, int32 and bool. All files are read once, to check and to hash them. Nobody may write to them
    while they are in use.

    Privacy: reads records, into the wall. Errors name columns, never values or counts.

    Parameters
    ----------
    folder
        What `write_columns` wrote, or files of your own.
    schema
        The public facts; by default those in the folder's ``schema.toml``, if it is there. Values outside the bounds
        are refused here: `write_columns` is what moves them.
    size, ledger
        As in `PrivateData`.
    mapped
        Files up to so many bytes stay mapped into memory, by default 1 GB. It is faster, and what was looked at counts
        as resident until the system wants the memory back. Of larger ones it is let go of after each group of steps.
    """
    from tacit.wall.data import PrivateData

    folder = Path(folder)
    paths = sorted(folder.glob("*.npy"))
    if not paths:
        raise FileNotFoundError(f"There are no npy files in {str(folder)!r}. Write them with tacit.write_columns.")
    if schema is None and (folder / "schema.toml").exists():
        schema = Schema.read(folder / "schema.toml")
    files = [_open(path, MAPPED if mapped is None else mapped) for path in paths]
    names = [field.name for file in files for field in file.fields]
    if len(set(names)) < len(names):
        raise ValueError(f"The files in {str(folder)!r} hold a column twice: {sorted(names)}. Leave one of them out.")
    if len({file.count for file in files}) > 1:
        raise ValueError("The files differ in their leading axis, so it is unclear which values belong to one record.")
    return PrivateData(Stored(files, schema), schema, size=size, ledger=ledger)


def _convert(source: Any, schema: Schema, partial: Path) -> None:
    from tacit.wall.data import _columns, _with_schema

    dtype = np.dtype([(name, column.dtype, column.shape) for name, column in schema.columns.items()])
    count = 0
    with os.fdopen(system.create(partial, 0o600), "wb") as out:
        _header(out, dtype, 0)
        for table in _tables(source, schema):
            columns = _columns(table)
            if isinstance(columns, dict) and schema.unit in columns and schema.unit not in schema.columns:
                raise ValueError(
                    f"The table has a column {schema.unit!r} of ids. Records on disk are not grouped; leave it out if "
                    f"each record is a {schema.unit} of its own, or use read_parquet."
                )
            encoded, _ = _with_schema(columns, schema)
            rows = np.empty(len(next(iter(encoded.values()))), dtype)
            for name, values in encoded.items():
                rows[name] = values
            out.write(rows.tobytes())
            count += len(rows)
        out.seek(0)
        _header(out, dtype, count)
        out.flush()
        system.flush_to_disk(out.fileno())


def _open(path: Path, most: int) -> File:
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


def _tables(source: Any, schema: Schema) -> Iterable[Any]:
    if not isinstance(source, str | os.PathLike):
        return source
    arrow = import_arrow()
    file = none_on_error(lambda: arrow.parquet.ParquetFile(str(source)))
    if file is None:
        raise ValueError(f"The file {str(source)!r} is not a Parquet file, or there is none.")
    lacking = [name for name in schema.columns if name not in file.schema_arrow.names]
    if lacking:
        raise ValueError(f"The file lacks the columns {lacking}, which the schema declares. Correct one of them.")
    wanted = [*schema.columns]
    if schema.unit in file.schema_arrow.names and schema.unit not in wanted:
        wanted.append(schema.unit)  # and is refused
    return (arrow.Table.from_batches([part]) for part in file.iter_batches(BLOCK, columns=wanted))


def _header(out: Any, dtype: np.dtype[Any], count: int) -> None:
    # NumPy pads the header so that the number of records can grow in place.
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(out, facts)


def _room(steps: int, width: int, file: File) -> Shaped[np.ndarray, "steps width words"]:
    size = steps * width * file.stride
    memory = random.room(-(-size // 4)).view(np.uint8)
    return memory[:size].view(file.word).reshape(steps, width, file.width)


def _changed() -> RuntimeError:
    return RuntimeError(
        "The files of the records were changed since they were sealed. Noise must not meet two versions of them, so "
        "nothing is released; seal them again, and nobody may write to them meanwhile."
    )
