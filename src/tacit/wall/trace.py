"""Traced functions: flattened into one list of equations, looked at, and evaluated in part or otherwise."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from tacit.types import PyTree

CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
)
"""Primitives that stand for the function they hold, as far as values go."""
CONTROL = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
"""Primitives of control flow, and the parameters that hold the functions they apply."""

OUTSIDE = ("callback", "outfeed", "infeed", "ffi_call", "host_call")
"""Parts of the names of primitives by which a program reaches out of itself."""
WAYS_OUT = re.compile(r"custom_call @(\S*callback\S*?)\(|stablehlo\.(outfeed|infeed|send|recv)\b")
"""The same in a lowered program."""

Rules = Mapping[str, Callable[..., Any]]
"""Functions to be applied in place of primitives: each takes the inputs and the parameters of an equation."""


def flat(function: Callable[..., PyTree], *arguments: PyTree) -> Any:
    """Trace a function of pytrees into a closed jaxpr of its leaves, with no calls left in it.

    Privacy: public; arrays, tracers or shapes are looked at for their shapes only.
    """
    leaves, structure = jax.tree.flatten(arguments)
    traced = jax.make_jaxpr(lambda *flat: jax.tree.leaves(function(*jax.tree.unflatten(structure, flat))))(*leaves)
    return jax.make_jaxpr(lambda *flat: evaluate(traced.jaxpr, traced.consts, flat, traced.jaxpr.outvars))(*leaves)


def contents(jaxpr: Any) -> tuple[list[Any], set[str]]:
    """Return every array that a traced function holds and every way out of it, those of inner functions included.

    Privacy: public.
    """
    arrays, calls = list(getattr(jaxpr, "consts", ())), {str(effect) for effect in jaxpr.effects}
    for equation in jaxpr.eqns:
        arrays += [atom.val for atom in equation.invars if hasattr(atom, "val")]
        if any(part in equation.primitive.name for part in OUTSIDE):
            calls.add(equation.primitive.name)
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(parameter, "eqns"):
                inner = contents(parameter)
                arrays, calls = arrays + inner[0], calls | inner[1]
    return arrays, calls


def lower(function: Any, *arguments: Any) -> tuple[Any, str]:
    """Lower a jitted function, and return it with a text that decides the bits of its results.

    What JAX prints of a program may leave out arrays that it holds (``jax_use_simplified_jaxpr_constants``), so the
    text has a hash of every array that the traced function holds, at whatever depth.

    Privacy: public.
    """
    traced = function.trace(*arguments)
    lowered = traced.lower()
    printed = lowered.as_text()
    if found := WAYS_OUT.findall(printed):
        raise ValueError(
            f"The compiled step calls out of itself ({', '.join(sorted(set(found)))}). A record could leave that way; "
            "remove the print or callback."
        )
    digest = hashlib.sha256(printed.encode())
    for array in contents(traced.jaxpr)[0]:
        typed = isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        held = np.asarray(jax.random.key_data(array) if typed else array)
        digest.update(repr((held.shape, held.dtype.str)).encode() + np.ascontiguousarray(held).tobytes())
    return lowered, digest.hexdigest()


def makers(jaxpr: Any) -> dict[Any, Any]:
    """Return the equation that makes each variable.

    Privacy: public.
    """
    return {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}


def evaluate(
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    wanted: Sequence[Any],
    instead: Mapping[Any, Callable[..., Any]] | None = None,
    rules: Rules | None = None,
) -> list[Any]:
    """Compute the wanted atoms of a traced function, and nothing that they do not need; calls are opened up.

    Privacy: a way to compute; bounds nothing.

    Parameters
    ----------
    jaxpr, consts, arguments
        The traced function, the arrays that it holds, and what it is applied to.
    wanted
        Variables or literals of it.
    instead
        For variables that are to be computed otherwise: a function of the inputs of the equation that makes them.
    rules
        What to apply in place of primitives, inside of loops and branches too.
    """
    instead, rules = instead or {}, rules or {}
    needed = {atom for atom in wanted if not isinstance(atom, Literal)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            equations.append(equation)
            needed.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    values = dict(zip(jaxpr.constvars, consts, strict=True)) | dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return jnp.asarray(atom.val) if isinstance(atom, Literal) else values[atom]

    for equation in reversed(equations):
        inputs = [read(atom) for atom in equation.invars]
        held, other = inner(equation), instead.get(equation.outvars[0])
        name, parameters = equation.primitive.name, equation.params
        if other is not None:
            results = [other(*inputs)]
        elif name in rules:
            results = [rules[name](*inputs, **parameters)]
        elif held is None:
            bound = equation.primitive.get_bind_params(_with_rules(name, parameters, rules))
            functions, parameters = bound if isinstance(bound, tuple) else ((), bound)  # before jax 0.10, and since
            with equation.ctx.manager:
                results = equation.primitive.bind(*functions, *inputs, **parameters)
            results = results if equation.primitive.multiple_results else [results]
        else:
            body = getattr(held, "jaxpr", held)
            results = evaluate(body, getattr(held, "consts", ()), inputs, body.outvars, rules=rules)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in wanted]


def inner(equation: Any) -> Any:
    """Return the function that an equation stands for, if it is a call.

    Privacy: public.
    """
    if equation.primitive.name not in CALLS:
        return None
    held = [value for value in equation.params.values() if hasattr(value, "eqns")]
    return held[0] if len(held) == 1 else None


def _with_rules(name: str, parameters: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """Return the parameters of an equation, with the rules applied to the functions that control flow holds."""
    held = {key: parameters[key] for key in CONTROL.get(name, ())}

    def applied(closed: Any) -> Any:
        def inside(*arguments: Any) -> list[Any]:
            return evaluate(closed.jaxpr, closed.consts, arguments, closed.jaxpr.outvars, rules=rules)

        return jax.make_jaxpr(inside)(*closed.in_avals) if _mentions(closed.jaxpr, rules) else closed

    return {**parameters, **jax.tree.map(applied, held, is_leaf=lambda value: hasattr(value, "eqns"))}


def _mentions(jaxpr: Any, names: Iterable[str]) -> bool:
    """Whether a traced function, or one that it holds, applies one of these primitives."""
    for equation in jaxpr.eqns:
        held = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns"))
        if equation.primitive.name in names or any(_mentions(value, names) for value in held if hasattr(value, "eqns")):
            return True
    return False
