"""One fit over all processes that were started: ``python -m tacit.adapters.distribute -n 2 script.py [FOLDER]``."""

import sys
from pathlib import Path

import numpy as np

import tacit

tacit.distribute.start()  # before anything else of JAX

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "study")
SHARDS = 4
schema = tacit.Schema({"age": {"low": 18, "high": 100}, "ill": {"levels": ["no", "yes"]}}, unit="patient", size=8000)


def load(shard):
    """Return the records of one shard; with files: ``pandas.read_parquet(f"part-{shard}.parquet")``."""
    random = np.random.default_rng(shard)
    age = random.uniform(18, 100, 2000)
    return {"age": age, "ill": np.where(random.logistic(size=2000) < (age - 59) / 20, "yes", "no")}


data = tacit.distribute.seal(load, schema, shards=SHARDS, ledger=FOLDER / "ledger.jsonl")
model = tacit.formula("ill ~ age", schema, family="bernoulli")
budget = tacit.Budget(epsilon=1.0, delta=1e-6, unit="patient")
posterior = tacit.fit(model, data, budget, run_dir=FOLDER / "run")
if posterior.certificate is not None:  # process 0
    print(posterior)
