"""Neural networks as the private Bayesian methods see them: first weights, a likelihood, a prior, predictions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, ndtr
from jax.scipy.stats import norm

from tacit.methods.running import total
from tacit.types import Array, Key, Need, PyTree, Record

Weights = dict[str, Array]
NARROW, WIDE = 0.1, 1.0
"""Standard deviations of the two halves of the "mixture" prior, times ``prior_std`` (Blundell et al. 2015)."""
NOISE = "log_noise"
"""The weight that holds the log of a learnt noise."""


class Network(NamedTuple):
    """A network with its likelihood and prior.

    Attributes
    ----------
    start
        ``start(key)``: the first weights, by name. Public.
    log_likelihood
        ``log_likelihood(weights, record, key)``: log p(y | x, weights) of one record; the key is for dropout.
    log_prior
        ``log_prior(weights)``: the log prior, up to a constant.
    expected_log_prior
        ``expected_log_prior(mean, std, draw)``: its mean for independent normal weights; where that has no closed form,
        its value at the draw.
    predict
        ``predict(weights, inputs, key, masks)``: means and draws of ``y`` for records with a leading axis; ``masks`` is
        the key for dropout, or nothing to leave it out.
    random
        Whether the network has dropout.
    needs
        What must be true of every record.
    """

    start: Callable[[Key], Weights]
    log_likelihood: Callable[[Weights, Record, Key | None], Array]
    log_prior: Callable[[Weights], Array]
    expected_log_prior: Callable[[Weights, Weights, Weights], Array]
    predict: Callable[[Weights, PyTree, Key, Key | None], dict[str, Array]]
    random: bool
    needs: tuple[Need, ...]


def network(
    module: Any,
    likelihood: str = "categorical",
    *,
    noise: float | str = "learned",
    prior: str = "normal",
    prior_std: float = 1.0,
) -> Network:
    """Say what a network's outputs mean, and what is believed of its weights beforehand.

    A record is ``{"x": input, "y": target}``.

    Privacy: public. The first weights must not come from private records.

    Parameters
    ----------
    module
        An Equinox module, called with one record's ``x``; its own weights are the first ones. Or a pair of functions:
        ``init(key)`` and ``apply(weights, x)``.
    likelihood
        Of ``y`` given the outputs. "categorical": outputs are logits, y a class from 0. "gaussian": the output is the
        mean. "bernoulli": a logit, y 0 or 1. "poisson": the log of the mean, y a count.
    noise
        Standard deviation of a "gaussian" likelihood: a number, "learned", or "output": the network gives the mean and
        the log of the standard deviation, in this order, so that the noise depends on the input.
    prior
        Of each weight: "normal", "laplace" or "none" (flat); "mixture" of two normal ones, narrow and wide.
    prior_std
        Standard deviation of the prior.
    """
    _check(likelihood, noise, prior, prior_std)
    first, apply, random = _functions(module)
    learnt = likelihood == "gaussian" and noise == "learned"

    def start(key: Key) -> Weights:
        weights = first(key)
        return {**weights, NOISE: jnp.zeros(())} if learnt else weights

    def spread(weights: Weights, output: Array) -> tuple[Array, Array]:
        """Give mean and standard deviation of a Gaussian likelihood; the last axis holds outputs."""
        if noise == "output":
            mean, log_std = jnp.split(output, 2, -1)
            return mean, jnp.exp(log_std)
        std = jnp.exp(weights[NOISE]) if learnt else jnp.float32(noise)
        return output, jnp.broadcast_to(std, output.shape)

    def log_density(weights: Weights, output: Array, y: Array) -> Array:
        if likelihood == "categorical":
            return jax.nn.log_softmax(output)[y]
        if likelihood == "gaussian":
            mean, std = spread(weights, output)
            return jnp.sum(norm.logpdf(jnp.reshape(y, mean.shape), mean, std))
        y = jnp.reshape(y, output.shape)
        if likelihood == "bernoulli":
            return jnp.sum(jax.nn.log_sigmoid(jnp.where(y == 1, output, -output)))
        return jnp.sum(y * output - jnp.exp(output) - gammaln(y + 1.0))

    def log_likelihood(weights: Weights, record: Record, key: Key | None) -> Array:
        return log_density(weights, jnp.atleast_1d(apply(weights, record["x"], key)), record["y"])

    def log_prior(weights: Weights) -> Array:
        return total(jax.tree.map(lambda w: _log_prior(prior, prior_std, w), weights))

    def expected_log_prior(mean: Weights, std: Weights, draw: Weights) -> Array:
        return total(jax.tree.map(lambda *given: _expected_log_prior(prior, prior_std, *given), mean, std, draw))

    def predict(weights: Weights, inputs: PyTree, key: Key, masks: Key | None) -> dict[str, Array]:
        x = jnp.asarray(inputs["x"])
        output = jax.vmap(lambda x: jnp.atleast_1d(apply(weights, x, masks)))(x)
        if likelihood == "categorical":
            return {"mean": jax.nn.softmax(output), "y": jax.random.categorical(key, output)}
        if likelihood == "gaussian":
            mean, std = spread(weights, output)
            return _plain({"mean": mean, "std": std, "y": mean + std * jax.random.normal(key, mean.shape)})
        if likelihood == "bernoulli":
            mean = jax.nn.sigmoid(output)
            return _plain({"mean": mean, "y": jax.random.bernoulli(key, mean).astype(jnp.int32)})
        return _plain({"mean": jnp.exp(output), "y": jax.random.poisson(key, jnp.exp(output))})

    return Network(start, log_likelihood, log_prior, expected_log_prior, predict, random, _needs(likelihood))


def score(net: Network, weights: Weights, record: Record, masks: Key | None = None) -> Weights:
    """Give the gradient of one record's log likelihood: what every method on networks contributes.

    Privacy: of one record, not bounded yet.
    """
    return jax.grad(net.log_likelihood)(weights, record, masks)


def check_size(size: int) -> None:
    """Refuse a number of records that cannot be."""
    if size < 1:
        raise ValueError(f"size is {size}; it is the public number of records. Write size=1000 for about a thousand.")


def _functions(module: Any) -> tuple[Callable[[Key], Weights], Callable[..., Array], bool]:
    """Give first weights by name, the network as a function of such weights, and whether it has dropout."""
    if isinstance(module, eqx.Module):
        arrays, rest = eqx.partition(module, eqx.is_inexact_array)
        named, tree = _named(arrays)
        if not named:
            raise ValueError("The module has no weights: nothing could be learnt.")
        layers = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.Dropout))
        random = any(isinstance(layer, eqx.nn.Dropout) for layer in layers)

        def apply(weights: Weights, x: Array, key: Key | None) -> Array:
            whole = eqx.combine(jax.tree.unflatten(tree, [weights[name] for name in named]), rest)
            if not random:
                return whole(x)
            return whole(x, key=key) if key is not None else eqx.nn.inference_mode(whole)(x, key=None)

        return lambda key: named, apply, random
    if not (isinstance(module, tuple) and len(module) == 2 and all(map(callable, module))):
        raise TypeError(
            f"The network is {type(module).__name__}, but must be an Equinox module or a pair of functions, "
            "(init(key), apply(weights, x))."
        )
    init, function = module
    tree = jax.tree.structure(jax.eval_shape(init, jax.random.key(0)))

    def apply_pair(weights: Weights, x: Array, key: Key | None) -> Array:
        plain = {name: leaf for name, leaf in weights.items() if name != NOISE}
        return function(jax.tree.unflatten(tree, list(plain.values())), x)

    return lambda key: _named(init(key))[0], apply_pair, False


def _named(tree: PyTree) -> tuple[Weights, Any]:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): jnp.asarray(leaf) for path, leaf in leaves
    }, structure


def _log_prior(prior: str, scale: float, w: Array) -> Array:
    if prior == "none":
        return jnp.zeros_like(w)
    if prior == "normal":
        return -(w**2) / (2 * scale**2)
    if prior == "laplace":
        return -jnp.abs(w) * math.sqrt(2) / scale
    return jnp.logaddexp(norm.logpdf(w, 0, NARROW * scale), norm.logpdf(w, 0, WIDE * scale))


def _expected_log_prior(prior: str, scale: float, mean: Array, std: Array, draw: Array) -> Array:
    if prior == "normal":
        return -(mean**2 + std**2) / (2 * scale**2)
    if prior == "laplace":
        ratio = mean / std
        distance = std * math.sqrt(2 / math.pi) * jnp.exp(-(ratio**2) / 2) + mean * (1 - 2 * ndtr(-ratio))
        return -distance * math.sqrt(2) / scale
    return _log_prior(prior, scale, draw)


def _plain(predicted: dict[str, Array]) -> dict[str, Array]:
    """Leave out the axis of outputs where there is but one."""
    return {name: value[..., 0] if value.shape[-1] == 1 else value for name, value in predicted.items()}


def _needs(likelihood: str) -> tuple[Need, ...]:
    def whole(record: Record) -> Array:
        return jnp.all((record["y"] == jnp.round(record["y"])) & (record["y"] >= 0))

    if likelihood == "categorical":
        return (Need("y must be a class, a whole number from 0. Number the classes by a public list.", whole),)
    if likelihood == "bernoulli":
        text = "y must be 0 or 1. Write y = (label == positive).astype(int)."
        return (Need(text, lambda record: jnp.all((record["y"] == 0) | (record["y"] == 1))),)
    return (Need("y must be a whole number from 0 on.", whole),) if likelihood == "poisson" else ()


def _check(likelihood: str, noise: Any, prior: str, prior_std: float) -> None:
    choices = {
        "likelihood": (likelihood, ("categorical", "gaussian", "bernoulli", "poisson")),
        "prior": (prior, ("normal", "laplace", "mixture", "none")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}. Write one of {', '.join(map(repr, allowed))}.")
    for name, number in (("prior_std", prior_std), ("noise", 1.0 if isinstance(noise, str) else noise)):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name} is {number:g}, but must be a positive number, chosen without a look at the data.")
    if isinstance(noise, str) and noise not in ("learned", "output"):
        raise ValueError(f'noise is {noise!r}. Write a number, "learned" or "output".')
