"""The score form (``tacit.vi``) against d3p's form, through the same wall, on simulated logistic regressions.

    python papers/d3p/forms.py [--quick]

Score form: the gradient with respect to one public draw of the latents is clipped and noised; prior and entropy are
exact. d3p's form: every record draws its own latents, and its share of the whole ELBO is clipped and noised in the
space of guide parameters. Both get the same records, noise multiplier, clip, rate, steps, optimiser and start; truth is
known. Shown for two clips, and for the last iterate (what d3p gives) and two averages of both forms:
weights that grow like t**3 (``tacit.vi``) and like t (flatter). "Widened" adds what the privacy noise did to the mean.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import study
from elbo_form import elbo_form
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import tacit

PRIOR = 2.0
RECIPE = {"rate": 0.1, "steps": 1000}


class Case(NamedTuple):
    """A simulated regression: records, columns with the intercept, the size of the weights, the budget."""

    count: int
    width: int
    size: float
    epsilon: float


CASES = {"A": Case(5000, 11, 0.6, 1.0), "small": Case(500, 6, 0.6, 2.0)}


def model(x: Any, y: Any = None) -> None:
    """Logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def simulated(case: Case, seed: int) -> tuple[Any, Any, Any]:
    """Draw correlated columns, weights, and answers for training and 20000 test records."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(case.count + 20000, 1))
    x = np.sqrt(0.7) * rng.normal(size=(case.count + 20000, case.width)) + np.sqrt(0.3) * shared
    x[:, 0] = 1
    w = case.size * rng.normal(size=case.width)
    return x.astype(np.float32), (rng.logistic(x @ w) > 0).astype(np.int32), w


def widened(draws: Any, mechanism: tacit.Mechanism, share: float, seed: int) -> Any:
    """Add to a full-rank guide the spread that the privacy noise gave its mean; post-processing.

    The averaged score has noise of variance S in each coordinate, so the mean has Sigma S Sigma. Averaging with weights
    that grow like t**3 is worth 7/16 of the steps, with weights that grow like t 3/4 of them.
    """
    mean, covariance = draws.mean(0), np.cov(draws.T)
    noise = mechanism.noise_std**2 / (mechanism.rate**2 * mechanism.steps * share)
    total = covariance + noise * covariance @ covariance
    return np.random.default_rng(seed).multivariate_normal(mean, total, len(draws))


def variants(
    x: Any, y: Any, seed: int, budget: tacit.Budget, clips: dict[str, float], recipe: dict[str, Any]
) -> dict[str, Any]:
    """Fit every variant to the same records; each gives 1000 draws of the weights."""
    records = {"x": x, "y": y}
    optimizer = optax.adam(study.simulated_schedule, b2=0.99)
    methods = {
        "d3p form": elbo_form(model, len(y), optimizer),
        "score form, mean-field": tacit.vi(model, AutoNormal, optimizer),
        "score form, full-rank": tacit.vi(model, AutoMultivariateNormal, optimizer),
    }
    draws = {"non-private": study.logistic_posterior(x, y, PRIOR, 1000, seed)[2]}
    for name, method in methods.items():
        posterior = study.fit(study.with_averages(method), records, budget, seed, clip=clips[name[:3]], **recipe)
        draws[f"{name}, last iterate"] = posterior.draws["last/w"]
        draws[f"{name}, averaged"] = posterior.draws["w"]
        draws[f"{name}, flatter average"] = posterior.draws["flat/w"]
    assert posterior.certificate is not None
    mechanism = posterior.certificate.mechanism
    draws[f"{name}, averaged, widened"] = widened(posterior.draws["w"], mechanism, 7 / 16, seed)
    draws[f"{name}, flatter average, widened"] = widened(posterior.draws["flat/w"], mechanism, 3 / 4, seed)
    return draws


def covered(draws: Any, truth: Any) -> float:
    """Return the share of coefficients whose central 90% interval holds the truth."""
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return float(np.mean((low <= truth) & (truth <= high)))


def main() -> None:
    """Print one table for each case and clip; draw them."""
    chosen = study.options(__doc__)
    runs = 1 if chosen.quick else 8
    recipe = {**RECIPE, "steps": 40} if chosen.quick else RECIPE
    results: dict[str, Any] = {}
    text = [
        "± is the Monte-Carlo standard error over data sets; all variants saw the same ones. Error: distance of the "
        "posterior mean from the non-private mode, root mean square over coefficients."
    ]
    for label, case in list(CASES.items())[: 1 if chosen.quick else None]:
        for factor in (1.0,) if chosen.quick else (1.0, 2.0):
            clip = factor * np.sqrt(case.width)
            found: dict[str, list[tuple[float, float, float]]] = {}
            for seed in range(runs):
                x, y, truth = simulated(case, seed)
                inside, outside = slice(case.count), slice(case.count, None)
                mode = study.logistic_posterior(x[inside], y[inside], PRIOR, 2, seed)[0]
                budget = tacit.Budget(case.epsilon, 1e-5)
                for name, w in variants(x[inside], y[inside], seed, budget, {"d3p": clip, "sco": clip}, recipe).items():
                    held_out = study.log_likelihood(study.predictive(w, x[outside]), y[outside])
                    error = float(np.sqrt(np.mean((w.mean(0) - mode) ** 2)))
                    found.setdefault(name, []).append((held_out, error, covered(w, truth)))
            title = (
                f"Case {label}: N = {case.count}, {case.width} columns, ε = {case.epsilon:g}, δ = 1e-5, "
                f"clip {factor:g} √D = {clip:.2f}, rate {recipe['rate']}, {recipe['steps']} steps, {runs} data sets"
            )
            results[title] = found
            text += [title, _table(found), _verdict(found)]
    study.save(chosen.out, "forms", "python papers/d3p/forms.py", "\n\n".join(text), results, draw(results))


def _table(found: dict[str, list[tuple[float, float, float]]]) -> str:
    base = np.asarray(found["non-private"])[:, 0]
    rows = [
        (name, study.shown(v[:, 0] - base, 4), study.shown(v[:, 1]), study.shown(v[:, 2]))
        for name, v in ((name, np.asarray(values)) for name, values in found.items())
    ]
    return study.table(["variant", "log-likelihood minus non-private", "error", "90% coverage of the truth"], rows)


def _verdict(found: dict[str, list[tuple[float, float, float]]]) -> str:
    said = []
    for one, two in (
        ("score form, mean-field, averaged", "d3p form, last iterate"),
        ("score form, mean-field, averaged", "d3p form, averaged"),
        ("score form, mean-field, last iterate", "d3p form, last iterate"),
    ):
        gap = np.asarray(found[one])[:, 0] - np.asarray(found[two])[:, 0]
        mean, error = study.mean_error(gap)
        word = "no clear difference" if abs(mean) < 2 * error else "better" if mean > 0 else "worse"
        said.append(f"{one} against {two}: {word} ({mean:+.4f} ± {error:.4f})")
    return "Held-out log-likelihood, paired. " + "; ".join(said) + "."


def draw(results: dict[str, Any]) -> Any:
    """Draw what each variant loses against the non-private posterior, and its coverage."""
    figure, (left, right) = study.panels(2, 5.0, 4.8)
    marks = ("o", "s", "^", "D")
    for mark, (title, found) in zip(marks, results.items(), strict=False):
        names = [name for name in found if name != "non-private"][::-1]
        base = np.asarray(found["non-private"])[:, 0]
        label = title.split(":")[0] + ", clip " + title.split("clip ")[1].split(" =")[0]
        for place, name in enumerate(names):
            v = np.asarray(found[name])
            paint = study.COLOURS["orange" if name.startswith("d3p") else "blue"]
            shift = 0.18 * (marks.index(mark) - 1.5)
            for ax, numbers in ((left, base - v[:, 0]), (right, v[:, 2])):
                mean, error = study.mean_error(numbers)
                ax.errorbar(mean, place - shift, xerr=2 * error, fmt=mark, ms=4, color=paint)
        left.plot([], [], mark, color="0.4", label=label)
    left.set_yticks(range(len(names)), names, fontsize="small")
    right.set_yticks(range(len(names)), [])
    right.axvline(0.9, color="0.6", lw=0.8, ls="--")
    left.set(xscale="log")
    left.set_title("Log-likelihood lost to non-private", fontsize="medium", loc="left")
    right.set_title("Coverage of 90% intervals", fontsize="medium", loc="left")
    right.set_xlim(0, 1)
    left.set_xlabel("bars: two Monte-Carlo standard errors")
    left.legend(frameon=False, fontsize="x-small")
    return figure


if __name__ == "__main__":
    main()
