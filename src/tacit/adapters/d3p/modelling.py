"""The names of d3p.modelling: draws from prior and posterior predictive distributions."""

from __future__ import annotations

from typing import Any

import jax
from numpyro import handlers

from tacit.adapters.d3p.svi import Model
from tacit.adapters.d3p.util import unvectorize_shape

__all__ = [
    "get_samples_from_trace",
    "make_observed_model",
    "map_args_obs_to_shape",
    "sample_multi_posterior_predictive",
    "sample_multi_prior_predictive",
    "sample_posterior_predictive",
    "sample_prior_predictive",
]


def get_samples_from_trace(trace: dict[str, Any], with_intermediates: bool = False) -> dict[str, Any]:
    """Return the values of a trace's sample sites. Privacy: as private as its argument."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    if with_intermediates:
        return {name: (site["value"], site["intermediates"]) for name, site in sites.items()}
    return {name: site["value"] for name, site in sites.items()}


def sample_prior_predictive(
    rng_key: Any,
    model: Model,
    model_args: Any,
    substitutes: dict[str, Any] | None = None,
    with_intermediates: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """Draw once from the prior predictive, with some sites given. Privacy: public."""
    seeded = handlers.seed(handlers.substitute(model, data=substitutes or {}), rng_key)
    return get_samples_from_trace(handlers.trace(seeded).get_trace(*model_args, **kwargs), with_intermediates)


def sample_posterior_predictive(
    rng_key: Any,
    model: Model,
    model_args: Any,
    guide: Model,
    guide_args: Any,
    params: dict[str, Any],
    with_intermediates: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """Draw once from the posterior predictive. Privacy: post-processing of ``params``, on public arguments."""
    model_key, guide_key = jax.random.split(rng_key)
    latents = sample_prior_predictive(guide_key, guide, guide_args, params, with_intermediates, **kwargs)
    values = {name: value[0] if with_intermediates else value for name, value in latents.items()}
    return latents | sample_prior_predictive(
        model_key, model, model_args, params | values, with_intermediates, **kwargs
    )


def sample_multi_prior_predictive(rng_key: Any, n: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Draw ``n`` times; the rest is as in `sample_prior_predictive`. Privacy: public."""
    return jax.vmap(lambda key: sample_prior_predictive(key, *args, **kwargs))(jax.random.split(rng_key, n))


def sample_multi_posterior_predictive(rng_key: Any, n: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Draw ``n`` times; the rest is as in `sample_posterior_predictive`. Privacy: post-processing, as there."""
    return jax.vmap(lambda key: sample_posterior_predictive(key, *args, **kwargs))(jax.random.split(rng_key, n))


def map_args_obs_to_shape(obs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Return a batch's shape for arguments and the batch as ``obs``. Privacy: as private as its argument."""
    return unvectorize_shape(obs, 2), kwargs, {"obs": obs}


def make_observed_model(model: Model, obs_to_model_args_fn: Model) -> Model:
    """Return the model with observations filled in; the function maps a batch to (args, kwargs, observations).

    Privacy: public.
    """

    def observed(*args: Any, **kwargs: Any) -> Any:
        model_args, model_kwargs, observations = obs_to_model_args_fn(*args, **kwargs)
        return handlers.condition(model, data=observations)(*model_args, **model_kwargs)

    return observed
