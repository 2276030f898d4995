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
from tacit.engine import outer
from tacit.methods.gaussians import Moments
from tacit.methods.pbp import PBPState, _rectified, forward, output, pbp, rectified
from tacit.run.public import fit_public, sum_public
from tacit.types import Plan

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


def test_chance_and_density_of_a_unit_are_right_far_into_the_tail() -> None:
    """Relative to their size: float32 itself loses 5e-6 of the density at -12, in its exponent."""
    mean = jnp.linspace(-12, 12, 1001)
    _, std, on, density = _rectified(mean, jnp.ones_like(mean))
    np.testing.assert_allclose(std, 1)
    np.testing.assert_allclose(on, stats.norm.cdf(np.asarray(mean, float)), rtol=1e-5)
    np.testing.assert_allclose(density, stats.norm.pdf(np.asarray(mean, float)), rtol=1e-5)
    close = np.abs(mean) < 3
    np.testing.assert_allclose(on[close], stats.norm.cdf(np.asarray(mean[close], float)), rtol=1e-6)


def test_slopes_stay_finite_far_from_zero() -> None:
    for mean in (-1e4, -50.0, 50.0, 1e4):
        slopes = jax.grad(lambda m, v: sum(rectified(m, v)), (0, 1))(jnp.float32(mean), jnp.float32(0.5))
        assert np.isfinite(slopes).all()


def test_slopes_of_the_moments_are_right() -> None:
    """By differences in double precision: the slopes are written by hand."""

    def exact(mean: float, variance: float) -> np.ndarray:
        std = np.sqrt(variance)
        on, density = stats.norm.cdf(mean / std), stats.norm.pdf(mean / std)
        first = mean * on + std * density
        return np.array([first, (mean**2 + variance) * on + mean * std * density - first**2])

    for mean, variance in ((0.3, 0.5), (-1.0, 2.0), (2.0, 0.4)):
        slopes = jax.jacobian(lambda m, v: jnp.stack(rectified(m, v)), (0, 1))(jnp.float32(mean), jnp.float32(variance))
        by_mean = (exact(mean + 1e-5, variance) - exact(mean - 1e-5, variance)) / 2e-5
        by_variance = (exact(mean, variance + 1e-5) - exact(mean, variance - 1e-5)) / 2e-5
        np.testing.assert_allclose(slopes, (by_mean, by_variance), rtol=1e-4, atol=1e-5)


def weights(key: Any, shapes: tuple[tuple[int, int], ...], variance: float) -> Moments:
    keys = jax.random.split(key, len(shapes))
    means = [jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]
    return Moments(means, [jnp.full(shape, variance) for shape in shapes])


@pytest.mark.slow
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
    return pbp((6,), **more)(Plan({"x": jnp.zeros(3), "y": jnp.float32(0)}, 100))


RECORD = {"x": jnp.asarray([0.3, -1.2, 0.8]), "y": jnp.float32(0.7)}


def gaussian_log_z(mean: Any, variance: Any) -> Any:
    f = forward(Moments(mean, variance), RECORD["x"])
    all_variance = f.variance[0] + 0.5
    return -0.5 * jnp.log(all_variance) - 0.5 * (RECORD["y"] - f.mean[0]) ** 2 / all_variance


@pytest.mark.parametrize("hidden", [(6,), (6, 5), ()])
def test_a_contribution_is_slope_and_curvature_by_every_weight(hidden: tuple[int, ...]) -> None:
    """g by m, and g^2 - 2 k, k by v, of log Z of the whole network; in units of the noise."""
    method = pbp(hidden, noise=0.5)(Plan({"x": jnp.zeros(3), "y": jnp.float32(0)}, 100))
    state = method.init(KEY)
    found = method.contribute(state, RECORD, KEY)
    g, k = jax.grad(gaussian_log_z, (0, 1))(*state.cavity)
    for i in range(len(g)):
        np.testing.assert_allclose(found.slope[i], np.sqrt(0.5) * g[i], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(found.curvature[i], 0.5 * (g[i] ** 2 - 2 * k[i]), rtol=1e-4, atol=1e-7)
    assert found.noise == ()


def test_a_power_counts_in_the_curvature_of_every_layer() -> None:
    """alpha g^2 - 2 k, of 1/alpha log E[p^alpha]: the power is in log Z, and once more before g^2."""
    head, record = sites.probit(alpha=0.5), {**RECORD, "y": jnp.int32(1)}
    method = pbp((6,), head=head)(Plan(record, 100))
    state = under_way(method)

    def log_z(mean: Any, variance: Any) -> Any:
        f = forward(Moments(mean, variance), record["x"])
        return head.log_z(record, f.mean[0], f.variance[0])

    g, k = jax.grad(log_z, (0, 1))(*state.cavity)
    found = method.contribute(state, record, KEY)
    for i in range(2):
        np.testing.assert_allclose(found.slope[i], g[i], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.curvature[i], 0.5 * g[i] ** 2 - 2 * k[i], rtol=1e-4, atol=1e-6)


def under_way(method: Any) -> PBPState:
    """Return a state in which the last layer is not zero any more: at first nothing comes back from it."""
    state = method.init(KEY)
    mean = [state.centre[0], jax.random.normal(KEY, state.centre[1].shape)]
    total = state.total._replace(linear=jax.tree.map(jnp.multiply, mean, state.total.precision))
    return state._replace(total=total, sites=total, cavity=state.cavity._replace(mean=mean))


def release_of(contribution: Any, times: float = 1.0) -> tacit.types.Release:
    full = jax.tree.map(lambda leaf: times * leaf, contribution)
    return tacit.types.Release(full, jax.tree.map(lambda leaf: jnp.float32(0), full), jnp.float32(1), full)


def test_a_step_adds_the_sites_of_the_records() -> None:
    """As many like one record: precision s / (1 - v s), linear part (g + s m) / (1 - v s), to first order in v s."""
    size = 50_000
    method = pbp((6,), noise=0.5, pace=jnp.ones_like)(Plan({"x": jnp.zeros(3), "y": jnp.float32(0)}, size))
    state = under_way(method)
    after = method.update(state, release_of(method.contribute(state, RECORD, KEY), size), KEY)
    g, k = jax.grad(gaussian_log_z, (0, 1))(*state.cavity)
    for i, (m, v) in enumerate(zip(*state.cavity, strict=True)):
        m, v, slope = (np.asarray(part, float) for part in (m, v, g[i]))
        left = v - v**2 * (slope**2 - 2 * np.asarray(k[i], float))
        precision, linear = 1 / left - 1 / v, (m + v * slope) / left - m / v
        learnt = precision * size > 20  # where records say next to nothing, or less than nothing, there is a floor
        assert learnt.mean() > 0.5
        np.testing.assert_allclose(after.sites.precision[i][learnt], size * precision[learnt], rtol=5e-3)
        np.testing.assert_allclose(after.sites.linear[i][learnt], size * linear[learnt], rtol=1e-2, atol=1e-2 * size)


def test_the_recursion_is_that_of_sep() -> None:
    method = pbp((6,), noise=0.5, pace=lambda step: 0.3 + 0 * step)(Plan({"x": jnp.zeros(3), "y": jnp.zeros(())}, 100))
    state = under_way(method)
    given = method.contribute(state, RECORD, KEY)
    after = method.update(state, release_of(given, 100.0), KEY)
    for i in range(2):
        s, g = 100 * np.asarray(given.curvature[i]) / 0.5, 100 * np.asarray(given.slope[i]) / np.sqrt(0.5)
        precision = 0.7 * np.asarray(state.sites.precision[i]) + 0.3 * s
        linear = 0.7 * np.asarray(state.sites.linear[i]) + 0.3 * (g + s * np.asarray(state.cavity.mean[i]))
        learnt = precision > 0.1
        np.testing.assert_allclose(after.sites.precision[i][learnt], precision[learnt], rtol=1e-4)
        np.testing.assert_allclose(after.sites.linear[i][learnt], linear[learnt], rtol=1e-3, atol=1e-3)


def test_noise_in_curvatures_moves_no_mean() -> None:
    method = pbp((6,))(Plan({"x": jnp.zeros(3), "y": jnp.zeros(())}, 100))
    state = method.init(KEY)
    given = method.contribute(state, RECORD, KEY)
    rough = [1000 * jax.random.normal(KEY, leaf.shape) for leaf in given.curvature]
    release = release_of(given._replace(slope=jax.tree.map(jnp.zeros_like, given.slope), curvature=rough))
    std = release.noise_std._replace(curvature=[jnp.float32(1000.0)] * 2)
    after = method.update(state, release._replace(noise_std=std), KEY)
    for m, wanted in zip(after.cavity.mean, state.cavity.mean, strict=True):
        np.testing.assert_allclose(m, wanted, rtol=1e-4, atol=1e-6)
    assert all((np.asarray(v) > 0).all() for v in after.cavity.variance)


def test_the_first_guess_at_the_width_counts_public_noise() -> None:
    wide, narrow = (built(noise=noise).init(KEY).sites.precision[0] for noise in (1.0, 0.01))
    np.testing.assert_allclose(narrow, 100 * wide, rtol=1e-5)


def test_the_cavity_takes_out_as_much_as_the_power_says() -> None:
    records = {"x": jnp.ones(3), "y": jnp.int32(1)}
    method = pbp((4,), head=sites.probit(alpha=0.5))(Plan(records, 10))
    state = method.init(KEY)
    after = method.update(state, release_of(method.contribute(state, records, KEY), 10.0), KEY)
    for i in range(2):
        left = np.asarray(after.sites.precision[i]) * (1 - 0.5 / 10) + float(after.decay)
        np.testing.assert_allclose(after.cavity.variance[i], 1 / left, rtol=1e-5)


@pytest.mark.slow
def test_public_sums_are_the_same_without_writing_them_out() -> None:
    """The first layer's slopes and curvatures are outer products, of which a sum is one matrix product."""
    method = pbp((40,))(Plan({"x": jnp.zeros(9), "y": jnp.zeros(())}, 100))
    state = under_way(method)
    generator = np.random.default_rng(0)
    records = {"x": jnp.float32(generator.normal(size=(70, 9))), "y": jnp.float32(generator.normal(size=70))}

    def contribute(record: Any, record_key: Any) -> Any:
        return method.contribute(state, record, KEY)

    found = jax.jit(lambda records: sum_public(contribute, records, jnp.arange(70)))(records)
    each = jax.vmap(contribute)(records, jnp.arange(70))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(one, np.asarray(other, float).sum(0), rtol=1e-4, atol=1e-5 * np.abs(other).sum())
    taken_apart = outer.split(jax.vmap(contribute), records, jnp.arange(70), smallest=0).outers
    assert [product is not None for product in taken_apart] == [True, False, True, False, False, False]


def wave(count: int = 800) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    x = generator.uniform(-2, 2, size=(count, 1)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.2 * generator.normal(size=count)
    return {"x": x, "y": y.astype(np.float32)}


def test_it_learns_a_curve_and_the_noise_around_it() -> None:
    data = wave()
    fit = fit_public(pbp((20,), pace=lambda step: 0.05 + 0 * step), data, steps=600, key=KEY)
    inputs = np.linspace(-1.8, 1.8, 50, dtype=np.float32)[:, None]
    found = fit.predict({"x": inputs}, key=KEY)
    truth = np.sin(2 * inputs[:, 0])
    straight = np.sqrt(np.mean((truth - np.polyval(np.polyfit(inputs[:, 0], truth, 1), inputs[:, 0])) ** 2))
    assert np.sqrt(np.mean((found["mean"].mean(0) - truth) ** 2)) < 0.25 * straight
    # The noise precision's posterior is Gamma(6 + 400, 6 + half the squared errors, the weights' spread included).
    fitted = fit.predict({"x": data["x"]}, key=KEY)["mean"].mean(0)
    least = (6 + float(np.sum((data["y"] - fitted) ** 2)) / 2) / (5 + 400)
    assert least < float(fit.point_estimates["noise"]) < 1.15 * least
    # The spread of predicted records is that of the noise and the weights together.
    assert 0.15 < found["y"].std(0).mean() < 0.4


@pytest.mark.slow
def test_classes_of_a_ring() -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(500, 2)).astype(np.float32)
    inside = (np.linalg.norm(x, axis=1) < 1.2).astype(np.int32)
    fit = fit_public(pbp((12,), head=sites.probit()), {"x": x, "y": inside}, steps=300, key=KEY)
    chance = fit.predict({"x": x}, key=KEY)["mean"].mean(0)
    assert np.mean((chance > 0.5) == inside) > 0.9 > max(np.mean(inside), 1 - np.mean(inside)) + 0.1


@pytest.mark.slow
def test_several_classes() -> None:
    for head in (sites.softmax(3), sites.multi_probit(3)):
        method = pbp((4,), head=head)(Plan({"x": jnp.zeros(2), "y": jnp.int32(0)}, 50))
        state = method.init(KEY)
        given = method.contribute(state, {"x": jnp.ones(2), "y": jnp.int32(2)}, KEY)
        assert [leaf.shape for leaf in given.slope] == [(4, 3), (3, 5)]
        # The output of the class that was seen is drawn up, those of the others down.
        assert np.all(given.slope[1][2] > 0)
        assert np.all(given.slope[1][:2] < 0)
        assert method.model.predict is not None
        chance = method.model.predict(method.draw(state, KEY), {"x": np.ones((7, 2), np.float32)}, KEY)
        assert chance["mean"].shape == (3, 7)
        np.testing.assert_allclose(chance["mean"].sum(0), 1, rtol=1e-3)


def test_a_private_fit_through_the_wall() -> None:
    data = tacit.PrivateData(wave(6000), size=6000)
    fit = tacit.fit(pbp((10,)), data, tacit.Budget(8.0, 1e-5), key=KEY, simulate=1, progress=False, steps=150, rate=0.1)
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
    after = method.update(state, tacit.types.Release(zero, std, jnp.float32(1), zero), KEY)
    assert float(after.decay) != float(state.decay)  # refreshed though no record was there
    assert method.suggests.weights is not None
    assert len(method.suggests.weights) == len(jax.tree.leaves(zero)) == 6


def test_two_hidden_layers_have_as_many_blocks() -> None:
    method = pbp((5, 4), noise=0.1)(Plan({"x": jnp.zeros(3), "y": jnp.float32(0)}, 50))
    state = method.init(KEY)
    given = method.contribute(state, {"x": jnp.ones(3), "y": jnp.float32(1)}, KEY)
    assert [leaf.shape for leaf in given.slope] == [(5, 4), (4, 6), (1, 5)]
    assert method.suggests.weights is not None
    assert len(method.suggests.weights) == 6
    assert all(np.isfinite(leaf).all() and np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(given))


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="all must be positive"):
        pbp((0,))
    with pytest.raises(ValueError, match="part of the head"):
        pbp((5,), noise=0.1, head=sites.probit())
    with pytest.raises(ValueError, match="output is a predictor"):
        pbp((5,), head=sites.mixture(2, 0.5))
    with pytest.raises(ValueError, match="with a vector x"):
        pbp((5,))(Plan({"x": jnp.zeros((2, 2)), "y": jnp.float32(0)}, 10))
