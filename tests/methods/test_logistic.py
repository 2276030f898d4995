"""Pólya-Gamma regression: the exact variational solution without noise, its bounds, its errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import tacit
from tacit.methods.logistic import LogisticState, logistic
from tacit.methods.polya_gamma import polya_gamma_mean
from tacit.methods.running import block_weights
from tacit.types import Method, Plan, Release

KEY = jax.random.key(0)
PRIOR = (1.0, 1.0)
LIKELIHOODS = ["bernoulli", "binomial", "negative-binomial"]
OPTIONS: dict[str, dict[str, float]] = {
    "bernoulli": {"bound": 4.0},
    "binomial": {"bound": 4.0, "most": 7.0},
    "negative-binomial": {"bound": 4.0, "most": 60.0, "dispersion": 2.5},
}


def records(likelihood: str, count: int = 300) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    x = np.column_stack([np.ones(count), generator.normal(size=(count, 2))]).astype(np.float32)
    x *= np.minimum(1, 4 / np.linalg.norm(x, axis=1))[:, None]
    psi = x @ [0.3, 1.0, -0.7]
    if likelihood == "negative-binomial":
        rate = generator.gamma(2.5, size=count) * np.exp(psi)
        return {"x": x, "y": np.minimum(generator.poisson(rate), 60).astype(np.int32)}
    trials = generator.integers(1, 8, count) if likelihood == "binomial" else np.ones(count, int)
    y = generator.binomial(trials, special.expit(psi)).astype(np.int32)
    return {"x": x, "y": y, **({"trials": trials.astype(np.int32)} if likelihood == "binomial" else {})}


def terms(likelihood: str, data: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    if likelihood == "negative-binomial":
        return (data["y"] - 2.5) / 2, data["y"] + 2.5
    trials = data.get("trials", np.ones(len(data["y"])))
    return data["y"] - trials / 2, trials


def exact(
    likelihood: str, data: dict[str, np.ndarray], sweeps: int
) -> tuple[np.ndarray, np.ndarray, float, list[float]]:
    """Coordinate ascent in float64 by the textbook: mean and covariance of w, mean of alpha, and the bound."""
    x, (kappa, trials) = data["x"].astype(float), terms(likelihood, data)
    d = x.shape[1]
    mean, covariance, alpha, bounds = np.zeros(d), np.eye(d), PRIOR[0] / PRIOR[1], []
    for _ in range(sweeps):
        c = np.sqrt((x @ mean) ** 2 + np.einsum("ni,ij,nj->n", x, covariance, x))
        curvature = (x * (trials * np.tanh(c / 2) / (2 * c))[:, None]).T @ x
        for _ in range(200):
            covariance = np.linalg.inv(curvature + alpha * np.eye(d))
            mean = covariance @ (x.T @ kappa)
            shape, rate = PRIOR[0] + d / 2, PRIOR[1] + (mean @ mean + np.trace(covariance)) / 2
            alpha = shape / rate
        bounds.append(float(bound(jnp.asarray(mean), jnp.asarray(covariance), shape, rate, x, kappa, trials)))
    return mean, covariance, alpha, bounds


def bound(mean: Any, covariance: Any, shape: Any, rate: Any, x: Any, kappa: Any, trials: Any) -> Any:
    """The evidence lower bound in closed form, up to a constant (docs/errata.md: data term at c**2 = E[psi**2])."""
    c = jnp.sqrt((x @ mean) ** 2 + jnp.einsum("ni,ij,nj->n", x, covariance, x))
    data = jnp.sum(kappa * (x @ mean) - trials * jnp.log(2 * jnp.cosh(c / 2)))
    d = mean.shape[0]
    alpha, log_alpha = shape / rate, jax.scipy.special.digamma(shape) - jnp.log(rate)
    weights = d / 2 * log_alpha - alpha / 2 * (mean @ mean + jnp.trace(covariance))
    entropy = jnp.linalg.slogdet(covariance)[1] / 2
    gamma = (PRIOR[0] - shape) * log_alpha - PRIOR[1] * alpha + rate * alpha
    gamma += jax.scipy.special.gammaln(shape) - shape * jnp.log(rate)
    return data + weights + entropy + gamma


def built(likelihood: str, data: dict[str, np.ndarray], **more: Any) -> Method:
    method = logistic(likelihood, **{**OPTIONS[likelihood], **more})
    return method(Plan(jax.tree.map(lambda leaf: leaf[0], data)))


def without_noise(method: Method, data: dict[str, np.ndarray], steps: int) -> list[LogisticState]:
    def step(state: LogisticState) -> LogisticState:
        each = jax.vmap(lambda record: method.contribute(state, record, KEY))(jax.tree.map(jnp.asarray, data))
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, 0), each)
        return method.update(
            state, Release(total, jax.tree.map(lambda _: jnp.float32(0), total), jnp.float32(1), total), KEY
        )

    states, once = [method.init(KEY)], jax.jit(step)
    for _ in range(steps):
        states.append(once(states[-1]))
    return states


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_without_noise_it_is_the_exact_variational_solution(likelihood: str) -> None:
    data = records(likelihood)
    mean, covariance, alpha, _ = exact(likelihood, data, 60)
    last = without_noise(built(likelihood, data, pace=jnp.ones_like), data, 60)[-1]
    np.testing.assert_allclose(last.mean, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last.covariance, covariance, rtol=1e-3, atol=1e-6)
    assert float(last.precision) == pytest.approx(alpha, rel=1e-3)
    # The default pace forgets the start more slowly, and ends at the same place.
    slow = without_noise(built(likelihood, data), data, 150)[-1]
    np.testing.assert_allclose(slow.mean, mean, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_bound_never_falls_and_its_gradient_vanishes(likelihood: str) -> None:
    data = records(likelihood)
    mean, covariance, alpha, bounds = exact(likelihood, data, 60)
    assert np.all(np.diff(bounds) > -1e-6 * abs(bounds[-1]))  # the bound itself is computed in float32
    kappa, trials = terms(likelihood, data)
    shape = PRIOR[0] + 1.5
    given = (jnp.asarray(mean), jnp.asarray(covariance), jnp.float32(shape), jnp.float32(shape / alpha))
    steepest = jax.grad(bound, (0, 1, 2, 3))(*given, data["x"], kappa, trials)
    away = jax.grad(bound, (0, 1, 2, 3))(given[0] + 0.1, *given[1:], data["x"], kappa, trials)
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in steepest) < 2e-2 < float(jnp.max(jnp.abs(away[0]))) / 100
    # The method's own states rise too.
    states = without_noise(built(likelihood, data, pace=jnp.ones_like), data, 8)[1:]
    risen = [float(bound(s.mean, s.covariance, shape, shape / s.precision, data["x"], kappa, trials)) for s in states]
    assert np.all(np.diff(risen) > -1e-5 * abs(risen[-1]))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_no_record_and_no_state_exceeds_the_bound(likelihood: str) -> None:
    """Random and extreme records and states; the largest weighted norm comes close to the clip and never beyond."""
    method, generator, longest = built(likelihood, records(likelihood)), np.random.default_rng(4), 0.0
    state = method.init(KEY)
    most = OPTIONS[likelihood].get("most", 1.0)

    @jax.jit
    def norm(record: Any, mean: Any, covariance: Any) -> Any:
        contribution = method.contribute(state._replace(mean=mean, covariance=covariance), record, KEY)
        leaves = jax.tree.leaves(contribution)
        return jnp.sqrt(
            sum(jnp.sum((leaf * w) ** 2) for leaf, w in zip(leaves, method.suggests.weights or (), strict=True))
        )

    for trial in range(300):
        x = generator.normal(size=3) * 10.0 ** generator.integers(-2, 4)
        trials = generator.integers(0, int(most) + 1)
        y = generator.choice([0, trials])
        size = 0.0 if trial % 2 else 10.0 ** generator.integers(-3, 3)
        spread = generator.normal(size=(3, 3)) * size
        record = {"x": jnp.asarray(x, jnp.float32), "y": jnp.int32(y), "trials": jnp.int32(trials)}
        longest = max(longest, float(norm(record, jnp.asarray(generator.normal(size=3) * size), spread @ spread.T)))
    assert 0.9 < longest <= 1 + 1e-5


def test_the_papers_joint_bound() -> None:
    """Unit weights and ||x|| = 1 at c = 0: sqrt(1/4 + 1/16) = 0.559."""
    method = logistic()(Plan({"x": np.zeros(4, np.float32), "y": np.int32(0)}))
    state = method.init(KEY)._replace(covariance=jnp.zeros((4, 4)))
    contribution = method.contribute(state, {"x": jnp.asarray([0.6, 0.8, 0.0, 0.0]), "y": jnp.int32(1)}, KEY)
    assert float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(contribution)))) == pytest.approx(
        0.559, abs=5e-4
    )


def test_block_weights_share_the_noise_best() -> None:
    bounds, sizes = (0.25, 0.5), (400, 20)
    weights = block_weights(bounds, sizes)
    assert sum((b * w) ** 2 for b, w in zip(bounds, weights, strict=True)) == pytest.approx(1)
    energy = sum(d / w**2 for d, w in zip(sizes, weights, strict=True))
    for share in np.linspace(0.01, 0.99, 99):  # of the squared norm that the first block may take
        others = (np.sqrt(share) / bounds[0], np.sqrt(1 - share) / bounds[1])
        assert energy <= sum(d / w**2 for d, w in zip(sizes, others, strict=True)) * (1 + 1e-9)


def test_the_mean_of_a_polya_gamma_variable() -> None:
    c = np.concatenate([[0.0], np.geomspace(1e-5, 200, 400)])
    wanted = np.where(c == 0, 0.25, np.tanh(np.maximum(c, 1e-300) / 2) / (2 * np.maximum(c, 1e-300)))
    np.testing.assert_allclose(polya_gamma_mean(jnp.asarray(c, jnp.float32) ** 2), wanted, rtol=2e-6)


def test_an_indefinite_release_is_repaired_in_a_copy_only() -> None:
    data = records("bernoulli")
    method = built("bernoulli", data)
    curvature = jnp.diag(jnp.asarray([50.0, -30.0, 1.0]))
    full = {"score": jnp.ones(3), "curvature": curvature}
    std = {"score": jnp.float32(1), "curvature": jnp.float32(4)}
    state = method.update(method.init(KEY), Release(full, std, jnp.float32(1), full), KEY)
    assert np.array_equal(state.curvature.statistics, curvature)
    values = np.linalg.eigvalsh(np.linalg.inv(state.covariance)) - float(state.precision)
    np.testing.assert_allclose(values, sorted([4 * np.sqrt(1.5)] * 2 + [50]), rtol=1e-3)


def test_a_private_fit_is_near_the_exact_solution() -> None:
    data = records("bernoulli", 4000)
    sealed = tacit.PrivateData(data, size=4000)
    posterior = tacit.fit(
        logistic(bound=4.0), sealed, tacit.Budget(8.0, 1e-5), key=KEY, simulate=1, progress=False, steps=8
    )
    mean, covariance, _, _ = exact("bernoulli", data, 60)
    # Eight deviations: noise is a fraction of one here, and what is left of the start another.
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < 8 * np.sqrt(np.diag(covariance)))
    assert posterior.certificate is not None
    assert posterior.certificate.mechanism.rate == 1
    predicted = posterior.predict({"x": data["x"][:5]}, key=KEY)
    assert predicted["mean"].shape == (1000, 5)
    assert set(np.unique(predicted["y"])) <= {0, 1}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_predictions_have_the_right_mean(likelihood: str) -> None:
    """Twenty thousand predictions at one draw; six deviations, a false alarm in 10**8."""
    method = built(likelihood, records(likelihood))
    assert method.model.predict is not None
    inputs = {"x": jnp.tile(jnp.asarray([[1.0, 0.5, 0.2]]), (20_000, 1)), "trials": jnp.full(20_000, 5)}
    found = method.model.predict({"w": jnp.asarray([0.3, 1.0, -0.7])}, inputs, KEY)
    spread = float(jnp.std(found["y"].astype(jnp.float32))) / np.sqrt(20_000)
    assert abs(float(jnp.mean(found["y"].astype(jnp.float32)) - found["mean"][0])) < 6 * spread
    wanted = {"bernoulli": special.expit(0.66), "binomial": 5 * special.expit(0.66)}
    assert float(found["mean"][0]) == pytest.approx(wanted.get(likelihood, 2.5 * np.exp(0.66)), rel=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "column", "value", "text"),
    [
        ("bernoulli", "y", 2, "y must be 0 or 1"),
        ("bernoulli", "y", -1, "y must be 0 or 1"),
    ],
)
def test_records_that_do_not_suit_cost_nothing(likelihood: str, column: str, value: int, text: str) -> None:
    data = records(likelihood)
    data[column][7] = value
    sealed = tacit.PrivateData(data, size=300)
    with pytest.raises(ValueError, match=text):
        tacit.fit(logistic(likelihood, **OPTIONS[likelihood]), sealed, tacit.Budget(1.0, 1e-5), progress=False)
    assert not sealed.ledger.charges


@pytest.mark.parametrize(
    ("likelihood", "column", "value", "text"),
    [
        ("binomial", "y", 8, "from 0 to trials"),
        ("binomial", "trials", 9, "from 0 to most=7"),
        ("negative-binomial", "y", 61, "from 0 to most=60"),
        ("negative-binomial", "y", -1, "numpy.minimum"),
    ],
)
def test_a_count_that_does_not_suit_is_told_from_others(likelihood: str, column: str, value: int, text: str) -> None:
    """The largest count is the caller's choice: such a record is not refused, it contributes nothing."""
    data = records(likelihood)
    data[column][7] = value
    method = logistic(likelihood, **OPTIONS[likelihood])(Plan(tacit.PrivateData(data).placeholder))
    record = {name: jnp.asarray(values[7]) for name, values in data.items()}
    assert [need.message for need in method.requirements if not need.predicate(record) and text in need.message]
    assert not any(need.fixed for need in method.requirements)


def test_wrong_options_and_shapes() -> None:
    with pytest.raises(ValueError, match="likelihood is 'probit'"):
        logistic("probit")
    with pytest.raises(ValueError, match="bound is 0"):
        logistic(bound=0.0)
    with pytest.raises(ValueError, match="takes records"):
        logistic()(Plan({"x": np.zeros(3, np.float32)}))
    with pytest.raises(ValueError, match="vector x"):
        logistic()(Plan({"x": np.float32(0), "y": np.int32(0)}))
    with pytest.raises(ValueError, match='"trials"'):
        logistic("binomial")(Plan({"x": np.zeros(3, np.float32), "y": np.int32(0)}))
