"""Private regression with honest intervals: whitened scores that nothing cuts, and a posterior that knows the noise.

    w ~ N(0, prior_std^2),  y | x, w  logistic, Poisson or normal with the predictor x'w;   z = W x,  w = W'u
    P = W diag(1/prior_std^2) W'                                the prior's precision of u
    a tenth of the releases:   M = sum x x'                     W from the eigenvalues of M; a floor where noise hides M
    all the others, at u:      g = sum k r z,  H = sum k h z z',  tr H      r = y - mean, cut and centred;  h = -dE[r]
                               u = u + pace (H + P)^-1 (g - P u)
    averages over the path:    g = H (u* - u) + noise,  S its covariance
    a draw:  the eigenvalues of H, from what the releases say of them,
             then u* | H, whose precision is  P + H (H + S)^-1 H

The weight k = min(1, C / (|z| largest |r|)) depends on x and public numbers only, and r has mean 0 given x. So every
contribution is within the clip without being clipped, and g = 0 has no bias: leverage costs a little precision where a
clip would cost the truth. The residuals of counts and of normal outcomes, which have no largest one, are cut at some
standard deviations and centred again (Cantoni and Ronchetti 2001; Huber 1964).

For H a record weighs less sooner than for g, since a matrix takes more noise. Where many do (on Adult nine in ten) what
is released falls short by half, much alike in all directions; so the trace, one number that can reach further, is
released too, and H is raised to it, less what noise may have added.

S is known, and so the posterior counts the noise of g. H is not: where noise hides it, a posterior with the best guess
believes in information that is not there. So each draw has a curvature of its own, with eigenvalues from normal
distributions cut at 0. H is expected to be a M + b (Mu)(Mu)', as for normal x (Stein), up to the noise in M and to what
the releases show beyond it. M itself is drawn towards its diagonal as far as noise explains the rest.

What the releases say of w is a normal likelihood, so that priors are a matter of the draw. The effects of groups (of
clinics, of years) are weights of J - 1 columns that sum to zero over the J levels, beside the intercept: with J columns
the design would be singular. Their standard deviation is drawn from its posterior with the weights summed out, on a
grid, and then the weights; what the intercept found is shared out between it and the effects' mean by the prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag, solve_triangular
from jax.scipy.special import gammaincc, gammaln
from jax.scipy.stats import norm

from tacit.methods.running import (
    Running,
    blend,
    check_positive,
    cut_normal,
    evenly,
    moved,
    records_of,
    shrink_off_diagonal,
    start,
)
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Requirement, Suggestions

STEPS, MOMENTS, SETTLE = 40, 0.1, 0.15
"""Releases by default; the part of them for M; the part after which the path is averaged."""
CURVATURE, TRACE, NOISE = 0.2, 0.02, 0.05
"""Shares of the later releases: for H, for its trace, and for the noise of normal outcomes. The rest is for g."""
REACH, LEVER, FAR = 2.6, 1.3, 4.0
"""What the scores, and the curvatures, of records may reach before these weigh less, in units of usual ones; and what
they may reach in the trace, in units of LEVER."""
DOUBT = 2.0
"""By how many deviations of its noise the trace is believed to be less than released."""
FLOOR, LEAST = 0.7, 0.1
"""The least eigenvalue of M to whiten by, in units of what noise alone makes; the part of it to believe in at least."""
PACE, DAMPING, LIMIT = 0.6, 1.5, 1.5
"""How steps shorten once the path is averaged, how noise damps them, and how long they are at most."""
CUT = 2.5
"""Residuals of counts and of normal outcomes are cut at so many standard deviations."""
GRID, SWEEPS = 40, 4
"""Places on the grid of a group's standard deviation; rounds through the groups, if there are several."""
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
    log_density: Callable[[Array, Array, Array], Array]
    need: Requirement
    noisy: bool = False


class Path(NamedTuple):
    """Averages over the path: places, scores, curvatures; the noise's variances in them; the part due to sampling.

    Later places and scores weigh more, in proportion to their number: the path comes from afar.
    The last number of a place and of a score is for the log of the noise, if the family has one.
    """

    place: Array
    score: Array
    score_variance: Array
    curvature: Array
    curvature_variance: Array
    trace: Array
    trace_variance: Array
    sampling: Array
    number: Array


Stds = dict[str, Array]
"""The groups' standard deviations."""


class GLMState(NamedTuple):
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


def glm(
    likelihood: str = "bernoulli",
    *,
    bound: float | None = None,
    prior_std: float | Sequence[float] = 4.0,
    groups: Mapping[str, int] | None = None,
    group_std: float = 1.0,
    noise_std: float = 1.0,
    features: Callable[[Array], Array] | None = None,
    size: int | None = None,
    steps: int | None = None,
) -> MethodFor:
    """Fit a logistic, Poisson or linear regression whose intervals account for the privacy noise.

    The number of records must be declared, and about right is enough. A step takes all records by default, and the
    steps of the fit, 40 by default and 5 at least, are divided among phases.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    likelihood
        "bernoulli": a record is ``{"x": columns, "y": 0 or 1}``. "poisson": ``y`` is a count. "normal": a number. An
        ``"offset"`` in the record is added to the predictor.
    bound
        Norm that few ``x`` exceed, public; by default the root of the number of columns, for columns of about unit
        size. Longer ones count less in the moments. A column of ones gives the intercept; centre and scale the others
        by public figures.
    prior_std
        Standard deviation of the weights' prior, one for all or one for each column.
    groups
        Columns of a record beside ``x`` and ``y`` that hold the codes 0, 1, ... of a group, with their numbers of
        levels: ``{"clinic": 20}``. Levels have effects from a normal distribution whose standard deviation is unknown.
        The first column of ``x`` must then be 1. A record with another code counts for nothing, without a word, unless
        a schema that declares it refused it before.
    group_std
        Scale of the half-normal prior of the groups' standard deviations.
    noise_std
        Of normal outcomes: a public guess of the noise. The prior of its log has standard deviation 1 around it.
    features
        A public function of a record's ``x``, which then may be an image: the hidden layers of a network, trained on
        public records or privately. The columns are 1 and what it gives; the posterior is that of a last layer.
    size, steps
        Deprecated: the plan has them.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws have ``w``; for a group ``clinic`` its effects, and their standard
        deviation ``clinic_std``; ``noise`` for normal outcomes. Predictions have ``mean`` and ``y``.
    """
    if likelihood not in FAMILIES:
        raise ValueError(f"likelihood is {likelihood!r}. Write {' or '.join(map(repr, FAMILIES))}.")
    moved(size, steps)
    groups = dict(groups or {})
    check_positive(prior_std=float(np.min(prior_std)), group_std=group_std, noise_std=noise_std)
    check_positive(bound=1.0 if bound is None else bound)
    family = FAMILIES[likelihood]
    extra = int(family.noisy)  # numbers in a place beside u: the log of the noise
    scores = 1 - CURVATURE - TRACE - NOISE * extra

    def build(plan: Plan) -> Method:
        placeholder, count, number = plan.placeholder, _steps(plan, steps), records_of(plan, "glm", size)
        first = max(1, round(MOMENTS * count))
        settled = first + max(1, round(SETTLE * count) - 1)
        rank = np.ndim(placeholder["x"]) if isinstance(placeholder, dict) and "x" in placeholder else 0

        def columns_of(x: Any) -> Array:
            """Return the columns of a record, or of several."""
            x = jnp.asarray(x).astype(jnp.float32)
            if features is None:
                return x
            if x.ndim > rank:
                return jax.vmap(columns_of)(x)
            return jnp.append(1.0, features(x)).astype(jnp.float32)

        if features is not None and rank:
            placeholder = {**placeholder, "x": np.zeros(jax.eval_shape(columns_of, placeholder["x"]).shape)}
        single = _columns(placeholder, groups)
        columns = single + sum(levels - 1 for levels in groups.values())
        places = dict(zip(groups, np.cumsum([single, *(levels - 1 for levels in groups.values())]), strict=False))
        contrasts = {name: jnp.asarray(_contrasts(levels)) for name, levels in groups.items()}
        longest = math.sqrt(single + len(groups)) if bound is None else bound
        identity = np.eye(columns, dtype=np.float32)
        prior_variances, widest = _prior_variances(prior_std, single), max(float(np.max(prior_std)), group_std)
        middling = {name: jnp.float32(group_std) for name in groups}
        whole = float(number)  # its square does not fit JAX's integers
        precisely = 2 * INSIDE_SQUARE * whole  # the information about the log of the noise

        def init(key: Key) -> GLMState:
            place = jnp.append(jnp.zeros(columns), jnp.full(extra, math.log(noise_std)))
            zero, square = jnp.float32(0), jnp.zeros((columns, columns))
            return GLMState(
                jnp.int32(0),
                start(square),
                jnp.asarray(identity),
                jnp.ones(columns),
                square,
                place,
                family.information(zero, jnp.float32(noise_std)),
                Path(place, jnp.zeros_like(place), jnp.zeros_like(place), square, zero, zero, zero, zero, zero),
            )

        def design(record: Record) -> Array:
            codes = (contrasts[name][record[name].astype(jnp.int32)] for name in groups)
            return jnp.concatenate([columns_of(record["x"]), *codes])

        def contribute(state: GLMState, record: Record, key: Key) -> PyTree:
            early = state.step < first
            x = design(record)
            z = state.whitening @ x
            along, noise = z @ state.place[:columns] + _offset(record), _noise(state.place)
            r, largest = family.residual(record["y"].astype(jnp.float32), along, noise)
            h = family.information(along, noise)
            length = jnp.linalg.norm(z) + TINY
            k = jnp.minimum(1, _reach(state) / (length * largest))
            lever = jnp.minimum(k, _lever(state) / (h * length**2 + TINY)) * h * CURVATURE**0.5 / _lever(state)
            short = x / jnp.maximum(jnp.linalg.norm(x), longest)
            score = z * (k * r * scores**0.5 / _reach(state))
            if family.noisy:
                score = jnp.append(score, NOISE**0.5 * ((r * noise) ** 2 - CUT_SQUARE) / (CUT**2 - CUT_SQUARE))
            matrix = jnp.outer(jnp.where(early, short, lever * z), jnp.where(early, short, z))
            trace = TRACE**0.5 * jnp.clip(k * h * length**2 / (FAR * _lever(state)), 0, 1)
            return {"matrix": matrix, "score": jnp.where(early, 0, score), "trace": jnp.where(early, 0, trace)}

        def update(state: GLMState, release: Release, key: Key) -> GLMState:
            after = jax.lax.cond(state.step < first, whiten, move, state, release)
            return after._replace(step=state.step + 1)

        def whiten(state: GLMState, release: Release) -> GLMState:
            moments = blend(state.moments, _scaled(release.part("matrix"), longest**2), evenly)
            matrix, variance = shrink_off_diagonal(symmetrize(moments.statistics), jnp.square(moments.noise_std))
            values, vectors = jnp.linalg.eigh(matrix)
            values = debias_eigenvalues(values, variance)
            floor = jnp.maximum(FLOOR * jnp.sqrt(jnp.max(jnp.sum(variance, 1))), 1e-3 * whole)
            raised = jnp.maximum(values, floor)
            return state._replace(
                moments=moments,
                whitening=(vectors * jnp.sqrt(whole / raised)).T,
                spread=jnp.maximum(values, LEAST * floor) / raised,
                spread_variance=vectors.T**2 @ variance @ vectors**2 / jnp.outer(raised, raised),
            )

        def move(state: GLMState, release: Release) -> GLMState:
            score, matrix, trace = (
                _scaled(release.part("score"), _units(state)),
                _scaled(release.part("matrix"), _lever(state) / CURVATURE**0.5),
                _scaled(release.part("trace"), FAR * _lever(state) / TRACE**0.5),
            )
            share = 1 / (state.path.number + 1)
            late = 2 / (state.path.number + 2)
            old = state.path

            def variance(old: Array, std: Array, share: Array = share) -> Array:
                return jnp.square(1 - share) * old + jnp.square(share * std / release.rate)

            path = Path(
                old.place + late * (state.place - old.place),
                old.score + late * (score.full - old.score),
                variance(old.score_variance, score.noise_std, late),
                old.curvature + share * (symmetrize(matrix.full) - old.curvature),
                variance(old.curvature_variance, matrix.noise_std),
                old.trace + share * (trace.full - old.trace),
                variance(old.trace_variance, trace.noise_std),
                variance(old.sampling, jnp.sqrt(release.rate * (1 - release.rate)), late),
                old.number + (state.step >= settled),
            )
            usual, believed, _ = _believed(state, path, state.place)
            pace, prior = share**PACE, _prior(state, middling)
            damping = DAMPING * pace * score.noise_std / release.rate
            values, vectors = jnp.linalg.eigh(believed + prior)
            values = jnp.maximum(values, jnp.min(jnp.sum(state.whitening**2, 1)) / widest**2) + damping[0]
            slope = score.full - _pull(state, state.place, middling)
            change = vectors @ (vectors.T @ slope[:columns] / values)
            change = jnp.append(change, slope[columns:] / (precisely + 1 + damping[columns:]))
            change = change * pace * jnp.minimum(1, LIMIT / (pace * jnp.linalg.norm(change) + TINY))
            usual = jnp.clip(usual, state.usual / 5, state.usual * 5)
            return state._replace(place=state.place + change, usual=usual, path=path)

        def draw(state: GLMState, key: Key) -> dict[str, Array]:
            path = state.path
            key_curvature, key_groups, key_place, key_share = jax.random.split(key, 4)
            usual, believed, variance = _believed(state, path, path.place)
            values, vectors = jnp.linalg.eigh(believed)
            deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + TINY
            wobble = cut_normal(key_curvature, jnp.minimum(-values / deviation, 4), jnp.float32(jnp.inf))
            values = jnp.maximum(values + deviation * wobble, 1e-3 * whole * usual)
            values = jnp.append(values, jnp.full(extra, precisely))
            gain = values / (values * (1 + path.sampling) + path.score_variance)
            vectors = block_diag(vectors, jnp.eye(extra))
            precision = (vectors * (gain * values)) @ vectors.T
            slope = vectors @ (gain * (vectors.T @ path.score))

            def solved(stds: Stds) -> tuple[Array, Array]:
                """Return the root of the posterior's precision, and the mode's way from the path's place, times it."""
                root = jnp.linalg.cholesky(precision + block_diag(_prior(state, stds), jnp.eye(extra)))
                return root, solve_triangular(root, slope - _pull(state, path.place, stds), lower=True)

            def evidence(stds: Stds) -> Array:
                root, along = solved(stds)
                weights, variances = state.whitening.T @ path.place[:columns], _variances(stds)
                outside = jnp.sum(jnp.square(weights) / variances + jnp.log(variances)) / 2
                return along @ along / 2 - jnp.sum(jnp.log(jnp.diag(root))) - outside

            stds = _group_stds(evidence, middling, group_std, key_groups)
            root, along = solved(stds)
            place = path.place + solve_triangular(
                root.T, along + jax.random.normal(key_place, along.shape), lower=False
            )
            found = shared(state.whitening.T @ place[:columns], stds, key_share)
            return {**found, "noise": _noise(place)} if family.noisy else found

        def shared(weights: Array, stds: Stds, key: Key) -> dict[str, Array]:
            """Share what the intercept found out between it and the means of the groups' effects, as the prior does."""
            variances = {name: jnp.square(std) / groups[name] for name, std in stds.items()}
            of_all = _variances(stds)[0]
            prior_stds = jnp.sqrt(jnp.stack([prior_variances[0], *variances.values()]))
            means = prior_stds * jax.random.normal(key, prior_stds.shape)
            means = means + jnp.square(prior_stds) / of_all * (weights[0] - jnp.sum(means))
            found = {"w": weights[:single] if not groups else weights[:single].at[0].set(means[0])}
            for number, (name, levels) in enumerate(groups.items()):
                along = weights[places[name] : places[name] + levels - 1]
                found |= {name: contrasts[name] @ along + means[1 + number], f"{name}_std": stds[name]}
            return found

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            along = predictor(draw, inputs)
            return {"mean": family.mean(along), "y": family.draw(key, along, draw.get("noise", jnp.ones(())))}

        def log_likelihood(draw: dict[str, Array], record: Record) -> Array:
            y = record["y"].astype(jnp.float32)
            return family.log_density(y, predictor(draw, record), draw.get("noise", jnp.ones(())))

        def predictor(draw: dict[str, Array], inputs: PyTree) -> Array:
            effects = (draw[name][jnp.asarray(inputs[name]).astype(jnp.int32)] for name in groups)
            return sum(effects, columns_of(inputs["x"]) @ draw["w"] + _offset(inputs))

        def simulate(key: Key, records: PyTree) -> tuple[PyTree, dict[str, Array]]:
            of_noise, of_stds, of_weights, of_means, of_y = jax.random.split(key, 5)
            stds = {
                name: group_std * jnp.abs(jax.random.normal(jax.random.fold_in(of_stds, number)))
                for number, name in enumerate(groups)
            }
            weights = jnp.sqrt(_variances(stds)) * jax.random.normal(of_weights, (columns,))
            draw = shared(weights, stds, of_means)
            draw |= {"noise": noise_std * jnp.exp(jax.random.normal(of_noise))} if family.noisy else {}
            y = family.draw(of_y, predictor(draw, records), draw.get("noise", jnp.ones(())))
            return {**records, "y": y.astype(jnp.asarray(records["y"]).dtype)}, draw

        def _noise(place: Array) -> Array:
            return jnp.exp(jnp.sum(place[columns:]))

        def _reach(state: GLMState) -> Array:
            """Return C: about the norm of a whitened record times the largest residual of a usual one."""
            return REACH * jnp.sqrt(jnp.sum(state.spread) * state.usual)

        def _lever(state: GLMState) -> Array:
            return LEVER * jnp.sum(state.spread) * state.usual

        def _units(state: GLMState) -> Array:
            """Return what a score of 1 in a release stands for."""
            units = jnp.full(columns, _reach(state) / scores**0.5)
            return jnp.append(units, jnp.full(extra, (CUT**2 - CUT_SQUARE) / NOISE**0.5))

        def _variances(stds: Stds) -> Array:
            """Return the prior's variances of the columns' weights; the intercept has the means of the groups' too."""
            means = sum((jnp.square(stds[name]) / levels for name, levels in groups.items()), prior_variances[0])
            effects = [jnp.full(levels - 1, jnp.square(stds[name])) for name, levels in groups.items()]
            return jnp.concatenate([jnp.asarray(prior_variances).at[0].set(means), *effects])

        def _prior(state: GLMState, stds: Stds) -> Array:
            """Return P."""
            return (state.whitening / _variances(stds)) @ state.whitening.T

        def _pull(state: GLMState, place: Array, stds: Stds) -> Array:
            """Return minus the slope of the log prior."""
            return jnp.append(_prior(state, stds) @ place[:columns], place[columns:] - math.log(noise_std))

        def _believed(state: GLMState, path: Path, place: Array) -> tuple[Array, Array, Array]:
            """Return the usual h as released, and H given the releases: mean and variances."""
            spread, u, released = state.spread, place[:columns], path.curvature / whole
            cut = jnp.maximum(jnp.trace(released) / jnp.sum(spread), 0.02 * state.usual)
            trace = path.trace - DOUBT * jnp.sqrt(path.trace_variance)
            raised = jnp.clip(trace / (whole * jnp.sum(spread) * cut), 1, FAR)
            released, usual = raised * released, raised * cut
            along = spread * u
            square = u @ along + 1e-6
            tilt = jnp.clip((u @ released @ u + 1e-6 * usual) / square - usual, -0.9 * usual, 3 * usual)
            expected = usual * jnp.diag(spread) + tilt * jnp.outer(along, along) / square
            noise = path.curvature_variance * jnp.square(raised / whole)
            noise = noise * (1 + identity) / 2  # mirrored: off the diagonal half as much
            before = usual**2 * state.spread_variance
            before = before + jnp.maximum(jnp.mean(jnp.square(released - expected) - noise - before), 0)
            gain = before / (before + noise + TINY)
            return cut, whole * (expected + gain * (released - expected)), whole**2 * gain * noise

        needs = (family.need, *_group_needs(groups)[0 if features is None else 1 :])
        return Method(
            init,
            contribute,
            update,
            draw,
            requirements=needs,
            bounded=True,
            for_size=number,
            for_steps=count,
            suggests=Suggestions(clip=1.0, rate=1.0, steps=count),
            model=Model(predict, log_likelihood, simulate),
        )

    return MethodFor(build)


def _steps(plan: Plan, given: int | None) -> int:
    """Return the number of releases: the plan's, or 40."""
    steps = next((steps for steps in (plan.steps, given) if steps is not None), STEPS)
    if given not in (None, steps):
        raise ValueError(
            f"steps={given} was given to glm, and steps={plan.steps} to the fit. Leave it out of glm, whose "
            "phases are parts of the steps of the fit."
        )
    if steps < 5:
        raise ValueError(f"steps is {steps}; moments and a path need at least 5. Write steps={STEPS}.")
    return steps


def _group_stds(evidence: Callable[[Stds], Array], stds: Stds, scale: float, key: Key) -> Stds:
    """Draw the groups' standard deviations, one after another, on a grid of their logarithms."""
    apart = math.log(200) / (GRID - 1)
    grid = 4 * scale * jnp.exp(-apart * jnp.arange(GRID))
    prior = jnp.log(grid) - jnp.square(grid / scale) / 2

    def one_round(stds: Stds, key: Key) -> tuple[Stds, None]:
        for name, name_key in zip(stds, jax.random.split(key, len(stds)), strict=True):
            place, inside = jax.random.split(name_key)
            logs = jax.lax.map(lambda std, name=name, others=stds: evidence({**others, name: std}), grid) + prior
            off = apart * (jax.random.uniform(inside) - 0.5)
            stds = {**stds, name: grid[jax.random.categorical(place, logs)] * jnp.exp(off)}
        return stds, None

    return jax.lax.scan(one_round, stds, jax.random.split(key, SWEEPS if len(stds) > 1 else 1))[0] if stds else {}


def _prior_variances(prior_std: Any, columns: int) -> np.ndarray:
    if np.ndim(prior_std) and np.shape(prior_std) != (columns,):
        raise ValueError(
            f"prior_std has the shape {np.shape(prior_std)}, and x has {columns} columns. Give one number, or one for "
            "each column."
        )
    return np.broadcast_to(np.square(np.asarray(prior_std, np.float32)), (columns,))


def _contrasts(levels: int) -> np.ndarray:
    """Return orthonormal columns, one less than there are levels, that sum to zero over the levels."""
    number, column = np.arange(levels)[:, None], np.arange(1, levels)
    return (
        np.where(number < column, 1, np.where(number == column, -column, 0)) / np.sqrt(column * (column + 1))
    ).astype(np.float32)


def _offset(record: Any) -> Array:
    return jnp.asarray(record.get("offset", 0.0), jnp.float32)


def _scaled(release: Release, scale: Array | float) -> Release:
    return release._replace(full=release.full * scale, noise_std=release.noise_std * scale)


def symmetrize(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def debias_eigenvalues(values: Array, variance: Array) -> Array:
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
    """Return the residual, cut and centred."""
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


def _columns(placeholder: Any, groups: Mapping[str, int]) -> int:
    if set(groups) & {"x", "y", "w", "noise", "offset"} or any(levels < 2 for levels in groups.values()):
        raise ValueError(
            f"groups are {dict(groups)}. A group has two levels or more, and is not named x, y, w, noise or offset; "
            'write groups={"clinic": 20}.'
        )
    wanted = {"x", "y", *groups}
    if not isinstance(placeholder, dict) or not wanted <= set(placeholder):
        given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
        more = "".join(f', "{name}": code' for name in groups)
        raise ValueError(f'A regression takes records {{"x": columns, "y": outcome{more}}}; these are {given}.')
    if np.ndim(placeholder["x"]) != 1 or any(np.ndim(placeholder[name]) for name in ("y", *groups)):
        raise ValueError(
            f"A record of a regression has a vector x and a number y; the shapes are {np.shape(placeholder['x'])} and "
            f"{np.shape(placeholder['y'])}. Put all columns into one array x with a line for each record."
        )
    return int(placeholder["x"].shape[0])


def _group_needs(groups: Mapping[str, int]) -> tuple[Requirement, ...]:
    def is_code(record: Record, name: str, levels: int) -> Array:
        code = record[name]
        return (code >= 0) & (code < levels) & (code == jnp.round(code))

    codes = [
        Requirement(
            f"{name} must be a whole number from 0 to {levels - 1}: the code of a level.",
            partial(is_code, name=name, levels=levels),
        )
        for name, levels in groups.items()
    ]
    ones = Requirement(
        "The first column of x must be 1: groups differ from an intercept.", lambda record: record["x"][0] == 1
    )
    return (ones, *codes) if groups else ()


FAMILIES = {
    "bernoulli": Family(
        _logistic_residual,
        _logistic_information,
        jax.nn.sigmoid,
        lambda key, predictor, noise: jax.random.bernoulli(key, jax.nn.sigmoid(predictor)).astype(jnp.int32),
        lambda y, predictor, noise: jax.nn.log_sigmoid((2 * y - 1) * predictor),
        Requirement(
            "y must be 0 or 1. Write y = (label == positive).astype(int).",
            lambda record: (record["y"] == 0) | (record["y"] == 1),
            fixed=True,
        ),
    ),
    "poisson": Family(
        _poisson_residual,
        _poisson_information,
        _poisson_mean,
        lambda key, predictor, noise: jax.random.poisson(key, _poisson_mean(predictor)),
        lambda y, predictor, noise: y * jnp.log(_poisson_mean(predictor)) - _poisson_mean(predictor) - gammaln(y + 1),
        Requirement(
            "y must be a whole number from 0 on: a count.",
            lambda record: (record["y"] >= 0) & (record["y"] == jnp.round(record["y"])) & jnp.isfinite(record["y"]),
            fixed=True,
        ),
    ),
    "normal": Family(
        _normal_residual,
        _normal_information,
        lambda predictor: predictor,
        lambda key, predictor, noise: predictor + noise * jax.random.normal(key, predictor.shape),
        lambda y, predictor, noise: norm.logpdf(y, predictor, noise),
        Requirement("y must be a finite number.", lambda record: jnp.isfinite(record["y"]), fixed=True),
        noisy=True,
    ),
}
