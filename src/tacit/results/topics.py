"""Documents for ``tacit.lda``, and what to make of its topics."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.methods import lda as method
from tacit.types import Array

__all__ = [
    "coherence",
    "documents",
    "perplexity",
    "proportions",
    "top_words",
]


def documents(matrix: Any, *, width: int = 128, cap: float | None = None) -> dict[str, np.ndarray]:
    """Turn a sparse matrix of word counts into records for ``tacit.lda``, one for each document.

    A document keeps at most ``width`` distinct words. One with more is thinned: its words are laid out one after
    another in the order of the vocabulary, and ``width`` of them are taken at equal distances. After that a word counts
    at most ``cap`` times. What becomes of a document depends on that document and these two numbers alone. A document
    without words stays a record, and contributes nothing.

    Privacy: none by itself. The records are as sensitive as the documents; hand them to ``tacit.PrivateData``.

    Parameters
    ----------
    matrix
        Documents times vocabulary, of any scipy sparse format (or a dense array).
    width
        The largest number of distinct words; a public number, chosen without looking at the documents.
    cap
        The largest count of a word in a document, public too; none by default. Words come in bursts, and a burst takes
        a large part of a document's clip to say what its first occurrences said: 2 serves private fits well.

    Returns
    -------
    dict
        ``word`` (int32) and ``count`` (float32), both documents times width, filled up with the size of the vocabulary
        and with 0.
    """
    from scipy import sparse

    if width < 1:
        raise ValueError(f"width is {width}; no word would be left of a document. Write width=128.")
    if cap is not None and not cap > 0:
        raise ValueError(f"cap is {cap}; no word would count. Write cap=2.0, or leave it out.")
    if not sparse.issparse(matrix) and np.ndim(matrix) != 2:
        raise TypeError(
            f"The documents are of type {type(matrix).__name__}. Pass a matrix of word counts, documents by "
            "vocabulary, such as scikit-learn's CountVectorizer makes."
        )
    rows = sparse.csr_matrix(matrix, copy=True)
    if rows.dtype.kind not in "biuf":
        raise TypeError(f"The word counts are of type {rows.dtype}. Pass numbers.")
    if not np.isfinite(rows.data).all() or (rows.data < 0).any():
        # Which document it is, and what it holds, is private.
        raise ValueError(
            "A word count is negative, missing or infinite. Counts say how often a word occurs; correct them."
        )
    if rows.nnz and (rows.indices.min() < 0 or rows.indices.max() >= rows.shape[1]):
        raise ValueError(
            f"A document has a word outside the vocabulary of {rows.shape[1]} words. Add a column for every word."
        )
    rows.sum_duplicates()
    rows.eliminate_zeros()
    count, vocabulary = rows.shape
    lengths = np.diff(rows.indptr)
    data = rows.data.astype(np.float64)
    for document in np.flatnonzero(lengths > width):
        # One at a time: even the rounding of a sum must not depend on other documents.
        part = slice(rows.indptr[document], rows.indptr[document + 1])
        total = data[part].sum()
        upto = np.floor(np.cumsum(data[part]) * (width / total) + 0.5)
        upto[-1] = width
        data[part] = np.diff(upto, prepend=0) * min(1.0, total / width)
    owner = np.repeat(np.arange(count), lengths)
    kept = data > 0
    owner, data, indices = owner[kept], data[kept], rows.indices[kept]
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))])[:-1]
    place = np.arange(len(owner)) - starts[owner]
    word = np.full((count, width), vocabulary, np.int32)
    times = np.zeros((count, width), np.float32)
    word[owner, place], times[owner, place] = indices, data if cap is None else np.minimum(data, cap)
    return {"word": word, "count": times}


def proportions(concentration: Array, records: dict[str, Any], *, alpha: float | None = None) -> np.ndarray:
    """Return each document's expected shares of the topics.

    Privacy: public for public documents; for private ones the answer is as private as the documents.
    """
    gamma = _mapped(method.proportions, concentration, records, alpha)
    return np.asarray(gamma / gamma.sum(1, keepdims=True))


def perplexity(
    concentration: Array,
    records: dict[str, Any],
    *,
    alpha: float | None = None,
    eta: float | None = None,
    training: int | None = None,
) -> float:
    """Return an upper bound on the perplexity of public held-out documents: exp(-bound on a word's evidence).

    Privacy: public. Never publish it for the documents that the topics were fitted to.

    Parameters
    ----------
    concentration
        Topics times vocabulary, the point of a fitted posterior.
    records
        Documents that are public, as ``documents`` makes them.
    alpha, eta
        As in ``tacit.lda``.
    training
        A public number of documents that the topics were fitted to. The topics' own part of the bound is counted in
        the proportion of held-out to training documents; without it, not at all.
    """
    topics = len(concentration)
    total = float(np.sum(np.asarray(_mapped(method.bound, concentration, records, alpha), np.float64)))
    if training is not None:
        prior = method.topic_bound(jnp.asarray(concentration), 1 / topics if eta is None else eta)
        total += float(prior) * len(records["word"]) / training
    return float(np.exp(-total / np.sum(records["count"], dtype=np.float64)))


def top_words(concentration: Array, words: Any, count: int = 10) -> list[list[str]]:
    """Return the most probable words of each topic.

    Privacy: post-processing; ``words`` is the public vocabulary.
    """
    order = np.argsort(-np.asarray(concentration), axis=1, kind="stable")[:, :count]
    return [[str(words[word]) for word in line] for line in order]


def coherence(concentration: Array, matrix: Any, count: int = 10) -> np.ndarray:
    """Return each topic's coherence by normalised pointwise mutual information of its top words in reference documents.

    From -1 to 1, high if the top words occur in the same documents. Words that never occur there count as -1.

    Privacy: public. The reference documents must be public.

    Parameters
    ----------
    concentration
        Topics times vocabulary.
    matrix
        Public reference documents times vocabulary, sparse.
    count
        How many top words are looked at.
    """
    from scipy import sparse

    order = np.argsort(-np.asarray(concentration), axis=1, kind="stable")[:, :count]
    present = (sparse.csc_matrix(matrix) > 0).astype(np.float64)
    size = present.shape[0]
    result = []
    for line in order:
        some = present[:, line]
        both = np.asarray((some.T @ some).todense()) / size
        alone = np.diag(both)
        i, j = np.triu_indices(len(line), 1)
        joint, apart = both[i, j], alone[i] * alone[j]
        seen = joint > 0
        safe = np.where(seen, joint, 0.5)
        value = np.log(safe / np.where(seen, apart, 1)) / -np.log(np.minimum(safe, 1 - 1e-12))
        result.append(np.mean(np.where(seen, np.minimum(value, 1), -1)))
    return np.asarray(result)


def _mapped(function: Any, concentration: Array, records: dict[str, Any], alpha: float | None, size: int = 64) -> Any:
    """Apply a function of one document to all of them, some at a time."""
    known = method.tables(jnp.asarray(concentration, jnp.float32))
    given = {name: jnp.asarray(records[name]) for name in ("word", "count")}
    return _each(function, 1 / len(concentration) if alpha is None else alpha, size, known, given)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _each(function: Any, alpha: float, size: int, known: Any, given: Any) -> Any:
    return jax.lax.map(lambda record: function(known, record, alpha=alpha), given, batch_size=size)
