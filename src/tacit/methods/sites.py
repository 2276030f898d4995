"""Sites: what the EP family needs to know of a likelihood, the log of its mean under a Gaussian cavity.

A site of your own is one function, ``Site(log_z)``: ``log_z(record, mean, variance)`` is log E[p(record | f)] for a
linear predictor f = x'w with that mean and variance; natural parameters follow by autodiff. If there is no closed form,
``from_likelihood(log_likelihood)`` integrates numerically, for every power alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp
from jax.scipy.stats import norm

from tacit.methods.arguments import check_positive
from tacit.methods.gaussians import TINY, Moments, Natural, matrix_site, scalar_site
from tacit.methods.running import Pace, block_weights, polynomial_decay, uniform_average
from tacit.types import Array, Key, PyTree, Record, Requirement, Suggestions

NODES = 64
"""Of the Gauss-Hermite rule."""
LARGE = 64
"""Columns above which the suggested recipe takes subsets."""
POINTS = 256
"""Fixed points for integrals over several predictors."""
BINARY = Requirement(
    "y must be 0 or 1. Write y = (label == positive).astype(int).",
    lambda record: (record["y"] == 0) | (record["y"] == 1),
    fixed=True,
)
COUNT = Requirement(
    "y must be a whole number from 0 on. A count that is missing must be left out with its record.",
    lambda record: (record["y"] == jnp.round(record["y"])) & (record["y"] >= 0),
    fixed=True,
)


class Site(NamedTuple):
    """A likelihood as the EP family sees it.

    Attributes
    ----------
    log_z
        ``log_z(record, mean, variance)``: the log of the expected likelihood of one record, or for another ``alpha``
        1/alpha times the log of its expected power (at 0, the expected log likelihood).
    form
        What ``mean`` and ``variance`` are of. "predictors": the linear predictor ``x'w``, a scalar, or a vector of
        several. "blocks": blocks of weights, a line each, with a covariance matrix each. "weights": all weights, a
        dictionary of arrays, with variances of the same shapes.
    predictors
        How many linear predictors there are; nothing for one that is a scalar.
    centre
        ``centre(placeholder, key)``: prior means of "blocks" or "weights", a public draw that makes them differ.
    predict
        ``predict(f, key)`` for predictors, ``predict(w, inputs, key)`` else: predictions for new records.
    alpha
        The power that ``log_z`` is for: 1 is EP, 0 variational.
    usual
        ``usual(bound, columns)``: how long the two parts of a record's site usually are, for ``x`` of norm ``bound``.
    pace, steps
        What suits the site where the user of ``tacit.sep`` gives none.
    requirements
        What must be true of every record.
    """

    log_z: Callable[[Record, PyTree, PyTree], Array]
    form: Literal["predictors", "blocks", "weights"] = "predictors"
    predictors: int | None = None
    centre: Callable[[Record, Key], PyTree] | None = None
    predict: Callable[..., PyTree] | None = None
    alpha: float = 1.0
    usual: Callable[[float, int], tuple[float, float]] = lambda bound, columns: (bound, bound**2)
    pace: Pace | None = None
    steps: int | None = None
    requirements: tuple[Requirement, ...] = ()

    @property
    def matrices(self) -> bool:
        """Whether precisions are matrices."""
        return self.form != "weights"

    def start(self, placeholder: Record, key: Key) -> PyTree:
        """Return the prior means: for predictors, a line of zeros for each."""
        if self.centre is not None:
            return self.centre(placeholder, key)
        return jnp.zeros((self.predictors or 1, placeholder["x"].shape[0]))

    def natural(self, cavity: Moments, record: Record) -> Natural:
        """Return the natural parameters of one record's site at a cavity; ``scalar_site`` has the formula.

        Privacy: of one record, not bounded yet.
        """
        if self.form == "weights":
            return scalar_site(lambda mean, variance: self.log_z(record, mean, variance), cavity, self.alpha)
        if self.form == "blocks":
            return matrix_site(lambda mean, variance: self.log_z(record, mean, variance), cavity, self.alpha)
        x = record["x"].astype(jnp.float32)
        along = Moments(cavity.mean @ x, jnp.maximum(jnp.einsum("i,kij,j->k", x, cavity.variance, x), TINY))

        def log_z(mean: Array, variance: Array) -> Array:
            given = (mean, variance) if self.predictors else (mean[0], variance[0])
            return self.log_z(record, *given)

        nu, tau = scalar_site(log_z, along, self.alpha)
        # A site of a predictor is a site of the weights of rank one.
        return Natural(jax.vmap(lambda nu: nu * x)(nu), jax.vmap(lambda tau: jnp.outer(tau * x, x))(tau))

    def suggestions(self, bound: float, placeholder: Record) -> Suggestions:
        """Return what suits ``tacit.sep`` with this site: with few columns, all records in few steps."""
        if not self.matrices:
            return Suggestions(steps=self.steps)
        columns = placeholder["x"].shape[0]
        size = math.prod(jax.eval_shape(lambda key: self.start(placeholder, key), jax.random.key(0)).shape)
        rate, steps = (1.0, 10) if columns <= LARGE else (None, 50)
        weights = block_weights(self.usual(bound, columns), (size, size * columns))
        return Suggestions(1.0, rate, self.steps or steps, weights)

    def named(self, w: PyTree) -> dict[str, Array]:
        """Return a draw of the weights by name: ``w``, where they have no names of their own."""
        if self.form == "weights":
            return w
        return {"w": w[0] if self.form == "predictors" and self.predictors is None else w}

    def predictions(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> PyTree:
        """Return predictions for new records at one draw, as ``named``."""
        assert self.predict is not None
        if self.form == "predictors":
            return self.predict(draw["w"] @ jnp.asarray(inputs["x"]).T, key)
        return self.predict(draw if self.form == "weights" else draw["w"], inputs, key)


def from_likelihood(
    log_likelihood: Callable[[Array, Array], Array],
    predict: Callable[[Array, Key], PyTree] | None = None,
    *,
    alpha: float = 1.0,
    usual: tuple[float, float] = (1.0, 1.0),
    requirements: tuple[Requirement, ...] = (),
) -> Site:
    """Make a site from ``log_likelihood(y, f)`` of one linear predictor f, by Gauss-Hermite quadrature.

    Privacy: public.

    Parameters
    ----------
    log_likelihood
        Log p(y | f), for an array of f.
    predict
        ``predict(f, key)``: means and draws of y, for an array of f.
    alpha
        1 for EP, 0 for its variational limit, or between.
    usual
        Usual sizes of the site's linear part and precision, for one f; they share the noise among the two.
    requirements
        What must be true of every record.
    """
    nodes, masses = _hermite()

    def log_z(record: Record, mean: Array, variance: Array) -> Array:
        terms = log_likelihood(record["y"], mean + jnp.sqrt(variance) * nodes)
        return _power_mean(terms, masses, alpha)

    return Site(log_z, predict=predict, alpha=alpha, usual=_along(*usual), requirements=requirements)


def gaussian(noise: float, alpha: float = 1.0) -> Site:
    """Return the site of linear regression: y ~ N(x'w, noise), ``noise`` the public variance. For y of about unit size.

    Privacy: public.
    """
    check_positive(noise=noise)

    def log_z(record: Record, mean: Array, variance: Array) -> Array:
        # One over alpha of the log of the mean of a power, in a form that has a value at 0.
        ratio = variance / noise
        spread = ratio if alpha == 0 else jnp.log1p(alpha * ratio) / alpha
        off = jnp.square(record["y"] - mean) / (noise + alpha * variance)
        return -0.5 * (jnp.log(2 * jnp.pi * noise) + spread + off)

    def predict(f: Array, key: Key) -> dict[str, Array]:
        return {"mean": f, "y": f + math.sqrt(noise) * jax.random.normal(key, f.shape)}

    # The sites are the same at every cavity.
    return Site(log_z, predict=predict, alpha=alpha, usual=_along(1 / noise, 1 / noise), pace=uniform_average)


def probit(alpha: float = 1.0) -> Site:
    """Return the site of probit regression: y is 1 with probability Phi(x'w), else 0.

    Privacy: public.
    """

    def predict(f: Array, key: Key) -> dict[str, Array]:
        return _binary(norm.cdf(f), key)

    if alpha != 1:
        return from_likelihood(
            lambda y, f: norm.logcdf(_sign(y) * f), predict, alpha=alpha, usual=(1.0, 0.6), requirements=(BINARY,)
        )

    def log_z(record: Record, mean: Array, variance: Array) -> Array:
        return norm.logcdf(_sign(record["y"]) * mean / jnp.sqrt(1 + variance))

    return Site(log_z, predict=predict, usual=_along(1.0, 0.6), requirements=(BINARY,))


def logistic(alpha: float = 1.0) -> Site:
    """Return the site of logistic regression: y is 1 with probability sigmoid(x'w), else 0.

    Privacy: public.
    """
    return from_likelihood(
        lambda y, f: jax.nn.log_sigmoid(_sign(y) * f),
        lambda f, key: _binary(jax.nn.sigmoid(f), key),
        alpha=alpha,
        usual=(0.6, 0.2),
        requirements=(BINARY,),
    )


def poisson(alpha: float = 1.0) -> Site:
    """Return the site of Poisson regression: y is a count with mean exp(x'w). For counts of about 1.

    Privacy: public.
    """

    def predict(f: Array, key: Key) -> dict[str, Array]:
        return {"mean": jnp.exp(f), "y": jax.random.poisson(key, jnp.exp(f))}

    return from_likelihood(
        lambda y, f: y * f - jnp.exp(f) - gammaln(y + 1.0),
        predict,
        alpha=alpha,
        usual=(2.0, 1.5),
        requirements=(COUNT,),
    )


def student(scale: float, freedom: float = 4.0, alpha: float = 1.0) -> Site:
    """Return the site of robust regression: y - x'w is ``scale`` times Student's t.

    Its ``freedom`` degrees of freedom are public, and so is ``scale``.

    Privacy: public.
    """
    check_positive(scale=scale)
    check_positive(freedom=freedom)
    constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)

    def log_likelihood(y: Array, f: Array) -> Array:
        return constant - math.log(scale) - (freedom + 1) / 2 * jnp.log1p(jnp.square((y - f) / scale) / freedom)

    def predict(f: Array, key: Key) -> dict[str, Array]:
        return {"mean": f, "y": f + scale * jax.random.t(key, freedom, f.shape)}

    return from_likelihood(log_likelihood, predict, alpha=alpha, usual=(scale**-2, scale**-2))


def softmax(classes: int, alpha: float = 1.0) -> Site:
    """Return the site of multi-class logistic regression: y is a class from 0 on.

    Its probabilities are softmax(x'w_1, ..., x'w_K).

    A record whose y is no such class contributes nothing, without a warning, unless a schema that declares y refused
    it. The integral over the K predictors is a mean over 256 fixed points, in pairs of opposite ones: an approximation.

    Privacy: public.
    """
    _classes(classes)
    half = np.random.default_rng(0).normal(size=(POINTS // 2, classes))
    half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T  # their covariance is I
    points, masses = np.float32(np.concatenate([half, -half])), np.full(POINTS, 1 / POINTS, np.float32)

    def log_z(record: Record, mean: Array, variance: Array) -> Array:
        f = mean + jnp.sqrt(variance) * points
        return _power_mean(jax.nn.log_softmax(f)[:, record["y"]], masses, alpha)

    def predict(f: Array, key: Key) -> dict[str, Array]:
        return {"mean": jax.nn.softmax(f, 0), "y": jax.random.categorical(key, f, 0)}

    return Site(
        log_z,
        predictors=classes,
        predict=predict,
        alpha=alpha,
        usual=_along(1.0, 0.4),
        requirements=(_one_of(classes),),
    )


def multi_probit(classes: int) -> Site:
    """Return the site of multi-class probit regression: y is the class whose x'w_k plus unit noise is largest.

    For independent predictors that is an integral in one dimension, done by quadrature: no approximation. A record
    whose y is no such class contributes nothing, without a warning, unless a schema that declares y refused it.

    Privacy: public.
    """
    _classes(classes)
    nodes, masses = _hermite()

    def chances(mean: Array, variance: Array, y: Array) -> Array:
        scale = jnp.sqrt(1 + variance)
        best = mean[y] + scale[y] * nodes[:, None]
        below = norm.logcdf((best - mean) / scale)
        return _power_mean(jnp.sum(jnp.where(jnp.arange(classes) == y, 0, below), 1), masses, 1.0)

    def log_z(record: Record, mean: Array, variance: Array) -> Array:
        return chances(mean, variance, record["y"])

    def predict(f: Array, key: Key) -> dict[str, Array]:
        def each(f: Array) -> Array:
            return jax.vmap(lambda y: chances(f, jnp.zeros_like(f), y))(jnp.arange(classes))

        noisy = f + jax.random.normal(key, f.shape)
        return {"mean": jnp.exp(jax.vmap(each, 1, 1)(f)), "y": jnp.argmax(noisy, 0)}

    return Site(log_z, predictors=classes, predict=predict, usual=_along(1.2, 0.8), requirements=(_one_of(classes),))


def mixture(components: int, noise: float, shares: Sequence[float] | None = None) -> Site:
    """Return the site of clusters: x is N(mean of its component, noise I).

    The component is one of some with known ``shares``.

    The components' means are unknown and independent under q. Their prior means are a public standard normal draw,
    without which the components would never become different. Predictions are the ``assignment`` of records: the
    posterior probability of each component.

    Privacy: public.
    """
    _classes(components, "components")
    check_positive(noise=noise)
    log_shares = np.log(np.full(components, 1 / components) if shares is None else np.asarray(shares, float))
    if log_shares.shape != (components,) or abs(np.exp(log_shares).sum() - 1) > 1e-6:
        raise ValueError(f"shares are {shares}; they must be {components} positive numbers that add up to 1.")

    def log_density(x: Array, mean: Array, covariance: Array) -> Array:
        root = jnp.linalg.cholesky(covariance + noise * jnp.eye(len(x)))
        white = jax.scipy.linalg.solve_triangular(root, x - mean, lower=True)
        return -0.5 * (white @ white + len(x) * math.log(2 * math.pi)) - jnp.sum(jnp.log(jnp.diag(root)))

    def log_z(record: Record, mean: Array, covariance: Array) -> Array:
        x = record["x"].astype(jnp.float32)
        return logsumexp(log_shares + jax.vmap(log_density, (None, 0, 0))(x, mean, covariance))

    def centre(placeholder: Record, key: Key) -> Array:
        return jax.random.normal(key, (components, placeholder["x"].shape[0]))

    def predict(w: Array, inputs: PyTree, key: Key) -> dict[str, Array]:
        off = jnp.asarray(inputs["x"])[:, None] - w
        return {"assignment": jax.nn.softmax(log_shares - 0.5 * jnp.sum(jnp.square(off), -1) / noise, -1)}

    return Site(
        log_z,
        "blocks",
        centre=centre,
        predict=predict,
        usual=lambda bound, columns: (bound / noise, math.sqrt(columns) / noise),
        pace=lambda step: 0.3 * polynomial_decay(50.0)(step),  # at full steps components fall together
        steps=100,
    )


def _hermite() -> tuple[Any, Any]:
    nodes, masses = np.polynomial.hermite_e.hermegauss(NODES)
    return np.float32(nodes), np.float32(masses / math.sqrt(2 * math.pi))


def _power_mean(terms: Array, masses: Any, alpha: float) -> Array:
    """Return 1/alpha log E[exp(alpha terms)], at 0 the mean of the terms."""
    return jnp.sum(masses * terms) if alpha == 0 else logsumexp(alpha * terms, b=masses) / alpha


def _along(nu: float, tau: float) -> Callable[[float, int], tuple[float, float]]:
    return lambda bound, columns: (nu * bound, tau * bound**2)


def _binary(chance: Array, key: Key) -> dict[str, Array]:
    return {"mean": chance, "y": jax.random.bernoulli(key, chance).astype(jnp.int32)}


def _sign(y: Array) -> Array:
    return 2.0 * y - 1.0


def _one_of(classes: int) -> Requirement:
    return Requirement(
        f"y must be a class: a whole number from 0 to {classes - 1}.",
        lambda record: (record["y"] == jnp.round(record["y"])) & (record["y"] >= 0) & (record["y"] < classes),
    )


def _classes(count: int, name: str = "classes") -> None:
    if count < 2:
        raise ValueError(f"{name} is {count}; with fewer than two there is nothing to tell apart. Write {name}=2.")
