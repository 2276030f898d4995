"""Figures 4 and 5 of the DP-BNN paper: Langevin dynamics as a member of the family of private gradient descent.

    python papers/dpbnn/family.py          (--quick for a smoke test; --passes 15 for the paper's; --resume)

The convolutional network of mnist.py on MNIST, plain steps without momentum, delta 1e-5. A member of the family is a
learning rate, a clip, a noise multiplier and a subset's size; the accuracy of its place after every pass, on 1000 test
images, stands beside the epsilon certified for the steps up to there. DP-SGLD of step size eta at the paper's
temperature 1/2 is the member with learning rate 60000 eta and noise multiplier |B| / (sqrt(eta) 60000 C), the paper's
Theorem 1 corrected (``classical.sgd_from_sgld``).

Figure 4: |B| = 256; descent with rate 0.25 and clip 1.5 for each noise multiplier and noise 1.3 for each clip; Langevin
dynamics of eta 1e-5 for each clip (at a clip of 5 its noise multiplier is 0.27, which protects nobody: left out).
Figure 5: subsets of several sizes for both, and several step sizes for Langevin dynamics, clip 1.5.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple

import jax
import mnist
import numpy as np
import optax
import study

import tacit
from tacit.accounting import classical
from tacit.results import plots

study.HERE = mnist.HERE
RECORDS, DELTA = 60000, 1e-5
CLIPS, NOISES, SUBSETS, PACES = (
    (0.5, 1.0, 1.5, 2.0, 5.0),
    (0.5, 0.9, 1.3, 2.0, 3.0),
    (128, 256, 512),
    (2e-6, 5e-6, 1e-5),
)


class Member(NamedTuple):
    """A member of the family of private gradient descent, and what it is called."""

    name: str
    learning_rate: float
    clip: float
    noise_multiplier: float
    subset: int


def descent(clip: float, noise_multiplier: float, subset: int = 256) -> Member:
    """Return a member with the paper's learning rate."""
    return Member(f"SGD, C {clip:g}, σ {noise_multiplier:g}, subset {subset}", 0.25, clip, noise_multiplier, subset)


def langevin(clip: float, pace: float = 1e-5, subset: int = 256) -> Member:
    """Return the member that is DP-SGLD."""
    found = classical.sgd_from_sgld(pace, size=RECORDS, rate=subset / RECORDS, clip=clip, temperature=0.5)
    name = f"SGLD, η {pace:g}, C {clip:g}, subset {subset}"
    return Member(name, found.learning_rate, clip, found.noise_multiplier, subset)


FOURTH = [
    *(descent(1.5, noise) for noise in NOISES),
    *(descent(clip, 1.3) for clip in CLIPS if clip != 1.5),
    *(langevin(clip) for clip in CLIPS[:-1]),
]
FIFTH = [
    [descent(1.5, 1.3, subset) for subset in SUBSETS],
    [langevin(1.5, subset=subset) for subset in SUBSETS],
    [langevin(1.5, pace) for pace in PACES],
]


def at_last(method: tacit.MethodFor) -> tacit.MethodFor:
    """Let a method draw its last place in place of an average."""
    return tacit.MethodFor(lambda plan: method(plan)._replace(draw=lambda state, key: state.weights))


def walked(member: Member, given: mnist.Images, passes: int) -> dict[str, Any]:
    """Fit a member; give the accuracy of its place, and the epsilon certified up to there, after every pass."""
    count = len(given.train["y"])
    rate = min(member.subset, count // 4) / count
    every = round(1 / rate)
    costs = [tacit.accounting.epsilon(rate, member.noise_multiplier, every * (i + 1), DELTA) for i in range(passes)]
    network = "cnn" if count > 1000 else "tiny"
    net = tacit.network(mnist.module(network, jax.random.key(1)), prior="none")
    method = at_last(tacit.sgd(net, optimizer=optax.sgd(member.learning_rate)))
    # The smallest budget that lets the member's own noise through.
    budget = tacit.Budget(costs[-1] * (1 + 1e-4), DELTA)
    watched = mnist.with_history(method, given, every)
    steps = every * passes
    found = study.fit(watched, given.train, budget, seed=1, rate=rate, steps=steps, clip=member.clip)
    accuracies = np.asarray(found.point_estimates["history"])[:passes]
    return {"epsilon": costs, "accuracy": accuracies.tolist(), "noise multiplier": member.noise_multiplier}


def main() -> None:
    """Fit all members, print the table, draw both figures."""
    chosen = study.options(
        __doc__,
        passes={"type": int, "default": 5, "help": "over the training images (the paper: 15)"},
        most={"type": int, "help": "stop after so many members; go on with --resume"},
        resume={"action": "store_true", "help": "keep the members that results/family.json has"},
    )
    passes, members = (1, FOURTH[:1]) if chosen.quick else (chosen.passes, [*FOURTH, *itertools.chain(*FIFTH)])
    file = chosen.out / "results" / "family.json"
    results: dict[str, Any] = json.loads(file.read_text()) if chosen.resume and file.exists() else {}
    given = mnist.images("mnist", 400 if chosen.quick else None)
    everyone = jax.tree.map(lambda *parts: np.concatenate(parts), given.train, given.held)
    given = given._replace(train=everyone)  # nothing is bought with those held aside
    for member in [one for one in members if one.name not in results][: chosen.most]:
        results[member.name] = walked(member, given, passes)
        print(member.name, results[member.name], flush=True)
        report(chosen.out, results, passes)
    report(chosen.out, results, passes)


def report(out: Any, results: dict[str, Any], passes: int) -> None:
    """Write the table and the figures of what there is."""
    rows = [
        (name, f"{one['noise multiplier']:.2f}", f"{one['epsilon'][-1]:.2f}", f"{one['accuracy'][-1]:.3f}")
        for name, one in results.items()
        if isinstance(one, dict)
    ]
    figure, (left, *others) = study.panels(4, 3.7, 3.2)
    for place, (kind, members) in enumerate((("SGD", FOURTH[:9]), ("SGLD", FOURTH[9:]))):
        done = [results[member.name] for member in members if member.name in results]
        for i, one in enumerate(done):
            style = {"color": plots.COLOURS[place], "marker": "os"[place], "ms": 3, "lw": 0.8}
            left.plot(one["epsilon"], one["accuracy"], label=None if i else kind, **style)
    left.set(xscale="log", xlabel="ε, certified", ylabel="accuracy of one place")
    left.set_title("Figure 4: a curve for each member, a mark for each pass", fontsize=9)
    titles = ("SGD, σ 1.3, by subset", "SGLD, η 1e-5, by subset", "SGLD, subsets of 256, by η")
    for ax, members, title in zip(others, FIFTH, titles, strict=True):
        done = [member for member in members if member.name in results]
        costs, accuracies = ([results[one.name][what][-1] for one in done] for what in ("epsilon", "accuracy"))
        marks = [member.name.split(", ")[1] if "by η" in title else f"subset {member.subset}" for member in done]
        ax.plot(costs, accuracies, "o-", ms=4, color=plots.COLOURS["SGLD" in title])
        for mark, cost, accuracy in zip(marks, costs, accuracies, strict=True):
            ax.annotate(mark, (cost, accuracy), textcoords="offset points", xytext=(0, -12), fontsize=7, ha="center")
        study.log_axis(ax, [round(cost, 2) for cost in costs])
        ax.margins(0.2)
        ax.set(xlabel="ε, certified", ylim=(0.9, 0.97))
        ax.set_title(f"Figure 5: {title}", fontsize=9)
    left.legend(frameon=False, fontsize=7, loc="lower right")
    command = "python papers/dpbnn/family.py" + (f" --passes {passes}" if passes != 5 else "")
    table = study.table(["member", "noise multiplier", "ε", "accuracy of the last place"], rows)
    said = f"δ = {DELTA:g}, {passes} {'pass' if passes == 1 else 'passes'}, one run each, 1000 test images."
    study.save(out, "family", command, f"{said}\n\n{table}", results, figure)


if __name__ == "__main__":
    main()
