"""Table 3 of the d3p paper: drawing subsets. Ours are exact Poisson subsets, which the accountant assumes.

    python papers/d3p/sampler.py            (--quick for half a minute)

The paper compares d3p's Feistel sampler with ``jax.random.choice`` inside one epoch of the VAE (468 subsets of 128 of
60000 records) on a GPU. Here every sampler is timed by itself, over numbers of records and subset sizes, in one run,
on the processor: the least of interleaved repetitions. The machine is shared, so the fast samplers are timed by the
clock in many short runs, and the slow ones (``choice``, coin flips) by the smaller of clock and processor time, which
is the kinder one to them. Both are in results/sampler.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from peer_client import FOLDER, Peer, Time, figure_path, in_turns, timed, write_results

from tacit.engine import alias, random, sample
from tacit.types import Array

THEIRS = {"epoch with Feistel [s]": 0.56, "epoch with choice [s]": 0.66, "subsets": 468}
NAMES = {
    "tacit": "tacit, 64 at once",
    "tacit 1": "tacit, one at a time",
    "choice": "jax.random.choice",
    "coins": "N coin flips",
    "feistel": "d3p, Feistel",
}
SLOW = ("choice", "coins")


def poisson(records: int, batch: int, number: int, together: int) -> Callable[[], Array]:
    """Return a program that draws exact Poisson subsets, some at once as the wall does, and adds up their positions."""
    rate = batch / records
    room, tables = sample.room(records, rate), sample.gap_tables(rate, sample.digits_for(records))

    def group(g: Array, total: Array, secret: Array) -> Array:
        steps = together * g + jnp.arange(together)
        keys, more = random.fold_in(secret, 2 * steps + jnp.arange(2)[:, None])
        words = jax.vmap(lambda key: jax.random.bits(key, (len(tables) * room,), jnp.uint32))(keys)
        digits = alias.draw(tables, room, alias.Words(words), more)
        return total + jnp.sum(sample.subsets(digits, records))

    def program(secret: Array) -> Array:
        return jax.lax.fori_loop(0, number // together, lambda g, total: group(g, total, secret), jnp.int32(0))

    compiled, secret = jax.jit(program), random.fixed(0)
    return lambda: compiled(secret)


def choice(records: int, batch: int, number: int) -> Callable[[], Array]:
    """Return a program that draws subsets of a fixed size by JAX's own routine."""

    def one(i: Array, total: Array, key: Array) -> Array:
        return total + jnp.sum(jax.random.choice(jax.random.fold_in(key, i), records, (batch,), replace=False))

    compiled = jax.jit(lambda key: jax.lax.fori_loop(0, number, lambda i, total: one(i, total, key), 0))
    return lambda: compiled(jax.random.key(0))


def coins(records: int, batch: int, number: int) -> Callable[[], Array]:
    """Return a program that flips a coin for each record: Poisson subsets the long way, at a float32's rate."""
    rate, room = batch / records, sample.room(records, batch / records)

    def one(i: Array, total: Array, key: Array) -> Array:
        included = jax.random.bernoulli(jax.random.fold_in(key, i), rate, (records,))
        return total + jnp.sum(jnp.nonzero(included, size=room, fill_value=records)[0])

    compiled = jax.jit(lambda key: jax.lax.fori_loop(0, number, lambda i, total: one(i, total, key), 0))
    return lambda: compiled(jax.random.key(0))


def measure(records: int, batch: int, peer: Peer | None, rounds: int, subsets: int = 256) -> dict[str, Time]:
    """Time all samplers at one size, in turns. The slow ones draw fewer subsets, in fewer rounds."""
    few, some = max(1, 3 * 10**5 // records), max(1, 3 * 10**6 // records)
    slow = {"choice": timed(choice(records, batch, few), few), "coins": timed(coins(records, batch, some), some)}
    fast = {
        "tacit": timed(poisson(records, batch, subsets, 64), subsets),
        "tacit 1": timed(poisson(records, batch, subsets, 1), subsets),
    }
    if peer:
        fast["feistel"] = peer.timer(what="sampler", records=records, batch=batch, kind="feistel", number=subsets)
    return {**in_turns(fast, 20 * rounds), **in_turns(slow, rounds)}


def shown(name: str, row: dict[str, Any]) -> float:
    """Return the seconds that the table shows."""
    return min(row[name]) if name in SLOW else row[name].wall


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw time over the number of records, one panel a subset size."""
    import matplotlib.pyplot as plt

    batches = sorted({row["batch"] for row in rows})
    figure, panels = plt.subplots(1, len(batches), figsize=(4.2 * len(batches), 3.4), sharey=True, squeeze=False)
    colours = dict(zip(NAMES, ("C0", "C9", "C1", "C7", "C3"), strict=True))
    for panel, batch in zip(panels[0], batches, strict=True):
        some = [row for row in rows if row["batch"] == batch]
        for name, label in NAMES.items():
            if name in some[0]:
                times = [shown(name, row) * 1e3 for row in some]
                panel.loglog([row["records"] for row in some], times, "o-", color=colours[name], label=label)
        panel.set(title=f"subsets of {batch:.0f}", xlabel="records")
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("milliseconds a subset")
    panels[0][0].legend(fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the table; write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two sizes, one round, nothing written")
    parser.add_argument("--out", type=Path, help="folder for results/ and figures/")
    options = parser.parse_args()
    out = options.out or (None if options.quick else FOLDER)
    sizes = [10**4, 6 * 10**4] if options.quick else [10**4, 6 * 10**4, 10**5, 10**6, 10**7]
    batches = [128] if options.quick else [128, 1024]
    peer = Peer.start()
    names = [name for name in NAMES if peer or name != "feistel"]
    print("milliseconds a subset, and times tacit's (64 at once)\n")
    print(f"| records | subset | {' | '.join(NAMES[name] for name in names)} |\n|{'---|' * (len(names) + 2)}")
    rows = []
    for batch in batches:
        for records in sizes:
            row = measure(records, batch, peer, 1 if options.quick else 3)
            cells = [f"{shown(name, row) * 1e3:.3g} ({shown(name, row) / row['tacit'].wall:.2g})" for name in names]
            print(f"| {records:.0e} | {batch} | {' | '.join(cells)} |", flush=True)
            rows.append({"records": records, "batch": batch, **row})
    ours = next(row for row in rows if row["records"] == 60000 and row["batch"] == 128)
    print("\nan epoch of the VAE (468 subsets of 128 of 60000), the sampler's part in seconds:")
    print(", ".join(f"{NAMES[name]} {468 * shown(name, ours):.3f}" for name in names))
    print("the paper, whole epoch on a V100: Feistel .56, choice .66, so that choice costs at least .10")
    if out:
        versions = peer.ask(what="versions") if peer else {}
        figures = {
            "unit": "seconds a subset: by the clock, on the processor",
            "rows": rows,
            "paper": THEIRS,
            "peer": versions,
            "jax": jax.__version__,
        }
        write_results(out, "sampler", figures)
        plot(rows, figure_path(out, "sampler"))
    if peer:
        peer.close()


if __name__ == "__main__":
    main()
