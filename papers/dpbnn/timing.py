"""The time of a step on networks, beside the same step without privacy, Opacus and jax-privacy, in one run.

    python benchmarks/peers.py mlp          (or cnn; papers/dpbnn/peer.sh installs Opacus)

Subsets of 256 of 60000 records, clip 1.5, noise multiplier 1.3, gradient descent. tacit's step is that of the wall
(``Runner.advance``): it draws an exact Poisson subset, gathers, clips, sums in integers, adds noise of a cryptographic
generator and updates. All others are handed one subset for nothing.

"public": the same network in JAX without privacy, one backward pass for the mean, many steps in a compiled loop.
"public by calls": a step in a call, since JAX is slow at convolutions inside of loops (jax issue 12868). Ratios are to
the faster of the two. "jax-privacy": its ``clipped_grad`` (in parts of 8 records on the MLP, where its whole subset at
once takes longer) and Gaussian noise. "torch", "Opacus ghost" and "Opacus hooks": PyTorch without privacy, and Opacus
with and without per-record gradients in memory.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "d3p")]
from mnist import module  # noqa: E402
from opacus_peer import CLIP, LEARNING_RATE, SIGMA, SUBSET  # noqa: E402
from peer_client import Peer, Timer, timed  # noqa: E402

import tacit  # noqa: E402
from tacit.engine import random as secret_random  # noqa: E402
from tacit.engine.runner import Runner  # noqa: E402

RECORDS = 60000
METHODS: dict[str, Callable[..., Any]] = {
    "SGD": lambda net: tacit.sgd(net, optimizer=optax.sgd(LEARNING_RATE)),
    "Bayes by backprop": lambda net: tacit.bayes_by_backprop(net, optimizer=optax.sgd(LEARNING_RATE)),
}
WARM = 64
"""Steps that are taken before the clock starts: in the first ones methods take every iterate into their average."""
STEPS = {"mlp": (60, 1), "cnn": (28, 3)}
"""Steps in one timing: of a quick program (the wall draws noise of some steps ahead), of a slow one."""


def made_up() -> dict[str, Any]:
    """Return made-up records: time does not depend on their values."""
    random = np.random.default_rng(0)
    x = random.standard_normal((RECORDS, 784), dtype=np.float32)
    return {"x": x, "y": random.integers(0, 10, RECORDS).astype(np.int32)}


def private(method: Any, data: tacit.PrivateData, number: int) -> Timer:
    """Time the wall's step."""
    built = method(tacit.Plan(data.placeholder, RECORDS))
    mechanism = tacit.Mechanism(rate=SUBSET / RECORDS, clip=CLIP, noise_multiplier=SIGMA, steps=10**6)
    runner = Runner(
        *(built, data, mechanism),
        secret=secret_random.fixed(0),
        key=jax.random.key(0),
        ledgers=(),
        run="timing",
        kind="fit",
        title="timing",
        simulation=True,
    )
    state = jax.tree.map(jnp.asarray, jax.jit(built.init)(jax.random.key(0)))
    state = runner.advance(state, 0, WARM)
    return timed(lambda: runner.advance(state, WARM, WARM + number), number)


def descent(net: Any, gradient: Callable[..., Any], records: Any, number: int, calls: bool = False) -> Timer:
    """Time gradient descent by a given gradient of the mean loss, on one subset; in one call or in many."""
    optimizer = optax.sgd(LEARNING_RATE)
    subset = jax.tree.map(lambda leaf: jnp.asarray(leaf[:SUBSET]), records)
    start = net.start(jax.random.key(0))

    def step(i: Any, carry: Any, subset: Any, key: Any) -> Any:
        weights, memory = carry
        change, memory = optimizer.update(gradient(weights, subset, jax.random.fold_in(key, i)), memory, weights)
        return optax.apply_updates(weights, change), memory

    one = jax.jit(step, donate_argnums=1)
    many = jax.jit(lambda carry, subset, key: jax.lax.fori_loop(0, number, lambda i, c: step(i, c, subset, key), carry))

    def program() -> Any:
        carry, key = jax.tree.map(jnp.copy, (start, optimizer.init(start))), jax.random.key(1)
        if not calls:
            return many(carry, subset, key)
        for i in range(number):
            carry = one(i, carry, subset, key)
        return carry

    return timed(program, number)


def public_gradient(net: Any) -> Callable[..., Any]:
    """Return the gradient of the mean loss."""

    def loss(weights: Any, subset: Any) -> Any:
        return -jnp.mean(jax.vmap(net.log_likelihood, (None, 0, None))(weights, subset, None))

    return lambda weights, subset, key: jax.grad(loss)(weights, subset)


def jax_privacy_gradient(net: Any, parts: int | None) -> Callable[..., Any]:
    """Return jax-privacy's clipped and noisy gradient of the mean loss."""
    from jax_privacy import clipping

    clipped = clipping.clipped_grad(
        lambda weights, record: -net.log_likelihood(weights, record, None),
        l2_clip_norm=CLIP,
        keep_batch_dim=False,
        microbatch_size=parts,
    )

    def gradient(weights: Any, subset: Any, key: Any) -> Any:
        leaves, structure = jax.tree.flatten(clipped(weights, subset))
        keys = jax.random.split(key, len(leaves))
        noisy = [
            leaf + SIGMA * CLIP * jax.random.normal(one, leaf.shape) for leaf, one in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(structure, [leaf / SUBSET for leaf in noisy])

    return gradient


def timers(network: str, data: tacit.PrivateData, records: Any, peer: Peer | None) -> dict[str, Timer]:
    """Compile everything for one network."""
    net = tacit.network(module(network, jax.random.key(1)), prior_std=0.1)
    quick, slow = STEPS[network]
    found = {f"tacit {name}": private(make(net), data, quick) for name, make in METHODS.items()}
    found["public"] = descent(net, public_gradient(net), records, quick)
    found["public by calls"] = descent(net, public_gradient(net), records, quick, calls=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # optax renamed what jax-privacy calls
        parts = 8 if network == "mlp" else None
        found["jax-privacy"] = descent(net, jax_privacy_gradient(net, parts), records, slow)
        for timer in found.values():
            timer()
    if peer:
        for name, way in (("torch", "public"), ("Opacus ghost", "ghost"), ("Opacus hooks", "hooks")):
            number = slow if way == "hooks" and network == "mlp" else quick
            found[name] = peer.timer(network=network, way=way, number=number)
    return found
