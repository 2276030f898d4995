"""The names of d3p.util: shapes of arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

__all__ = [
    "example_count",
    "unvectorize_shape",
    "unvectorize_shape_1d",
    "unvectorize_shape_2d",
    "unvectorize_shape_3d",
]


def example_count(a: Any) -> int:
    """Return the number of records in an array, 1 for a number. Privacy: as private as its argument."""
    return int(np.shape(a)[0]) if np.ndim(a) else 1


def unvectorize_shape(a: Any, d: int) -> tuple[int, ...]:
    """Return the shape of an array, with ones in front up to ``d`` axes. Privacy: as private as its argument."""
    return (1,) * (d - np.ndim(a)) + np.shape(a)


unvectorize_shape_1d = functools.partial(unvectorize_shape, d=1)
unvectorize_shape_2d = functools.partial(unvectorize_shape, d=2)
unvectorize_shape_3d = functools.partial(unvectorize_shape, d=3)
