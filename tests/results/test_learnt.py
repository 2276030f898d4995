"""What a posterior says that it learnt, and whose intervals it shows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.results.learnt import HALF, Learnt, noise_share_of
from tacit.types import Method, Model

SCALES = {"much": 0.1, "little": 0.9}


def prior(key):
    return {name: jax.random.normal(jax.random.fold_in(key, place)) for place, name in enumerate(SCALES)}


def draw(state, key):
    return {name: SCALES[name] * state * value for name, value in prior(key).items()}


def wide_prior(key):
    return {name: 9 * value for name, value in prior(key).items()}


def method(**changes) -> Method:
    made = Method(lambda key: jnp.float32(1), lambda *_: None, lambda *_: None, draw, model=Model(prior=prior))
    return made._replace(**changes)


def posterior_by(built: Method, certificate=None) -> tacit.Posterior:
    draws = jax.vmap(built.draw, (None, 0))(jnp.float32(1), jax.random.split(jax.random.key(7), 4000))
    return tacit.Posterior(draws, certificate, built)


@pytest.fixture(scope="module")
def certificate():
    data = tacit.PrivateData({"x": np.zeros((50, 1), np.float32)})
    return tacit.ask(data, lambda record: 1.0, tacit.Budget(1, 1e-6, "record"), clip=1.0, simulate=0).certificate


def test_contraction_is_what_the_variances_say():
    found = posterior_by(method()).contraction
    for name, scale in SCALES.items():
        assert found[name] == pytest.approx(1 - scale**2, abs=0.06)


def test_a_row_says_that_it_is_mostly_the_prior_s(certificate):
    text = repr(posterior_by(method(validated="here"), certificate))
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "mostly the prior's" in lines["little"]
    assert "mostly" not in lines["much"]
    assert "unknown" in lines["much"]  # the share of noise, which this method cannot say


def test_half_is_the_limit():
    assert Learnt(HALF - 0.01).mostly_prior
    assert not Learnt(HALF).mostly_prior
    assert not Learnt().mostly_prior


def test_noise_share_is_what_goes_without_noise():
    built = method(noiseless=lambda state: state / 4)

    def drawing(state, key):
        return jax.vmap(built.draw, (None, 0))(state, jax.random.split(key, 500))

    key = jax.random.key(0)
    share = noise_share_of(built, drawing, drawing(jnp.float32(1), key), jnp.float32(1), key)
    assert all(value == pytest.approx(0.75, abs=1e-5) for value in share.values())
    assert not noise_share_of(method(), drawing, {}, jnp.float32(1), key)


def test_a_method_that_wraps_another_says_its_share():
    class Outer(tuple):
        inner = property(lambda self: self[0])

        def _replace(self, inner):
            return Outer((inner,))

    wrapped = method(noiseless=lambda state: 0 * state).wrapping(init=lambda key: None)
    assert wrapped.noiseless(Outer((jnp.float32(3),))).inner == 0
    assert method().wrapping(init=lambda key: None).noiseless is None


def test_no_interval_that_was_not_validated_unless_asked_for(certificate):
    doubted, public = posterior_by(method(), certificate), posterior_by(method())
    good = posterior_by(method(validated="papers/coverage"), certificate)
    assert not doubted.has_intervals
    assert public.has_intervals
    assert good.has_intervals
    for one, there in ((doubted, False), (public, True), (good, True)):
        assert ("low" in one.summary()["much"]) is there
        assert "high" in one.summary(unvalidated=True)["much"]
        assert ("5%" in repr(one)) is there
        assert ("not validated" in repr(one)) is not there


def test_it_is_kept_in_the_file(certificate, tmp_path):
    made = posterior_by(method(validated="papers/coverage"), certificate)
    made.certificate = None  # it was issued for other numbers
    made.noise_share = {"much": np.float32(0.25)}
    made.save(tmp_path / "p.npz")
    again = tacit.Posterior.load(tmp_path / "p.npz")
    assert again.validated == "papers/coverage"
    assert again.learnt() == made.learnt()
    assert again.summary()["much"]["noise_share"] == 0.25
    assert again.summary()["little"]["noise_share"] is None


def test_priors_without_a_variance_have_a_contraction():
    def cauchy(key):
        return {"a": jax.random.cauchy(key)}

    built = Method(lambda key: None, None, None, lambda state, key: cauchy(key), model=Model(prior=cauchy))
    assert abs(posterior_by(built).contraction["a"]) < 0.2


@pytest.mark.parametrize(
    ("changes", "certified", "said"),
    [
        ({}, True, "not validated"),
        ({"validated": "here"}, True, "Hollow: mostly the prior's"),
        ({"validated": "here", "model": Model()}, True, "Mean and central 90% interval"),
        (
            {"validated": "here", "model": Model(prior=lambda key: {k: 9 * v for k, v in prior(key).items()})},
            True,
            "Mean and central 90% interval",
        ),
    ],
)
def test_a_forest_plot_says_what_it_shows_and_nothing_of_signs(changes, certified, said, certificate):
    pytest.importorskip("matplotlib")
    from tacit.results.plots import plot_forest

    made = posterior_by(method(**changes), certificate if certified else None)
    title = plot_forest(made).get_title(loc="left")
    assert said in title
    assert "sign" not in title


def test_the_report_says_both(certificate):
    from tacit.results.report import report

    text = report("A title", {"private": posterior_by(method(validated="here"), certificate)})
    assert "mostly the prior's" in text
    assert "contraction" in text
    assert "nobody validated" not in text
    assert "nobody validated" in report("A title", {"private": posterior_by(method(), certificate)})


@pytest.mark.parametrize("validated", ["", "papers/coverage"])
def test_a_private_fit_shows_intervals_only_where_they_were_measured(validated, tmp_path) -> None:
    counting = Method(
        lambda key: jnp.float32(0),
        lambda state, record, key: jnp.float32(1),
        lambda state, release, key: state + release.total,
        lambda state, key: {"count": state + jax.random.normal(key)},
        validated=validated,
    )
    data, budget = tacit.PrivateData(np.ones((50, 1), np.float32)), tacit.Budget(1.0, 1e-6)
    settings = {"rate": 1.0, "steps": 2, "clip": 1.0, "simulate": 1, "key": jax.random.key(0), "progress": False}
    fitted = tacit.fit(counting, data, budget, **settings)
    fitted.save(tmp_path / "posterior.npz")
    for posterior in (fitted, tacit.Posterior.load(tmp_path / "posterior.npz")):
        assert ("low" in posterior.summary()["count"]) == bool(validated)
        assert ("5%" in repr(posterior)) == bool(validated)
        assert "low" in posterior.summary(unvalidated=True)["count"]
