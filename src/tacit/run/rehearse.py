"""Rehearsal: the whole pipeline on made-up records, before anything is spent.

    for each replicate
        a draw from the prior, and records from it          public: no real record is touched
        the method without clip and noise                   what could be had without privacy
        for each budget and setting, the method through the wall, simulated
        their 90% intervals beside the draw, their predictions beside records held out

The same replicates serve every setting, so that differences are between settings and not between records; a setting is
compiled once. Replicates of a setting run one after the other, settings through joblib if it
was imported.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Budget
from tacit.engine import random as secret_random
from tacit.engine.runner import Runner
from tacit.facts.placeholder import even_columns
from tacit.facts.schema import Schema
from tacit.ledger.file import Ledger
from tacit.results.calibration import LEVEL
from tacit.run.draws import drawing
from tacit.run.plan import STEPS, built_for, planned, title_of
from tacit.run.public import public_program
from tacit.run.rehearsal import Estimate, Rehearsal, Rehearsed
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record
from tacit.wall.data import PrivateData, encode
from tacit.wall.precision import single_precision
from tacit.wall.units import Unit

HELD_OUT = 1000
"""Made-up records on which predictions are compared; the fit does not see them."""
PREDICTING_DRAWS = 200
PUBLIC_RECORDS = 20000
"""The fit without privacy looks at so many records in a step at most."""

Simulate = Callable[[Key, int], Any]
LogLikelihood = Callable[[dict[str, Array], Record], Array]


@single_precision
def rehearse(
    method: Method | MethodFor | Callable[..., Any],
    schema: Schema | None,
    budget: Budget,
    *,
    size: int | None = None,
    epsilons: Sequence[float] = (),
    rate: Any = None,
    steps: Any = None,
    clip: Any = None,
    simulate: Simulate | None = None,
    log_likelihood: LogLikelihood | None = None,
    replicates: int = 20,
    key: Key,
) -> Rehearsal:
    """Run a method on made-up records, to see what a fit would give before anything is spent.

    Settings run in parallel under ``joblib.parallel_config(n_jobs=4)``, or with Dask or Ray as its backend.

    Privacy: public. No real record is touched and nothing is charged.

    Parameters
    ----------
    method
        What will be fitted: a method, or a model, for which ``tacit.auto`` chooses one at each budget as a fit does.
    schema
        The public facts about a record. None where ``simulate`` gives whole records without one.
    budget
        What will be spent.
    size
        About how many units there will be; by default the schema's. Each has as many records as may count.
    epsilons
        Further epsilons to rehearse at the budget's delta.
    rate, steps, clip
        As in ``fit``, or lists of them: every combination is rehearsed.
    simulate
        ``simulate(key, size)`` makes up records as ``PrivateData`` takes them, from public knowledge. Columns that it
        leaves out are drawn by the method from its prior. It may return a pair: whole records, and a dictionary with
        the values from which they were made, named like the posterior's draws. Without it inputs are even between their
        bounds, and all else is drawn by the method.
    log_likelihood
        ``log_likelihood(draw, record)``, for methods that do not know their own.
    replicates
        How often; standard errors fall with the square root.
    key
        Of the made-up records and the fits.

    Returns
    -------
    Rehearsal
        A line for each setting, with coverage and width of intervals; ``best`` has the arguments for ``fit``.

    Examples
    --------
    >>> import jax, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}}, size=500)
    >>> model = tacit.formula("ill ~ age", schema, family="bernoulli")
    >>> budget = tacit.Budget(1.0, 1e-6)
    >>> rehearsal = tacit.rehearse(model, schema, budget, steps=20, replicates=3, key=jax.random.key(0))
    """
    size = size or (schema.size if schema else None)
    if size is None:
        raise ValueError(
            "The number of records is not known. Write size=5000, or declare it in the schema: about right will do."
        )
    if replicates < 2:
        raise ValueError(f"replicates is {replicates}; a standard error needs two at least. Write replicates=20.")
    stage = _Stage(method, schema, size, budget, simulate, log_likelihood)
    grid = {
        name: _listed(given) for name, given in (("rate", rate), ("steps", steps), ("clip", clip)) if given is not None
    }
    settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    budgets = [budget, *(replace(budget, epsilon=epsilon) for epsilon in epsilons if epsilon != budget.epsilon)]
    plan = list(itertools.product(sorted(budgets, key=lambda one: one.epsilon), settings))
    # Plain numbers, which travel to other processes.
    seeds = np.asarray(jax.random.key_data(jax.random.split(key, replicates)))
    stage.check()  # before any process is started
    public, *private = _spread([(_public, stage, seeds), *((_private, stage, *one, seeds) for one in plan)])
    rows = tuple(
        _compare(spent, chosen, found, run, public) for (spent, chosen), (found, run) in zip(plan, private, strict=True)
    )
    return Rehearsal(rows, budget, replicates)


def _spread(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Make all calls, in parallel where joblib is set up so."""
    joblib = sys.modules.get("joblib")
    if joblib is None:  # who says parallel_config has imported it
        return [function(*arguments) for function, *arguments in calls]
    return list(joblib.Parallel()(joblib.delayed(function)(*arguments) for function, *arguments in calls))


class _Found(NamedTuple):
    """Replicates times numbers: the intervals' ends and what they should hold; and the log-likelihood held out."""

    low: np.ndarray
    high: np.ndarray
    truth: np.ndarray
    log_likelihood: np.ndarray


@dataclass(frozen=True)
class _Stage:
    """Where the records come from and how a posterior is judged."""

    method: Method | MethodFor | Callable[..., Any]
    schema: Schema | None
    size: int
    budget: Budget
    simulate: Simulate | None
    log_likelihood: LogLikelihood | None

    @cached_property
    def built(self) -> Method:
        plan = Plan(self._placeholder, self.size, max_records=self.max_records, budget=self.budget)
        return built_for(self.method, plan)

    def __reduce__(self) -> Any:
        # To another process goes what was given, not what was compiled from it.
        return _Stage, (self.method, self.schema, self.size, self.budget, self.simulate, self.log_likelihood)

    @property
    def max_records(self) -> int:
        """How many records each made-up unit has: as many as may count."""
        return self.schema.max_records if self.schema else 1

    def sealed(self, records: PyTree) -> PrivateData:
        """Seal made-up records, in units where the schema has units of several."""
        if self.max_records > 1:
            shape = (self.size, self.max_records)
            units = jax.tree.map(lambda leaf: np.reshape(leaf, (*shape, *np.shape(leaf)[1:])), records)
            records = Unit(units, np.ones(shape, bool))
        return PrivateData(records, size=self.size)

    def check(self) -> None:
        """Refuse what cannot be rehearsed."""
        if self.schema is None and self.simulate is None:
            raise ValueError("Neither a schema nor simulate= is given, so nothing says what a record is. Pass one.")
        if self.simulate is None and self.built.model.simulate is None:
            raise ValueError(
                f"The method ({title_of(self.built)}) cannot make up records. Pass simulate=, a function of a key and "
                "a size that makes them up from public knowledge."
            )

    def records(self, key: Key) -> tuple[PyTree, PyTree, dict[str, Array]]:
        """Make up the records of a fit and those held out, and return the values from which they were made."""
        count = self.size * self.max_records + HELD_OUT
        columns_key, draw_key = jax.random.split(key)
        truth: Mapping[str, Any] = {}
        if self.schema is None:
            records, truth = _apart(self.simulate(columns_key, count))  # type: ignore[misc]
            records = jax.tree.map(np.asarray, records)
        elif self.simulate is None:
            records, truth = self._draw(draw_key, even_columns(self.schema, columns_key, count))
        else:
            given, truth = _apart(self.simulate(columns_key, count))
            lacking = [name for name in self.schema.columns if name not in given]
            known = {name: column for name, column in self.schema.columns.items() if name not in lacking}
            records = encode(given, Schema(known))
            if lacking:
                self._refuse_undrawn(lacking)
                blank = {name: np.stack([self.schema.columns[name].placeholder()] * count) for name in lacking}
                records, truth = self._draw(draw_key, {**records, **blank})
        if any(len(leaf) != count for leaf in jax.tree.leaves(records)):
            raise ValueError(
                f"simulate was asked for {count} records and gave another number, or some with missing values."
            )
        parts = (
            jax.tree.map(lambda leaf, part=part: leaf[part], records)
            for part in (slice(count - HELD_OUT), slice(count - HELD_OUT, None))
        )
        return *parts, dict(truth)

    def judge(self, draws: dict[str, Array], points: dict[str, PyTree], held_out: PyTree) -> tuple[Any, Any, Any]:
        """Return the ends of the intervals, by name, and the mean log-likelihood of records held out."""
        ends = {
            name: np.quantile(np.asarray(value), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
            for name, value in draws.items()
        }
        low, high = ({name: both[i] for name, both in ends.items()} for i in (0, 1))
        few = jax.tree.map(lambda leaf: leaf[:PREDICTING_DRAWS], draws)
        return low, high, math.nan if self._predicting is None else float(self._predicting(few, points, held_out))

    @cached_property
    def _predicting(self) -> Callable[..., Array] | None:
        term = self.log_likelihood or self.built.model.log_likelihood
        if term is None:
            return None

        def mean(draws: dict[str, Array], points: dict[str, PyTree], records: PyTree) -> Array:
            def one(record: Record) -> Array:
                terms = jax.vmap(lambda draw: term({**draw, **points}, record))(draws)
                return jax.nn.logsumexp(terms) - jnp.log(len(terms))

            return jnp.mean(jax.vmap(one)(records))

        return jax.jit(mean)

    @cached_property
    def _placeholder(self) -> Record:
        if self.schema is not None:
            return jax.tree.map(jnp.asarray, self.schema.placeholder())
        assert self.simulate is not None
        records, _ = _apart(self.simulate(jax.random.key(0), self.size + HELD_OUT))
        return PrivateData(records).placeholder

    @cached_property
    def _drawn(self) -> Any:
        return jax.jit(self.built.model.simulate)  # type: ignore[arg-type]

    def _draw(self, key: Key, records: PyTree) -> tuple[PyTree, dict[str, Array]]:
        assert self.schema is not None
        drawn, truth = self._drawn(key, records)
        bounded = {}
        for name, column in self.schema.columns.items():
            low, high = (0, len(column.levels) - 1) if column.levels is not None else (column.low, column.high)
            bounded[name] = np.clip(np.asarray(drawn[name]), low, high)
        return bounded, truth

    def _refuse_undrawn(self, lacking: list[str]) -> None:
        """Refuse records that lack what the method does not draw: its own simulate hands on what it leaves as it is."""
        simulate, kept = self.built.model.simulate, list(lacking)
        if simulate is not None:

            def watch(records: PyTree) -> None:
                drawn, _ = simulate(jax.random.key(0), records)
                kept[:] = [name for name in lacking if drawn[name] is records[name]]

            assert self.schema is not None
            jax.eval_shape(
                watch, {name: jnp.stack([column.placeholder()] * 2) for name, column in self.schema.columns.items()}
            )
        if kept:
            raise ValueError(f"simulate left out {kept}, which the method does not draw. Make up these columns too.")


def _apart(given: Any) -> tuple[Any, Mapping[str, Any]]:
    """Part records from the values they were made of, where both are given."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        return given
    return given, {}


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) else [given]


def _public(stage: _Stage, seeds: np.ndarray) -> _Found:
    built = stage.built
    steps, draw = built.suggests.steps or STEPS, drawing(built)
    count = stage.size * stage.max_records
    program = public_program(built, count, steps, min(1.0, PUBLIC_RECORDS / count))
    results = []
    for key in map(jax.random.wrap_key_data, seeds):
        records, held_out, truth = stage.records(key)
        state = program(key, jax.tree.map(jnp.asarray, records))
        points = built.point_estimates(state) if built.point_estimates else {}
        results.append((*stage.judge(draw(state, jax.random.fold_in(key, steps)), points, held_out), truth))
    return _found(results)


def _private(
    stage: _Stage, budget: Budget, settings: dict[str, Any], seeds: np.ndarray
) -> tuple[_Found, dict[str, Any]]:
    runner = None
    results = []
    for place, key in enumerate(map(jax.random.wrap_key_data, seeds)):
        records, held_out, truth = stage.records(key)
        data = stage.sealed(records)
        secret = secret_random.fixed(place)
        if runner is None:
            built, mechanism, title = planned(stage.method, data, budget, **settings)
            start, draw = jax.jit(lambda key, built=built: jax.tree.map(jnp.asarray, built.init(key))), drawing(built)
            facts: dict[str, Any] = {
                "run": "rehearsal",
                "kind": "fit",
                "title": title,
                "simulation": True,
            }
            runner = Runner(built, data, mechanism, secret=secret, key=key, ledgers=[Ledger()], **facts)
        else:
            runner = runner.rehearse(data, secret, key)
        state = runner.advance(start(key), 0, mechanism.steps)
        points = built.point_estimates(state) if built.point_estimates else {}
        results.append((*stage.judge(draw(state, jax.random.fold_in(key, mechanism.steps)), points, held_out), truth))
    return _found(results), {"method": title, "mechanism": mechanism, "reason": built.model.reason}


def _found(results: list[tuple[Any, Any, float, dict[str, Array]]]) -> _Found:
    def flat(values: Mapping[str, Any], like: Mapping[str, Any]) -> np.ndarray:
        unknown = {name: np.full(np.shape(value), np.nan) for name, value in like.items()}
        return np.concatenate(
            [np.ravel(np.broadcast_to(values.get(name, unknown[name]), np.shape(like[name]))) for name in like]
        )

    low, high, log_likelihood, truth = zip(*results, strict=True)
    return _Found(
        np.stack([flat(one, one) for one in low]),
        np.stack([flat(one, one) for one in high]),
        np.stack([flat(one, like) for one, like in zip(truth, low, strict=True)]),
        np.asarray(log_likelihood),
    )


def _compare(
    budget: Budget, settings: dict[str, Any], private: _Found, run: dict[str, Any], public: _Found
) -> Rehearsed:
    usual = np.mean(public.high - public.low, axis=0)  # of each number, over replicates
    width = private.high - private.low
    outside = np.maximum(private.low - private.truth, 0) + np.maximum(private.truth - private.high, 0)
    return Rehearsed(
        budget,
        settings,
        width=_estimate(width),
        times_public=_estimate(width / usual),
        coverage=_estimate(_covered(private)),
        public_coverage=_estimate(_covered(public)),
        log_likelihood_gap=_estimate((private.log_likelihood - public.log_likelihood)[:, None]),
        loss=_estimate((width + 2 / (1 - LEVEL) * outside) / usual),
        **run,
    )


def _covered(found: _Found) -> np.ndarray:
    within = (found.low <= found.truth) & (found.truth <= found.high)
    return np.where(np.isnan(found.truth), np.nan, within)


def _estimate(values: np.ndarray) -> Estimate:
    """Average over numbers, those that are not known left out; the error is that over replicates."""
    known = values[:, ~np.isnan(values).all(0)]
    each = known.mean(1) if known.size else np.full(len(values), np.nan)
    return Estimate(float(each.mean()), float(each.std(ddof=1) / math.sqrt(len(each))))
