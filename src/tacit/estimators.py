"""Methods in the shape of scikit-learn's estimators: constructor, ``fit``, ``transform``.

scikit-learn is not needed. Parameters are read and set as it expects, so that pipelines and ``clone`` work.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np

from tacit.certificate import Certificate
from tacit.fit import fit
from tacit.mechanism import Budget
from tacit.methods.lda import lda
from tacit.posterior import Posterior
from tacit.topics import documents, perplexity, proportions
from tacit.wall.data import PrivateData


class LDA:
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
        As in ``tacit.documents``.
    size
        A public number of documents, about right; without it chunks are of a size that suits most.
    ledger
        Where looks at these documents are charged; as in ``tacit.PrivateData``.
    random_state
        Seed of the public randomness, an integer; the secret randomness never follows it.

    Attributes
    ----------
    components_
        Topics times vocabulary: the concentration of the topics' posterior.
    posterior_, certificate_
        The draws, and what they reveal.
    """

    components_: np.ndarray
    posterior_: Posterior
    certificate_: Certificate | None

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
        ledger: Any = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon, self.delta = epsilon, delta
        self.doc_topic_prior, self.topic_word_prior = doc_topic_prior, topic_word_prior
        self.rate, self.steps, self.clip = rate, steps, clip
        self.width, self.cap = width, cap
        self.size, self.ledger, self.random_state = size, ledger, random_state

    def fit(self, X: Any, y: Any = None) -> LDA:
        """Fit topics to private documents; the columns of the matrix are a public vocabulary.

        Privacy: reads records, through the wall.
        """
        method = lda(self.n_components, X.shape[1], alpha=self.doc_topic_prior, eta=self.topic_word_prior)
        data = PrivateData(documents(X, width=self.width, cap=self.cap), size=self.size, ledger=self.ledger)
        self.posterior_ = fit(
            method,
            data,
            Budget(self.epsilon, self.delta),
            rate=self.rate,
            steps=self.steps,
            clip=self.clip,
            key=None if self.random_state is None else jax.random.key(self.random_state),
            progress=False,
        )
        self.components_ = self.posterior_.points["concentration"]
        self.certificate_ = self.posterior_.certificate
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Give the topics' shares in each document.

        Privacy: the answer is as private as the documents given.
        """
        return proportions(self._fitted(), self._whole(X), alpha=self.doc_topic_prior)

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit, and give the topics' shares in each of the same documents.

        Privacy: the answer is as private as the documents given, and not covered by the certificate.
        """
        return self.fit(X).transform(X)

    def perplexity(self, X: Any) -> float:
        """Give an upper bound on the perplexity of public documents.

        Privacy: public. Never publish it for the documents of the fit.
        """
        return perplexity(self._fitted(), self._whole(X), alpha=self.doc_topic_prior)

    def score(self, X: Any, y: Any = None) -> float:
        """Give minus the logarithm of ``perplexity``: larger is better.

        Privacy: public. Never publish it for the documents of the fit, nor choose settings by it on them.
        """
        return -float(np.log(self.perplexity(X)))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Name the topics.

        Privacy: public.
        """
        return np.asarray([f"lda{topic}" for topic in range(self.n_components)], object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Give the parameters of the constructor.

        Privacy: public.
        """
        return {name: getattr(self, name) for name in _parameters()}

    def set_params(self, **params: Any) -> LDA:
        """Set parameters of the constructor.

        Privacy: public.
        """
        unknown = sorted(set(params) - set(_parameters()))
        if unknown:
            raise ValueError(f"LDA has no parameters {unknown}. Those it has are {_parameters()}.")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn, which is installed if it asks.

        Privacy: public.
        """
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="transformer",
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(sparse=True, positive_only=True),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_")

    def __repr__(self) -> str:
        return f"LDA({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def _fitted(self) -> Any:
        if not hasattr(self, "components_"):
            raise ValueError("LDA was not fitted yet. Call fit with the private documents first.")
        return self.components_

    def _whole(self, X: Any) -> dict[str, np.ndarray]:
        """Give documents as records of which nothing is thinned: what is not released needs no bound."""
        if X.shape[1] != self.components_.shape[1]:
            raise ValueError(
                f"The documents have {X.shape[1]} columns, and LDA was fitted to {self.components_.shape[1]}. "
                "Count the words of the same vocabulary."
            )
        lengths = np.asarray((X != 0).sum(1)).ravel()
        return documents(X, width=max(1, int(lengths.max(initial=1))))


def _parameters() -> list[str]:
    return list(inspect.signature(LDA.__init__).parameters)[1:]
