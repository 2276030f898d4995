"""Contributions computed in a cheaper way: convolutions as matrix products, gradients of tables line by line.

Two gradients are dear when each record has its own. That of a convolution's weights convolves two arrays that are both
the record's: over many records the compiler makes it a convolution in as many groups, its slowest kind, where a matrix
product of patches does the same. That of an embedding is a whole table for each record, nearly all of it zero. And any
convolution is slow inside a loop, as every step of the wall is, unless its features come last (jax issue 12868).
``rewritten`` traces a contribution and evaluates these otherwise; all else stays as it is.

A contribution may be computed in any way that takes one record, the state and the keys: the wall clips what comes out.
So nothing here bounds anything.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jax.lax import GatherScatterMode, Precision
from jaxtyping import Array

from tacit.engine import outer
from tacit.types import Key, PyTree, Record, SparseRows, State
from tacit.wall import trace

MOST_PLACES = 128
"""A convolution with more places in its output (for a gradient: in the kernel) is left as it is."""
MOST_LINES = 512
"""A table's gradient with more lines of one record is left whole: equal ones are found by comparing all pairs."""

Contribution = Callable[[State, Record, Key, Key | None], PyTree]


def rewritten(contribution: Contribution) -> Contribution:
    """Return the same contribution, computed in a cheaper way; gradients of large tables become ``SparseRows``.

    Privacy: a way to compute contributions; bounds nothing.
    """

    def cheaper(state: State, record: Record, key: Key, record_key: Key | None) -> PyTree:
        arguments = state, record, key, record_key
        structure = jax.tree.structure(jax.eval_shape(contribution, *arguments))
        traced = trace.flat(contribution, *arguments)
        jaxpr, makers = traced.jaxpr, trace.makers(traced.jaxpr)
        public = len(jax.tree.leaves(state))
        convolutions = _convolutions(jaxpr, set(jaxpr.invars[public:]))
        tables = [_table(makers, atom) for atom in jaxpr.outvars]
        wanted = [
            part
            for atom, table in zip(jaxpr.outvars, tables, strict=True)
            for part in ((table.index, table.values) if table else (atom,))
        ]
        rules = {"dot_general": _records_first}
        parts = iter(trace.evaluate(jaxpr, traced.consts, jax.tree.leaves(arguments), wanted, convolutions, rules))
        leaves = [table.rows(next(parts), next(parts)) if table else next(parts) for table in tables]
        return jax.tree.unflatten(structure, leaves)

    return cheaper


def _records_first(left: Array, right: Array, **facts: Any) -> Array:
    """Multiply as ``dot_general`` does; over many records, each is a row of the left factor.

    JAX would put the records last where only the right factor is theirs. Kernels of matrix products compute the last
    columns in another way than the others, and which ones those are depends on the processor; rows they compute alike.
    """

    @jax.custom_batching.custom_vmap
    def product(left: Array, right: Array) -> Array:
        return jax.lax.dot_general_p.bind(left, right, **facts)

    @product.def_vmap
    def over_records(count: int, batched: list[bool], left: Array, right: Array) -> tuple[Array, bool]:
        sums, batches = facts["dimension_numbers"]
        if batched == [False, True] and not batches[0]:
            precision = facts["precision"]
            precision = precision[::-1] if isinstance(precision, tuple) else precision
            turned = {**facts, "dimension_numbers": (sums[::-1], batches), "precision": precision}
            found = jax.vmap(lambda right: jax.lax.dot_general_p.bind(right, left, **turned))(right)
            free = right.ndim - 1 - len(sums[1])  # axes of one record that are not summed over
            return jnp.moveaxis(found, range(1, 1 + free), range(-free, 0)), True
        axes = [0 if mine else None for mine in batched]
        return jax.vmap(lambda *both: jax.lax.dot_general_p.bind(*both, **facts), axes)(left, right), True

    return product(left, right)


def _convolutions(jaxpr: Any, of_records: set[Any]) -> dict[Any, Callable[[Array, Array], Array]]:
    """Find the convolutions of what comes from the record, and say how else to compute each."""
    found: dict[Any, Callable[[Array, Array], Array]] = {}
    for equation in jaxpr.eqns:
        inputs = [atom for atom in equation.invars if not isinstance(atom, Literal)]
        if not of_records.intersection(inputs):
            continue
        of_records.update(equation.outvars)
        facts = equation.params
        if equation.primitive.name != "conv_general_dilated":
            continue
        if facts["feature_group_count"] * facts["batch_group_count"] > 1:
            continue
        shape, spec = equation.outvars[0].aval.shape, facts["dimension_numbers"].out_spec
        if not of_records.issuperset(inputs):
            found[equation.outvars[0]] = functools.partial(_features_last, facts)
        elif math.prod(shape[axis] for axis in spec[2:]) <= MOST_PLACES:
            found[equation.outvars[0]] = functools.partial(_as_product, facts)
    return found


def _features_last(facts: dict[str, Any], left: Array, right: Array) -> Array:
    """Convolve with the features last, the one order in which the compiler is fast inside a loop too."""
    specs = facts["dimension_numbers"]
    order = (0, *range(2, left.ndim), 1)
    kernel = (*range(2, left.ndim), 1, 0)
    last = jax.lax.ConvDimensionNumbers(*(tuple(int(i) for i in np.argsort(one)) for one in (order, kernel, order)))
    found = jax.lax.conv_general_dilated_p.bind(
        left.transpose([specs.lhs_spec[i] for i in order]),
        right.transpose([specs.rhs_spec[i] for i in kernel]),
        **{**facts, "dimension_numbers": last},
    )
    return found.transpose(np.argsort([specs.out_spec[i] for i in order]))


def _as_product(facts: dict[str, Any], left: Array, right: Array) -> Array:
    """Convolve by one matrix product: of the kernel, and of patches, cut out along one axis after the other."""
    specs = facts["dimension_numbers"]
    left, right = left.transpose(specs.lhs_spec), right.transpose(specs.rhs_spec)
    wider = [(low, high, step - 1) for (low, high), step in zip(facts["padding"], facts["lhs_dilation"], strict=True)]
    patches = jax.lax.pad(left, jnp.zeros((), left.dtype), [(0, 0, 0), (0, 0, 0), *wider])
    axes = len(wider)
    for axis in reversed(range(axes)):
        apart = facts["rhs_dilation"][axis]
        reach = (right.shape[2 + axis] - 1) * apart + 1
        starts = range(0, patches.shape[axis - axes] - reach + 1, facts["window_strides"][axis])
        cut = [jax.lax.slice_in_dim(patches, start, start + reach, apart, axis - axes) for start in starts]
        patches = jnp.stack(cut, 2)
    # The axes now: the batch, features, places of the output, and places of the kernel.
    patches = jnp.moveaxis(patches, 1, 1 + axes)
    ahead = patches.shape[: axes + 1]
    product = jax.lax.dot_general(
        right.reshape(len(right), -1),
        patches.reshape(math.prod(ahead), -1),
        (((1,), (1,)), ((), ())),
        precision=facts["precision"],
        preferred_element_type=facts["preferred_element_type"],
    )
    return jnp.swapaxes(product.reshape(-1, *ahead), 0, 1).transpose(np.argsort(specs.out_spec))


class _Table(NamedTuple):
    """A leaf that is zero but for some lines: the atoms of their numbers and values, and how many lines there are."""

    index: Any
    values: Any
    shape: tuple[int, int]
    clamped: bool

    def rows(self, index: Array, values: Array) -> SparseRows:
        """Return the lines, those with the same number added up in the first of them."""
        count, width = self.shape
        values = values.reshape(-1, width)
        # One number a line, or the corner where a line is written, of which the first coordinate is its number.
        index = index.reshape(len(values), -1)[:, 0].astype(jnp.int32)
        index = jnp.clip(index, 0, count - 1) if self.clamped else index
        if len(values) > 1:
            inside = (index >= 0) & (index < count)
            same = (index[:, None] == index) & inside
            values = jnp.matmul(
                same.astype(values.dtype), jnp.where(inside[:, None], values, 0), precision=Precision.HIGHEST
            )
        return SparseRows(index, values, count)


def _table(makers: dict[Any, Any], leaf: Any) -> _Table | None:
    """Look whether a leaf is a large table of zeros to which lines were added, each of them whole."""
    equation = None if isinstance(leaf, Literal) else makers.get(leaf)
    if equation is None:
        return None
    name = equation.primitive.name
    if name not in ("scatter-add", "dynamic_update_slice") or len(leaf.aval.shape) != 2:
        return None
    zeros, *others = equation.invars
    count, width = leaf.aval.shape
    values, index = others[:2] if name == "dynamic_update_slice" else others[::-1]
    lines = math.prod(values.aval.shape) // width
    if not (_is_zero(makers, zeros) and lines <= MOST_LINES and outer.pays(count * width, lines * (width + 1))):
        return None
    if name == "dynamic_update_slice":
        return _Table(index, values, (count, width), True) if lines == 1 == values.aval.shape[0] else None
    facts, clamped = equation.params["dimension_numbers"], equation.params["mode"] == GatherScatterMode.CLIP
    window = facts.update_window_dims
    whole = (
        0 < len(window) == len(values.aval.shape) - window[0]  # the last axes
        and math.prod(values.aval.shape[axis] for axis in window) == width == values.aval.shape[-1]
        and 1 not in facts.inserted_window_dims
        and not facts.operand_batching_dims
        # Where a line begins within the table's width is not looked at, which is right only if it is clamped to 0.
        and (facts.scatter_dims_to_operand_dims == (0,) or (clamped and facts.scatter_dims_to_operand_dims == (0, 1)))
    )
    return _Table(index, values, (count, width), clamped) if whole else None


def _is_zero(makers: dict[Any, Any], atom: Any) -> bool:
    while not isinstance(atom, Literal):
        equation = makers.get(atom)
        if equation is None or equation.primitive.name not in ("broadcast_in_dim", "convert_element_type"):
            return False
        atom = equation.invars[0]
    return not np.any(atom.val)
