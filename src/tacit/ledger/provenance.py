"""Whose code computes a contribution: tacit's own, or a user's too.

The proofs bound what one contribution can do to a release, whatever code computes it, as long as that code sees one
record at a time. For tacit's own code that is read and tested; for a user's it is checked by the wall, as far as it can
be checked. A certificate says which, in the words of OpenDP: a user's code is trusted to be honest, if curious.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

OURS = sys.stdlib_module_names | {
    *("tacit", "jax", "jaxlib", "jaxtyping"),
    *("numpy", "scipy", "pandas", "numpyro", "optax", "equinox", "formulae"),
}
"""Packages whose code counts as tacit's own: its own, and what it is built on."""
MOST_OBJECTS = 100_000


def whose(contribute: Callable[..., Any]) -> Literal["tacit", "user"]:
    """Return ``"tacit"`` if a contribution runs tacit's own code alone, and ``"user"`` otherwise or in doubt.

    Everything that the function can reach is looked at: what it closes over, defaults, parts of objects. A formula is
    tacit's own code; a NumPyro model, a question, a network's or a likelihood's function of a user's is the user's.

    Privacy: public.
    """
    seen: dict[int, Any] = {}
    todo: list[Any] = [contribute]
    while todo:
        one = todo.pop()
        if id(one) in seen or one is None or isinstance(one, bool | int | float | complex | str | bytes):
            continue
        seen[id(one)] = one
        if len(seen) > MOST_OBJECTS or not _is_ours(one):
            return "user"
        todo.extend(_parts(one))
    return "tacit"


_unknown = types.FunctionType((lambda: None).__code__, {"__name__": "unknown"})
"""Stands for code of which nothing is known."""


def _is_ours(one: Any) -> bool:
    if isinstance(one, types.ModuleType):
        return _package(one.__name__)
    if isinstance(one, types.FunctionType):
        # By the module that a function was made in, whatever name it gives itself.
        name = one.__globals__.get("__name__", "")
        module = sys.modules.get(name)
        return _package(name) and module is not None and module.__dict__ is one.__globals__
    return _package((one if isinstance(one, type) else type(one)).__module__)


def _package(module: str) -> bool:
    return module.partition(".")[0] in OURS


def _parts(one: Any) -> Iterator[Any]:
    """Yield what an object of ours may call upon."""
    if isinstance(one, types.FunctionType) and one.__globals__.get("__name__", "").startswith("jaxtyping."):
        yield getattr(one, "__wrapped__", _unknown)  # what surrounds it checks types
    elif isinstance(one, types.FunctionType):
        for cell in one.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from one.__defaults__ or ()
        yield from (one.__kwdefaults__ or {}).values()
        yield getattr(one, "__wrapped__", None)
    elif isinstance(one, types.MethodType):
        yield from (one.__func__, one.__self__)
    elif isinstance(one, functools.partial):
        yield from (one.func, *one.args, *one.keywords.values())
    elif isinstance(one, weakref.ref):
        yield one()
    elif isinstance(one, Mapping):
        yield from one.values()
    elif isinstance(one, tuple | list | set | frozenset):
        yield from one
    elif isinstance(one, type | types.ModuleType) or hasattr(one, "dtype"):
        return  # classes and modules are judged by where they are from; arrays hold numbers
    else:
        yield from getattr(one, "__dict__", {}).values()
        yield getattr(one, "__wrapped__", None)
        for kind in type(one).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                yield getattr(one, name, None)
