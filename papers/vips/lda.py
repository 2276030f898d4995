"""Topics of Wikipedia (Section 4 of the VIPS paper): private LDA, one pass, 100000 articles, 50 topics, 8000 words.

    python papers/vips/lda.py        (--quick for a smoke test)

Perplexity is the upper bound on held-out articles, those with at most 256 distinct words, the topics' own part of the
bound included in proportion. The non-private run is the same method on the same records with the same rate, steps and
starts, without clip and noise. scikit-learn's online LDA makes one pass over the same thinned documents in batches of
the same size, in the same process; times are of whole fits, compiled before, and memory is the peak of the process
before scikit-learn is used.

The paper shows perplexities in figures; its 400000 articles and its vocabulary are others. Its Table 2 shows top words
of private and non-private topics; so does the end of ours.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import sparse

import tacit
from tacit.fit import fit_public
from tacit.topics import coherence, perplexity, top_words

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
DELTA = 1e-5
EPSILONS = (2.0, 8.0)
PASS = (2, 5)
"""Numbers of steps in which the one pass is made, at a rate of one over it."""
STEPS = 5
SEEDS = {2: (0,), STEPS: (0, 1)}


class Fitted(NamedTuple):
    """Topics times words, the seconds that it took, and the perplexity."""

    topics: Any
    seconds: float
    value: float


def wikipedia(count: int) -> tuple[Any, Any, list[str]]:
    """Read training articles, held-out articles of at most 256 distinct words, and the vocabulary."""
    folder = study.data_folder()
    with np.load(folder / "wiki_bow.npz") as file:
        matrix = sparse.csr_matrix((file["data"], file["indices"], file["indptr"]), tuple(file["shape"]))
        train, held = matrix[: min(count, int(file["n_train"]))], matrix[int(file["n_train"]) :]
    held = held[np.flatnonzero(np.diff(held.indptr) <= 256)][: max(20, count // 50)]
    return train, held, (folder / "wiki_vocab.txt").read_text().split()


def main() -> None:
    """Fit, compare, print, plot."""
    chosen = study.options(__doc__)
    count, topics = (2000, 10) if chosen.quick else (100_000, 50)
    train, held, words = wikipedia(count)
    words_held = tacit.documents(held, width=256)
    records = tacit.documents(train, cap=2.0)
    method = tacit.lda(topics, len(words))

    def value(concentration: Any) -> float:
        return perplexity(concentration, words_held, training=count)

    def private(epsilon: float, steps: int, seed: int) -> Fitted:
        budget = tacit.Budget(epsilon, DELTA)
        return timed(
            f"private, epsilon {epsilon}, {steps} steps",
            lambda: study.fit(method, records, budget, seed, rate=1 / steps, steps=steps),
        )

    def public(steps: int, seed: int) -> Fitted:
        return timed(
            f"public, {steps} steps",
            lambda: fit_public(method, records, rate=1 / steps, steps=steps, key=jax.random.key(seed)),
        )

    def timed(what: str, fit: Any) -> Fitted:
        begin = time.perf_counter()
        found = fit().points["concentration"]
        fitted = Fitted(found, time.perf_counter() - begin, value(found))
        print(f"{what}: {fitted.seconds:.0f} s, {fitted.value:.0f}", file=sys.stderr, flush=True)
        return fitted

    # The first seed compiles, the last one is timed.
    kinds: dict[str, Any] = {"private": {STEPS: [private(1.0, STEPS, seed) for seed in SEEDS[STEPS]]}}
    ours, seconds, _ = kinds["private"][STEPS][-1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {memory:.0f} MB", file=sys.stderr, flush=True)
    for steps in PASS:
        if steps != STEPS:
            kinds["private"][steps] = [private(1.0, steps, seed) for seed in SEEDS[steps]]
    kinds["public"] = {steps: [public(steps, seed) for seed in SEEDS[steps]] for steps in PASS}
    values = {
        kind: {steps: [fit.value for fit in fits] for steps, fits in sorted(kinds[kind].items())} for kind in kinds
    }
    curve = {1.0: np.mean(values["private"][STEPS])}
    curve |= {epsilon: private(epsilon, STEPS, 0).value for epsilon in EPSILONS}
    frequency = np.asarray(train.sum(0)).ravel() + 1.0
    one_topic = float(np.exp(-(held @ np.log(frequency / frequency.sum())).sum() / held.sum()))
    peer, peer_seconds = scikit_learn(records, len(words), topics, count // STEPS)
    theirs = value(peer)

    rows = [
        (
            steps,
            len(SEEDS[steps]),
            *(study.shown(values[kind][steps], 0).removesuffix(" ± 0") for kind in ("private", "public")),
            f"{ratio(values, steps):.3f}",
        )
        for steps in PASS
    ]
    times = [
        ("tacit, private", f"{1e6 * seconds / count:.0f}", f"{values['private'][STEPS][-1]:.0f}"),
        ("scikit-learn, online", f"{1e6 * peer_seconds / count:.0f}", f"{theirs:.0f}"),
    ]
    common = kinds["public"][STEPS][-1].topics
    order = np.argsort(-coherence(ours, held))[:5]
    shown = [(" ".join(line),) for line in top_words(ours[order], words, 8)]
    order = np.argsort(-coherence(common, held))[:5]
    shown_public = [(" ".join(line),) for line in top_words(common[order], words, 8)]
    text = "\n\n".join(
        [
            f"{count} articles, {topics} topics, {len(words)} words, one pass; held out: {held.shape[0]} articles. "
            f"One topic for all articles has perplexity {one_topic:.0f}.",
            "At epsilon 1, delta 1e-5, mean ± Monte-Carlo standard error where there is more than one run:",
            study.table(("steps", "runs", "private", "non-private", "ratio of means"), rows),
            f"In {STEPS} steps, by epsilon:",
            study.table(("epsilon", "perplexity"), [(e, f"{v:.0f}") for e, v in sorted(curve.items())]),
            f"Time of one pass in {STEPS} steps, in one run; peak memory of tacit {memory:.0f} MB:",
            study.table(("", "microseconds a document", "perplexity"), times),
            f"Mean coherence of topics on the held-out articles: private {coherence(ours, held).mean():.3f}, "
            f"non-private {coherence(common, held).mean():.3f}. The five most coherent topics, private:",
            study.table(("top words",), shown),
            "and non-private:",
            study.table(("top words",), shown_public),
        ]
    )
    results = {
        "perplexity": values,
        "by_epsilon": curve,
        "one_topic": one_topic,
        "scikit_learn": theirs,
        "seconds": seconds,
        "seconds_scikit_learn": peer_seconds,
        "peak_megabytes": memory,
    }
    study.save(chosen.out, "lda", "python papers/vips/lda.py", text, results, plot(curve, values["public"], one_topic))


def plot(curve: dict[float, float], public: dict[int, list[float]], one_topic: float) -> Any:
    """Draw perplexity over epsilon, in as many steps as the fit without privacy that stands beside it."""
    figure, (ax,) = study.panels(1, 4.4)
    places = sorted(curve)
    ax.plot(places, [curve[epsilon] for epsilon in places], "o-", color=study.COLOURS["blue"], label="private")
    free = np.mean(public[STEPS])
    ax.axhline(free, color=study.COLOURS["black"], label="non-private")
    ax.axhline(1.25 * free, color=study.COLOURS["black"], ls=":", label="non-private + 25%")
    ax.axhline(one_topic, color=study.COLOURS["orange"], ls="--", label="one topic")
    ax.set(xlabel=f"epsilon (delta {DELTA:g})", ylabel="held-out perplexity")
    study.log_axis(ax, places)
    ax.legend(frameon=False)
    return figure


def scikit_learn(records: Any, vocabulary: int, topics: int, batch: int) -> tuple[Any, float]:
    """Make one pass with scikit-learn's online LDA over the same thinned documents; give the topics and the seconds."""
    from sklearn.decomposition import LatentDirichletAllocation

    there = records["count"] > 0
    line, _ = np.nonzero(there)
    cells = (records["count"][there].astype(float), (line, records["word"][there]))
    train = sparse.csr_matrix(cells, (len(there), vocabulary))
    model = LatentDirichletAllocation(
        topics, learning_method="online", batch_size=batch, max_iter=1, total_samples=len(there), random_state=0
    )
    begin = time.perf_counter()
    model.fit(train)
    return model.components_, time.perf_counter() - begin


def ratio(values: dict[str, dict[int, list[float]]], steps: int) -> float:
    """Give by how much the private perplexity is larger."""
    return float(np.mean(values["private"][steps]) / np.mean(values["public"][steps]))


if __name__ == "__main__":
    main()
