"""Few records: what the defaults cover where a budget is too small for the records, by rehearsal of the real program.

    python papers/coverage/few.py                             all cells, what auto chooses and glm beside it
    python papers/coverage/few.py --replicates 20 --cells 0   a quick look

A logistic regression on columns that are even between -2 and 2, with the slopes 1, -0.5 and 0, in turn.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import jax
import numpy as np

import tacit
from tacit.methods.vi import vi
from tacit.run.auto import by_glm

CELLS = ((500, 0.3, 8), (50, 0.1, 3), (500, 0.3, 3), (2000, 1.0, 8), (500, 3.0, 3))
"""Records, epsilon, columns."""
NAMES = "abcdefgh"
SLOPES = {name: (1.0, -0.5, 0.0)[place % 3] for place, name in enumerate(NAMES)}
INTERCEPT = -0.3


def simulate(key: jax.Array, size: int, names: str = NAMES) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Make up records, and say from which coefficients."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    columns = {name: generator.uniform(-2, 2, size).astype(np.float32) for name in names}
    predictor = INTERCEPT + sum(SLOPES[name] * columns[name] for name in names)
    y = (generator.uniform(size=size) < 1 / (1 + np.exp(-predictor))).astype(int)
    truth = {"Intercept": INTERCEPT, **{name: SLOPES[name] for name in names}}
    return {**columns, "y": y}, {name: np.float32(value) for name, value in truth.items()}


def regression(names: str = NAMES) -> tuple[tacit.Schema, Any]:
    """Return the schema and the formula of a cell."""
    schema = tacit.Schema({**{name: {"low": -2.0, "high": 2.0} for name in names}, "y": {"levels": [0, 1]}})
    return schema, tacit.formula(f"y ~ {' + '.join(names)}", schema, family="bernoulli")


def main() -> None:
    """Print a line for each cell and method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--methods", nargs="*", default=["vi", "glm"])
    parser.add_argument("--cells", type=int, nargs="*", default=range(len(CELLS)))
    given = parser.parse_args()
    print("| method | records | epsilon | columns | coverage | without privacy | width over that without privacy |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for size, epsilon, count in (CELLS[place] for place in given.cells):
        names = NAMES[:count]
        schema, formula = regression(names)
        methods = {"auto": formula, "vi": vi(formula, formula.guide), "glm": by_glm(formula)}
        for name in given.methods:
            row = tacit.rehearse(
                methods[name],
                schema,
                tacit.Budget(epsilon, 1e-6, "record"),
                size=size,
                simulate=partial(simulate, names=names),
                replicates=given.replicates,
                key=jax.random.key(1),
            ).chosen
            cells = (name, size, epsilon, count, row.coverage, row.public_coverage, row.times_public)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
