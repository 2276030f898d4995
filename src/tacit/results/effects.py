"""What analysts ask after a fit: predictions, comparisons and slopes, with intervals.

Answers are about what is expected of a response, not about coefficients, and are averaged over public records: those
that are given, or a reference that knows nothing but the schema. Each draw of the posterior gives one answer; a table
shows their mean, standard deviation and central 90% interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.facts.column import Column
from tacit.facts.placeholder import even_columns
from tacit.facts.schema import Schema
from tacit.models.formula import Formula
from tacit.results.posterior import Posterior
from tacit.types import Array
from tacit.wall.data import encode

REFERENCE = 1000
"""Records of the reference: numbers even between their bounds, levels alike, columns independent."""
PROFILED = 6
"""So many levels of a category are profiled."""


@dataclass(frozen=True, repr=False)
class Effects:
    """A table of answers.

    Privacy: post-processing.

    Attributes
    ----------
    title
        What was asked.
    labels
        One for each line.
    draws
        Draws of the posterior times lines.
    """

    title: str
    labels: tuple[str, ...]
    draws: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean of each line.

        Privacy: post-processing.
        """
        return self.draws.mean(0)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of each line.

        Privacy: post-processing.
        """
        return self.draws.std(0)

    @property
    def interval(self) -> np.ndarray:
        """The ends of the central 90% interval, of each line.

        Privacy: post-processing.
        """
        return np.quantile(self.draws, (0.05, 0.95), axis=0).T

    def to_pandas(self) -> Any:
        """Return the table as a data frame.

        Privacy: post-processing.
        """
        import pandas

        low, high = self.interval.T
        return pandas.DataFrame({"mean": self.mean, "std": self.std, "5%": low, "95%": high}, index=list(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        width = max(map(len, self.labels), default=0) + 2
        lines = [self.title, f"{'':{width}}{'mean':>10}{'std':>10}{'5%':>10}{'95%':>10}"]
        for label, *numbers in zip(self.labels, self.mean, self.std, *self.interval.T, strict=True):
            lines.append(f"{label:{width}}" + "".join(f"{number:10.4g}" for number in numbers))
        return "\n".join(lines)


def predictions(posterior: Posterior, new: Any) -> Effects:
    """Estimate the expected response of new records: one line for each, or one for each level of the response.

    Privacy: post-processing. ``new`` is public or your own.

    Parameters
    ----------
    posterior
        Of a formula.
    new
        A dictionary or a table with the columns that the formula uses, levels as declared; others are left alone.

    Returns
    -------
    Effects
        A line for each record; ``print`` shows them with intervals.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}}, size=200)
    >>> model = tacit.formula("ill ~ age", schema, family="bernoulli")
    >>> age = np.linspace(20, 80, 200)
    >>> data = tacit.PrivateData({"age": age, "ill": np.where(age > 60, "yes", "no")}, schema)
    >>> posterior = tacit.fit(model, data, tacit.Budget(1.0, 1e-6), steps=50, progress=False)
    >>> effects = tacit.predictions(posterior, {"age": [40, 60]})
    """
    model = _formula(posterior)
    columns = _encoded(model, new)
    lines = [_described(model, columns, i) for i in range(_lines(columns))]
    return _table(f"Expected {_wanted(model)}", lines, model, _each(posterior, lambda draw: model.mean(draw, columns)))


def comparisons(posterior: Posterior, contrasts: Mapping[str, Sequence[Any]], new: Any = None) -> Effects:
    """Estimate how the expected response changes where one column is changed and all others stay as they are.

    Privacy: post-processing. ``new`` is public or your own.

    Parameters
    ----------
    posterior
        Of a formula.
    contrasts
        By column, two or more values: ``{"sex": ["f", "m"], "age": [40, 60]}``. All are compared with the first.
    new
        Records over which the change is averaged; by default a reference that knows nothing but the schema.

    Returns
    -------
    Effects
        A line for each comparison; ``print`` shows them with intervals.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}}, size=200)
    >>> model = tacit.formula("ill ~ age", schema, family="bernoulli")
    >>> age = np.linspace(20, 80, 200)
    >>> data = tacit.PrivateData({"age": age, "ill": np.where(age > 60, "yes", "no")}, schema)
    >>> posterior = tacit.fit(model, data, tacit.Budget(1.0, 1e-6), steps=50, progress=False)
    >>> effects = tacit.comparisons(posterior, {"age": [40, 60]})
    """
    model = _formula(posterior)
    columns = _encoded(model, new)
    lines, found = [], []
    for name, values in contrasts.items():
        facts = _column(model, name)
        if isinstance(values, str) or len(values) < 2:
            raise ValueError(f"The contrast of {name!r} is {values!r}. Pass two values or more: [first, second].")
        settings = [{**columns, name: _constant(facts, value, _lines(columns))} for value in values]
        means = [_each(posterior, partial(_mean, model, one)) for one in settings]
        for value, mean in zip(values[1:], means[1:], strict=True):
            lines.append(f"{name}: {_plain(value)} - {_plain(values[0])}")
            found.append(mean - means[0])
    return _table(f"Change of the expected {_wanted(model)}", lines, model, np.stack(found, 1))


def slopes(posterior: Posterior, column: str, new: Any = None) -> Effects:
    """Estimate how the expected response changes for one unit more of a number, all else as it is.

    Privacy: post-processing. ``new`` is public or your own.

    Parameters
    ----------
    posterior
        Of a formula.
    column
        A number that the formula uses.
    new
        Records over which the slope is averaged; by default a reference that knows nothing but the schema.

    Returns
    -------
    Effects
        A line for each column; ``print`` shows them with intervals.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}}, size=200)
    >>> model = tacit.formula("ill ~ age", schema, family="bernoulli")
    >>> age = np.linspace(20, 80, 200)
    >>> data = tacit.PrivateData({"age": age, "ill": np.where(age > 60, "yes", "no")}, schema)
    >>> posterior = tacit.fit(model, data, tacit.Budget(1.0, 1e-6), steps=50, progress=False)
    >>> effects = tacit.slopes(posterior, "age")
    """
    model = _formula(posterior)
    if _column(model, column).levels is not None:
        levels = list(_column(model, column).levels or ())[:2]
        raise ValueError(
            f"{column!r} is a category and has no slope; write comparisons(posterior, {{{column!r}: {levels}}})."
        )
    columns = _encoded(model, new)

    def slope(draw: Mapping[str, Any]) -> Array:
        values = jnp.asarray(columns[column], jnp.float32)
        _, change = jax.jvp(lambda x: model.mean(draw, {**columns, column: x}), (values,), (jnp.ones_like(values),))
        return jnp.mean(change, 0)

    found = _each(posterior, slope)[:, None]
    return _table(f"Slope of the expected {_wanted(model)}", [f"{column}, per unit"], model, found)


def profiles(posterior: Posterior) -> Effects:
    """Estimate the expected response where one column is set, averaged over a reference.

    The reference knows nothing but the schema.

    Numbers are set to the quarters of their range, categories to their first levels: what a report shows of a formula.

    Privacy: post-processing.
    """
    model = _formula(posterior)
    columns = reference(model)
    lines, settings = [], []
    for name in model.columns:
        facts = model.schema.columns[name]
        low, high = float(facts.low or 0), float(facts.high or 0)
        quarters = [low + share * (high - low) for share in (0.25, 0.5, 0.75)]
        values = [round(one) for one in quarters] if facts.kind == "integer" else quarters
        for value in dict.fromkeys(values if facts.levels is None else facts.levels[:PROFILED]):
            lines.append(f"{name} {_plain(value)}")
            settings.append({**columns, name: _constant(facts, value, REFERENCE)})
    together = jax.tree.map(lambda *values: jnp.stack([jnp.broadcast_to(one, REFERENCE) for one in values]), *settings)
    found = _each(posterior, lambda draw: jax.lax.map(lambda one: _mean(model, one, draw), together))
    return _table(f"Expected {_wanted(model)} where one column is set, all others as they may be", lines, model, found)


def reference(model: Formula) -> dict[str, Array]:
    """Return the public records over which effects are averaged where none are given.

    Privacy: public.
    """
    known = Schema({name: model.schema.columns[name] for name in model.columns or (model.response,)})
    return even_columns(known, jax.random.key(0), REFERENCE)


def _mean(model: Formula, columns: Mapping[str, Any], draw: Mapping[str, Any]) -> Array:
    return jnp.mean(model.mean(draw, columns), 0)


def _formula(posterior: Posterior) -> Formula:
    model = posterior.model
    if not isinstance(model, Formula):
        raise ValueError(
            "This posterior is not that of a formula, or does not know it any more. Fit tacit.formula(...), or load it "
            "with its method: Posterior.load(path, tacit.vi(model)(tacit.Plan(schema.placeholder())))."
        )
    return model


def _encoded(model: Formula, new: Any) -> dict[str, Array]:
    if new is None:
        return reference(model)
    known = Schema({name: model.schema.columns[name] for name in model.columns})
    lacking = [name for name in model.columns if name not in new]
    if lacking:
        raise ValueError(f"The new records lack the columns {lacking}, which the formula uses.")
    return {
        name: jnp.asarray(values) for name, values in encode({name: new[name] for name in known.columns}, known).items()
    }


def _column(model: Formula, name: str) -> Column:
    if name not in model.columns:
        raise ValueError(f"The formula does not use {name!r}. It uses {', '.join(model.columns)}.")
    return model.schema.columns[name]


def _constant(facts: Column, value: Any, count: int) -> Array:
    if facts.levels is not None and value not in facts.levels:
        raise ValueError(f"{value!r} is no level of {facts.name!r}; it has {', '.join(map(str, facts.levels))}.")
    stored = encode({facts.name: [value]}, Schema({facts.name: facts}))[facts.name]
    return jnp.broadcast_to(jnp.asarray(stored), (count,))


def _each(posterior: Posterior, answer: Callable[[Mapping[str, Any]], Array]) -> np.ndarray:
    """Return the answer at every draw."""
    draws = {name: jnp.asarray(value) for name, value in posterior.draws.items()}
    return np.asarray(jax.jit(lambda draws: jax.lax.map(answer, draws, batch_size=100))(draws))


def _table(title: str, lines: list[str], model: Formula, draws: np.ndarray) -> Effects:
    """Return the table; answers about several levels of a response have a line for each."""
    if draws.ndim == 2:
        return Effects(title, tuple(lines), draws)
    levels = model.schema.columns[model.response].levels or ()
    labels = tuple(f"{line}; {level}" for line in lines for level in levels)
    return Effects(title, labels, draws.reshape(len(draws), -1))


def _wanted(model: Formula) -> str:
    if model.family == "bernoulli":
        return f"probability of {model.response} = {model.success}"
    if model.family in ("ordinal", "categorical"):
        return f"probability of each level of {model.response}"
    return model.response


def _described(model: Formula, columns: Mapping[str, Any], i: int) -> str:
    parts = []
    for name in model.columns:
        levels, value = model.schema.columns[name].levels, columns[name][i].item()
        parts.append(f"{name} {_plain(value if levels is None else levels[value])}")
    return ", ".join(parts) or f"{i + 1}"


def _lines(columns: Mapping[str, Any]) -> int:
    return len(next(iter(columns.values())))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
