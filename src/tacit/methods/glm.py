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

S is known, and so the posterior accounts for the noise of g. H is not: where noise hides it, a posterior with the best
guess believes in information that is not there. So each draw has a curvature of its own, with eigenvalues from normal
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

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag, solve_triangular

from tacit.methods.arguments import check_positive, moved, records_of
from tacit.methods.curvature import FAR, TINY, GLMState, Path, averaged, believed, noiseless, whitened
from tacit.methods.likelihoods import CUT, CUT_SQUARE, FAMILIES, INSIDE_SQUARE, Family
from tacit.methods.regressors import Regressors, Stds, offset
from tacit.methods.running import cut_normal, start
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

STEPS, MOMENTS, SETTLE = 40, 0.1, 0.15
"""Releases by default; the part of them for M; the part after which the path is averaged."""
CURVATURE, TRACE, NOISE = 0.2, 0.02, 0.05
"""Shares of the later releases: for H, for its trace, and for the noise of normal outcomes. The rest is for g."""
REACH, LEVER = 2.6, 1.3
"""What the scores, and the curvatures, of records may reach before these weigh less, in units of usual ones."""
PACE, DAMPING, LIMIT = 0.6, 1.5, 1.5
"""How steps shorten once the path is averaged, how noise damps them, and how long they are at most."""


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
        The first column of ``x`` must then be 1. A record with another code contributes nothing, without a warning,
        unless a schema that declares it refused it before.
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

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(200, 2))
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> posterior = tacit.fit(tacit.glm(), data, tacit.Budget(1.0, 1e-6), progress=False)
    >>> posterior.draws["w"].shape
    (1000, 2)
    """
    if likelihood not in FAMILIES:
        raise ValueError(f"likelihood is {likelihood!r}. Write {' or '.join(map(repr, FAMILIES))}.")
    moved(size, steps)
    check_positive(prior_std=float(np.min(prior_std)), group_std=group_std, noise_std=noise_std)
    check_positive(bound=1.0 if bound is None else bound)
    levels = dict(groups or {})

    def build(plan: Plan) -> Method:
        count, number = _steps(plan, steps), records_of(plan, "glm", size)
        regressors = Regressors(plan.placeholder, levels, features, prior_std, group_std)
        longest = math.sqrt(regressors.single + len(levels)) if bound is None else bound
        regression = _Regression(FAMILIES[likelihood], regressors, longest, noise_std, count, number)
        return Method(
            regression.init,
            regression.contribute,
            regression.update,
            regression.draw,
            requirements=(regression.family.need, *regressors.requirements()),
            bounded=True,
            for_size=number,
            for_steps=count,
            validated="papers/coverage",
            noiseless=noiseless,
            suggests=Suggestions(clip=1.0, rate=1.0, steps=count),
            model=Model(regression.predict, regression.log_likelihood, regression.simulate, regression.prior),
        )

    return MethodFor(build)


class _Regression:
    """The method's functions, for a likelihood, columns, numbers of steps and of records."""

    def __init__(
        self, family: Family, regressors: Regressors, longest: float, noise_std: float, steps: int, number: int
    ) -> None:
        self.family, self.regressors, self.columns = family, regressors, regressors.count
        self.longest, self.noise_std = longest, noise_std
        self.extra = int(family.noisy)  # numbers in a place beside u: the log of the noise
        self.scores = 1 - CURVATURE - TRACE - NOISE * self.extra
        self.first = max(1, round(MOMENTS * steps))
        self.settled = self.first + max(1, round(SETTLE * steps) - 1)
        self.whole = float(number)  # its square does not fit JAX's integers
        self.precisely = 2 * INSIDE_SQUARE * self.whole  # the information about the log of the noise

    def init(self, key: Key) -> GLMState:
        place = jnp.append(jnp.zeros(self.columns), jnp.full(self.extra, math.log(self.noise_std)))
        zero, square = jnp.float32(0), jnp.zeros((self.columns, self.columns))
        return GLMState(
            jnp.int32(0),
            start(square),
            jnp.eye(self.columns),
            jnp.ones(self.columns),
            square,
            place,
            self.family.information(zero, jnp.float32(self.noise_std)),
            Path(place, jnp.zeros_like(place), jnp.zeros_like(place), square, zero, zero, zero, zero, zero),
        )

    def contribute(self, state: GLMState, record: Record, key: Key) -> PyTree:
        early = state.step < self.first
        x = self.regressors.design(record)
        z = state.whitening @ x
        along, noise = z @ state.place[: self.columns] + offset(record), self._noise(state.place)
        r, largest = self.family.residual(record["y"].astype(jnp.float32), along, noise)
        h = self.family.information(along, noise)
        length = jnp.linalg.norm(z) + TINY
        k = jnp.minimum(1, self._reach(state) / (length * largest))
        lever = jnp.minimum(k, self._lever(state) / (h * length**2 + TINY)) * h * CURVATURE**0.5 / self._lever(state)
        short = x / jnp.maximum(jnp.linalg.norm(x), self.longest)
        score = z * (k * r * self.scores**0.5 / self._reach(state))
        if self.family.noisy:
            score = jnp.append(score, NOISE**0.5 * ((r * noise) ** 2 - CUT_SQUARE) / (CUT**2 - CUT_SQUARE))
        matrix = jnp.outer(jnp.where(early, short, lever * z), jnp.where(early, short, z))
        trace = TRACE**0.5 * jnp.clip(k * h * length**2 / (FAR * self._lever(state)), 0, 1)
        return {"matrix": matrix, "score": jnp.where(early, 0, score), "trace": jnp.where(early, 0, trace)}

    def update(self, state: GLMState, release: Release, key: Key) -> GLMState:
        after = jax.lax.cond(state.step < self.first, self._whiten, self._move, state, release)
        return after._replace(step=state.step + 1)

    def _whiten(self, state: GLMState, release: Release) -> GLMState:
        return whitened(state, _scaled(release.part("matrix"), self.longest**2), self.whole)

    def _move(self, state: GLMState, release: Release) -> GLMState:
        score, matrix, trace = (
            _scaled(release.part("score"), self._units(state)),
            _scaled(release.part("matrix"), self._lever(state) / CURVATURE**0.5),
            _scaled(release.part("trace"), FAR * self._lever(state) / TRACE**0.5),
        )
        columns, middling = self.columns, self.regressors.middling
        path = averaged(state.path, state.place, score, matrix, trace, state.step >= self.settled)
        usual, curvature, _ = believed(state, path, state.place[:columns], self.whole)
        pace, prior = (1 / (state.path.number + 1)) ** PACE, self._prior(state, middling)
        damping = DAMPING * pace * score.noise_std / release.rate
        values, vectors = jnp.linalg.eigh(curvature + prior)
        values = jnp.maximum(values, jnp.min(jnp.sum(state.whitening**2, 1)) / self.regressors.widest**2) + damping[0]
        slope = score.full - self._pull(state, state.place, middling)
        change = vectors @ (vectors.T @ slope[:columns] / values)
        change = jnp.append(change, slope[columns:] / (self.precisely + 1 + damping[columns:]))
        change = change * pace * jnp.minimum(1, LIMIT / (pace * jnp.linalg.norm(change) + TINY))
        usual = jnp.clip(usual, state.usual / 5, state.usual * 5)
        return state._replace(place=state.place + change, usual=usual, path=path)

    def draw(self, state: GLMState, key: Key) -> dict[str, Array]:
        path, regressors = state.path, self.regressors
        key_curvature, key_groups, key_place, key_share = jax.random.split(key, 4)
        usual, curvature, variance = believed(state, path, path.place[: self.columns], self.whole)
        values, vectors = jnp.linalg.eigh(curvature)
        deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + TINY
        wobble = cut_normal(key_curvature, jnp.minimum(-values / deviation, 4), jnp.float32(jnp.inf))
        values = jnp.maximum(values + deviation * wobble, 1e-3 * self.whole * usual)
        values = jnp.append(values, jnp.full(self.extra, self.precisely))
        gain = values / (values * (1 + path.sampling) + path.score_variance)
        vectors = block_diag(vectors, jnp.eye(self.extra))
        precision = (vectors * (gain * values)) @ vectors.T
        slope = vectors @ (gain * (vectors.T @ path.score))

        def solved(stds: Stds) -> tuple[Array, Array]:
            """Return the root of the posterior's precision, and the mode's way from the path's place, times it."""
            root = jnp.linalg.cholesky(precision + block_diag(self._prior(state, stds), jnp.eye(self.extra)))
            return root, solve_triangular(root, slope - self._pull(state, path.place, stds), lower=True)

        def evidence(stds: Stds) -> Array:
            root, along = solved(stds)
            weights, variances = state.whitening.T @ path.place[: self.columns], regressors.variances(stds)
            outside = jnp.sum(jnp.square(weights) / variances + jnp.log(variances)) / 2
            return along @ along / 2 - jnp.sum(jnp.log(jnp.diag(root))) - outside

        stds = regressors.draw_stds(evidence, key_groups)
        root, along = solved(stds)
        place = path.place + solve_triangular(root.T, along + jax.random.normal(key_place, along.shape), lower=False)
        found = regressors.shared(state.whitening.T @ place[: self.columns], stds, key_share)
        return {**found, "noise": self._noise(place)} if self.family.noisy else found

    def predict(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        along = self.regressors.predictor(draw, inputs)
        return {"mean": self.family.mean(along), "y": self.family.draw(key, along, draw.get("noise", jnp.ones(())))}

    def log_likelihood(self, draw: dict[str, Array], record: Record) -> Array:
        y, along = record["y"].astype(jnp.float32), self.regressors.predictor(draw, record)
        return self.family.log_density(y, along, draw.get("noise", jnp.ones(())))

    def simulate(self, key: Key, records: PyTree) -> tuple[PyTree, dict[str, Array]]:
        *of_draw, of_y = jax.random.split(key, 5)
        draw = self._prior_draw(*of_draw)
        y = self.family.draw(of_y, self.regressors.predictor(draw, records), draw.get("noise", jnp.ones(())))
        return {**records, "y": y.astype(jnp.asarray(records["y"]).dtype)}, draw

    def prior(self, key: Key) -> dict[str, Array]:
        return self._prior_draw(*jax.random.split(key, 4))

    def _prior_draw(self, of_noise: Key, of_stds: Key, of_weights: Key, of_means: Key) -> dict[str, Array]:
        draw = self.regressors.prior_draw(of_weights, of_stds, of_means)
        return draw | ({"noise": self.noise_std * jnp.exp(jax.random.normal(of_noise))} if self.family.noisy else {})

    def _noise(self, place: Array) -> Array:
        return jnp.exp(jnp.sum(place[self.columns :]))

    def _reach(self, state: GLMState) -> Array:
        """Return C: about the norm of a whitened record times the largest residual of a usual one."""
        return REACH * jnp.sqrt(jnp.sum(state.spread) * state.usual)

    def _lever(self, state: GLMState) -> Array:
        return LEVER * jnp.sum(state.spread) * state.usual

    def _units(self, state: GLMState) -> Array:
        """Return what a score of 1 in a release stands for."""
        units = jnp.full(self.columns, self._reach(state) / self.scores**0.5)
        return jnp.append(units, jnp.full(self.extra, (CUT**2 - CUT_SQUARE) / NOISE**0.5))

    def _prior(self, state: GLMState, stds: Stds) -> Array:
        """Return P."""
        return (state.whitening / self.regressors.variances(stds)) @ state.whitening.T

    def _pull(self, state: GLMState, place: Array, stds: Stds) -> Array:
        """Return minus the slope of the log prior."""
        columns = self.columns
        return jnp.append(self._prior(state, stds) @ place[:columns], place[columns:] - math.log(self.noise_std))


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


def _scaled(release: Release, scale: Array | float) -> Release:
    return release._replace(full=release.full * scale, noise_std=release.noise_std * scale)
