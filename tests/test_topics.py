"""Documents become records one at a time; what is made of topics agrees with scikit-learn and with hand counts."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

import tacit
from tacit.results.topics import coherence, documents, perplexity, proportions, top_words

GENERATOR = np.random.default_rng(0)
DENSE = GENERATOR.poisson(GENERATOR.gamma(0.3, 2.0, (40, 25)))
DENSE[7] = 0
MATRIX = sparse.csr_matrix(DENSE)


def dense(records: dict[str, np.ndarray], words: int = 25) -> np.ndarray:
    table = np.zeros((len(records["word"]), words + 1))
    np.add.at(table, (np.arange(len(table))[:, None], records["word"]), records["count"])
    assert not table[:, -1].any()
    return table[:, :-1]


def test_records_hold_the_matrix() -> None:
    records = documents(MATRIX, width=25)
    assert (records["word"].dtype, records["count"].dtype) == (np.int32, np.float32)
    assert np.array_equal(dense(records), DENSE)
    assert (records["word"][7] == 25).all()  # a document without words
    for other in (sparse.coo_matrix(DENSE), sparse.csc_matrix(DENSE.astype(float)), DENSE):
        assert all(np.array_equal(documents(other, width=25)[name], records[name]) for name in records)
    assert tacit.PrivateData(records).placeholder["word"].shape == (25,)
    # Entries that say the same word twice are one word.
    twice = sparse.coo_matrix((np.ones(3), ([0, 0, 0], [4, 4, 2])), (1, 25))
    assert documents(twice, width=3)["word"].tolist() == [[2, 4, 25]]


@pytest.mark.parametrize("dtype", [int, float])
def test_long_documents_are_thinned_by_a_rule_that_sees_them_alone(dtype: type) -> None:
    given = MATRIX.astype(dtype) if dtype is int else MATRIX * 0.37
    records = documents(given, width=6, cap=None)
    table, whole = dense(records), given.toarray()
    long = (whole > 0).sum(1) > 6
    assert 5 < long.sum() < 40
    np.testing.assert_allclose(table[~long], whole[~long], rtol=1e-6)
    assert ((table > 0).sum(1) <= 6).all()
    assert (table[whole == 0] == 0).all()
    if dtype is int:
        assert (table[long].sum(1) == 6).all()
        # At equal distances: no word is off its share by more than one occurrence.
        share = whole[long] * 6 / whole[long].sum(1, keepdims=True)
        assert np.abs(table[long] - share).max() < 1 + 1e-9
    for document in range(40):
        alone = documents(given[[document]], width=6)
        assert all(np.array_equal(alone[name][0], records[name][document]) for name in records)
    capped = documents(given, width=6, cap=1.0)
    assert np.array_equal(capped["count"], np.minimum(records["count"], 1))
    assert np.array_equal(capped["word"], records["word"])


def test_what_is_no_word_count_is_refused_without_telling_which() -> None:
    for bad in (-1.0, np.nan, np.inf):
        wrong = MATRIX.astype(float).tolil()
        wrong[3, 3] = bad
        with pytest.raises(ValueError, match="negative, missing or infinite"):
            documents(wrong)
    outside = sparse.csr_matrix(([1.0], [30], [0, 1]), (1, 31))
    outside._shape = (1, 25)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        documents(outside)
    with pytest.raises(TypeError, match="matrix of word counts"):
        documents([1, 2])
    with pytest.raises(ValueError, match="width is 0"):
        documents(MATRIX, width=0)
    with pytest.raises(ValueError, match="cap is 0"):
        documents(MATRIX, cap=0.0)


@pytest.mark.filterwarnings("ignore")
def test_perplexity_and_proportions_are_those_of_scikit_learn() -> None:
    decomposition = pytest.importorskip("sklearn.decomposition")
    peer = decomposition.LatentDirichletAllocation(
        4, doc_topic_prior=0.3, topic_word_prior=0.2, random_state=0, max_doc_update_iter=1000, mean_change_tol=1e-7
    ).fit(MATRIX)
    records = documents(MATRIX, width=25)
    ours = perplexity(peer.components_, records, alpha=0.3, eta=0.2, training=40)
    # The start of a document differs (theirs is random), and a few end in another optimum.
    assert ours == pytest.approx(peer.perplexity(MATRIX), rel=5e-3)
    shares = proportions(peer.components_, records, alpha=0.3)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-5)
    assert np.median(np.abs(shares - peer.transform(MATRIX)).max(1)) < 1e-3
    assert perplexity(peer.components_, records, alpha=0.3) < ours


def test_top_words_and_coherence() -> None:
    concentration = np.array([[5.0, 4, 1, 1], [1, 1, 4, 5]])
    assert top_words(concentration, ["a", "b", "c", "d"], 2) == [["a", "b"], ["d", "c"]]
    reference = sparse.csr_matrix([[1, 1, 0, 0], [2, 3, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    # a and b always come together, c and d never.
    np.testing.assert_allclose(coherence(concentration, reference, 2), [1, -1])
    apart = sparse.csr_matrix([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(coherence(concentration, apart, 2)[0], 0, atol=1e-12)  # independent


def test_tacit_does_without_scikit_learn() -> None:
    code = "import sys, tacit; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
