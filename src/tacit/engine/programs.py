"""What a run compiles for the place where its records are: memory, disk or shards."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from typing import Any

from tacit.engine import random
from tacit.engine.step import Step
from tacit.types import Key, State
from tacit.wall.data import PrivateData


class Programs(ABC):
    """The compiled programs of a run. Whatever the storage, they take the same steps (tests/engine/test_disk.py).

    Attributes
    ----------
    step
        What is compiled.
    storage
        Where the records are.
    text
        What decides the programs' bits.
    processes
        How many processes take part.
    """

    step: Step
    storage: Any
    text: str
    processes: int = 1

    @abstractmethod
    def run(self, state: State, first: int, stop: int, stream: Any, key: Key) -> State:
        """Take charged steps.

        Privacy: reads records; only noisy sums leave.
        """

    def stream(self, secret: Key, tag: str, simulation: bool) -> Any:
        """Return the secret stream of a segment: under other tags others. A simulation is compared across data."""
        if simulation:
            return secret
        return random.from_bytes(hmac.new(random.to_bytes(secret), b"stream " + tag.encode(), "sha256").digest())

    def over(self, data: PrivateData) -> Programs | None:
        """Return the same programs over other records of the same number and shape, if they take any."""
        return None

    def charged(self, first: int) -> None:  # noqa: B027 - in one process there is nobody to wait for
        """Wait until the ledger line of steps is on disk for all who read records."""

    def agreed(self, found: bytes) -> bytes:
        """Return what all processes take for the fingerprint that this one found."""
        return found
