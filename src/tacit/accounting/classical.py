"""What other analyses would say of a recipe: for comparison, never for a certificate.

Each result says whether it is a valid bound and why. Analyses take a `Mechanism` and a δ; other theorems of the papers
stand at the end, corrected where they need it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.accounting import checks, composition
from tacit.accounting.mechanism import Mechanism
from tacit.extras import need

__all__ = [
    "SGD",
    "SGLD",
    "Comparison",
    "advanced",
    "compare",
    "gdp_clt",
    "linear",
    "rdp",
    "sep_kl_tail",
    "sgd_from_sgld",
    "sgld_from_sgd",
    "vips",
    "zcdp",
]


@dataclass(frozen=True)
class Comparison:
    """One analysis' ε for a recipe.

    Attributes
    ----------
    name
        The analysis.
    epsilon
        What it says.
    valid
        Whether that is an upper bound on the true ε.
    why
        One sentence of reason.

    Privacy: public.
    """

    name: str
    epsilon: float
    valid: bool
    why: str


def compare(mechanism: Mechanism, delta: float) -> list[Comparison]:
    """Return what every classical analysis says of a recipe.

    Privacy: public.
    """
    return [
        gdp_clt(mechanism, delta),
        rdp(mechanism, delta),
        zcdp(mechanism, delta),
        advanced(mechanism, delta),
        linear(mechanism, delta),
        vips(mechanism, delta),
    ]


def gdp_clt(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by the central limit theorem of Gaussian differential privacy (Bu et al. 2020; DP-BNN).

    The recipe is taken for one Gaussian release with μ = rate sqrt(steps (e^(1/σ²) - 1)); for replace-one the
    variance of the limit is 4 sinh(1/σ²) in place of e^(1/σ²) - 1.

    Privacy: public.
    """
    delta = checks.check_delta("gdp_clt", delta)
    if mechanism.rate == 1:
        cost = composition.epsilon(1.0, mechanism.noise_multiplier, mechanism.steps, delta, mechanism.adjacency)
        return Comparison("GDP-CLT", cost, True, "Without sampling the limit is exact.")
    # Beyond this exponent, and the noise that the accountant takes, the limit says nothing and its ε is no float.
    exponent = min(mechanism.noise_multiplier**-2, 100.0)
    variance = 4 * math.sinh(exponent) if mechanism.adjacency == "replace-one" else math.expm1(exponent)
    mu = mechanism.rate * math.sqrt(mechanism.steps * variance)
    noise = min(max(1 / mu, checks.SMALLEST_NOISE), checks.LARGEST_NOISE)
    cost = composition.epsilon(1.0, noise, 1, delta)
    why = "A limit for many steps, not a bound: below the true ε in every run of the papers."
    return Comparison("GDP-CLT", cost, False, why)


def rdp(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by Rényi differential privacy (Mironov et al. 2019).

    Add-remove uses dp-accounting's Rényi accountant; replace-one, where that accountant forgets the doubled
    sensitivity, uses this package's Rényi curve (weak triangle inequality).

    Privacy: public.
    """
    delta = checks.check_delta("rdp", delta)
    if mechanism.adjacency == "add-remove":
        accountant = need("classical.rdp", "dp_accounting.rdp").RdpAccountant()
        accountant.compose(mechanism.event())
        cost = float(accountant.get_epsilon(delta))
    else:
        cost = composition.renyi_epsilon(
            mechanism.rate, mechanism.noise_multiplier, mechanism.steps, delta, mechanism.adjacency
        )
    return Comparison("RDP", cost, True, "A bound on moments of the loss: valid, some 10% above the truth.")


def zcdp(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by zero-concentrated differential privacy (Bun and Steinke 2016), sampling ignored.

    ρ = steps Δ²/(2σ²) with Δ = 1, or 2 for replace-one, and ε = ρ + 2 sqrt(ρ log(1/δ)).

    Privacy: public.
    """
    delta = checks.check_delta("zcdp", delta)
    cost = _from_zcdp(mechanism.steps / (2 * _effective_noise(mechanism) ** 2), delta)
    why = "Valid, but zCDP gains nothing from sampling, so the rate is ignored."
    return Comparison("zCDP", cost, True, why)


def advanced(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by advanced composition (Dwork and Roth 2014, theorem 3.20) of exactly analysed steps.

    Half of δ pays for the composition and half is shared among the steps, each of which is (ε', δ/2T)-private
    with sampling counted: ε = sqrt(2 T log(2/δ)) ε' + T ε' (e^ε' - 1).

    Privacy: public.
    """
    delta = checks.check_delta("advanced", delta)
    steps = mechanism.steps
    each = _one_step(mechanism, delta / (2 * steps))
    growth = math.expm1(each) if each < 700 else math.inf
    cost = math.sqrt(2 * steps * math.log(2 / delta)) * each + steps * each * growth
    return Comparison("advanced composition", cost, True, "Valid: sees one (ε, δ) point of each step only.")


def linear(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by linear composition (Dwork and Roth 2014, theorem 3.16).

    It is `steps` times the ε' of one step at δ/steps.

    Privacy: public.
    """
    delta = checks.check_delta("linear", delta)
    cost = mechanism.steps * _one_step(mechanism, delta / mechanism.steps)
    return Comparison("linear composition", cost, True, "Valid: worst cases of all steps added up.")


def vips(mechanism: Mechanism, delta: float, *, delta_step: float = 1e-6) -> Comparison:
    """Return ε by the recipe of the VIPS paper (Park et al. 2020, equations 11-14), run forwards.

    ε_step = sqrt(2 log(1.25/delta_step))/σ (classical Gaussian), amplified to ε' = log(1 + rate (e^ε_step -
    1)) and δ' = rate delta_step, turned back into ρ = ε'²/(4 log(1.25/δ')) a step, and ε = Tρ + 2 sqrt(Tρ
    log(1/δ)). The paper leaves delta_step open; 1e-6 gives the noise of its topic model (σ 0.85 for ε 1). The
    sensitivity is that of the subset's sum (1, or 2 for replace-one), not of the whole data's mean as printed
    in places.

    Privacy: public.
    """
    delta = checks.check_delta("vips", delta)
    delta_step = checks.check_delta("vips", delta_step)
    rate = mechanism.rate
    each = math.sqrt(2 * math.log(1.25 / delta_step)) / _effective_noise(mechanism)
    amplified = math.log1p(rate * math.expm1(each)) if each < 700 else each + math.log(rate)
    rho = amplified**2 / (4 * math.log(1.25 / (rate * delta_step)))
    cost = _from_zcdp(mechanism.steps * rho, delta)
    if rate == 1:
        return Comparison("VIPS recipe", cost, True, "Without sampling it is plain zCDP.")
    why = "Turns an amplified (ε, δ) statement back into zCDP, which sampling does not amplify: no argument."
    return Comparison("VIPS recipe", cost, False, why)


def _effective_noise(mechanism: Mechanism) -> float:
    return mechanism.noise_multiplier / (2 if mechanism.adjacency == "replace-one" else 1)


def _from_zcdp(rho: float, delta: float) -> float:
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _one_step(mechanism: Mechanism, delta: float) -> float:
    return composition.epsilon(mechanism.rate, mechanism.noise_multiplier, 1, delta, mechanism.adjacency)


def sep_kl_tail(
    covariance: npt.ArrayLike, mean_std: float, covariance_std: float, threshold: float, low: float, high: float
) -> float:
    """Return Theorem 4.1 of DP-SEP: its bound on the probability that KL(q || p) reaches a threshold.

    q = N(m, S) is the posterior without noise, p = N(m + e, S + E) with e of standard deviation ``mean_std`` and a
    symmetric E whose upper triangle has standard deviation ``covariance_std``. With v = covariance_std² d ‖S⁻²‖ (the
    sum over the d (d + 1) / 2 entries of E worked out) and r = sqrt(2 v log 2d),

        d/(2a) [log(1 + r) − 1 + (mean_std² tr S⁻¹ + 1) (high + low + r − 1) / (high low)].

    What it does not say: Algorithm 3 adds noise to natural parameters, not to (m, S). No constants satisfy
    low < 1 + λ_min(S⁻¹E) < high for every Gaussian E, as the theorem asks: outside, p is no distribution and KL is
    infinite, so that the bound can only hold for the rest. Tropp's inequality is used for S⁻¹E, which is not symmetric,
    with one of its two variance terms. The residual R that the text mentions belongs to KL(p || q). And "scales with
    1/N" is about one step of the paper's reading, which learns 1/N as much too.

    Parameters
    ----------
    covariance
        S, the covariance of the posterior without noise.
    mean_std, covariance_std
        Standard deviations of the noise in the mean and in each entry of the covariance.
    threshold
        a, above 0.
    low, high
        Assumed bounds on the smallest eigenvalue of I + S⁻¹E.

    Privacy: public.
    """
    matrix = np.asarray(covariance, float)
    values = np.linalg.eigvalsh(matrix)
    if not (values[0] > 0 and threshold > 0 and 0 < low < high and mean_std >= 0 and covariance_std >= 0):
        raise ValueError(
            f"sep_kl_tail needs a positive definite covariance (its smallest eigenvalue is {values[0]:g}), threshold "
            f"above 0 (it is {threshold:g}), 0 < low < high (they are {low:g} and {high:g}) and no negative noise."
        )
    d = len(values)
    r = math.sqrt(2 * covariance_std**2 * d / values[0] ** 2 * math.log(2 * d))
    inverse = (high + low + r - 1) / (high * low)
    return d / (2 * threshold) * (math.log1p(r) - 1 + (mean_std**2 * float(np.sum(1 / values)) + 1) * inverse)


class SGD(NamedTuple):
    """Private gradient descent on the mean over records: its learning rate and noise multiplier."""

    learning_rate: float
    noise_multiplier: float


class SGLD(NamedTuple):
    """Private Langevin dynamics on the sum over records: its step size, and the temperature of its noise."""

    step_size: float
    temperature: float


def sgd_from_sgld(step_size: float, *, size: int, rate: float, clip: float, temperature: float = 1.0) -> SGD:
    """Return the private SGD that Langevin dynamics is (Zhang et al. 2021, Theorem 1, corrected).

    Both take the step w + η (G + ∇ log prior) + noise for the sum of gradients G, estimated from a subset. SGD's
    learning rate is η size, its penalty -log prior / size, and the wall's noise is all of the chain's where

        σ = sqrt(2 temperature / η) rate / clip.

    The paper's own convention is temperature 1/2: σ = |B| / (sqrt(η) n C). It prints sqrt(η) |B| / (n C) in the
    theorem's first line, which its own figures contradict.

    Parameters
    ----------
    step_size
        η, as in ``tacit.sgld``.
    size
        Number of records, n.
    rate, clip
        Of the wall: |B| / n, and C.
    temperature
        1 for the posterior.

    Privacy: public.
    """
    _check_theorem(step_size=step_size, size=size, rate=rate, clip=clip, temperature=temperature)
    return SGD(step_size * size, math.sqrt(2 * temperature / step_size) * rate / clip)


def sgld_from_sgd(learning_rate: float, *, size: int, mechanism: Mechanism) -> SGLD:
    """Return the Langevin dynamics that private SGD is: any is one, at the temperature that its noise makes.

    The inverse of ``sgd_from_sgld``: η = learning_rate / size and temperature = η (σ clip / rate)² / 2.

    Parameters
    ----------
    learning_rate
        Of plain SGD on the mean over records.
    size
        Number of records.
    mechanism
        The recipe: its rate, clip and noise count.

    Privacy: public.
    """
    _check_theorem(learning_rate=learning_rate, size=size)
    step_size = learning_rate / size
    return SGLD(step_size, step_size * (mechanism.noise_std / mechanism.rate) ** 2 / 2)


def _check_theorem(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value:g}, but the theorem is about a positive number. Write one.")
