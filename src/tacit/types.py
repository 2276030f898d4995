"""What a method is made of: all that a file in ``tacit.methods`` may import from tacit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Key = jax.Array
"""A typed JAX key (``jax.random.key``)."""
PyTree = Any
State = Any
"""A method's public state: a pytree of arrays."""
Record = Any
"""One record: a pytree of arrays without the leading axis of records."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SparseRows:
    """A sparse leaf of a contribution: ``values[i]`` is added to line ``index[i]`` of a table of ``count`` lines.

    A release shows the leaf as the whole table, noise in every cell. Of lines with an index outside the table, and of
    all but the first line with the same index, the wall takes nothing; a filler has ``index == count``.

    Attributes
    ----------
    index
        Integers, one for each line of ``values``.
    values
        Numbers, as many to a line as the table is wide.
    count
        The public number of lines of the table.
    """

    index: Array
    values: Array
    count: int = field(metadata={"static": True})

    def dense(self) -> Array:
        """Return the whole table to which this leaf alone adds up, or several along a leading axis do; not clipped."""
        kept = (self.index >= 0) & (self.index < self.count)
        table = jnp.zeros((self.count, self.values.shape[-1]), self.values.dtype)
        return table.at[jnp.where(kept, self.index, self.count)].add(self.values, mode="drop")


def is_sparse(leaf: Any) -> bool:
    """Return whether a leaf of a contribution is a sparse one: ``jax.tree.map(..., is_leaf=is_sparse)``."""
    return isinstance(leaf, SparseRows)


def times(leaf: Any, factor: Any) -> Any:
    """Multiply a leaf of a contribution, sparse or not."""
    return SparseRows(leaf.index, leaf.values * factor, leaf.count) if is_sparse(leaf) else leaf * factor


class Release(NamedTuple):
    """What leaves the wall in one step; everything computed from it is post-processing.

    Attributes
    ----------
    total
        The noisy sum of the clipped contributions, shaped like one contribution; for ``SparseRows``, the whole table.
    noise_std
        The standard deviation of the noise in every coordinate of ``total``, shaped likewise (one scalar a leaf).
    rate
        The public probability with which a record was in the subset.
    full
        ``total / rate``: the unbiased estimate of the sum over all records.
    """

    total: PyTree
    noise_std: PyTree
    rate: Array
    full: PyTree

    def part(self, name: str) -> Release:
        """Return the release of one entry of a contribution that is a dictionary."""
        return Release(self.total[name], self.noise_std[name], self.rate, self.full[name])


class Requirement(NamedTuple):
    """What a method needs of every record. A record for which it is not so contributes zero.

    Attributes
    ----------
    message
        What is needed, and what to write.
    predicate
        ``predicate(record) -> bool``, computed inside the wall.
    fixed
        Whether records are also checked before the run, and refused if any does not fit. Only for predicates of tacit
        itself that have no number for the caller to choose: with one, refusals would answer questions for free.
    facts
        Columns of a schema from which the need follows. Other schemas are refused, without reading the records.
    """

    message: str
    predicate: Callable[[Record], Array]
    fixed: bool = False
    facts: Mapping[str, Any] | None = None


class Suggestions(NamedTuple):
    """What suits a method, where the user of ``tacit.fit`` says nothing.

    Attributes
    ----------
    clip
        The largest norm of a contribution; by default twice the square root of the contribution's dimension.
    rate
        The probability with which a record takes part in a step.
    steps
        The number of steps.
    weights
        Public factors for the leaves of a contribution, applied before the clip.
    """

    clip: float | None = None
    rate: float | None = None
    steps: int | None = None
    weights: tuple[float, ...] | None = None


class Model(NamedTuple):
    """What a method knows of the model that it fits. All of it is public, and all of it is optional.

    Attributes
    ----------
    predict
        ``predict(draw, inputs, key) -> pytree``. One draw's prediction for new inputs, which are records with a leading
        axis. ``draw`` holds the point estimates too.
    log_likelihood
        ``log_likelihood(draw, record) -> number``. The log density of what one record shows, at one draw, which holds
        the point estimates too. Rehearsals and selections go by it.
    simulate
        ``simulate(key, records) -> (records, draw)``. One draw from the prior, and the records with what the method
        models replaced by what that draw makes of them. Rehearsals start from it.
    prior
        ``prior(key) -> draw``. One draw from the prior, named like the posterior's draws; a posterior says by it how
        much of its prior is left.
    synthesize
        ``synthesize(draw, number, key) -> table``. A dictionary of columns with so many made-up records, from one draw.
    source
        The formula or NumPyro model that the method was given. A formula names the numbers of a posterior.
    reason
        Which method it is and why, where it was chosen by ``tacit.auto``.
    """

    predict: Callable[[dict[str, Array], PyTree, Key], PyTree] | None = None
    log_likelihood: Callable[[dict[str, Array], Record], Array] | None = None
    simulate: Callable[[Key, PyTree], tuple[PyTree, dict[str, Array]]] | None = None
    prior: Callable[[Key], dict[str, Array]] | None = None
    synthesize: Callable[[dict[str, Array], int, Key], dict[str, Any]] | None = None
    source: Any = None
    reason: str = ""


class Method(NamedTuple):
    """An inference method: four pure functions, what suits them, and what is known of the model.

    Privacy: public, but for ``contribute``, which runs inside the wall on one record.

    Attributes
    ----------
    init
        ``init(key) -> state``. Public: sees no record.
    contribute
        ``contribute(state, record, key) -> contribution``. Runs inside the wall on ONE record; the key is public and
        the same for every record of a step, so that a draw made from it is shared.
    update
        ``update(state, release, key) -> state``. Public: sees only the noisy sum, and the step's key once more.
    draw
        ``draw(state, key) -> dict``. Public: one draw from the posterior.
    point_estimates
        ``point_estimates(state) -> dict``. Public: what was estimated without a posterior, such as the parameters of
        a network. Optional.
    per_record_key
        Whether ``contribute`` takes a fourth argument, ``contribute(state, record, key, record_key)``: a secret key of
        this record in this step, for latent variables of a record and for other randomness that records do not share.
    requirements
        What must be true of every record; others contribute nothing (`Requirement`).
    min_steps
        The fewest steps after which there is something to draw from; fewer are refused.
    bounded
        Whether contributions are made to fit the suggested clip and weights, and must not be shortened: a smaller clip,
        one that adapts, and other weights are refused.
    for_size, for_steps
        The number of records, and of steps, that the method was built for, where what it computes depends on them.
        A fit to another number is refused.
    validated
        Where it was measured how often intervals hold the truth under privacy noise, such as "papers/coverage"; empty
        where it was not, or where they do not. A posterior without it shows no intervals unless it is asked to.
    noiseless
        ``noiseless(state) -> state``. Public: the state from which ``draw`` draws as if the release had been exact. By
        it a posterior says which share of an interval is privacy noise. Optional.
    suggests
        What suits the method where the user of ``tacit.fit`` gives none.
    model
        What is known of the model: predictions, densities, made-up records, names.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np, tacit
    >>> mean = tacit.Method(
    ...     init=lambda key: jnp.float32(0),
    ...     contribute=lambda state, record, key: record["age"] / 100,
    ...     update=lambda state, release, key: 100 * release.full / 2,
    ...     draw=lambda state, key: {"mean": state},
    ... )
    >>> ages = {"age": np.array([40.0, 60.0])}
    >>> posterior = tacit.fit_public(mean, ages, steps=1, key=jax.random.key(0))
    >>> round(float(posterior.draws["mean"][0]), 2)
    50.0
    """

    init: Callable[[Key], State]
    contribute: Callable[..., PyTree]
    update: Callable[[State, Release, Key], State]
    draw: Callable[[State, Key], dict[str, Array]]
    point_estimates: Callable[[State], dict[str, PyTree]] | None = None
    per_record_key: bool = False
    requirements: tuple[Requirement, ...] = ()
    min_steps: int = 1
    bounded: bool = False
    for_size: int | None = None
    for_steps: int | None = None
    validated: str = ""
    noiseless: Callable[[State], State] | None = None
    suggests: Suggestions = Suggestions()
    model: Model = Model()

    def contribution(self, state: State, record: Record, key: Key, record_key: Key | None) -> PyTree:
        """Return one record's contribution; its own key is handed on where the method takes one.

        Privacy: of one record, not bounded yet. Inside the wall ``record_key`` is secret; on public records any key
        will do.
        """
        return (
            self.contribute(state, record, key, record_key)
            if self.per_record_key
            else self.contribute(state, record, key)
        )

    def wrapping(self, **changes: Any) -> Method:
        """Return a method made around this one, whose state is ``inner`` in the new one's: it draws what this one does.

        Privacy: public.
        """
        draw, point_estimates, noiseless = self.draw, self.point_estimates, self.noiseless
        return self._replace(
            draw=lambda state, key: draw(state.inner, key),
            point_estimates=None if point_estimates is None else lambda state: point_estimates(state.inner),
            noiseless=None if noiseless is None else lambda state: state._replace(inner=noiseless(state.inner)),
            **changes,
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """What a method is built for: public facts about the records, and the settings of ``tacit.fit``.

    Every number is said once, in the data or in the call of ``tacit.fit``, and a method reads it here. None stands for
    what nobody has said; ``tacit.fit`` then takes what the method suggests.

    Privacy: public.

    Attributes
    ----------
    placeholder
        A made-up record of the right shape.
    size
        About how many units there are.
    unit, max_records
        Who is protected, and how many records of one unit count at most.
    adjacency
        "add-remove" or "replace-one".
    rate, steps, clip, weights
        As in ``tacit.fit``.
    budget
        The ``tacit.Budget`` that may be spent.
    engine
        What computes the sums.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> plan = tacit.Plan({"x": np.zeros(3), "y": np.zeros(())}, 1000, steps=100)
    >>> method = tacit.sep(tacit.sites.gaussian(0.5))(plan)
    >>> method.for_size
    1000
    """

    placeholder: Record
    size: int | None = None
    _: KW_ONLY
    unit: str = "record"
    max_records: int = 1
    adjacency: str = "add-remove"
    rate: float | None = None
    steps: int | None = None
    clip: float | str | None = None
    weights: tuple[float, ...] | None = None
    budget: Any = None
    engine: str | None = None

    def agrees(self, size: int) -> bool:
        """Return whether there may be so many records: as many as units, or up to ``max_records`` times as many."""
        return self.size is None or self.size <= size <= self.size * self.max_records


@dataclass(frozen=True)
class MethodFor:
    """A method that is built for a plan: ``method(plan) -> Method``. All methods of tacit are given as one.

    ``tacit.fit`` makes the plan and calls it. A function of your own becomes one by ``MethodFor(build)``.

    Privacy: public.

    Attributes
    ----------
    build
        ``build(plan) -> method``. Public: it sees no record.

    Examples
    --------
    >>> import jax.numpy as jnp, tacit
    >>> def build(plan):
    ...     return tacit.Method(
    ...         init=lambda key: jnp.float32(0),
    ...         contribute=lambda state, record, key: record["age"] / 100,
    ...         update=lambda state, release, key: 100 * release.full / plan.size,
    ...         draw=lambda state, key: {"mean": state},
    ...         for_size=plan.size,
    ...     )
    >>> tacit.MethodFor(build)(tacit.Plan({"age": jnp.float32(50)}, 200)).for_size
    200
    """

    build: Callable[[Plan], Method]

    def __call__(self, plan: Plan) -> Method:
        """Build the method for a plan."""
        if not isinstance(plan, Plan):
            warnings.warn(
                "A method is built for a plan, and was given a placeholder record. Write method(tacit.Plan(record)); "
                "the next release refuses a record.",
                DeprecationWarning,
                stacklevel=2,
            )
            plan = Plan(plan)
        method = self.build(plan)
        if not isinstance(method, Method):
            raise TypeError(
                f"The function in MethodFor returned a {type(method).__name__}, and a fit needs a Method. End it with "
                "return tacit.Method(init, contribute, update, draw)."
            )
        return method
