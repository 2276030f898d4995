"""Conjugate families for ``tacit.conjugate``: each is its two functions, a start, a repair and a draw.

``bound`` is always a public figure: the largest norm of a record's ``x``. Longer ones are shortened to it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln, logsumexp, multigammaln

from tacit.methods.conjugate import Family, FamilyFor
from tacit.methods.running import check_positive, cut_normal, inner
from tacit.schema import Schema, levels_of
from tacit.types import Array, Key, Need, PyTree, Record

__all__ = ["Family", "bernoulli", "categorical", "factors", "hidden_markov", "linear", "mixture", "table"]
TINY = 1e-6
LOG_2PI = math.log(2 * math.pi)


def bernoulli(*, prior: tuple[float, float] = (1.0, 1.0)) -> FamilyFor:
    """Give a Bernoulli chance to each column of a record ``{"x": 0 or 1, one or a vector}``, with a Beta prior.

    Privacy: public.
    """
    check_positive(prior=min(prior))

    def build(placeholder: Record) -> Family:
        shape = _x(placeholder).shape

        def ones_and_zeros(statistics: PyTree) -> Array:
            half = statistics["count"] / 2
            return jnp.stack([half + statistics["tilt"], half - statistics["tilt"]], -1) + jnp.array(prior)

        def evidence(expected: PyTree, record: Record) -> Array:
            # Half of all is known from the count: what is left has half the norm.
            return jnp.sum(expected["tilt"] * (record["x"].astype(jnp.float32) - 0.5)) + expected["count"]

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            count = jnp.maximum(statistics["count"], 0)
            return {"tilt": jnp.clip(statistics["tilt"], -count / 2, count / 2), "count": count}

        def refill(draw: dict[str, Array], noisy: PyTree, noise: PyTree, key: Key) -> PyTree:
            """Draw the count, then the tilt, which has mean count (p - 1/2) and variance count p (1 - p)."""
            of_count, of_tilt = jax.random.split(key)
            chance = draw["chance"]
            mean, variance = chance - 0.5, chance * (1 - chance)
            released = _Noisy(noisy["tilt"], noise["tilt"])
            count = _how_many(of_count, mean, variance, released, _Noisy(noisy["count"], noise["count"]))
            tilt = _between(of_tilt, count * mean, count * variance, released, -count / 2, count / 2)
            return {"tilt": tilt, "count": count}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            return {"x": jax.random.bernoulli(key, draw["chance"], inputs["x"].shape).astype(jnp.int32)}

        return Family(
            lambda statistics: _dirichlet(ones_and_zeros(statistics)),
            evidence,
            lambda key: {"tilt": jnp.zeros(shape), "count": jnp.float32(0)},
            repair,
            lambda statistics, key: {"chance": jax.random.dirichlet(key, ones_and_zeros(statistics))[..., 0]},
            {"tilt": math.sqrt(max(1, math.prod(shape))) / 2, "count": 1.0},
            predict,
            (Need("x must be 0 or 1. Write x = (answer == yes).astype(int).", lambda r: _within(r["x"], 0, 1), True),),
            latent=False,
            refill=refill,
        )

    return build


def categorical(categories: int, *, concentration: float = 1.0) -> FamilyFor:
    """Give chances to the categories of a record ``{"x": whole number(s) from 0}``, with a Dirichlet prior.

    With a vector ``x`` a record counts as so many draws from the same chances; -1 fills up shorter ones. A record with
    any other number counts for nothing, without a word, unless a schema that declares ``x`` refused it.

    Privacy: public.
    """
    _at_least(categories=(categories, 2))
    check_positive(concentration=concentration)

    def build(placeholder: Record) -> Family:
        length = max(1, _x(placeholder).size)

        def evidence(expected: PyTree, record: Record) -> Array:
            return jnp.sum(jax.nn.one_hot(record["x"].astype(jnp.int32), categories) @ expected["count"])

        def refill(draw: dict[str, Array], noisy: PyTree, noise: PyTree, key: Key) -> PyTree:
            """Draw the total, then the counts, as of a total that is a Poisson variable: they are then independent."""
            of_total, of_counts = jax.random.split(key)
            chance, released = draw["chance"], _Noisy(noisy["count"], noise["count"])
            total = _how_many(of_total, chance, chance, released, _Noisy(jnp.sum(noisy["count"]), jnp.float32(jnp.inf)))
            return {"count": _between(of_counts, total * chance, total * chance, released, 0.0, jnp.inf)}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            return {"x": jax.random.categorical(key, jnp.log(draw["chance"]), shape=inputs["x"].shape)}

        return Family(
            lambda statistics: _dirichlet(concentration + statistics["count"]),
            evidence,
            lambda key: {"count": jnp.zeros(categories)},
            _all_counts,
            lambda statistics, key: {"chance": jax.random.dirichlet(key, concentration + statistics["count"])},
            {"count": float(length)},
            predict,
            (_symbols(categories),),
            latent=False,
            refill=refill,
        )

    return build


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
        size = _x(placeholder, 1).shape[0]
        if "y" not in placeholder or jnp.ndim(placeholder["y"]):
            raise ValueError(
                f'A record of a regression is {{"x": vector, "y": number}}; this has {sorted(placeholder)}.'
            )

        def evidence(expected: PyTree, record: Record) -> Array:
            x, y = _shortened(record["x"], bound), jnp.clip(record["y"].astype(jnp.float32), -most, most)
            return inner(expected, {"xx": _pack(jnp.outer(x, x)), "xy": x * y, "yy": y * y, "count": jnp.float32(1)})

        def solved(statistics: PyTree) -> _Solved:
            return _regression(
                _unpack(statistics["xx"], size) + jnp.eye(size) / prior_std**2,
                statistics["xy"][None],
                statistics["yy"][None],
                statistics["count"],
                noise_std**2,
            )

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            xx = _raised(_unpack(statistics["xx"], size), noise["xx"])
            count = jnp.maximum(statistics["count"], 0)
            given = {**statistics, "xx": _pack(xx), "count": count}
            return {**given, "yy": jnp.maximum(statistics["yy"], _least(solved(given), noise["yy"])[0])}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            w, deviation = _normal_gamma_draw(solved(statistics), key)
            return {"w": w[0], "noise": deviation[0]}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            mean = jnp.asarray(inputs["x"]) @ draw["w"]
            return {"mean": mean, "y": mean + draw["noise"] * jax.random.normal(key, mean.shape)}

        def begin(key: Key) -> PyTree:
            zero = jnp.float32(0)
            return {"xx": jnp.zeros(size * (size + 1) // 2), "xy": jnp.zeros(size), "yy": zero, "count": zero}

        bounds = {"xx": bound**2, "xy": bound * most, "yy": most**2, "count": 1.0}
        return Family(
            lambda statistics: _normal_gamma(solved(statistics), statistics["count"]),
            evidence,
            begin,
            repair,
            draw,
            bounds,
            predict,
            latent=False,
        )

    return build


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
    _at_least(number=(number, 1))
    check_positive(bound=bound)

    def build(placeholder: Record) -> Family:
        columns, size = _x(placeholder, 1).shape[0], number + 1
        noise_std = bound / 4 / math.sqrt(columns) if spread is None else spread
        check_positive(spread=noise_std)

        def evidence(expected: PyTree, record: Record) -> Array:
            """Integrate exp(z+' M z+ + l' z+), z+ = (z, 1), over z ~ Normal(0, 1)."""
            x = _shortened(record["x"], bound)
            quadratic, along = _unpack(expected["zz"], size), x @ expected["xz"]
            precision = jnp.eye(number) - 2 * quadratic[:number, :number]
            shift = 2 * quadratic[:number, number] + along[:number]
            lower = jnp.linalg.cholesky(precision)
            half = jax.scipy.linalg.solve_triangular(lower, shift, lower=True)
            constant = quadratic[number, number] + along[number] + jnp.sum(expected["xx"] * x * x)
            return half @ half / 2 - jnp.sum(jnp.log(jnp.diagonal(lower))) + constant

        def solved(statistics: PyTree) -> _Solved:
            square = _unpack(statistics["zz"], size)
            given = (square + jnp.eye(size), statistics["xz"], statistics["xx"], square[number, number])
            return _regression(*given, noise_std**2)

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            zz = _raised(_unpack(statistics["zz"], size), noise["zz"])
            zz, xz = _standard(zz, statistics["xz"])
            given = {**statistics, "zz": _pack(zz), "xz": xz}
            return {**given, "xx": jnp.maximum(statistics["xx"], _least(solved(given), noise["xx"]))}

        def begin(key: Key) -> PyTree:
            """Start from ten records of standard factors and random loadings."""
            loadings = noise_std * jax.random.normal(key, (columns, size)).at[:, number].set(0.0)
            given = {"zz": _pack(10 * jnp.eye(size)), "xz": 10 * loadings, "xx": jnp.zeros(columns)}
            return {**given, "xx": _least(solved(given), jnp.float32(10 * noise_std**2))}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            weights, deviation = _normal_gamma_draw(solved(statistics), key)
            return {"loadings": weights[:, :number], "offset": weights[:, number], "noise": deviation}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            """Give each record's expected factors, and what they say of its columns."""
            scaled = draw["loadings"] / draw["noise"][:, None] ** 2
            precision = jnp.eye(number) + scaled.T @ draw["loadings"]
            z = jnp.linalg.solve(precision, ((jnp.asarray(inputs["x"]) - draw["offset"]) @ scaled).T).T
            return {"factors": z, "mean": z @ draw["loadings"].T + draw["offset"]}

        bounds = {"zz": float(size), "xz": bound * math.sqrt(size), "xx": bound**2}
        return Family(
            lambda statistics: _normal_gamma(solved(statistics), _unpack(statistics["zz"], size)[number, number]),
            evidence,
            begin,
            repair,
            draw,
            bounds,
            predict,
        )

    return build


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
    _at_least(components=(components, 1))
    check_positive(bound=bound, concentration=concentration)

    def build(placeholder: Record) -> Family:
        size = _x(placeholder, 1).shape[0]
        typical = bound / math.sqrt(size)
        within = typical / 4 if spread is None else spread
        check_positive(spread=within)
        few, degrees = (within / typical) ** 2, size + 2.0

        def evidence(expected: PyTree, record: Record) -> Array:
            x = _shortened(record["x"], bound)
            return logsumexp(expected["count"] + expected["sum"] @ x + expected["square"] @ _pack(jnp.outer(x, x)))

        def posterior(statistics: PyTree) -> tuple[Array, Array, Array, Array]:
            """Give mean, its pseudo-count, scatter and degrees of freedom of each component."""
            kappa = few + statistics["count"]
            mean = statistics["sum"] / kappa[:, None]
            scatter = _unpack(statistics["square"], size) - kappa[:, None, None] * mean[:, :, None] * mean[:, None, :]
            return mean, kappa, scatter + within**2 * jnp.eye(size), degrees + statistics["count"]

        def log_normaliser(statistics: PyTree) -> Array:
            _, kappa, scatter, freedom = posterior(statistics)
            each = -size / 2 * jnp.log(kappa) - freedom / 2 * jnp.linalg.slogdet(scatter)[1]
            each += freedom * size / 2 * math.log(2) + multigammaln(freedom / 2, size)
            each -= statistics["count"] * size / 2 * LOG_2PI
            return jnp.sum(each) + _dirichlet(concentration + statistics["count"])

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            """Let means lie within the bound, and raise what is left of the squares around them."""
            count = _counts(statistics["count"])
            length = jnp.linalg.norm(statistics["sum"], axis=1)
            total = statistics["sum"] * jnp.minimum(1, count * bound / (length + TINY))[:, None]
            around = total[:, :, None] * total[:, None, :] / (count + TINY)[:, None, None]
            left = _raised(_unpack(statistics["square"], size) - around, noise["square"])
            return {"count": count, "sum": total, "square": _pack(left + around)}

        def begin(key: Key) -> PyTree:
            """Start from ten records around each of some random places, far from one another."""
            places = typical / 4 * _apart(jax.random.normal(key, (10 * components, size)), components)
            squares = places[:, :, None] * places[:, None, :] + within**2 * jnp.eye(size)
            return {"count": jnp.full(components, 10.0), "sum": 10 * places, "square": _pack(10 * squares)}

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
            """Give each record's log density and the chances of its components."""
            normal = dist.MultivariateNormal(draw["mean"], draw["covariance"], validate_args=False)
            joint = jnp.log(draw["weight"]) + normal.log_prob(jnp.asarray(inputs["x"])[:, None])
            return {"log_density": logsumexp(joint, -1), "component": jax.nn.softmax(joint)}

        bounds = {"count": 1.0, "sum": bound, "square": bound**2}
        return Family(log_normaliser, evidence, begin, repair, draw, bounds, predict)

    return build


def table(schema: Schema, components: int = 8, *, spread: float = 0.25, concentration: float = 1.0) -> Family:
    """Cluster records of numbers and categories, column by column independent within a cluster: made-up tables.

    Within a component a number is normal, with mean and deviation of its own, and a category has chances of its own;
    what columns have to do with one another is in the components. The posterior can ``synthesize``.

    Privacy: public. Sees the schema only.

    Parameters
    ----------
    schema
        Of the records. Numbers count in units of half their range around its middle.
    components
        How many. Each costs noise in all: some dozens of records' worth for every number and level.
    spread
        A public guess of the standard deviation within a component, in half ranges.
    concentration
        Of the components' weights; small ones empty what is not needed.
    """
    _at_least(components=(components, 1))
    check_positive(spread=spread, concentration=concentration)
    numbers = {name: column for name, column in schema.columns.items() if column.levels is None}
    levels = {name: column.levels for name, column in schema.columns.items() if column.levels is not None}
    arrays = [name for name, column in schema.columns.items() if column.shape]
    if arrays:
        raise ValueError(
            f"The columns {arrays} hold arrays. A table has numbers and categories: give every entry a column of its "
            "own."
        )
    low, high = (np.array([getattr(column, end) for column in numbers.values()], float) for end in ("low", "high"))
    middle, half = (low + high) / 2, (high - low) / 2
    cuts = np.cumsum([len(these) for these in levels.values()])[:-1]
    few, root = spread**2, math.sqrt(len(numbers) or 1)
    bounds = {"count": 1.0, "level": math.sqrt(len(levels) or 1), "sum": root, "square": root}
    kept = ["count", *(["level"] if levels else []), *(["sum", "square"] if numbers else [])]

    def whole(statistics: PyTree) -> PyTree:
        """Give all blocks, also those that a table without numbers or without categories has not."""
        return {**{name: jnp.zeros((components, 0)) for name in bounds}, **statistics}

    def parts(flat: Array) -> list[Array]:
        """Part what is kept for all levels by column."""
        return jnp.split(flat, cuts, axis=-1) if levels else []

    def seen(record: Record) -> tuple[Array, Array]:
        """Give a record's numbers in half ranges, and a 1 at each of its levels."""
        x = (jnp.array([record[name] for name in numbers], jnp.float32) - middle) / half
        ones = [jax.nn.one_hot(record[name], len(these)) for name, these in levels.items()]
        return jnp.clip(x, -1, 1), jnp.concatenate([jnp.zeros(0), *ones])

    def evidence(expected: PyTree, record: Record) -> Array:
        x, ones = seen(record)
        values = {"level": ones, "sum": x, "square": jnp.square(x)}
        return logsumexp(expected["count"] + sum(expected[name] @ values[name] for name in kept[1:]))

    def posterior(statistics: PyTree) -> tuple[Array, Array, Array, Array]:
        """Give each number's mean, its pseudo-count, and shape and rate of its precision, component by component."""
        statistics = whole(statistics)
        kappa = few + statistics["count"][:, None]
        mean = statistics["sum"] / kappa
        rate = spread**2 + (statistics["square"] - kappa * jnp.square(mean)) / 2
        return mean, kappa, 1 + statistics["count"][:, None] / 2, rate

    def log_normaliser(statistics: PyTree) -> Array:
        _, kappa, shape, rate = posterior(statistics)
        each = gammaln(shape) - shape * jnp.log(rate) - jnp.log(kappa) / 2 - (shape - 1) * LOG_2PI
        of_levels = sum((_dirichlet(1 + part) for part in parts(whole(statistics)["level"])), jnp.float32(0))
        return jnp.sum(each) + _dirichlet(concentration + statistics["count"]) + of_levels

    def begin(key: Key) -> PyTree:
        """Start from ten records around some random places, with random levels."""
        key_place, key_level = jax.random.split(key)
        places = jax.random.uniform(key_place, (components, len(numbers)), minval=-0.5, maxval=0.5)
        chances = [
            jax.random.dirichlet(jax.random.fold_in(key_level, column), jnp.ones(len(these)), (components,))
            for column, these in enumerate(levels.values())
        ]
        made = {
            "count": jnp.full(components, 10.0),
            "level": 10 * jnp.concatenate([jnp.zeros((components, 0)), *chances], -1),
            "sum": 10 * places,
            "square": 10 * (jnp.square(places) + spread**2),
        }
        return {name: made[name] for name in kept}

    def repair(statistics: PyTree, noise: PyTree) -> PyTree:
        statistics = whole(statistics)
        count = _counts(statistics["count"])
        total = jnp.clip(statistics["sum"], -count[:, None], count[:, None])
        around = jnp.square(total) / (count + TINY)[:, None]
        left = jnp.maximum(statistics["square"] - around, noise.get("square", 0.0) + TINY)
        level = jnp.concatenate([jnp.zeros((components, 0)), *map(_counts, parts(statistics["level"]))], -1)
        repaired = {"count": count, "level": level, "sum": total, "square": around + left}
        return {name: repaired[name] for name in kept}

    def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
        key_weight, key_precision, key_mean, key_level = jax.random.split(key, 4)
        mean, kappa, shape, rate = posterior(statistics)
        deviation = jnp.sqrt(rate / jax.random.gamma(key_precision, jnp.broadcast_to(shape, rate.shape)))
        mean = mean + deviation / jnp.sqrt(kappa) * jax.random.normal(key_mean, mean.shape)
        found = {"weight": jax.random.dirichlet(key_weight, concentration + statistics["count"])}
        for place, name in enumerate(numbers):
            found[f"{name}.mean"] = middle[place] + half[place] * mean[:, place]
            found[f"{name}.std"] = half[place] * deviation[:, place]
        for place, (name, part) in enumerate(zip(levels, parts(whole(statistics)["level"]), strict=True)):
            found[f"{name}.chance"] = jax.random.dirichlet(jax.random.fold_in(key_level, place), 1 + part)
        return found

    def synthesize(draw: dict[str, Array], number: int, key: Key) -> dict[str, Any]:
        component = jax.random.categorical(key, jnp.log(draw["weight"]), shape=(number,))
        made = {}
        for place, (name, column) in enumerate(schema.columns.items()):
            own = jax.random.fold_in(key, place)
            if column.levels is not None:
                codes = jax.random.categorical(own, jnp.log(draw[f"{name}.chance"][component]))
                made[name] = levels_of(column.levels, np.asarray(codes))
                continue
            mean, std = (draw[f"{name}.{part}"][component] for part in ("mean", "std"))
            ends = float(column.low or 0), float(column.high or 0)
            least, most = ((end - mean) / std for end in ends)
            values = np.asarray(mean + std * cut_normal(own, least, most), np.float64).clip(*ends)
            made[name] = np.rint(values).astype(np.int64) if column.kind == "integer" else values
        return made

    def holds(record: Record) -> Array:
        inside = [(record[name] >= column.low) & (record[name] <= column.high) for name, column in numbers.items()]
        return jnp.all(jnp.array([*inside, *(_within(record[name], 0, len(levels[name]) - 1) for name in levels)]))

    return Family(
        log_normaliser,
        evidence,
        begin,
        repair,
        draw,
        {name: bounds[name] for name in kept},
        needs=(
            Need(
                "The records must be sealed with the schema of the table: PrivateData(records, schema).",
                holds,
                facts=schema.columns,
            ),
        ),
        synthesize=synthesize,
    )


def hidden_markov(states: int, symbols: int, *, concentration: float = 1.0) -> FamilyFor:
    """Find hidden states behind sequences of symbols: a record is ``{"x": whole numbers from 0}``, one sequence.

    Sequences are filled up to one length with -1, at any place. All chances have Dirichlet priors. A record with any
    other number counts for nothing, without a word, unless a schema that declares ``x`` refused it.

    Privacy: public. One whole sequence is one record.
    """
    _at_least(states=(states, 1), symbols=(symbols, 2))
    check_positive(concentration=concentration)

    def build(placeholder: Record) -> Family:
        length = _x(placeholder, 1).shape[0]

        def evidence(expected: PyTree, record: Record) -> Array:
            return _forward(expected["first"], expected["move"], expected["emit"], record["x"])

        def concentrations(statistics: PyTree) -> PyTree:
            return jax.tree.map(lambda counts: concentration + counts, statistics)

        def begin(key: Key) -> PyTree:
            """Start from states that stay, and emit what chance gives them."""
            emit = 10 * jax.random.dirichlet(key, jnp.ones(symbols), (states,))
            return {"first": jnp.full(states, 10 / states), "move": 10 * jnp.eye(states), "emit": emit}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            keys = jax.random.split(key, 3)
            names = ("first", "move", "emit")
            return {
                name: jax.random.dirichlet(one, concentration + statistics[name])
                for name, one in zip(names, keys, strict=True)
            }

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            """Give each sequence's log likelihood, and the chances of the states at each place."""
            first, move, emit = (jnp.log(draw[name] + 1e-30) for name in ("first", "move", "emit"))

            def one(x: Array) -> tuple[Array, Array]:
                zero = jnp.zeros((len(x), states))
                return jax.value_and_grad(lambda tilt: _forward(first, move, emit, x, tilt))(zero)

            likelihood, chances = jax.vmap(one)(jnp.asarray(inputs["x"]))
            return {"log_likelihood": likelihood, "state": chances}

        return Family(
            lambda statistics: sum(map(_dirichlet, concentrations(statistics).values()), jnp.float32(0)),
            evidence,
            begin,
            _all_counts,
            draw,
            {"first": 1.0, "move": float(max(1, length - 1)), "emit": float(length)},
            predict,
            (_symbols(symbols),),
        )

    return build


def _forward(first: Array, move: Array, emit: Array, x: Array, tilt: Array | None = None) -> Array:
    """Give the log of the sum over all paths; what is -1 takes no step. ``tilt`` is added to each place's logs."""
    x = x.astype(jnp.int32)
    there = x >= 0
    logs = jnp.where(there[:, None], emit.T[jnp.maximum(x, 0)] + (0 if tilt is None else tilt), 0)

    def step(carry: tuple[Array, Array], place: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        alpha, begun = carry
        here, log = place
        moved = jnp.where(begun, logsumexp(alpha[:, None] + move, 0), first) + log
        return (jnp.where(here, moved, alpha), begun | here), None

    (alpha, begun), _ = jax.lax.scan(step, (jnp.zeros_like(first), jnp.bool_(False)), (there, logs))
    return jnp.where(begun, logsumexp(alpha), 0.0)


def _apart(places: Array, number: int) -> Array:
    """Choose some of the places: always the one farthest from those chosen before."""
    chosen = places[:1]
    for _ in range(number - 1):
        squares = jnp.sum((places[:, None] - chosen) ** 2, -1)
        chosen = jnp.concatenate([chosen, places[jnp.argmax(jnp.min(squares, 1))][None]])
    return chosen


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


class _Solved(NamedTuple):
    """Normal-gamma posteriors, one for each output: weights with one common ``precision`` in units of the noise's,
    a line of ``mean`` for each output, and the noise's precision with one ``shape`` and a ``rate`` each."""

    precision: Array
    mean: Array
    shape: Array
    rate: Array


def _regression(precision: Array, cross: Array, square: Array, count: Array, rate: float) -> _Solved:
    mean = jnp.linalg.solve(precision, cross.T).T
    return _Solved(precision, mean, 1 + count / 2, rate + (square - jnp.sum(mean * cross, 1)) / 2)


def _least(solved: _Solved, more: Array) -> Array:
    """Give what the weights explain of each output's square, and a little more, in float32 too."""
    return jnp.sum(solved.mean * (solved.mean @ solved.precision), 1) * (1 + 1e-5) + more


def _normal_gamma(solved: _Solved, count: Array) -> Array:
    """Give the log normaliser."""
    determinant = jnp.linalg.slogdet(solved.precision)[1]
    each = gammaln(solved.shape) - solved.shape * jnp.log(solved.rate)
    return jnp.sum(each - determinant / 2 - count / 2 * LOG_2PI)


def _normal_gamma_draw(solved: _Solved, key: Key) -> tuple[Array, Array]:
    """Draw the weights, and the standard deviation of the noise."""
    key_noise, key_weight = jax.random.split(key)
    deviation = jnp.sqrt(solved.rate / jax.random.gamma(key_noise, solved.shape, solved.rate.shape))
    normal = jax.random.normal(key_weight, solved.mean.shape)
    upper = jnp.linalg.cholesky(solved.precision).T
    return solved.mean + deviation[:, None] * jax.scipy.linalg.solve_triangular(upper, normal.T).T, deviation


def _dirichlet(concentration: Array) -> Array:
    return jnp.sum(gammaln(concentration)) - jnp.sum(gammaln(jnp.sum(concentration, -1)))


class _Noisy(NamedTuple):
    """What was released, and the standard deviation of the noise in it."""

    value: Array
    std: Array


def _how_many(key: Key, mean: Array, variance: Array, released: _Noisy, count: _Noisy) -> Array:
    """Draw the number n of records, if each adds ``mean`` and ``variance`` to what was released, given a noisy n."""
    weight = mean / (jnp.maximum(count.value, 1) * variance + released.std**2 + TINY)
    known = 1 / (count.std**2 + TINY)
    precision = jnp.sum(weight * mean) + known
    centre = (jnp.sum(weight * released.value) + known * count.value) / precision
    scale = jax.lax.rsqrt(precision)
    return jnp.maximum(centre + scale * cut_normal(key, -centre / scale, jnp.float32(jnp.inf)), 0)


def _between(key: Key, mean: Array, variance: Array, released: _Noisy, low: Any, high: Any) -> Array:
    """Draw statistics with a normal distribution, cut to what records can have, given what was released."""
    gain = variance / (variance + released.std**2 + TINY)
    centre, scale = mean + gain * (released.value - mean), jnp.sqrt(gain) * released.std + TINY
    found = centre + scale * cut_normal(key, (low - centre) / scale, (high - centre) / scale)
    return jnp.clip(found, low, high)


def _counts(noisy: Array) -> Array:
    """Give the nearest counts along the last axis that are not negative and have the same total."""
    total = jnp.maximum(jnp.sum(noisy, -1, keepdims=True), 0)
    falling = -jnp.sort(-noisy, -1)
    excess = (jnp.cumsum(falling, -1) - total) / jnp.arange(1, noisy.shape[-1] + 1)
    kept = jnp.sum(falling > excess, -1, keepdims=True)
    return jnp.maximum(noisy - jnp.take_along_axis(excess, jnp.maximum(kept - 1, 0), -1), 0)


def _all_counts(statistics: PyTree, noise: PyTree) -> PyTree:
    return jax.tree.map(_counts, statistics)


def _raised(matrix: Array, noise_std: Array) -> Array:
    """Raise eigenvalues that noise alone would make to the size of the noise, and all above 0."""
    values, vectors = jnp.linalg.eigh(matrix)
    floor = noise_std * math.sqrt(matrix.shape[-1] / 2)
    return (vectors * jnp.maximum(values, floor)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)


def _pack(matrix: Array) -> Array:
    """Give a symmetric matrix's upper triangle, what is off the diagonal times sqrt(2): the norm is the same."""
    lines, columns = np.triu_indices(matrix.shape[-1])
    return matrix[..., lines, columns] * np.where(lines == columns, 1, math.sqrt(2)).astype(np.float32)


def _unpack(packed: Array, size: int) -> Array:
    lines, columns = np.triu_indices(size)
    values = packed * np.where(lines == columns, 1, math.sqrt(0.5)).astype(np.float32)
    matrix = jnp.zeros((*packed.shape[:-1], size, size)).at[..., lines, columns].set(values)
    return matrix.at[..., columns, lines].set(values)


def _shortened(x: Array, bound: float) -> Array:
    x = x.astype(jnp.float32)
    return x * jnp.minimum(1, bound / jnp.maximum(jnp.linalg.norm(x), 1e-30))


def _within(x: Array, least: int, most: int) -> Array:
    x = x.astype(jnp.float32)
    return jnp.all((x == jnp.round(x)) & (x >= least) & (x <= most))


def _symbols(number: int) -> Need:
    return Need(
        f"x must be whole numbers from 0 to {number - 1}, or -1 to fill up. Number the categories by a public list: "
        "numpy.searchsorted(levels, x) for sorted levels.",
        lambda record: _within(record["x"], -1, number - 1),
    )


def _x(placeholder: Any, dimensions: int | None = None) -> Array:
    given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
    if not isinstance(placeholder, dict) or "x" not in placeholder:
        raise ValueError(f'A record of this family is {{"x": ...}}; these are {given}.')
    x = jnp.asarray(placeholder["x"])
    if dimensions is not None and x.ndim != dimensions:
        raise ValueError(
            f"x has the shape {x.shape} in each record, but must be a vector. Put all columns into one array with a "
            "line for each record: numpy.stack([...], axis=1)."
        )
    return x


def _at_least(**values: tuple[int, int]) -> None:
    for name, (value, least) in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}. Write a whole number of at least {least}.")
