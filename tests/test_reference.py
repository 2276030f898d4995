"""The reference: what takes part in it, how it runs behind ``tacit.fit``, and what its certificate says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.engine import random
from tacit.wall import clip, keys, samplers, streams
from tests import reviewers_list

ROOT = Path(__file__).parents[1]
BUDGET = tacit.Budget(5.0, 1e-5)

ALONE = """
import importlib, json, sys, types
source = sys.argv[1]
for name in ("tacit", "tacit.facts", "tacit.ledger", "tacit.wall"):
    empty = types.ModuleType(name)
    empty.__path__ = [source + "/" + name.replace(".", "/")]
    sys.modules[name] = empty
import jax, jax.numpy as jnp, numpy as np
from tacit.wall.reference import ReferenceRunner
from tacit.ledger.file import Ledger
from tacit.accounting.mechanism import Mechanism
from tacit.wall import keys
from tacit.types import Method
from tacit.wall.data import PrivateData
method = Method(lambda key: jnp.zeros(2), lambda s, r, key: r, lambda s, release, key: release.full, lambda s, key: {})
data, ledger = PrivateData(np.ones((20, 2), np.float32)), Ledger()
runner = ReferenceRunner(method, data, Mechanism(0.5, 1.0, 1.0, 3), secret=keys.fixed(1), key=jax.random.key(0),
                     ledgers=[ledger], run="a", kind="fit", title="t", simulation=False)
state = runner.advance(jnp.zeros(2), 0, 3)
assert np.isfinite(state).all() and len(ledger.charges) == 1
print(json.dumps(sorted(name for name, held in sys.modules.items()
      if name.startswith("tacit.") and getattr(held, "__file__", None))))
"""


def mean(scale: float = 1.0) -> tacit.Method:
    return tacit.Method(
        lambda key: jnp.zeros(3),
        lambda state, record, key: scale * (record - state),
        lambda state, release, key: state + 0.1 * release.full / 200,
        lambda state, key: {"mean": state},
    )


def data() -> tacit.PrivateData:
    return tacit.PrivateData(np.random.default_rng(0).standard_normal((200, 3)).astype(np.float32) + 2, size=200)


def test_the_page_holds_the_list_and_the_step_is_short() -> None:
    table = reviewers_list.table()
    assert f"\n{table}\n" in (ROOT / "docs" / "wall.md").read_text(encoding="utf-8")
    step = [module for module in reviewers_list.closure() if module.startswith(reviewers_list.STEP)]
    assert sum(map(reviewers_list.lines_of, step)) < reviewers_list.LIMIT
    assert len(step) >= 6


def test_what_the_list_leaves_out_takes_no_part() -> None:
    """With the packages' own files emptied a step runs, and imports what is listed and nothing else."""
    given = [sys.executable, "-c", ALONE, str(reviewers_list.SOURCE.parent)]
    done = subprocess.run(given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) <= set(reviewers_list.closure())
    assert not {"tacit.engine.alias", "tacit.engine.lattice", "tacit.engine.disk"} & set(json.loads(done.stdout))


def test_a_fit_by_the_reference_is_the_fit_by_the_engine() -> None:
    """Same subsets, noise and sums under a fixed secret; what differs is how a sum is turned into floats."""
    facts = {"steps": 10, "rate": 0.3, "clip": 2.0, "simulate": 3, "key": jax.random.key(1), "progress": False}
    fast = tacit.fit(mean(), data(), BUDGET, **facts)
    slow = tacit.fit(mean(), data(), BUDGET, **facts, engine="reference")
    assert np.allclose(fast.draws["mean"], slow.draws["mean"], rtol=1e-5)
    assert (fast.certificate.engine, slow.certificate.engine) == ("fast", "reference")
    assert slow.certificate.epsilon == fast.certificate.epsilon


def test_a_run_by_the_reference_is_charged_and_resumed(tmp_path: Path) -> None:
    facts = {"steps": 100, "rate": 0.3, "clip": 2.0, "run_dir": tmp_path / "run", "progress": False}
    posterior = tacit.fit(mean(), data(), BUDGET, **facts, engine="reference")
    assert "issued for" in posterior.verify()
    assert posterior.certificate.mechanism.steps == 100
    (tmp_path / "run" / "posterior.npz").unlink()
    with pytest.raises(ValueError, match="another recipe"):
        tacit.fit(mean(), data(), BUDGET, **facts)


def test_other_programs_and_data_have_other_tags_and_equal_ones_the_same() -> None:
    from tacit.ledger.file import Ledger
    from tacit.wall.reference import ReferenceRunner

    def tag(method: tacit.Method, held: tacit.PrivateData, secret: int = 1, origin: bytes = b"") -> str:
        runner = ReferenceRunner(
            method, held, tacit.Mechanism(0.5, 1.0, 1.0, 3), secret=keys.fixed(secret), key=jax.random.key(0),
            ledgers=[Ledger()], run="a", kind="fit", title="t", simulation=False,
        )  # fmt: skip
        runner.rekey(keys.fixed(secret), origin)
        return runner.tag

    other = tacit.PrivateData(np.zeros((200, 3), np.float32), size=200)
    assert tag(mean(), data()) == tag(mean(), data())
    tags = [tag(mean(), data()), tag(mean(2.0), data()), tag(mean(), other), tag(mean(), data(), 2)]
    assert len({*tags, tag(mean(), data(), origin=b"x")}) == 5


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="The engine is 'slow'"):
        tacit.fit(mean(), data(), BUDGET, engine="slow")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 5, keys.BY_CHACHA, keys.BY_CHACHA + 1, keys.WORDS_AT_ONCE + 3])
def test_words_are_those_of_the_engine(count: int) -> None:
    secret, step = keys.to_bytes(keys.fixed(5)), 3
    if count <= keys.BY_CHACHA:
        wanted = np.asarray(jax.random.bits(jax.random.fold_in(keys.fixed(5), 2 * step), (count,), jnp.uint32))
    else:
        rows, least = np.zeros((1, count), np.uint32), np.zeros((1, -(-count // 1024)), np.uint32)
        random.words(secret, [2 * step], rows, least, 1024)
        wanted = rows[0]
    assert np.array_equal(streams.of_step(secret, step, count), wanted)


def test_a_word_that_does_not_decide_is_settled_by_128_bits() -> None:
    table = samplers.table([3 * 2**96 // 4 + 2**126, 2**128 - 2**126 - 3 * 2**96 // 4] + [2**90] * 2)
    assert table.cut > 0
    words = np.zeros(2, np.uint32)
    for more, column in (((0, 0, 0), 0), ((0xFFFFFFFF,) * 3, len(table.sums) - 1)):
        bits = (more[0] << 64) | (more[1] << 32) | more[2]
        wanted = next(i for i, total in enumerate(table.sums) if bits < total)
        assert samplers.draw(table, words, 0, lambda place, more=more: more)[0] == wanted
        assert wanted <= column


def test_what_is_longer_than_the_radius_is_seen_in_integers() -> None:
    assert clip.within([3, 4], 5)
    assert not clip.within([3, 4, 1], 5)
    assert clip.within([2**22], 2**22)
    assert not clip.within([2**22, 1], 2**22)
