"""Private variational inference for NumPyro models (Jälkö et al. 2017, 2023), in the aligned score form.

    for t = 1..T
        w     = T(phi, eta),  eta public            one draw of the latents for all records
        u_i   = grad_w log p(x_i | w)               contribution: through the wall
        G     = (sum over the subset of clip(u_i) + noise) / rate
        g     = J_T(phi, eta)' (G + grad log p(w)) - grad_phi log q(w)
        phi   = phi + optimiser(g)
        phibar = average of phi                     free post-processing
    a draw:  w ~ q(phibar + e),  e ~ N(0, V)        V from the path, for normal guides (guide_path.py)

phi is ``params``, T the ``guide``, w ``latents`` (unconstrained coordinates), phibar ``average``, G ``release.full``.
Prior and entropy never pass the wall: they are exact (docs/errata.md#scores-that-are-released).

Where records have latents z_i of their own, log p(x_i | w) is log p(x_i, z_i | w) - log q(z_i | x_i, w), z_i drawn by
the record's secret key. Parameters that it is computed from directly (a decoder's) have their gradient beside u_i.

The error e makes intervals account for much of the privacy noise, and not for all of it (papers/coverage). A Laplace
guide is a point; each tenth step asks for the curvature instead, by which its draws account for the noise (laplace.py).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from numpyro.infer.autoguide import AutoGuide, AutoLaplaceApproximation

from tacit.methods.arguments import check_draws
from tacit.methods.guide_path import draw_average, start_path, update_path
from tacit.methods.laplace import with_curvature
from tacit.methods.running import inner, mean_of, scaled, split, tail_average
from tacit.models.guided import GuidedModel, is_kind
from tacit.models.traced import Function, Values
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions


class VIState(NamedTuple):
    """Unconstrained parameters, their average, the optimiser's memory, the number of steps, the path if it is kept."""

    params: Values
    average: Values
    optimizer: Any
    step: Array
    path: PyTree


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
        A NumPyro model with one plate over records, whose length follows its arguments: the columns of the records, by
        keyword (of a dictionary) or by position (of a tuple). For predictions the observed ones are left out: give them
        the default ``None``. Parameters without a prior (``numpyro.param``, ``eqx_module``) are estimated as points.
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
    check_draws(draws, "guide")
    optimizer = optimizer or optax.adam(lambda step: 0.2 / (1 + step / 20) ** 0.75, b2=0.99)

    def build(plan: Plan) -> Method:
        guided = GuidedModel(model, guide, plan.placeholder)

        def init(key: Key) -> VIState:
            params = guided.init(key)
            return VIState(params, params, optimizer.init(params), jnp.int32(0), start_path(guided, guide, params))

        def contribute(state: VIState, record: Record, key: Key, record_key: Key | None = None) -> PyTree:
            def term(w: dict[str, Array], direct: Values) -> Array:
                return guided.record_term({**state.params, **direct}, guided.constrain(w), record, record_key)

            direct = {name: state.params[name] for name in guided.direct}
            drawn = [guided.unconstrain(guided.sample_guide(state.params, each)[0]) for each in split(key, draws)]
            scores, slopes = map(list, zip(*(jax.grad(term, (0, 1))(w, direct) for w in drawn), strict=True))
            # Scaled so that the norm is that of one draw's score, whatever their number.
            return {"latents": scaled(scores, 1 / math.sqrt(draws)), "params": mean_of(slopes)}

        def update(state: VIState, release: Release, key: Key) -> VIState:
            scores = scaled(release.full["latents"], math.sqrt(draws))

            def loss(params: Values) -> Array:  # its slope is -g
                total = -inner(release.full["params"], {name: params[name] for name in guided.direct})
                for score, each in zip(scores, split(key, draws), strict=True):
                    draw, log_density = guided.sample_guide(params, each)
                    log_joint = inner(score, guided.unconstrain(draw)) + guided.log_prior(params, draw)
                    total += (log_density - log_joint) / draws
                return total

            change, memory = optimizer.update(jax.grad(loss)(state.params), state.optimizer, state.params)
            params = optax.apply_updates(state.params, change)
            average = tail_average(state.average, params, state.step)
            return VIState(params, average, memory, state.step + 1, update_path(state.path, params, state.step))

        def draw(state: VIState, key: Key) -> dict[str, Array]:
            params = draw_average(state.average, state.path, state.step, jax.random.fold_in(key, 1))
            return guided.sample_guide(params, key)[0]

        def points(state: VIState) -> Values:
            values = guided.constrain_params(state.average)
            return {name: values[name] for name in guided.point_estimates}

        method = Method(
            init,
            contribute,
            update,
            draw,
            points,
            per_record_key=bool(guided.local),
            suggests=Suggestions(clip=getattr(model, "clip", guided.clip)),
            model=guided.known(),
        )
        return with_curvature(method, guided, plan) if is_kind(guide, AutoLaplaceApproximation) else method

    return MethodFor(build)
