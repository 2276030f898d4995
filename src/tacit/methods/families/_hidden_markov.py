"""Hidden Markov models of sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from tacit.methods.arguments import check_positive
from tacit.methods.families._common import all_counts, check_at_least, log_dirichlet, need_symbols, x_of
from tacit.methods.families._family import Family, FamilyFor
from tacit.types import Array, Key, PyTree, Record


def hidden_markov(states: int, symbols: int, *, concentration: float = 1.0) -> FamilyFor:
    """Find hidden states behind sequences of symbols: a record is ``{"x": whole numbers from 0}``, one sequence.

    Sequences are filled up to one length with -1, at any place. All probabilities have Dirichlet priors. A record with
    any other number contributes nothing, without a warning, unless a schema that declares ``x`` refused it.

    Privacy: public. One whole sequence is one record.
    """
    check_at_least(states=(states, 1), symbols=(symbols, 2))
    check_positive(concentration=concentration)

    def build(placeholder: Record) -> Family:
        length = x_of(placeholder, 1).shape[0]

        def evidence(expected: PyTree, record: Record) -> Array:
            return _forward(expected["first"], expected["move"], expected["emit"], record["x"])

        def concentrations(statistics: PyTree) -> PyTree:
            return jax.tree.map(lambda counts: concentration + counts, statistics)

        def begin(key: Key) -> PyTree:
            """Start from states that stay, and emit symbols at random."""
            emit = 10 * jax.random.dirichlet(key, jnp.ones(symbols), (states,))
            return {"first": jnp.full(states, 10 / states), "move": 10 * jnp.eye(states), "emit": emit}

        def draw(statistics: PyTree, key: Key) -> dict[str, Array]:
            keys = jax.random.split(key, 3)
            names = ("first", "move", "emit")
            return {
                name: jax.random.dirichlet(one, concentration + statistics[name])
                for name, one in zip(names, keys, strict=True)
            }

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            """Return each sequence's log likelihood, and the probabilities of the states at each place."""
            first, move, emit = (jnp.log(draw[name] + 1e-30) for name in ("first", "move", "emit"))

            def one(x: Array) -> tuple[Array, Array]:
                zero = jnp.zeros((len(x), states))
                return jax.value_and_grad(lambda tilt: _forward(first, move, emit, x, tilt))(zero)

            likelihood, chances = jax.vmap(one)(jnp.asarray(inputs["x"]))
            return {"log_likelihood": likelihood, "state": chances}

        return Family(
            lambda statistics: sum(map(log_dirichlet, concentrations(statistics).values()), jnp.float32(0)),
            evidence,
            begin,
            all_counts,
            draw,
            {"first": 1.0, "move": float(max(1, length - 1)), "emit": float(length)},
            predict,
            (need_symbols(symbols),),
        )

    return build


def _forward(first: Array, move: Array, emit: Array, x: Array, tilt: Array | None = None) -> Array:
    """Return the log of the sum over all paths; what is -1 takes no step. ``tilt`` is added to each place's logs."""
    x = x.astype(jnp.int32)
    there = x >= 0
    logs = jnp.where(there[:, None], emit.T[jnp.maximum(x, 0)] + (0 if tilt is None else tilt), 0)

    def step(carry: tuple[Array, Array], place: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        alpha, begun = carry
        here, log = place
        moved = jnp.where(begun, logsumexp(alpha[:, None] + move, 0), first) + log
        return (jnp.where(here, moved, alpha), begun | here), None

    (alpha, begun), _ = jax.lax.scan(step, (jnp.zeros_like(first), jnp.bool_(False)), (there, logs))
    return jnp.where(begun, logsumexp(alpha), 0.0)
