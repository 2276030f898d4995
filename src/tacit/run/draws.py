"""The posterior that a method's last state gives."""

from __future__ import annotations

from collections.abc import Callable

import jax

from tacit.ledger.certificate import Certificate
from tacit.results.learnt import noise_share_of
from tacit.results.posterior import DRAWN_NUMBERS, DRAWS, Posterior
from tacit.types import Array, Key, Method, State

QUICKLY_DRAWN = 1 << 17
"""Fewer numbers than that are drawn by a program that was compiled quickly."""


def posterior_of(built: Method, state: State, key: Key, certificate: Certificate | None) -> Posterior:
    """Draw from a method's last state.

    Privacy: post-processing.
    """
    points = built.point_estimates(state) if built.point_estimates else None
    draw = drawing(built)
    draws = draw(state, key)
    return Posterior(draws, certificate, built, points, noise_share=noise_share_of(built, draw, draws, state, key))


def drawing(built: Method) -> Callable[[State, Key], dict[str, Array]]:
    """Return the compiled function that draws a posterior's draws from a state.

    Privacy: post-processing.
    """

    key = jax.random.key(0)
    jaxpr, shape = jax.make_jaxpr(lambda key: built.draw(built.init(key), key), return_shape=True)(key)
    size = sum(leaf.size for leaf in jax.tree.leaves(shape))
    count = max(10, min(DRAWS, DRAWN_NUMBERS // max(1, size)))

    def draws(state: State, key: Key) -> dict[str, Array]:
        return jax.vmap(built.draw, (None, 0))(state, jax.random.split(key, count))

    # Few numbers, drawn once and not in a loop, are not worth the compiler's care: it takes most of the time.
    loops = any(f" {name}[" in str(jaxpr) for name in ("scan", "while"))
    quick = count * size < QUICKLY_DRAWN and not loops and jax.default_backend() == "cpu"
    return jax.jit(draws, compiler_options={"xla_backend_optimization_level": 0} if quick else {})
