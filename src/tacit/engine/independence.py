"""Proof that a batched program keeps records apart, by following the axis of the records through its equations.

Every value of a traced program is one of three kinds:

    public            depends on no record
    Along(a, ...)     along its axis a there are numbers for each record, and those depend on that record only
    MIXED             may depend on several records

A primitive has a rule here if it is known how it acts on that axis; what has none, and takes part of a record, gives
MIXED. So the rules are an allow-list: collectives, custom calls, generators whose bits depend on the batch, and
whatever JAX adds one day are not proved. The wall runs what is not proved one record at a time
(docs/proofs/clipping.md).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, Primitive, primitives

from tacit.wall import trace


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
    "one_minus_square", "or", "polygamma", "population_count", "pow", "random_gamma_grad", "real",
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
# fmt: on
TRUSTED_KEYS = ("fry", "chacha20")
"""Tags of generators whose bits for a key do not depend on what is drawn beside it. JAX's "rbg" is not one."""
TRUSTED = frozenset(
    value for module in (jax.lax, primitives) for value in vars(module).values() if isinstance(value, Primitive)
)
"""JAX's own primitives."""


def apart(closed: Any, kinds: Sequence[Kind], records: int) -> bool:
    """Whether row i of every result of a traced program depends on record i, and on no other.

    Privacy: public; looks at the program only.

    Parameters
    ----------
    closed
        A closed jaxpr over a chunk of records.
    kinds
        What is known of each input: ``None`` for public ones, ``Along(0)`` for those with a row for each record.
    records
        The number of records in the chunk.
    """
    if records == 1:
        return True
    found = _Program(records).kinds(closed.jaxpr, kinds)
    return all(kind is None or kind == Along(0) for kind in found)


class _Program:
    """The analysis for a given number of records."""

    def __init__(self, records: int) -> None:
        self.records = records

    def kinds(self, jaxpr: Any, given: Sequence[Kind]) -> list[Kind]:
        """Return the kinds of a program's results from those of its inputs."""
        known: dict[Any, Kind] = dict(zip(jaxpr.invars, given, strict=True))

        def kind(atom: Any) -> Kind:
            return None if isinstance(atom, Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            inputs = [kind(atom) for atom in equation.invars]
            if all(one is None for one in inputs):
                outputs: Sequence[Kind] = [None] * len(equation.outvars)
            elif MIXED in inputs:
                outputs = [MIXED] * len(equation.outvars)
            else:
                outputs = self._rule(equation)(equation, inputs)
            for variable, found in zip(equation.outvars, outputs, strict=True):
                known[variable] = self._checked(variable.aval.shape, found)
        return [kind(atom) for atom in jaxpr.outvars]

    def _checked(self, shape: tuple[int, ...], kind: Kind) -> Kind:
        """Return a kind, or MIXED where the shape does not bear it out: a wrong rule must not prove anything."""
        if not isinstance(kind, Along):
            return kind
        fits = 0 <= kind.axis < len(shape) and shape[kind.axis] == kind.outer * self.records * kind.inner
        return kind if fits else MIXED

    def _rule(self, equation: Any) -> Callable[[Any, list[Kind]], Sequence[Kind]]:
        name = equation.primitive.name
        if _is_composite(equation):
            return self._composite
        if equation.primitive not in TRUSTED:  # a name alone can be anyone's
            return _unknown
        if name in trace.CALLS:
            return self._call
        for names, rule in (
            (ELEMENTWISE, self._elementwise),
            (REDUCTIONS, self._reduction),
            (CUMULATIVE, self._cumulative),
            (WINDOWS, self._window),
            (LINEAR_ALGEBRA, self._linear_algebra),
            (SCATTERS, self._scatter),
        ):
            if name in names:
                return rule
        return getattr(self, f"_{name}", _unknown)

    # Control flow

    def _call(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        inner = trace.inner(equation)
        if inner is None:
            return [MIXED] * len(equation.outvars)
        return self.kinds(getattr(inner, "jaxpr", inner), inputs)

    def _composite(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
        return self.kinds(jax.make_jaxpr(equation.params["_prim"].expand)(*avals).jaxpr, inputs)

    def _scan(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        facts = equation.params
        if "ft_in" in facts:  # since JAX 0.12
            consts, carried, _ = map(len, facts["ft_in"].unpack())
        else:
            consts, carried = facts["num_consts"], facts["num_carry"]
        body = facts["jaxpr"].jaxpr
        rows = [
            _without_first(kind) for kind in inputs[consts + carried :]
        ]  # MIXED where records themselves are scanned
        carry = inputs[consts : consts + carried]
        while True:
            found = self.kinds(body, [*inputs[:consts], *carry, *rows])
            joined = [_join(old, new) for old, new in zip(carry, found[:carried], strict=True)]
            if joined == carry:
                return [*carry, *(_with_first(kind) for kind in found[carried:])]
            carry = joined

    def _while(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        facts = equation.params
        ahead = facts["cond_nconsts"], facts["body_nconsts"]
        of_test, of_body = inputs[: ahead[0]], inputs[ahead[0] : sum(ahead)]
        test, body, carry = facts["cond_jaxpr"].jaxpr, facts["body_jaxpr"].jaxpr, inputs[sum(ahead) :]
        while True:
            found = self.kinds(body, [*of_body, *carry])
            joined = [_join(old, new) for old, new in zip(carry, found, strict=True)]
            if joined == carry:
                break
            carry = joined
        (goes_on,) = self.kinds(test, [*of_test, *carry])
        # A test with a truth value for each record is JAX's own way to write a loop for each of them.
        each = goes_on == Along(0) and test.outvars[0].aval.shape == (self.records,)
        each = each and all(kind == Along(0) for kind in carry if kind is not None)
        if goes_on is None or each or self._frozen(equation, carry):
            return carry
        return [MIXED] * len(carry)

    def _frozen(self, equation: Any, carry: list[Kind]) -> bool:
        """Whether a loop that ends when it has ended for every record leaves those alone for which it has.

        As JAX batches it: it goes on while a test holds for any record, and each iteration keeps the old values where
        the same test is false. A record's values are then those of the loop over this record alone.
        """
        facts = equation.params
        test, body = facts["cond_jaxpr"].jaxpr, facts["body_jaxpr"].jaxpr
        ahead = facts["cond_nconsts"], facts["body_nconsts"]
        operands, count = equation.invars, len(carry)
        names = [("carried", i) for i in range(count)]
        numbers: dict[Any, int] = {}
        in_test = _Expressions(test, [*map(_operand, operands[: ahead[0]]), *names], numbers)
        in_body = _Expressions(body, [*map(_operand, operands[ahead[0] : sum(ahead)]), *names], numbers)
        last = in_test.maker(test.outvars[0])
        if last is None or last.primitive.name != "reduce_or" or last.invars[0].aval.shape != (self.records,):
            return False
        wanted = in_test.of(in_test.behind_broadcasts(last.invars[0]))
        for place, (atom, kind) in enumerate(zip(body.outvars, carry, strict=True)):
            if kind is None:
                continue
            choice = in_body.maker(atom)
            if choice is None or choice.primitive.name != "select_n" or len(choice.invars) != 3:
                return False
            which, old, _ = choice.invars
            if in_body.of(old) != ("carried", place) or in_body.of(in_body.behind_broadcasts(which)) != wanted:
                return False
        return True

    def _custom_linear_solve(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        lengths, solve = equation.params["const_lengths"], equation.params["jaxprs"].solve
        begin = lengths.matvec + lengths.vecmat
        given = [*inputs[begin : begin + lengths.solve], *inputs[sum(lengths) :]]
        return self.kinds(solve.jaxpr, given)

    def _cond(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        which, *others = inputs
        if which is not None:  # of a batched choice JAX makes a selection
            return [MIXED] * len(equation.outvars)
        branches = [self.kinds(branch.jaxpr, others) for branch in equation.params["branches"]]
        return [_join_all(kinds) for kinds in zip(*branches, strict=True)]

    # One value at a time

    def _elementwise(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        return [_join_all(inputs)] * len(equation.outvars)

    def _optimization_barrier(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        return inputs

    def _sharding_constraint(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        return inputs

    # Shapes

    def _broadcast_in_dim(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs[:1])
        return [kind._replace(axis=int(equation.params["broadcast_dimensions"][kind.axis]))]

    def _reshape(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, before, after = _only(inputs[:1]), equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        order = equation.params.get("dimensions")
        if order is not None:
            kind, before = kind._replace(axis=list(order).index(kind.axis)), [before[axis] for axis in order]
        # So often all records are passed, in the order of the numbers; that must go on along one of the new axes.
        passed = math.prod(before[: kind.axis]) * kind.outer
        for axis, size in enumerate(after):
            outer, rest = divmod(passed, math.prod(after[:axis]))
            inner, more = divmod(size, outer * self.records) if outer else (0, 0)
            if inner and not rest and not more:
                return [Along(axis, inner, outer)]
        return [MIXED]

    def _squeeze(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        return [_removed(_only(inputs), equation.params["dimensions"])]

    def _transpose(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs)
        return [kind._replace(axis=tuple(equation.params["permutation"]).index(kind.axis))]

    def _rev(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs)
        return [MIXED if kind.axis in equation.params["dimensions"] else kind]

    def _slice(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, facts = _only(inputs), equation.params
        whole = equation.invars[0].aval.shape[kind.axis]
        strides = facts["strides"] or [1] * len(facts["start_indices"])
        taken = facts["start_indices"][kind.axis], facts["limit_indices"][kind.axis], strides[kind.axis]
        return [kind if taken == (0, whole, 1) else MIXED]

    def _pad(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, value = inputs
        if value is not None or not isinstance(kind, Along):
            return [MIXED]
        return [kind if tuple(equation.params["padding_config"][kind.axis]) == (0, 0, 0) else MIXED]

    def _concatenate(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _join_all(inputs)
        return [MIXED if isinstance(kind, Along) and kind.axis == equation.params["dimension"] else kind]

    def _stack(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, axis = _join_all(inputs), equation.params["axis"]
        return [kind._replace(axis=kind.axis + (axis <= kind.axis)) if isinstance(kind, Along) else kind]

    def _unstack(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        return [_removed(_only(inputs), [equation.params["axis"]])] * len(equation.outvars)

    def _tile(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs)
        return [kind if equation.params["reps"][kind.axis] == 1 else MIXED]

    def _split(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs)
        return [MIXED if kind.axis == equation.params["axis"] else kind] * len(equation.outvars)

    # Sums, sorts, windows

    def _reduction(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        axes = equation.params["dimensions"] if equation.primitive.name == "reduce" else equation.params["axes"]
        kind = _join_all(inputs)
        return [_removed(kind, axes) if isinstance(kind, Along) else kind] * len(equation.outvars)

    def _cumulative(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs)
        return [MIXED if kind.axis == equation.params["axis"] else kind]

    def _sort(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _join_all(inputs)
        mixed = isinstance(kind, Along) and kind.axis == equation.params["dimension"]
        return [MIXED if mixed else kind] * len(equation.outvars)

    def _top_k(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, last = _only(inputs), len(equation.invars[0].aval.shape) - 1
        axis = equation.params.get("axis", last)
        return [MIXED if kind.axis in (axis, last) else kind] * len(equation.outvars)

    def _window(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        facts, kind = equation.params, _join_all(inputs)
        if not isinstance(kind, Along):
            return [kind] * len(equation.outvars)
        alone = [
            facts[name] is None or tuple(facts[name])[kind.axis] in (1, (0, 0))
            for name in ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
            if name in facts
        ]
        return [kind if all(alone) else MIXED] * len(equation.outvars)

    def _linear_algebra(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _join_all(inputs)
        if equation.primitive.name == "triangular_solve" and inputs[0] is None:
            # A public matrix: each right-hand side has a solution of its own.
            rank = len(equation.invars[1].aval.shape)
            sides = rank - 1 if equation.params["left_side"] else rank - 2
            return [kind if isinstance(kind, Along) and kind.axis in (*range(rank - 2), sides) else MIXED]
        core = 1 if equation.primitive.name == "lu_pivots_to_permutation" else 2
        ranks = [len(atom.aval.shape) - core for atom in equation.invars[:1]]
        ahead = isinstance(kind, Along) and all(kind.axis < rank for rank in ranks)
        return [kind if ahead else MIXED] * len(equation.outvars)

    def _fft(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, rank = _only(inputs), len(equation.invars[0].aval.shape)
        return [kind if kind.axis < rank - len(equation.params["fft_lengths"]) else MIXED]

    # Products

    def _dot_general(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
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
        return [_join_all(found)]

    def _conv_general_dilated(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        facts, (left, right) = equation.params, inputs
        specs = facts["dimension_numbers"]
        shape = equation.outvars[0].aval.shape
        batch, features = specs.out_spec[:2]
        by_feature = Along(features, shape[features] // self.records)
        in_groups = facts["feature_group_count"] % self.records == 0
        in_batches = facts["batch_group_count"] % self.records == 0
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

    def _gather(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
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
        if (
            indices is None
            and operand.axis in kept
            and sizes[operand.axis] == equation.invars[0].aval.shape[operand.axis]
        ):
            return [operand._replace(axis=facts.offset_dims[kept.index(operand.axis)])]
        return [MIXED]

    def _scatter(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
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
                whole = shapes[0][axis] == shapes[2][place] == self.records
                if whole and operand in (None, Along(axis)) and updates in (None, Along(place)):
                    return [Along(axis)]
        return [MIXED]

    def _dynamic_slice(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind, *starts = inputs
        if any(start is not None for start in starts) or not isinstance(kind, Along):
            return [MIXED]
        whole = equation.invars[0].aval.shape[kind.axis]
        return [kind if equation.params["slice_sizes"][kind.axis] == whole else MIXED]

    def _dynamic_update_slice(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        operand, update, *starts = inputs
        kind = _join(operand, update)
        if any(start is not None for start in starts) or not isinstance(kind, Along):
            return [MIXED]
        shapes = [atom.aval.shape for atom in equation.invars[:2]]
        return [kind if shapes[0][kind.axis] == shapes[1][kind.axis] else MIXED]

    # Random numbers

    def _of_keys(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
        keys = [aval.dtype for aval in avals if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)]
        trusted = all(any(tag in str(dtype) for tag in TRUSTED_KEYS) for dtype in keys)
        return [_join_all(inputs) if trusted and keys else MIXED] * len(equation.outvars)

    _random_bits = _random_fold_in = _random_seed = _random_split = _random_gamma = _random_clone = _of_keys

    def _random_wrap(self, equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
        kind = _only(inputs)
        return self._of_keys(equation, inputs) if kind.axis < len(equation.outvars[0].aval.shape) else [MIXED]

    _random_unwrap = _of_keys


def _is_composite(equation: Any) -> bool:
    """Whether an equation stands for a composite of JAX's own kind (since 0.12), which says what it is made of."""
    module = sys.modules.get("jax._src.hijax")
    return "_prim" in equation.params and module is not None and equation.primitive in vars(module).values()


def _unknown(equation: Any, inputs: list[Kind]) -> Sequence[Kind]:
    return [MIXED] * len(equation.outvars)


def _only(kinds: Iterable[Kind]) -> Along:
    """Return the one kind that is not public. Rules are asked only where there is one."""
    (kind,) = kinds
    assert isinstance(kind, Along)
    return kind


def _join(one: Kind, two: Kind) -> Kind:
    if one is None or one == two:
        return two
    return one if two is None else MIXED


def _join_all(kinds: Iterable[Kind]) -> Kind:
    joined: Kind = None
    for kind in kinds:
        joined = _join(joined, kind)
    return joined


def _removed(kind: Along, axes: Iterable[Any]) -> Kind:
    """Return what is left of a kind when axes are removed."""
    gone = [int(axis) for axis in axes]
    return MIXED if kind.axis in gone else kind._replace(axis=kind.axis - sum(axis < kind.axis for axis in gone))


def _without_first(kind: Kind) -> Kind:
    return _removed(kind, [0]) if isinstance(kind, Along) else kind


def _with_first(kind: Kind) -> Kind:
    return kind._replace(axis=kind.axis + 1) if isinstance(kind, Along) else kind


def _operand(atom: Any) -> Any:
    return ("literal", repr(atom.val)) if isinstance(atom, Literal) else ("operand", id(atom))


class _Expressions:
    """What the variables of a program stand for, written out in terms of its inputs, so that two can be compared."""

    def __init__(self, jaxpr: Any, names: Sequence[Any], numbers: dict[Any, int]) -> None:
        self.makers, self.numbers = trace.makers(jaxpr), numbers
        self.known: dict[Any, Any] = dict(zip(jaxpr.invars, names, strict=True))

    def maker(self, atom: Any) -> Any:
        """Return the equation that makes a variable."""
        return None if isinstance(atom, Literal) else self.makers.get(atom)

    def behind_broadcasts(self, atom: Any) -> Any:
        """Return the variable that was repeated along new axes to make this one."""
        while (equation := self.maker(atom)) is not None and equation.primitive.name in ("broadcast_in_dim", "reshape"):
            atom = equation.invars[0]
        return atom

    def of(self, atom: Any) -> Any:
        """Return the expression of a variable."""
        if isinstance(atom, Literal):
            return _operand(atom)
        if atom not in self.known:
            equation = self.makers.get(atom)
            if equation is None:
                return ("constant", id(atom))
            inputs = tuple(self.of(one) for one in equation.invars)
            held = tuple(id(const) for part in equation.params.values() for const in getattr(part, "consts", ()))
            facts = str(sorted(map(str, equation.params.items())))
            whole = (equation.primitive, facts, held, inputs, equation.outvars.index(atom))
            # A number for each expression: they share parts, and written out would grow without bound.
            self.known[atom] = self.numbers.setdefault(whole, len(self.numbers))
        return self.known[atom]
