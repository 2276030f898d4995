"""Single precision for everything that touches records, whatever the process has switched on.

The proofs are about float32 and int32. With ``jax_enable_x64`` JAX would trace the same code in 64 bits, so the
functions that lead through the wall are run in a context of their own: same program, same bits. What a model holds in
double precision is rounded to float32 on the way in; outside of these functions it stays as it is.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from tacit.types import Array

P = ParamSpec("P")
R = TypeVar("R")


def single_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with JAX in its 32-bit mode. A new thread begins in the mode of the process: decorate its target.

    Privacy: public.
    """

    @functools.wraps(function)
    def run(*arguments: P.args, **options: P.kwargs) -> R:
        if not jax.config.read("jax_enable_x64"):
            return function(*arguments, **options)
        with jax.enable_x64(False), warnings.catch_warnings():
            # A constant of the model in double precision is meant to be rounded here.
            warnings.filterwarnings("ignore", message="Explicitly requested dtype", category=UserWarning)
            return function(*arguments, **options)

    return run


def rounded(array: Any) -> Array:
    """Return an array with what it holds in double precision rounded, where JAX is in its 32-bit mode.

    Privacy: says nothing; what it returns is as private as the array.
    """
    kind: Any = jax.dtypes.canonicalize_dtype(array.dtype, allow_extended_dtype=True)
    return jnp.asarray(array).astype(kind)
