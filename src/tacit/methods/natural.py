"""Private regression with honest intervals: whitened scores that nothing cuts, and a posterior that knows the noise.

    w ~ N(0, prior_std^2),  y | x, w  logistic, Poisson or normal with the predictor x'w;   z = W x,  w = W'u
    a tenth of the releases:   M = sum x x'                     W from the eigenvalues of M; a floor where noise hides M
    all the others, at u:      g = sum k r z,  H = sum k h z z'             r = y - mean, cut and centred;  h = -dE[r]
                               u = u + pace (H + 1/prior)^-1 (g - u/prior)
    averages over the path:    g = H (u* - u) + noise,  S its covariance
    a draw:  the eigenvalues of H, from what the releases say of them,
             then u* | H, whose precision is  1/prior + H (H + S)^-1 H

The weight k = min(1, C / (|z| largest |r|)) depends on x and public numbers only, and r has mean 0 given x. So every
contribution is within the clip without being clipped, and g = 0 has no bias: leverage costs a little precision where a
clip would cost the truth. The residuals of counts and of normal outcomes, which have no largest one, are cut at some
standard deviations and centred again (Cantoni and Ronchetti 2001; Huber 1964).

S is known, and so the posterior counts the noise of g. H is not: where noise hides it, a posterior with the best guess
believes in information that is not there. So each draw has a curvature of its own, with eigenvalues from normal
distributions cut at 0. H is expected to be a M + b (Mu)(Mu)', as for normal x (Stein), up to the noise in M and to what
the releases show beyond it. M itself is drawn towards its diagonal as far as noise explains the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag, solve_triangular
from jax.scipy.special import gammaincc, gammaln

from tacit.methods.running import Running, blend, check_positive, check_size, evenly, start
from tacit.types import Array, Key, Method, MethodFor, Need, PyTree, Record, Release

STEPS, MOMENTS, SETTLE = 40, 0.1, 0.15
"""Releases by default; the part of them for M; the part after which the path is averaged."""
CURVATURE, NOISE = 0.2, 0.05
"""Shares of the later releases: for H, and for the noise of normal outcomes. The rest is for g."""
REACH, LEVER = 2.6, 1.7
"""What the scores, and the curvatures, of records may reach before these weigh less, in units of usual ones."""
FLOOR, LEAST = 0.7, 0.1
"""The least eigenvalue of M to whiten by, in units of what noise alone makes; the part of it to believe in at least."""
PACE, DAMPING, LIMIT = 0.6, 1.5, 1.5
"""How steps shorten once the path is averaged, how noise damps them, and how long they are at most."""
CUT = 2.5
"""Residuals of counts and of normal outcomes are cut at so many standard deviations."""
TINY = 1e-20

INSIDE = math.erf(CUT / math.sqrt(2))
INSIDE_SQUARE = INSIDE - 2 * CUT * math.exp(-(CUT**2) / 2) / math.sqrt(2 * math.pi)
CUT_SQUARE = INSIDE_SQUARE + CUT**2 * (1 - INSIDE)
"""For a standard normal e: the chance that |e| is below the cut, E[e^2] over these, and E[min(e^2, cut^2)]."""


class Family(NamedTuple):
    """A likelihood with its usual link, by the predictor and the noise's standard deviation (1 where there is none).

    ``residual(y, predictor, noise)`` gives r and the largest |r|. ``information(predictor, noise)`` is h, minus the
    slope of the mean of r by the predictor; the variance of r is at most that.
    """

    residual: Callable[[Array, Array, Array], tuple[Array, Array]]
    information: Callable[[Array, Array], Array]
    mean: Callable[[Array], Array]
    draw: Callable[[Key, Array, Array], Array]
    need: Need
    noisy: bool = False


class Path(NamedTuple):
    """Averages over the path: places, scores, curvatures; the noise's variances in them; the part due to sampling.

    The last number of a place and of a score is for the log of the noise, if the family has one.
    """

    place: Array
    score: Array
    score_variance: Array
    curvature: Array
    curvature_variance: Array
    sampling: Array
    number: Array


class NaturalState(NamedTuple):
    """Of x: the averaged M, the whitening W, the moments of z that are believed (``spread``) and their variances.

    Then u (``place``), the usual h there, and the path.
    """

    step: Array
    moments: Running
    whitening: Array
    spread: Array
    spread_variance: Array
    place: Array
    usual: Array
    path: Path


def natural(
    likelihood: str = "bernoulli",
    *,
    size: int,
    bound: float | None = None,
    prior_std: float = 4.0,
    noise_std: float = 1.0,
    steps: int = STEPS,
) -> MethodFor:
    """Fit a logistic, Poisson or linear regression whose intervals account for the privacy noise.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    likelihood
        "bernoulli": a record is ``{"x": columns, "y": 0 or 1}``. "poisson": ``y`` is a count. "normal": a number.
    size
        Number of records, public; about right is enough.
    bound
        Norm that few ``x`` exceed, public; by default 1.2 times the root of the number of columns, for columns of about
        unit size. Longer ones count less in the moments. A column of ones gives the intercept; centre and scale the
        others by public figures.
    prior_std
        Standard deviation of the weights' prior.
    noise_std
        Of normal outcomes: a public guess of the noise. The prior of its log has standard deviation 1 around it.
    steps
        Number of releases, of all records each.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws have ``w``, and ``noise`` for normal outcomes; predictions ``mean`` and
        ``y``.
    """
    if likelihood not in FAMILIES:
        raise ValueError(f"likelihood is {likelihood!r}. Write {' or '.join(map(repr, FAMILIES))}.")
    check_size(size)
    check_positive(prior_std=prior_std, noise_std=noise_std, bound=1.0 if bound is None else bound)
    if steps < 5:
        raise ValueError(f"steps is {steps}; moments and a path need at least 5. Write steps={STEPS}.")
    family = FAMILIES[likelihood]
    extra = int(family.noisy)  # numbers in a place beside u: the log of the noise
    first = max(1, round(MOMENTS * steps))
    settled = first + max(1, round(SETTLE * steps) - 1)
    scores = 1 - CURVATURE - NOISE * extra

    def build(placeholder: Record) -> Method:
        columns = _columns(placeholder)
        longest = math.sqrt(columns) if bound is None else bound
        identity = jnp.eye(columns)
        precisely = 2 * INSIDE_SQUARE * size  # the information about the log of the noise

        def init(key: Key) -> NaturalState:
            place = jnp.append(jnp.zeros(columns), jnp.full(extra, math.log(noise_std)))
            zero, square = jnp.float32(0), jnp.zeros((columns, columns))
            return NaturalState(
                jnp.int32(0),
                start(square),
                identity,
                jnp.ones(columns),
                square,
                place,
                family.information(zero, jnp.float32(noise_std)),
                Path(place, jnp.zeros_like(place), jnp.zeros_like(place), square, zero, zero, zero),
            )

        def contribute(state: NaturalState, record: Record, key: Key) -> PyTree:
            early = state.step < first
            x = record["x"].astype(jnp.float32)
            z = state.whitening @ x
            predictor, noise = z @ state.place[:columns], _noise(state.place)
            r, largest = family.residual(record["y"].astype(jnp.float32), predictor, noise)
            h = family.information(predictor, noise)
            length = jnp.linalg.norm(z) + TINY
            k = jnp.minimum(1, _reach(state) / (length * largest))
            lever = jnp.minimum(k, _lever(state) / (h * length**2 + TINY)) * h * CURVATURE**0.5 / _lever(state)
            short = x / jnp.maximum(jnp.linalg.norm(x), longest)
            score = z * (k * r * scores**0.5 / _reach(state))
            if family.noisy:
                score = jnp.append(score, NOISE**0.5 * ((r * noise) ** 2 - CUT_SQUARE) / (CUT**2 - CUT_SQUARE))
            matrix = jnp.outer(jnp.where(early, short, lever * z), jnp.where(early, short, z))
            return {"matrix": matrix, "score": jnp.where(early, 0, score)}

        def update(state: NaturalState, release: Release, key: Key) -> NaturalState:
            after = jax.lax.cond(state.step < first, whiten, move, state, release)
            return after._replace(step=state.step + 1)

        def whiten(state: NaturalState, release: Release) -> NaturalState:
            moments = blend(state.moments, _scaled(release.part("matrix"), longest**2), evenly)
            matrix, variance = _towards_diagonal(_mirrored(moments.statistics), jnp.square(moments.noise_std))
            values, vectors = jnp.linalg.eigh(matrix)
            values = _without_repulsion(values, variance)
            floor = jnp.maximum(FLOOR * jnp.sqrt(jnp.max(jnp.sum(variance, 1))), 1e-3 * size)
            raised = jnp.maximum(values, floor)
            return state._replace(
                moments=moments,
                whitening=(vectors * jnp.sqrt(size / raised)).T,
                spread=jnp.maximum(values, LEAST * floor) / raised,
                spread_variance=vectors.T**2 @ variance @ vectors**2 / jnp.outer(raised, raised),
            )

        def move(state: NaturalState, release: Release) -> NaturalState:
            score, matrix = (
                _scaled(release.part("score"), _units(state)),
                _scaled(release.part("matrix"), _lever(state) / CURVATURE**0.5),
            )
            share = 1 / (state.path.number + 1)
            old = state.path

            def variance(old: Array, std: Array) -> Array:
                return jnp.square(1 - share) * old + jnp.square(share * std / release.rate)

            path = Path(
                old.place + share * (state.place - old.place),
                old.score + share * (score.full - old.score),
                variance(old.score_variance, score.noise_std),
                old.curvature + share * (_mirrored(matrix.full) - old.curvature),
                variance(old.curvature_variance, matrix.noise_std),
                variance(old.sampling, jnp.sqrt(release.rate * (1 - release.rate))),
                old.number + (state.step >= settled),
            )
            usual, believed, _ = _believed(state, path, state.place)
            pace, prior = share**PACE, _prior(state)
            damping = DAMPING * pace * score.noise_std / release.rate
            values, vectors = jnp.linalg.eigh(believed + jnp.diag(prior))
            values = jnp.maximum(values, prior.min()) + damping[0]
            slope = score.full - _pull(state, state.place)
            change = vectors @ (vectors.T @ slope[:columns] / values)
            change = jnp.append(change, slope[columns:] / (precisely + 1 + damping[columns:]))
            change = change * pace * jnp.minimum(1, LIMIT / (pace * jnp.linalg.norm(change) + TINY))
            usual = jnp.clip(usual, state.usual / 5, state.usual * 5)
            return state._replace(place=state.place + change, usual=usual, path=path)

        def draw(state: NaturalState, key: Key) -> dict[str, Array]:
            path = state.path
            key_curvature, key_place = jax.random.split(key)
            usual, believed, variance = _believed(state, path, path.place)
            values, vectors = jnp.linalg.eigh(believed)
            deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + TINY
            wobble = jax.random.truncated_normal(key_curvature, jnp.minimum(-values / deviation, 4), jnp.inf)
            values = jnp.maximum(values + deviation * wobble, 1e-3 * size * usual)
            values = jnp.append(values, jnp.full(extra, precisely))
            gain = values / (values * (1 + path.sampling) + path.score_variance)
            vectors = block_diag(vectors, jnp.eye(extra))
            prior = jnp.append(_prior(state), jnp.ones(extra))
            root = jnp.linalg.cholesky((vectors * (gain * values)) @ vectors.T + jnp.diag(prior))
            slope = vectors @ (gain * (vectors.T @ path.score)) - _pull(state, path.place)
            along = solve_triangular(root, slope, lower=True) + jax.random.normal(key_place, slope.shape)
            place = path.place + solve_triangular(root.T, along, lower=False)
            weights = {"w": state.whitening.T @ place[:columns]}
            return {**weights, "noise": _noise(place)} if family.noisy else weights

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            predictor = jnp.asarray(inputs["x"]) @ draw["w"]
            return {"mean": family.mean(predictor), "y": family.draw(key, predictor, draw.get("noise", jnp.ones(())))}

        def _noise(place: Array) -> Array:
            return jnp.exp(jnp.sum(place[columns:]))

        def _reach(state: NaturalState) -> Array:
            """Give C: about the norm of a whitened record times the largest residual of a usual one."""
            return REACH * jnp.sqrt(jnp.sum(state.spread) * state.usual)

        def _lever(state: NaturalState) -> Array:
            return LEVER * jnp.sum(state.spread) * state.usual

        def _units(state: NaturalState) -> Array:
            """Give what a score of 1 in a release stands for."""
            units = jnp.full(columns, _reach(state) / scores**0.5)
            return jnp.append(units, jnp.full(extra, (CUT**2 - CUT_SQUARE) / NOISE**0.5))

        def _prior(state: NaturalState) -> Array:
            """Give the precisions of u: the lines of W are orthogonal."""
            return jnp.sum(state.whitening**2, 1) / prior_std**2

        def _pull(state: NaturalState, place: Array) -> Array:
            """Give minus the slope of the log prior."""
            return jnp.append(_prior(state) * place[:columns], place[columns:] - math.log(noise_std))

        def _believed(state: NaturalState, path: Path, place: Array) -> tuple[Array, Array, Array]:
            """Give the usual h, and H given the releases: mean and variances."""
            spread, u, released = state.spread, place[:columns], path.curvature / size
            usual = jnp.maximum(jnp.trace(released) / jnp.sum(spread), 0.02 * state.usual)
            along = spread * u
            square = u @ along + 1e-6
            tilt = jnp.clip((u @ released @ u + 1e-6 * usual) / square - usual, -0.9 * usual, 3 * usual)
            expected = usual * jnp.diag(spread) + tilt * jnp.outer(along, along) / square
            noise = path.curvature_variance / size**2 * (1 + identity) / 2  # mirrored: off the diagonal half as much
            before = usual**2 * state.spread_variance
            before = before + jnp.maximum(jnp.mean(jnp.square(released - expected) - noise - before), 0)
            gain = before / (before + noise + TINY)
            return usual, size * (expected + gain * (released - expected)), size**2 * gain * noise

        return Method(init, contribute, update, draw, predict, clip=1.0, rate=1.0, steps=steps, needs=(family.need,))

    return build


def _scaled(release: Release, scale: Array | float) -> Release:
    return release._replace(full=release.full * scale, noise_std=release.noise_std * scale)


def _mirrored(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _towards_diagonal(matrix: Array, variance: Array) -> tuple[Array, Array]:
    """Draw a noisy mirrored matrix towards its diagonal, by the share of the rest that noise explains (James-Stein).

    Also give the variances of its entries given what was released.
    """
    identity = jnp.eye(len(matrix))
    rest = matrix * (1 - identity)
    noise = variance / 2 * (matrix.size - len(matrix))
    believed = jnp.clip(1 - noise / (jnp.sum(rest**2) + TINY), 0, 1)
    return identity * matrix + believed * rest, variance * (identity + believed / 2 * (1 - identity))


def _without_repulsion(values: Array, variance: Array) -> Array:
    """Take off what noise adds to eigenvalues by pushing them apart: their vectors' own quadratic forms are nearer."""
    apart = values[:, None] - values
    noise = 2 * jnp.square(variance[0, -1]) / (jnp.max(variance) + TINY)
    return values - noise * jnp.sum(apart / (apart**2 + noise + TINY), 1)


def _logistic_residual(y: Array, predictor: Array, noise: Array) -> tuple[Array, Array]:
    chance = jax.nn.sigmoid(predictor)
    return y - chance, jnp.maximum(chance, 1 - chance)


def _logistic_information(predictor: Array, noise: Array) -> Array:
    return jax.nn.sigmoid(predictor) * jax.nn.sigmoid(-predictor)


def _normal_residual(y: Array, predictor: Array, noise: Array) -> tuple[Array, Array]:
    return jnp.clip((y - predictor) / noise, -CUT, CUT) / noise, CUT / noise


def _normal_information(predictor: Array, noise: Array) -> Array:
    return INSIDE / noise**2


def _poisson_mean(predictor: Array) -> Array:
    return jnp.exp(jnp.clip(predictor, -15, 15))


class _Counts(NamedTuple):
    """A Poisson variable between the cuts: the last count below, the last within, distribution function, chances."""

    low: Array
    high: Array
    below: Callable[[Array], Array]
    chance: Callable[[Array], Array]


def _poisson(mean: Array) -> _Counts:
    def below(count: Array) -> Array:
        return jnp.where(count >= 0, gammaincc(jnp.maximum(count, 0) + 1, mean), 0)

    def chance(count: Array) -> Array:
        there = jnp.maximum(count, 0)
        return jnp.where(count >= 0, jnp.exp(there * jnp.log(mean) - mean - gammaln(there + 1)), 0)

    reach = CUT * jnp.sqrt(mean)
    return _Counts(jnp.floor(mean - reach), jnp.floor(mean + reach), below, chance)


def _poisson_residual(y: Array, predictor: Array, noise: Array) -> tuple[Array, Array]:
    """Give the residual, cut and centred."""
    mean = _poisson_mean(predictor)
    low, high, below, chance = _poisson(mean)
    std = jnp.sqrt(mean)
    usual = CUT * (1 - below(high) - below(low)) + std * (chance(low) - chance(high))
    cut = jnp.clip((y - mean) / std, -CUT, CUT)
    return std * (cut - usual), std * (CUT + jnp.abs(usual))


def _poisson_information(predictor: Array, noise: Array) -> Array:
    mean = _poisson_mean(predictor)
    low, high, below, chance = _poisson(mean)

    def squares(count: Array) -> Array:
        """E (y - mean)^2 over y up to a count."""
        return mean * (below(count - 1) - mean * chance(count - 1) + mean * chance(count))

    return jnp.sqrt(mean) * CUT * mean * (chance(high) + chance(low)) + squares(high) - squares(low)


def _columns(placeholder: Any) -> int:
    if not isinstance(placeholder, dict) or not {"x", "y"} <= set(placeholder):
        given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
        raise ValueError(f'A regression takes records {{"x": columns, "y": outcome}}; these are {given}.')
    if np.ndim(placeholder["x"]) != 1 or np.ndim(placeholder["y"]):
        raise ValueError(
            f"A record of a regression has a vector x and a number y; the shapes are {np.shape(placeholder['x'])} and "
            f"{np.shape(placeholder['y'])}. Put all columns into one array x with a line for each record."
        )
    return int(placeholder["x"].shape[0])


FAMILIES = {
    "bernoulli": Family(
        _logistic_residual,
        _logistic_information,
        jax.nn.sigmoid,
        lambda key, predictor, noise: jax.random.bernoulli(key, jax.nn.sigmoid(predictor)).astype(jnp.int32),
        Need(
            "y must be 0 or 1. Write y = (label == positive).astype(int).",
            lambda record: (record["y"] == 0) | (record["y"] == 1),
        ),
    ),
    "poisson": Family(
        _poisson_residual,
        _poisson_information,
        _poisson_mean,
        lambda key, predictor, noise: jax.random.poisson(key, _poisson_mean(predictor)),
        Need(
            "y must be a whole number from 0 on: a count.",
            lambda record: (record["y"] >= 0) & (record["y"] == jnp.round(record["y"])) & jnp.isfinite(record["y"]),
        ),
    ),
    "normal": Family(
        _normal_residual,
        _normal_information,
        lambda predictor: predictor,
        lambda key, predictor, noise: predictor + noise * jax.random.normal(key, predictor.shape),
        Need("y must be a finite number.", lambda record: jnp.isfinite(record["y"])),
        noisy=True,
    ),
}
