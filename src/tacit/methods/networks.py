"""Neural networks as the private Bayesian methods see them: first weights, a likelihood, a prior, predictions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, ndtr
from jax.scipy.stats import norm

from tacit.methods.arguments import check_positive
from tacit.methods.running import total
from tacit.types import Array, Key, Model, PyTree, Record, Requirement

Weights = dict[str, Array]
NARROW, WIDE = 0.1, 1.0
"""Standard deviations of the two halves of the "mixture" prior, times ``prior_std`` (Blundell et al. 2015)."""
NOISE, MASK = "log_noise", "mask"
"""The weight that holds the log of a learnt noise; the draw that holds the seed of dropout."""
NOISE_STD = 3.0
"""Its prior's standard deviation, around 0."""


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
        Whether the network has dropout; only ``tacit.dropout`` uses it.
    flat
        Whether the prior is.
    requirements
        ``requirements(placeholder)``: what must be true of a record; one for which it is not counts for nothing.
    """

    start: Callable[[Key], Weights]
    log_likelihood: Callable[[Weights, Record, Key | None], Array]
    log_prior: Callable[[Weights], Array]
    expected_log_prior: Callable[[Weights, Weights, Weights], Array]
    predict: Callable[[Weights, PyTree, Key, Key | None], dict[str, Array]]
    random: bool
    flat: bool
    requirements: Callable[[Record], tuple[Requirement, ...]]


def network(
    module: Any,
    likelihood: str = "categorical",
    *,
    noise: float | str = "learned",
    prior: str = "normal",
    prior_std: float = 1.0,
) -> Network:
    """Describe a network's likelihood and the prior of its weights, for the methods that fit networks.

    A record is ``{"x": input, "y": target}``.

    Privacy: public. The first weights must not come from private records.

    Parameters
    ----------
    module
        An Equinox module, called with one record's ``x``; its own weights are the first ones. Or a pair of functions:
        ``init(key)`` and ``apply(weights, x)``. The wall refuses a layer that is as wide as there are records: take
        another width.
    likelihood
        Of ``y`` given the outputs. "categorical": outputs are logits, y a class from 0. "gaussian": the output is the
        mean. "bernoulli": a logit, y 0 or 1. "poisson": the log of the mean, y a count. A record whose y is no class of
        a "categorical" one contributes nothing, without a warning, unless a schema that declares y refused it before.
    noise
        Standard deviation of a "gaussian" likelihood: a number, "learned", or "output": the network gives the mean and
        the log of the standard deviation, in this order, so that the noise depends on the input.
    prior
        Of each weight: "normal", "laplace" or "none" (flat); "mixture" of two normal ones, narrow and wide. The log of
        a learnt noise has a wide normal prior of its own.
    prior_std
        Standard deviation of the prior; of a "mixture", that of its wide half.

    Returns
    -------
    Network
        To be handed to ``tacit.sgd``, ``tacit.dropout``, ``tacit.bayes_by_backprop`` or ``tacit.sgld``.

    Examples
    --------
    >>> import equinox as eqx, jax, tacit
    >>> module = eqx.nn.MLP(2, 3, 16, 1, key=jax.random.key(0))
    >>> method = tacit.sgld(tacit.network(module, "categorical"))
    """
    _check(likelihood, noise, prior, prior_std)
    first, apply, random = _functions(module)
    learnt, wide = (likelihood == "gaussian" and noise == kind for kind in ("learned", "output"))

    def start(key: Key) -> Weights:
        weights = first(key)
        return {**weights, NOISE: jnp.zeros(())} if learnt else weights

    def spread(weights: Weights, output: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of a Gaussian likelihood; the last axis holds outputs."""
        if wide:
            mean, log_std = jnp.split(output, 2, -1)
            return mean, jnp.exp(log_std)
        std = jnp.exp(weights[NOISE]) if learnt else jnp.float32(noise)
        return output, jnp.broadcast_to(std, output.shape)

    def log_density(weights: Weights, output: Array, y: Array) -> Array:
        if likelihood == "categorical":
            return jax.nn.log_softmax(output)[jnp.reshape(y, ()).astype(jnp.int32)]
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
        return total({name: _log_prior(*belief(name), w) for name, w in weights.items()})

    def expected_log_prior(mean: Weights, std: Weights, draw: Weights) -> Array:
        return total({name: _expected_log_prior(*belief(name), mean[name], std[name], draw[name]) for name in mean})

    def belief(name: str) -> tuple[str, float]:
        return ("normal", NOISE_STD) if name == NOISE else (prior, prior_std)

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

    def requirements(placeholder: Record) -> tuple[Requirement, ...]:
        weights = jax.eval_shape(start, jax.random.key(0))
        outputs = _outputs(placeholder, lambda x: jax.eval_shape(lambda w, x: apply(w, x, None), weights, x).shape)
        _check_targets(placeholder, likelihood, outputs // 2 if wide else outputs, outputs % 2 == 1 and wide)
        return _needs(likelihood, outputs)

    return Network(start, log_likelihood, log_prior, expected_log_prior, predict, random, prior == "none", requirements)


def score(net: Network, weights: Weights, record: Record, masks: Key | None = None, factor: float = 1.0) -> Weights:
    """Return the gradient of one record's log likelihood, times a factor: what every method on networks contributes.

    Privacy: of one record, not bounded yet.
    """
    # Multiplied before the derivative, gradients of dense layers stay outer products.
    return jax.grad(lambda *given: factor * net.log_likelihood(*given))(weights, record, masks)


def model_of(net: Network) -> Model:
    """Return what is known of a model whose draws are weights: its predictions, without dropout.

    Privacy: public.
    """
    return Model(lambda draw, inputs, key: net.predict(draw, inputs, key, None))


def check_proper(net: Network) -> None:
    """Refuse a flat prior, for methods whose widths need one."""
    if net.flat:
        raise ValueError('With prior="none" the posterior of an unused weight is improper. Choose another prior.')


def _functions(module: Any) -> tuple[Callable[[Key], Weights], Callable[..., Array], bool]:
    """Return first weights by name, the network as a function of such weights, and whether it has dropout."""
    eqx = _equinox()
    if eqx is not None and isinstance(module, eqx.Module):
        arrays, rest = eqx.partition(module, eqx.is_inexact_array)
        first, names, tree = _named(arrays)
        layers = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.Dropout))
        keyed = "key" in inspect.signature(type(module).__call__).parameters
        random = keyed and any(isinstance(layer, eqx.nn.Dropout) for layer in layers)

        def apply(weights: Weights, x: Array, key: Key | None) -> Array:
            whole = eqx.combine(jax.tree.unflatten(tree, [weights[name] for name in names]), rest)
            if key is None or not random:
                whole = eqx.nn.inference_mode(whole)
            return whole(x, key=key) if keyed else whole(x)

        return lambda key: first, apply, random
    if not (isinstance(module, tuple) and len(module) == 2 and all(map(callable, module))):
        raise TypeError(
            f"The network is {type(module).__name__}, but must be an Equinox module or a pair of functions, "
            "(init(key), apply(weights, x))."
            + ("" if eqx else ' Equinox is not installed; run: pip install "tacit[networks]"')
        )
    init, function = module
    _, pair_names, pair_tree = _named(jax.eval_shape(init, jax.random.key(0)))

    def apply_pair(weights: Weights, x: Array, key: Key | None) -> Array:
        return function(jax.tree.unflatten(pair_tree, [weights[name] for name in pair_names]), x)

    return lambda key: _named(init(key))[0], apply_pair, False


def _equinox() -> Any:
    """Return Equinox, or nothing where it is not installed: a pair of functions does not need it."""
    try:
        import equinox
    except ModuleNotFoundError:
        return None
    return equinox


def _named(tree: PyTree) -> tuple[dict[str, Any], list[str], Any]:
    """Return the leaves by name, the names in the order of the tree, and the tree's structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    if not leaves:
        raise ValueError("The network has no weights: nothing could be learnt.")
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "weights" for path, _ in leaves]
    taken = {NOISE, MASK} & set(names)
    if taken:
        raise ValueError(f"The network has a weight called {taken.pop()!r}, which tacit uses itself. Rename it.")
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}, names, structure


def _outputs(placeholder: Any, shape_for: Callable[[Array], tuple[int, ...]]) -> int:
    """Return the number of outputs for a record, or say why there are none."""
    if not isinstance(placeholder, dict) or not {"x", "y"} <= set(placeholder):
        given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
        raise ValueError(f'A record of a network is {{"x": input, "y": target}}; these are {given}.')
    x = jnp.asarray(placeholder["x"])
    try:
        shape = shape_for(x)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"The network cannot be applied to one record's x, which has the shape {x.shape} and the type {x.dtype}. "
            f"Bring x into the shape that the first layer takes. It said: {problem}"
        ) from problem
    if len(shape) > 1:
        raise ValueError(f"The network gives outputs of the shape {shape} for a record; it must be a vector of them.")
    return math.prod(shape)


def _check_targets(placeholder: Any, likelihood: str, targets: int, odd: bool) -> None:
    if odd:
        raise ValueError('With noise="output" the network must return a mean and a log deviation for each target.')
    size = math.prod(jnp.shape(placeholder["y"]))
    wanted = 1 if likelihood == "categorical" else targets
    if size != wanted:
        raise ValueError(
            f"A record's y has the shape {jnp.shape(placeholder['y'])}, but the network's outputs are for {wanted} "
            f"number(s) under a {likelihood} likelihood. Let both agree."
        )


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


def _needs(likelihood: str, outputs: int) -> tuple[Requirement, ...]:
    def whole(record: Record, most: float = math.inf) -> Array:
        y = record["y"].astype(jnp.float32)
        return jnp.all((y == jnp.round(y)) & (y >= 0) & (y <= most))

    if likelihood == "categorical":
        text = f"y must be a class, a whole number from 0 to {outputs - 1}. Number the classes by a public list."
        return (Requirement(text, lambda record: whole(record, float(outputs - 1))),)
    if likelihood == "bernoulli":
        return (
            Requirement(
                "y must be 0 or 1. Write y = (label == positive).astype(int).", lambda record: whole(record, 1.0), True
            ),
        )
    return (Requirement("y must be a whole number from 0 on.", whole, True),) if likelihood == "poisson" else ()


def _check(likelihood: str, noise: Any, prior: str, prior_std: float) -> None:
    choices = {
        "likelihood": (likelihood, ("categorical", "gaussian", "bernoulli", "poisson")),
        "prior": (prior, ("normal", "laplace", "mixture", "none")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}. Write one of {', '.join(map(repr, allowed))}.")
    check_positive(prior_std=prior_std, noise=1.0 if isinstance(noise, str) else noise)
    if isinstance(noise, str) and noise not in ("learned", "output"):
        raise ValueError(f'noise is {noise!r}. Write a number, "learned" or "output".')
    if likelihood != "gaussian" and noise != "learned":
        raise ValueError(f"noise is given, but a {likelihood} likelihood has none. Leave it out.")
