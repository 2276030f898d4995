"""Models as NumPyro's examples write them, for designs.py.

Each function returns the model; the facts of what it observes; how the truth is drawn, where the prior is too wide for
it; what is judged of a draw, where that is not all latents; and how outcomes are drawn, where the model cannot.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

LIMIT = 3.0
"""Follow-up ends there."""


def _matrix(columns: Any) -> Any:
    """Return columns side by side, in the order of their names: that of a dictionary is lost on the way."""
    return jnp.stack([columns[name] for name in sorted(columns)], -1)


def slopes(groups: int) -> tuple[Any, ...]:
    """Return a regression whose intercept and slope vary by group, correlated; the truth is from the prior."""

    def model(x: Any, cafe: Any, y: Any = None) -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([2]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
        corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([groups, 2]).to_event(2))
        noise = numpyro.sample("noise", dist.LogNormal(-0.5, 0.3))
        each = mean + z @ (spread[:, None] * corr).T
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(each[cafe, 0] + each[cafe, 1] * x, noise), obs=y)

    def judge(draw: Any) -> dict[str, Any]:
        each = draw["mean"] + draw["z"] @ (draw["spread"][:, None] * draw["corr"]).T
        return {name: draw[name] for name in ("mean", "spread", "noise")} | {"corr": draw["corr"][1, 0], "each": each}

    return model, {"y": {"low": -15.0, "high": 15.0}}, None, judge, None


def horseshoe() -> tuple[Any, ...]:
    """Return a sparse regression; five coefficients in the truth are not small."""

    def model(y: Any = None, **columns: Any) -> None:
        x = _matrix(columns)
        count = x.shape[-1]
        tau = numpyro.sample("tau", dist.HalfCauchy(1))
        scales = numpyro.sample("scales", dist.HalfCauchy(1).expand([count]).to_event(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([count]).to_event(1))
        noise = numpyro.sample("noise", dist.LogNormal(0, 0.5))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ (tau * scales * z), noise), obs=y)

    def truth(rng: np.random.Generator) -> dict[str, Any]:
        return {"tau": 0.05, "scales": np.repeat([10.0, 0.2], [5, 15])}

    def judge(draw: Any) -> dict[str, Any]:
        return {"w": draw["tau"] * draw["scales"] * draw["z"], "noise": draw["noise"]}

    return model, {"y": {"low": -12.0, "high": 12.0}}, truth, judge, None


def weibull() -> tuple[Any, ...]:
    """Return times to an event under a Weibull model; those beyond the follow-up are censored."""

    def model(time: Any = None, censored: Any = None, **columns: Any) -> None:
        x = _matrix(columns)
        start = numpyro.sample("start", dist.Normal(0, 0.5))
        w = numpyro.sample("w", dist.Normal(0, 0.5).expand([x.shape[-1]]).to_event(1))
        shape = numpyro.sample("shape", dist.LogNormal(0, 0.3))
        times = dist.Weibull(jnp.exp(start + x @ w), shape)
        if censored is not None:
            times = dist.RightCensoredDistribution(times, censored)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("time", times, obs=time)

    def outcomes(rng: np.random.Generator, columns: Any, latents: Any) -> dict[str, Any]:
        x = np.asarray(_matrix(columns))
        scale = np.exp(float(latents["start"]) + x @ np.asarray(latents["w"]))
        times = np.maximum(scale * rng.weibull(float(latents["shape"]), len(x)), 1e-3)
        return {"time": np.minimum(times, LIMIT).astype(np.float32), "censored": (times > LIMIT).astype(np.int32)}

    facts = {"time": {"low": 1e-3, "high": LIMIT}, "censored": {"levels": [0, 1]}}
    return model, facts, None, None, outcomes


def batting(players: int) -> tuple[Any, ...]:
    """Return players' chances of a hit, pooled in part; a record is one turn at bat."""

    def model(player: Any, hit: Any = None) -> None:
        loc = numpyro.sample("loc", dist.Normal(-1, 1))
        scale = numpyro.sample("scale", dist.HalfCauchy(1))
        logit = numpyro.sample("logit", dist.Normal(loc, scale).expand([players]).to_event(1))
        with numpyro.plate("records", player.shape[0]):
            numpyro.sample("hit", dist.Bernoulli(logits=logit[player]), obs=hit)

    def truth(rng: np.random.Generator) -> dict[str, Any]:
        return {"scale": 0.1 + np.abs(0.7 * rng.normal())}

    return model, {"hit": {"levels": [0, 1]}}, truth, None, None


def zero_inflated() -> tuple[Any, ...]:
    """Return counts with more zeros than Poisson's; the truth is from the prior."""

    def model(y: Any = None, **columns: Any) -> None:
        x = _matrix(columns)
        start = numpyro.sample("start", dist.Normal(0.5, 0.5))
        w = numpyro.sample("w", dist.Normal(0, 0.3).expand([x.shape[-1]]).to_event(1))
        gate = numpyro.sample("gate", dist.Beta(2, 2))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(jnp.clip(start + x @ w, -15, 5))), obs=y)

    return model, {"y": {"low": 0, "high": 150, "kind": "integer"}}, None, None, None
