"""Topics of Wikipedia (Section 4 of the VIPS paper): private LDA, one pass, 100000 articles, 50 topics, 8000 words.

    python papers/vips/lda.py        (--quick for a smoke test, --part pass or --part small for one part)

Perplexity is the upper bound on held-out articles, those with at most 256 distinct words, the topics' own part of the
bound included in proportion. The non-private run is the same method on the same records with the same rate, steps and
starts, without clip and noise. scikit-learn's online LDA makes one pass over the same thinned documents in batches of
the same size, in the same process; times are of whole fits, compiled before, and memory is the peak of the process
before scikit-learn is used.

The paper shows perplexities in figures; its 400000 articles and its vocabulary are others. Its Table 2 shows top words
of private and non-private topics; so does the end of ours.

The small part is Figures 2 and 3 in the paper's own settings: its subsets, its pace, delta 1e-4, negative numbers set
to zero instead of repaired, with the noise that they need for the epsilon that they state. Kinder to the paper than it
is: our clip instead of the longest document, zeros in a copy of the average only, and at most 500 steps, with noise
for so many. 100000 articles and 50 topics, not 400000 and 100: in relation to a cell's count the noise is the same for
a subset of the same size with as many steps, but for a little amplification, and twice as large for 100 topics.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

import tacit
from tacit.methods.lda import LDAState, tables
from tacit.methods.running import blend
from tacit.results.topics import coherence, perplexity, top_words
from tacit.run.public import fit_public
from tacit.types import Suggestions

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
DELTA = 1e-5
EPSILONS = (2.0, 8.0)
PASS = (3, 5)
"""Numbers of steps in which the one pass is made, at a rate of one over it."""
STEPS = 5
SEEDS = (0, 1)
SMALL, SMALL_EPSILONS = (10, 20, 50, 100, 400), (0.5, 1.0, 2.0, 4.0)
"""The paper's subsets (Figure 3, epsilon 1), and its epsilons (Figure 2, the smallest subsets)."""
SMALL_DELTA = 1e-4
SEEN, LONGEST = 160_000, 500
"""The paper's fits end when they have seen so many articles; ours after so many steps, if that comes first."""
MARKS = 5
"""So often a fit in small steps is looked at."""


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
    """Read the articles; make the parts that are asked for."""
    chosen = study.options(__doc__, part={"choices": ("pass", "small"), "help": "one part; by default both"})
    count, topics = (2000, 10) if chosen.quick else (100_000, 50)
    train, held, words = wikipedia(count)
    if chosen.part != "small":
        one_pass(chosen.out, train, held, words, topics)
    if chosen.part != "pass":
        small_subsets(chosen.out, train, held[:500], topics, 4 if chosen.quick else LONGEST)


def one_pass(out: Path, train: Any, held: Any, words: list[str], topics: int) -> None:
    """Fit in few steps, compare, print, plot."""
    count = train.shape[0]
    words_held = tacit.topics.documents(held, width=256)
    records = tacit.topics.documents(train, cap=2.0)
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
        found = fit().point_estimates["concentration"]
        fitted = Fitted(found, time.perf_counter() - begin, value(found))
        print(f"{what}: {fitted.seconds:.0f} s, {fitted.value:.0f}", file=sys.stderr, flush=True)
        return fitted

    # The first seed compiles, the last one is timed.
    kinds: dict[str, Any] = {"private": {STEPS: [private(1.0, STEPS, seed) for seed in SEEDS]}}
    ours, seconds, _ = kinds["private"][STEPS][-1]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {memory:.0f} MB", file=sys.stderr, flush=True)
    for steps in PASS:
        if steps != STEPS:
            kinds["private"][steps] = [private(1.0, steps, seed) for seed in SEEDS]
    kinds["public"] = {steps: [public(steps, seed) for seed in SEEDS] for steps in PASS}
    values = {
        kind: {steps: [fit.value for fit in fits] for steps, fits in sorted(kinds[kind].items())} for kind in kinds
    }
    curve = {1.0: np.mean(values["private"][STEPS])}
    curve |= {epsilon: private(epsilon, STEPS, 0).value for epsilon in EPSILONS}
    one_topic = alike(train, held)
    peer, peer_seconds = scikit_learn(records, len(words), topics, count // STEPS)
    theirs = value(peer)

    rows = [
        (
            steps,
            len(SEEDS),
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
    study.save(out, "lda", "python papers/vips/lda.py", text, results, plot(curve, values["public"], one_topic))


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
    """Return by how much the private perplexity is larger."""
    return float(np.mean(values["private"][steps]) / np.mean(values["public"][steps]))


def alike(train: Any, held: Any) -> float:
    """Return the perplexity of one topic for all articles."""
    frequency = np.asarray(train.sum(0)).ravel() + 1.0
    return float(np.exp(-(held @ np.log(frequency / frequency.sum())).sum() / held.sum()))


class Watched(NamedTuple):
    """A state of ``tacit.lda``, and the concentration that it had at each mark (marks x topics x words)."""

    inner: LDAState
    seen: Any


def as_in_the_paper(topics: int, vocabulary: int, marks: Any) -> tacit.Method:
    """Return ``tacit.lda`` with the paper's pace and zeros for negative numbers, looked at after some of its steps."""
    method = tacit.lda(topics, vocabulary)(tacit.Plan(None))
    marks = jnp.asarray(marks)

    def init(key: Any) -> Watched:
        return Watched(method.init(key), jnp.zeros((len(marks), topics, vocabulary)))

    def contribute(state: Watched, record: Any, key: Any) -> Any:
        return method.contribute(state.inner, record, key)

    def update(state: Watched, release: Any, key: Any) -> Watched:
        running = blend(state.inner.running, release, lambda step: (1025.0 + step) ** -0.7)
        concentration = 1 / topics + jnp.maximum(running.statistics[:, :-1], 0).T
        inner = state.inner._replace(running=running, likelihood=tables(concentration).likelihood)
        place = jnp.where(marks == running.step, jnp.arange(len(marks)), len(marks))
        return Watched(inner, state.seen.at[place].set(concentration, mode="drop"))

    def points(state: Watched) -> dict[str, Any]:
        return {"seen": state.seen, "noise": jnp.mean(state.inner.running.noise_std)}

    def draw(state: Watched, key: Any) -> dict[str, Any]:
        return {"noise": points(state)["noise"]}

    return tacit.Method(init, contribute, update, draw, points, suggests=Suggestions(clip=method.suggests.clip))


def small_subsets(out: Path, train: Any, held: Any, topics: int, longest: int) -> None:
    """Fit in the paper's settings, print, plot."""
    count, vocabulary = train.shape
    records, words_held = tacit.topics.documents(train, cap=2.0), tacit.topics.documents(held, width=256)
    private: dict[float, dict[int, list[float]]] = {epsilon: {} for epsilon in SMALL_EPSILONS}
    public: dict[int, list[float]] = {}
    places: dict[int, list[int]] = {}
    rows = []
    for size in SMALL:
        steps = min(longest, SEEN // size)
        marks = sorted({max(1, steps * part // MARKS) for part in range(1, MARKS + 1)})
        places[size] = [size * mark for mark in marks]
        method, recipe = as_in_the_paper(topics, vocabulary, marks), {"rate": size / count, "steps": steps}

        def values(fitted: Any) -> list[float]:
            return [perplexity(c, words_held, training=count) for c in fitted.point_estimates["seen"]]

        public[size] = values(fit_public(method, records, key=jax.random.key(0), **recipe))
        for epsilon in SMALL_EPSILONS if size == SMALL[0] else (1.0,):
            begin = time.perf_counter()
            budget = tacit.Budget(epsilon, SMALL_DELTA)
            fitted = study.fit(method, records, budget, 0, **recipe)
            private[epsilon][size] = values(fitted)
            multiplier = tacit.calibrate(budget, clip=1.0, **recipe).noise_multiplier
            noise = float(fitted.point_estimates["noise"]) / (records["count"].sum() / topics / vocabulary)
            found = (f"{fits[size][-1]:.0f}" for fits in (private[epsilon], public))
            rows.append((size, steps, places[size][-1], epsilon, f"{multiplier:.2f}", f"{noise:.2g}", *found))
            print(*rows[-1], f"{time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    one_topic = alike(train, held)
    text = "\n\n".join(
        [
            f"Figures 2 and 3: {count} articles, {topics} topics, at most {longest} steps, delta {SMALL_DELTA:g}; "
            f"{held.shape[0]} held-out articles, for which one topic for all has perplexity {one_topic:.0f}. Noise is "
            "the standard deviation in a cell of the average at the end, over the mean count of a cell.",
            study.table(
                ("subset", "steps", "articles seen", "epsilon", "σ", "noise / count", "private", "non-private"), rows
            ),
            message(private, public, one_topic),
        ]
    )
    results = {"articles_seen": places, "private": private, "non_private": public, "one_topic": one_topic}
    figure = plot_small(places, private, public, one_topic)
    study.save(out, "lda_small", "python papers/vips/lda.py --part small", text, results, figure)


def message(private: dict[float, dict[int, list[float]]], public: dict[int, list[float]], one_topic: float) -> str:
    """Say which of the settings are of use: better than one topic for all articles."""
    useful = [(s, e) for e, fits in private.items() for s, values in fits.items() if values[-1] < one_topic]
    said = ", ".join(f"subsets of {size} at epsilon {epsilon:g}" for size, epsilon in useful) or "none"
    best = min(values[-1] for fits in private.values() for values in fits.values())
    return (
        f"Private settings that are better than one topic: {said}. The best private perplexity is {best:.0f}, the best "
        f"without privacy {min(values[-1] for values in public.values()):.0f}. A cell gets its noise in every step, "
        "however small the subset, and amplification does not make up for it: few steps with large subsets are what "
        "works."
    )


def plot_small(places: Any, private: Any, public: Any, one_topic: float) -> Any:
    """Draw perplexity over the articles seen, for the smallest subsets by epsilon, and at epsilon 1 by subset."""
    figure, (left, right) = study.panels(2, 4.4)
    paints = list(study.COLOURS.values())
    for paint, (epsilon, fits) in zip(paints[1:], private.items(), strict=False):
        left.plot(places[SMALL[0]], fits[SMALL[0]], "-", color=paint, label=f"epsilon {epsilon:g}")
    left.plot(places[SMALL[0]], public[SMALL[0]], "--", color=paints[0], label="non-private")
    for paint, size in zip(paints, SMALL, strict=True):
        right.plot(places[size], private[1.0][size], "-", color=paint, label=f"subsets of {size}")
        right.plot(places[size], public[size], "--", color=paint)
    for ax, title in ((left, f"Figure 2: subsets of {SMALL[0]}"), (right, "Figure 3: epsilon 1; dashed: non-private")):
        ax.axhline(one_topic, color="0.25", lw=1, ls=":", label="one topic")
        ax.set(xlabel="articles seen", ylabel="held-out perplexity", yscale="log", xscale="log", title=title)
        ax.legend(frameon=False, fontsize="x-small")
    return figure


if __name__ == "__main__":
    main()
