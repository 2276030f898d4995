"""Figure 1 and Table 1 of the DP-SEP paper: clusters in four dimensions, 1000 records.

    python papers/dpsep/mixture.py          (--quick for a smoke test)

Four components with unknown means; weights 1/4, noise variance 0.25 and prior precision 1/10 are known. The truth to
compare with is NUTS on the same model with the labels summed out, started at the true means; the paper's own was given
the true labels.

EP, SEP and averaged EP are not private. DP-SEP is ``tacit.fit(tacit.sep(sites.mixture(4, 0.25), ...))``, in both
readings: the consistent one with tacit's default recipe, and equation 4 as printed (reading="paper", clip 1, gamma 1,
100 passes). All have honest accounting. The wall does not certify ε = 50 at δ = 1e-5, where e^ε times the inexactness
of its samplers is not small: that row has ordinary floating-point noise of the same calibrated size. A run is one
public start and one secret seed.

F-norm: half of the squared Frobenius norm of the difference of the means plus that of the covariances, summed over
components, which is what the paper's code computes; its root is printed beside it. KL: mean over components of
KL(NUTS' Gaussian || ours), each component of NUTS paired with ours nearest in mean. Accuracy: share of records whose
likeliest component is the right one, under the best matching of components.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value

import tacit
from tacit import sites
from tacit.methods.gaussians import Natural
from tacit.types import Release

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
COMPONENTS, COLUMNS, NOISE, PRIOR = 4, 4, 0.25, 0.1
DELTA, EPSILONS = 1e-5, (50.0, 5.0, 1.0)
BOUND = 3.0
"""A guess at the norm of a record: four columns, means and noise together of about unit variance and more."""
THEIRS = {"SEP": (0.0007, 4.3524), 50.0: (0.5650, 516.8689), 5.0: (1.6237, 955.0533), 1.0: (4.2722, 4162.9041)}
SITE = sites.mixture(COMPONENTS, NOISE)


def records(count: int) -> tuple[Any, Any, Any]:
    """Draw records, their labels and the components' means."""
    generator = np.random.default_rng(60)
    means = generator.normal(size=(COMPONENTS, COLUMNS))
    means = means + generator.normal(size=means.shape) * np.abs(generator.normal(size=(COMPONENTS, 1)))
    label = generator.integers(0, COMPONENTS, count)
    return (means[label] + np.sqrt(NOISE) * generator.normal(size=(count, COLUMNS))).astype(np.float32), label, means


def nuts(x: Any, means: Any, start: Any, draws: int) -> Any:
    """Draw the components' means, given prior means, with the labels summed out."""

    def model() -> None:
        w = numpyro.sample("w", dist.Normal(start, PRIOR**-0.5).to_event(2))
        off = jnp.sum(jnp.square(x[:, None] - w), -1)
        numpyro.factor("records", jnp.sum(jax.nn.logsumexp(-0.5 * off / NOISE, -1)))

    mcmc = MCMC(
        NUTS(model, init_strategy=init_to_value(values={"w": jnp.asarray(means)})),
        num_warmup=draws // 2,
        num_samples=draws,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    return np.asarray(mcmc.get_samples()["w"], float)


def private(method: Any, given: Any, epsilon: float, seed: int, **recipe: Any) -> Any:
    """Fit through the wall; at an epsilon that it does not certify, with ordinary floating-point noise."""
    budget = tacit.Budget(epsilon, DELTA)
    if epsilon < 20:
        return study.fit(method, given, budget, seed, **recipe)
    built = method(tacit.Plan({"x": jnp.zeros(COLUMNS)}, len(given["x"])))
    mechanism = tacit.calibrate(budget, **{**built.suggests._asdict(), **recipe})
    x, key, count = jnp.asarray(given["x"]), jax.random.key(seed), len(given["x"])
    weights = Natural(*(mechanism.weights or ()))
    std = Natural(*(jnp.float32(mechanism.noise_std / weight) for weight in weights))

    def step(t: Any, state: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(key, t), 3)
        present = jax.random.bernoulli(keys[0], mechanism.rate, (count,))

        def clipped(x: Any) -> Any:
            site = built.contribute(state, {"x": x}, key)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(w * part)) for w, part in zip(weights, site, strict=True)))
            return jax.tree.map(lambda part: part * jnp.minimum(1, mechanism.clip / norm), site)

        sums = [jnp.einsum("n,n...->...", present.astype(jnp.float32), part) for part in jax.vmap(clipped)(x)]
        noisy = [s + d * jax.random.normal(k, s.shape) for s, d, k in zip(sums, std, keys[1:], strict=True)]
        full = Natural(*(part / mechanism.rate for part in noisy))
        return built.update(state, Release(Natural(*noisy), std, jnp.float32(mechanism.rate), full), key)

    state = jax.jit(lambda: jax.lax.fori_loop(0, mechanism.steps, step, built.init(key)))()
    draws = jax.vmap(built.draw, (None, 0))(state, jax.random.split(jax.random.fold_in(key, 1 << 20), 1000))
    return tacit.Posterior(draws, None, built)


def gaussians(w: Any) -> tuple[Any, Any]:
    """Return mean and covariance of every component's draws."""
    w = np.asarray(w, float)
    return w.mean(0), np.stack([np.cov(w[:, k].T) for k in range(w.shape[1])])


def judge(posterior: Any, truth: tuple[Any, Any], x: Any, label: Any) -> dict[str, float]:
    """Return F-norm (squared, halved), KL and accuracy."""
    mean, covariance = gaussians(posterior.draws["w"])
    pairs = [int(np.argmin(np.linalg.norm(mean - m, axis=1))) for m in truth[0]]
    f, kl = 0.0, []
    for (m, v), k in zip(zip(*truth, strict=True), pairs, strict=True):
        f += np.sum((mean[k] - m) ** 2) + np.sum((covariance[k] - v) ** 2)
        inverse, off = np.linalg.inv(covariance[k]), mean[k] - m
        logs = np.linalg.slogdet(covariance[k])[1] - np.linalg.slogdet(v)[1]
        kl.append(0.5 * (np.trace(inverse @ v) + off @ inverse @ off - len(off) + logs))
    chosen = assigned(posterior, x)
    best = max(np.mean(np.asarray(p)[chosen] == label) for p in itertools.permutations(range(COMPONENTS)))
    return {"F": f / 2, "KL": float(np.mean(kl)), "accuracy": float(best)}


def assigned(posterior: Any, x: Any) -> Any:
    """Return every record's likeliest component."""
    return np.argmax(posterior.predict({"x": x}, key=jax.random.key(0))["assignment"].mean(0), 1)


def main() -> None:
    """Print the table and draw the figure."""
    chosen = study.options(__doc__)
    count, runs = (200, 1) if chosen.quick else (1000, 3)
    epsilons = EPSILONS[:2] if chosen.quick else EPSILONS
    x, label, means = records(count)
    given = {"x": x}
    methods: dict[str, list[Any]] = {name: [] for name in ("EP", "averaged EP", "SEP", "SEP, paper's reading")}
    for seed in range(runs):
        key = jax.random.key(seed)
        sep = tacit.sep(SITE, prior_std=PRIOR**-0.5)
        slow = tacit.sep(SITE, prior_std=PRIOR**-0.5, pace=lambda step: jnp.float32(1), reading="paper")
        steps = 10 if chosen.quick else 100
        methods["EP"].append(tacit.ep(SITE, given, prior_std=PRIOR**-0.5, key=key, sweeps=steps // 5, damping=0.3))
        methods["averaged EP"].append(
            tacit.ep(SITE, given, prior_std=PRIOR**-0.5, key=key, sweeps=steps, damping=0.3, averaged=True)
        )
        methods["SEP"].append(tacit.fit_public(sep, given, steps=2 * steps, rate=0.2, key=key))
        methods["SEP, paper's reading"].append(tacit.fit_public(slow, given, steps=steps, key=key))
        for epsilon in epsilons:
            ours = tacit.sep(SITE, prior_std=PRIOR**-0.5, bound=BOUND)
            methods.setdefault(f"DP-SEP, ε = {epsilon:g}", []).append(
                private(ours, given, epsilon, seed, **({"steps": 10} if chosen.quick else {}))
            )
            printed = tacit.sep(SITE, prior_std=PRIOR**-0.5, pace=lambda step: jnp.float32(0.1), reading="paper")
            recipe = {"rate": 0.1, "steps": 10 * steps, "clip": 1.0, "weights": (1.0, 1.0)}
            methods.setdefault(f"DP-SEP, ε = {epsilon:g}, paper's reading, clip 1", []).append(
                private(printed, given, epsilon, seed, **recipe)
            )
        print(f"run {seed} is done", flush=True)
    results: dict[str, Any] = {}
    truths = []
    for seed in range(runs):
        start = SITE.start({"x": jnp.zeros(COLUMNS)}, jax.random.key(seed))
        # Which component is which follows from the start; NUTS is started in the order that EP found.
        order = [int(np.argmin(np.linalg.norm(means - m, axis=1))) for m in methods["EP"][seed].draws["w"].mean(0)]
        ordered = means[order] if len(set(order)) == COMPONENTS else means
        truths.append(gaussians(nuts(x, ordered, start, 200 if chosen.quick else 2000)))
    for name, fits in methods.items():
        found = [judge(fit, truth, x, label) for fit, truth in zip(fits, truths, strict=True)]
        results[name] = {measure: [one[measure] for one in found] for measure in ("F", "KL", "accuracy")}
    theirs = {"SEP": THEIRS["SEP"], **{f"DP-SEP, ε = {e:g}": THEIRS[e] for e in EPSILONS}}
    rows = [
        (
            name,
            f"{np.median(found['F']):.4f}",
            f"{np.median(np.sqrt(2 * np.asarray(found['F']))):.3f}",
            f"{theirs[name][0]:.4f}" if name in theirs else "",
            f"{np.median(found['KL']):.2f}",
            f"{theirs[name][1]:.1f}" if name in theirs else "",
            study.shown(found["accuracy"]),
        )
        for name, found in results.items()
    ]
    header = ["method", "F-norm", "its root", "paper's F-norm", "KL", "paper's KL proxy", "accuracy"]
    base = np.mean(results["SEP"]["accuracy"])
    text = "\n\n".join(
        [
            f"{count} records, δ = {DELTA:g}, {runs} runs (medians; accuracy: mean ± Monte-Carlo standard error).",
            study.table(header, rows),
            *(
                f"Accuracy at ε = {e:g} is {np.mean(results[f'DP-SEP, ε = {e:g}']['accuracy']) / base:.1%} of SEP's."
                for e in epsilons
            ),
        ]
    )
    study.save(
        chosen.out, "mixture", "python papers/dpsep/mixture.py", text, results, draw(methods, x, label, epsilons)
    )


def draw(methods: dict[str, list[Any]], x: Any, label: Any, epsilons: Any) -> Any:
    """Draw records by their likeliest component, in the first two columns, with rings of 98% of each component."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown: dict[str, Any] = {"true labels": None, "EP": methods["EP"][0], "SEP": methods["SEP"][0]}
    for more in ("", ", paper's reading, clip 1"):
        for e in reversed(epsilons):
            shown[f"DP-SEP, ε = {e:g}{more}"] = methods[f"DP-SEP, ε = {e:g}{more}"][0]
    figure, axes = plt.subplots(3, 3, figsize=(9, 8.4), layout="constrained", sharex=True, sharey=True)
    for ax, (name, fit) in zip(axes.ravel(), shown.items(), strict=False):
        chosen = label if fit is None else assigned(fit, x)
        ax.scatter(x[:, 0], x[:, 1], c=chosen, cmap="tab10", vmin=0, vmax=9, s=3)
        if fit is not None:
            centres = fit.draws["w"].mean(0)
            spread = np.sqrt(NOISE + fit.draws["w"].var(0))
            turn = np.linspace(0, 2 * np.pi, 100)
            for m, s in zip(centres, spread, strict=True):
                ax.plot(m[0] + 2.8 * s[0] * np.cos(turn), m[1] + 2.8 * s[1] * np.sin(turn), color="black", lw=0.8)
        ax.set_title(name, fontsize=8)
        ax.set(xlim=(x[:, 0].min() - 2, x[:, 0].max() + 2), ylim=(x[:, 1].min() - 2, x[:, 1].max() + 2))
    return figure


if __name__ == "__main__":
    main()
