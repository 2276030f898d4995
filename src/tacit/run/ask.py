"""One paid question: the noisy sum of a function of a record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.accounting.mechanism import Budget, calibrate
from tacit.engine.runner import Runner, released
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.ledger.provenance import whose
from tacit.results.numbers import fingerprint
from tacit.results.posterior import named
from tacit.run.certify import certify, leave_room
from tacit.run.folder import Facts, begin
from tacit.run.plan import check_types
from tacit.types import Key, Method, PyTree, Record, Release, State, is_sparse
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision


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
    """Release one number (or vector) about the records: the noisy sum of ``question(record)`` over all of them.

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

    Returns
    -------
    Answer
        The ``value``, the ``noise_std`` of the noise in it, and the certificate.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> data = tacit.PrivateData({"age": np.full(100, 50.0)})
    >>> answer = tacit.ask(data, lambda record: 1.0, tacit.Budget(1.0, 1e-6), clip=1.0)
    >>> round(float(answer.noise_std), 1)
    4.2
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
    run = begin(data, None, Facts(mechanism, budget, simulate), None)
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
    leave_room(runner.slack(mechanism.steps, budget.epsilon), budget)
    value, noise_std = runner.advance(method_state(run.key), 0, 1)
    numbers = {"answer": fingerprint(named({"value": value, "noise_std": noise_std}))}
    return Answer(value, noise_std, certify(ledger, run.name, budget, data, runner.slack, numbers, whose(question)))
