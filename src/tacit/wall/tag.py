"""What noise is tied to beside the program and the records: what a program's bits may depend on, made-up records."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit import system


def surroundings() -> list[Any]:
    """Return what the bits of a program may depend on beside itself: versions, the machine, settings.

    Settings that change no bit are among them: a tag that differs for nothing costs a charge, and never privacy.

    Privacy: public.
    """
    packages = ("tacit", "jax", "jaxlib", "numpyro", "numpy", "cryptography")
    versions = [importlib.metadata.version(name) for name in packages] + [platform.python_version()]
    processor = Path("/proc/cpuinfo")
    features = processor.read_text().splitlines() if processor.exists() else []
    machine = [platform.platform(), system.cores(), jax.devices()[0].device_kind]
    machine += sorted({line for line in features if line.startswith(("flags", "Features", "model name"))})
    settings = sorted((name, str(value)) for name, value in jax.config.values.items())
    variables = [os.environ.get(name, "") for name in ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "OMP_NUM_THREADS")]
    return [versions, machine, settings, variables]


def made_up(rng: np.random.Generator, leaf: np.ndarray) -> np.ndarray:
    """Make up one column of a record.

    Privacy: public numbers, the same for every data set.
    """
    if np.issubdtype(leaf.dtype, np.floating):
        return rng.standard_normal(leaf.shape).astype(leaf.dtype)
    return rng.integers(0, 2, leaf.shape).astype(leaf.dtype)
