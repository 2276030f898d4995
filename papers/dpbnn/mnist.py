"""Tables 2, 3 and 4 and Figures 1 and 6-10 of the DP-BNN paper: handwritten digits.

    python papers/dpbnn/mnist.py          (--quick for a smoke test; --parts, --networks, --methods, --data for a part;
                                           --resume keeps what results/mnist.json has)

60000 training and 10000 test images of MNIST, pixels over 255. Networks: "mlp", 784-1200-1200-10 with rectified units,
as in the paper; "cnn", the four layers of the Opacus example, with tanh in place of rectified units. Priors of standard
deviation 0.1 on each weight, normal or Laplace, or none; 1 for dropout and SGD, for which the paper names none (its
reference code has 1). Private: 15 passes, epsilon at most 1 at delta 1e-5, certified
(the paper's epsilon is at most 0.989 by Rényi accounting). Without privacy: the same method, network and passes, with
subsets of 256 and settings of its own. Settings were chosen on Fashion-MNIST: 55000 of its training images to learn
from, the others to compare.

58000 of the images are fitted to. The others are held aside to buy a temperature for the methods whose chances come
from draws; an image is in one part only, so that epsilon is at most 1 for each.

Accuracy, log loss, ECE and MCE (15 bins) are those of chances averaged over the posterior's draws (SGLD: over 20 places
of its last half), on the test images. Times of single steps are in timing.py.
"""

from __future__ import annotations

import itertools
import json
import math
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
from tacit.results import calibration, plots
from tacit.run import recalibrate
from tacit.run.draws import posterior_of
from tacit.types import Method, MethodFor, Plan, Release

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
BUDGET, PASSES, PRIOR_STD, CHANCE = tacit.Budget(1.0, 1e-5), 15, 0.1, 0.1
PLAIN_SUBSET, HELD_SHARE, DRAWS, POINT_PRIOR_STD = 256, 30, 30, 1.0
METHODS, NETWORKS = ("SGLD", "BBP", "MC dropout", "SGD"), ("mlp", "cnn", "tiny")
FIRST = (["mnist", "mlp"], ["mnist", "tiny"])
"""Whose fits the figures show."""
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
            layer_key = None if key is None else jax.random.fold_in(key, place)
            x = self.dropout(jax.nn.relu(layer(x)), key=layer_key)
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
            x = jnp.moveaxis(jnp.tanh(x), -1, 0)
        x = self.dropout(jnp.tanh(self.layers[0](jnp.ravel(x))), key=key)
        return self.layers[1](x)


def module(name: str, key: Any) -> Any:
    """Return a network by its name."""
    if name == "cnn":
        return Convolutional(CHANCE, key)
    return Dense({"mlp": (1200, 1200), "tiny": (8,)}[name], CHANCE, key)


class Setting(NamedTuple):
    """A method on a network of so many records, for so many steps, to predict images; a subset's size; the clip."""

    method: Callable[[Any, int, int, Any], Any]
    subset: int
    clip: float


def langevin(pace: float) -> Callable[[Any, int, int, Any], Any]:
    """Return SGLD of a learning rate for mean losses; 20 places of its last half predict, the last 10 are kept."""

    def make(net: Any, size: int, steps: int, x: Any) -> Any:
        late = {"keep": 10, "burn_in": steps // 2, "thin": max(1, steps // 40), "watch": {"x": x}}
        return tacit.sgld(net, step_size=pace / size, friction=0.1, **late)

    return make


def descending(method: Any, pace: float, **more: Any) -> Callable[[Any, int, int, Any], Any]:
    """Return a method with momentum."""
    return lambda net, size, steps, x: method(net, optimizer=optax.sgd(pace, momentum=0.9), **more)


PRIVATE = {
    "mlp": {
        "SGLD": Setting(langevin(0.5), 2048, 2.0),
        "BBP": Setting(descending(tacit.bayes_by_backprop, 0.5, temperature=0.1), 4000, 2.0),
        "MC dropout": Setting(descending(tacit.dropout, 1.0), 4000, 1.0),
        "SGD": Setting(descending(tacit.sgd, 1.0), 4000, 1.0),
    },
    "cnn": {
        "SGLD": Setting(langevin(0.3), 1024, 2.0),
        "BBP": Setting(descending(tacit.bayes_by_backprop, 0.3, temperature=0.01), 1024, 2.0),
        "MC dropout": Setting(descending(tacit.dropout, 0.3), 1024, 2.0),
        "SGD": Setting(descending(tacit.sgd, 0.3), 1024, 2.0),
    },
}
PRIVATE["tiny"] = PRIVATE["mlp"]
PLAIN = {
    "SGLD": Setting(langevin(0.012), PLAIN_SUBSET, math.inf),
    "BBP": Setting(descending(tacit.bayes_by_backprop, 0.02), PLAIN_SUBSET, math.inf),
    "MC dropout": Setting(descending(tacit.dropout, 0.02), PLAIN_SUBSET, math.inf),
    "SGD": Setting(descending(tacit.sgd, 0.02), PLAIN_SUBSET, math.inf),
}


class Images(NamedTuple):
    """Training records, records held aside for a temperature, and test images with labels."""

    train: dict[str, Any]
    held: dict[str, Any]
    x: Any
    y: Any


def images(name: str, count: int | None = None) -> Images:
    """Read a set of images; pixels over 255 is public knowledge."""
    with np.load(study.data_folder() / f"{name}.npz", allow_pickle=False) as file:
        x, y, test_x, test_y = (file[part] for part in ("x_train", "y_train", "x_test", "y_test"))

    def flat(part: Any) -> Any:
        return part.reshape(len(part), -1).astype(np.float32) / 255

    few, x, y = slice(None, count), flat(x[:count]), y[:count].astype(np.int32)
    rest = len(y) - len(y) // HELD_SHARE
    train, held = ({"x": x[part], "y": y[part]} for part in (slice(rest), slice(rest, None)))
    return Images(train, held, flat(test_x[few]), test_y[few].astype(np.int32))


def with_history(method: MethodFor, given: Images, every: int) -> MethodFor:
    """Let a method note how many of 1000 test images one of its draws gets right, each time a pass is done."""
    few = min(1000, len(given.y) // 2)
    x, y = jnp.asarray(given.x[:few]), jnp.asarray(given.y[:few])

    def build(plan: Plan) -> Method:
        inner = method(plan)

        def right(state: Any, key: Any) -> Any:
            points = inner.point_estimates(state) if inner.point_estimates else {}
            found = inner.model.predict({**inner.draw(state, key), **points}, {"x": x}, key)["mean"]
            return jnp.mean(jnp.argmax(found, 1) == y)

        def update(state: Any, release: Any, key: Any) -> Any:
            state, history, step = inner.update(state[0], release, key), state[1], state[2] + 1
            place = step // every - 1
            history = jax.lax.cond(step % every == 0, lambda: history.at[place].set(right(state, key)), lambda: history)
            return state, history, step

        def points(state: Any) -> dict[str, Any]:
            return {**(inner.point_estimates(state[0]) if inner.point_estimates else {}), "history": state[1]}

        def predict(draw: Any, inputs: Any, key: Any) -> Any:
            return inner.model.predict({name: value for name, value in draw.items() if name != "history"}, inputs, key)

        return inner._replace(
            init=lambda key: (inner.init(key), jnp.zeros(PASSES + 1), jnp.int32(0)),
            contribute=lambda state, *more: inner.contribute(state[0], *more),
            update=update,
            draw=lambda state, key: inner.draw(state[0], key),
            point_estimates=points,
            model=inner.model._replace(predict=predict),
        )

    return MethodFor(build)


def plain_step(method: Method, net: Any, records: Any, size: int) -> Callable[[Any, Any], Any]:
    """Return a step without privacy: one backward pass for the sum over a subset of a fixed size."""
    count = len(records["y"])

    def step(state: Any, key: Any) -> Any:
        mask_key, chosen = jax.random.split(key)
        inner = state[0] if isinstance(state, tuple) and not hasattr(state, "_fields") else state
        some = jax.random.randint(chosen, (size,), 0, count)
        subset = {name: leaf[some] for name, leaf in records.items()}
        masks = jax.random.split(mask_key, size) if method.per_record_key else None

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
    setting = (PRIVATE[network] if private else PLAIN)[name]
    key, count = jax.random.key(0), len(given.train["y"])
    prior_std = PRIOR_STD if name in PRIORS else POINT_PRIOR_STD
    net = tacit.network(module(network, jax.random.key(1)), prior=prior, prior_std=prior_std)
    subset = min(setting.subset, count // 4)
    steps = math.ceil(passes * count / subset)
    method = with_history(setting.method(net, count, steps, given.x), given, count // subset)
    began = time.perf_counter()
    if private:
        found = study.fit(method, given.train, BUDGET, seed=1, rate=subset / count, steps=steps, clip=setting.clip)
    else:
        records = jax.tree.map(jnp.asarray, given.train)
        built = method(Plan(jax.tree.map(lambda leaf: leaf[0], records), count, steps=steps))
        step = jax.jit(plain_step(built, net, records, subset), donate_argnums=0)
        state = jax.tree.map(jnp.copy, built.init(key))  # each part its own, to be given up
        for t in range(steps):
            state = step(state, jax.random.fold_in(key, t))
        found = posterior_of(built, jax.block_until_ready(state), jax.random.fold_in(key, steps), None)
    seconds = (time.perf_counter() - began) / passes
    return found, seconds


def first(posterior: Any, draws: int) -> Any:
    """Return the posterior with its first draws only."""
    few = {name: value[:draws] for name, value in posterior.draws.items()}
    return tacit.Posterior(few, None, posterior._method, posterior.point_estimates)


def chances(posterior: Any, x: Any, draws: int = DRAWS) -> Any:
    """Return the chances under every draw (draws times images times classes), in parts."""
    few = first(posterior, draws)
    parts = [few.predict({"x": part}, key=jax.random.key(2))["mean"] for part in np.array_split(x, -(-len(x) // 1000))]
    return np.concatenate([np.asarray(part, np.float32) for part in parts], 1)


def main() -> None:
    """Fit everything, print the tables, draw the figures."""
    chosen = study.options(
        __doc__,
        data={"default": "mnist,fashion_mnist"},
        networks={"default": "mlp,cnn"},
        methods={"default": ",".join(METHODS)},
        priors={"default": "normal,laplace,none"},
        parts={"default": "private,plain", "help": "what to do"},
        resume={"action": "store_true", "help": "keep the fits that results/mnist.json has"},
    )
    wanted = {name: value.split(",") for name, value in vars(chosen).items() if isinstance(value, str)}
    if chosen.quick:
        wanted |= {"data": ["mnist"], "networks": ["tiny"], "priors": ["normal"]}
    file = chosen.out / "results" / "mnist.json"
    results: dict[str, Any] = json.loads(file.read_text()) if chosen.resume and file.exists() else {}
    results.pop("command", None)
    for data in wanted["data"]:
        given = images(data, 400 if chosen.quick else None)
        for network, prior, kind in itertools.product(wanted["networks"], wanted["priors"], wanted["parts"]):
            for name in wanted["methods"]:
                title = f"{data}, {network}, {name}, {prior}, {kind}"
                if title in results or prior not in PRIORS.get(name, ("normal", "none")):
                    continue
                passes = 1 if chosen.quick else PASSES
                found, seconds = fitted(name, network, prior, kind == "private", given, passes)
                results[title] = one = looked_at(found, given, seconds)
                write(chosen.out, results)
                if kind == "private" and name != "SGLD":  # SGLD averages over more places than can be held aside here
                    one |= tempered(found, given)
                    write(chosen.out, results)
                shown = ("accuracy", "ECE", "tempered ECE", "temperature", "seconds a pass")
                print(title, {measure: one.get(measure) for measure in shown}, flush=True)
    write(chosen.out, results)


def looked_at(posterior: Any, given: Images, seconds: float) -> dict[str, Any]:
    """Return what tables and figures need of a fit: measures, bins of confidence, the chances of one image."""
    mean = predicted(posterior, given)
    bins, one = calibration.reliability(mean, given.y), hard(given.y)
    right = float(np.mean(mean.argmax(1) == given.y))
    return {
        "accuracy": right,
        "log loss": float(-np.mean(np.log(np.maximum(mean[np.arange(len(given.y)), given.y], 1e-12)))),
        "ECE": bins.ece,
        "MCE": bins.mce,
        "surplus of confidence": float(np.mean(mean.max(1)) - right),
        "seconds a pass": seconds,
        "epsilon": None if posterior.certificate is None else posterior.certificate.epsilon,
        "history": np.asarray(posterior.point_estimates["history"])[:PASSES].tolist(),
        "bins": {name: np.nan_to_num(getattr(bins, name)).tolist() for name in ("confidence", "accuracy", "share")},
        "one image": np.round(chances(posterior, given.x[one : one + 1], 100)[:, 0], 3).tolist(),
        "its label": int(given.y[one]),
    }


def predicted(posterior: Any, given: Images) -> Any:
    """Return the chances of the test images, averaged over draws; single precision is made to add up."""
    watched = posterior.point_estimates.get("watched mean")
    mean = np.asarray(chances(posterior, given.x).mean(0) if watched is None else watched, float)
    return mean / mean.sum(1, keepdims=True)


def tempered(posterior: Any, given: Images) -> dict[str, Any]:
    """Buy a temperature with the records held aside, and give the calibration errors with it.

    No image is in both parts, and which part it is in is fixed by its public number in the set, so that its epsilon is
    that of the part it is in, not the sum (parallel composition).
    """
    held = tacit.PrivateData(given.held, size=len(given.held["y"]))
    few = first(posterior, DRAWS)
    found = recalibrate.fit_temperature(few, held, BUDGET, key=jax.random.key(3), simulate=3)
    bins = calibration.reliability(found.apply(predicted(posterior, given)), given.y)
    return {"temperature": found.value, "tempered ECE": bins.ece, "tempered MCE": bins.mce}


def hard(y: Any) -> int:
    """Return the test image of Figure 6: the paper's is a 3 that is hard to predict; number 449 is one."""
    return 449 if len(y) > 449 else int(np.argmax(y == 3))


def write(out: Path, results: dict[str, Any]) -> None:
    """Write the tables and figures of what there is."""
    text = [f"ε = {BUDGET.epsilon:g}, δ = {BUDGET.delta:g}, {PASSES} passes, one run each."]
    for data in dict.fromkeys(title.split(", ")[0] for title in results):
        rows, calibrated = [], []
        for network, name, prior in itertools.product(NETWORKS, METHODS, ("normal", "laplace", "none")):
            private, plain = (results.get(f"{data}, {network}, {name}, {prior}, {k}") for k in ("private", "plain"))
            if private is None and plain is None:
                continue
            theirs = [*(THEIRS.get((network, name, prior), ()) if data == "mnist" else ()), *[None] * 6]
            accuracies = [of(private, "accuracy"), number(theirs[0], 2), of(plain, "accuracy"), number(theirs[1], 2)]
            seconds = [of(private, "seconds a pass", 1), of(plain, "seconds a pass", 1), TIMES[name]]
            rows.append([network, name, prior, *accuracies, of(private, "log loss"), of(plain, "log loss"), *seconds])
            errors = [(private, "ECE"), (private, "MCE"), (plain, "ECE"), (plain, "MCE")]
            pairs = ((of(*one, 3), number(paper, 3)) for one, paper in zip(errors, theirs[2:6], strict=True))
            mended = [
                of(private, "surplus of confidence", 3),
                of(private, "tempered ECE", 3),
                of(private, "temperature", 2),
            ]
            calibrated.append([network, name, prior, *itertools.chain.from_iterable(pairs), *mended])
        header = ["network", "method", "prior", "private accuracy", "paper's", "plain accuracy", "paper's"]
        header += ["private log loss", "plain", "private seconds a pass", "plain", "paper's, on a GPU"]
        text += [f"{data}: accuracy and time (Table 2).", study.table(header, rows)]
        header = ["network", "method", "prior", "private ECE", "paper's", "private MCE", "paper's"]
        header += ["plain ECE", "paper's", "plain MCE", "paper's", "private confidence minus accuracy"]
        header += ["private ECE with a bought temperature", "temperature"]
        text += [f"{data}: calibration errors (Tables 3 and 4).", study.table(header, calibrated)]
    shown = {title.split(", ", 2)[2]: one for title, one in results.items() if title.split(", ")[:2] in FIRST}
    study.save(out, "mnist", "python papers/dpbnn/mnist.py", "\n\n".join(text), results, picture(shown))
    for draw, title in ((predictions, "predictions"), (reliabilities, "reliability")):
        figure = draw(shown)
        if figure is not None:
            figure.savefig(out / "figures" / f"mnist_{title}.png", dpi=90)


def of(one: Any, measure: str, digits: int = 4) -> str:
    """Write one figure, or nothing."""
    return "" if one is None else number(one.get(measure), digits)


def number(value: Any, digits: int) -> str:
    """Write a number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def picture(shown: dict[str, Any]) -> Any:
    """Draw Figure 1: accuracy of one draw over passes, normal prior."""
    kinds = [kind for kind in ("private", "plain") if any(title.endswith(f"normal, {kind}") for title in shown)]
    figure, axes = study.panels(max(1, len(kinds)), 4.2)
    for ax, kind in zip(axes, kinds, strict=False):
        for place, name in enumerate(METHODS):
            if f"{name}, normal, {kind}" in shown:
                history = shown[f"{name}, normal, {kind}"]["history"]
                ax.plot(range(1, len(history) + 1), history, "o-", ms=3, color=plots.COLOURS[place], label=name)
        ax.set(xlabel="passes", ylabel="accuracy of one draw", ylim=(0.5, 1), title=f"{kind}, 1000 test images")
        ax.legend(frameon=False, fontsize=7, loc="lower right")
    return figure


def predictions(shown: dict[str, Any]) -> Any:
    """Draw Figure 6: chances over draws for one image."""
    names = [name for name in METHODS if f"{name}, normal, private" in shown and name != "SGD"]
    kinds = [kind for kind in ("plain", "private") if any(f"{name}, normal, {kind}" in shown for name in names)]
    if not names:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(kinds), len(names), figsize=(3.4 * len(names), 2.7 * len(kinds)), layout="constrained", squeeze=False
    )
    for row, kind in zip(axes, kinds, strict=True):
        for ax, name in zip(row, names, strict=True):
            if f"{name}, normal, {kind}" in shown:
                one = shown[f"{name}, normal, {kind}"]
                plots.plot_prediction(one["one image"], one["its label"], ax)
            ax.set_title(f"{name}, {kind}", loc="left", fontsize=8)
    return figure


def reliabilities(shown: dict[str, Any]) -> Any:
    """Draw Figures 7-10: confidences, and accuracy over confidence, with and without a prior."""
    names = [name for name in METHODS if any(one.startswith(f"{name}, ") for one in shown)]
    if not names:
        return None
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(names), figsize=(3.3 * len(names), 6.2), layout="constrained", squeeze=False)
    for (top, bottom), name in zip(axes.T, names, strict=True):
        found = {
            title.removeprefix(f"{name}, "): binned(one)
            for title, one in shown.items()
            if title.startswith(f"{name}, ")
        }
        first = next(title for title in ("normal, private", *found) if title in found)
        plots.plot_confidence(found[first], top)
        plots.plot_reliability(found, bottom)
        bottom.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        top.set_title(f"{name}: {first}", loc="left", fontsize=8)
        bottom.set_title(name, loc="left", fontsize=8)
    return figure


def binned(one: dict[str, Any]) -> Any:
    """Return the bins of confidence back as they were; those without predictions have no accuracy."""
    share = np.asarray(one["bins"]["share"])
    means = (np.where(share > 0, one["bins"][name], np.nan) for name in ("confidence", "accuracy"))
    edges = np.linspace(0, 1, len(share) + 1)
    return calibration.Reliability(edges[:-1], edges[1:], *means, share)


if __name__ == "__main__":
    main()
