"""One battery over a table of all methods. A new method is one more row."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import biject_to
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from numpyro.infer.initialization import init_to_median

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine import lattice, random
from tacit.engine.memory import sum_over
from tacit.engine.runner import Runner, released
from tacit.ledger.file import Ledger
from tacit.methods.belief_net import belief_net
from tacit.methods.lda import lda
from tacit.methods.vi import vi
from tacit.run.public import fit_public
from tacit.testing import check_method
from tacit.types import Method, MethodFor, Plan, PyTree, Release
from tacit.wall.data import PrivateData
from tests.conftest import without_noise
from tests.privacy.test_neighbours import exact, square

KEY = jax.random.key(0)
COUNT = 12
STEPS = 7
MECHANISM = Mechanism(rate=0.5, clip=1.0, noise_multiplier=1.0, steps=STEPS)
TRACES = {"count": 0}


def logistic(x: Any, y: Any = None) -> None:
    TRACES["count"] += 1
    weight = numpyro.sample("weight", dist.Normal(0, 2).expand([x.shape[-1]]).to_event())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight, validate_args=False), obs=y)


def linear(x: Any, y: Any = None) -> None:
    TRACES["count"] += 1
    weight = numpyro.sample("weight", dist.Normal(0, 2).expand([x.shape[-1]]).to_event())
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weight, noise), obs=y)


def line(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 2).expand([2]).to_event())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=weight[0] + weight[1] * x, validate_args=False), obs=y)


def records(binary: bool, count: int = COUNT) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(count, 3)).astype(np.float32)
    y = x @ np.array([1.0, -1.0, 0.5], np.float32) + generator.normal(size=count).astype(np.float32)
    return {"x": x, "y": (y > 0).astype(np.int32) if binary else y}


class Row(NamedTuple):
    """A method, records it suits, and for ``vi`` what gives the textbook gradient of its objective."""

    make: Callable[..., MethodFor]
    records: dict[str, np.ndarray]
    model: Callable[..., None] | None = None
    guide: Any = None


def row(model: Callable[..., None], guide: Any, binary: bool) -> Row:
    return Row(lambda optimizer=None: vi(model, guide, optimizer), records(binary), model, guide)


def counted(method: MethodFor) -> MethodFor:
    """Count the traces of a method that has no model to count them in."""

    def build(plan: Plan) -> Method:
        built = method(plan)

        def contribute(*given: Any) -> PyTree:
            TRACES["count"] += 1
            return built.contribute(*given)

        return built._replace(contribute=contribute)

    return MethodFor(build)


def pixels(count: int = COUNT) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).integers(0, 2, (count, 5)).astype(np.float32)}


def clusters(count: int = COUNT) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    centre = np.where(generator.integers(0, 2, (count, 1)), 1.0, -1.0)
    return {"x": (centre + 0.7 * generator.normal(size=(count, 3))).astype(np.float32)}


def documents(count: int = COUNT) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(4)
    word = np.stack([generator.permutation(6)[:4] for _ in range(count)]).astype(np.int32)
    return {"word": word, "count": generator.integers(1, 4, word.shape).astype(np.float32)}


FACTS = tacit.Schema({"x": {"low": -2, "high": 2, "kind": "real"}, "y": {"levels": [0, 1]}})


def facts(count: int = COUNT) -> dict[str, np.ndarray]:
    made = records(True, count)
    return {"x": np.clip(made["x"][:, 0], -2, 2), "y": made["y"]}


def numbers(name: str) -> str:
    """Name the column of a row's records that holds real numbers."""
    return "x" if "x" in TABLE[name].records else "count"


class Small(eqx.Module):
    """A network of three inputs, two hidden units and one output."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self) -> None:
        keys = jax.random.split(KEY)
        self.first, self.second = eqx.nn.Linear(3, 2, key=keys[0]), eqx.nn.Linear(2, 1, key=keys[1])
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.second(self.dropout(jnp.tanh(self.first(x)), key=key))


def net() -> tacit.methods.networks.Network:
    return tacit.network(Small(), "bernoulli")


def on_network(method: Callable[..., MethodFor], **more: Any) -> Row:
    return Row(lambda: counted(method(net(), **more)), records(True))


TABLE = {
    "bayes_by_backprop, two hidden units": on_network(tacit.bayes_by_backprop, first_std=0.1),
    "dropout, two hidden units": on_network(tacit.dropout),
    "sgd, two hidden units": on_network(tacit.sgd),
    "sgld, two hidden units": on_network(tacit.sgld, step_size=0.1, thin=1),
    "belief_net, two hidden units": Row(lambda: counted(belief_net(2)), pixels()),
    "conjugate, mixture of two": Row(
        lambda: counted(tacit.conjugate(tacit.families.mixture(2, bound=3.0))), records(True)
    ),
    "lda, two topics": Row(lambda: counted(lda(2, 6)), documents()),
    "logistic, three columns": Row(lambda: counted(tacit.logistic(bound=3.0)), records(True)),
    "marginals, of one number and one category": Row(lambda: counted(tacit.marginals(FACTS, prior_std=1.0)), facts()),
    "glm, logistic regression": Row(lambda: counted(tacit.glm(prior_std=1.0)), records(True)),
    "glm, linear regression": Row(lambda: counted(tacit.glm("normal")), records(False)),
    "pair_scores, of a number": Row(lambda: counted(tacit.pair_scores(line, FACTS)), facts()),
    "pbp, four hidden units": Row(lambda: counted(tacit.pbp((4,))), records(False)),
    "sep, probit regression": Row(lambda: counted(tacit.sep(tacit.sites.probit())), records(True)),
    "sep, mixture of two": Row(lambda: counted(tacit.sep(tacit.sites.mixture(2, 0.5))), clusters()),
    "vi, logistic regression": row(logistic, AutoNormal, True),
    "vi, linear regression with unknown noise, full covariance": row(linear, AutoMultivariateNormal, False),
}
# Second rows of a method take as long as the first ones to compile; they run with the slow tests.
SECOND = (
    "dropout, two hidden units",
    "glm, linear regression",
    "sep, mixture of two",
    "vi, linear regression with unknown noise, full covariance",
)
ROWS = [pytest.param(name, marks=pytest.mark.slow) if name in SECOND else name for name in TABLE]
every = pytest.mark.parametrize("name", ROWS)
with_model = pytest.mark.parametrize("name", [one for one, row in zip(ROWS, TABLE.values(), strict=True) if row.model])


def plan(data: PrivateData) -> Plan:
    """Return the plan of the battery: for seven steps, and for as many records as the rows have."""
    return Plan(data.placeholder, COUNT, steps=STEPS)


class Opened(NamedTuple):
    method: Method
    data: PrivateData
    start: PyTree
    runner: Runner
    ledger: Ledger


@pytest.fixture(scope="module")
def opened(open_runner: Callable[..., Runner]) -> Callable[[str], Opened]:
    """Open one door for each row, compiled once for the whole battery."""
    cache: dict[str, Opened] = {}

    def get(name: str) -> Opened:
        if name not in cache:
            data, ledger = PrivateData(TABLE[name].records, size=COUNT), Ledger()
            method = TABLE[name].make()(plan(data))
            start = begin(method)
            cache[name] = Opened(method, data, start, open_runner(method, data, MECHANISM, ledgers=[ledger]), ledger)
        return cache[name]

    return get


def begin(method: Method) -> PyTree:
    """Return the start of a method, by the program that a door compiles too: the cache has it."""
    return jax.jit(lambda key: jax.tree.map(jnp.asarray, method.init(key)))(KEY)


def one_record(name: str, index: int = 0) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), TABLE[name].records)


def same_bits(one: PyTree, two: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def is_finite(state: PyTree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@every
def test_init_needs_no_data(name: str, opened: Callable[[str], Opened]) -> None:
    _, data, start, *_ = opened(name)
    # Made from the placeholder of another data set: the same bits, so no record and no count is in it.
    other = PrivateData(jax.tree.map(lambda leaf: 1 + leaf[:5], TABLE[name].records))
    again = begin(TABLE[name].make()(plan(other)))
    assert same_bits(start, again)
    assert is_finite(start)
    assert jax.tree.structure(data.placeholder) == jax.tree.structure(other.placeholder)


@every
def test_it_passes_what_an_author_s_own_method_must_pass(name: str) -> None:
    declared = {"sgd,": {"random_draws": False}, "marginals,": {"tolerance": np.inf}}.get(name.split(" ")[0], {})
    assert check_method(TABLE[name].make(), TABLE[name].records, **declared).passed


@every
def test_a_release_has_the_shape_of_a_contribution(name: str, opened: Callable[[str], Opened]) -> None:
    method, _, start, runner, _ = opened(name)
    step = runner._step
    contribution = jax.eval_shape(method.contribution, start, one_record(name), KEY, KEY)
    contribution = released(contribution)  # sparse leaves are released as whole tables
    release = step.release(step.blocks.zero())
    for part in (release.total, release.full):
        assert jax.tree.map(lambda leaf: leaf.shape, part) == jax.tree.map(lambda leaf: leaf.shape, contribution)
    assert jax.tree.structure(release.noise_std) == jax.tree.structure(contribution)
    # An update keeps shapes and types, so that steps can follow one another in one program.
    after = jax.eval_shape(method.update, start, release, KEY)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), start
    )
    assert is_finite(jax.jit(method.draw)(start, KEY))


@every
def test_no_retrace_after_the_door_is_open(name: str, opened: Callable[[str], Opened]) -> None:
    _, _, start, runner, _ = opened(name)
    before = TRACES["count"]
    assert before > 0
    for first, stop in ((0, 2), (2, 5), (5, 7)):
        start = runner.advance(start, first, stop)
    assert TRACES["count"] == before


@every
def test_splitting_segments_changes_no_bit(name: str, opened: Callable[[str], Opened]) -> None:
    _, _, start, runner, ledger = opened(name)
    whole = runner.advance(start, 0, STEPS)
    for cuts in ((0, 3, STEPS), (0, 1, 2, STEPS), tuple(range(STEPS + 1))):
        state = start
        for first, stop in itertools.pairwise(cuts):
            state = runner.advance(state, first, stop)
        assert same_bits(state, whole)
    assert not same_bits(start, whole)
    assert sum(charge.stop - charge.first for charge in ledger.charges) == STEPS  # replays were free


@every
def test_a_record_that_is_not_finite_leaves_a_finite_state(name: str, opened: Callable[[str], Opened]) -> None:
    _, _, start, runner, _ = opened(name)
    honest, column = runner._programs.storage.arrays, numbers(name)
    try:
        for bad in (np.nan, np.inf, 3e38):
            runner._programs.storage.arrays = {**honest, column: honest[column].at[3].set(bad)}
            assert is_finite(runner.advance(start, 0, STEPS))
        runner._programs.storage.arrays = {**honest, column: jnp.full_like(honest[column], jnp.nan)}
        everyone = runner.advance(start, 0, STEPS)
        assert is_finite(everyone)
        assert not same_bits(everyone, start)  # the noise came all the same
    finally:
        runner._programs.storage.arrays = honest


def told_of_no_noise(method: Method) -> Method:
    """Let a method that takes account of the noise know that the test took it out."""

    def update(state: PyTree, release: Release, key: Any) -> PyTree:
        nothing = jax.tree.map(jnp.zeros_like, release.noise_std)
        return method.update(state, release._replace(noise_std=nothing), key)

    return method._replace(update=update)


@every
def test_without_sampling_clip_and_noise_it_is_the_textbook_algorithm(
    name: str, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The wall's noise cannot be turned off, so the test takes it out; the clip is far above all contributions.
    monkeypatch.setattr(lattice, "noise", without_noise)
    data = PrivateData(TABLE[name].records, size=COUNT)
    method = told_of_no_noise(TABLE[name].make()(plan(data)))
    start = begin(method)
    end = open_runner(method, data, Mechanism(1.0, 1000.0, 0.04, STEPS)).advance(start, 0, STEPS)
    private = jax.jit(jax.vmap(method.draw, (None, 0)))(end, jax.random.split(jax.random.fold_in(KEY, STEPS), 1000))
    public = fit_public(TABLE[name].make(), TABLE[name].records, steps=STEPS, key=KEY)
    for site, draws in public.draws.items():
        if name.startswith("marginals,"):
            # A chain's accepted moves turn on the last bits. Of means of 500 draws, most of them independent, a quarter
            # of a standard deviation is about four standard errors, in 15 numbers: a false alarm in 1000.
            assert (np.abs(private[site].mean(0) - draws.mean(0)) < 0.25 * draws.std(0)).all()
            continue
        if name.startswith("pair_scores,"):
            # Records draw outcomes by other keys here and there: the posterior moves by a part of its width.
            assert (np.abs(private[site].mean(0) - draws.mean(0)) < draws.std(0)).all()
            assert (np.abs(np.log(private[site].std(0) / draws.std(0))) < 0.7).all()
            continue
        np.testing.assert_allclose(private[site], draws, rtol=2e-3, atol=2e-3)
        assert name.startswith("sgd,") or np.abs(draws - draws.mean(0)).max() > 0.05  # sgd finds one point


@with_model
def test_one_step_is_a_step_along_the_gradient_of_numpyros_own_elbo(name: str) -> None:
    case = TABLE[name]
    placeholder = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), case.records)
    method = case.make(optax.sgd(1.0))(Plan(placeholder))  # type: ignore[operator]
    state = method.init(KEY)
    elbo_key = jax.random.key(11)
    key = jax.random.split(elbo_key)[1]  # what Trace_ELBO hands to the guide
    each = jax.vmap(lambda record: method.contribute(state, record, key))(jax.tree.map(jnp.asarray, case.records))
    total = jax.tree.map(lambda leaf: leaf.sum(0), each)
    after = method.update(state, Release(total, total, jnp.float32(1), total), key)

    guide = case.guide(case.model, init_loc_fn=init_to_median)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, KEY)).get_trace(**case.records)
    transforms = {
        site: biject_to(facts["kwargs"]["constraint"]) if "constraint" in facts["kwargs"] else lambda value: value
        for site, facts in trace.items()
        if facts["type"] == "param"
    }

    def textbook(params: dict[str, Any]) -> Any:
        values = {site: transforms[site](value) for site, value in params.items()}
        return Trace_ELBO().loss(elbo_key, values, case.model, guide, **case.records)

    gradient = jax.grad(textbook)(state.params)
    assert set(gradient) == set(state.params)
    for site, before in state.params.items():
        np.testing.assert_allclose(before - after.params[site], gradient[site], rtol=1e-3, atol=1e-3)
    assert max(float(jnp.abs(value).max()) for value in gradient.values()) > 0.1


@every
def test_neighbours_never_exceed_the_stated_sensitivity(name: str, opened: Callable[[str], Opened]) -> None:
    method, _, start, runner, _ = opened(name)
    step = runner._step
    secret = random.fold_in(random.fixed(3), jnp.arange(step.sizes.chunk)) if method.per_record_key else None
    program = jax.jit(lambda state, rows, key: step.contributions.integers(state, rows, key, secret))
    generator = np.random.default_rng(2)
    for scale in (1e-3, 1.0, 1e6, 1e30):
        # By exactness of the sum, removing a record moves it by that record's own integers.
        given, wild = TABLE[name].records, numbers(name)
        x = (scale * generator.standard_cauchy((step.sizes.chunk, *given[wild].shape[1:]))).astype(np.float32)
        x = (x > 0).astype(np.float32) if name.startswith("belief_net") and scale == 1.0 else x  # others count 0
        others = {
            column: generator.integers(0, 2, (step.sizes.chunk, *given[column].shape[1:])).astype(given[column].dtype)
            for column in set(given) - {wild}
        }
        state = start
        if hasattr(start, "params"):
            state = start._replace(params=jax.tree.map(lambda v: v + generator.normal(0, 2, v.shape), start.params))
        rows = np.asarray(program(state, {wild: x, **others}, KEY))
        longest = max(sum(int(k) ** 2 for k in row) for row in rows)
        assert 0 <= longest <= step.radius**2
        assert scale != 1.0 or longest > 0.5 * step.radius**2
        # And they do not depend on its place among the others, nor on the others.
        order = generator.permutation(step.sizes.chunk)
        moved = {column: values[order] for column, values in others.items()}
        assert np.array_equal(program(state, {wild: x[order], **moved}, KEY), rows[order])
        alone = program(
            state,
            {wild: np.where((np.arange(step.sizes.chunk) == 5).reshape(-1, *[1] * (x.ndim - 1)), x, 0), **others},
            KEY,
        )
        assert np.array_equal(alone[5], rows[5])


@every
def test_removing_a_record_moves_the_sum_of_any_method_by_its_own_integers(
    name: str, opened: Callable[[str], Opened]
) -> None:
    """The same randomness, one record out of the subset and its values overwritten: the rest cancels exactly."""
    method, data, start, runner, _ = opened(name)
    step, record_key = runner._step, random.fixed(4) if method.per_record_key else None
    program = jax.jit(lambda records, subset: sum_over(step, start, records, subset, jnp.int32(0), KEY, record_key))
    column, generator = numbers(name), np.random.default_rng(6)
    records = jax.tree.map(np.asarray, data._records)
    wild = {**records, column: (10.0 ** generator.uniform(-3, 6) * records[column]).astype(records[column].dtype)}

    def total(given: PyTree, subset: list[int]) -> list[int]:
        positions = np.full((1, step.sizes.chunk), COUNT, np.int32)
        positions[0, : len(subset)] = subset
        return exact(program(given, positions))

    furthest = 0
    for given in (records, wild):
        whole = total(given, list(range(COUNT)))
        for gone in (0, 5, COUNT - 1):
            # Own keys go with the places in a subset: there the last record is the one to go.
            gone = COUNT - 1 if method.per_record_key else gone
            spoilt = {**given, column: np.concatenate([given[column][:gone], np.full_like(given[column][:1], 1e30)])}
            spoilt[column] = np.concatenate([spoilt[column], given[column][gone + 1 :]])
            left = [i for i in range(COUNT) if i != gone]
            moved = square(whole, total(spoilt, left))
            assert moved <= step.radius**2
            assert (
                whole == [a + b for a, b in zip(total(spoilt, left), total(given, [gone]), strict=True)]
                or method.per_record_key
            )
            furthest = max(furthest, moved)
    assert furthest > 0.25 * step.radius**2


def test_every_public_method_has_a_row() -> None:
    methods = {
        name for name in tacit.__all__ if getattr(getattr(tacit, name), "__module__", "").startswith("tacit.methods")
    }
    assert methods - {"network"} == {name.split(",")[0] for name in TABLE}  # what methods on networks take
