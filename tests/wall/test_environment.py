"""Settings of JAX and XLA that write programs and what they are given to files are refused before any look."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tacit
from tacit.wall.environment import TELLING_SETTINGS, check_environment


@pytest.fixture(autouse=True)
def _flags_are_read() -> None:
    """Let XLA read its flags first: what a test puts into the variable is then not acted upon."""
    check_environment()


def refusal() -> str:
    """Ask a question that must be refused, uncharged; give what is said."""
    data = tacit.PrivateData(np.zeros((30, 1), np.float32))
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the caller looks at what is said
        tacit.ask(data, lambda record: record, tacit.Budget(1.0, 1e-6), clip=1.0)
    assert len(data.ledger.charges) == 0
    return str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("XLA_FLAGS", "--xla_dump_to=somewhere", "holds --xla_dump_to: XLA then writes"),
        ("XLA_FLAGS", "--xla_cpu_max_isa=AVX2 --xla_dump_hlo_as_text", "holds --xla_dump_hlo_as_text"),
        ("XLA_FLAGS", "--xla_dump_hlo_snapshots", "the secret key"),
        ("XLA_FLAGS", " --xla_cpu_dump_unoptimized_hlo_snapshots=true", "the secret key"),
        ("XLA_FLAGS", "flags.txt", "names a file of flags"),
        ("XLA_FLAGS", "--flagfile=flags.txt", "names a file of flags"),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math", "fast math"),
        ("TF_XLA_FLAGS", "--tf_xla_clustering_debug --xla_dump_to=somewhere", "TF_XLA_FLAGS holds --xla_dump_to"),
        ("TF_CPP_VMODULE", "cpu_compiler=5", "TF_CPP_VMODULE makes XLA log"),
        ("TF_CPP_MAX_VLOG_LEVEL", "3", "TF_CPP_MAX_VLOG_LEVEL makes XLA log"),
    ],
)
def test_variables_that_write_programs_are_refused(
    variable: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    said = refusal()
    assert why in said
    assert "somewhere" not in said


@pytest.mark.parametrize("name", TELLING_SETTINGS)
def test_settings_of_jax_that_tell_are_refused(name: str) -> None:
    silent, _ = TELLING_SETTINGS[name]
    telling: Any = {"": "somewhere", False: True, "ignore": "raise"}[silent]
    if name not in jax.config.values:
        pytest.skip("this JAX has no such setting")
    try:
        jax.config.update(name, telling)
        with pytest.raises(ValueError, match=name):
            check_environment()
    finally:
        jax.config.update(name, silent)
    check_environment()


def test_a_setting_of_this_thread_alone_is_refused() -> None:
    with jax.debug_nans(True):
        assert "jax_debug_nans is set" in refusal()


def test_a_step_in_64_bit_mode_is_refused() -> None:
    # What users call switches it off for the time of the call: see tests/wall/test_precision.py.
    with jax.enable_x64(True), pytest.raises(ValueError, match="64-bit mode"):
        check_environment()


def test_harmless_variables_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", " --xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("TF_CPP_MAX_VLOG_LEVEL", "0")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    check_environment()


PROGRAM = """
import os, sys
import jax, numpy as np, tacit
jax.jit(lambda x: x + 1)(1.0)  # here XLA reads its flags
del os.environ["XLA_FLAGS"]
data = tacit.PrivateData(np.full((30, 1), 73.2519, np.float32))
try:
    tacit.ask(data, lambda record: record, tacit.Budget(1.0, 1e-6), clip=1.0)
except ValueError as error:
    print(error)
"""


def test_flags_that_are_taken_back_after_xla_has_read_them_are_refused(tmp_path: Path) -> None:
    flags = f"--xla_dump_to={tmp_path / 'dump'} --xla_dump_hlo_snapshots"
    told = {**os.environ, "XLA_FLAGS": flags}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=told, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "started with --xla_dump_to" in done.stdout
    seen = b"".join(file.read_bytes() for file in (tmp_path / "dump").rglob("*") if file.is_file())
    assert np.float32(73.2519).tobytes() not in seen
