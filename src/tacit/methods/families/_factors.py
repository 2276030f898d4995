"""Factor analysis."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_positive
from tacit.methods.families._common import check_at_least, pack, raised, shortened, unpack, x_of
from tacit.methods.families._family import Family, FamilyFor
from tacit.methods.families._linear import Solved, draw_normal_gamma, explained, log_normal_gamma, regression
from tacit.types import Array, Key, PyTree, Record


def factors(number: int, *, bound: float, spread: float | None = None) -> FamilyFor:
    """Explain the columns ``x`` of a record by few hidden factors (factor analysis): x = W z + offset + noise.

    Each column is a linear regression on the record's factors z ~ Normal(0, 1), with noise of its own.

    Privacy: public.

    Parameters
    ----------
    number
        How many factors.
    bound
        Largest norm of ``x``, public.
    spread
        A public guess of the noise of a column; by default a quarter of ``bound`` over the root of the columns.
    """
    check_at_least(number=(number, 1))
    check_positive(bound=bound)

    def build(placeholder: Record) -> Family:
        columns, size = x_of(placeholder, 1).shape[0], number + 1
        noise_std = bound / 4 / math.sqrt(columns) if spread is None else spread
        check_positive(spread=noise_std)

        def evidence(expected: PyTree, record: Record) -> Array:
            """Integrate exp(z+' M z+ + l' z+), z+ = (z, 1), over z ~ Normal(0, 1)."""
            x = shortened(record["x"], bound)
            quadratic, along = unpack(expected["zz"], size), x @ expected["xz"]
            precision = jnp.eye(number) - 2 * quadratic[:number, :number]
            shift = 2 * quadratic[:number, number] + along[:number]
            lower = jnp.linalg.cholesky(precision)
            half = jax.scipy.linalg.solve_triangular(lower, shift, lower=True)
            constant = quadratic[number, number] + along[number] + jnp.sum(expected["xx"] * x * x)
            return half @ half / 2 - jnp.sum(jnp.log(jnp.diagonal(lower))) + constant

        def solved(statistics: PyTree) -> Solved:
            square = unpack(statistics["zz"], size)
            given = (square + jnp.eye(size), statistics["xz"], statistics["xx"], square[number, number])
            return regression(*given, noise_std**2)

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            zz = raised(unpack(statistics["zz"], size), noise["zz"])
            zz, xz = _standard(zz, statistics["xz"])
            given = {**statistics, "zz": pack(zz), "xz": xz}
            return {**given, "xx": jnp.maximum(statistics["xx"], explained(solved(given), noise["xx"]))}

        def begin(key: Key) -> PyTree:
            """Start from ten records of standard factors and random loadings."""
            loadings = noise_std * jax.random.normal(key, (columns, size)).at[:, number].set(0.0)
            given = {"zz": pack(10 * jnp.eye(size)), "xz": 10 * loadings, "xx": jnp.zeros(columns)}
            return {**given, "xx": explained(solved(given), jnp.float32(10 * noise_std**2))}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            weights, deviation = draw_normal_gamma(solved(statistics), key)
            return {"loadings": weights[:, :number], "offset": weights[:, number], "noise": deviation}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            """Return each record's expected factors, and what they say of its columns."""
            scaled = draw["loadings"] / draw["noise"][:, None] ** 2
            precision = jnp.eye(number) + scaled.T @ draw["loadings"]
            z = jnp.linalg.solve(precision, ((jnp.asarray(inputs["x"]) - draw["offset"]) @ scaled).T).T
            return {"factors": z, "mean": z @ draw["loadings"].T + draw["offset"]}

        bounds = {"zz": float(size), "xz": bound * math.sqrt(size), "xx": bound**2}

        def log_prior(statistics: PyTree) -> Array:
            return log_normal_gamma(solved(statistics), unpack(statistics["zz"], size)[number, number])

        return Family(log_prior, evidence, begin, repair, draw, bounds, predict)

    return build


def _standard(zz: Array, xz: Array) -> tuple[Array, Array]:
    """Shift and stretch factors to mean 0 and variance 1, which is where the prior has them.

    Without it offsets and loadings change by a few per cent in a step, since factors make up for them (Liu, Rubin, Wu
    1998, parameter expansion). Where columns are many for the records the bound would be higher at another scale.
    """
    number = len(zz) - 1
    count = zz[number, number]
    mean = zz[:number, number] / count
    values, vectors = jnp.linalg.eigh(zz[:number, :number] / count - jnp.outer(mean, mean))
    root = (vectors / jnp.sqrt(jnp.maximum(values, 0.01))) @ vectors.T
    turn = jnp.eye(number + 1).at[:number, :number].set(root).at[:number, number].set(-root @ mean)
    return turn @ zz @ turn.T, xz @ turn.T
