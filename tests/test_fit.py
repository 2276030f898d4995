"""The host loop: defaults, resume after any kill, no noise used twice, budgets kept."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.engine import random as secret_random
from tacit.ledger.file import Ledger, LedgerError
from tacit.run.folder import Facts, Run
from tacit.types import MethodFor, Plan, Suggestions
from tests.conftest import quick_flags

BUDGET = tacit.Budget(1.0, 1e-6)
SETTINGS = {"rate": 0.2, "steps": 30, "clip": 2.0, "progress": False, "key": jax.random.key(0)}


def records(count=200, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 2)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def same(one, other):
    return all(np.array_equal(one.draws[name], other.draws[name]) for name in one.draws)


ONES = np.ones(64, np.float32)


def counting_method(held=ONES):
    """Contribute the mean of an array, 1, for each record and keep every released total."""
    held = jnp.asarray(held)

    def update(state, release, key):
        totals, step = state
        return totals.at[step].set(release.total), step + 1

    return tacit.Method(
        init=lambda key: (jnp.zeros(30), jnp.int32(0)),
        contribute=lambda state, record, key: jnp.mean(held),
        update=update,
        draw=lambda state, key: {"totals": state[0]},
    )


def test_three_arguments_suffice(capsys):
    posterior = tacit.fit(tacit.vi(model), tacit.PrivateData(records(400)), BUDGET, steps=5)
    assert posterior.draws["w"].shape == (1000, 2)
    assert not posterior.certificate.simulation
    assert 0.98 <= posterior.certificate.epsilon <= 1.0
    assert "epsilon" in capsys.readouterr().err


def test_certificate_holds_what_was_looked_at():
    data = tacit.PrivateData(records(), ledger=Ledger())
    posterior = tacit.fit(tacit.vi(model), data, BUDGET, **SETTINGS)
    certificate = posterior.certificate
    certificate.verify(data.ledger)
    assert certificate.mechanism.steps == 30
    assert 0.98 <= certificate.epsilon <= BUDGET.epsilon
    assert 0 < certificate.slack < BUDGET.delta * 2**-20
    assert [(charge.first, charge.stop) for charge in data.ledger.charges] == [(i, i + 1) for i in range(30)]


def test_a_fresh_run_has_fresh_noise_and_a_simulation_says_so():
    data = tacit.PrivateData(records())
    one, other = (tacit.fit(counting_method(), data, BUDGET, **SETTINGS) for _ in range(2))
    assert not same(one, other)
    first, second = (tacit.fit(counting_method(), data, BUDGET, simulate=3, **SETTINGS) for _ in range(2))
    assert same(first, second)
    assert first.certificate.simulation


def regression(count=2000):
    generator = np.random.default_rng(1)
    x = np.column_stack([np.ones(count), generator.normal(size=count)]).astype(np.float32)
    return {"x": x, "y": (generator.random(count) < 1 / (1 + np.exp(-(0.5 + 1.5 * x[:, 1])))).astype(np.int32)}


def test_a_method_is_built_for_the_steps_it_is_given():
    """The phases of ``glm`` are parts of its steps: with those of 40 in a run of 5 nothing would be averaged."""
    settings = {"key": jax.random.key(0), "simulate": 1, "progress": False}
    data = tacit.PrivateData(regression(), size=2000)
    budget = tacit.Budget(8.0, 1e-6)
    by_hand = tacit.glm()(Plan(data.placeholder, 2000, steps=5))
    planned = tacit.fit(by_hand, data, budget, steps=5, **settings)
    posterior = tacit.fit(tacit.glm(), data, budget, steps=5, **settings)
    assert posterior.certificate.mechanism == planned.certificate.mechanism
    assert posterior.certificate.mechanism.steps == 5
    assert same(planned, posterior)
    # Within five of its own deviations, which account for the noise; the seed is fixed.
    draws = posterior.draws["w"]
    assert np.all(np.abs(draws.mean(0) - [0.5, 1.5]) < 5 * draws.std(0))
    # Through a selection a candidate has the steps that the score leaves.
    settings.pop("progress")
    with pytest.raises(NotImplementedError, match="built for 18 steps"):
        tacit.select({"no method": MethodFor(refuse)}, data, budget, steps=20, repeats=0.5, rate=1.0, **settings)


def refuse(plan):
    raise NotImplementedError(f"built for {plan.steps} steps")


def test_no_number_is_said_twice():
    """A method that was built, or made with arguments of the release before, for other numbers is refused."""
    book = Ledger()
    data = tacit.PrivateData(regression(), size=2000, ledger=book)
    plan = Plan(data.placeholder, 2000)
    with pytest.warns(DeprecationWarning, match="size= of a method"):
        old_size = tacit.glm(size=1000)
    with pytest.warns(DeprecationWarning, match="steps= of a method"):
        old_steps = tacit.glm(steps=8)
    for method, settings, words in (
        (tacit.glm()(replace(plan, steps=7)), {"steps": 8}, "was built for 7 steps, and this run has 8"),
        (tacit.glm()(plan), {"steps": 8}, "was built for 40 steps"),
        (tacit.glm()(replace(plan, size=1000)), {}, "was built for 1000 records"),
        (old_size, {}, "size=1000 was given to glm"),
        (old_steps, {"steps": 9}, "steps=8 was given to glm"),
    ):
        with pytest.raises(ValueError, match=words):
            tacit.fit(method, data, BUDGET, progress=False, **settings)
    assert old_steps(plan).suggests.steps == old_steps(plan).for_steps == 8
    assert tacit.glm()(replace(plan, steps=9)).for_steps == 9
    assert book.charges == ()


def test_older_arguments_stay_for_a_release():
    """They are taken with a warning, and mean what they did."""
    net = tacit.network((lambda key: {"w": jnp.zeros(2)}, lambda weights, x: weights["w"] @ x), "bernoulli")
    plan = Plan(tacit.PrivateData(regression()).placeholder)
    for factory, arguments in (
        (tacit.glm, ()),
        (tacit.sep, (tacit.sites.probit(),)),
        (tacit.pbp, ((3,),)),
        (tacit.sgd, (net,)),
        (tacit.sgld, (net,)),
        (tacit.bayes_by_backprop, (net,)),
    ):
        with pytest.raises(ValueError, match=f"{factory.__name__} computes with the number of records"):
            factory(*arguments)(plan)
        assert factory(*arguments)(replace(plan, size=300)).for_size == 300
        with pytest.warns(DeprecationWarning, match="size= of a method"):
            old = factory(*arguments, size=300)
        assert old(plan).for_size == 300
        assert old(replace(plan, size=100, max_records=3)).for_size == 300
        with pytest.raises(ValueError, match="leave size out"):
            old(replace(plan, size=100))
    with pytest.warns(DeprecationWarning, match="built for a plan"):
        assert tacit.logistic()(plan.placeholder).suggests.steps == 5


def test_what_is_fitted_is_told_by_its_type():
    """Nothing is called to find out what it is, so that an error in a function is shown as it is."""
    data = tacit.PrivateData(regression(), size=2000)
    calls = []

    def broken(plan):
        calls.append(plan)
        return {}["a name that is not there"]

    with pytest.raises(KeyError, match="a name that is not there"):
        tacit.fit(MethodFor(broken), data, BUDGET, steps=9, clip=2.0, progress=False)
    assert len(calls) == 1
    assert (calls[0].size, calls[0].steps, calls[0].clip, calls[0].budget) == (2000, 9, 2.0, BUDGET)
    with pytest.raises(TypeError, match="returned a NoneType"):
        tacit.fit(MethodFor(lambda plan: None), data, BUDGET, progress=False)

    def bare(plan) -> tacit.Method:
        calls.append(plan)
        return counting_method()

    with pytest.raises(TypeError, match=r"tacit.MethodFor\(build\)"):
        tacit.fit(bare, data, BUDGET, progress=False)
    with pytest.raises(TypeError, match="fit was given a int"):
        tacit.fit(3, data, BUDGET, progress=False)
    assert len(calls) == 1
    posterior = tacit.fit(MethodFor(bare), data, BUDGET, steps=3, simulate=1, progress=False)
    assert posterior.certificate.mechanism.steps == 3


def test_settings_that_would_spoil_a_method_are_refused_before_anything_is_spent():
    book = Ledger()
    data = tacit.PrivateData(regression(), size=2000, ledger=book)
    key, method = jax.random.key(0), tacit.glm()
    for settings, words in (
        ({"steps": 4}, "at least 5"),
        ({"clip": 0.5}, "Leave clip out"),
        ({"clip": "adaptive"}, "Leave clip out"),
        ({"weights": (1.0, 2.0, 1.0)}, "Leave weights out"),
    ):
        with pytest.raises(ValueError, match=words):
            tacit.fit(method, data, BUDGET, key=key, progress=False, **settings)
        if "steps" not in settings:
            with pytest.raises(ValueError, match=words):
                tacit.select({"one": {"method": method, **settings}}, data, BUDGET, steps=20, key=key)
    chain = counting_method()._replace(min_steps=101)
    for act in (
        lambda: tacit.fit(chain, data, BUDGET, steps=100, progress=False),
        lambda: tacit.fit_public(chain, regression(), steps=100, key=key),
        lambda: tacit.select({"chain": chain}, data, BUDGET, steps=100, key=key),
    ):
        with pytest.raises(ValueError, match="nothing to draw from before step 101"):
            act()
    assert book.charges == ()
    assert tacit.fit(method, data, BUDGET, clip=1.5, simulate=1, key=key, progress=False).draws["w"].shape == (1000, 2)


def test_totals_are_unbiased_for_the_number_of_records():
    posterior = tacit.fit(counting_method(), tacit.PrivateData(records()), BUDGET, simulate=1, **SETTINGS)
    totals = posterior.draws["totals"][0]
    mechanism = posterior.certificate.mechanism
    spread = np.sqrt(mechanism.noise_std**2 + 200 * 0.2 * 0.8)
    # Mean of 30 normal-like totals: five standard errors, a false alarm below 1e-6; the seed is fixed.
    assert abs(totals.mean() - 200 * 0.2) < 5 * spread / np.sqrt(30)


def test_a_method_brings_block_weights_and_the_user_has_the_last_word():
    data = tacit.PrivateData(records(), size=200)
    settings = {**SETTINGS, "simulate": 1}
    method = counting_method()._replace(suggests=Suggestions(weights=(0.5,)))
    assert tacit.fit(method, data, BUDGET, **settings).certificate.mechanism.weights == (0.5,)
    assert tacit.fit(method, data, BUDGET, **settings, weights=(0.25,)).certificate.mechanism.weights == (0.25,)
    followed = tacit.fit(method, data, BUDGET, **{**settings, "clip": "adaptive"})
    assert followed.certificate.mechanism.weights == (0.5, 1.0)  # the adaptive clip asks for one number more
    assert tacit.fit(counting_method(), data, BUDGET, **settings).certificate.mechanism.weights is None


def test_ask_gives_a_count_and_charges_it():
    data = tacit.PrivateData(records(500), ledger=Ledger())
    answer = tacit.ask(data, lambda record: 1.0, tacit.Budget(2.0, 1e-6), clip=1.0, simulate=5)
    assert abs(float(answer.value) - 500) < 5 * float(answer.noise_std)
    assert len(data.ledger.charges) == 1
    assert answer.certificate.kind == "ask"
    answer.certificate.verify(data.ledger)
    both = tacit.ask(data, lambda record: (record["x"], record["y"]), tacit.Budget(2.0, 1e-6), clip=3.0, simulate=6)
    assert both.value[0].shape == (2,)
    assert both.value[1].shape == ()


def test_ask_clips_a_record_that_says_too_much():
    data = tacit.PrivateData(records(10))
    answer = tacit.ask(data, lambda record: 1e9, tacit.Budget(2.0, 1e-6), clip=1.0, simulate=5)
    assert abs(float(answer.value) - 10) < 5 * float(answer.noise_std)


def test_a_cap_refuses_the_run_before_anything_is_read(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", cap=tacit.Budget(1.5, 1e-6))
    data = tacit.PrivateData(records(), ledger=ledger)
    tacit.fit(tacit.vi(model), data, BUDGET, **SETTINGS)
    charged = len(ledger.charges)
    with pytest.raises(tacit.BudgetExceeded):
        tacit.fit(tacit.vi(model), data, BUDGET, **SETTINGS)
    with pytest.raises(tacit.BudgetExceeded):
        tacit.ask(data, lambda record: 1.0, BUDGET, clip=1.0)
    assert len(ledger.charges) == charged


def test_run_folder_keeps_no_secret_and_gives_the_posterior_again(tmp_path):
    data = tacit.PrivateData(records())
    posterior = tacit.fit(tacit.vi(model), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {
        "run.json",
        "anchor.json",
        "ledger.jsonl",
        "posterior.npz",
        "certificate.json",
        "certificate.md",
        "certificate.html",
    }
    lines = (tmp_path / "run" / "ledger.jsonl").read_text()
    again = tacit.fit(tacit.vi(model), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert same(posterior, again)
    assert (tmp_path / "run" / "ledger.jsonl").read_text() == lines
    assert again.certificate == posterior.certificate


def interrupted(tmp_path, monkeypatch, after, data, **changes):
    """Run until the given segment has been charged, then fail before its result is kept."""
    calls = []
    original = tacit.engine.runner.Runner.advance

    def advance(self, state, first, stop):
        state = original(self, state, first, stop)
        calls.append(first)
        if len(calls) > after:
            raise KeyboardInterrupt
        return state

    monkeypatch.setattr(tacit.engine.runner.Runner, "advance", advance)
    with pytest.raises(KeyboardInterrupt):
        tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **{**SETTINGS, **changes})
    monkeypatch.setattr(tacit.engine.runner.Runner, "advance", original)


def charges(tmp_path):
    return [(charge.first, charge.stop) for charge in Ledger(tmp_path / "run" / "ledger.jsonl").charges]


@pytest.mark.parametrize("after", [0, 7])
def test_an_interrupted_run_replays_for_free(tmp_path, monkeypatch, after):
    data = tacit.PrivateData(records())
    interrupted(tmp_path, monkeypatch, after, data)
    secret = (tmp_path / "run" / "secret.key").read_bytes()
    assert (tmp_path / "run" / "secret.key").stat().st_mode & 0o077 == 0
    resumed = tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert charges(tmp_path) == [(i, i + 1) for i in range(30)]
    assert resumed.certificate.mechanism.steps == 30
    monkeypatch.setattr(secret_random, "fresh", lambda: secret_random.from_bytes(secret))
    unbroken = tacit.fit(counting_method(), data, BUDGET, **SETTINGS)
    assert same(unbroken, resumed)


@pytest.mark.parametrize("after", [0, 7])
@pytest.mark.parametrize("change", ["data", "secret", "program", "array", "start", "checkpoint", "chain"])
def test_anything_changed_is_charged_again_under_new_noise(tmp_path, monkeypatch, after, change):
    data = tacit.PrivateData(records())
    method = counting_method()
    interrupted(tmp_path, monkeypatch, after, data)
    folder = tmp_path / "run"
    before = (folder / "secret.key").read_bytes()
    if change == "data":
        data = tacit.PrivateData(records(seed=1))
    elif change == "secret":
        (folder / "secret.key").unlink()
    elif change == "program":
        method = method._replace(contribute=lambda state, record, key: jnp.float32(1) + 0 * record["x"][0])
    elif change == "array":
        method = counting_method(np.where(np.arange(64) == 17, 1.001, 1).astype(np.float32))
    elif change == "start":
        method = method._replace(init=lambda key: (jnp.ones(30), jnp.int32(0)))
    elif after:
        with np.load(folder / "checkpoint.npz") as saved:
            arrays = dict(saved)
        name = "chain" if change == "chain" else "leaf0"
        arrays[name] = arrays[name] + np.ones_like(arrays[name])
        np.savez(folder / "checkpoint.npz", **arrays)
    else:  # no checkpoint before the first segment ends: one that the run did not write
        leaves = {"leaf0": np.ones(30, np.float32), "leaf1": np.int32(0)}
        nothing = np.zeros(0, np.uint8)
        np.savez(folder / "checkpoint.npz", **leaves, done=0, seal="", origin=nothing, chain=nothing)
    kept = []
    original = tacit.engine.runner.Runner.advance

    def advance(self, state, first, stop):
        if (folder / "secret.key").exists():
            kept.append((folder / "secret.key").read_bytes())
        return original(self, state, first, stop)

    monkeypatch.setattr(tacit.engine.runner.Runner, "advance", advance)
    resumed = tacit.fit(method, data, BUDGET, run_dir=folder, **SETTINGS)
    assert before not in kept
    assert charges(tmp_path).count((after, after + 1)) == 2
    assert resumed.certificate.mechanism.steps == 31
    assert resumed.certificate.epsilon > BUDGET.epsilon
    resumed.certificate.verify()


def test_a_checkpoint_goes_on_only_with_the_ledger_that_holds_its_steps(tmp_path, monkeypatch):
    interrupted(tmp_path, monkeypatch, 7, tacit.PrivateData(records()))
    other = Ledger(tmp_path / "other.jsonl")
    data = tacit.PrivateData(records(), ledger=other)
    with pytest.raises(LedgerError, match="is another one or lacks some of them"):
        tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    (tmp_path / "run" / "anchor.json").unlink()
    with pytest.raises(ValueError, match="this ledger does not hold"):
        tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert len(other.charges) == 0


def test_other_data_never_meet_the_same_noise_under_a_copied_secret(open_runner):
    """The difference of two releases under one secret key must not show the record by which the data differ."""
    mechanism = tacit.Mechanism(1.0, 2.0, 20.0, 30)
    totals = []
    for count in (200, 201):
        method = counting_method()
        runner = open_runner(method, tacit.PrivateData(records(201)["x"][:count]), mechanism, simulation=False)
        totals.append(np.asarray(runner.advance(method.init(jax.random.key(0)), 0, 30)[0]))
    # Independent noise of std 40 on either side: a difference within 1 of the exact one has probability 0.014 a step,
    # and more than 10 of 30 below 1e-12. The same noise would give 30.
    assert np.sum(np.abs(totals[1] - totals[0] - 1) < 1) <= 10


def test_a_secret_left_behind_by_a_kill_at_the_very_end_is_removed(tmp_path):
    data = tacit.PrivateData(records())
    tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    (tmp_path / "run" / "secret.key").write_bytes(bytes(32))
    tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run" / "secret.key").exists()


@pytest.mark.parametrize("planted", ["secret.key.partial", "secret.key"])
@pytest.mark.parametrize("kind", ["link", "link to nothing", "open file"])
def test_a_secret_is_written_to_no_file_that_somebody_planted(tmp_path, monkeypatch, planted, kind):
    folder, theirs = tmp_path / "run", tmp_path / "theirs"
    folder.mkdir()
    if kind == "open file":  # kept under another name, as whoever has it open keeps it
        theirs.touch(mode=0o666)
        os.link(theirs, folder / planted)
    else:
        if kind == "link":
            theirs.touch(mode=0o666)
        (folder / planted).symlink_to(theirs)
    interrupted(tmp_path, monkeypatch, 7, tacit.PrivateData(records()))
    ours = folder / "secret.key"
    assert not ours.is_symlink()
    assert ours.stat().st_mode & 0o777 == 0o600
    assert ours.stat().st_size == 32
    assert not theirs.exists() or theirs.read_bytes() == b""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows tells no permissions")
@pytest.mark.parametrize("kind", ["readable by others", "link", "owner"])
def test_a_secret_that_others_may_know_is_not_gone_on_with(tmp_path, monkeypatch, kind):
    data, secret = tacit.PrivateData(records()), tmp_path / "run" / "secret.key"
    interrupted(tmp_path, monkeypatch, 7, data)
    before = secret.read_bytes()
    if kind == "link":
        secret.rename(tmp_path / "theirs")
        secret.symlink_to(tmp_path / "theirs")
    elif kind == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: secret.stat().st_uid + 1)
        monkeypatch.setenv("XDG_STATE_HOME", os.devnull)  # where anchors are another's too
    else:
        secret.chmod(0o644)
    used = []
    original = tacit.engine.runner.Runner.rekey
    monkeypatch.setattr(
        tacit.engine.runner.Runner,
        "rekey",
        lambda self, key, origin=b"": (used.append(secret_random.to_bytes(key)), original(self, key, origin))[1],
    )
    tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert used
    assert before not in used
    assert charges(tmp_path).count((7, 8)) == 2


def test_what_a_kill_left_of_a_secret_is_removed(tmp_path, monkeypatch):
    data, left = tacit.PrivateData(records()), tmp_path / "run" / "secret.key.0123.partial"
    interrupted(tmp_path, monkeypatch, 7, data)
    left.write_bytes(bytes(32))
    tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert not left.exists()
    left.write_bytes(bytes(32))  # a kill at the very end
    tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS)
    assert not left.exists()


def test_an_epsilon_that_leaves_no_room_for_slack_is_refused_before_a_look():
    data = tacit.PrivateData(records())
    with pytest.raises(ValueError, match="numerical slack"):
        tacit.fit(counting_method(), data, tacit.Budget(60.0, 1e-9), **SETTINGS)
    assert len(data.ledger.charges) == 0


def test_a_run_does_not_show_its_secret():
    run = Run.begin(None, Facts(tacit.Mechanism(1.0, 1.0, 1.0, 1), BUDGET), None)
    assert repr(run) == f"<run {run.name}>"


def test_another_recipe_in_the_folder_is_refused(tmp_path, monkeypatch):
    data = tacit.PrivateData(records())
    interrupted(tmp_path, monkeypatch, 2, data)
    for changes in ({"steps": 31}, {"clip": 1.0}, {"key": jax.random.key(1)}, {"simulate": 1}):
        with pytest.raises(ValueError, match="another recipe"):
            tacit.fit(counting_method(), data, BUDGET, run_dir=tmp_path / "run", **{**SETTINGS, **changes})
    assert len(charges(tmp_path)) == 3


SCRIPT = """
import jax, sys
sys.path.insert(0, {folder!r})
from tests import test_fit as t
import tacit
data = tacit.PrivateData(t.records(2000))
tacit.fit(tacit.vi(t.model), data, t.BUDGET, rate=0.1, steps=400, clip=2.0, run_dir=sys.argv[1], progress=False,
          key=jax.random.key(0), simulate=7)
"""


@pytest.mark.parametrize("wanted", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_nothing(tmp_path, wanted):
    """SIGKILL at several moments, then resume: the bitwise same posterior, and every look in the ledger once."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parents[1])))
    folder = tmp_path / "run"
    command = [sys.executable, str(script), str(folder)]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": quick_flags()}
    moments = random.Random(0)
    kills = 0
    reached = set()
    while not (folder / "posterior.npz").exists() and kills < wanted:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        ledger = folder / "ledger.jsonl"
        lines = ledger.read_text().count("\n") if ledger.exists() else 0
        # Start-up is long and looks are quick: aim at the moments around the next few looks.
        target = lines + moments.randrange(1, 4)
        while process.poll() is None and (ledger.read_text().count("\n") if ledger.exists() else 0) < target:
            time.sleep(0.0005)
        time.sleep(moments.random() * 0.004)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        reached.add(ledger.read_text().count("\n"))
    assert kills == wanted
    assert len(reached) > wanted // 2
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    resumed = tacit.Posterior.load(folder / "posterior.npz")
    unbroken_folder = tmp_path / "unbroken"
    subprocess.run([sys.executable, str(script), str(unbroken_folder)], env=environment, check=True)
    assert same(resumed, tacit.Posterior.load(unbroken_folder / "posterior.npz"))
    charged = [(charge.first, charge.stop) for charge in Ledger(folder / "ledger.jsonl").charges]
    assert charged == [(i, i + 8) for i in range(0, 400, 8)]
    assert json.loads((folder / "run.json").read_text())["simulate"] == 7


def test_fit_public_takes_no_sealed_records():
    with pytest.raises(TypeError, match="does not take sealed"):
        tacit.fit_public(tacit.vi(model), tacit.PrivateData(records()), key=jax.random.key(0))
