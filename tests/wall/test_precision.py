"""Single precision: with ``jax_enable_x64`` a run gives the same bits, in memory and on disk, in every thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import tacit

KEY = jax.random.key(0)
SCHEMA = tacit.Schema({"x": {"low": -3, "high": 3}, "y": {"levels": [0, 1]}}, size=300)
RANDOM = np.random.default_rng(0)
RECORDS = {"x": np.clip(RANDOM.normal(size=300), -3, 3), "y": RANDOM.integers(0, 2, 300)}
BUDGET = tacit.Budget(1.0, 1e-5)
SETTINGS: dict[str, Any] = {"simulate": 1, "key": KEY, "progress": False}


@pytest.fixture
def doubles() -> Iterator[None]:
    """Switch double precision on for the whole process: threads do not see what a context says."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def logistic(scale: Any) -> Any:
    def model(x: Any, y: Any = None) -> None:
        slope = numpyro.sample("slope", dist.Normal(0, scale).to_event())
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x * slope[0], validate_args=False), obs=y)

    return model


def fits(folder: Path) -> list[Any]:
    """Fit a formula, a model that holds an array, tables, from the disk and in a folder; and ask a question."""
    data = tacit.PrivateData(RECORDS, SCHEMA)
    if not (folder / "records").exists():
        tacit.write_columns([RECORDS], SCHEMA, folder / "records")
    formula = tacit.formula("y ~ x", SCHEMA, "bernoulli")
    posteriors = [
        tacit.fit(formula, data, BUDGET, **SETTINGS),
        tacit.fit(formula, tacit.read_columns(folder / "records"), BUDGET, **SETTINGS),
        tacit.fit(tacit.vi(logistic(jnp.asarray([1 / 3]))), data, BUDGET, steps=20, **SETTINGS),
        tacit.fit(tacit.marginals(SCHEMA), data, BUDGET, **SETTINGS),
    ]
    asked = tacit.ask(data, lambda record: record["x"], BUDGET, clip=3.0, simulate=1).value
    return [*(posterior.draws for posterior in posteriors), asked]


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("singles")
    return folder, fits(folder)


@pytest.mark.usefixtures("doubles")
def test_a_fit_under_x64_gives_the_same_bits(singles: tuple[Path, list[Any]]) -> None:
    folder, expected = singles
    assert jnp.ones(1).dtype == np.float64
    found = fits(folder)
    for one, two in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert np.asarray(two).dtype == np.asarray(one).dtype
        np.testing.assert_array_equal(one, two)
    assert jnp.ones(1).dtype == np.float64, "outside, doubles stay doubles"


@pytest.mark.usefixtures("doubles")
def test_what_follows_a_fit_works_under_x64(tmp_path: Path) -> None:
    data = tacit.PrivateData(RECORDS, SCHEMA)
    posterior = tacit.fit(
        tacit.formula("y ~ x", SCHEMA, "bernoulli"), data, BUDGET, run_dir=tmp_path / "run", **SETTINGS
    )
    new = {"x": np.asarray([0.0, 1.0])}
    assert posterior.predict(new, key=KEY)["y"].shape == (1000, 2)
    assert len(tacit.predictions(posterior, new)) == 2
    assert len(tacit.slopes(posterior, "x")) > 0
    tables = tacit.fit(tacit.marginals(SCHEMA), data, BUDGET, **SETTINGS)
    assert len(tables.synthesize(5, 2, key=KEY)) == 2
