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
whatever the clip is. What is released is then the data of an ordinary Bayesian model with known noise. Of the rounds
the last four are used, each in the coordinates of the last, and less the further w has moved since.

Q is of drawn outcomes only, so that it tells of covariates and of the number of records, and not of the outcomes; J is
of the outcomes shown, and beside Q it tells of overdispersion in each direction. Both are shrunk by their noise.

Where the model has the wrong shape for numbers or counts, a clipped score is biased where larger outcomes pull all
records the same way, as at an intercept. These directions have a wider clip of their own; yes and no, and levels, need
none.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from tacit.facts.schema import Schema
from tacit.methods.arguments import records_of
from tacit.methods.covariates import Covariates
from tacit.methods.pair_posterior import POSTERIORS, PairModel, PairsState
from tacit.models.formula import Formula
from tacit.models.simulated import SimulatedModel
from tacit.models.traced import Function
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions

STEPS, LEAST = 40, 7
"""Releases by default, and at least."""
ZOOM, FILL, PRODUCTS = 0.025, 0.05, (0.05, 0.1)
"""Shares of the steps for the counts of declared bounds, for those of narrower ones, and for two rounds of products."""
ROUNDS, GROWTH = 12, 1.5
"""Rounds at most, and how their lengths grow."""


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
    facts = schema

    def build(plan: Plan) -> Method:
        if plan.max_records > 1:
            raise ValueError(
                f"A {plan.unit} has up to {plan.max_records} records, and pair scores bound single ones. Use tacit.vi."
            )
        return _method(SimulatedModel(model, plan.placeholder), facts, plan, simulations)

    return MethodFor(build)


def _method(reading: SimulatedModel, schema: Schema, plan: Plan, simulations: int) -> Method:
    whole = float(records_of(plan, "pair_scores"))
    covariates = Covariates(schema, reading.covariates)
    blocks = _blocks(STEPS if plan.steps is None else plan.steps, covariates.number)
    phase_of, length_of, ends = _timetable(blocks)
    steps, size = len(phase_of), reading.size
    public = PairModel(reading, covariates, plan.placeholder, whole, simulations)
    nothing = {
        "histogram": jnp.zeros((covariates.number, covariates.most)),
        "products": jnp.zeros((covariates.number, covariates.number)),
        "score": jnp.zeros(size),
        "norms": jnp.zeros(2),
        "moments": jnp.zeros((2, size, size)),
    }

    def init(key: Key) -> PairsState:
        return public.begin(nothing, key)

    def contribute(state: PairsState, record: Record, key: Key, record_key: Key) -> PyTree:
        def histogram() -> PyTree:
            return {**nothing, "histogram": covariates.histogram(state.table, record)}

        def products() -> PyTree:
            return {**nothing, "products": covariates.products(state.table, record)}

        def pairs() -> PyTree:
            return {**nothing, **public.pair_score(state, record, record_key)}

        phase = jnp.minimum(phase_of[state.step], 4)
        branches = (histogram, histogram, products, products, pairs) if covariates.number else (pairs,)
        return branches[0]() if len(branches) == 1 else jax.lax.switch(phase, branches)

    def update(state: PairsState, release: Release, key: Key) -> PairsState:
        state = state._replace(sums=jax.tree.map(jnp.add, state.sums, release.full))
        length = length_of[state.step]
        mean = jax.tree.map(lambda leaf: leaf / length, state.sums)
        std = release.noise_std["norms"] / release.rate / jnp.sqrt(length)

        def zoom() -> PairsState:
            return state._replace(table=covariates.zoom(state.table, mean["histogram"], std))

        def fill() -> PairsState:
            return state._replace(table=covariates.fill(state.table, mean["histogram"], std, whole))

        def correlate(whiten: bool) -> PairsState:
            return state._replace(table=covariates.correlate(state.table, mean["products"], std, whole, whiten))

        def move() -> PairsState:
            return public.move(state, mean, std, length, release.rate, state.step == steps - 1, key)

        tables = (zoom, fill, lambda: correlate(True), lambda: correlate(False)) if covariates.number else ()
        branches = (lambda: state, *tables, move)
        branch = jnp.where(ends[state.step], 1 + jnp.minimum(phase_of[state.step], len(tables)), 0)
        after = jax.lax.switch(branch, branches)
        coming = std * jnp.sqrt(length / length_of[jnp.minimum(state.step + 1, steps - 1)])
        return jax.lax.cond(
            ends[state.step],
            lambda: public.coordinates(after, key, coming)._replace(step=state.step + 1, sums=nothing),
            lambda: after._replace(step=state.step + 1),
        )

    def draw(state: PairsState, key: Key) -> dict[str, Array]:
        which, where = jax.random.split(key)
        number = jax.random.randint(which, (), 0, POSTERIORS)
        return reading.latents_of(state.modes[number] + state.roots[number] @ jax.random.normal(where, (size,)))

    return Method(
        init,
        contribute,
        update,
        draw,
        per_record_key=True,
        min_steps=LEAST,
        bounded=True,
        for_size=int(whole),
        for_steps=steps,
        suggests=Suggestions(clip=1.0, rate=1.0, steps=steps),
        model=reading.known(),
    )


def _blocks(steps: int, covariates: int) -> list[tuple[int, int]]:
    """Return the phases of a run, with their numbers of steps: zoom, fill, two rounds of products, rounds of scores."""
    if steps < LEAST:
        raise ValueError(f"steps is {steps}; counts, products and rounds need at least {LEAST}. Write steps={STEPS}.")
    shares = (ZOOM, FILL, *PRODUCTS)[: 0 if not covariates else 2 if covariates == 1 else 4]
    found = [(phase, max(1, math.floor(share * steps + 0.5))) for phase, share in enumerate(shares)]
    left = steps - sum(length for _, length in found)
    number = min(ROUNDS, left)
    ideal = GROWTH ** np.arange(number)
    lengths = np.maximum(1, np.floor(left * ideal / ideal.sum())).astype(int)
    while lengths.sum() != left:
        lengths[np.argmax(lengths) if lengths.sum() > left else -1] += np.sign(left - lengths.sum())
    return found + [(4, int(length)) for length in lengths]


def _timetable(blocks: list[tuple[int, int]]) -> tuple[Array, Array, Array]:
    """Return for each step its phase, the length of its block, and whether it ends it."""
    phases = np.concatenate([np.full(length, phase) for phase, length in blocks])
    lengths = np.concatenate([np.full(length, length) for _, length in blocks])
    ends = np.concatenate([np.arange(length) == length - 1 for _, length in blocks])
    return jnp.asarray(phases, jnp.int32), jnp.asarray(lengths, jnp.float32), jnp.asarray(ends)
