"""Conjugate families: calculus gives the algorithm, the bound never falls, private fits find the truth."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import tacit
from tacit import Budget, PrivateData, families
from tacit.accounting.mechanism import Mechanism
from tacit.engine.step import Step
from tacit.methods.conjugate import STEPS as STEPS_SUGGESTED
from tacit.methods.conjugate import ConjugateState, conjugate, elbo, halfway, nothing
from tacit.methods.families import _common as inside
from tacit.methods.families._family import Family, FamilyFor
from tacit.methods.running import blend, start
from tacit.types import Method, Plan, PyTree, Release

KEY = jax.random.key(0)
COUNT = 400


class Case(NamedTuple):
    family: FamilyFor
    records: dict[str, np.ndarray]


def vectors() -> np.ndarray:
    generator = np.random.default_rng(1)
    places = np.array([[-1.5, 0.0], [1.5, 0.5]])[generator.integers(0, 2, COUNT)]
    return (places + generator.normal(0, 0.6, (COUNT, 2))).astype(np.float32)


def wide() -> np.ndarray:
    generator = np.random.default_rng(2)
    return (
        generator.normal(size=(COUNT, 2)) @ generator.normal(size=(2, 4)) + 0.5 * generator.normal(size=(COUNT, 4))
    ).astype(np.float32)


def regression() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    x = np.column_stack([np.ones(COUNT), generator.uniform(-1, 1, (COUNT, 2))]).astype(np.float32)
    return {"x": x, "y": (x @ [0.5, 1.0, -1.0] + 0.3 * generator.normal(size=COUNT)).astype(np.float32)}


def sequences(count: int = COUNT, length: int = 6) -> np.ndarray:
    """Two states that tend to stay and mostly emit a symbol of their own; some sequences are shorter."""
    generator = np.random.default_rng(4)
    state, symbols = generator.integers(0, 2, count), np.full((count, length), -1, np.int32)
    for place in range(length):
        noisy = generator.random(count) < 0.2
        symbols[:, place] = np.where(noisy, 2, state)
        state = np.where(generator.random(count) < 0.1, 1 - state, state)
    symbols[::5, 4:] = -1
    return symbols


def table() -> dict[str, np.ndarray]:
    """Two kinds of people, told apart by a number, a whole number and a category."""
    generator = np.random.default_rng(5)
    old = generator.random(COUNT) < 0.4
    return {
        "age": (np.where(old, 75, 35) + generator.normal(0, 5, COUNT)).astype(np.float32),
        "stays": generator.poisson(np.where(old, 4, 1)).clip(0, 12).astype(np.int32),
        "drug": (generator.random(COUNT)[:, None] > np.where(old[:, None], [0.1, 0.3], [0.6, 0.9]))
        .sum(1)
        .astype(np.int32),
    }


PEOPLE = tacit.Schema(
    {
        "age": {"low": 15, "high": 95},
        "stays": {"low": 0, "high": 12, "kind": "integer"},
        "drug": {"levels": ["none", "old", "new"]},
    }
)
CASES = {
    "bernoulli": Case(families.bernoulli(prior=(2.0, 3.0)), {"x": (vectors() > 0.3).astype(np.int32)}),
    "categorical": Case(families.categorical(3), {"x": sequences()}),
    "linear": Case(families.linear(bound=2.0, most=4.0), regression()),
    "factors": Case(families.factors(2, bound=50.0), {"x": wide()}),
    "mixture": Case(families.mixture(2, bound=8.0), {"x": vectors()}),
    "hidden_markov": Case(families.hidden_markov(2, 3), {"x": sequences()}),
    "table": Case(lambda placeholder: families.table(PEOPLE, 2), table()),
}
every = pytest.mark.parametrize("name", CASES)
exact = pytest.mark.parametrize("name", ["bernoulli", "categorical", "linear"])


def placeholder(name: str) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), CASES[name].records)


def at(name: str) -> Family:
    return CASES[name].family(placeholder(name))


def arrays(name: str) -> PyTree:
    return jax.tree.map(jnp.asarray, CASES[name].records)


def total(method: Method, state: PyTree, records: PyTree) -> PyTree:
    each = jax.vmap(lambda record: method.contribute(state, record, KEY))(records)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), each)


STEPS = 60


@functools.cache
def without_noise(name: str) -> ConjugateState:
    """Run the method with pace 1 and give all of its states, with a leading axis."""
    method, records = conjugate(CASES[name].family, pace=jnp.ones_like)(Plan(placeholder(name))), arrays(name)

    def step(state: ConjugateState, _: None) -> tuple[ConjugateState, ConjugateState]:
        full = total(method, state, records)
        nothing = jax.tree.map(lambda _: jnp.float32(0), full)
        return method.update(state, Release(full, nothing, jnp.float32(1), full), KEY), state

    return jax.jit(lambda key: jax.lax.scan(step, method.init(key), None, STEPS + 1)[1])(KEY)


def after(name: str, steps: int) -> ConjugateState:
    return jax.tree.map(lambda leaf: leaf[steps], without_noise(name))


@every
def test_the_bound_never_falls_and_its_gradient_vanishes_at_the_end(name: str) -> None:
    family, records = at(name), arrays(name)
    program = jax.jit(lambda given: jax.lax.map(jax.value_and_grad(lambda s: elbo(family, s, records)), given))
    bounds, gradients = program(without_noise(name).statistics)
    assert np.all(np.diff(bounds) > -3e-6 * abs(bounds[-1]))  # float32: sums of 400 logs
    assert bounds[-1] > bounds[0]
    steepness = np.max([np.abs(leaf).reshape(STEPS + 1, -1).max(1) for leaf in jax.tree.leaves(gradients)], 0)
    assert steepness[-1] < 1e-2 * steepness[0]


@exact
def test_without_latent_variables_the_bound_is_the_evidence(name: str) -> None:
    """log p(records) = log_normaliser(all statistics) - log_normaliser(none)."""
    family, last = at(name), after(name, 1).statistics
    evidence = family.log_normaliser(last) - family.log_normaliser(nothing(last))
    assert float(elbo(family, last, arrays(name))) == pytest.approx(float(evidence), rel=1e-5)


def test_linear_regression_is_the_textbook_posterior() -> None:
    data = regression()
    x, y = data["x"].astype(float), data["y"].astype(float)
    precision = x.T @ x + np.eye(3) / 100
    mean = np.linalg.solve(precision, x.T @ y)
    shape, rate = 1 + COUNT / 2, 1.0 + (y @ y - mean @ precision @ mean) / 2
    posterior = tacit.fit_public(conjugate(CASES["linear"].family), data, steps=1, key=KEY)
    deviation = np.sqrt(rate / shape * np.diag(np.linalg.inv(precision)))
    w = np.asarray(posterior.draws["w"])
    # Means of 1000 draws: 5 standard errors, false alarm below 1e-5 for all; spreads: 10% is 4.5 standard errors.
    np.testing.assert_allclose(w.mean(0), mean, atol=5 * deviation.max() / math.sqrt(1000))
    np.testing.assert_allclose(w.std(0), deviation, rtol=0.1)
    wanted = stats.invgamma(shape, scale=rate)
    assert np.mean(np.asarray(posterior.draws["noise"]) ** 2) == pytest.approx(wanted.mean(), rel=0.02)
    # The evidence, by the textbook's other way: a multivariate Student distribution of y.
    family, records = at("linear"), arrays("linear")
    evidence = elbo(family, after("linear", 1).statistics, records)
    student = stats.multivariate_t(np.zeros(COUNT), np.eye(COUNT) + 100 * x @ x.T, df=2)
    assert float(evidence) == pytest.approx(student.logpdf(y), abs=0.02)


def test_a_hidden_markov_models_evidence_is_the_sum_over_all_paths() -> None:
    family = at("hidden_markov")
    generator = np.random.default_rng(5)
    expected = {
        name: jnp.asarray(generator.normal(size=shape), jnp.float32)
        for name, shape in (("first", 2), ("move", (2, 2)), ("emit", (2, 3)))
    }
    for x in ([0, 2, 1, -1, -1], [1, -1, 0, 2, 2], [-1] * 5):
        there = [symbol for symbol in x if symbol >= 0]

        def along(path: tuple[int, ...], there: list[int] = there) -> Any:
            if not path:
                return jnp.float32(0)
            moves = sum(expected["move"][a, b] for a, b in itertools.pairwise(path))
            return (
                expected["first"][path[0]]
                + moves
                + sum(expected["emit"][s, v] for s, v in zip(path, there, strict=True))
            )

        logs = jnp.array([along(path) for path in itertools.product(range(2), repeat=len(there))])
        record = {"x": jnp.array(x)}
        assert float(family.evidence(expected, record)) == pytest.approx(float(special.logsumexp(logs)), rel=1e-5)
        counts = jax.grad(family.evidence)(expected, record)
        assert float(counts["first"].sum()) == pytest.approx(min(1, len(there)), rel=1e-5)
        assert float(counts["emit"].sum()) == pytest.approx(len(there), rel=1e-5)
        assert float(counts["move"].sum()) == pytest.approx(max(0, len(there) - 1), rel=1e-5)


def test_the_evidence_of_factors_is_the_integral_over_them() -> None:
    build = families.factors(1, bound=9.0)
    family = build({"x": jnp.zeros(2)})
    expected = jax.grad(family.log_normaliser)(family.begin(KEY))
    x = jnp.array([0.7, -1.2])
    z = jnp.linspace(-12, 12, 20001)

    def exponent(z: Any) -> Any:
        given = jnp.array([z, 1.0])
        packed = inside.pack(jnp.outer(given, given))
        return expected["zz"] @ packed + x @ expected["xz"] @ given + expected["xx"] @ x**2

    density = jnp.exp(jax.vmap(exponent)(z) - z**2 / 2) / math.sqrt(2 * math.pi)
    assert float(family.evidence(expected, {"x": x})) == pytest.approx(
        float(jnp.log(jnp.trapezoid(density, z))), abs=1e-4
    )


@exact
def test_expected_natural_parameters_are_those_of_draws(name: str) -> None:
    """Without latent variables log p(x | m) is linear in n(m): its mean over draws must be the evidence at E[n].

    4000 draws; 5 standard errors: false alarm 6e-7 a record.
    """
    family, records = at(name), arrays(name)
    state = after(name, 1)
    draws = jax.jit(jax.vmap(family.draw, (None, 0)))(state.statistics, jax.random.split(KEY, 4000))

    def log_density(record: PyTree) -> Any:
        if name == "linear":
            spread = draws["noise"]
            mean = draws["w"] @ record["x"]
            return -((record["y"] - mean) ** 2) / (2 * spread**2) - jnp.log(spread) - math.log(2 * math.pi) / 2
        if name == "bernoulli":
            return jnp.sum(jnp.where(record["x"] == 1, jnp.log(draws["chance"]), jnp.log1p(-draws["chance"])), -1)
        there = record["x"] >= 0
        return jnp.sum(jnp.where(there, jnp.log(draws["chance"])[:, jnp.maximum(record["x"], 0)], 0), -1)

    for index in range(5):
        record = jax.tree.map(lambda leaf, index=index: leaf[index], records)
        values = np.asarray(log_density(record))
        wanted = float(family.evidence(state.expected, record))
        assert abs(values.mean() - wanted) < 5 * values.std() / math.sqrt(len(values)) + 1e-4


def test_draws_of_a_mixture_have_the_posterior_means() -> None:
    state = after("mixture", 60)
    method = conjugate(CASES["mixture"].family)(Plan(placeholder("mixture")))
    draws = jax.jit(jax.vmap(method.draw, (None, 0)))(state, jax.random.split(KEY, 4000))
    x = vectors()
    chosen = draws["mean"].mean(0)[:, 0] > 0
    for k in range(2):
        near = (x[:, 0] > 0) == bool(chosen[k])
        np.testing.assert_allclose(draws["mean"][:, k].mean(0), x[near].mean(0), atol=0.1)
        np.testing.assert_allclose(draws["covariance"][:, k].mean(0), np.cov(x[near].T), atol=0.1)
    predicted = method.model.predict(jax.tree.map(lambda leaf: leaf[0], draws), {"x": x}, KEY)  # type: ignore[misc]
    agree = (np.asarray(predicted["component"])[:, 0] > 0.5) == ((x[:, 0] > 0) == bool(chosen[0]))
    assert agree.mean() > 0.98
    grid = np.stack(np.meshgrid(np.linspace(-8, 8, 200), np.linspace(-8, 8, 200)), -1).reshape(-1, 2)
    density = method.model.predict(jax.tree.map(lambda leaf: leaf[0], draws), {"x": grid}, KEY)  # type: ignore[misc]
    assert float(np.exp(density["log_density"]).sum() * (16 / 199) ** 2) == pytest.approx(1, abs=0.01)


def test_factors_explain_the_covariance() -> None:
    last = after("factors", 50)
    method = conjugate(CASES["factors"].family)(Plan(placeholder("factors")))
    draws = jax.jit(jax.vmap(method.draw, (None, 0)))(last, jax.random.split(KEY, 500))
    made = jnp.einsum("nik,njk->nij", draws["loadings"], draws["loadings"]).mean(0)
    made += jnp.diag((draws["noise"] ** 2).mean(0))
    wanted = np.cov(wide().T)
    assert np.abs(made - wanted).max() < 0.1 * np.abs(wanted).max()
    predicted = method.model.predict(jax.tree.map(lambda leaf: leaf[0], draws), {"x": wide()}, KEY)  # type: ignore[misc]
    assert predicted["factors"].shape == (COUNT, 2)
    assert np.mean((predicted["mean"] - wide()) ** 2) < 0.3 * np.var(wide())


def test_made_up_records_depend_on_one_another_as_the_real_ones() -> None:
    """400 real records and 4000 made-up ones: shares differ by 5 standard errors at most, means of numbers likewise."""
    method = conjugate(CASES["table"].family)(Plan(placeholder("table")))
    draw = method.draw(after("table", 60), KEY)
    assert set(draw) == {"weight", "age.mean", "age.std", "stays.mean", "stays.std", "drug.chance"}
    made, real = method.model.synthesize(draw, 4000, KEY), table()  # type: ignore[misc]
    assert list(made) == list(PEOPLE.columns)
    assert made["stays"].dtype == np.int64
    for name in ("age", "stays"):
        assert made[name].min() >= PEOPLE.columns[name].low
        assert made[name].max() <= PEOPLE.columns[name].high
    codes = np.array([{"none": 0, "old": 1, "new": 2}[drug] for drug in made["drug"]])
    for old in (True, False):
        ours, theirs = ((one["age"] > 55) == old for one in (made, real))
        assert ours.mean() == pytest.approx(theirs.mean(), abs=0.12)
        assert made["stays"][ours].mean() == pytest.approx(real["stays"][theirs].mean(), abs=0.5)
        for code in range(3):
            share = (real["drug"][theirs] == code).mean()
            assert (codes[ours] == code).mean() == pytest.approx(share, abs=5 * (0.25 / theirs.sum()) ** 0.5)


def test_tables_of_one_kind_of_column_are_clustered_too() -> None:
    for name in PEOPLE.columns:
        schema = tacit.Schema({name: PEOPLE.columns[name]})
        method = conjugate(families.table(schema, 2))(Plan(schema.placeholder()))
        start = jax.jit(method.init)(KEY)
        each = jax.eval_shape(method.contribute, start, schema.placeholder(), KEY)
        assert set(each) == ({"count", "level"} if name == "drug" else {"count", "sum", "square"})
        made = method.model.synthesize(jax.jit(method.draw)(start, KEY), 5, KEY)  # type: ignore[misc]
        assert made[name].shape == (5,)


@pytest.mark.slow
def test_hidden_states_are_found() -> None:
    last = after("hidden_markov", 60)
    method = conjugate(CASES["hidden_markov"].family)(Plan(placeholder("hidden_markov")))
    draw = method.draw(last, KEY)
    x = sequences()
    states = np.asarray(method.model.predict(draw, {"x": x}, KEY)["state"])  # type: ignore[misc]
    there = x >= 0
    np.testing.assert_allclose(states.sum(-1)[there], 1, atol=1e-4)
    sure = there & (x < 2)
    chosen = states.argmax(-1)[sure]
    assert max(np.mean(chosen == x[sure]), np.mean(chosen != x[sure])) > 0.95
    assert np.all(states[~there] == 0)
    shorter = method.model.predict(draw, {"x": x[:3, :4]}, KEY)  # type: ignore[misc]
    assert shorter["state"].shape == (3, 4, 2)


@every
def test_adversaries_never_exceed_the_stated_bounds(name: str) -> None:
    """All bounds but those of factors, which the wall's clip alone enforces, hold for every record and state."""
    family, method = at(name), conjugate(CASES[name].family)(Plan(placeholder(name)))
    assert method.suggests.weights is not None
    begin, expected = jax.jit(method.init), jax.jit(jax.grad(family.log_normaliser))
    contribute = jax.jit(jax.vmap(lambda state, record: method.contribute(state, record, KEY), (None, 0)))
    generator = np.random.default_rng(6)
    worst = 0.0
    for scale in (0.1, 1.0, 100.0):
        state = begin(jax.random.key(int(scale)))
        # Any statistics of records, and any state they lead to.
        made_up = jax.tree.map(lambda leaf, s=scale: s * leaf, state.statistics)
        state = state._replace(expected=expected(made_up))
        records = {
            column: jnp.asarray(
                generator.integers(0 if name == "bernoulli" else -1, 2, (200, *leaf.shape[1:])).astype(leaf.dtype)
                if leaf.dtype == np.int32
                else (scale * generator.standard_cauchy((200, *leaf.shape[1:]))).astype(np.float32)
            )
            for column, leaf in CASES[name].records.items()
        }
        each = contribute(state, records)
        squares = jnp.zeros(200)
        for weight, block in zip(method.suggests.weights, sorted(each), strict=True):
            norms = jnp.linalg.norm(each[block].reshape(200, -1), axis=1)
            assert name == "factors" or norms.max() <= family.bounds[block] * (1 + 1e-5)
            squares += (weight * norms) ** 2
        worst = max(worst, float(squares.max()))
    assert name == "factors" or 0.2 < worst <= 1 + 1e-5


def test_packing_keeps_the_norm() -> None:
    matrix = np.random.default_rng(7).normal(size=(3, 5, 5)).astype(np.float32)
    matrix = matrix + np.swapaxes(matrix, 1, 2)
    packed = inside.pack(jnp.asarray(matrix))
    assert packed.shape == (3, 15)
    np.testing.assert_allclose(inside.unpack(packed, 5), matrix, rtol=1e-6)
    np.testing.assert_allclose(jnp.linalg.norm(packed, axis=1), np.linalg.norm(matrix, axis=(1, 2)), rtol=1e-6)


def test_counts_are_the_nearest_with_the_same_total() -> None:
    generator = np.random.default_rng(8)
    for noisy in generator.normal(2, 5, (50, 6)):
        repaired = np.asarray(inside.nearest_counts(jnp.asarray(noisy, jnp.float32)))
        assert repaired.min() >= 0
        assert repaired.sum() == pytest.approx(max(noisy.sum(), 0), abs=1e-4)
        if noisy.sum() > 0:  # nearest: what is left out was lowest, and all others moved by the same amount
            moved = noisy - repaired
            assert np.ptp(moved[repaired > 0]) < 1e-4
            assert np.all(noisy[repaired == 0] <= moved[repaired > 0].max() + 1e-4)
    counts = jnp.array([3.0, 0.0, 7.0])
    np.testing.assert_array_equal(inside.nearest_counts(counts), counts)


@pytest.mark.parametrize("name", ["linear", "factors", "mixture", "table"])
def test_an_indefinite_release_is_repaired_in_a_copy_only(name: str) -> None:
    method = conjugate(CASES[name].family)(Plan(placeholder(name)))
    state = jax.jit(method.init)(KEY)
    generator = np.random.default_rng(9)
    full = jax.tree.map(lambda leaf: jnp.asarray(generator.normal(0, 100, leaf.shape), jnp.float32), state.statistics)
    noise = jax.tree.map(lambda _: jnp.float32(100), full)
    release = Release(full, noise, jnp.float32(1), full)
    end = jax.jit(method.update)(state, release, KEY)
    for wanted, kept in zip(jax.tree.leaves(full), jax.tree.leaves(end.running.statistics), strict=True):
        np.testing.assert_allclose(kept, wanted, rtol=1e-5, atol=1e-3)  # the start is replaced, in float32
    draws = jax.jit(jax.vmap(method.draw, (None, 0)))(end, jax.random.split(KEY, 100))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((end, draws)))


PRIVATE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "linear": lambda means: np.abs(means["w"] - [0.5, 1.0, -1.0]).max() < 0.1,
    "mixture": lambda means: np.abs(np.sort(means["mean"][:, 0]) - [-1.5, 1.5]).max() < 0.15,
    "table": lambda means: np.abs(np.sort(means["age.mean"]) - [35, 75]).max() < 3,
    "hidden_markov": lambda means: np.abs(np.sort(means["emit"][:, 2]) - 0.2).max() < 0.1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_fit_finds_the_truth(name: str) -> None:
    """One fixed seed; with 40 times 400 records at epsilon 1 the noise is a tenth of what is allowed for, or less."""
    records = jax.tree.map(lambda leaf: np.tile(leaf, (40, *[1] * (leaf.ndim - 1))), CASES[name].records)
    tight = {"linear": families.linear(bound=2.0, most=3.0), "mixture": families.mixture(2, bound=4.0)}
    posterior = tacit.fit(
        conjugate(tight.get(name, CASES[name].family)),
        PrivateData(records, size=40 * COUNT),
        Budget(1.0, 1e-5),
        key=jax.random.key(1),
        simulate=1,
        progress=False,
    )
    assert PRIVATE[name]({site: np.asarray(draws).mean(0) for site, draws in posterior.draws.items()})


@pytest.mark.parametrize(("ones", "count", "std"), [(5.0, 60.0, 15.0), (60.0, 200.0, 20.0)])
@pytest.mark.parametrize("name", ["bernoulli", "categorical"])
def test_draws_count_the_noise(name: str, ones: float, count: float, std: float) -> None:
    """Against the exact posterior: the sum over all numbers of records and of ones that could be behind the release.

    Data-augmentation MCMC (Ju et al. 2022) would draw from this posterior; here it is summed, without an error.
    Four thousand draws: a Kolmogorov distance of 0.06 leaves 0.02 for what is taken to be normal and is not, and 0.04
    for chance, a false alarm in 10**5. Not told of the noise, the same draws are at least twice as far off.
    """
    chance = np.linspace(0.001, 0.999, 300)
    n, k = np.meshgrid(np.arange(0, count + 8 * std), np.arange(0, count + 8 * std), indexing="ij")
    if name == "bernoulli":
        family, noisy = families.bernoulli(), {"tilt": ones - count / 2, "count": count}
        weight = stats.norm.logpdf(k - n / 2, ones - count / 2, std) + stats.norm.logpdf(n, count, std)
    else:
        family, noisy = families.categorical(2), {"count": jnp.array([ones, count - ones])}
        weight = stats.norm.logpdf(k, ones, std) + stats.norm.logpdf(n - k, count - ones, std)
    weight = np.where(k <= n, np.exp(weight - weight.max()), 0) / (n + 1)  # each k of n is as likely before
    cdf = np.zeros_like(chance)
    for at in zip(*np.nonzero(weight > 1e-4 * weight.max()), strict=True):
        cdf += weight[at] * special.betainc(k[at] + 1, n[at] - k[at] + 1, chance)
    cdf /= cdf[-1]
    method = conjugate(family)(Plan({"x": np.int32(0)}))
    noisy = jax.tree.map(jnp.float32, noisy)
    release = Release(noisy, jax.tree.map(lambda leaf: jnp.float32(std), noisy), jnp.float32(1), noisy)
    state = jax.jit(lambda key: method.update(method.init(key), release, key))(KEY)
    draws = jax.jit(jax.vmap(method.draw, (None, 0)))(state, jax.random.split(KEY, 4000))["chance"]
    draws = np.asarray(draws if name == "bernoulli" else draws[:, 0])
    distance = stats.kstest(draws, lambda at: np.interp(at, chance, cdf)).statistic
    assert distance < 0.06
    blind = conjugate(lambda placeholder: family(placeholder)._replace(refill=None))(Plan({"x": np.int32(0)}))
    draws = jax.jit(jax.vmap(blind.draw, (None, 0)))(state, jax.random.split(KEY, 4000))["chance"]
    draws = np.asarray(draws if name == "bernoulli" else draws[:, 0])
    assert stats.kstest(draws, lambda at: np.interp(at, chance, cdf)).statistic > 2 * distance


def test_half_of_the_releases_are_averaged() -> None:
    """Of fifty releases with noise of one size, the average keeps one over the root of 25 of it."""
    running = start(jnp.zeros(()))
    release = Release(jnp.float32(1), jnp.float32(1), jnp.float32(1), jnp.float32(1))
    for _ in range(STEPS_SUGGESTED):
        running = blend(running, release, halfway)
    assert float(running.noise_std) == pytest.approx(STEPS_SUGGESTED**-0.5 * 2**0.5, rel=1e-5)


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_other_types_of_numbers_are_taken(kind: Any) -> None:
    x = sequences()[:, :4] == 1 if kind is bool else sequences().astype(kind)
    family = families.bernoulli() if kind is bool else families.hidden_markov(2, 3)
    method = conjugate(family)(Plan(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), {"x": x})))
    assert all(bool(need.predicate({"x": jnp.asarray(x[0])})) for need in method.requirements)
    contribution = method.contribute(method.init(KEY), {"x": jnp.asarray(x[0])}, KEY)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(contribution))


def test_statistics_that_never_change_are_asked_for_once() -> None:
    assert all(
        conjugate(CASES[n].family)(Plan(placeholder(n))).suggests.steps == 1
        for n in ("bernoulli", "categorical", "linear")
    )
    # And several releases of them are averaged evenly.
    method = conjugate(CASES["categorical"].family)(Plan(placeholder("categorical")))
    state = method.init(KEY)
    for counts in ([6.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 9.0]):
        full = {"count": jnp.array(counts)}
        state = method.update(state, Release(full, {"count": jnp.float32(1)}, jnp.float32(1), full), KEY)
    np.testing.assert_allclose(state.statistics["count"], [2, 1, 3], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("bernoulli", {"x": np.full((COUNT, 2), 2)}, "x must be 0 or 1"),
        ("mixture", {"x": np.zeros(COUNT, np.float32)}, "must be a vector"),
        ("mixture", {"z": np.zeros((COUNT, 2), np.float32)}, 'is {"x": ...}'),
        ("linear", {"x": np.zeros((COUNT, 2), np.float32)}, '"y": number'),
    ],
)
def test_bad_records_are_refused_before_anything_is_spent(name: str, change: dict[str, Any], match: str) -> None:
    data = PrivateData(change, size=COUNT)
    with pytest.raises(ValueError, match=match):
        tacit.fit(conjugate(CASES[name].family), data, Budget(1.0, 1e-5), progress=False)
    assert len(data.ledger.charges) == 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("categorical", {"x": np.full(COUNT, 3)}),
        ("hidden_markov", {"x": np.full((COUNT, 4), -2)}),
        ("table", {**table(), "drug": np.full(COUNT, 3)}),
    ],
)
def test_records_that_do_not_fit_contribute_nothing(name: str, change: dict[str, Any]) -> None:
    """What fits is the caller's choice here, so that a refusal would answer questions about the records."""
    data = PrivateData(change, size=COUNT)
    method = conjugate(CASES[name].family)(Plan(data.placeholder))
    recipe = Mechanism(1.0, method.suggests.clip or 1.0, 1.0, 1, weights=method.suggests.weights)
    step = Step(method, data, recipe, method.init(KEY))
    rows = jax.tree.map(lambda leaf: np.resize(leaf, (step.sizes.chunk, *leaf.shape[1:])), data._records)
    found = jax.jit(step.contributions.clipped)(method.init(KEY), rows, KEY)
    assert not np.any(found.plain)
    assert not any(np.any(right) for _, right in found.factors)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: families.mixture(0, bound=1.0), "components is 0"),
        (lambda: families.mixture(2, bound=-1.0), "bound is -1"),
        (lambda: families.linear(bound=1.0, most=math.inf), "most is inf"),
        (lambda: families.categorical(1), "categories is 1"),
        (lambda: families.table(tacit.Schema({"a": {"low": 0, "high": 1, "shape": [3]}})), "hold arrays"),
        (lambda: families.hidden_markov(2, 3, concentration=0.0), "concentration is 0"),
    ],
)
def test_bad_options_are_refused(make: Callable[[], FamilyFor], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_bounds_must_name_the_blocks() -> None:
    family = at("mixture")._replace(bounds={"count": 1.0})
    with pytest.raises(ValueError, match="pass one for each"):
        conjugate(family)(Plan(placeholder("mixture")))
