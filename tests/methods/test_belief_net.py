"""Sigmoid belief networks: every update against the gradient of the closed-form bound, norms, refusals, predictions."""

from __future__ import annotations

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma, gammaln
from scipy import special

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine.step import Step
from tacit.methods.belief_net import belief_net, pixel_accuracy, reconstruct
from tacit.methods.running import Running
from tacit.methods.sparsity import bessel_ratio
from tacit.types import Plan, Release
from tacit.wall.data import PrivateData

module = importlib.import_module("tacit.methods.belief_net")
KEY = jax.random.key(0)
N, J, K = 120, 7, 3


def images(count: int = N, pixels: int = J, seed: int = 0) -> np.ndarray:
    """Draw binary images with two causes."""
    generator = np.random.default_rng(seed)
    causes = generator.integers(0, 2, (count, 2))
    loadings = generator.normal(0, 5, (2, pixels))
    return generator.random((count, pixels)) < 1 / (1 + np.exp(-(causes @ loadings - 0.5)))


def slope(c):
    return jnp.tanh(c / 2) / (2 * c)


def log_k0(r):
    """Return log K0(r) by its integral, with nodes enough for 64 bits."""
    t = jnp.linspace(0, 40, 4001)
    values = -r[..., None] * 2 * jnp.sinh(t / 2) ** 2
    return jnp.log(jnp.sum(jnp.where(t == 0, 0.5, 1) * jnp.exp(values), -1) * t[1]) - r


def gamma_terms(shape, rate):
    """Return mean, mean logarithm and entropy of a Gamma variable."""
    entropy = shape - jnp.log(rate) + gammaln(shape) + (1 - shape) * digamma(shape)
    return shape / rate, digamma(shape) - jnp.log(rate), entropy


def elbo(q, y, prior=1.0):
    """Return the evidence bound with every factor's parameters free, Pólya-Gamma tilts (c, cb) included."""
    on = jnp.concatenate([jnp.ones((len(y), 1)), q["pi"]], 1)
    psi = on @ q["mean"].T
    square = psi**2 + (on * (1 - on)) @ (q["mean"] ** 2).T + on @ q["variance"].T
    data = (y - 0.5) * psi - jnp.log(2 * jnp.cosh(q["c"] / 2)) - slope(q["c"]) / 2 * (square - q["c"] ** 2)
    bias_square = q["bias"] ** 2 + q["bias_variance"]
    tilt = -jnp.log(2 * jnp.cosh(q["cb"] / 2)) - slope(q["cb"]) / 2 * (bias_square - q["cb"] ** 2)
    hidden = (q["pi"] - 0.5) * q["bias"] + tilt
    entropy = -q["pi"] * jnp.log(q["pi"]) - (1 - q["pi"]) * jnp.log1p(-q["pi"])

    def normal(mean_square, variance):  # -KL from N(0, prior), up to a constant
        return -mean_square / (2 * prior) + jnp.log(variance) / 2

    weights = normal(q["mean"][:, 0] ** 2 + q["variance"][:, 0], q["variance"][:, 0]).sum()
    weights += normal(bias_square, q["bias_variance"]).sum()
    # TPBN: E[log zeta] cancels between prior and entropy of GIG(0, a, b).
    root = jnp.sqrt(q["a"] * q["b"])
    ratio = -jax.grad(lambda r: log_k0(r).sum())(root)
    zeta, inverse = jnp.sqrt(q["b"] / q["a"]) * ratio, jnp.sqrt(q["a"] / q["b"]) * ratio
    x, log_x, entropy_x = gamma_terms(q["x_shape"], q["x_rate"])
    phi, log_phi, entropy_phi = gamma_terms(q["phi_shape"], q["phi_rate"])
    omega, log_omega, entropy_omega = gamma_terms(q["omega_shape"], q["omega_rate"])
    w_square = q["mean"][:, 1:] ** 2 + q["variance"][:, 1:]
    tpbn = (jnp.log(q["variance"][:, 1:]) / 2 - w_square * inverse / 2 + log_x / 2 - x * zeta).sum()
    tpbn += (log_k0(root) + (q["a"] * zeta + q["b"] * inverse) / 2).sum()
    tpbn += (log_phi / 2 - log_x / 2 - phi * x + entropy_x).sum()
    tpbn += (log_omega / 2 - log_phi / 2 - omega * phi + entropy_phi).sum() - log_omega / 2 - omega + entropy_omega
    return data.sum() + hidden.sum() + entropy.sum() + weights + tpbn


BOTH = jax.jit(jax.value_and_grad(elbo))


def slopes_of(q, y):
    """Return the bound and its gradient, in 64 bits."""
    with jax.enable_x64(True):
        q = {name: jnp.asarray(np.asarray(value), jnp.float64) for name, value in q.items()}
        value, gradient = BOTH(q, jnp.asarray(np.asarray(y), jnp.float64))
        return float(value), {name: np.asarray(leaf) for name, leaf in gradient.items()}


@functools.partial(jax.jit, static_argnums=2)
def factors(state, y, sweeps=100):
    """Return all factors of q at a state: the records' from the E-step, TPBN's from the means that the state holds."""
    active, _, psi = jax.vmap(lambda seen: module._infer(state.net, seen, jnp.ones(J), sweeps))(y)
    on = jnp.concatenate([jnp.ones((len(y), 1)), active], 1)
    net, sparsity = state.net, state.sparsity
    square = psi**2 + (on * (1 - on)) @ (net.mean**2).T + on @ net.variance.T
    return {
        **net._asdict(),
        "pi": active,
        "c": jnp.sqrt(square),
        "cb": jnp.sqrt(net.bias**2 + net.bias_variance),
        "a": 2 * sparsity.x,
        "b": net.mean[:, 1:] ** 2 + net.variance[:, 1:],
        "x_shape": jnp.ones((J, K)),
        "x_rate": 1 / sparsity.x,
        "phi_shape": jnp.full(K, (J + 1) / 2),
        "phi_rate": (J + 1) / 2 / sparsity.phi,
        "omega_shape": jnp.float32((K + 1) / 2),
        "omega_rate": (K + 1) / 2 / sparsity.omega,
    }


def built(**options):
    return belief_net(K, **{"sweeps": 100, "pace": jnp.ones_like, **options})(Plan(jnp.zeros(J, bool)))


def release_of(method, state, y):
    total = jax.jit(
        lambda state, y: jax.tree.map(
            lambda leaf: leaf.sum(0), jax.vmap(lambda record: method.contribute(state, record, KEY))(y)
        )
    )(state, jnp.asarray(y))
    return Release(total, jax.tree.map(lambda leaf: jnp.zeros(()), total), jnp.float32(1), total)


def some_state(method):
    """Return a state off every optimum, whose prior precisions belong to a q(zeta)."""
    state = method.init(jax.random.key(3))
    net = state.net._replace(mean=10 * state.net.mean + 0.3, bias=jnp.asarray([0.4, -0.6, 0.1]))
    x = jax.random.uniform(KEY, (J, K), minval=0.3, maxval=2.0)
    square = net.mean[:, 1:] ** 2 + net.variance[:, 1:]
    precision = jnp.sqrt(2 * x / square) * bessel_ratio(jnp.sqrt(2 * x * square))
    return state._replace(net=net, sparsity=state.sparsity._replace(x=x, precision=precision))


def test_every_update_zeroes_its_gradient_and_raises_the_bound():
    y = jnp.asarray(images(), jnp.float32)
    method = built(stride=jnp.ones_like)
    state = some_state(method)
    q = factors(state, y)
    value, gradient = slopes_of(q, y)
    for local in ("pi", "c"):  # the E-step
        assert np.abs(gradient[local]).max() < 2e-3

    after = jax.jit(method.update)(state, release_of(method, state, images()), KEY)
    before = {name: np.abs(gradient[name]).max() for name in gradient}
    for j, k in np.ndindex(J, K + 1):  # one weight at a time: the coordinate optimum
        moved = {**q, "mean": q["mean"].at[j, k].set(after.net.mean[j, k])}
        higher, at = slopes_of(moved, y)
        assert abs(at["mean"][j, k]) < 1e-3 * before["mean"]
        assert higher >= value - 1e-6
    for names in (("variance",), ("bias", "bias_variance", "cb")):
        moved = {
            **q,
            **{name: factors(after, y, 1)[name] if name == "cb" else after.net._asdict()[name] for name in names},
        }
        higher, at = slopes_of(moved, y)
        for name in names:
            assert np.abs(at[name]).max() < 1e-3 * max(before[name], 1)
        assert higher > value

    # TPBN in turn: zeta given the new weights, then x, phi, omega.
    q |= after.net._asdict()
    value, _ = slopes_of(q, y)
    new = factors(after, y, 1)
    q["b"] = new["b"]
    for names in (("a", "b"), ("x_rate", "x_shape"), ("phi_rate", "phi_shape"), ("omega_rate", "omega_shape")):
        q |= {name: new[name] for name in names if name != "a"}  # q(zeta) comes before q(x)
        higher, at = slopes_of(q, y)
        for name in names:
            assert np.abs(at[name]).max() < 2e-3
        assert higher >= value - 1e-6
        value = higher
    expected = (
        np.sqrt(q["a"] / q["b"]) * special.kve(1, np.sqrt(q["a"] * q["b"])) / special.kve(0, np.sqrt(q["a"] * q["b"]))
    )
    np.testing.assert_allclose(after.sparsity.precision, expected, rtol=1e-4)


def converged():
    method = built(stride=lambda step: jnp.float32(1 / (K + 1)))
    y = images()
    state = some_state(method)  # from small weights this little data ends at no hidden causes at all

    def step(state, _):
        after = method.update(state, release_of(method, state, y), KEY)
        return after, after

    return jax.jit(lambda state: jax.lax.scan(step, state, None, 800))(state), jnp.asarray(y, jnp.float32)


def test_the_bound_never_falls_and_the_end_is_a_fixed_point_that_the_papers_equations_do_not_have():
    (state, states), y = converged()
    values = [
        slopes_of(factors(jax.tree.map(lambda leaf, i=i: leaf[i], states), y), y)[0]
        for i in [*range(40), *range(40, 800, 40)]
    ]
    assert np.diff(values).min() > -1e-4
    assert values[-1] > values[0] + 5
    q = factors(state, y)
    assert np.abs(q["mean"][:, 1:]).max() > 1
    value, gradient = slopes_of(q, y)
    for name, leaf in gradient.items():
        assert np.abs(leaf).max() < 5e-3, name

    # S1: equation 72 halves the term <xi><z>'<W>' in the visible biases' update.
    slopes = slope(q["c"])
    precision = 1 + slopes.sum(0)
    crossed = jnp.einsum("nj,nk,jk->j", slopes, q["pi"], q["mean"][:, 1:])
    right, wrong = (((y - 0.5).sum(0) - factor * crossed) / precision for factor in (1.0, 0.5))
    np.testing.assert_allclose(right, q["mean"][:, 0], atol=1e-3)
    worse, at = slopes_of({**q, "mean": q["mean"].at[:, 0].set(wrong)}, y)
    assert np.abs(at["mean"][:, 0]).max() > 1
    assert worse < value - 0.1
    # S2: the paper's rate of q(x) lacks E[phi].
    zeta = np.asarray(q["x_rate"]) - np.asarray(state.sparsity.phi)
    worse, at = slopes_of({**q, "x_rate": zeta}, y)
    assert np.abs(at["x_rate"]).max() > 0.1
    assert worse < value - 0.1


def test_bessel_ratio_against_scipy():
    r = np.concatenate([np.logspace(-7, 6, 400), [0.99, 1.0, 1.01]]).astype(np.float32)
    exact = special.kve(1, r.astype(float)) / special.kve(0, r.astype(float))
    np.testing.assert_allclose(bessel_ratio(jnp.asarray(r)), exact, rtol=2e-5)


def test_without_noise_repairs_change_nothing_and_with_it_they_stay_in_bounds():
    method = built()
    state, y = some_state(method), images()
    averaged = release_of(method, state, y).total.averaged
    number, active, curvature, spread = module._repaired(
        Running(averaged, module.Averaged(*jnp.zeros(5)), jnp.int32(1))
    )
    np.testing.assert_allclose(active, averaged.active + N / 2, rtol=1e-5)
    np.testing.assert_allclose(curvature[:, 0], averaged.slope, rtol=1e-5)
    np.testing.assert_allclose(curvature[:, 1:], averaged.curvature, rtol=1e-4)
    np.testing.assert_allclose(spread, averaged.spread, rtol=1e-4)
    noisy = jax.tree.map(lambda leaf: leaf + 50 * jax.random.normal(KEY, leaf.shape), averaged)
    number, active, curvature, spread = module._repaired(
        Running(noisy, module.Averaged(*jnp.full(5, 50.0)), jnp.int32(1))
    )
    assert np.all(curvature > 0)
    assert np.all(curvature <= number / 4 + 1e-3)
    assert np.all((spread >= 0) & (spread <= curvature[:, 1:]))
    assert np.all((active > 0) & (active < number))


def test_no_record_and_no_state_exceed_the_worst_case_norms():
    # |r| <= 1 and 0 < xi <= 1/4, whatever the network: each entry of a block is bounded.
    bounds = [1, np.sqrt(K) / 2, np.sqrt(J) / 4, np.sqrt(J * K) / 4, np.sqrt(J * K) / 16, np.sqrt(J * (K + 1))]
    method = built(sweeps=5)
    state = method.init(KEY)
    generator = np.random.default_rng(0)
    largest = np.zeros(len(bounds))
    every = jax.jit(jax.vmap(lambda net, record: method.contribute(state._replace(net=net), record, KEY)))
    for scale in (0.0, 0.01, 1.0, 30.0):
        drawn = [scale * generator.standard_cauchy((200, *leaf.shape)) for leaf in state.net]
        net = module.Net(*(jnp.asarray(leaf, jnp.float32) for leaf in drawn))
        net = net._replace(variance=jnp.abs(net.variance), bias_variance=jnp.abs(net.bias_variance))
        found = every(net, jnp.asarray(generator.random((200, J)) < 0.5))
        for leaf in jax.tree.leaves(found):
            assert np.isfinite(leaf).all()
        largest = np.maximum(
            largest, [np.linalg.norm(np.reshape(leaf, (200, -1)), axis=1).max() for leaf in jax.tree.leaves(found)]
        )

    # And a search uphill from the worst record found: gradient ascent on each block's norm over the network.
    def size(net, record, i):
        found = jax.tree.leaves(method.contribute(state._replace(net=net), record, KEY))
        return jnp.stack([jnp.linalg.norm(leaf) for leaf in found])[i]

    ascend = jax.jit(jax.value_and_grad(size))
    for i in range(1, len(bounds)):
        net, record = state.net, jnp.asarray(generator.random(J) < 0.5)
        for _ in range(60):
            reached, uphill = ascend(net, record, i)
            largest[i] = max(largest[i], reached)
            net = jax.tree.map(lambda old, slope: old + 0.3 * jnp.nan_to_num(slope), net, uphill)
            net = net._replace(variance=jnp.maximum(net.variance, 1e-6))
    assert np.all(largest <= np.asarray(bounds) * (1 + 1e-5))
    assert np.all(largest > 0.5 * np.asarray(bounds))  # the search came near


def test_outer_products_are_recognised():
    data = PrivateData({"image": np.zeros((4, 28, 28), bool)}, size=4)
    method = belief_net(20)(Plan(data.placeholder))
    step = Step(
        method, data, Mechanism(1.0, method.suggests.clip, 1.0, 1, weights=method.suggests.weights), method.init(KEY)
    )
    shapes = [product and (product.rows, product.columns) for product in step.contributions.outers]
    assert shapes[3:] == [(784, 20), (784, 20), (784, 21)]
    assert all(columns == 1 for _, columns in shapes[:3])
    assert step.contributions.slot_invariant


@pytest.mark.parametrize("bad", [0.5, 2.0, -1.0])
def test_what_is_not_binary_is_refused_before_anything_is_spent(bad):
    records = np.ones((5, 4), np.float32)
    records[3, 1] = bad
    data = PrivateData(records, size=5)
    with pytest.raises(ValueError, match="pixels that are 0 or 1") as caught:
        tacit.fit(belief_net(2), data, tacit.Budget(1.0, 1e-5), rate=0.5, steps=2, progress=False)
    assert str(bad) not in str(caught.value)
    assert not data.ledger.charges


def test_other_refusals():
    with pytest.raises(ValueError, match="missing or infinite"):
        PrivateData(np.full((5, 4), np.nan))
    two = PrivateData({"a": np.ones((5, 4), bool), "b": np.ones(5)}, size=5)
    with pytest.raises(ValueError, match="2 columns"):
        tacit.fit(belief_net(2), two, tacit.Budget(1.0, 1e-5), progress=False)
    with pytest.raises(ValueError, match="units is 0"):
        belief_net(0)


@pytest.mark.slow
def test_a_private_fit_rebuilds_pixels_that_are_missing():
    y, test = np.split(images(4300, 12, seed=1), [4000])
    data = PrivateData(y, size=len(y))
    posterior = tacit.fit(
        belief_net(4), data, tacit.Budget(1.0, 1e-5), rate=0.2, steps=100, simulate=1, key=KEY, progress=False
    )
    assert posterior.draws["W"].shape == (1000, 12, 4)
    assert posterior.draws["b"].shape == (1000, 4)
    assert posterior.draws["c"].shape == (1000, 12)
    assert posterior.certificate.epsilon <= 1
    assert posterior.certificate.mechanism.weights == belief_net(4)(Plan(data.placeholder)).suggests.weights
    means = {name: jnp.asarray(draws.mean(0)) for name, draws in posterior.draws.items()}
    marginal = pixel_accuracy(jnp.broadcast_to(y.mean(0), test.shape), test)
    assert pixel_accuracy(reconstruct(means, test), test) > marginal + 0.05
    hidden = np.where(np.arange(12) % 4 == 0, np.nan, test)
    rebuilt = np.asarray(reconstruct(means, hidden))[:, ::4]
    assert pixel_accuracy(rebuilt, test[:, ::4]) > pixel_accuracy(
        jnp.broadcast_to(y.mean(0), test.shape)[:, ::4], test[:, ::4]
    )
    # A missing pixel says nothing: flipping what is under the NaN changes nothing, and all missing is the prior.
    assert posterior.predict(test[:3], key=KEY).shape == (1000, 3, 12)
    nothing = reconstruct(means, np.full((1, 12), np.nan), sweeps=50)
    np.testing.assert_allclose(
        nothing[0], jax.nn.sigmoid(means["W"] @ jax.nn.sigmoid(means["b"]) + means["c"]), rtol=1e-4
    )
    with pytest.raises(ValueError, match="11 pixels"):
        reconstruct(means, test[:, :11])
