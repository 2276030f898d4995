"""Choosing marginals: which pairs of columns depend on one another most, for a part of a budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.accounting.mechanism import Budget
from tacit.ledger.certificate import Certificate
from tacit.methods import marginal_tables
from tacit.methods.cuts import cut
from tacit.run.ask import ask
from tacit.types import Record
from tacit.wall.data import PrivateData

CELLS = 1 << 14
"""The largest table that chosen pairs may need."""


class Chosen(NamedTuple):
    """Marginals for ``tacit.marginals``, those asked to be kept first, and the certificate of the choice."""

    queries: list[tuple[str, ...]]
    certificate: Certificate


def choose_pairs(
    data: PrivateData,
    budget: Budget,
    *,
    keep: Iterable[Sequence[str]] = (),
    bins: Mapping[str, int | Sequence[float | int]] | None = None,
    number: int | None = None,
    cells: int = CELLS,
    simulate: int | None = None,
) -> Chosen:
    """Choose the pairs of columns that depend on one another most, by one noisy release of all pairs.

    Pairs are taken one after another, the farthest from independence first, as long as exact computations with them
    stay feasible and noise alone does not explain what is seen.

    Privacy: reads records, through the wall. The choice is (epsilon, delta)-differentially private and on the ledger;
    ``budget.split`` shares one budget between it and the fit.

    Parameters
    ----------
    data
        The sealed records, with their schema.
    budget
        What the choice may cost.
    keep
        Marginals that are wanted in any case: those of the planned analysis, a public choice.
    bins
        As in ``tacit.marginals``.
    number
        How many pairs to choose at most beside those; by default as many as there are columns. Each costs noise in all.
    cells
        The largest table that exact computations may need.
    simulate
        As in ``tacit.fit``.
    """
    if data.schema is None:
        raise ValueError(
            "These records came without a schema, and marginals need its levels and bounds. Write "
            "tacit.PrivateData(records, schema)."
        )
    columns = cut(data.schema, bins)
    sizes = {name: column.size for name, column in columns.items()}
    pairs = list(itertools.combinations(columns, 2))
    if not pairs:
        raise ValueError("The schema has one column only, and no pairs. Its marginal is all there is to ask for.")
    chosen = [tuple(query) for query in keep]
    largest = marginal_tables.elimination(marginal_tables.maximal(chosen, columns), sizes)[1]
    if largest > cells:
        raise ValueError(
            f"The marginals to keep need a table of {largest} cells, and {cells} are allowed. Keep fewer, cut numbers "
            "into fewer bins, or allow more cells."
        )

    def tables(record: Record) -> Any:
        return marginal_tables.cells(columns, pairs, record)

    answer = ask(data, tables, budget, clip=len(pairs) ** 0.5, simulate=simulate)
    strength = {
        pair: _dependence(np.asarray(answer.value[":".join(pair)]), float(np.max(answer.noise_std[":".join(pair)])))
        for pair in pairs
    }
    most = len(chosen) + (len(columns) if number is None else number)
    for pair in sorted(pairs, key=lambda pair: -strength[pair]):
        held = any(set(pair) <= set(query) for query in chosen)
        if held or strength[pair] <= 0 or len(chosen) == most:
            continue
        if marginal_tables.elimination(marginal_tables.maximal([*chosen, pair], columns), sizes)[1] <= cells:
            chosen.append(pair)
    return Chosen(chosen, answer.certificate)


def _dependence(table: np.ndarray, noise_std: float) -> float:
    """Return how many records a pair's table moves against independence, beyond twice what noise and chance would."""
    expected = np.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1.0)
    alone = np.sqrt(2 / np.pi) * np.sqrt(noise_std**2 + np.maximum(expected, 0))
    return float(np.sum(np.abs(table - expected) - 2 * alone))
