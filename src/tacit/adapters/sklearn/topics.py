"""Topics of documents in the shape of scikit-learn's LatentDirichletAllocation."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacit.adapters.sklearn.base import _Private
from tacit.methods.lda import lda
from tacit.results.topics import documents, perplexity, proportions


class PrivateTopics(TransformerMixin, _Private):  # type: ignore[misc]
    """Private topics of a matrix of word counts, in the shape of scikit-learn's LatentDirichletAllocation.

    Privacy: ``fit`` reads records, through the wall. What it leaves on the object is (epsilon, delta)-differentially
    private for each document; ``transform`` and ``perplexity`` are not private for the documents that they are given.

    Parameters
    ----------
    n_components
        The number of topics.
    epsilon, delta
        What may be spent on each document's protection.
    doc_topic_prior, topic_word_prior
        As ``alpha`` and ``eta`` of ``tacit.lda``.
    rate, steps, clip
        As in ``tacit.fit``; by default what suits ``tacit.lda``.
    width, cap
        As in ``tacit.topics.documents``.
    size
        A public number of documents, about right; without it chunks are of a size that suits most.
    ledger, random_state, simulate
        As in ``PrivateLogisticRegression``.

    Attributes
    ----------
    components_
        Topics times vocabulary: the concentration of the topics' posterior.
    posterior_, certificate_
        The draws, and what they reveal.
    """

    components_: np.ndarray

    def __init__(
        self,
        n_components: int = 10,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        rate: float | None = None,
        steps: int | None = None,
        clip: float | None = None,
        width: int = 128,
        cap: float | None = 2.0,
        size: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        simulate: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon, self.delta = epsilon, delta
        self.doc_topic_prior, self.topic_word_prior = doc_topic_prior, topic_word_prior
        self.rate, self.steps, self.clip = rate, steps, clip
        self.width, self.cap = width, cap
        self.size, self.ledger = size, ledger
        self.random_state, self.simulate = random_state, simulate

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit topics to private documents; the columns of the matrix are a public vocabulary.

        Privacy: reads records, through the wall.
        """
        X = self._counts(X, reset=True)
        method = lda(self.n_components, X.shape[1], alpha=self.doc_topic_prior, eta=self.topic_word_prior)
        records = documents(X, width=self.width, cap=self.cap)
        posterior = self._spend(method, records, rate=self.rate, steps=self.steps, clip=self.clip)
        self.components_ = posterior.point_estimates["concentration"]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the topics' shares in each document.

        Privacy: the answer is as private as the documents given.
        """
        shares = proportions(self._known(), self._whole(X), alpha=self.doc_topic_prior)
        return shares.astype(X.dtype if getattr(X, "dtype", None) in (np.float32, np.float64) else np.float64)

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit the topics and return their shares in each of the same documents.

        Privacy: the answer is as private as the documents given, and not covered by the certificate.
        """
        return self.fit(X).transform(X)

    def perplexity(self, X: Any) -> float:
        """Return an upper bound on the perplexity of public documents.

        Privacy: public. Never publish it for the documents of the fit.
        """
        return perplexity(self._known(), self._whole(X), alpha=self.doc_topic_prior)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the logarithm of ``perplexity``: larger is better.

        Privacy: public. Never publish it for the documents of the fit, nor choose settings by it on them.
        """
        return -float(np.log(self.perplexity(X)))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Name the topics.

        Privacy: public.
        """
        return np.asarray([f"topic{topic}" for topic in range(self.n_components)], object)

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn.

        Privacy: public.
        """
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def _known(self) -> Any:
        check_is_fitted(self)
        return self.components_

    def _counts(self, X: Any, *, reset: bool) -> Any:
        X = self._numbers(X, reset=reset, accept_sparse="csr")
        if (X.data < 0).any() if sparse.issparse(X) else (X < 0).any():
            raise ValueError(f"Negative values in data passed to {type(self).__name__}: X holds counts of words.")
        return X

    def _whole(self, X: Any) -> dict[str, np.ndarray]:
        """Return documents as records of which nothing is thinned: what is not released needs no bound."""
        X = self._counts(X, reset=False)
        longest = int(np.asarray((X != 0).sum(1)).max(initial=8))
        # Rounded up, so that few widths are ever compiled.
        return documents(X, width=1 << (longest - 1).bit_length())
