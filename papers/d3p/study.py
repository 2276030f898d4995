"""What the studies of this folder share: command line, repeated fits, Monte-Carlo errors, tables, files.

Every private figure comes from ``tacit.fit``. The secret randomness is fixed by a seed, so that a study can be
repeated; its certificates say that nobody is protected by it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

import tacit
from tacit.types import Model

HERE = Path(__file__).parent
COLOURS = {"black": "0.25", "blue": "#0072B2", "orange": "#E69F00", "green": "#009E73", "pink": "#CC79A7"}
Numbers = npt.NDArray[Any]

# Fits that differ in data and seeds only are one program: it is compiled once a run, or once for all runs that share
# a folder of your own (JAX_COMPILATION_CACHE_DIR).
if not jax.config.jax_compilation_cache_dir:
    _CACHE = tempfile.TemporaryDirectory(prefix="tacit-papers-")
    jax.config.update("jax_compilation_cache_dir", _CACHE.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def options(doc: str | None, **more: dict[str, Any]) -> argparse.Namespace:
    """Read the command line: ``--quick``, where to write, and what a study adds."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test of a minute; its figures mean nothing")
    parser.add_argument("--out", type=Path, help="folder for results/ and figures/; by default this one")
    for name, facts in more.items():
        parser.add_argument(f"--{name}", **facts)
    chosen = parser.parse_args()
    if chosen.out is None:
        chosen.out = Path(tempfile.mkdtemp(prefix="tacit-quick-")) if chosen.quick else HERE
    return chosen


def fit(method: Any, records: Any, budget: tacit.Budget, seed: int, **recipe: Any) -> tacit.Posterior:
    """Fit through the wall, with public and secret randomness from one seed; the number of records is public here."""
    count = len(jax.tree.leaves(records)[0])
    data = tacit.PrivateData(records, size=count)
    return tacit.fit(method, data, budget, key=jax.random.key(seed), simulate=seed, progress=False, **recipe)


def at(state: Any, params: Any) -> Any:
    """Return a state whose draws are from the guide at these parameters, without what the path says of them."""
    return state._replace(average=params, **({"path": ()} if "path" in state._fields else {}))


def with_last(method: tacit.Method | tacit.MethodFor) -> tacit.MethodFor:
    """Let a method draw from its averaged parameters and, under the names ``last/...``, from its last ones too."""

    def build(plan: tacit.Plan) -> tacit.Method:
        built = method if isinstance(method, tacit.Method) else method(plan)

        def draw(state: Any, key: Any) -> dict[str, Any]:
            last = built.draw(at(state, state.params), key)
            return {
                **built.draw(at(state, state.average), key),
                **{f"last/{name}": value for name, value in last.items()},
            }

        return built._replace(draw=draw)

    return tacit.MethodFor(build)


class Iterates(NamedTuple):
    """A method's state, and one more average of its parameters."""

    inner: Any
    flat: Any


def with_averages(method: tacit.MethodFor) -> tacit.MethodFor:
    """As ``with_last``, and under ``flat/...`` from an average with weights that grow like t instead of t**3."""

    def build(plan: tacit.Plan) -> tacit.Method:
        built = method(plan)

        def init(key: Any) -> Iterates:
            state = built.init(key)
            return Iterates(state, state.params)

        def contribute(state: Iterates, *more: Any) -> Any:
            return built.contribute(state.inner, *more)

        def update(state: Iterates, release: Any, key: Any) -> Iterates:
            inner = built.update(state.inner, release, key)
            share = 2 / (state.inner.step + 2)
            return Iterates(inner, jax.tree.map(lambda old, new: old + share * (new - old), state.flat, inner.params))

        def draw(state: Iterates, key: Any) -> dict[str, Any]:
            given = {"": state.inner.average, "last/": state.inner.params, "flat/": state.flat}
            return {
                f"{kind}{name}": value
                for kind, params in given.items()
                for name, value in built.draw(at(state.inner, params), key).items()
            }

        return built._replace(
            init=init, contribute=contribute, update=update, draw=draw, point_estimates=None, model=Model()
        )

    return tacit.MethodFor(build)


def simulated_schedule(step: Any) -> Any:
    """Return the learning rate of ``tacit.vi``'s default optimiser."""
    return 0.2 / (1 + step / 20) ** 0.75


def auc(label: Numbers, score: Numbers) -> float:
    """Return the area under the ROC curve: how often a positive is scored above a negative."""
    order = np.argsort(np.argsort(score, kind="stable"), kind="stable") + 1.0
    positive = np.asarray(label) > 0
    count, rest = positive.sum(), (~positive).sum()
    return float((order[positive].sum() - count * (count + 1) / 2) / (count * rest))


def log_sigmoid(values: Numbers) -> Numbers:
    """Return log(1 / (1 + exp(-values))) without overflow."""
    return -np.logaddexp(0, -values)


def predictive(weights: Numbers, x: Numbers) -> Numbers:
    """Return the posterior predictive probability of a positive: the mean over draws."""
    return np.mean(np.exp(log_sigmoid(np.asarray(weights, np.float64) @ x.T)), axis=0)


def log_likelihood(probability: Numbers, label: Numbers) -> float:
    """Return the mean log probability of the labels."""
    chosen = np.where(np.asarray(label) > 0, probability, 1 - probability)
    return float(np.mean(np.log(np.maximum(chosen, 1e-12))))


def logistic_posterior(x: Numbers, y: Numbers, prior: float, draws: int, seed: int) -> tuple[Numbers, Numbers, Numbers]:
    """Return mode, covariance and draws of a logistic regression's Laplace approximation; not private."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    mode = np.zeros(x.shape[1])
    for _ in range(100):
        p = np.exp(log_sigmoid(x @ mode))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(mode)) / prior**2
        change = np.linalg.solve(curvature, x.T @ (y - p) - mode / prior**2)
        mode = mode + change / max(1.0, float(np.abs(change).max()))
        if np.abs(change).max() < 1e-9:
            break
    covariance = np.linalg.inv(curvature)
    return mode, covariance, np.random.default_rng(seed).multivariate_normal(mode, covariance, draws)


def mean_error(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean over runs and its Monte-Carlo standard error."""
    numbers = np.asarray(list(values), float)
    return float(numbers.mean()), float(numbers.std(ddof=1) / np.sqrt(len(numbers))) if len(numbers) > 1 else 0.0


def shown(values: Iterable[float], digits: int = 3) -> str:
    """Write mean ± Monte-Carlo standard error."""
    mean, error = mean_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def save(
    out: Path, name: str, command: str, text: str, results: dict[str, Any], figure: Any, *, quiet: bool = False
) -> None:
    """Print the tables; write them, the numbers and the picture."""
    if not quiet:
        print(text)
    for folder in ("results", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    (out / "results" / f"{name}.md").write_text(f"`{command}`\n\n{text}\n")
    (out / "results" / f"{name}.json").write_text(
        json.dumps(_rounded({"command": command, **results}), indent=1) + "\n"
    )
    if figure is not None:
        figure.savefig(out / "figures" / f"{name}.png", dpi=110)


def panels(count: int, width: float = 3.6, height: float = 3.0) -> tuple[Any, list[Any]]:
    """Return a figure with panels side by side."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=(width * count, height), layout="constrained", squeeze=False)
    for ax in axes[0]:
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    return figure, list(axes[0])


def log_axis(ax: Any, values: Iterable[float]) -> None:
    """Make the axis logarithmic, with a mark at each value and nowhere else."""
    ax.set_xscale("log")
    ax.set_xticks(list(values), [f"{value:g}" for value in values])
    ax.minorticks_off()


def data_folder() -> Path:
    """Return the folder of real data, or say how to set it."""
    folder = os.environ.get("TACIT_DATA")
    if not folder:
        raise SystemExit("Set TACIT_DATA to the folder with the data sets (adult.csv.gz, radon_mn.csv.gz, ...).")
    return Path(folder)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_rounded(item) for item in value]
    return round(float(value), 5) if isinstance(value, float | np.floating) else value
