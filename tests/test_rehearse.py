"""Rehearsals: free, on made-up records inside their bounds, compiled once, and right where the answer is known."""

from __future__ import annotations

import importlib
import os
import pickle

import jax
import joblib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.engine.runner import Runner
from tacit.types import Model, Plan

from .means import SCHEMA, mean_of

BUDGET = tacit.Budget(1.0, 1e-6)
KEY = jax.random.key(0)
MODULE = importlib.import_module("tacit.run.rehearse")  # its name in the package is that of the function
FORM = tacit.Schema(
    {"x": {"low": -2, "high": 2}, "group": {"levels": ["a", "b", "c"]}, "y": {"levels": ["no", "yes"]}}, size=150
)


def model(x, group, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    level = numpyro.sample("level", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=slope * x + level[group]), obs=y)


@pytest.fixture(scope="module")
def method() -> tacit.Method:
    return tacit.vi(model)(Plan(FORM.placeholder()))


@pytest.fixture(scope="module")
def known() -> tacit.run.rehearsal.Rehearsal:
    return tacit.rehearse(mean_of(200), SCHEMA, BUDGET, epsilons=(0.3, 1), replicates=40, key=KEY)


def test_intervals_that_count_the_noise_are_found_to_cover(known: tacit.run.rehearsal.Rehearsal) -> None:
    # The posterior is exact, so that 40 intervals cover binomially: fewer than 29 has probability 0.001. The seed is
    # fixed.
    for row in known.rows:
        assert row.coverage.value >= 29 / 40
        assert row.public_coverage.value >= 29 / 40
        assert not row.narrow
    assert [row.budget.epsilon for row in known.rows] == [0.3, 1]
    assert known.best == {"budget": BUDGET}
    assert "covered" in known.chosen.verdict


@pytest.mark.parametrize(("size", "name"), [(20_000, "glm"), (30, "vi")])
def test_a_formula_is_rehearsed_by_the_method_and_the_recipe_of_the_fit(size: int, name: str) -> None:
    schema = tacit.Schema(FORM.columns)
    form = tacit.formula("y ~ x", schema, family="bernoulli")
    settings = {"steps": 12} if name == "glm" else {"steps": 30, "rate": 0.5}
    row = tacit.rehearse(form, schema, BUDGET, size=size, replicates=2, key=KEY, **settings).chosen
    records = {column: [0.0] * 9 if column == "x" else ["a"] * 9 for column in ("x", "group")} | {"y": ["no"] * 9}
    posterior = tacit.fit(form, tacit.PrivateData(records, schema, size=size), BUDGET, simulate=0, **settings)
    assert row.method == posterior.certificate.method == name
    assert row.mechanism == posterior.certificate.mechanism
    assert row.reason == posterior.reason


def test_widths_are_those_of_theory(known: tacit.run.rehearsal.Rehearsal) -> None:
    for row in known.rows:
        noise = tacit.calibrate(row.budget, rate=1.0, steps=2, clip=6.0).noise_std / np.sqrt(2)
        std = (1 + 200**2 / (200 + noise**2)) ** -0.5
        # Quantiles of 1000 draws vary by 4%, their mean over 40 replicates by 0.7%.
        assert row.width.value == pytest.approx(2 * 1.645 * std, rel=0.025)
        assert row.times_public.value == pytest.approx(std * np.sqrt(201), rel=0.03)
        assert row.log_likelihood_gap.value < 0


def test_intervals_that_ignore_the_noise_are_found_out() -> None:
    rehearsal = tacit.rehearse(mean_of(200, aware=False), SCHEMA, BUDGET, replicates=30, key=KEY)
    row = rehearsal.chosen
    # Coverage is 0.63 in theory; 30 of them above 0.9 - 2 errors has probability below 1e-3.
    assert row.narrow
    assert "too narrow" in row.verdict
    data = tacit.PrivateData({"y": np.zeros(200)}, SCHEMA)
    posterior = tacit.fit(mean_of(200, aware=False), data, **rehearsal.best, progress=False)
    assert "too narrow" in repr(posterior)


def test_nothing_is_charged_and_each_setting_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, charged = [], []
    begin, charge = Runner.__init__, tacit.Ledger.charge

    def counting(self, *args, **facts):
        opened.append(facts["simulation"])
        begin(self, *args, **facts)

    def watching(self, entry):
        charged.append((self.path, entry.simulation))
        return charge(self, entry)

    monkeypatch.setattr(Runner, "__init__", counting)
    monkeypatch.setattr(tacit.Ledger, "charge", watching)
    rehearsal = tacit.rehearse(mean_of(200), SCHEMA, BUDGET, clip=[3.0, 6.0], replicates=4, key=KEY)
    assert opened == [True, True]
    assert charged == [(None, True)] * 8  # in memory, and said to be a simulation
    assert {row.settings["clip"] for row in rehearsal.rows} == {3.0, 6.0}
    assert rehearsal.best["clip"] in (3.0, 6.0)
    assert str(rehearsal).startswith("Simulation")


def test_a_model_makes_up_records_inside_their_bounds(method: tacit.Method) -> None:
    stage = MODULE._Stage(method, FORM, 150, BUDGET, None, None)
    records, held_out, truth = stage.records(KEY)
    assert {name: len(column) for name, column in records.items()} == dict.fromkeys(FORM.columns, 150)
    assert len(held_out["x"]) == MODULE.HELD_OUT
    assert set(np.unique(records["group"])) == {0, 1, 2}
    assert set(np.unique(records["y"])) == {0, 1}
    assert np.abs(records["x"]).max() <= 2
    assert truth["level"].shape == (3,)
    # What is drawn outside its bounds is moved to them, as real records are.
    far = tacit.Schema({"y": {"low": -0.1, "high": 0.1}}, size=200)
    bounded, _, _ = MODULE._Stage(mean_of(200), far, 200, BUDGET, None, None).records(KEY)
    assert np.abs(bounded["y"]).max() <= np.float32(0.1)


@pytest.mark.slow
def test_the_rehearsal_of_a_model_feeds_its_fit(method, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "STEPS", 20)
    rehearsal = tacit.rehearse(method, FORM, BUDGET, steps=[10], rate=0.2, replicates=2, key=KEY)
    assert len(rehearsal.rows) == 1
    assert rehearsal.table().count("\n") == 2
    assert set(rehearsal.best) >= {"budget", "steps", "rate"}
    for row in rehearsal.rows:
        assert all(np.isfinite([number for pair in row[2:] for number in pair]))
    records = {"x": np.linspace(-2, 2, 150), "group": ["a"] * 150, "y": ["no", "yes"] * 75}
    settings = {**rehearsal.best, "warning": "Read with care."}
    posterior = tacit.fit(method, tacit.PrivateData(records, FORM), **settings, run_dir=tmp_path, progress=False)
    assert posterior.certificate.mechanism.steps == rehearsal.best["steps"]
    assert tacit.Posterior.load(tmp_path / "posterior.npz").warning == "Read with care."


def test_records_from_public_knowledge(method: tacit.Method) -> None:
    def inputs(key, size):
        return {"x": np.full(size, 5.0), "group": np.where(np.arange(size) < 5, "a", "c")}

    def whole(key, size):
        return {"x": np.zeros(size), "group": ["a"] * size, "y": ["yes"] * size}, {"slope": 0.0}

    stage = MODULE._Stage(method, FORM, 150, BUDGET, inputs, None)
    records, _, truth = stage.records(KEY)
    assert set(records["x"]) == {2.0}
    assert set(records["group"]) == {0, 2}
    assert set(truth) == {"slope", "level"}
    records, _, truth = MODULE._Stage(method, FORM, 150, BUDGET, whole, None).records(KEY)
    assert set(records["group"]) == {0}
    assert set(records["y"]) == {1}
    assert truth == {"slope": 0.0}
    with pytest.raises(ValueError, match=r"left out \['x'\]"):
        MODULE._Stage(method, FORM, 150, BUDGET, lambda key, size: {"group": ["a"] * size}, None).records(KEY)


def test_records_without_a_schema_and_methods_that_know_nothing() -> None:
    bare = mean_of(200)._replace(model=Model())
    with pytest.raises(ValueError, match="cannot make up records"):
        tacit.rehearse(bare, SCHEMA, BUDGET, replicates=2, key=KEY)
    with pytest.raises(ValueError, match="size=5000"):
        tacit.rehearse(bare, None, BUDGET, replicates=2, key=KEY)
    with pytest.raises(ValueError, match="Neither a schema"):
        tacit.rehearse(bare, None, BUDGET, size=200, replicates=2, key=KEY)

    def normal(key, size):
        return {"y": np.asarray(jax.random.normal(key, (size,)))}

    row = tacit.rehearse(bare, None, BUDGET, size=200, simulate=normal, replicates=2, key=KEY).chosen
    assert row.width.value > 0
    assert np.isnan([row.coverage.value, row.loss.value, row.log_likelihood_gap.value]).all()
    assert "cannot say" in row.verdict


@pytest.mark.parametrize("likelihood", ["bernoulli", "binomial", "negative-binomial"])
def test_regressions_on_statistics_make_up_records_too(likelihood: str) -> None:
    facts = {"x": {"low": -0.5, "high": 0.5, "shape": (3,)}, "y": {"low": 0, "high": 4, "kind": "integer"}}
    facts |= {"trials": {"low": 1, "high": 4, "kind": "integer"}} if likelihood == "binomial" else {}
    placeholder = tacit.Schema(facts).placeholder()
    method = tacit.logistic(likelihood, most=4.0)(Plan(placeholder))
    made, draw = method.model.simulate(KEY, jax.tree.map(lambda leaf: np.stack([leaf] * 50), placeholder))
    terms = jax.vmap(lambda record: method.model.log_likelihood(draw, record))(made)
    assert made["y"].dtype == np.int32
    assert np.isfinite(terms).all()
    assert (terms <= 0).all()


def test_a_stage_travels_to_another_process() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")  # what joblib's workers are sent things by
    # Not vi: here, where types are checked at run time, its functions are wrapped in what cannot travel.
    stage = MODULE._Stage(mean_of(200), SCHEMA, 200, BUDGET, None, None)
    here = stage.records(KEY)
    there = pickle.loads(cloudpickle.dumps(stage)).records(KEY)
    assert jax.tree.all(jax.tree.map(np.array_equal, here, there))


def test_other_workers_find_the_same() -> None:
    arguments = (mean_of(200), SCHEMA, BUDGET)
    alone = tacit.rehearse(*arguments, clip=[3.0, 6.0], replicates=3, key=KEY)
    with joblib.parallel_config(backend="threading", n_jobs=2):
        together = tacit.rehearse(*arguments, clip=[3.0, 6.0], replicates=3, key=KEY)
    assert alone == together


@pytest.mark.slow
def test_dask_finds_the_same() -> None:
    """On a cluster of two processes on this machine, by one context manager."""
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    arguments = (mean_of(200), SCHEMA, BUDGET)
    alone = tacit.rehearse(*arguments, clip=[3.0, 6.0], replicates=3, key=KEY)
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        places = client.run(os.getpid)
        assert os.getpid() not in places.values()
        assert len(places) == 2
        # As here, for the same bits; by import, since JAX's settings do not travel.
        client.run(lambda: __import__("jax").config.update("jax_disable_most_optimizations", True))
        with joblib.parallel_config(backend="dask"):
            together = tacit.rehearse(*arguments, clip=[3.0, 6.0], replicates=3, key=KEY)
    assert alone == together


def test_a_door_with_a_real_secret_takes_no_other_records(open_runner) -> None:
    data = tacit.PrivateData({"y": np.zeros(20, np.float32)})
    mechanism = tacit.Mechanism(1.0, 1.0, 1.0, 1)
    runner = open_runner(mean_of(20), data, mechanism, simulation=False)
    with pytest.raises(ValueError, match="Only a simulation"):
        runner.rehearse(data, jax.random.key(0), KEY)
    other = tacit.PrivateData({"y": np.zeros(21, np.float32)})
    with pytest.raises(ValueError, match="same number"):
        open_runner(mean_of(20), data, mechanism).rehearse(other, jax.random.key(0), KEY)


def test_the_plot_has_a_line_for_each_setting(known: tacit.run.rehearsal.Rehearsal) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = known.plot()
    assert len(ax.containers) == 1
    plt.close(ax.figure)
