"""Faults of the machine and of its owner, at three moments of a run.

Whatever happens: no look is lost, none is taken twice uncharged, no noise meets two states or two data sets, no
posterior is half written, and a refusal says what to do. ``python -m tests.test_faults`` runs the whole table and
writes tests/results/faults.md; the column "in the middle" runs with every commit. Kills by a real signal are in
test_fit.py and test_ledger.py; here the process "dies" by an exception that nothing catches.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit import Ledger, system
from tacit.engine import random as secret_random
from tacit.engine import runner as engine
from tacit.ledger import contents
from tacit.ledger.file import LedgerError
from tacit.run.folder import Run
from tests.conftest import with_constants_as_arguments

STEPS = 6
BUDGET = tacit.Budget(1.0, 1e-6)
SETTINGS = {"rate": 0.5, "steps": STEPS, "clip": 1.0, "progress": False, "key": jax.random.key(0)}
REFUSALS = (ValueError, LedgerError, OSError)
ADVICE = ("restore", "choose", "delete", "free some space", "make room", "wait until", "pass the path")
MOMENTS = ("before the first look", "in the middle", "before the posterior is written")
CANARY = 73519.25


class Crash(BaseException):
    """The process is gone: nothing after this happens."""


class World:
    """A run that is begun, dies and is taken up again, and everything it did to the records."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.copies = folder / "run", patch, folder / "copies"
        self.data = data(0)
        self.executed: list[tuple[str, bytes, int, str]] = []
        secrets = (hashlib.sha256(bytes([i])).digest() for i in itertools.count())
        patch.setattr(secret_random, "fresh", lambda: secret_random.from_bytes(next(secrets)))
        advance = engine.Runner._advance_within

        def spy(runner: engine.Runner, state: Any, first: int, stop: int) -> Any:
            met = digest((state, runner._programs.storage.arrays))
            self.executed += [
                (runner.tag, secret_random.to_bytes(runner._stream), step, met) for step in range(first, stop)
            ]
            assert stop == first + 1  # one step a segment, so the state is that of the step
            return advance(runner, state, first, stop)

        patch.setattr(engine.Runner, "_advance_within", spy)  # where the stream is that of the steps

    def file(self, name: str) -> Path:
        return self.folder / name

    def fit(self) -> tacit.Posterior:
        return tacit.fit(method(), self.data, BUDGET, run_dir=self.folder, **SETTINGS)

    def die(self, moment: str) -> None:
        with pytest.raises(Crash), dying(moment, self):
            self.fit()

    def keep(self, name: str) -> None:
        """Make the backup that a careful owner has."""
        shutil.copytree(self.folder, self.copies / name)

    def restore(self, name: str = "at the crash") -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.copies / name, self.folder)


def data(seed: int) -> tacit.PrivateData:
    x = np.random.default_rng(seed).normal(size=(40, 2)).astype(np.float32)
    x[3, 1] = CANARY
    return tacit.PrivateData(x)


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))).hexdigest()


def method() -> tacit.Method:
    """Release sums that depend on the state and on an array that the program holds, and keep them all."""
    held = jnp.linspace(0.5, 1.5, 64)
    return tacit.Method(
        init=lambda key: (jnp.zeros((STEPS, 2)), jnp.int32(0)),
        contribute=lambda state, record, key: jnp.sin(record + jnp.sum(state[0])) * jnp.mean(held),
        update=lambda state, release, key: (state[0].at[state[1]].set(release.total), state[1] + 1),
        draw=lambda state, key: {"totals": state[0]},
    )


@contextlib.contextmanager
def dying(moment: str, world: World) -> Iterator[None]:
    """Let the process die at a moment; backups are made after the second segment and at the crash."""
    run, save = Run, tacit.Posterior.save
    checkpoint, advance = run.checkpoint, engine.Runner.advance

    def first(*_: Any) -> Any:
        raise Crash

    def middle(self: Any, state: Any, done: int, runner: Any) -> None:
        if done == 4 and moment == MOMENTS[1]:
            raise Crash  # the look is on the ledger and was taken; what it gave is lost
        checkpoint(self, state, done, runner)
        if done == 2 and not (world.copies / "early").exists():
            world.keep("early")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "checkpoint", middle)
        if moment == MOMENTS[0]:
            patch.setattr(engine.Runner, "advance", first)
        if moment == MOMENTS[2]:
            patch.setattr(tacit.Posterior, "save", first)
        yield
    assert (run.checkpoint, engine.Runner.advance, tacit.Posterior.save) == (checkpoint, advance, save)


# --- the faults -----------------------------------------------------------------------------------------------


Environment = contextlib.AbstractContextManager[Any]


class Fault(NamedTuple):
    """What breaks between the crash and the resumption; what is broken while it resumes; what the owner then does."""

    happens: Callable[[World], Environment | None] = lambda world: None
    cure: Callable[[World], None] = lambda world: None


@contextlib.contextmanager
def failing(target: Any, name: str, code: int, when: Callable[..., bool]) -> Iterator[None]:
    original = getattr(target, name)

    def fails(*given: Any, **more: Any) -> Any:
        if when(*given):
            raise OSError(code, os.strerror(code))
        return original(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, fails)
        yield


def full_disk(world: World) -> Environment:
    """No byte more: neither for a line of the ledger nor for any other file."""
    stack = contextlib.ExitStack()
    stack.enter_context(failing(system, "write_at", errno.ENOSPC, lambda *_: True))
    stack.enter_context(failing(os, "fsync", errno.ENOSPC, lambda *_: True))
    return stack


def full_at_the_checkpoint(world: World) -> Environment:
    return failing(np, "savez", errno.ENOSPC, lambda *_: True)


def read_only_ledger(world: World) -> Environment:
    def writes(path: Any, flags: int, *_: Any) -> bool:
        return str(path).endswith("ledger.jsonl") and bool(flags & (os.O_RDWR | os.O_WRONLY))

    return failing(os, "open", errno.EROFS, writes)


def other_process(world: World) -> Environment:
    return system.locked_folder(world.folder)


def clock_backwards(world: World) -> None:
    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime(2001, 1, 1, tzinfo=tz)

    world.patch.setattr(contents, "datetime", Earlier)


def upgraded(world: World) -> None:
    found = engine.versions()
    world.patch.setattr(engine, "versions", lambda: {**found, "tacit": "99.0"})


def other_data(world: World) -> None:
    world.data = data(1)


def changed(world: World, name: str, change: Callable[[bytes], bytes]) -> None:
    if world.file(name).exists():
        world.file(name).write_bytes(change(world.file(name).read_bytes()))


def damage(name: str, change: Callable[[bytes], bytes]) -> Callable[[World], None]:
    return lambda world: changed(world, name, change)


def flipped(content: bytes) -> bytes:
    """Change one bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def last_line_torn(content: bytes) -> bytes:
    return content[:-20]


def lines_lost(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-2])


def gone(name: str) -> Callable[[World], None]:
    return lambda world: world.file(name).unlink(missing_ok=True)


def other_run(content: bytes) -> bytes:
    return json.dumps({**json.loads(content), "run": "another"}).encode()


def other_recipe(content: bytes) -> bytes:
    facts = json.loads(content)
    return json.dumps({**facts, "mechanism": {**facts["mechanism"], "steps": STEPS + 1}}).encode()


def older_checkpoint(world: World) -> None:
    if (world.copies / "early").exists():
        shutil.copy(world.copies / "early" / "checkpoint.npz", world.file("checkpoint.npz"))


def older_folder(world: World) -> None:
    if (world.copies / "early").exists():
        world.restore("early")


def other_data_and_no_checkpoint(world: World) -> None:
    """Other records, one step with them, killed again; and then the checkpoint is lost."""
    other_data(world)
    checkpoint = Run.checkpoint

    def once(self: Any, state: Any, done: int, runner: Any) -> None:
        checkpoint(self, state, done, runner)
        raise Crash

    def dead(*_: Any) -> None:
        raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "checkpoint", once)
        patch.setattr(tacit.Posterior, "save", dead)
        with pytest.raises(Crash):
            world.fit()
    gone("checkpoint.npz")(world)


def backup(world: World) -> None:
    world.restore()


def no_checkpoint(world: World) -> None:
    gone("checkpoint.npz")(world)


FAULTS = {
    "SIGKILL": Fault(),
    "disk full": Fault(full_disk),
    "disk full at a checkpoint or the posterior": Fault(full_at_the_checkpoint),
    "ledger read-only": Fault(read_only_ledger),
    "ledger: last line torn": Fault(damage("ledger.jsonl", last_line_torn), backup),
    "ledger: lines lost": Fault(damage("ledger.jsonl", lines_lost), backup),
    "ledger: one bit changed": Fault(damage("ledger.jsonl", flipped), backup),
    "ledger deleted": Fault(gone("ledger.jsonl"), backup),
    "checkpoint cut short": Fault(
        damage("checkpoint.npz", lambda content: content[: len(content) // 2]), no_checkpoint
    ),
    "checkpoint: one bit changed": Fault(damage("checkpoint.npz", flipped), no_checkpoint),
    "checkpoint deleted": Fault(no_checkpoint),
    "checkpoint of an earlier time": Fault(older_checkpoint),
    "whole folder of an earlier time": Fault(older_folder, backup),
    "secret deleted": Fault(gone("secret.key")),
    "secret cut short": Fault(damage("secret.key", lambda content: content[:7])),
    "secret: one bit changed": Fault(damage("secret.key", flipped)),
    "run.json cut short": Fault(damage("run.json", lambda content: content[:40]), backup),
    "run.json of another run": Fault(damage("run.json", other_run), backup),
    "run.json of another recipe": Fault(damage("run.json", other_recipe), backup),
    "another process in the folder": Fault(other_process),
    "clock goes backwards": Fault(clock_backwards),
    "records changed": Fault(other_data),
    "records changed, killed again, checkpoint lost": Fault(other_data_and_no_checkpoint),
    "package upgraded": Fault(upgraded),
}


class Unbroken(NamedTuple):
    """The same run without any fault: its draws, and the tag of its steps."""

    draws: dict[str, np.ndarray]
    tag: str


def reference() -> Unbroken:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), patch)
        return Unbroken(world.fit().draws, world.executed[0][0])


def outcome(fault: Fault, moment: str, folder: Path, unbroken: Unbroken) -> str:
    """Run one cell of the table, check all that is promised, and say what happened."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(folder, patch)
        world.die(moment)
        world.keep("at the crash")
        environment = fault.happens(world) or contextlib.nullcontext()
        refusal = None
        try:
            with environment:
                posterior = world.fit()
        except REFUSALS as error:
            refusal = str(error)
            assert any(word in refusal.lower() for word in ADVICE), refusal
            assert str(int(CANARY)) not in refusal
            assert not world.file("posterior.npz").exists()
            fault.cure(world)
            posterior = world.fit()
        ledger = Ledger(world.file("ledger.jsonl"))
        charges = ledger.charges
        # No look is lost: each step that was taken is on the ledger, under its tag.
        held = {(charge.tag, step) for charge in charges for step in range(charge.first, charge.stop)}
        assert {(tag, step) for tag, _, step, _ in world.executed} <= held
        # None is taken twice uncharged: a step's noise met one state and one data set.
        met: dict[tuple[bytes, int], set[str]] = {}
        for _, stream, step, what in world.executed:
            met.setdefault((stream, step), set()).add(what)
        assert all(len(states) == 1 for states in met.values())
        # The posterior is whole, and its certificate says what the ledger does.
        certificate = posterior.certificate
        assert certificate is not None
        certificate.verify(ledger)
        charged = sum(charge.steps for charge in charges)
        assert certificate.mechanism.steps == charged
        again = tacit.Posterior.load(world.file("posterior.npz"))
        assert all(np.array_equal(again.draws[name], posterior.draws[name]) for name in unbroken.draws)
        assert not any(
            path.suffix in (".key", ".partial") or "checkpoint" in path.name for path in world.folder.iterdir()
        )
        if {tag for tag, *_ in world.executed} == {unbroken.tag}:
            assert charged == STEPS
            assert all(np.array_equal(posterior.draws[name], draws) for name, draws in unbroken.draws.items())
            how = "same posterior, nothing charged again"
        elif charged == STEPS:
            how = "new noise, nothing charged again"
        else:
            how = f"{charged - STEPS} steps charged again, new noise"
        return how if refusal is None else f"refused; then {how}"


@pytest.fixture(scope="module")
def unbroken() -> Unbroken:
    return reference()


CELLS = [
    pytest.param(name, moment, marks=[] if moment == MOMENTS[1] else [pytest.mark.slow])
    for name in FAULTS
    for moment in MOMENTS
]


@pytest.mark.parametrize(("name", "moment"), CELLS)
def test_no_look_is_lost_or_free(name: str, moment: str, tmp_path: Path, unbroken: Unbroken) -> None:
    found = outcome(FAULTS[name], moment, tmp_path, unbroken)
    if moment == MOMENTS[1]:
        assert found == EXPECTED[name]


def test_replays_and_faults_where_constants_are_arguments() -> None:
    """Of the faults, those that the tag decides: what happens to the other files is the same without the flag."""
    fit = "tests/test_fit.py::test_"
    decisive = [f"{fit}an_interrupted_run_replays_for_free[7]"]
    decisive += [f"{fit}other_data_never_meet_the_same_noise_under_a_copied_secret"]
    decisive += [
        f"{fit}anything_changed_is_charged_again_under_new_noise[{change}-7]"
        for change in ("data", "secret", "program", "array", "start")
    ]
    told_by_the_tag = ("SIGKILL", "checkpoint deleted", "package upgraded")
    cells = [f"tests/test_faults.py::test_no_look_is_lost_or_free[{name}-{MOMENTS[1]}]" for name in told_by_the_tag]
    done = with_constants_as_arguments(*decisive, *cells, "-m", "not slow")
    assert done.returncode == 0, done.stdout[-3000:]


REPLAYED, REFUSED = "same posterior, nothing charged again", "refused; then same posterior, nothing charged again"
EXPECTED = {
    **dict.fromkeys(FAULTS, REPLAYED),
    **dict.fromkeys([name for name, fault in FAULTS.items() if fault.cure is not Fault().cure], REFUSED),
    **dict.fromkeys(("disk full", "disk full at a checkpoint or the posterior", "ledger read-only"), REFUSED),
    "another process in the folder": REFUSED,
    **dict.fromkeys(
        ("secret deleted", "secret cut short", "secret: one bit changed", "records changed", "package upgraded"),
        "1 steps charged again, new noise",
    ),
    "records changed, killed again, checkpoint lost": "5 steps charged again, new noise",
}


def test_a_damaged_posterior_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World(tmp_path, patch)
        world.fit()
        changed(world, "posterior.npz", lambda content: content[: len(content) // 2])
        with pytest.raises(ValueError, match="cannot be read"):
            world.fit()
        assert len(world.executed) == STEPS


def main() -> int:
    # One small program, compiled for every cell: quickly, and kept.
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
    lines = [f"| fault | {' | '.join(MOMENTS)} |", "|---|---|---|---|"]
    unbroken, failed = reference(), 0
    for name, fault in FAULTS.items():
        cells = []
        for moment in MOMENTS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    cells.append(outcome(fault, moment, Path(folder), unbroken))
                except AssertionError as error:
                    cells.append(f"**FAILED** {error}")
                    failed += 1
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "faults.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())
