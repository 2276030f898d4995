"""The engine: the private step of ``tacit.wall``, fast. ``Runner.advance`` alone releases anything of records.

Chunks of records in one compiled program, factored and sparse sums, bulk random numbers, records on disk and in shards.
It computes the integers of the reference, or stays within the proved radius of them where sums are factored
(tests/test_engine.py); what a step may reveal is decided in ``tacit.wall``, not here.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import importlib.metadata
import math
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Unpack, final

import jax
import numpy as np

from tacit import system
from tacit.accounting.mechanism import Mechanism
from tacit.engine import alias, files, lattice, random, sample, shards, sizes
from tacit.engine.fetch import OnDisk
from tacit.engine.memory import InMemory
from tacit.engine.programs import Programs
from tacit.engine.shards import InShards
from tacit.engine.step import Step, arrays
from tacit.types import Key, Method, PyTree, State
from tacit.wall import trace
from tacit.wall.border import RunFacts, charge_of, refuse_leaks, refuse_unfit, with_own_checks
from tacit.wall.border import released as released
from tacit.wall.data import PrivateData
from tacit.wall.environment import check_environment
from tacit.wall.precision import single_precision
from tacit.wall.storage import Memory, Storage, storage_of
from tacit.wall.units import Unit, sum_over_unit

LONG_SEGMENT = 100
"""Chunks of records in a segment from which on noise is tied to the program anew in each: that takes a chunk or so."""
PROGRAMS: dict[type[Storage], Callable[..., Programs]] = {
    Memory: InMemory,
    files.Stored: OnDisk,
    shards.Shards: InShards,
}
"""What takes the steps, by where the records are."""


@final
class Runner:
    """A method, a recipe and sealed records, compiled into one program that takes private steps.

    Privacy: reads records, in ``advance``; before it, for a keyed hash, and for checks of tacit's own whose refusal is
    noted on the ledger. Everything else is checked and compiled before any record is read.

    Parameters
    ----------
    method, data, mechanism
        What to run, on what, by which public recipe.
    facts
        Its keys, its ledgers, and how they name it (see `RunFacts`).
    """

    @single_precision
    def __init__(self, method: Method, data: PrivateData, mechanism: Mechanism, **facts: Unpack[RunFacts]) -> None:
        check_environment()
        key, secret, ledgers = random.normalised(facts["key"]), facts["secret"], facts["ledgers"]
        method = with_own_checks(method)
        # Here alone methods meet data: what is written for one record is summed over those of a unit.
        method = sum_over_unit(method) if isinstance(data._stand_in, Unit) else method
        state = jax.eval_shape(lambda key: arrays(method.init(key)), key)
        refuse_leaks(method, data, state, key)
        refuse_unfit(method, data, ledgers)
        step = Step(method, data, mechanism, state, key)
        self._step = step
        self._programs = PROGRAMS[type(storage_of(data._records))](step, data, state, secret, key)
        # The start decides the bits too, and is computed outside the segment; so do the compiler's options, the parts
        # in which random words are made, and what decides where fingerprints are taken.
        started = trace.lower(jax.jit(lambda key: arrays(method.init(key))), key)[1]
        meetings = (sizes.SEGMENTS, LONG_SEGMENT, step.sizes.expected_chunks)
        parts = (step.sizes.options, random.WORDS_AT_ONCE, alias.GROUP, meetings)
        self._text = self._programs.text + started + repr(parts)
        self._key, self._ledgers = key, tuple(ledgers)
        self._charge = charge_of(facts, mechanism, data)
        self.segment = sizes.segment_of(mechanism.steps)
        self.rekey(secret)
        self.distance = step.dimension * lattice.NOISE_DISTANCE + (mechanism.rate < 1) * sample.distance()
        self.distance *= step.shares

    @single_precision
    def rekey(self, secret: Key, origin: bytes = b"") -> None:
        """Take another secret key, and with it another tag: nothing charged under the old one is replayed.

        ``origin`` is a hash of the state from which steps are first taken under this key, empty for the method's start:
        the same noise on the sums of two states would cancel in their difference, so each state has its own.

        Privacy: reads records, for a keyed hash that only the holder of the secret can check.
        """
        self._secret, self.origin = secret, origin
        self.tag = _tag(secret, self._key, self._programs.storage, self._text, origin)
        self._begin_segment(None, b"", b"")

    def resume_chain(self, chain: bytes) -> None:
        """Take up the chain of fingerprints that a checkpoint holds: ``chain`` when it was written.

        Privacy: public.
        """
        self.chain = chain

    def advance(self, state: State, first: int, stop: int) -> State:
        """Take the private steps ``first`` to ``stop - 1``; the ledger line is on disk before a record is read.

        Privacy: reads records. A step that this run has already taken with the same key, data and program gives the
        same bits again and is free; anything else is charged.
        """
        charge = replace(self._charge, first=first, stop=stop, tag=self.tag)
        for ledger in self._ledgers:
            ledger.charge(charge)
        self._programs.charged(first)
        return self._advance(state, first, stop)

    @single_precision
    def _advance(self, state: State, first: int, stop: int) -> State:
        """Take private steps that have been charged."""
        if self._charge.simulation:
            return self._advance_within(state, first, stop)
        while first < stop:
            end = min(stop, (first // self.segment + 1) * self.segment)
            self._meet(state, first)
            state, first = self._advance_within(state, first, end), end
        return state

    def _meet(self, state: State, step: int) -> None:
        """Tie subsets and noise of a segment of steps to what the program did at the states it reached so far.

        Two programs that were taken for one, because something was missing in the tag, would otherwise meet the same
        noise, and the difference of their releases would be that of their sums (docs/proofs/replay.md).
        """
        segment, inside = divmod(step, self.segment)
        if inside and segment == self._segment:
            return
        if segment == self._segment:  # its first steps once more
            before = self._before
        elif not inside and (self._segment is None or segment == self._segment + 1):
            before = self.chain
        elif step == 0:
            before = b""
        else:
            raise ValueError(
                f"Step {step} does not follow the steps before it, and its noise belongs to what the program did in "
                f"them. Go on in order, from a multiple of {self.segment}. This is a mistake of tacit."
            )
        chain, now_and_then = before, segment & (segment - 1) == 0  # at a power of two
        if now_and_then or not before or self.segment * self._step.sizes.expected_chunks >= LONG_SEGMENT:
            found, alike = self._step.made_up.fingerprint(state, self._key, thorough=now_and_then)
            if not alike:
                raise RuntimeError(
                    f"At step {step} a contribution depends on its place among the records, which it did not before "
                    "the run began. Nothing of this step was released. Please report the model; until then, "
                    "run it on another processor or version of JAX."
                )
            chain = hashlib.sha256(before + self._programs.agreed(found)).digest()
        self._begin_segment(segment, before, chain)

    def _begin_segment(self, segment: int | None, before: bytes, chain: bytes) -> None:
        # Subsets and noise come from the secret AND the tag AND the fingerprints: other data or another program never
        # meets the same noise, whoever copied, shared or restarted the run's folder. A simulation hides nothing, and is
        # compared across data.
        self._segment, self._before, self.chain = segment, before, chain
        tag = f"{self.tag} {segment} {chain.hex()}"
        self._stream = self._programs.stream(self._secret, tag, self._charge.simulation)

    def _advance_within(self, state: State, first: int, stop: int) -> State:
        """Take charged steps of one segment."""
        return self._programs.run(state, first, stop, self._stream, self._key)

    @single_precision
    def rehearse(self, data: PrivateData, secret: Key, key: Key) -> Runner:
        """Return the same program for other made-up records of the same number and shape, without compiling it again.

        Privacy: refuses a runner whose secret is secret; a simulation protects nobody, and certifies that.
        """
        programs = self._programs.over(data) if self._charge.simulation else None
        if programs is None:
            raise ValueError(
                "Only a simulation in memory goes on with other records, of the same number, shape and declared size."
            )
        other = copy.copy(self)
        other._key, other._programs = random.normalised(key), programs
        other.rekey(secret)
        return other

    def seal(self, content: bytes) -> str:
        """Return a keyed hash of public content that shows it was made under this key, data and program.

        Privacy: public, as long as the secret is.
        """
        return hmac.new(random.to_bytes(self._secret), self.tag.encode() + content, "sha256").hexdigest()

    def slack(self, steps: int, epsilon: float) -> float:
        """Bound what the samplers' distance from their exact laws adds to delta over the given steps.

        Privacy: public.
        """
        return (1 + math.exp(epsilon)) * steps * self.distance


def versions() -> dict[str, str]:
    """Name the programs that take part in a step.

    Privacy: public.
    """
    packages = ("tacit", "jax", "jaxlib", "numpyro", "numpy", "cryptography")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {**found, "python": platform.python_version(), "device": jax.devices()[0].device_kind}


def _tag(secret: Key, key: Key, records: PyTree, program: str, origin: bytes) -> str:
    """Hash what decides the bits of a step, keyed by the secret: equal tags mean a replay shows nothing new."""
    machine = [platform.platform(), system.cores(), _processor(), _configuration()]
    facts = [program, versions(), origin]
    return storage_of(records).tag(random.to_bytes(secret), facts, machine, np.asarray(jax.random.key_data(key)))


def _configuration() -> list[tuple[str, str]]:
    """Return the settings of JAX and XLA, all but those of its caches and logs."""
    apart = (
        "jax_compilation_cache",
        "jax_persistent_cache",
        "jax_log",
        "jax_traceback",
        "jax_enable_compilation_cache",
    )
    held = {name: str(value) for name, value in jax.config.values.items() if not name.startswith(apart)}
    variables = ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "TF_XLA_FLAGS")
    return sorted((held | {name: os.environ.get(name, "") for name in variables}).items())


def _processor() -> list[str]:
    """Name the processor and its instruction set, for which the program is compiled; nothing where they are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
