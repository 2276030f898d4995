"""Pages as Markdown and HTML: paragraphs, lists, tables and the trade-off curve, with nothing from outside."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tacit.accounting.explanation import trade_off
from tacit.accounting.mechanism import Mechanism

# The page's parts: a text is a paragraph, a list of texts a bulleted list.


@dataclass(frozen=True)
class Table:
    """A table of a page; without a head its first column is one.

    Privacy: post-processing.
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


Block = str | list[str] | Table


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Privacy: post-processing.
    """

    title: str
    blocks: list[Block]
    style: Literal["text", "warning", "wide"] = "text"
    curve: bool = False


def markdown(text: str) -> str:
    """Write a text as Markdown: names come from users, and must not become markup or break a table.

    Privacy: post-processing.
    """
    for sign in "\\`*_<>|[]#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def markdown_block(block: Block) -> list[str]:
    """Write a part of a page as lines of Markdown.

    Privacy: post-processing.
    """
    if isinstance(block, str):
        return [markdown(block)]
    if isinstance(block, list):
        return [f"- {markdown(item)}" for item in block]
    width = len(block.head) or len(block.rows[0])
    lines = [block.head or ("",) * width, ("---",) * width]
    rows = [tuple(markdown(cell) for cell in row) for row in block.rows]
    return ["| " + " | ".join(row) + " |" for row in [*lines, *rows]]


def html_block(block: Block) -> str:
    """Write a part of a page as HTML.

    Privacy: post-processing.
    """
    escape = html.escape
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, list):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block) + "</ul>"
    if not block.head:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in block.rows
        )
        return f'<table class="facts"><tbody>{rows}</tbody></table>'
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in block.head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def curve(mechanism: Mechanism, slack: float) -> str:
    """Draw the best attacker's true positives against false positives, with the coin flip's diagonal, as SVG.

    Privacy: public.
    """
    fpr, tpr = trade_off(mechanism, slack)
    size, left, top = 200.0, 46.0, 8.0
    path = " ".join(f"{left + size * x:.1f},{top + size * (1 - y):.1f}" for x, y in zip(fpr, tpr, strict=True))
    low, high, right, base = f"{left:g}", f"{top:g}", f"{left + size:g}", f"{top + size:g}"
    ticks = "".join(
        f'<text x="{left + size * t:.0f}" y="{top + size + 13:.0f}" text-anchor="middle">{t:.0%}</text>'
        f'<text x="{left - 5:.0f}" y="{top + size * (1 - t) + 4:.0f}" text-anchor="end">{t:.0%}</text>'
        for t in (0.0, 0.5, 1.0)
    )
    words = "True positives of the best attacker against false positives; the dashed diagonal is a coin flip"
    middle = f"{top + size / 2:.0f}"
    return (
        f'<figure><svg viewBox="0 0 262 246" role="img" aria-label="{words}">'
        f'<polygon class="gain" points="{low},{base} {path} {right},{high}"/>'
        f'<path class="axes" d="M{low},{high} V{base} H{right}"/>'
        f'<path class="coin" d="M{low},{base} L{right},{high}"/>'
        f'<polyline class="best" points="{path}"/>{ticks}'
        f'<text x="{left + size / 2:.0f}" y="240" text-anchor="middle">false positives</text>'
        f'<text transform="translate(10 {middle}) rotate(-90)" text-anchor="middle">true positives</text>'
        f"</svg><figcaption>{words}. The shaded area is all that an attacker gains.</figcaption></figure>"
    )


STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d2327; --soft: #5b656d; --rule: #d5dade; --page: #fff; --tile: #f3f5f6;
  --best: #0b6e8a; --gain: #0b6e8a26; --warn: #9a2a00; --warn-page: #fff3ea;
}
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e8ea; --soft: #9fabb3; --rule: #3a434a; --page: #14181b; --tile: #1e2428;
  --best: #5cc4e0; --gain: #5cc4e033; --warn: #ffb38a; --warn-page: #2e1d14;
} }
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 60rem;
  background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0 0 .4rem; font-size: 1.7rem; line-height: 1.2; }
h2 { margin: 0 0 .35rem; font-size: 1.05rem; line-height: 1.3; break-after: avoid; }
p, ul, table, figure { margin: 0 0 .7rem; }
ul { padding-left: 1.15rem; }
li { margin-bottom: .25rem; }
table, figure, li { break-inside: avoid; }
header > p { max-width: 44rem; font-size: 1.06rem; }
dl { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 1rem 0; }
@media (max-width: 40rem) { dl { grid-template-columns: repeat(2, 1fr); } }
dl div { padding: .55rem .8rem; background: var(--tile); border-radius: .4rem; }
dt { color: var(--soft); font-size: .82rem; }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
main { columns: 2 24rem; column-gap: 2.2rem; }
section { margin-bottom: 1.1rem; }
section.wide, section.warning { column-span: all; }
section.wide { padding-top: .6rem; }
section.warning, .banner {
  padding: .7rem 1rem; color: var(--warn); background: var(--warn-page); border-left: .3rem solid var(--warn);
}
section.warning ul { margin: 0; }
.banner { margin: 0 0 1.2rem; font-weight: 700; }
table { width: 100%; border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .5rem .22rem 0; border-bottom: 1px solid var(--rule); }
th, td { text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.facts th { width: 45%; }
.wide .facts th { width: 7rem; }
.wide .facts td { overflow-wrap: anywhere; }
figure { max-width: 19rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 10px; }
figcaption { color: var(--soft); font-size: .82rem; line-height: 1.35; }
.axes { fill: none; stroke: var(--rule); }
.coin { fill: none; stroke: var(--soft); stroke-dasharray: 4 4; }
.best { fill: none; stroke: var(--best); stroke-width: 2; }
.gain { fill: var(--gain); }
@page { size: A4; margin: 11mm; }
@media print {
  :root {
    color-scheme: light;
    --ink: #000; --soft: #444; --rule: #bbb; --page: #fff; --tile: #f3f5f6;
    --best: #0b6e8a; --gain: #0b6e8a26; --warn: #9a2a00; --warn-page: #fff3ea;
  }
  html { font-size: 7.8pt; }
  body { max-width: none; padding: 0; line-height: 1.3; }
  main { columns: 2; column-gap: 7mm; }
  h1 { font-size: 15pt; }
  h2 { font-size: 9.4pt; }
  dd { font-size: 12pt; }
  dl { margin: 1.5mm 0 2mm; grid-template-columns: repeat(4, 1fr); }
  p, ul, table, figure { margin-bottom: 1.4mm; }
  li { margin-bottom: .3mm; }
  section { margin-bottom: 1.6mm; }
  section.wide { padding-top: 1mm; }
  header > p { max-width: none; }
  figure { display: flex; gap: 3mm; align-items: center; max-width: none; }
  svg { width: 38mm; flex: none; }
  th, td { padding: .3mm 1.5mm .3mm 0; }
}
"""
