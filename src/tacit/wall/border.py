"""What a run is passed, and what is refused before any record is read: unfit records, and methods that could carry
records around the wall.

The reference and the engine ask here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Mechanism
from tacit.ledger.file import Charge, Ledger
from tacit.types import Key, Method, PyTree, Release, Requirement, State, is_sparse
from tacit.wall import trace
from tacit.wall.data import PrivateData
from tacit.wall.keys import fixed
from tacit.wall.storage import storage_of


class RunFacts(TypedDict):
    """What a run is given beside a method, sealed records and a recipe.

    Attributes
    ----------
    secret
        Key of the subsets and the noise.
    key
        Key of the public randomness.
    ledgers
        Where looks are charged, on each of them.
    run, kind, title
        How the ledger names the run: its id, "fit" or "ask", and the method in words.
    simulation
        Whether the secret key is known to others.
    """

    secret: Key
    key: Key
    ledgers: Sequence[Ledger]
    run: str
    kind: str
    title: str
    simulation: bool


def charge_of(facts: RunFacts, mechanism: Mechanism, data: PrivateData) -> Charge:
    """Return the charge of a run before its steps and its tag are known.

    Privacy: public.
    """
    names = facts["run"], facts["kind"], facts["title"]
    return Charge(*names, mechanism, 0, mechanism.steps, "none yet", data.unit, facts["simulation"])


def released(contribution: PyTree) -> PyTree:
    """Return the shape of a release from that of a contribution: sparse leaves become whole tables.

    Privacy: public.
    """
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((leaf.count, leaf.values.shape[1]), jnp.float32) if is_sparse(leaf) else leaf,
        contribution,
        is_leaf=is_sparse,
    )


def release_of(contribution: PyTree) -> Release:
    """Return the shapes of a release, from those of a contribution.

    Privacy: public.
    """
    shape, number = released(contribution), jax.ShapeDtypeStruct((), jnp.float32)
    return Release(shape, jax.tree.map(lambda leaf: number, shape), number, shape)  # type: ignore[arg-type]


def refuse_leaks(method: Method, data: PrivateData, state: State, key: Key) -> None:
    """Refuse a method that could carry records around the wall: in an array it holds, or by a call-back.

    Privacy: public.
    """
    given = (state, data._stand_in, key, fixed(0))
    release = release_of(jax.eval_shape(method.contribution, *given))
    traced = {
        "init": jax.make_jaxpr(method.init)(key),
        "contribute": jax.make_jaxpr(method.contribution)(*given),
        "update": jax.make_jaxpr(method.update)(state, release, key),
        "draw": jax.make_jaxpr(method.draw)(state, key),
    }
    if method.point_estimates is not None:
        traced["points"] = jax.make_jaxpr(method.point_estimates)(state)
    if method.requirements:
        traced["needs"] = jax.make_jaxpr(lambda record: [need.predicate(record) for need in method.requirements])(
            data._stand_in
        )
    # The declared number only: how many records there are must not show in what is refused.
    lengths = {data.size} - {None, 0, 1}
    for name, jaxpr in traced.items():
        arrays, calls = trace.contents(jaxpr)
        if calls:
            raise ValueError(
                f"The method's {name} calls out of the compiled program ({', '.join(sorted(calls))}). A record could "
                "leave that way; remove the print or callback."
            )
        # By chance a short public array is as long as a small data set; only its leading axis is looked at then.
        axes = [axis for array in arrays for axis in np.shape(array)[: None if (data.size or 0) > 50 else 1]]
        if lengths.intersection(axes):
            raise ValueError(
                f"The method's {name} holds an array with as many rows as records are declared. A model that captured "
                "the data would read it outside the wall; take the records as the model's arguments instead. If the "
                "array is public, pad it by one row."
            )


def refuse_unfit(method: Method, data: PrivateData, ledgers: Sequence[Ledger]) -> None:
    """Refuse a schema from which the method's needs do not follow, and records that one of tacit's own needs forbids.

    Privacy: the second says one bit about the records, whatever the caller does, and the ledger holds that it was said.
    """
    declared = {} if data.schema is None else data.schema.columns
    for need in method.requirements if declared else ():
        if any(declared.get(name) != column for name, column in (need.facts or {}).items()):
            raise ValueError(f"The schema of the records is another one. {need.message}")
    fixed = [need for need in method.requirements if need.fixed]
    hold = jax.jit(lambda records: jnp.all(jax.vmap(lambda one: jnp.stack([n.predicate(one) for n in fixed]))(records)))
    if fixed and not all(map(hold, storage_of(data._records).blocks())):
        for ledger in ledgers:
            ledger.note("checked, refused", f"records that do not suit {method.contribute.__module__}")
        raise ValueError(
            f"Some record is not what the method needs. {' '.join(need.message for need in method.requirements)}"
        )


def with_own_checks(method: Method) -> Method:
    """Return the method with needs that are ``fixed`` only where their predicate is tacit's own.

    Others would answer a question about the records, free of charge, by whether they refuse.

    Privacy: public.
    """
    needs = tuple(need._replace(fixed=need.fixed and _is_ours(need.predicate)) for need in method.requirements)
    return method._replace(requirements=needs)


def _is_ours(function: Any) -> bool:
    """Whether a function's code is in this package, and so is that of what was filled in beforehand."""
    while isinstance(function, functools.partial):
        filled = (*function.args, *function.keywords.values())
        given = [part.predicate if isinstance(part, Requirement) else part for part in filled]
        if not all(_is_ours(part) for part in given if callable(part)):
            return False
        function = function.func
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(__file__).parents[1])
