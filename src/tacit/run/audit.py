"""Audits: what an attacker has shown can be learned from runs, against what was certified.

A worst-case record (the canary) is put in and left out of many runs, and every run is reduced to one score, from which
`tacit.run.bounds` makes a lower bound on ε. A bound above the certified ε is a bug; a bound close to it means that the
certificate wastes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit import accounting
from tacit.accounting.mechanism import Mechanism
from tacit.engine import random as secret_random
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.run.bounds import Floats, lower_bound, one_run_bound
from tacit.run.plan import built_for, public_plan
from tacit.types import Array, Key, Method, MethodFor, PyTree, Release, is_sparse
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision

ATTACKS = ("canary", "posterior", "one-run")
SHOWN, SHOWN_DRAWS = 64, 32
"""Numbers of a posterior that an attacker looks at, means of so many draws."""


@dataclass(frozen=True)
class Audit:
    """What an attack has shown, beside what is certified.

    Attributes
    ----------
    attack
        "canary", "posterior" or "one-run".
    mechanism
        The recipe that was attacked.
    delta, confidence
        The δ of both figures, and the probability with which the lower bound holds.
    runs
        Runs with the canary, and as many without it; of "one-run" the number of canaries.
    epsilon
        The ε that the attack proves, or more.
    certified
        The ε that the certificate of such a run would state.

    Privacy: public.
    """

    attack: str
    mechanism: Mechanism
    delta: float
    confidence: float
    runs: int
    epsilon: float
    certified: float

    @property
    def passed(self) -> bool:
        """Whether no more is proved than is certified."""
        return self.epsilon <= self.certified

    def __str__(self) -> str:
        verdict = "" if self.passed else " That is MORE than is certified."
        what = "canaries in one run" if self.attack == "one-run" else "runs with the canary and as many without"
        return (
            f"{self.attack}, {self.runs} {what}: certified ε {self.certified:.4f} at δ {self.delta:g}; the attack "
            f"proves {self.epsilon:.4f} or more ({self.confidence:.1%} sure).{verdict}"
        )


@single_precision
def audit(
    method: Method | MethodFor | None,
    records: PyTree | None,
    mechanism: Mechanism,
    *,
    attack: str = "canary",
    delta: float = 1e-5,
    runs: int = 1000,
    confidence: float = 0.999,
    seed: int | None = None,
) -> Audit:
    """Attack a method through the real wall, on made-up records: what can be proved against what is certified.

    Every attack knows the method, the recipe and all records but the canaries:

    - "canary": the canary is the only record, or there is none. The attacker sees every release of the run and adds up
      the log-likelihood ratios of its steps.
    - "posterior": the same runs, of which the attacker sees the final posterior only. A linear score is learned on half
      of them.
    - "one-run": each record is a canary, put in with probability one half; one run, and a guess for those about whom
      its releases say most (Steinke, Nasr and Jagielski 2023). Looser, and needs no second run.

    Privacy: public: for made-up records, which it protects as little as a simulation does.

    Parameters
    ----------
    method
        What is attacked, as for ``tacit.fit``; None for the wall itself, whose contributions are the records.
    records
        Made-up records, one array for each variable. The canary is the one with the longest contribution at the start.
        None for the wall itself, with a canary far above the clip.
    mechanism
        The recipe of ONE run.
    attack
        "canary", "posterior" or "one-run".
    delta
        The δ at which both ε are stated.
    runs
        Runs with the canary, and as many without. For "one-run" on the wall itself, the number of canaries.
    confidence
        Probability with which the lower bound holds.
    seed
        Fixes the secret randomness; drawn anew if left out.

    Returns
    -------
    Audit
        The lower bound beside the certified ε.

    Examples
    --------
    >>> import tacit
    >>> recipe = tacit.Mechanism(rate=1.0, clip=1.0, noise_multiplier=1.0, steps=1)
    >>> found = tacit.audit(None, None, recipe, runs=200)
    """
    if attack not in ATTACKS:
        raise ValueError(f"attack={attack!r} is not known; write one of {', '.join(map(repr, ATTACKS))}.")
    if mechanism.adjacency != "add-remove" or mechanism.repeats is not None:
        raise ValueError(
            "An audit puts a record in and leaves it out, so it attacks recipes of one run whose adjacency is "
            "'add-remove'; pass such a mechanism."
        )
    delta = accounting.check_delta("audit", delta)
    if attack == "one-run":
        found, runs = _one_run(method, records, mechanism, delta, runs, confidence, seed)
    else:
        inside, outside = (
            canary_scores(method, records, mechanism, runs, there, seed=seed, attack=attack) for there in (True, False)
        )
        if attack == "posterior":
            inside, outside = _learned(inside, outside)
        found = lower_bound(inside, outside, mechanism=mechanism, delta=delta, confidence=confidence)
    return Audit(attack, mechanism, delta, confidence, runs, found, mechanism.cost(delta))


@single_precision
def canary_scores(
    method: Method | MethodFor | None,
    records: PyTree | None,
    mechanism: Mechanism,
    runs: int,
    inside: bool,
    *,
    seed: int | None = None,
    attack: str = "canary",
) -> Floats:
    """Make runs through the real wall with the canary or without it, and return what an attacker makes of each.

    Parameters
    ----------
    method, records, mechanism, runs, seed, attack
        As for `audit`.
    inside
        Whether the canary is in the data.

    Returns
    -------
    array
        For "canary" the log-likelihood ratio of each run; for "posterior" the numbers that the attacker sees of it.

    Privacy: public: the records are made up.
    """
    built, records = _built(method, records, mechanism)
    canary = _longest(built, records, mechanism)
    # Beside the wall's canary stand others who contribute nothing; of methods the canary is the only record.
    others = np.zeros((2, 2), np.float32) if method is None else jax.tree.map(lambda leaf: leaf[:0], canary)
    everyone = jax.tree.map(lambda *parts: np.concatenate(parts), others, canary) if inside else others
    size = len(jax.tree.leaves(records)[0])
    state = _attacked(built, everyone, size, canary, mechanism, runs, attack == "posterior", seed, inside)
    return np.asarray(state.seen if attack == "posterior" else state.scores[:, 0], np.float64)


class _Watch(NamedTuple):
    """The state of a method under attack: that of the method, and what the attacker has seen."""

    inner: PyTree
    start: PyTree
    canaries: PyTree
    step: Array
    score: Array
    scores: Array
    seen: Array


def _attacked(
    built: Method,
    everyone: PyTree,
    size: int,
    canaries: PyTree,
    mechanism: Mechanism,
    runs: int,
    final: bool,
    seed: int | None,
    other: bool,
) -> _Watch:
    """Make all runs with one runner, one after the other: each begins at the start and has noise of its own."""
    secret = secret_random.fresh() if seed is None else secret_random.fixed(2 * seed + other)
    watched, key = _watched(built, canaries, mechanism, runs, final), jax.random.key(0)
    runner = Runner(
        watched,
        PrivateData(everyone, size=size + 1),  # one more: the canaries that the method holds are as many as there are
        replace(mechanism, steps=runs * mechanism.steps),
        secret=secret,
        key=key,
        ledgers=[Ledger()],
        run="audit",
        kind="fit",
        title="audit",
        simulation=True,
    )
    state: _Watch = runner.advance(jax.jit(watched.init)(key), 0, runs * mechanism.steps)
    return state


def _watched(built: Method, canaries: PyTree, mechanism: Mechanism, runs: int, final: bool) -> Method:
    """Put an attacker beside a method, who knows the canaries and adds up what the releases say about each of them."""
    count = len(jax.tree.leaves(canaries)[0])

    def shown(inner: PyTree, key: Key) -> Array:
        draws = jax.vmap(built.draw, (None, 0))(inner, jax.random.split(key, SHOWN_DRAWS))
        numbers = jnp.concatenate([jnp.mean(leaf, 0, dtype=jnp.float32).ravel() for leaf in jax.tree.leaves(draws)])
        if numbers.size <= SHOWN:
            return numbers
        return jax.random.normal(jax.random.key(1), (SHOWN, numbers.size)) @ numbers / numbers.size**0.5

    def init(key: Key) -> _Watch:
        inner = jax.tree.map(jnp.asarray, built.init(key))
        width = jax.eval_shape(shown, inner, key).size if final else 0
        nothing = jnp.zeros(count)
        return _Watch(
            inner,
            inner,
            jax.tree.map(jnp.asarray, canaries),
            jnp.int32(0),
            nothing,
            jnp.zeros((runs, count)),
            jnp.zeros((runs, width)),
        )

    def contribute(state: _Watch, record: PyTree, key: Key, record_key: Key | None = None) -> PyTree:
        return built.contribution(state.inner, record, key, record_key)

    def update(state: _Watch, release: Release, key: Key) -> _Watch:
        clipped = jax.vmap(lambda record: _clipped(built, state.inner, record, key, mechanism))(state.canaries)
        noisy = _flat(jax.tree.map(lambda total, std: total / std, release.total, release.noise_std))
        ratio = clipped @ noisy - jnp.sum(clipped**2, 1) / 2
        q = mechanism.rate
        score = state.score + (ratio if q == 1 else jnp.logaddexp(jnp.log1p(-q), jnp.log(q) + ratio))
        inner = built.update(state.inner, release, key)
        run, last = state.step // mechanism.steps, (state.step + 1) % mechanism.steps == 0
        seen = state.seen
        if final:
            seen = seen.at[run].set(jax.lax.cond(last, lambda: shown(inner, key), lambda: seen[run]))
        return state._replace(
            inner=jax.tree.map(lambda now, start: jnp.where(last, start, now), inner, state.start),
            step=state.step + 1,
            score=jnp.where(last, 0.0, score),
            scores=state.scores.at[run].set(score),
            seen=seen,
        )

    return built.wrapping(init=init, contribute=contribute, update=update)


def _clipped(built: Method, state: PyTree, record: PyTree, key: Key, mechanism: Mechanism) -> Array:
    """Return a record's clipped contribution as one vector, in standard deviations of the noise."""
    flat = _vector(built, state, record, key, mechanism.weights) / mechanism.clip
    return flat / jnp.maximum(jnp.linalg.norm(flat), 1.0) / mechanism.noise_multiplier


def _vector(built: Method, state: PyTree, record: PyTree, key: Key, weights: tuple[float, ...] | None) -> Array:
    """Return a record's contribution as one vector; zero if its norm is not finite."""
    # A record's own key is secret: the attacker takes any.
    contribution = built.contribution(state, record, key, jax.random.fold_in(key, 1))
    leaves = jax.tree.leaves(contribution, is_leaf=is_sparse)
    whole = [leaf.dense() if is_sparse(leaf) else jnp.asarray(leaf, jnp.float32) for leaf in leaves]
    flat = _flat([leaf * weight for leaf, weight in zip(whole, weights or (1.0,) * len(leaves), strict=True)])
    return jnp.where(jnp.isfinite(jnp.linalg.norm(flat)), flat, 0)


def _flat(tree: PyTree) -> Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _built(method: Method | MethodFor | None, records: PyTree | None, mechanism: Mechanism) -> tuple[Method, PyTree]:
    """Return the method for these records; for the wall itself one that contributes them, and a canary."""
    if method is None:
        if records is None:
            records = np.asarray([[1e6 * mechanism.clip, 0.0]], np.float32)
        wall = Method(
            init=lambda key: jnp.zeros(()),
            contribute=lambda state, record, key: record,
            update=lambda state, release, key: state,
            draw=lambda state, key: {"nothing": state},
        )
        return wall, records
    if records is None:
        raise ValueError("An audit of a method needs made-up records for it; pass some, as to tacit.fit_public.")
    records = jax.tree.map(np.asarray, records)
    plan = public_plan(
        jax.tree.map(np.zeros_like, records),
        rate=mechanism.rate,
        steps=mechanism.steps,
        clip=mechanism.clip,
        weights=mechanism.weights,
    )
    return built_for(method, plan), records


def _longest(built: Method, records: PyTree, mechanism: Mechanism) -> PyTree:
    """Return the record, with a leading axis of one, whose contribution at the start is the longest."""
    key = jax.random.key(0)
    state = built.init(key)
    norms = jax.vmap(lambda one: jnp.linalg.norm(_vector(built, state, one, key, mechanism.weights)))(
        jax.tree.map(jnp.asarray, records)
    )
    place = int(jnp.argmax(norms))
    return jax.tree.map(lambda leaf: leaf[place : place + 1], records)


def _learned(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """Learn on half of the runs in which direction posteriors with the canary lie, and score the other half."""
    (first, rest), (other, left) = ((values[::2], values[1::2]) for values in (inside, outside))
    centred = np.concatenate([first - first.mean(0), other - other.mean(0)])
    spread = centred.T @ centred / len(centred)
    ridge = 1e-6 * max(float(np.trace(spread)) / len(spread), 1e-30) * np.eye(len(spread))
    direction = np.linalg.solve(spread + ridge, first.mean(0) - other.mean(0))
    return rest @ direction, left @ direction


def _one_run(
    method: Method | MethodFor | None,
    records: PyTree | None,
    mechanism: Mechanism,
    delta: float,
    count: int,
    confidence: float,
    seed: int | None,
) -> tuple[float, int]:
    """Put each canary in by a coin, make one run, and test how many guesses about the coins come true."""
    if method is None and records is None:
        records = 1e6 * mechanism.clip * np.eye(count, dtype=np.float32)
    built, records = _built(method, records, mechanism)
    count = len(jax.tree.leaves(records)[0])
    coins = np.random.default_rng(seed).random(count) < 0.5
    everyone = jax.tree.map(lambda leaf: leaf[coins], records)
    state = _attacked(built, everyone, count, records, mechanism, 1, False, seed, False)
    return one_run_bound(np.asarray(state.scores[0]), coins, delta=delta, confidence=confidence), count
