"""Draws as people read them: effects of groups themselves, a row for each number, a table in text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

LINES = 60
"""A posterior prints so many numbers."""


def effects(draws: Mapping[str, Any], labels: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Multiply the offsets of a formula's groups by their spread, under the same names.

    Privacy: post-processing.
    """
    found = {name: np.asarray(value) for name, value in draws.items()}
    for name in draws:
        spread = f"{group_of(name)}_sigma"
        if group_of(name) and name in labels and spread in draws:
            found[name] = found[name] * found[spread][:, None]
    return found


def _decimals(std: float) -> int:
    """Return the decimals to print: three, and more where the column's unit is small (an income in euros)."""
    return 3 if not 0 < std < 5e-4 else min(12, 1 - math.floor(math.log10(std)))


def group_of(name: str) -> str:
    """Return the name of the group effect whose offsets a site of a formula holds, or nothing."""
    return name.removesuffix("_offset") if "|" in name and name.endswith("_offset") else ""


def moments_of(value: np.ndarray, *, intervals: bool = True) -> dict[str, Any]:
    """Return mean and standard deviation over draws, and where wanted the central 90% interval.

    Privacy: post-processing.
    """
    ends = np.quantile(value, (0.05, 0.95), axis=0) if intervals else ()
    return {"mean": value.mean(0), "std": value.std(0), **dict(zip(("low", "high"), ends, strict=False))}


def rows(
    draws: Mapping[str, Any], labels: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield (label, mean, standard deviation, 5%, 95%) for every number of every site.

    Privacy: post-processing.
    """
    found = effects(draws, labels)
    for label, name, index in labelled(draws, labels):
        place: tuple[Any, ...] = (slice(None), *index)
        one = found[name][place]
        low, high = np.quantile(one, (0.05, 0.95))
        yield label, float(one.mean()), float(one.std()), float(low), float(high)


def labelled(
    draws: Mapping[str, Any], labels: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield (label, site, index) for every number of every site.

    Privacy: post-processing.
    """
    for name, value in draws.items():
        for place, index in enumerate(np.ndindex(np.shape(value)[1:])):
            label = name + (f"[{','.join(map(str, index))}]" if index else "")
            yield labels[name][place] if name in labels else label, name, index


def table(
    draws: Mapping[str, Any],
    labels: Mapping[str, Sequence[str]],
    more: Sequence[Sequence[str]] = (),
    *,
    intervals: bool = True,
) -> list[str]:
    """Return the lines of a table of the first `LINES` numbers.

    Privacy: post-processing.

    Parameters
    ----------
    draws, labels
        The numbers and their names.
    more
        Contraction, noise share and a remark for each number, or nothing.
    intervals
        Whether to show the ends of central 90% intervals.
    """
    shown = list(itertools.islice(rows(draws, labels), LINES))
    count = sum(value[0].size for value in draws.values())
    width = max([24, *(len(label) + 1 for label, *_ in shown)])
    kept = 4 if intervals else 2
    cells = [[f"{number:.{_decimals(numbers[1])}f}" for number in numbers[:kept]] for _, *numbers in shown]
    wide = max([9, *(len(cell) + 2 for line in cells for cell in line)])
    titles = ("mean", "std", "5%", "95%")[:kept]
    lines = ["".join(f"{cell:>{wide}}" for cell in line) for line in (titles, *cells)]
    if more:
        ends = (f"{one:>13}{two:>9}  {remark}".rstrip() for one, two, remark in (("contraction", "noise", ""), *more))
        lines = [line + end for line, end in zip(lines, ends, strict=False)]
    names = ["", *(label for label, *_ in shown)]
    lines = [f"{name:{width}}{line}" for name, line in zip(names, lines, strict=True)]
    return lines + ([f"... and {count - LINES} more: see summary()"] if count > LINES else [])
