"""Shards: the law of the noise in shares, the same bits for any number of processes, and what a death leaves behind."""

from __future__ import annotations

import hashlib
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.interpolate import BSpline
from scipy.stats import chi2, norm

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.adapters import distribute
from tacit.engine import lattice, random, shards
from tacit.engine.repeat import best_of
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.types import Method
from tests import shards as script
from tests.conftest import quick_flags

SCRIPT = Path(script.__file__)


def run(processes: int, *arguments: object, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Start the script in several processes, with a time limit."""
    places = [str(Path(tacit.__file__).parents[1]), str(SCRIPT.parents[1])]
    # Compiled as in this process (conftest.py): the bits are compared.
    flags = f"{quick_flags()} --xla_force_host_platform_device_count={devices}"
    told = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "XLA_FLAGS": flags}
    told["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [
        sys.executable,
        "-m",
        "tacit.adapters.distribute",
        "-n",
        str(processes),
        str(SCRIPT),
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, env=told, timeout=300, check=False)


def said(done: subprocess.CompletedProcess[str], word: str) -> dict[int, str]:
    """Return what each process printed after a word."""
    return {int(process): what for process, what in re.findall(rf"{word} (\d) (\w+)", done.stdout)}


def test_a_death_stops_all_and_the_run_is_resumed(tmp_path: Path) -> None:
    """Two processes: the sums of one, a death in the middle, and the same command again."""
    killed = run(2, tmp_path, "kill")
    alone = hashlib.sha256(script.released().tobytes()).hexdigest()
    assert said(killed, "sums") == {0: alone, 1: alone}, killed.stderr
    assert killed.returncode != 0
    assert not said(killed, "fit")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    # Process 1 died before it read for the eleventh segment; the line was there, no state after it is.
    assert [(charge.first, charge.stop) for charge in ledger.charges] == [(i, i + 1) for i in range(11)]
    with np.load(tmp_path / "run" / "checkpoint.npz") as saved:
        assert int(saved["done"]) == 10
    assert not (tmp_path / "run" / "posterior.npz").exists()
    assert (tmp_path / "run" / "process-1" / "secret.key").stat().st_mode & 0o777 == 0o600
    resumed = run(2, tmp_path, "fit")
    found = said(resumed, "fit")
    assert len(found) == 2, resumed.stderr
    assert found[0] == found[1]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert sum(charge.steps for charge in ledger.charges) == 50, "what was paid for is not charged again"
    assert len({charge.tag for charge in ledger.charges}) == 1
    tacit.Certificate.load(tmp_path / "run" / "certificate.json").verify(ledger)
    assert not [*tmp_path.rglob("secret.key"), *tmp_path.rglob("checkpoint.npz")]


def test_the_launcher_sees_a_death_at_once(tmp_path: Path) -> None:
    """The other process would sleep for a minute."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\nos.environ['TACIT_PROCESS'] == '1' and os.kill(os.getpid(), 9)\ntime.sleep(60)\n"
    )
    began = time.monotonic()
    assert distribute.main(["-n", "2", str(script)]) == 1
    assert time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="Linux only")
def test_threads_that_wait_for_the_network_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in epoll gives way to those that compute, and may run on all cores; others stay as they are."""
    import select

    epoll, ready, told = select.epoll(), threading.Event(), []

    def wait() -> None:
        told.append(threading.get_native_id())
        ready.set()
        epoll.poll(30)

    waiting = threading.Thread(target=wait)
    waiting.start()
    ready.wait()
    end = time.monotonic() + 20
    while "epoll" not in Path(f"/proc/self/task/{told[0]}/wchan").read_text() and time.monotonic() < end:
        time.sleep(0.01)
    mine = os.sched_getscheduler(threading.get_native_id())
    try:
        monkeypatch.setenv(distribute.CORES, "0")
        distribute._set_network_aside()
        assert os.sched_getscheduler(told[0]) == mine, "with one core they take turns"
        cores = sorted(os.sched_getaffinity(0))
        monkeypatch.setenv(distribute.CORES, " ".join(map(str, cores)))
        distribute._set_network_aside()
        assert os.sched_getscheduler(told[0]) == (os.SCHED_BATCH if len(cores) > 1 else mine)
        assert os.sched_getaffinity(told[0]) == set(cores)
        assert os.sched_getscheduler(threading.get_native_id()) == mine
    finally:
        reader, writer = os.pipe()
        epoll.register(reader, select.EPOLLIN)
        os.write(writer, b"x")
        waiting.join()
        for one in (reader, writer):
            os.close(one)
        epoll.close()


def test_the_port_of_process_0_is_not_taken_by_a_connection() -> None:
    """Others may open connections while JAX is imported: their ports are from another range."""
    low = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(low.read_text().split()[0]) if low.exists() else 32768
    ports = {distribute._free_port() for _ in range(50)}
    assert max(ports) < first
    assert len(ports) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(4, 1), (1, 4), (2, 2)])
def test_any_number_of_processes_and_devices_gives_the_same_sums(tmp_path: Path, processes: int, devices: int) -> None:
    done = run(processes, tmp_path, "sums", devices=devices)
    alone = hashlib.sha256(script.released().tobytes()).hexdigest()
    assert said(done, "sums") == dict.fromkeys(range(processes), alone), done.stderr


@pytest.mark.slow
def test_a_lost_secret_is_charged_for(tmp_path: Path) -> None:
    """Process 1 comes back without its key: other noise, so what was under way is looked at and charged again."""
    run(2, tmp_path, "kill")
    (tmp_path / "run" / "process-1" / "secret.key").unlink()
    resumed = run(2, tmp_path, "fit")
    assert len(said(resumed, "fit")) == 2, resumed.stderr
    charges = Ledger(tmp_path / "ledger.jsonl").charges
    assert len({charge.tag for charge in charges}) == 2
    assert sum(charge.steps for charge in charges) == 51


@pytest.mark.parametrize("spread", [0.7, 2.0, 5.0])
@pytest.mark.parametrize("shares", [2, 3, 5])
def test_shares_add_up_to_a_rounded_gaussian_with_uniform_jitter(spread: float, shares: int) -> None:
    """The lemma of docs/proofs/distribute.md, with its bound, where the bound is large enough to be seen."""
    half = 12 * math.ceil(spread * math.sqrt(shares))
    places = np.arange(-half, half + 1)
    one = norm.cdf((places + 0.5) / spread) - norm.cdf((places - 0.5) / spread)
    law, reach = one, half
    for _ in range(shares - 1):
        law, reach = np.convolve(law, one), reach + half
    total = spread * math.sqrt(shares)
    seen = np.arange(-int(5 * total), int(5 * total) + 1)
    law = law[reach + seen]
    # Z + U_1 + ... + U_{shares-1}, rounded: the normal density averaged over a sum of as many uniforms as shares, whose
    # density is a spline with unit pieces; Gauss' rule is exact to 1e-12 on each.
    nodes, weights = np.polynomial.legendre.leggauss(30)
    edges = np.arange(shares + 1) - shares / 2
    at = (edges[:-1, None] + (nodes + 1) / 2).ravel()
    mass = np.tile(weights / 2, shares) * BSpline.basis_element(edges)(at)
    wanted = norm.pdf((seen[:, None] + at) / total) @ mass / total
    apart = abs(law / wanted - 1).max()
    theta = sum(math.exp(-(math.pi**2) * m**2 * spread**2) for m in range(1, 9))
    assert apart <= (1 + 2 * theta) ** (shares - 1) - 1 + 1e-9
    if spread == 0.7:
        # Without the jitter the law is another: the statement is not empty.
        plain = norm.cdf((seen + 0.5) / total) - norm.cdf((seen - 0.5) / total)
        assert abs(law / plain - 1).max() > 2 * apart


def counting(dimension: int) -> Method:
    """Contribute nothing, and keep the last release: noise alone."""
    return Method(
        init=lambda key: (jnp.zeros(dimension), jnp.zeros(())),
        contribute=lambda state, record, key: jnp.zeros(dimension) * record["x"][0],
        update=lambda state, release, key: (release.total, release.noise_std),
        draw=lambda state, key: {"total": state[0]},
    )


def test_the_noise_is_what_the_recipe_says(open_runner: Callable[..., Runner]) -> None:
    """20000 draws: their spread is beyond the limits once in a million; the key is fixed."""
    dimension, mechanism = 20000, Mechanism(0.3, 1.5, 2.0, 3)
    runner = open_runner(counting(dimension), tacit.distribute.seal(script.part, shards=4, size=160), mechanism)
    total, noise_std = runner.advance((jnp.zeros(dimension), jnp.zeros(())), 0, 2)
    wanted = mechanism.noise_multiplier * mechanism.clip
    assert wanted <= float(noise_std) <= wanted * (1 + 1e-4)
    radius = lattice.radius(2.0, 4)
    assert 2 * lattice.RHO / radius >= 2.0 > 2 * lattice.RHO / (radius + 1)
    low, high = chi2.ppf([5e-7, 1 - 5e-7], dimension) / dimension
    assert low < np.mean(np.square(total)) / wanted**2 < high
    # Four shares, four samplers: each is off by what the proofs say.
    alone = open_runner(counting(dimension), tacit.PrivateData(script.part(0), size=160), mechanism)
    assert runner.distance == 4 * alone.distance


@pytest.mark.slow
def test_shards_with_the_same_records_draw_on_their_own(open_runner: Callable[..., Runner]) -> None:
    data = tacit.distribute.seal(lambda _: script.part(1), shards=4, size=160)
    runner = open_runner(script.written(script.STEPS), data, script.MECHANISM)
    keys = jax.random.wrap_key_data(runner._stream[0], impl=random.CHACHA20)
    noise, subsets = zip(*(jax.jit(runner._step.draws.draw)(key, jnp.arange(2)) for key in keys), strict=True)
    for drawn in (noise, subsets):
        assert len({np.asarray(one).tobytes() for one in drawn}) == 4


@pytest.mark.parametrize("shard", [0, 3])
def test_removing_a_record_moves_the_sum_by_its_contribution(open_runner: Callable[..., Runner], shard: int) -> None:
    """The same keys with and without a record, at rate 1: the sums differ by one clipped contribution."""

    def without(i: int) -> dict[str, np.ndarray]:
        return {"x": script.part(i)["x"][(i == shard) :]}

    mechanism = Mechanism(1.0, 0.5, 1.0, 1)
    both = [
        open_runner(script.written(1), tacit.distribute.seal(load, shards=4, size=160), mechanism).advance(
            (jnp.int32(0), jnp.zeros((1, 3))), 0, 1
        )[1][0]
        for load in (script.part, without)
    ]
    mine = np.sin(3 * script.part(shard)["x"][0])
    clipped = mine * min(1, 0.5 / np.linalg.norm(mine))
    apart = np.asarray(both[0]) - np.asarray(both[1])
    assert np.linalg.norm(apart) <= 0.5 * (1 + 1e-5)
    np.testing.assert_allclose(apart, clipped, atol=1e-4)


def test_one_shard_with_outer_products_is_a_step_like_any_other(open_runner: Callable[..., Runner]) -> None:
    """There one limb would hold the sum, but what is added up over shards has two."""
    method = counting(1)._replace(
        init=lambda key: jnp.zeros((80, 60)),
        contribute=lambda state, record, key: jnp.outer(record[:80], record[80:]),
        update=lambda state, release, key: release.total,
    )
    records = np.random.default_rng(1).normal(size=(40, 140)).astype(np.float32)
    data = tacit.distribute.seal(lambda _: records, shards=1, size=40)
    runner = open_runner(method, data, tacit.Mechanism(1.0, 1.0, 0.05, 10))
    assert runner._step.contributions.factoring is not None
    assert runner._step.contributions.factoring.narrow
    found = np.asarray(runner.advance(jnp.zeros((80, 60)), 0, 1))
    scaled = (
        records / np.sqrt(np.linalg.norm(records[:, :80], axis=1) * np.linalg.norm(records[:, 80:], axis=1))[:, None]
    )
    # Noise has a standard deviation of 0.05; seven of them in none of 4800 numbers: false alarms below 2e-8.
    assert np.abs(found - scaled[:, :80].T @ scaled[:, 80:]).max() < 0.35 + 0.05


def test_masks_cancel_and_hide() -> None:
    """Three parties: each pair shares a key, one adds and the other takes off; sums to nothing modulo 2**32."""
    keys = {pair: np.frombuffer(os.urandom(32), "<u4") for pair in [(0, 1), (0, 2), (1, 2)]}
    parties = []
    for me in range(3):
        pads = np.zeros((1, 3, 9), np.uint32)
        for other in {0, 1, 2} - {me}:
            pads[0, other] = [1 if me < other else 0xFFFFFFFF, *keys[tuple(sorted((me, other)))]]
        parties.append(np.asarray(jax.jit(shards._mask, static_argnums=2)(pads, jnp.int32(5), 500)))
    assert not sum(parties[1:], parties[0]).any()
    for mask in parties:
        # 1000 uniform words: their mean is within 6 standard errors of the middle; else once in 10**9.
        assert abs(mask.mean() / 2**32 - 0.5) < 6 / math.sqrt(12 * mask.size)
        assert len(np.unique(mask)) > 990
    later = np.asarray(jax.jit(shards._mask, static_argnums=2)(pads, jnp.int32(6), 500))
    assert (later != parties[2]).mean() > 0.99, "every step has masks of its own"


def test_limbs_survive_the_sum_modulo_two_to_the_32() -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(-(2**44), 2**44, (8, 300))
    limbs = [
        shards._limbs([lattice.Sum(jnp.asarray(one >> 16, jnp.int32), jnp.asarray(one & 0xFFFF, jnp.int32))])
        for one in values
    ]
    mask = generator.integers(0, 2**32, (2, 300), dtype=np.uint32)
    total = shards._whole(*(sum(limbs[1:], limbs[0] + mask) - mask))
    assert np.array_equal(np.asarray(total.high, np.int64) * 65536 + np.asarray(total.low), values.sum(0))


@pytest.mark.parametrize("fine", [0, 3, 10, 16])
def test_adding_noise_commutes_with_rounding_to_whole_units(fine: int) -> None:
    generator = np.random.default_rng(fine)
    sums = generator.integers(-(2**40), 2**40, 500)
    noise = generator.integers(-(2 ** (30 - fine)), 2 ** (30 - fine), 500).astype(np.int32)
    total = lattice.Sum(jnp.asarray(sums >> 16, jnp.int32), jnp.asarray(sums & 0xFFFF, jnp.int32))
    before = lattice.coarsen(lattice.add(total, jnp.asarray(noise << fine)), fine)
    after = lattice.add(lattice.coarsen(total, fine), jnp.asarray(noise))
    assert all(np.array_equal(*both) for both in zip(before, after, strict=True))


def test_the_tag_is_made_of_all_shards(open_runner: Callable[..., Runner]) -> None:
    def runner(changed: int | None, seed: int = 1) -> Runner:
        def load(i: int) -> dict[str, np.ndarray]:
            return {"x": script.part(i)["x"] + np.float32(i == changed)}

        data = tacit.distribute.seal(load, shards=4, size=160)
        return open_runner(script.written(script.STEPS), data, script.MECHANISM, seed, simulation=False)

    same, again = runner(None), runner(None)
    assert same.tag == again.tag
    assert np.array_equal(same._stream[0], again._stream[0])
    for other in (runner(1), runner(3), runner(None, seed=2)):
        assert other.tag != same.tag
        # Every shard, not only the changed one, draws anew.
        assert (np.asarray(other._stream[0]) != np.asarray(same._stream[0])).any(1).all()


def test_nobody_reads_before_the_line_is_written(
    open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, order = Ledger(), []
    data = tacit.distribute.seal(script.part, shards=4, size=160)
    runner = open_runner(script.written(script.STEPS), data, script.MECHANISM, ledgers=[ledger])
    monkeypatch.setattr(shards, "wait", lambda what: order.append((what, len(ledger.charges))))
    monkeypatch.setattr(shards.InShards, "run", lambda *given: order.append(("run", len(ledger.charges))))
    runner.advance((jnp.int32(0), jnp.zeros((script.STEPS, 3))), 0, 1)
    assert order == [("charged 0", 1), ("run", 1)]


def test_other_programs_and_records_that_are_not_dealt_out_are_refused(
    open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="multiple"):
        tacit.distribute.seal(script.part, shards=0)
    data = tacit.distribute.seal(script.part, shards=4, size=160)
    assert data.shards == 4
    captured = jnp.ones((160, 3))  # as many as are declared
    leaky = script.written(script.STEPS)._replace(contribute=lambda state, record, key: record["x"] + captured.mean(0))
    with pytest.raises(ValueError, match="as many rows as records are declared"):
        open_runner(leaky, data, script.MECHANISM)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "gathered", lambda value: np.stack([value, value + 1]))
        with pytest.raises(ValueError, match="different models"):
            open_runner(script.written(script.STEPS), data, script.MECHANISM)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    sealed = tacit.PrivateData(script.part(0), size=50)
    with pytest.raises(ValueError, match=r"tacit\.distribute\.seal"):
        tacit.fit(script.written(1), sealed, tacit.Budget(1.0, 1e-6), rate=0.3, steps=5, clip=1.0, progress=False)


def test_a_selection_stays_in_one_process(open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    data = tacit.distribute.seal(script.part, shards=4, size=160)
    recipe = replace(script.MECHANISM, repeats=2.0)
    ledger = Ledger()
    runner = open_runner(script.written(script.STEPS), data, recipe, kind="select", ledgers=[ledger])
    monkeypatch.setattr(runner._programs, "processes", 2)
    with pytest.raises(ValueError, match="one process"):
        best_of([runner], [script.written(script.STEPS).init(jax.random.key(0))], lambda state: 0.0, seed=1)
    assert not ledger.charges


def test_what_a_curious_process_is_held_to() -> None:
    mechanism = Mechanism(0.1, 1.0, 2.0, 100)
    alone = [tacit.distribute.against_one(mechanism, 1e-6, processes) for processes in (2, 4, 1000)]
    assert alone == sorted(alone, reverse=True)
    assert alone[0] == Mechanism(0.1, 1.0, 2.0 * math.sqrt(0.5), 100).cost(1e-6)
    assert alone[2] == pytest.approx(mechanism.cost(1e-6), rel=1e-2)
    with pytest.raises(ValueError, match="two or more"):
        tacit.distribute.against_one(mechanism, 1e-6, 1)


def test_questions_and_units_go_through_shards() -> None:
    """A noisy count over four shards, of which two people's records are grouped; six standard deviations."""
    schema = tacit.Schema({"x": {"low": 0, "high": 1}}, unit="person", max_records=2, size=4)

    def load(i: int) -> dict[str, Any]:
        return {"x": [0.5, 1.0, 0.25], "person": [f"a{i}", f"b{i}", f"a{i}"]}

    data = tacit.distribute.seal(load, schema, shards=2)
    answer = tacit.ask(data, lambda record: record["x"], tacit.Budget(8.0, 1e-3, unit="person"), clip=1.0, simulate=1)
    assert abs(float(answer.value) - 3.5) < 6 * float(answer.noise_std)
