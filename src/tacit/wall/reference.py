"""The reference as ``tacit.fit`` runs it: the ledger first, then the steps, one after the other.

It keeps the rules of ``tacit.engine.Runner`` (docs/proofs/replay.md): the same ledger lines, a tag that hashes what
decides the bits, and randomness that belongs to the secret, the tag and what the program does.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from dataclasses import replace
from typing import Unpack, final

import jax
import numpy as np

from tacit.accounting.mechanism import Mechanism
from tacit.types import Key, Method, Record, State
from tacit.wall import keys, trace
from tacit.wall.border import RunFacts, charge_of, refuse_leaks, refuse_unfit, release_of, with_own_checks
from tacit.wall.data import PrivateData
from tacit.wall.environment import check_environment
from tacit.wall.precision import single_precision
from tacit.wall.step import Reference
from tacit.wall.storage import storage_of
from tacit.wall.tag import made_up, surroundings
from tacit.wall.units import Unit, sum_over_unit

SEGMENTS = 50
"""A run stops this many times: for the ledger, the checkpoint, and to tie noise to the program."""
MADE_UP = 8
"""Made-up records that distinguish one program from another."""


@final
class ReferenceRunner:
    """A method, a recipe and sealed records, with which private steps are taken.

    Privacy: reads records, in ``advance``; before it, for a keyed hash, and for checks of tacit's own whose refusal is
    noted on the ledger. The parameters are those of ``tacit.engine.Runner``.
    """

    chain = b""  # a fingerprint is taken in every segment, and nothing is carried from one to the next

    @single_precision
    def __init__(self, method: Method, data: PrivateData, mechanism: Mechanism, **facts: Unpack[RunFacts]) -> None:
        check_environment()
        if data.shards is not None:
            raise ValueError(
                'The records are dealt out to shards, and engine="reference" takes them in memory or on disk only. '
                "Leave the engine out."
            )
        self._key, self._data, self._ledgers = keys.normalised(facts["key"]), data, tuple(facts["ledgers"])
        method = with_own_checks(method)
        method = sum_over_unit(method) if isinstance(data._stand_in, Unit) else method
        state = jax.eval_shape(method.init, self._key)
        refuse_leaks(method, data, state, self._key)
        refuse_unfit(method, data, self._ledgers)
        self._reference = Reference(
            method, mechanism, data._stand_in, state, count=data._count, record=self._record, key=self._key
        )
        self._charge = charge_of(facts, mechanism, data)
        self._program = self._hash_of_program(method, state)
        self.segment = -(-mechanism.steps // SEGMENTS)
        self.distance = self._reference.distance
        self.rekey(facts["secret"])

    @single_precision
    def rekey(self, secret: Key, origin: bytes = b"") -> None:
        """Take another secret key, and with it another tag: nothing charged under the old one is replayed.

        Privacy: reads records, for a keyed hash that only the holder of the secret can check.
        """
        self._secret, self.origin = keys.to_bytes(secret), origin
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        digest.update(repr(["reference", self._program, self._charge.mechanism, surroundings(), origin]).encode())
        digest.update(np.asarray(jax.random.key_data(self._key)).tobytes())
        digest.update(storage_of(self._data._records).digest)
        self.tag = digest.hexdigest()
        self._segment, self._stream = -1, b""

    def resume_chain(self, chain: bytes) -> None:
        """Take nothing up (see ``chain``)."""

    def advance(self, state: State, first: int, stop: int) -> State:
        """Take the private steps ``first`` to ``stop - 1``; the ledger line is on disk before a record is read.

        Privacy: reads records. A step that this run has already taken with the same key, data and program gives the
        same bits again and is free; anything else is charged (docs/proofs/replay.md).
        """
        charge = replace(self._charge, first=first, stop=stop, tag=self.tag)
        for ledger in self._ledgers:
            ledger.charge(charge)
        return self._advance(state, first, stop)

    @single_precision
    def _advance(self, state: State, first: int, stop: int) -> State:
        """Take private steps that have been charged."""
        records = storage_of(self._data._records)
        records.unchanged()
        for step in range(first, stop):
            self._meet(state, step)
            state = self._reference.advance(state, self._stream, step)
        records.unchanged()  # before anything leaves: what was read is what was hashed
        return state

    def _meet(self, state: State, step: int) -> None:
        """Tie the randomness of a segment of steps to what the program does at the state in which it begins.

        Two programs that were taken for one would otherwise meet the same noise, and the difference of their releases
        would be that of their sums (docs/proofs/replay.md, A2). A simulation hides nothing: data are compared under it.
        """
        segment, inside = divmod(step, self.segment)
        if self._charge.simulation:
            self._stream = self._secret
        elif not inside:
            tag = f"{self.tag} {segment} {self._fingerprint(state)}"
            self._segment, self._stream = segment, hmac.new(self._secret, b"stream " + tag.encode(), "sha256").digest()
        elif self._segment != segment:
            raise ValueError(
                f"Step {step} is in the middle of a segment of {self.segment}, and its noise belongs to the state in "
                "which that segment began. Go on from a multiple of it. This is a mistake of tacit."
            )

    def _fingerprint(self, state: State) -> str:
        """Hash what the program makes of made-up records at a state.

        Privacy: public: no record takes part.
        """
        rng, digest = np.random.default_rng(0), hashlib.sha256()
        record_key = keys.fixed(0) if self._reference.method.per_record_key else None
        for _ in range(MADE_UP):
            record = jax.tree.map(lambda leaf: made_up(rng, np.asarray(leaf)), self._data._stand_in)
            for leaf in jax.tree.leaves(self._reference.contributed(state, record, self._key, record_key)):
                digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()

    def _hash_of_program(self, method: Method, state: State) -> str:
        """Hash the programs of a run with every array that they hold, and refuse those that call out of themselves."""
        made, record_key = self._reference, keys.fixed(0) if method.per_record_key else None
        programs = [
            trace.lower(made.contributed, state, self._data._stand_in, self._key, record_key),
            trace.lower(made.update, state, release_of(made.shape), self._key),
            trace.lower(jax.jit(method.init), self._key),
        ]
        return "".join(text for _, text in programs)

    def _record(self, place: int) -> Record:
        """Read one record.

        Privacy: reads a record.
        """
        return storage_of(self._data._records).record(place)

    def seal(self, content: bytes) -> str:
        """Return a keyed hash of public content that shows it was made under this key, data and program.

        Privacy: public, as long as the secret is.
        """
        return hmac.new(self._secret, self.tag.encode() + content, "sha256").hexdigest()

    def slack(self, steps: int, epsilon: float) -> float:
        """Bound what the samplers' distance from their exact laws adds to delta over the given steps.

        Privacy: public (docs/proofs/lattice.md, section 5).
        """
        return (1 + math.exp(epsilon)) * steps * self.distance
