"""The names of d3p.optimizers: ADADP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.optim

from tacit.adapters.d3p.svi import full_norm
from tacit.types import PyTree

__all__ = [
    "ADADP",
    "adadp",
]


def adadp(
    step_size: float | Callable[[int], float] = 1e-3,
    tol: float = 1.0,
    stability_check: bool = True,
    alpha_min: float = 0.9,
    alpha_max: float = 1.1,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Make ADADP (Koskela and Honkela 2020): the step size follows the error of one step against two halves.

    An even update lays a whole step aside and takes half of it. An odd one takes the other half, compares the two ends,
    and multiplies the step size by ``sqrt(tol / error)``, kept in [alpha_min, alpha_max].

    Privacy: post-processing of noisy gradients.

    Parameters
    ----------
    step_size
        The first step size, or a schedule that gives it at 0.
    tol
        The error that is aimed at.
    stability_check
        Whether two updates with a larger error are taken back.
    alpha_min, alpha_max
        Bounds on one change of the step size.

    Returns
    -------
    tuple
        ``(init, update, get_params)`` as in jax.example_libraries.optimizers; `ADADP` is the same for NumPyro.
    """

    def init(x: PyTree) -> Any:
        return x, jnp.float32(step_size(0) if callable(step_size) else step_size), x, x

    def update(i: Any, g: PyTree, state: Any) -> Any:
        x, size, whole, before = state
        half = jax.tree.map(lambda x, g: x - 0.5 * size * g, x, g)
        ahead = jax.tree.map(lambda x, g: x - size * g, x, g)
        error = full_norm(jax.tree.map(lambda a, b: (a - b) / jnp.maximum(1, jnp.abs(a)), whole, half))
        changed = size * jnp.clip(jnp.sqrt(tol / error), alpha_min, alpha_max)
        kept = jax.tree.map(lambda a, b: jnp.where(stability_check & ~(error <= tol), a, b), before, half)
        even, odd = (half, size, ahead, x), (kept, changed, whole, before)
        return jax.tree.map(lambda a, b: jnp.where(jnp.asarray(i) % 2 == 0, a, b), even, odd)

    return init, update, lambda state: state[0]


class ADADP(numpyro.optim._NumPyroOptim):  # type: ignore[misc]
    """`adadp` as a NumPyro optimiser, with the same arguments. Privacy: post-processing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(adadp, *args, **kwargs)
