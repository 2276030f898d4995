"""The public half of pair scores: what a release says of the latents, computed on made-up records.

The algorithm is in ``tacit.methods.pair_scores``. ``pair_score`` alone is of a record, for the wall: it is the same
function of outcomes as what is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.covariates import Covariates, Table, made_up
from tacit.models.simulated import SimulatedModel
from tacit.types import Array, Key, PyTree, Record

KEPT = 4
"""Rounds that are used at a time."""
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


class PairPosterior(NamedTuple):
    """The present round, those before, and the posterior: normal approximations with their modes and roots.

    ``place``, ``whitening``, its ``inverse`` and ``clip`` are w_t, W and C.
    """

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


class PairModel:
    """What is computed on made-up records, and the same of a record within the wall: ``pair_score``."""

    def __init__(
        self, reading: SimulatedModel, covariates: Covariates, placeholder: Record, whole: float, simulations: int
    ) -> None:
        self.reading, self.covariates, self.placeholder = reading, covariates, placeholder
        self.whole, self.simulations = whole, simulations
        self.score = jax.grad(reading.log_density)

    def begin(self, table: Table, key: Key) -> PairPosterior:
        """Return the first round: at the median of the prior."""
        start, size, identity = self.reading.start, self.reading.size, jnp.eye(self.reading.size)
        ones, none = jnp.ones(KEPT), jnp.zeros(KEPT)
        coordinates, places = jnp.tile(identity, (KEPT, 1, 1)), jnp.zeros((KEPT, size))
        state = PairPosterior(
            start,
            identity,
            identity,
            jnp.float32(1),
            Rounds(places, coordinates, coordinates, ones, places, ones, none, none, none),
            jnp.tile(start, (POSTERIORS, 1)),
            jnp.tile(identity, (POSTERIORS, 1, 1)),
        )
        return state if self.covariates.number else self.coordinates(state, table, key, jnp.float32(1))

    def pair_score(self, state: PairPosterior, record: Record, record_key: Key) -> PyTree:
        """Return psi of one record and the mean square of its parts, with norm 1 at most; by the record's own key."""
        shown = self.score(state.place, record, self.reading.outcomes(record))

        def pair(key: Key) -> tuple[Array, Array]:
            drawn = self.score(state.place, record, self.reading.simulated(state.place, record, key))
            return _clipped(state.whitening @ (shown - drawn), state.clip)

        # JAX draws counts by its own generator only; the wall's gives it a key for this record and step.
        words = jax.random.bits(record_key, (2,), jnp.uint32)
        keys = jax.random.split(jax.random.wrap_key_data(words, impl="threefry2x32"), self.simulations)
        pairs, squares = jax.vmap(pair)(keys)
        return {
            "score": math.sqrt(1 - SPREAD) * jnp.mean(pairs, 0) / state.clip,
            "spread": math.sqrt(SPREAD) * jnp.mean(squares) / jnp.square(state.clip),
        }

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

    def coordinates(self, state: PairPosterior, table: Table, key: Key, std: Array) -> PairPosterior:
        """Return the state with W and C for its place; ``std`` is the noise of the next release, about."""
        of_rows, of_outcomes = jax.random.split(jax.random.fold_in(key, 1))
        rows = self.rows(table, of_rows, jnp.float32(0))
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
        self,
        state: PairPosterior,
        table: Table,
        mean: PyTree,
        std: Array,
        length: Array,
        rate: Array,
        final: Array,
        key: Key,
    ) -> PairPosterior:
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
            delta, root = self.solved(state, table, rate, final, jax.random.fold_in(key, 2 + k))
            mode = state.place + state.whitening.T @ delta
            return found[0].at[k].set(mode), found[1].at[k].set(state.whitening.T @ root)

        modes, roots = jax.lax.fori_loop(0, jnp.where(final, POSTERIORS, 1), posterior, (state.modes, state.roots))
        way = modes[0] - state.place
        reached = jnp.linalg.norm(state.inverse.T @ way)
        place = state.place + way * jnp.minimum(1, TRUST / (reached + 1e-9))
        return state._replace(place=place, modes=modes, roots=roots)

    def pairs(self, latest: PairPosterior, one: Rounds, rows: PyTree, key: Key) -> Pairs:
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

    def solved(self, state: PairPosterior, table: Table, rate: Array, final: Array, key: Key) -> tuple[Array, Array]:
        """Return the mode, as a way from the place in whitened coordinates, and a root of the covariance there."""
        of_rows, of_outcomes = jax.random.split(key)
        rounds, d = state.rounds, self.reading.size
        rows = self.rows(table, of_rows, jnp.float32(final))
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

        def evaluated(delta: Array) -> tuple[Array, Array, Array]:
            """Return the log posterior, its slope, and the curvature by Gauss and Newton."""
            mean, jacobian = residuals(delta)
            left, along = whiten @ (released - mean), whiten @ jacobian
            value, slope, curvature = self._prior(state, delta)
            return value - left @ left / 2, slope + along.T @ left, along.T @ along + curvature

        return _climbed(evaluated, d)

    def _residuals(self, state: PairPosterior, made: Pairs, weight: Array) -> Callable[[Array], tuple[Array, Array]]:
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

    def _prior(self, state: PairPosterior, delta: Array) -> tuple[Array, Array, Array]:
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
        better = (found[0] >= value) & jnp.all(jnp.isfinite(jnp.append(found[1], jnp.sum(found[2]))))
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
