"""The host loop of a fit: segments of compiled steps, with progress, checkpoints, Ctrl-C and resume."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from tqdm import tqdm

from tacit.accounting.mechanism import Budget, Mechanism
from tacit.engine.runner import Runner
from tacit.ledger.anchors import RUN_ANCHOR
from tacit.ledger.file import Ledger
from tacit.ledger.provenance import whose
from tacit.ledger.record import ENGINES
from tacit.results.posterior import Posterior
from tacit.run.certify import certify, leave_room, left_out, released_numbers, too_large
from tacit.run.draws import posterior_of
from tacit.run.folder import Facts, begin, load_finished, lock_folder, own_folder
from tacit.run.foresight import foreseen, forewarn
from tacit.run.plan import Planned, Settings, check_types, planned
from tacit.types import Key, Method, MethodFor
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision
from tacit.wall.reference import ReferenceRunner


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
    force: bool = False,
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
    force
        Whether to fit a formula no coefficient of which is expected to be distinguishable from its prior. Where some
        will stay at their prior, a warning names them before anything is spent.

    Returns
    -------
    Posterior
        1000 draws (fewer where one draw holds more than about 4000 numbers), with the certificate.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}}, size=200)
    >>> model = tacit.formula("ill ~ age", schema, family="bernoulli")
    >>> age = np.linspace(20, 80, 200)
    >>> data = tacit.PrivateData({"age": age, "ill": np.where(age > 60, "yes", "no")}, schema)
    >>> posterior = tacit.fit(model, data, tacit.Budget(1.0, 1e-6), steps=50, progress=False, force=True)
    >>> posterior.certificate.epsilon <= 1.0
    True
    """
    check_types(data, budget, key)
    if engine not in ENGINES:
        raise ValueError(f"The engine is {engine!r}, and there are {list(ENGINES)}. Leave it out for the fast one.")
    settings: Settings = {"rate": rate, "steps": steps, "clip": clip, "weights": weights}
    settings |= {"adjacency": adjacency, "engine": engine}
    ready = planned(method, data, budget, **settings)
    forewarn(foreseen(ready.method.model.source, ready.title, data.size, ready.mechanism, budget), force=force)
    folder = None if run_dir is None else Path(run_dir)
    with lock_folder(own_folder(folder)):
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
    facts, lead = Facts(mechanism, budget, simulate, engine), jax.process_index() == 0
    run = begin(data, folder, facts, key)
    if run.finished(folder):
        return load_finished(run.folder or Path(), built)
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
    leave_room(runner.slack(mechanism.steps, budget.epsilon), budget)
    run.keep(facts)
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
        posterior.certificate = certify(ledgers[0], run.name, budget, data, runner.slack, numbers, code, engine)
    said = (warning, too_large(budget, data), left_out(built, data))
    posterior.warning = " ".join(filter(None, said)) or None
    run.finish(posterior)
    return posterior


def _so_far(mechanism: Mechanism, done: int, budget: Budget) -> str:
    return f"epsilon {replace(mechanism, steps=done).cost(budget.delta):.3f} of {budget.epsilon:g}"
