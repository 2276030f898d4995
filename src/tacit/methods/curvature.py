"""The curvature H of a regression, as noisy releases along a path show it.

Where noise hides H, a posterior with the best guess of it believes in information that is not there. So each draw has a
curvature of its own, with eigenvalues from normal distributions cut at 0. H is expected to be a M + b (Mu)(Mu)', as for
normal x (Stein), up to the noise in M and to what the releases show beyond it. Since records of leverage weigh less, it
is raised to its trace, which is released too, less what noise may have added to that.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag

from tacit.methods.leverage import FAR
from tacit.methods.running import cut_normal
from tacit.methods.whitening import TINY, Whitening, symmetrize
from tacit.types import Array, Key, Release, State

DOUBT = 2.0
"""By how many deviations of its noise the trace is believed to be less than released."""


class Path(NamedTuple):
    """Averages over the path: places, scores, curvatures; the noise's variances in them; the part due to sampling.

    Later places and scores weigh more, in proportion to their number: the path comes from afar.
    The last number of a place and of a score is for the log of the noise, if the family has one.
    """

    place: Array
    score: Array
    score_variance: Array
    curvature: Array
    curvature_variance: Array
    trace: Array
    trace_variance: Array
    sampling: Array
    number: Array


def start_path(place: Array, whitening: Whitening) -> Path:
    """Return the averages over a path that has no step yet.

    Privacy: public.
    """
    zero, square = jnp.float32(0), jnp.zeros_like(whitening.matrix)
    return Path(place, jnp.zeros_like(place), jnp.zeros_like(place), square, zero, zero, zero, zero, zero)


def averaged(old: Path, place: Array, score: Release, matrix: Release, trace: Release, counts: Array) -> Path:
    """Average a step's place and releases into the path; ``counts`` says whether it is one of those averaged.

    Privacy: post-processing.
    """
    rate, share, late = score.rate, 1 / (old.number + 1), 2 / (old.number + 2)

    def variance(old: Array, std: Array, share: Array = share) -> Array:
        return jnp.square(1 - share) * old + jnp.square(share * std / rate)

    return Path(
        old.place + late * (place - old.place),
        old.score + late * (score.full - old.score),
        variance(old.score_variance, score.noise_std, late),
        old.curvature + share * (symmetrize(matrix.full) - old.curvature),
        variance(old.curvature_variance, matrix.noise_std),
        old.trace + share * (trace.full - old.trace),
        variance(old.trace_variance, trace.noise_std),
        variance(old.sampling, jnp.sqrt(rate * (1 - rate)), late),
        old.number + counts,
    )


def believed(whitening: Whitening, usual: Array, path: Path, place: Array, size: float) -> tuple[Array, Array, Array]:
    """Return the usual h as released, and H given the releases, at a place: mean and variances.

    Privacy: post-processing.
    """
    u = place[: len(whitening.spread)]
    spread, released = whitening.spread, path.curvature / size
    cut = jnp.maximum(jnp.trace(released) / jnp.sum(spread), 0.02 * usual)
    trace = path.trace - DOUBT * jnp.sqrt(path.trace_variance)
    raised = jnp.clip(trace / (size * jnp.sum(spread) * cut), 1, FAR)
    released, found = raised * released, raised * cut
    along = spread * u
    square = u @ along + 1e-6
    tilt = jnp.clip((u @ released @ u + 1e-6 * found) / square - found, -0.9 * found, 3 * found)
    expected = found * jnp.diag(spread) + tilt * jnp.outer(along, along) / square
    noise = path.curvature_variance * jnp.square(raised / size)
    noise = noise * (1 + np.eye(len(u), dtype=np.float32)) / 2  # mirrored: off the diagonal half as much
    before = found**2 * whitening.spread_variance
    before = before + jnp.maximum(jnp.mean(jnp.square(released - expected) - noise - before), 0)
    gain = before / (before + noise + TINY)
    # The size is a float: its square does not fit JAX's integers.
    return cut, size * (expected + gain * (released - expected)), size**2 * gain * noise


def draw_curvature(
    whitening: Whitening, usual: Array, path: Path, size: float, known: Array, key: Key
) -> tuple[Array, Array]:
    """Draw H given the releases, as its eigenvalues and eigenvectors; those that are known without a release come last.

    Privacy: post-processing.
    """
    found, curvature, variance = believed(whitening, usual, path, path.place, size)
    values, vectors = jnp.linalg.eigh(curvature)
    deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + TINY
    wobble = cut_normal(key, jnp.minimum(-values / deviation, 4), jnp.float32(jnp.inf))
    values = jnp.maximum(values + deviation * wobble, 1e-3 * size * found)
    return jnp.append(values, known), block_diag(vectors, jnp.eye(len(known)))


def noiseless(state: State) -> State:
    """Return a state, of which this changes the ``whitening`` and the ``path``, as if releases had been exact.

    Privacy: post-processing.
    """
    path = state.path
    exact = path._replace(
        score_variance=jnp.zeros_like(path.score_variance),
        curvature_variance=jnp.zeros_like(path.curvature_variance),
        trace_variance=jnp.zeros_like(path.trace_variance),
    )
    whitening = state.whitening._replace(spread_variance=jnp.zeros_like(state.whitening.spread_variance))
    return state._replace(whitening=whitening, path=exact)
