"""Private variational inference: against exact posteriors, and in the forms that users write models in."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.contrib.module import eqx_module, random_eqx_module
from numpyro.distributions import biject_to
from numpyro.infer import Trace_ELBO, autoguide
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.infer.initialization import init_to_median

import tacit
from tacit.methods import running
from tacit.methods.guide_path import draw_average
from tacit.methods.laplace import draw_exponential
from tacit.types import Plan

COUNT, WIDTH = 2000, 3


def linear_records(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(COUNT, WIDTH)).astype(np.float32)
    y = x @ np.asarray([0.5, -1.0, 0.2]) + generator.normal(size=COUNT)
    return {"x": x, "y": y.astype(np.float32)}


def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def exact(records):
    precision = np.eye(WIDTH) + records["x"].T @ records["x"]
    return np.linalg.solve(precision, records["x"].T @ records["y"]), np.linalg.inv(precision)


@pytest.mark.parametrize("guide", [None, AutoMultivariateNormal])
def test_without_privacy_it_finds_the_exact_posterior(guide):
    records = linear_records()
    mean, covariance = exact(records)
    posterior = tacit.fit_public(tacit.vi(linear, guide), records, steps=3000, key=jax.random.key(0))
    deviation = np.sqrt(np.diag(covariance))
    # 1000 draws estimate a mean to 0.03 and a deviation to 2%; what is left is the optimiser's.
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < 0.3 * deviation)
    assert np.all(np.abs(posterior.draws["w"].std(0) / deviation - 1) < 0.25)


def test_at_epsilon_one_it_is_close_to_the_exact_posterior():
    records = linear_records()
    mean, covariance = exact(records)
    data = tacit.PrivateData(records, size=COUNT)
    posterior = tacit.fit(
        tacit.vi(linear), data, tacit.Budget(1.0, 1e-5), clip=3.0, simulate=0, key=jax.random.key(0), progress=False
    )
    noise = posterior.certificate.mechanism
    # The averaged noisy gradient is off by noise_std / (rate sqrt(steps)), hence the mean by that times the covariance.
    added = noise.noise_std / (noise.rate * np.sqrt(noise.steps)) * np.sqrt(np.diag(covariance @ covariance))
    limit = 4 * added + 0.5 * np.sqrt(np.diag(covariance))
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < limit)


def test_records_may_be_a_tuple_and_the_guide_may_be_written_by_hand():
    def guide(x, y=None):
        loc = numpyro.param("loc", jnp.zeros(WIDTH))
        scale = numpyro.param("scale", jnp.full(WIDTH, 0.1), constraint=dist.constraints.positive)
        numpyro.sample("w", dist.Normal(loc, scale).to_event(1))

    records = linear_records()
    mean, covariance = exact(records)
    posterior = tacit.fit_public(
        tacit.vi(linear, guide), (records["x"], records["y"]), steps=3000, key=jax.random.key(0)
    )
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < 0.3 * np.sqrt(np.diag(covariance)))
    assert posterior.predict((records["x"][:4],), key=jax.random.key(1))["y"].shape == (1000, 4)


def test_a_subsampled_plate_is_not_counted_twice():
    """The model's own scaling of a subset is undone: the wall divides by the rate already."""

    def scaled(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([WIDTH]).to_event(1))
        with numpyro.plate("records", COUNT, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    record = {"x": np.ones(WIDTH, np.float32), "y": np.float32(2)}
    plain, other = (tacit.vi(model)(Plan(record)) for model in (linear, scaled))
    key = jax.random.key(0)
    mine = plain.contribute(plain.init(key), record, key)
    theirs = other.contribute(other.init(key), record, key)
    assert np.allclose(mine["latents"][0]["w"], theirs["latents"][0]["w"], rtol=1e-6)
    assert np.any(mine["latents"][0]["w"] != 0)


@pytest.mark.slow
def test_constrained_latents_and_deterministic_sites():
    def model(y=None):
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        share = numpyro.sample("share", dist.Beta(2, 2))
        numpyro.deterministic("product", scale * share)
        with numpyro.plate("records", 1 if y is None else y.shape[0]):
            numpyro.sample("y", dist.Normal(share, scale), obs=y)

    y = (0.3 + 0.5 * np.random.default_rng(0).normal(size=COUNT)).astype(np.float32)
    posterior = tacit.fit_public(tacit.vi(model), {"y": y}, key=jax.random.key(0))
    assert np.all(posterior.draws["scale"] > 0)
    assert posterior.draws["scale"].mean() == pytest.approx(y.std(), abs=0.03)
    assert posterior.draws["share"].mean() == pytest.approx(y.mean(), abs=0.05)
    predicted = posterior.predict({}, key=jax.random.key(0))
    assert np.allclose(predicted["product"], posterior.draws["scale"] * posterior.draws["share"])


def test_the_optimiser_may_be_chosen():
    placeholder = {"x": np.zeros(WIDTH, np.float32), "y": np.float32(0)}
    key = jax.random.key(0)
    gradient = {"latents": [{"w": jnp.ones(WIDTH)}], "params": {}}
    release = tacit.types.Release(gradient, gradient, jnp.float32(1), gradient)
    moved = {}
    for rate in (0.0, 0.1):
        method = tacit.vi(linear, optimizer=optax.sgd(rate))(Plan(placeholder))
        start = method.init(key)
        end = method.update(start, release, key)
        moved[rate] = max(float(jnp.abs(start.params[name] - end.params[name]).max()) for name in start.params)
    assert moved[0.0] == 0
    assert moved[0.1] > 0


# The step against NumPyro's own gradient.

FEW = 12
_generator = np.random.default_rng(0)
X = _generator.normal(size=(FEW, WIDTH))
Y = (X.sum(1) > 0).astype(np.int32)
GROUP = _generator.integers(0, 4, FEW).astype(np.int32)


def scaled_logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([WIDTH]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=scale * (x @ w)), obs=y)


def hierarchical(x, group, y=None):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", 4):
        shift = numpyro.sample("shift", dist.Normal(mean, spread))
    numpyro.factor("sum to zero", -0.5 * shift.sum() ** 2)  # a public term outside the plate
    w = numpyro.sample("w", dist.Normal(0, 1).expand([WIDTH]).to_event(1))
    numpyro.deterministic("twice", 2 * w)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=shift[group] + x @ w), obs=y)
        numpyro.sample("also", dist.Normal(x[:, 0] * spread, 1.0), obs=x[:, 1])


def mixture(x):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        centre = numpyro.sample("centre", dist.Normal(jnp.zeros(WIDTH), 5.0).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        parts = dist.Normal(centre, 1.0).to_event(1)
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(share), parts), obs=x)


def subsampled(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0], subsample_size=5):
        rows, labels = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=rows @ w), obs=labels)


def whole(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def network(x, y=None):
    net = random_eqx_module("net", eqx.nn.MLP(WIDTH, 1, 4, 1, key=jax.random.key(0)), prior=dist.Normal(0, 1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jax.vmap(net)(x)[:, 0]), obs=y)


def with_parameter(x, y=None):
    shift = numpyro.param("offset", 0.5, constraint=dist.constraints.positive)
    w = numpyro.sample("w", dist.Normal(shift, 2).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + shift), obs=y)


GUIDES = (
    autoguide.AutoNormal,
    autoguide.AutoDiagonalNormal,
    autoguide.AutoMultivariateNormal,
    autoguide.AutoLowRankMultivariateNormal,
    autoguide.AutoDelta,
    autoguide.AutoLaplaceApproximation,
    autoguide.AutoIAFNormal,
    autoguide.AutoBNAFNormal,
)
LABELLED, GROUPED = {"x": X, "y": Y}, {"x": X, "group": GROUP, "y": Y}
CASES = {
    **{guide.__name__: (scaled_logistic, scaled_logistic, guide, LABELLED) for guide in GUIDES},
    "hierarchical": (hierarchical, hierarchical, autoguide.AutoMultivariateNormal, GROUPED),
    "mixture": (mixture, mixture, autoguide.AutoNormal, {"x": X}),
    "subsampled plate": (subsampled, whole, autoguide.AutoNormal, LABELLED),
    "network with a prior": (network, network, autoguide.AutoNormal, LABELLED),
    "parameter in model and prior": (with_parameter, with_parameter, autoguide.AutoNormal, LABELLED),
}
DEAR = {
    "AutoBNAFNormal",
    "AutoIAFNormal",
    "AutoLowRankMultivariateNormal",
    "hierarchical",
    "network with a prior",
    "mixture",
}
"""A quarter to half a minute each to compile."""


@pytest.mark.parametrize(
    ("wide", "tolerance"),
    [(False, 1e-6), pytest.param(True, 1e-12, marks=pytest.mark.slow)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in DEAR else []) for name in CASES]
)
def test_a_step_without_privacy_goes_along_numpyros_gradient(name, wide, tolerance):
    with jax.enable_x64(wide):
        model, reference, kind, records = CASES[name]
        records = jax.tree.map(jnp.asarray, records)
        placeholder = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), records)
        method = tacit.vi(model, kind, optax.sgd(1.0))(Plan(placeholder))
        state = jax.tree.map(jnp.asarray, method.init(jax.random.key(0)))
        elbo_key = jax.random.key(11)
        key = jax.random.split(elbo_key)[1]  # what Trace_ELBO hands to the guide

        @jax.jit
        def step(state):
            each = jax.vmap(lambda record: method.contribute(state, record, key))(records)
            total = jax.tree.map(lambda leaf: leaf.sum(0), each)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(()), total)
            return method.update(state, tacit.types.Release(total, nothing, jnp.asarray(1.0), total), key)

        after = step(state)
        guide = kind(reference, init_loc_fn=init_to_median)
        seeded = [numpyro.handlers.seed(function, jax.random.key(0)) for function in (reference, guide)]
        traces = [numpyro.handlers.trace(function).get_trace(**records) for function in seeded]
        sites = [(name, site) for trace in traces for name, site in trace.items() if site["type"] == "param"]
        transforms = {name: biject_to(site["kwargs"].get("constraint", dist.constraints.real)) for name, site in sites}

        def textbook(params):
            values = {name: transforms[name](value) for name, value in params.items()}
            return Trace_ELBO().loss(elbo_key, values, reference, guide, **records)

        gradient = jax.jit(jax.grad(textbook))(state.params)
        moved = jax.tree.map(lambda before, now: before - now, state.params, after.params)
        # Relative to the largest entry of the whole gradient: a single small one is a difference of large terms.
        largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
        assert largest > 0.1
        for mine, theirs in zip(jax.tree.leaves(moved), jax.tree.leaves(gradient), strict=True):
            assert mine.dtype == (jnp.float64 if wide else jnp.float32)
            assert float(jnp.abs(mine - theirs).max()) <= tolerance * largest


# Records with latents of their own.

PIXELS, CODE = 20, 3


@functools.cache
def networks():
    keys = jax.random.split(jax.random.key(0))
    decoder = eqx.nn.MLP(CODE, PIXELS, 16, 1, activation=jax.nn.softplus, key=keys[0])
    return decoder, eqx.nn.MLP(PIXELS, 2 * CODE, 16, 1, activation=jax.nn.softplus, key=keys[1])


def decode(x):
    decoder = eqx_module("decoder", networks()[0])
    with numpyro.plate("records", x.shape[0]):
        code = numpyro.sample("code", dist.Normal(jnp.zeros(CODE), 1.0).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=jax.vmap(decoder)(code)).to_event(1), obs=x)


def encode(x):
    encoder = eqx_module("encoder", networks()[1])
    with numpyro.plate("records", x.shape[0]):
        loc, log_scale = jnp.split(jax.vmap(encoder)(x), 2, -1)
        numpyro.sample("code", dist.Normal(loc, jnp.exp(log_scale)).to_event(1))


def images(count, seed=0):
    generator = np.random.default_rng(seed)
    prototypes = generator.random((4, PIXELS)) < 0.5
    flips = generator.random((count, PIXELS)) < 0.05
    return (prototypes[generator.integers(0, 4, count)] ^ flips).astype(np.float32)


@pytest.mark.slow
def test_an_autoencoder_contributes_the_gradient_of_a_records_elbo():
    method = tacit.vi(decode, encode)(Plan(np.zeros(PIXELS, np.float32)))
    assert method.per_record_key
    state, record, elbo_key = method.init(jax.random.key(0)), images(1)[0], jax.random.key(5)
    mine = method.contribute(state, record, jax.random.key(1), jax.random.split(elbo_key)[1])
    theirs = jax.grad(lambda params: -Trace_ELBO().loss(elbo_key, params, decode, encode, record[None]))(state.params)
    assert set(mine["params"]) == {"decoder$params", "encoder$params"}
    for a, b in zip(jax.tree.leaves(mine["params"]), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    other = method.contribute(state, record, jax.random.key(1), jax.random.key(6))
    assert not np.allclose(jax.tree.leaves(mine)[0], jax.tree.leaves(other)[0])


@pytest.mark.slow
def test_an_autoencoder_is_fitted_saved_and_reconstructs(tmp_path):
    x = images(2000)
    data = tacit.PrivateData(x, size=len(x))
    method = tacit.vi(decode, encode)
    posterior = tacit.fit(
        method, data, tacit.Budget(8.0, 1e-5), steps=300, simulate=0, key=jax.random.key(0), progress=False
    )
    assert set(posterior.point_estimates) == {"decoder$params", "encoder$params"}
    assert posterior.draws == {}
    rebuilt = posterior.predict(images(50, seed=1), key=jax.random.key(2))["x"]
    assert rebuilt.shape == (1000, 50, PIXELS)  # new images, not the observed ones handed back
    wrong = np.abs(rebuilt.mean(0).round() - images(50, seed=1)).mean()
    assert wrong < np.abs(x.mean(0).round() - images(50, seed=1)).mean()  # better than the average image
    posterior.save(tmp_path / "posterior.npz")
    again = tacit.Posterior.load(tmp_path / "posterior.npz", method(Plan(data.placeholder)))
    assert np.array_equal(
        again.predict(x[:2], key=jax.random.key(2))["x"], posterior.predict(x[:2], key=jax.random.key(2))["x"]
    )
    assert "decoder$params.layers[0].weight" in tacit.Posterior.load(tmp_path / "posterior.npz").point_estimates


# Options.


def test_several_draws_are_averaged_and_keep_the_norm():
    record = {"x": np.ones(WIDTH, np.float32), "y": np.float32(2)}
    key = jax.random.key(3)
    one, four = (tacit.vi(linear, optimizer=optax.sgd(1.0), draws=draws)(Plan(record)) for draws in (1, 4))
    state = four.init(key)
    contribution = four.contribute(state, record, key)
    release = tacit.types.Release(contribution, contribution, jnp.float32(1), contribution)
    after = four.update(state, release, key)
    single = []
    for each in jax.random.split(key, 4):
        alone = one.contribute(state, record, each)
        single.append((alone, one.update(state, tacit.types.Release(alone, alone, jnp.float32(1), alone), each)))
    for name in state.params:
        mean = np.mean([np.asarray(end.params[name]) for _, end in single], axis=0)
        np.testing.assert_allclose(after.params[name], mean, rtol=1e-5, atol=1e-6)
    squares = [sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(alone)) for alone, _ in single]
    together = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(contribution))
    assert together == pytest.approx(np.mean(squares), rel=1e-5)
    with pytest.raises(ValueError, match="at least one draw"):
        tacit.vi(linear, draws=0)


def test_an_autoguide_may_be_an_object():
    record = {"x": np.zeros(WIDTH, np.float32), "y": np.float32(0)}
    guide = autoguide.AutoLowRankMultivariateNormal(linear, rank=2)
    state = tacit.vi(linear, guide)(Plan(record)).init(jax.random.key(0))
    assert state.params["auto_cov_factor"].shape == (WIDTH, 2)


def test_a_laplace_guide_finds_the_exact_gaussian_posterior():
    records = linear_records()
    mean, covariance = exact(records)
    method = tacit.vi(linear, autoguide.AutoLaplaceApproximation)
    posterior = tacit.fit_public(method, records, steps=1500, key=jax.random.key(0))
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < 0.3 * deviation)
    # Of 1000 draws a deviation has a relative error of 2.2%: 12% is beyond five of them.
    assert np.all(np.abs(posterior.draws["w"].std(0) / deviation - 1) < 0.12)


def test_a_laplace_guide_counts_the_noise_of_scores_and_curvature():
    """Weights from the prior, records from them, noisy releases of all: 90% intervals must hold 90% of the weights."""
    count, steps, replicates, std = 200, 100, 150, 200.0
    method = tacit.vi(linear, autoguide.AutoLaplaceApproximation)(Plan({"x": jnp.zeros(WIDTH), "y": jnp.zeros(())}))

    def replicate(key):
        of_x, of_w, of_y, of_noise = jax.random.split(key, 4)
        x, w = jax.random.normal(of_x, (count, WIDTH)), jax.random.normal(of_w, (WIDTH,))
        records = {"x": x, "y": x @ w + jax.random.normal(of_y, (count,))}

        def step(state, key):
            each = jax.vmap(lambda record: method.contribute(state, record, key))(records)
            stds = jax.tree.map(lambda leaf: jnp.float32(std), each["score"])
            noise_std = {"score": stds, "curvature": jnp.float32(0.2 * std)}
            leaves, structure = jax.tree.flatten(jax.tree.map(lambda leaf: leaf.sum(0), each))
            keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
            noisy = [
                leaf + one * jax.random.normal(key, leaf.shape)
                for leaf, one, key in zip(leaves, jax.tree.leaves(noise_std), keys, strict=True)
            ]
            total = jax.tree.unflatten(structure, noisy)
            return method.update(state, tacit.types.Release(total, noise_std, jnp.float32(1), total), key), None

        state = jax.lax.scan(step, method.init(key), jax.random.split(of_noise, steps))[0]
        believing = state._replace(path=state.path._replace(score_variance=jnp.zeros(WIDTH)))
        draws = [
            jax.vmap(lambda key, state=state: method.draw(state, key)["w"])(jax.random.split(key, 300))
            for state in (state, believing)
        ]
        low, high = jnp.quantile(jnp.stack(draws), jnp.asarray([0.05, 0.95]), axis=1)
        return (low < w) & (w < high)

    held = jax.jit(jax.vmap(replicate))(jax.random.split(jax.random.key(0), replicates))
    counted, left_out = np.asarray(held).mean((0, 2))
    # 450 intervals: a standard error of 0.014, so that four of them are passed once in 16000 times.
    assert abs(counted - 0.9) < 0.057
    assert left_out < 0.75


def test_a_normal_guide_counts_what_the_noise_does_to_its_path():
    """The same records, 80 runs with noise of their own: how their averages differ is what each says of its own.

    240 averages: a standard error of 9% in their variance, and of about 7% in the other's mean. Draws are meant to have
    up to DOUBT times the variance, less what batch means do not show: from 1 to 2.5 times; five errors beyond that are
    0.6 and 3.5, a false alarm in 10**6. With the noise left out it is 0.
    """
    steps, runs, std = 300, 80, 100.0
    records = jax.tree.map(lambda leaf: leaf[:50], linear_records())
    method = tacit.vi(linear)(Plan({"x": jnp.zeros(WIDTH), "y": jnp.zeros(())}))
    name = "w_auto_loc"

    def run(key):
        def step(state, key):
            each = jax.vmap(lambda record: method.contribute(state, record, key))(records)
            noise = std * jax.random.normal(jax.random.fold_in(key, 1), (WIDTH,))
            total = jax.tree.map(lambda leaf: leaf.sum(0) + noise, each)
            noise_std = jax.tree.map(lambda leaf: jnp.float32(std), total)
            return method.update(state, tacit.types.Release(total, noise_std, jnp.float32(1), total), key), None

        state = jax.lax.scan(step, method.init(key), jax.random.split(key, steps))[0]
        keys = jax.random.split(key, 100)
        around = jax.vmap(
            lambda key: draw_average(state.average, state.path, state.step, key)[name] - state.average[name]
        )(keys)
        left_out = draw_average(state.average, (), state.step, key)[name] - state.average[name]
        return state.average[name], jnp.square(around).mean(0), jnp.square(left_out)

    averages, counted, left_out = map(np.asarray, jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), runs)))
    ratio = counted.mean() / averages.var(0, ddof=1).mean()
    assert 0.6 < ratio < 3.5
    assert left_out.max() == 0


@pytest.mark.parametrize("steps", [1, 3, 7, 8, 9, 40, 200])
def test_stretches_hold_the_averages_of_the_path(steps):
    """Against numpy: places 0, 1, 2, ... in order, and the variance that draws have around the average."""
    places = np.random.default_rng(0).normal(size=(steps, 2)).astype(np.float32)
    path = running.start_batch_means({"a": jnp.zeros(2)})
    longer = jax.jit(running.update_batch_means)
    for step, place in enumerate(places):
        path = longer(path, {"a": jnp.asarray(place)}, jnp.int32(step))
    length = max(1, 2 ** int(np.ceil(np.log2(steps / running.BATCHES)))) if steps > running.BATCHES else 1
    assert int(path.length) == length
    done = steps // length
    means = places[: done * length].reshape(done, length, 2).mean(1)
    np.testing.assert_allclose(path.means["a"][:done], means, atol=1e-6)
    average, step = {"a": jnp.ones(2)}, jnp.int32(steps)
    keys = jax.random.split(jax.random.key(1), 20_000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw_average(average, path, step, key)["a"]))(keys), np.float64)
    used = means[int(np.ceil(done / 4)) :]
    if len(used) < 2:
        assert np.all(drawn == 1)
        return
    expected = running.DOUBT * 16 / 7 * length / steps * np.cov(used.T)
    # 20000 draws: an entry is off by at most 1% of the largest; six of that.
    assert np.abs(np.cov(drawn.T) - expected).max() < 0.06 * np.abs(expected).max()
    np.testing.assert_allclose(running.perturbed_average(path, jnp.int32(steps))["a"], np.diag(expected), rtol=1e-4)
    assert np.abs(drawn.mean(0) - 1).max() < 6 * np.sqrt(np.abs(expected).max() / len(drawn))


def test_other_guides_and_large_ones_keep_no_stretches():
    placeholder = {"x": np.zeros(WIDTH, np.float32), "y": np.float32(0)}
    assert tacit.vi(linear, autoguide.AutoDelta)(Plan(placeholder)).init(jax.random.key(0)).path == ()

    def wide(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([5000]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w[:WIDTH], 1.0), obs=y)

    assert tacit.vi(wide)(Plan(placeholder)).init(jax.random.key(0)).path == ()
    assert tacit.vi(linear)(Plan(placeholder)).init(jax.random.key(0)).path != ()


def test_a_laplace_guide_works_behind_the_wall():
    records = linear_records()
    data = tacit.PrivateData(records, size=COUNT)
    posterior = tacit.fit(
        tacit.vi(linear, autoguide.AutoLaplaceApproximation),
        data,
        tacit.Budget(8.0, 1e-5),
        simulate=0,
        key=jax.random.key(0),
        progress=False,
    )
    mean, covariance = exact(records)
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < 6 * np.sqrt(np.diag(covariance)))
    assert np.all(np.abs(np.log(posterior.draws["w"].std(0) / np.sqrt(np.diag(covariance)))) < np.log(2))


def test_parameters_without_a_prior_are_points():
    def model(x, y=None):
        noise = numpyro.param("noise", 1.0, constraint=dist.constraints.positive)
        w = numpyro.sample("w", dist.Normal(0, 1).expand([WIDTH]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    records = linear_records()
    posterior = tacit.fit_public(tacit.vi(model), records, steps=1500, key=jax.random.key(0))
    assert set(posterior.draws) == {"w"}
    residual = records["y"] - records["x"] @ exact(records)[0]
    assert set(posterior.point_estimates) == {"noise"}
    assert posterior.point_estimates["noise"] == pytest.approx(residual.std(), rel=0.02)


def test_the_adaptive_clip_finds_the_median_norm_within_the_budget():
    records = linear_records()
    data = tacit.PrivateData(records, size=COUNT)
    settings = {"simulate": 0, "key": jax.random.key(0), "progress": False}
    budget = tacit.Budget(2.0, 1e-5)
    posterior = tacit.fit(tacit.vi(linear), data, budget, clip="adaptive", **settings)
    assert posterior.certificate.epsilon <= 2
    mean, _ = exact(records)
    residual = records["y"] - records["x"] @ mean
    norms = np.linalg.norm(records["x"] * residual[:, None], axis=1)
    from tacit.methods.adaptive import ADAPTIVE_CLIP, adaptive

    inner = tacit.vi(linear)(Plan(data.placeholder))
    for start in (0.01, 100.0):
        method = adaptive(inner, COUNT, start)
        state = method.init(jax.random.key(0))
        state = state._replace(
            inner=state.inner._replace(params={**state.inner.params, "w_auto_loc": jnp.asarray(mean)})
        )

        @jax.jit
        def step(state, key, method=method):
            each = jax.vmap(lambda record: method.contribute(state, record, key))(records)
            assert set(each) == {"inner", "within"}
            longest = jnp.sqrt(sum(jnp.sum(leaf.reshape(COUNT, -1) ** 2, 1) for leaf in jax.tree.leaves(each))).max()
            total = jax.tree.map(lambda leaf: leaf.sum(0), each)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(()), total)
            after = method.update(state, tacit.types.Release(total, nothing, jnp.float32(1), total), key)
            return state._replace(log_scale=after.log_scale), longest

        for i in range(200):
            state, longest = step(state, jax.random.key(i))
            assert longest <= ADAPTIVE_CLIP * (1 + 1e-5)
        # The guide draws around the mean, so the norms are those at nearby points.
        assert np.exp(state.log_scale) == pytest.approx(np.median(norms), rel=0.15)
    with pytest.raises(ValueError, match="size="):
        tacit.fit(tacit.vi(linear), tacit.PrivateData(records), budget, clip="adaptive", **settings)


# What cannot be bounded or split is refused.


def _refusals():
    def dynamic(x):
        top = numpyro.sample("top", dist.HalfNormal(1.0))
        low = numpyro.sample("low", dist.Uniform(0, top))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(low, 1.0), obs=x)

    def each_record(x):
        with numpyro.plate("records", x.shape[0]):
            level = numpyro.sample("level", dist.Normal(0, 1))
            numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    def plain(x):
        level = numpyro.sample("level", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    def reads(x):
        numpyro.sample("level", dist.Normal(x.mean(), 1.0))

    def forgets(x):
        numpyro.param("level", 0.0)

    def mixes(x):
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("level", dist.Normal(x - x.mean(), 1.0))

    def outside(x):
        numpyro.sample("level", dist.Normal(jnp.zeros(x.shape[0]), 1.0).to_event(1))

    def groups(x):
        with numpyro.plate("groups", 10, subsample_size=4):
            level = numpyro.sample("level", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level.sum(), 1.0), obs=x)

    def each(x):
        loc = numpyro.param("loc", jnp.zeros(x.shape[0]))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("level", dist.Normal(loc, 1.0))

    def counted(x):
        level = numpyro.sample("level", dist.Normal(0, 1))
        numpyro.factor("normaliser", -x.shape[0] * level**2)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    def scaled(x):
        with numpyro.handlers.scale(scale=1 + x.sum() ** 2):
            level = numpyro.sample("level", dist.Normal(0, 1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    def hidden(x):
        level = numpyro.sample("level", dist.Normal(0, 1))
        share = numpyro.param("share", 0.0)
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level + share * x.mean(), 1.0), obs=x)

    def drops(x):
        level = numpyro.sample("level", dist.Normal(0, 1))
        key = numpyro.prng_key()
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level * jax.random.bernoulli(key), 1.0), obs=x)

    def remembers(x):
        numpyro.primitives.mutable("memory", {"sum": jnp.zeros(())})
        numpyro.sample("level", dist.Normal(numpyro.param("loc", 0.0), 1.0))

    def support(x):
        level = numpyro.sample("level", dist.Uniform(0, numpyro.param("top", 1.0)))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    return {
        "a parameter for each record": (each_record, each, "shape follows the number of records"),
        "a public term of the number of records": (counted, None, "follows the number of rows"),
        "a prior scaled by the records": (scaled, None, "computed from the records"),
        "records mixed by a parameter that starts at zero": (hidden, None, "depends on the other records"),
        "dropout in the model": (drops, None, "asks for a random key"),
        "running statistics in the guide": (plain, remembers, "mutable site 'memory'"),
        "support that follows a parameter": (support, None, "support of the latent site 'level' depends"),
        "dynamic support": (dynamic, None, "support of the latent site 'low' depends"),
        "AutoGuide for latents of a record": (each_record, autoguide.AutoNormal, "Write a guide that computes"),
        "DAIS": (plain, autoguide.AutoDAIS, "DAIS guide evaluates the likelihood"),
        "guide that looks at the records": (plain, reads, "guide draws a latent outside"),
        "guide without a site": (plain, forgets, "does not draw the latent site 'level'"),
        "guide that mixes records": (each_record, mixes, "depends on the other records"),
        "site outside the plate in the guide": (each_record, outside, "the plate over records in the model only"),
        "a plate of groups that subsamples": (groups, None, "plate 'groups' subsamples"),
    }


@pytest.mark.parametrize("name", _refusals())
def test_what_cannot_be_split_is_refused_with_the_fix(name):
    model, guide, says = _refusals()[name]
    with pytest.raises(ValueError, match=says):
        tacit.vi(model, guide)(Plan(np.float32(0)))


def test_eigenvalues_that_noise_hides_follow_what_was_expected_of_them() -> None:
    """Drawn from the posterior, for an exponential prior, they have the prior's quantiles, whatever the noise.

    40000 draws: the error of a share is 0.0025, and a false alarm beyond 5 of them has a probability of 1e-6.
    """
    keys, mean = jax.random.split(jax.random.key(0), 3), 5.0
    truth = mean * jax.random.exponential(keys[0], (40_000,))
    for deviation in (0.5, 5.0, 500.0):
        noisy = truth + deviation * jax.random.normal(keys[1], truth.shape)
        drawn = draw_exponential(noisy, jnp.full_like(truth, deviation), mean, keys[2])
        for share in (0.1, 0.5, 0.9):
            below = jnp.mean(drawn < -mean * np.log(1 - share))
            assert abs(below - share) < 0.0125


def test_exact_eigenvalues_are_taken_as_they_are() -> None:
    values = jnp.asarray([1e-3, 1.0, 1e6])
    drawn = draw_exponential(values, jnp.full(3, 1e-20), 5.0, jax.random.key(0))
    np.testing.assert_allclose(drawn, values, rtol=1e-5)


def test_few_records_at_a_small_budget_leave_the_prior() -> None:
    """papers/coverage/few.py has how often such intervals cover: 0.47 of 90% where the eigenvalues were unbounded."""
    schema = tacit.Schema({"a": {"low": -2, "high": 2}, "y": {"levels": [0, 1]}}, size=50)
    form = tacit.formula("y ~ a", schema, family="bernoulli")
    rows = {"a": np.linspace(-2, 2, 50), "y": (np.linspace(-2, 2, 50) > 0).astype(int)}
    method = tacit.vi(form, form.guide)
    budget = tacit.Budget(0.1, 1e-6)
    for seed in range(2):
        key = jax.random.key(seed)
        data = tacit.PrivateData(rows, schema)
        posterior = tacit.fit(method, data, budget, simulate=seed, key=key, steps=100, force=True)
        assert max(one.contraction for one in posterior.learnt()) < 0.5
