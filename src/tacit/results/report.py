"""The report: one page with what was asked, the answer, the promise, the recipe and the accesses.

It is one HTML file that needs nothing from outside, made from ``report.html`` and ``report.js`` beside this file. It
holds nothing but what is in the posterior, the certificate and the ledger, and what the caller gives in public words.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import numpy as np

from tacit.accounting.explanation import Explanation, percent, point_bound, trade_off, up
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.ledger.markup import Table, html_block
from tacit.ledger.record import SIMULATION
from tacit.results.calibration import Reliability
from tacit.results.learnt import Learnt

if TYPE_CHECKING:
    from tacit.results.effects import Effects
    from tacit.results.posterior import Posterior

LINES = 60
"""The table of the answer has so many numbers at most."""
PRIOR = 0.1
"""The belief that the page begins with."""
CAUTION = "They are no intervals: nobody validated how often those of this method hold the truth under privacy noise."
EPSILONS = (0.01, 20.0)
"""Where the slider begins and ends."""
SHARES = ("contraction", "noise")
"""Columns of the answer: 1 minus the variance in units of the prior's, and the share of the width that is noise."""
LEFT, TOP, SIZE = 66, 12, 300
"""The picture of the trade-off curve: its corner, and the length of its sides."""


class Interval(NamedTuple):
    """A number of a posterior: its name, mean and central 90% interval, and what the records added to it.

    Privacy: post-processing.
    """

    label: str
    mean: float
    low: float
    high: float
    learnt: Learnt = Learnt()


def write_report(
    folder: Path,
    title: str,
    posteriors: Mapping[str, Posterior],
    truth: Mapping[str, Any] | None = None,
    *,
    predictions: Mapping[str, Any] | Effects | None = None,
    calibration: Mapping[str, Reliability] | None = None,
    ledger: Ledger | None = None,
) -> Path:
    """Write ``report.html`` into a folder, and return its path.

    Privacy: post-processing. A posterior without a certificate is shown beside the others as a reference; it protects
    nobody, so publish one only of simulated records.

    Parameters
    ----------
    folder
        Where to.
    title
        What was asked, in public words.
    posteriors
        Name to posterior. The first is the certified one.
    truth
        The values from which records were simulated, by label.
    predictions
        What ``tacit.predictions`` gave, or label to draws of a predicted number, such as those of
        ``posterior.predict``.
    calibration
        Name to what ``tacit.calibration.reliability`` gave, on public records or with what was paid for.
    ledger
        Shows all runs on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    page = report(title, posteriors, truth, predictions=predictions, calibration=calibration, ledger=ledger)
    path.write_text(page, encoding="utf-8", newline="\n")
    return path


class Shown(TypedDict, total=False):
    """What a report may show beside posteriors; see ``write_report``."""

    predictions: Mapping[str, Any] | Effects | None
    calibration: Mapping[str, Reliability] | None
    ledger: Ledger | None


def report(
    title: str, posteriors: Mapping[str, Posterior], truth: Mapping[str, Any] | None = None, **shown: Unpack[Shown]
) -> str:
    """Return the page that ``write_report`` writes.

    Privacy: post-processing.
    """
    predictions, calibration = shown.get("predictions"), shown.get("calibration")
    first = next(iter(posteriors.values()))
    certificate = first.certificate
    explanation = None if certificate is None else certificate.explain()
    sections = [] if certificate is None else [("asked", "What was asked", _asked(certificate, first.reason))]
    sections.append(("answer", "The answer", _answer(posteriors, truth)))
    if predictions is not None and len(predictions):
        sections.append(("predictions", "Predictions", _predictions(predictions)))
    if calibration:
        sections.append(("calibration", "Calibration", _calibration(calibration)))
    if certificate is not None and explanation is not None:
        sections.append(("promise", "What an attacker can gain", _promise(certificate, explanation)))
        sections += _from_certificate(certificate, explanation, shown.get("ledger"))
    warnings = [*([first.warning] if first.warning else [])]
    warnings += [] if certificate is None else [*certificate.notes, *certificate.caveats]
    body = [f'<section id="{name}">\n<h2>{words}</h2>\n{inside}\n</section>' for name, words, inside in sections]
    if warnings:
        body.insert(0, f'<section class="warning" id="note">\n<h2>Please note</h2>\n{html_block(warnings)}\n</section>')
    simulation = certificate is not None and certificate.simulation
    script = _resource("report.js").replace("LEFT", str(LEFT)).replace("TOP", str(TOP)).replace("SIZE", str(SIZE))
    return Template(_resource("report.html")).substitute(
        # A comment may precede the doctype: so the first line says it, and not only the first that is shown.
        first=f"<!-- {SIMULATION} -->\n" if simulation else "",
        banner=f'<p class="banner" role="alert">{SIMULATION}</p>' if simulation else "",
        eyebrow="Report of a simulation"
        if simulation
        else "Report of a private posterior"
        if certificate
        else "Report",
        title=html.escape(title),
        lead=_lead(certificate),
        tiles="" if certificate is None or explanation is None else _tiles(certificate, explanation),
        links="".join(f'<li><a href="#{name}">{words}</a></li>' for name, words, _ in sections),
        body="\n".join(body),
        footer=_footer(certificate),
        script=f"<script>\n{script}</script>" if certificate else "",
    )


def _resource(name: str) -> str:
    return files("tacit").joinpath(name).read_text(encoding="utf-8")


def _lead(certificate: Certificate | None) -> str:
    if certificate is None:
        return "The records were public: no privacy was bought, and there is no certificate."
    return html.escape(certificate.lead())


def _tiles(certificate: Certificate, explanation: Explanation) -> str:
    tiles = [
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in certificate.figures(explanation)
    ]
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _asked(certificate: Certificate, note: str) -> str:
    recipe, unit = certificate.mechanism, certificate.unit
    what = {"ask": "An answer", "select": "The best of several fits"}.get(certificate.kind, "A posterior")
    share = "all records" if recipe.rate == 1 else f"a fresh random {percent(recipe.rate)} of the records"
    said = (
        f"{what} by the method “{certificate.method}”, for at most ε = {certificate.budget.epsilon:g} at δ = "
        f"{certificate.budget.delta:g} for each {unit}. It took {recipe.steps} "
        f"{'step' if recipe.steps == 1 else 'steps, each'} on {share}: what one {unit} adds was clipped to "
        f"{recipe.clip:.3g}, summed over them, and hidden in noise {recipe.noise_multiplier:.3g} times as large."
    )
    chosen = f"<p>The method was chosen by public facts alone: {html.escape(note)}.</p>" if note else ""
    return f"<p>{html.escape(said)}</p>{chosen}"


# The answer


def _answer(posteriors: Mapping[str, Posterior], truth: Mapping[str, Any] | None) -> str:
    lanes = {
        name: [
            Interval(label, mean, low, high, learnt)
            for (label, mean, _, low, high), learnt in zip(posterior.rows(), posterior.learnt(), strict=True)
        ]
        for name, posterior in posteriors.items()
    }
    count = len(next(iter(lanes.values())))
    known = {label: float(value) for label, value in (truth or {}).items() if np.ndim(value) == 0}
    more = (
        f"<p class='note'>The first {LINES} of {count} numbers; all are in posterior.npz.</p>" if count > LINES else ""
    )
    caption = "Mean and central 90% interval of every number of the posterior."
    doubted = [name for name, posterior in posteriors.items() if not posterior.has_intervals]
    if doubted:
        which = f" of {' and '.join(doubted)}" if len(posteriors) > 1 else ""
        caption = f"Mean and central 90% of the draws{which}. {CAUTION}"
    return _forest(lanes, known, caption) + more


def _predictions(predictions: Mapping[str, Any] | Effects) -> str:
    rows, caption = [], "What the posterior's draws predict: mean and central 90% interval."
    if not isinstance(predictions, Mapping):
        caption = f"{predictions.title}: mean and central 90% interval."
        predictions = dict(zip(predictions.labels, predictions.draws.T, strict=True))
    for label, draws in predictions.items():
        values = np.asarray(draws, float)
        if values.ndim != 1:
            raise ValueError(
                f"The predictions {label!r} have the shape {values.shape}. Pass one number for each draw, and every "
                "predicted number a label of its own."
            )
        low, high = map(float, np.quantile(values, (0.05, 0.95)))
        rows.append(Interval(label, float(values.mean()), low, high))
    return _forest({"predicted": rows}, {}, caption)


def _forest(lanes: Mapping[str, Sequence[Interval]], truth: Mapping[str, float], caption: str) -> str:
    """Return a table whose rows hold a strip with the intervals, so that table and forest plot are one."""
    lanes = {name: rows[:LINES] for name, rows in lanes.items()}
    rows = next(iter(lanes.values()))
    ends = [end for lane in lanes.values() for one in lane for end in (one.low, one.high) if math.isfinite(end)]
    ends += [truth[one.label] for one in rows if one.label in truth]
    ticks = _ticks(min(ends, default=0.0), max(ends, default=1.0))
    low, high = ticks[0], ticks[-1]

    def at(value: float) -> str:
        return f"left:{100 * (value - low) / (high - low):.2f}%"

    zero = f'<i class="zero" style="{at(0.0)}"></i>' if low < 0 < high else ""
    digits, learnt = _digits([one.high - one.low for one in rows]), any(one.learnt.known for one in rows)
    lines = []
    for place, one in enumerate(rows):
        marks = [zero]
        if one.label in truth:
            marks.append(f'<i class="truth" style="{at(truth[one.label])}"></i>')
        cells = []
        for lane, (name, others) in enumerate(lanes.items()):
            here = others[place]
            top = f"top:{100 * (lane + 0.5 + 0.3) / (len(lanes) + 0.6):.1f}%"
            width = 100 * (here.high - here.low) / (high - low)
            hollow = " hollow" if lane else ""
            marks.append(f'<i class="span lane{lane % 4}" style="{at(here.low)};width:{width:.2f}%;{top}"></i>')
            marks.append(f'<i class="dot lane{lane % 4}{hollow}" style="{at(here.mean)};{top}"></i>')
            mean, start, stop = (_printed(value, digits[place]) for value in here[1:4])
            label = f' data-label="{html.escape(name)}"' if len(lanes) > 1 else ""
            cells.append(f'<td class="number"{label}>{mean} <span>{start} to {stop}</span></td>')
        if truth:
            known = f"{truth[one.label]:.3g}".replace("-", "−") if one.label in truth else ""
            cells.append(f'<td class="number" data-label="truth">{known}</td>')
        cells += _learnt_cells(one.learnt) if learnt else []
        strip = f'<td class="strip" aria-hidden="true"><div>{"".join(marks)}</div></td>'
        lines.append(f'<tr><th scope="row">{html.escape(one.label)}</th>{strip}{"".join(cells)}</tr>')
    names = "".join(
        f'<th scope="col" class="number">{html.escape(name) if len(lanes) > 1 else "mean"} <span>5% to 95%</span></th>'
        for name in lanes
    )
    names += '<th scope="col" class="number">truth</th>' if truth else ""
    names += "".join(f'<th scope="col" class="number">{name}</th>' for name in SHARES) if learnt else ""
    axis = "".join(f'<span style="{at(tick)}">{f"{tick:g}".replace("-", "−")}</span>' for tick in ticks)
    blank = f'<td colspan="{len(lanes) + bool(truth) + len(SHARES) * learnt}"></td>'
    return (
        f'{_legend(list(lanes), bool(truth))}<table class="forest" style="--lanes:{len(lanes)}">'
        f'<caption>{html.escape(caption)}</caption><thead><tr><th scope="col">number</th>'
        f'<th scope="col" class="strip"><span aria-hidden="true"></span></th>{names}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody><tfoot aria-hidden='true'><tr><td></td>"
        f'<td class="strip axis"><div>{axis}</div></td>{blank}</tr></tfoot></table>'
    )


def _learnt_cells(learnt: Learnt) -> list[str]:
    """Return the cells that say what the records added to a number."""
    first, noise, remark = learnt.cells()
    said = f"{first} <span>{remark}</span>" if remark else first
    return [
        f'<td class="number" data-label="{name}">{cell}</td>' for name, cell in zip(SHARES, (said, noise), strict=True)
    ]


def _legend(names: list[str], truth: bool) -> str:
    if len(names) == 1 and not truth:
        return ""
    entries = [
        f'<li><span class="key" aria-hidden="true"><i class="span lane{lane % 4}" style="left:0;right:0;top:50%"></i>'
        f'<i class="dot lane{lane % 4}{" hollow" if lane else ""}" style="left:50%;top:50%"></i></span>'
        f"{html.escape(name)}</li>"
        for lane, name in enumerate(names)
    ]
    if truth:
        key = '<span class="key" aria-hidden="true"><i class="truth" style="left:50%"></i></span>'
        entries.append(f"<li>{key}truth, from which the records were simulated</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _digits(widths: Sequence[float]) -> list[int]:
    """Return the digits after the point that intervals are worth: the same for all if they are of one size."""
    worth = [
        3 if not (width > 0 and math.isfinite(width)) else min(8, max(0, 1 - math.floor(math.log10(width))))
        for width in widths
    ]
    return [max(worth)] * len(worth) if max(worth) - min(worth) < 2 else worth


def _printed(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def _ticks(low: float, high: float) -> list[float]:
    """Return about six round numbers that hold both ends between them."""
    span = high - low if high > low else max(abs(high), 1.0)
    rough = span / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(place * step, 12) for place in range(first, max(last, first + 1) + 1)]


# The promise


def _promise(certificate: Certificate, explanation: Explanation) -> str:
    start = min(max(certificate.epsilon, EPSILONS[0]), EPSILONS[1])
    after = explanation.probability(PRIOR)
    low, high = (f"{math.log10(end):.4f}" for end in EPSILONS)
    errors = Table(
        ("False alarms", "found, at most", "by guessing"),
        [
            (percent(fpr), percent(tpr), percent(fpr))
            for fpr, tpr in zip(explanation.false_positive_rates, explanation.true_positive_rates, strict=True)
        ],
    )
    beliefs = Table(
        ("Belief before", "after, at most"),
        [(percent(prior), percent(explanation.probability(prior))) for prior in (0.01, 0.1, 0.5, 0.9)],
    )
    said = (
        f"At ε = {up(certificate.epsilon)} a belief of {percent(PRIOR)} becomes at most {percent(after)}; odds of "
        f"1 to {1 / PRIOR - 1:.3g} become at most {_odds(explanation.odds(PRIOR / (1 - PRIOR)))}."
    )
    return f"""<p><strong>Who is protected?</strong> {html.escape(explanation.protected)} The attacker asks
{html.escape(explanation.question)}, sees everything published, and may know all the other data, the method and this
recipe.</p>
<p><strong>How much?</strong> {html.escape(explanation.about_odds)} {html.escape(explanation.about_delta)}</p>
<div class="gain">
{_picture(certificate)}
<div class="try" id="try"
data-epsilon="{certificate.epsilon!r}" data-delta="{certificate.delta!r}" data-prior="{PRIOR}">
<h3>Belief before and after</h3>
<div id="sliders" hidden>
<label for="epsilon"><span>ε (this run: {up(certificate.epsilon)})</span>
<output id="epsilon-value" for="epsilon"></output></label>
<input type="range" id="epsilon" min="{low}" max="{high}" step="0.001" value="{math.log10(start):.4f}">
<label for="prior"><span>Belief before</span><output id="prior-value" for="prior"></output></label>
<input type="range" id="prior" min="-6.9" max="6.9" step="0.01" value="{math.log(PRIOR / (1 - PRIOR)):.4f}">
</div>
<div class="belief">
<span>before</span><div class="meter"><i id="before-bar" style="width:{100 * PRIOR:.2f}%"></i></div>
<b id="before">{percent(PRIOR)}</b>
<span>after, at most</span>
<div class="meter"><i id="after-bar" class="after" style="width:{100 * after:.2f}%"></i></div>
<b id="after">{percent(after)}</b>
</div>
<p id="said" aria-live="polite">{html.escape(said)}</p>
<p id="back" hidden><button type="button" id="reset">Back to this run</button></p>
</div>
<div><h3>Beliefs, for this run</h3>
{html_block(beliefs)}</div>
<div><h3>An attacker’s success, for this run</h3>
{html_block(errors)}</div>
</div>
<p class="note">{html.escape(explanation.about_errors[0])} {html.escape(explanation.about_source)}</p>"""


def _odds(value: float) -> str:
    """Print odds, rounded up."""
    if value >= 1:
        return f"{up(value)} to 1"
    digits = 2 - math.floor(math.log10(1 / value))
    return f"1 to {math.floor(1 / value * 10**digits * (1 + 1e-12)) / 10**digits:g}"


def _picture(certificate: Certificate) -> str:
    """Draw the trade-off curve of the run's recipe, and what (ε, δ) alone allows, which the slider moves."""
    best = _points(zip(*trade_off(certificate.mechanism, certificate.slack), strict=True))
    bound = _points((x, point_bound(float(x), certificate.epsilon, certificate.delta)) for x in np.linspace(0, 1, 201))
    right, base = LEFT + SIZE, TOP + SIZE
    inside = f"""<polygon class="area" points="{LEFT},{base} {best} {right},{TOP}"/>
<polyline class="any" id="any" points="{bound}"/><polyline class="best" points="{best}"/>
<text class="tag1" x="{right - 8}" y="{base - 34}" text-anchor="end">this run</text>
<text class="tag2" id="any-tag" x="{right - 8}" y="{base - 14}" text-anchor="end">any (ε = {up(certificate.epsilon)},
δ)</text>"""
    words = (
        "Trade-off curve: the share that the best attacker finds, against the share of false alarms. The solid curve "
        "is this run’s recipe; the diagonal is guessing."
    )
    caption = (
        f"How often the best attacker is right about a {certificate.unit} who is in the data (up), against false "
        "alarms about one who is not (across). The shaded area above the diagonal of guessing is all that this run’s "
        "recipe gives away; the dotted line is what (ε, δ) alone would allow."
    )
    return _square(inside, "false alarms", "found", words, caption)


def _square(inside: str, across: str, upward: str, words: str, caption: str) -> str:
    """Draw a square from 0% to 100% both ways, with its diagonal."""
    right, base, middle = LEFT + SIZE, TOP + SIZE, LEFT + SIZE / 2
    marks = "".join(
        f'<text x="{LEFT + SIZE * t:.0f}" y="{base + 19}" text-anchor="middle">{t:.0%}</text>'
        f'<text x="{LEFT - 8}" y="{TOP + SIZE * (1 - t) + 4:.0f}" text-anchor="end">{t:.0%}</text>'
        for t in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    lines = "".join(
        f'<path class="grid" d="M{LEFT + SIZE * t:g},{TOP} V{base} M{LEFT},{TOP + SIZE * t:g} H{right}"/>'
        for t in (0.25, 0.5, 0.75)
    )
    return f"""<figure><svg viewBox="0 0 {right + 24} {base + 46}" role="img" aria-label="{html.escape(words)}">{lines}
<path class="axes" d="M{LEFT},{TOP} V{base} H{right}"/><path class="coin" d="M{LEFT},{base} L{right},{TOP}"/>
{inside}{marks}<text x="{middle:g}" y="{base + 40}" text-anchor="middle">{across}</text>
<text transform="translate(13 {TOP + SIZE / 2:g}) rotate(-90)" text-anchor="middle">{upward}</text></svg>
<figcaption>{html.escape(caption)}</figcaption></figure>"""


def _points(pairs: Any) -> str:
    return " ".join(f"{LEFT + SIZE * x:.1f},{TOP + SIZE * (1 - y):.1f}" for x, y in pairs)


# Calibration


def _calibration(calibration: Mapping[str, Reliability]) -> str:
    head = ("", "calibration error", "largest error", "accuracy")
    rows = [
        (name, f"{one.ece:.3f}", f"{one.mce:.3f}", f"{float(np.nansum(one.share * one.accuracy)):.3f}")
        for name, one in calibration.items()
    ]
    lines = []
    for lane, one in enumerate(calibration.values()):
        there = one.share > 0
        points = _points(zip(one.confidence[there], one.accuracy[there], strict=True))
        colour = ("one", "two", "three", "four")[lane % 4]
        lines.append(f'<polyline class="best" style="stroke:var(--{colour})" points="{points}"/>')
    words = "Reliability: accuracy against confidence. Below the diagonal predictions are too sure."
    picture = _square("".join(lines), "confidence", "accuracy", words, words)
    table = _legend(list(calibration), False) + html_block(Table(head, rows))
    return f'<div class="gain">{picture}<div>{table}</div></div>'


# The rest


def _from_certificate(
    certificate: Certificate, explanation: Explanation, ledger: Ledger | None
) -> list[tuple[str, str, str]]:
    """Take over the certificate's sections that a reader of the answer wants, and the ledger's runs."""
    blocks = {
        one.title: "\n".join(html_block(block) for block in one.blocks) for one in certificate.sections(explanation)
    }
    charges = blocks["All runs together"] + ("" if ledger is None else _runs(ledger, certificate.delta))
    charges += f'<h3>The charges of this run</h3><div class="scroll">{blocks["All accesses to the data"]}</div>'
    return [
        ("limits", "What is not protected", blocks["What is not protected"]),
        ("recipe", "The recipe", blocks["The recipe"]),
        ("looks", "The ledger", charges),
        ("record", "For the record", blocks["For the record"]),
    ]


def _runs(ledger: Ledger, delta: float) -> str:
    head = ("Run", "Kind", "Method", "Steps", "ε alone", "ε so far")
    rows = [
        (
            run.run[:8],
            run.kind + (", simulation" if run.simulation else ""),
            run.method,
            f"{run.steps} of {run.mechanism.steps}",
            up(run.looked.cost(delta), 4),
            up(total, 4),
        )
        for run, total in ledger.history(delta)
    ]
    cap = "" if ledger.cap is None else f"<p>The ledger’s cap is ε = {ledger.cap.epsilon:g} for all runs together.</p>"
    return f'{cap}<h3>All runs on the ledger</h3><div class="scroll">{html_block(Table(head, rows))}</div>'


def _footer(certificate: Certificate | None) -> str:
    if certificate is None:
        return "<p>This page needs no network.</p>"
    return (
        f"<p>Issued {html.escape(certificate.created)}. This page needs no network and holds nothing but what is in "
        "the posterior, the certificate and the ledger. The guarantee is the certificate’s: check it with "
        "<code>tacit certificate verify certificate.json</code>.</p>"
    )
