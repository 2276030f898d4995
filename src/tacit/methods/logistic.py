"""Private Bayesian logistic, binomial and negative-binomial regression with Pólya-Gamma variables.

Park, Foulds, Chaudhuri, Welling (2020), Variational Bayes in private settings (VIPS), section 5.

    w ~ N(0, I / alpha),  alpha ~ Gamma(a, b),  y | x, w ~ Bernoulli(logit x'w)
    repeat
      each record:  xi = E[Pólya-Gamma] = trials tanh(c/2) / (2c),  c^2 = x' E[ww'] x
                    contributes  score (y - trials/2) x,  curvature xi x x'
      average the releases: the score evenly, the curvature by the pace
      q(w) = N(m, S):  S^-1 = E[alpha] I + curvature,  m = S score
      q(alpha) = Gamma(a + d/2, b + (m'm + tr S)/2)        both again and again until they agree: it is free

Where it leaves the paper: one joint release of both blocks in place of 2J compositions, with the block scaling of least
noise; sums, not averages, so that no sensitivity is off by N/S. The score is the same in every step, and averaging it
evenly over T releases gives what one release at T times the budget would. The curvature is a sum of squares: what
is released lacks symmetry and may be indefinite; a copy is mirrored, and eigenvalues that noise alone would make are
raised to the size of the noise. Without that nothing is left of a regression with hundreds of columns.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_positive
from tacit.methods.polya_gamma import Outcome, polya_gamma_mean
from tacit.methods.running import Pace, Running, blend, polynomial_decay, start, uniform_average
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release

AGREE = 50
"""How often q(w) and q(alpha) are updated in turn after a step."""


class LogisticState(NamedTuple):
    """The averaged releases, the posterior N(mean, covariance) of w, and the mean of alpha, ``precision``."""

    score: Running
    curvature: Running
    mean: Array
    covariance: Array
    precision: Array


def logistic(
    likelihood: str = "bernoulli",
    *,
    bound: float = 1.0,
    most: float = 1.0,
    dispersion: float = 1.0,
    prior: tuple[float, float] = (1.0, 1.0),
    pace: Pace | None = None,
) -> MethodFor:
    """Fit a logistic regression (or a binomial or negative-binomial one) by private variational Bayes.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    likelihood
        "bernoulli": a record is ``{"x": columns, "y": 0 or 1}``. "binomial": also ``"trials"``, of which ``y`` were
        successes. "negative-binomial": ``y`` is a count.
    bound
        Largest norm of ``x``, public. Longer ones are shortened to it. Scale the columns by public figures so that most
        records are just within it; a column of ones gives the intercept.
    most
        Largest number of trials (binomial) or largest count (negative-binomial), public. A record with more contributes
        nothing, without a warning, unless a schema that declares it refused it before.
    dispersion
        Of the negative-binomial, public: the variance is ``mean + mean**2 / dispersion``.
    prior
        Shape and rate of the Gamma prior of the weights' precision.
    pace
        Weight of a step's curvature in the average; by default ``(1 + step) ** -0.7``.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws have ``w`` and ``alpha``; predictions have ``mean`` and ``y``.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(200, 2))
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> posterior = tacit.fit(tacit.logistic(bound=3.0), data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["w"].shape
    (1000, 2)
    """
    check_positive(bound=bound, prior=min(prior))
    shape, rate = prior
    pace, outcome = pace or polynomial_decay(), Outcome.of(likelihood, most, dispersion)

    def build(plan: Plan) -> Method:
        size = outcome.columns(plan.placeholder)

        def init(key: Key) -> LogisticState:
            score, curvature = start(jnp.zeros(size)), start(jnp.zeros((size, size)))
            return LogisticState(score, curvature, jnp.zeros(size), jnp.eye(size), jnp.float32(shape / rate))

        def contribute(state: LogisticState, record: Record, key: Key) -> PyTree:
            kappa, trials = outcome.terms(record)
            x = record["x"].astype(jnp.float32)
            x = x * jnp.minimum(1, bound / jnp.maximum(jnp.linalg.norm(x), 1e-30))
            square = jnp.maximum((x @ state.mean) ** 2 + x @ state.covariance @ x, 0)
            return {"score": kappa * x, "curvature": jnp.outer(trials * polya_gamma_mean(square) * x, x)}

        def update(state: LogisticState, release: Release, key: Key) -> LogisticState:
            score = blend(state.score, release.part("score"), uniform_average)
            curvature = blend(state.curvature, release.part("curvature"), pace)
            values, vectors = jnp.linalg.eigh((curvature.statistics + curvature.statistics.T) / 2)
            # The mirrored noise has eigenvalues between -2 and 2 times this.
            values = jnp.maximum(values, curvature.noise_std * math.sqrt(size / 2))
            along = score.statistics @ vectors

            def agree(_: Array, precision: Array) -> Array:
                squares = jnp.sum((along / (values + precision)) ** 2 + 1 / (values + precision))
                return (shape + size / 2) / (rate + squares / 2)

            precision = jax.lax.fori_loop(0, AGREE, agree, state.precision)
            mean = vectors @ (along / (values + precision))
            return LogisticState(score, curvature, mean, (vectors / (values + precision)) @ vectors.T, precision)

        def draw(state: LogisticState, key: Key) -> dict[str, Array]:
            key_w, key_alpha = jax.random.split(key)
            w = jax.random.multivariate_normal(key_w, state.mean, state.covariance, method="svd")
            alpha = jax.random.gamma(key_alpha, shape + size / 2) * state.precision / (shape + size / 2)
            return {"w": w, "alpha": alpha}

        def simulate(key: Key, records: PyTree) -> tuple[PyTree, dict[str, Array]]:
            key_alpha, key_w, key_y = jax.random.split(key, 3)
            alpha = jax.random.gamma(key_alpha, shape) / rate
            w = jax.random.normal(key_w, (size,)) / jnp.sqrt(alpha)
            y = outcome.predict({"w": w}, records, key_y)["y"]
            return {**records, "y": y.astype(jnp.result_type(records["y"]))}, {"w": w, "alpha": alpha}

        return Method(
            init,
            contribute,
            update,
            draw,
            requirements=outcome.requirements(),
            suggests=outcome.suggestions(bound, size),
            model=Model(outcome.predict, outcome.log_likelihood, simulate),
        )

    return MethodFor(build)
