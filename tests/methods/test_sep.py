"""Stochastic EP: fixed points against exact posteriors and NUTS, the two readings, the repair of noisy sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import tacit
from tacit import sites
from tacit.accounting.classical import sep_kl_tail
from tacit.methods.gaussians import Moments, Natural, drawn, floored, moments, plus, retracted
from tacit.methods.running import Running
from tacit.methods.sep import SEPState, sep
from tacit.methods.sites import Site
from tacit.run.public import fit_public
from tacit.types import Method, Plan, Release

KEY = jax.random.key(0)
ones = jnp.ones_like


def regression(count: int = 500, columns: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, columns)).astype(np.float32)
    return x, x @ np.array([0.8, -0.6, 1.0, 0.5, -0.9][:columns], np.float32)


def release_of(method: Method, state: Any, records: Any) -> Release:
    each = jax.vmap(lambda record: method.contribute(state, record, KEY))(jax.tree.map(jnp.asarray, records))
    total = jax.tree.map(lambda leaf: jnp.sum(leaf, 0), each)
    return Release(total, jax.tree.map(lambda _: jnp.float32(0), total), jnp.float32(1), total)


def exact_linear(x: np.ndarray, y: np.ndarray, noise: float, prior: float) -> tuple[np.ndarray, np.ndarray]:
    precision = x.astype(float).T @ x / noise + prior * np.eye(x.shape[1])
    return np.linalg.solve(precision, x.T.astype(float) @ y / noise), np.linalg.inv(precision)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_a_gaussian_likelihood_gives_the_exact_posterior(alpha: float) -> None:
    x, f = regression()
    y = (f + 0.7 * np.random.default_rng(4).normal(size=len(f))).astype(np.float32)
    mean, covariance = exact_linear(x, y, 0.49, 2.0)
    site = sites.gaussian(0.49, alpha)
    method = sep(site, prior_std=2**-0.5, pace=ones)(Plan({"x": jnp.zeros(5), "y": jnp.zeros(())}, 500))
    state = method.init(KEY)
    for _ in range(2):  # the sites are the same at every cavity: the first step is the last
        state = method.update(state, release_of(method, state, {"x": x, "y": y}), KEY)
        found = moments(plus(state.prior, state.sites), True)
        np.testing.assert_allclose(found.mean[0], mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found.variance[0], covariance, rtol=2e-3, atol=1e-6)
    for averaged in (False, True):
        posterior = tacit.ep(site, {"x": x, "y": y}, prior_std=2**-0.5, key=KEY, sweeps=20, averaged=averaged)
        # 1000 draws: five standard errors of a mean, of a variance (false alarm about 1e-5 for all ten).
        off = np.abs(posterior.draws["w"].mean(0) - mean) / np.sqrt(np.diag(covariance) / 1000)
        assert off.max() < 5
        assert np.abs(posterior.draws["w"].var(0) / np.diag(covariance) - 1).max() < 5 * np.sqrt(2 / 1000)


def algorithm_3(records: dict[str, np.ndarray], site: Site, gamma: float, size: int) -> list[np.ndarray]:
    """DP-SEP as printed, without clip and noise: equation 4, then equation 2. One record a step."""
    prior = {"h": np.zeros(2), "P": np.eye(2)}
    theta = dict(prior)
    trace = []
    for i in range(len(records["y"])):
        f = {name: (theta[name] - prior[name]) / size for name in prior}
        cavity = {name: theta[name] - f[name] for name in prior}
        covariance = np.linalg.inv(cavity["P"])
        given = Moments(jnp.asarray([covariance @ cavity["h"]], jnp.float32), jnp.asarray([covariance], jnp.float32))
        record = {name: jnp.asarray(column[i]) for name, column in records.items()}
        new = site.natural(given, record)
        f_n = {"h": np.asarray(new.linear[0], float), "P": np.asarray(new.precision[0], float)}
        theta = {n: gamma / size * f_n[n] + (size - gamma / size) * f[n] + prior[n] for n in prior}
        trace.append(np.concatenate([theta["h"], theta["P"].ravel()]))
    return trace


@pytest.mark.parametrize("gamma", [1.0, 0.1])
@pytest.mark.slow
def test_the_two_readings(gamma: float) -> None:
    """The paper's reading is equation 4 step by step, and the consistent one with its step divided by N."""
    x, f = regression(30, 2)
    records, size = {"x": x, "y": (f > 0).astype(np.int32)}, 30
    site, rate = sites.probit(), 1 / 30
    printed = algorithm_3(records, site, gamma, size)
    paper = sep(site, pace=lambda step: jnp.float32(gamma * rate), reading="paper")
    consistent = sep(site, pace=lambda step: jnp.float32(gamma / size * rate))
    for make in (paper, consistent):
        method = make(Plan({"x": jnp.zeros(2), "y": jnp.int32(0)}, size))
        state, step = method.init(KEY), jax.jit(method.update)
        for i, wanted in enumerate(printed):
            one = release_of(method, state, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], records))
            one = one._replace(rate=jnp.float32(rate), full=jax.tree.map(lambda leaf: leaf / rate, one.total))
            state = step(state, one, KEY)
            theta = plus(state.prior, state.running.statistics)
            found = np.concatenate([theta.linear[0], theta.precision[0].ravel()])
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)
    # Li et al.'s SEP: one pass covers most of the way, and the paper's reading next to nothing.
    li = sep(site, pace=lambda step: jnp.float32(rate))(Plan({"x": jnp.zeros(2), "y": jnp.int32(0)}, size))
    state = li.init(KEY)
    for i in range(30):
        one = release_of(li, state, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], records))
        state = li.update(state, one._replace(full=jax.tree.map(lambda leaf: leaf / rate, one.total)), KEY)
    learnt = np.trace(state.sites.precision[0])
    assert np.trace(np.asarray(printed[-1][2:]).reshape(2, 2) - np.eye(2)) < 0.1 * learnt


def test_at_unit_pace_and_rate_it_is_averaged_ep() -> None:
    x, f = regression(60, 3)
    records = {"x": x, "y": (f > 0).astype(np.int32)}
    method = sep(sites.logistic(), pace=ones)(Plan({"x": jnp.zeros(3), "y": jnp.int32(0)}, 60))
    state = method.init(KEY)
    for _ in range(3):
        release = release_of(method, state, records)
        state = method.update(state, release, KEY)
        np.testing.assert_allclose(state.running.statistics.precision, release.full.precision, rtol=1e-5)
        np.testing.assert_allclose(state.sites.precision, release.full.precision, rtol=1e-3, atol=1e-3)
        cavity = moments(plus(state.prior, state.sites, 1 - 1 / 60), True)
        np.testing.assert_allclose(state.cavity.mean, cavity.mean, rtol=1e-5)


def nuts(x: np.ndarray, y: np.ndarray, link: str) -> np.ndarray:
    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event())
        f = x @ w
        chance = jax.scipy.stats.norm.cdf(f) if link == "probit" else jax.nn.sigmoid(f)
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", dist.Bernoulli(probs=jnp.clip(chance, 1e-7, 1 - 1e-7)), obs=y)

    mcmc = MCMC(
        NUTS(model), num_warmup=300, num_samples=4000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(5), x, y)
    return np.asarray(mcmc.get_samples()["w"])


@pytest.mark.slow
@pytest.mark.parametrize("link", ["probit", "logistic"])
def test_within_five_per_cent_of_nuts(link: str) -> None:
    """Fixed seeds. 16000 draws of NUTS: the standard error of a variance is about 1%, of a mean below 1% of an sd."""
    x, f = regression()
    generator = np.random.default_rng(6)
    noise = generator.normal(size=len(f)) if link == "probit" else generator.logistic(size=len(f))
    y = (f + noise > 0).astype(np.int32)
    draws = nuts(x, y, link)
    mean, variance = draws.mean(0), draws.var(0)
    site = getattr(sites, link)()
    method = sep(site)(Plan({"x": jnp.zeros(5), "y": jnp.int32(0)}, 500))
    state = method.init(KEY)
    step = jax.jit(lambda state: method.update(state, release_of(method, state, {"x": x, "y": y}), KEY))
    for _ in range(60):
        state = step(state)
    found = moments(plus(state.prior, state.sites), True)
    np.testing.assert_allclose(found.mean[0], mean, rtol=0.05)
    np.testing.assert_allclose(np.diag(found.variance[0]), variance, rtol=0.05)
    full = tacit.ep(site, {"x": x, "y": y}, key=KEY, sweeps=30).draws["w"]
    np.testing.assert_allclose(full.mean(0), mean, rtol=0.05)
    # 1000 draws have a standard error of 4.5% in a variance; 16% is 3.5 of them (false alarm 0.2%, seed fixed).
    np.testing.assert_allclose(full.var(0), variance, rtol=0.16)


def test_noise_is_counted_and_what_it_hides_falls_back_to_the_prior() -> None:
    """One weight: h | w ~ N(H w, H + S) has the posterior that ``floored`` gives, by Bayes' theorem."""
    h, big, noise, prior = 40.0, 25.0, 3.0, 2.0
    for matrices in (False, True):
        shape = (1, 1) if matrices else (1,)
        given = Natural(jnp.full((1,), h), jnp.full(shape, big))
        running = Running(given, Natural(jnp.float32(noise), jnp.float32(0)), jnp.int32(1))
        sites_ = floored(running, matrices)
        precision = prior + float(np.ravel(sites_.precision)[0])
        wanted = prior + big**2 / (big + noise**2)
        assert precision == pytest.approx(wanted, rel=1e-4)
        assert float(sites_.linear[0]) / precision == pytest.approx(big * h / (big + noise**2) / wanted, rel=1e-4)
        # A precision below its noise is raised to it; without noise it is floored at the prior's.
        low = Running(
            Natural(jnp.ones(1), jnp.full(shape, -5.0)), Natural(jnp.float32(0), jnp.float32(8)), jnp.int32(1)
        )
        raised = float(np.ravel(floored(low, matrices).precision)[0])
        assert raised == pytest.approx(8 * np.sqrt(0.5) if matrices else 8, rel=1e-4)
        quiet = low._replace(noise_std=Natural(jnp.float32(0), jnp.float32(0)))
        assert float(np.ravel(floored(quiet, matrices).precision)[0]) == pytest.approx(0, abs=1e-5)


def test_the_average_is_kept_as_it_came() -> None:
    method = sep(sites.probit(), pace=ones)(Plan({"x": jnp.zeros(2), "y": jnp.int32(0)}, 50))
    indefinite = Natural(jnp.ones((1, 2)), jnp.asarray([[[30.0, 4.0], [0.0, -20.0]]]))
    std = Natural(jnp.float32(1), jnp.float32(2))
    state = method.update(method.init(KEY), Release(indefinite, std, jnp.float32(1), indefinite), KEY)
    assert np.array_equal(state.running.statistics.precision, indefinite.precision)
    assert np.linalg.eigvalsh(np.asarray(state.sites.precision[0])).min() > 0
    assert np.isfinite(method.draw(state, KEY)["w"]).all()


def test_a_retraction_never_loses_more_than_half() -> None:
    generator = np.random.default_rng(7)
    for _ in range(200):
        root, change = generator.normal(size=(2, 4, 4))
        old = root @ root.T + 0.1 * np.eye(4)
        new = old + 10.0 ** generator.integers(-2, 3) * (change + change.T)
        moved = np.asarray(retracted(jnp.asarray(old), jnp.asarray(new), True), float)
        assert np.linalg.eigvalsh(moved - old / 2).min() > -1e-4 * np.abs(moved).max()
        single = float(retracted(jnp.float32(old[0, 0]), jnp.float32(new[0, 0]), False))
        assert single >= old[0, 0] / 2 * (1 - 1e-5)
    # To first order it is the plain step.
    small = old + 1e-3 * (change + change.T)
    np.testing.assert_allclose(retracted(jnp.asarray(old), jnp.asarray(small), True), small, atol=2e-4)


def test_retraction_and_floor_agree_without_noise() -> None:
    x, f = regression(200, 3)
    records = {"x": x, "y": (f > 0).astype(np.int32)}
    found = []
    for repair in ("floor", "retraction"):
        method = sep(sites.probit(), pace=lambda step: 0.2 + 0 * step, repair=repair)  # type: ignore[arg-type]
        built = method(Plan({"x": jnp.zeros(3), "y": jnp.int32(0)}, 200))
        state = built.init(KEY)
        step = jax.jit(lambda state, built=built: built.update(state, release_of(built, state, records), KEY))
        for _ in range(150):
            state = step(state)
        found.append(moments(plus(state.prior, state.sites), True))
    np.testing.assert_allclose(found[0].mean, found[1].mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[0].variance, found[1].variance, rtol=2e-3, atol=1e-6)


def test_clusters_are_found() -> None:
    generator = np.random.default_rng(8)
    centres = np.array([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.5]])
    label = generator.integers(0, 3, 600)
    x = (centres[label] + 0.5 * generator.normal(size=(600, 2))).astype(np.float32)
    site = sites.mixture(3, 0.25)
    for posterior in (
        fit_public(sep(site, prior_std=10**0.5), {"x": x}, steps=60, key=jax.random.key(0)),
        tacit.ep(site, {"x": x}, prior_std=10**0.5, key=jax.random.key(0), damping=0.3, sweeps=15),
    ):
        found = posterior.draws["w"].mean(0)
        nearest = np.argmin(np.linalg.norm(centres[:, None] - found, axis=-1), 1)
        assert sorted(nearest) == [0, 1, 2]
        assert np.abs(found[nearest] - centres).max() < 0.15
        assignment = posterior.predict({"x": x}, key=KEY)["assignment"].mean(0)
        assert np.mean(np.argmax(assignment, 1) == nearest[label]) > 0.99
        # As wide as the mean of a third of the records, 5 standard errors of 1000 draws' deviation.
        width = 0.5 / np.sqrt(np.bincount(label))
        np.testing.assert_allclose(posterior.draws["w"].std(0)[nearest], np.stack([width] * 2, 1), rtol=0.15)


def test_a_site_of_your_own_is_one_function() -> None:
    """Whether y exceeded 0, with labels wrong one time in ten: no likelihood of the catalogue."""

    def log_z(record: Any, mean: Any, variance: Any) -> Any:
        sign = 2.0 * record["y"] - 1
        return jnp.log(0.1 + 0.8 * jax.scipy.stats.norm.cdf(sign * mean / jnp.sqrt(1 + variance)))

    x, f = regression(2000, 3)
    generator = np.random.default_rng(9)
    y = ((f + generator.normal(size=len(f)) > 0) ^ (generator.random(len(f)) < 0.1)).astype(np.int32)
    draws = fit_public(sep(Site(log_z)), {"x": x, "y": y}, steps=40, key=KEY).draws["w"]
    naive = fit_public(sep(sites.probit()), {"x": x, "y": y}, steps=40, key=KEY).draws["w"]
    # Four posterior deviations of the truth; without the wrong labels in the model it is far off.
    truth = np.array([0.8, -0.6, 1.0])
    assert np.all(np.abs(draws.mean(0) - truth) < 4 * draws.std(0))
    assert np.any(np.abs(naive.mean(0) - truth) > 4 * naive.std(0))


def test_a_site_of_all_weights() -> None:
    """A diagonal posterior of linear regression: exact means, and widths of the weights given the others."""

    def log_z(record: Any, mean: Any, variance: Any) -> Any:
        x = record["x"]
        return jax.scipy.stats.norm.logpdf(record["y"], x @ mean["w"], jnp.sqrt(x**2 @ variance["w"] + 0.49))

    site = Site(log_z, "weights", centre=lambda placeholder, key: {"w": jnp.zeros(3)})
    x, f = regression(400, 3)
    y = (f + 0.7 * np.random.default_rng(4).normal(size=len(f))).astype(np.float32)
    posterior = fit_public(sep(site, pace=lambda step: 0.3 + 0 * step), {"x": x, "y": y}, steps=60, key=KEY)
    mean, covariance = exact_linear(x, y, 0.49, 1.0)
    assert np.all(np.abs(posterior.draws["w"].mean(0) - mean) < 6 * np.sqrt(np.diag(covariance) / 1000))
    np.testing.assert_allclose(posterior.draws["w"].std(0), np.diag(np.linalg.inv(covariance)) ** -0.5, rtol=0.12)


def test_a_private_fit_covers_the_exact_posterior_mean() -> None:
    """Five seeds; with the noise accounted for, no weight is five posterior deviations off (false alarm below 1e-4)."""
    x, f = regression(3000, 3)
    y = (f + 0.7 * np.random.default_rng(4).normal(size=len(f))).astype(np.float32)
    mean, covariance = exact_linear(x, y, 0.49, 1.0)
    data = tacit.PrivateData({"x": x, "y": y}, size=3000)
    for seed in range(5):
        method = sep(sites.gaussian(0.49), bound=2.5)
        posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-5), key=KEY, simulate=seed, progress=False)
        off = np.abs(posterior.draws["w"].mean(0) - mean) / posterior.draws["w"].std(0)
        assert off.max() < 5
        assert np.all(posterior.draws["w"].std(0) > np.sqrt(np.diag(covariance)))


def test_matrices_of_sites_are_summed_as_outer_products() -> None:
    from tacit.accounting.mechanism import Mechanism
    from tacit.engine.step import Step

    data = tacit.PrivateData({"x": np.zeros((40, 90), np.float32), "y": np.zeros(40, np.int32)}, size=40)
    method = sep(sites.probit())(Plan(data.placeholder, 40))
    step = Step(method, data, Mechanism(0.5, 1.0, 1.0, 10, weights=method.suggests.weights), method.init(KEY))
    assert step.contributions.factoring is not None
    assert step.contributions.factoring.pairs == ((90, 1), (90, 90))


def test_draws_have_the_moments_of_the_gaussian() -> None:
    """20000 draws: 5% is above five standard errors of every second moment here."""
    precision = jnp.asarray([[[4.0, 1.0], [1.0, 2.0]]])
    natural = Natural(jnp.asarray([[1.0, -1.0]]), precision)
    draws = jax.vmap(lambda key: drawn(natural, True, key))(jax.random.split(KEY, 20_000))[:, 0]
    covariance = np.linalg.inv(precision[0])
    np.testing.assert_allclose(draws.mean(0), covariance @ natural.linear[0], atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05 * covariance.max())


def test_theorem_4_1_bounds_what_it_can() -> None:
    """Monte Carlo over (e, E) within the theorem's own assumption; and without it the divergence has no bound."""
    generator = np.random.default_rng(10)
    covariance = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 1.2]])
    inverse, d = np.linalg.inv(covariance), 3
    mean_std, covariance_std, low, high = 0.2, 0.05, 0.6, 1.4
    kls, smallest = [], []
    for _ in range(4000):
        e = mean_std * generator.normal(size=d)
        upper = np.triu(covariance_std * generator.normal(size=(d, d)))
        noisy = covariance + upper + np.triu(upper, 1).T
        values = np.linalg.eigvals(inverse @ noisy).real
        smallest.append(values.min())
        if values.min() > 0:
            kl = np.log(values).sum() + e @ np.linalg.solve(noisy, e) + np.trace(np.linalg.solve(noisy, covariance)) - d
            kls.append(kl / 2)
    smallest_, kls_ = np.asarray(smallest), np.asarray(kls)
    inside = (smallest_ > low) & (smallest_ < high)
    assert inside.mean() > 0.99
    informative = 0
    for threshold in (0.05, 0.2, 0.5, 1.0, 2.0, 5.0):
        bound = sep_kl_tail(covariance, mean_std, covariance_std, threshold, low, high)
        # Three standard errors of a frequency among 4000.
        assert np.mean(kls_[inside] >= threshold) <= bound + 3 * np.sqrt(0.25 / 4000)
        informative += bound < 1
    assert informative
    assert sep_kl_tail(covariance, 0.0, 0.0, 1.0, 1 - 1e-9, 1 + 1e-9) == pytest.approx(0, abs=1e-6)
    # No constants hold for every Gaussian E: some draws leave any interval, here with ten times the noise.
    upper = 0.5 * generator.normal(size=(4000, d, d))
    lost = [np.linalg.eigvals(inverse @ (covariance + np.triu(u) + np.triu(u, 1).T)).real.min() <= 0 for u in upper]
    assert np.mean(lost) > 0.05
    with pytest.raises(ValueError, match="0 < low < high"):
        sep_kl_tail(covariance, 0.1, 0.1, 1.0, 1.5, 1.4)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prior_std": 0.0}, "prior_std is 0"),
        ({"prior": 0.0}, "prior is 0"),
        ({"bound": -1.0}, "bound is -1"),
    ],
)
def test_wrong_choices_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sep(sites.probit(), **wrong)


def test_a_precision_is_taken_for_one_more_release() -> None:
    plan = Plan({"x": jnp.zeros(3), "y": jnp.int32(0)}, 10)
    with pytest.warns(DeprecationWarning, match=r"Write prior_std=0\.5"):
        old = sep(sites.probit(), prior=4.0)(plan)
    new = sep(sites.probit(), prior_std=0.5)(plan)
    for method in (old, new):
        np.testing.assert_array_equal(method.init(KEY).prior.precision[0], 4 * np.eye(3))


def test_wrong_records_and_sites_are_refused() -> None:
    with pytest.raises(ValueError, match="public number of records"):
        sep(sites.probit())(Plan({"x": jnp.zeros(3), "y": jnp.int32(0)}, 0))
    with pytest.raises(ValueError, match="with a vector x"):
        sep(sites.probit())(Plan({"x": jnp.zeros(()), "y": jnp.int32(0)}, 10))
    with pytest.raises(ValueError, match="add up to 1"):
        sites.mixture(2, 0.5, (0.5, 0.6))
    with pytest.raises(ValueError, match="noise is -1"):
        sites.gaussian(-1.0)
    with pytest.raises(ValueError, match="fewer than two"):
        sites.softmax(1)
    sealed = tacit.PrivateData({"x": np.zeros((4, 2), np.float32), "y": np.zeros(4, np.int32)})
    with pytest.raises(TypeError, match="does not take sealed records"):
        tacit.ep(sites.probit(), sealed, key=KEY)
    bad = tacit.PrivateData({"x": np.zeros((4, 2), np.float32), "y": np.full(4, 2, np.int32)}, size=4)
    with pytest.raises(ValueError, match="y must be 0 or 1"):
        tacit.fit(sep(sites.probit()), bad, tacit.Budget(1.0, 1e-5), progress=False)


def test_state_is_public_arrays() -> None:
    method = sep(sites.softmax(3))(Plan({"x": jnp.zeros(4), "y": jnp.int32(0)}, 40))
    state = method.init(KEY)
    assert isinstance(state, SEPState)
    assert state.prior.precision.shape == (3, 4, 4)
    assert method.suggests.weights is not None
    assert len(method.suggests.weights) == 2
