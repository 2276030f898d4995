"""ChaCha20 as a JAX generator: the RFC's vectors, streams that never meet, and the same bits on every path."""

from __future__ import annotations

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tacit import system
from tacit.engine import random


def key_of(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<u4")


def stream(key: np.ndarray, counters: list[int], nonce: str) -> bytes:
    words = tuple(int(word) for word in np.frombuffer(bytes.fromhex(nonce), "<u4"))
    blocks = random.block(jnp.asarray(key), jnp.asarray(counters, jnp.uint32), words)
    return np.asarray(blocks).astype("<u4").tobytes()


def data(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


COUNTING = bytes(range(32)).hex()
ZERO = "00" * 32

# --- the cipher ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counter", "nonce", "expected"),
    [
        pytest.param(
            COUNTING,
            1,
            "000000090000004a00000000",
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
            "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
            id="2.3.2",
        ),
        pytest.param(
            ZERO,
            0,
            "00" * 12,
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
            id="A.1-1",
        ),
        pytest.param(
            ZERO,
            1,
            "00" * 12,
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
            "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
            id="A.1-2",
        ),
        pytest.param(
            "00" * 31 + "01",
            1,
            "00" * 12,
            "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
            "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
            id="A.1-3",
        ),
        pytest.param(
            "00ff" + "00" * 30,
            2,
            "00" * 12,
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
            "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
            id="A.1-4",
        ),
        pytest.param(
            ZERO,
            0,
            "00" * 11 + "02",
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
            id="A.1-5",
        ),
    ],
)
def test_blocks_are_those_of_rfc_8439(key: str, counter: int, nonce: str, expected: str) -> None:
    assert stream(key_of(key), [counter], nonce).hex() == expected


def test_the_cipher_text_of_rfc_8439_section_2_4_2() -> None:
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    expected = (
        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b"
        "f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8"
        "07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
        "5af90bbf74a35be6b40b8eedf2785e42874d"
    )
    key_stream = stream(key_of(COUNTING), [1, 2], "000000000000004a00000000")
    assert bytes(a ^ b for a, b in zip(text, key_stream, strict=False)).hex() == expected


@pytest.mark.parametrize("count", [1, 4, 5, 1000, 4999, 5000, 5001, 5004, 5005, 131077])
@pytest.mark.parametrize("cores", [1, 2, 7])
def test_the_words_of_openssl_are_the_counter_mode_of_aes(
    count: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another mode of the cipher, under the child keys that JAX computes; GCM counts from 2 under each nonce."""
    monkeypatch.setattr(random, "WORDS_AT_ONCE", 5000)
    monkeypatch.setattr(system, "cores", lambda: list(range(cores)))
    numbers, group = [0, 7, 2**32 - 1], 1000
    out, least = random.room(4, count), random.room(4, -(-count // group))
    random.words(random.to_bytes(random.fixed(5)), numbers, out, least, group)
    assert not out[3].any(), "a row without a number stays as it is"

    def by_counter(child: bytes, nonce: int, size: int) -> bytes:
        start = modes.CTR(nonce.to_bytes(12, "little") + (2).to_bytes(4, "big"))
        return Cipher(algorithms.AES(child), start).encryptor().update(bytes(4 * size))

    for row, found, number in zip(out, least, numbers, strict=False):
        secret = jax.random.key_data(random.fixed(5))
        child = stream(secret, [0], np.asarray([random.WORDS, number, 0], "<u4").tobytes().hex())[:32]
        wanted = b""
        for start in range(0, count, 5000):
            size = min(5000, count - start)
            first = max(0, size - random.TAG)  # the last words are written over the tag, by a nonce of their own
            wanted += by_counter(child, 2 * start, first) + by_counter(child, 2 * start + 1, size - first)
        assert row.tobytes() == wanted
        assert found.tolist() == [row[first : first + group].min() for first in range(0, count, group)]
    blocks = [row[i : i + 4].tobytes() for row in out[:3] for i in range(0, count - 3, 4)]
    assert len(set(blocks)) == len(blocks), "no block of the cipher is used twice; by chance: below 2**-90"


@pytest.mark.parametrize("shape", [(1,), (1000,), (3, 77)])
def test_room_begins_where_jax_takes_it(shape: tuple[int, ...]) -> None:
    room = random.room(*shape)
    assert room.shape == shape
    assert room.dtype == np.uint32
    assert room.ctypes.data % 64 == 0
    assert not room.any()


# --- the three uses of a key --------------------------------------------------------------------------------


def test_each_use_is_a_stream_of_the_cipher_under_its_own_nonce() -> None:
    key = random.from_bytes(bytes(range(32)))
    raw = jnp.asarray(key_of(COUNTING))
    count = jnp.arange(3, dtype=jnp.uint32)
    assert np.array_equal(jax.random.bits(key, (48,), jnp.uint32), random.block(raw, count, (1, 0, 0)).reshape(-1))
    assert np.array_equal(data(jax.random.fold_in(key, 77)), random.block(raw, count[:1], (2, 77, 0))[0, :8])
    assert np.array_equal(data(jax.random.split(key, 3)), random.block(raw, count, (3, 0, 0))[:, :8])


def test_no_two_streams_share_a_block() -> None:
    """Any eight words met twice would be a reused (key, nonce, counter); by chance: below 2**-230."""

    @jax.jit
    def family(parent: jax.Array) -> tuple[jax.Array, jax.Array]:
        children = jax.random.split(parent, 20)
        folded = jax.vmap(lambda i: jax.random.fold_in(parent, i))(jnp.arange(20, dtype=jnp.uint32) - 1)
        grandchildren = jax.random.split(children[0], 5)
        keys = jnp.concatenate(
            [parent[None], children, folded, grandchildren, jax.random.fold_in(children[0], 0)[None]]
        )
        return jax.random.key_data(keys), jax.vmap(lambda key: jax.random.bits(key, (20, 8), jnp.uint32))(keys)

    keys, bits = family(random.fixed(5))
    seen = [row.tobytes() for row in np.concatenate([keys, bits.reshape(-1, 8)])]
    assert len(set(seen)) == len(seen) == 47 + 47 * 20


def test_split_takes_a_shape_and_a_prefix() -> None:
    key = random.fixed(6)
    children = data(jax.random.split(key, 6))
    assert np.array_equal(data(jax.random.split(key, (2, 3))).reshape(6, 8), children)
    assert np.array_equal(data(jax.random.split(key, 4)), children[:4])


def test_fold_in_tells_all_32_bits_apart() -> None:
    key = random.fixed(7)
    numbers = jnp.concatenate([jnp.zeros(1, jnp.uint32), jnp.uint32(1) << jnp.arange(32, dtype=jnp.uint32)])
    children = jax.jit(jax.vmap(lambda n: jax.random.key_data(jax.random.fold_in(key, n))))(numbers)
    assert len({row.tobytes() for row in np.asarray(children)}) == 33


# --- the same bits on every path ----------------------------------------------------------------------------


def test_eager_jit_and_vmap_agree() -> None:
    keys = jax.random.split(random.fixed(8), 2)
    functions = {
        "bits": lambda key: jax.random.bits(key, (33,), jnp.uint32),
        "split": lambda key: jax.random.key_data(jax.random.split(key, 3)),
        "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 9)),
    }
    for name, function in functions.items():
        eager = np.stack([function(key) for key in keys])
        compiled = jax.jit(function)
        assert np.array_equal(np.stack([compiled(key) for key in keys]), eager), name
        assert np.array_equal(jax.vmap(function)(keys), eager), name
    folded = jax.jit(jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(keys[0], i))))(jnp.arange(2))
    assert np.array_equal(folded, np.stack([data(jax.random.fold_in(keys[0], i)) for i in range(2)]))


@pytest.mark.parametrize("extra", [0, 1])
def test_long_streams_continue_short_ones(extra: int) -> None:
    """Beyond BLOCKS_AT_ONCE blocks the stream is made in chunks; the words must not notice."""
    key = random.fixed(9)
    count = random.BLOCKS_AT_ONCE * 16 + extra
    counters = jnp.arange(-(-count // 16), dtype=jnp.uint32)
    expected = random.block(jax.random.key_data(key), counters, (random.BITS, 0, 0)).reshape(-1)[:count]
    assert np.array_equal(jax.random.bits(key, (count,), jnp.uint32), expected)


def test_a_stream_of_several_chunks_under_vmap() -> None:
    keys = jax.random.split(random.fixed(10), 2)
    count = 2 * random.BLOCKS_AT_ONCE * 16 + 5
    both = jax.vmap(lambda key: jax.random.bits(key, (count,), jnp.uint32))(keys)
    assert np.array_equal(both[1], jax.random.bits(keys[1], (count,), jnp.uint32))
    assert len(np.unique(np.asarray(both)[:, ::16])) > 2 * (count // 16) - 100  # 32-bit birthdays: about 8 expected


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    bits = jax.random.bits(random.fixed(11), shape, jnp.uint32)
    assert bits.shape == shape
    longer = jax.random.bits(random.fixed(11), (15,), jnp.uint32)
    assert np.array_equal(bits.reshape(-1), longer[: bits.size])


# --- widths and distributions -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
def test_every_bit_of_every_width_is_fair(dtype: type) -> None:
    """Each bit and each pair of bits, z tests at a total false-alarm rate of 1e-6."""
    bits = np.asarray(jax.random.bits(random.fixed(12), (40000,), dtype))
    assert bits.dtype == dtype
    width = 8 * bits.dtype.itemsize
    signs = 2.0 * ((bits[:, None] >> np.arange(width, dtype=bits.dtype)) & 1) - 1
    tests = width + width * (width - 1) // 2
    bound = stats.norm.isf(1e-6 / (2 * tests)) * np.sqrt(len(bits))
    assert np.all(np.abs(signs.sum(0)) < bound)
    pairs = signs.T @ signs
    assert np.all(np.abs(pairs[np.triu_indices(width, 1)]) < bound)


def test_64_bit_words_are_pairs_of_the_stream() -> None:
    key = random.fixed(13)
    pairs = np.asarray(jax.random.bits(key, (20,), jnp.uint32)).astype(np.uint64).reshape(10, 2)
    with jax.enable_x64(True):
        wide = np.asarray(jax.random.bits(key, (2, 5), jnp.uint64))
        normal = jax.random.normal(key, (4,), jnp.float64)
    assert wide.dtype == np.uint64
    assert np.array_equal(wide.reshape(-1), (pairs[:, 0] << np.uint64(32)) | pairs[:, 1])
    assert normal.dtype == np.float64
    assert np.all(np.isfinite(normal))


def test_works_under_jax_random() -> None:
    """Kolmogorov-Smirnov and exact checks; false-alarm rate 2e-6."""
    keys = jax.random.split(random.fixed(14), 3)
    normal = jax.jit(lambda key: jax.random.normal(key, (20000,)))(keys[0])
    uniform = jax.jit(lambda key: jax.random.uniform(key, (20000,)))(keys[1])
    assert stats.kstest(np.asarray(normal), "norm").pvalue > 1e-6
    assert stats.kstest(np.asarray(uniform), "uniform").pvalue > 1e-6
    assert np.array_equal(np.sort(jax.random.permutation(keys[2], 1000)), np.arange(1000))


# --- where keys come from -----------------------------------------------------------------------------------


def test_fresh_keys_are_the_operating_systems_32_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert random.to_bytes(random.fresh()) != random.to_bytes(random.fresh())
    asked: list[int] = []

    def urandom(count: int) -> bytes:
        asked.append(count)
        return bytes(range(100, 100 + count))

    monkeypatch.setattr(os, "urandom", urandom)
    assert random.to_bytes(random.fresh()) == bytes(range(100, 132))
    assert asked == [32]


def test_bytes_round_trip() -> None:
    for secret in (bytes(range(32)), b"\xff" * 32, bytes(32)):
        key = random.from_bytes(secret)
        assert random.to_bytes(key) == secret
        assert np.array_equal(data(key), key_of(secret.hex()))
    key = jax.random.fold_in(random.fixed(15), 3)
    again = random.from_bytes(random.to_bytes(key))
    assert np.array_equal(jax.random.bits(again, (5,)), jax.random.bits(key, (5,)))


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises((ValueError, TypeError)):
        random.from_bytes(bytes(length))


def test_fixed_keys_are_the_seeds() -> None:
    keys = [random.to_bytes(random.fixed(seed)) for seed in (0, 1, 2, 2**31 - 1)]
    assert len(set(keys)) == 4
    assert keys[1] == random.to_bytes(random.fixed(1)) == random.to_bytes(jax.random.key(1, impl=random.CHACHA20))
    assert all(len(set(key)) > 16 for key in keys)  # spread by the cipher over all 32 bytes
    for a, b in itertools.combinations(keys, 2):
        assert sum(x == y for x, y in zip(a, b, strict=True)) < 8  # by chance: 2e-9
