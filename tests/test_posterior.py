"""The posterior: predictions, ArviZ, files; never a record."""

from __future__ import annotations

import pickle

import jax
import numpy as np
import pytest

import tacit
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
    data = posterior.to_arviz()
    assert list(data.groups()) == ["posterior"]
    assert data.posterior["w"].shape == (1, 1000, 2)
    assert tacit.Certificate.from_json(data.posterior.attrs["certificate"]) == posterior.certificate
    assert arviz.summary(data)["mean"].iloc[0] == pytest.approx(posterior.draws["w"][:, 0].mean(), abs=1e-3)


def test_save_and_load(posterior, tmp_path):
    posterior.save(tmp_path / "p.npz")
    loaded = tacit.Posterior.load(tmp_path / "p.npz")
    assert np.array_equal(loaded.draws["w"], posterior.draws["w"])
    assert loaded.certificate == posterior.certificate
    with pytest.raises(ValueError, match="does not know its model"):
        loaded.predict({"x": np.zeros((1, 2), np.float32)}, key=jax.random.key(0))
    method = tacit.vi(model)({"x": np.zeros(2, np.float32), "y": np.int32(0)})
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
