"""The posterior: predictions, ArviZ, files; never a record."""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest

import tacit
from tacit.types import Plan
from tests.test_fit import BUDGET, SETTINGS, model, records


@pytest.fixture(scope="module")
def posterior():
    return tacit.fit(tacit.vi(model), tacit.PrivateData(records()), BUDGET, simulate=0, **SETTINGS)


def test_predictions_have_a_row_for_each_draw_and_follow_the_draws(posterior):
    inputs = np.asarray([[100.0, 0.0], [-100.0, 0.0]], np.float32)
    predicted = posterior.predict({"x": inputs}, key=jax.random.key(0))
    assert predicted["y"].shape == (1000, 2)
    share = (posterior.draws["w"][:, 0] > 0).mean()
    assert abs(predicted["y"][:, 0].mean() - share) < 0.05
    assert abs(predicted["y"][:, 1].mean() - (1 - share)) < 0.05


def test_arviz_holds_the_certificate_and_no_observed_data(posterior):
    arviz = pytest.importorskip("arviz")
    older = arviz.__version__.startswith("0.")
    data = posterior.to_arviz()
    # ArviZ 1 gives a tree with the paths of its groups, older ones their names.
    groups = data.groups() if older else data.groups
    assert [group.strip("/") for group in groups if group != "/"] == ["posterior"]
    assert data.posterior["w"].shape == (1, 1000, 2)
    assert tacit.Certificate.from_json(data.posterior.attrs["certificate"]) == posterior.certificate
    summary = arviz.summary(data) if older else arviz.summary(data, round_to="none")
    assert float(summary["mean"].iloc[0]) == pytest.approx(posterior.draws["w"][:, 0].mean(), abs=1e-3)


def test_arviz_writes_and_reads_it(posterior, tmp_path):
    pytest.importorskip("arviz")
    pytest.importorskip("h5py", reason="h5py comes with arviz: pip install 'tacit[arviz]'")
    import xarray

    data = posterior.to_arviz()
    data.to_netcdf(str(tmp_path / "posterior.nc"))
    with xarray.open_dataset(tmp_path / "posterior.nc", group="posterior", engine="h5netcdf") as again:
        np.testing.assert_array_equal(again["w"].values, data["posterior"]["w"].values)
        assert tacit.Certificate.from_json(again.attrs["certificate"]) == posterior.certificate


def test_save_and_load(posterior, tmp_path):
    posterior.save(tmp_path / "p.npz")
    loaded = tacit.Posterior.load(tmp_path / "p.npz")
    assert np.array_equal(loaded.draws["w"], posterior.draws["w"])
    assert loaded.certificate == posterior.certificate
    with pytest.raises(ValueError, match="does not know its model"):
        loaded.predict({"x": np.zeros((1, 2), np.float32)}, key=jax.random.key(0))
    method = tacit.vi(model)(Plan({"x": np.zeros(2, np.float32), "y": np.int32(0)}))
    again = tacit.Posterior.load(tmp_path / "p.npz", method)
    assert again.predict({"x": np.zeros((3, 2), np.float32)}, key=jax.random.key(0))["y"].shape == (1000, 3)


def test_a_tampered_certificate_is_not_loaded(posterior, tmp_path):
    posterior.save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        arrays = dict(file)
    text = str(arrays["certificate"])
    arrays["certificate"] = np.asarray(text.replace(repr(posterior.certificate.epsilon), "0.1"))
    assert str(arrays["certificate"]) != text
    np.savez(tmp_path / "q.npz", **arrays)
    with pytest.raises(tacit.CertificateError):
        tacit.Posterior.load(tmp_path / "q.npz")


def test_no_record_leaves_with_the_posterior(tmp_path):
    """A value that only a record holds appears in no file of a run and in no pickle of its draws."""
    canary = np.float32(1234.5678)
    rows = records()
    rows["x"][3, 1] = canary
    result = tacit.fit(tacit.vi(model), tacit.PrivateData(rows), BUDGET, run_dir=tmp_path / "r", **SETTINGS)
    result.save(tmp_path / "r" / "again.npz")
    written = b"".join(path.read_bytes() for path in (tmp_path / "r").iterdir())
    exported = repr(result.to_arviz().posterior.to_dict()).encode()
    for content in (written, pickle.dumps(result.draws), repr(result).encode(), exported):
        assert canary.tobytes() not in content
        assert b"1234.56" not in content


def test_repr_shows_the_table_and_the_promise(posterior):
    text = repr(posterior)
    assert "w[0]" in text
    assert "SIMULATION" in text
    assert f"{posterior.certificate.epsilon:.4g}" in text


@pytest.mark.parametrize("family", ["gaussian", "categorical"])
def test_effects_of_groups_are_shown_in_their_units_and_by_name(family, tmp_path):
    outcome = {"low": 0, "high": 10} if family == "gaussian" else {"levels": ["none", "some", "much"]}
    wards = {"levels": ["north", "south", "west"]}
    schema = tacit.Schema({"y": outcome, "x": {"low": 0, "high": 1}, "ward": wards, "kind": wards})
    formula = tacit.formula("y ~ x + kind + (x | ward)", schema, family=family)
    draws = {name: prior.sample(jax.random.key(1), (50,)) for name, prior in formula.priors.items()}
    made = tacit.Posterior(draws, None, labels=formula.labels, axes=formula.axes)
    made.save(tmp_path / "p.npz")
    for posterior in (made, tacit.Posterior.load(tmp_path / "p.npz")):
        spread, offset = (np.asarray(draws[f"1|ward_{part}"]) for part in ("sigma", "offset"))
        effect = spread[:, None] * offset
        row = next(row for row in posterior.rows() if row[0].startswith("1|west"))
        np.testing.assert_allclose(row[1], effect[:, 2].reshape(50, -1)[:, 0].mean(), rtol=1e-5)
        assert "1|ward_offset" not in posterior.shown()
        found = posterior.to_arviz().posterior
        assert all(len(found[name].dims) == value.ndim + 1 for name, value in posterior.shown().items())
        assert not [dim for name in found for dim in found[name].dims if "_dim_" in dim]
        along = {} if family == "gaussian" else {"y_level": "much", "1|ward_effect": "1"}
        chosen = found["1|ward"].sel(ward_group="west", **along).values[0]
        np.testing.assert_array_equal(chosen, effect[:, 2].reshape(50, -1)[:, -1])
        assert list(found["kind_coefficient"].values) == ["kind[south]", "kind[west]"]
