"""Latent Dirichlet allocation: the textbook's updates where nothing is private, bounds where everything is."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from scipy.special import digamma

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine import lattice
from tacit.engine.runner import Runner
from tacit.engine.step import Step
from tacit.methods import lda as module
from tacit.methods.lda import LDAState, lda
from tacit.methods.running import start
from tacit.results.topics import documents, perplexity
from tacit.run.public import fit_public
from tacit.types import Method, Plan, PyTree, Release
from tacit.wall.data import PrivateData
from tests.conftest import without_noise

KEY = jax.random.key(0)
TOPICS, WORDS, WIDTH, COUNT = 3, 30, 12, 40
MECHANISM = Mechanism(0.5, 4.0, 1.0, 4)


def truth(words: int = WORDS) -> np.ndarray:
    """Return three topics, each on a third of the words, and a little on the others."""
    topics = np.full((TOPICS, words), 0.1)
    for topic in range(TOPICS):
        topics[topic, topic * words // TOPICS : (topic + 1) * words // TOPICS] = 3
    return topics / topics.sum(1, keepdims=True)


def corpus(count: int, seed: int = 0, words: int = WORDS, length: int = 20) -> sparse.csr_matrix:
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.full(TOPICS, 0.2), count) @ truth(words)
    return sparse.csr_matrix(np.stack([generator.multinomial(length, share) for share in shares]))


def records(count: int = COUNT) -> dict[str, np.ndarray]:
    return documents(corpus(count), width=WIDTH)


def total_of(method: tacit.Method, state: LDAState, made: PyTree) -> Release:
    each = jax.vmap(lambda record: method.contribute(state, record, KEY))(jax.tree.map(jnp.asarray, made))
    table = each.dense()
    return Release(table, jnp.float32(0), jnp.float32(1), table)


def built(**options: Any) -> Method:
    return lda(TOPICS, WORDS, **options)(Plan(jax.tree.map(lambda leaf: leaf[0], records())))


def is_finite(state: PyTree) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def same_bits(one: PyTree, two: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_a_contribution_is_that_of_the_textbook_in_double_precision() -> None:
    method, made = built(alpha=0.3, sweeps=25), records()
    concentration = np.random.default_rng(1).gamma(0.5, 2.0, (TOPICS, WORDS)) + 0.05
    state = method.init(KEY)._replace(likelihood=module.tables(jnp.asarray(concentration, jnp.float32)).likelihood)
    log_beta = digamma(concentration) - digamma(concentration.sum(1, keepdims=True))
    for document in range(5):
        count = np.zeros(WORDS + 1)
        count[made["word"][document]] = made["count"][document]
        count = count[:-1]
        gamma = np.full(TOPICS, 0.3 + count.sum() / TOPICS)
        for _ in range(25):
            phi = np.exp(digamma(gamma)[:, None] + log_beta)
            phi /= phi.sum(0)
            gamma = 0.3 + phi @ count
        one = method.contribute(state, jax.tree.map(lambda leaf, i=document: jnp.asarray(leaf[i]), made), KEY)
        np.testing.assert_allclose(one.dense()[:, :-1], (phi * count).T, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(one.dense()[:, -1], module.MARGIN * count, rtol=1e-6)


@pytest.mark.slow
def test_the_bound_never_falls_over_coordinate_updates() -> None:
    made = jax.tree.map(jnp.asarray, records(60))
    method = built(alpha=0.3, eta=0.2, sweeps=200, pace=lambda step: jnp.float32(1))
    state = method.init(KEY)

    @functools.partial(jax.jit, static_argnums=1)
    def elbo(concentration: Any, sweeps: int) -> Any:
        known = module.tables(concentration)
        each = jax.vmap(lambda record: module.bound(known, record, 0.3, sweeps))(made)
        return jnp.sum(each) + module.topic_bound(concentration, 0.2)

    # Within a document, sweep by sweep.
    concentration = method.point_estimates(state)["concentration"]  # type: ignore[misc]
    values = [float(elbo(concentration, sweeps)) for sweeps in (1, 2, 3, 5, 10, 200)]
    assert all(after >= before - 1e-5 * abs(before) for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 1
    # Between documents and topics, step by step.
    step = jax.jit(lambda state: method.update(state, total_of(method, state, made), KEY))
    values = []
    for _ in range(25):
        state = step(state)
        values.append(float(elbo(method.point_estimates(state)["concentration"], 200)))  # type: ignore[misc]
    assert all(after >= before - 1e-5 * abs(before) for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 10


def test_without_sampling_clip_and_noise_it_is_the_public_fit(
    open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice, "noise", without_noise)
    # The wall says how much noise there is; here there is none.
    monkeypatch.setattr(module, "repaired", lambda running, **_: jnp.maximum(running.statistics[:, :-1], 0))
    method, data = built(), PrivateData(records(), size=COUNT)
    start_state = jax.jit(method.init)(KEY)
    end = open_runner(method, data, Mechanism(1.0, 100.0, 0.04, 4)).advance(start_state, 0, 4)
    public = fit_public(method, records(), steps=4, key=KEY)
    found = method.point_estimates(end)["concentration"]  # type: ignore[misc]
    np.testing.assert_allclose(found, public.point_estimates["concentration"], rtol=2e-3, atol=2e-2)
    assert public.draws["topics"].shape == (1000, TOPICS, WORDS)
    np.testing.assert_allclose(public.draws["topics"].sum(2), 1, rtol=1e-4)


@pytest.mark.slow  # the battery of all methods has the same
def test_segments_empty_data_and_wild_records(open_runner: Callable[..., Runner]) -> None:
    method, data = built(), PrivateData(records(), size=COUNT)
    begin = jax.tree.map(jnp.asarray, jax.jit(method.init)(KEY))
    runner = open_runner(method, data, MECHANISM)
    whole = runner.advance(begin, 0, 4)
    assert same_bits(runner.advance(runner.advance(begin, 0, 1), 1, 4), whole)
    assert is_finite(whole)
    honest = runner._programs.storage.arrays
    for bad in (np.nan, np.inf, -np.inf, 3e38, -1.0):
        runner._programs.storage.arrays = {**honest, "count": honest["count"].at[3].set(bad)}
        assert is_finite(runner.advance(begin, 0, 4))
    runner._programs.storage.arrays = {**honest, "word": honest["word"].at[:].set(-(2**31))}
    nothing = runner.advance(begin, 0, 4)
    assert is_finite(nothing)
    assert not same_bits(nothing, begin)
    empty = PrivateData(jax.tree.map(lambda leaf: leaf[:0], records()), size=COUNT)
    assert is_finite(open_runner(method, empty, MECHANISM).advance(begin, 0, 4))


def test_no_document_exceeds_the_stated_sensitivity() -> None:
    method, data = built(), PrivateData(records(), size=COUNT)
    begin = method.init(KEY)
    step = Step(method, data, MECHANISM, begin)
    program = jax.jit(lambda state, rows: step.contributions.clipped(state, rows, KEY))
    generator = np.random.default_rng(5)
    longest = 0
    for scale in (1e-3, 1.0, 30.0, 1e30):
        kind = generator.integers(0, 4, (step.sizes.chunk, 1))
        word = generator.integers(0, WORDS, (step.sizes.chunk, WIDTH))
        word = np.where(kind == 0, 7, word)  # one word only
        word = np.where(kind == 1, generator.integers(-(2**31), 2**31, word.shape), word)
        count = np.abs(scale * generator.standard_cauchy(word.shape))
        count = np.where((kind == 2) & (generator.random(word.shape) < 0.2), np.nan, count)
        likelihood = generator.gamma(0.2, 1.0, (WORDS, TOPICS)) + 1e-20
        state = begin._replace(
            likelihood=jnp.asarray(likelihood / likelihood.max(1, keepdims=True), jnp.float32),
            scale=jnp.asarray(generator.uniform(0.1, 1, WORDS), jnp.float32),
        )
        rows = {"word": word.astype(np.int32), "count": count.astype(np.float32)}
        clipped = program(state, rows)
        # What the record adds to the whole table, its lines put together by 64-bit integers.
        for integers, places in zip(np.asarray(clipped.plain), np.asarray(clipped.places[0]), strict=True):
            table = np.zeros((WORDS + 1, TOPICS + 1), np.int64)
            np.add.at(table, places, integers.reshape(WIDTH, -1))
            square = int(np.sum(table[:-1] ** 2))
            assert square <= step.radius**2
            longest = max(longest, square)
        order = generator.permutation(step.sizes.chunk)
        moved = program(state, jax.tree.map(lambda leaf, at=order: leaf[at], rows))
        assert np.array_equal(moved.plain, np.asarray(clipped.plain)[order])
    assert longest > 0.9 * step.radius**2


def test_without_noise_nothing_is_repaired_and_with_it_little_is_made_up() -> None:
    generator = np.random.default_rng(6)
    words, topics, noise = 2000, 10, 5.0
    cells = np.where(generator.random((words, topics)) < 0.1, generator.exponential(100, (words, topics)), 0)
    exact = np.concatenate([cells, module.MARGIN * cells.sum(1, keepdims=True)], 1).astype(np.float32)
    running = start(exact)._replace(noise_std=jnp.zeros((words, 1)))
    np.testing.assert_array_equal(module.repaired(running), cells.astype(np.float32))
    noisy = exact + noise * generator.normal(size=exact.shape).astype(np.float32)
    found = np.asarray(
        jax.jit(module.repaired)(running._replace(statistics=noisy, noise_std=jnp.full((words, 1), noise)))
    )
    assert found.min() >= 0
    # Setting negatives to zero makes up 0.4 noise in each of the empty cells. The mean given the noisy value makes up
    # less, and is what has the smallest squared error.
    empty, clamped = cells == 0, np.maximum(noisy[:, :-1], 0)
    assert clamped[empty].mean() > 0.35 * noise
    assert found[empty].mean() < 0.5 * clamped[empty].mean()
    assert np.square(found - cells).mean() < np.square(clamped - cells).mean()
    # A third of these words never occur, and all are given a frequency above zero: the total is a little too large.
    assert abs(found.sum() - cells.sum()) < 0.25 * (clamped.sum() - cells.sum())


def test_words_of_a_kind_lend_each_other_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(7)
    words, noise = 1200, 12.0
    # A word's occurrences are spread evenly over one of four groups of three topics: none of its cells is far above the
    # noise, but together they are.
    shares = np.kron(np.eye(4), np.full(3, 1 / 3))[generator.integers(0, 4, words)]
    cells = (100 * shares).astype(np.float32)
    noisy = jnp.asarray(cells + noise * generator.normal(size=cells.shape), jnp.float32)

    def error() -> float:
        frequency, scale = jnp.full(words, 100.0), jnp.full(words, noise)
        return float(np.square(module._counts(noisy, frequency, scale) - cells).mean())

    apart = error()
    monkeypatch.setattr(module, "COMMON", 1e6)  # all kinds have the prior of all words
    assert apart < 0.7 * error()


def test_a_geometric_mean_counts_doubt_and_is_the_mean_where_there_is_none() -> None:
    generator = np.random.default_rng(8)
    words, topics = 600, 6
    cells = np.where(generator.random((words, topics)) < 0.3, generator.uniform(50, 150, (words, topics)), 0)
    frequency = jnp.asarray(cells.sum(1) + 1, jnp.float32)

    def both(noise: float) -> tuple[np.ndarray, np.ndarray]:
        noisy = jnp.asarray(cells + noise * generator.normal(size=cells.shape), jnp.float32)
        given = noisy, frequency, jnp.full(words, noise)
        return np.asarray(module._counts(*given)), np.asarray(module._counts(*given, geometric=True))

    mean, geometric = both(40.0)
    assert (geometric <= mean * (1 + 1e-4) + 1e-3).all()
    assert np.median(geometric / mean) < 0.5
    mean, geometric = both(0.01)
    full = cells > 0
    np.testing.assert_allclose(geometric[full], mean[full], rtol=1e-3)
    np.testing.assert_allclose(geometric[full], cells[full], rtol=1e-2)
    assert geometric[~full].max() < 0.5


def test_private_topics_are_found() -> None:
    data = PrivateData(documents(corpus(3000), width=WIDTH), size=3000)
    posterior = tacit.fit(
        lda(TOPICS, WORDS, alpha=0.2, eta=0.2),
        data,
        tacit.Budget(1.0, 1e-5),
        key=jax.random.key(1),
        simulate=1,
        progress=False,
    )
    found = posterior.draws["topics"].mean(0)
    distance = np.abs(found[:, None] - truth()[None]).sum(2) / 2
    # Fixed seeds: cannot fail by chance. Each true topic is near a topic of its own. Not from every start: from key 0
    # the fit without privacy ends in a poor optimum too.
    assert sorted(distance.argmin(1)) == [0, 1, 2]
    assert distance.min(1).max() < 0.25
    assert posterior.point_estimates["concentration"].shape == (TOPICS, WORDS)
    assert posterior.certificate is not None
    assert posterior.certificate.epsilon <= 1.0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="topics is 0"):
        lda(0, 5)
    with pytest.raises(ValueError, match="vocabulary is 0"):
        lda(2, 0)
    with pytest.raises(ValueError, match="alpha is -1"):
        lda(2, 5, alpha=-1.0)
    with pytest.raises(ValueError, match="sweeps is 0"):
        lda(2, 5, sweeps=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_newsgroups_as_well_as_scikit_learn() -> None:
    folder = os.environ.get("TACIT_DATA")
    if not folder:
        pytest.skip("TACIT_DATA is not set: needs newsgroups20_bow.npz")
    decomposition = pytest.importorskip("sklearn.decomposition")
    with np.load(Path(folder) / "newsgroups20_bow.npz") as file:
        matrix = sparse.csr_matrix((file["data"], file["indices"], file["indptr"]), tuple(file["shape"])).astype(float)
        train, held = matrix[: int(file["n_train"])], matrix[int(file["n_train"]) :][:2000]
    peer = decomposition.LatentDirichletAllocation(
        20, learning_method="online", batch_size=1024, max_iter=5, random_state=0, total_samples=train.shape[0]
    ).fit(train)
    longest = int(np.diff(matrix.indptr).max())
    ours = fit_public(
        # scikit-learn's own pace: an offset of 10, steps counted from 1, a decay of 0.7.
        lda(20, matrix.shape[1], pace=lambda step: (11.0 + step) ** -0.7, sweeps=50),
        documents(train, width=512),
        rate=1024 / train.shape[0],
        steps=55,
        key=jax.random.key(0),
    )
    whole = documents(held, width=longest)
    theirs, mine = (
        perplexity(c, whole, training=train.shape[0]) for c in (peer.components_, ours.point_estimates["concentration"])
    )
    print(f"perplexity: scikit-learn {theirs:.1f}, tacit {mine:.1f}")
    assert mine < 1.02 * theirs
