"""Methods on networks: stationary laws, fixed points and gradients against what is known of them."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import tacit
from tacit import Budget, PrivateData
from tacit.accounting import classical
from tacit.accounting.mechanism import Mechanism
from tacit.engine.step import Step
from tacit.methods.gaussian_weights import at
from tacit.methods.networks import Network, score
from tacit.methods.running import (
    BATCHES,
    EVERY,
    MANY,
    normals,
    perturbed_average,
    start_batch_means,
    update_batch_means,
)
from tacit.types import Method, Plan, PyTree, Release

KEY = jax.random.key(0)
COUNT = 100


RECORD = {"x": jnp.zeros(3), "y": jnp.float32(0)}


def constant(noise: float = 1.0, **more: Any) -> Network:
    """A network that ignores x: y ~ Normal(w, noise), whose posterior is known."""
    return tacit.network(
        (lambda key: {"w": jnp.zeros(())}, lambda weights, x: weights["w"]), "gaussian", noise=noise, **more
    )


def released(method: Method, state: PyTree, records: PyTree, noise_std: float = 0.0, key: Any = KEY) -> Release:
    """Return what the wall would, with noise of this standard deviation on the sum, at rate 1."""
    total = jax.tree.map(
        lambda leaf: leaf.sum(0), jax.vmap(lambda record: method.contribute(state, record, key))(records)
    )
    leaves, tree = jax.tree.flatten(total)
    keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
    noisy = jax.tree.unflatten(
        tree,
        [leaf + noise_std * jax.random.normal(one, leaf.shape) for leaf, one in zip(leaves, keys, strict=True)],
    )
    return Release(noisy, jax.tree.map(lambda _: jnp.float32(noise_std), noisy), jnp.float32(1), noisy)


def chain(method: Method, records: PyTree, steps: int, noise_std: float = 0.0) -> Any:
    def step(state: Any, t: Any) -> tuple[Any, Any]:
        key = jax.random.fold_in(KEY, t)
        state = method.update(state, released(method, state, records, noise_std, key), key)
        return state, state.weights["w"]

    return jax.jit(lambda: jax.lax.scan(step, method.init(KEY), jnp.arange(steps))[1])()


@pytest.mark.parametrize(
    ("noise_std", "friction", "temperature"),
    [(0.0, 1.0, 1.0), (0.0, 1.0, 0.5), (30.0, 1.0, 1.0), (0.0, 0.3, 1.0), (15.0, 0.3, 1.0)],
)
def test_the_stationary_variance_of_langevin_dynamics(noise_std: float, friction: float, temperature: float) -> None:
    """On a Gaussian target with precision P it is temperature / P, up to the discretisation.

    Langevin: 1 / (1 - eta P / 2) too large. 200000 steps, correlated over 2 / (eta P) = 40 of them: the variance has a
    relative standard error of sqrt(2 * 40 / 200000) = 2%, and 10% is five of them: false alarm below 1e-5 in all.
    """
    y = np.random.default_rng(1).normal(2, 1, COUNT).astype(np.float32)
    precision = COUNT + 1.0
    eta = 0.05 / precision
    assert (eta * noise_std) ** 2 <= 2 * friction * eta * temperature  # the wall's noise is within what is wanted
    method = tacit.sgld(constant(), step_size=eta, temperature=temperature, friction=friction, keep=1)(
        Plan(RECORD, COUNT)
    )
    places = np.asarray(chain(method, {"x": jnp.zeros((COUNT, 1)), "y": jnp.asarray(y)}, 200000, noise_std))[2000:]
    wanted = temperature / precision / (1 - 0.025 if friction == 1 else 1)
    assert places.var() == pytest.approx(wanted, rel=0.1)
    assert places.mean() == pytest.approx(y.sum() / precision, abs=0.02)


@pytest.mark.parametrize("noise_std", [0.0, 30.0])
def test_preconditioned_dynamics_have_the_same_stationary_law(noise_std: float) -> None:
    """Two layers of 40 weights, one of which the records say a hundred times as much about.

    20000 steps, correlated over 2 / (pace P) < 200 of them, and 40 weights: the mean variance of a layer has a relative
    standard error below sqrt(2 * 200 / 20000 / 40) = 2.3%, and 12% is five of them.
    """
    pair = (
        lambda key: {"a": jnp.zeros(40), "b": jnp.zeros(40)},
        lambda w, x: jnp.concatenate([w["a"], 0.1 * w["b"]]),
    )
    net = tacit.network(pair, "gaussian", noise=1.0)
    records = {"x": jnp.zeros((COUNT, 1)), "y": jnp.zeros((COUNT, 80))}
    eta = 0.05 / (COUNT + 1)
    method = tacit.sgld(net, step_size=eta, precondition=True, keep=1)(
        Plan(jax.tree.map(lambda leaf: leaf[0], records), COUNT)
    )

    def step(state: Any, t: Any) -> tuple[Any, Any]:
        key = jax.random.fold_in(KEY, t)
        # What the records say, without going through them one by one: all are alike.
        full = {"a": -COUNT * state.weights["a"], "b": -0.01 * COUNT * state.weights["b"]}
        noisy = {
            name: leaf + noise_std * jax.random.normal(jax.random.fold_in(key, place + 1), leaf.shape)
            for place, (name, leaf) in enumerate(full.items())
        }
        std = {name: jnp.float32(noise_std) for name in full}
        state = method.update(state, Release(noisy, std, jnp.float32(1), noisy), key)
        return state, (state.weights, state.heat.squares)

    def run() -> Any:
        return jax.lax.scan(step, method.init(KEY), jnp.arange(20000))[1]

    places, squares = jax.jit(run)()
    for name, precision in (("a", COUNT + 1.0), ("b", 0.01 * COUNT + 1.0)):
        assert np.asarray(places[name])[1000:].var(0).mean() == pytest.approx(1 / precision, rel=0.12)
    # The stiff layer's gradients are larger, whatever the noise on them.
    assert np.mean(squares["a"][1000:]) > 20 * np.mean(squares["b"][1000:])


@pytest.mark.parametrize("thermostat", [True, False])
def test_a_thermostat_takes_out_the_heat_of_the_noise(thermostat: bool) -> None:
    """Forty weights with a normal target, and four times the noise that the friction asks for.

    20000 steps, correlated over fewer than 200: a relative standard error below 2.3%, and 12% is five of them. Without
    the thermostat the variance is four times too large.
    """
    net = tacit.network((lambda key: {"w": jnp.zeros(40)}, lambda weights, x: weights["w"]), "gaussian", noise=1.0)
    precision, friction = COUNT + 1.0, 0.05
    eta = 0.02 / precision
    noise_std = np.sqrt(4 * 2 * friction / eta)
    records = {"x": jnp.zeros(1), "y": jnp.zeros(40)}
    method = tacit.sgld(net, step_size=eta, friction=friction, thermostat=thermostat, keep=1)(Plan(records, COUNT))

    def step(state: Any, t: Any) -> tuple[Any, Any]:
        key = jax.random.fold_in(KEY, t)
        noise = noise_std * jax.random.normal(jax.random.fold_in(key, 1), (40,))
        full = {"w": noise - COUNT * state.weights["w"]}
        release = Release(full, {"w": jnp.float32(noise_std)}, jnp.float32(1), full)
        state = method.update(state, release, key)
        return state, state.weights["w"]

    places = jax.jit(lambda: jax.lax.scan(step, method.init(KEY), jnp.arange(20000))[1])()
    assert np.asarray(places)[2000:].var(0).mean() * precision == pytest.approx(1 if thermostat else 4, rel=0.12)


def test_only_the_missing_noise_is_added() -> None:
    """Where the wall's noise is more than enough, none is: the next place follows from the release alone."""
    method = tacit.sgld(constant(), step_size=0.01)(Plan(RECORD, COUNT))
    state = method.init(KEY)
    full = {"w": jnp.float32(3.0)}
    loud = Release(full, {"w": jnp.float32(1000)}, jnp.float32(1), full)
    ends = [method.update(state, loud, jax.random.key(seed)).weights["w"] for seed in range(3)]
    assert ends == [pytest.approx(0.03)] * 3
    quiet = loud._replace(noise_std={"w": jnp.float32(0)})
    assert len({float(method.update(state, quiet, jax.random.key(seed)).weights["w"]) for seed in range(3)}) == 3


def test_sgld_remembers_the_last_places_and_averages_what_is_watched() -> None:
    inputs = {"x": np.zeros((2, 1), np.float32)}
    method = tacit.sgld(constant(), step_size=1e-3, keep=2, thin=2, burn_in=4, watch=inputs)(Plan(RECORD, COUNT))
    assert method.min_steps == 5, "before that there is one place only, and it is the last of the burn-in"
    state = method.init(KEY)
    places = []
    for step in range(10):
        full = {"w": jnp.float32(100.0 * step)}
        state = method.update(state, Release(full, {"w": jnp.float32(0)}, jnp.float32(1), full), jax.random.key(step))
        places.append(float(state.weights["w"]))
    np.testing.assert_allclose(sorted(state.memory.kept["w"]), sorted(places[7::2]), rtol=1e-6)
    draws = {float(method.draw(state, jax.random.key(seed))["w"]) for seed in range(40)}
    assert sorted(draws) == pytest.approx(sorted(places[7::2]))
    assert method.point_estimates is not None
    np.testing.assert_allclose(method.point_estimates(state)["watched mean"], np.mean(places[5::2]), rtol=1e-5)


def regression() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    x = generator.normal(size=(COUNT, 3)).astype(np.float32)
    return {"x": x, "y": (x @ [1.0, -0.5, 0.0] + 0.5 * generator.normal(size=COUNT)).astype(np.float32)}


def line(noise: float = 0.5) -> Network:
    return tacit.network((lambda key: jnp.zeros(3), lambda w, x: x @ w), "gaussian", noise=noise)


def test_bayes_by_backprop_ends_at_the_best_independent_normal_distribution() -> None:
    """For a Gaussian posterior: its means, and one over the root of the precision's diagonal. `vi` ends there too."""
    data = regression()
    precision = data["x"].T @ data["x"] / 0.25 + np.eye(3)
    mean = np.linalg.solve(precision, data["x"].T @ data["y"] / 0.25)
    std = 1 / np.sqrt(np.diag(precision))
    optimizer = optax.adam(lambda step: 0.05 / (1 + step / 100))
    posterior = tacit.fit_public(tacit.bayes_by_backprop(line(), optimizer=optimizer), data, steps=3000, key=KEY)
    (draws,) = posterior.draws.values()
    # 1000 draws: the mean within 5 standard errors and the optimiser's own error, the spread within 10% (4.5 of them).
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * std.max() / math.sqrt(1000) + 0.1 * std.min())
    np.testing.assert_allclose(draws.std(0), std, rtol=0.1)


def test_quick_normal_numbers_are_normal() -> None:
    """False alarms: 1e-6 by Kolmogorov and Smirnov's test and for each of two correlations, at a fixed seed."""
    tree = {"a": jnp.zeros((777, 131)), "b": jnp.zeros(()), "c": jnp.zeros(5001)}
    drawn = normals(tree, KEY)
    assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(jnp.shape, tree)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(drawn)]).astype(float)
    assert stats.kstest(flat, "norm").pvalue > 1e-6
    half = len(flat) // 2  # two numbers come from one word
    for one, other in ((flat[:half], flat[half : 2 * half]), (flat[:-1], flat[1:])):
        assert stats.pearsonr(one, other).pvalue > 1e-6
    assert not np.array_equal(normals(tree, jax.random.key(1))["a"], drawn["a"])


def test_the_gradient_of_bayes_by_backprop_is_that_of_its_elbo() -> None:
    """One step along a released gradient is one along the ELBO at the same draw."""
    data = jax.tree.map(jnp.asarray, regression())
    net = line()
    method = tacit.bayes_by_backprop(net, optimizer=optax.sgd(1.0), first_std=0.3)(Plan(RECORD, COUNT))
    state = method.init(KEY)
    after = method.update(state, released(method, state, data), KEY)

    noise = jax.tree.map(lambda w, mean, std: (w - mean) / std, state.weights[0], state.params.mean, state.std)

    def loss(params: Any) -> Any:
        w = at(params.mean, jax.tree.map(jnp.exp, params.rho), noise)
        (mean,), (std,) = params.mean.values(), jax.tree.map(jnp.exp, params.rho).values()
        fit = jnp.sum(jax.vmap(lambda record: net.log_likelihood(w, record, None))(data))
        divergence = jnp.sum((std**2 + mean**2) / 2 - jnp.log(std))
        return (divergence - fit) / COUNT

    gradient = jax.grad(loss)(state.params)
    (old,), (new,), (slope,) = (part.mean.values() for part in (state.params, after.params, gradient))
    np.testing.assert_allclose(old - new, slope, rtol=1e-4, atol=1e-5)
    # Adam's first step is 0.02 along the sign of the gradient.
    (old,), (new,), (slope,) = (part.rho.values() for part in (state.params, after.params, gradient))
    np.testing.assert_allclose(old - new, 0.02 * np.sign(slope), rtol=1e-3)


def test_widths_of_many_weights_are_moved_in_every_fourth_step_along_the_same_gradient() -> None:
    """Moved they are as of few weights, twice as far; the draws change in every step, and the means."""
    size, count = 1 << 16, 64
    data = {"x": np.ones((count, 1), np.float32), "y": np.arange(count, dtype=np.float32)}
    net = tacit.network((lambda key: jnp.zeros(size), lambda w, x: x[0] * jnp.mean(w)), "gaussian", noise=0.5)
    method = tacit.bayes_by_backprop(net, optimizer=optax.sgd(1.0), first_std=0.3)(
        Plan({"x": np.ones(1), "y": 0.0}, count)
    )
    update, states = jax.jit(method.update), [method.init(KEY)]
    for step in range(5):
        release = released(method, states[-1], data)
        half = release._replace(rate=jnp.float32(0.5), full=jax.tree.map(lambda leaf: 2 * leaf, release.total))
        states.append(update(states[-1], half, jax.random.fold_in(KEY, step)))
    rho, mean, weights = (
        [np.asarray(next(iter(part.values()))) for part in parts]
        for parts in zip(*((state.params.rho, state.params.mean, state.weights[0]) for state in states), strict=True)
    )
    assert [np.array_equal(*pair) for pair in itertools.pairwise(rho)] == [False, True, True, True, False]
    assert not any(np.array_equal(*pair) for part in (mean, weights) for pair in itertools.pairwise(part))
    (total,) = jax.tree.leaves(released(method, states[0], data).total)
    # By rho: the slope of the fit along s eps, of the prior's s**2 / 2, and of the entropy.
    slope = -(2 * total * (weights[0] - mean[0]) - 0.3**2) / count - 1 / count
    sure = np.abs(slope) > 1e-6
    assert sure.mean() > 0.99
    np.testing.assert_allclose((rho[0] - rho[1])[sure], 2 * 0.02 * np.sign(slope)[sure], rtol=1e-2)


def test_several_draws_of_the_weights_give_the_mean_of_their_gradients() -> None:
    data = jax.tree.map(jnp.asarray, regression())
    three = tacit.bayes_by_backprop(line(), optimizer=optax.sgd(1.0), first_std=0.3, draws=3)(Plan(RECORD, COUNT))
    one = tacit.bayes_by_backprop(line(), optimizer=optax.sgd(1.0), first_std=0.3)(Plan(RECORD, COUNT))
    state = three.init(KEY)
    together = three.update(state, released(three, state, data), KEY).params.mean["weights"]
    single = [state._replace(weights=[w]) for w in state.weights]
    apart = [one.update(each, released(one, each, data), KEY).params.mean["weights"] for each in single]
    np.testing.assert_allclose(together, np.mean(apart, 0), rtol=1e-4, atol=1e-5)
    # Together they have the norm of one draw's gradient, so that the same clip suits.
    record = jax.tree.map(lambda leaf: leaf[0], data)
    norms = [
        math.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(method.contribute(state, record, KEY))))
        for method, state in ((three, state), (one, single[0]))
    ]
    assert norms[0] == pytest.approx(norms[1], rel=0.6)
    with pytest.raises(ValueError, match="draws is 0"):
        tacit.bayes_by_backprop(line(), draws=0)


def test_draws_of_bayes_by_backprop_count_what_the_noise_does_to_the_means() -> None:
    """The same records, 80 runs with noise of their own: how their averages differ is what each says of its own.

    240 averages: a standard error of 9% in their variance, and of about 7% in the other's mean. What is counted is up
    to twice the variance, less what stretches do not show: five errors beyond 1 and 2.5 times are 0.6 and 3.5, a false
    alarm in 10**6. Draws add it to the width: 4000 of them, 5 errors of 2.2% each in the standard deviation.
    """
    data = jax.tree.map(jnp.asarray, regression())
    method = tacit.bayes_by_backprop(line(), optimizer=optax.sgd(0.02, momentum=0.9))(Plan(RECORD, COUNT))

    def run(key: Any) -> Any:
        def step(state: Any, key: Any) -> tuple[Any, None]:
            return method.update(state, released(method, state, data, 300.0, key), key), None

        return jax.lax.scan(step, method.init(key), jax.random.split(key, 300))[0]

    states = jax.jit(jax.vmap(run))(jax.random.split(KEY, 80))
    counted = jax.vmap(lambda state: perturbed_average(state.path, state.step)["weights"])(states)
    assert 0.6 < float(counted.mean() / states.average.mean["weights"].var(0, ddof=1).mean()) < 3.5
    state = jax.tree.map(lambda leaf: leaf[0], states)
    drawn = jax.vmap(lambda key: method.draw(state, key)["weights"])(jax.random.split(KEY, 4000))
    wanted = np.sqrt(np.exp(2 * state.average.rho["weights"]) + counted[0])
    np.testing.assert_allclose(drawn.std(0), wanted, rtol=0.11)
    first = method.init(KEY)
    assert float(perturbed_average(first.path, first.step)["weights"].max()) == 0


def test_of_many_numbers_one_iterate_in_eight_makes_the_stretches() -> None:
    """A path of 0, 1, 2, ...: after 60 steps 0, 8, ..., 56 are eight stretches of one; then pairs become one."""
    path, late = start_batch_means({"w": jnp.zeros(MANY)}), jax.jit(update_batch_means)
    for step in range(70):
        if step == 60:
            np.testing.assert_array_equal(path.means["w"][:, 0], EVERY * np.arange(BATCHES))
            # Six late ones, 8 apart: twice 16/7 of an eighth of their variance.
            wanted = 2 * 16 / 7 / 8 * np.var(EVERY * np.arange(2, BATCHES), ddof=1)
            np.testing.assert_allclose(perturbed_average(path, jnp.int32(step))["w"], wanted, rtol=1e-5)
        path = late(path, {"w": jnp.full(MANY, step, jnp.float32)}, jnp.int32(step))
    assert int(path.length) == 2
    np.testing.assert_array_equal(path.means["w"][:5, 0], [4, 20, 36, 52, 64])


def test_a_long_memory_is_kept_small() -> None:
    """50 places of a small network; of one with three million weights ten, unless more are asked for."""
    big = tacit.network((lambda key: jnp.zeros((3, 1_000_000)), lambda w, x: w[:, 0]))
    for net, keep, places in ((line(), None, 50), (big, None, 10), (big, 1, 1)):
        state = jax.eval_shape(
            tacit.sgld(net, keep=keep)(Plan({"x": RECORD["x"], "y": 0} if net is big else RECORD, 10)).init, KEY
        )
        assert {leaf.shape[0] for leaf in state.memory.kept.values()} == {places}


MILLION = """
import resource
import equinox as eqx, jax, numpy as np, tacit

net = tacit.network(eqx.nn.MLP(784, 10, 672, 2, key=jax.random.key(0)))
count = sum(leaf.size for leaf in jax.tree.leaves(net.start(jax.random.key(0))))
assert 980_000 < count < 1_050_000, count
generator = np.random.default_rng(0)
data = tacit.PrivateData(
    {"x": generator.random((5000, 784), np.float32), "y": generator.integers(0, 10, 5000).astype(np.int32)}, size=5000
)
for method in (tacit.METHOD,):
    posterior = tacit.fit(
        method(net), data, tacit.Budget(1.0, 1e-5), rate=0.1, steps=12, progress=False, key=jax.random.key(1)
    )
    posterior.predict({"x": generator.random((100, 784), np.float32)}, key=jax.random.key(2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sgd", "bayes_by_backprop", "sgld"])
def test_a_network_of_a_million_weights_trains_under_two_gigabytes(method: str) -> None:
    """Twelve steps with subsets of 500, and the predictions; the memory does not grow with steps."""
    done = subprocess.run(
        [sys.executable, "-c", MILLION.replace("METHOD", method)], capture_output=True, text=True, check=True
    )
    kilobytes = int(done.stdout.split()[-1])
    assert kilobytes < 2e6


def test_the_width_does_not_depend_on_where_it_began() -> None:
    data = regression()
    widths = [
        next(
            iter(
                tacit.fit_public(
                    tacit.bayes_by_backprop(line(), first_std=std), data, steps=4000, key=KEY
                ).draws.values()
            )
        ).std(0)
        for std in (0.01, 0.3)
    ]
    wanted = 1 / np.sqrt(np.diag(data["x"].T @ data["x"] / 0.25 + np.eye(3)))
    for (
        width
    ) in widths:  # 1000 draws: 2.2% of the width is one standard error; Adam's own sample_average_error comes on top
        np.testing.assert_allclose(width, wanted, rtol=0.15)


def test_sgd_ends_at_the_mode_of_the_posterior() -> None:
    data = regression()
    mode = np.linalg.solve(data["x"].T @ data["x"] / 0.25 + np.eye(3), data["x"].T @ data["y"] / 0.25)
    optimizer = optax.sgd(0.05, momentum=0.9)
    posterior = tacit.fit_public(tacit.sgd(line(), optimizer=optimizer), data, steps=500, key=KEY)
    np.testing.assert_allclose(posterior.draws["weights"][0], mode, rtol=1e-3, atol=1e-4)
    # Twice the size halves the step: nothing else depends on it.
    slow = tacit.sgd(line(), optimizer=optax.sgd(1.0))(Plan(RECORD, 2 * COUNT))
    fast = tacit.sgd(line(), optimizer=optax.sgd(1.0))(Plan(RECORD, COUNT))
    state, records = slow.init(KEY), jax.tree.map(jnp.asarray, data)
    steps = [m.update(state, released(m, state, records), KEY).weights["weights"] for m in (slow, fast)]
    np.testing.assert_allclose(2 * steps[0], steps[1], rtol=1e-5)


def test_the_rate_is_part_of_the_noise() -> None:
    """Noise of 1 on a sum at rate 1/10 is noise of 10 on the estimate: at eta 0.02 that is all that is wanted."""
    method = tacit.sgld(constant(), step_size=0.02)(Plan(RECORD, COUNT))
    full = {"w": jnp.float32(3.0)}
    release = Release(full, {"w": jnp.float32(1)}, jnp.float32(0.1), full)
    ends = [float(method.update(method.init(KEY), release, jax.random.key(seed)).weights["w"]) for seed in range(3)]
    np.testing.assert_allclose(ends, 0.06, atol=1e-3)


def test_langevin_dynamics_on_the_walls_noise_is_gradient_descent() -> None:
    """The corrected Theorem 1 of the DP-BNN paper: the same release takes both to the same place."""
    eta, rate, clip = 1e-3, 0.5, 2.0
    twin = classical.sgd_from_sgld(eta, size=COUNT, rate=rate, clip=clip)
    descent = tacit.sgd(line(), optimizer=optax.sgd(twin.learning_rate))(Plan(RECORD, COUNT))
    dynamics = tacit.sgld(line(), step_size=eta)(Plan(RECORD, COUNT))
    total = {"weights": jnp.array([1.0, -20.0, 3.0])}
    # A hair more than the noise of the theorem, so that none is missing after rounding.
    std = {"weights": jnp.float32(1.0001 * twin.noise_multiplier * clip)}
    release = Release(total, std, jnp.float32(rate), jax.tree.map(lambda leaf: leaf / rate, total))
    ends = [method.update(method.init(KEY), release, KEY).weights["weights"] for method in (descent, dynamics)]
    np.testing.assert_allclose(*ends, rtol=1e-5)
    quieter = release._replace(noise_std={"weights": 0.9 * std["weights"]})
    assert np.abs(dynamics.update(dynamics.init(KEY), quieter, KEY).weights["weights"] - ends[0]).max() > 1e-4


def test_weights_of_a_pair_keep_their_places() -> None:
    """Names are sorted by JAX, so that the eleventh layer comes before the third; each must get its own number."""
    count = 12
    pair = (
        lambda key: [jnp.float32(i) for i in range(count)],
        lambda weights, x: sum(i * w for i, w in enumerate(weights)),
    )
    net = tacit.network(pair, "gaussian", noise=1.0)
    weights = jax.tree.map(lambda leaf: leaf, net.start(KEY))
    mean = net.predict(weights, {"x": np.zeros((1, 1), np.float32)}, KEY, None)["mean"]
    assert float(mean[0]) == sum(i * i for i in range(count))
    watching = tacit.sgld(net, step_size=1e-5, watch={"x": np.zeros((1, 1), np.float32)})
    posterior = tacit.fit_public(
        watching, {"x": np.zeros((5, 1), np.float32), "y": np.ones(5, np.float32)}, steps=3, key=KEY
    )
    assert posterior.predict({"x": np.zeros((2, 1), np.float32)}, key=KEY)["mean"].shape[1] == 2


class Keyless(eqx.Module):
    """A module with dropout that takes no key."""

    layer: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self) -> None:
        self.layer, self.dropout = eqx.nn.Linear(3, 1, key=KEY), eqx.nn.Dropout(0.5)

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.layer(x))


def test_dropout_that_gets_no_key_is_left_out() -> None:
    net = tacit.network(Keyless(), "bernoulli")
    assert not net.random
    tacit.fit_public(tacit.sgd(net), {"x": np.zeros((5, 3), np.float32), "y": np.zeros(5)}, steps=1, key=KEY)


@pytest.mark.parametrize(
    ("record", "likelihood", "match"),
    [
        ({"x": np.zeros(2, np.float32), "y": 0}, "categorical", "cannot be applied"),
        ({"x": np.zeros(3, np.float32)}, "categorical", '"y": target'),
        ((np.zeros(3, np.float32), 0), "categorical", "these are tuple"),
        ({"x": np.zeros(3, np.float32), "y": np.zeros(2)}, "gaussian", "outputs are for 4"),
        ({"x": np.zeros(3, np.float32), "y": np.zeros(2)}, "categorical", "outputs are for 1"),
    ],
)
def test_records_that_do_not_fit_the_network_are_refused(record: Any, likelihood: str, match: str) -> None:
    net = tacit.network(eqx.nn.MLP(3, 4, 5, 1, key=KEY), likelihood)
    for method in (tacit.sgd, tacit.bayes_by_backprop, tacit.sgld):
        with pytest.raises(ValueError, match=match):
            method(net)(Plan(record, 10))


def test_a_class_beyond_the_outputs_contributes_nothing() -> None:
    """How many outputs there are is the caller's choice, so a refusal would answer questions about the records."""
    data = PrivateData({"x": np.ones((20, 3), np.float32), "y": np.full(20, 4)}, size=20)
    method = tacit.sgd(tacit.network(eqx.nn.MLP(3, 4, 5, 1, key=KEY)))(Plan(data.placeholder, 20))
    step = Step(method, data, Mechanism(1.0, 1.0, 1.0, 1), method.init(KEY))
    state = method.init(KEY)
    for label, counts in ((4, False), (3, True)):
        rows = {"x": np.ones((step.sizes.chunk, 3), np.float32), "y": np.full(step.sizes.chunk, label, np.int32)}
        found = step.contributions.clipped(state, rows, KEY)
        assert np.any(found.plain != 0) or any(np.any(right != 0) for _, right in found.factors) or not counts
        assert counts or not (np.any(found.plain != 0) or any(np.any(right != 0) for _, right in found.factors))


class Masked(eqx.Module):
    """One hidden layer with dropout after it."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self) -> None:
        keys = jax.random.split(KEY)
        self.first, self.second = eqx.nn.Linear(3, 8, key=keys[0]), eqx.nn.Linear(8, 1, key=keys[1])
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x: Any, key: Any = None) -> Any:
        return self.second(self.dropout(jax.nn.relu(self.first(x)), key=key))


def test_dropout_is_the_masked_network_written_by_hand() -> None:
    net = tacit.network(Masked(), "gaussian", noise=1.0)
    weights = net.start(KEY)
    record = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), regression())
    key = jax.random.key(5)
    kept = jax.random.bernoulli(key, 0.5, (8,))  # Equinox draws its mask so

    def by_hand(weights: Any) -> Any:
        hidden = jax.nn.relu(weights["first.weight"] @ record["x"] + weights["first.bias"])
        output = weights["second.weight"] @ jnp.where(kept, hidden / 0.5, 0) + weights["second.bias"]
        return stats_logpdf(record["y"] - output[0])

    ours, wanted = score(net, weights, record, key), jax.grad(by_hand)(weights)
    for name in wanted:
        np.testing.assert_allclose(ours[name], wanted[name], rtol=1e-5, atol=1e-6)
    method = tacit.dropout(net)(Plan(record, COUNT))
    state = method.init(KEY)
    assert method.per_record_key
    masked = method.contribute(state, record, KEY, key)
    np.testing.assert_allclose(masked["first.weight"], wanted["first.weight"], rtol=1e-5, atol=1e-6)
    # Predictions: one mask for all inputs of a draw, and draws differ.
    posterior = tacit.fit_public(method, regression(), steps=5, key=KEY)
    means = np.asarray(posterior.predict({"x": regression()["x"][:4]}, key=KEY)["mean"])
    assert means.shape == (1000, 4)
    assert len(np.unique(means[:, 0].round(5))) > 20  # masks of five units that are on for this input make 32


def stats_logpdf(distance: Any) -> Any:
    return -(distance**2) / 2 - math.log(2 * math.pi) / 2


@pytest.mark.parametrize(
    ("likelihood", "output", "y", "wanted"),
    [
        ("categorical", [1.0, 2.0, 0.5], 1, lambda o: o[1] - np.log(np.exp(o).sum())),
        ("bernoulli", [0.7], 0, lambda o: stats.bernoulli.logpmf(0, 1 / (1 + np.exp(-o[0])))),
        ("poisson", [0.7], 3, lambda o: stats.poisson.logpmf(3, np.exp(o[0]))),
        ("gaussian", [0.7], 1.5, lambda o: stats.norm.logpdf(1.5, o[0], 1.0)),
        ("output", [0.7, -0.3], 1.5, lambda o: stats.norm.logpdf(1.5, o[0], np.exp(o[1]))),
    ],
)
def test_likelihoods(likelihood: Any, output: list[float], y: Any, wanted: Callable[[Any], float]) -> None:
    noise = "output" if likelihood == "output" else "learned"
    kind = "gaussian" if likelihood == "output" else likelihood
    net = tacit.network((lambda key: jnp.asarray(output), lambda w, x: w), kind, noise=noise)  # type: ignore[arg-type]
    weights = net.start(KEY)
    record = {"x": jnp.zeros(1), "y": jnp.asarray(y)}
    assert float(net.log_likelihood(weights, record, None)) == pytest.approx(float(wanted(np.array(output))), rel=1e-5)
    predicted = net.predict(weights, {"x": np.zeros((50000, 1), np.float32)}, KEY, None)
    drawn_mean = np.mean(np.asarray(predicted["y"]) == 1) if kind == "categorical" else np.mean(predicted["y"])
    mean = predicted["mean"][0, 1] if kind == "categorical" else predicted["mean"][0]
    # 50000 draws with a standard deviation of at most 1.5: five standard errors are 0.034.
    assert drawn_mean == pytest.approx(float(mean), abs=0.034)


@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_expected_log_priors_against_the_mean_over_draws(prior: Any) -> None:
    net = tacit.network((lambda key: jnp.array([0.3, -1.0]), lambda w, x: w), prior=prior, prior_std=0.7)
    mean = net.start(KEY)
    std = jax.tree.map(lambda leaf: jnp.array([0.5, 0.2]), mean)
    draws = jax.tree.map(lambda m, s: m + s * jax.random.normal(KEY, (100000, 2)), mean, std)
    each = np.asarray(jax.vmap(net.log_prior)(draws))
    # Five standard errors of 100000 draws.
    wanted = pytest.approx(each.mean(), abs=5 * float(each.std()) / math.sqrt(1e5))
    assert float(net.expected_log_prior(mean, std, mean)) == wanted


@pytest.mark.parametrize(
    ("prior", "density"),
    [
        ("normal", stats.norm(0, 0.7).pdf),
        ("laplace", stats.laplace(0, 0.7 / math.sqrt(2)).pdf),
        ("mixture", lambda w: stats.norm(0, 0.7).pdf(w) + stats.norm(0, 0.07).pdf(w)),
    ],
)
def test_log_priors_are_those_of_their_densities(prior: str, density: Callable[[Any], Any]) -> None:
    net = tacit.network((lambda key: jnp.zeros(1), lambda w, x: w), prior=prior, prior_std=0.7)
    places = np.array([-1.3, -0.05, 0.2, 0.9], np.float32)
    ours = np.array([float(net.log_prior({"weights": jnp.array([place])})) for place in places])
    wanted = np.log(density(places))
    np.testing.assert_allclose(ours - ours[0], wanted - wanted[0], rtol=1e-4, atol=1e-5)
    # A prior without a closed mean is taken at the draw.
    if prior == "mixture":
        at = {"weights": jnp.array([0.2])}
        far = {"weights": jnp.array([5.0])}
        assert float(net.expected_log_prior(far, far, at)) == pytest.approx(float(net.log_prior(at)))


def test_gradients_of_dense_layers_are_never_written_out() -> None:
    data = PrivateData({"x": np.zeros((50, 70), np.float32), "y": np.zeros(50, np.int32)}, size=50)
    net = tacit.network(eqx.nn.MLP(70, 3, 90, 2, key=KEY))
    for method in (tacit.sgd, tacit.bayes_by_backprop, tacit.sgld):
        built = method(net)(Plan(data.placeholder, 50))
        state = jax.tree.map(jnp.asarray, built.init(KEY))
        found = Step(built, data, Mechanism(0.1, 1.0, 1.0, 3), state).contributions.outers
        sizes = [leaf.size for leaf in jax.tree.leaves(net.start(KEY))]
        assert all(outer is not None for outer in found)
        assert [outer.columns > 1 for outer in found] == [size > 4096 for size in sizes]
        assert sum(outer.columns > 1 for outer in found) == 2, "the others have a single column"


@pytest.mark.slow
def test_a_private_network_learns() -> None:
    """Two classes on a line that 4000 records make plain: 90% right at epsilon 1 is far below what is reached."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(4000, 3)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int32)
    net = tacit.network(Masked(), "bernoulli")
    for method in (tacit.sgd, tacit.bayes_by_backprop, tacit.dropout):
        posterior = tacit.fit(
            method(net),
            PrivateData({"x": x, "y": y}, size=4000),
            Budget(1.0, 1e-5),
            steps=100,
            key=KEY,
            simulate=1,
            progress=False,
        )
        chance = np.asarray(posterior.predict({"x": x[:500]}, key=KEY)["mean"]).mean(0)
        assert np.mean((chance > 0.5) == y[:500]) > 0.9


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: tacit.network(Masked(), "normal"), "likelihood is 'normal'"),  # type: ignore[arg-type]
        (lambda: tacit.network(Masked(), prior_std=-1.0), "prior_std is -1"),
        (lambda: tacit.network(Masked(), "gaussian", noise=0.0), "noise is 0"),
        (lambda: tacit.sgd(line())(Plan(RECORD, 0)), "size is 0"),
        (lambda: tacit.dropout(line()), "no dropout"),
        (lambda: tacit.sgld(line(), friction=2.0), "friction is 2"),
        (lambda: tacit.bayes_by_backprop(line(), first_std=0.0), "first_std is 0"),
        (lambda: tacit.network(Masked(), noise=0.5), "likelihood has none"),
        (lambda: tacit.network((lambda key: {"mask": jnp.zeros(1)}, lambda w, x: x)), "called 'mask'"),
        (
            lambda: tacit.bayes_by_backprop(tacit.network(Masked(), prior="none")),
            "improper",
        ),
    ],
)
def test_bad_options_are_refused(make: Callable[[], Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_what_is_no_network_is_refused() -> None:
    with pytest.raises(TypeError, match="must be an Equinox module or a pair"):
        tacit.network(lambda x: x)  # type: ignore[arg-type]


def test_bad_labels_are_refused_before_anything_is_spent() -> None:
    data = PrivateData({"x": np.zeros((20, 3), np.float32), "y": np.full(20, 2)}, size=20)
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        tacit.fit(tacit.sgd(tacit.network(Masked(), "bernoulli")), data, Budget(1.0, 1e-5), progress=False)
    assert len(data.ledger.charges) == 0
