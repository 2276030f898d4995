"""Outer products: the leaves of a contribution that never need to be written out for each record.

The gradient of a dense layer's weights is, for one record, an outer product of the layer's input and of what is
propagated back to its output. Its norm is the product of two short norms, and a sum over records is one matrix product.
``split`` traces the contributions of a chunk of records, looks at how each large leaf was computed, and where that was
an outer product gives the two factors in place of the leaf. What it does not recognise stays as it is.

Any other leaf can be taken for a single-column product, of itself and of one number: the gradient of a regression is a
record's columns times a number. Then nothing of it is written out, and its sum is a matrix product too.

Nothing here can change what a contribution is: a leaf is taken apart only along operations of which it is known that
they rearrange or scale, and a sum is put together again by the same operations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float32, Shaped

from tacit.types import PyTree
from tacit.wall import trace

SMALLEST = 4096
"""Leaves below this size stay whole: writing them out costs next to nothing, and they are rounded one by one."""
GAIN = 4
"""A leaf is taken apart only if it is at least so many times as long as its factors."""
Move = Callable[[Any], Any]
"""A way to rearrange an array, of NumPy or JAX."""


class Outer(NamedTuple):
    """A leaf that is an outer product: the lengths of its factors, and the way from their product to the leaf."""

    rows: int
    columns: int
    moves: tuple[Move, ...]

    def leaf(self, product: Shaped[Array | np.ndarray, "rows columns"]) -> Any:
        """Rearrange a product, or a sum of such products, into the leaf's shape."""
        for move in self.moves:
            product = move(product)
        return product


class Factors(NamedTuple):
    """The factors of one leaf, a row for each record."""

    left: Float32[Array, "n rows"]
    right: Float32[Array, "n columns"]


class Split(NamedTuple):
    """What ``split`` found: an ``Outer`` for each leaf that is one, and each leaf's value or factors."""

    outers: list[Outer | None]
    values: list[Array | Factors]


def split(
    function: Callable[..., PyTree],
    *arguments: PyTree,
    apart: Sequence[bool] | None = None,
    single_column: bool = False,
    smallest: int = SMALLEST,
) -> Split:
    """Evaluate a function of a batch of records, taking large outer products apart.

    Privacy: a way to compute contributions; bounds nothing.

    Parameters
    ----------
    function
        Gives a pytree whose leaves have a leading axis of records, and row i of which depends on record i only.
    arguments
        Its arguments, as arrays or tracers.
    apart
        Which leaves may be taken apart; by default all.
    single_column
        Whether leaves that are no outer products are taken for single-column ones.
    smallest
        Leaves of fewer numbers stay whole.
    """
    traced = trace.flat(function, *arguments)
    jaxpr = traced.jaxpr
    makers = trace.makers(jaxpr)
    apart = [True] * len(jaxpr.outvars) if apart is None else apart
    found = [
        _Walk.find(makers, atom, smallest, single_column) if may else None
        for atom, may in zip(jaxpr.outvars, apart, strict=True)
    ]
    wanted = [
        part for atom, walk in zip(jaxpr.outvars, found, strict=True) for part in (walk.atoms if walk else [atom])
    ]
    parts = iter(trace.evaluate(jaxpr, traced.consts, jax.tree.leaves(arguments), wanted))
    values: list[Array | Factors] = []
    for walk in found:
        values.append(walk.factors([next(parts) for _ in walk.atoms]) if walk else next(parts))
    return Split([walk.outer if walk else None for walk in found], values)


def pays(whole: int, parts: int, smallest: int = SMALLEST) -> bool:
    """Return whether a leaf is worth taking apart, by how many numbers it has and how many its parts have.

    Privacy: public.
    """
    return whole >= max(smallest, GAIN * parts)


def find(function: Callable[..., PyTree], *arguments: PyTree, single_column: bool = False) -> list[Outer | None]:
    """Return for each leaf whether ``split`` takes it apart; shapes in place of arrays will do.

    Privacy: public.
    """
    outers: list[Outer | None] = []

    def charge(*arguments: PyTree) -> None:
        outers.extend(split(function, *arguments, single_column=single_column).outers)

    jax.eval_shape(charge, *arguments)
    return outers


class _NotOuterError(Exception):
    """The leaf was computed by something that is not known to be an outer product."""


class _Source(NamedTuple):
    """An atom behind broadcasts: where its values come from, and which axis of the atom each of its axes became."""

    atom: Any
    axes: tuple[int | None, ...]

    def varies(self) -> set[int | None]:
        return {axis for axis, size in zip(self.axes, self.atom.aval.shape, strict=True) if size > 1}


class _Walk:
    """The way from a leaf back to the outer product that it was made by."""

    def __init__(self, makers: dict[Any, Any], leaf: Any, smallest: int, single_column: bool) -> None:
        self.makers = makers
        self.records, *shape = leaf.aval.shape
        self.axis = 0  # of the records, in the array where the walk stands
        self.moves: list[Move] = []  # from there to the leaf, the last first
        self.scales: list[tuple[Any, Any]] = []  # operation and atom: what a factor is still to be scaled by
        self.sign = 1.0
        if self.records < 2 or not jnp.issubdtype(leaf.aval.dtype, jnp.floating):
            raise _NotOuterError
        self.left: _Source
        self.right: _Source | None = None  # of a single-column product it may be the number 1
        self.left_size, self.right_size, self.turned = 0, 0, False
        if single_column:
            self._end_thin(leaf)
        else:
            atom = leaf
            while atom is not None:
                atom = self._behind(atom)
            if not pays(math.prod(shape), self.left_size + self.right_size, smallest):
                raise _NotOuterError
        self.outer = self._whole(tuple(shape))

    @classmethod
    def find(cls, makers: dict[Any, Any], leaf: Any, smallest: int, single_column: bool) -> _Walk | None:
        for kind in (False, True)[: 1 + single_column]:
            try:
                return cls(makers, leaf, smallest, kind)
            except _NotOuterError:
                pass
        return None

    def _end_thin(self, atom: Any) -> None:
        """Go back as far as arrays are only rearranged or scaled; what stands there is the left factor."""
        while True:
            moves = len(self.moves)
            try:
                behind = self._behind(atom)
            except _NotOuterError:
                break
            if behind is None and 1 in (self.left_size, self.right_size):
                if self.left_size == 1:
                    assert self.right is not None
                    self.left, self.right = self.right, self.left
                    self.left_size, self.right_size = self.right_size, self.left_size
                return
            if behind is None:  # a product, but one that does not pay
                break
            atom = behind
        del self.moves[moves:]
        self.left, self.right = _Source(atom, tuple(range(atom.aval.ndim))), None
        self.left_size, self.right_size = math.prod(atom.aval.shape) // self.records, 1
        self._note_shape(atom.aval.shape)

    @property
    def atoms(self) -> list[Any]:
        sides = [self.left, self.right] if self.right else [self.left]
        return [*(side.atom for side in sides), *(atom for _, atom in self.scales)]

    def factors(self, values: list[Any]) -> Factors:
        left, *others = values
        right = self._rows(others.pop(0), self.right) if self.right else jnp.ones((self.records, 1))
        scaled = right * jnp.float32(self.sign)
        for (operation, _), scale in zip(self.scales, others, strict=True):
            scaled = operation(scaled, jnp.asarray(scale, jnp.float32).reshape(-1, 1))
        both = (self._rows(left, self.left), scaled)
        return Factors(*(both[::-1] if self.turned else both))

    def _whole(self, shape: tuple[int, ...]) -> Outer:
        """Describe the leaf; most are the product or its transpose, and the factors can be put in that order."""
        sizes = (self.left_size, self.right_size)
        numbers = np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
        moved = Outer(*sizes, (*reversed(self.moves), operator.itemgetter(0)))
        order = moved.leaf(numbers)
        for turned in (False,) if self.right_size == 1 else (True, False):
            self.turned = turned
            if np.array_equal(order.ravel(), (numbers.T if self.turned else numbers).ravel()):
                return Outer(*(sizes[::-1] if self.turned else sizes), (lambda array: array.reshape(shape),))
        return moved

    def _rows(self, value: Any, source: _Source) -> Float32[Array, "n _"]:
        value = jnp.asarray(value).astype(jnp.float32)
        if self.axis not in source.varies():
            return jnp.broadcast_to(value.reshape(1, -1), (self.records, value.size))
        return jnp.moveaxis(value, source.axes.index(self.axis), 0).reshape(self.records, -1)

    def _behind(self, atom: Any) -> Any:
        """Go one operation back: note the way forward, and return the atom to go on with, or nothing at the product."""
        equation = None if isinstance(atom, Literal) else self.makers.get(atom)
        if equation is None:
            raise _NotOuterError
        first, after = equation.invars[0], equation.outvars[0].aval.shape
        match equation.primitive.name:
            case "transpose":
                permutation = tuple(equation.params["permutation"])
                self.moves.append(lambda array: array.transpose(permutation))
                self.axis = permutation[self.axis]
            case "reshape" | "squeeze" | "broadcast_in_dim":
                self._reshaped(first.aval.shape, after, equation)
            case "neg":
                self.sign = -self.sign
            case "copy":
                pass
            case "convert_element_type" if jnp.issubdtype(first.aval.dtype, jnp.floating):
                pass
            case "mul" | "div":
                return self._product(equation)
            case "dot_general":
                return self._dot(equation)
            case _:
                raise _NotOuterError
        return first

    def _reshaped(self, before: tuple[int, ...], after: tuple[int, ...], equation: Any) -> None:
        # The records keep an axis of their own, behind as many numbers as before.
        ahead = math.prod(after[: self.axis])
        places = [i for i, size in enumerate(before) if size == self.records and math.prod(before[:i]) == ahead]
        rearranged = equation.params.get("dimensions") is not None and equation.primitive.name == "reshape"
        if len(places) != 1 or math.prod(before) != math.prod(after) or rearranged:
            raise _NotOuterError
        self._note_shape(after)
        self.axis = places[0]

    def _note_shape(self, shape: Sequence[int]) -> None:
        # A sum is put back with one row where the records were.
        alone = tuple(1 if i == self.axis else size for i, size in enumerate(shape))
        self.moves.append(lambda array: array.reshape(alone))

    def _product(self, equation: Any) -> Any:
        """Pass over a scale, which is one number or one for each record; or end at x[:, None] * y[None, :]."""
        whole, division = equation.outvars[0].aval.shape, equation.primitive.name == "div"
        for operand, other in (equation.invars, equation.invars[::-1])[: 1 if division else 2]:
            source = self._source(other)
            if operand.aval.shape == whole and not source.varies() - {self.axis}:
                self.scales.append((jnp.divide if division else jnp.multiply, source.atom))
                return operand
        left, right = (self._source(atom) for atom in equation.invars)
        sides = [sorted(axis for axis in source.varies() if axis not in (None, self.axis)) for source in (left, right)]  # type: ignore[type-var]
        if division or set(sides[0]) & set(sides[1]):
            raise _NotOuterError
        self.left, self.right = left, right
        sizes = [tuple(whole[axis] for axis in side) for side in sides]  # type: ignore[index]
        self.left_size, self.right_size = math.prod(sizes[0]), math.prod(sizes[1])
        if self.left_size * self.right_size * self.records != math.prod(whole):  # an axis along which neither varies
            raise _NotOuterError
        self._note_shape(whole)
        # Before that, the axes of both sides are brought into the order in which they stand in the product.
        axes = sides[0] + sides[1]
        order = sorted(range(len(axes)), key=lambda i: axes[i])  # type: ignore[arg-type, return-value]
        self.moves.append(lambda array: array.reshape(sizes[0] + sizes[1]).transpose(order))
        return None

    def _dot(self, equation: Any) -> Any:
        """End at a product that sums over nothing and has the records, and only them, on both sides."""
        sums, batches = equation.params["dimension_numbers"]
        shapes = [atom.aval.shape for atom in equation.invars]
        summed = math.prod(shapes[0][axis] for axis in sums[0])
        if summed != 1 or len(batches[0]) != 1 or self.axis != 0:
            raise _NotOuterError
        self.left, self.right = (
            _Source(atom, tuple(0 if axis == batch[0] else None for axis in range(len(shape))))
            for atom, shape, batch in zip(equation.invars, shapes, batches, strict=True)
        )
        self.left_size, self.right_size = (math.prod(shape) // self.records for shape in shapes)
        self._note_shape(equation.outvars[0].aval.shape)
        return None

    def _source(self, atom: Any) -> _Source:
        """Look behind broadcasts, and reshapes by which axes of length one come or go."""
        axes: tuple[int | None, ...] = tuple(range(len(atom.aval.shape)))
        while not isinstance(atom, Literal) and (equation := self.makers.get(atom)) is not None:
            if equation.primitive.name not in ("broadcast_in_dim", "reshape", "squeeze"):
                break
            inside = equation.invars[0]
            before, after = inside.aval.shape, atom.aval.shape
            if equation.primitive.name == "broadcast_in_dim":
                axes = tuple(axes[int(i)] for i in equation.params["broadcast_dimensions"])
            elif [size for size in before if size > 1] == [size for size in after if size > 1]:
                left = iter([axis for axis, size in zip(axes, after, strict=True) if size > 1])
                axes = tuple(next(left) if size > 1 else None for size in before)
            else:
                break
            atom = inside
        return _Source(atom, axes)
