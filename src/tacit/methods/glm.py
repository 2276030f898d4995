"""Private regression with honest intervals: whitened scores that nothing cuts, and a posterior that knows the noise.

    w ~ N(0, prior_std^2),  y | x, w  logistic, Poisson or normal with the predictor x'w
    z = W x,  w = W'u,  P = W diag(1/prior_std^2) W'            P: the prior's precision of u
    a tenth of the releases:   M = sum x x'                     W from the eigenvalues of M; a floor where noise hides M
    all the others, at u:      g = sum k r z,  H = sum k h z z',  tr H      r = y - mean, cut and centred;  h = -dE[r]
                               u = u + pace (H + P)^-1 (g - P u)
    averages over the path:    g = H (u* - u) + noise,  S its covariance
    a draw:  the eigenvalues of H given the releases, then u* | H, whose precision is  P + H (H + S)^-1 H

The weight k = min(1, C / (|z| largest |r|)) depends on x and public numbers only, and r has mean 0 given x. So every
contribution is within the clip without being clipped, and g = 0 has no bias: leverage costs a little precision where a
clip would cost the truth (``leverage``). The posterior knows S, and draws H since noise hides it (``curvature``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_choice, check_positive, full_batches, records_of, steps_of, with_deprecated
from tacit.methods.curvature import Path, averaged, believed, draw_curvature, noiseless, start_path
from tacit.methods.leverage import Reach, Shares, phases, weights_of
from tacit.methods.likelihoods import FAMILIES
from tacit.methods.regression_model import RegressionModel
from tacit.methods.regressors import Regressors
from tacit.methods.whitened_weights import WhitenedWeights
from tacit.methods.whitening import Whitening, start_whitening, whitened
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release

STEPS, LEAST, PACE = 40, 5, 0.6
"""Releases by default, and at least; how steps shorten once the path is averaged."""


class GLMState(NamedTuple):
    """What is known of the columns; u (``place``), the usual h there, and the averages over the path."""

    step: Array
    whitening: Whitening
    place: Array
    usual: Array
    path: Path


@with_deprecated("size", "steps")
def glm(
    likelihood: str = "bernoulli",
    *,
    bound: float | None = None,
    prior_std: float | Sequence[float] = 4.0,
    groups: Mapping[str, int] | None = None,
    group_std: float = 1.0,
    noise_std: float = 1.0,
    features: Callable[[Array], Array] | None = None,
) -> MethodFor:
    """Fit a logistic, Poisson or linear regression whose intervals account for the privacy noise.

    The number of records must be declared, and about right is enough. A step takes all records by default; the steps,
    40 by default and 5 at least, are divided among phases.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    likelihood
        "bernoulli": a record is ``{"x": columns, "y": 0 or 1}``. "poisson": ``y`` is a count. "normal": a number. An
        ``"offset"`` in the record is added to the predictor.
    bound
        Norm that few ``x`` exceed, public; by default the root of the number of columns. Longer ones count less in the
        moments. A column of ones gives the intercept; centre and scale the others to about 1 by public figures.
    prior_std
        Standard deviation of the weights' prior, one for all or one for each column.
    groups
        Columns with the codes 0, 1, ... of a group, and their numbers of levels: ``{"clinic": 20}``. Levels have normal
        effects. The first column of ``x`` must then be 1. A record with another code contributes nothing, unnoticed.
    group_std
        Scale of the half-normal prior of the standard deviations of the groups' effects.
    noise_std
        Of normal outcomes: a public guess of the noise. The prior of its log has standard deviation 1 around it.
    features
        A public function of ``x``, which then may be an image: the hidden layers of a network, trained on public
        records or privately. The columns are 1 and what it returns; the posterior is that of a last layer.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws have ``w``; for a group ``clinic`` its effects, and their standard
        deviation ``clinic_std``; ``noise`` for normal outcomes. Predictions have ``mean`` and ``y``.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> posterior = tacit.fit(tacit.glm(), data, tacit.Budget(1.0, 1e-6), progress=False)
    >>> posterior.draws["w"].shape
    (1000, 2)
    """
    check_choice(FAMILIES, likelihood=likelihood)
    check_positive(bound=bound, prior_std=prior_std, group_std=group_std, noise_std=noise_std)

    def build(plan: Plan) -> Method:
        steps, number = steps_of(plan, "glm", STEPS, LEAST), float(records_of(plan, "glm"))
        first, settled = phases(steps)
        regressors = Regressors(plan.placeholder, groups or {}, features, prior_std, group_std)
        model = RegressionModel(FAMILIES[likelihood], regressors, noise_std)
        weights, shares = WhitenedWeights(model, number), Shares(model, bound)

        def init(key: Key) -> GLMState:
            place, whitening = weights.start(), start_whitening(regressors.count)
            return GLMState(jnp.int32(0), whitening, place, model.usual(), start_path(place, whitening))

        def contribute(state: GLMState, record: Record, key: Key) -> PyTree:
            x, noise = regressors.design(record), weights.noise(state.place)
            z = state.whitening.matrix @ x
            r, largest, h = model.residual(record, weights.predictor(state.place, z), noise)
            reach = Reach(state.whitening.spread, state.usual)
            k, k_of_h = weights_of(z, largest, h, reach)
            return shares.contribution(state.step < first, x, z, reach, k * r, k_of_h * h, k * h, r * noise)

        def update(state: GLMState, release: Release, key: Key) -> GLMState:
            after = jax.lax.cond(state.step < first, whiten, move, state, release)
            return after._replace(step=state.step + 1)

        def whiten(state: GLMState, release: Release) -> GLMState:
            return state._replace(whitening=whitened(state.whitening, shares.moments(release), number))

        def move(state: GLMState, release: Release) -> GLMState:
            score, matrix, trace = shares.sums(release, Reach(state.whitening.spread, state.usual))
            path = averaged(state.path, state.place, score, matrix, trace, state.step >= settled)
            usual, curvature, _ = believed(state.whitening, state.usual, path, state.place, number)
            pace = (1 / (state.path.number + 1)) ** PACE
            place = state.place + weights.newton_step(state.whitening.matrix, state.place, score, curvature, pace)
            return state._replace(place=place, usual=jnp.clip(usual, state.usual / 5, state.usual * 5), path=path)

        def draw(state: GLMState, key: Key) -> dict[str, Array]:
            key_curvature, *keys = jax.random.split(key, 4)
            whitening, path = state.whitening, state.path
            values, vectors = draw_curvature(whitening, state.usual, path, number, weights.known, key_curvature)
            gain = values / (values * (1 + path.sampling) + path.score_variance)  # H (H + S)^-1, by H's eigenvectors
            precision, slope = (vectors * (gain * values)) @ vectors.T, vectors @ (gain * (vectors.T @ path.score))
            return weights.draw(whitening.matrix, path.place, precision, slope, *keys)

        facts = full_batches(int(number), steps) | model.known()
        return Method(init, contribute, update, draw, validated="papers/coverage", noiseless=noiseless, **facts)

    return MethodFor(build)
