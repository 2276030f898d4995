"""Synthetic data: which pairs of columns to ask for, and what to make of analyses of several synthetic tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import stats

from tacit.accounting.mechanism import Budget
from tacit.certificate import Certificate
from tacit.fit import ask
from tacit.methods import marginals as method
from tacit.posterior import Posterior
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
    columns = method.cut(data.schema, bins)
    sizes = {name: column.size for name, column in columns.items()}
    pairs = list(itertools.combinations(columns, 2))
    if not pairs:
        raise ValueError("The schema has one column only, and no pairs. Its marginal is all there is to ask for.")
    chosen = [tuple(query) for query in keep]
    largest = method.elimination(method.maximal(chosen, columns), sizes)[1]
    if largest > cells:
        raise ValueError(
            f"The marginals to keep need a table of {largest} cells, and {cells} are allowed. Keep fewer, cut numbers "
            "into fewer bins, or allow more cells."
        )

    def tables(record: Record) -> Any:
        return method.cells(columns, pairs, record)

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
        if method.elimination(method.maximal([*chosen, pair], columns), sizes)[1] <= cells:
            chosen.append(pair)
    return Chosen(chosen, answer.certificate)


class Combined(NamedTuple):
    """What several synthetic tables say together: estimates, their standard errors, intervals, degrees of freedom."""

    mean: np.ndarray
    std: np.ndarray
    low: np.ndarray
    high: np.ndarray
    freedom: np.ndarray


def combine(estimates: Any, variances: Any, *, level: float = 0.95) -> Combined:
    """Combine the same analysis of several synthetic tables by Rubin's rules for fully synthetic data.

    The variance is ``(1 + 1/m) b - u``: b between the estimates of the m tables, u the mean of their own. Where that is
    not positive, u is taken instead (Reiter 2002), as for tables as large as the real one. Valid if the tables
    come from draws of a posterior that knows of the privacy noise, as those of ``tacit.marginals`` do.

    Privacy: post-processing.

    Parameters
    ----------
    estimates, variances
        What an ordinary analysis of each table gives: tables along the first axis.
    level
        Of the intervals.
    """
    q, u = np.asarray(estimates, float), np.asarray(variances, float)
    if q.shape != u.shape or q.ndim == 0 or len(q) < 2:
        raise ValueError(
            f"The estimates have the shape {q.shape} and the variances {u.shape}. Give both for each of at least two "
            "synthetic tables, tables along the first axis."
        )
    if not (np.isfinite(q).all() and np.isfinite(u).all() and (u >= 0).all()):
        raise ValueError(
            "An estimate or a variance is not finite, or a variance negative. Variances are squares of standard "
            "errors: leave out what a table does not determine."
        )
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is the probability of an interval. Write level=0.95.")
    m, mean, within = len(q), q.mean(0), u.mean(0)
    between = (1 + 1 / m) * q.var(0, ddof=1)
    proper = between > within
    variance = np.where(proper, between - within, within)
    share = np.divide(within, between, out=np.zeros_like(within), where=proper)
    freedom = (m - 1) * np.where(proper, (1 - share) ** 2, 1.0)
    std = np.sqrt(variance)
    # Fewer degrees of freedom than one have no useful quantiles.
    reach = std * stats.t.ppf((1 + level) / 2, np.maximum(freedom, 1.0))
    return Combined(mean, std, mean - reach, mean + reach, freedom)


def mix(posteriors: Sequence[Posterior], certificate: Certificate | None = None) -> Posterior:
    """Mix the posteriors of the same Bayesian analysis of several synthetic tables: all their draws together.

    Valid as the tables' size grows beyond the real one's (Räisä, Jälkö, Honkela 2024), if they come from draws of a
    posterior that knows of the privacy noise: make them several times as large.

    Privacy: post-processing.

    Parameters
    ----------
    posteriors
        What ``tacit.fit_public`` gave for each table.
    certificate
        Of the posterior that the tables came from.
    """
    if not posteriors or any(set(one.draws) != set(posteriors[0].draws) for one in posteriors):
        raise ValueError(
            "Posteriors are mixed that have the same sites, one for each synthetic table; give at least one."
        )
    draws = {name: jnp.concatenate([one.draws[name] for one in posteriors]) for name in posteriors[0].draws}
    derived = f"draws of {len(posteriors)} analyses of synthetic tables, mixed" if certificate else ""
    return Posterior(draws, certificate, posteriors[0]._method, derived=derived)


def _dependence(table: np.ndarray, noise_std: float) -> float:
    """Give how many records a pair's table moves against independence, beyond twice what noise and chance would."""
    expected = np.outer(table.sum(1), table.sum(0)) / max(table.sum(), 1.0)
    alone = np.sqrt(2 / np.pi) * np.sqrt(noise_std**2 + np.maximum(expected, 0))
    return float(np.sum(np.abs(table - expected) - 2 * alone))
