"""Probabilistic backpropagation: moments against quadrature and Monte Carlo, sites, what it learns, its errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import tacit
from tacit import sites
from tacit.fit import fit_public
from tacit.methods.natural import Moments
from tacit.methods.pbp import PBPState, forward, output, pbp, rectified

pytestmark = pytest.mark.usefixtures("quick_compiler")
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("mean", "variance"), [(0.0, 1.0), (1.5, 0.3), (-2.0, 0.7), (-6.0, 1.0), (20.0, 0.01), (3.0, 9.0)]
)
def test_moments_of_a_rectified_gaussian(mean: float, variance: float) -> None:
    std = np.sqrt(variance)
    first, second = (
        integrate.quad(lambda a, p=p: a**p * stats.norm.pdf(a, mean, std), max(0, mean - 10 * std), mean + 10 * std)[0]
        if mean + 10 * std > 0
        else 0.0
        for p in (1, 2)
    )
    found = rectified(jnp.float32(mean), jnp.float32(variance))
    assert float(found.mean) == pytest.approx(first, rel=1e-3, abs=1e-9)
    assert float(found.variance) == pytest.approx(second - first**2, rel=5e-3, abs=1e-9)


def test_slopes_stay_finite_far_from_zero() -> None:
    for mean in (-1e4, -50.0, 50.0, 1e4):
        slopes = jax.grad(lambda m, v: sum(rectified(m, v)), (0, 1))(jnp.float32(mean), jnp.float32(0.5))
        assert np.isfinite(slopes).all()


def weights(key: Any, shapes: tuple[tuple[int, int], ...], variance: float) -> Moments:
    keys = jax.random.split(key, len(shapes))
    means = [jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]
    return Moments(means, [jnp.full(shape, variance) for shape in shapes])


def test_one_layer_is_exact_and_a_deep_network_nearly() -> None:
    """40000 draws, fixed seed: the standard errors are 0.5% of a deviation and 0.7% of a variance."""
    x = jnp.asarray([0.5, -1.0, 2.0])
    for shapes, tolerance in ((((2, 4),), 0.03), (((20, 4), (2, 21)), 0.06), (((20, 4), (20, 21), (2, 21)), 0.2)):
        q = weights(KEY, shapes, 0.1)

        def once(key: Any, q: Moments = q) -> Any:
            keys = jax.random.split(key, len(q.mean))
            drawn = [m + jnp.sqrt(v) * jax.random.normal(k, m.shape) for k, m, v in zip(keys, *q, strict=True)]
            return output(drawn, x)

        draws = np.asarray(jax.vmap(once)(jax.random.split(KEY, 40_000)))
        found = forward(q, x)
        np.testing.assert_allclose(found.mean, draws.mean(0), atol=tolerance * draws.std(0).max())
        np.testing.assert_allclose(found.variance, draws.var(0), rtol=tolerance)


def built(**more: Any) -> Any:
    return pbp((6,), size=100, **more)({"x": jnp.zeros(3), "y": jnp.float32(0)})


def test_a_site_is_the_change_of_the_moments() -> None:
    """m' = m + v g, v' = v - v^2 s, and the site is the difference of natural parameters, in units of the noise."""
    method = built(noise=0.5)
    state = method.init(KEY)
    record = {"x": jnp.asarray([0.3, -1.2, 0.8]), "y": jnp.float32(0.7)}
    found = method.contribute(state, record, KEY)

    def log_z(mean: Any, variance: Any) -> Any:
        f = forward(Moments(mean, variance), record["x"])
        all_variance = f.variance[0] + 0.5
        return -0.5 * jnp.log(all_variance) - 0.5 * (record["y"] - f.mean[0]) ** 2 / all_variance

    g, k = jax.grad(log_z, (0, 1))(*state.cavity)
    for i, (m, v) in enumerate(zip(*state.cavity, strict=True)):
        m, v, slope = (np.asarray(part, float) for part in (m, v, g[i]))
        after = v - v**2 * (slope**2 - 2 * np.asarray(k[i], float))
        precision = 1 / after - 1 / v
        linear = (m + v * slope) / after - m / v
        np.testing.assert_allclose(found.sites.precision[i], 0.5 * precision, rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(found.sites.linear[i], 0.5 * linear, rtol=2e-3, atol=1e-5)
    assert found.noise == ()


def wave(count: int = 800) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    x = generator.uniform(-2, 2, size=(count, 1)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.2 * generator.normal(size=count)
    return {"x": x, "y": y.astype(np.float32)}


def test_it_learns_a_curve_and_the_noise_around_it() -> None:
    data = wave()
    fit = fit_public(pbp((20,), size=800, pace=lambda step: 0.05 + 0 * step), data, steps=600, key=KEY)
    inputs = np.linspace(-1.8, 1.8, 50, dtype=np.float32)[:, None]
    found = fit.predict({"x": inputs}, key=KEY)
    truth = np.sin(2 * inputs[:, 0])
    straight = np.sqrt(np.mean((truth - np.polyval(np.polyfit(inputs[:, 0], truth, 1), inputs[:, 0])) ** 2))
    assert np.sqrt(np.mean((found["mean"].mean(0) - truth) ** 2)) < 0.25 * straight
    # The noise precision's posterior is Gamma(6 + 400, 6 + half the squared errors, the weights' spread included).
    fitted = fit.predict({"x": data["x"]}, key=KEY)["mean"].mean(0)
    least = (6 + float(np.sum((data["y"] - fitted) ** 2)) / 2) / (5 + 400)
    assert least < float(fit.points["noise"]) < 1.15 * least
    # The spread of predicted records is that of the noise and the weights together.
    assert 0.15 < found["y"].std(0).mean() < 0.4


@pytest.mark.slow
def test_classes_of_a_ring() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(500, 2)).astype(np.float32)
    inside = (np.linalg.norm(x, axis=1) < 1.2).astype(np.int32)
    fit = fit_public(pbp((12,), size=500, head=sites.probit()), {"x": x, "y": inside}, steps=300, key=KEY)
    chance = fit.predict({"x": x}, key=KEY)["mean"].mean(0)
    assert np.mean((chance > 0.5) == inside) > 0.9 > max(np.mean(inside), 1 - np.mean(inside)) + 0.1


@pytest.mark.slow
def test_several_classes() -> None:
    for head in (sites.softmax(3), sites.multi_probit(3)):
        method = pbp((4,), size=50, head=head)({"x": jnp.zeros(2), "y": jnp.int32(0)})
        state = method.init(KEY)
        given = method.contribute(state, {"x": jnp.ones(2), "y": jnp.int32(2)}, KEY)
        assert [leaf.shape for leaf in given.sites.linear] == [(4, 3), (3, 5)]
        # The output of the class that was seen is drawn up, those of the others down.
        assert np.all(given.sites.linear[1][2] > 0)
        assert np.all(given.sites.linear[1][:2] < 0)
        assert method.predict is not None
        chance = method.predict(method.draw(state, KEY), {"x": np.ones((7, 2), np.float32)}, KEY)
        assert chance["mean"].shape == (3, 7)
        np.testing.assert_allclose(chance["mean"].sum(0), 1, rtol=1e-3)


def test_a_private_fit_through_the_wall() -> None:
    data = tacit.PrivateData(wave(6000), size=6000)
    fit = tacit.fit(
        pbp((10,), size=6000), data, tacit.Budget(8.0, 1e-5), key=KEY, simulate=1, progress=False, steps=150, rate=0.1
    )
    assert fit.certificate is not None
    inputs = np.linspace(-1.8, 1.8, 50, dtype=np.float32)[:, None]
    truth = np.sin(2 * inputs[:, 0])
    found = fit.predict({"x": inputs}, key=KEY)["mean"].mean(0)
    assert np.sqrt(np.mean((found - truth) ** 2)) < 0.8 * np.std(truth)


def test_the_prior_follows_from_public_state_alone() -> None:
    method = built()
    state = method.init(KEY)
    assert isinstance(state, PBPState)
    record = {"x": jnp.ones(3), "y": jnp.float32(1)}
    zero = jax.tree.map(jnp.zeros_like, method.contribute(state, record, KEY))
    std = jax.tree.map(lambda leaf: jnp.float32(0), zero)
    after = method.update(state, tacit.Release(zero, std, jnp.float32(1), zero), KEY)
    assert float(after.decay) != float(state.decay)  # refreshed though no record was there
    assert method.weights is not None
    assert len(method.weights) == len(jax.tree.leaves(zero)) == 6


def test_two_hidden_layers_have_as_many_blocks() -> None:
    method = pbp((5, 4), size=50, noise=0.1)({"x": jnp.zeros(3), "y": jnp.float32(0)})
    state = method.init(KEY)
    given = method.contribute(state, {"x": jnp.ones(3), "y": jnp.float32(1)}, KEY)
    assert [leaf.shape for leaf in given.sites.linear] == [(5, 4), (4, 6), (1, 5)]
    assert method.weights is not None
    assert len(method.weights) == 6
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(given))


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="all must be positive"):
        pbp((0,), size=10)
    with pytest.raises(ValueError, match="part of the head"):
        pbp((5,), size=10, noise=0.1, head=sites.probit())
    with pytest.raises(ValueError, match="output is a predictor"):
        pbp((5,), size=10, head=sites.mixture(2, 0.5))
    with pytest.raises(ValueError, match="with a vector x"):
        pbp((5,), size=10)({"x": jnp.zeros((2, 2)), "y": jnp.float32(0)})
