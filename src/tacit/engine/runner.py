"""The engine: the private step of ``tacit.wall``, fast. ``Runner.advance`` alone releases anything of records.

Chunks of records in one compiled program, factored and sparse sums, bulk random numbers, records on disk and in shards.
It computes the integers of the reference, or stays within the proved radius of them where sums are factored
(tests/test_engine.py); what a step may reveal is decided in ``tacit.wall``, not here.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import hmac
import importlib.metadata
import itertools
import math
import operator
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Bool, Int32

from tacit import system
from tacit.accounting.mechanism import Mechanism
from tacit.engine import alias, clip, fetch, files, independence, lattice, outer, random, rewrite, sample, shards
from tacit.ledger.file import Charge, Ledger
from tacit.types import Key, Method, PyTree, Record, Release, State, is_sparse
from tacit.wall import trace
from tacit.wall.border import refuse_leaks, refuse_unfit, with_own_checks
from tacit.wall.border import released as released
from tacit.wall.data import PrivateData
from tacit.wall.environment import check_environment
from tacit.wall.layout import Layout
from tacit.wall.precision import single_precision
from tacit.wall.units import Unit, together

CHUNK_NUMBERS = 1 << 18
"""Contributions held at once, in numbers: what fits a core's cache."""
BY_JAX = random.BY_CHACHA
"""Random words of a step up to which JAX draws them and makes noise and subsets of them; OpenSSL is faster from there
on, and what is made of its words is made in the step."""
DRAWN_AT_ONCE = 1 << 19
"""Random words that JAX draws at once."""
HANDED_OVER = 128
"""Steps for which noise and subsets are handed over at once, at most."""
SEGMENTS = 50
"""A run stops this many times: for the ledger, the checkpoint, the progress bar, and to tie noise to the program."""
LONG_SEGMENT = 100
"""Chunks of records in a segment from which on noise is tied to the program anew in each: that takes a chunk or so."""
QUICK = 1 << 28
"""A run whose contributions have fewer numbers in all takes less time than compiling it: it is compiled quickly."""
QUICK_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
"""Options for such a run. XLA's code for fused loops takes a quarter of the compiler's time; JAX 0.11 and later have
no other."""
GIVEN_AT_ONCE = 3 << 23
"""Random words handed over at once: those of several steps, since each call costs the program new memory."""


@final
class Runner:
    """A method, a recipe and sealed records, compiled into one program that takes private steps.

    Privacy: reads records, in ``advance``; before it, for a keyed hash, and for checks of tacit's own whose refusal is
    noted on the ledger. Everything else is checked and compiled before the first look.

    Parameters
    ----------
    method, data, mechanism
        What to run, on what, by which public recipe.
    secret
        Key of the subsets and the noise.
    key
        Key of the public randomness.
    ledgers
        Where looks are charged, on each of them.
    run, kind, title
        How the ledger names the run: its id, "fit" or "ask", and the method in words.
    simulation
        Whether the secret key is known to others.
    """

    @single_precision
    def __init__(
        self,
        method: Method,
        data: PrivateData,
        mechanism: Mechanism,
        *,
        secret: Key,
        key: Key,
        ledgers: Sequence[Ledger],
        run: str,
        kind: str,
        title: str,
        simulation: bool,
    ) -> None:
        check_environment()
        key = random.normalised(key)
        method = with_own_checks(method)
        # Here alone methods meet data: what is written for one record is summed over those of a unit.
        method = together(method) if isinstance(data._stand_in, Unit) else method
        state = jax.eval_shape(lambda key: _arrays(method.init(key)), key)
        refuse_leaks(method, data, state, key)
        refuse_unfit(method, data, ledgers)
        step = _Step(method, data, mechanism, state, key)
        lowered: Any = None
        self._fetch: fetch.Fetch | None = None
        self._shards = data._records if isinstance(data._records, shards.Shards) else None
        if self._shards:
            lowered, text = self._shards.lower(step, state, key)
        elif isinstance(data._records, files.Stored):
            self._fetch = fetch.Fetch(step, data._records, state, secret, key)
            text = self._fetch.text
        else:
            take = jax.jit(step.take, donate_argnums=0)
            lowered, text = trace.lower(take, state, 0, 0, 0, step.given(secret), secret, key, data._records)
        # The start decides the bits too, and is computed outside the segment; so do the compiler's options, the parts
        # in which random words are made, and what decides where fingerprints are taken.
        started = trace.lower(jax.jit(lambda key: _arrays(method.init(key))), key)[1]
        meetings = (SEGMENTS, LONG_SEGMENT, step.expected_chunks)
        parts = (step.options, random.WORDS_AT_ONCE, alias.GROUP, meetings)
        self._text = text + started + repr(parts)
        self._program: Any = lowered and lowered.compile(compiler_options=step.options)
        in_memory = not self._fetch and not self._shards
        self._step, self._room = step, step.room_for(step.together) if in_memory else None
        self._draw: Any = None
        if in_memory and not step.alone:
            steps = jax.ShapeDtypeStruct((step.together,), jnp.int32)
            drawing, text = trace.lower(jax.jit(step.draw), secret, steps)
            self._text += text
            self._draw = drawing.compile(compiler_options=step.options)
        self._key, self._records, self._ledgers = key, data._records, tuple(ledgers)
        self._facts = _facts(data)
        self._charge = Charge(run, kind, title, mechanism, 0, mechanism.steps, "none yet", data.unit, simulation)
        self.segment = -(-mechanism.steps // SEGMENTS)
        self.rekey(secret)
        self.distance = step.dimension * lattice.NOISE_DISTANCE + (mechanism.rate < 1) * sample.distance()
        self.distance *= step.shards

    @single_precision
    def rekey(self, secret: Key, origin: bytes = b"") -> None:
        """Take another secret key, and with it another tag: nothing charged under the old one is replayed.

        ``origin`` is a hash of the state from which steps are first taken under this key, empty for the method's start:
        the same noise on the sums of two states would cancel in their difference, so each state has its own.

        Privacy: reads records, for a keyed hash that only the holder of the secret can check.
        """
        self._secret, self.origin = secret, origin
        self.tag = _tag(secret, self._key, self._records, self._text, origin)
        self._begin_segment(None, b"", b"")

    def resume_chain(self, chain: bytes) -> None:
        """Take up the chain of fingerprints that a checkpoint holds: ``chain`` when it was written.

        Privacy: public.
        """
        self.chain = chain

    def advance(self, state: State, first: int, stop: int) -> State:
        """Take the private steps ``first`` to ``stop - 1``; the ledger line is on disk before a record is read.

        Privacy: reads records. A step that this run has already taken with the same key, data and program gives the
        same bits again and is free; anything else is charged.
        """
        charge = replace(self._charge, first=first, stop=stop, tag=self.tag)
        for ledger in self._ledgers:
            ledger.charge(charge)
        if self._shards:
            shards.wait(f"charged {first}")  # process 0 has the ledger: nobody reads before its line is on disk
        return self._advance(state, first, stop)

    @single_precision
    def _advance(self, state: State, first: int, stop: int) -> State:
        """Take private steps that have been charged."""
        if self._charge.simulation:
            return self._advance_within(state, first, stop)
        while first < stop:
            end = min(stop, (first // self.segment + 1) * self.segment)
            self._meet(state, first)
            state, first = self._advance_within(state, first, end), end
        return state

    def _meet(self, state: State, step: int) -> None:
        """Tie subsets and noise of a segment of steps to what the program did at the states it reached so far.

        Two programs that were taken for one, because something was missing in the tag, would otherwise meet the same
        noise, and the difference of their releases would be that of their sums (docs/proofs/replay.md).
        """
        segment, inside = divmod(step, self.segment)
        if inside and segment == self._segment:
            return
        if segment == self._segment:  # its first steps once more
            before = self._before
        elif not inside and (self._segment is None or segment == self._segment + 1):
            before = self.chain
        elif step == 0:
            before = b""
        else:
            raise ValueError(
                f"Step {step} does not follow the steps before it, and its noise belongs to what the program did in "
                f"them. Go on in order, from a multiple of {self.segment}. This is a mistake of tacit."
            )
        chain, now_and_then = before, segment & (segment - 1) == 0  # at a power of two
        if now_and_then or not before or self.segment * self._step.expected_chunks >= LONG_SEGMENT:
            found, alike = self._step.fingerprint(state, self._key, thorough=now_and_then)
            if not alike:
                raise RuntimeError(
                    f"At step {step} a contribution depends on its place among the records, which it did not before "
                    "the run began. Nothing of this step was released. Please report the model; until then, "
                    "run it on another processor or version of JAX."
                )
            chain = hashlib.sha256(before + (shards.agreed_bytes(found) if self._shards else found)).digest()
        self._begin_segment(segment, before, chain)

    def _begin_segment(self, segment: int | None, before: bytes, chain: bytes) -> None:
        # Subsets and noise come from the secret AND the tag AND the fingerprints: other data or another program never
        # meets the same noise, whoever copied, shared or restarted the run's folder. A simulation hides nothing, and is
        # compared across data.
        self._segment, self._before, self.chain, self._drawn = segment, before, chain, (-1, None)
        tag = f"{self.tag} {segment} {chain.hex()}"
        stream = hmac.new(random.to_bytes(self._secret), b"stream " + tag.encode(), "sha256").digest()
        self._stream = self._secret if self._charge.simulation else random.from_bytes(stream)
        if self._shards:
            self._streams = self._shards.streams(self._secret, tag, self._charge.simulation)

    def _advance_within(self, state: State, first: int, stop: int) -> State:
        """Take charged steps of one segment."""
        if self._shards:
            return self._shards.run(self._program, state, first, stop, self._streams, self._key)
        if self._fetch:
            return self._fetch.advance(state, first, stop, self._stream, self._key)
        together = self._step.together
        begin = first if self._draw is None else first // together * together
        bounds = [*range(begin, stop, together), stop]
        state = jax.tree.map(jnp.copy, state)  # the program takes its memory over, and the caller's stays
        with ThreadPoolExecutor(1, "tacit-draw") as thread:
            ahead = self._draw is not None and thread.submit(self._drawn_from, begin)
            for base, end in itertools.pairwise(bounds):
                state = jax.block_until_ready(state)
                if ahead:
                    given = ahead.result()
                    if end < stop:  # while these steps are computed
                        ahead = thread.submit(self._drawn_from, end)
                else:
                    given = self._words_for(base, end)
                start = max(base, first)
                state = self._program(state, base, start, end, given, self._stream, self._key, self._records)
            return jax.block_until_ready(state)

    @single_precision
    def _drawn_from(self, base: int) -> Any:
        """Return the noise and subsets of a group of steps: they depend on no record."""
        if self._drawn[0] != base:  # a segment may end in the middle of what was drawn, and the next go on there
            steps = np.arange(base, base + self._step.together, dtype=np.int32)
            self._drawn = base, jax.block_until_ready(self._draw(self._stream, steps))
        return self._drawn[1]

    def _words_for(self, base: int, end: int) -> Any:
        """Return the random words of a group of steps.

        They are written over those of the group before, whose state was waited for: nothing reads them any more. By all
        cores at once: beside the steps, which need all of them, one core would hold up the others as long.
        """
        assert self._room is not None
        words, least = self._room
        self._step.write_words(self._stream, range(base, end), words, least)
        return jax.device_put((words, least))

    @single_precision
    def rehearse(self, data: PrivateData, secret: Key, key: Key) -> Runner:
        """Return the same program for other made-up records of the same number and shape, without compiling it again.

        Privacy: refuses a door whose secret is secret; a simulation protects nobody, and certifies that.
        """
        if not self._charge.simulation or self._fetch or self._shards or _facts(data) != self._facts:
            raise ValueError(
                "Only a simulation in memory goes on with other records, of the same number, shape and declared size."
            )
        other = copy.copy(self)
        other._key, other._records = random.normalised(key), data._records
        other._room = self._step.room_for(self._step.together)
        other.rekey(secret)
        return other

    def seal(self, content: bytes) -> str:
        """Return a keyed hash of public content that shows it was made under this key, data and program.

        Privacy: public, as long as the secret is.
        """
        return hmac.new(random.to_bytes(self._secret), self.tag.encode() + content, "sha256").hexdigest()

    def slack(self, steps: int, epsilon: float) -> float:
        """Bound what the samplers' distance from their exact laws adds to delta over the given steps.

        Privacy: public.
        """
        return (1 + math.exp(epsilon)) * steps * self.distance


class _Step:
    """The compiled part: sizes fixed by public numbers, and the program over them."""

    def __init__(
        self, method: Method, data: PrivateData, mechanism: Mechanism, state: State, key: Key | None = None
    ) -> None:
        self.method, self.mechanism, self.count = method, mechanism, data._count
        self._traced: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self.dealt = isinstance(data._records, shards.Shards)
        self.shards = data._records.number if self.dealt else 1
        self.contribution = rewrite.rewritten(method.contribution)
        self.shape = jax.eval_shape(self.contribution, state, data._stand_in, jax.random.key(0), random.fixed(0))
        # What a record gives, and what is released: the same numbers unless a leaf is sparse.
        leaves, self.weights, self.length, self.dimension = Layout.of(self.shape, mechanism.weights)
        self.sparse = [leaf for leaf in leaves if is_sparse(leaf)]
        self.radius = lattice.radius(mechanism.noise_multiplier, self.shards)
        self.unit = mechanism.clip / self.radius
        expected = None if data.size is None else mechanism.rate * data.size / self.shards
        self.outers, self.factoring = self._factoring(state, data._stand_in, expected)
        if self.factoring is None:
            clip.shrink(self.length, self.radius)  # refuses what rounding would spoil
        self.chunk = self.factoring.chunk if self.factoring else self._chunk(128.0 if expected is None else expected)
        self.expected_chunks = max(1, -(-int(expected or 0) // self.chunk))
        self.group = self.factoring.group if self.factoring else lattice.group(self.chunk, self.radius)
        self.fine = self.factoring.fine if self.factoring else 0
        self.room = sample.room(self.count, mechanism.rate) if mechanism.rate < 1 and self.count else self.count
        self.everyone = mechanism.rate == 1 or not self.count
        # With no records at all there is still one chunk, empty: neighbours must not differ in whether a step works.
        self.width = max(1, math.ceil(self.room / self.chunk)) * self.chunk
        self.gaps = () if self.everyone else sample.gap_tables(mechanism.rate, sample.digits_for(self.count))
        self.words = 2 * self.dimension + self.room * len(self.gaps)
        self.groups = -(-self.words // alias.GROUP)
        self.alone = self.words > BY_JAX
        # A segment has noise of its own: what is drawn beyond its end is drawn in vain.
        segment = -(-mechanism.steps // SEGMENTS)
        self.drawn = max(1, min(HANDED_OVER, segment, DRAWN_AT_ONCE // self.words))
        given = max(1, min(64, segment, GIVEN_AT_ONCE // self.words))
        self.together = given if self.alone else self.drawn
        # From public numbers only.
        quick = expected is not None and mechanism.steps * expected * self.length < QUICK
        self.options = {name: value for name, value in QUICK_OPTIONS.items() if quick and _known(name, value)}
        # A second size makes the program twice as long to compile.
        self.tail = self.factoring.tail if self.factoring and not quick else 0
        self.alike = True
        self._made_up = self._make_up(data)
        start = jax.jit(lambda key: _arrays(method.init(key)))(jax.random.key(0))
        self.alike, same = self._slots_are_alike(start, jax.random.key(1) if key is None else key)
        if not self.alike:
            self._traced.clear()
        self.tail = self.tail if same else 0

    def _factoring(
        self, state: State, placeholder: Record, expected: float | None
    ) -> tuple[list[outer.Outer | None], clip.Factoring | None]:
        """Find the leaves that are outer products, and the public numbers by which they are summed."""
        two = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *np.shape(leaf)), np.asarray(leaf).dtype), placeholder)
        record_key = jax.random.split(random.fixed(0)) if self.method.per_record_key else None
        leaves = jax.tree.leaves(self.shape, is_leaf=is_sparse)
        scales = [weight / self.mechanism.clip for weight in self.weights]
        may = [
            not is_sparse(leaf) and 1 / clip.LARGEST_SCALE <= scale <= clip.LARGEST_SCALE
            for leaf, scale in zip(leaves, scales, strict=True)
        ]
        # Leaves that are no outer products are thin ones beside those that are, or beside one another.
        found = outer.find(self._contributions, state, two, jax.random.key(0), record_key, thin=True)
        found = [product if mine else None for product, mine in zip(found, may, strict=False)]
        pairs = tuple((product.rows, product.columns) for product in found if product)
        plain = self.length - sum(rows * columns for rows, columns in pairs)
        # With all records there are few steps, and what they say in full should not be shortened.
        thin = self.mechanism.rate < 1 or any(columns > 1 for _, columns in pairs)
        factoring = clip.factoring(plain, pairs, self.radius, expected) if pairs and thin else None
        return (found, factoring) if factoring else ([None] * len(leaves), None)

    def _chunk(self, expected: float) -> int:
        # From public numbers only: a program whose shapes followed the private number of records could round the
        # contributions of all records differently on neighbouring data.
        wanted = max(64, clip.full_chunk(expected))
        exact = (lattice.LOW_ROOM if self.sparse else (1 << 31) - 1) // (self.radius + 1)
        return max(1, min(wanted, max(64, CHUNK_NUMBERS // max(1, self.length)), exact))

    def take(
        self,
        state: State,
        base: Int32[Array, ""],
        first: Int32[Array, ""],
        stop: Int32[Array, ""],
        given: Any,
        secret: Key,
        key: Key,
        records: PyTree,
    ) -> State:
        """Take the steps first..stop-1; randomness belongs to the step, so the grouping changes no bit.

        ``given`` is what ``draw`` gives for ``together`` steps from ``base`` on; or, where a step stands alone, the
        words that it would draw for each of them, and the least of each group of words.
        """
        steps = base + jnp.arange(self.together)
        # For all steps at once: one by one a cipher takes as long.
        keys, record_key, more = (
            random.fold_in(key, steps),
            self.record_keys(secret, steps),
            self.more_keys(secret, steps),
        )

        def one(i: Array, state: State) -> State:
            noise, subsets = self._made(alias.Words(given[0], i, given[1]), more[i][None]) if self.alone else given
            row = jnp.int32(0) if self.alone else i
            mine, noise = None if record_key is None else record_key[i], [block[row] for block in noise]
            total = self._sum(state, records, subsets, row, keys[i], mine, noise)
            return self.finish(state, total, keys[i])

        return jax.lax.fori_loop(first - base, stop - base, one, state)

    def given(self, secret: Key) -> Any:
        """Return the public shapes of what ``take`` is given."""
        if self.alone:
            return tuple(jax.ShapeDtypeStruct((self.together, size), jnp.uint32) for size in (self.words, self.groups))
        return jax.eval_shape(self.draw, secret, jax.ShapeDtypeStruct((self.together,), jnp.int32))

    def finish(self, state: State, totals: list[lattice.Sum], key: Key) -> State:
        """Hand a noisy sum to the method."""
        return _arrays(self.method.update(state, self._release(totals), key))

    def draw(
        self, secret: Key, steps: Int32[Array, "steps"], words: alias.Words | None = None
    ) -> tuple[list[Int32[Array, "steps _"]], Int32[Array, "_ width"]]:
        """Draw the noise (in ``blocks``) and subsets of some steps; a step's depend on the secret and its number."""
        if words is None:
            keys = random.fold_in(secret, 2 * steps)
            words = alias.Words(jax.vmap(lambda key: jax.random.bits(key, (self.words,), jnp.uint32))(keys))
        return self._made(words, self.more_keys(secret, steps))

    def more_keys(self, secret: Key, steps: Int32[Array, "steps"]) -> Key:
        """Return the keys of further bits, where a word does not decide."""
        return random.fold_in(secret, 2 * steps + 1)

    def _made(self, words: alias.Words, more: Key) -> tuple[list[Int32[Array, "steps _"]], Int32[Array, "_ width"]]:
        """Make noise and subsets of words."""
        return lattice.noise(self.blocks, words, more, self.fines), self._subsets(words, more)

    def _subsets(self, words: alias.Words, more: Key) -> Int32[Array, "_ width"]:
        # Their words come last: the noise is that of its place, however many records there are.
        if self.everyone:
            return jnp.minimum(jnp.arange(self.width, dtype=jnp.int32), self.count)[None]
        digits = alias.draw(self.gaps, self.room, words, more, start=2 * self.dimension)
        room = ((0, 0), (0, self.width - self.room))
        return jnp.pad(sample.subsets(digits, self.count), room, constant_values=self.count)

    def room_for(self, steps: int) -> tuple[Any, Any] | None:
        """Return memory for the words of some steps and the least of each group of them, where a step stands alone."""
        return (random.room(steps, self.words), random.room(steps, self.groups)) if self.alone else None

    def write_words(self, secret: Key, steps: range, words: Any, least: Any) -> None:
        """Write the words that noise and subsets of some steps are made of."""
        random.words(random.to_bytes(secret), [2 * step for step in steps], words, least, alias.GROUP)

    def record_keys(self, secret: Key, steps: Int32[Array, "steps"]) -> Key | None:
        """Return the secret key of each step, from which its records get theirs; None where the method wants none."""
        # Noise and subsets come from children by fold_in, of which none is left: these are children of a split.
        return random.fold_in(jax.random.split(secret, 1)[0], steps) if self.method.per_record_key else None

    @property
    def blocks(self) -> list[int]:
        """The lengths of the parts in which a sum is kept: the plain leaves, then each outer product, each table."""
        products = [rows * columns for rows, columns in (self.factoring.pairs if self.factoring else ())]
        tables = [leaf.count * leaf.values.shape[1] for leaf in self.sparse]
        return [self.dimension - sum(products) - sum(tables), *products, *tables]

    @property
    def fines(self) -> list[int]:
        """The bits below the unit in which each of the ``blocks`` is summed."""
        plain, products, tables = self._kinds([0] * len(self.blocks))
        return [plain, *(self.fine for _ in products), *tables]

    def zero(self) -> list[lattice.Sum]:
        """Return the empty sum."""
        # The sums of several shards are added up: there one limb need not hold them.
        narrow = self.factoring is not None and self.factoring.narrow and not self.dealt
        plain, products, tables = self._kinds(self.blocks)
        whole = [lattice.zero(size) for size in (plain, *tables)]
        return [whole[0], *(lattice.zero(size, narrow) for size in products), *whole[1:]]

    def _sum(
        self,
        state: State,
        records: PyTree,
        subsets: Int32[Array, "steps width"],
        i: Array,
        key: Key,
        record_key: Key | None = None,
        noise: list[Int32[Array, "_"]] | None = None,
    ) -> list[lattice.Sum]:
        """Add up the subset of a step, to the noise, in whole units of the lattice."""

        def rows_at(positions: Int32[Array, "chunk"], _: Any, __: Array) -> PyTree:
            return jax.tree.map(lambda leaf: leaf.at[positions].get(mode="clip"), records)

        return self.whole(self.sum(state, rows_at, subsets, i, key, record_key, self.count, noise=noise))

    def whole(self, totals: list[lattice.Sum]) -> list[lattice.Sum]:
        """Round sums in units of ``fines`` to whole units of the lattice."""
        return [
            lattice.wrap(lattice.coarsen(total, fine), fine) for total, fine in zip(totals, self.fines, strict=True)
        ]

    def sum(
        self,
        state: State,
        rows_at: Callable[[Array, Any, Array], PyTree],
        subsets: Int32[Array, "steps width"],
        i: Array,
        key: Key,
        record_key: Key | None,
        count: int | Int32[Array, ""],
        begin: int | Int32[Array, ""] = 0,
        noise: list[Int32[Array, "_"]] | None = None,
    ) -> list[lattice.Sum]:
        """Add up the subset in chunks of one or two fixed shapes, to the noise; an empty subset is an empty sum.

        It begins with the noise, in units of ``fines``: the same integers as if that came last, in fewer passes.
        ``rows_at`` gives the records of a chunk; positions from ``count`` on are of no record. Where a subset is
        handed over in parts, ``begin`` chunks came before.
        """
        row = i if subsets.shape[0] > 1 else 0
        included = jnp.sum(subsets[row] < count)

        def add_chunk(j: Array, totals: list[lattice.Sum], size: int = self.chunk) -> list[lattice.Sum]:
            positions = jax.lax.dynamic_slice(subsets, (row, j * self.chunk), (1, size))[0]
            rows = rows_at(positions, row, j * self.chunk)
            mine = (
                None if record_key is None else random.fold_in(record_key, (begin + j) * self.chunk + jnp.arange(size))
            )
            clipped = self.clipped(state, rows, key, mine)
            present = positions < count
            plain, values = self._apart(clipped.plain)
            total, products, tables = self._kinds(totals)
            return [
                lattice.add(total, self._exact_sum(plain, present)),
                *self._add_products(products, clipped.factors, present, begin + j),
                *self._add_rows(tables, values, clipped.places, present),
            ]

        chunks = (jnp.maximum(included - self.tail, 0) + self.chunk - 1) // self.chunk
        start = self.zero()
        if noise is not None:
            plain, products, tables = self._kinds(list(map(lattice.Sum, (total.high for total in start), noise)))
            start = [lattice.carry(plain), *products, *map(lattice.carry, tables)]
        if self.factoring is None and not self.sparse:
            return jax.lax.fori_loop(0, chunks, add_chunk, start)
        group = self.group

        def carry(totals: list[lattice.Sum]) -> list[lattice.Sum]:
            return [totals[0], *(lattice.carry(total) for total in totals[1:])]

        def add_group(g: Array, totals: list[lattice.Sum]) -> list[lattice.Sum]:
            # A loop that runs once or not at all: most steps have one group, and nothing to carry before it.
            totals = jax.lax.fori_loop(0, jnp.minimum(g, 1), lambda _, totals: carry(totals), totals)
            return jax.lax.fori_loop(g * group, jnp.minimum((g + 1) * group, chunks), add_chunk, totals)

        totals = jax.lax.fori_loop(0, (chunks + group - 1) // group, add_group, start)
        if self.tail:
            totals = jax.lax.fori_loop(0, jnp.minimum(chunks, 1), lambda _, totals: carry(totals), totals)
            # By the loop's own number: what does not depend on it is computed whether the loop runs or not.
            stop = chunks + (included > chunks * self.chunk)
            totals = jax.lax.fori_loop(chunks, stop, lambda j, totals: add_chunk(j, totals, self.tail), totals)
        return carry(totals)

    def _kinds(self, totals: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        """Part what is kept in ``blocks`` into that of the plain leaves, of the outer products, and of the tables."""
        end = len(totals) - len(self.sparse)
        return totals[0], totals[1:end], totals[end:]

    def _exact_sum(self, integers: Int32[Array, "chunk d"], present: Bool[Array, "chunk"]) -> Int32[Array, "d"]:
        return jnp.sum(jnp.where(present[:, None], integers, 0), axis=0)

    def _apart(
        self, integers: Int32[Array, "chunk d"]
    ) -> tuple[Int32[Array, "chunk _"], list[Int32[Array, "chunk _"]]]:
        """Part the integers of a chunk of records: those of all plain leaves, and those of each sparse one."""
        if not self.sparse:
            return integers, []
        leaves = jax.tree.leaves(self.shape, is_leaf=is_sparse)
        here = [leaf for leaf, product in zip(leaves, self.outers, strict=True) if not product]
        sizes = [leaf.values.size if is_sparse(leaf) else leaf.size for leaf in here]
        parts = list(zip(here, jnp.split(integers, np.cumsum(sizes)[:-1], axis=1), strict=True))
        plain = jnp.concatenate([integers[:, :0], *(part for leaf, part in parts if not is_sparse(leaf))], axis=1)
        return plain, [part for leaf, part in parts if is_sparse(leaf)]

    def _add_rows(
        self,
        totals: list[lattice.Sum],
        values: list[Int32[Array, "chunk _"]],
        places: list[Int32[Array, "chunk _"]],
        present: Bool[Array, "chunk"],
    ) -> list[lattice.Sum]:
        """Add a chunk's sparse leaves to the low limbs of their tables, which are wide enough for a group of chunks."""
        lows = []
        for leaf, total, integers, lines in zip(self.sparse, totals, values, places, strict=True):
            width = leaf.values.shape[1]
            lines = jnp.where(present[:, None], lines, leaf.count).reshape(-1)
            table = total.low.reshape(leaf.count, width).at[lines].add(integers.reshape(-1, width), mode="drop")
            lows.append(table.reshape(-1))
        return [lattice.Sum(total.high, low) for total, low in zip(totals, lows, strict=True)]

    def _add_products(
        self, totals: list[lattice.Sum], factors: list[outer.Factors], present: Bool[Array, "chunk"], j: Array
    ) -> list[lattice.Sum]:
        """Add a chunk's outer products, by one matrix product a leaf; beyond the public number of them, one by one.

        They are added to the low limbs, which are wide enough for a group of chunks.
        """
        if self.factoring is None:
            return totals
        factors = [outer.Factors(left, jnp.where(present[:, None], right, 0)) for left, right in factors]
        fast, block = j < self.factoring.chunks, self.factoring.block

        def add(lows: list[Array], factors: list[outer.Factors], wanted: Any = True) -> list[Array]:
            products = [jnp.where(wanted, jnp.ravel(clip.product(both, block)), 0) for both in factors]
            return [low + product for low, product in zip(lows, products, strict=True)]

        def add_one(k: Array, lows: list[Array]) -> list[Array]:
            return add(lows, [outer.Factors(left[k][None], right[k][None]) for left, right in factors])

        # A product that is not wanted is computed all the same: chosen before, all factors would be written twice.
        lows = add([total.low for total in totals], factors, fast)
        lows = jax.lax.fori_loop(0, jnp.where(fast, 0, len(present)), add_one, lows)
        return [lattice.Sum(total.high, low) for total, low in zip(totals, lows, strict=True)]

    def _contributions(self, state: State, rows: PyTree, key: Key, record_key: Key | None) -> list[Array]:
        """Return the leaves of every record's contribution, places of the lines of sparse leaves, and whether it fits.

        The last only where the method needs anything of a record.
        """

        def one(mine: tuple[Record, Key | None]) -> list[Array]:
            leaves = jax.tree.leaves(self.contribution(state, mine[0], key, mine[1]), is_leaf=is_sparse)
            places = [clip.places(leaf.index.astype(jnp.int32), leaf.count) for leaf in leaves if is_sparse(leaf)]
            kept = iter(places)
            lines = [
                jnp.where((next(kept) < leaf.count)[:, None], leaf.values, 0) if is_sparse(leaf) else leaf
                for leaf in leaves
            ]
            fits = (
                [jnp.all(jnp.stack([need.predicate(mine[0]) for need in self.method.requirements]))]
                if self.method.requirements
                else []
            )
            return [*lines, *places, *fits]

        return jax.vmap(one)((rows, record_key))

    def integers(self, state: State, rows: PyTree, key: Key, record_key: Key | None = None) -> Int32[Array, "chunk d"]:
        """Return the part of ``clipped`` that is lattice vectors: all of it where nothing is an outer product."""
        return self.clipped(state, rows, key, record_key).plain

    def clipped(self, state: State, rows: PyTree, key: Key, record_key: Key | None = None) -> clip.Scaled:
        """Return the clipped contributions of a chunk of records: lattice vectors, and factors of outer products.

        A method is traced once for each size of chunk, and what was checked is what is compiled.
        """
        size = len(jax.tree.leaves(rows)[0])
        given = state, rows, key, record_key
        if (size, record_key is None) not in self._traced:
            self._traced[size, record_key is None] = self._trace(size, *given)
        closed, structure = self._traced[size, record_key is None]
        return self._scaled(jax.tree.unflatten(structure, jaxpr_as_fun(closed)(*jax.tree.leaves(given))), size)

    def _trace(self, size: int, *given: Any) -> tuple[Any, Any]:
        """Trace the contributions of a chunk; records that the program may mix are evaluated one at a time."""
        leaves, structure = jax.tree.flatten(given)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

        def flat(*leaves: Any) -> list[Any]:
            return self._evaluated(*jax.tree.unflatten(structure, leaves))

        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*shapes)
        if calls := trace.contents(closed)[1]:
            raise ValueError(
                f"The method's contribute calls out of the compiled program ({', '.join(sorted(calls))}). A record "
                "could leave that way; remove the print or callback."
            )
        public, rows, _, record_key = (len(jax.tree.leaves(part)) for part in given)
        along = independence.Along(0)
        kinds = [*[None] * public, *[along] * rows, None, *[along] * record_key]
        if self.alike and not independence.apart(closed, kinds, size):
            self.alike = False
            return self._trace(size, *given)
        return closed, jax.tree.structure(shape)

    def _evaluated(self, state: State, rows: PyTree, key: Key, record_key: Key | None) -> list[Any]:
        """Return ``_contributions``, outer products taken apart; where places matter, of one record at a time."""

        def evaluate(mine: tuple[PyTree, Key | None]) -> list[Any]:
            apart = [product is not None for product in self.outers]
            apart += [False] * (len(self.sparse) + bool(self.method.requirements))
            if not any(apart):
                return self._contributions(state, mine[0], key, mine[1])
            return outer.split(self._contributions, state, mine[0], key, mine[1], apart=apart, thin=True).values

        if self.alike:
            return evaluate((rows, record_key))
        # A record beside itself: what is done for one alone is not recognised as an outer product.
        times = 2 if self.factoring else 1
        alone = jax.tree.map(lambda leaf: jnp.stack([leaf] * times, 1), (rows, record_key))
        return jax.tree.map(lambda leaf: leaf[:, 0], jax.lax.map(evaluate, alone))

    def _scaled(self, values: list[Any], size: int) -> clip.Scaled:
        """Clip the contributions of a chunk."""
        leaves, places = values[: len(self.outers)], values[len(self.outers) :]
        fits = places.pop() if self.method.requirements else None
        flat = [
            value.reshape(size, -1).astype(jnp.float32) * weight
            for value, weight in zip(leaves, self.weights, strict=True)
            if not isinstance(value, outer.Factors)
        ]
        plain = jnp.concatenate([*flat, jnp.zeros((size, 0))], axis=1)
        if self.factoring is None:
            return clip.Scaled(clip.to_integers(plain, self.mechanism.clip, self.radius, fits), [], places)
        factors = [value for value in leaves if isinstance(value, outer.Factors)]
        weights = [weight for product, weight in zip(self.outers, self.weights, strict=True) if product]
        scaled = clip.to_factors(plain, factors, weights, self.mechanism.clip, self.radius, self.factoring, fits)
        return scaled._replace(places=places)

    def _release(self, totals: list[lattice.Sum]) -> Release:
        leaves, structure = jax.tree.flatten(self.shape, is_leaf=is_sparse)
        whole = [product is None and not is_sparse(leaf) for leaf, product in zip(leaves, self.outers, strict=True)]
        ends = np.cumsum([leaf.size for leaf, plain in zip(leaves, whole, strict=True) if plain])
        first, *others = self._kinds([lattice.to_float(total, self.unit) for total in totals])
        plain, products, tables = map(iter, (jnp.split(first, ends[:-1]), *others))
        parts = []
        for leaf, product, weight in zip(leaves, self.outers, self.weights, strict=True):
            if is_sparse(leaf):
                part = next(tables).reshape(leaf.count, -1)
            elif product:
                part = product.leaf(next(products).reshape(product.rows, product.columns)).reshape(leaf.shape)
            else:
                part = next(plain).reshape(leaf.shape)
            parts.append(part / jnp.float32(weight))
        # The barrier: without it the compiler computes the sums again for every array that the update changes.
        parts = jax.lax.optimization_barrier(parts)
        std = [jnp.float32(math.sqrt(self.shards) * lattice.RHO * self.unit / weight) for weight in self.weights]
        rate = jnp.float32(self.mechanism.rate)
        return Release(
            total=jax.tree.unflatten(structure, parts),
            noise_std=jax.tree.unflatten(structure, std),
            rate=rate,
            full=jax.tree.unflatten(structure, [part / rate for part in parts]),
        )

    def _make_up(self, data: PrivateData) -> tuple[PyTree, Key | None]:
        """Make up a chunk of records, and keys of their own: public numbers, the same for every data set."""
        rng = np.random.default_rng(0)  # of NumPy, which need not be compiled

        def made_up(leaf: Array) -> np.ndarray:
            shape, dtype = (self.chunk, *np.shape(leaf)), np.asarray(leaf).dtype
            if jnp.issubdtype(dtype, jnp.floating):
                return rng.standard_normal(shape).astype(dtype)
            # Zeros and ones suit labels; larger numbers reach further lines of a table, which is public or is added to.
            most = max([16, *(leaf.count for leaf in self.sparse)])
            levels = np.where(np.arange(self.chunk) % 4 < 2, 2, most).reshape(-1, *[1] * (len(shape) - 1))
            return rng.integers(0, levels, shape).astype(dtype)

        rows = jax.tree.map(made_up, data._stand_in)
        record_key = random.fold_in(random.fixed(0), jnp.arange(self.chunk)) if self.method.per_record_key else None
        return rows, record_key

    @functools.cached_property
    def _on_made_up(self) -> Callable[..., clip.Scaled]:
        return jax.jit(self.clipped, compiler_options=self.options)

    def fingerprint(self, state: State, key: Key, thorough: bool) -> tuple[bytes, bool]:
        """Hash what the program makes of made-up records at a state; and say whether places matter there, if asked.

        Privacy: public: no record takes part.
        """
        here = self._on_made_up(state, self._made_up[0], key, self._made_up[1])
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(here):
            digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
        return digest.digest(), not thorough or not self.alike or self._same(here, state, key, _turned(self.chunk, 1))

    def _same(self, here: clip.Scaled, state: State, key: Key, places: np.ndarray) -> bool:
        """Whether made-up records at other places of a chunk, or of a smaller one, give the same bits."""
        moved = jax.tree.map(operator.itemgetter(places), self._made_up)
        there = self._on_made_up(state, moved[0], key, moved[1])
        pairs = zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True)
        return all(np.array_equal(np.asarray(one)[places], np.asarray(other)) for one, other in pairs)

    def _slots_are_alike(self, state: State, key: Key) -> tuple[bool, bool]:
        """Check on made-up records that a contribution depends neither on its place in a chunk nor on the chunk's size.

        Removing a record moves the others to other places. If a place changed the last bits of a contribution, all of
        them would change; such a method is run one record at a time instead (docs/proofs/clipping.md).
        """
        here = self._on_made_up(state, self._made_up[0], key, self._made_up[1])
        if not self.alike:  # the program could not be proved to keep records apart
            return False, False
        places = np.arange(self.chunk)
        alike = all(self._same(here, state, key, _turned(self.chunk, turn)) for turn in (1, self.chunk // 2 + 1))
        ends = (places[: self.tail], places[-self.tail :])
        return alike, bool(self.tail) and alike and all(self._same(here, state, key, end) for end in ends)


def _turned(count: int, turn: int) -> np.ndarray:
    return np.roll(np.arange(count), turn)


@functools.cache
def _known(option: str, value: bool) -> bool:
    """Whether the compiler of this JAX knows an option: there is no list to look it up in."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def versions() -> dict[str, str]:
    """Name the programs that take part in a step.

    Privacy: public.
    """
    packages = ("tacit", "jax", "jaxlib", "numpyro", "numpy", "cryptography")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {**found, "python": platform.python_version(), "device": jax.devices()[0].device_kind}


def _tag(secret: Key, key: Key, records: PyTree, program: str, origin: bytes) -> str:
    """Hash what decides the bits of a step, keyed by the secret: equal tags mean a replay shows nothing new."""
    digest = hmac.new(random.to_bytes(secret), digestmod=hashlib.sha256)
    machine = [platform.platform(), system.cores(), _processor(), _configuration()]
    surroundings = [program, versions(), machine, origin]
    digest.update(repr(surroundings).encode())
    digest.update(np.asarray(jax.random.key_data(key)).tobytes())
    if isinstance(records, files.Stored):
        digest.update(records.digest)
        return digest.hexdigest()
    if isinstance(records, shards.Shards):
        told = repr([program, versions(), np.asarray(jax.random.key_data(key)).tolist(), origin])
        return records.tags(secret, repr(machine).encode(), told.encode())
    for leaf in jax.tree.leaves(records):
        digest.update(repr((leaf.shape, str(leaf.dtype))).encode())
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
    return digest.hexdigest()


def _configuration() -> list[tuple[str, str]]:
    """Return the settings of JAX and XLA, all but those of its caches and logs."""
    apart = (
        "jax_compilation_cache",
        "jax_persistent_cache",
        "jax_log",
        "jax_traceback",
        "jax_enable_compilation_cache",
    )
    held = {name: str(value) for name, value in jax.config.values.items() if not name.startswith(apart)}
    variables = ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "TF_XLA_FLAGS")
    return sorted((held | {name: os.environ.get(name, "") for name in variables}).items())


def _processor() -> list[str]:
    """Name the processor and its instruction set, for which the program is compiled; nothing where it is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})


def _facts(data: PrivateData) -> Any:
    """Return all of the data that a compiled program depends on."""
    shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), data._records)
    return data._count, data._given, data.size, data.unit, shapes


def _arrays(state: State) -> State:
    return jax.tree.map(jnp.asarray, state)
