"""The engine against the reference: the same integers, bit for bit, or within the proved radius of a factored sum.

    python -m tests.test_engine 5000      the study: so many cases, each its own records, state, secret or step
    python -m tests.test_engine 1000 300  a part of it, from that program on

Methods are put together at random from a small grammar, and so are shapes, recipes, units and storage. Records and
states lie on a grid of multiples of 1/64 and 1/16, on which products and sums of a contribution are exact in any order:
what is compared is what the wall does with a contribution, not how a matrix product rounds. A program takes long to
compile, so several cases (other records, states, secrets and steps) are run on each.
"""

from __future__ import annotations

import hashlib
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine import random
from tacit.engine import runner as engine
from tacit.engine.step import Step
from tacit.ledger.file import Ledger
from tacit.types import Method, Requirement, SparseRows, State, is_sparse
from tacit.wall import clip, keys, streams
from tacit.wall.data import PrivateData
from tacit.wall.layout import Layout, released_size
from tacit.wall.step import Reference
from tacit.wall.units import Unit, sum_over_unit

EACH, EACH_OF_STUDY = 10, 25
"""Cases on one program, with every commit and in the study: compiling it takes as long as a hundred of them."""
PROGRAMS = 20
"""Programs that are tried with every commit."""
STEPS = 40
"""Steps of the shortest runs: one is drawn at a time. Of longer ones several are."""
CONTRIBUTION_ROUNDINGS = 8
"""Roundings of the numbers of a contribution itself that two compiled programs may do in other ways."""
FUNCTIONS: list[Callable[[Any], Any]] = [lambda x: x, jnp.tanh, jnp.abs, lambda x: jnp.sin(3 * x), lambda x: x * x]


class Program(NamedTuple):
    """What is compiled once: a method, a recipe, and where how many records are."""

    name: str
    method: Method
    mechanism: Mechanism
    count: int
    size: int | None
    width: int
    most: int
    stored: bool


class Engine:
    """The fast engine as a `Summation` with noise: its integers before they become a release."""

    def __init__(self, program: Program, data: PrivateData, dimension: int) -> None:
        class Recorded(Step):
            def finish(self, state: State, totals: Any, key: Any) -> State:
                narrow = [total.high is None for total in totals]
                highs = [t.low >> 16 if one else t.high for t, one in zip(totals, narrow, strict=True)]
                lows = [t.low & 0xFFFF if one else t.low for t, one in zip(totals, narrow, strict=True)]
                after = super().finish(state, totals, key)
                return {**after, "high": jnp.concatenate(highs), "low": jnp.concatenate(lows)}

        def contribute(state: State, *rest: Any) -> Any:
            return program.method.contribute(state["inner"], *rest)

        def update(state: State, release: Any, key: Any) -> State:
            return {**state, "full": jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(release.full)])}

        zero = jnp.zeros(dimension, jnp.int32)
        self.empty = {"high": zero, "low": zero, "full": jnp.zeros(dimension)}
        method = program.method._replace(
            init=lambda key: {"inner": program.method.init(key), **self.empty}, contribute=contribute, update=update
        )
        honest, engine.Step = engine.Step, Recorded  # type: ignore[misc]
        try:
            self.runner = engine.Runner(
                method, data, program.mechanism, secret=random.fixed(0), key=jax.random.key(7), ledgers=[Ledger()],
                run="test", kind="fit", title="test", simulation=True,
            )  # fmt: skip
        finally:
            engine.Step = honest  # type: ignore[misc]

    @property
    def step(self) -> Any:
        return self.runner._step

    def noisy(self, state: State, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the noisy integers of a step, in the order in which they are summed, and the release."""
        after = self.runner.advance({"inner": state, **self.empty}, step, step + 1)
        return np.asarray(after["high"]).astype(np.int64) * 65536 + np.asarray(after["low"]), np.asarray(after["full"])

    def leaves(self, integers: np.ndarray) -> list[np.ndarray]:
        """Part integers into those of each leaf of a contribution."""
        step = self.step
        blocks = np.split(integers, np.cumsum(step.blocks.sizes)[:-1])
        plain, products, tables = step.blocks.kinds(blocks)
        first, products, tables = 0, iter(products), iter(tables)
        found = []
        for leaf, product in zip(
            jax.tree.leaves(step.contributions.shape, is_leaf=is_sparse), step.contributions.outers, strict=True
        ):
            if is_sparse(leaf):
                found.append(next(tables))
            elif product:
                found.append(np.ravel(product.leaf(next(products).reshape(product.rows, product.columns))))
            else:
                found.append(plain[first : first + leaf.size])
                first += leaf.size
        return found


def leaf_of(kind: str, rng: np.random.Generator, width: int) -> Callable[..., Any]:
    """Make one leaf of a contribution of a kind: a function of state, record, and the record's own key."""
    f, g = (FUNCTIONS[i] for i in rng.integers(0, len(FUNCTIONS), 2))
    shift, line = float(rng.integers(-8, 9)) / 8, int(rng.integers(1, 6))
    left, right = int(rng.integers(64, 90)), int(rng.integers(64, 90))

    def tiled(x: Any, size: int) -> Any:
        return jnp.tile(x, -(-size // len(x)))[:size]

    def sparse(state: Any, record: Any) -> SparseRows:
        count = 5 + line
        index = (record["k"] * line + jnp.arange(4)) % (count + 2) - 1  # some beside the table
        index = jnp.where(record["k"] == 1, index // 2, index)  # some twice
        return SparseRows(index, f(tiled(record["x"], 12)).reshape(4, 3), count)

    kinds: dict[str, Callable[..., Any]] = {
        "dense": lambda state, record, record_key: f(record["x"] * state + shift),
        "matrix": lambda state, record, record_key: jnp.stack([f(record["x"]), g(record["x"] + shift)]),
        "residual": lambda state, record, record_key: (jnp.dot(record["x"], state) - record["y"]) * record["x"],
        "number": lambda state, record, record_key: g(record["y"] + shift),
        "sparse": lambda state, record, record_key: sparse(state, record),
        "outer": lambda state, record, record_key: jnp.outer(
            f(tiled(record["x"], left)), g(tiled(record["x"] * state, right))
        ),
        "long": lambda state, record, record_key: f(tiled(record["x"] * state, 140_000)),
        "wide": lambda state, record, record_key: tiled(record["x"], 100) * g(record["y"]),
        "aligned": lambda state, record, record_key: jnp.array([2.0, 0.25]) + record["x"][0] / 1024,
        "bad": lambda state, record, record_key: (
            record["x"] * jnp.where(record["k"] == 3, jnp.nan, jnp.where(record["k"] == 4, jnp.inf, 1.0))
        ),
        "huge": lambda state, record, record_key: record["x"] * jnp.where(record["k"] == 5, 1e30, 1.0),
        "own": lambda state, record, record_key: record["x"] * jax.random.uniform(record_key, (width,)),
    }
    return kinds[kind]


def program_of(number: int) -> Program:
    """Make the program of a number: the same one every time."""
    rng = np.random.default_rng(number)
    width = int(rng.choice([1, 2, 3, 5, 8]))
    small = ["dense", "matrix", "residual", "number", "bad", "huge", "aligned"]
    kinds = list(rng.choice(small, int(rng.integers(1, 4)), replace=False))
    kinds += {1: ["sparse"], 2: ["own"], 3: ["outer"], 4: ["wide"], 6: ["sparse", "own"], 8: ["outer", "sparse"]}.get(
        number % 10, []
    )
    count = int(rng.choice([0, 1, 2, 7, 40, 250, 400], p=[0.05, 0.1, 0.1, 0.15, 0.2, 0.2, 0.2]))
    rate = 1.0 if number % 4 == 1 else float(rng.uniform(0.05, 0.95))
    size = max(1, int(count * rng.uniform(0.8, 1.3))) if rng.random() < 0.5 else None
    stored, most, clip = number % 10 == 5 and count > 0, 3 if number % 10 == 7 else 1, 2.0 ** rng.uniform(-3, 4)
    sigma, weighted = float(2.0 ** rng.uniform(-4, 4)), bool(rng.random() < 0.5)
    if number % 10 == 4:  # a regression's gradient, whose sum is a single-column product
        kinds, count, rate, size = ["wide", "number"], 300, 0.5, 300
    if number % 20 == 9:  # words of AES, in several parts
        kinds, count, most, sigma = ["long"], 3, 1, 4.0
    if number % 20 == 10:  # sums beyond what float32 holds
        kinds, count, rate, sigma, clip = ["aligned"], 400, 1.0, 0.15, 4.0
        weighted = False
    if number % 20 == 13:  # four chunks of 160, beyond the public number of them, and a full last one of 120
        kinds, count, rate, size = ["outer"], 760, 1.0, 280
    if number % 20 == 19:  # needs, and several chunks
        kinds = ["dense", "number"]
    parts = {f"{i}": leaf_of(kind, rng, width) for i, kind in enumerate(kinds)}
    per_record_key = "own" in kinds
    needs = (Requirement("k is not 2.", lambda record: record["k"] != 2),) if number % 3 == 1 else ()

    def contribute(state: State, record: Any, key: Any, mine: Any = None) -> Any:
        return {name: part(state, record, mine) for name, part in parts.items()}

    method = Method(
        lambda key: jnp.ones(width),
        contribute,
        lambda state, *_: state,
        lambda state, _: {},
        per_record_key=per_record_key,
        requirements=needs,
    )
    weights = tuple(float(w) for w in rng.uniform(0.2, 3, len(kinds))) if weighted else None
    steps = {9: STEPS, 13: 10**5}.get(number % 20, int(rng.choice([STEPS, 10 * STEPS, 100 * STEPS])))
    adjacency = "replace-one" if number % 5 == 2 else "add-remove"
    mechanism = Mechanism(rate, float(clip), sigma, steps, adjacency, weights)
    name = f"{number}: {'+'.join(map(str, kinds))}, {count} records, rate {rate:.2g}, {'disk' if stored else 'memory'}"
    return Program(
        name + (f", units of {most}" if most > 1 else ""), method, mechanism, count, size, width, most, stored
    )


def records_of(program: Program, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Make up records on a grid, for units too."""
    lead = (program.count, program.most) if program.most > 1 else (program.count,)
    return {
        "k": rng.integers(0, 6, lead).astype(np.int32),
        "x": (rng.integers(-256, 257, (*lead, program.width)) / 64).astype(np.float32),
        "y": (rng.integers(-128, 129, lead) / 64).astype(np.float32),
    }


def sealed(program: Program, records: dict[str, np.ndarray], rng: np.random.Generator, folder: Path) -> tuple[Any, Any]:
    """Seal records; return them, and as the reference reads them."""
    held: Any = records
    if program.most > 1:
        held = Unit(records, rng.random((program.count, program.most)) < 0.8)
    if not program.stored:
        return PrivateData(held, size=program.size), held
    for name, column in records.items():
        np.save(folder / f"{name}.npy", column)
    return tacit.read_columns(folder, size=program.size), held


class Found(NamedTuple):
    """How a case came out: whether its sums are factored, and the largest distance over what is allowed."""

    name: str
    factored: bool
    distance: float
    allowed: float
    same_release: bool


def compared(program: Program, cases: int, folder: Path, first: int = 0) -> Iterator[tuple[str, Found]]:
    """Run cases on a program, by the engine and by the reference; yield a hash of each case and what was found."""
    rng = np.random.default_rng([first, int(program.name.split(":")[0]), 1])
    records = records_of(program, rng)
    data, held = sealed(program, records, rng, folder)
    method = sum_over_unit(program.method) if program.most > 1 else program.method
    key, stand_in = jax.random.key(7), data._stand_in
    shape = jax.eval_shape(method.contribution, jnp.ones(program.width), stand_in, key, random.fixed(0))
    engine = Engine(program, data, Layout.of(shape, program.mechanism.weights).dimension)
    factoring = engine.step.contributions.factoring
    share = None if factoring is None else factoring.shrink(engine.step.radius)

    def record(place: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[place], held)

    reference = Reference(
        method, program.mechanism, stand_in, jnp.ones(program.width), count=program.count, record=record, key=key,
        share=share,
    )  # fmt: skip
    for case in range(cases):
        if case and not program.stored and case % 2 == 0:
            data, held = sealed(program, records_of(program, rng), rng, folder)
            engine.runner = engine.runner.rehearse(data, random.fixed(0), key)
        secret, step = random.fixed(int(rng.integers(0, 2**31))), int(rng.integers(0, program.mechanism.steps))
        state = jnp.asarray(rng.integers(-24, 25, program.width) / 16, jnp.float32)
        engine.runner.rekey(secret)
        digest = hashlib.sha256(repr((program.name, step, state.tolist())).encode() + random.to_bytes(secret))
        for leaf in jax.tree.leaves(held):
            digest.update(np.asarray(leaf).tobytes())
        noisy, full = engine.noisy(state, step)
        yield digest.hexdigest(), outcome(program, engine, reference, noisy, full, state, random.to_bytes(secret), step)


def outcome(
    program: Program,
    engine: Engine,
    reference: Reference,
    noisy: np.ndarray,
    full: np.ndarray,
    state: State,
    secret: bytes,
    step: int,
) -> Found:
    """Compare the noisy integers of one step with those of the reference."""
    drawn = np.concatenate(sorted_by_kind(reference, reference.noise(secret, step)))
    found = engine.leaves(noisy - drawn)
    release = engine.leaves(noisy)
    expected = np.concatenate(
        [
            one * (reference.unit / weight / program.mechanism.rate)
            for one, weight in zip(release, reference.layout.weights, strict=True)
        ]
    )
    same = bool(np.allclose(full, expected, rtol=1e-5, atol=1e-30))
    if engine.step.contributions.factoring is None:
        away = [np.abs(a - b) for a, b in zip(found, reference.total(state, secret, step), strict=True)]
        distance = float(max(one.max() for one in away))
        if distance == 0:
            return Found(program.name, False, 0.0, 0.0, same)
        near = ties(reference, state, secret, step)
        beyond = max(float((one - several).max()) for one, several in zip(away, near, strict=True))
        return Found(program.name, False, distance, distance - max(0.0, beyond), same)
    exact, count = unrounded(reference, state, secret, step)
    distance = math.sqrt(sum(float(np.sum((a - b) ** 2)) for a, b in zip(found, exact, strict=True)))
    return Found(program.name, True, distance, allowed(engine.step, count), same)


def sorted_by_kind(reference: Reference, leaves: list[np.ndarray]) -> list[np.ndarray]:
    """Return the leaves in the order in which noise is drawn: sparse ones last."""
    kinds = [is_sparse(leaf) for leaf in reference.layout.leaves]
    return [leaves[i] for i in sorted(range(len(leaves)), key=lambda i: kinds[i])]


def contributed(
    reference: Reference, state: State, secret: bytes, step: int
) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Yield what each record of a step's subset adds to each leaf, before it is rounded."""
    public = jax.random.fold_in(reference.key, step)
    for slot, place in enumerate(reference.subset(secret, step)):
        record_key = keys.from_bytes(streams.of_record(secret, step, slot)) if reference.method.per_record_key else None
        numbers, lines = reference.contributed(state, reference.record(place), public, record_key)
        yield reference.parted(np.asarray(numbers, np.float64), [np.asarray(one) for one in lines])


def unrounded(reference: Reference, state: State, secret: bytes, step: int) -> tuple[list[np.ndarray], int]:
    """Return the sum of the reference's clipped contributions before they are rounded, and of how many it is."""
    sums, count = [np.zeros(released_size(leaf)) for leaf in reference.layout.leaves], 0
    for record in contributed(reference, state, secret, step):
        count += 1
        for total, (places, mine) in zip(sums, record, strict=True):
            total[places] += mine
    return sums, count


def ties(reference: Reference, state: State, secret: bytes, step: int) -> list[np.ndarray]:
    """Count the records whose number lies so near to a half that the last bits decide to which side it is rounded.

    A record that is shortened is multiplied by its norm, which two programs may round in another last bit; under
    weights they may multiply a weight, the clip and the radius in another order (docs/proofs/clipping.md, B1 and B2).
    Any other number is a contribution times 1 / clip times the radius, in one order or the other: either product is
    rounded twice, so that both lie within four roundings; once, to the same, where the clip is a power of two. Of
    numbers farther from a half every bit must be the same.
    """
    near = [np.zeros(released_size(leaf)) for leaf in reference.layout.leaves]
    rounding = (clip.additions(reference.layout.length) + 16) * clip.UNIT_ROUNDOFF
    full = reference.share * reference.radius * (1 - rounding)
    for record in contributed(reference, state, secret, step):
        shortened = math.sqrt(sum(float(np.sum(mine**2)) for _, mine in record)) >= full
        several = shortened or reference.mechanism.weights is not None
        if not several and math.frexp(reference.mechanism.clip)[0] == 0.5:
            continue
        slack = rounding if several else 4 * clip.UNIT_ROUNDOFF
        for total, (places, mine) in zip(near, record, strict=True):
            total[places] += np.abs(np.abs(mine - np.floor(mine)) - 0.5) <= slack * np.abs(mine)
    return near


def allowed(step: Any, count: int) -> float:
    """Return how far a factored sum over so many records may be from the exact one (docs/proofs/clipping.md).

    With d_f numbers in products and d_p beside them: each block of b records is off by gamma_(b+2) of the sum of its
    norms and half a fine unit, each record beyond the chunks by half a fine unit, the total by half a unit, each
    record's plain numbers by half a unit; and a record's numbers before rounding by the roundings of a norm.
    """
    made, u = step.contributions.factoring, clip.UNIT_ROUNDOFF
    products = sum(rows * columns for rows, columns in made.pairs)
    chunks = math.ceil(count / made.chunk) if count else 0
    sums = chunks * math.ceil(made.chunk / made.block) + max(0, count - made.chunks * made.chunk)
    gamma = (made.block + 2) * u / (1 - (made.block + 2) * u)
    of_norm = max(clip.additions(n) + clip.additions(m) for n, m in (*made.pairs, (made.plain, 0))) + len(made.pairs)
    numbers = count * step.radius * (gamma + (2 * of_norm + 32 + CONTRIBUTION_ROUNDINGS) * u)
    return numbers + math.sqrt(products) * (0.5 + sums / 2 / 2**made.fine) + count * math.sqrt(made.plain) / 2


def check(found: Found) -> None:
    assert found.distance <= found.allowed, found
    assert found.same_release, found


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_the_engine_gives_the_integers_of_the_reference(number: int, tmp_path: Path) -> None:
    """Bit for bit, noise included; where sums are factored, within the proved radius of the exact sum."""
    distinct = set()
    for digest, found in compared(program_of(number), EACH, tmp_path):
        check(found)
        distinct.add(digest)
    assert len(distinct) == EACH


def study(cases: int, number: int = 0) -> int:
    """Compare so many cases, from a program on, and print what was found."""
    distinct: set[str] = set()
    results: list[Found] = []
    first = number
    while len(distinct) < cases:
        program = program_of(number)
        try:
            with tempfile.TemporaryDirectory() as folder:
                for digest, found in compared(program, EACH_OF_STUDY, Path(folder)):
                    distinct.add(digest)
                    results.append(found)
                    if found.distance > found.allowed or not found.same_release:
                        print("APART", found, flush=True)
        except ValueError as refused:
            print("refused", program.name, str(refused)[:100], flush=True)
        number += 1
        if number % 20 == 0:
            print(f"{len(distinct)} cases on {number - first} programs", flush=True)
            jax.clear_caches()
    plain = [one for one in results if not one.factored]
    factored = [one for one in results if one.factored]
    exact = sum(one.distance == 0 for one in plain)
    ratio = max((one.distance / one.allowed for one in factored if one.allowed), default=0.0)
    apart = sum(one.distance > one.allowed or not one.same_release for one in results)
    ties = sum(0 < one.distance <= one.allowed for one in plain)
    print(f"{len(distinct)} distinct cases on {number - first} programs.")
    print(f"{exact} of {len(plain)} without factored sums are equal bit for bit, {ties} but for ties in rounding.")
    print(f"Of {len(factored)} with factored sums the largest distance is {ratio:.3f} of what is allowed.")
    print(f"{apart} are apart.")
    return apart


if __name__ == "__main__":
    sys.exit(min(1, study(*map(int, sys.argv[1:] or [200]))))
