"""Tables 2, 3 and 4 and Figures 1, 4, 5 and 6-10 of the DP-BNN paper: handwritten digits.

    python papers/dpbnn/mnist.py          (--quick for a smoke test; --parts, --networks, --methods, --data for a part)

60000 training and 10000 test images of MNIST, pixels over 255. Networks: "mlp", 784-1200-1200-10 with rectified units,
as in the paper; "small", one hidden layer of 200; "cnn", the four layers of the Opacus example. Priors of standard
deviation 0.1 on each weight, normal or Laplace, or none. Private: 15 passes, epsilon at most 1 at delta 1e-5, certified
(the paper's epsilon is at most 0.989 by Rényi accounting). Without privacy: the same method, network and passes, with
subsets of 256 and settings of its own. Settings were chosen on Fashion-MNIST.

Accuracy, log loss, ECE and MCE (15 bins) are those of chances averaged over the posterior's draws, on the test images.
Times of single steps are in timing.py.
"""

from __future__ import annotations

import itertools
import math
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import tacit
from tacit import calibration, plots
from tacit.fit import posterior_of
from tacit.types import Method, Release

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
BUDGET, PASSES, PRIOR_STD, CHANCE = tacit.Budget(1.0, 1e-5), 15, 0.1, 0.5
PLAIN_SUBSET = 256
METHODS = ("SGLD", "BBP", "MC dropout", "SGD")
PRIORS = {"SGLD": ("normal", "laplace", "none"), "BBP": ("normal", "laplace")}
THEIRS = {
    # (private, plain) accuracy, private ECE and MCE, plain ECE and MCE
    ("mlp", "SGLD", "normal"): (0.90, 0.95, 0.007, 0.175, 0.035, 0.175),
    ("mlp", "SGLD", "laplace"): (0.89, 0.90),
    ("mlp", "SGLD", "none"): (None, None, 0.126, 0.465, 0.008, 0.289),
    ("mlp", "BBP", "normal"): (0.80, 0.97, 0.204, 0.641, 0.024, 0.052),
    ("mlp", "BBP", "laplace"): (0.81, 0.98),
    ("mlp", "MC dropout", "normal"): (0.78, 0.98, 0.008, 0.080, 0.030, 0.041),
    ("mlp", "MC dropout", "none"): (None, None, 0.078, 0.225, 0.002, 0.725),
    ("mlp", "SGD", "normal"): (None, None, 0.013, 0.089, 0.016, 0.139),
    ("mlp", "SGD", "none"): (0.77, 0.97, 0.106, 0.625, 0.005, 0.299),
    ("cnn", "SGLD", "normal"): (0.95, 0.96, 0.003, 0.775, 0.001, 0.011),
    ("cnn", "SGLD", "laplace"): (0.89, 0.89),
    ("cnn", "SGLD", "none"): (None, None, 0.043, 0.371, 0.006, 0.219),
    ("cnn", "MC dropout", "normal"): (0.77, 0.97, 0.001, 0.275, 0.030, 0.325),
    ("cnn", "MC dropout", "none"): (None, None, 0.033, 0.230, 0.003, 0.225),
    ("cnn", "SGD", "normal"): (None, None, 0.005, 0.391, 0.002, 0.059),
    ("cnn", "SGD", "none"): (0.95, 0.99, 0.037, 0.365, 0.014, 0.325),
}
TIMES = {"SGLD": "10", "BBP": "480", "MC dropout": "9", "SGD": "10"}


class Dense(eqx.Module):
    """Rectified hidden layers; units are left out at random where a key is given."""

    layers: list[eqx.nn.Linear]
    dropout: eqx.nn.Dropout

    def __init__(self, hidden: tuple[int, ...], chance: float, key: Any) -> None:
        sizes = (784, *hidden, 10)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = [eqx.nn.Linear(a, b, key=one) for a, b, one in zip(sizes, sizes[1:], keys, strict=False)]
        self.dropout = eqx.nn.Dropout(chance)

    def __call__(self, x: Any, key: Any = None) -> Any:
        for place, layer in enumerate(self.layers[:-1]):
            own = None if key is None else jax.random.fold_in(key, place)
            x = self.dropout(jax.nn.relu(layer(x)), key=own)
        return self.layers[-1](x)


class Convolutional(eqx.Module):
    """Two convolutions and two dense layers; units of the third layer are left out at random where a key is given."""

    convolutions: list[eqx.nn.Conv2d]
    layers: list[eqx.nn.Linear]
    dropout: eqx.nn.Dropout

    def __init__(self, chance: float, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.convolutions = [
            eqx.nn.Conv2d(1, 16, 8, stride=2, padding=3, key=keys[0]),
            eqx.nn.Conv2d(16, 32, 4, stride=2, key=keys[1]),
        ]
        self.layers = [eqx.nn.Linear(512, 32, key=keys[2]), eqx.nn.Linear(32, 10, key=keys[3])]
        self.dropout = eqx.nn.Dropout(chance)

    def __call__(self, x: Any, key: Any = None) -> Any:
        x = jnp.reshape(x, (1, 28, 28))
        for layer in self.convolutions:
            # The largest of 2 x 2 neighbours, features last: as equinox.nn.MaxPool2d(2, 1), and faster on a processor.
            x = jnp.moveaxis(layer(x), 0, -1)
            x = jnp.where(x[1:] > x[:-1], x[1:], x[:-1])
            x = jnp.where(x[:, 1:] > x[:, :-1], x[:, 1:], x[:, :-1])
            x = jnp.moveaxis(jax.nn.relu(x), -1, 0)
        x = self.dropout(jax.nn.relu(self.layers[0](jnp.ravel(x))), key=key)
        return self.layers[1](x)


def module(name: str, key: Any) -> Any:
    """Give a network by its name."""
    if name == "cnn":
        return Convolutional(CHANCE, key)
    return Dense({"mlp": (1200, 1200), "small": (200,), "tiny": (8,)}[name], CHANCE, key)


class Setting(NamedTuple):
    """A method on a network of so many records, for so many steps; the size of a subset; the clip."""

    method: Callable[[Any, int, int], Any]
    subset: int
    clip: float


def langevin(step_size: float, friction: float) -> Callable[[Any, int, int], Any]:
    """Give SGLD whose remembered places are of the last half of the chain."""

    def make(net: Any, size: int, steps: int) -> Any:
        keep = 20
        return tacit.sgld(
            net,
            size=size,
            step_size=step_size * 60000 / size,
            friction=friction,
            keep=keep,
            thin=max(1, steps // (2 * keep)),
        )

    return make


def descending(method: Any, learning_rate: float) -> Callable[[Any, int, int], Any]:
    """Give a method with momentum."""
    return lambda net, size, steps: method(net, size=size, optimizer=optax.sgd(learning_rate, momentum=0.9))


PRIVATE = {
    "SGLD": Setting(langevin(5e-6, 0.1), 4000, 1.0),
    "BBP": Setting(descending(tacit.backprop, 0.3), 4000, 1.0),
    "MC dropout": Setting(descending(tacit.dropout, 0.3), 4000, 1.0),
    "SGD": Setting(descending(tacit.sgd, 0.3), 4000, 1.0),
}
PLAIN = {
    "SGLD": Setting(langevin(2e-7, 0.1), PLAIN_SUBSET, math.inf),
    "BBP": Setting(descending(tacit.backprop, 0.02), PLAIN_SUBSET, math.inf),
    "MC dropout": Setting(descending(tacit.dropout, 0.02), PLAIN_SUBSET, math.inf),
    "SGD": Setting(descending(tacit.sgd, 0.02), PLAIN_SUBSET, math.inf),
}


class Images(NamedTuple):
    """Training records and test images with labels."""

    train: dict[str, Any]
    x: Any
    y: Any


def images(name: str, count: int | None = None) -> Images:
    """Read a set of images; pixels over 255 is public knowledge."""
    with np.load(study.data_folder() / f"{name}.npz", allow_pickle=False) as file:
        x, y, test_x, test_y = (file[part] for part in ("x_train", "y_train", "x_test", "y_test"))

    def flat(part: Any) -> Any:
        return part.reshape(len(part), -1).astype(np.float32) / 255

    few = slice(None, count)
    return Images({"x": flat(x[few]), "y": y[few].astype(np.int32)}, flat(test_x[few]), test_y[few].astype(np.int32))


def with_history(method: Any, given: Images, every: int) -> Callable[[Any], Method]:
    """Let a method note how many of 1000 test images one of its draws gets right, each time a pass is done."""
    few = min(1000, len(given.y) // 2)
    x, y = jnp.asarray(given.x[:few]), jnp.asarray(given.y[:few])

    def build(placeholder: Any) -> Method:
        inner = method(placeholder)

        def right(state: Any, key: Any) -> Any:
            points = inner.points(state) if inner.points else {}
            found = inner.predict({**inner.draw(state, key), **points}, {"x": x}, key)["mean"]
            return jnp.mean(jnp.argmax(found, 1) == y)

        def update(state: Any, release: Any, key: Any) -> Any:
            state, history, step = inner.update(state[0], release, key), state[1], state[2] + 1
            place = step // every - 1
            history = jax.lax.cond(step % every == 0, lambda: history.at[place].set(right(state, key)), lambda: history)
            return state, history, step

        def points(state: Any) -> dict[str, Any]:
            return {**(inner.points(state[0]) if inner.points else {}), "history": state[1]}

        return inner._replace(
            init=lambda key: (inner.init(key), jnp.zeros(PASSES + 1), jnp.int32(0)),
            contribute=lambda state, *more: inner.contribute(state[0], *more),
            update=update,
            draw=lambda state, key: inner.draw(state[0], key),
            predict=lambda draw, inputs, key: inner.predict(
                {name: value for name, value in draw.items() if name != "history"}, inputs, key
            ),
            points=points,
        )

    return build


def plain_step(method: Method, net: Any, records: Any, size: int) -> Callable[[Any, Any], Any]:
    """Give a step without privacy: one backward pass for the sum over a subset of a fixed size."""
    count = len(records["y"])

    def step(state: Any, key: Any) -> Any:
        own, chosen = jax.random.split(key)
        inner = state[0] if isinstance(state, tuple) and not hasattr(state, "_fields") else state
        some = jax.random.randint(chosen, (size,), 0, count)
        subset = {name: leaf[some] for name, leaf in records.items()}
        masks = jax.random.split(own, size) if method.own else None

        def fit(w: Any) -> Any:
            return jnp.sum(jax.vmap(net.log_likelihood, (None, 0, None if masks is None else 0))(w, subset, masks))

        bayes = hasattr(inner, "params")
        total = jax.grad(fit)(inner.weights[0] if bayes else inner.weights)
        total = [total] if bayes else total
        nothing = jax.tree.map(lambda leaf: jnp.float32(0), total)
        full = jax.tree.map(lambda leaf: leaf * (count / size), total)
        return method.update(state, Release(total, nothing, jnp.float32(size / count), full), key)

    return step


def fitted(name: str, network: str, prior: str, private: bool, given: Images, passes: int) -> Any:
    """Fit one method; give its posterior, the seconds that a pass took, and its settings' facts."""
    setting = (PRIVATE if private else PLAIN)[name]
    key, count = jax.random.key(0), len(given.train["y"])
    net = tacit.network(module(network, jax.random.key(1)), prior=prior, prior_std=PRIOR_STD)
    subset = min(setting.subset, count // 4)
    steps = math.ceil(passes * count / subset)
    method = with_history(setting.method(net, count, steps), given, count // subset)
    began = time.perf_counter()
    if private:
        found = study.fit(method, given.train, BUDGET, seed=1, rate=subset / count, steps=steps, clip=setting.clip)
    else:
        records = jax.tree.map(jnp.asarray, given.train)
        built = method(jax.tree.map(lambda leaf: leaf[0], records))
        step = jax.jit(plain_step(built, net, records, subset), donate_argnums=0)
        state = jax.tree.map(jnp.copy, built.init(key))  # each part its own, to be given up
        for t in range(steps):
            state = step(state, jax.random.fold_in(key, t))
        found = posterior_of(built, jax.block_until_ready(state), jax.random.fold_in(key, steps), None)
    seconds = (time.perf_counter() - began) / passes
    return found, seconds


def chances(posterior: Any, x: Any) -> Any:
    """Give the chances under every draw (draws times images times classes), at most 100 draws, in parts."""
    few = tacit.Posterior(
        {name: value[:100] for name, value in posterior.draws.items()}, None, posterior._method, posterior.points
    )
    parts = [few.predict({"x": part}, key=jax.random.key(2))["mean"] for part in np.array_split(x, 10)]
    return np.concatenate([np.asarray(part, np.float32) for part in parts], 1)


def judged(each: Any, y: Any) -> dict[str, Any]:
    """Give accuracy, log loss, calibration errors, and by how much mean confidence is above accuracy."""
    mean, found = each.mean(0), reliable(each, y)
    right = np.mean(mean.argmax(1) == y)
    return {
        "accuracy": float(right),
        "log loss": float(-np.mean(np.log(np.maximum(mean[np.arange(len(y)), y], 1e-12)))),
        "ECE": found.ece,
        "MCE": found.mce,
        "surplus of confidence": float(np.mean(mean.max(1)) - right),
    }


def reliable(each: Any, y: Any) -> Any:
    """Compare confidence with accuracy; single precision is made to add up."""
    mean = each.mean(0)
    return calibration.reliability(mean / mean.sum(1, keepdims=True), y)


def main() -> None:
    """Fit everything, print the tables, draw the figures."""
    chosen = study.options(
        __doc__,
        data={"default": "mnist,fashion_mnist"},
        networks={"default": "mlp"},
        methods={"default": ",".join(METHODS)},
        priors={"default": "normal,laplace,none"},
        parts={"default": "private,plain", "help": "what to do"},
    )
    chosen = {name: value.split(",") if isinstance(value, str) else value for name, value in vars(chosen).items()}
    if chosen["quick"]:
        chosen |= {"data": ["mnist"], "networks": ["tiny"], "priors": ["normal"]}
    given_words = [word for word in sys.argv[1:] if word not in ("--out", str(chosen["out"]))]
    command = shlex.join(["python", "papers/dpbnn/mnist.py", *given_words])
    results: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for data, network, prior in itertools.product(chosen["data"], chosen["networks"], chosen["priors"]):
        given = images(data, 400 if chosen["quick"] else None)
        kinds = [kind for kind in ("private", "plain") if kind in chosen["parts"]]
        names = [name for name in chosen["methods"] if prior in PRIORS.get(name, ("normal", "none"))]
        for kind, name in itertools.product(kinds, names):
            found, seconds = fitted(name, network, prior, kind == "private", given, 1 if chosen["quick"] else PASSES)
            each = chances(found, given.x)
            one = {**judged(each, given.y), "seconds a pass": seconds, "draws": len(each)}
            one["epsilon"] = None if found.certificate is None else found.certificate.epsilon
            one["history"] = [float(v) for v in np.asarray(found.points["history"])[:PASSES]]
            results[f"{data}, {network}, {name}, {prior}, {kind}"] = one
            print(data, network, name, prior, kind, one, flush=True)
            if data == chosen["data"][0] and network == chosen["networks"][0]:
                shown[f"{name}, {prior}, {kind}"] = (each[:, hard(given.y)], reliable(each, given.y), one["history"])
            write(chosen, command, results, shown, given)


def hard(y: Any) -> int:
    """Give the test image of Figure 6: the paper's is a 3 that is hard to predict; number 449 is one."""
    return 449 if len(y) > 449 else int(np.argmax(y == 3))


def write(chosen: Any, command: str, results: dict[str, Any], shown: dict[str, Any], given: Images) -> None:
    """Write the tables and figures of what there is."""
    text = [f"ε = {BUDGET.epsilon:g}, δ = {BUDGET.delta:g}, {PASSES} passes, one run each."]
    for data in chosen["data"]:
        rows, calibrated = [], []
        for network, name, prior in itertools.product(chosen["networks"], METHODS, ("normal", "laplace", "none")):
            private, plain = (results.get(f"{data}, {network}, {name}, {prior}, {k}") for k in ("private", "plain"))
            if private is None and plain is None:
                continue
            theirs = [*(THEIRS.get((network, name, prior), ()) if data == "mnist" else ()), *[None] * 6]
            accuracies = [of(private, "accuracy"), number(theirs[0], 2), of(plain, "accuracy"), number(theirs[1], 2)]
            seconds = [of(private, "seconds a pass", 1), of(plain, "seconds a pass", 1), TIMES[name]]
            rows.append([network, name, prior, *accuracies, of(private, "log loss"), of(plain, "log loss"), *seconds])
            errors = [(private, "ECE"), (private, "MCE"), (plain, "ECE"), (plain, "MCE")]
            pairs = ((of(*one, 3), number(paper, 3)) for one, paper in zip(errors, theirs[2:6], strict=True))
            surplus = of(private, "surplus of confidence", 3)
            calibrated.append([network, name, prior, *itertools.chain.from_iterable(pairs), surplus])
        if rows:
            header = ["network", "method", "prior", "private accuracy", "paper's", "plain accuracy", "paper's"]
            header += ["private log loss", "plain", "private seconds a pass", "plain", "paper's, on a GPU"]
            text += [f"{data}: accuracy and time (Table 2).", study.table(header, rows)]
            header = ["network", "method", "prior", "private ECE", "paper's", "private MCE", "paper's"]
            header += ["plain ECE", "paper's", "plain MCE", "paper's", "private confidence minus accuracy"]
            text += [f"{data}: calibration errors (Tables 3 and 4).", study.table(header, calibrated)]
    study.save(chosen["out"], "mnist", command, "\n\n".join(text), results, picture(shown))
    for left, title in ((predictions, "predictions"), (reliabilities, "reliability")):
        figure = left(shown, given)
        if figure is not None:
            figure.savefig(chosen["out"] / "figures" / f"mnist_{title}.png", dpi=90)


def of(one: Any, measure: str, digits: int = 4) -> str:
    """Write one figure, or nothing."""
    return "" if one is None else number(one[measure], digits)


def number(value: Any, digits: int) -> str:
    """Write a number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def picture(shown: dict[str, Any]) -> Any:
    """Draw Figure 1: accuracy of one draw over passes, normal prior."""
    figure, axes = study.panels(2, 4.2)
    for ax, kind in zip(axes, ("private", "plain"), strict=True):
        for place, name in enumerate(METHODS):
            if f"{name}, normal, {kind}" in shown:
                history = shown[f"{name}, normal, {kind}"][2]
                ax.plot(range(1, len(history) + 1), history, "o-", ms=3, color=plots.COLOURS[place], label=name)
        ax.set(xlabel="passes", ylabel="accuracy of one draw, 1000 test images", ylim=(0.5, 1), title=kind)
        ax.legend(frameon=False, fontsize=7)
    return figure


def predictions(shown: dict[str, Any], given: Images) -> Any:
    """Draw Figure 6: chances over draws for one image."""
    names = [name for name in METHODS if f"{name}, normal, private" in shown and name != "SGD"]
    kinds = [kind for kind in ("plain", "private") if any(f"{name}, normal, {kind}" in shown for name in names)]
    if not names:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(kinds), len(names), figsize=(3.4 * len(names), 2.7 * len(kinds)), layout="constrained", squeeze=False
    )
    label = int(given.y[hard(given.y)])
    for row, kind in zip(axes, kinds, strict=True):
        for ax, name in zip(row, names, strict=True):
            if f"{name}, normal, {kind}" in shown:
                plots.plot_prediction(shown[f"{name}, normal, {kind}"][0], label, ax)
            ax.set_title(f"{name}, {kind}", loc="left", fontsize=8)
    return figure


def reliabilities(shown: dict[str, Any], given: Images) -> Any:
    """Draw Figures 7-10: confidences, and accuracy over confidence, with and without a prior."""
    names = [name for name in METHODS if any(one.startswith(f"{name}, ") for one in shown)]
    if not names:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(names), figsize=(3.3 * len(names), 6.2), layout="constrained", squeeze=False)
    for (top, bottom), name in zip(axes.T, names, strict=True):
        found = {
            title.removeprefix(f"{name}, "): one[1] for title, one in shown.items() if title.startswith(f"{name}, ")
        }
        first = next(title for title in ("normal, private", *found) if title in found)
        plots.plot_confidence(found[first], top)
        plots.plot_reliability(found, bottom)
        top.set_title(f"{name}: {first}", loc="left", fontsize=8)
        bottom.set_title(name, loc="left", fontsize=8)
    return figure


if __name__ == "__main__":
    main()
