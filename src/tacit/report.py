"""The report: one page with what was asked, the answer and the promise, next to the certificate."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.posterior import Posterior

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; line-height: 1.25; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .9rem .25rem 0; text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }}
.scroll {{ overflow-x: auto; }}
figure {{ margin: 1rem 0; background: white; border-radius: .5rem; padding: .5rem; }} figure svg {{ width: 100%;
height: auto; }}
pre {{ white-space: pre-wrap; font: inherit; }}
</style></head>
<body><main><h1>{title}</h1>{body}</main></body></html>
"""


def write_report(
    folder: Path, title: str, posteriors: Mapping[str, Posterior], truth: Mapping[str, Any] | None = None
) -> Path:
    """Write ``report.html`` into the folder: table, picture, promise; the first posterior is the certified one.

    Privacy: post-processing.
    """
    certified = next(iter(posteriors.values())).certificate
    parts = ["<h2>The answer</h2>", table(posteriors, truth), figure(posteriors, truth)]
    if certified is not None:
        explanation = "".join(f"<p>{html.escape(line)}</p>" for line in str(certified.explain()).split("\n") if line)
        simulation = "<p><strong>Simulation: it protects nobody.</strong></p>" if certified.simulation else ""
        parts = [simulation, *parts, f"<h2>The promise</h2>{explanation}"]
        parts.append('<p>Everything about it is in the <a href="certificate.html">certificate</a>.</p>')
    path = folder / "report.html"
    path.write_text(PAGE.format(title=html.escape(title), body="\n".join(parts)), encoding="utf-8")
    return path


def table(posteriors: Mapping[str, Posterior], truth: Mapping[str, Any] | None) -> str:
    """Give the posteriors side by side as an HTML table."""
    columns = list(posteriors)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in [*columns, *(["truth"] if truth else [])])
    lines = []
    for rows in zip(*(posteriors[name].rows() for name in columns), strict=True):
        cells = "".join(f"<td>{mean:.3f} ({low:.3f} to {high:.3f})</td>" for _, mean, _, low, high in rows)
        label = rows[0][0]
        known = f"<td>{truth[label]:g}</td>" if truth and label in truth else ""
        lines.append(f"<tr><td>{html.escape(label)}</td>{cells}{known}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        "</div><p>Mean, and the central 90% interval in brackets.</p>"
    )


def figure(posteriors: Mapping[str, Posterior], truth: Mapping[str, Any] | None) -> str:
    """Give the forest plot as inline SVG; nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "<p>Install matplotlib (pip install 'tacit[plots]') to see the picture.</p>"
    from tacit.plots import plot_forest

    canvas = Figure(figsize=(7, 4.2), layout="constrained")
    plot_forest(posteriors, truth, ax=canvas.subplots())
    buffer = io.StringIO()
    canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return f'<figure role="img" aria-label="Posterior means and intervals">{svg[svg.index("<svg") :]}</figure>'
