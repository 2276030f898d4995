"""A table of mistakes: each is refused with a message that says what to write, before anything is spent.

Every row is given records that hold a canary, and a ledger. The message, and those of the errors behind it, must not
contain the canary, and the ledger must stay empty.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental import io_callback

import tacit
from tacit import Budget, Ledger, Mechanism, PrivateData, Schema, accounting, ask, calibrate, fit, fit_public, vi
from tacit.types import MethodFor, Plan, Requirement

CANARY = 73519.0
COUNT = 61
NAN, INF = float("nan"), float("inf")
AGE = {"low": 0, "high": 110}
LEVELS = {"levels": ["u", "v"]}


class World(NamedTuple):
    """What a mistake is made with."""

    x: np.ndarray
    y: np.ndarray
    data: PrivateData
    ledger: Ledger
    folder: Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    x = np.random.default_rng(0).normal(size=(COUNT, 2)).astype(np.float32)
    x[7, 1] = CANARY
    y = (x[:, 0] > 0).astype(np.int32)
    ledger = Ledger()
    return World(x, y, PrivateData({"x": x, "y": y}, ledger=ledger), ledger, tmp_path)


def logistic(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


def without_plate(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event())
    numpyro.sample("y", dist.Bernoulli(logits=x @ weight).to_event(1), obs=y)


def half_outside(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event())
    numpyro.sample("sum", dist.Normal(weight[0], 1), obs=x.sum())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


def factor_outside(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event())
    numpyro.factor("extra", (x @ weight).sum())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


def local_latent(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event())
    with numpyro.plate("records", x.shape[0]):
        intercept = numpyro.sample("own", dist.Normal(0, 1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight + intercept), obs=y)


def discrete_latent(x: Any, y: Any = None) -> None:
    sign = numpyro.sample("sign", dist.Bernoulli(0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x[:, 0] * (2 * sign - 1)), obs=y)


def prior_from_records(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(x.mean(0), 1).to_event())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


def nothing_observed(x: Any, y: Any = None) -> None:
    numpyro.sample("weight", dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        pass


def nothing_latent(x: Any, y: Any = None) -> None:
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x[:, 0]), obs=y)


def captured(world: World) -> Callable[..., None]:
    """Capture the records whole: the plate no longer follows the arguments."""
    held_x, held_y = jnp.asarray(world.x), jnp.asarray(world.y)
    return lambda x, y=None: logistic(held_x, held_y)


def captured_beside(world: World) -> Callable[..., None]:
    """Take the records as arguments, and hold a second copy that only the prior's mean sees."""
    held = jnp.asarray(world.x)

    def model(x: Any, y: Any = None) -> None:
        weight = numpyro.sample("weight", dist.Normal(held.mean(0), 1).to_event())
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)

    return model


def captured_likelihood(world: World) -> Callable[..., None]:
    held = jnp.asarray(world.x)

    def model(x: Any, y: Any = None) -> None:
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event())
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weight + (held @ weight).sum()), obs=y)

    return model


def sized(world: World) -> PrivateData:
    """Seal the records with their number declared: only that is compared with what a model holds."""
    return PrivateData({"x": world.x, "y": world.y}, size=len(world.y), ledger=world.ledger)


def run(world: World, model: Any = logistic, budget: Any = None, data: Any = None, **settings: Any) -> Any:
    settings = {"steps": 3, "simulate": 1, "progress": False, "key": jax.random.key(0)} | settings
    return fit(vi(model), world.data if data is None else data, budget or Budget(1.0, 1e-5), **settings)


def sum_of(world: World, clip: Any = 1.0, budget: Any = None, data: Any = None, **settings: Any) -> Any:
    budget = budget or Budget(1.0, 1e-5)
    return ask(data or world.data, lambda record: record["x"], budget, clip=clip, simulate=1, **settings)


def other_recipe(world: World, **settings: Any) -> Any:
    # The folder of a run that has been begun and has not looked yet.
    from tacit.run.folder import Facts, Run

    mechanism = calibrate(Budget(1.0, 1e-5), rate=0.1, steps=3, clip=2.0)
    facts = Facts(mechanism, Budget(1.0, 1e-5), 1)
    Run.begin(world.folder, facts, jax.random.key(0)).keep(facts)
    return run(world, run_dir=world.folder, rate=0.1, **({"clip": 2.0} | settings))


B = Budget(1.0, 1e-5)
Mistake = Callable[[World], Any]
TABLE: dict[str, tuple[Mistake, type[Exception], str]] = {}


def add(name: str, mistake: Mistake, says: str, kind: type[Exception] = ValueError) -> None:
    assert name not in TABLE
    TABLE[name] = (mistake, kind, says)


for bad in (-1.0, 0.0, NAN, INF):
    add(f"Budget epsilon {bad}", lambda w, v=bad: Budget(v, 1e-5), "epsilon must be a finite number above 0")
for bad in (1.0, 2.0, 0.0, -0.1, NAN):
    add(f"Budget delta {bad}", lambda w, v=bad: Budget(1.0, v), "delta must be above 0 and below 1")
    add(f"cost delta {bad}", lambda w, v=bad: Mechanism(0.1, 1.0, 1.0, 1).cost(v), "delta must be above 0")
    add(f"epsilon delta {bad}", lambda w, v=bad: tacit.accounting.epsilon(0.1, 1.0, 1, v), "delta must be above 0")
    add(f"spent delta {bad}", lambda w, v=bad: accounting.spent([(0.1, 1.0, 1)], v), "delta must be above 0")
for bad in (1.1, 0.0, -0.5, NAN, INF):
    add(f"Mechanism rate {bad}", lambda w, v=bad: Mechanism(v, 1.0, 1.0, 1), "rate must be above 0 and at most 1")
    add(f"calibrate rate {bad}", lambda w, v=bad: calibrate(B, rate=v, steps=1, clip=1.0), "rate must be above 0")
    add(f"fit rate {bad}", lambda w, v=bad: run(w, rate=v), "rate must be above 0")
    add(f"epsilon rate {bad}", lambda w, v=bad: tacit.accounting.epsilon(v, 1.0, 1, 1e-5), "rate must be above 0")
    add(f"advantage rate {bad}", lambda w, v=bad: tacit.accounting.advantage(v, 1.0, 1), "rate must be above 0")
    add(f"tpr rate {bad}", lambda w, v=bad: tacit.accounting.true_positive_rate(0.1, v, 1.0, 1), "rate must be above 0")
for bad in (0.0, -1.0, NAN, INF):
    add(f"Mechanism clip {bad}", lambda w, v=bad: Mechanism(0.1, v, 1.0, 1), "clip must be a finite number above 0")
    add(f"calibrate clip {bad}", lambda w, v=bad: calibrate(B, rate=0.1, steps=1, clip=v), "clip must be a finite")
    add(f"fit clip {bad}", lambda w, v=bad: run(w, clip=v), "clip must be a finite")
    add(f"ask clip {bad}", lambda w, v=bad: sum_of(w, clip=v), "clip must be a finite")
    add(f"Mechanism noise {bad}", lambda w, v=bad: Mechanism(0.1, 1.0, v, 1), "noise_multiplier must be a finite")
for bad in (0, -3):
    add(f"Mechanism steps {bad}", lambda w, v=bad: Mechanism(0.1, 1.0, 1.0, v), "steps must be at least 1")
    add(f"fit steps {bad}", lambda w, v=bad: run(w, steps=v), "steps must be at least 1")
for odd in (10.0, "10", True):
    add(f"Mechanism steps {odd!r}", lambda w, v=odd: Mechanism(0.1, 1.0, 1.0, v), "whole number", TypeError)
    add(f"fit steps {odd!r}", lambda w, v=odd: run(w, steps=v), "whole number", TypeError)
for odd in ("1", None, True):
    add(f"Budget epsilon {odd!r}", lambda w, v=odd: Budget(v, 1e-5), "must be a number", TypeError)
    add(f"ask clip {odd!r}", lambda w, v=odd: sum_of(w, clip=v), "must be a number", TypeError)
add("fpr", lambda w: tacit.accounting.true_positive_rate(1.5, 0.1, 1.0, 1), r"probabilities in \[0, 1\]")
add("adjacency", lambda w: run(w, adjacency="swap"), "adjacency='add-remove'")
add("ask adjacency", lambda w: sum_of(w, adjacency="swap"), "adjacency='add-remove'")

add("no bounds", lambda w: Schema({"age": {}}), "Column 'age' has no bounds")
add("half bounds", lambda w: Schema({"age": {"low": 0}}), "age")
add("bounds NaN", lambda w: Schema({"age": {"low": 0, "high": NAN}}), "age")
add(
    "missing column",
    lambda w: PrivateData({"a": w.x[:, 1]}, Schema({"b": {"low": 0, "high": 1}})),
    "declares the columns",
)
add(
    "extra column",
    lambda w: PrivateData({"a": w.x[:, 1], "b": w.y}, Schema({"a": {"low": 0, "high": 1}})),
    "declare them",
)
add("unequal length", lambda w: PrivateData({"x": w.x, "y": w.y[:-1]}, ledger=w.ledger), "Records of unequal length")
add("NaN without schema", lambda w: PrivateData(np.array([CANARY, NAN])), "missing or infinite values")
add("text", lambda w: PrivateData(np.array(["a", str(CANARY)])), "levels", TypeError)
add(
    "unknown level",
    lambda w: PrivateData({"a": [str(CANARY)]}, Schema({"a": {"levels": ["u", "v"]}})),
    "declared levels",
)
add("not sealed", lambda w: run(w, data={"x": w.x, "y": w.y}), "Only sealed records", TypeError)
add("ask not sealed", lambda w: sum_of(w, data={"x": w.x}), "Only sealed records", TypeError)
add("fit_public sealed", lambda w: fit_public(vi(logistic), w.data, key=jax.random.key(0)), "sealed records", TypeError)
add("budget a number", lambda w: run(w, budget=1.0), "tacit.Budget", TypeError)
add("ask budget a number", lambda w: sum_of(w, budget=1.0), "tacit.Budget", TypeError)
add("calibrate budget", lambda w: calibrate(1.0, rate=0.1, steps=1, clip=1.0), "Budget", TypeError)
add("unit", lambda w: run(w, budget=Budget(1.0, 1e-5, "patient")), "unit of the data")
add("ask unit", lambda w: sum_of(w, budget=Budget(1.0, 1e-5, "patient")), "unit of the data")

add("no plate", lambda w: run(w, without_plate), "no plate over records")
add("observed outside", lambda w: run(w, half_outside), "outside the plate over records")
add("factor outside", lambda w: run(w, factor_outside), "outside the plate over records")
add("record-local latent", lambda w: run(w, local_latent), "inside the plate over records")
add("discrete latent", lambda w: run(w, discrete_latent), "is discrete")
add("prior from records", lambda w: run(w, prior_from_records), "prior of the model.* is computed from the records")
add("nothing observed", lambda w: run(w, nothing_observed), "observes nothing|no plate over records")
add("nothing latent", lambda w: run(w, nothing_latent), "no latent site")
add("captured", lambda w: run(w, captured(w)), "no plate over records|captured")
add("captured beside", lambda w: run(w, captured_beside(w), data=sized(w)), "as records are declared")
add("captured in the likelihood", lambda w: run(w, captured_likelihood(w), data=sized(w)), "as records are declared")
add("captured by a question", lambda w: ask(sized(w), lambda r: jnp.asarray(w.x).sum(), B, clip=1.0), "as many rows")
add("weights, too many", lambda w: run(w, weights=(1.0, 2.0)), "block weights")
add("weights, negative", lambda w: run(w, weights=(-1.0,)), "weights must be numbers between")
add("contribution of nothing", lambda w: ask(w.data, lambda r: (), B, clip=1.0), "contribution is empty")
add("model fails", lambda w: run(w, lambda x, y: x["a"]), "does not run on")
add("wrong columns", lambda w: run(w, lambda age, sex: None), "does not run on")
add("run_dir, other steps", lambda w: other_recipe(w, steps=4), "another recipe")
add("run_dir, other clip", lambda w: other_recipe(w, clip=1.0), "another recipe")
add("run_dir, other key", lambda w: other_recipe(w, key=jax.random.key(1)), "another recipe")
add("run_dir, other budget", lambda w: other_recipe(w, budget=Budget(2.0, 1e-5)), "another recipe")


@pytest.mark.parametrize("name", TABLE)
def test_a_mistake_is_refused_in_words_and_costs_nothing(name: str, world: World) -> None:
    mistake, kind, says = TABLE[name]
    with pytest.raises(kind, match=says) as caught:
        mistake(world)
    assert caught.type in (ValueError, TypeError)
    error: BaseException | None = caught.value
    while error is not None:  # a traceback also prints the errors behind it
        assert str(int(CANARY)) not in str(error)
        error = error.__cause__ or error.__context__
    assert world.ledger.charges == ()


def test_the_same_calls_without_a_mistake_go_through(world: World) -> None:
    # So the rows above fail for the reason they name.
    posterior = run(world, rate=0.1, clip=2.0, run_dir=world.folder)
    assert posterior.draws["weight"].shape[1:] == (2,)
    assert len(world.ledger.charges) == 3
    assert np.isfinite(sum_of(world).value).all()
    assert len(world.ledger.charges) == 4


@pytest.mark.parametrize("way", ["print", "pure", "io"])
def test_a_model_that_calls_out_of_the_program_is_refused(world: World, way: str) -> None:
    """A call-back would hand real records to Python, past the wall."""

    def leak(x: Any, y: Any = None) -> None:
        seen = {
            "print": lambda: jax.debug.print("{}", x),
            "pure": lambda: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
            "io": lambda: io_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        }[way]()
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=(x if seen is None else seen) @ weight), obs=y)

    with pytest.raises(ValueError, match="calls out of the compiled program"):
        run(world, leak)
    assert len(world.ledger.charges) == 0


def test_a_need_that_calls_out_of_the_program_is_refused(world: World) -> None:
    """What a method needs of records is asked of every one of them, inside the wall."""

    def holds(record: Any) -> Any:
        jax.debug.print("{}", record["x"])
        return record["y"] >= 0

    def leaky(plan: Plan) -> tacit.Method:
        return vi(logistic)(plan)._replace(requirements=(Requirement("y must not be negative.", holds),))

    with pytest.raises(ValueError, match="needs calls out of the compiled program"):
        fit(MethodFor(leaky), world.data, Budget(1.0, 1e-5), progress=False)
    assert len(world.ledger.charges) == 0


def test_records_that_are_mixed_by_the_model_are_refused(world: World) -> None:
    def mixed(x: Any, y: Any = None) -> None:
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=(x - x.mean(0)) @ weight), obs=y)

    with pytest.raises(ValueError, match="depends on the other records"):
        run(world, mixed)
    assert len(world.ledger.charges) == 0


def test_a_cap_in_memory_binds_a_run_with_a_folder(tmp_path: Path) -> None:
    ledger = Ledger(cap=Budget(0.5, 1e-5))
    data = PrivateData({"x": np.zeros((60, 2), np.float32), "y": np.zeros(60, np.int32)}, ledger=ledger)
    with pytest.raises(tacit.BudgetExceeded):
        fit(vi(logistic), data, Budget(1.0, 1e-5), steps=3, run_dir=tmp_path / "run", progress=False)
    assert len(ledger.charges) == 0
    assert not (tmp_path / "run").exists()  # a refusal leaves nothing behind


@pytest.mark.parametrize("flags", ["--xla_cpu_enable_fast_math=true", "--a=b --xla_cpu_enable_fast_math"])
def test_fast_math_is_refused(world: World, monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(ValueError, match="fast math"):
        sum_of(world)
    assert len(world.ledger.charges) == 0
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert np.isfinite(sum_of(world).value).all()
