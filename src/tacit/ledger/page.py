"""The page of a certificate: what it says to a data protection officer, section by section."""

from __future__ import annotations

import html
import json
from dataclasses import replace

from tacit.accounting.explanation import PRIORS, Explanation, explain, percent, up
from tacit.ledger.lines import Charge, Line
from tacit.ledger.markup import STYLE, Section, Table, curve, html_block, markdown, markdown_block
from tacit.ledger.record import CODES, SIMULATION, UNTIED, Record
from tacit.ledger.totals import summarise, without_slack

ADJACENCY = {
    "add-remove": "add or remove one",
    "replace-one": "replace one by any other",
}


def to_markdown(certificate: Record) -> str:
    """Write the page as Markdown.

    Privacy: post-processing.
    """
    parts = [f"**{SIMULATION}**", ""] if certificate.simulation else []
    parts += ["# Privacy certificate", "", markdown(lead(certificate)), ""]
    for section in sections(certificate, explained(certificate)):
        parts += [f"## {section.title}", ""]
        for block in section.blocks:
            parts += [*markdown_block(block), ""]
    return "\n".join(parts)


def to_html(certificate: Record) -> str:
    """Write the page as one HTML file without references to anything outside it.

    Privacy: post-processing.
    """
    explanation = explained(certificate)
    escape = html.escape
    # A comment may precede the doctype: so the first line says it, and not only the first that is shown.
    first = f"<!-- {SIMULATION} -->\n" if certificate.simulation else ""
    title = f"{SIMULATION}: " if certificate.simulation else ""
    banner = f'<p class="banner" role="alert">{SIMULATION}</p>\n' if certificate.simulation else ""
    tiles = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in figures(certificate, explanation)
    )
    body = []
    for section in sections(certificate, explanation):
        blocks = "\n".join(html_block(block) for block in section.blocks)
        if section.curve:
            blocks += "\n" + curve(certificate.mechanism, certificate.slack)
        body.append(f'<section class="{section.style}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>')
    head = (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}Privacy certificate {escape(certificate.run)}</title>\n<style>{STYLE}</style>"
    )
    top = f"<h1>Privacy certificate</h1>\n<p>{escape(lead(certificate))}</p>\n<dl>{tiles}</dl>"
    main = "\n".join(body)
    return (
        f'{first}<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{banner}'
        f"<header>\n{top}\n</header>\n<main>\n{main}\n</main>\n</body>\n</html>\n"
    )


def explained(certificate: Record) -> Explanation:
    """Explain what the guarantee means, from the recipe's whole privacy-loss distribution.

    Privacy: post-processing.
    """
    unit, slack = certificate.unit, certificate.slack
    return explain(certificate.epsilon, certificate.delta, certificate.mechanism, slack=slack, unit=unit)


def notes(certificate: Record) -> tuple[str, ...]:
    """Return what a reader must know besides the caveats; it follows from the charges, so none can be left out.

    Privacy: post-processing.
    """
    found = []
    run = summarise(certificate.charges)[certificate.run]
    if run.steps < certificate.planned:
        whole = replace(certificate.mechanism, steps=certificate.planned)
        cost = float(whole.cost(without_slack(certificate.delta, certificate.slack)))
        found.append(
            f"The run stopped after {run.steps} of {certificate.planned} planned steps, and ε counts those. "
            "That is right if nothing released had a say in when to stop; if it had, count the whole "
            f"recipe: ε = {up(cost, 4)}."
        )
    if run.repeated:
        found.append(
            f"{run.repeated} steps were taken again, because they could not be replayed (another "
            "key, program or version). They are counted again."
        )
    if certificate.epsilon > certificate.budget.epsilon:
        found.append(
            f"The run cost ε = {up(certificate.epsilon, 4)}, more than the ε = {up(certificate.budget.epsilon, 4)} "
            "asked for."
        )
    for line in certificate.losses:
        found.append(
            f"Charges for these data were lost from the ledger and are in no total: {line.lost}. That was accepted on "
            f"{_when(line.time)}, with the words: {line.reason}"
        )
    if certificate.refusals:
        found.append(
            f"Records were checked and refused {len(certificate.refusals)} times. Each refusal told whoever asked "
            "that some record was not what a method needs, which ε does not count."
        )
    if not certificate.numbers:
        found.append(UNTIED)
    return tuple(found)


def lead(certificate: Record) -> str:
    """Return the sentence that the page begins with.

    Privacy: post-processing.
    """
    neighbours = f"{ADJACENCY[certificate.adjacency]} {certificate.unit}"
    guarantee = f"ε = {up(certificate.epsilon, 4)} at δ = {up(certificate.delta)} (neighbouring data: {neighbours})"
    if certificate.simulation:
        return (
            f"Run {certificate.run} ({certificate.method}) was a simulation. With secret randomness the same recipe "
            f"would give each {certificate.unit} {guarantee}; with the fixed randomness used here it protects "
            "nobody."
        )
    what = {"ask": "The answer", "select": "The best outcome"}.get(certificate.kind, "The posterior")
    return (
        f"{what} of run {certificate.run} ({certificate.method}) may be published with this guarantee for each "
        f"{certificate.unit}: {guarantee}."
    )


def figures(certificate: Record, explanation: Explanation) -> list[tuple[str, str]]:
    """Return the four numbers that the page shows large.

    Privacy: post-processing.
    """
    return [
        ("ε", up(certificate.epsilon, 4)),
        ("δ", up(certificate.delta)),
        ("attacker’s advantage", up(explanation.advantage)),
        ("found at 1% false alarms", percent(explanation.true_positive_rates[0])),
    ]


def sections(certificate: Record, explanation: Explanation) -> list[Section]:
    """Return the sections of the page; a report shows some of them.

    Privacy: post-processing.
    """
    unit = certificate.unit
    warnings = [*notes(certificate), *certificate.caveats]
    runs = len({run for run, *_ in certificate.total.runs})
    errors = [
        (percent(fpr), percent(tpr))
        for fpr, tpr in zip(explanation.false_positive_rates, explanation.true_positive_rates, strict=True)
    ]
    found = [
        Section("Who is protected", [explanation.protected]),
        Section(
            "Against what",
            [
                f"Against anyone who wants to know {explanation.question}, sees everything published, "
                "and may know all the other data, the method, this recipe, and have any computer that "
                "cannot break the ciphers (ChaCha20, AES-256) from which the secret randomness is made."
            ],
        ),
        Section(
            "How much",
            [
                explanation.about_odds,
                Table(
                    ("Belief before", "at most after"),
                    [(percent(prior), percent(explanation.probability(prior))) for prior in PRIORS],
                ),
                explanation.about_delta,
                explanation.about_errors[0],
                Table(("Attacker’s false positives", "true positives, at most"), errors),
                explanation.about_source,
            ],
            curve=True,
        ),
        Section(
            "All runs together",
            [
                f"When this was issued, the ledger held {runs} {'run' if runs == 1 else 'runs'} on these data, "
                f"this one included; together they cost ε = {up(certificate.total.epsilon, 4)} at δ = "
                f"{up(certificate.total.delta)}. Rule: {certificate.total.composition.rstrip('.')}."
            ],
        ),
        Section("What is not protected", [_not_protected(unit, certificate.adjacency)]),
        Section("The recipe", [Table((), _recipe(certificate))]),
        Section(
            "All accesses to the data",
            [Table(("Line", "Day (UTC)", "Steps", "Charges", "Tag"), _rows(certificate))],
            style="wide",
        ),
        Section("For the record", [Table((), _identity(certificate))], style="wide"),
    ]
    if warnings:
        found.insert(0, Section("Please note", [warnings], style="warning"))
    return found


def _recipe(certificate: Record) -> list[tuple[str, str]]:
    recipe = certificate.mechanism
    asked = f"ε = {certificate.budget.epsilon:g} at δ = {certificate.budget.delta:g}, per {certificate.budget.unit}"
    rows = [
        ("Certified ε", f"{certificate.epsilon!r}"),
        ("at δ, slack included", f"{certificate.delta!r}"),
        ("Asked for", asked),
        ("Neighbouring data", f"{ADJACENCY[certificate.adjacency]} {certificate.unit} ({certificate.adjacency})"),
        ("Rate: probability to be in a step’s subset", f"{recipe.rate!r}"),
        ("Clip: bound on a contribution", f"{recipe.clip!r}"),
        ("Noise multiplier", f"{recipe.noise_multiplier!r}"),
        ("Noise standard deviation", _number(recipe.noise_std)),
        ("Steps taken (planned)", f"{recipe.steps} ({certificate.planned})"),
        ("Numerical slack, part of δ", f"{certificate.slack!r}"),
    ]
    if recipe.repeats is not None:
        rows.append(
            (
                "Runs of all these steps, of which the best is shown",
                f"a secret number, Poisson with mean {recipe.repeats!r} but not 0",
            )
        )
    weights = recipe.to_dict().get("weights")
    if weights is not None:
        rows.append(("Block weights", json.dumps(weights, ensure_ascii=False)))
    return rows


def _rows(certificate: Record) -> list[tuple[str, ...]]:
    """Return the charges, those that follow one another put together."""
    groups: list[list[tuple[Line, Charge]]] = []
    for line, charge in zip(certificate.lines, certificate.charges, strict=True):
        if groups and groups[-1][-1][1].tag == charge.tag and groups[-1][-1][1].stop == charge.first:
            groups[-1].append((line, charge))
        else:
            groups.append([(line, charge)])
    rows: list[tuple[str, ...]] = []
    for group in groups:
        (line, charge), (end, last) = group[0], group[-1]
        rows.append(
            (
                _span(str(line.seq + 1), str(end.seq + 1)),
                _span(_when(line.time), _when(end.time)),
                f"{charge.first} to {last.stop - 1}",
                str(len(group)),
                charge.tag[:8],
            )
        )
    return rows


def _identity(certificate: Record) -> list[tuple[str, str]]:
    return [
        ("Run", f"{certificate.run} ({certificate.kind}: {certificate.method})"),
        ("Issued", certificate.created),
        ("Randomness", "fixed: a simulation" if certificate.simulation else "secret: a real run"),
        ("Ledger", f"line {certificate.ledger_lines}, head {certificate.ledger_head}"),
        ("Whose code", CODES.get(certificate.code, "Not said: the certificate is of a format that did not say it.")),
        ("Engine", certificate.engine or "not said"),
        *((f"SHA-256 of the {name}", value) for name, value in sorted(certificate.numbers.items())),
        ("Digest", certificate.digest),
        (
            "Versions",
            ", ".join(f"{name} {version}" for name, version in sorted(certificate.versions.items())) or "none given",
        ),
        (
            "To check",
            "tacit certificate verify RUN computes ε anew, and compares the hashes with the numbers in the run’s "
            "folder.",
        ),
    ]


def _not_protected(unit: str, adjacency: str) -> list[str]:
    size = (
        f"The number of {unit}s: it is public under this adjacency."
        if adjacency == "replace-one"
        else f"The number of {unit}s, where it was declared public."
    )
    return [
        "What the data say about people in general. That smokers fall ill more often may be learned, and "
        "applied to anyone, in the data or not.",
        "The data from those who run the code or can read that machine’s memory, disk or keys.",
        "Side channels such as run time, memory use, energy or network traffic.",
        f"A person behind several {unit}s as well as one behind a single {unit}: for k of them count k "
        "times ε or more.",
        size,
        "Anything published from the same data outside this ledger: tables, plots, earlier studies.",
        "Settings chosen by looking at the data (bounds, priors, the recipe), and error messages about "
        "malformed data, which the curator sees and must not publish.",
    ]


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _when(time: str) -> str:
    return time[:16].replace("T", " ")


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} – {last}"
