"""Exchangeable pairs: bounded, odd, centred at the truth whatever the clip, and with the slope that they release."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.methods.pairs import SCORES, _clipped
from tacit.types import Plan

WIDTH, SIZE = 3, 20_000
TRUTH = jnp.asarray([0.5, -1.0, 0.8])


def logistic(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 2).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def scaled(x: Any, y: Any = None) -> None:
    """A regression with unknown noise and errors that are far from normal."""
    w = numpyro.sample("w", dist.Normal(0, 2).expand([WIDTH]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, x @ w, sigma), obs=y)


MODELS = {"logistic": (logistic, jnp.int32(0)), "scaled": (scaled, jnp.float32(0))}
each = pytest.mark.parametrize("name", MODELS)


def built(name: str, steps: int = 40) -> tacit.Method:
    model, outcome = MODELS[name]
    return tacit.pairs(model)(Plan({"x": jnp.zeros(WIDTH), "y": outcome}, SIZE, steps=steps))


def made_up(name: str, key: Any) -> tuple[dict[str, Any], Any]:
    """Return records from the truth, and the truth in unconstrained coordinates, by the names of latents."""
    of_x, of_y = jax.random.split(key)
    x = jax.random.normal(of_x, (SIZE, WIDTH))
    if name == "logistic":
        return {"x": x, "y": jax.random.bernoulli(of_y, jax.nn.sigmoid(x @ TRUTH)).astype(jnp.int32)}, TRUTH
    y = x @ TRUTH + 0.7 * jax.random.t(of_y, 3.0, (SIZE,))
    return {"x": x, "y": y}, jnp.append(jnp.log(0.7), TRUTH)


def late(method: tacit.Method, place: Any, scale: float) -> Any:
    """Return a state past the first phase, with a whitening that makes scores short or long."""
    state = method.init(jax.random.key(0))
    return state._replace(step=jnp.int32(30), place=place, whitening=scale * jnp.eye(len(place)))


def contributions(method: tacit.Method, state: Any, records: Any, seed: int = 1) -> Any:
    keys = jax.random.split(jax.random.key(seed), SIZE)
    return jax.jit(jax.vmap(lambda record, key: method.contribute(state, record, key, key)))(records, keys)


def test_the_clip_is_odd() -> None:
    vectors = 3 * jax.random.normal(jax.random.key(0), (50, 4))
    shortened = jax.vmap(_clipped)(vectors)
    np.testing.assert_array_equal(shortened, -jax.vmap(_clipped)(-vectors))
    assert jnp.max(jnp.linalg.norm(shortened, axis=1)) <= 1 + 1e-6


@each
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("step", [0, 30])
def test_no_contribution_is_longer_than_the_clip(name: str, scale: float, step: int) -> None:
    method = built(name)
    records, place = made_up(name, jax.random.key(2))
    records = {**records, "x": 1e3 * records["x"]}
    found = contributions(method, late(method, place, scale)._replace(step=jnp.int32(step)), records)
    squares = sum(jnp.sum(jnp.square(leaf.reshape(SIZE, -1)), 1) for leaf in found.values())
    assert jnp.max(squares) <= (1 + 1e-5) * method.suggests.clip**2


@each
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_scores_have_mean_zero_at_the_truth_whatever_is_clipped(name: str, scale: float) -> None:
    """5 standard errors in up to four coordinates: a false alarm in 10**5. With scale 100 nearly all are clipped."""
    method = built(name)
    records, place = made_up(name, jax.random.key(3))
    found = contributions(method, late(method, place, scale), records)["score"]
    errors = found.mean(0) / (found.std(0) / SIZE**0.5)
    assert jnp.max(jnp.abs(errors)) < 5
    elsewhere = contributions(method, late(method, place + 0.3, scale), records)["score"]
    assert jnp.max(jnp.abs(elsewhere.mean(0) / (elsewhere.std(0) / SIZE**0.5))) > 10


@each
def test_the_curvature_is_minus_the_slope_of_the_score(name: str) -> None:
    """Scores far within the clip, so that both are exact: the mean score a little off the truth is H times the way."""
    method, scale = built(name), 0.05
    records, place = made_up(name, jax.random.key(4))
    way = 0.15 * jnp.ones(len(place))
    unit = 2 * (2 * len(place)) ** 0.5
    curvature, scores = [], []
    for sign in (-1, 1):
        found = contributions(method, late(method, place + sign * way, scale), records)
        curvature.append(found["curvature"].mean(0) * unit**2 / 2 / (1 - SCORES) ** 0.5)
        scores.append(found["score"].mean(0) * unit / SCORES**0.5)
    slope = (scores[0] - scores[1]) / 2 / scale
    expected = sum(curvature) / 2 / scale**2 @ way
    np.testing.assert_allclose(slope, expected, rtol=0.2, atol=0.01)


def test_a_fit_finds_the_truth_and_says_how_much_is_noise() -> None:
    records, _ = made_up("logistic", jax.random.key(5))
    data = tacit.PrivateData(records, size=SIZE)
    key = jax.random.key(0)
    posterior = tacit.fit(tacit.pairs(logistic), data, tacit.Budget(1.0, 1e-6), simulate=0, key=key)
    draws = posterior.draws["w"]
    assert np.max(np.abs(draws.mean(0) - TRUTH) / draws.std(0)) < 4
    assert np.max(draws.std(0)) < 0.12
    assert all(one.contraction > 0.9 and 0.02 < one.noise_share < 0.7 for one in posterior.learnt())


def test_what_cannot_be_simulated_is_refused() -> None:
    def seen(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 2))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x, 1), obs=None if y is None else 2 * y)

    with pytest.raises(ValueError, match="not a column as it is"):
        tacit.pairs(seen)(Plan({"x": jnp.zeros(()), "y": jnp.zeros(())}, SIZE))
    with pytest.raises(ValueError, match="steps is 3"):
        built("logistic", 3)
    with pytest.raises(ValueError, match="number of records"):
        tacit.pairs(logistic)(Plan({"x": jnp.zeros(WIDTH), "y": jnp.int32(0)}))
