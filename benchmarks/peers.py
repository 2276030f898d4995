"""tacit beside its peers: one comparison a command, in turns in one run, medians and ratios.

    benchmarks/peers.sh                       (installs the peers, each in an environment of its own)
    python benchmarks/peers.py logistic       (or vae, mlp, cnn, subset, noise, calibration, fit, lda)
    python benchmarks/peers.py page           (puts the results together: docs/benchmarks.md and its plot)

Every comparison writes ``results/NAME.json`` with the commit and the machine it ran on. Ratios are to tacit's row, so
that a peer with a ratio below 1 is ahead. Programs are those of papers/d3p, papers/dpbnn and ``step.py``.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), *(str(ROOT / "papers" / name) for name in ("d3p", "dpbnn"))]
import batch  # noqa: E402
import sampler  # noqa: E402
import step  # noqa: E402
import study  # noqa: E402
import timing  # noqa: E402
from peer_client import Peer, Time, Timer, in_turns, timed  # noqa: E402

import tacit  # noqa: E402
from tacit import accounting  # noqa: E402
from tacit.accounting import losses, noise_multiplier  # noqa: E402
from tacit.engine import alias, lattice, random  # noqa: E402
from tacit.run.public import fit_public  # noqa: E402

SETTINGS = {
    "a": (1.0, 1e-5, 256 / 60000, 3516),
    "b": (0.5, 1 / 60000, 128 / 60000, 9375),
    "c": (1.0, 1e-5, 0.01, 10**5),
    "d": (1.0, 1e-5, 0.001, 10**5),
    "VIPS": (1.0, 1e-4, 10 / 400000, 16000),
    "DP-SEP": (1.0, 1e-5, 1 / 7373, 40 * 7373),
    "d3p hierarchical": (2.0, 1 / 500, 0.01, 10**5),
    "most steps": (1.0, 1e-5, 0.001, 10**7),
}
"""Epsilon, delta, rate and steps for which a noise multiplier is sought."""
TITLES = {
    "logistic": "Logistic regression, 100 coefficients, subsets of 256 of 60000: a step",
    "vae": "Variational autoencoder, 688884 parameters, subsets of 128 of 60000: a step",
    "mlp": "MLP 784-1200-1200-10, subsets of 256 of 60000: a step",
    "cnn": "Convolutional network of Opacus' MNIST example, subsets of 256 of 60000: a step",
    "subset": "One random subset of 256 of a million records",
    "noise": "Noise for 2.4 million coordinates",
    "calibration": "The noise multiplier for a budget",
    "fit": "Logistic regression on a million records, 20 columns, epsilon 1: the whole fit",
    "lda": "Topics of 4000 Wikipedia articles, 50 topics, 8000 words, one pass: a document",
}
WARM = 128
"""Steps from which the time of one is guessed: the wall draws for some of them ahead."""
Found = dict[str, dict[str, Any]]
"""For each row of a table its seconds and what else is said of it; the first row is tacit's."""


def shown(timers: dict[str, Timer], rounds: int) -> Found:
    """Time in turns and give medians, by the clock and on the processor."""
    rounds = min(rounds, int(os.environ.get("ROUNDS", rounds)))  # one round fills the cache of compiled programs
    return {name: took._asdict() for name, took in in_turns(timers, rounds, statistics.median).items()}


def many(program: Callable[[int], Any], seconds: float = 0.5) -> Timer:
    """Time as many steps of a program as last about so long."""
    program(1)
    number = batch.enough(timed(lambda: program(WARM), WARM)(), seconds)
    return timed(lambda: program(number), number)


def model(name: str, size: int) -> Found:
    """A step of variational inference: tacit, NumPyro without privacy, d3p and its NumPyro."""
    records = batch.made_up(name)
    data, public = tacit.PrivateData(records, size=batch.RECORDS), jax.tree.map(jnp.asarray, records)
    timers = {
        "tacit, VI": many(batch.private_steps(name, data, size)),
        "NumPyro, no privacy": many(batch.public_steps(name, public, size)),
    }
    if name == "logistic":
        rows = {column: jnp.asarray(values) for column, values in records.items()}
        chunk = step.chunk(data)
        timers["tacit, gradient steps"] = timed(step.private(data, batch.RECORDS), step.STEPS)
        timers["the same without privacy"] = timed(step.public(rows, batch.RECORDS, chunk, drawn=True), step.STEPS)
        timers["without privacy, quick subsets"] = timed(step.quick(rows, batch.RECORDS), step.STEPS)
    peer = Peer.start()
    for row, private in (("d3p 0.2.0", True), ("d3p's NumPyro 0.11, no privacy", False)) if peer else ():
        request = {"what": "step", "model": name, "private": private, "batch": size, "records": batch.RECORDS}
        number = batch.enough(peer.timer(**request, number=2)(), 0.5)  # type: ignore[union-attr]
        timers[row] = peer.timer(**request, number=number)  # type: ignore[union-attr]
    found = shown(timers, 9)
    if peer:
        peer.close()
    return found


def network(name: str) -> Found:
    """A step of gradient descent and of the Bayesian methods: tacit, JAX without privacy, jax-privacy, Opacus."""
    records = timing.made_up()
    peer = Peer.start(ROOT / "papers" / "dpbnn" / "opacus_peer.py")
    timers = timing.timers(name, tacit.PrivateData(records, size=timing.RECORDS), records, peer)
    # What takes a hundred times as long is timed once, behind the others.
    slow = {row: timers.pop(row) for row in ("jax-privacy", "Opacus hooks") if name == "mlp" and row in timers}
    found = {**shown(timers, 7), **shown(slow, 1)}
    if peer:
        peer.close()
    return found


def subset() -> Found:
    """A Poisson subset: tacit's, coin flips, and d3p's subsets of a fixed size."""
    peer = Peer.start()
    times = sampler.measure(10**6, 256, peer, 3)
    if peer:
        peer.close()
    names = {
        "tacit": "tacit, 64 at once",
        "tacit 1": "tacit, one at a time",
        "coins": "coin flips in JAX",
        "choice": "jax.random.choice",
        "feistel": "d3p's Feistel network",
    }
    return {names[name]: took._asdict() for name, took in times.items()}


def noise() -> Found:
    """Rounded Gaussians from a secret stream; JAX's and NumPy's normal numbers, which are no private noise."""
    size, secret = 2_395_210, random.to_bytes(random.fixed(0))
    words, least = random.room(1, 2 * size), random.room(1, -(-2 * size // alias.GROUP))
    more = random.fold_in(random.fixed(0), jnp.arange(1))

    @jax.jit
    def table(words: Any, least: Any) -> Any:
        return lattice.noise([size], alias.Words(words, jnp.int32(0), least), more)

    def ours() -> Any:
        random.words(secret, [0], words, least, alias.GROUP)
        return table(*jax.device_put((words, least)))

    normal = jax.jit(lambda key: jax.random.normal(key, (size,)))
    generator = np.random.default_rng(0)
    timers = {
        "tacit: AES-256 and exact tables": timed(ours, 1),
        "jax.random.normal, not for privacy": timed(lambda: normal(jax.random.key(0)), 1),
        "numpy standard_normal, not for privacy": timed(lambda: generator.standard_normal(size, np.float32), 1),
    }
    found = shown(timers, 15)
    return {name: {**row, "processor ns a coordinate": 1e9 * row["cpu"] / size} for name, row in found.items()}


def calibration() -> Found:
    """Warm, and cold: the first call in a new process, what it imports included; processor time, of one thread.

    The last column is by how much the certified epsilon of the answer is above that on a grid eight times as fine.
    """
    found: Found = {}
    code = (
        "import sys, time; s = time.process_time(); from tacit.accounting import noise_multiplier;"
        "e, d, r, n = map(float, sys.argv[1:]); noise_multiplier(e, d, r, int(n)); print(time.process_time() - s)"
    )
    for name, (epsilon, delta, rate, steps) in SETTINGS.items():
        arguments = [str(value) for value in (epsilon, delta, rate, steps)]
        cold = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
        warm = []
        for i in range(1, 6):
            start = time.process_time()
            sigma = noise_multiplier(epsilon * (1 + 1e-6 * i), delta, rate, steps)  # not the one it remembers
            warm.append(time.process_time() - start)
        certified = accounting.epsilon(rate, sigma, steps, delta)
        finer = losses.loss_distributions(rate, sigma, steps, "add-remove", losses.FINE / 64, False)
        tight = max(loss.epsilon(delta - accounting.rounding_slack(steps)) for loss in finer)
        row = f"{name}: epsilon {epsilon:g}, rate {rate:.4g}, {steps} steps"
        cells = {"cold, ms": 1e3 * float(cold.stdout), "sigma": sigma, "above tight, %": 100 * (certified / tight - 1)}
        found[row] = {"cpu": statistics.median(warm), **cells}
    return found


def fit() -> Found:
    """The whole fit, sealing the records included, and how well it does on other records of the same law.

    The second fit of a kind finds its compiled programs in JAX's cache on disk, as a second run of a script would.
    """
    generator = np.random.default_rng(0)
    count, columns = 10**6, 20
    x = generator.standard_normal((count + 10**5, columns)).astype(np.float32) / np.sqrt(columns)
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    slopes = 3 * generator.standard_normal(columns)
    y = (generator.random(len(x)) < 1 / (1 + np.exp(-x @ slopes))).astype(np.float32)
    train, test = slice(0, count), slice(count, None)

    def judged(w: np.ndarray, seconds: float) -> dict[str, Any]:
        z = x[test] @ w
        loss = np.mean(np.logaddexp(0, -(2 * y[test] - 1) * z))
        return {"wall": seconds, "accuracy": float(np.mean((z > 0) == (y[test] > 0))), "log loss": float(loss)}

    def fitted(method: Any, recipe: dict[str, Any]) -> Any:
        data = tacit.PrivateData({"x": x[train], "y": y[train]}, size=count)
        return tacit.fit(method, data, tacit.Budget(1.0, 1e-6), progress=False, **recipe)

    found: Found = {}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "tacit.glm, 60 subsets of 1%": (tacit.glm(), {"rate": 0.01, "steps": 60}),
        "tacit.logistic, 25 subsets of 2%": (tacit.logistic(bound=1.0), {"rate": 0.02, "steps": 25}),
        "tacit.logistic as it comes": (tacit.logistic(bound=1.0), {}),
    }
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        for name, (method, recipe) in kinds.items():
            for time_of in ("compiled before", "the first time"):
                if time_of == "compiled before":
                    fitted(method, recipe)
                else:
                    jax.config.update("jax_enable_compilation_cache", False)
                start = time.perf_counter()
                posterior = fitted(method, recipe)
                took = time.perf_counter() - start
                jax.config.update("jax_enable_compilation_cache", True)
                found[f"{name}, {time_of}"] = judged(np.asarray(posterior.draws["w"]).mean(0), took)
    script = HERE / "diffprivlib_peer.py"
    if peer := Peer.start(script):
        file = HERE / "fit.npz"
        np.savez(file, x=x[train], y=y[train])
        for way in ("diffprivlib", "scikit-learn"):
            answer = peer.ask(way=way, file=str(file), epsilon=1.0)
            name = f"{way}{'' if way == 'diffprivlib' else ', no privacy'}"
            found[name] = judged(np.asarray(answer["w"]), answer["wall"])
        file.unlink()
        peer.close()
    return found


def topics() -> Found:
    """A pass over Wikipedia articles in five steps: tacit.lda, the same without privacy, scikit-learn's online LDA."""
    from scipy import sparse
    from sklearn.decomposition import LatentDirichletAllocation

    number, words, count, steps = 50, 8000, 4000, 5
    with np.load(study.data_folder() / "wiki_bow.npz") as file:
        matrix = sparse.csr_matrix((file["data"], file["indices"], file["indptr"]), tuple(file["shape"]))[:count]
    records = tacit.topics.documents(matrix, cap=2.0)
    there = records["count"] > 0
    cells = (records["count"][there].astype(float), (np.nonzero(there)[0], records["word"][there]))
    thinned = sparse.csr_matrix(cells, (count, words))
    method, recipe = tacit.lda(number, words), {"rate": 1 / steps, "steps": steps}

    def private() -> Any:
        data = tacit.PrivateData(records, size=count)
        return tacit.fit(method, data, tacit.Budget(1.0, 1e-5), progress=False, **recipe).point_estimates[
            "concentration"
        ]

    def public() -> Any:
        return fit_public(method, records, key=jax.random.key(0), **recipe).point_estimates["concentration"]

    def theirs() -> Any:
        facts = {"learning_method": "online", "batch_size": count // steps, "max_iter": 1, "total_samples": count}
        return LatentDirichletAllocation(number, random_state=0, **facts).fit(thinned).components_

    with tempfile.TemporaryDirectory() as cache:
        # Fits of many articles take minutes: what compiling takes is not counted.
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        ways = {"tacit.lda": private, "tacit.lda, no privacy": public, "scikit-learn, no privacy": theirs}
        for way in ways.values():
            way()
        return shown({name: timed(way, count) for name, way in ways.items()}, 3)


COMPARISONS: dict[str, Callable[[], Found]] = {
    "logistic": lambda: model("logistic", 256),
    "vae": lambda: model("vae", 128),
    "mlp": lambda: network("mlp"),
    "cnn": lambda: network("cnn"),
    "subset": subset,
    "noise": noise,
    "calibration": calibration,
    "fit": fit,
    "lda": topics,
}


def table(rows: Found) -> str:
    """Write a comparison as a Markdown table: times and their ratios to the first row, and what else is known."""
    first = next(iter(rows.values()))
    others = [key for key in first if key not in Time._fields]
    times = [("wall", "by the clock"), ("cpu", "on the processor")]
    times = [(field, words) for field, words in times if field in first]
    usual = first[times[0][0]]
    unit, scale = ("s", 1.0) if usual > 0.5 else ("ms", 1e3) if usual > 5e-4 else ("µs", 1e6)
    heads = ["", *(head for _, words in times for head in (f"{unit} {words}", "ratio")), *others]
    lines = []
    for row, values in rows.items():
        cells = [f"{scale * values[field]:.4g} | {values[field] / first[field]:.2f}" for field, _ in times]
        lines.append([row, *cells, *(f"{values[key]:.4g}" for key in others)])
    return study.table(heads, lines)


def page() -> None:
    """Put the results together."""
    results = {name: json.loads((HERE / "results" / f"{name}.json").read_text()) for name in TITLES if _has(name)}
    parts = [(HERE / "page.md").read_text().rstrip()]
    for name, found in results.items():
        made = f"`python benchmarks/peers.py {name}`, commit {found['commit']}, {found['machine']}"
        parts.append(f"## {TITLES[name]}\n\n{made}\n\n{table(found['rows'])}\n\n{found.get('note', '')}".rstrip())
    timed_steps = [name for name in ("noise", "logistic", "vae", "mlp", "cnn") if name in results]
    figure, axes = study.panels(len(timed_steps), width=4.6)
    for ax, name in zip(axes, timed_steps, strict=True):
        rows = results[name]["rows"]
        colours = ["#0072B2" if row.startswith("tacit") else "#888888" for row in rows]
        times = [1e3 * values["wall"] for values in rows.values()]
        # Dots: on a logarithmic axis the length of a bar means nothing.
        ax.scatter(times, list(rows), color=colours, zorder=2)
        ax.grid(axis="y", color="#dddddd")
        ax.set(xscale="log" if max(times) > 30 * min(times) else "linear", xlabel="milliseconds", title=name)
        if ax.get_xscale() == "linear":
            ax.set_xlim(left=0)
        ax.minorticks_off()
        ax.invert_yaxis()
    (ROOT / "docs" / "images").mkdir(exist_ok=True)
    figure.savefig(ROOT / "docs" / "images" / "benchmarks.png", dpi=90)
    parts.insert(1, "![Milliseconds a step](images/benchmarks.png)")
    (ROOT / "docs" / "benchmarks.md").write_text("\n\n".join(parts) + "\n")


def _has(name: str) -> bool:
    return (HERE / "results" / f"{name}.json").exists()


def machine() -> str:
    """Describe the machine."""
    name = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    return f"{len(os.sched_getaffinity(0))} cores of {name}, Python {platform.python_version()}, JAX {jax.__version__}"


def main() -> None:
    """Run one comparison."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name == "page":
        return page()
    if name not in COMPARISONS:
        sys.exit(f"{__doc__}\nWrite one of: {', '.join([*COMPARISONS, 'page'])}.")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    rows = COMPARISONS[name]()
    print(table(rows))
    out = HERE / "results" / f"{name}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"commit": commit.stdout.strip(), "machine": machine(), "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
