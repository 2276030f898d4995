"""The folder of a run: who the run is, its checkpoints, and its results.

A run folder holds ``run.json`` (the public recipe), ``secret.key`` (only while the run is under way),
``checkpoint.npz`` (public state), ``ledger.jsonl`` unless the data brought a ledger, ``anchor.json`` (how far the
ledger went), and at the end ``posterior.npz`` and the certificate.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit import system
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.engine import random as secret_random
from tacit.engine import shards
from tacit.engine.runner import Runner
from tacit.ledger.anchors import RUN_ANCHOR
from tacit.ledger.file import Ledger
from tacit.ledger.lines import LedgerError
from tacit.results.numbers import UNREADABLE
from tacit.results.posterior import Posterior, write_npz
from tacit.types import Key, Method, State
from tacit.wall.data import PrivateData
from tacit.wall.reference import ReferenceRunner

WRITTEN = (
    *("secret.key", "run.json", "checkpoint.npz", "posterior.npz", RUN_ANCHOR),
    *("certificate.json", "certificate.md", "certificate.html"),
)
"""Files of a run's folder that are written whole: a kill leaves parts of them under other names."""


class Facts(NamedTuple):
    """What a run must be resumed with."""

    mechanism: Mechanism
    budget: Budget
    simulate: int | None = None
    engine: str = "fast"

    def to_dict(self) -> dict[str, Any]:
        """Return them as plain JSON values.

        Privacy: public.
        """
        facts = {"mechanism": self.mechanism.to_dict(), "budget": self.budget.to_dict(), "simulate": self.simulate}
        return facts if self.engine == "fast" else {**facts, "engine": self.engine}


class Run(NamedTuple):
    """The identity of a run, and its folder if it has one."""

    folder: Path | None
    name: str
    key: Key
    secret: Key
    simulation: bool

    def __repr__(self) -> str:
        return f"<run {self.name}>"  # a traceback that shows variables must not show the secret

    @classmethod
    def begin(cls, folder: Path | None, facts: Facts, key: Key | None) -> Run:
        """Start a run, or take up the one in the folder if it has the same recipe; nothing is written yet."""
        simulate = facts.simulate
        if folder is None or not (folder / "run.json").exists():
            key = jax.random.key(secrets.randbits(32)) if key is None else key
            secret = secret_random.fresh() if simulate is None else secret_random.fixed(simulate)
            return cls(folder, uuid.uuid4().hex, key, secret, simulate is not None)
        try:
            stored = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            name, public = stored.pop("run"), jnp.asarray(stored.pop("key"), jnp.uint32)
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(
                f"The file run.json in {folder} cannot be read, so it is unknown which run this is. Restore it from a "
                "copy, or choose another run_dir; a run begun anew is charged anew."
            ) from error
        if stored != facts.to_dict() or (key is not None and not np.array_equal(jax.random.key_data(key), public)):
            raise ValueError(
                f"The folder {folder} holds a run with another recipe, budget or key. Resuming it under these settings "
                "would certify something else; repeat its settings, or choose another run_dir."
            )
        kept = system.read_own(folder / "secret.key")
        if simulate is not None:
            secret = secret_random.fixed(simulate)
        elif kept is not None and len(kept) == secret_random.LENGTH:
            secret = secret_random.from_bytes(kept)
        else:
            # Without the old key, or with one that others may know, nothing can be replayed: what was under way is
            # looked at anew, and charged anew.
            secret = secret_random.fresh()
        return cls(folder, name, jax.random.wrap_key_data(public) if key is None else key, secret, simulate is not None)

    def keep(self, facts: Facts) -> None:
        """Write down who the run is, once nothing refuses it any more and before it looks at anything."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        secret_file, secret = self.folder / "secret.key", secret_random.to_bytes(self.secret)
        for name in WRITTEN:
            system.remove_partial(self.folder / name)
        if not self.simulation and system.read_own(secret_file) != secret:
            _write(secret_file, secret, mode=0o600)
        if not (self.folder / "run.json").exists():
            public = np.asarray(jax.random.key_data(self.key)).tolist()
            content = {"run": self.name, "key": public, **facts.to_dict()}
            _write(self.folder / "run.json", json.dumps(content).encode())

    def restore(self, start: State, runner: Runner | ReferenceRunner, ledger: Ledger) -> tuple[State, int]:
        """Return the last checkpoint, or the start; and make sure that no noise is used twice.

        A replay is free because it gives the same bits: same key, data, program and starting state. Where any of them
        changed, the old noise on a new sum would cancel in the difference of the two, so a new key is drawn, and what
        it is used for is charged.
        """
        found = self._checkpoint(start, ledger) if jax.process_index() == 0 else None
        if origin := shards.agreed_bytes(b"" if found is None else b"origin" + found[3]):
            runner.rekey(self.secret, origin.removeprefix(b"origin"))
            runner.resume_chain(shards.agreed_bytes(b"" if found is None else found[4]))
        leaves, structure = jax.tree.flatten(start)
        done, replays, origin = 0, True, b""
        if found is not None:
            leaves, done, seal, _, chain = found
            sealed = _content(leaves, done, chain)
            replays, origin = seal == runner.seal(sealed), hashlib.sha256(sealed).digest()
        elif charged := [charge.tag for charge in ledger.charges if charge.run == self.name]:
            replays = charged[-1] == runner.tag
        # What process 0 found is what all go on from.
        *leaves, done, replays = shards.agreed([*leaves, np.int32(done), np.bool_(replays)])
        origin = shards.agreed_bytes(origin)
        if not replays and not self.simulation:
            secret = secret_random.fresh()
            if self.folder:
                _write(self.folder / "secret.key", secret_random.to_bytes(secret), mode=0o600)
            runner.rekey(secret, origin)
        return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves]), int(done)

    def _checkpoint(self, start: State, ledger: Ledger) -> tuple[list[Any], int, str, bytes, bytes] | None:
        """Read the last checkpoint: its arrays, how many steps they took, its seal, its origin, its fingerprints."""
        file = self.folder and self.folder / "checkpoint.npz"
        if not file or not file.exists():
            return None
        try:
            with open(file, "rb") as raw, np.load(raw, allow_pickle=False) as saved:
                stored = [saved[f"leaf{i}"] for i in range(sum(name.startswith("leaf") for name in saved.files))]
                done, seal, origin = int(saved["done"]), str(saved["seal"]), saved["origin"].tobytes()
                chain = saved["chain"].tobytes() if "chain" in saved.files else b""  # an older version
        except UNREADABLE as error:
            raise ValueError(
                f"The checkpoint in {self.folder} cannot be read. Delete checkpoint.npz and repeat the call: the "
                "run then begins at its first step, and what it has paid for under its key is not charged again."
            ) from error
        if [(x.shape, x.dtype) for x in stored] != [(x.shape, x.dtype) for x in jax.tree.leaves(start)]:
            raise ValueError(
                f"The checkpoint in {self.folder} is of another model: its state has other shapes. "
                "Use the model it was started with, or choose another run_dir."
            )
        if not ledger.holds(self.name, done):
            raise ValueError(
                f"The checkpoint in {self.folder} has {done} steps that this ledger does not hold; a certificate "
                "would leave them out. Pass PrivateData the ledger that the run was begun with (without one it is "
                "the folder's own), or choose another run_dir."
            )
        return stored, done, seal, origin, chain

    def checkpoint(self, state: State, done: int, runner: Runner | ReferenceRunner) -> None:
        """Write the state, sealed with the secret: only a state of this very run is resumed under its key."""
        if self.folder is not None:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
            arrays = {f"leaf{i}": leaf for i, leaf in enumerate(leaves)}
            seal = np.asarray(runner.seal(_content(leaves, done, runner.chain)))
            origin, chain = (np.frombuffer(held, np.uint8) for held in (runner.origin, runner.chain))
            facts = {"done": np.asarray(done), "seal": seal, "origin": origin, "chain": chain}
            write_npz(self.folder / "checkpoint.npz", {**arrays, **facts})

    def finish(self, posterior: Posterior) -> None:
        """Write the results, then destroy the secret: with it the noise could be taken off again."""
        if self.folder is not None and posterior.certificate is not None:
            posterior.certificate.save(self.folder)
            posterior.save(self.folder / "posterior.npz")
        shards.wait("finished")  # the other processes keep their secrets until process 0 has written the results
        if self.folder is not None:
            (self.folder / "secret.key").unlink(missing_ok=True)
            (self.folder / "checkpoint.npz").unlink(missing_ok=True)
            system.remove_partial(self.folder / "secret.key")

    def finished(self, folder: Path | None) -> bool:
        """Return whether process 0 has the results; the others then have them too."""
        if folder is None or self.folder is None:
            return False
        file = folder / "posterior.npz"
        if jax.process_count() == 1:
            return file.exists()
        lead = jax.process_index() == 0
        content = shards.agreed_bytes(file.read_bytes() if lead and file.exists() else b"")
        if content and not lead:
            _write(self.folder / "posterior.npz", content)
        return bool(content)


def begin(data: PrivateData, folder: Path | None, facts: Facts, key: Key | None) -> Run:
    """Start a run in every process; process 0 says which public key they have, and keeps the folder's run.

    Privacy: public.
    """
    if jax.process_count() > 1 and data.shards is None:
        raise ValueError(
            "There are several processes, and the records are not dealt out to them: each would fit its own, on the "
            "same ledger. Write data = tacit.distribute.seal(load, schema, shards=...)."
        )
    if jax.process_index() == 0:
        run = Run.begin(folder, facts, key)
    if jax.process_count() > 1:
        words = np.asarray(jax.random.key_data(run.key)) if jax.process_index() == 0 else np.zeros(2, np.uint32)
        public = jax.random.wrap_key_data(jnp.asarray(shards.agreed(words)))
        if jax.process_index() > 0:
            run = Run.begin(own_folder(folder), facts, public)
    return run


def own_folder(folder: Path | None) -> Path | None:
    """Return the folder of this process: the run's own for process 0, one within it for another.

    Privacy: public.
    """
    return folder and (folder if jax.process_index() == 0 else folder / f"process-{jax.process_index()}")


def load_finished(folder: Path, method: Method) -> Posterior:
    """Return the results of a run that has ended, and remove what a kill at the very end left behind.

    Privacy: post-processing.
    """
    for name in ("secret.key", "secret.key.partial", "checkpoint.npz"):
        (folder / name).unlink(missing_ok=True)
    system.remove_partial(folder / "secret.key")
    posterior = Posterior.load(folder / "posterior.npz", method)
    key = jax.random.key(0)
    wanted = jax.eval_shape(lambda key: method.draw(method.init(key), key), key)
    if {name: leaf.shape for name, leaf in wanted.items()} != {
        name: value.shape[1:] for name, value in posterior.draws.items()
    }:
        raise ValueError(
            f"The folder {folder} holds the finished run of another model ({', '.join(posterior.draws)}). "
            "Choose another run_dir."
        )
    return posterior


@contextlib.contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Lock a run's folder against other threads and processes; there is nothing to hold without one.

    Privacy: public.
    """
    if folder is None or not system.can_lock():
        yield
        return
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        if made:
            held.callback(_remove_if_empty, folder)  # a refusal leaves nothing behind, not even the folder
        try:
            held.enter_context(system.locked_folder(folder))
        except BlockingIOError:
            raise LedgerError(
                f"Another process is at work in the folder {folder}. Two would write over each other's files; wait "
                "until it has ended, or choose another run_dir."
            ) from None
        yield


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _content(leaves: list[Any], done: int, chain: bytes) -> bytes:
    return repr((done, chain)).encode() + b"".join(repr((x.dtype, x.shape)).encode() + x.tobytes() for x in leaves)


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    system.atomic_write(path, lambda file: file.write(content), mode)
