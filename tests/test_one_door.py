"""One door, by reading the source: only the wall touches records, and methods cannot even reach for them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tacit

SOURCE = Path(tacit.__file__).parent
SECRETS = {"_records", "_count", "_given"}
METHODS_MAY_IMPORT = {
    *(
        "tacit.types",
        "tacit.models.guided",
        "tacit.models.refusals",
        "tacit.models.traced",
        *("tacit.models.formula", "tacit.models.simulated"),
        *("tacit.facts.column", "tacit.facts.schema"),  # declared facts, which no record is read for
        # What several methods share; methods themselves do not import one another.
        *(
            f"tacit.methods.{name}"
            for name in [
                "arguments",
                "chain_heat",
                "chain_memory",
                "covariates",
                "curvature",
                "cuts",
                "document_topics",
                "families",
                "gaussian_weights",
                "gaussians",
                "guide_path",
                "hamiltonian",
                "laplace",
                "leverage",
                "likelihoods",
                "marginal_tables",
                "network_sites",
                "networks",
                "pair_differences",
                "pair_phases",
                "pair_posterior",
                "polya_gamma",
                "rectifiers",
                "regression_model",
                "regressors",
                "running",
                "sigmoid_layer",
                "sites",
                "sparsity",
                "whitened_weights",
                "whitening",
                "word_counts",
            ]
        ),
        *("jax", "jaxtyping", "numpyro", "optax", "equinox", "numpy"),
    ),
    *("__future__", "collections", "copy", "dataclasses", "functools", "inspect", "itertools", "math", "typing"),
    "warnings",
}
D3P_MAY_IMPORT = {
    "tacit.adapters.d3p",
    *("tacit.accounting", "tacit.types", "tacit.engine.alias", "tacit.engine.clip", "tacit.engine.lattice"),
    *("tacit.engine.random", "tacit.engine.sample", "tacit.wall.environment", "tacit.wall.precision"),
}
"""d3p's interface works on arrays that the script holds itself, which are nobody's secret to tacit. It may
use the wall's tools for them, but neither its door nor its sealed records, and nothing that makes a certificate."""
WITHOUT_JAX = (
    "accounting/",
    "ledger/",
    *(f"facts/{name}.py" for name in ("column", "files", "schema", "text")),
)
JAX = {"jax", "jaxlib", "jaxtyping", "numpyro", "optax", "equinox"}
OPENERS = {"open", "eval", "exec", "__import__", "compile", "globals", "input"}
READERS = {"load", "loadtxt", "genfromtxt", "fromfile", "memmap", "save", "savez", "tofile", "savetxt"}
"""NumPy's own doors to files."""


def faults(source: str, place: str) -> list[str]:
    """List what a file at ``place`` (relative to the package) does that its place does not allow."""
    tree = ast.parse(source)
    found = []
    if not place.startswith(("wall/", "engine/")):
        found += [f"touches {name}" for name in sorted(_mentions(tree) & SECRETS)]
    if place.startswith("methods/") or place in ("models/guided.py", "models/refusals.py", "models/traced.py"):
        found += [f"imports {name}" for name in _imports(tree, place) if not _within(name, METHODS_MAY_IMPORT)]
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        found += [f"uses {name}" for name in sorted((names & OPENERS) | (attributes & READERS))]
    if place.startswith("adapters/d3p/"):
        ours = [name for name in _imports(tree, place) if _within(name, {"tacit"})]
        found += [f"imports {name}" for name in ours if not _within(name, D3P_MAY_IMPORT)]
    if place.startswith(WITHOUT_JAX):
        found += [f"imports {name}" for name in _imports(tree, place) if _within(name, JAX)]
    return found


def _mentions(tree: ast.AST) -> set[str]:
    """Return every attribute, name and text: getattr(data, "_records") counts as well."""
    mentioned = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            mentioned.add(node.attr)
        elif isinstance(node, ast.Name):
            mentioned.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            mentioned.add(node.value)
    return mentioned


def _imports(tree: ast.AST, place: str) -> list[str]:
    """Return the full name of everything imported, wherever in the file; ``from tacit import wall`` is tacit.wall."""
    package = ["tacit", *Path(place).parts[:-1]]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


def _within(name: str, allowed: set[str]) -> bool:
    return any(name == top or name.startswith(top + ".") for top in allowed)


FILES = sorted(str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("place", FILES)
def test_every_file_keeps_to_its_place(place: str) -> None:
    assert faults((SOURCE / place).read_text(), place) == []


def test_the_files_that_the_rules_are_about_exist() -> None:
    assert all(any(file.startswith(name) for file in FILES) for name in WITHOUT_JAX)
    assert {"engine/runner.py", "wall/data.py", "methods/vi.py", "adapters/d3p/svi.py", "run/fit.py"} <= set(FILES)
    # The secrets are still called what the rule calls them.
    assert _mentions(ast.parse((SOURCE / "wall/data.py").read_text())) >= SECRETS


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("run/fit.py", "n = data._count"),
        ("run/fit.py", "def f(data):\n    return data._records['x'].mean()"),
        ("results/posterior.py", "rows = getattr(data, '_records')"),
        ("results/posterior.py", "import operator\nrows = operator.attrgetter('_records')(data)"),
        ("methods/vi.py", "from tacit.engine import Runner"),
        ("methods/vi.py", "from tacit import wall"),
        ("methods/vi.py", "from .. import wall"),
        ("methods/vi.py", "from ..wall.data import PrivateData"),
        ("methods/vi.py", "def f():\n    import tacit.wall.data"),
        ("methods/vi.py", "import tacit"),
        ("methods/vi.py", "from tacit.methods import sep"),
        ("methods/vi.py", "import pandas as pd"),
        ("methods/vi.py", "import os"),
        ("methods/vi.py", "from pathlib import Path"),
        ("methods/vi.py", "import importlib"),
        ("methods/vi.py", "text = open('records.csv').read()"),
        ("methods/vi.py", "import numpy as np\nx = np.load('records.npy')"),
        ("methods/vi.py", "f = open"),
        ("methods/vi.py", "import typingx"),
        ("adapters/d3p/svi.py", "from tacit.engine import Runner"),
        ("adapters/d3p/svi.py", "from tacit.wall.data import PrivateData"),
        ("adapters/d3p/svi.py", "from ...wall import data"),
        ("adapters/d3p/svi.py", "import tacit"),
        ("adapters/d3p/svi.py", "from tacit import Certificate"),
        ("adapters/d3p/svi.py", "def f(data):\n    return data._records"),
        ("accounting/composition.py", "import jax.numpy as jnp"),
        ("ledger/file.py", "def f():\n    from jax import random"),
        ("facts/schema.py", "from jaxtyping import Array"),
    ],
)
def test_the_rules_can_fail(place: str, source: str) -> None:
    assert faults(source, place)


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("engine/runner.py", "n = data._count + len(data._records)"),
        (
            "methods/vi.py",
            "from collections.abc import Callable\nimport jax.numpy as jnp\nfrom tacit.types import Method",
        ),
        ("methods/vi.py", "from ..types import Method"),
        ("adapters/d3p/svi.py", "import jax\nfrom tacit import accounting\nfrom tacit.engine import random as chacha"),
        ("run/fit.py", "import jax\nwith open(path) as file:\n    pass"),
    ],
)
def test_the_rules_allow_what_they_should(place: str, source: str) -> None:
    assert faults(source, place) == []
