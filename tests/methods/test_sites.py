"""Sites against their definitions: tilted moments by quadrature, closed forms, Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from tacit import sites
from tacit.methods.gaussians import Moments, Natural, matrix_site, scalar_site
from tacit.methods.sites import Site

LIKELIHOODS: dict[str, tuple[Callable[..., Site], float, Callable[[float, Any], Any]]] = {
    "gaussian": (lambda alpha: sites.gaussian(0.5, alpha), 0.7, lambda y, f: stats.norm.logpdf(y, f, np.sqrt(0.5))),
    "probit": (sites.probit, 1, lambda y, f: stats.norm.logcdf((2 * y - 1) * f)),
    "logistic": (sites.logistic, 0, lambda y, f: -np.logaddexp(0, -(2 * y - 1) * f)),
    "poisson": (sites.poisson, 3, lambda y, f: stats.poisson.logpmf(y, np.exp(f))),
    "student": (lambda alpha: sites.student(0.8, 5.0, alpha), 2.5, lambda y, f: stats.t.logpdf(y, 5, f, 0.8)),
}


def site_of_one(site: Site, y: Any, mean: float, variance: float) -> tuple[float, float]:
    """Return the two natural parameters of the site of one predictor."""
    cavity = Moments(jnp.full((1, 1), mean), jnp.full((1, 1, 1), variance))
    linear, precision = site.natural(cavity, {"x": jnp.ones(1), "y": jnp.asarray(y)})
    return float(linear[0, 0]), float(precision[0, 0, 0])


def tilted(likelihood: Callable[[Any], Any], mean: float, variance: float) -> tuple[float, float]:
    """Return mean and variance of N(mean, variance) times a likelihood, by quadrature in float64."""
    std = np.sqrt(variance)
    powers = [
        integrate.quad(
            lambda f, p=p: f**p * likelihood(f) * stats.norm.pdf(f, mean, std), mean - 12 * std, mean + 12 * std
        )
        for p in range(3)
    ]
    zero, one, two = (value for value, _ in powers)
    return one / zero, two / zero - (one / zero) ** 2


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_site_is_the_difference_of_reciprocals(name: str, alpha: float) -> None:
    make, y, likelihood = LIKELIHOODS[name]
    for mean, variance in ((0.3, 1.0), (-0.8, 0.2), (0.1, 2.0)):
        m, v = tilted(lambda f: np.exp(alpha * likelihood(y, f)), mean, variance)
        wanted = (m / v - mean / variance) / alpha, (1 / v - 1 / variance) / alpha
        np.testing.assert_allclose(site_of_one(make(alpha), y, mean, variance), wanted, rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_at_alpha_zero_a_site_has_expected_slopes(name: str) -> None:
    make, y, likelihood = LIKELIHOODS[name]
    mean, variance, h = 0.3, 0.5, 1e-3

    def expected(values: Callable[[Any], Any]) -> float:
        density = lambda f: values(f) * stats.norm.pdf(f, mean, np.sqrt(variance))  # noqa: E731
        return float(integrate.quad(density, mean - 8, mean + 8, epsabs=1e-10)[0])

    log = lambda f: likelihood(y, f)  # noqa: E731
    slope = expected(lambda f: (log(f + h) - log(f - h)) / (2 * h))
    curvature = -expected(lambda f: (log(f + h) - 2 * log(f) + log(f - h)) / h**2)
    wanted = slope + curvature * mean, curvature
    np.testing.assert_allclose(site_of_one(make(0.0), y, mean, variance), wanted, rtol=2e-3, atol=1e-3)
    # And it is the limit of small powers.
    np.testing.assert_allclose(site_of_one(make(0.02), y, mean, variance), wanted, rtol=0.05, atol=0.01)


def test_the_site_of_probit_in_closed_form() -> None:
    """Tilted moments by Rasmussen and Williams (2006), equation 3.58."""
    for y, mean, variance in ((1, 0.4, 1.5), (0, 0.4, 1.5), (0, 3.0, 0.3)):
        z = (2 * y - 1) * mean / np.sqrt(1 + variance)
        ratio = stats.norm.pdf(z) / stats.norm.cdf(z)
        m = mean + (2 * y - 1) * variance * ratio / np.sqrt(1 + variance)
        v = variance - variance**2 * ratio / (1 + variance) * (z + ratio)
        wanted = m / v - mean / variance, 1 / v - 1 / variance
        np.testing.assert_allclose(site_of_one(sites.probit(), y, mean, variance), wanted, rtol=1e-4)
        # Quadrature gives the same.
        by_nodes = sites.from_likelihood(lambda y, f: jax.scipy.stats.norm.logcdf((2.0 * y - 1) * f))
        np.testing.assert_allclose(site_of_one(by_nodes, y, mean, variance), wanted, rtol=2e-3, atol=1e-4)


def test_several_classes_against_monte_carlo() -> None:
    """A million draws, fixed seed: four standard errors are below the tolerances."""
    generator = np.random.default_rng(0)
    mean, variance = np.array([0.5, -0.3, 0.1]), np.array([0.8, 0.3, 1.2])
    f = mean + np.sqrt(variance) * generator.normal(size=(1_000_000, 3))
    chances = {
        "softmax": np.exp(f[:, 1]) / np.exp(f).sum(1),
        "multi_probit": (np.argmax(f + generator.normal(size=f.shape), 1) == 1).astype(float),
    }
    for name, chance in chances.items():
        site = getattr(sites, name)(3)
        record = {"y": jnp.int32(1)}
        found = scalar_site(
            lambda m, v, site=site, record=record: site.log_z(record, m, v),
            Moments(jnp.asarray(mean, jnp.float32), jnp.asarray(variance, jnp.float32)),
            1.0,
        )
        m = (chance[:, None] * f).mean(0) / chance.mean()
        v = (chance[:, None] * (f - m) ** 2).mean(0) / chance.mean()
        linear, precision = m / v - mean / variance, 1 / v - 1 / variance
        # softmax is a mean over 256 points.
        tolerance = 0.05 if name == "softmax" else 0.02
        np.testing.assert_allclose(found.linear, linear, atol=tolerance)
        np.testing.assert_allclose(found.precision, precision, atol=tolerance)
        log_z = site.log_z(record, jnp.asarray(mean, jnp.float32), jnp.asarray(variance, jnp.float32))
        assert float(log_z) == pytest.approx(np.log(chance.mean()), abs=0.01)


def test_a_site_that_would_take_all_variance_is_capped() -> None:
    sure = Site(lambda record, mean, variance: -50 * jnp.square(mean) - 60 * variance)  # s = 10000 m^2 + 120
    linear, precision = site_of_one(sure, 0.0, 1.0, 1.0)
    assert 0 < precision <= 1e3
    assert np.isfinite(linear)


def test_the_mixture_s_tilted_moments_by_importance_sampling() -> None:
    """Draws of the cavity, weighted, fixed seed; the tolerance is above four standard errors of each moment."""
    generator = np.random.default_rng(1)
    site = sites.mixture(3, 0.25, (0.5, 0.3, 0.2))
    mean = np.array([[0.0, 0.0], [1.0, 0.5], [-1.0, 0.3]])
    covariance = np.array([[[0.5, 0.1], [0.1, 0.3]], [[0.2, 0.0], [0.0, 0.6]], [[0.4, -0.1], [-0.1, 0.4]]])
    x = np.array([0.4, 0.3])
    cavity = Moments(jnp.asarray(mean, jnp.float32), jnp.asarray(covariance, jnp.float32))
    found = matrix_site(lambda m, v: site.log_z({"x": jnp.asarray(x, jnp.float32)}, m, v), cavity, 1.0)
    inverse = np.linalg.inv(covariance)
    after = Natural(np.einsum("kij,kj->ki", inverse, mean) + found.linear, inverse + found.precision)
    drawn = np.stack([generator.multivariate_normal(m, c, 400_000) for m, c in zip(mean, covariance, strict=True)], 1)
    density = np.exp(-0.5 * ((x - drawn) ** 2).sum(-1) / 0.25)
    weight = density @ np.array([0.5, 0.3, 0.2])
    weight /= weight.sum()
    for k in range(3):
        m = weight @ drawn[:, k]
        v = (drawn[:, k] - m).T @ (weight[:, None] * (drawn[:, k] - m))
        np.testing.assert_allclose(np.linalg.solve(after.precision[k], after.linear[k]), m, atol=5e-3)
        np.testing.assert_allclose(np.linalg.inv(after.precision[k]), v, atol=5e-3)
    # An ambiguous record may take precision away: sites need not be positive.
    assert min(np.linalg.eigvalsh(np.asarray(p)).min() for p in found.precision) < 0
