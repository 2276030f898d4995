"""Public facts about one column of a record: its bounds or levels, its shape, what to do where it is missing.

Declared by a person, never taken from records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.facts.text import check_text, plain_number, shown_text, toml, toml_key

Level = str | int | bool

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a record: a bounded number, or a category with declared levels.

    Privacy: public.

    Parameters
    ----------
    low, high
        Bounds of a number. Values outside are moved to the nearer bound when the records are sealed.
    kind
        ``"real"`` (the default for numbers), ``"integer"`` (values are rounded) or ``"category"`` (implied by
        ``levels``).
    levels
        The levels of a category, coded 0, 1, ... in this order: text, integers or booleans.
    shape
        The shape of an array-valued column, such as ``(28, 28)``; its entries share the bounds or levels.
    missing
        What to do with a missing value: ``"refuse"`` (an error), ``"drop"`` (the record contributes nothing),
        or the number or level to put in its place.
    name
        The column's name. `Schema` fills it in.
    """

    low: float | None = None
    high: float | None = None
    kind: str = ""
    levels: tuple[Level, ...] | None = None
    shape: tuple[int, ...] = ()
    missing: Level | float = "refuse"
    name: str = ""

    def __post_init__(self) -> None:
        # Normalised once, here, so that equal facts compare equal and write the same TOML.
        put = object.__setattr__
        put(self, "kind", self.kind or ("real" if self.levels is None else "category"))
        if self.kind not in ("real", "integer", "category"):
            raise self._error(f'is of kind {self.kind!r}. Write kind = "real", "integer" or "category"')
        put(self, "shape", self._checked_shape(self.shape))
        if self.kind == "category":
            put(self, "levels", self._checked_levels(self.levels))
        else:
            low, high = self._checked_bounds()
            put(self, "low", low)
            put(self, "high", high)
        put(self, "missing", self._checked_missing(self.missing))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which values are stored: float32 for real numbers, int32 for integers and codes."""
        return np.dtype(np.float32 if self.kind == "real" else np.int32)

    def placeholder(self) -> npt.NDArray[Any]:
        """Return one public stand-in value: the middle of the bounds, or the first level.

        Privacy: public.
        """
        middle = 0.0
        if self.low is not None and self.high is not None:
            middle = (self.low + self.high) / 2
        return np.full(self.shape, middle if self.kind == "real" else round(middle), dtype=self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return the declared facts as plain values; what is at its default is left out.

        Privacy: public.
        """
        if self.levels is not None:
            facts: dict[str, Any] = {"levels": list(self.levels)}
        else:
            facts = {"low": self.low, "high": self.high}
        if self.kind == "integer":
            facts["kind"] = self.kind
        if self.shape:
            facts["shape"] = list(self.shape)
        if self.missing != "refuse":
            facts["missing"] = self.missing
        return facts

    def to_toml(self, **changes: Any) -> str:
        """Return the column's line of a schema file, with some facts changed if wanted (for error messages).

        Privacy: public.
        """
        body = ", ".join(f"{key} = {toml(value)}" for key, value in (self.to_dict() | changes).items())
        return f"{toml_key(self.name)} = {{{body}}}"

    def __str__(self) -> str:
        if self.levels is not None:
            shown = [shown_text(level) for level in self.levels[:6]]
            more = [] if len(self.levels) <= 6 else [f"... {len(self.levels)} levels"]
            facts = f"category ({', '.join(shown + more)})"
        else:
            facts = f"{self.kind} [{plain_number(self.low)}, {plain_number(self.high)}]"
        return f"{shown_text(self.name)} {facts}" + (f" shape {self.shape}" if self.shape else "")

    def _error(self, what: str, kind: type[Exception] = ValueError) -> Exception:
        return kind(f"Column {self.name!r} {what}.")

    def _checked_shape(self, shape: Any) -> tuple[int, ...]:
        sides = (shape,) if is_integer(shape) else listed(shape)
        if sides is None or not all(is_integer(side) and side > 0 for side in sides):
            raise self._error(f"has shape {shape!r}. Write a fixed array shape such as shape = [28, 28]")
        return tuple(int(side) for side in sides)

    def _checked_bounds(self) -> tuple[float, float]:
        if self.levels is not None:
            raise self._error(f"is of kind {self.kind!r} and has levels. Write either bounds or levels")
        if self.low is None or self.high is None:
            lacking = "bounds" if self.low is self.high else "lower bound" if self.low is None else "upper bound"
            raise self._error(
                f"has no {lacking}. Bounds taken from the data would reveal it; "
                f"write {toml_key(self.name or 'age')} = {{low = 0, high = 110}} in the schema"
            )
        for bound in (self.low, self.high):
            if not is_number(bound):
                raise self._error(f"has the bound {bound!r}. Bounds are numbers; write low = 0, high = 110")
            if not abs(bound) <= float(np.finfo(np.float32).max):  # so that NaN is caught too
                raise self._error(
                    f"has the bound {bound}. The bounds fix how much one record can matter; "
                    "write finite bounds that you know without looking at the data"
                )
            if self.kind == "integer" and (bound != int(bound) or not _INT32.min <= bound <= _INT32.max):
                raise self._error(f"is an integer with the bound {bound}. Write integers that fit 32 bits")
        # Adding zero turns -0.0 into 0.0.
        low, high = (int(b) if self.kind == "integer" else float(b) + 0.0 for b in (self.low, self.high))
        if not (np.float32(low) < np.float32(high) if self.kind == "real" else low < high):
            raise self._error(
                f"has low = {plain_number(low)} and high = {plain_number(high)}. "
                "The lower bound must be below the upper one, in 32-bit precision"
            )
        return low, high

    def _checked_levels(self, levels: Any) -> tuple[Level, ...]:
        if self.low is not None or self.high is not None:
            raise self._error("has levels and bounds. Write levels for a category, bounds for a number")
        declared = listed(levels)
        if not declared:
            raise self._error(
                "has no levels. Levels taken from the data would reveal it; "
                f'write {toml_key(self.name or "sex")} = {{levels = ["f", "m"]}} in the schema'
            )
        plain = tuple(level.item() if isinstance(level, np.generic) else level for level in declared)
        for level in plain:
            if not isinstance(level, Level):
                raise self._error(f"has the level {level!r}. Levels are text, integers or booleans", TypeError)
            if isinstance(level, str):
                check_text(level, f"a level of column {self.name!r}")
        if len(set(plain)) < len(plain):
            raise self._error(
                "declares a level twice (true equals 1, false equals 0). A level has one code; list it once"
            )
        return plain

    def _checked_missing(self, rule: Any) -> Level | float:
        rule = rule.item() if isinstance(rule, np.generic) else rule
        if isinstance(rule, str) and rule in ("refuse", "drop"):
            # Under the rule "refuse" a level of that name does no harm: nothing is changed in silence.
            if rule == "drop" and self.levels is not None and rule in self.levels:
                raise self._error('has a level "drop", so that missing = "drop" is unclear. Rename the level')
            return rule
        if self.levels is not None:
            if isinstance(rule, Level) and rule in self.levels:
                return self.levels[self.levels.index(rule)]
            choice = "one of its levels"
        else:
            assert self.low is not None
            assert self.high is not None
            fits = is_number(rule) and self.low <= rule <= self.high
            if fits and (self.kind == "real" or rule == int(rule)):
                return int(rule) if self.kind == "integer" else float(rule) + 0.0
            choice = "a number of its kind between its bounds"
        raise self._error(f'has missing = {rule!r}. Write missing = "refuse", "drop", or {choice}')


def listed(value: Any) -> tuple[Any, ...] | None:
    """Return the entries of a list, or None where it is none."""
    # Text is iterable too, but levels = "fm" is a slip and not two levels.
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else None


def is_integer(value: Any) -> bool:
    """Return whether a value is a whole number; booleans are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a number; booleans are none."""
    return isinstance(value, float | np.floating) or is_integer(value)
