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
record, and stays outside of the wall, where it needs no clip; only grad_w is released, half of the paper's coordinates
and noise, and grad_rho follows from it, since eps is public. Records cost as much as in SGD. At temperature tau = 1 the
bound on the evidence is climbed. In wide networks its summit is known to be a poor fit, all but the prior, since
thousands of weights to a unit each bring their divergence; a lower temperature counts the divergence for less.

mubar and sbar are averages over the steps. The means were learnt through noise, and are uncertain for that alone: in a
wide network by more than s. Their path shows it: averages over batches of it (batch means) differ by the noise, and so
V, the variance of mubar, follows from the variance of these averages (as in ``tacit.vi``). Few batches span few
directions, so half of V goes without its correlations, into all of them (as in SWAG, Maddox et al. 2019, which takes
single iterates). It costs no privacy. Without V, probabilities of images are far too sure (papers/dpbnn).

Local reparameterisation (noise of its own for each record, on the units instead of the weights) is left out: grad_rho
then no longer follows from grad_mu, so that twice the numbers go through the wall, with twice the squared noise, to be
rid of a variance that is small beside that noise.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tacit.methods.arguments import check_positive, moved, records_of
from tacit.methods.networks import Network, Weights, score
from tacit.methods.running import (
    BatchMeans,
    inner,
    many,
    normals,
    perturbed_average,
    sample_average_error,
    start_batch_means,
    tail_average,
    update_batch_means,
    when,
)
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

EVERY_WIDTH = 4
"""Of many weights, widths are moved in one step of so many: it takes passes over memory."""


class Gaussian(NamedTuple):
    """Independent normal weights: means, and logarithms of standard deviations."""

    mean: Weights
    rho: Weights


class BackpropState(NamedTuple):
    """Parameters of q, their average, the means' path, the next step's draws, the optimisers' memory, the step.

    ``std`` is the exponential of ``params.rho``, computed when that moves; ``seed`` is what eps is drawn by.
    """

    params: Gaussian
    std: Weights
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

    The number of records must be declared, and about right is enough.

    Privacy: public.

    Parameters
    ----------
    net
        From ``tacit.network``.
    optimizer
        An optax optimiser of the means, given the gradient of the mean loss; by default gradient descent with
        momentum. Standard deviations are always moved by Adam.
    temperature
        How much the divergence from the prior counts: 1 for variational inference; less for a cold posterior, which is
        narrower than the posterior and fits better where units have very many weights.
    first_std
        Standard deviation of every weight at the start.
    draws
        Number of weight draws a step. A gradient for each of them is released, clipped together, so that their mean has
        the noise of one: several steady the draw's own randomness at as many times the cost, which a larger rate
        usually repays better.
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
    >>> method = tacit.bayes_by_backprop(net)
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["layers.0.weight"].shape
    (1000, 4, 2)
    """
    moved(size)
    if net.flat:
        raise ValueError('With prior="none" the posterior of an unused weight is improper. Choose another prior.')
    check_positive(first_std=first_std, temperature=temperature)
    if draws < 1:
        raise ValueError(f"draws is {draws}; a step needs at least one draw of the weights. Write draws=1.")
    of_mean = optimizer or optax.sgd(0.2, momentum=0.9)

    def build(plan: Plan) -> Method:
        number = records_of(plan, "bayes_by_backprop", size)
        of = _Backprop(net, number, of_mean, temperature, first_std, draws)
        factor = of.factor

        def contribute(state: BackpropState, record: Record, key: Key) -> PyTree:  # it does not reach the optimisers
            return [score(net, weights, record, factor=factor) for weights in state.weights]

        return Method(
            of.init,
            contribute,
            of.update,
            of.draw,
            requirements=net.requirements(plan.placeholder),
            for_size=number,
            suggests=Suggestions(clip=1.0),
            model=Model(of.predict),
        )

    return MethodFor(build)


class _Backprop:
    """The method's functions, for a network and a number of records."""

    def __init__(
        self,
        net: Network,
        size: int,
        of_mean: optax.GradientTransformation,
        temperature: float,
        first_std: float,
        draws: int,
    ) -> None:
        self.net, self.size, self.of_mean = net, size, of_mean
        self.temperature, self.first_std, self.draws = temperature, first_std, draws
        self.shapes = jax.eval_shape(net.start, jax.random.key(0))
        # Over the root of their number, the gradients together have the norm of one.
        self.factor = 1 / math.sqrt(draws)
        self.every = EVERY_WIDTH if many(self.shapes) else 1
        # Gradients of rho are smaller by orders of magnitude than those of means; Adam moves it all the same. The fewer
        # the moves the longer, by the root: noise then takes widths as far as it would in all steps.
        self.of_rho = optax.adam(0.02 * math.sqrt(self.every))

    def init(self, key: Key) -> BackpropState:
        mean = self.net.start(key)
        rho = jax.tree.map(lambda leaf: jnp.full_like(leaf, math.log(self.first_std)), mean)
        params, std = Gaussian(mean, rho), _deviations(rho)
        memory = self.of_mean.init(mean), self.of_rho.init(rho)
        seed = _seeded(key)
        weights = self.drawn(mean, std, seed)
        return BackpropState(params, std, params, start_batch_means(mean), seed, weights, memory, jnp.int32(0))

    def noise_of(self, seed: Array) -> list[Weights]:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return [normals(self.shapes, one) for one in jax.random.split(key, self.draws)]

    def drawn(self, mean: Weights, std: Weights, seed: Array) -> list[Weights]:
        return [at(mean, std, one) for one in self.noise_of(seed)]

    def loss(self, mean: Weights, std: Weights, noise: list[Weights], release: Release) -> Array:
        """The negative ELBO but for q's entropy: the released gradient goes through the draw."""
        means = jnp.float32(0)
        for total, one in zip(release.total, noise, strict=True):
            # The inner product with mean + std noise, in the order of fewest passes over memory.
            fit = inner(total, mean) + inner(jax.tree.map(jnp.multiply, total, one), std)
            prior = self.net.expected_log_prior(mean, std, at(mean, std, one))
            means += (fit / (self.factor * release.rate) + self.temperature * prior) / self.draws
        return -means / self.size

    def update(self, state: BackpropState, release: Release, key: Key) -> BackpropState:
        def wider(widths: tuple[Array, Weights, Weights, Any]) -> tuple[Array, Weights, Weights, Any]:
            # The seed is among them, and changes, lest the compiler draws eps by it in every step.
            seed, rho, std, memory = widths
            by_std = jax.grad(self.loss, 1)(state.params.mean, std, self.noise_of(seed), release)
            by_rho = jax.tree.map(lambda slope, std: std * slope - self.temperature / self.size, by_std, std)
            # The barrier: both of Adam's averages take it, and each would compute it again.
            change, memory = self.of_rho.update(jax.lax.optimization_barrier(by_rho), memory, rho)
            rho = optax.apply_updates(rho, change)
            return seed + 1, rho, _deviations(rho), memory

        widths = (state.seed, state.params.rho, state.std, state.optimizer[1])
        _, rho, std, of_widths = when(state.step % self.every == 0, wider, widths) if self.every > 1 else wider(widths)
        by_mean = jax.grad(self.loss)(state.params.mean, state.std, self.noise_of(state.seed), release)
        change, of_means = self.of_mean.update(by_mean, state.optimizer[0], state.params.mean)
        mean = optax.apply_updates(state.params.mean, change)
        params, memory = Gaussian(mean, rho), (of_means, of_widths)
        seed = _seeded(key)
        average = tail_average(state.average, params, state.step)
        path = update_batch_means(state.path, mean, state.step)
        return BackpropState(params, std, average, path, seed, self.drawn(mean, std, seed), memory, state.step + 1)

    def draw(self, state: BackpropState, key: Key) -> dict[str, Array]:
        keys = dict(zip(self.shapes, jax.random.split(key, len(self.shapes)), strict=True))
        half = jax.tree.map(lambda leaf: leaf / 2, perturbed_average(state.path, state.step))
        wider = jax.tree.map(lambda rho, more: jnp.sqrt(jnp.exp(2 * rho) + more), state.average.rho, half)
        error = sample_average_error(state.path, state.step, jax.random.fold_in(key, 1))
        mean = jax.tree.map(lambda mean, error: mean + error / math.sqrt(2), state.average.mean, error)
        return at(mean, wider, {name: jax.random.normal(keys[name], leaf.shape) for name, leaf in self.shapes.items()})

    def predict(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        return self.net.predict(draw, inputs, key, None)


def _deviations(rho: Weights) -> Weights:
    # The barrier: without it they are computed again wherever they are used.
    return jax.lax.optimization_barrier(jax.tree.map(jnp.exp, rho))


def _seeded(key: Key) -> Array:
    return jax.random.bits(key, (2,), jnp.uint32)


def at(mean: Weights, std: Weights, noise: Weights) -> Weights:
    """Return the weights that standard normal numbers stand for.

    Privacy: public.
    """
    return jax.tree.map(lambda mean, std, z: mean + std * z, mean, std, noise)
