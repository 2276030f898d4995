"""The audit of the real private step: a worst-case record, 10^5 releases with it and 10^5 without.

The claim audited is that of ONE step; a Runner takes many independent steps whose releases are collected. Secrets are
fixed and public. A bound is above the true ε with probability at most 0.001 by chance: that is the false-alarm rate of
every "at most" below. (Noise and rate are chosen where 10^5 runs can show 0.9: at rate 0.2 and noise 1 they cannot.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from tacit.accounting.mechanism import Mechanism
from tacit.engine import clip
from tacit.run.audit import canary_scores
from tacit.run.bounds import direct, lower_bound

RUNS = 100_000
DELTA = 1e-5
CLIP = 2.0
Released = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def released() -> Released:
    """Return the scores of 10^5 releases of one recipe, with the canary or without."""

    @functools.cache
    def run(rate: float, noise: float, inside: bool, wall: str = "honest") -> np.ndarray:
        return canary_scores(None, None, Mechanism(rate, CLIP, noise, 1), RUNS, inside, seed=100)

    return run


@pytest.mark.parametrize(("rate", "noise"), [(1.0, 1.0), (0.5, 1.0), (0.2, 0.5)])
def test_the_bound_lies_just_below_the_certified_epsilon(released: Released, rate: float, noise: float) -> None:
    claim = Mechanism(rate, CLIP, noise, 1)
    inside, outside = released(rate, noise, True), released(rate, noise, False)
    bound = lower_bound(inside, outside, mechanism=claim, delta=DELTA)
    certified = claim.cost(DELTA)
    print(f"rate {rate} noise {noise}: {bound:.4f} of {certified:.4f} = {bound / certified:.4f}")
    assert 0.9 * certified <= bound <= certified
    assert 0 < direct(inside, outside, delta=DELTA) < bound


def test_less_noise_than_claimed_is_caught(released: Released) -> None:
    claim = Mechanism(1.0, CLIP, 1.0 / 0.95, 1)
    bound = lower_bound(released(1.0, 1.0, True), released(1.0, 1.0, False), mechanism=claim, delta=DELTA)
    assert bound > claim.cost(DELTA)


def test_a_higher_rate_than_claimed_is_caught(released: Released) -> None:
    claim = Mechanism(0.2 / 1.1, CLIP, 0.5, 1)
    bound = lower_bound(released(0.2, 0.5, True), released(0.2, 0.5, False), mechanism=claim, delta=DELTA)
    assert bound > claim.cost(DELTA)


def test_a_contribution_longer_than_the_clip_is_caught(released: Released, monkeypatch: pytest.MonkeyPatch) -> None:
    # The fault is planted in the wall itself: contributions are 1.05 times as long as the clip.
    claim = Mechanism(1.0, CLIP, 1.0, 1)
    honest = clip.to_integers
    monkeypatch.setattr(clip, "to_integers", lambda *facts: honest(*facts) * 21 // 20)
    bound = lower_bound(released(1.0, 1.0, True, "faulty"), released(1.0, 1.0, False), mechanism=claim, delta=DELTA)
    assert bound > claim.cost(DELTA)
