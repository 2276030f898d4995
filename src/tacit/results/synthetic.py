"""What to make of analyses of several synthetic tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import stats

from tacit.ledger.certificate import Certificate
from tacit.results.posterior import Posterior


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
            f"The estimates have the shape {q.shape} and the variances {u.shape}. Pass both for each of at least two "
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
            "Posteriors are mixed that have the same sites, one for each synthetic table; pass at least one."
        )
    draws = {name: jnp.concatenate([one.draws[name] for one in posteriors]) for name in posteriors[0].draws}
    derived = f"draws of {len(posteriors)} analyses of synthetic tables, mixed" if certificate else ""
    return Posterior(draws, certificate, posteriors[0]._method, derived=derived)
