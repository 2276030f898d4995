"""Temperatures and conformal sets bought through the wall: the promise holds, and the answers are the right ones."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit import Budget, PrivateData
from tacit.methods.root import root
from tacit.results import calibration
from tacit.run.recalibrate import (
    FAILURE,
    STEPS,
    Intervals,
    Sets,
    Temperature,
    _conformal,
    fit_intervals,
    fit_sets,
    fit_temperature,
)
from tacit.types import Plan, Release

KEY = jax.random.key(0)


def posterior(likelihood: str, output: Any, columns: tuple[int, ...] = (), **more: Any) -> tacit.Posterior:
    """Return a posterior of one draw whose predictions are known: outputs are a fixed function of x."""
    net = tacit.network((lambda key: jnp.ones(1), lambda w, x: output(x) * w), likelihood, **more)
    method = tacit.sgd(net)(Plan({"x": jnp.zeros(columns), "y": jnp.zeros((), jnp.int32)}, 10))
    return tacit.Posterior({"weights": np.ones((300, 1))}, None, method)


def test_a_root_is_found_to_the_width_of_the_last_bracket() -> None:
    """Without noise: the number of records below a threshold passes 70 of 100 at the 70th, by eight halvings."""
    values = np.geomspace(0.1, 10, 100)
    method = root(lambda record, m: jnp.where(record <= m, 0.3, -0.7), 0.01, 100.0, clip=1.0)
    state = method.init(KEY)
    for _ in range(8):
        total = jnp.sum(jax.vmap(lambda record, s=state: method.contribute(s, record, KEY))(values))
        state = method.update(state, Release(total, jnp.float32(0), jnp.float32(1), total), KEY)
    found = float(method.draw(state, KEY)["root"])
    width = (100 / 0.01) ** (1 / 256)
    assert values[69] <= found <= values[69] * width * 1.001


def test_the_margin_keeps_noise_at_bay() -> None:
    method = root(lambda record, m: record, 1.0, 4.0, clip=1.0, margin=3.0, otherwise=math.inf)
    release = Release(jnp.float32(29), jnp.float32(10), jnp.float32(1), jnp.float32(29))
    assert math.isinf(float(method.draw(method.update(method.init(KEY), release, KEY), KEY)["root"]))
    release = release._replace(full=jnp.float32(31))
    assert float(method.draw(method.update(method.init(KEY), release, KEY), KEY)["root"]) == pytest.approx(2.0)


def test_conformal_coverage_is_at_least_its_level() -> None:
    """The promise is about a mean over records and noise: 4000 simulated sets of 300 records, with the wall's noise.

    The coverage given a threshold is known exactly, so that a mean over 4000 sets has a standard error below 0.0005;
    the false alarm of four of them is below 1e-4. Nor may it be far above the level, or the margin would be wasted.
    """
    count, level, sets = 300, 0.9, 4000
    raised, generator = level / (1 - FAILURE), np.random.default_rng(4)
    noise = tacit.calibrate(Budget(2.0, 1e-5), rate=1.0, steps=STEPS, clip=1.0).noise_multiplier
    # The method that fit_intervals runs, on scores that are uniform: a threshold covers its own share.
    method = _conformal(lambda record: record, 1e-3, 1.0, level, 1.0)

    def one(scores: Any, key: Any) -> Any:
        def step(t: Any, state: Any) -> Any:
            total = jnp.sum(jax.vmap(lambda record: method.contribute(state, record, key))(scores))
            total = total + noise * jax.random.normal(jax.random.fold_in(key, t))
            return method.update(state, Release(total, jnp.float32(noise), jnp.float32(1), total), key)

        return method.draw(jax.lax.fori_loop(0, STEPS, step, method.init(key)), key)["root"]

    scores = jnp.asarray(generator.uniform(size=(sets, count)), jnp.float32)
    covered = np.asarray(jax.jit(jax.vmap(one))(scores, jax.random.split(KEY, sets)))
    assert covered.mean() >= level - 0.002
    width = (1 / 1e-3) ** (1 / 2**STEPS)  # the last bracket's
    assert covered.mean() <= raised * width + 8 * noise / count


def test_intervals_through_the_wall_cover() -> None:
    """Predictions of half the true width, 2000 held records: intervals must be about twice as wide as the model says.

    The number of deviations is 2 x 1.645 up to the quantile of 2000 records, the margin and the last bracket: 3.2-4.3.
    """
    generator = np.random.default_rng(5)
    x = generator.normal(size=2000).astype(np.float32)
    y = (x + generator.normal(size=2000)).astype(np.float32)
    model = posterior("gaussian", lambda x: x, noise=0.5)
    data = PrivateData({"x": x, "y": y}, size=2000)
    found = fit_intervals(model, data, Budget(1.0, 1e-5), key=KEY, simulate=1)
    assert 3.2 < found.deviations < 4.3
    assert found.certificate is not None
    assert found.certificate.epsilon <= 1
    new_x, noise = generator.normal(size=500).astype(np.float32), generator.normal(size=500)
    low, high = found.around(model.predict({"x": new_x}, key=KEY)["y"])
    # At least 90% are promised; of 500, below 85% is 3.7 standard errors off: false alarm 1e-4.
    assert np.mean((low <= new_x + noise) & (new_x + noise <= high)) > 0.85


def coins(count: int, sharper: float) -> tuple[np.ndarray, np.ndarray, tacit.Posterior]:
    """Draw records of three classes whose chances the model makes sharper than they are."""
    generator = np.random.default_rng(6)
    x = generator.normal(size=(count, 3)).astype(np.float32)
    chances = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    y = np.array([generator.choice(3, p=p / p.sum()) for p in chances.astype(float)], np.int32)
    return x, y, posterior("categorical", lambda x: sharper * x, (3,))


def test_a_temperature_undoes_what_made_chances_too_sure() -> None:
    """3000 records: the best temperature is known to about 6%, the noise at epsilon 1 moves it by less again."""
    x, y, model = coins(3000, 3.0)
    found = fit_temperature(model, PrivateData({"x": x, "y": y}, size=3000), Budget(1.0, 1e-5), key=KEY, simulate=1)
    assert found.value == pytest.approx(3.0, rel=0.3)
    chances = np.asarray(model.predict({"x": x}, key=KEY)["mean"]).mean(0)
    assert calibration.reliability(found.apply(chances), y).ece < 0.05
    assert calibration.reliability(chances, y).ece > 0.15


def test_sets_of_classes_cover() -> None:
    x, y, model = coins(3000, 3.0)
    found = fit_sets(
        model, PrivateData({"x": x[:2000], "y": y[:2000]}, size=2000), Budget(1.0, 1e-5), key=KEY, simulate=1
    )
    chances = np.asarray(model.predict({"x": x[2000:]}, key=KEY)["mean"]).mean(0)
    within = found.among(chances)
    # 1000 records: below 86% is four standard errors off the promise.
    assert within[np.arange(1000), y[2000:]].mean() > 0.86
    assert within.sum(1).mean() < 2.9


@pytest.mark.slow
def test_a_chance_of_class_1_alone_is_enough() -> None:
    generator = np.random.default_rng(7)
    x = generator.normal(size=2000).astype(np.float32)
    y = (generator.random(2000) < 1 / (1 + np.exp(-x))).astype(np.int32)
    data = PrivateData({"x": x, "y": y}, size=2000)
    found = fit_temperature(posterior("bernoulli", lambda x: 4 * x), data, Budget(1.0, 1e-5), key=KEY, simulate=1)
    assert 2.5 < found.value < 6


def test_levels_that_cannot_be_promised_are_refused() -> None:
    data = PrivateData({"x": np.zeros(10, np.float32), "y": np.zeros(10, np.float32)}, size=10)
    with pytest.raises(ValueError, match=r"level is 0\.995"):
        fit_intervals(posterior("gaussian", lambda x: x, noise=1.0), data, Budget(1.0, 1e-5), key=KEY, level=0.995)


def test_a_class_that_there_is_not_counts_for_nothing() -> None:
    x, y, model = coins(20, 1.0)
    data = PrivateData({"x": x, "y": np.where(np.arange(20) == 3, 7, y).astype(np.int32)}, size=20)
    for buy in (fit_sets, fit_temperature):
        bought = buy(model, data, Budget(1.0, 1e-5), key=KEY, simulate=1)
        assert np.isfinite(bought[0])


def test_what_was_bought_is_applied_as_it_says() -> None:
    draws = np.random.default_rng(8).normal(3, 2, (1000, 1))
    low, high = Intervals(1.5, 0.9, None).around(draws)
    assert (low[0], high[0]) == pytest.approx((draws.mean() - 1.5 * draws.std(), draws.mean() + 1.5 * draws.std()))
    assert Sets(0.2, 0.9, None).among([[0.7, 0.2, 0.1]]).tolist() == [[True, True, False]]
    np.testing.assert_allclose(Temperature(0.5, None).apply([0.8, 0.2]), [16 / 17, 1 / 17])
