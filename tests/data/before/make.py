"""Runs of the version before, kept so that later versions still read, verify and resume them: see README.md.

``PYTHONPATH=src python make.py FOLDER``, in a checkout of that version, makes them anew.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit

VI: dict[str, Any] = {"rate": 0.5, "steps": 24, "clip": 2.0, "progress": False, "key": jax.random.key(0)}
SEGMENTS = 12
"""The fit that is cut off is killed when so many parts of it were charged and taken, before the last is kept."""


def records() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 120).astype(np.float32)
    return {"age": age, "readmitted": np.where(rng.uniform(size=120) < age / 100, "yes", "no")}


def schema() -> tacit.Schema:
    columns = {"age": {"low": 18, "high": 100}, "readmitted": {"levels": ["no", "yes"]}}
    return tacit.Schema(columns, unit="patient", size=120)


def model(age: Any, readmitted: Any = None) -> None:
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("readmitted", dist.Bernoulli(logits=slope * age), obs=readmitted)


def count(record: Any) -> float:
    return 1.0


def sealed(ledger: Any = None) -> tacit.PrivateData:
    return tacit.PrivateData(records(), schema(), ledger=ledger)


def budget(epsilon: float) -> tacit.Budget:
    return tacit.Budget(epsilon, 1e-5, unit="patient")


def formula() -> Any:
    return tacit.formula("readmitted ~ age", schema(), family="bernoulli")


def finished(folder: Path) -> None:
    """A formula, to its end: a run folder with ledger, anchor, certificate and posterior."""
    tacit.fit(formula(), sealed(), budget(1.0), run_dir=folder, progress=False, key=jax.random.key(0))


def cut_off(folder: Path) -> None:
    """A NumPyro model, killed half way."""
    run, kept = sys.modules["tacit.fit"]._Run, []
    checkpoint = run.checkpoint

    def dies(self: Any, state: Any, done: int, door: Any) -> None:
        kept.append(done)
        if len(kept) == SEGMENTS:
            raise KeyboardInterrupt
        checkpoint(self, state, done, door)

    run.checkpoint = dies
    with contextlib.suppress(KeyboardInterrupt):
        tacit.fit(tacit.vi(model), sealed(), budget(1.0), run_dir=folder, **VI)
    run.checkpoint = checkpoint


def capped(folder: Path) -> None:
    """A ledger with a cap, two questions, a fit and a refusal on it; and the certificate of the second question."""
    folder.mkdir()
    data = sealed(tacit.Ledger(folder / "ledger.jsonl", cap=tacit.Budget(4.0, 1e-5, unit="patient")))
    tacit.ask(data, count, budget(0.5), clip=1.0)
    tacit.fit(tacit.vi(model), data, budget(1.0), **VI)
    data.ledger.note("checked, refused", "records that do not suit a method")
    tacit.ask(data, count, budget(0.5), clip=1.0).certificate.save(folder / "answer")


if __name__ == "__main__":
    where = Path(sys.argv[1])
    finished(where / "finished")
    cut_off(where / "cut")
    capped(where / "capped")
