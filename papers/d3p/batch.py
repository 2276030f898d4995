"""Figure 3 of the d3p paper: the time of a step over the size of the subset, with and without privacy.

    python papers/d3p/batch.py              (--quick for half a minute; --model vae or logistic for one of them)

Four programs in turns, the least of interleaved repetitions: tacit's private step (``Runner.advance``: exact Poisson
subset, clip, lattice noise, update), NumPyro's SVI in the same process, and d3p's step and its NumPyro's SVI in d3p's
own environment. Ratios are to the non-private step of the same environment. The paper times its VAE on a GPU; here it
is the processor, so only ratios and slopes compare.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import vae_model
from numpyro.infer import SVI, Trace_ELBO
from peer import CLIP, COLUMNS, LEARNING_RATE, SIGMA
from peer_client import FOLDER, Peer, Time, figure_path, in_turns, timed, write_results

import tacit
from tacit.engine import random as secret_random
from tacit.engine.runner import Runner
from tacit.types import Array, Plan

RECORDS, WARM = 60000, 64
UNIT = "seconds a step: by the clock, on the processor"
NAMES = {
    "tacit": "tacit, private",
    "numpyro": "NumPyro 0.22, not private",
    "d3p": "d3p 0.2, private",
    "numpyro 0.11": "NumPyro 0.11, not private",
}
THEIRS = (
    "its Figure 3 (a V100, VAE) has 1 to 4 ms a step up to subsets of 1000 and says that the private step grows more "
    "steeply than the other, and linearly; its Table 2 has a ratio of 1.65 at 128 (.56 s an epoch against .34)"
)


def logistic_model(x: Array, y: Array | None = None) -> None:
    """Regress a yes-or-no on 100 columns."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(COLUMNS), 4.0).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_guide(x: Array, y: Array | None = None) -> None:
    """Return each coefficient a normal of its own, as in the paper's section 3."""
    mean = numpyro.param("mean", jnp.zeros(COLUMNS))
    spread = jnp.exp(numpyro.param("log_spread", jnp.zeros(COLUMNS)))
    numpyro.sample("w", dist.Normal(mean, spread).to_event(1))


def made_up(model: str) -> dict[str, np.ndarray]:
    """Return made-up records: time does not depend on their values."""
    columns = vae_model.PIXELS if model == "vae" else COLUMNS
    values = np.random.default_rng(0).standard_normal((RECORDS, columns), dtype=np.float32)
    if model == "vae":
        return {"image": (values > 1).astype(np.float32)}
    return {"x": values, "y": (values[:, 0] > 0).astype(np.float32)}


def functions(model: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a model and its guide."""
    return (vae_model.model, vae_model.guide) if model == "vae" else (logistic_model, logistic_guide)


def private_steps(model: str, data: tacit.PrivateData, batch: int) -> Callable[[int], Any]:
    """Compile tacit's private step; give a program that takes some steps."""
    method = tacit.vi(*functions(model), optax.adam(LEARNING_RATE))(Plan(data.placeholder))
    mechanism = tacit.Mechanism(rate=batch / data.size, clip=CLIP, noise_multiplier=SIGMA, steps=10**6)
    runner = Runner(
        method,
        data,
        mechanism,
        secret=secret_random.fixed(0),
        key=jax.random.key(0),
        ledgers=(),
        run="timing",
        kind="fit",
        title=model,
        simulation=True,
    )
    # In the first steps methods take every iterate into their average.
    state = runner.advance(jax.tree.map(jnp.asarray, jax.jit(method.init)(jax.random.key(0))), 0, WARM)
    return lambda number: runner.advance(state, WARM, WARM + number)


def public_steps(model: str, records: dict[str, Array], batch: int) -> Callable[[int], Any]:
    """Compile NumPyro's step on a subset drawn in the cheapest way, with replacement, and gathered on the device."""
    pair = functions(model)
    svi = SVI(*pair, numpyro.optim.Adam(LEARNING_RATE), Trace_ELBO())
    state = svi.init(jax.random.key(0), **jax.tree.map(lambda leaf: leaf[:batch], records))

    @jax.jit
    def program(number: Array, state: Any, key: Array, records: dict[str, Array]) -> Any:
        def one(i: Array, state: Any) -> Any:
            positions = jax.random.randint(jax.random.fold_in(key, i), (batch,), 0, RECORDS)
            return svi.update(state, **jax.tree.map(lambda leaf: leaf[positions], records))[0]

        return jax.lax.fori_loop(0, number, one, state)

    return lambda number: program(number, state, jax.random.key(1), records)


def measure(model: str, batches: list[int], peer: Peer | None, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Time all programs at each subset size, in turns; seconds a step."""
    records = made_up(model)
    data, public = tacit.PrivateData(records, size=RECORDS), jax.tree.map(jnp.asarray, records)
    rows = []
    for batch in batches:
        timers = {}
        for name, program in (
            ("tacit", private_steps(model, data, batch)),
            ("numpyro", public_steps(model, public, batch)),
        ):
            program(1)
            number = enough(timed(lambda program=program: program(2), 2)(), seconds)
            timers[name] = timed(lambda program=program, number=number: program(number), number)
        for name, private in (("d3p", True), ("numpyro 0.11", False)) if peer else ():
            request = {"what": "step", "model": model, "private": private, "batch": batch, "records": RECORDS}
            number = enough(peer.timer(**request, number=2)(), seconds)
            timers[name] = peer.timer(**request, number=number)
        row = in_turns(timers, rounds)
        rows.append({"batch": batch, **row})
        print(line(rows[-1]), flush=True)
        if peer:
            peer.ask(what="forget")
    return rows


def enough(step: Time, seconds: float) -> int:
    """Return a number of steps that lasts about so long."""
    return int(min(max(seconds / step.wall, 1), 2000))


def line(row: dict[str, Any]) -> str:
    """Return a row of the table: milliseconds by the clock and on the processor, and ratios of both."""
    cells = [f"{row[name].wall * 1e3:.3g} / {row[name].cpu * 1e3:.3g}" if name in row else "–" for name in NAMES]
    cells += [ratio(row, "tacit", "numpyro"), ratio(row, "d3p", "numpyro 0.11")]
    return f"| {row['batch']} | {' | '.join(cells)} |"


def ratio(times: dict[str, Any], private: str, public: str) -> str:
    """Return the ratio of two times by the clock and on the processor."""
    if private not in times:
        return "–"
    return " / ".join(f"{a / b:.2f}" for a, b in zip(times[private], times[public], strict=True))


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the time of a step over the size of the subset."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(results), figsize=(4.6 * len(results), 3.6), squeeze=False)
    titles = {"vae": "VAE, 688884 parameters", "logistic": "logistic regression, 100 coefficients"}
    styles = dict(zip(NAMES, ("C0o-", "C0o:", "C3s-", "C3s:"), strict=True))
    for panel, (model, rows) in zip(panels[0], results.items(), strict=True):
        for name, label in NAMES.items():
            if name in rows[0]:
                times = [row[name][1] * 1e3 for row in rows]  # on the processor
                panel.loglog([row["batch"] for row in rows], times, styles[name], label=label)
        panel.set(title=titles[model], xlabel="records in a subset", ylabel="processor milliseconds a step")
        panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the tables; write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="logistic regression at one size, nothing written")
    parser.add_argument("--model", choices=["vae", "logistic"], help="only this one")
    parser.add_argument("--out", type=Path, help="folder for results/ and figures/")
    options = parser.parse_args()
    out = options.out or (None if options.quick or options.model else FOLDER)
    models = [options.model] if options.model else ["logistic"] if options.quick else ["vae", "logistic"]
    batches = [128] if options.quick else [16, 32, 64, 128, 256, 512, 1024]
    peer = Peer.start()
    results = {}
    for model in models:
        print(f"\n{model}: milliseconds a step, by the clock / on the processor; subsets of {RECORDS} records")
        print(f"\n| subset | {' | '.join(NAMES.values())} | tacit, ratio | d3p, ratio |\n|{'---|' * 7}")
        results[model] = measure(model, batches, peer, 1 if options.quick else 7, 0.2 if options.quick else 0.4)
    print(f"\nthe paper: {THEIRS}")
    if out:
        figures = {
            "unit": "seconds a step: by the clock, on the processor",
            "records": RECORDS,
            **results,
            "peer": peer and peer.ask(what="versions"),
        }
        write_results(out, "batch", figures)
        plot(results, figure_path(out, "batch"))
    if peer:
        peer.close()


if __name__ == "__main__":
    main()
