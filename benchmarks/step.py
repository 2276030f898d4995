"""The private step against the same step without privacy, and against the number of records.

    make bench        (python benchmarks/step.py)

A logistic regression with 100 coefficients is climbed by plain gradient steps on subsets of 256 records. The
non-private step uses the same subsets, drawn by the same sampler, and one gradient of the subset's summed
log-likelihood: no clip, no noise, no integers; or, with "quick subsets", 256 records drawn with replacement, as
nobody who wants privacy could. Steps are interleaved in one process; medians over rounds; only ratios mean anything.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.engine import alias, random, sample
from tacit.engine.runner import Runner
from tacit.engine.step import Step
from tacit.types import Array, Key, Record, State

COLUMNS, SUBSET, STEPS = 100, 256, 4096


def log_likelihood(w: Array, record: Record) -> Array:
    """One record's term."""
    return jax.nn.log_sigmoid((2 * record["y"] - 1) * (record["x"] @ w))


def method() -> tacit.Method:
    """Gradient ascent on the log-likelihood: the plainest post-processing of a score."""

    def contribute(w: State, record: Record, _: Key) -> Array:
        return jax.grad(log_likelihood)(w, record)

    def update(w: State, release: tacit.types.Release, _: Key) -> Array:
        return w + 1e-6 * release.full

    return tacit.Method(lambda key: jnp.zeros(COLUMNS), contribute, update, lambda w, _: {"w": w})


def private(data: tacit.PrivateData, count: int) -> Callable[[], object]:
    """Return the wall's private steps."""
    mechanism = tacit.Mechanism(rate=SUBSET / count, clip=5.0, noise_multiplier=1.3, steps=10**6)
    facts: dict[str, Any] = {"ledgers": (), "run": "bench", "kind": "fit", "title": "bench", "simulation": True}
    runner = Runner(method(), data, mechanism, secret=random.fixed(0), key=jax.random.key(0), **facts)
    return lambda: runner.advance(jnp.zeros(COLUMNS), 0, STEPS)


def whole(data: tacit.PrivateData, count: int, steps: int, simulation: bool) -> Callable[[], object]:
    """Return a whole run, with the fingerprints that tie its noise to the program; a simulation takes none."""
    mechanism = tacit.Mechanism(rate=SUBSET / count, clip=5.0, noise_multiplier=1.3, steps=steps)
    facts: dict[str, Any] = {"ledgers": (), "run": "bench", "kind": "fit", "title": "bench", "simulation": simulation}
    runner = Runner(method(), data, mechanism, secret=random.fixed(0), key=jax.random.key(0), **facts)

    def run() -> State:
        state: State = jnp.zeros(COLUMNS)
        for first in range(0, steps, runner.segment):
            state = runner.advance(state, first, min(first + runner.segment, steps))
        return state

    return run


def chunk(data: tacit.PrivateData) -> int:
    """Return the number of records that the wall takes at once."""
    mechanism = tacit.Mechanism(SUBSET / 60000, 5.0, 1.3, STEPS)
    return Step(method(), data, mechanism, jax.ShapeDtypeStruct((COLUMNS,), jnp.float32)).sizes.chunk


def public(records: dict[str, Array], count: int, chunk: int, drawn: bool) -> Callable[[], object]:
    """Return the compiled non-private segment; ``drawn`` says whether it draws its subsets or is given them."""
    rate = SUBSET / count
    room = sample.room(count, rate)
    width = -(-room // chunk) * chunk

    def draw(first: Array, number: int) -> Array:
        keys, more = random.fold_in(random.fixed(0), 2 * (first + jnp.arange(number)) + jnp.arange(2)[:, None])
        tables = sample.gap_tables(rate, sample.digits_for(count))
        words = jax.vmap(lambda key: jax.random.bits(key, (len(tables) * room,), jnp.uint32))(keys)
        digits = alias.draw(tables, room, alias.Words(words), more)
        return jnp.pad(sample.subsets(digits, count), ((0, 0), (0, width - room)), constant_values=count)

    def segment(w: Array, records: dict[str, Array], given: Array) -> Array:
        def one(positions: Array, w: Array) -> Array:
            def add(j: Array, total: Array) -> Array:
                chosen = jax.lax.dynamic_slice(positions, (j * chunk,), (chunk,))
                rows = jax.tree.map(lambda leaf: leaf.at[chosen].get(mode="clip"), records)

                def loss(w: Array) -> Array:
                    terms = jax.nn.log_sigmoid((2 * rows["y"] - 1) * (rows["x"] @ w))
                    return jnp.sum(jnp.where(chosen < count, terms, 0))

                return total + jax.grad(loss)(w)

            chunks = (jnp.sum(positions < count) + chunk - 1) // chunk
            return w + 1e-6 / rate * jax.lax.fori_loop(0, chunks, add, jnp.zeros(COLUMNS))

        if not drawn:
            return jax.lax.fori_loop(0, STEPS, lambda i, w: one(given[i], w), w)

        def group(g: Array, w: Array) -> Array:
            subsets = draw(64 * g, 64)
            return jax.lax.fori_loop(0, 64, lambda i, w: one(subsets[i], w), w)

        return jax.lax.fori_loop(0, STEPS // 64, group, w)

    given = jax.jit(lambda: draw(jnp.int32(0), STEPS))() if not drawn else jnp.zeros((1, 1), jnp.int32)
    program = jax.jit(segment)
    return lambda: jax.block_until_ready(program(jnp.zeros(COLUMNS), records, given))


def quick(records: dict[str, Array], count: int) -> Callable[[], object]:
    """Return the compiled non-private segment on subsets of a fixed size, drawn in the cheapest way."""

    def one(i: Array, carry: tuple[Array, Any, dict[str, Array]]) -> tuple[Array, Any, dict[str, Array]]:
        w, key, records = carry
        chosen = jax.random.randint(jax.random.fold_in(key, i), (SUBSET,), 0, count)
        rows = jax.tree.map(lambda leaf: leaf[chosen], records)
        terms = lambda w: jnp.sum(jax.nn.log_sigmoid((2 * rows["y"] - 1) * (rows["x"] @ w)))  # noqa: E731
        return w + 1e-6 * count / SUBSET * jax.grad(terms)(w), key, records

    program = jax.jit(lambda w, key, records: jax.lax.fori_loop(0, STEPS, one, (w, key, records))[0])
    return lambda: jax.block_until_ready(program(jnp.zeros(COLUMNS), jax.random.key(0), records))


def medians(programs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time the programs in turns, so that a busy moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for program in programs.values():
        program()
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            times[name].append((time.perf_counter() - start) / STEPS * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--largest", type=int, default=10**7, help="records in the last row (4 GB at 10**7)")
    options = parser.parse_args()
    generator = np.random.default_rng(0)

    def records(count: int) -> dict[str, Array]:
        x = generator.standard_normal((count, COLUMNS), dtype=np.float32)
        return {"x": jnp.asarray(x), "y": jnp.asarray((x[:, 0] > 0).astype(np.float32))}

    rows = records(60000)
    data = tacit.PrivateData(rows, size=60000)
    timed = medians(
        {
            "private": private(data, 60000),
            "non-private, same subsets drawn": public(rows, 60000, chunk(data), drawn=True),
            "non-private, subsets given": public(rows, 60000, chunk(data), drawn=False),
            "non-private, quick subsets": quick(rows, 60000),
        },
        options.rounds,
    )
    print(f"{COLUMNS} parameters, subsets of {SUBSET} of 60000 records\n\n| step | µs | ratio |\n|---|---|---|")
    for name, value in timed.items():
        print(f"| {name} | {value:.0f} | {timed['private'] / value:.2f} |")

    print("\n| steps of a run | ms | ms without fingerprints | fingerprints |\n|---|---|---|---|")
    lengths = (200, 1000, 5000, 25000)
    runs = {f"{n} {fixed}": whole(data, 60000, n, fixed) for n in lengths for fixed in (False, True)}
    timed = medians(runs, options.rounds)
    for n in lengths:
        real, fixed = (timed[f"{n} {kind}"] * STEPS / 1000 for kind in (False, True))  # medians are of STEPS steps
        print(f"| {n} | {real:.1f} | {fixed:.1f} | {real / fixed - 1:+.1%} |")

    print("\n| records | µs a private step | against 10^4 | µs non-private | against 10^4 |\n|---|---|---|---|---|")
    counts = [n for n in (10**4, 10**5, 10**6, 10**7) if n <= options.largest]
    programs = {}
    for n in counts:
        rows = records(n)
        programs[f"private {n}"] = private(tacit.PrivateData(rows, size=n), n)
        programs[f"public {n}"] = public(rows, n, chunk(data), drawn=True)
    timed = medians(programs, options.rounds)
    for n in counts:
        mine, theirs = (timed[f"{kind} {n}"] for kind in ("private", "public"))
        growth = mine / timed["private 10000"], theirs / timed["public 10000"]
        print(f"| {n:.0e} | {mine:.0f} | {growth[0]:.2f} | {theirs:.0f} | {growth[1]:.2f} |")


if __name__ == "__main__":
    main()
