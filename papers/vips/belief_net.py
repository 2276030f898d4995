"""Figures 8 and 9 of the VIPS paper: a sigmoid belief network on binarised MNIST, its pixel accuracy and its weights.

    python papers/vips/belief_net.py        (--quick for a smoke test; --rehearse to compare recipes on Fashion-MNIST)

Pixel accuracy as in the paper: infer the hidden units of a test image, rebuild the image, round its probabilities, and
count the pixels that are right; 1 minus it is the mean squared distance that the paper averages. On all 10000 test
images, where the paper takes 100. Images are binary by the threshold 127, a public constant. Clip, strides, sweeps and
epochs were chosen on Fashion-MNIST (--rehearse compares some), not on the images that are reported.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.engine import outer
from tacit.methods.sigmoid_layer import pixel_accuracy, reconstruct
from tacit.types import Plan, Release

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
EPSILON = 1.0
DELTA = 1e-4
"""The paper's for topics (Section 4); of delta for belief networks it says nothing."""
UNITS = (50, 100)
SIZES = (800, 1600, 3200)
EPOCHS = 4
SWEEPS = 5
PAPER = (
    "The paper's text gives no accuracy in numbers. It says of Figure 8 (ε = 1, K = 50 and 100): private VIPS with "
    "zCDP composition is as good as the non-private version with mini-batches of 50 and worse with larger ones; "
    "without privacy K = 100 is better than K = 50, with privacy fewer units are better. Of Figure 9 (K = 100): many "
    "of the private weight images are hard to identify, in some digits can be seen vaguely."
)


def images(name: str) -> tuple[Any, Any]:
    """Read training and test images, black or white."""
    with np.load(study.data_folder() / f"{name}.npz") as file:
        return tuple(file[part].reshape(-1, 784) > 127 for part in ("x_train", "x_test"))  # type: ignore[return-value]


def private(train: Any, units: int, size: int, seed: int, steps: int) -> dict[str, Any]:
    """Fit through the wall; give the posterior means."""
    method = tacit.belief_net(units, sweeps=SWEEPS)
    budget = tacit.Budget(EPSILON, DELTA)
    posterior = study.fit(method, train, budget, seed, rate=size / len(train), steps=steps)
    return {name: jnp.asarray(draws.mean(0)) for name, draws in posterior.draws.items()}


def public(train: Any, units: int, size: int, seed: int, steps: int) -> dict[str, Any]:
    """Run the same method on random batches without clip and noise; outer products are summed as the wall does."""
    method = tacit.belief_net(units, sweeps=SWEEPS)(Plan(jnp.asarray(train[0])))
    key, share = jax.random.key(seed), jnp.float32(size / len(train))
    state = method.init(key)
    shape = jax.eval_shape(method.contribute, state, jnp.asarray(train[0]), key)

    @jax.jit
    def step(state: Any, rows: Any, key: Any) -> Any:
        def every(state: Any, rows: Any) -> Any:
            return jax.tree.leaves(jax.vmap(lambda record: method.contribute(state, record, key))(rows))

        found = outer.split(every, state, rows)
        pairs = zip(found.outers, found.values, strict=True)
        sums = [product.leaf(value.left.T @ value.right) if product else value.sum(0) for product, value in pairs]
        total = jax.tree.unflatten(jax.tree.structure(shape), sums)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(()), total)
        return method.update(state, Release(total, nothing, share, jax.tree.map(lambda x: x / share, total)), key)

    generator = np.random.default_rng(seed)
    for t in range(steps):
        state = step(state, train[generator.integers(0, len(train), size)], jax.random.fold_in(key, t))
    return {"W": state.average[:, 1:], "b": state.net.bias, "c": state.average[:, 0]}


@jax.jit
def _accuracies(net: Any, test: Any) -> Any:
    return jax.vmap(pixel_accuracy)(reconstruct(net, test, 10), test)


def accuracy(net: Any, test: Any) -> float:
    """Return the pixel accuracy on test images."""
    return float(np.mean([np.mean(_accuracies(net, part)) for part in np.split(test, len(test) // 500)]))


def rehearse() -> None:
    """Compare recipes on Fashion-MNIST."""
    train, test = images("fashion_mnist")
    for units, size, epochs in ((50, 800, 4), (50, 1600, 4), (50, 1600, 8), (100, 1600, 4), (100, 3200, 8)):
        steps = epochs * len(train) // size
        value = accuracy(private(train, units, size, 0, steps), test)
        free = accuracy(public(train, units, size, 0, steps), test)
        print(f"K {units}, subsets of {size}, {epochs} epochs: {value:.4f}, no privacy {free:.4f}", flush=True)


def picture(nets: dict[str, Any], results: dict[str, Any], units: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Draw accuracies over subset sizes, and the weights of the largest network, with and without privacy."""
    figure, axes = study.panels(1 + len(nets), 4.2, 3.6)
    for count, paint in zip(units, ("blue", "orange"), strict=False):
        for name, line in (("no privacy", "--"), ("ε = 1", "o-")):
            values = [np.mean(results[f"K {count}, {name}"][size]) for size in sizes]
            axes[0].plot(sizes, values, line, color=study.COLOURS[paint], label=f"K = {count}, {name}")
    axes[0].axhline(results["marginal"], color="black", lw=1, ls=":", label="pixel frequencies")
    axes[0].set(xlabel="records in a step", ylabel="pixel accuracy", title="Figure 8: ε = 1", xscale="log")
    axes[0].legend(frameon=False, fontsize="x-small")
    for ax, (name, net) in zip(axes[1:], nets.items(), strict=True):
        weights = np.asarray(net["W"])
        strong = np.argsort(-np.linalg.norm(weights, axis=0))[:64]
        tiles = weights[:, strong].T.reshape(-1, 28, 28)
        side = int(np.sqrt(len(tiles)))
        grid = tiles[: side * side].reshape(side, side, 28, 28).transpose(0, 2, 1, 3).reshape(28 * side, 28 * side)
        bound = float(np.quantile(np.abs(grid), 0.99))
        ax.imshow(grid, cmap="gray", vmin=-bound, vmax=bound)
        ax.set(title=f"Figure 9: weights, {name}", xticks=[], yticks=[])
    return figure


def main() -> None:
    """Print and draw Figures 8 and 9."""
    chosen = study.options(
        __doc__,
        rehearse={"action": "store_true", "help": "compare recipes on Fashion-MNIST"},
        runs={"type": int, "default": 1, "help": "private fits of each setting, with other seeds"},
    )
    if chosen.rehearse:
        return rehearse()
    begun = time.perf_counter()
    train, test = images("mnist")
    units, sizes, runs = (UNITS, SIZES, chosen.runs) if not chosen.quick else ((4,), (400, 800), 1)
    if chosen.quick:
        train, test = train[:4000], test[:500]
    results: dict[str, Any] = {"marginal": float(pixel_accuracy(np.broadcast_to(train.mean(0), test.shape), test))}
    nets: dict[str, Any] = {}
    rows = []
    for count in units:
        free_name, private_name = f"K {count}, no privacy", f"K {count}, ε = 1"
        results |= {free_name: {}, private_name: {}}
        for size in sizes:
            steps = 4 if chosen.quick else EPOCHS * len(train) // size
            free = public(train, count, size, 0, steps)
            fits = [private(train, count, size, seed, steps) for seed in range(runs)]
            results[free_name][size] = [accuracy(free, test)]
            results[private_name][size] = [accuracy(net, test) for net in fits]
            nets = {free_name: free, private_name: fits[0]}
            budget = tacit.Budget(EPSILON, DELTA)
            mechanism = tacit.calibrate(budget, rate=size / len(train), steps=steps, clip=1.0)
            values = (f"{np.mean(results[name][size]):.4f}" for name in (free_name, private_name))
            rows.append((count, size, steps, *values, f"{mechanism.noise_multiplier:.2f}"))
            print(*rows[-1], f"{time.perf_counter() - begun:.0f} s", flush=True)
    header = ("K", "records in a step", "steps", "no privacy", f"ε = 1, δ = {DELTA:g}", "σ")
    text = "\n\n".join(
        [
            f"Figure 8: pixel accuracy on {len(test)} test images of binarised MNIST, {len(train)} records, {EPOCHS} "
            f"epochs, {SWEEPS} sweeps; {runs} private run(s) of each setting, 1 without privacy. Rounding each pixel's "
            f"frequency in the training images, with no hidden units, gives {results['marginal']:.4f}.",
            study.table(header, rows),
            PAPER,
        ]
    )
    figure = picture(nets, results, units, sizes)
    study.save(chosen.out, "belief_net", "python papers/vips/belief_net.py", text, results, figure)
    smaller(chosen.out / "figures" / "belief_net.png")
    return None


def smaller(file: Path) -> None:
    """Store a picture of noise with few colours: it does not compress otherwise."""
    from PIL import Image

    Image.open(file).convert("RGB").quantize(24).save(file, optimize=True)


if __name__ == "__main__":
    main()
