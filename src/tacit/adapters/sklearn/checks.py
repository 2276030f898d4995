"""Checks of what estimators are given, whose errors quote no record."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.facts.files import none_on_error

LEVEL = 0.9
"""The probability of intervals, unless another is asked for."""


def _bounds(bounds: Any, name: str, columns: int) -> tuple[Any, Any]:
    """Return declared bounds as two vectors, one entry for each column."""
    if bounds is None:
        raise ValueError(
            f"{name} is not declared. Bounds taken from the data would reveal it; write {name}=(low, high), numbers or "
            "one for each column."
        )
    try:
        low, high = (np.broadcast_to(np.asarray(side, float), (columns,)) for side in bounds)
    except (TypeError, ValueError):
        low = high = np.zeros(columns)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(
            f"{name} is {bounds!r}. Write the lowest and the highest value, numbers or one for each of the {columns} "
            f"columns: {name}=(0, 100)."
        )
    return low, high


def _central(draws: Any, level: float, axis: int) -> Any:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is the probability of an interval. Write level=0.9.")
    return np.stack(np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=axis), 1)


def _facts(values: Any) -> tuple[tuple[int, ...] | None, str]:
    """Return the shape and the kind of what can be an array, and no shape of what cannot."""
    array = none_on_error(lambda: np.asarray(values))
    return (None, "O") if array is None else (array.shape, array.dtype.kind)


def _is_real(values: Any) -> bool:
    return none_on_error(lambda: np.asarray(values).astype(np.float64)) is not None
