"""Pair scores: contributions that fit their clip, a mean of zero at the truth, made-up covariates, intervals."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.engine import random
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.methods import pair_differences, pair_posterior
from tacit.methods import pair_scores as module
from tacit.methods.covariates import Covariates
from tacit.methods.pair_phases import timetable
from tacit.methods.pair_posterior import PairModel
from tacit.methods.pair_scores import PairsState, pair_scores
from tacit.models.simulated import SimulatedModel
from tacit.types import Method, Plan, Release
from tacit.wall import keys

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY)
FACTS = {"x": {"low": -10, "high": 10}, "g": {"levels": ["a", "b", "c"]}}
RESPONSES = {
    "bernoulli": {"levels": [0, 1]},
    "poisson": {"low": 0, "high": 1000, "kind": "integer"},
    "gaussian": {"low": -20, "high": 20},
}
SIZE = 2000


def schema(family: str) -> tacit.Schema:
    return tacit.Schema({**FACTS, "y": RESPONSES[family]})


def placeholder(family: str) -> Any:
    return schema(family).placeholder()


def records(family: str, seed: int, size: int = SIZE) -> dict[str, Any]:
    """Draw x that depends on g, as codes, and y from both: 0.3 + 0.5 x, and -0.4 more in the last group."""
    rng = np.random.default_rng(seed)
    g = rng.choice(3, size, p=[0.5, 0.3, 0.2])
    x = rng.normal(0.8 * (g == 2), 1)
    along = 0.3 + 0.5 * x - 0.4 * (g == 2)
    y = {
        "bernoulli": lambda: (rng.logistic(size=size) < along).astype(int),
        "poisson": lambda: rng.poisson(np.exp(along)),
        "gaussian": lambda: along + rng.normal(size=size),
    }[family]()
    return {"x": x, "g": g, "y": y}


def parts(family: str) -> tuple[SimulatedModel, Covariates]:
    """Return the model and the covariates that the public half computes with."""
    model = tacit.formula("y ~ x + g", schema(family), family)
    reading = SimulatedModel(model, placeholder(family))
    return reading, Covariates(model.schema, reading.covariates)


@cache
def built(family: str) -> tuple[Method, PairsState]:
    """Return the method, and its state as if it were in the last round."""
    model = tacit.formula("y ~ x + g", schema(family), family)
    method = pair_scores(model)(Plan(placeholder(family), SIZE))
    state = jax.jit(method.init)(KEY)
    posterior = state.posterior._replace(clip=jnp.full(2, math.sqrt(2.0)))
    return method, state._replace(step=jnp.int32(module.STEPS - 1), posterior=posterior)


@pytest.mark.parametrize("family", RESPONSES)
def test_no_record_is_longer_than_the_clip(family: str) -> None:
    method, state = built(family)
    high = {"bernoulli": 1, "poisson": 1000, "gaussian": 20}[family]
    extreme = [(x, g, y) for x in (-10.0, 0.0, 10.0) for g in (0, 2) for y in (-20 * (family == "gaussian"), high)]
    rows = {name: jnp.asarray(column) for name, column in zip("xgy", zip(*extreme, strict=True), strict=True)}
    each = jax.random.split(KEY, len(extreme))
    for step in (0, 1, 2, 4, module.STEPS - 1):
        at = state._replace(step=jnp.int32(step))
        found = jax.jit(jax.vmap(method.contribute, (None, 0, None, 0)))(at, rows, KEY, each)
        squares = sum(jnp.sum(leaf.reshape(len(each), -1) ** 2, 1) for leaf in jax.tree.leaves(found))
        assert np.all(np.asarray(squares) <= 1 + 1e-5)
        assert np.all(np.asarray(squares) > 0)


@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_the_mean_at_the_truth_is_zero(family: str) -> None:
    """Whatever the clip: records drawn from the model at w, 6 standard errors in each of at most 5 numbers.

    The false alarm's probability is below 5 * 2e-9. A y' from another w, or a pair that is not exchangeable, is found:
    the clip shortens most records, whose scores are skewed.
    """
    model = tacit.formula("y ~ x + g", schema(family), family)
    method, state = built(family)
    reading = SimulatedModel(model, placeholder(family))
    place = reading.start + 0.5
    state = state._replace(posterior=state.posterior._replace(place=place, clip=jnp.full(2, 0.35)))
    count = 20_000
    of_x, of_g, of_y, of_pairs = jax.random.split(KEY, 4)
    rows = {"x": 2 + jax.random.exponential(of_x, (count,)), "g": jax.random.randint(of_g, (count,), 0, 3)}
    rows["y"] = jnp.zeros(count, placeholder(family)["y"].dtype)

    @jax.jit
    def scores(place: Any) -> Any:
        def one(row: Any, of_y: Any, of_pair: Any) -> Any:
            drawn = reading.simulated(place, row, of_y)["y"][0]
            return method.contribute(state, {**row, "y": drawn.astype(row["y"].dtype)}, KEY, of_pair)["score"]

        return jax.vmap(one)(rows, jax.random.split(of_y, count), jax.random.split(of_pairs, count))

    def deviations(place: Any) -> Any:
        found = np.asarray(scores(place), np.float64)
        return np.abs(found.mean(0)) / (found.std(0) / math.sqrt(count) + 1e-12)

    assert np.all(deviations(place) < 6)
    assert np.any(deviations(place + 0.3) > 6)


def test_counts_are_drawn_by_the_keys_of_the_wall() -> None:
    method, state = built("poisson")
    record = {"x": jnp.float32(1), "g": jnp.int32(1), "y": jnp.int32(2)}
    found = jax.jit(method.contribute)(state, record, KEY, keys.from_bytes(bytes(32)))
    assert np.all(np.isfinite(found["score"]))
    assert np.any(found["score"] != 0)


def test_records_draw_by_their_own_keys() -> None:
    method, state = built("gaussian")
    record = {"x": jnp.float32(1), "g": jnp.int32(1), "y": jnp.float32(2)}
    contribute = jax.jit(method.contribute)
    scores = [np.asarray(contribute(state, record, *both)["score"]) for both in itertools.product(KEYS, KEYS)]
    assert np.array_equal(scores[0], scores[2])
    assert not np.array_equal(scores[0], scores[1])


def test_the_posterior_finds_where_the_release_comes_from() -> None:
    """With little noise: the mean of the modes is within five posterior deviations, each below .3."""
    method, state = built("bernoulli")
    reading = SimulatedModel(tacit.formula("y ~ x + g", schema("bernoulli"), "bernoulli"), placeholder("bernoulli"))
    truth = reading.start + jnp.array([0.6, -0.7, 0.8, 0.3])  # more than six deviations from where the round begins
    of_x, of_g, of_y, of_pairs = jax.random.split(KEY, 4)
    rows = {"x": jax.random.uniform(of_x, (SIZE,), minval=-10, maxval=10)}
    rows |= {"g": jax.random.randint(of_g, (SIZE,), 0, 3), "y": jnp.zeros(SIZE, jnp.int32)}

    @jax.jit
    def released(state: PairsState) -> Any:
        def one(row: Any, of_y: Any, of_pair: Any) -> Any:
            drawn = reading.simulated(truth, row, of_y)["y"][0].astype(jnp.int32)
            return method.contribute(state, {**row, "y": drawn}, KEY, of_pair)

        each = jax.vmap(one)(rows, jax.random.split(of_y, SIZE), jax.random.split(of_pairs, SIZE))
        return jax.tree.map(lambda leaf: jnp.sum(leaf, 0), each)

    total = released(state)
    std = jax.tree.map(lambda leaf: jnp.float32(0.1), total)
    length = timetable(module.STEPS, 2).length[-1]
    state = state._replace(sums=jax.tree.map(lambda leaf: (length - 1) * leaf, total))
    after = jax.jit(method.update)(state, Release(total, std, jnp.float32(1), total), KEY)
    deviations = np.sqrt(np.mean(np.sum(np.square(after.posterior.roots), 2), 0))
    assert np.all(np.abs(np.mean(after.posterior.modes, 0) - truth) < 5 * deviations)
    assert np.all(deviations < 0.3)


def test_made_up_covariates_are_like_the_true_ones() -> None:
    """At a noise of a few counts: means, spreads, correlations, shares of levels. What noise hides of a tail is cut."""
    facts = tacit.Schema({"x": {"low": -40, "high": 40}, "v": {"low": 0, "high": 50}, "g": {"levels": ["a", "b", "c"]}})
    rng, size = np.random.default_rng(2), 20_000
    g = rng.choice(3, size, p=[0.5, 0.3, 0.2])
    z = rng.normal(size=(size, 2)) @ np.linalg.cholesky(np.array([[1, 0.6], [0.6, 1]])).T
    true = {"x": z[:, 0] + 10, "v": np.exp(z[:, 1]), "g": np.where(z[:, 0] > 0.5, 2, np.minimum(g, 1))}
    rows = {name: jnp.asarray(column, facts.columns[name].dtype) for name, column in true.items()}
    covariates = Covariates(facts, list(rows))
    table, std = covariates.start(), jnp.float32(5.0)

    def summed(function: Any, table: Any) -> Any:
        total = jnp.sum(jax.vmap(lambda row: function(table, row))(rows), 0)
        return total + std * jax.random.normal(KEY, total.shape)

    table = covariates.zoom(table, summed(covariates.histogram, table), std)
    assert float(table.high[0] - table.low[0]) < 45
    table = covariates.fill(table, summed(covariates.histogram, table), std, float(size))
    table = covariates.correlate(table, summed(covariates.products, table), std, float(size), True)
    table = covariates.correlate(table, summed(covariates.products, table), std, float(size), False)
    drawn = {name: np.asarray(column) for name, column in covariates.draw(table, KEY, size, jnp.float32(0)).items()}
    for name in ("x", "v"):
        assert abs(drawn[name].mean() - true[name].mean()) < 0.1 * true[name].std()
        assert (0.75 if name == "v" else 0.9) < drawn[name].std() / true[name].std() < 1.1
    shares = [np.bincount(column, minlength=3) / size for column in (drawn["g"], true["g"])]
    assert np.abs(shares[0] - shares[1]).max() < 0.03

    def correlations(found: Any) -> Any:
        return np.corrcoef(np.stack([found["x"], np.log(found["v"] + 0.05), found["g"]]))

    assert np.abs(correlations(drawn) - correlations(true)).max() < 0.12


def test_how_many_records_there_are_is_learnt() -> None:
    """A factor that is well known is drawn close to it; of one that is not known, draws spread around 1."""
    uniforms = jnp.linspace(0.005, 0.995, 100)
    drawn = jax.vmap(lambda u: pair_differences._number(jnp.float32(0.5), jnp.float32(0.01), jnp.float32(1), u))(
        uniforms
    )
    assert np.all(np.abs(drawn - 0.5) < 0.04)
    drawn = jax.vmap(lambda u: pair_differences._number(jnp.float32(5), jnp.float32(100), jnp.float32(1), u))(uniforms)
    assert 0.5 < np.median(drawn) < 2
    assert drawn[0] < 0.2


def test_what_the_records_show_of_their_covariates_is_taken_and_noise_is_not() -> None:
    """A E A' is F but for size where F is exact; where F is E with noise, A is nearly the identity."""
    rng, size = np.random.default_rng(4), 6
    root = np.eye(size) + 0.1 * rng.normal(size=(size, size))
    expected = jnp.asarray(root @ root.T, jnp.float32)
    turned = jnp.diag(jnp.asarray([1.3, 0.8, 1, 1, 1, 1], jnp.float32))
    noise = jnp.asarray(rng.normal(size=(size, size)), jnp.float32)

    def between(found: Any, std: float) -> Any:
        return pair_differences._between(found, expected, jnp.float32(std), jnp.float32(1), jnp.zeros((size, size)))

    other = turned @ expected @ turned
    a = between(3 * other, 1e-4)
    ratio = np.asarray(a @ expected @ a.T) / np.asarray(other)
    assert np.abs(ratio[np.abs(other) > 0.3] / ratio[0, 0] - 1).max() < 0.02
    assert np.abs(np.asarray(between(expected + 0.1 * noise, 0.1)) - np.eye(size)).max() < 0.1
    assert np.abs(np.asarray(a) - np.eye(size)).max() > 0.1


def test_the_quantile_of_norms_is_by_those_above_zero() -> None:
    norms = np.append(np.random.default_rng(5).exponential(size=1000), np.zeros(500)).astype(np.float32)
    found = float(pair_posterior._quantile(jnp.asarray(norms)))
    assert abs(found - np.quantile(norms[:1000], pair_posterior.QUANTILE)) < 0.02


@pytest.mark.parametrize("family", RESPONSES)
def test_numbers_have_a_clip_of_their_own_and_levels_have_not(family: str) -> None:
    """Along the first coordinate larger outcomes pull, along no other; a skewed error then biases little."""
    public = PairModel(*parts(family), placeholder(family), float(SIZE), 8)
    assert public.tilted == (family != "bernoulli")
    of_all = built(family)[1]
    state = jax.jit(public.coordinates)(of_all.posterior, of_all.table, KEY, jnp.float32(20))
    assert (float(state.clip[0]) > 0) == (family != "bernoulli")
    if public.tilted:
        rows = public.rows(of_all.table, KEYS[0], jnp.float32(0))
        outcomes, scores = jax.jit(public.simulated)(state.place, rows, KEYS[1])
        shown = public.reading.numbers(outcomes)[..., 0]
        apart = (scores[:, 0] - scores[:, 1]) @ state.whitening.T
        pull = np.mean(np.sign(shown[:, :1] - shown[:, 1:2]) * apart, 0)
        assert pull[0] ** 2 > 0.9 * np.sum(pull**2)


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    """Twenty fits by one program: of twenty 90% intervals for the slope, 13 or fewer in one of 420 right methods."""
    model, program = tacit.formula("y ~ x + g", schema("bernoulli"), "bernoulli"), None
    held, widths = 0, []
    for seed in range(20):
        table = records("bernoulli", seed)
        rows = {name: np.asarray(column, placeholder("bernoulli")[name].dtype) for name, column in table.items()}
        if program is None:
            data = tacit.PrivateData(rows, size=SIZE)
            method = pair_scores(model)(Plan(data.placeholder, SIZE))
            mechanism = tacit.calibrate(tacit.Budget(3.0, 1e-6), rate=1.0, steps=module.STEPS, clip=1.0)
            facts = {"run": "test", "kind": "fit", "title": "test", "simulation": True, "ledgers": [Ledger()]}
            program = Runner(method, data, mechanism, secret=random.fixed(0), key=KEY, **facts)
            begin, draws = jax.jit(method.init), jax.jit(jax.vmap(method.draw, (None, 0)))
        program._records = jax.tree.map(jnp.asarray, rows)
        program.rekey(random.fixed(seed))
        state = program.advance(jax.tree.map(jnp.asarray, begin(KEY)), 0, module.STEPS)
        low, high = np.quantile(draws(state, jax.random.split(KEY, 1000))["x"], [0.05, 0.95])
        held += low < 0.5 < high
        widths.append(high - low)
    assert held > 13
    assert np.median(widths) < 0.3


def counts(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event())
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(w[0] + w[1] * x, spread), obs=y)


def test_a_numpyro_model() -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, SIZE)
    facts = tacit.Schema({"x": {"low": -2, "high": 2}, "y": {"low": -10, "high": 10}})
    data = tacit.PrivateData({"x": x, "y": 0.5 - x + 0.7 * rng.normal(size=SIZE)}, facts, size=SIZE)
    method = pair_scores(counts, facts)
    posterior = tacit.fit(method, data, tacit.Budget(3.0, 1e-6), key=KEY, simulate=1, progress=False)
    centre = posterior.draws["w"].mean(0)
    assert np.abs(centre - np.array([0.5, -1.0])).max() < 0.25
    assert abs(posterior.draws["spread"].mean() - 0.7) < 0.15


def test_what_it_refuses() -> None:
    one = {"x": np.float32(0), "y": np.float32(0)}
    facts = tacit.Schema({"x": {"low": -2, "high": 2}, "y": {"low": -10, "high": 10}})

    def chain(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]):
            first = numpyro.sample("x", dist.Normal(w, 1), obs=x)
            numpyro.sample("y", dist.Normal(w * x + first, 1), obs=y)

    def factor(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.factor("y", w * x)

    with pytest.raises(ValueError, match="bounds and levels"):
        pair_scores(counts)
    with pytest.raises(ValueError, match="another outcome is drawn from it"):
        pair_scores(chain, facts)(Plan(one, 10))
    with pytest.raises(ValueError, match="factor"):
        pair_scores(factor, facts)(Plan(one, 10))
    with pytest.raises(ValueError, match="does not declare"):
        pair_scores(counts, tacit.Schema({"z": {"low": 0, "high": 1}}))(Plan(one, 10))
    with pytest.raises(ValueError, match="at least 7"):
        pair_scores(counts, facts)(Plan(one, 10, steps=6))
    with pytest.raises(ValueError, match="not declared"):
        pair_scores(counts, facts)(Plan(one))
    with pytest.raises(ValueError, match="draws at least two"):
        pair_scores(counts, facts, simulations=0)
    with pytest.raises(ValueError, match="has up to 3 records"):
        pair_scores(counts, facts)(Plan(one, 10, max_records=3))
