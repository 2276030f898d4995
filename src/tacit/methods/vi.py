"""Private variational inference for NumPyro models (Jälkö et al. 2017, 2023), in the aligned score form.

    for t = 1..T
        w     = T(phi, eta),  eta public            one draw of the latents for all records
        u_i   = grad_w log p(x_i | w)               contribution: through the wall
        G     = (sum over the subset of clip(u_i) + noise) / rate
        g     = J_T(phi, eta)' (G + grad log p(w)) - grad_phi log q(w)
        phi   = phi + optimiser(g)
        phibar = average of phi                     free post-processing
    a draw:  w ~ q(phibar + e),  e ~ N(0, V)        V from the batch means of the path

phi is ``params``, T the ``guide``, w ``latents`` (unconstrained coordinates), phibar ``average``, G ``release.full``.
Prior and entropy never pass the wall: they are exact. d3p puts the whole ELBO of a record through it instead, with one
guide draw a record, which wastes the norm on terms that need no protection (docs/errata.md#scores-that-are-released;
papers/d3p/forms.py).

Where every record has latents z_i of its own, log p(x_i | w) is log p(x_i, z_i | w) - log q(z_i | x_i, w) with z_i
drawn by the record's own secret key; and parameters that it is computed from directly (a decoder's, an encoder's) have
their gradient next to u_i in the contribution.

A Laplace guide is a point; the curvature there is a sum over records too, and each tenth step asks for it. Its
posterior accounts for the privacy noise (docs/errata.md#a-posterior-that-accounts-for-the-noise). Averaged over the
path, scores are g = H (w* - w) + noise of known variance S, w* the mode of the likelihood; so with a prior of precision
P

    w* ~ N(w + L^-1 (H (H + S)^-1 g + grad log p(w)), L^-1),    L = P + H (H + S)^-1 H

and every draw has an H of its own, from what the noise leaves open of it.

Normal guides show in their path what the noise does to them: averages over K batches of it differ by the noise, by
subsets and by the guide's own draws, and so V, the variance of phibar, follows from the variance of these averages
(batch means; Chen et al. 2020), correlations included. It costs no privacy. What moves more slowly than a batch is
long is not seen: intervals account for much of the noise and not all of it (papers/coverage). Other guides leave it
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from tacit.methods.running import (
    BATCHES,
    MANY,
    BatchMeans,
    cut_normal,
    inner,
    sample_average_error,
    shrink_off_diagonal,
    split,
    start_batch_means,
    tail_average,
    update_batch_means,
)
from tacit.models.guided import GuidedModel, is_class
from tacit.models.traced import Function, Values
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions

CURVATURE_EVERY = 10
"""Under a Laplace guide, one step in so many asks for the curvature instead of the score."""
NORMAL = (AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal)
"""Guides whose draws count what the noise does to their path."""


class Path(NamedTuple):
    """Averages over the steps of a Laplace guide, the later ones weighing more, in proportion to their number.

    Places, scores there and the noise's variance in them; the part of their variance that is due to subsets, in units
    of H; the curvature H, and the noise's variance in its diagonal, which is twice that off it.
    """

    place: Array
    score: Array
    score_variance: Array
    sampling: Array
    curvature: Array
    curvature_variance: Array


class VIState(NamedTuple):
    """Parameters in unconstrained coordinates, their average, the optimiser's memory, the number of steps.

    ``path`` is empty but for a Laplace guide and for normal ones.
    """

    params: Values
    average: Values
    optimizer: Any
    step: Array
    path: Path | BatchMeans | tuple[()]


def vi(
    model: Function,
    guide: Function | type[AutoGuide] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    draws: int = 1,
) -> MethodFor:
    """Fit a guide to the posterior of a NumPyro model by private variational inference.

    Privacy: public. Traces the model on placeholder records only.

    Parameters
    ----------
    model
        A NumPyro model with one plate over records, whose length follows its arguments. It is called with the columns
        of the records as keyword arguments (a dictionary of records) or positional ones (a tuple); for predictions the
        observed ones are left out, so pass them the default ``None``. Parameters without a prior (``numpyro.param``, a
        network by ``eqx_module``) are estimated as points.
    guide
        A NumPyro guide, an AutoGuide or its class, or nothing for ``AutoNormal``. A model with latents inside the
        plate needs a guide that computes their distribution from the record.
    optimizer
        An optax optimiser; by default Adam with a decreasing rate.
    draws
        Number of guide draws a step, shared by all records. More of them steady the gradient at more computation and
        the same privacy; the noise in their mean stays what it was.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``.

    Examples
    --------
    >>> import numpy as np, numpyro, numpyro.distributions as dist, tacit
    >>> def model(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0, 1))
    ...     with numpyro.plate("records", len(x)):
    ...         numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)
    >>> x = np.random.default_rng(0).normal(size=200).astype(np.float32)
    >>> data = tacit.PrivateData({"x": x, "y": 0.5 * x}, size=200)
    >>> posterior = tacit.fit(tacit.vi(model), data, tacit.Budget(1.0, 1e-6), steps=50, progress=False)
    >>> posterior.draws["slope"].shape
    (1000,)
    """
    if draws < 1:
        raise ValueError(f"draws is {draws}; a step needs at least one draw of the guide. Write draws=1.")
    optimizer = optimizer or optax.adam(lambda step: 0.2 / (1 + step / 20) ** 0.75, b2=0.99)

    def build(plan: Plan) -> Method:
        guided = GuidedModel(model, guide, plan.placeholder)
        laplace = _Laplace(guided, plan) if _is(AutoLaplaceApproximation, guide) else None
        normal = bool(guided.latents) and _is(NORMAL, guide or AutoNormal) and _size(guided) * BATCHES < MANY

        def init(key: Key) -> VIState:
            params = guided.init(key)
            path = laplace.path() if laplace else start_batch_means(params) if normal else ()
            return VIState(params, params, optimizer.init(params), jnp.int32(0), path)

        def contribute(state: VIState, record: Record, key: Key, record_key: Key | None = None) -> PyTree:
            def term(w: dict[str, Array], direct: Values) -> Array:
                return guided.record_term({**state.params, **direct}, guided.constrain(w), record, record_key)

            direct = {name: state.params[name] for name in guided.direct}
            drawn = [guided.unconstrain(guided.sample_guide(state.params, each)[0]) for each in split(key, draws)]
            scores, slopes = map(list, zip(*(jax.grad(term, (0, 1))(w, direct) for w in drawn), strict=True))
            # Scaled so that the norm is that of one draw's score, whatever their number.
            contribution = {"latents": _times(1 / math.sqrt(draws), scores), "params": _mean(slopes)}
            return laplace.contribute(state, contribution, term, direct) if laplace else contribution

        def update(state: VIState, release: Release, key: Key) -> VIState:
            if laplace:
                return laplace.update(state, release, lambda state: step_along(state, release.full["score"], key))
            return step_along(state, release.full, key)

        def step_along(state: VIState, full: PyTree, key: Key) -> VIState:
            scores = _times(math.sqrt(draws), full["latents"])

            def loss(params: Values) -> Array:
                total = -inner(full["params"], {name: params[name] for name in guided.direct})
                for score, each in zip(scores, split(key, draws), strict=True):
                    draw, log_density = guided.sample_guide(params, each)
                    log_joint = inner(score, guided.unconstrain(draw)) + guided.log_prior(params, draw)
                    total += (log_density - log_joint) / draws
                return total

            gradient = jax.grad(loss)(state.params)
            change, memory = optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, change)
            average = tail_average(state.average, params, state.step)
            path = state.path
            if isinstance(path, BatchMeans):
                path = update_batch_means(path, params, state.step)
            return VIState(params, average, memory, state.step + 1, path)

        def draw(state: VIState, key: Key) -> dict[str, Array]:
            if laplace:
                return laplace.draw(state, key)
            return guided.sample_guide(_perturbed_average(state, jax.random.fold_in(key, 1)), key)[0]

        def points(state: VIState) -> Values:
            values = guided.constrain_params(state.average)
            return {name: values[name] for name in guided.point_estimates}

        return Method(
            init,
            contribute,
            update,
            draw,
            points,
            per_record_key=bool(guided.local),
            suggests=Suggestions(clip=laplace.clip if laplace else getattr(model, "clip", guided.clip)),
            model=guided.known(),
            **(LAPLACE if laplace else {}),
        )

    return MethodFor(build)


class _Laplace:
    """The covariance of a Laplace guide: each tenth step asks for the curvature at the average instead of the score."""

    def __init__(self, guided: GuidedModel, plan: Plan) -> None:
        self.guided = guided
        params = jax.eval_shape(guided.init, jax.random.key(0))
        flat = jax.eval_shape(lambda params: ravel_pytree(self._centre(params))[0], params)
        self.size = flat.shape[0]
        self.clip = getattr(guided.known().source, "clip", guided.clip or 2 * math.sqrt(self.size))
        # The information of a record is its score's variance, and no score is longer than the clip.
        clip = self.clip if plan.clip is None or isinstance(plan.clip, str) else plan.clip
        information = min(clip**2, getattr(guided.known().source, "information", math.inf))
        self.usual = None if plan.size is None else plan.size * plan.max_records * information / self.size
        self.rows, self.columns = np.triu_indices(self.size)
        # Off the diagonal twice in the matrix, hence sqrt(2): the norm is that of the whole matrix. For columns of unit
        # size it grows like d, a score's like sqrt(d): divided by sqrt(d) both suit one clip.
        twice = np.where(self.rows == self.columns, 1, math.sqrt(2))
        self.factors = (twice / math.sqrt(self.size)).astype(np.float32)

    def contribute(self, state: VIState, score: PyTree, term: Callable[..., Array], direct: Values) -> PyTree:
        flat, shaped = ravel_pytree(self._centre(state.average))

        def curvature() -> Array:
            hessian = jax.hessian(lambda flat: -term(shaped(flat), direct))(flat)[self.rows, self.columns]
            return hessian * self.factors

        nothing = jnp.zeros(len(self.rows), flat.dtype)
        parts = (score, nothing)
        parts = jax.lax.cond(
            is_curvature_step(state), lambda: (jax.tree.map(jnp.zeros_like, score), curvature()), lambda: parts
        )
        return {"score": parts[0], "curvature": parts[1]}

    def path(self) -> Path:
        zeros, zero = jnp.zeros(self.size), jnp.zeros(())
        return Path(zeros, zeros, zeros, zero, jnp.zeros((self.size, self.size)), zero)

    def update(self, state: VIState, release: Release, along: Callable[[VIState], VIState]) -> VIState:
        old, asked = state.path, state.step // CURVATURE_EVERY
        assert isinstance(old, Path)

        def curved() -> VIState:
            share, part = 2 / (asked + 2), release.part("curvature")
            matrix = jnp.zeros_like(old.curvature).at[self.rows, self.columns].set(part.full / self.factors)
            matrix = matrix + matrix.T - jnp.diag(jnp.diag(matrix))
            variance = self.size * jnp.square(part.noise_std / release.rate)
            path = old._replace(
                curvature=old.curvature + share * (matrix - old.curvature),
                curvature_variance=_variance(old.curvature_variance, variance, share),
            )
            return state._replace(step=state.step + 1, path=path)

        def moved() -> VIState:
            share, part = 2 / (state.step - asked + 2), release.part("score")
            # All draws of a point are the same: the noise in the mean of their scores is that of one.
            times = math.sqrt(len(part.full["latents"]))
            place, score = (
                ravel_pytree(tree)[0]
                for tree in (self._centre(state.params), _mean(_times(times, part.full["latents"])))
            )
            stds = jax.tree.map(jnp.full_like, part.full["latents"][0], part.noise_std["latents"][0])
            variance = jnp.square(ravel_pytree(stds)[0] / release.rate)
            path = old._replace(
                place=old.place + share * (place - old.place),
                score=old.score + share * (score - old.score),
                score_variance=_variance(old.score_variance, variance, share),
                sampling=_variance(old.sampling, (1 - release.rate) / release.rate, share),
            )
            return along(state._replace(path=path))

        return jax.lax.cond(is_curvature_step(state), curved, moved)

    def draw(self, state: VIState, key: Key) -> dict[str, Array]:
        path, of_curvature, of_place = state.path, *jax.random.split(key)
        assert isinstance(path, Path)
        _, shaped = ravel_pytree(self._centre(state.average))

        def log_prior(flat: Array) -> Array:
            w = shaped(flat)
            draw = self.guided.constrain(w)
            volume = [jnp.sum(self.guided.latents[name].log_abs_det_jacobian(w[name], draw[name])) for name in w]
            return self.guided.log_prior(state.average, draw) + sum(volume)

        believed, variance = shrink_off_diagonal(path.curvature, path.curvature_variance)
        values, vectors = jnp.linalg.eigh(believed)
        deviation = jnp.sqrt(jnp.diag(vectors.T**2 @ variance @ vectors**2)) + 1e-20
        values = _exponential_given(values, deviation, self.usual, of_curvature)
        noise = vectors.T**2 @ path.score_variance
        gain = values / (values * (1 + path.sampling) + noise + 1e-20)
        precision = (vectors * (gain * values)) @ vectors.T - jax.hessian(log_prior)(path.place)
        slope = vectors @ (gain * (vectors.T @ path.score)) + jax.grad(log_prior)(path.place)
        values, vectors = jnp.linalg.eigh(precision)
        values = jnp.maximum(values, 1e-6 * jnp.max(jnp.abs(values)))
        normal = jax.random.normal(of_place, slope.shape)
        place = path.place + vectors @ ((vectors.T @ slope) / values + normal / jnp.sqrt(values))
        return self.guided.constrain(shaped(place))

    def _centre(self, params: Values) -> dict[str, Array]:
        # A Laplace guide is a point while it is fitted: any key draws it.
        return self.guided.unconstrain(self.guided.sample_guide(params, jax.random.key(0))[0])


def _exponential_given(noisy: Array, deviation: Array, mean: float | None, key: Key) -> Array:
    """Draw numbers from an exponential distribution, given what normal noise made of them.

    Where noise hides them the draws are those of the distribution; without a mean all positive numbers are as likely.
    """
    of_tail, of_body = jax.random.split(key)
    low = (0 if mean is None else deviation / mean) - noisy / deviation
    body = deviation * (cut_normal(of_body, jnp.minimum(low, 4), jnp.float32(jnp.inf)) - low)
    tail = deviation / jnp.maximum(low, 4) * jax.random.exponential(of_tail, noisy.shape)
    return jnp.where(low < 4, jnp.maximum(body, 0), tail)


def _variance(old: Array, new: Array, share: Array) -> Array:
    return (jnp.square(1 - share) * old + jnp.square(share) * new).astype(old.dtype)


def is_curvature_step(state: VIState) -> Array:
    """Return whether a step asks for the curvature."""
    return state.step % CURVATURE_EVERY == CURVATURE_EVERY - 1


def _noiseless(state: VIState) -> VIState:
    """Return the state of a Laplace guide as if nothing had hidden what was released."""
    assert isinstance(state.path, Path)
    nothing = {name: jnp.zeros_like(getattr(state.path, name)) for name in ("score_variance", "curvature_variance")}
    return state._replace(path=state.path._replace(**nothing))


LAPLACE: dict[str, Any] = {"min_steps": CURVATURE_EVERY, "validated": "papers/coverage", "noiseless": _noiseless}
"""What a method with a Laplace guide declares."""


def _perturbed_average(state: VIState, key: Key) -> Values:
    """Return the average and an error of its own for a draw."""
    if not isinstance(state.path, BatchMeans):
        return state.average
    return jax.tree.map(jnp.add, state.average, sample_average_error(state.path, state.step, key))


def _size(guided: GuidedModel) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(guided.init, jax.random.key(0))))


def _is(kind: type | tuple[type, ...], guide: Any) -> bool:
    return isinstance(guide, kind) or is_class(guide, kind)


def _times(factor: float, tree: PyTree) -> PyTree:
    return tree if factor == 1 else jax.tree.map(lambda leaf: factor * leaf, tree)


def _mean(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees) if len(trees) > 1 else trees[0]
