"""The host loop: segments of compiled steps, with progress, checkpoints, Ctrl-C and resume; and one paid question.

A run folder holds ``run.json`` (the public recipe), ``secret.key`` (only while the run is under way),
``checkpoint.npz`` (public state), ``ledger.jsonl`` unless the data brought a ledger, ``anchor.json`` (how far the
ledger went), and at the end ``posterior.npz`` and the certificate.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from tacit import system
from tacit.accounting.checks import check_steps
from tacit.accounting.mechanism import RESERVE, Budget, Mechanism, calibrate
from tacit.engine import outer, shards
from tacit.engine import random as secret_random
from tacit.engine.runner import Runner, released, versions
from tacit.ledger.anchors import RUN_ANCHOR
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.ledger.provenance import whose
from tacit.ledger.record import ENGINES
from tacit.results.numbers import UNREADABLE, fingerprint
from tacit.results.posterior import DRAWN_NUMBERS, DRAWS, Posterior, named, write_npz
from tacit.run.folder import lock_folder
from tacit.run.plan import STEPS, Planned, built_for, planned, public_plan, refuse_unsuited
from tacit.types import Array, Key, Method, MethodFor, PyTree, Record, Release, SparseRows, State, is_sparse
from tacit.wall.border import with_own_checks
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision
from tacit.wall.reference import ReferenceRunner

WRITTEN = (
    *("secret.key", "run.json", "checkpoint.npz", "posterior.npz", RUN_ANCHOR),
    *("certificate.json", "certificate.md", "certificate.html"),
)
"""Files of a run's folder that are written whole: a kill leaves parts of them under other names."""
QUICKLY_DRAWN = 1 << 17
"""Fewer numbers than that are drawn by a program that was compiled quickly."""
PUBLIC_NUMBERS = 1 << 20
"""Sparse contributions of public records that are held at once, in numbers."""
NO_LASTING_LEDGER = (
    "The records came without a ledger file, so other looks at them (questions, other fits, processes or run folders) "
    "may not be in the total. "
    "Give them one: PrivateData(records, schema, ledger='ledger.jsonl')."
)
NO_ANCHOR = (
    "The length of the ledger could not be noted outside of it, so an older copy in its place might not be noticed. "
    "Make the folder writable that the variable XDG_STATE_HOME names (~/.local/state where it is not set)."
)


@single_precision
def fit(
    method: Method | MethodFor | Callable[..., Any],
    data: PrivateData,
    budget: Budget,
    *,
    rate: float | None = None,
    steps: int | None = None,
    clip: float | Literal["adaptive"] | None = None,
    weights: tuple[float, ...] | None = None,
    adjacency: str = "add-remove",
    run_dir: str | os.PathLike[str] | None = None,
    key: Key | None = None,
    simulate: int | None = None,
    warning: str | None = None,
    progress: bool = True,
    engine: Literal["fast", "reference"] = "fast",
) -> Posterior:
    """Fit a method to sealed records within a budget.

    Privacy: reads records, through the wall. What comes back is (epsilon, delta)-differentially private.

    Parameters
    ----------
    method
        What ``tacit.vi(...)`` or another method gave; or a formula or a NumPyro model, for which ``tacit.auto`` then
        chooses a method by public facts. The posterior's ``reason`` says which, and why. A method is built for the plan
        that the data and these arguments make.
    data
        The sealed records.
    budget
        What may be spent, and on whose protection.
    rate
        Probability with which a record takes part in a step. By default what the method suggests, else 0.1, and less
        for a declared size above 40000.
    steps
        Number of private steps; by default what the method suggests, else 1000. A method whose phases are parts of its
        steps (``glm``) is built for them.
    clip
        Largest norm of a record's contribution; by default what the method suggests, for ``vi`` twice the square root
        of the number of latents, for columns and parameters of unit size. Longer contributions are shortened, which
        biases the answer whatever the number of records; a larger clip adds noise in proportion, which more records
        make up for. "adaptive" follows the median norm, asked for in every step within the same budget.
    weights
        Public factors for the leaves of a contribution, applied before the clip; by default what the method suggests.
    adjacency
        "add-remove" (one unit more or less) or "replace-one".
    run_dir
        A folder for the ledger, checkpoints and results. A killed run is resumed by the same call.
    key
        Seed of the public randomness (``jax.random.key``); drawn anew if left out.
    simulate
        Fixes the secret randomness. The certificate then says that nobody is protected: for tests and rehearsals.
    warning
        A sentence that the posterior shows with its numbers: ``**rehearsal.best`` gives one where intervals were found
        to be too narrow.
    progress
        Whether to show a bar with steps, time and epsilon spent. The time follows the number of records: do not
        publish it.
    engine
        How steps are computed. "reference" takes one record at a time, by the short program that a reviewer reads
        (``tacit.wall``), and is slow. The certificate names the engine.

    Returns
    -------
    Posterior
        1000 draws (fewer where one draw holds more than about 4000 numbers), with the certificate.
    """
    check_types(data, budget, key)
    if engine not in ENGINES:
        raise ValueError(f"The engine is {engine!r}, and there are {list(ENGINES)}. Leave it out for the fast one.")
    settings: dict[str, Any] = {"rate": rate, "steps": steps, "clip": clip, "weights": weights}
    ready = planned(method, data, budget, adjacency=adjacency, engine=engine, **settings)
    folder = None if run_dir is None else Path(run_dir)
    with lock_folder(_own(folder)):
        return _fit(ready, data, budget, folder, key, simulate, warning, progress, engine)


def _fit(
    ready: Planned,
    data: PrivateData,
    budget: Budget,
    folder: Path | None,
    key: Key | None,
    simulate: int | None,
    warning: str | None,
    progress: bool,
    engine: Literal["fast", "reference"],
) -> Posterior:
    """Run what ``fit`` planned, in a folder that no other process is at work in."""
    built, mechanism, title = ready
    run, lead = _begin(data, folder, mechanism, budget, key, simulate, engine), jax.process_index() == 0
    if run.finished(folder):
        return _finished(run.folder or Path(), built)
    ledgers = [data.ledger]
    # What is resumed must be on a file; the data's ledger counts it too.
    if folder and lead:
        book = Ledger(data.ledger.path or folder / "ledger.jsonl", run_anchor=folder / RUN_ANCHOR)
        ledgers = [book] if data.ledger.path else [book, data.ledger]
    for ledger in ledgers:
        ledger.afford(mechanism, data.unit, run=run.name)
    runner = (ReferenceRunner if engine == "reference" else Runner)(
        built,
        data,
        mechanism,
        secret=run.secret,
        key=run.key,
        ledgers=ledgers,
        run=run.name,
        kind="fit",
        title=title,
        simulation=run.simulation,
    )
    _leave_room(runner, mechanism, budget)
    run.keep(mechanism, budget, simulate, engine)
    state, done = run.restore(jax.tree.map(jnp.asarray, jax.jit(built.init)(run.key)), runner, ledgers[0])
    progress = progress and lead
    with tqdm(total=mechanism.steps, initial=done, unit="step", disable=not progress) as bar:
        while done < mechanism.steps:
            stop = min(done + runner.segment, mechanism.steps)
            state = runner.advance(state, done, stop)
            if lead:
                run.checkpoint(state, stop, runner)
            bar.update(stop - done)
            done = stop
            # Accounting takes time, so only when the bar was just drawn, and at the end.
            if progress and (bar.n == bar.last_print_n or done == mechanism.steps):
                bar.set_postfix_str(_so_far(mechanism, done, budget))
    posterior = posterior_of(built, state, jax.random.fold_in(run.key, mechanism.steps), None)
    if lead:
        numbers = released_numbers(state, posterior)
        code = whose(built.contribute)
        posterior.certificate = _certificate(runner, ledgers[0], run.name, budget, data, numbers, code, engine)
    said = (warning, too_large(budget, data), left_out(built, data))
    posterior.warning = " ".join(filter(None, said)) or None
    run.finish(posterior)
    return posterior


class Answer(NamedTuple):
    """The answer to one paid question: the noisy sum over all records, and the noise in it."""

    value: PyTree
    noise_std: PyTree
    certificate: Certificate

    def fingerprints(self) -> dict[str, str]:
        """Return the SHA-256 hash of the answer and its noise.

        Privacy: post-processing.
        """
        return {"answer": fingerprint(named({"value": self.value, "noise_std": self.noise_std}))}

    def verify(self, ledger: Ledger | None = None) -> str:
        """Check the certificate, and that this is the answer it was issued for; say what was found.

        Privacy: post-processing.
        """
        return self.certificate.verify(ledger, self)


@single_precision
def ask(
    data: PrivateData,
    question: Callable[[Record], PyTree],
    budget: Budget,
    *,
    clip: float,
    adjacency: str = "add-remove",
    simulate: int | None = None,
) -> Answer:
    """Buy one number (or vector) about the records: the noisy sum of ``question(record)`` over all of them.

    Privacy: reads records, through the wall. Each record's answer is clipped; the price is on the ledger.

    Parameters
    ----------
    data
        The sealed records.
    question
        A function of one record, for example ``lambda record: 1.0`` for a count.
    budget
        What the answer may cost.
    clip
        The largest norm that one record's answer may have.
    adjacency, simulate
        As in ``fit``.
    """
    check_types(data, budget)

    def answer(record: Record) -> PyTree:
        def number(leaf: Any) -> Any:
            return leaf if is_sparse(leaf) else jnp.asarray(leaf, jnp.float32)

        return jax.tree.map(number, question(record), is_leaf=is_sparse)

    shape = released(jax.eval_shape(answer, data.placeholder))

    def method_state(_: Key) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), (shape, shape))

    def keep(_: State, release: Release, __: Key) -> PyTree:
        spread = jax.tree.map(lambda leaf, std: jnp.broadcast_to(std, leaf.shape), shape, release.noise_std)
        return release.total, spread

    method = Method(method_state, lambda _, record, __: answer(record), keep, lambda state, _: {"sum": state[0]})
    mechanism = calibrate(budget, rate=1.0, steps=1, clip=clip, adjacency=adjacency)
    ledger = data.ledger
    ledger.afford(mechanism, data.unit)
    run = _begin(data, None, mechanism, budget, None, simulate)
    runner = Runner(
        method,
        data,
        mechanism,
        secret=run.secret,
        key=run.key,
        ledgers=[ledger],
        run=run.name,
        kind="ask",
        title=getattr(question, "__name__", "question"),
        simulation=run.simulation,
    )
    _leave_room(runner, mechanism, budget)
    value, noise_std = runner.advance(method_state(run.key), 0, 1)
    numbers = {"answer": fingerprint(named({"value": value, "noise_std": noise_std}))}
    return Answer(value, noise_std, _certificate(runner, ledger, run.name, budget, data, numbers, whose(question)))


@single_precision
def fit_public(
    method: Method | MethodFor, records: PyTree, *, steps: int = STEPS, rate: float = 1.0, key: Key
) -> Posterior:
    """Fit a method to records that are public: no clip, no noise, no certificate; every record in every step.

    With a rate below 1 a step takes that share of the records, drawn anew each time.

    Privacy: none. It is the reference that a private posterior is compared with; sealed records are refused.
    """
    if isinstance(records, PrivateData):
        raise TypeError("fit_public gives no protection, so it does not take sealed records. Use tacit.fit.")
    if not 0 < rate <= 1:
        raise ValueError(f"The rate is {rate}; it is the share of the records in a step. Write a number up to 1.")
    records = jax.tree.map(jnp.asarray, records)
    plan = public_plan(records, rate=rate, steps=check_steps("fit_public", steps, 1))
    built = built_for(method, plan)
    refuse_unsuited(built, plan)
    state = public_program(built, len(jax.tree.leaves(records)[0]), steps, rate)(key, records)
    return posterior_of(built, state, jax.random.fold_in(key, steps), None)


def public_program(built: Method, count: int, steps: int, rate: float = 1.0) -> Callable[[Key, PyTree], State]:
    """Return the compiled loop of ``fit_public`` over so many public records: from key and records to the last state.

    Privacy: none.
    """
    size = max(1, round(rate * count))

    def run(key: Key, records: PyTree) -> State:
        def step(t: Any, state: State) -> State:
            step_key = jax.random.fold_in(key, t)
            record_keys = jax.random.split(jax.random.fold_in(step_key, 1), size)
            subset = records
            if size < count:
                chosen = jax.random.choice(jax.random.fold_in(step_key, 2), count, (size,), replace=False)
                subset = jax.tree.map(lambda leaf: leaf[chosen], records)
            total = sum_public(
                lambda record, mine: built.contribution(state, record, step_key, mine), subset, record_keys
            )
            nothing = jax.tree.map(lambda leaf: jnp.zeros(()), total)
            full = jax.tree.map(lambda leaf: leaf * (count / size), total) if size < count else total
            return built.update(state, Release(total, nothing, jnp.float32(size / count), full), step_key)

        return jax.lax.fori_loop(0, steps, step, built.init(key))

    return jax.jit(run)


def sum_public(contribution: Callable[[Record, Key], PyTree], records: PyTree, record_keys: Key) -> PyTree:
    """Add up the contributions of public records.

    Sparse ones and many in parts, so that they are never all there; outer products without writing them out.

    Privacy: none.
    """

    def part(records: PyTree, record_keys: Key, present: Any) -> PyTree:
        def here(leaf: Any) -> Any:
            return jnp.where(present.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

        def whole(leaf: Any, product: outer.Outer | None) -> Any:
            if product is not None:
                return product.leaf(jnp.matmul(here(leaf.left).T, leaf.right, precision=jax.lax.Precision.HIGHEST))
            if not is_sparse(leaf):
                return jnp.sum(here(leaf), 0)
            return SparseRows(jnp.where(present[:, None], leaf.index, leaf.count), leaf.values, leaf.count).dense()

        if sparse:
            return jax.tree.map(
                lambda leaf: whole(leaf, None), jax.vmap(contribution)(records, record_keys), is_leaf=is_sparse
            )
        outers, values = outer.split(jax.vmap(contribution), records, record_keys, smallest=0)
        return jax.tree.unflatten(jax.tree.structure(each), map(whole, values, outers))

    count = len(record_keys)
    each = jax.eval_shape(contribution, jax.tree.map(lambda leaf: leaf[0], records), record_keys[0])
    length = sum(leaf.size for leaf in jax.tree.leaves(each))
    sparse = any(is_sparse(leaf) for leaf in jax.tree.leaves(each, is_leaf=is_sparse))
    if not sparse or count * length < PUBLIC_NUMBERS:
        return part(records, record_keys, jnp.ones(count, bool))
    size = max(1, PUBLIC_NUMBERS // length)

    def add(j: Any, total: PyTree) -> PyTree:
        places = j * size + jnp.arange(size)
        chunk, mine = jax.tree.map(lambda leaf: leaf.at[places].get(mode="clip"), (records, record_keys))
        return jax.tree.map(jnp.add, total, part(chunk, mine, places < count))

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), released(each))
    return jax.lax.fori_loop(0, -(-count // size), add, zero)


class _Run(NamedTuple):
    """The identity of a run, and its folder if it has one."""

    folder: Path | None
    name: str
    key: Key
    secret: Key
    simulation: bool

    def __repr__(self) -> str:
        return f"<run {self.name}>"  # a traceback that shows variables must not show the secret

    @classmethod
    def begin(
        cls,
        folder: Path | None,
        mechanism: Mechanism,
        budget: Budget,
        key: Key | None,
        simulate: int | None,
        engine: str = "fast",
    ) -> _Run:
        """Start a run, or take up the one in the folder if it has the same recipe; nothing is written yet."""
        facts = _facts(mechanism, budget, simulate, engine)
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
        if stored != facts or (key is not None and not np.array_equal(jax.random.key_data(key), public)):
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

    def keep(self, mechanism: Mechanism, budget: Budget, simulate: int | None, engine: str = "fast") -> None:
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
            facts = {"run": self.name, "key": public, **_facts(mechanism, budget, simulate, engine)}
            _write(self.folder / "run.json", json.dumps(facts).encode())

    def restore(self, start: State, runner: Runner | ReferenceRunner, ledger: Ledger) -> tuple[State, int]:
        """Return the last checkpoint, or the start; and make sure that no noise is used twice.

        A replay is free because it gives the same bits: same key, data, program and starting state. Where any of them
        changed, the old noise on a new sum would cancel in the difference of the two, so a new key is drawn, and what
        it is used for is charged.
        """
        found = self._checkpoint(start, ledger) if jax.process_index() == 0 else None
        if told := shards.agreed_bytes(b"" if found is None else b"origin" + found[3]):
            runner.rekey(self.secret, told.removeprefix(b"origin"))
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
                "would leave them out. Give the records the ledger that the run was begun with (without one it is "
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
        """Say whether process 0 has the results; the others are then given them too."""
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


def _begin(
    data: PrivateData,
    folder: Path | None,
    mechanism: Mechanism,
    budget: Budget,
    key: Key | None,
    simulate: int | None,
    engine: str = "fast",
) -> _Run:
    """Start a run in every process; process 0 says which public key they have, and keeps the folder's run."""
    if jax.process_count() > 1 and data.shards is None:
        raise ValueError(
            "There are several processes, and the records are not dealt out to them: each would fit its own, on the "
            "same ledger. Write data = tacit.distribute.seal(load, schema, shards=...)."
        )
    if jax.process_index() == 0:
        run = _Run.begin(folder, mechanism, budget, key, simulate, engine)
    if jax.process_count() > 1:
        told = np.asarray(jax.random.key_data(run.key)) if jax.process_index() == 0 else np.zeros(2, np.uint32)
        public = jax.random.wrap_key_data(jnp.asarray(shards.agreed(told)))
        if jax.process_index() > 0:
            run = _Run.begin(_own(folder), mechanism, budget, public, simulate, engine)
    return run


def _own(folder: Path | None) -> Path | None:
    """Return the folder of this process: the run's own for process 0, one within it for another."""
    return folder and (folder if jax.process_index() == 0 else folder / f"process-{jax.process_index()}")


def _facts(mechanism: Mechanism, budget: Budget, simulate: int | None, engine: str) -> dict[str, Any]:
    facts = {"mechanism": mechanism.to_dict(), "budget": budget.to_dict(), "simulate": simulate}
    return facts if engine == "fast" else {**facts, "engine": engine}


def _content(leaves: list[Any], done: int, chain: bytes) -> bytes:
    return repr((done, chain)).encode() + b"".join(repr((x.dtype, x.shape)).encode() + x.tobytes() for x in leaves)


def too_large(budget: Budget, data: PrivateData) -> str:
    """Say what a delta of one over the declared number of units or more allows, or nothing.

    Privacy: public.
    """
    if data.size is None or budget.delta * data.size < 1:
        return ""
    return (
        f"Delta is {budget.delta:g}, and {data.size} units are declared: so large a delta does not rule out that some "
        f"are published as they are. Take it far below {1 / data.size:.2g}."
    )


def left_out(built: Method, data: PrivateData) -> str:
    """Say, where no schema does, which records counted for nothing without a word; or nothing.

    Privacy: public. It looks at what the method asks for, not at records.
    """
    asked = [need.message for need in with_own_checks(built).requirements if not need.fixed]
    if data.schema is not None or not asked:
        return ""
    return (
        "No schema was given, so nobody knows whether every record was what the method needs; one that was not counted "
        f"for nothing. {' '.join(asked)} Seal the records with a schema that says so: it refuses others beforehand."
    )


def caveats(budget: Budget, data: PrivateData) -> tuple[str, ...]:
    """Return what a certificate must warn of.

    Privacy: public.
    """
    ledger = ""
    if data.ledger.path is None:
        ledger = NO_LASTING_LEDGER
    elif data.ledger.anchored < len(data.ledger.lines):
        ledger = NO_ANCHOR
    return tuple(filter(None, (ledger, too_large(budget, data))))


def released_numbers(state: State, posterior: Posterior) -> dict[str, str]:
    """Return the hashes of a method's last state and of what was made of it.

    Privacy: post-processing.
    """
    return {"state": fingerprint(named({"state": state})), **posterior.fingerprints()}


def _certificate(
    runner: Runner | ReferenceRunner,
    ledger: Ledger,
    run: str,
    budget: Budget,
    data: PrivateData,
    numbers: dict[str, str],
    code: Literal["tacit", "user"],
    engine: Literal["fast", "reference"] = "fast",
) -> Certificate:
    looked = ledger.runs()[run].looked
    cost = max(budget.epsilon, looked.cost(budget.delta * (1 - RESERVE)))
    return Certificate.issue(
        ledger=ledger,
        run=run,
        budget=budget,
        slack=runner.slack(looked.steps, cost),
        versions=versions(),
        caveats=caveats(budget, data),
        numbers=numbers,
        code=code,
        engine=engine,
    )


def _leave_room(runner: Runner | ReferenceRunner, mechanism: Mechanism, budget: Budget) -> None:
    if runner.slack(mechanism.steps, budget.epsilon) > RESERVE * budget.delta:
        raise ValueError(
            f"At epsilon {budget.epsilon:g} a delta of {budget.delta:g} leaves no room for what the samplers lack in "
            "exactness. Ask for a smaller epsilon or a larger delta."
        )


def _so_far(mechanism: Mechanism, done: int, budget: Budget) -> str:
    return f"epsilon {replace(mechanism, steps=done).cost(budget.delta):.3f} of {budget.epsilon:g}"


def posterior_of(built: Method, state: State, key: Key, certificate: Certificate | None) -> Posterior:
    """Draw from a method's last state.

    Privacy: post-processing.
    """
    points = built.point_estimates(state) if built.point_estimates else None
    return Posterior(drawing(built)(state, key), certificate, built, points)


def drawing(built: Method) -> Callable[[State, Key], dict[str, Array]]:
    """Return the compiled function that draws a posterior's draws from a state.

    Privacy: post-processing.
    """

    key = jax.random.key(0)
    jaxpr, shape = jax.make_jaxpr(lambda key: built.draw(built.init(key), key), return_shape=True)(key)
    size = sum(leaf.size for leaf in jax.tree.leaves(shape))
    count = max(10, min(DRAWS, DRAWN_NUMBERS // max(1, size)))

    def draws(state: State, key: Key) -> dict[str, Array]:
        return jax.vmap(built.draw, (None, 0))(state, jax.random.split(key, count))

    # Few numbers, drawn once and not in a loop, are not worth the compiler's care: it takes most of the time.
    loops = any(f" {name}[" in str(jaxpr) for name in ("scan", "while"))
    quick = count * size < QUICKLY_DRAWN and not loops and jax.default_backend() == "cpu"
    return jax.jit(draws, compiler_options={"xla_backend_optimization_level": 0} if quick else {})


def _finished(folder: Path, method: Method) -> Posterior:
    for name in ("secret.key", "secret.key.partial", "checkpoint.npz"):  # left behind by a kill at the very end
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


def check_types(data: PrivateData, budget: Budget, key: Key | None = None) -> None:
    """Refuse what is not sealed, budgeted and keyed as it must be.

    Privacy: public.
    """
    if key is not None and not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"The key is given as {key!r}. It must be a typed JAX key; write key=jax.random.key(0).")
    if not isinstance(data, PrivateData):
        raise TypeError(
            f"The records are given as {type(data).__name__}. Only sealed records go through the wall; "
            "write data = tacit.PrivateData(records, schema)."
        )
    if not isinstance(budget, Budget):
        raise TypeError(
            f"The budget is given as {type(budget).__name__}. It must say epsilon, delta and the unit; "
            "write tacit.Budget(epsilon=1.0, delta=1e-6)."
        )
    if data.unit != budget.unit:
        raise ValueError(
            f"The budget protects each {budget.unit!r}, but a unit of the data is a {data.unit!r}. "
            f"Write tacit.Budget({budget.epsilon:g}, {budget.delta:g}, unit={data.unit!r}), "
            "or declare the data's unit in its schema."
        )


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    system.atomic_write(path, lambda file: file.write(content), mode)
