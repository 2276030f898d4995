"""Proof that a batched program keeps records apart, by following the axis of the records through its equations.

A primitive has a rule in ``tacit.engine.rules`` if it is known how it acts on that axis; what has none, and takes part
of a record, gives MIXED. So the rules are an allow-list: collectives, custom calls, generators whose bits depend on the
batch, and whatever JAX adds one day are not proved. What is not proved is run one record at a time
(docs/proofs/clipping.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Primitive, primitives

from tacit.engine.rules import MIXED, RULES, Along, Kind, Rule, join, join_all, unknown, with_first, without_first
from tacit.wall import trace

WRAP = (
    jax.make_jaxpr(lambda bits: jax.random.wrap_key_data(bits, impl="threefry2x32"))(np.zeros(2, np.uint32))
    .eqns[0]
    .primitive
)
"""What makes a key of random bits; JAX gives no name to it."""
TRUSTED = frozenset(
    (
        WRAP,
        *(value for module in (jax.lax, primitives) for value in vars(module).values() if isinstance(value, Primitive)),
    )
)
"""JAX's own primitives."""


def apart(closed: Any, kinds: Sequence[Kind], records: int) -> bool:
    """Return whether row i of every result of a traced program depends on record i, and on no other.

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
        self._holding: dict[str, Rule] = {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
            "custom_linear_solve": self._custom_linear_solve,
        }

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
                outputs = self._rule(equation)(equation, inputs, self.records)
            for variable, found in zip(equation.outvars, outputs, strict=True):
                known[variable] = self._checked(variable.aval.shape, found)
        return [kind(atom) for atom in jaxpr.outvars]

    def _checked(self, shape: tuple[int, ...], kind: Kind) -> Kind:
        """Return a kind, or MIXED where the shape does not bear it out: a wrong rule must not prove anything."""
        if not isinstance(kind, Along):
            return kind
        fits = 0 <= kind.axis < len(shape) and shape[kind.axis] == kind.outer * self.records * kind.inner
        return kind if fits else MIXED

    def _rule(self, equation: Any) -> Rule:
        if _is_composite(equation):
            return self._composite
        if equation.primitive not in TRUSTED:  # a name alone can be anyone's
            return unknown
        name = equation.primitive.name
        if name in trace.CALLS:
            return self._call
        return self._holding.get(name) or RULES.get(name, unknown)

    def _call(self, equation: Any, inputs: list[Kind], _: int) -> Sequence[Kind]:
        inner = trace.inner(equation)
        if inner is None:
            return [MIXED] * len(equation.outvars)
        return self.kinds(getattr(inner, "jaxpr", inner), inputs)

    def _composite(self, equation: Any, inputs: list[Kind], _: int) -> Sequence[Kind]:
        avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
        return self.kinds(jax.make_jaxpr(equation.params["_prim"].expand)(*avals).jaxpr, inputs)

    def _scan(self, equation: Any, inputs: list[Kind], _: int) -> Sequence[Kind]:
        facts = equation.params
        if "ft_in" in facts:  # since JAX 0.12
            consts, carried, _ = map(len, facts["ft_in"].unpack())
        else:
            consts, carried = facts["num_consts"], facts["num_carry"]
        body = facts["jaxpr"].jaxpr
        rows = [
            without_first(kind) for kind in inputs[consts + carried :]
        ]  # MIXED where records themselves are scanned
        carry = inputs[consts : consts + carried]
        while True:
            found = self.kinds(body, [*inputs[:consts], *carry, *rows])
            joined = [join(old, new) for old, new in zip(carry, found[:carried], strict=True)]
            if joined == carry:
                return [*carry, *(with_first(kind) for kind in found[carried:])]
            carry = joined

    def _while(self, equation: Any, inputs: list[Kind], _: int) -> Sequence[Kind]:
        facts = equation.params
        ahead = facts["cond_nconsts"], facts["body_nconsts"]
        of_test, of_body = inputs[: ahead[0]], inputs[ahead[0] : sum(ahead)]
        test, body, carry = facts["cond_jaxpr"].jaxpr, facts["body_jaxpr"].jaxpr, inputs[sum(ahead) :]
        while True:
            found = self.kinds(body, [*of_body, *carry])
            joined = [join(old, new) for old, new in zip(carry, found, strict=True)]
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

    def _custom_linear_solve(self, equation: Any, inputs: list[Kind], _: int) -> Sequence[Kind]:
        lengths, solve = equation.params["const_lengths"], equation.params["jaxprs"].solve
        begin = lengths.matvec + lengths.vecmat
        given = [*inputs[begin : begin + lengths.solve], *inputs[sum(lengths) :]]
        return self.kinds(solve.jaxpr, given)

    def _cond(self, equation: Any, inputs: list[Kind], _: int) -> Sequence[Kind]:
        which, *others = inputs
        if which is not None:  # of a batched choice JAX makes a selection
            return [MIXED] * len(equation.outvars)
        branches = [self.kinds(branch.jaxpr, others) for branch in equation.params["branches"]]
        return [join_all(kinds) for kinds in zip(*branches, strict=True)]


def _is_composite(equation: Any) -> bool:
    """Whether an equation stands for a composite of JAX's own kind (since 0.12), which says what it is made of."""
    module = sys.modules.get("jax._src.hijax")
    return "_prim" in equation.params and module is not None and equation.primitive in vars(module).values()


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
