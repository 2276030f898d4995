"""The wall: the only package that reads records. ``Door.advance`` is the only private operation in tacit.

One step draws a Poisson subset, lets each of its records contribute, clips, sums in integers, adds rounded Gaussian
noise, and hands the noisy sum to the method. The ledger line is on disk before a record is read.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import math
import operator
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from tacit.ledger import Ledger, Look
from tacit.mechanism import Mechanism
from tacit.types import Key, Method, PyTree, Record, Release, State
from tacit.wall import alias, clip, lattice, random, sample
from tacit.wall.data import PrivateData

CHUNK_NUMBERS = 1 << 18
"""Contributions held at once, in numbers: what fits a core's cache."""
DRAWN_AT_ONCE = 1 << 18
"""Random words drawn ahead at once."""


@final
class Door:
    """A method, a recipe and sealed records, compiled into one program that takes private steps.

    Privacy: reads records, in ``advance`` only. Everything is checked and compiled before the first look.

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
        if jax.config.read("jax_enable_x64"):
            raise ValueError(
                "JAX is in 64-bit mode, for which the integer arithmetic of the wall was not written. "
                "Switch it off: jax.config.update('jax_enable_x64', False)."
            )
        flags = os.environ.get("XLA_FLAGS", "").split()
        if any("enable_fast_math" in flag and not flag.endswith(("=false", "=0")) for flag in flags):
            raise ValueError(
                "XLA_FLAGS switches on fast math, under which NaN and rounding behave otherwise than the wall's proofs "
                "assume. Remove it."
            )
        state = jax.eval_shape(lambda key: _arrays(method.init(key)), key)
        _refuse_leaks(method, data, state, key)
        step = _Step(method, data, mechanism, state)
        lowered = jax.jit(step.segment).lower(state, 0, 0, secret, key, data._records)
        # The start decides the bits too, and is computed outside the segment.
        self._text = lowered.as_text() + jax.jit(lambda key: _arrays(method.init(key))).lower(key).as_text()
        self._program = lowered.compile()
        self._key, self._records, self._ledgers = key, data._records, tuple(ledgers)
        self._look = Look(run, kind, title, mechanism, 0, mechanism.steps, "none yet", data.unit, simulation)
        self.rekey(secret)
        self.distance = step.dimension * lattice.NOISE_DISTANCE + (mechanism.rate < 1) * sample.distance()

    def rekey(self, secret: Key) -> None:
        """Take another secret key, and with it another tag: nothing charged under the old one is replayed.

        Privacy: reads records, for a keyed hash that only the holder of the secret can check.
        """
        self._secret, self.tag = secret, _tag(secret, self._key, self._records, self._text)
        # Subsets and noise come from the secret AND the tag: other data or another program never meets the same noise,
        # whoever copied, shared or restarted the run's folder. A simulation hides nothing, and is compared across data.
        stream = hmac.new(random.to_bytes(secret), b"stream " + self.tag.encode(), "sha256").digest()
        self._stream = secret if self._look.simulation else random.from_bytes(stream)

    def advance(self, state: State, first: int, stop: int) -> State:
        """Take the private steps ``first`` to ``stop - 1``; the ledger line is on disk before a record is read.

        Privacy: reads records. A step that this run has already taken with the same key, data and program gives the
        same bits again and is free; anything else is charged.
        """
        look = replace(self._look, first=first, stop=stop, tag=self.tag)
        for ledger in self._ledgers:
            ledger.charge(look)
        return jax.block_until_ready(self._program(state, first, stop, self._stream, self._key, self._records))

    def seal(self, content: bytes) -> str:
        """Give a keyed hash of public content that shows it was made under this key, data and program.

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

    def __init__(self, method: Method, data: PrivateData, mechanism: Mechanism, state: State) -> None:
        self.method, self.mechanism, self.count = method, mechanism, data._count
        self.shape = jax.eval_shape(method.contribution, state, data.placeholder, jax.random.key(0), random.fixed(0))
        leaves = jax.tree.leaves(self.shape)
        self.weights = mechanism.weights or (1.0,) * len(leaves)
        if len(self.weights) != len(leaves):
            raise ValueError(
                f"The mechanism has {len(self.weights)} block weights, but a contribution has {len(leaves)} leaves. "
                "Give one weight for each leaf, in the order of jax.tree.leaves, or none."
            )
        if any(not jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype.kind == "c" for leaf in leaves):
            raise TypeError("A contribution must be a pytree of real numbers; cast booleans to float first.")
        self.dimension = sum(leaf.size for leaf in leaves)
        if not self.dimension:
            raise ValueError("A contribution is empty: the model has nothing to learn from the records.")
        self.radius = lattice.radius(mechanism.noise_multiplier)
        clip.shrink(self.dimension, self.radius)  # refuses what rounding would spoil
        self.unit = mechanism.clip / self.radius
        self.chunk = self._chunk(data.size)
        self.room = sample.room(self.count, mechanism.rate) if mechanism.rate < 1 and self.count else self.count
        self.together = max(1, min(64, DRAWN_AT_ONCE // (2 * self.dimension + self.room + 1)))
        self.alike = True
        self.alike = self._slots_are_alike(data)

    def _chunk(self, size: int | None) -> int:
        # From public numbers only: a program whose shapes followed the private number of records could round the
        # contributions of all records differently on neighbouring data.
        expected = 128 if size is None else self.mechanism.rate * size
        wanted = math.ceil((expected + 3 * math.sqrt(expected)) / 64) * 64
        exact = ((1 << 31) - 1) // (self.radius + 1)
        return max(1, min(wanted, max(64, CHUNK_NUMBERS // self.dimension), exact))

    def segment(
        self, state: State, first: Int32[Array, ""], stop: Int32[Array, ""], secret: Key, key: Key, records: PyTree
    ) -> State:
        """Take the steps first..stop-1; randomness belongs to the step, so the grouping changes no bit."""

        def group(carry: tuple[Array, State]) -> tuple[Array, State]:
            start, state = carry
            steps = start + jnp.arange(self.together)
            noise, subsets = self.draw(secret, steps)
            keys = random.fold_in(key, steps)
            own = self.own_keys(secret, steps)

            def one(i: Array, state: State) -> State:
                mine = None if own is None else own[i]
                total = lattice.add(self._sum(state, records, subsets, i, keys[i], mine), noise[i])
                return _arrays(self.method.update(state, self._release(total), keys[i]))

            return start + self.together, jax.lax.fori_loop(0, jnp.minimum(self.together, stop - start), one, state)

        return jax.lax.while_loop(lambda carry: carry[0] < stop, group, (jnp.asarray(first), state))[1]

    def draw(
        self, secret: Key, steps: Int32[Array, "steps"]
    ) -> tuple[Int32[Array, "steps d"], Int32[Array, "_ width"]]:
        """Draw the noise and the subsets of some steps; a step's depend on the secret and its number only."""
        everyone = self.mechanism.rate == 1 or not self.count
        gaps = () if everyone else sample.gap_tables(self.mechanism.rate, sample.digits_for(self.count))
        sizes = [self.dimension] * 2 + [self.room] * len(gaps)
        keys, more = random.fold_in(secret, 2 * steps + jnp.arange(2)[:, None])
        words = jax.vmap(lambda key: jax.random.bits(key, (sum(sizes),), jnp.uint32))(keys)
        tables = [*lattice.tables(), *gaps]
        coarse, fine, *digits = alias.draw(tables, jnp.split(words, np.cumsum(sizes)[:-1], 1), more)
        # With no records at all there is still one chunk, empty: neighbours must not differ in whether a step works.
        width = max(1, math.ceil(self.room / self.chunk)) * self.chunk
        if everyone:
            subsets = jnp.minimum(jnp.arange(width, dtype=jnp.int32), self.count)[None]
        else:
            room = ((0, 0), (0, width - self.room))
            subsets = jnp.pad(sample.subsets(digits, self.count), room, constant_values=self.count)
        return lattice.noise(coarse, fine), subsets

    def own_keys(self, secret: Key, steps: Int32[Array, "steps"]) -> Key | None:
        """Give each step the secret key from which its records get theirs; nothing where the method wants none."""
        # Noise and subsets come from children by fold_in, of which none is left: these are children of a split.
        return random.fold_in(jax.random.split(secret, 1)[0], steps) if self.method.own else None

    def _sum(
        self,
        state: State,
        records: PyTree,
        subsets: Int32[Array, "steps width"],
        i: Array,
        key: Key,
        own: Key | None = None,
    ) -> lattice.Sum:
        """Add up the subset in chunks of one fixed shape; an empty subset is an empty sum."""
        row = i if subsets.shape[0] > 1 or self.together == 1 else 0
        included = jnp.sum(subsets[row] < self.count)

        def add_chunk(j: Array, total: lattice.Sum) -> lattice.Sum:
            positions = jax.lax.dynamic_slice(subsets, (row, j * self.chunk), (1, self.chunk))[0]
            rows = jax.tree.map(lambda leaf: leaf.at[positions].get(mode="clip"), records)
            mine = None if own is None else random.fold_in(own, j * self.chunk + jnp.arange(self.chunk))
            integers = self.integers(state, rows, key, mine)
            return lattice.add(total, self._exact_sum(integers, positions < self.count))

        chunks = (included + self.chunk - 1) // self.chunk
        return jax.lax.fori_loop(0, chunks, add_chunk, lattice.zero(self.dimension))

    def _exact_sum(self, integers: Int32[Array, "chunk d"], present: Bool[Array, "chunk"]) -> Int32[Array, "d"]:
        return jnp.sum(jnp.where(present[:, None], integers, 0), axis=0)

    def integers(self, state: State, rows: PyTree, key: Key, own: Key | None = None) -> Int32[Array, "chunk d"]:
        """Give the clipped contributions of a chunk of records as lattice vectors, one a row."""

        def vector(mine: tuple[Record, Key | None]) -> Float32[Array, "d"]:
            leaves = jax.tree.leaves(self.method.contribution(state, mine[0], key, mine[1]))
            flat = [
                jnp.ravel(leaf).astype(jnp.float32) * weight for leaf, weight in zip(leaves, self.weights, strict=True)
            ]
            return jnp.concatenate(flat)

        vectors = jax.vmap(vector)((rows, own)) if self.alike else jax.lax.map(vector, (rows, own))
        return clip.to_integers(vectors, self.mechanism.clip, self.radius)

    def _release(self, total: lattice.Sum) -> Release:
        numbers = lattice.to_float(total, self.unit)
        leaves, structure = jax.tree.flatten(self.shape)
        ends = np.cumsum([leaf.size for leaf in leaves])
        parts = [
            part.reshape(leaf.shape) / jnp.float32(weight)
            for part, leaf, weight in zip(jnp.split(numbers, ends[:-1]), leaves, self.weights, strict=True)
        ]
        std = [jnp.float32(lattice.RHO * self.unit / weight) for weight in self.weights]
        rate = jnp.float32(self.mechanism.rate)
        return Release(
            total=jax.tree.unflatten(structure, parts),
            noise_std=jax.tree.unflatten(structure, std),
            rate=rate,
            full=jax.tree.unflatten(structure, [part / rate for part in parts]),
        )

    def _slots_are_alike(self, data: PrivateData) -> bool:
        """Check on made-up records that a contribution does not depend on its place in the chunk.

        Removing a record moves the others to other places. If a place changed the last bits of a contribution, all of
        them would change; such a method is run one record at a time instead (docs/proofs/clipping.md).
        """
        keys = iter(jax.random.split(jax.random.key(0), 1 + len(jax.tree.leaves(data.placeholder))))
        state = _arrays(self.method.init(next(keys)))

        def made_up(leaf: Array) -> Array:
            shape, dtype = (self.chunk, *np.shape(leaf)), np.asarray(leaf).dtype
            if jnp.issubdtype(dtype, jnp.floating):
                return jax.random.normal(next(keys), shape, dtype)
            return jax.random.bernoulli(next(keys), shape=shape).astype(dtype)

        rows = jax.tree.map(made_up, data.placeholder)
        own = random.fold_in(random.fixed(0), jnp.arange(self.chunk)) if self.method.own else None
        program = jax.jit(self.integers)
        here = program(state, rows, jax.random.key(1), own)
        for places in (np.roll(np.arange(self.chunk), turn) for turn in (1, self.chunk // 2 + 1)):
            moved = jax.tree.map(operator.itemgetter(places), (rows, own))
            there = program(state, moved[0], jax.random.key(1), moved[1])
            if not jnp.array_equal(here[places], there):
                return False
        return True


def versions() -> dict[str, str]:
    """Name the programs that take part in a step.

    Privacy: public.
    """
    packages = ("tacit", "jax", "jaxlib", "numpyro", "numpy", "dp-accounting")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {**found, "python": platform.python_version(), "device": jax.devices()[0].device_kind}


def _tag(secret: Key, key: Key, records: PyTree, program: str) -> str:
    """Hash what decides the bits of a step, keyed by the secret: equal tags mean a replay shows nothing new."""
    digest = hmac.new(random.to_bytes(secret), digestmod=hashlib.sha256)
    machine = [platform.platform(), os.environ.get("XLA_FLAGS", ""), sorted(os.sched_getaffinity(0)), _processor()]
    surroundings = [program, versions(), machine]
    digest.update(repr(surroundings).encode())
    digest.update(np.asarray(jax.random.key_data(key)).tobytes())
    for leaf in jax.tree.leaves(records):
        digest.update(repr((leaf.shape, str(leaf.dtype))).encode())
        digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
    return digest.hexdigest()


def _processor() -> list[str]:
    """Name the processor and its instruction set, for which the program is compiled; nothing where it is not told."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})


def _refuse_leaks(method: Method, data: PrivateData, state: State, key: Key) -> None:
    """Refuse a method that could carry records around the wall: in an array it holds, or by a call-back."""
    given = (state, data.placeholder, key, random.fixed(0))
    contribution = jax.eval_shape(method.contribution, *given)
    release = Release(contribution, contribution, jnp.float32(1), contribution)
    traced = {
        "init": jax.make_jaxpr(method.init)(key),
        "contribute": jax.make_jaxpr(method.contribution)(*given),
        "update": jax.make_jaxpr(method.update)(state, release, key),
        "draw": jax.make_jaxpr(method.draw)(state, key),
    }
    lengths = {data._count, data._given} - {0, 1}
    for name, jaxpr in traced.items():
        arrays, calls = _contents(jaxpr)
        if calls:
            raise ValueError(
                f"The method's {name} calls out of the compiled program ({', '.join(sorted(calls))}). A record could "
                "leave that way; remove the print or callback."
            )
        # By chance a short public array is as long as a small data set; only its leading axis is looked at then.
        axes = [axis for array in arrays for axis in np.shape(array)[: None if data._count > 50 else 1]]
        if lengths.intersection(axes):
            raise ValueError(
                f"The method's {name} holds an array with as many rows as there are records. A model that captured "
                "the data would read it outside the wall; take the records as the model's arguments instead. If the "
                "array is public, pad it by one row."
            )


def _contents(jaxpr: Any) -> tuple[list[Any], set[str]]:
    """Give every array that a traced function holds and every call-back it makes, those of inner functions included."""
    arrays, calls = list(getattr(jaxpr, "consts", ())), {str(effect) for effect in jaxpr.effects}
    for equation in jaxpr.eqns:
        arrays += [atom.val for atom in equation.invars if hasattr(atom, "val")]
        if "callback" in equation.primitive.name:
            calls.add(equation.primitive.name)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(parameter, "eqns"):
                inner = _contents(parameter)
                arrays, calls = arrays + inner[0], calls | inner[1]
    return arrays, calls


def _arrays(state: State) -> State:
    return jax.tree.map(jnp.asarray, state)
