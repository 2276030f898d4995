"""The width of a Laplace guide: a curvature that is a sum over records too, and draws that account for the noise.

    each tenth step   H_i = -(second derivative of log p(x_i | w) at the average w)      contributed, instead of u_i
    w, g, S, H = averages over the path: places, released scores, the noise's variance in them, released curvatures
    a draw:   H   given what was released of it, and how large it may be
              w* ~ N(w + L^-1 (H (H + S)^-1 g + grad log p(w)), L^-1),    L = P + H (H + S)^-1 H

The guide is a point while it is fitted. Averaged over the path, scores are g = H (w* - w) + noise of known variance S,
w* the mode of the likelihood; with a prior of precision P that gives the posterior above
(docs/errata.md#a-posterior-that-accounts-for-the-noise). Every draw has an H of its own, from what the noise leaves
open of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit.methods.running import cut_normal, mean_of, scaled, shrink_off_diagonal
from tacit.models.guided import GuidedModel
from tacit.models.traced import Values
from tacit.types import Array, Key, Method, Plan, PyTree, Record, Release, State

CURVATURE_EVERY = 10
"""One step in so many asks for the curvature instead of the score."""


class LaplacePath(NamedTuple):
    """Averages over the steps, the later ones weighing more, in proportion to their number.

    Places, scores there and the noise's variance in them; the part of their variance that is due to subsets, in units
    of H; the curvature H, and the noise's variance in its diagonal, which is twice that off it.
    """

    place: Array
    score: Array
    score_variance: Array
    sampling: Array
    curvature: Array
    curvature_variance: Array


def with_curvature(method: Method, guided: GuidedModel, plan: Plan) -> Method:
    """Wrap a method that fits a point, so that it asks for the curvature in each tenth step and draws by it.

    Privacy: public. A contribution is a score or a curvature; the wall clips either.

    Parameters
    ----------
    method
        Its state has ``params``, their ``average``, ``step``, and room for a ``path``.
    guided
        The model with its Laplace guide.
    plan
        What the method is built for.
    """
    contribute_score = method.contribute

    def coordinates(params: Values) -> tuple[Array, Callable[[Array], dict[str, Array]]]:
        # A Laplace guide is a point while it is fitted: any key draws it.
        return ravel_pytree(guided.unconstrain(guided.sample_guide(params, jax.random.key(0))[0]))

    size = jax.eval_shape(lambda key: coordinates(guided.init(key))[0], jax.random.key(0)).size
    usual = _usual_curvature(method, plan, size)
    rows, columns, factors = _triangle(size)

    def init(key: Key) -> State:
        zeros, zero = jnp.zeros(size), jnp.zeros(())
        return method.init(key)._replace(path=LaplacePath(zeros, zeros, zeros, zero, jnp.zeros((size, size)), zero))

    def contribute(state: State, record: Record, key: Key) -> PyTree:
        flat, shaped = coordinates(state.average)
        score, nothing = contribute_score(state, record, key), jnp.zeros(len(rows), flat.dtype)

        def curvature() -> tuple[PyTree, Array]:
            def misfit(flat: Array) -> Array:
                return -guided.record_term(state.params, guided.constrain(shaped(flat)), record, None)

            return jax.tree.map(jnp.zeros_like, score), jax.hessian(misfit)(flat)[rows, columns] * factors

        parts = jax.lax.cond(is_curvature_step(state.step), curvature, lambda: (score, nothing))
        return {"score": parts[0], "curvature": parts[1]}

    def update(state: State, release: Release, key: Key) -> State:
        number = state.step // CURVATURE_EVERY

        def curved() -> State:
            path = _update_curvature(state.path, release.part("curvature"), number)
            return state._replace(step=state.step + 1, path=path)

        def moved() -> State:
            score = release.part("score")
            path = _update_score(state.path, coordinates(state.params)[0], score, state.step - number)
            return method.update(state._replace(path=path), score, key)

        return jax.lax.cond(is_curvature_step(state.step), curved, moved)

    def draw(state: State, key: Key) -> dict[str, Array]:
        of_curvature, of_place = jax.random.split(key)
        _, shaped = coordinates(state.average)

        def log_prior(flat: Array) -> Array:
            w = shaped(flat)
            draw = guided.constrain(w)
            volume = [jnp.sum(guided.latents[name].log_abs_det_jacobian(w[name], draw[name])) for name in w]
            return guided.log_prior(state.average, draw) + sum(volume)

        values, vectors = _draw_curvature(state.path, usual, of_curvature)
        return guided.constrain(shaped(_draw_mode(state.path, values, vectors, log_prior, of_place)))

    return method._replace(
        init=init,
        contribute=contribute,
        update=update,
        draw=draw,
        min_steps=CURVATURE_EVERY,
        validated="papers/coverage",
        noiseless=_noiseless,
    )


def is_curvature_step(step: Array) -> Array:
    """Return whether a step asks for the curvature."""
    return step % CURVATURE_EVERY == CURVATURE_EVERY - 1


def _usual_curvature(method: Method, plan: Plan, size: int) -> float | None:
    """Return how large eigenvalues are expected to be, on the mean; nothing without a declared number of records."""
    # The information of a record is its score's variance, and no score is longer than the clip.
    clip = method.suggests.clip if plan.clip is None or isinstance(plan.clip, str) else plan.clip
    assert clip is not None
    information = min(clip**2, getattr(method.model.source, "information", math.inf))
    return None if plan.size is None else plan.size * plan.max_records * information / size


def _triangle(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows and columns of the numbers that a curvature is contributed as, and the factor of each."""
    rows, columns = np.triu_indices(size)
    # Off the diagonal twice in the matrix, hence sqrt(2): the norm is that of the whole matrix. For columns of unit
    # size it grows like d, a score's like sqrt(d): divided by sqrt(d) both suit one clip.
    twice = np.where(rows == columns, 1, math.sqrt(2))
    return rows, columns, (twice / math.sqrt(size)).astype(np.float32)


def _update_curvature(old: LaplacePath, part: Release, number: Array) -> LaplacePath:
    """Average a released curvature into the path, after so many others."""
    rows, columns, factors = _triangle(len(old.place))
    matrix = jnp.zeros_like(old.curvature).at[rows, columns].set(part.full / factors)
    matrix = matrix + matrix.T - jnp.diag(jnp.diag(matrix))
    variance = len(old.place) * jnp.square(part.noise_std / part.rate)
    share = 2 / (number + 2)
    return old._replace(
        curvature=old.curvature + share * (matrix - old.curvature),
        curvature_variance=_variance(old.curvature_variance, variance, share),
    )


def _update_score(old: LaplacePath, place: Array, part: Release, number: Array) -> LaplacePath:
    """Average a place and the score that was released there into the path, after so many others."""
    scores, stds = part.full["latents"], part.noise_std["latents"][0]
    # All draws of a point are the same: the noise in the mean of their scores is that of one.
    score, _ = ravel_pytree(mean_of(scaled(scores, math.sqrt(len(scores)))))
    std, _ = ravel_pytree(jax.tree.map(jnp.full_like, scores[0], stds))
    share = 2 / (number + 2)
    return old._replace(
        place=old.place + share * (place - old.place),
        score=old.score + share * (score - old.score),
        score_variance=_variance(old.score_variance, jnp.square(std / part.rate), share),
        sampling=_variance(old.sampling, (1 - part.rate) / part.rate, share),
    )


def _variance(old: Array, new: Array, share: Array) -> Array:
    return (jnp.square(1 - share) * old + jnp.square(share) * new).astype(old.dtype)


def _draw_curvature(path: LaplacePath, usual: float | None, key: Key) -> tuple[Array, Array]:
    """Draw the curvature given what was released of it: eigenvalues, and the vectors as they are believed."""
    believed, variance = shrink_off_diagonal(path.curvature, path.curvature_variance)
    values, vectors = jnp.linalg.eigh(believed)
    deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + 1e-20
    return draw_exponential(values, deviation, usual, key), vectors


def _draw_mode(
    path: LaplacePath, values: Array, vectors: Array, log_prior: Callable[[Array], Array], key: Key
) -> Array:
    """Draw w*, for a curvature of these eigenvalues and vectors."""
    noise = vectors.T**2 @ path.score_variance
    gain = values / (values * (1 + path.sampling) + noise + 1e-20)
    precision = (vectors * (gain * values)) @ vectors.T - jax.hessian(log_prior)(path.place)
    slope = vectors @ (gain * (vectors.T @ path.score)) + jax.grad(log_prior)(path.place)
    values, vectors = jnp.linalg.eigh(precision)
    values = jnp.maximum(values, 1e-6 * jnp.max(jnp.abs(values)))
    normal = jax.random.normal(key, slope.shape)
    return path.place + vectors @ ((vectors.T @ slope) / values + normal / jnp.sqrt(values))


def draw_exponential(noisy: Array, deviation: Array, mean: float | None, key: Key) -> Array:
    """Draw numbers from an exponential distribution, given what normal noise made of them.

    Where noise hides them the draws are those of the distribution; without a mean all positive numbers are as likely.

    Privacy: post-processing.
    """
    of_tail, of_body = jax.random.split(key)
    low = (0 if mean is None else deviation / mean) - noisy / deviation
    body = deviation * (cut_normal(of_body, jnp.minimum(low, 4), jnp.float32(jnp.inf)) - low)
    tail = deviation / jnp.maximum(low, 4) * jax.random.exponential(of_tail, noisy.shape)
    return jnp.where(low < 4, jnp.maximum(body, 0), tail)


def _noiseless(state: State) -> State:
    """Return the state as if nothing had hidden what was released."""
    path = state.path
    nothing = {name: jnp.zeros_like(getattr(path, name)) for name in ("score_variance", "curvature_variance")}
    return state._replace(path=path._replace(**nothing))
