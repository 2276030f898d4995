"""How each primitive acts on the axis of the records: the allow-list of ``tacit.engine.independence``.

Every value of a traced program is one of three kinds:

    public            depends on no record
    Along(a, ...)     along its axis a there are numbers for each record, and those depend on that record only
    MIXED             may depend on several records

A rule gives the kinds of an equation's results from those of its inputs. It is asked only where one of them is not
public and none is MIXED.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Along(NamedTuple):
    """The kind of a value that has all records along ``axis``, ``inner`` numbers of each, ``outer`` times over."""

    axis: int
    inner: int = 1
    outer: int = 1


MIXED = "mixed"
Kind = Along | str | None

# fmt: off
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "bitcast_convert_type", "cbrt", "ceil", "clamp", "clz", "complex", "conj",
    "convert_element_type", "copy", "copy_p", "cos", "cosh", "device_put", "digamma", "div", "eq", "eq_to",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igamma_grad_a",
    "igammac", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p", "log2",
    "logistic", "lt", "lt_to", "max", "min", "mul", "mulhi", "name", "ne", "neg", "nextafter", "not",
    "one_minus_square", "or", "polygamma", "polynomial", "population_count", "pow", "random_gamma_grad", "real",
    "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient",
    "sub", "tan", "tanh", "threefry2x32", "xor", "zeta",
})
REDUCTIONS = frozenset({
    "argmax", "argmin", "reduce", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod",
    "reduce_sum", "reduce_xor",
})
CUMULATIVE = frozenset({
    "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum",
})
WINDOWS = frozenset({
    "reduce_window_max", "reduce_window_min", "reduce_window_sum", "reduce_window", "select_and_gather_add",
    "select_and_scatter_add",
})
LINEAR_ALGEBRA = frozenset({
    "cholesky", "eig", "eigh", "geqrf", "hessenberg", "householder_product", "lu", "lu_pivots_to_permutation",
    "qr", "schur", "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve",
})
SCATTERS = frozenset({
    "scatter", "scatter-add", "scatter_add", "scatter-sub", "scatter_sub", "scatter-mul", "scatter_mul",
    "scatter-min", "scatter_min", "scatter-max", "scatter_max",
})
KEYS = frozenset({
    "random_bits", "random_fold_in", "random_seed", "random_split", "random_gamma", "random_clone", "random_unwrap",
})
# fmt: on
TRUSTED_KEYS = ("fry", "chacha20")
"""Tags of generators whose bits for a key do not depend on what is drawn beside it. JAX's "rbg" is not one."""

Rule = Callable[[Any, list[Kind], int], Sequence[Kind]]
"""A function of an equation, the kinds of its inputs, and the number of records."""


def unknown(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    """Return what is known: nothing."""
    return [MIXED] * len(equation.outvars)


# One value at a time


def _elementwise(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    return [join_all(inputs)] * len(equation.outvars)


def _handed_on(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    return inputs


# Shapes


def _broadcast_in_dim(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs[:1])
    return [kind._replace(axis=int(equation.params["broadcast_dimensions"][kind.axis]))]


def _reshape(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, before, after = _only(inputs[:1]), equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    order = equation.params.get("dimensions")
    if order is not None:
        kind, before = kind._replace(axis=list(order).index(kind.axis)), [before[axis] for axis in order]
    # So often all records are passed, in the order of the numbers; that must go on along one of the new axes.
    passed = math.prod(before[: kind.axis]) * kind.outer
    for axis, size in enumerate(after):
        outer, rest = divmod(passed, math.prod(after[:axis]))
        inner, more = divmod(size, outer * records) if outer else (0, 0)
        if inner and not rest and not more:
            return [Along(axis, inner, outer)]
    return [MIXED]


def _squeeze(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    return [_removed(_only(inputs), equation.params["dimensions"])]


def _transpose(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs)
    return [kind._replace(axis=tuple(equation.params["permutation"]).index(kind.axis))]


def _rev(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs)
    return [MIXED if kind.axis in equation.params["dimensions"] else kind]


def _slice(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, facts = _only(inputs), equation.params
    whole = equation.invars[0].aval.shape[kind.axis]
    strides = facts["strides"] or [1] * len(facts["start_indices"])
    taken = facts["start_indices"][kind.axis], facts["limit_indices"][kind.axis], strides[kind.axis]
    return [kind if taken == (0, whole, 1) else MIXED]


def _pad(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, value = inputs
    if value is not None or not isinstance(kind, Along):
        return [MIXED]
    return [kind if tuple(equation.params["padding_config"][kind.axis]) == (0, 0, 0) else MIXED]


def _concatenate(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = join_all(inputs)
    return [MIXED if isinstance(kind, Along) and kind.axis == equation.params["dimension"] else kind]


def _stack(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, axis = join_all(inputs), equation.params["axis"]
    return [kind._replace(axis=kind.axis + (axis <= kind.axis)) if isinstance(kind, Along) else kind]


def _unstack(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    return [_removed(_only(inputs), [equation.params["axis"]])] * len(equation.outvars)


def _tile(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs)
    return [kind if equation.params["reps"][kind.axis] == 1 else MIXED]


def _split(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs)
    return [MIXED if kind.axis == equation.params["axis"] else kind] * len(equation.outvars)


# Sums, sorts, windows


def _reduction(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    axes = equation.params["dimensions"] if equation.primitive.name == "reduce" else equation.params["axes"]
    kind = join_all(inputs)
    return [_removed(kind, axes) if isinstance(kind, Along) else kind] * len(equation.outvars)


def _cumulative(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs)
    return [MIXED if kind.axis == equation.params["axis"] else kind]


def _sort(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = join_all(inputs)
    mixed = isinstance(kind, Along) and kind.axis == equation.params["dimension"]
    return [MIXED if mixed else kind] * len(equation.outvars)


def _top_k(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, last = _only(inputs), len(equation.invars[0].aval.shape) - 1
    axis = equation.params.get("axis", last)
    return [MIXED if kind.axis in (axis, last) else kind] * len(equation.outvars)


def _window(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    facts, kind = equation.params, join_all(inputs)
    if not isinstance(kind, Along):
        return [kind] * len(equation.outvars)
    alone = [
        facts[name] is None or tuple(facts[name])[kind.axis] in (1, (0, 0))
        for name in ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
        if name in facts
    ]
    return [kind if all(alone) else MIXED] * len(equation.outvars)


def _linear_algebra(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = join_all(inputs)
    if equation.primitive.name == "triangular_solve" and inputs[0] is None:
        # A public matrix: each right-hand side has a solution of its own.
        rank = len(equation.invars[1].aval.shape)
        sides = rank - 1 if equation.params["left_side"] else rank - 2
        return [kind if isinstance(kind, Along) and kind.axis in (*range(rank - 2), sides) else MIXED]
    core = 1 if equation.primitive.name == "lu_pivots_to_permutation" else 2
    ranks = [len(atom.aval.shape) - core for atom in equation.invars[:1]]
    ahead = isinstance(kind, Along) and all(kind.axis < rank for rank in ranks)
    return [kind if ahead else MIXED] * len(equation.outvars)


def _fft(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, rank = _only(inputs), len(equation.invars[0].aval.shape)
    return [kind if kind.axis < rank - len(equation.params["fft_lengths"]) else MIXED]


# Products


def _dot_general(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    (sums, batches), found = equation.params["dimension_numbers"], []
    free = [
        [axis for axis in range(len(atom.aval.shape)) if axis not in (*sums[side], *batches[side])]
        for side, atom in enumerate(equation.invars)
    ]
    for side, kind in enumerate(inputs):
        if not isinstance(kind, Along):
            continue
        if kind.axis in batches[side]:
            place = list(batches[side]).index(kind.axis)
        elif kind.axis in free[side]:
            place = len(batches[0]) + (len(free[0]) if side else 0) + free[side].index(kind.axis)
        else:
            return [MIXED]
        found.append(kind._replace(axis=place))
    return [join_all(found)]


def _conv_general_dilated(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    facts, (left, right) = equation.params, inputs
    specs = facts["dimension_numbers"]
    shape = equation.outvars[0].aval.shape
    batch, features = specs.out_spec[:2]
    by_feature = Along(features, shape[features] // records)
    in_groups = facts["feature_group_count"] % records == 0
    in_batches = facts["batch_group_count"] % records == 0
    kernels = right is None or right == Along(specs.rhs_spec[0], by_feature.inner)
    if left is None:
        return [by_feature if kernels else MIXED]
    assert isinstance(left, Along)
    if left.axis == specs.lhs_spec[0]:
        if facts["batch_group_count"] == 1 and right is None:
            return [left._replace(axis=batch)]
        return [by_feature if in_batches and kernels else MIXED]
    if left.axis == specs.lhs_spec[1]:
        return [by_feature if in_groups and kernels else MIXED]
    return [MIXED]


# Places that values choose


def _gather(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    operand, indices = inputs
    facts, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    rank = len(equation.outvars[0].aval.shape)
    batch = [axis for axis in range(rank) if axis not in facts.offset_dims]
    if operand is None:
        kind = _only([indices])
        return [kind._replace(axis=batch[kind.axis]) if kind.axis < len(batch) else MIXED]
    assert isinstance(operand, Along)
    if operand.axis in facts.operand_batching_dims:
        place = facts.start_indices_batching_dims[list(facts.operand_batching_dims).index(operand.axis)]
        if indices is None or indices == operand._replace(axis=place):
            return [operand._replace(axis=batch[place])]
        return [MIXED]
    kept = [
        axis
        for axis in range(len(equation.invars[0].aval.shape))
        if axis not in (*facts.collapsed_slice_dims, *facts.operand_batching_dims)
    ]
    # A slice of all there is begins at 0, or is dropped: rows stay where they are.
    if indices is None and operand.axis in kept and sizes[operand.axis] == equation.invars[0].aval.shape[operand.axis]:
        return [operand._replace(axis=facts.offset_dims[kept.index(operand.axis)])]
    return [MIXED]


def _scatter(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    operand, indices, updates = inputs
    facts = equation.params["dimension_numbers"]
    shapes = [atom.aval.shape for atom in equation.invars]
    scattered = [axis for axis in range(len(shapes[2])) if axis not in facts.update_window_dims]
    pairs = zip(facts.operand_batching_dims, facts.scatter_indices_batching_dims, strict=True)
    for axis, place in pairs:
        wanted = (axis, place, scattered[place])
        if all(kind is None or kind == Along(at) for kind, at in zip(inputs, wanted, strict=True)):
            return [Along(axis)]
    windows = [
        axis
        for axis in range(len(shapes[0]))
        if axis not in (*facts.inserted_window_dims, *facts.operand_batching_dims)
    ]
    if indices is None:
        for axis, place in zip(windows, facts.update_window_dims, strict=True):
            whole = shapes[0][axis] == shapes[2][place] == records
            if whole and operand in (None, Along(axis)) and updates in (None, Along(place)):
                return [Along(axis)]
    return [MIXED]


def _dynamic_slice(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind, *starts = inputs
    if any(start is not None for start in starts) or not isinstance(kind, Along):
        return [MIXED]
    whole = equation.invars[0].aval.shape[kind.axis]
    return [kind if equation.params["slice_sizes"][kind.axis] == whole else MIXED]


def _dynamic_update_slice(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    operand, update, *starts = inputs
    kind = join(operand, update)
    if any(start is not None for start in starts) or not isinstance(kind, Along):
        return [MIXED]
    shapes = [atom.aval.shape for atom in equation.invars[:2]]
    return [kind if shapes[0][kind.axis] == shapes[1][kind.axis] else MIXED]


# Random numbers


def _of_keys(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    keys = [aval.dtype for aval in avals if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)]
    trusted = all(any(tag in str(dtype) for tag in TRUSTED_KEYS) for dtype in keys)
    return [join_all(inputs) if trusted and keys else MIXED] * len(equation.outvars)


def _random_wrap(equation: Any, inputs: list[Kind], records: int) -> Sequence[Kind]:
    kind = _only(inputs)
    return _of_keys(equation, inputs, records) if kind.axis < len(equation.outvars[0].aval.shape) else [MIXED]


def _only(kinds: Iterable[Kind]) -> Along:
    """Return the one kind that is not public. Rules are asked only where there is one."""
    (kind,) = kinds
    assert isinstance(kind, Along)
    return kind


def join(one: Kind, two: Kind) -> Kind:
    """Return the kind of what takes part of two values."""
    if one is None or one == two:
        return two
    return one if two is None else MIXED


def join_all(kinds: Iterable[Kind]) -> Kind:
    """Return the kind of what takes part of several values."""
    joined: Kind = None
    for kind in kinds:
        joined = join(joined, kind)
    return joined


def _removed(kind: Along, axes: Iterable[Any]) -> Kind:
    """Return what is left of a kind when axes are removed."""
    gone = [int(axis) for axis in axes]
    return MIXED if kind.axis in gone else kind._replace(axis=kind.axis - sum(axis < kind.axis for axis in gone))


def without_first(kind: Kind) -> Kind:
    """Return the kind of an entry along a value's first axis."""
    return _removed(kind, [0]) if isinstance(kind, Along) else kind


def with_first(kind: Kind) -> Kind:
    """Return the kind of values stacked along a new first axis."""
    return kind._replace(axis=kind.axis + 1) if isinstance(kind, Along) else kind


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(CUMULATIVE, _cumulative),
    **dict.fromkeys(WINDOWS, _window),
    **dict.fromkeys(LINEAR_ALGEBRA, _linear_algebra),
    **dict.fromkeys(SCATTERS, _scatter),
    **dict.fromkeys(KEYS, _of_keys),
    **dict.fromkeys(("optimization_barrier", "sharding_constraint"), _handed_on),
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "rev": _rev,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "split": _split,
    "sort": _sort,
    "top_k": _top_k,
    "fft": _fft,
    "dot_general": _dot_general,
    "conv_general_dilated": _conv_general_dilated,
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "random_wrap": _random_wrap,
}
"""The rule of each primitive that has one and holds no function."""
