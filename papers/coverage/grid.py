"""The grid: how often a user's intervals hold the truth, by model, design and epsilon, beside the ideal ones.

    python papers/coverage/grid.py --runs 10                        the tuning designs, the method that tacit chooses
    python papers/coverage/grid.py --part reporting --runs 200      designs that nothing was tuned on
    python papers/coverage/grid.py --unseen --runs 200              the last run, once nothing will be changed any more
    TACIT_DATA=... python papers/coverage/grid.py --part tables     real records, against the posterior of all of them
    python papers/coverage/grid.py --method pair_scores --cells 'logistic;student' --epsilons 1

The designs are in designs.py, which says how they are split; the non-private and the ideal posterior in
nonprivate.py, the figures and what passes in grid_summary.py. Without ``--method`` a cell measures what
``tacit.fit(model, data, budget)`` gives, with force=True where it would be refused: the column "says" has what the
user is told before.

Records, truth and both posteriors of a replicate follow from the design's name and its number. A cell is compiled once;
other records and seeds go through the same program, with the bits of ``tacit.fit``. What was computed is kept in the
folder ``--work``, replicate by replicate: a killed run goes on, and more ``--runs`` add to those that are there.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import designs as table  # noqa: E402
import grid_summary  # noqa: E402
import nonprivate  # noqa: E402
import study  # noqa: E402

import tacit  # noqa: E402
from tacit.engine import random  # noqa: E402
from tacit.engine.runner import Runner  # noqa: E402
from tacit.ledger.file import Ledger  # noqa: E402
from tacit.run.auto import by_glm  # noqa: E402
from tacit.run.draws import drawing  # noqa: E402
from tacit.run.foresight import foreseen  # noqa: E402
from tacit.run.plan import planned  # noqa: E402
from tacit.wall.data import encode  # noqa: E402

study.HERE = HERE
EPSILONS, DELTA = (0.1, 0.3, 1.0, 3.0, 10.0), 1e-6
METHODS = {
    "auto": lambda design: design.model,
    "glm": lambda design: by_glm(design.model),
    "vi": lambda design: tacit.vi(design.model, getattr(design.model, "guide", None)),
    "pair_scores": lambda design: tacit.pair_scores(design.model, design.schema),
}
PRIOR_DRAWS, OFTEN = 4000, 60
"""Draws from the prior for its widths; what was computed is kept at least every so many seconds."""


class Program:
    """Private fits of one cell, compiled once."""

    def __init__(self, design: Any, method: str, epsilon: float, records: Any) -> None:
        data = tacit.PrivateData(records, design.schema)
        self.budget = tacit.Budget(epsilon, DELTA, design.schema.unit)
        self.method, self.mechanism, title = planned(METHODS[method](design), data, self.budget)
        foresight = foreseen(self.method.model.source, title, data.size, self.mechanism, self.budget)
        said = [] if self.method.validated else ["no intervals"]
        if foresight is not None and foresight.is_noise:
            said.append("refuses")
        elif foresight is not None and foresight.at_prior:
            said.append(f"{len(foresight.at_prior)} stay at their prior")
        self.said = {"method": title, "says": ", ".join(said)}
        keys = {"secret": random.fixed(0), "key": jax.random.key(0), "ledgers": [Ledger()]}
        names = {"run": "grid", "kind": "fit", "title": title, "simulation": True}
        self.runner = Runner(self.method, data, self.mechanism, **keys, **names)
        self.init = jax.jit(lambda key: jax.tree.map(jnp.asarray, self.method.init(key)))
        self.draws = drawing(self.method)
        self.judged = jax.jit(jax.vmap(lambda draw: nonprivate.flattened(design.judge(draw))))

    def fit(self, design: Any, records: Any, seed: int) -> Any:
        """Return draws of what is judged: those of ``tacit.fit`` with this key and ``simulate``."""
        key, steps = jax.random.key(seed), self.mechanism.steps
        runner = self.runner.rehearse(tacit.PrivateData(records, design.schema), random.fixed(seed), key)
        state = runner.advance(self.init(key), 0, steps)
        return np.asarray(self.judged(self.draws(state, jax.random.fold_in(key, steps))))


def seed_of(name: str, replicate: int) -> int:
    """Return the seed of a replicate's fits."""
    return zlib.crc32(f"{name} {replicate}".encode()) % 2**31


def stored(design: Any, records: Any) -> dict[str, Any]:
    """Return records as a model gets them, without the ids of units."""
    columns = {name: records[name] for name in design.schema.columns}
    plain = tacit.Schema(dict(design.schema.columns))
    return {name: jnp.asarray(column) for name, column in encode(columns, plain).items()}


class Kept:
    """Arrays of replicates on disk, written now and then."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows, self.saved = path, [], time.time()
        if path.exists():
            with np.load(path) as file:
                found = {name: file[name] for name in file.files}
            self.rows = [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]

    def add(self, row: dict[str, Any]) -> None:
        """Add a replicate."""
        self.rows.append(row)
        if time.time() > self.saved + OFTEN:
            self.save()

    def save(self) -> None:
        """Write all replicates at once, so that a killed run leaves the old file or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.saved, beside = time.time(), self.path.with_suffix(".part.npz")
        np.savez_compressed(beside, **self.stacked(len(self.rows)))
        beside.replace(self.path)

    def stacked(self, count: int) -> dict[str, Any]:
        """Return the first replicates, one array for each name."""
        return {
            name: np.stack([np.asarray(row[name], np.float32) for row in self.rows[:count]]) for name in self.rows[0]
        }


class Reference(NamedTuple):
    """What the cells of a design are compared with: replicates without privacy, widths of the prior, names."""

    free: Kept
    prior: Any
    names: list[str]


def reference(name: str, design: Any, runs: int, work: Path) -> Reference:
    """Compute it, once for all epsilons and methods."""
    kept = Kept(work / f"{_file(name)}.npz")
    about = kept.path.with_suffix(".json")
    if len(kept.rows) < runs or not about.exists():
        records, latents = design.simulate(table.generator(name, 0))
        free = nonprivate.Free(design.model, stored(design, records), design.judge, design.sampled)
        for replicate in range(len(kept.rows), runs):
            kept.add(without_privacy(name, design, free, replicate))
        kept.save()
        prior = np.quantile(free.judged(free.prior(PRIOR_DRAWS)), (0.05, 0.95), axis=0)
        facts = {"prior": (prior[1] - prior[0]).tolist(), "names": nonprivate.labels(design.judge(latents))}
        about.write_text(json.dumps(facts))
    facts = json.loads(about.read_text())
    return Reference(kept, np.asarray(facts["prior"]), facts["names"])


def without_privacy(name: str, design: Any, free: nonprivate.Free, replicate: int) -> dict[str, Any]:
    """Return one replicate's truth, non-private posterior and ideal widths."""
    rng = table.generator(name, replicate)
    records, latents = design.simulate(rng)
    columns, seed = stored(design, records), seed_of(name, replicate)
    truth = np.asarray(nonprivate.flattened(design.judge(latents)), np.float64)
    drawn, centre = free.draws(latents, columns, seed)
    ideal = free.ideal(centre, columns, design.schema.size, DELTA, EPSILONS)
    return {**grid_summary.described(free.judged(drawn), truth, rng), "truth": truth, "ideal": np.stack(ideal)}


def cell(
    name: str, design: Any, method: str, epsilon: float, runs: int, beside: Reference, work: Path
) -> dict[str, Any]:
    """Return the figures of one cell: its replicates are run, or taken from the folder; or why it does not run."""
    facts = {"records": design.schema.size * design.schema.max_records}
    kept = Kept(work / method / f"{_file(name)}, {epsilon:g}.npz")
    about, program, seconds = kept.path.with_suffix(".json"), None, []
    for replicate in range(len(kept.rows), runs):
        rng = table.generator(name, replicate)
        records, _ = design.simulate(rng)
        if program is None:
            try:
                program = Program(design, method, epsilon, records)
            except (ValueError, TypeError, AttributeError) as error:  # what tacit refuses by
                return {**facts, "method": method, "replicates": 0, "error": str(error).split(". ")[0][:200]}
        began = time.perf_counter()
        draws = program.fit(design, records, seed_of(name, replicate))
        seconds.append(time.perf_counter() - began)
        kept.add(grid_summary.described(draws, np.asarray(beside.free.rows[replicate]["truth"], np.float64), rng))
        if not about.exists():
            about.parent.mkdir(parents=True, exist_ok=True)
            about.write_text(json.dumps(program.said))
    kept.save()
    if len(seconds) > 1:  # the first one is compiled
        said = json.loads(about.read_text())
        about.write_text(json.dumps(said | {"seconds": round(float(np.median(seconds[1:])), 3)}))
    theirs = beside.free.stacked(runs)
    ideal, truth = theirs.pop("ideal")[:, EPSILONS.index(epsilon)], theirs.pop("truth")
    found = grid_summary.summary(kept.stacked(runs), theirs, truth, ideal, beside.prior, epsilon)
    return facts | json.loads(about.read_text()) | found | {"worst": beside.names[found["worst"]]}


def main() -> None:
    """Run the cells that were asked for, and write the table after each."""
    chosen = study.options(
        __doc__,
        part={"choices": [*table.PARTS[:2], "tables"], "default": "tuning", "help": "which designs"},
        unseen={"action": "store_true", "help": "the unseen designs: to be run last, once"},
        method={"choices": list(METHODS), "default": "auto", "help": "auto is what a user gets"},
        cells={"help": "designs, with semicolons; by default all of the part"},
        epsilons={"default": ",".join(f"{one:g}" for one in EPSILONS), "help": "with commas"},
        runs={"type": int, "default": 200, "help": "replicates"},
        work={"type": Path, "help": "where replicates are kept; by default work/ beside this file"},
    )
    part = "unseen" if chosen.unseen else chosen.part
    work = chosen.work or (chosen.out / "work" if chosen.quick else HERE / "work")
    builders = dict(table.DESIGNS)
    if part == "tables":
        import real_tables

        builders = real_tables.TABLES
    names = [name for name in builders if table.part(name) == part]
    wanted = chosen.cells.split(";") if chosen.cells else names[:1] if chosen.quick else names
    if unknown := [name for name in wanted if name not in names]:
        raise SystemExit(f"The part {part!r} has no designs {unknown}; it has {names}.")
    runs, epsilons = (2, [1.0]) if chosen.quick else (chosen.runs, [float(one) for one in chosen.epsilons.split(",")])
    title = f"grid_{part}" + (f"_{chosen.method}" if chosen.method != "auto" else "")
    kept = chosen.out / "results" / f"{title}.json"
    cells = json.loads(kept.read_text())["cells"] if kept.exists() else {}
    for name in wanted:
        design = builders[name]()
        beside = reference(name, design, runs, work)
        for epsilon in epsilons:
            key = f"{name}, {epsilon:g}"
            cells[key] = cell(name, design, chosen.method, epsilon, runs, beside, work)
            print(*grid_summary.row(key, cells[key]), sep=" | ", flush=True)
            order = [f"{one}, {epsilon:g}" for one in names for epsilon in EPSILONS]
            report(chosen.out, title, {one: cells[one] for one in order if one in cells}, len(order), chosen, part)
        jax.clear_caches()


def report(out: Path, title: str, cells: dict[str, Any], count: int, chosen: Any, part: str) -> None:
    """Write the numbers and the table of the cells that are done, of so many."""
    command = "python papers/coverage/grid.py " + ("--unseen" if part == "unseen" else f"--part {part}")
    command += (
        f" --method {chosen.method}" * (chosen.method != "auto") + f" --runs {2 if chosen.quick else chosen.runs}"
    )
    text = [
        f"Designs for {part}, {len(cells)} of {count} cells; δ = {DELTA:g}; coverage of central intervals.",
        study.table(grid_summary.HEADER, [grid_summary.row(*one) for one in cells.items()]),
        grid_summary.grid(cells.values()),
    ]
    with_numbers = {"epsilons": EPSILONS, "delta": DELTA, "cells": cells}
    study.save(out, title, command, "\n\n".join(text), with_numbers, None, quiet=True)


def _file(name: str) -> str:
    return name.replace("/", " ").replace("%", " percent")


if __name__ == "__main__":
    main()
