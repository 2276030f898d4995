"""Sites of a network's weights: the likelihood of its output, what a record gives of its site, and sums of them.

A record's log Z has slopes g and curvatures s by the means of the weights. s of all records together is the precision
tau of all sites; their noisy sum is kept as it came, and raised where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from tacit.methods.gaussians import Moments, Natural, isotropic, plus
from tacit.methods.rectifiers import output, usual_precisions
from tacit.methods.running import Running, block_weights, start
from tacit.methods.sites import Site
from tacit.types import Array, Key, PyTree, Record, Release

SHAPE, RATE = 6.0, 6.0
"""Of the Gamma priors of both precisions, that of the weights and that of the noise."""
LEAST = 0.01
"""The least curvature of all records together, as a share of what is usual: with less steps would be too long."""
FLOOR = 5.0
"""A curvature counts for at least so many standard deviations of its noise: lost in noise, it makes steps short."""


class Contribution(NamedTuple):
    """What one record gives: slopes and curvatures of its log Z; one half, and half its squared error.

    In units of the noise, so that one clip suits all steps: slopes times its deviation, curvatures times its variance,
    squared errors over its variance. Of the last two there is nothing where the noise is public.
    """

    slope: list[Array]
    curvature: list[Array]
    noise: tuple[Array, ...]


class NetworkSites:
    """The sites of records, for the layers of a network, a head or the noise in y, and a number of records."""

    def __init__(
        self, columns: int, hidden: Sequence[int], head: Site | None, noise: float | None, records: int
    ) -> None:
        outputs = (head and head.predictors) or 1
        self.shapes = [(out, into + 1) for into, out in zip((columns, *hidden), (*hidden, outputs), strict=True)]
        self.head, self.records = head, records
        self.learns_noise = head is None and noise is None
        self.alpha = head.alpha if head else 1.0

    def start(self, spread: float, noise: Array, key: Key) -> tuple[list[Array], Running, Natural]:
        """Return the prior's means, the first averages and the first sites.

        Privacy: public.
        """
        keys = jax.random.split(key, len(self.shapes))
        centre = [spread * jax.random.normal(k, shape) for k, shape in zip(keys, self.shapes, strict=True)]
        centre[-1] = jnp.zeros(self.shapes[-1])
        # What all records will say of the width, about, so that the first steps are no longer than the later.
        guess = [jnp.full(m.shape, usual) for m, usual in zip(centre, self._usual(noise), strict=True)]
        count = (jnp.float32(self.records / 2),) * 2 * self.learns_noise
        running = start(Contribution(jax.tree.map(jnp.zeros_like, centre), guess, count))
        return centre, running, Natural(jax.tree.map(jnp.multiply, guess, centre), guess)

    def log_z(self, record: Record, f: Moments, noise: Array) -> Array:
        """Return log E[p(y | f)] of one record, for the moments of its output: the head's, or that of normal noise.

        Privacy: of one record.
        """
        if self.head is None:
            return norm.logpdf(record["y"], f.mean[0], jnp.sqrt(f.variance[0] + noise))
        return self.head.log_z(record, *(f if self.head.predictors else (f.mean[0], f.variance[0])))

    def contribution(self, layers: list[tuple[Array, Array]], record: Record, f: Moments, noise: Array) -> Contribution:
        """Return slopes and curvatures, given by layer, in units of the noise, and what a record says of the noise.

        Privacy: of one record, not bounded yet.
        """
        slope, curvature = [jnp.sqrt(noise) * g for g, _ in layers], [noise * s for _, s in layers]
        if not self.learns_noise:
            return Contribution(slope, curvature, ())
        error = jnp.square(record["y"] - f.mean[0]) + f.variance[0]
        return Contribution(slope, curvature, (jnp.float32(0.5), error / noise / 2))

    def unscaled(self, release: Release, noise: Array) -> Release:
        """Return what was released, no longer in units of the noise.

        Privacy: post-processing.
        """

        def each(given: Contribution) -> Contribution:
            slope = jax.tree.map(lambda leaf: leaf / jnp.sqrt(noise), given.slope)
            curvature = jax.tree.map(lambda leaf: leaf / noise, given.curvature)
            return Contribution(slope, curvature, given.noise and (given.noise[0], given.noise[1] * noise))

        return release._replace(full=each(release.full), noise_std=each(release.noise_std))

    def precision(self, running: Running, noise: Array) -> list[Array]:
        """Return the averaged curvatures as they are used, raised above their noise and a share of what is usual.

        Privacy: post-processing.
        """
        least = [LEAST * usual for usual in self._usual(noise)]
        return jax.tree.map(
            lambda s, std, least: jnp.maximum(s, jnp.maximum(FLOOR * std, least)),
            running.statistics.curvature,
            running.noise_std.curvature,
            least,
        )

    def noise(self, running: Running, noise: Array) -> Array:
        """Return b / (a - 1) of the noise precision's posterior Gamma(a, b); the noise as it is where that is public.

        Privacy: post-processing.
        """
        if not self.learns_noise:
            return noise
        a, b = map(jnp.maximum, running.statistics.noise, running.noise_std.noise)
        return (RATE + b) / (SHAPE - 1 + a)

    def predict(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> PyTree:
        """Return predictions for records with a leading axis.

        Privacy: post-processing.
        """
        weights = [draw[f"w{i}"] for i in range(len(self.shapes))]
        f = jax.vmap(lambda x: output(weights, x), out_axes=-1)(jnp.asarray(inputs["x"], jnp.float32))
        if self.head is None:
            return {"mean": f[0], "y": f[0] + jnp.sqrt(draw["noise"]) * jax.random.normal(key, f[0].shape)}
        assert self.head.predict is not None
        return self.head.predict(f if self.head.predictors else f[0], key)

    def noise_shares(self) -> tuple[float, ...]:
        """Return weights that share the noise among slopes and curvatures of layers and the noise site, by usual norms.

        Privacy: public.
        """
        more, sizes = len(self.shapes) - 1, [math.prod(shape) for shape in self.shapes]
        bounds = [0.4] * more + [0.7] + [0.1] * more + [0.3]
        return block_weights((*bounds, *(0.5, 0.5) * self.learns_noise), (*sizes, *sizes, *(1, 1) * self.learns_noise))

    def _usual(self, noise: Array) -> list[Array]:
        """Return the usual precision of all records' sites, by layer."""
        return [self.records * each / noise for each in usual_precisions(self.shapes)]


def posterior(centre: list[Array], decay: Array, sites: Natural, share: float = 1.0) -> Natural:
    """Return the prior times the sites, or a share of them.

    Privacy: post-processing.
    """
    return plus(isotropic(centre, decay, False), sites, share)


def decay_given(centre: list[Array], weights: Moments) -> Array:
    """Return the mean of the prior's precision, given its means and the posterior of the weights.

    Privacy: post-processing.
    """
    number = sum(leaf.size for leaf in centre)
    squares = jax.tree.map(lambda m, c, v: jnp.sum(jnp.square(m - c) + v), weights.mean, centre, weights.variance)
    return (SHAPE + number / 2) / (RATE + sum(squares) / 2)


def check_network(hidden: Sequence[int], noise: float | None, head: Site | None, spread: float) -> None:
    """Refuse a network that there cannot be, by the arguments of ``tacit.pbp``.

    Privacy: public.
    """
    if head is not None and noise is not None:
        raise ValueError("Both noise and head are given; the noise is part of the head. Leave one of them out.")
    if any(units < 1 for units in hidden) or not spread > 0 or (noise is not None and not noise > 0):
        raise ValueError(
            f"hidden is {tuple(hidden)}, noise is {noise}, spread is {spread:g}; all must be positive. "
            "Write pbp((50,))."
        )
    if head is not None and head.form != "predictors":
        raise ValueError(
            f"The head's form is {head.form!r}; a network's output is a predictor. Use sites.probit() etc."
        )
