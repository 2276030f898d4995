"""The designs of grid.py: records made up from a model whose truth is known, and tables of real records.

A design has public facts (schema, size), a model as a user would write it, and a way to draw a truth and records.
Outcomes are drawn by the model itself, unless it is meant to be wrong. Where ``truth`` is left out, all latents are
drawn from the model's prior, and ranks must be uniform.

Every third design, by its place in `DESIGNS`, is for tuning, for reporting, and unseen: the unseen ones are run with
``--unseen`` only, once nothing will be changed any more. New designs go to the end, so that none changes its part.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import own_models
from numpyro import handlers
from numpyro.distributions import LogNormal, Normal

import tacit

PARTS = ("tuning", "reporting", "unseen")
SEED = 75_000


class Design(NamedTuple):
    """A model, public facts, and how truth and records are drawn.

    Attributes
    ----------
    schema, model
        As a user would give them; the model is a formula or a NumPyro model.
    simulate
        ``simulate(rng)``: records, a dictionary of columns, and the latents that they were drawn from.
    judge
        ``judge(latents)``: what intervals are asked for, a dictionary of numbers or arrays of one draw.
    sampled
        Whether the non-private posterior is far from normal, so that it is sampled by NUTS.
    """

    schema: tacit.Schema
    model: Callable[..., Any]
    simulate: Callable[[np.random.Generator], tuple[dict[str, Any], dict[str, Any]]]
    judge: Callable[[Mapping[str, Any]], dict[str, Any]]
    sampled: bool = False


class Input(NamedTuple):
    """A column: its public facts, how it is drawn (``draw(rng, common)``), its standard deviation."""

    facts: dict[str, Any]
    draw: Callable[[np.random.Generator, Any], Any]
    std: float = 1.0


def number(
    mean: float = 0, std: float = 1, *, wide: float = 1, common: float = 0, tails: float = np.inf, low: Any = None
) -> Input:
    """Return a column of numbers that lie within three deviations; ``common`` is their pairwise correlation."""

    def draw(rng: np.random.Generator, shared: Any) -> Any:
        own = rng.normal(size=len(shared)) if tails == np.inf else rng.standard_t(tails, len(shared))
        reach = 3 if tails == np.inf else 3 * wide
        drawn = np.clip(np.sqrt(common) * shared + np.sqrt(1 - common) * own, -reach, reach)
        return np.maximum(mean + std * drawn, -np.inf if low is None else low).astype(np.float32)

    least = mean - 3 * std * wide if low is None else low
    return Input({"low": float(least), "high": float(mean + 3 * std * wide)}, draw, std)


def levels(count: int, uneven: float = 0, share: float | None = None) -> Input:
    """Return a column of codes; ``uneven`` is the power by which shares fall, ``share`` that of the last of two."""
    shares = np.arange(1, count + 1.0) ** -uneven if share is None else np.array([1 - share, share])
    return Input(
        {"levels": list(range(count))},
        lambda rng, shared: rng.choice(count, len(shared), p=shares / shares.sum()).astype(np.int32),
    )


def numbers(count: int, **more: Any) -> dict[str, Input]:
    """Return so many columns that are alike."""
    return {f"x{place}": number(**more) for place in range(count)}


OUTCOMES: dict[str, dict[str, Any]] = {
    "gaussian": {"low": -10.0, "high": 10.0},
    "student": {"low": -50.0, "high": 50.0},
    **{name: {"low": 0, "high": 100, "kind": "integer"} for name in ("poisson", "negative_binomial", "binomial")},
    "gamma": {"low": 0.001, "high": 100.0},
    "bernoulli": {"levels": [0, 1]},
    "ordinal": {"levels": [0, 1, 2, 3, 4]},
    "categorical": {"levels": [0, 1, 2, 3]},
}
TRUTH: dict[str, Any] = {"sigma": 1.0, "nu": 4.0, "alpha": 2.0, "cutpoints": np.array([-2.0, -0.7, 0.7, 2.0])}


def regression(
    family: str,
    inputs: dict[str, Input],
    size: int,
    *,
    start: float = -0.3,
    slope: float = 0.5,
    spread: float = 0.5,
    groups: str = "",
    text: str = "",
    outcome: dict[str, Any] | None = None,
    wrong: Callable[[np.random.Generator, Any], Any] | None = None,
    several: int = 1,
    priors: dict[str, Any] | None = None,
) -> Design:
    """Return a regression by formula, with the default priors or with given ones that the truth is drawn from.

    ``slope`` is the deviation of coefficients for a column of unit deviation, ``spread`` about that of groups;
    ``wrong`` draws outcomes from the predictor, otherwise than the model. ``several`` is the records of a unit.
    """
    facts = {name: one.facts for name, one in inputs.items()} | {"y": outcome or OUTCOMES[family]}
    schema = tacit.Schema(facts, size=size, **({"unit": "patient", "max_records": several} if several > 1 else {}))
    alone = [name for name in inputs if not name.startswith("g")]
    model = tacit.formula(text or f"y ~ {' + '.join(alone)}{groups}", schema, family, priors)

    def truth(rng: np.random.Generator) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, prior in {} if priors else model.priors.items():
            shape = prior.batch_shape + prior.event_shape
            if name == "Intercept":
                found[name] = np.full(shape, start)
            elif name in inputs:
                found[name] = slope * rng.normal(size=shape) / inputs[name].std
            elif name.endswith("_sigma"):
                found[name] = np.full(shape, spread * rng.uniform(0.5, 1.5))
            elif not name.endswith("_offset"):
                found[name] = TRUTH[name]
        return found

    def draw_wrong(rng: np.random.Generator, columns: dict[str, Any], latents: dict[str, Any]) -> dict[str, Any]:
        assert wrong is not None
        return {"y": wrong(rng, np.asarray(model.linear(latents, columns)))}

    drawn = simulator(model, inputs, size * several, truth, draw_wrong if wrong else None)

    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
        records, latents = drawn(rng)
        return records | ({"patient": np.repeat(np.arange(size), several)} if several > 1 else {}), latents

    return Design(schema, model, simulate, effects(model), sampled=bool(groups))


def effects(model: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what is judged of a formula: its coefficients, the effects of groups themselves, its other numbers."""

    def judge(draw: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: draw[name] for name in model.priors}
        for term in model.group_terms:
            found[f"{term.name}_offset"] = draw[f"{term.name}_offset"] * draw[f"{term.name}_sigma"]
        return found

    return judge


def own(
    build: Callable[..., tuple[Any, dict[str, Any], Any, Any, Any]], inputs: dict[str, Input], size: int, **more: Any
) -> Design:
    """Return a NumPyro model of own_models.py; it is judged by all of its latents unless it says otherwise."""
    model, outcomes, truth, judge, wrong = build(**more)
    schema = tacit.Schema({name: one.facts for name, one in inputs.items()} | outcomes, size=size)
    simulate = simulator(model, inputs, size, truth or (lambda rng: {}), wrong)
    return Design(schema, model, simulate, judge or dict, sampled=True)


def simulator(
    model: Any, inputs: dict[str, Input], count: int, truth: Callable[..., Any], wrong: Callable[..., Any] | None
) -> Callable[[np.random.Generator], tuple[dict[str, Any], dict[str, Any]]]:
    """Return a function that draws latents from ``truth`` and the prior, and records."""

    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
        common = rng.normal(size=count)
        columns = {name: jnp.asarray(one.draw(rng, common)) for name, one in inputs.items()}
        given = {name: jnp.asarray(value, jnp.float32) for name, value in truth(rng).items()}
        key = jax.random.key(int(rng.integers(2**31)))
        with handlers.block(), handlers.trace() as trace, handlers.seed(rng_seed=key), handlers.substitute(data=given):
            model(**columns)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        inside = {name for name, site in sites.items() if site["cond_indep_stack"]}
        latents = {name: site["value"] for name, site in sites.items() if name not in inside}
        outcomes = wrong(rng, columns, latents) if wrong else {name: sites[name]["value"] for name in inside}
        return {name: np.asarray(column) for name, column in (columns | outcomes).items()}, latents

    return simulate


def _counts_with_gamma(rng: np.random.Generator, predictor: Any) -> Any:
    return rng.poisson(np.exp(predictor) * rng.gamma(2.0, size=len(predictor)) / 2)


def _skewed(rng: np.random.Generator, predictor: Any) -> Any:
    return predictor + rng.exponential(size=len(predictor)) - 1


_FLAGS = {f"flag{place}": levels(2, share=share) for place, share in enumerate((0.5, 0.2, 0.05, 0.02))}
_CENSUS = {"age": number(47, 17, low=18), "income": number(42_000, 21_000, low=0), "year": number(2005, 6)}
_OWN: dict[str, Any] = {name: Normal(0, 1) for name in ("Intercept", "x0", "x1", "x2", "x3")}
DESIGNS: dict[str, Callable[[], Design]] = {
    "logistic": lambda: regression("bernoulli", numbers(8), 5000),
    "logistic, bounds ten times wide": lambda: regression("bernoulli", numbers(8, wide=10), 5000),
    "logistic, correlated, rare flags": lambda: regression("bernoulli", numbers(4, common=0.9) | _FLAGS, 5000),
    # Rare outcomes, heavy tails, strong effects.
    "logistic, 3% outcomes": lambda: regression("bernoulli", numbers(8), 5000, start=-4),
    "logistic, heavy tails": lambda: regression("bernoulli", numbers(8, tails=2.5, wide=10), 5000),
    "logistic, strong, raw units": lambda: regression("bernoulli", numbers(3) | _CENSUS, 5000, slope=2),
    # From few records to many.
    "logistic, 500 records": lambda: regression("bernoulli", numbers(3), 500),
    "logistic, 50000 records": lambda: regression("bernoulli", numbers(20), 50_000),
    "logistic, 60 columns": lambda: regression("bernoulli", numbers(60, common=0.3), 20_000, slope=0.25),
    # Counts.
    "counts, raw units": lambda: regression("poisson", numbers(2) | _CENSUS, 5000, start=1, slope=0.25),
    "counts, overdispersed": lambda: regression(
        "poisson", numbers(6), 5000, start=0.5, slope=0.25, wrong=_counts_with_gamma
    ),
    "negative binomial": lambda: regression("negative_binomial", numbers(6), 5000, start=0.5, slope=0.25),
    # Numbers.
    "normal, skewed errors": lambda: regression("gaussian", numbers(8), 5000, wrong=_skewed),
    "normal, bounds of y ten times wide": lambda: regression(
        "gaussian", numbers(8), 5000, outcome={"low": -100.0, "high": 100.0}
    ),
    "student": lambda: regression("student", numbers(5), 5000),
    # Groups.
    "60 unequal groups, 1934 records": lambda: regression(
        "bernoulli", numbers(5) | {"g": levels(60, 0.8)}, 1934, groups=" + (1 | g)"
    ),
    "300 groups, normal": lambda: regression("gaussian", numbers(3) | {"g": levels(300)}, 6000, groups=" + (1 | g)"),
    "crossed groups, counts": lambda: regression(
        "poisson",
        numbers(3) | {"g": levels(8), "g2": levels(50, 0.5)},
        10_000,
        start=0.5,
        slope=0.25,
        spread=0.3,
        groups=" + (1 | g) + (1 | g2)",
    ),
    # NumPyro models.
    "slopes with LKJ": lambda: own(own_models.slopes, {"x": number(), "cafe": levels(20)}, 5000, groups=20),
    "horseshoe": lambda: own(own_models.horseshoe, numbers(20), 5000),
    "Weibull, censored": lambda: own(own_models.weibull, numbers(4), 5000),
    "batting averages": lambda: own(own_models.batting, {"player": levels(18, 0.5)}, 5000, players=18),
    "ordinal": lambda: regression("ordinal", numbers(5), 5000),
    "zero-inflated counts": lambda: own(own_models.zero_inflated, numbers(4), 5000),
    # Units with several records.
    "patients of 5 records": lambda: regression("bernoulli", numbers(4), 1000, several=5),
    "patients of 3 records, normal": lambda: regression("gaussian", numbers(6), 3000, several=3),
    "patients of 4 records, 8 groups": lambda: regression(
        "poisson", numbers(3) | {"g": levels(8)}, 2000, start=0.5, several=4, slope=0.25, groups=" + (1 | g)"
    ),
    # Other forms.
    "categorical": lambda: regression("categorical", numbers(4), 5000),
    "slopes by group": lambda: regression("gaussian", numbers(3) | {"g": levels(30)}, 5000, groups=" + (x0 | g)"),
    "binomial": lambda: regression("binomial", numbers(5), 2000, text="p(y, 12) ~ x0 + x1 + x2 + x3 + x4"),
    # The truth is drawn from the prior: ranks must be uniform.
    "logistic, from its prior": lambda: regression("bernoulli", numbers(4), 2000, priors=_OWN),
    "normal, from its prior": lambda: regression(
        "gaussian",
        numbers(4),
        2000,
        outcome={"low": -20.0, "high": 20.0},
        priors=_OWN | {"sigma": LogNormal(0, 0.5)},
    ),
    "gamma, from its prior": lambda: regression(
        "gamma", numbers(4), 5000, priors={name: Normal(0, 0.5) for name in _OWN} | {"alpha": LogNormal(0.7, 0.4)}
    ),
}


def part(name: str) -> str:
    """Return what a design is for, by its place; ``tables`` for real records."""
    return PARTS[list(DESIGNS).index(name) % 3] if name in DESIGNS else "tables"


def generator(name: str, replicate: int) -> np.random.Generator:
    """Return the randomness of a replicate: the same whatever else is run."""
    return np.random.default_rng([SEED, zlib.crc32(name.encode()), replicate])
