"""The non-private posterior of a design, and the ideal private one: what the intervals of grid.py are compared with.

The non-private posterior is the normal approximation at the mode, in unconstrained coordinates; NUTS where that is not
enough. The ideal one is it, inflated by one joint Gaussian release of the whitened score at the same budget:

    L, H        minus the Hessians of log prior and log likelihood, at the mode; where NUTS is used, at its mean, and
                with the sum of s s' over records for H: off the mode the Hessian may not be positive
    u           = (H / n)^(-1/2) s  for the score s of one of n units: |u|^2 is d on the mean
    released    sum of u + Normal(0, (sigma C)^2 I),  C^2 = d,  sigma the noise multiplier of one release of all units
    in scores   a noise of covariance  S = k H,  k = sigma^2 d / n
    precision   L + H (H + S)^-1 H = L + H / (1 + k);  the non-private one is L + H

with d = tr((L + H)^-1 H), the number of coordinates that the records tell of. The whitening is taken to be known, and
what a clip at the root mean square costs is left out, so that no method can be expected to reach it at small budgets.
Of what is judged, g(w), widths are the non-private ones times the root of the ratio of g' (ideal covariance) g and
g' (non-private covariance) g at the centre.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density

from tacit.accounting import noise_multiplier

DRAWS, WARMUP = 1000, 400
STEPS, NEAR = 60, 3e-3
"""Newton's steps at most; they end where the next one is so short, in posterior deviations."""


class Free:
    """The non-private posterior, compiled once for records of one shape.

    Parameters
    ----------
    model, columns
        A NumPyro model, and records as they are stored.
    judge
        What is judged of one draw, a dictionary.
    sampled
        Whether to use NUTS.
    """

    def __init__(self, model: Any, columns: dict[str, Any], judge: Callable[..., Any], sampled: bool) -> None:
        self.model, self.judge, self.sampled = model, judge, sampled
        seeded = handlers.seed(model, jax.random.key(0))
        sites = handlers.trace(seeded).get_trace(**columns)
        latents = {name: site for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]}
        self.transforms = {name: biject_to(site["fn"].support) for name, site in latents.items()}
        start = {name: transform.inv(latents[name]["value"]) for name, transform in self.transforms.items()}
        flat, self.unravel = ravel_pytree(start)
        self.size = len(flat)
        self._row = {name: column[:1] for name, column in columns.items()}
        self._mode, self._matrices = jax.jit(self._newton), jax.jit(self._curvatures)
        self._judged = jax.jit(jax.vmap(lambda draw: flattened(self.judge(draw))))
        self._nuts: Any = None

    def constrain(self, u: Any) -> dict[str, Any]:
        """Return the latents of unconstrained coordinates."""
        return {name: self.transforms[name](value) for name, value in self.unravel(u).items()}

    def unconstrain(self, latents: dict[str, Any]) -> Any:
        """Return the coordinates of latents."""
        found = {name: transform.inv(jnp.asarray(latents[name])) for name, transform in self.transforms.items()}
        return ravel_pytree(found)[0]

    def prior(self, count: int) -> dict[str, Any]:
        """Draw the latents from the prior."""

        def one(key: Any) -> dict[str, Any]:
            trace = handlers.trace(handlers.seed(self.model, key)).get_trace(**self._row)
            return {name: trace[name]["value"] for name in self.transforms}

        return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), count))

    def judged(self, drawn: dict[str, Any]) -> Any:
        """Return what is judged of draws of the latents, a line for each."""
        return np.asarray(self._judged(drawn), np.float64)

    def middle(self) -> dict[str, Any]:
        """Return latents at the median of the prior's coordinates."""
        return self.constrain(jnp.median(jax.vmap(self.unconstrain)(self.prior(500)), 0))

    def parts(self, u: Any, columns: dict[str, Any]) -> tuple[Any, Any]:
        """Return log prior, with the volume of the transforms, and the log likelihood of each record."""
        values, latents = self.unravel(u), self.constrain(u)
        _, trace = log_density(self.model, (), columns, latents)
        sites = [site for site in trace.values() if site["type"] == "sample"]
        prior, likelihood = jnp.float32(0), jnp.float32(0)
        for site in sites:
            term = site["fn"].log_prob(site["value"])
            if site["is_observed"]:
                likelihood += term
            else:
                prior += jnp.sum(term)
        for name, transform in self.transforms.items():
            prior += jnp.sum(transform.log_abs_det_jacobian(values[name], latents[name]))
        return prior, likelihood

    def _joint(self, u: Any, columns: dict[str, Any]) -> Any:
        prior, likelihood = self.parts(u, columns)
        return prior + jnp.sum(likelihood)

    def draws(self, latents: dict[str, Any], columns: dict[str, Any], seed: int) -> tuple[dict[str, Any], Any]:
        """Return draws of the latents, and their centre in coordinates; ``latents`` is where to begin."""
        start, key = self.unconstrain(latents), jax.random.key(seed)
        if self.sampled:
            self._nuts = self._nuts or MCMC(
                NUTS(self.model), num_warmup=WARMUP, num_samples=DRAWS, progress_bar=False, jit_model_args=True
            )
            self._nuts.run(key, init_params=self.unravel(start), **columns)
            drawn = {name: self._nuts.get_samples()[name] for name in self.transforms}
            centre = jnp.mean(jax.vmap(self.unconstrain)(drawn), 0)
        else:
            centre = self._mode(start, columns)
            covariance = _inverse(sum(self.curvatures(centre, columns)[:2]))
            normal = np.random.default_rng(seed).multivariate_normal(np.zeros(self.size), covariance, DRAWS)
            drawn = jax.vmap(self.constrain)(centre + jnp.asarray(normal, jnp.float32))
        return drawn, centre

    def curvatures(self, u: Any, columns: dict[str, Any]) -> tuple[Any, ...]:
        """Return L, H and the slope of what is judged."""
        return tuple(np.asarray(one, np.float64) for one in self._matrices(u, columns))

    def ideal(self, u: Any, columns: dict[str, Any], units: int, delta: float, epsilons: Any) -> list[Any]:
        """Return for each epsilon the width of the ideal posterior in units of the non-private one's."""
        prior, information, slope = self.curvatures(u, columns)
        covariance = _inverse(prior + information)
        known = float(np.trace(covariance @ information))
        free = np.einsum("ij,jk,ik->i", slope, covariance, slope)
        found = []
        for epsilon in epsilons:
            k = noise_multiplier(epsilon, delta, rate=1.0, steps=1) ** 2 * known / units
            better = _inverse(prior + information / (1 + k))
            found.append(np.sqrt(np.einsum("ij,jk,ik->i", slope, better, slope) / free))
        return found

    def _curvatures(self, u: Any, columns: dict[str, Any]) -> tuple[Any, Any, Any]:
        prior = -jax.hessian(lambda u: self.parts(u, columns)[0])(u)
        if self.sampled:
            scores = jax.jacfwd(lambda u: self.parts(u, columns)[1])(u)
            information = scores.T @ scores
        else:
            information = -jax.hessian(lambda u: jnp.sum(self.parts(u, columns)[1]))(u)
        return prior, information, jax.jacfwd(lambda u: flattened(self.judge(self.constrain(u))))(u)

    def _newton(self, start: Any, columns: dict[str, Any]) -> Any:
        def loss(u: Any) -> Any:
            return -self._joint(u, columns)

        def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            u, _, count = state
            gradient = jax.grad(loss)(u)
            values, vectors = jnp.linalg.eigh(jax.hessian(loss)(u))
            along = vectors.T @ gradient
            change = vectors @ (along / jnp.maximum(jnp.abs(values), 1e-3))
            length = jnp.sqrt(jnp.sum(along**2 / jnp.maximum(jnp.abs(values), 1e-3)))
            return u - change / jnp.maximum(1, jnp.max(jnp.abs(change))), length, count + 1

        return jax.lax.while_loop(
            lambda state: (state[1] > NEAR) & (state[2] < STEPS), step, (start, jnp.float32(jnp.inf), 0)
        )[0]


def flattened(judged: dict[str, Any]) -> Any:
    """Return what is judged as one vector, by the order of the names."""
    return jnp.concatenate([jnp.ravel(jnp.asarray(judged[name])) for name in sorted(judged)])


def labels(judged: dict[str, Any]) -> list[str]:
    """Return the names of what is judged, in the order of the vector."""
    return [
        name + (f"[{','.join(map(str, index))}]" if index else "")
        for name in sorted(judged)
        for index in np.ndindex(np.shape(judged[name]))
    ]


def _inverse(matrix: Any) -> Any:
    """Invert a symmetric matrix; directions without curvature keep a variance of a million at most."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors / np.maximum(values, 1e-6)) @ vectors.T
