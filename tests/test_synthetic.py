"""Synthetic data: the choice of pairs, copies, Rubin's rules, mixing, and budgets that are shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import tacit
from tacit import accounting
from tacit.methods import marginal_tables as module
from tacit.methods.cuts import cut
from tacit.run import pairs

KEY = jax.random.key(0)
SCHEMA = tacit.Schema({name: {"levels": ["l", "m", "h"]} for name in "abcd"}, unit="person")
BUDGET = tacit.Budget(5.0, 1e-6, unit="person")
# The page docs/synthetic.md and a row of tests/test_every_method.py run in every submission.
pytestmark = pytest.mark.slow


def people(count: int = 3000, seed: int = 0) -> dict[str, Any]:
    """Make up records in which a and b agree mostly, b and c often, and d is on its own."""
    random = np.random.default_rng(seed)
    a = random.integers(0, 3, count)
    b = np.where(random.random(count) < 0.8, a, random.integers(0, 3, count))
    c = np.where(random.random(count) < 0.5, b, random.integers(0, 3, count))
    codes = {"a": a, "b": b, "c": c, "d": random.integers(0, 3, count)}
    return {name: np.asarray(["l", "m", "h"])[code] for name, code in codes.items()}


def test_pairs_that_depend_are_chosen_and_the_look_is_charged() -> None:
    data = tacit.PrivateData(people(), SCHEMA)
    chosen = tacit.run.pairs.choose_pairs(data, BUDGET, keep=[("c", "d")], simulate=1)
    assert chosen.queries[:3] == [("c", "d"), ("a", "b"), ("b", "c")]
    assert ("a", "d") not in chosen.queries
    assert ("b", "d") not in chosen.queries
    assert [charge.kind for charge in data.ledger.charges] == ["ask"]
    assert chosen.certificate.epsilon <= BUDGET.epsilon
    few = tacit.run.pairs.choose_pairs(data, BUDGET, number=1, simulate=1)
    assert few.queries == [("a", "b")]
    # With room for tables of one pair only, nothing is chosen that would need more.
    narrow = tacit.run.pairs.choose_pairs(data, BUDGET, cells=9, simulate=1)
    assert module.elimination(module.maximal(narrow.queries, cut(SCHEMA)), dict.fromkeys("abcd", 3))[1] == 9


def test_noise_alone_is_not_taken_for_dependence() -> None:
    """Independent columns: the sum of absolute noise exceeds twice its mean with a chance far below 1 in 1000."""
    random = np.random.default_rng(3)
    table = {name: random.choice(["l", "m", "h"], 200) for name in "abcd"}
    chosen = tacit.run.pairs.choose_pairs(
        tacit.PrivateData(table, SCHEMA), tacit.Budget(0.5, 1e-6, unit="person"), simulate=2
    )
    assert chosen.queries == []


@pytest.mark.parametrize("shares", [(0.1, 0.9), (0.5, 0.3, 0.2), (1.0,)])
def test_parts_of_a_budget_cost_the_whole_by_the_ledger(shares: tuple[float, ...]) -> None:
    budget = tacit.Budget(1.0, 1e-6)
    charges = [tacit.calibrate(part, rate=1.0, steps=1, clip=1.0) for part in budget.split(*shares)]
    spent = accounting.spent([(1.0, charge.noise_multiplier, 1) for charge in charges], budget.delta * (1 - 2.0**-20))
    assert 0.99 < spent <= 1.0
    precision = np.array([charge.noise_multiplier**-2 for charge in charges])
    np.testing.assert_allclose(precision / precision.sum(), shares, rtol=1e-3)


def test_shares_must_make_a_whole() -> None:
    with pytest.raises(ValueError, match=r"split\(0.1, 0.9\)"):
        tacit.Budget(1.0, 1e-6).split(0.5, 0.6)


@pytest.fixture(scope="module")
def posterior() -> tacit.Posterior:
    data = tacit.PrivateData(people(), SCHEMA)
    method = tacit.marginals(SCHEMA, [("a", "b"), ("b", "c")])
    return tacit.fit(method, data, BUDGET, key=KEY, simulate=1, progress=False)


def test_copies_look_like_the_records_and_differ_from_one_another(posterior: tacit.Posterior) -> None:
    copies = posterior.synthesize(3000, 4, key=KEY)
    assert len(copies) == 4
    real = people()
    for copy in copies:
        tacit.PrivateData(copy, SCHEMA)  # the schema accepts it
        for one, other in (("a", "b"), ("b", "c")):
            assert np.mean(copy[one] == copy[other]) == pytest.approx(np.mean(real[one] == real[other]), abs=0.05)
        assert np.mean(copy["a"] == copy["d"]) == pytest.approx(1 / 3, abs=0.05)
    assert not np.array_equal(copies[0]["a"], copies[1]["a"])
    again = posterior.synthesize(3000, 4, key=KEY)
    assert all(np.array_equal(copies[2][name], again[2][name]) for name in "abcd")
    assert len(posterior.synthesize(5, 1200, key=KEY)) == 1200  # more copies than draws


def test_a_posterior_that_was_saved_can_synthesize_again(posterior: tacit.Posterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "posterior.npz")
    with pytest.raises(ValueError, match="cannot make up records"):
        tacit.Posterior.load(tmp_path / "posterior.npz").synthesize(10, 1, key=KEY)
    method = tacit.marginals(SCHEMA, [("a", "b"), ("b", "c")])
    with pytest.raises(TypeError, match="built for a plan"):
        tacit.Posterior.load(tmp_path / "posterior.npz", method)
    method = method(tacit.Plan(SCHEMA.placeholder()))
    copy = tacit.Posterior.load(tmp_path / "posterior.npz", method).synthesize(10, 1, key=KEY)[0]
    assert all(np.array_equal(copy[name], posterior.synthesize(10, 1, key=KEY)[0][name]) for name in "abcd")
    with pytest.raises(ValueError, match="how many records"):
        posterior.synthesize(0, 1, key=KEY)


def test_rubins_rules_by_hand() -> None:
    combined = tacit.synthetic.combine([1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
    assert combined.mean == 2
    assert combined.std == pytest.approx(np.sqrt(4 / 3 - 0.5))
    assert combined.freedom == pytest.approx(2 * (1 - 0.375) ** 2)
    assert combined.high - 2 == pytest.approx(combined.std * stats.t.ppf(0.975, 1.0))
    # Where the copies agree better than samples could, the mean variance stands in.
    narrow = tacit.synthetic.combine([[1.0, 5.0], [1.1, 5.0]], [[0.5, 0.1], [0.7, 0.3]], level=0.9)
    np.testing.assert_allclose(narrow.std**2, [0.6, 0.2])
    np.testing.assert_allclose(narrow.freedom, 1)


def test_combined_intervals_cover() -> None:
    """2000 intervals of nominal 95% (the rule is approximate): outside 0.93 to 0.975 is a false alarm in 1000."""
    random = np.random.default_rng(0)
    runs, copies, size, noise = 2000, 20, 400, 0.05
    # A mean of unit normals with privacy noise; copies are samples at draws of the posterior that knows of both.
    estimate = random.normal(0, np.hypot(size**-0.5, noise), (1, runs))
    centre = estimate + random.normal(0, np.hypot(size**-0.5, noise), (copies, runs))
    said = centre + random.normal(0, size**-0.5, (copies, runs))
    combined = tacit.synthetic.combine(said, np.full(said.shape, 1 / size))
    share = np.mean((combined.low < 0) & (combined.high > 0))
    assert 0.93 < share < 0.975
    naive = np.mean(np.abs(said[0]) < 1.96 * size**-0.5)
    assert naive < 0.75


@pytest.mark.parametrize(
    ("estimates", "variances", "level", "message"),
    [
        ([1.0], [1.0], 0.95, "at least two"),
        ([1.0, 2.0], [1.0], 0.95, "shape"),
        ([1.0, np.nan], [1.0, 1.0], 0.95, "not finite"),
        ([1.0, 2.0], [1.0, -1.0], 0.95, "negative"),
        ([1.0, 2.0], [1.0, 1.0], 95, "level=0.95"),
    ],
)
def test_what_cannot_be_combined_is_refused(estimates: Any, variances: Any, level: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tacit.synthetic.combine(estimates, variances, level=level)


def test_mixing_puts_all_draws_together(posterior: tacit.Posterior) -> None:
    parts = [tacit.Posterior({"w": np.full((10, 2), float(i))}, None) for i in range(3)]
    mixed = tacit.synthetic.mix(parts, posterior.certificate)
    assert mixed.draws["w"].shape == (30, 2)
    assert mixed.draws["w"].mean() == 1
    assert mixed.certificate is posterior.certificate
    with pytest.raises(ValueError, match="same sites"):
        tacit.synthetic.mix([parts[0], tacit.Posterior({"v": np.zeros((3, 1))}, None)])


def test_pairs_need_a_schema_with_columns_to_pair() -> None:
    with pytest.raises(ValueError, match=r"PrivateData\(records, schema\)"):
        tacit.run.pairs.choose_pairs(tacit.PrivateData({"x": np.zeros(3)}), tacit.Budget(1.0, 1e-6))
    one = tacit.Schema({"a": {"levels": [0, 1]}})
    with pytest.raises(ValueError, match="one column only"):
        tacit.run.pairs.choose_pairs(tacit.PrivateData({"a": [0, 1]}, one), tacit.Budget(1.0, 1e-6))
    data = tacit.PrivateData(people(10), SCHEMA)
    with pytest.raises(ValueError, match="Keep fewer"):
        tacit.run.pairs.choose_pairs(data, BUDGET, keep=[("a", "b", "c")], cells=9)
    assert not data.ledger.charges
    assert pairs.CELLS <= module.CELLS
