"""Pair scores: honest intervals for any model that can draw a record's outcomes.

    s(y) = grad_w log p(y | x, w)
    made-up covariates x from released counts and products            tacit.methods.covariates; the rest is public but psi
    for rounds t = 1..T with growing shares of the steps, at w = w_t:
        W, C        on made-up records: W H W' = I for the information H of one, C a quantile of |W (s(y) - s(y'))|
        psi_i       = mean over k of clip_C(W (s(y_i) - s(y'_ik))),  y'_ik ~ p(y | x_i, w) by the record's own key
        G           = the average released sum of psi over the round's steps
        w_(t+1)     the mode of  log prior(w) - |G - mu(w)|^2_V / 2,  by damped Gauss-Newton
    G ~ N(mu(w), V),  V = phi J + S    S: the privacy noise; J: psi's spread; phi: overdispersion, from released |psi|^2
    mu(w) = N E[psi (p(y | x, w) / p(y | x, w_t) - 1)]                 over made-up x and y ~ p(y | x, w_t)
    a draw:  one of K normal approximations of the posterior, each with made-up records of its own

At the truth y and y' are exchangeable given x, so s(y) - s(y') is symmetric about 0, and psi has mean exactly 0
whatever the clip is. The clip costs precision and never the truth; nothing is released to choose it. What is released is
then the data of an ordinary Bayesian model with known noise. Of the rounds the last four are used, each in the
coordinates of the last, and less the further w has moved since.

phi is 2 r - 1, where r is the released mean of |psi|^2 in units of the made-up one: y' has the model's spread, y its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.facts.schema import Schema
from tacit.methods.covariates import Covariates, Table, made_up
from tacit.methods.running import records_of
from tacit.models.formula import Formula
from tacit.models.simulated import SimulatedModel
from tacit.models.traced import Function
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions

STEPS, LEAST = 40, 7
"""Releases by default, and at least."""
ZOOM, FILL, PRODUCTS = 0.025, 0.035, (0.05, 0.1)
"""Shares of the steps for the counts of declared bounds, for those of narrower ones, and for two rounds of products."""
ROUNDS, GROWTH, KEPT = 12, 1.5, 4
"""Rounds at most, how their lengths grow, and how many are used at a time."""
SPREAD = 0.05
"""The share of a round's release for the spread of psi."""
QUANTILE, GROWN = 0.7, 0.15
"""The clip is that quantile of the norms, or more where the noise is this small a part of the spread then."""
JACOBIAN = 0.2
"""The relative error in a round's mean, for each unit of the way since."""
NEAR, TRUST, LONGEST = 0.7, 2.0, 3.0
"""How far rounds are used; how far a step goes, and one of its own steps, in units of one record's information."""
POSTERIORS, MADE_UP, OUTCOMES, ITERATIONS = 16, 1500, 4, 16
"""Normal approximations at the end; made-up records of each, outcomes of each of them, evaluations in a solution."""


class Rounds(NamedTuple):
    """The last rounds, the latest first: where, in which coordinates, with what clip, what was released, in how many
    steps (0 for none)."""

    place: Array
    whitening: Array
    inverse: Array
    clip: Array
    score: Array
    score_std: Array
    spread: Array
    spread_std: Array
    steps: Array


class PairsState(NamedTuple):
    """The sums of the present phase, what is known of the covariates, the present round, those before, the posterior.

    ``place``, ``whitening``, its ``inverse`` and ``clip`` are w_t, W and C.
    """

    step: Array
    sums: PyTree
    table: Table
    place: Array
    whitening: Array
    inverse: Array
    clip: Array
    rounds: Rounds
    modes: Array
    roots: Array


class Pairs(NamedTuple):
    """Outcomes of made-up records at one place: records, outcomes, log densities, psi, its spreads and mean square.

    ``psi`` is in the present coordinates. ``common`` is the spread of its mean over all partners, ``single`` that with
    one partner.
    """

    rows: PyTree
    outcomes: PyTree
    log_density: Array
    psi: Array
    common: Array
    single: Array
    square: Array


def pair_scores(model: Function | Formula, schema: Schema | None = None, *, simulations: int = 8) -> MethodFor:
    """Fit a model that can draw outcomes, with intervals that account for the privacy noise.

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
    """
    if isinstance(model, Formula):
        schema = model.schema
    if schema is None:
        raise ValueError("Pair scores make records up, so they need bounds and levels: pair_scores(model, schema).")
    if simulations < 1:
        raise ValueError(f"simulations is {simulations}; a record draws at least one outcome a step.")
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
    public = _Public(reading, covariates, plan.placeholder, whole, simulations)
    nothing = {
        "histogram": jnp.zeros((covariates.number, covariates.most)),
        "products": jnp.zeros((covariates.number, covariates.number)),
        "score": jnp.zeros(size),
        "spread": jnp.float32(0),
    }

    def init(key: Key) -> PairsState:
        table, identity = covariates.start(), jnp.eye(size)
        rounds = Rounds(
            *(jnp.zeros((KEPT, *shape)) for shape in ((size,), *[(size, size)] * 2, (), (size,), *[()] * 4))
        )
        rounds = rounds._replace(whitening=rounds.whitening + identity, inverse=rounds.inverse + identity)
        rounds = rounds._replace(clip=rounds.clip + 1, score_std=rounds.score_std + 1)
        modes, roots = jnp.tile(reading.start, (POSTERIORS, 1)), jnp.tile(identity, (POSTERIORS, 1, 1))
        state = PairsState(
            jnp.int32(0), nothing, table, reading.start, identity, identity, jnp.float32(1), rounds, modes, roots
        )
        return state if covariates.number else public.coordinates(state, key, jnp.float32(1))

    def contribute(state: PairsState, record: Record, key: Key, record_key: Key) -> PyTree:
        def histogram() -> PyTree:
            return {**nothing, "histogram": covariates.histogram(state.table, record)}

        def products() -> PyTree:
            return {**nothing, "products": covariates.products(state.table, record)}

        def pairs() -> PyTree:
            score, square = public.pair_score(state, record, record_key)
            return {
                **nothing,
                "score": math.sqrt(1 - SPREAD) * score / state.clip,
                "spread": math.sqrt(SPREAD) * square / jnp.square(state.clip),
            }

        phase = jnp.minimum(phase_of[state.step], 4)
        branches = (histogram, histogram, products, products, pairs) if covariates.number else (pairs,)
        return branches[0]() if len(branches) == 1 else jax.lax.switch(phase, branches)

    def update(state: PairsState, release: Release, key: Key) -> PairsState:
        state = state._replace(sums=jax.tree.map(jnp.add, state.sums, release.full))
        length = length_of[state.step]
        mean = jax.tree.map(lambda leaf: leaf / length, state.sums)
        std = release.noise_std["spread"] / release.rate / jnp.sqrt(length)

        def zoom() -> PairsState:
            return state._replace(table=covariates.zoom(state.table, mean["histogram"], std))

        def fill() -> PairsState:
            table = covariates.fill(state.table, mean["histogram"], std, whole)
            return public.coordinates(state._replace(table=table), key, std)

        def correlate(whiten: bool) -> PairsState:
            table = covariates.correlate(state.table, mean["products"], std, whole, whiten)
            return public.coordinates(state._replace(table=table), key, std)

        def move() -> PairsState:
            return public.move(state, mean, std, length, release.rate, state.step == steps - 1, key)

        tables = (zoom, fill, lambda: correlate(True), lambda: correlate(False)) if covariates.number else ()
        branches = (lambda: state, *tables, move)
        branch = jnp.where(ends[state.step], 1 + jnp.minimum(phase_of[state.step], len(tables)), 0)
        after = jax.lax.switch(branch, branches)
        sums = jax.tree.map(lambda leaf: jnp.where(ends[state.step], 0, leaf), after.sums)
        return after._replace(step=state.step + 1, sums=sums)

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


class _Public:
    """What is computed on made-up records, and the same of a record within the wall: ``pair_score``."""

    def __init__(
        self, reading: SimulatedModel, covariates: Covariates, placeholder: Record, whole: float, simulations: int
    ) -> None:
        self.reading, self.covariates, self.placeholder = reading, covariates, placeholder
        self.whole, self.simulations = whole, simulations
        self.score = jax.grad(reading.log_density)

    def pair_score(self, state: PairsState, record: Record, record_key: Key) -> tuple[Array, Array]:
        """Return psi of one record, and the mean square of its parts; within the wall, by the record's own key."""
        shown = self.score(state.place, record, self.reading.outcomes(record))

        def pair(key: Key) -> tuple[Array, Array]:
            drawn = self.score(state.place, record, self.reading.simulated(state.place, record, key))
            return _clipped(state.whitening @ (shown - drawn), state.clip)

        pairs, squares = jax.vmap(pair)(jax.random.split(record_key, self.simulations))
        return jnp.mean(pairs, 0), jnp.mean(squares)

    def rows(self, table: Table, key: Key, wobble: Array) -> PyTree:
        """Make records up."""
        columns = self.covariates.draw(table, key, MADE_UP, wobble) if self.covariates.number else {}
        return made_up(self.placeholder, columns, MADE_UP)

    def simulated(self, place: Array, rows: PyTree, key: Key) -> tuple[PyTree, Array]:
        """Draw outcomes of made-up records, several each, and their scores."""

        def one(row: Record, key: Key) -> tuple[PyTree, Array]:
            drawn = self.reading.simulated(place, row, key)
            return drawn, self.score(place, row, drawn)

        keys = jax.random.split(key, (MADE_UP, OUTCOMES))
        return jax.vmap(jax.vmap(one, (None, 0)))(rows, keys)

    def coordinates(self, state: PairsState, key: Key, std: Array) -> PairsState:
        """Return the state with W and C for its place; ``std`` is the noise of the next release, about."""
        of_rows, of_outcomes = jax.random.split(jax.random.fold_in(key, 1))
        rows = self.rows(state.table, of_rows, jnp.float32(0))
        _, scores = self.simulated(state.place, rows, of_outcomes)
        apart = jnp.nan_to_num((scores[:, ::2] - scores[:, 1::2]).reshape(-1, self.reading.size))
        scale = jnp.sqrt(jnp.mean(jnp.square(apart), 0) / 2)
        scale = jnp.maximum(scale, 1e-4 * jnp.max(scale) + 1e-20)
        values, vectors = jnp.linalg.eigh((apart / scale).T @ (apart / scale) / (2 * len(apart)))
        values = jnp.sqrt(jnp.maximum(values, 1e-5 * values[-1]))
        whitening = (vectors / values).T / scale
        norms = jnp.linalg.norm(apart @ whitening.T, axis=1)
        usual = jnp.nanquantile(jnp.where(norms > 0, norms, jnp.nan), QUANTILE)
        clip = jnp.maximum(jnp.nan_to_num(usual, nan=1.0), jnp.sqrt(GROWN * self.whole) / (std + 1e-6))
        clip = jnp.minimum(clip, 1.001 * jnp.max(norms) + 1e-6)
        inverse = scale[:, None] * (vectors * values)
        return state._replace(whitening=whitening, inverse=inverse, clip=clip)

    def move(
        self, state: PairsState, mean: PyTree, std: Array, length: Array, rate: Array, final: Array, key: Key
    ) -> PairsState:
        """Take a round's release in; go to the mode, or at the end to several."""
        of_score, of_square = state.clip / math.sqrt(1 - SPREAD), jnp.square(state.clip) / math.sqrt(SPREAD)
        latest = Rounds(
            state.place,
            state.whitening,
            state.inverse,
            state.clip,
            mean["score"] * of_score,
            std * of_score,
            mean["spread"] * of_square,
            std * of_square,
            length,
        )
        rounds = Rounds(
            *(jnp.concatenate([new[None], old[:-1]]) for new, old in zip(latest, state.rounds, strict=True))
        )
        state = state._replace(rounds=rounds)

        def posterior(k: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
            delta, root = self.solved(state, rate, final, jax.random.fold_in(key, 2 + k))
            mode = state.place + state.whitening.T @ delta
            return found[0].at[k].set(mode), found[1].at[k].set(state.whitening.T @ root)

        modes, roots = jax.lax.fori_loop(0, jnp.where(final, POSTERIORS, 1), posterior, (state.modes, state.roots))
        way = modes[0] - state.place
        reached = jnp.linalg.norm(state.inverse.T @ way)
        place = state.place + way * jnp.minimum(1, TRUST / (reached + 1e-9))
        moved = state._replace(place=place, modes=modes, roots=roots)
        return self.coordinates(moved, key, std)

    def pairs(self, latest: PairsState, one: Rounds, rows: PyTree, key: Key) -> Pairs:
        """Make up what a round released, in the coordinates of the latest."""
        outcomes, scores = self.simulated(one.place, rows, key)
        log_density = jax.vmap(jax.vmap(self.reading.log_density, (None, None, 0)), (None, 0, 0))(
            one.place, rows, outcomes
        )
        apart = (scores[:, :, None] - scores[:, None]) @ one.whitening.T
        clipped, squares = _clipped(jnp.nan_to_num(apart), one.clip)
        clipped = clipped @ (latest.whitening @ one.inverse).T
        psi = jnp.sum(clipped, 2) / (OUTCOMES - 1)
        number = MADE_UP * OUTCOMES
        single = _second_moment(clipped) / (number * (OUTCOMES - 1))
        common = ((OUTCOMES - 1) * _second_moment(psi) / number - single) / (OUTCOMES - 2)
        return Pairs(rows, outcomes, log_density, psi, common, single, jnp.sum(squares) / (number * (OUTCOMES - 1)))

    def solved(self, state: PairsState, rate: Array, final: Array, key: Key) -> tuple[Array, Array]:
        """Return the mode, as a way from the place in whitened coordinates, and a root of the covariance there."""
        of_rows, of_outcomes = jax.random.split(key)
        rounds, d = state.rounds, self.reading.size
        rows = self.rows(state.table, of_rows, jnp.float32(final))
        keys = jax.random.split(of_outcomes, KEPT)
        made = jax.vmap(lambda one, key: self.pairs(state, one, rows, key))(rounds, keys)
        away = jnp.sum(jnp.square((state.place - rounds.place) @ state.inverse), 1)
        extra = jnp.square(JACOBIAN * self.whole) * away / d
        used = (rounds.steps > 0) & (away < NEAR**2)
        weight = jnp.where(used, 1 / (jnp.square(rounds.score_std) + extra + 1e-6 * self.whole), 0)
        weight = weight / jnp.sum(weight)
        change = jax.vmap(lambda one: state.whitening @ one.inverse)(rounds)
        released = jnp.einsum("r,rij,rj->i", weight, change, rounds.score)
        excess = jnp.sum(used * rounds.spread) / (self.whole * jnp.sum(used * made.square) + 1e-20)
        doubt = jnp.sqrt(jnp.sum(used * jnp.square(rounds.spread_std))) / (
            self.whole * jnp.sum(used * made.square) + 1e-20
        )
        phi = jnp.where(final, 1 + 2 * jnp.maximum(excess - 1 - doubt, 0), 1)
        noise = jnp.square(weight) * (jnp.square(rounds.score_std) + extra)
        covariance = jnp.einsum("r,rij,rkj->ik", noise, change, change)
        spread = jnp.einsum("r,rij->ij", weight, made.common)
        partners = jnp.square(weight) / jnp.maximum(rounds.steps, 1)
        spread += jnp.einsum("r,rij->ij", partners / self.simulations, made.single - made.common)
        spread += jnp.einsum("r,rij->ij", partners * (1 - rate) / rate, made.single)
        covariance += self.whole * phi * spread
        whiten = _inverse_root(covariance)
        residuals = self._residuals(state, made, weight)

        def evaluated(delta: Array) -> tuple[Array, Array, Array, Array, Array]:
            """Return the log posterior, its slope, and the curvature by Gauss and Newton."""
            mean, jacobian = residuals(delta)
            left, along = whiten @ (released - mean), whiten @ jacobian
            value, slope, curvature = self._prior(state, delta)
            value = jnp.nan_to_num(value - left @ left / 2, nan=-jnp.inf)
            return value, slope + along.T @ left, along.T @ along + curvature

        return _climbed(evaluated, d)

    def _residuals(self, state: PairsState, made: Pairs, weight: Array) -> Callable[[Array], tuple[Array, Array]]:
        """Return the function that gives mu and its Jacobian, by importance weights."""
        number = self.whole / (MADE_UP * OUTCOMES)

        def of_round(one: Pairs, w: Array) -> tuple[Array, Array]:
            both = jax.value_and_grad(self.reading.log_density)
            logs, scores = jax.vmap(jax.vmap(both, (None, None, 0)), (None, 0, 0))(w, one.rows, one.outcomes)
            ratio = jnp.exp(jnp.clip(jnp.nan_to_num(logs - one.log_density), -8, 4))
            scores = jnp.nan_to_num(scores) @ state.whitening.T
            mean = jnp.einsum("nqi,nq->i", one.psi, ratio - 1)
            return number * mean, number * jnp.einsum("nqi,nq,nqj->ij", one.psi, ratio, scores)

        def residuals(delta: Array) -> tuple[Array, Array]:
            w = state.place + state.whitening.T @ delta
            means, jacobians = jax.vmap(of_round, (0, None))(made, w)
            return weight @ means, jnp.einsum("r,rij->ij", weight, jacobians)

        return residuals

    def _prior(self, state: PairsState, delta: Array) -> tuple[Array, Array, Array]:
        """Return the log prior, its slope, and minus its curvature."""

        def log_prior(delta: Array) -> Array:
            return self.reading.log_prior_at(state.place + state.whitening.T @ delta)

        value, slope = jax.value_and_grad(log_prior)(delta)
        return value, slope, -jax.hessian(log_prior)(delta)


def _climbed(evaluated: Callable[[Array], tuple[Array, Array, Array]], size: int) -> tuple[Array, Array]:
    """Climb to the mode from 0; return it, and a root of the inverse curvature there."""

    def climb(_: Array, carry: Any) -> Any:
        best, value, slope, curvature, pace = carry
        step = _solved(curvature, slope)
        step = step * jnp.minimum(1, LONGEST / (jnp.linalg.norm(step) + 1e-9))
        there = best + pace * step
        found = evaluated(there)
        better = found[0] >= value
        new = (there, *found, jnp.minimum(2 * pace + (pace == 0), 1))
        old = (best, value, slope, curvature, 0.4 * pace)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), new, old)

    begun = (jnp.zeros(size), jnp.float32(-jnp.inf), jnp.zeros(size), jnp.eye(size), jnp.float32(0))
    best, _, _, curvature, _ = jax.lax.fori_loop(0, ITERATIONS, climb, begun)
    return best, _inverse_root(curvature).T


def _inverse_root(matrix: Array) -> Array:
    """Return R with R'R the inverse of a symmetric matrix, whose eigenvalues are raised to a least one."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.maximum(values, 1e-6 * jnp.max(jnp.abs(values)) + 1e-20)
    return (vectors / jnp.sqrt(values)).T


def _solved(matrix: Array, vector: Array) -> Array:
    root = _inverse_root(matrix)
    return root.T @ (root @ vector)


def _clipped(vectors: Array, clip: Array) -> tuple[Array, Array]:
    """Return vectors shortened to the clip, and their squared norms then."""
    norms = jnp.sqrt(jnp.sum(jnp.square(vectors), -1, keepdims=True) + 1e-20)
    return vectors * jnp.minimum(1, clip / norms), jnp.square(jnp.minimum(norms[..., 0], clip))


def _second_moment(vectors: Array) -> Array:
    flat = vectors.reshape(-1, vectors.shape[-1])
    return flat.T @ flat


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
