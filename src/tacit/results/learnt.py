"""How far a posterior is the records' and not the prior's, and how much of an interval is privacy noise.

    contraction    1 - (width of the posterior / width of the prior)^2
    noise share    1 - width without the privacy noise / width

Widths are those of central 90% intervals: for normal distributions the contraction is 1 minus the ratio of variances,
and priors without a variance have one too. Draws from the prior are public and free; without the noise a posterior is
drawn as if the same release had been exact (``Method.noiseless``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.results.shown import effects, labelled
from tacit.types import Array, Key, Method, State

HALF = 0.5
"""A number whose contraction is less than that is mostly its prior's."""
PRIOR_DRAWS, FEWEST = 4000, 400
"""Draws from a prior, and how many at least; a prior with so many numbers that there would be fewer is left out."""
NUMBERS = 1 << 22
UNVALIDATED = "no intervals: this method's were not validated under privacy noise (summary(unvalidated=True) has them)"
PRIOR = "mostly the prior's"


class Learnt(NamedTuple):
    """What the records added to one number of a posterior; None where the method cannot say.

    Attributes
    ----------
    contraction
        1 minus the ratio of the posterior's variance to the prior's, by the widths of central 90% intervals.
    noise_share
        The share of the interval's width that is privacy noise.

    Privacy: post-processing.
    """

    contraction: float | None = None
    noise_share: float | None = None

    @property
    def mostly_prior(self) -> bool:
        """Whether the number is known to be mostly its prior's."""
        return self.contraction is not None and self.contraction < HALF

    @property
    def known(self) -> bool:
        """Whether anything is known."""
        return self.contraction is not None or self.noise_share is not None

    def cells(self) -> tuple[str, str, str]:
        """Return contraction, noise share and a remark, as they are printed."""
        first, second = ("unknown" if value is None else f"{value:.2f}" for value in self)
        return first, second, PRIOR if self.mostly_prior else ""


Shares = dict[str, np.ndarray]
"""Site name to a number for each of its numbers, between 0 and 1."""


def contraction_of(draws: Mapping[str, Any], labels: Mapping[str, Any], prior: Callable[[Key], Any] | None) -> Shares:
    """Return the contraction of every number whose prior is known.

    Privacy: post-processing. The prior is public.
    """
    size = sum(np.size(value[0]) for value in draws.values())
    count = min(PRIOR_DRAWS, NUMBERS // max(1, size))
    if prior is None or count < FEWEST:
        return {}
    before = jax.vmap(prior)(jax.random.split(jax.random.key(0), count))
    same = [name for name in draws if name in before and np.shape(before[name])[1:] == np.shape(draws[name])[1:]]
    ratio = _ratio({name: draws[name] for name in same}, {name: before[name] for name in same}, labels)
    return {name: np.clip(1 - value**2, 0, 1) for name, value in ratio.items()}


def noise_share_of(
    method: Method, drawing: Callable[[State, Key], dict[str, Array]], draws: dict[str, Array], state: State, key: Key
) -> Shares:
    """Return the share of every interval's width that is privacy noise, where the method can say it.

    Privacy: post-processing.

    Parameters
    ----------
    method
        The method.
    drawing
        What drew the posterior's draws from the state and the key.
    draws, state, key
        Those draws, that state and that key.
    """
    if method.noiseless is None:
        return {}
    labels = getattr(method.model.source, "labels", {})
    ratio = _ratio(drawing(method.noiseless(state), key), draws, labels)
    return {name: np.clip(1 - value, 0, 1) for name, value in ratio.items()}


def learnt_of(
    draws: Mapping[str, Any], labels: Mapping[str, Sequence[str]], contraction: Shares, noise_share: Shares
) -> list[Learnt]:
    """Return what was learnt of every number, in the order in which a posterior's rows are.

    Privacy: post-processing.
    """

    def at(shares: Shares, name: str, index: tuple[int, ...]) -> float | None:
        return float(shares[name][index]) if name in shares else None

    return [
        Learnt(at(contraction, name, index), at(noise_share, name, index)) for _, name, index in labelled(draws, labels)
    ]


def _ratio(one: Mapping[str, Any], other: Mapping[str, Any], labels: Mapping[str, Any]) -> Shares:
    """Divide the widths of the intervals of one posterior by those of another."""
    narrow, wide = (
        {name: np.subtract(*np.quantile(value, (0.95, 0.05), axis=0)) for name, value in effects(each, labels).items()}
        for each in (one, other)
    )
    return {name: np.asarray(narrow[name] / np.maximum(wide[name], 1e-30), np.float32) for name in narrow}
