"""What other analyses would say of a recipe: for comparison, never for a certificate.

Each result says whether it is a valid bound and why. All functions take a `Mechanism` and a δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit import accounting
from tacit.mechanism import Mechanism


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
    delta = accounting.check_delta("gdp_clt", delta)
    if mechanism.rate == 1:
        cost = accounting.epsilon(1.0, mechanism.noise_multiplier, mechanism.steps, delta, mechanism.adjacency)
        return Comparison("GDP-CLT", cost, True, "Without sampling the limit is exact.")
    # Beyond this exponent the limit says nothing, and its ε would not be a float.
    exponent = min(mechanism.noise_multiplier**-2, 100.0)
    variance = 4 * math.sinh(exponent) if mechanism.adjacency == "replace-one" else math.expm1(exponent)
    mu = mechanism.rate * math.sqrt(mechanism.steps * variance)
    cost = accounting.epsilon(1.0, 1 / mu, 1, delta)
    why = "A limit for many steps, not a bound: below the true ε in every run of the papers."
    return Comparison("GDP-CLT", cost, False, why)


def rdp(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by Rényi differential privacy (Mironov et al. 2019).

    Add-remove uses dp-accounting's Rényi accountant; replace-one, where that accountant forgets the doubled
    sensitivity, uses this package's Rényi curve (weak triangle inequality).

    Privacy: public.
    """
    delta = accounting.check_delta("rdp", delta)
    if mechanism.adjacency == "add-remove":
        import dp_accounting.rdp

        accountant = dp_accounting.rdp.RdpAccountant()
        accountant.compose(mechanism.event())
        cost = float(accountant.get_epsilon(delta))
    else:
        cost = accounting.renyi_epsilon(
            mechanism.rate, mechanism.noise_multiplier, mechanism.steps, delta, mechanism.adjacency
        )
    return Comparison("RDP", cost, True, "A bound on moments of the loss: valid, some 10% above the truth.")


def zcdp(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by zero-concentrated differential privacy (Bun and Steinke 2016), sampling ignored.

    ρ = steps Δ²/(2σ²) with Δ = 1, or 2 for replace-one, and ε = ρ + 2 sqrt(ρ log(1/δ)).

    Privacy: public.
    """
    delta = accounting.check_delta("zcdp", delta)
    cost = _from_zcdp(mechanism.steps / (2 * _effective_noise(mechanism) ** 2), delta)
    why = "Valid, but zCDP gains nothing from sampling, so the rate is ignored."
    return Comparison("zCDP", cost, True, why)


def advanced(mechanism: Mechanism, delta: float) -> Comparison:
    """Return ε by advanced composition (Dwork and Roth 2014, theorem 3.20) of exactly analysed steps.

    Half of δ pays for the composition and half is shared among the steps, each of which is (ε', δ/2T)-private
    with sampling counted: ε = sqrt(2 T log(2/δ)) ε' + T ε' (e^ε' - 1).

    Privacy: public.
    """
    delta = accounting.check_delta("advanced", delta)
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
    delta = accounting.check_delta("linear", delta)
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
    delta = accounting.check_delta("vips", delta)
    delta_step = accounting.check_delta("vips", delta_step)
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
    return accounting.epsilon(mechanism.rate, mechanism.noise_multiplier, 1, delta, mechanism.adjacency)
