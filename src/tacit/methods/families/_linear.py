"""Linear regression with a normal-gamma prior."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln

from tacit.methods.arguments import check_positive
from tacit.methods.families._common import LOG_2PI, pack, raised, shortened, unpack, x_of
from tacit.methods.families._family import Family, FamilyFor
from tacit.methods.running import inner
from tacit.types import Array, Key, PyTree, Record


def linear(*, bound: float, most: float, prior_std: float = 10.0, noise_std: float | None = None) -> FamilyFor:
    """Regress ``y`` on the columns ``x`` of a record ``{"x": vector, "y": number}`` with unknown noise.

    The prior is w | s ~ Normal(0, (s prior_std)**2), 1/s**2 ~ Gamma(1, noise_std**2).

    Privacy: public.

    Parameters
    ----------
    bound, most
        Largest norm of ``x`` and largest absolute value of ``y``, public; beyond, they are shortened.
    prior_std
        Prior standard deviation of the weights, in units of the noise.
    noise_std
        A public guess of the noise; by default a quarter of ``most``.
    """
    noise_std = most / 4 if noise_std is None else noise_std
    check_positive(bound=bound, most=most, prior_std=prior_std, noise_std=noise_std)

    def build(placeholder: Record) -> Family:
        size = x_of(placeholder, 1).shape[0]
        if "y" not in placeholder or jnp.ndim(placeholder["y"]):
            raise ValueError(
                f'A record of a regression is {{"x": vector, "y": number}}; this has {sorted(placeholder)}.'
            )

        def evidence(expected: PyTree, record: Record) -> Array:
            x, y = shortened(record["x"], bound), jnp.clip(record["y"].astype(jnp.float32), -most, most)
            return inner(expected, {"xx": pack(jnp.outer(x, x)), "xy": x * y, "yy": y * y, "count": jnp.float32(1)})

        def solved(statistics: PyTree) -> Solved:
            return regression(
                unpack(statistics["xx"], size) + jnp.eye(size) / prior_std**2,
                statistics["xy"][None],
                statistics["yy"][None],
                statistics["count"],
                noise_std**2,
            )

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            xx = raised(unpack(statistics["xx"], size), noise["xx"])
            count = jnp.maximum(statistics["count"], 0)
            given = {**statistics, "xx": pack(xx), "count": count}
            return {**given, "yy": jnp.maximum(statistics["yy"], explained(solved(given), noise["yy"])[0])}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            w, deviation = draw_normal_gamma(solved(statistics), key)
            return {"w": w[0], "noise": deviation[0]}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            mean = jnp.asarray(inputs["x"]) @ draw["w"]
            return {"mean": mean, "y": mean + draw["noise"] * jax.random.normal(key, mean.shape)}

        def begin(key: Key) -> PyTree:
            zero = jnp.float32(0)
            return {"xx": jnp.zeros(size * (size + 1) // 2), "xy": jnp.zeros(size), "yy": zero, "count": zero}

        bounds = {"xx": bound**2, "xy": bound * most, "yy": most**2, "count": 1.0}
        return Family(
            lambda statistics: log_normal_gamma(solved(statistics), statistics["count"]),
            evidence,
            begin,
            repair,
            draw,
            bounds,
            predict,
            latent=False,
        )

    return build


class Solved(NamedTuple):
    """Normal-gamma posteriors, one for each output: weights with one common ``precision`` in units of the noise's,
    a line of ``mean`` for each output, and the noise's precision with one ``shape`` and a ``rate`` each."""

    precision: Array
    mean: Array
    shape: Array
    rate: Array


def regression(precision: Array, cross: Array, square: Array, count: Array, rate: float) -> Solved:
    """Solve for the posterior of one regression for each output."""
    mean = jnp.linalg.solve(precision, cross.T).T
    return Solved(precision, mean, 1 + count / 2, rate + (square - jnp.sum(mean * cross, 1)) / 2)


def explained(solved: Solved, more: Array) -> Array:
    """Return what the weights explain of each output's square, and a little more, in float32 too."""
    return jnp.sum(solved.mean * (solved.mean @ solved.precision), 1) * (1 + 1e-5) + more


def log_normal_gamma(solved: Solved, count: Array) -> Array:
    """Return the log normaliser."""
    determinant = jnp.linalg.slogdet(solved.precision)[1]
    each = gammaln(solved.shape) - solved.shape * jnp.log(solved.rate)
    return jnp.sum(each - determinant / 2 - count / 2 * LOG_2PI)


def draw_normal_gamma(solved: Solved, key: Key) -> tuple[Array, Array]:
    """Draw the weights, and the standard deviation of the noise."""
    key_noise, key_weight = jax.random.split(key)
    deviation = jnp.sqrt(solved.rate / jax.random.gamma(key_noise, solved.shape, solved.rate.shape))
    normal = jax.random.normal(key_weight, solved.mean.shape)
    upper = jnp.linalg.cholesky(solved.precision).T
    return solved.mean + deviation[:, None] * jax.scipy.linalg.solve_triangular(upper, normal.T).T, deviation
