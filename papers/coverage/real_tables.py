"""Real tables as designs of grid.py: subsamples, with a draw of the posterior of all records for the truth.

The posterior mean of a subsample of n of N records differs from that of all of them by an error of variance about
(1 - n / N) S, where S is the variance of the subsample's posterior; a draw of the posterior of all records adds
(n / N) S to it. Their sum is S, so that intervals that are right hold such a draw as often as they say, whatever n is.
Where the model is wrong they do not, and the non-private ones beside them show it.

The tables are those of auto.py. Of long ones 20000 records stand in for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import auto
import jax.numpy as jnp
import nonprivate
import numpy as np
from designs import Design, effects

import tacit
from tacit.wall.data import encode

SIZE, ALL = 5000, 20_000
"""Records of a fit at most, and of the table."""


def design(given: auto.Table) -> Design:
    """Return a table as a design; the posterior of all records is computed when the first subsample is drawn."""
    frame = given.read()[[*given.columns]].dropna().reset_index(drop=True)
    frame = frame.sample(min(len(frame), ALL), random_state=0)
    size = min(SIZE, int(0.8 * len(frame)))
    schema = tacit.Schema(given.columns, size=size)
    model = tacit.formula(given.formula, schema, given.family)
    sampled = bool(model.group_terms)
    judge = effects(model)
    whole: list[dict[str, Any]] = []

    def latents() -> dict[str, Any]:
        if not whole:
            columns = {name: jnp.asarray(column) for name, column in encode(frame, schema).items()}
            free = nonprivate.Free(model, columns, judge, sampled)
            whole.append({name: np.asarray(draw) for name, draw in free.draws(free.middle(), columns, 0)[0].items()})
        return whole[0]

    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
        rows = frame.iloc[rng.permutation(len(frame))[:size]]
        place = int(rng.integers(nonprivate.DRAWS))
        truth = {name: draws[place] for name, draws in latents().items()}
        return {name: rows[name].to_numpy() for name in frame}, truth

    return Design(schema, model, simulate, judge, sampled)


TABLES: dict[str, Callable[[], Design]] = {name: partial(design, one) for name, one in auto.TABLES.items()}
