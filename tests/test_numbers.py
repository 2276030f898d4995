"""Hashes of numbers: of every bit, and of nothing else; and the certificate holds for these numbers only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.ledger.certificate import Certificate
from tacit.ledger.record import BEFORE, UNTIED
from tacit.results.numbers import Saved, fingerprint, fingerprints
from tests.test_fit import BUDGET, SETTINGS, model, records

pytestmark = pytest.mark.usefixtures("quick_compiler")


@pytest.fixture(scope="module")
def posterior() -> tacit.Posterior:
    return tacit.fit(tacit.vi(model), tacit.PrivateData(records()), BUDGET, simulate=0, **SETTINGS)


def test_the_hash_is_of_names_types_shapes_and_bits() -> None:
    one = {"a": np.arange(6, dtype=np.float32), "b": np.float32(2)}
    assert fingerprint(one) == fingerprint(dict(reversed(one.items())))
    assert fingerprint(one) == fingerprint({**one, "a": one["a"].astype(">f4")}), "the order of bytes does not count"
    assert fingerprint(one) == fingerprint({**one, "a": np.repeat(one["a"], 2)[::2]}), "nor how they lie in memory"
    others: list[dict[str, Any]] = [
        {**one, "a": np.nextafter(one["a"], np.float32(9))},
        {**one, "a": -one["a"] * np.float32(-1) * np.float32(1) - np.float32(0) + np.eye(1, 6, dtype=np.float32)[0]},
        {**one, "a": one["a"].reshape(2, 3)},
        {**one, "a": one["a"].view(np.int32)},
        {**one, "a": one["a"].astype(np.float64)},
        {"a": one["b"], "b": one["a"]},
        {"ab": one["a"]},
        {"a": one["a"]},
        {**one, "c": np.zeros(0)},
        {},
    ]
    assert len({fingerprint(other) for other in [one, *others]}) == len(others) + 1
    # The format is fixed: certificates are compared with it for ever.
    assert fingerprint({"w": np.asarray([1.0, -0.0], np.float32)}) == FIXED


FIXED = "ab97bd15f431fdaf5efcf0f67e4b96769b9d720a3b56b8197989d30711c7e6ff"


def test_labels_are_hashed_too() -> None:
    draws = {"w": np.zeros((3, 2), np.float32)}
    found = {fingerprints(draws, {}, {"w": names}, {})["labels"] for names in (("age", "sex"), ("sex", "age"), ())}
    assert len(found) == 3


def test_a_posterior_with_other_numbers_is_refused(posterior: tacit.Posterior, tmp_path: Path) -> None:
    file = tmp_path / "p.npz"
    posterior.save(file)
    assert tacit.Posterior.load(file).verify() == "The numbers are those that the certificate was issued for."
    with np.load(file) as content:
        arrays = dict(content)
    changed = arrays["draws/w"].copy()
    changed[7, 1] = np.nextafter(changed[7, 1], np.float32(9))
    for other, words in (
        ({"draws/w": changed}, "draws are not"),
        ({"draws/w": arrays["draws/w"][:-1]}, "draws are not"),
        ({"draws/v": changed}, "draws are not"),
        ({"points/v": changed}, "points are not"),
        ({"labels/w": np.asarray(["sex", "age"])}, "labels are not"),
    ):
        np.savez(tmp_path / "q.npz", **{**arrays, **other})
        with pytest.raises(tacit.CertificateError, match=words):
            tacit.Posterior.load(tmp_path / "q.npz")
    posterior = tacit.Posterior.load(file)
    posterior.draws["w"] = changed
    with pytest.raises(tacit.CertificateError, match="draws are not"):
        posterior.verify()


def test_numbers_that_were_computed_from_certified_ones_say_so(posterior: tacit.Posterior, tmp_path: Path) -> None:
    halved = tacit.Posterior({"w": posterior.draws["w"] / 2}, posterior.certificate, derived="halved")
    halved.save(tmp_path / "p.npz")
    loaded = tacit.Posterior.load(tmp_path / "p.npz")
    assert "not the certified numbers" in (loaded.warning or "")
    assert "halved" in repr(loaded)
    assert "not the certified numbers" in loaded.verify()
    mixed = tacit.synthetic.mix([halved, halved], posterior.certificate)
    assert "mixed" in mixed.verify()


def before(certificate: Certificate) -> Certificate:
    """Return the certificate as the version before would have issued it."""
    old = replace(certificate, format=BEFORE, numbers={}, engine="", code="", losses=())
    return replace(old, digest=old.digest_of_content())


def test_certificates_of_the_format_before_hold_and_say_that_they_name_no_numbers(
    posterior: tacit.Posterior, tmp_path: Path
) -> None:
    assert posterior.certificate is not None
    old = before(posterior.certificate)
    text = old.to_json()
    assert not {"numbers", "engine", "code", "losses"} & set(json.loads(text))
    again = Certificate.from_json(text)
    assert again == old
    assert again.verify() == again.verify(posterior=posterior) == UNTIED
    for page in (again.to_markdown().replace("\\", ""), again.to_html()):
        assert "does not name the numbers" in page
        assert "Not said" in page
    made = tacit.Posterior(posterior.draws, again)
    made.save(tmp_path / "p.npz")
    loaded = tacit.Posterior.load(tmp_path / "p.npz")
    assert loaded.warning == UNTIED
    loaded.save(tmp_path / "p.npz")
    assert tacit.Posterior.load(tmp_path / "p.npz").warning == UNTIED, "said once"


def test_an_answer_is_tied_to_its_certificate() -> None:
    data = tacit.PrivateData(records())
    answer = tacit.ask(data, lambda record: record["x"], tacit.Budget(2.0, 1e-6), clip=1.0, simulate=5)
    assert "are those" in answer.verify(data.ledger)
    assert answer.certificate.code == "user"
    for other in (answer._replace(value=answer.value + 1), answer._replace(noise_std=answer.noise_std * 2)):
        with pytest.raises(tacit.CertificateError, match="answer are not"):
            other.verify()


def test_a_file_that_is_cut_short_is_refused(posterior: tacit.Posterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "p.npz")
    whole = (tmp_path / "p.npz").read_bytes()
    for size in (0, 10, len(whole) // 2):
        (tmp_path / "p.npz").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="cannot be read"):
            Saved.read(tmp_path / "p.npz")
