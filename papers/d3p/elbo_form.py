"""d3p's form of private variational inference, as a method for ``tacit.fit``: for comparison only.

    for t = 1..T
        theta_i = T(phi, eta_i)                                  a guide draw of its own for each record
        u_i     = grad_phi [ log p(x_i | theta_i) + (log p(theta_i) - log q(theta_i; phi)) / N ]
        G       = (sum over the subset of clip(u_i) + noise) / rate
        phi     = phi + optimiser(G)

(Prediger et al. 2021; the code they published with the paper clips the record's term after dividing by N, draws for
each record apart, and gives the last phi.) Against ``tacit.vi``: noise in the space of guide parameters, twice as many
numbers for a mean-field guide; prior and entropy share the clip with the likelihood.

phi is ``params``, N ``count`` (public), eta_i comes from ``own``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import optax
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoGuide, AutoNormal
from numpyro.infer.initialization import init_to_median

from tacit import Method, MethodFor, Plan
from tacit.types import Release


class ELBOState(NamedTuple):
    """Guide parameters, their average with the weights of ``tacit.vi``, the optimiser's memory, the step."""

    params: dict[str, Any]
    average: dict[str, Any]
    optimizer: Any
    step: Any


def elbo_form(
    model: Callable[..., Any], count: int, optimizer: optax.GradientTransformation, guide: Any = AutoNormal
) -> MethodFor:
    """Return d3p's method for a model whose records are a dictionary."""

    def build(plan: Plan) -> Method:
        one = {name: jnp.asarray(leaf)[None] for name, leaf in plan.placeholder.items()}
        model_trace = trace(seed(model, 0)).get_trace(**one)
        observed = [name for name, site in model_trace.items() if site["type"] == "sample" and site["is_observed"]]
        around = guide
        if isinstance(guide, type) and issubclass(guide, AutoGuide):
            around = guide(block(model, hide=observed), init_loc_fn=init_to_median)
        sites = {n: s for n, s in trace(seed(around, 0)).get_trace(**one).items() if s["type"] == "param"}
        transforms = {n: biject_to(s["kwargs"].get("constraint", constraints.real)) for n, s in sites.items()}
        latents = [n for n, s in model_trace.items() if s["type"] == "sample" and n not in observed]

        def constrained(params: dict[str, Any]) -> dict[str, Any]:
            return {name: transforms[name](value) for name, value in params.items()}

        def elbo(params: dict[str, Any], record: Any, record_key: Any) -> Any:
            rows = {name: leaf[None] for name, leaf in record.items()}
            terms = Trace_ELBO(sum_sites=False).loss(record_key, constrained(params), model, around, **rows)
            return -sum(jnp.sum(term) / (1 if name in observed else count) for name, term in terms.items())

        def init(key: Any) -> ELBOState:
            start = trace(seed(around, key)).get_trace(**one)
            params = {name: transforms[name].inv(start[name]["value"]) for name in transforms}
            return ELBOState(params, params, optimizer.init(params), jnp.int32(0))

        def contribute(state: ELBOState, record: Any, key: Any, record_key: Any = None) -> dict[str, Any]:
            # Without a wall, where shapes are asked for, the shared key will do.
            return jax.grad(elbo)(state.params, record, key if record_key is None else record_key)

        def update(state: ELBOState, release: Release, key: Any) -> ELBOState:
            loss_gradient = jax.tree.map(jnp.negative, release.full)
            change, memory = optimizer.update(loss_gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, change)
            share = 4 / (state.step + 4)
            average = jax.tree.map(lambda old, new: old + share * (new - old), state.average, params)
            return ELBOState(params, average, memory, state.step + 1)

        def draw(state: ELBOState, key: Any) -> dict[str, Any]:
            # What the guide leaves out is drawn from the model, as in the paper's hierarchical example.
            guided = trace(seed(substitute(around, constrained(state.average)), key)).get_trace(**one)
            values = {name: site["value"] for name, site in guided.items() if site["type"] == "sample"}
            filled = seed(substitute(model, values), jax.random.fold_in(key, 1))
            drawn = numpyro.handlers.trace(filled).get_trace(**one)
            return {name: drawn[name]["value"] for name in latents}

        return Method(init, contribute, update, draw, per_record_key=True)

    return MethodFor(build)
