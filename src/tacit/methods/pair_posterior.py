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
from tacit.methods.pair_differences import Expected, Second, differences
from tacit.models.simulated import SimulatedModel
from tacit.types import Array, Key, PyTree, Record

KEPT = 4
"""Rounds that are used at a time."""
SCORE, NORMS, MOMENTS = 0.8, 0.06, 0.14
"""The shares of a round's release: psi; squared norms and second moments, of psi and of pairs that are both made up."""
QUANTILE, GROWN = 0.7, 0.15
"""The clip is that quantile of the norms, or more where the noise is this small a part of the spread then."""
TILTED = 1.3
"""The clip along the directions in which skewed outcomes bias a clipped score, in units of the other one at least."""
JACOBIAN = 0.1
"""The relative error in a round's mean, for each unit of the way since."""
NEAR, TRUST, LONGEST = 0.7, 2.0, 3.0
"""How far rounds are used; how far a step goes, and one of its own steps, in units of one record's information."""
POSTERIORS, OUTCOMES, ITERATIONS = 12, 4, 16
"""Normal approximations at the end; outcomes of each made-up record, evaluations in a solution."""
MADE_UP, FEWEST, ENTRIES = 4000, 1000, 80_000
"""Made-up records of each at most and at least, and of how many numbers in all."""

GAIN = 1e-3
"""Twice the gain in log posterior below which a climb stops."""


class Rounds(NamedTuple):
    """The last rounds, the latest first: where, in which coordinates, with what clips, what was released, its noise in
    units of the clip, in how many steps (0 for none)."""

    place: Array
    whitening: Array
    inverse: Array
    clip: Array
    score: Array
    norms: Array
    moments: Array
    std: Array
    steps: Array


class PairPosterior(NamedTuple):
    """The present round, those before, and the posterior: normal approximations with their modes and roots.

    ``place``, ``whitening``, its ``inverse`` and ``clip`` are w_t, W and both C.
    """

    place: Array
    whitening: Array
    inverse: Array
    clip: Array
    rounds: Rounds
    modes: Array
    roots: Array


class Pairs(NamedTuple):
    """Outcomes of made-up records at one place: records, outcomes, log densities, psi, its spreads and mean squares.

    ``psi`` is in the present coordinates. ``common`` is the spread of its mean over all partners, ``single`` that with
    one partner; ``squares`` are their traces in the round's own coordinates.
    """

    rows: PyTree
    outcomes: PyTree
    log_density: Array
    psi: Array
    common: Array
    single: Array
    squares: Array


class PairModel:
    """What is computed on made-up records, and the same of a record within the wall: ``pair_score``."""

    def __init__(
        self, reading: SimulatedModel, covariates: Covariates, placeholder: Record, whole: float, simulations: int
    ) -> None:
        self.reading, self.covariates, self.placeholder = reading, covariates, placeholder
        self.whole, self.simulations = whole, simulations
        self.score = jax.grad(reading.log_density)
        self.made_up = min(MADE_UP, max(FEWEST, ENTRIES // reading.size))
        self.tilted = min(reading.count_of_numbers, reading.size - 1)

    def begin(self, table: Table, key: Key) -> PairPosterior:
        """Return the first round: at the median of the prior."""
        start, size, identity = self.reading.start, self.reading.size, jnp.eye(self.reading.size)
        ones, none = jnp.ones(KEPT), jnp.zeros(KEPT)
        coordinates, places = jnp.tile(identity, (KEPT, 1, 1)), jnp.zeros((KEPT, size))
        sums_of_rounds = jnp.zeros((KEPT, 2)), jnp.zeros((KEPT, 2, size, size))
        state = PairPosterior(
            start,
            identity,
            identity,
            jnp.ones(2),
            Rounds(places, coordinates, coordinates, jnp.ones((KEPT, 2)), places, *sums_of_rounds, ones, none),
            jnp.tile(start, (POSTERIORS, 1)),
            jnp.tile(identity, (POSTERIORS, 1, 1)),
        )
        return state if self.covariates.number else self.coordinates(state, table, key, jnp.float32(1))

    def pair_score(self, state: PairPosterior, record: Record, record_key: Key) -> dict[str, Array]:
        """Return what one record contributes, with norm 1 at most; within the wall, by the record's own key."""
        shown = self.score(state.place, record, self.reading.outcomes(record))

        def drawn_score(key: Key) -> Array:
            return self.score(state.place, record, self.reading.simulated(state.place, record, key))

        # JAX draws counts by its own generator only; the wall's gives it a key for this record and step.
        words = jax.random.bits(record_key, (2,), jnp.uint32)
        drawn = jax.vmap(drawn_score)(
            jax.random.split(jax.random.wrap_key_data(words, impl="threefry2x32"), self.simulations)
        )
        bound = jnp.linalg.norm(state.clip)
        psi = jnp.mean(self.clipped((shown - drawn) @ state.whitening.T, state.clip), 0) / bound
        apart = self.clipped((drawn - jnp.roll(drawn, 1, 0)) @ state.whitening.T, state.clip) / bound
        moments = jnp.stack([jnp.outer(psi, psi), apart.T @ apart / self.simulations])
        return {
            "score": math.sqrt(SCORE) * psi,
            "norms": math.sqrt(NORMS / 2) * jnp.trace(moments, axis1=1, axis2=2),
            "moments": math.sqrt(MOMENTS / 2) * moments,
        }

    def clipped(self, vectors: Array, clip: Array) -> Array:
        """Return vectors with the part along each outcome, and the rest, shortened to their clips."""
        parts = jnp.split(vectors, [self.tilted], -1)
        return jnp.concatenate([_shortened(part, one) for part, one in zip(parts, clip, strict=True)], -1)

    def rows(self, table: Table, key: Key, wobble: Array) -> PyTree:
        """Make records up."""
        columns = self.covariates.draw(table, key, self.made_up, wobble) if self.covariates.number else {}
        return made_up(self.placeholder, columns, self.made_up)

    def simulated(self, place: Array, rows: PyTree, key: Key) -> tuple[PyTree, Array]:
        """Draw outcomes of made-up records, several each, and their scores."""

        def one(row: Record, key: Key) -> tuple[PyTree, Array]:
            drawn = self.reading.simulated(place, row, key)
            return drawn, self.score(place, row, drawn)

        keys = jax.random.split(key, (self.made_up, OUTCOMES))
        return jax.vmap(jax.vmap(one, (None, 0)))(rows, keys)

    def coordinates(self, state: PairPosterior, table: Table, key: Key, std: Array) -> PairPosterior:
        """Return the state with W and C for its place; ``std`` is the noise of the next release, about."""
        of_rows, of_outcomes = jax.random.split(jax.random.fold_in(key, 1))
        rows = self.rows(table, of_rows, jnp.float32(0))
        outcomes, scores = self.simulated(state.place, rows, of_outcomes)
        pairs = scores[:, ::2] - scores[:, 1::2]
        apart = jnp.nan_to_num(pairs.reshape(-1, self.reading.size))
        scale = jnp.sqrt(jnp.mean(jnp.square(apart), 0) / 2)
        scale = jnp.maximum(scale, 1e-4 * jnp.max(scale) + 1e-20)
        values, vectors = jnp.linalg.eigh((apart / scale).T @ (apart / scale) / (2 * len(apart)))
        values = jnp.sqrt(jnp.maximum(values, 1e-5 * values[-1]))
        if self.tilted:  # the first coordinates are those in which larger outcomes pull
            shown = self.reading.numbers(outcomes)
            signs = jnp.sign(shown[:, ::2] - shown[:, 1::2]).reshape(len(apart), -1)
            pull = (vectors / values).T @ (apart / scale).T @ signs
            rotation = jnp.linalg.qr(jnp.concatenate([pull, jnp.eye(len(values))], 1))[0]
        else:
            rotation = jnp.eye(len(values))
        whitening = rotation.T @ (vectors / values).T / scale
        inverse = scale[:, None] * (vectors * values) @ rotation
        least = jnp.sqrt(GROWN * self.whole) / (std + 1e-6)
        white = apart @ whitening.T
        clip = _clips(white[:, : self.tilted], white[:, self.tilted :], least)
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
        bound, square = jnp.linalg.norm(state.clip), jnp.sum(jnp.square(state.clip))
        latest = Rounds(
            state.place,
            state.whitening,
            state.inverse,
            state.clip,
            mean["score"] * bound / math.sqrt(SCORE),
            mean["norms"] * square / math.sqrt(NORMS / 2),
            mean["moments"] * square / math.sqrt(MOMENTS / 2),
            std,
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
        clipped = self.clipped(jnp.nan_to_num(apart), one.clip)
        squares = _spreads(clipped, _square)
        clipped = clipped @ (latest.whitening @ one.inverse).T
        common, single = _spreads(clipped, _second_moment)
        return Pairs(
            rows, outcomes, log_density, jnp.sum(clipped, 2) / (OUTCOMES - 1), common, single, jnp.stack(squares)
        )

    def solved(self, state: PairPosterior, table: Table, rate: Array, final: Array, key: Key) -> tuple[Array, Array]:
        """Return the mode, as a way from the place in whitened coordinates, and a root of the covariance there."""
        of_rows, of_outcomes = jax.random.split(key)
        rounds, d = state.rounds, self.reading.size
        rows = self.rows(table, of_rows, jnp.float32(final))
        keys = jax.random.split(of_outcomes, KEPT)
        made = jax.vmap(lambda one, key: self.pairs(state, one, rows, key))(rounds, keys)
        away = jnp.sum(jnp.square((state.place - rounds.place) @ state.inverse), 1)
        extra = jnp.square(JACOBIAN * self.whole) * away / d
        square = jnp.sum(jnp.square(rounds.clip), 1)
        variance = jnp.square(rounds.std) * square / SCORE
        used = (rounds.steps > 0) & (away < NEAR**2)
        weight = jnp.where(used, 1 / (variance + extra + 1e-6 * self.whole), 0)
        weight = weight / jnp.sum(weight)
        change = jax.vmap(lambda one: state.whitening @ one.inverse)(rounds)
        released = jnp.einsum("r,rij,rj->i", weight, change, rounds.score)
        noise = jnp.einsum("r,rij,rkj->ik", jnp.square(weight) * (variance + extra), change, change)
        common, single = (jnp.einsum("r,rij->ij", weight, one) for one in (made.common, made.single))
        moments = jnp.einsum("r,rij,rpjk,rlk->pil", weight, change, rounds.moments, change) / self.whole
        std = jnp.sqrt(jnp.sum(jnp.square(weight * rounds.std * square))) / self.whole
        found = Second(
            weight @ rounds.norms / self.whole, std / math.sqrt(NORMS / 2), moments, std / math.sqrt(MOMENTS / 2)
        )
        expected = Expected(common, single, weight @ made.squares, self.simulations)
        # All that is random is drawn at once, since each call of a generator takes long to compile.
        drawn = jax.random.normal(jax.random.fold_in(key, 1), (2 * d * d + 2,))
        number, shape, spread, partner, single = differences(found, expected, final, drawn)
        partners = jnp.sum(jnp.square(weight) / jnp.maximum(rounds.steps, 1))
        spread += partners * (partner + (1 - rate) / rate * single)
        whiten = _inverse_root(noise + self.whole * number * spread)
        residuals = _residuals(self.reading.log_density, self.whole, state, rounds, made, weight, shape, number)

        def evaluated(delta: Array) -> tuple[Array, Array, Array]:
            """Return the log posterior, its slope, and the curvature by Gauss and Newton."""
            mean, jacobian = residuals(delta)
            left, along = whiten @ (released - mean), whiten @ jacobian
            value, slope, curvature = self._prior(state, delta)
            return value - left @ left / 2, slope + along.T @ left, along.T @ along + curvature

        return _climbed(evaluated, d)

    def _prior(self, state: PairPosterior, delta: Array) -> tuple[Array, Array, Array]:
        """Return the log prior, its slope, and minus its curvature."""

        def log_prior(delta: Array) -> Array:
            return self.reading.log_prior_at(state.place + state.whitening.T @ delta)

        value, slope = jax.value_and_grad(log_prior)(delta)
        return value, slope, -jax.hessian(log_prior)(delta)


def _residuals(
    log_density: Callable[..., Array],
    size: float,
    state: PairPosterior,
    rounds: Rounds,
    made: Pairs,
    weight: Array,
    shape: Array,
    number: Array,
) -> Callable[[Array], tuple[Array, Array]]:
    """Return the function that gives mu and its Jacobian, by importance weights.

    ``shape`` takes the scores of made-up records to those of the records; so ways of w go by its transpose.
    """
    factor = size * number / made.log_density[0].size

    def of_round(one: Pairs, place: Array, delta: Array) -> tuple[Array, Array]:
        both = jax.value_and_grad(log_density)
        w = place + state.whitening.T @ (shape.T @ (delta + state.inverse.T @ (state.place - place)))
        logs, scores = jax.vmap(jax.vmap(both, (None, None, 0)), (None, 0, 0))(w, one.rows, one.outcomes)
        ratio = jnp.exp(jnp.clip(jnp.nan_to_num(logs - one.log_density), -8, 4))
        scores = jnp.nan_to_num(scores) @ state.whitening.T
        mean = jnp.einsum("nqi,nq->i", one.psi, ratio - 1)
        jacobian = jnp.einsum("nqi,nq,nqj->ij", one.psi, ratio, scores)
        return factor * shape @ mean, factor * shape @ jacobian @ shape.T

    def residuals(delta: Array) -> tuple[Array, Array]:
        means, jacobians = jax.vmap(of_round, (0, 0, None))(made, rounds.place, delta)
        return weight @ means, jnp.einsum("r,rij->ij", weight, jacobians)

    return residuals


def _climbed(evaluated: Callable[[Array], tuple[Array, Array, Array]], size: int) -> tuple[Array, Array]:
    """Climb to the mode from 0; return it, and a root of the inverse curvature there."""

    def climb(carry: Any) -> Any:
        count, best, value, slope, curvature, pace, _ = carry
        step = _solved(curvature, slope)
        step = step * jnp.minimum(1, LONGEST / (jnp.linalg.norm(step) + 1e-9))
        there = best + pace * step
        found = evaluated(there)
        better = (found[0] >= value) & jnp.all(jnp.isfinite(jnp.append(found[1], jnp.sum(found[2]))))
        new = (there, *found, jnp.minimum(2 * pace + (pace == 0), 1), _solved(found[2], found[1]) @ found[1])
        old = (best, value, slope, curvature, 0.4 * pace, jnp.float32(1))
        return count + 1, *jax.tree.map(lambda new, old: jnp.where(better, new, old), new, old)

    begun = (0, jnp.zeros(size), jnp.float32(-jnp.inf), jnp.zeros(size), jnp.eye(size), jnp.float32(0), jnp.float32(1))
    # Stop where a further step would gain nothing.
    _, best, _, _, curvature, _, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < ITERATIONS) & (carry[-1] > GAIN), climb, begun
    )
    return best, _inverse_root(curvature).T


def _inverse_root(matrix: Array) -> Array:
    """Return R with R'R the inverse of a symmetric matrix, whose eigenvalues are raised to a least one."""
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.maximum(values, 1e-6 * jnp.max(jnp.abs(values)) + 1e-20)
    return (vectors / jnp.sqrt(values)).T


def _solved(matrix: Array, vector: Array) -> Array:
    root = _inverse_root(matrix)
    return root.T @ (root @ vector)


def _shortened(vectors: Array, clip: Array) -> Array:
    norms = jnp.sqrt(jnp.sum(jnp.square(vectors), -1, keepdims=True) + 1e-20)
    return vectors * jnp.minimum(1, clip / norms)


def _spreads(clipped: Array, total: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return the spread of psi over all partners, and with one partner, of which (records, outcomes, partners)."""
    number = clipped.shape[0] * OUTCOMES
    single = total(clipped) / (number * (OUTCOMES - 1))
    psi = jnp.sum(clipped, 2) / (OUTCOMES - 1)
    return ((OUTCOMES - 1) * total(psi) / number - single) / (OUTCOMES - 2), single


def _clips(tilted: Array, rest: Array, least: Array) -> Array:
    """Return both clips, by the norms of pairs that were made up."""
    norms = [jnp.linalg.norm(part, axis=1) for part in (tilted, rest)]
    most = [1.001 * jnp.max(one) + 1e-6 for one in norms]
    clip = jnp.minimum(jnp.maximum(_quantile(norms[1]), least), most[1])
    if not tilted.shape[1]:
        return jnp.stack([jnp.zeros_like(clip), clip])
    wider = jnp.maximum(jnp.maximum(_quantile(norms[0]), least), TILTED * clip)
    return jnp.stack([jnp.minimum(wider, most[0]), clip])


def _quantile(norms: Array) -> Array:
    """Return the quantile of those above 0, by bisection: sorting takes long to compile."""

    def halved(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        below = jnp.sum((norms > 0) & (norms <= middle)) < QUANTILE * jnp.sum(norms > 0)
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    return jax.lax.fori_loop(0, 30, halved, (jnp.float32(0), jnp.max(norms) + 1e-6))[1]


def _square(vectors: Array) -> Array:
    return jnp.sum(jnp.square(vectors))


def _second_moment(vectors: Array) -> Array:
    flat = vectors.reshape(-1, vectors.shape[-1])
    return flat.T @ flat
