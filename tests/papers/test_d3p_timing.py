"""The timing scripts of papers/d3p run, in their quick form, and write what they promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "papers" / "d3p"
DATA = Path(os.environ.get("TACIT_DATA", "data"))


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts of the folder be imported as they import each other."""
    monkeypatch.syspath_prepend(str(FOLDER))


def run(script: str, out: Path, *options: str) -> str:
    """Run a script without d3p, which has a test of its own; give what it prints."""
    done = subprocess.run(
        [sys.executable, FOLDER / script, "--quick", "--out", out, *options],
        env={**os.environ, "PEER_PYTHON": "not installed"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_sampler(tmp_path: Path) -> None:
    printed = run("sampler.py", tmp_path)
    assert "d3p not installed: run make peer" in printed
    rows = json.loads((tmp_path / "results" / "sampler.json").read_text())["rows"]
    # By the clock: processor time is booked at the kernel's ticks and is no use for runs of milliseconds.
    assert all(row["tacit"][0] < row["choice"][0] for row in rows)
    assert (tmp_path / "figures" / "sampler.png").stat().st_size < 150_000


@pytest.mark.slow
def test_batch(tmp_path: Path) -> None:
    assert "tacit, ratio" in run("batch.py", tmp_path)
    rows = json.loads((tmp_path / "results" / "batch.json").read_text())["logistic"]
    assert rows
    assert all(min(row["tacit"] + row["numpyro"]) > 0 for row in rows)
    assert (tmp_path / "figures" / "batch.png").stat().st_size < 150_000


@pytest.mark.slow  # reading and compiling the private VAE alone takes half a minute
@pytest.mark.skipif(not (DATA / "mnist.npz").exists(), reason="TACIT_DATA names no folder with mnist.npz")
def test_vae(tmp_path: Path) -> None:
    assert "negative ELBO" in run("vae.py", tmp_path, "--only", "loss")
    figures = json.loads((tmp_path / "results" / "vae_mnist.json").read_text())
    # Twenty steps take the loss of blank pixels, 784 log 2 = 543, well down.
    assert figures["public"]["loss"] < 300
    assert figures["ours"]["epsilon"] <= 0.5
    assert (tmp_path / "figures" / "vae_mnist.png").stat().st_size < 150_000


@pytest.mark.usefixtures("scripts")
def test_model_is_the_papers() -> None:
    import vae_model

    import tacit
    from tacit.types import Plan

    data = tacit.PrivateData({"image": np.zeros((3, vae_model.PIXELS), np.float32)}, size=3)
    method = tacit.vi(vae_model.model, vae_model.guide)(Plan(data.placeholder))
    state = jax.eval_shape(method.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(state.params)) == vae_model.PARAMETERS == 688884


@pytest.mark.usefixtures("scripts")
def test_peer() -> None:
    from peer_client import Peer

    peer = Peer.start()
    if peer is None:
        pytest.skip("d3p is not installed: run make peer")
    assert peer.ask(what="versions")["d3p"] == "0.2.0"
    assert peer.ask(what="sampler", records=1000, batch=10, kind="feistel", number=5)["wall"] > 0
    peer.close()
