"""Foreseen and found: the contraction that ``fit`` expects before it spends anything, beside that of fits.

    python papers/coverage/foreseen.py

Logistic regressions as in few.py; the mean over the slopes, and over the fits of a cell. The constants of the
arithmetic were set on these cells, so that the table shows how rough it is, not how well it does elsewhere.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np
from few import NAMES, regression, simulate

import tacit
from tacit.run.foresight import foreseen
from tacit.run.plan import planned, title_of

CELLS = (
    (50, 0.1, 3),
    (200, 0.3, 3),
    (500, 0.3, 3),
    (500, 0.3, 8),
    (1000, 0.3, 8),
    (2000, 0.1, 3),
    (2000, 0.3, 8),
    (1000, 1.0, 8),
)
"""Records, epsilon, columns."""


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=2)
    given = parser.parse_args()
    print("| records | epsilon | columns | method | foreseen | found | least slope |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for size, epsilon, count in CELLS:
        names = NAMES[:count]
        schema, model = regression(names)
        budget, found = tacit.Budget(epsilon, 1e-6, "record"), []
        for fit in range(given.fits):
            records, _ = simulate(jax.random.key(fit), size, names)
            data = tacit.PrivateData(records, schema, size=size)
            built, mechanism, _ = planned(model, data, budget)
            posterior = tacit.fit(
                model, data, budget, simulate=fit, key=jax.random.key(fit), force=True, progress=False
            )
            found.append([float(np.mean(posterior.contraction[name])) for name in names])
        before = foreseen(model, title_of(built), size, mechanism, budget)
        assert before is not None
        expected = np.mean([before.contraction[name] for name in names])
        cells = (
            size,
            epsilon,
            count,
            title_of(built),
            *(f"{x:.2f}" for x in (expected, np.mean(found), np.min(found))),
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
