"""The studies of the d3p paper run, in quick mode; and d3p's form is what it is said to be."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import biject_to
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_median

from tacit.types import Plan

FOLDER = Path(__file__).parents[2] / "papers" / "d3p"
NEEDS_DATA = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set: no Adult to read")


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")  # the paper's guide leaves them to the prior
@pytest.mark.parametrize(
    ("script", "more", "result"),
    [
        pytest.param("hierarchical", ("--figure", "4"), "figure4", marks=pytest.mark.slow),
        pytest.param("mixture", (), "mixture", marks=pytest.mark.slow),
        pytest.param("adult", (), "adult", marks=[NEEDS_DATA, pytest.mark.slow]),
        pytest.param("logistic", (), "logistic", marks=pytest.mark.slow),
        pytest.param("forms", (), "forms", marks=pytest.mark.slow),
        pytest.param("hierarchical", ("--figure", "5"), "figure5", marks=pytest.mark.slow),
        pytest.param("hierarchical", ("--figure", "6"), "figure6", marks=pytest.mark.slow),
    ],
)
def test_a_study_runs(
    script: str, more: tuple[str, ...], result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--out", str(tmp_path), *more])
    runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    numbers = json.loads((tmp_path / "results" / f"{result}.json").read_text())
    assert numbers["command"].startswith(f"python papers/d3p/{script}.py")
    assert "|" in (tmp_path / "results" / f"{result}.md").read_text()
    assert 5_000 < (tmp_path / "figures" / f"{result}.png").stat().st_size < 150_000


def test_committed_results_are_whole_and_small() -> None:
    readme = (FOLDER / "README.md").read_text()
    results = {file.stem for file in (FOLDER / "results").glob("*.json")}
    assert {"adult", "figure4", "vae_time", "sampler", "batch"} <= results
    for result in results:
        assert json.loads((FOLDER / "results" / f"{result}.json").read_text())
        assert f"results/{result}." in readme
    for figure in (FOLDER / "figures").glob("*.png"):
        assert figure.stat().st_size < 150_000
        assert f"figures/{figure.name}" in readme


def test_d3ps_form_is_the_gradient_of_the_elbo() -> None:
    from elbo_form import elbo_form  # type: ignore[import-not-found]

    def model(x: jax.Array, y: jax.Array | None = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 2).expand([3]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 3)).astype(np.float32)
    records = {"x": jnp.asarray(x), "y": jnp.asarray(x.sum(1) + generator.normal(size=8).astype(np.float32))}
    plan = Plan(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), records))
    method = elbo_form(model, 8, optax.adam(0.1))(plan)
    state, key = method.init(jax.random.key(0)), jax.random.key(1)
    each = jax.vmap(lambda record: method.contribute(state, record, key, key))(records)
    total = jax.tree.map(lambda leaf: leaf.sum(0), each)

    guide = AutoNormal(model, init_loc_fn=init_to_median)
    trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace(**records)
    into = {
        n: biject_to(s["kwargs"].get("constraint", dist.constraints.real))
        for n, s in trace.items()
        if s["type"] == "param"
    }

    def elbo(params: dict[str, jax.Array]) -> jax.Array:
        return -Trace_ELBO().loss(key, {n: into[n](v) for n, v in params.items()}, model, guide, **records)

    for name, gradient in jax.grad(elbo)(state.params).items():
        np.testing.assert_allclose(total[name], gradient, rtol=1e-4, atol=1e-4)
    # Records with keys of their own draw latents of their own.
    apart = [
        method.contribute(state, jax.tree.map(lambda leaf: leaf[0], records), key, jax.random.key(i)) for i in (1, 2)
    ]
    assert not np.allclose(*(one["w_auto_loc"] for one in apart))


def test_auc_is_the_share_of_pairs_in_order() -> None:
    import study  # type: ignore[import-not-found]

    generator = np.random.default_rng(0)
    label, score = generator.integers(0, 2, 60), generator.normal(size=60)
    pairs = score[label == 1][:, None] > score[label == 0]
    np.testing.assert_allclose(study.auc(label, score), pairs.mean())
