"""Selection: a paid choice among candidates, by repeat and select (Liu and Talwar 2019; Papernot and Steinke 2022)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Budget, Mechanism, calibrate
from tacit.engine import random as secret_random
from tacit.engine.repeat import best_of
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.ledger.provenance import whose
from tacit.methods.scored import ScoredState, scored
from tacit.results.numbers import fingerprint
from tacit.results.posterior import Posterior
from tacit.run.certify import certify, leave_room, released_numbers
from tacit.run.draws import posterior_of
from tacit.run.plan import STEPS, built_for, check_types, default_rate, plan_for, refuse_unsuited, suited_clip, title_of
from tacit.run.rehearse import LogLikelihood
from tacit.types import Key, Method, MethodFor, Plan
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision

ASKING = 0.1
"""The share of the steps that goes to the score."""
TIMES = 3.0
"""Each candidate is run so many times on average."""


class Selected(NamedTuple):
    """The best run of a selection.

    Attributes
    ----------
    name
        The candidate it was of.
    posterior
        Its posterior, with the certificate of the whole selection.
    score
        The noisy sum over all records of their log predictive density, as it was compared.
    """

    name: str
    posterior: Posterior
    score: float

    def fingerprints(self) -> dict[str, str]:
        """Return SHA-256 hashes of the posterior's numbers, and of the score with the candidate's name.

        Privacy: post-processing.
        """
        return {**self.posterior.fingerprints(), "score": _fingerprint(self.name, self.score)}

    def verify(self, ledger: Ledger | None = None) -> str:
        """Check the certificate, and that this is what it was issued for; say what was found.

        Privacy: post-processing.
        """
        assert self.posterior.certificate is not None
        return self.posterior.certificate.verify(ledger, self)


@single_precision
def select(
    candidates: Mapping[str, Method | MethodFor | Mapping[str, Any]],
    data: PrivateData,
    budget: Budget,
    *,
    repeats: float | None = None,
    rate: float | None = None,
    steps: int = STEPS,
    bound: float = 2.0,
    log_likelihood: LogLikelihood | None = None,
    adjacency: str = "add-remove",
    key: Key,
    simulate: int | None = None,
) -> Selected:
    """Fit the best of several candidates within one budget.

    A secret number of runs is made, each of a candidate at random, and only the best is shown: the one under which the
    records are most likely, asked for in its last steps. The budget is that of everything together, and charged before
    the first run; a selection that is killed has been paid for and cannot be resumed. It costs more than a fit: choose
    by ``rehearse``, which is free, where made-up records can tell candidates apart.

    Privacy: reads records, through the wall. What comes back is (epsilon, delta)-differentially private. The number of
    runs is secret: do not publish how long it took.

    Parameters
    ----------
    candidates
        By name: a method, or ``{"method": ..., "clip": ..., "weights": ...}`` with those settings of ``fit``.
    data, budget
        As in ``fit``.
    repeats
        How many runs on average; by default three for each candidate. The number is Poisson, but not 0. A candidate is
        left out with a probability of about ``exp(-repeats / len(candidates))``; more runs need more noise.
    rate, steps
        Of every run, whatever the candidate. A tenth of the steps goes to the score.
    bound
        Largest size of a record's log predictive density in the score; a larger bound brings more noise.
    log_likelihood
        ``log_likelihood(draw, record)``, for methods that do not know their own. Candidates are compared by it, so it
        must be of the same columns for all of them.
    adjacency, key, simulate
        As in ``fit``. The public randomness is the same in every run.

    Returns
    -------
    Selected
        The ``posterior`` of the best run, its ``name``, and what else may be known of the selection.

    Examples
    --------
    >>> import jax, numpy as np, numpyro, numpyro.distributions as dist, tacit
    >>> def model(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
    ...     with numpyro.plate("records", len(x)):
    ...         numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)
    >>> x = np.random.default_rng(0).normal(size=200).astype(np.float32)
    >>> data = tacit.PrivateData({"x": x, "y": 0.5 * x}, size=200)
    >>> candidates = {"wide": tacit.vi(model), "tight": {"method": tacit.vi(model), "clip": 0.5}}
    >>> selected = tacit.select(
    ...     candidates, data, tacit.Budget(1.0, 1e-6), repeats=2, rate=0.5, steps=20, key=jax.random.key(0)
    ... )
    >>> selected.name in candidates
    True
    """
    check_types(data, budget, key)
    if not candidates:
        raise ValueError(
            "There are no candidates. Pass some by name: {'small clip': {'method': tacit.vi(model), 'clip': 1.0}}."
        )
    asking = max(1, round(ASKING * steps))
    if steps < 2:
        raise ValueError(
            f"steps is {steps}; a run takes one to fit and one for its score at least. Write steps={STEPS}."
        )
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"bound is {bound}; it is the largest size of a log predictive density. Write bound=2.0.")
    plan = plan_for(data, rate=rate)
    methods = [
        _candidate(name, given, plan, log_likelihood, steps - asking, asking, bound)
        for name, given in candidates.items()
    ]
    repeats = TIMES * len(methods) if repeats is None else repeats
    rate = default_rate(data.size) if rate is None else rate
    mechanism = calibrate(budget, rate=rate, steps=steps, clip=1.0, adjacency=adjacency, repeats=repeats)
    data.ledger.afford(mechanism, data.unit)
    facts: dict[str, Any] = {
        "secret": secret_random.fresh() if simulate is None else secret_random.fixed(simulate),
        "key": key,
        "ledgers": [data.ledger],
        "run": uuid.uuid4().hex,
        "kind": "select",
        "title": f"best of {', '.join(candidates)}",
        "simulation": simulate is not None,
    }
    # Everything is checked and compiled before the charge, so that what can go wrong does so for nothing.
    runners = [Runner(method, data, mechanism, **facts) for method in methods]
    leave_room(_slack(runners, mechanism, budget.epsilon), budget)
    starts = [jax.tree.map(jnp.asarray, jax.jit(method.init)(key)) for method in methods]
    place, state = best_of(runners, starts, _score, seed=simulate)
    posterior = posterior_of(methods[place], state, jax.random.fold_in(key, steps), None)
    score = _score(state)
    posterior.certificate = certify(
        data.ledger,
        facts["run"],
        budget,
        data,
        lambda _, epsilon: _slack(runners, mechanism, epsilon),
        {**released_numbers(state, posterior), "score": _fingerprint(list(candidates)[place], score)},
        "user" if any(whose(method.contribute) == "user" for method in methods) else "tacit",
    )
    return Selected(list(candidates)[place], posterior, score)


def _candidate(
    name: str,
    given: Any,
    plan: Plan,
    log_likelihood: LogLikelihood | None,
    fitting: int,
    asking: int,
    bound: float,
) -> Method:
    settings = dict(given) if isinstance(given, Mapping) else {"method": given}
    unknown = sorted(set(settings) - {"method", "clip", "weights"})
    if unknown or "method" not in settings:
        raise ValueError(
            f"The candidate {name!r} has {sorted(settings)}. It needs a method, and may have a clip and weights; all "
            "else is the same for all candidates, so that every run has the same recipe and cost."
        )
    clip, weights = settings.get("clip"), settings.get("weights")
    plan = replace(plan, steps=fitting, clip=clip, weights=weights)
    built = built_for(settings["method"], plan)
    refuse_unsuited(built, plan)
    term = log_likelihood or built.model.log_likelihood
    if term is None:
        raise ValueError(
            f"The candidate {name!r} ({title_of(built)}) does not know the log-likelihood of a record, by which "
            "candidates are compared. Pass log_likelihood=, a function of a draw and a record."
        )
    if isinstance(clip, str):
        raise ValueError(f"The candidate {name!r} has clip={clip!r}. A selection takes clips that are numbers.")
    return scored(
        built,
        term,
        fitting=fitting,
        asking=asking,
        clip=suited_clip(built, plan) if clip is None else float(clip),
        weights=weights or built.suggests.weights,
        bound=bound,
    )


def _fingerprint(name: str, score: float) -> str:
    return fingerprint({f"score of {name}": np.float64(score)})


def _score(state: ScoredState) -> float:
    return float(state.score)


def _slack(runners: list[Runner], mechanism: Mechanism, epsilon: float) -> float:
    """Bound what inexact sampling adds to delta: that of a run, times the mean number of runs."""
    assert mechanism.repeats is not None
    runs = mechanism.repeats / -math.expm1(-mechanism.repeats)
    return (
        runs * max(runner.slack(mechanism.steps, epsilon) for runner in runners) + (1 + math.exp(epsilon)) * 2.0**-100
    )
