"""Private inference for NumPyro models by exchangeable pairs: scores that a clip does not bias, and their curvature.

    at a public w a record draws y', y'' ~ p(. | x, w) by its own secret key;   s(y) = W grad_w log p(y | x, w)
    score        psi = clip(s(y) - s(y'), C)                      mean exactly 0 at the truth, whatever the clip
    curvature    1/2 clip(Delta Delta', C^2),  Delta = s(y') - s(y'')     = -dE[psi]/dw, by Bartlett's identity
    first        curvatures only, at the prior's median: W, so that Delta is of unit size in all directions
    then         w = w + pace (H + P)^-1 (g + grad log prior);    averages over the path:  g = H (w* - w) + noise
    a draw       H, its eigenvalues from an exponential distribution given what was released of them;
                 then w by Hamiltonian steps on   log prior(w) + log N(w; w + H^-1 g, H^-1 (H + S) H^-1)

The clip is odd, and (y, y') is exchangeable given x where w is the truth; so psi has mean 0 there for any model that
can simulate, and clipping costs precision but no bias. y' is drawn anew in each step and averages out. The curvature
needs no second derivative and is never negative. S is the known variance of the noise, with that of y'.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.methods.running import exponential_given, records_of, shrink_off_diagonal
from tacit.models.guided import GuidedModel
from tacit.models.traced import Function
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions

STEPS, ROUNDS, SETTLE = 40, 0.15, 0.15
"""Releases by default; the part of them for the scale; the part after it that is not averaged."""
SCORES = 0.75
"""The share of the later releases that is for the scores; the rest is for the curvature."""
REACH = 2.0
"""The clip, in units of the root of the number of latents: a whitened difference has twice as many squares as that."""
FLOOR = 0.7
"""The least eigenvalue to whiten by, in units of what noise alone makes."""
PACE, LIMIT = 0.6, 1.5
"""How steps shorten once the path is averaged, and how long they are at most."""
MOVES, LEAPS, STRIDE = 20, 8, 0.25
"""Hamiltonian moves for a draw, their steps, and how long these are in units of the posterior's own."""
LARGEST = 100
"""So many latents at most: the curvature is a matrix."""


class PairsState(NamedTuple):
    """W (``whitening``), w (``place``), and averages over the path, in whitened coordinates.

    ``score_variance`` and ``curvature_variance`` are the noise's, of each number.
    """

    step: Array
    whitening: Array
    place: Array
    mean_place: Array
    score: Array
    score_variance: Array
    curvature: Array
    curvature_variance: Array


def pairs(model: Function) -> MethodFor:
    """Fit a NumPyro model whose every observed column can be simulated, with intervals that count the privacy noise.

    The number of records must be declared, and about right is enough. A step takes all records by default.

    Privacy: public. Traces the model on placeholder records only.

    Parameters
    ----------
    model
        A NumPyro model with one plate over records, or a formula; without parameters and without latents inside the
        plate. Up to some dozens of latents, of about unit size in their unconstrained coordinates, or of a size that
        differs by less than a factor of ten.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws are those of the model's latents.
    """

    def build(plan: Plan) -> Method:
        steps, reading = plan.steps or STEPS, GuidedModel(model, None, plan.placeholder)
        if steps < 5:
            raise ValueError(f"steps is {steps}; scale and path need at least 5. Write steps={STEPS}.")
        _refuse(reading)
        return _Pairs(reading, records_of(plan, "pairs"), steps).method()

    return MethodFor(build)


class _Pairs:
    """The method's functions, for a model and a number of records."""

    def __init__(self, reading: GuidedModel, number: int, steps: int) -> None:
        self.reading, self.whole, self.steps = reading, float(number), steps
        self.rounds, self.settle = (max(1, round(part * steps)) for part in (ROUNDS, SETTLE))
        params = jax.eval_shape(reading.init, jax.random.key(0))
        self.params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
        median = reading.unconstrain({name: jnp.asarray(one) for name, one in reading.median().items()})
        self.start, self.shaped = ravel_pytree(median)
        self.size = self.start.shape[0]
        self.clip = REACH * math.sqrt(2 * self.size)
        if self.size > LARGEST:
            raise ValueError(f"The model has {self.size} latents, and pairs takes {LARGEST} at most. Use tacit.vi.")

    def method(self) -> Method:
        return Method(
            self.init,
            self.contribute,
            self.update,
            self.draw,
            per_record_key=True,
            bounded=True,
            for_size=int(self.whole),
            for_steps=self.steps,
            noiseless=lambda state: state._replace(
                score_variance=jnp.zeros_like(state.score_variance),
                curvature_variance=jnp.zeros_like(state.curvature_variance),
            ),
            suggests=Suggestions(clip=1.0, rate=1.0, steps=self.steps),
            model=self.reading.known(),
        )

    def init(self, key: Key) -> PairsState:
        zeros, square = jnp.zeros(self.size), jnp.zeros((self.size, self.size))
        zero = jnp.float32(0)
        return PairsState(jnp.int32(0), jnp.eye(self.size), self.start, zeros, zeros, zero, square, zero)

    def contribute(self, state: PairsState, record: Record, key: Key, record_key: Key) -> PyTree:
        values = self.reading.constrain(self.shaped(state.place))

        def score(record: Record) -> Array:
            def term(flat: Array) -> Array:
                return self.reading.log_likelihood(self.reading.constrain(self.shaped(flat)), record)

            return state.whitening @ jax.grad(term)(state.place)

        first, second = (self.reading.redraw(values, record, one) for one in jax.random.split(record_key))
        mine, other, third = score(record), score(first), score(second)
        early = state.step < self.rounds
        share = jnp.where(early, 1.0, 1 - SCORES)
        apart = _clipped((other - third) / self.clip)
        scores = jnp.where(early, 0.0, SCORES**0.5) * _clipped((mine - other) / self.clip)
        return {"curvature": jnp.sqrt(share) * jnp.outer(apart, apart), "score": scores}

    def update(self, state: PairsState, release: Release, key: Key) -> PairsState:
        after = jax.lax.cond(state.step < self.rounds, self._rescale, self._move, state, release)
        return after._replace(step=state.step + 1)

    def _rescale(self, state: PairsState, release: Release) -> PairsState:
        """Whiten by what is believed of the curvature; where noise hides it the scale is taken to be smaller."""
        matrix, std = self._curvature(release, 1.0)
        believed, _ = shrink_off_diagonal(matrix, std**2)
        values, vectors = jnp.linalg.eigh(believed / self.whole)
        values = jnp.maximum(values, jnp.maximum(FLOOR * std * math.sqrt(self.size) / self.whole, 0.05))
        return state._replace(whitening=(vectors / jnp.sqrt(values)).T @ state.whitening)

    def _move(self, state: PairsState, release: Release) -> PairsState:
        part, number = release.part("score"), state.step - self.rounds
        unit = self.clip / SCORES**0.5
        score, std = part.full * unit, part.noise_std * unit / release.rate
        matrix, of_matrix = self._curvature(release, 1 - SCORES)
        late, evenly = 2 / (jnp.maximum(number - self.settle, 0) + 2), 1 / (number + 1)
        curvature = state.curvature + evenly * (matrix - state.curvature)
        curvature_variance = (1 - evenly) ** 2 * state.curvature_variance + (evenly * of_matrix) ** 2
        # A difference has the variance 2 H, of which one half is y's own: the other averages out along the path.
        own = std**2 + self.whole
        pace = jnp.where(number < self.settle, 1.0, late**PACE)
        values, vectors = jnp.linalg.eigh(shrink_off_diagonal(curvature, curvature_variance)[0])
        values = jnp.maximum(values, 0.05 * self.whole) + 1.5 * pace * std
        slope = score + state.whitening @ jax.grad(self.log_prior)(state.place)
        change = pace * (vectors @ (vectors.T @ slope / values))
        change = change * jnp.minimum(1, LIMIT * math.sqrt(self.size) / (jnp.linalg.norm(change) + 1e-20))
        return state._replace(
            place=state.place + state.whitening.T @ change,
            mean_place=state.mean_place + late * (state.place - state.mean_place),
            score=state.score + late * (score - state.score),
            score_variance=(1 - late) ** 2 * state.score_variance + late**2 * own,
            curvature=curvature,
            curvature_variance=curvature_variance,
        )

    def draw(self, state: PairsState, key: Key) -> dict[str, Array]:
        of_curvature, of_start, of_moves = jax.random.split(key, 3)
        believed, variance = shrink_off_diagonal(state.curvature, state.curvature_variance)
        values, vectors = jnp.linalg.eigh(believed)
        deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + 1e-20
        values = exponential_given(values, deviation, 2 * self.whole, of_curvature)
        gain = values / (values + state.score_variance + 1e-20)
        precision = (vectors * (gain * values)) @ vectors.T
        slope = vectors @ (gain * (vectors.T @ state.score))

        def log_density(u: Array) -> Array:
            return self.log_prior(state.mean_place + state.whitening.T @ u) + slope @ u - u @ precision @ u / 2

        prior = -state.whitening @ jax.hessian(self.log_prior)(state.mean_place) @ state.whitening.T
        found, axes = jnp.linalg.eigh(precision + prior)
        roots = axes / jnp.sqrt(jnp.maximum(found, 1e-6 * jnp.max(jnp.abs(found))))
        middle = roots @ (roots.T @ jax.grad(log_density)(jnp.zeros(self.size)))
        u = _moved(log_density, middle + roots @ jax.random.normal(of_start, middle.shape), roots, of_moves)
        return self.reading.constrain(self.shaped(state.mean_place + state.whitening.T @ u))

    def log_prior(self, flat: Array) -> Array:
        """Return the log density of the prior in unconstrained coordinates."""
        w = self.shaped(flat)
        draw = self.reading.constrain(w)
        volume = [jnp.sum(self.reading.latents[name].log_abs_det_jacobian(w[name], draw[name])) for name in w]
        return self.reading.log_prior(self.params, draw) + sum(volume)

    def _curvature(self, release: Release, share: float) -> tuple[Array, Array]:
        """Return the sum of curvatures as released, and the noise's standard deviation in a number on its diagonal."""
        part, unit = release.part("curvature"), self.clip**2 / 2 / math.sqrt(share)
        return unit * (part.full + part.full.T) / 2, unit * part.noise_std / release.rate


def _moved(log_density: Any, start: Array, roots: Array, key: Key) -> Array:
    """Make Hamiltonian moves from a place, in coordinates in which the posterior is about standard normal."""
    slope = jax.grad(lambda place: log_density(roots @ place))

    def move(place: Array, key: Key) -> tuple[Array, None]:
        of_speed, of_stride, of_choice = jax.random.split(key, 3)
        speed = jax.random.normal(of_speed, place.shape)
        stride = STRIDE * (0.5 + jax.random.uniform(of_stride))

        def leap(_: Any, both: tuple[Array, Array]) -> tuple[Array, Array]:
            place, speed = both
            speed = speed + stride / 2 * slope(place)
            place = place + stride * speed
            return place, speed + stride / 2 * slope(place)

        there, faster = jax.lax.fori_loop(0, LEAPS, leap, (place, speed))
        gained = log_density(roots @ there) - log_density(roots @ place) + (speed @ speed - faster @ faster) / 2
        taken = jnp.log(jax.random.uniform(of_choice)) < gained
        return jnp.where(taken, there, place), None

    begin = jnp.linalg.solve(roots, start)
    return roots @ jax.lax.scan(move, begin, jax.random.split(key, MOVES))[0]


def _clipped(vector: Array) -> Array:
    """Shorten a vector to the norm 1 at most: an odd function."""
    return vector / jnp.maximum(1, jnp.linalg.norm(vector))


def _refuse(reading: GuidedModel) -> None:
    """Refuse models whose records cannot be simulated at given latents."""
    if reading.local or reading.point_estimates or not reading.latents:
        raise ValueError("The model has latents inside the plate, or parameters, or no latents. Use tacit.vi.")
    if not reading.generative:
        raise ValueError(
            "The model observes something that is not a column as it is, so its records cannot be drawn anew. Observe "
            "the columns themselves, or use tacit.vi."
        )
