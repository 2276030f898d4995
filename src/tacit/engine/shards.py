"""Records in shards, on several devices or processes: every shard adds its own share of the noise to its own sum.

    each shard     its Poisson subset, contributions, clip, integer sum      from a secret stream of its own
                   plus a rounded Gaussian of standard deviation RHO         its share of the noise
    each process   the sum over its shards, under masks                      to others it looks like random words
    together       one sum over all processes, modulo 2**32                  masks cancel
    everywhere     the same release and the same update

The union of Poisson subsets is one. The shares of V shards add up to a Gaussian of standard deviation RHO sqrt(V),
rounded (docs/proofs/distribute.md). Shards, not processes, decide the bits: any number of processes gives the same
sums.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int32, UInt32

from tacit.engine import lattice, random
from tacit.engine.programs import Programs
from tacit.engine.step import Step
from tacit.facts.schema import Schema
from tacit.types import Key, PyTree, Record, State
from tacit.wall import trace
from tacit.wall.data import PrivateData
from tacit.wall.storage import Storage

MOST = 1 << 12
"""Shards; their low limbs and carries stay within 32 bits."""


@final
class Shards(Storage):
    """Sealed records in shards, those of other processes out of reach. Nothing but the wall holds one.

    Privacy: reads records. Every process learns the number of records of the largest shard.

    Parameters
    ----------
    sealed
        The records of this process's shards, in order; all processes have equally many.
    """

    number: int

    def __init__(self, sealed: Sequence[Any]) -> None:
        self.placeholder, self.stand_in = sealed[0].placeholder, sealed[0]._stand_in
        self.max_records, counts = sealed[0].max_records, [part._count for part in sealed]
        parts = [
            jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:n], part._records)
            for part, n in zip(sealed, counts, strict=True)
        ]
        self.number, self.processes = len(parts) * jax.process_count(), jax.process_count()
        self.mesh = Mesh(np.asarray(jax.devices()), ("shard",))
        if self.number % self.mesh.size or self.number > MOST:
            raise ValueError(
                f"{self.number} shards cannot be dealt out evenly to {self.mesh.size} devices, or are more than "
                f"{MOST}. Choose a multiple of the number of devices."
            )
        self.mine = [jax.process_index() * len(parts) + i for i in range(len(parts))]
        self.lengths = {*counts, sum(counts)}
        self.count = max(1, int(np.max(gathered(np.asarray(max(counts), np.int64)))))

        def filled(filler: Any, *leaves: Any) -> Any:
            rows = np.broadcast_to(np.asarray(filler), (len(parts), self.count, *np.shape(filler))).copy()
            for i, leaf in enumerate(leaves):
                rows[i, : len(leaf)] = leaf
            return rows

        held = jax.tree.map(filled, self.stand_in, *parts)
        self.digests = [_digest(part) for part in parts]
        self.records = jax.tree.map(self.dealt, held)
        self._counts = counts
        self.counts = self.dealt(np.asarray(counts, np.int32))
        self._private = X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._publics = [row.tobytes() for row in gathered(np.frombuffer(public, np.uint8))]

    def dealt(self, held: Any) -> Array:
        """Make an array over all shards of what this process holds for its own."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, PartitionSpec("shard")), held)

    def same(self, value: Any) -> Array:
        """Make an array that all devices have of one that every process has."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, PartitionSpec()), np.asarray(value))

    def record(self, place: int) -> Record:
        """Refuse: a record may be in another process. The reference says so before it begins."""
        raise ValueError("Records in shards are not read one at a time.")

    def blocks(self) -> Iterator[PyTree]:
        """Return this process's records, shard by shard."""
        each = self.number // self.mesh.size
        for place in range(jax.local_device_count()):
            held = jax.tree.map(lambda leaf, place=place: leaf.addressable_shards[place].data, self.records)
            for i, count in enumerate(self._counts[place * each : (place + 1) * each]):
                if count:
                    yield jax.tree.map(lambda leaf, i=i, count=count: leaf[i, :count], held)

    def tag(self, secret: bytes, program: list[Any], machine: list[Any], key: np.ndarray) -> str:
        """Return the tag of all shards together; refuse processes that run different programs."""
        common = repr([*program, key.tolist()]).encode()
        hashes = gathered(np.frombuffer(hashlib.sha256(common).digest(), np.uint8))
        if (hashes != hashes[0]).any():
            raise ValueError(
                "The processes were given different models, recipes or keys, so that their sums do not belong "
                "together. Start them with one script and the same settings."
            )
        keyed = [(self._secret(secret, shard), digest) for shard, digest in self._known()]
        tags = b"".join(hmac.new(own, repr(machine).encode() + digest, "sha256").digest() for own, digest in keyed)
        every = gathered(np.frombuffer(tags, np.uint8))
        return hashlib.sha256(common + every.tobytes()).hexdigest()

    def streams(self, secret: bytes, tag: str, simulation: bool) -> tuple[Array, Array]:
        """Return the keys of this process's shards and of its masks, under a tag: other tags, other keys."""
        streams = [
            self._secret(secret, s)
            if simulation
            else hmac.new(self._secret(secret, s), b"stream " + tag.encode(), "sha256").digest()
            for s, _ in self._known()
        ]
        return self.dealt(np.stack([np.frombuffer(one, "<u4") for one in streams])), self._pads(tag)

    def _secret(self, secret: bytes, shard: int) -> bytes:
        return hmac.new(secret, b"shard %d" % shard, "sha256").digest()

    def _known(self) -> list[tuple[int, bytes]]:
        return list(zip(self.mine, self.digests, strict=True))

    def no_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros in place of the keys of this process's shards and of its masks."""
        devices = jax.local_device_count()
        return np.zeros((len(self.mine), 8), np.uint32), np.zeros((devices, self.processes, 9), np.uint32)

    def _pads(self, tag: str) -> Array:
        """Return a device's mask keys, one for each other process, and in front of each its sign: 1, or -1, or 0.

        Two processes share a key that nobody else can compute; one adds the words made of it, the other takes them off.
        """
        me = jax.process_index()
        pads = self.no_keys()[1]
        for other, public in enumerate(self._publics):
            if other != me:
                shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
                key = hmac.new(shared, b"mask " + tag.encode(), "sha256").digest()
                pads[0, other] = [1 if me < other else 0xFFFFFFFF, *np.frombuffer(key, "<u4")]
        return self.dealt(pads)


class InShards(Programs):
    """The program over records in shards, for all devices together."""

    def __init__(self, step: Step, data: PrivateData, state: State, secret: Key, key: Key) -> None:
        self.step = step
        self.storage: Shards = data._records
        self.processes = self.storage.processes
        one, several = PartitionSpec(), PartitionSpec("shard")
        program = jax.shard_map(
            self._segment(),
            mesh=self.storage.mesh,
            in_specs=(one, one, one, one, several, several, several, several),
            out_specs=one,
            check_vma=False,
        )
        whole = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        streams, pads = (self.storage.dealt(empty) for empty in self.storage.no_keys())
        lowered, self.text = trace.lower(
            jax.jit(program), whole, np.int32(0), np.int32(0), np.asarray(jax.random.key_data(key)),
            streams, pads, self.storage.counts, self.storage.records,
        )  # fmt: skip
        self._program = lowered.compile(compiler_options=step.sizes.options)

    def stream(self, secret: Key, tag: str, simulation: bool) -> tuple[Array, Array]:
        """Return the keys of this process's shards and of its masks, under a tag: other tags, other keys."""
        return self.storage.streams(random.to_bytes(secret), tag, simulation)

    def charged(self, first: int) -> None:
        """Wait: process 0 has the ledger, and nobody reads before its line is on disk."""
        wait(f"charged {first}")

    def agreed(self, found: bytes) -> bytes:
        """Return what process 0 found."""
        return agreed_bytes(found)

    def run(self, state: State, first: int, stop: int, stream: tuple[Array, Array], key: Key) -> State:
        """Take charged steps, all processes together.

        Privacy: reads records; only noisy sums leave.
        """
        same = self.storage.same
        after = self._program(
            jax.tree.map(same, state), same(np.int32(first)), same(np.int32(stop)), same(jax.random.key_data(key)),
            *stream, self.storage.counts, self.storage.records,
        )  # fmt: skip
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), jax.block_until_ready(after))

    def _segment(self) -> Callable[..., State]:
        """Return the program of one device: its shards one after the other, the sum over all devices, the update."""
        step = self.step
        draws: Any = step.draws
        ends = np.cumsum(step.blocks.sizes)[:-1]

        def segment(
            state: State, first: Any, stop: Any, key: Any, streams: Any, pads: Any, counts: Any, records: Any
        ) -> State:
            secrets = jax.random.wrap_key_data(streams, impl=random.CHACHA20)
            public = jax.random.wrap_key_data(key)

            def group(carry: tuple[Array, State]) -> tuple[Array, State]:
                start, state = carry
                steps = start + jnp.arange(step.sizes.steps_drawn)
                noise, subsets = jax.lax.map(lambda secret: draws.draw(secret, steps), secrets)
                keys = random.fold_in(public, steps)
                owns = None
                if step.method.per_record_key:
                    owns = jax.lax.map(lambda secret: jax.random.key_data(draws.record_keys(secret, steps)), secrets)

                def one(i: Array, state: State) -> State:
                    def add(s: Array, limbs: UInt32[Array, "2 d"]) -> UInt32[Array, "2 d"]:
                        record_key = (
                            None if owns is None else jax.random.wrap_key_data(owns[s, i], impl=random.CHACHA20)
                        )

                        def rows(positions: Array, _row: Any, _first: Any) -> PyTree:
                            return jax.tree.map(lambda leaf: leaf.at[s, positions].get(mode="clip"), records)

                        share = [block[s, i] for block in noise]
                        total = step.sums.sum(state, rows, subsets[s], i, keys[i], record_key, counts[s], noise=share)
                        return limbs + _limbs(total)

                    limbs = jax.lax.fori_loop(0, len(counts), add, jnp.zeros((2, step.dimension), jnp.uint32))
                    if self.storage.processes > 1:
                        limbs = limbs + _mask(pads, start + i, step.dimension)
                    limbs = jax.lax.psum(limbs, "shard")
                    high, low = (jnp.split(limb, ends) for limb in limbs)
                    totals = [_whole(*both) for both in zip(high, low, strict=True)]
                    return step.finish(state, step.blocks.whole(totals), keys[i])

                return start + step.sizes.steps_drawn, jax.lax.fori_loop(
                    0, jnp.minimum(step.sizes.steps_drawn, stop - start), one, state
                )

            return jax.lax.while_loop(lambda carry: carry[0] < stop, group, (first, state))[1]

        return segment


def seal(
    load: Callable[[int], Any],
    schema: Schema | None = None,
    *,
    shards: int,
    size: int | None = None,
    ledger: Any = None,
) -> Any:
    """Seal records that are dealt out to processes: each loads the shards that are its own.

    Every process calls this with the same arguments. What shard a record is in, and how many shards there are, decides
    the bits of a run; how many processes there are does not.

    Privacy: reads records, into the wall. Errors name columns, never values or counts. Every process learns how many
    records the largest shard has.

    Parameters
    ----------
    load
        ``load(i)`` gives the records of shard i, as `PrivateData` takes them; i is below ``shards``. It is called for
        the process's own shards only. All records of a unit must be in one shard.
    schema, size, ledger
        As in `PrivateData`; ``size`` is of all shards together. The ledger is opened by process 0 only.
    shards
        Their number, a multiple of the number of devices. More shards than processes let a run move to more processes.
    """
    if not isinstance(shards, int) or shards < 1 or shards % len(jax.devices()):
        raise ValueError(
            f"shards is {shards!r}, and there are {len(jax.devices())} devices, each of which takes equally many. "
            "Write a multiple of that."
        )
    each = shards // jax.process_count()
    first = jax.process_index() * each
    parts = [PrivateData(load(shard), schema) for shard in range(first, first + each)]
    return PrivateData(Shards(parts), schema, size=size, ledger=ledger if jax.process_index() == 0 else None)


def gathered(value: np.ndarray) -> np.ndarray:
    """Return what every process sent, along a new leading axis."""
    if jax.process_count() == 1:
        return value[None]
    return np.asarray(multihost_utils.process_allgather(value)).reshape(jax.process_count(), *value.shape)


def agreed(value: PyTree) -> PyTree:
    """Return what process 0 says, in all of them: arrays of shapes that all know."""
    return value if jax.process_count() == 1 else jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(value))


def agreed_bytes(content: bytes) -> bytes:
    """Return the bytes that process 0 holds, in all processes."""
    length = int(agreed(np.int32(len(content))))
    held = np.zeros(length, np.uint8)
    if jax.process_index() == 0:
        held[:] = np.frombuffer(content, np.uint8)
    return bytes(agreed(held).tobytes()) if length else b""


def wait(what: str) -> None:
    """Wait for all processes."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def _limbs(totals: list[lattice.Sum]) -> UInt32[Array, "2 d"]:
    both = (jnp.concatenate(part) for part in zip(*totals, strict=True))
    return jnp.stack([jax.lax.bitcast_convert_type(limb, jnp.uint32) for limb in both])


def _whole(high: UInt32[Array, "d"], low: UInt32[Array, "d"]) -> lattice.Sum:
    """Carry sums of limbs over: that of low limbs is below MOST * 2**16, that of high ones known modulo 2**32."""
    high = high + (low >> lattice.LIMB)
    low = low & ((1 << lattice.LIMB) - 1)
    return lattice.Sum(*(jax.lax.bitcast_convert_type(limb, jnp.int32) for limb in (high, low)))


def _mask(pads: UInt32[Array, "1 processes 9"], step: Int32[Array, ""], dimension: int) -> UInt32[Array, "2 d"]:
    """Return the words that a process adds to its limbs; over all processes they add up to nothing, modulo 2**32."""

    def add(j: Array, total: UInt32[Array, "2 d"]) -> UInt32[Array, "2 d"]:
        key = jax.random.fold_in(jax.random.wrap_key_data(pads[0, j, 1:], impl=random.CHACHA20), step)
        return total + pads[0, j, 0] * jax.random.bits(key, (2, dimension), jnp.uint32)

    return jax.lax.fori_loop(0, pads.shape[1], add, jnp.zeros((2, dimension), jnp.uint32))


def _digest(records: PyTree) -> bytes:
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(records):
        held = np.ascontiguousarray(leaf)
        digest.update(repr((held.shape, str(held.dtype))).encode() + held.tobytes())
    return digest.digest()
