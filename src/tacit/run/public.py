"""Fits to public records, for comparison with private ones: no clip, no noise, no certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tacit.accounting.checks import check_steps
from tacit.engine import outer
from tacit.engine.runner import released
from tacit.results.posterior import Posterior
from tacit.run.draws import posterior_of
from tacit.run.plan import STEPS, built_for, public_plan, refuse_unsuited
from tacit.types import Key, Method, MethodFor, PyTree, Record, Release, SparseRows, State, is_sparse
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision

PUBLIC_NUMBERS = 1 << 20
"""Sparse contributions of public records that are held at once, in numbers."""


@single_precision
def fit_public(
    method: Method | MethodFor, records: PyTree, *, steps: int = STEPS, rate: float = 1.0, key: Key
) -> Posterior:
    """Fit a method to records that are public: no clip, no noise, no certificate; every record in every step.

    Privacy: none. It is the reference that a private posterior is compared with; sealed records are refused.

    Parameters
    ----------
    method
        As for ``fit``.
    records
        A pytree of arrays with a leading axis of records.
    steps
        The number of steps.
    rate
        The share of the records in a step, drawn anew each time.
    key
        Of the method's randomness and the draws.

    Returns
    -------
    Posterior
        As of ``fit``; without a certificate.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> records = {"x": x, "y": (x[:, 0] > 0).astype(int)}
    >>> posterior = tacit.fit_public(tacit.glm(), records, steps=40, key=jax.random.key(0))
    >>> posterior.draws["w"].shape
    (1000, 2)
    """
    if isinstance(records, PrivateData):
        raise TypeError("fit_public gives no protection, so it does not take sealed records. Use tacit.fit.")
    if not 0 < rate <= 1:
        raise ValueError(f"The rate is {rate}; it is the share of the records in a step. Write a number up to 1.")
    records = jax.tree.map(jnp.asarray, records)
    plan = public_plan(records, rate=rate, steps=check_steps("fit_public", steps, 1))
    built = built_for(method, plan)
    refuse_unsuited(built, plan)
    state = public_program(built, len(jax.tree.leaves(records)[0]), steps, rate)(key, records)
    return posterior_of(built, state, jax.random.fold_in(key, steps), None)


def public_program(built: Method, count: int, steps: int, rate: float = 1.0) -> Callable[[Key, PyTree], State]:
    """Return the compiled loop of ``fit_public`` over so many public records: from key and records to the last state.

    Privacy: none.
    """
    size = max(1, round(rate * count))

    def run(key: Key, records: PyTree) -> State:
        def step(t: Any, state: State) -> State:
            step_key = jax.random.fold_in(key, t)
            record_keys = jax.random.split(jax.random.fold_in(step_key, 1), size)
            subset = records
            if size < count:
                chosen = jax.random.choice(jax.random.fold_in(step_key, 2), count, (size,), replace=False)
                subset = jax.tree.map(lambda leaf: leaf[chosen], records)
            total = sum_public(
                lambda record, mine: built.contribution(state, record, step_key, mine), subset, record_keys
            )
            nothing = jax.tree.map(lambda leaf: jnp.zeros(()), total)
            full = jax.tree.map(lambda leaf: leaf * (count / size), total) if size < count else total
            return built.update(state, Release(total, nothing, jnp.float32(size / count), full), step_key)

        return jax.lax.fori_loop(0, steps, step, built.init(key))

    return jax.jit(run)


def sum_public(contribution: Callable[[Record, Key], PyTree], records: PyTree, record_keys: Key) -> PyTree:
    """Add up the contributions of public records.

    Sparse ones and many in parts, so that they are never all there; outer products without writing them out.

    Privacy: none.
    """

    def part(records: PyTree, record_keys: Key, present: Any) -> PyTree:
        def here(leaf: Any) -> Any:
            return jnp.where(present.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

        def whole(leaf: Any, product: outer.Outer | None) -> Any:
            if product is not None:
                return product.leaf(jnp.matmul(here(leaf.left).T, leaf.right, precision=jax.lax.Precision.HIGHEST))
            if not is_sparse(leaf):
                return jnp.sum(here(leaf), 0)
            return SparseRows(jnp.where(present[:, None], leaf.index, leaf.count), leaf.values, leaf.count).dense()

        if sparse:
            return jax.tree.map(
                lambda leaf: whole(leaf, None), jax.vmap(contribution)(records, record_keys), is_leaf=is_sparse
            )
        outers, values = outer.split(jax.vmap(contribution), records, record_keys, smallest=0)
        return jax.tree.unflatten(jax.tree.structure(each), map(whole, values, outers))

    count = len(record_keys)
    each = jax.eval_shape(contribution, jax.tree.map(lambda leaf: leaf[0], records), record_keys[0])
    length = sum(leaf.size for leaf in jax.tree.leaves(each))
    sparse = any(is_sparse(leaf) for leaf in jax.tree.leaves(each, is_leaf=is_sparse))
    if not sparse or count * length < PUBLIC_NUMBERS:
        return part(records, record_keys, jnp.ones(count, bool))
    size = max(1, PUBLIC_NUMBERS // length)

    def add(j: Any, total: PyTree) -> PyTree:
        places = j * size + jnp.arange(size)
        chunk, mine = jax.tree.map(lambda leaf: leaf.at[places].get(mode="clip"), (records, record_keys))
        return jax.tree.map(jnp.add, total, part(chunk, mine, places < count))

    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), released(each))
    return jax.lax.fori_loop(0, -(-count // size), add, zero)
