"""Private stochastic gradient descent (Abadi et al. 2016), and Monte Carlo dropout (Gal and Ghahramani 2016) on it.

    for t = 1..T
        u_i = grad_w log p(y_i | x_i, w)         contribution: through the wall; under dropout, with a mask of its own
        g   = (sum over the subset of clip(u_i) + noise) / rate + grad log prior(w)
        w   = w + optimiser(g / size)
        wbar = average of w                      free post-processing
    dropout keeps its masks for predictions: one mask is one draw of the posterior

The prior is exact and outside of the wall. ``size``, the number of records, is public; nothing is divided by the size
of a subset.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from tacit.methods.arguments import moved, records_of
from tacit.methods.networks import MASK, Network, Weights, score
from tacit.methods.running import tail_average
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

Optimizer: TypeAlias = optax.GradientTransformation


class SGDState(NamedTuple):
    """Weights, their average over the steps, the optimiser's memory, the number of steps."""

    weights: Weights
    average: Weights
    optimizer: Any
    step: Array


def sgd(net: Network, *, optimizer: Optimizer | None = None, size: int | None = None) -> MethodFor:
    """Fit a network's weights as one point, by private gradient descent: the baseline without a posterior.

    The number of records must be declared; about right is enough.

    Privacy: public.

    Parameters
    ----------
    net
        From ``tacit.network``.
    optimizer
        An optax optimiser, given the gradient of the mean loss; by default gradient descent with momentum.
    size
        Deprecated: the plan has it.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. All draws are the same weights.

    Examples
    --------
    >>> import equinox as eqx, jax, numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> net = tacit.network(eqx.nn.MLP(2, "scalar", 4, 1, key=jax.random.key(0)), "bernoulli")
    >>> method = tacit.sgd(net)
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["layers.0.weight"].shape
    (1000, 4, 2)
    """
    moved(size)
    return MethodFor(lambda plan: _descent(plan, net, records_of(plan, "sgd", size), optimizer, masked=False))


def dropout(net: Network, *, optimizer: Optimizer | None = None, size: int | None = None) -> MethodFor:
    """Fit a network with dropout by private gradient descent, and keep the masks on for predictions.

    Privacy: public.

    Parameters
    ----------
    net
        From ``tacit.network``, with ``equinox.nn.Dropout`` in it.
    optimizer, size
        As in ``tacit.sgd``.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. A draw is a ``mask``, the seed of one network with units left out; the weights
        are in the posterior's ``points``.

    Examples
    --------
    >>> import equinox as eqx, jax, numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> layers = eqx.nn.Linear(2, 8, key=jax.random.key(0)), eqx.nn.Linear(8, 1, key=jax.random.key(1))
    >>> module = eqx.nn.Sequential([layers[0], eqx.nn.Lambda(jax.nn.relu), eqx.nn.Dropout(0.5), layers[1]])
    >>> method = tacit.dropout(tacit.network(module, "bernoulli"))
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> list(posterior.draws)
    ['mask']
    """
    moved(size)
    if not net.random:
        raise ValueError(
            "The network has no dropout, so that all its predictions would be the same. Put equinox.nn.Dropout(0.5) "
            "between its layers, and hand the key of the call on to it."
        )
    return MethodFor(lambda plan: _descent(plan, net, records_of(plan, "dropout", size), optimizer, masked=True))


def _descent(plan: Plan, net: Network, size: int, optimizer: Optimizer | None, masked: bool) -> Method:
    optimizer = optimizer or optax.sgd(0.2, momentum=0.9)

    def init(key: Key) -> SGDState:
        weights = net.start(key)
        return SGDState(weights, weights, optimizer.init(weights), jnp.int32(0))

    def contribute(state: SGDState, record: Record, key: Key, record_key: Key | None = None) -> PyTree:
        return score(net, state.weights, record, record_key if masked else None)

    def update(state: SGDState, release: Release, key: Key) -> SGDState:
        upwards = jax.tree.map(jnp.add, release.full, jax.grad(net.log_prior)(state.weights))
        downhill = jax.tree.map(lambda leaf: -leaf / size, upwards)
        change, memory = optimizer.update(downhill, state.optimizer, state.weights)
        weights = optax.apply_updates(state.weights, change)
        return SGDState(weights, tail_average(state.average, weights, state.step), memory, state.step + 1)

    def draw(state: SGDState, key: Key) -> dict[str, Array]:
        return {MASK: jax.random.bits(key)} if masked else state.average

    def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        weights = {name: leaf for name, leaf in draw.items() if name != MASK}
        return net.predict(weights, inputs, key, jax.random.key(draw[MASK]) if masked else None)

    return Method(
        init,
        contribute,
        update,
        draw,
        (lambda state: state.average) if masked else None,
        per_record_key=masked,
        requirements=net.requirements(plan.placeholder),
        for_size=size,
        suggests=Suggestions(clip=1.0),
        model=Model(predict),
    )
