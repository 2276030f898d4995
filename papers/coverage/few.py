"""Few records: what the defaults cover where a budget is too small for the records, by rehearsal of the real program.

    python papers/coverage/few.py                       both cells, what auto chooses and glm beside it
    python papers/coverage/few.py --replicates 20       a quick look

A logistic regression on three columns that are even between -2 and 2, with the slopes 1, -0.5 and 0.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

import tacit
from tacit.methods.vi import vi
from tacit.run.auto import by_glm

CELLS = ((500, 0.3), (50, 0.1))
TRUTH = {"Intercept": -0.3, "a": 1.0, "b": -0.5, "c": 0.0}
SCHEMA = {**{name: {"low": -2.0, "high": 2.0} for name in "abc"}, "y": {"levels": [0, 1]}}


def simulate(key: jax.Array, size: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Make up records, and say from which coefficients."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    columns = {name: generator.uniform(-2, 2, size).astype(np.float32) for name in "abc"}
    predictor = TRUTH["Intercept"] + sum(TRUTH[name] * columns[name] for name in "abc")
    y = (generator.uniform(size=size) < 1 / (1 + np.exp(-predictor))).astype(int)
    return {**columns, "y": y}, {name: np.float32(value) for name, value in TRUTH.items()}


def main() -> None:
    """Print a line for each cell and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--methods", nargs="*", default=["auto", "vi", "glm"])
    parser.add_argument("--cells", type=int, nargs="*", default=[0, 1])
    given = parser.parse_args()
    schema = tacit.Schema(SCHEMA)
    formula = tacit.formula("y ~ a + b + c", schema, family="bernoulli")
    methods = {"auto": formula, "vi": vi(formula, formula.guide), "glm": by_glm(formula)}
    print("| method | records | epsilon | coverage | without privacy | width over that without privacy |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size, epsilon in (CELLS[place] for place in given.cells):
        for name in given.methods:
            row = tacit.rehearse(
                methods[name],
                schema,
                tacit.Budget(epsilon, 1e-6, "record"),
                size=size,
                simulate=simulate,
                replicates=given.replicates,
                key=jax.random.key(1),
            ).chosen
            cells = (name, size, epsilon, row.coverage, row.public_coverage, row.times_public)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
