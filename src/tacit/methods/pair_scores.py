"""Pair scores: a posterior for any model that can draw a record's outcomes.

    s(y) = grad_w log p(y | x, w)
    made-up covariates x, from released counts and products           tacit.methods.covariates
    for rounds t = 1..T with growing shares of the steps, at w = w_t:
        W, C        on made-up records: W H W' = I for the information H of one, C quantiles of |W (s(y) - s(y'))|
        psi_i       = mean over k of clip_C(W (s(y_i) - s(y'_ik))),  y'_ik ~ p(y | x_i, w) by the record's own key
        G, J, Q     = released sums of psi, of psi psi', and of delta delta' for delta = clip_C(W (s(y'_ik) - s(y'_il)))
        w_(t+1)     the mode of  log prior(w) - |G - mu(w)|^2_V / 2,  by damped Gauss-Newton
    G ~ N(mu(w), V)                                                   V: the privacy noise, and psi's spread by J
    mu(w) = N a A E[psi (p(y | x, A'w) / p(y | x, w_t) - 1)]          over made-up x and y ~ p(y | x, w_t)
    a A E[delta delta'] A' = Q / N                                    a, A: how the records differ from made-up ones
    a draw:  one of K normal approximations of the posterior, each with made-up records, a, A and V of its own

At the truth y and y' are exchangeable given x, so s(y) - s(y') is symmetric about 0, and psi has mean exactly 0
whatever the clip is: releases are the data of a Bayesian model with known noise. The last four rounds are used.

Q is of drawn outcomes: it tells of covariates and of the number of records. J, of those shown, tells of overdispersion.
Where numbers or counts are skewed and the model's are not, clipping biases what larger outcomes pull, such as an
intercept: that has a wider clip of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.facts.schema import Schema
from tacit.methods.arguments import check_single, full_batches, records_of, steps_of
from tacit.methods.covariates import Covariates, Table
from tacit.methods.pair_phases import table_contributions, table_updates, timetable, zeros
from tacit.methods.pair_posterior import POSTERIORS, PairModel, PairPosterior
from tacit.models.formula import Formula
from tacit.models.simulated import SimulatedModel
from tacit.models.traced import Function
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release

STEPS, LEAST = 40, 7
"""Releases by default, and at least."""


class PairsState(NamedTuple):
    """The sums of the present block of steps, what is known of the covariates, and of the latents."""

    step: Array
    sums: PyTree
    table: Table
    posterior: PairPosterior


def pair_scores(model: Function | Formula, schema: Schema | None = None, *, simulations: int = 8) -> MethodFor:
    """Fit a model that can draw outcomes by scores of exchangeable pairs; the coverage is still being measured.

    For up to about 60 latents in unconstrained coordinates, whose posterior is about normal there. A step takes all
    records by default; the number of records must be declared, and about right is enough.

    Privacy: public. Traces the model on placeholder records only.

    Parameters
    ----------
    model
        A ``tacit.formula``, or a NumPyro model with one plate over records and without latents inside it. It must
        observe by distributions that can be drawn from.
    schema
        The bounds and levels of the columns that a NumPyro model conditions on; a formula has its own.
    simulations
        Outcomes that a record draws in each step. More cost time and no privacy.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws are named by the model's latents.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}}, size=200)
    >>> method = tacit.pair_scores(tacit.formula("ill ~ age", schema, family="bernoulli"))
    >>> age = np.linspace(20, 80, 200)
    >>> data = tacit.PrivateData({"age": age, "ill": np.where(age > 60, "yes", "no")}, schema)
    >>> posterior = tacit.fit(method, data, tacit.Budget(3.0, 1e-6), steps=20, progress=False)
    >>> sorted(posterior.draws)
    ['Intercept', 'age']
    """
    if isinstance(model, Formula):
        schema = model.schema
    if schema is None:
        raise ValueError("Pair scores make records up, so they need bounds and levels: pair_scores(model, schema).")
    if simulations < 2:
        raise ValueError(f"simulations is {simulations}; a record draws at least two outcomes a step.")
    declared = schema

    def build(plan: Plan) -> Method:
        check_single(plan, "pair_scores")
        size, steps = float(records_of(plan, "pair_scores")), steps_of(plan, "pair_scores", STEPS, LEAST)
        reading = SimulatedModel(model, plan.placeholder)
        covariates = Covariates(declared, reading.covariates)
        public = PairModel(reading, covariates, plan.placeholder, size, simulations)
        phase_of, length_of, ends = timetable(steps, covariates.number)
        nothing = zeros(covariates, reading.size)

        def init(key: Key) -> PairsState:
            table = covariates.start()
            return PairsState(jnp.int32(0), nothing, table, public.begin(table, key))

        def contribute(state: PairsState, record: Record, key: Key, record_key: Key) -> PyTree:
            def pair_score() -> PyTree:
                return public.pair_score(state.posterior, record, record_key)

            parts = (*table_contributions(covariates, state.table, record), pair_score)
            branches = [lambda part=part: nothing | part() for part in parts]
            return branches[0]() if len(branches) == 1 else jax.lax.switch(phase_of[state.step], branches)

        def update(state: PairsState, release: Release, key: Key) -> PairsState:
            state = state._replace(sums=jax.tree.map(jnp.add, state.sums, release.full))
            length = length_of[state.step]
            mean = jax.tree.map(lambda leaf: leaf / length, state.sums)
            std = release.noise_std["norms"] / release.rate / jnp.sqrt(length)

            def move() -> PairsState:
                final = state.step == steps - 1
                moved = public.move(state.posterior, state.table, mean, std, length, release.rate, final, key)
                return state._replace(posterior=moved)

            tables = table_updates(covariates, state.table, mean, std, size)
            branches = (lambda: state, *(lambda table=table: state._replace(table=table()) for table in tables), move)
            branch = jnp.where(ends[state.step], 1 + jnp.minimum(phase_of[state.step], len(tables)), 0)
            after = jax.lax.switch(branch, branches)
            coming = std * jnp.sqrt(length / length_of[jnp.minimum(state.step + 1, steps - 1)])

            def next_block() -> PairsState:
                posterior = public.coordinates(after.posterior, after.table, key, coming)
                return after._replace(sums=nothing, posterior=posterior)

            return jax.lax.cond(ends[state.step], next_block, lambda: after)._replace(step=state.step + 1)

        def draw(state: PairsState, key: Key) -> dict[str, Array]:
            which, where = jax.random.split(key)
            one = jax.random.randint(which, (), 0, POSTERIORS)
            mode, root = state.posterior.modes[one], state.posterior.roots[one]
            return reading.latents_of(mode + root @ jax.random.normal(where, (reading.size,)))

        facts = full_batches(int(size), steps)
        return Method(
            init, contribute, update, draw, per_record_key=True, min_steps=LEAST, model=reading.known(), **facts
        )

    return MethodFor(build)
