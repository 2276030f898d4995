"""Mixtures of normal distributions."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp, multigammaln

from tacit.methods.arguments import check_positive
from tacit.methods.families._common import (
    LOG_2PI,
    TINY,
    check_at_least,
    log_dirichlet,
    nearest_counts,
    pack,
    raised,
    shortened,
    unpack,
    x_of,
)
from tacit.methods.families._family import Family, FamilyFor
from tacit.types import Array, Key, PyTree, Record


def mixture(components: int, *, bound: float, spread: float | None = None, concentration: float = 1.0) -> FamilyFor:
    """Cluster the vectors ``x`` of records by a mixture of normal distributions with their own covariances.

    The priors are Dirichlet, and normal-inverse-Wishart around 0 with means as far out as ``bound`` allows.

    Privacy: public.

    Parameters
    ----------
    components
        How many.
    bound
        Largest norm of ``x``, public.
    spread
        A public guess of the standard deviation within a component; by default a quarter of ``bound`` over the root of
        the columns.
    concentration
        Of the components' weights; small ones empty what is not needed.
    """
    check_at_least(components=(components, 1))
    check_positive(bound=bound, concentration=concentration)

    def build(placeholder: Record) -> Family:
        size = x_of(placeholder, 1).shape[0]
        typical = bound / math.sqrt(size)
        within = typical / 4 if spread is None else spread
        check_positive(spread=within)
        few, degrees = (within / typical) ** 2, size + 2.0

        def evidence(expected: PyTree, record: Record) -> Array:
            x = shortened(record["x"], bound)
            return logsumexp(expected["count"] + expected["sum"] @ x + expected["square"] @ pack(jnp.outer(x, x)))

        def posterior(statistics: PyTree) -> tuple[Array, Array, Array, Array]:
            """Return mean, its pseudo-count, scatter and degrees of freedom of each component."""
            kappa = few + statistics["count"]
            mean = statistics["sum"] / kappa[:, None]
            scatter = unpack(statistics["square"], size) - kappa[:, None, None] * mean[:, :, None] * mean[:, None, :]
            return mean, kappa, scatter + within**2 * jnp.eye(size), degrees + statistics["count"]

        def log_normaliser(statistics: PyTree) -> Array:
            _, kappa, scatter, freedom = posterior(statistics)
            each = -size / 2 * jnp.log(kappa) - freedom / 2 * jnp.linalg.slogdet(scatter)[1]
            each += freedom * size / 2 * math.log(2) + multigammaln(freedom / 2, size)
            each -= statistics["count"] * size / 2 * LOG_2PI
            return jnp.sum(each) + log_dirichlet(concentration + statistics["count"])

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            """Let means lie within the bound, and raise what is left of the squares around them."""
            count = nearest_counts(statistics["count"])
            length = jnp.linalg.norm(statistics["sum"], axis=1)
            total = statistics["sum"] * jnp.minimum(1, count * bound / (length + TINY))[:, None]
            around = total[:, :, None] * total[:, None, :] / (count + TINY)[:, None, None]
            left = raised(unpack(statistics["square"], size) - around, noise["square"])
            return {"count": count, "sum": total, "square": pack(left + around)}

        def begin(key: Key) -> PyTree:
            """Start from ten records around each of some random places, far from one another."""
            places = typical / 4 * _apart(jax.random.normal(key, (10 * components, size)), components)
            squares = places[:, :, None] * places[:, None, :] + within**2 * jnp.eye(size)
            return {"count": jnp.full(components, 10.0), "sum": 10 * places, "square": pack(10 * squares)}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            key_weight, key_precision, key_mean = jax.random.split(key, 3)
            mean, kappa, scatter, freedom = posterior(statistics)
            precision = dist.Wishart(freedom, rate_matrix=scatter, validate_args=False).sample(key_precision)
            covariance = jnp.linalg.inv(precision)
            return {
                "weight": jax.random.dirichlet(key_weight, concentration + statistics["count"]),
                "mean": jax.random.multivariate_normal(key_mean, mean, covariance / kappa[:, None, None]),
                "covariance": covariance,
            }

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            """Return each record's log density and the probabilities of its components."""
            normal = dist.MultivariateNormal(draw["mean"], draw["covariance"], validate_args=False)
            joint = jnp.log(draw["weight"]) + normal.log_prob(jnp.asarray(inputs["x"])[:, None])
            return {"log_density": logsumexp(joint, -1), "component": jax.nn.softmax(joint)}

        bounds = {"count": 1.0, "sum": bound, "square": bound**2}
        return Family(log_normaliser, evidence, begin, repair, draw, bounds, predict)

    return build


def _apart(places: Array, number: int) -> Array:
    """Choose some of the places: always the one farthest from those chosen before."""
    chosen = places[:1]
    for _ in range(number - 1):
        squares = jnp.sum((places[:, None] - chosen) ** 2, -1)
        chosen = jnp.concatenate([chosen, places[jnp.argmax(jnp.min(squares, 1))][None]])
    return chosen
