"""The names of d3p.gmm: mixtures of Gaussians."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist

__all__ = [
    "GaussianMixture",
]


class GaussianMixture(dist.MixtureSameFamily):  # type: ignore[misc]
    """A mixture of Gaussians with independent coordinates: NumPyro's MixtureSameFamily by d3p's arguments.

    Privacy: public.

    Parameters
    ----------
    locs, scales
        Means and standard deviations, components along the first axis; one scale may serve all coordinates.
    mixture_probabilities
        The weights of the components.
    validate_args
        As in NumPyro.
    """

    def __init__(self, locs: Any, scales: Any, mixture_probabilities: Any, validate_args: bool | None = None) -> None:
        locs, scales = jnp.asarray(locs), jnp.asarray(scales)
        scales = scales.reshape(scales.shape + (1,) * (locs.ndim - scales.ndim))
        components = dist.Normal(locs, scales, validate_args=validate_args).to_event(locs.ndim - 1)
        weights = dist.CategoricalProbs(jnp.asarray(mixture_probabilities), validate_args=validate_args)
        super().__init__(weights, components, validate_args=validate_args)

    # d3p's names for what NumPyro keeps in the two distributions.
    mixture_probabilities = property(lambda self: self.mixing_distribution.probs)
    locs = property(lambda self: self.component_distribution.mean)
    scales = property(lambda self: jnp.sqrt(self.component_distribution.variance))
    num_components = property(lambda self: self.mixture_size)
