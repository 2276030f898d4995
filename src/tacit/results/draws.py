"""Draws of a posterior, and what they say: a row for each number, with what was learnt of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.ledger.certificate import Certificate
from tacit.results.learnt import Learnt, Shares, contraction_of, learnt_of
from tacit.results.shown import effects, group_of, moments_of, rows


class Draws:
    """Draws with their names, and what was learnt of each number.

    Privacy: post-processing.

    Parameters
    ----------
    draws
        Site name to array, with a leading axis of draws.
    labels
        Site name to what its numbers are called.
    prior
        One draw of the prior from a key, where it is known.
    validated
        Where it was measured how often such intervals hold the truth under privacy noise.
    noise_share, contraction
        Site name to what is known of each number already.

    Attributes
    ----------
    certificate
        What was certified; None where the records were public, and no privacy noise is in the draws.
    """

    certificate: Certificate | None = None

    def __init__(
        self,
        draws: Mapping[str, Any],
        labels: Mapping[str, Sequence[str]],
        prior: Any,
        validated: str,
        noise_share: Shares | None,
        contraction: Shares | None,
    ) -> None:
        self.labels = dict(labels)
        # Compiled programs give sites in the order of the alphabet; a formula has an order of its own.
        order = [*(name for name in self.labels if name in draws), *(name for name in draws if name not in self.labels)]
        self.draws = {name: np.asarray(draws[name]) for name in order}
        self.validated = validated
        self.noise_share = noise_share or {}
        self._prior = prior
        self._contraction = contraction

    @property
    def has_intervals(self) -> bool:
        """Whether the draws may be taken for intervals: they were validated, or no privacy noise is in them.

        Privacy: public.
        """
        return bool(self.validated) or self.certificate is None

    @property
    def contraction(self) -> Shares:
        """Site name to the contraction of each number: 1 minus the posterior's variance in units of the prior's.

        Privacy: post-processing. Sites whose prior is not known are left out.
        """
        if self._contraction is None:
            self._contraction = contraction_of(self.draws, self.labels, self._prior)
        return self._contraction

    def learnt(self) -> list[Learnt]:
        """Return contraction and noise share of every number, in the order of ``rows``.

        Privacy: post-processing.
        """
        return learnt_of(self.draws, self.labels, self.contraction, self.noise_share)

    def summary(self, *, unvalidated: bool = False) -> dict[str, dict[str, Any]]:
        """Return mean, standard deviation, the central 90% interval and what was learnt of every site, as ``shown``.

        Privacy: post-processing.

        Parameters
        ----------
        unvalidated
            Whether to return the quantiles as ``low`` and ``high`` even where nobody measured how often these hold the
            truth under privacy noise.

        Returns
        -------
        dict
            Site name to ``mean``, ``std``, ``low``, ``high``, ``contraction`` and ``noise_share``; the last two are
            None where they are not known.
        """
        intervals = unvalidated or self.has_intervals
        return {
            group_of(name) or name: {
                **moments_of(value, intervals=intervals),
                "contraction": self.contraction.get(name),
                "noise_share": self.noise_share.get(name),
            }
            for name, value in effects(self.draws, self.labels).items()
        }

    def shown(self) -> dict[str, np.ndarray]:
        """Return the draws as people read them: effects of a formula's groups themselves, not in units of their spread.

        Privacy: post-processing.
        """
        return {group_of(name) or name: value for name, value in effects(self.draws, self.labels).items()}

    def rows(self) -> list[tuple[str, float, float, float, float]]:
        """Return (label, mean, standard deviation, 5%, 95%) for every number of every site.

        Privacy: post-processing.
        """
        return list(rows(self.draws, self.labels))
