"""Whose code computes a contribution, as the certificate says it."""

from __future__ import annotations

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit
from tacit.ledger.provenance import whose
from tacit.run.plan import built_for
from tacit.types import Plan

RECORD = {"x": np.zeros(3, np.float32), "y": np.int32(0)}
SCHEMA = tacit.Schema(
    {"age": {"low": 20, "high": 100}, "clinic": {"levels": ["a", "b"]}, "ill": {"levels": ["no", "yes"]}},
    size=100_000,
)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


class Net(eqx.Module):
    """A network of a user's."""

    inner: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        return self.inner(x)


def network(net: Any) -> Any:
    return tacit.sgd(tacit.network(net, likelihood="bernoulli"))(Plan(RECORD, 100))


LINEAR = eqx.nn.Linear(3, 1, key=jax.random.key(0))


@pytest.mark.parametrize(
    "method",
    [
        lambda: tacit.glm()(Plan(RECORD, 100)),
        lambda: tacit.logistic()(Plan(RECORD)),
        lambda: tacit.sep(tacit.sites.probit())(Plan(RECORD, 100)),
        lambda: tacit.marginals(SCHEMA)(Plan(SCHEMA.placeholder())),
        lambda: tacit.conjugate(tacit.families.table(SCHEMA))(Plan(SCHEMA.placeholder())),
        lambda: tacit.lda(topics=3, vocabulary=10)(Plan(None)),
        lambda: network(eqx.nn.MLP(3, 1, 5, 1, key=jax.random.key(0))),
    ],
)
def test_tacits_own(method: Any) -> None:
    assert whose(method().contribute) == "tacit"


def test_a_formula_is_tacits_own() -> None:
    pytest.importorskip("formulae", reason="formulae is missing: pip install 'tacit[formula]'")
    formula = tacit.formula("ill ~ age + (1 | clinic)", SCHEMA, family="bernoulli")
    for built in (
        built_for(formula, Plan(SCHEMA.placeholder(), SCHEMA.size, budget=tacit.Budget(1.0, 1e-6))),
        tacit.vi(formula)(Plan(SCHEMA.placeholder())),
    ):
        assert whose(built.contribute) == "tacit"


def term(record: Any, m: Any) -> Any:
    return record["x"][0] - m


@pytest.mark.parametrize(
    "contribute",
    [
        lambda: tacit.vi(model)(Plan(RECORD)).contribute,
        lambda: tacit.glm(features=lambda x: x)(Plan(RECORD, 100)).contribute,
        lambda: network(Net(LINEAR)).contribute,
        lambda: network(eqx.nn.Sequential([LINEAR, eqx.nn.Lambda(lambda x: x)])).contribute,
        lambda: lambda state, record, key: record,
        lambda: partial(term, m=0.0),
        lambda: jax.jit(term),
        lambda: jax.vmap(term),
        lambda: jax.custom_jvp(term),
    ],
)
def test_a_users(contribute: Any) -> None:
    assert whose(contribute()) == "user"


def test_a_name_alone_does_not_make_it_tacits() -> None:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        return record

    contribute.__module__ = "tacit.methods.vi"
    assert whose(contribute) == "user"
    assert whose(jnp.sum) == "tacit"
