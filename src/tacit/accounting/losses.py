"""The privacy loss distribution of a recipe, on a grid that dominates the true one.

With G(z) the hockey-stick divergence of N(1, s²) from N(0, s²) at z, one step has the closed forms::

    remove   δ(t) = q G(z),                    e^z = 1 + (e^t - 1) / q
    add      δ(t) = q e^(t+z) G(-z),           e^z = 1 + (e^-t - 1) / q
    replace  δ(t) = q (G(w - c) + e^(t-w-c) G(w + c)),   c = 1 / 2s²,
             w = t/2 + asinh(sinh(t/2) e^c (1 - q) / q)
    exchange as remove with s / 2, in both directions

The last is for subsets of a fixed size, drawn without replacement: where a record is not drawn another one is, so its
subsets and those without it differ by up to twice the clip, as do its subsets and those of the record that replaces it;
advanced joint convexity (Balle, Barthe and Gaboardi 2018) does the rest.

The curves are joined by connect-the-dots (Doroshenko et al. 2022) into a privacy loss distribution on a grid, which
dominates the true one whatever the grid. It is composed with itself by a discrete Fourier transform, where what falls
outside of the grid counts as certain disclosure (Koskela, Jälkö and Honkela 2020). The grid is fine enough that the
bound is within about 0.1% of the truth. What floating-point arithmetic may lose is added: see `rounding_slack`.

Every function is *public*.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special  # type: ignore[import-untyped]

from tacit.accounting.checks import FIXED_SIZE
from tacit.accounting.gaussian import Floats, hockey_stick
from tacit.accounting.renyi import epsilon_from_renyi, renyi_curve

# The grid step is the spread of the total loss times sqrt(12 a / steps): rounding to the grid then adds about
# the fraction a to its variance. The search for a noise multiplier starts on a coarse grid and ends on the
# certified one.
FINE = 4e-4
_FEWEST_POINTS = 1000
_FEWEST_COARSE = 100
_MOST_POINTS = 2**19
# A sum of losses takes up so many places at most, on a coarser grid if it must.
_MOST_SUMS = 2**20

# Mass that may be cut from the tails; what is cut is counted as certain disclosure.
_TAIL = 1e-15
# Below it a mass is moved to certain disclosure before the distribution is composed.
_FAINT = 1e-32


def rounding_slack(steps: int) -> float:
    """Return what floating-point arithmetic may have taken from a composed δ.

    The composition raises a discrete Fourier transform to the power `steps`, which multiplies its rounding
    errors by at most about that number: against extended precision the error of δ stays below 3e-16 a step.
    Fourteen times as much is added to every δ that is certified.

    Privacy: public.
    """
    return steps * 2.0**-48


class LossDistribution(NamedTuple):
    """A privacy loss distribution: masses at losses that are multiples of the spacing, the first of them given in
    such units, and the mass at infinity."""

    spacing: float
    first: int
    masses: Floats
    certain: float

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence at ε, of either sign."""
        place = self._above(epsilon)
        losses = np.arange(self.first + place, self.first + len(self.masses)) * self.spacing
        return self.certain + float(np.sum(-np.expm1(epsilon - losses) * self.masses[place:]))

    def deltas(self, epsilons: Floats) -> Floats:
        """Return the hockey-stick divergence at many increasing ε."""
        ends = [*map(self._above, epsilons.tolist()), len(self.masses)]
        found = np.empty(len(epsilons))
        upper, lower, before = self.certain, 0.0, float(epsilons[-1])
        for i in range(len(epsilons) - 1, -1, -1):
            # Masses above ε in P, and in Q times e^ε: only those up to the next ε are new.
            here, epsilon = self.masses[ends[i] : ends[i + 1]], float(epsilons[i])
            losses = np.arange(self.first + ends[i], self.first + ends[i + 1]) * self.spacing
            upper += float(np.sum(here))
            lower = lower * math.exp(epsilon - before) + float(np.sum(here * np.exp(epsilon - losses)))
            found[i], before = upper - lower, epsilon
        return found

    def epsilon(self, delta: float) -> float:
        """Return the least ε of at least 0 at which the hockey-stick divergence is at most δ; infinite if none is."""
        if self.certain > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        # At the last loss only the mass at infinity is left. Look for the first one that is enough.
        enough, short = len(self.masses) - 1, max(-1, -self.first)
        decay = np.exp(-self.spacing * np.arange(len(self.masses) - max(0, short)))

        def masses(place: int) -> tuple[float, float]:
            here = self.masses[place:]
            return self.certain + float(np.sum(here)), float(np.sum(here * decay[: len(here)]))

        while enough - short > 1:
            place = (enough + short) // 2
            upper, lower = masses(place)
            enough, short = (place, short) if upper - lower <= delta else (enough, place)
        upper, lower = masses(enough)
        loss = (self.first + enough) * self.spacing
        # Between two losses δ is upper - e^(ε - loss) lower.
        return max(0.0, loss + min(0.0, math.log((upper - delta) / lower))) if upper > delta and lower > 0 else loss

    def _above(self, epsilon: float) -> int:
        """Return the place of the first loss above ε, the number of places if there is none."""
        place = min(max(math.floor(epsilon / self.spacing) + 1 - self.first, 0), len(self.masses))
        if place > 0 and (self.first + place - 1) * self.spacing > epsilon:
            return place - 1
        if place < len(self.masses) and (self.first + place) * self.spacing <= epsilon:
            return place + 1
        return place

    def span(self, steps: int) -> tuple[int, int]:
        """Return the first and the last place that the sum of so many independent losses takes up."""
        return _reach(self._heavy()[1], steps) if steps > 1 else (0, 0)

    def _heavy(self) -> tuple[int, Floats]:
        """Return the first place of a mass that counts, and the masses from there to the last."""
        heavy = np.flatnonzero(self.masses >= _FAINT)
        begin, end = int(heavy[0]), int(heavy[-1]) + 1
        return begin, np.where(self.masses < _FAINT, 0.0, self.masses)[begin:end]

    def composed(self, steps: int, span: tuple[int, int] | None = None) -> LossDistribution:
        """Return the distribution of the sum of so many independent losses, within its ``span``."""
        if steps == 1:
            return self
        # Arithmetic with the smallest floats is slow. Their masses count as certain disclosure, which dominates.
        begin, masses = self._heavy()
        certain = self.certain + float(np.sum(self.masses[self.masses < _FAINT]))
        low, high = _reach(masses, steps) if span is None else span
        first = (self.first + begin) * steps + low
        certain = _TAIL - math.expm1(steps * math.log1p(-certain))
        return LossDistribution(self.spacing, first, _self_convolved(masses, steps, low, high), certain)


def _reach(masses: Floats, steps: int) -> tuple[int, int]:
    """Return places between which all but _TAIL of the mass of a sum of so many places lies, by Chernoff's bound.

    The bound holds at any order; it is followed from the one that is best for a Gaussian as long as it gets better.
    """
    # Sums of products, since a matrix product would start threads.
    last = len(masses) - 1
    places = np.flatnonzero(masses).astype(np.float64)
    masses = masses[masses != 0]
    centre = float(np.sum(places * masses))
    variance = max(float(np.sum((places - centre) ** 2 * masses)), 1e-6)
    wanted = math.log(2 / _TAIL)
    usual = math.sqrt(2 * wanted / (steps * variance))

    def distance(order: float, sign: int) -> float:
        exponents = (sign * order) * (places - centre)
        top = float(exponents.max())
        log_mgf = top + math.log(float(np.sum(np.exp(exponents - top) * masses)))
        return (steps * log_mgf + wanted) / order

    def best(sign: int) -> float:
        least = distance(usual, sign)
        for factor in (1.5, 1 / 1.5):
            order = usual * factor
            while (found := distance(order, sign)) < least:
                least, order = found, order * factor
        return least

    with np.errstate(under="ignore"):
        low, high = centre * steps - best(-1), centre * steps + best(1)
    return max(0, math.floor(low)), min(last * steps, math.ceil(high))


def _self_convolved(masses: Floats, steps: int, low: int, high: int) -> Floats:
    """Return the masses of a sum of so many places, from `low` to `high`; those outside are added inside."""
    from scipy import fft

    size = fft.next_fast_len(max(high - low + 1, len(masses)), real=True)
    base = fft.rfft(masses, size)
    power, left = None, steps
    with np.errstate(under="ignore"):
        # By squares: a complex power takes a logarithm and is some ten times as slow.
        while left:
            if left & 1:
                power = base.copy() if power is None else np.multiply(power, base, out=power)
            left >>= 1
            if left:
                np.multiply(base, base, out=base)
    # The transform wraps around: place k is at k modulo its length.
    sums = np.roll(fft.irfft(power, size), -low)
    return np.asarray(sums[: high - low + 1], dtype=np.float64)


# Few, because one may hold millions of numbers.
@lru_cache(maxsize=8)
def loss_distributions(
    rate: float,
    noise: float,
    steps: int,
    adjacency: str,
    accuracy: float,
    whole: bool,
    only_first: bool = False,
) -> tuple[LossDistribution, ...]:
    """Compose one step's privacy loss distribution: one for each direction in which neighbours differ.

    `whole` asks for accuracy near ε = 0 as well as in the tail.
    """
    directions = {"add-remove": ("remove", "add"), "replace-one": ("replace",), FIXED_SIZE: ("exchange",)}[adjacency]
    fewest = _FEWEST_COARSE if accuracy > FINE else _FEWEST_POINTS
    curves = []
    for direction in directions[:1] if only_first else directions:
        low, high = _loss_range(rate, noise, direction, _TAIL / steps)
        spacing = _spread(rate, noise, steps, adjacency, whole) * math.sqrt(12 * accuracy / steps)
        # Zero is always on the grid; with very little noise all losses may lie on one side of it.
        width = max(high, 0.0) - min(low, 0.0)
        spacing = min(max(spacing, width / _MOST_POINTS), width / fewest)
        loss = LossDistribution(spacing, *_connect_dots(rate, noise, direction, low, high, spacing))
        # Any spacing gives an upper bound. A coarser one is taken where the sum would not fit into memory: for millions
        # of steps, and for recipes that protect nobody, such as a forged certificate may hold.
        while (size := (span := loss.span(steps))[1] - span[0] + 1) > _MOST_SUMS:
            spacing *= 1.02 * size / _MOST_SUMS
            loss = LossDistribution(spacing, *_connect_dots(rate, noise, direction, low, high, spacing))
        curves.append(loss.composed(steps, span))
    return tuple(curves)


@lru_cache(maxsize=8)
def trade_off_tables(rate: float, noise: float, steps: int, adjacency: str) -> tuple[tuple[Floats, Floats], ...]:
    """Tabulate (ε, δ(ε)) for each direction, ε running over both signs."""
    tables = []
    for loss in loss_distributions(rate, noise, steps, adjacency, FINE, True):
        end = loss.epsilon(min(0.5, rounding_slack(steps) + 1e-13))
        # Any set of ε gives a valid bound; this one is dense enough that the bound is tight.
        epsilons = np.linspace(-end, end, 4001) if end > 0 else np.zeros(1)
        deltas = loss.deltas(epsilons) + rounding_slack(steps)
        tables.append((epsilons, np.minimum(1.0, deltas)))
    return tuple(tables)


def _spread(rate: float, noise: float, steps: int, adjacency: str, whole: bool) -> float:
    """Return about the standard deviation of the total loss, as the tail sees it.

    Where rare large losses decide (small rate and noise) the Rényi bound knows the scale and the central
    limit does not; a Gaussian loss of standard deviation μ has ε near 6 μ at δ = 1e-6. It chooses the grid
    and certifies nothing.
    """
    if adjacency == FIXED_SIZE:
        noise, adjacency = noise / 2, "add-remove"
    tail = epsilon_from_renyi(renyi_curve(rate, noise, adjacency), steps, 1e-6) / 6
    if not whole:
        return tail
    variance = math.expm1(min(noise**-2, 700.0)) * (4 if adjacency == "replace-one" else 1)
    return min(tail, rate * math.sqrt(steps * variance))


def _loss_range(rate: float, noise: float, direction: str, tail: float) -> tuple[float, float]:
    """Return losses between which all but `tail` of a step's probability lies on either side."""
    if direction == "exchange":
        high = _loss_range(rate, noise / 2, "remove", tail)[1]
        return -high, high
    reach = -float(special.ndtri(tail)) * noise

    def loss(y: float) -> float:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + (y - 0.5) / noise**2))

    if direction == "remove":
        return loss(-reach), loss(1 + reach)
    if direction == "add":
        return -loss(reach), -loss(-reach)
    return loss(-reach) - loss(reach), loss(1 + reach) - loss(-1 - reach)


def _connect_dots(
    rate: float, noise: float, direction: str, low: float, high: float, spacing: float
) -> tuple[int, Floats, float]:
    """Return a grid distribution that dominates one step: index of the first loss, masses, mass at infinity.

    The masses are second differences of the step's δ. For negative losses they are taken from
    δ(t) - (1 - e^t) = e^t δ'(-t), with δ' of the opposite direction: the same differences, without
    cancellation.
    """
    first = min(math.floor(low / spacing), -1)
    last = max(math.ceil(high / spacing), 1)
    opposite = {"remove": "add", "add": "remove"}.get(direction, direction)
    above = np.arange(0.0, last + 1.0) * spacing
    below = np.arange(-first, 0.0, -1.0) * spacing
    with np.errstate(under="ignore"):
        dots = np.concatenate(
            [
                np.exp(-below) * _step_delta(below, rate, noise, opposite),
                _step_delta(above, rate, noise, direction),
            ]
        )
    rises = np.diff(dots)
    masses = np.empty_like(dots)
    masses[0] = -dots[0] + rises[0] / math.expm1(spacing)
    masses[1:-1] = (rises[1:] - rises[:-1] * math.exp(spacing)) / math.expm1(spacing)
    masses[-1] = rises[-1] / math.expm1(-spacing)
    # What was left out of the dots below zero, 1 - e^t, has this as its second difference.
    masses[-first] += 1.0
    return first, np.maximum(masses, 0.0), float(dots[-1])


def _step_delta(losses: npt.NDArray[Any], rate: float, noise: float, direction: str) -> Floats:
    """Return one step's δ at losses of at least 0, by the closed forms in this module's docstring."""
    if direction == "exchange":
        return _step_delta(losses, rate, noise / 2, "remove")
    centre = 0.5 / noise**2
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        if direction == "remove":
            near = np.log1p(np.expm1(np.minimum(losses, 30.0)) / rate)
            z = np.where(losses > 30, losses - math.log(rate), near)
            return rate * hockey_stick(z, noise)
        if direction == "add":
            # Beyond -log(1 - rate) no outcome has so large a loss: z is -inf there and δ is 0.
            z = np.log1p(np.maximum(np.expm1(-losses) / rate, -1.0))
            possible = np.isfinite(z)
            z = np.where(possible, z, 0.0)
            return np.where(possible, rate * np.exp(losses + z) * hockey_stick(-z, noise), 0.0)
        log_sinh = losses / 2 + np.log(-np.expm1(-losses)) - math.log(2)
        log_argument = log_sinh + centre + math.log1p(-rate) - math.log(rate)
        w = losses / 2 + np.logaddexp(0.5 * np.logaddexp(0.0, 2 * log_argument), log_argument)
        w = np.where(losses == 0, 0.0, w)
        mirrored = hockey_stick(np.abs(w - centre), noise)
        negative = np.minimum(w - centre, 0.0)
        towards = np.where(w >= centre, mirrored, -np.expm1(negative) + np.exp(negative) * mirrored)
        return rate * (towards + np.exp(losses - w - centre) * hockey_stick(w + centre, noise))
