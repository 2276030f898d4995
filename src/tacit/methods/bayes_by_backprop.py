"""Private Bayes by backprop (Blundell et al. 2015; Zhang, Bu, Chen, Long 2021, DP-BBP) with shared draws.

    q(w) = N(mu, s^2), s = exp(rho)
    for t = 1..T
        w    = mu + s eps,  eps public                   one draw of all weights, shared by all records
        u_i  = grad_w log p(y_i | x_i, w)                contribution: through the wall, as in SGD
        G    = (sum over the subset of clip(u_i) + noise) / rate
        g_mu = G + tau grad_mu E_q log p(w),   g_s = G eps + tau (grad_s E_q log p(w) + 1/s)
        mu = optimiser(-g_mu / size),  rho = Adam(-g_rho)   of many weights, rho in every fourth step
    a draw:  w ~ N(mubar, sbar^2 + (V + diag V) / 2)     V from the batch means of mu along the path

Where it leaves the paper (docs/errata.md#bayes-by-backprop): the divergence from the prior is counted once, not once a
record, and outside of the wall; only grad_w is released, and grad_rho follows from it, since eps is public.

mubar and sbar are averages over the steps. V is what the noise has left open of mubar, in a wide network more than s:
without it probabilities of images are far too sure (papers/dpbnn). It costs no privacy (gaussian_weights.py).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tacit.methods.arguments import check_draws, check_positive, moved, records_of
from tacit.methods.gaussian_weights import Gaussian, Widths, at, draw_around, drawn, inner_at, noise_of, seeded
from tacit.methods.networks import Network, Weights, check_proper, model_of, score
from tacit.methods.running import BatchMeans, start_batch_means, tail_average, update_batch_means
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions


class BackpropState(NamedTuple):
    """Parameters of q, their average, the means' path, eps's seed, the next draws, the optimisers' memory, the step."""

    params: Gaussian
    std: Weights  # exp(rho), computed when that moves
    average: Gaussian
    path: BatchMeans
    seed: Array
    weights: list[Weights]
    optimizer: Any
    step: Array


def bayes_by_backprop(
    net: Network,
    *,
    optimizer: optax.GradientTransformation | None = None,
    temperature: float = 1.0,
    first_std: float = 0.02,
    draws: int = 1,
    size: int | None = None,
) -> MethodFor:
    """Fit independent normal distributions to a network's weights by private variational inference.

    Privacy: public. The number of records must be declared, and about right is enough.

    Parameters
    ----------
    net
        From ``tacit.network``.
    optimizer
        An optax optimiser of the means, for the mean loss; by default descent with momentum. Adam moves the widths.
    temperature
        How much the divergence from the prior counts: 1 for variational inference; less for a cold posterior, which is
        narrower than the posterior and fits better where units have very many weights.
    first_std
        Standard deviation of every weight at the start.
    draws
        Number of weight draws a step, released together with the noise of one: steadier, at as many times the cost.
    size
        Deprecated: the plan has it.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. It draws the weights.

    Examples
    --------
    >>> import equinox as eqx, jax, numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> net = tacit.network(eqx.nn.MLP(2, "scalar", 4, 1, key=jax.random.key(0)), "bernoulli")
    >>> posterior = tacit.fit(tacit.bayes_by_backprop(net), data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["layers.0.weight"].shape
    (1000, 4, 2)
    """
    moved(size)
    check_proper(net)
    check_positive(first_std=first_std, temperature=temperature)
    check_draws(draws, "weights")
    optimizer = optimizer or optax.sgd(0.2, momentum=0.9)

    def build(plan: Plan) -> Method:
        number = records_of(plan, "bayes_by_backprop", size)
        widths = Widths(jax.eval_shape(net.start, jax.random.key(0)))
        factor = 1 / math.sqrt(draws)  # times it, the gradients together have the norm of one

        def init(key: Key) -> BackpropState:
            mean = net.start(key)
            rho, std, of_widths = widths.start(mean, first_std)
            params, seed, memory = Gaussian(mean, rho), seeded(key), (optimizer.init(mean), of_widths)
            weights = drawn(mean, std, seed, draws)
            return BackpropState(params, std, params, start_batch_means(mean), seed, weights, memory, jnp.int32(0))

        def contribute(state: BackpropState, record: Record, key: Key) -> PyTree:
            return [score(net, weights, record, factor=factor) for weights in state.weights]

        def update(state: BackpropState, release: Release, key: Key) -> BackpropState:
            (mean, rho), (of_means, of_widths) = state.params, state.optimizer

            def loss(mean: Weights, std: Weights, noise: list[Weights]) -> Array:  # minus the ELBO, but for q's entropy
                means = jnp.float32(0)
                for total, eps in zip(release.total, noise, strict=True):
                    fit = inner_at(total, mean, std, eps) / (factor * release.rate)
                    means += (fit + temperature * net.expected_log_prior(mean, std, at(mean, std, eps))) / draws
                return -means / number

            def by_rho(seed: Array, std: Weights) -> Weights:
                by_std = jax.grad(loss, 1)(mean, std, noise_of(seed, mean, draws))
                return jax.tree.map(lambda slope, std: std * slope - temperature / number, by_std, std)

            rho, std, of_widths = widths.update(by_rho, state.step, (state.seed, rho, state.std, of_widths))
            by_mean = jax.grad(loss)(mean, state.std, noise_of(state.seed, mean, draws))
            change, of_means = optimizer.update(by_mean, of_means, mean)
            params, seed = Gaussian(optax.apply_updates(mean, change), rho), seeded(key)
            average = tail_average(state.average, params, state.step)
            path = update_batch_means(state.path, params.mean, state.step)
            weights = drawn(params.mean, std, seed, draws)
            return BackpropState(params, std, average, path, seed, weights, (of_means, of_widths), state.step + 1)

        def draw(state: BackpropState, key: Key) -> dict[str, Array]:
            return draw_around(state.average, state.path, state.step, key)

        return Method(
            init,
            contribute,
            update,
            draw,
            requirements=net.requirements(plan.placeholder),
            for_size=number,
            suggests=Suggestions(clip=1.0),
            model=model_of(net),
        )

    return MethodFor(build)
