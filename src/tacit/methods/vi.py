"""Private variational inference for NumPyro models (Jälkö et al. 2017, 2023), in the aligned score form.

    for t = 1..T
        w     = T(phi, eta),  eta public            one draw of the latents for all records
        u_i   = grad_w log p(x_i | w)               contribution: through the wall
        G     = (sum over the subset of clip(u_i) + noise) / rate
        g     = J_T(phi, eta)' (G + grad log p(w)) - grad_phi log q(w)
        phi   = phi + optimiser(g)
        phibar = average of phi                     free post-processing

phi is ``params``, T the ``guide``, w ``latents`` (unconstrained coordinates), phibar ``average``, G ``release.full``.
Prior and entropy never pass the wall: they are exact. d3p puts the whole ELBO of a record through it instead, with one
guide draw a record, which wastes the norm on terms that need no protection (METHODS 19.1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import optax
from numpyro.distributions import biject_to, constraints
from numpyro.infer.autoguide import AutoGuide, AutoNormal
from numpyro.infer.initialization import init_to_median
from numpyro.infer.util import compute_log_probs

from tacit.types import Array, Key, Method, MethodFor, PyTree, Record, Release

Model = Callable[..., Any]


class VIState(NamedTuple):
    """Guide parameters in unconstrained coordinates, their average, the optimiser's memory, the number of steps."""

    params: dict[str, Array]
    average: dict[str, Array]
    optimizer: Any
    step: Array


def vi(
    model: Model,
    guide: Model | type[AutoGuide] | None = None,
    optimizer: optax.GradientTransformation | None = None,
) -> MethodFor:
    """Fit a guide to the posterior of a NumPyro model by private variational inference.

    Privacy: public. Traces the model on placeholder records only.

    Parameters
    ----------
    model
        A NumPyro model with one plate over records, whose length follows its arguments. It is called with the columns
        of the records as keyword arguments (a dictionary of records) or positional ones (a tuple); for predictions the
        observed ones are left out, so give them the default ``None``.
    guide
        A NumPyro guide, an AutoGuide class, or nothing for ``AutoNormal``.
    optimizer
        An optax optimiser; by default Adam with a decreasing rate.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``.
    """
    optimizer = optimizer or optax.adam(lambda step: 0.2 / (1 + step / 20) ** 0.75, b2=0.99)

    def build(placeholder: Record) -> Method:
        placeholder = jax.tree.map(jnp.asarray, placeholder)
        sites = _find_sites(model, placeholder)
        around = _guide(model, guide, sites)
        one = _repeat(placeholder, 1)
        into_params = _parameter_transforms(around, one)

        def sample_guide(params: dict[str, Array], key: Key) -> tuple[dict[str, Array], Array]:
            """Draw the latents (constrained) and give the log density of the guide there."""
            values = {name: into_params[name](value) for name, value in params.items()}
            filled = numpyro.handlers.seed(numpyro.handlers.substitute(around, data=values), key)
            trace = numpyro.handlers.trace(filled).get_trace(*_arguments(one), **_keywords(one))
            log_density = sum(
                jnp.sum(site["fn"].log_prob(site["value"])) for site in trace.values() if site["type"] == "sample"
            )
            return {name: trace[name]["value"] for name in sites.latents}, jnp.asarray(log_density)

        def latents(params: dict[str, Array], key: Key) -> dict[str, Array]:
            return sites.unconstrain(sample_guide(params, key)[0])

        def log_probs(draw: dict[str, Array], rows: PyTree) -> dict[str, Array]:
            # Every latent is given by the draw; the key is only asked for by a plate that subsamples.
            seeded = numpyro.handlers.seed(model, jax.random.key(0))
            return compute_log_probs(seeded, _arguments(rows), _keywords(rows), draw)[0]

        def log_likelihood(w: dict[str, Array], record: Record) -> Array:
            rows = jax.tree.map(lambda leaf: leaf[None], record)
            terms = log_probs(sites.constrain(w), rows)
            return sum((terms[name] / scale for name, scale in sites.observed.items()), jnp.float32(0))

        def log_prior(draw: dict[str, Array]) -> Array:
            terms = log_probs(draw, one)
            return sum((terms[name] for name in sites.latents), jnp.float32(0))

        def init(key: Key) -> VIState:
            trace = numpyro.handlers.trace(numpyro.handlers.seed(around, key)).get_trace(
                *_arguments(one), **_keywords(one)
            )
            params = {name: into_params[name].inv(trace[name]["value"]) for name in into_params}
            return VIState(params, params, optimizer.init(params), jnp.int32(0))

        def contribute(state: VIState, record: Record, key: Key) -> dict[str, Array]:
            return jax.grad(log_likelihood)(latents(state.params, key), record)

        def update(state: VIState, release: Release, key: Key) -> VIState:
            def loss(params: dict[str, Array]) -> Array:
                draw, log_density = sample_guide(params, key)
                w = sites.unconstrain(draw)
                likelihood = sum(jnp.sum(release.full[name] * w[name]) for name in w)
                return log_density - likelihood - log_prior(draw)

            gradient = jax.grad(loss)(state.params)
            change, memory = optimizer.update(gradient, state.optimizer, state.params)
            params = optax.apply_updates(state.params, change)
            # Weights that grow like t**3: the start is forgotten, the tail is averaged.
            share = 4 / (state.step + 4)
            average = jax.tree.map(lambda old, new: old + share * (new - old), state.average, params)
            return VIState(params, average, memory, state.step + 1)

        def draw(state: VIState, key: Key) -> dict[str, Array]:
            return sample_guide(state.average, key)[0]

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            filled = numpyro.handlers.seed(numpyro.handlers.substitute(model, data=draw), key)
            trace = numpyro.handlers.trace(filled).get_trace(*_arguments(inputs), **_keywords(inputs))
            wanted = [name for name, site in trace.items() if name in sites.observed or site["type"] == "deterministic"]
            return {name: trace[name]["value"] for name in wanted}

        return Method(init, contribute, update, draw, predict)

    return build


class _Sites(NamedTuple):
    """The split of a model: observed sites inside the plate are private, latent sites outside it are public."""

    observed: dict[str, float]  # with the factor by which the plate scales them, which is undone
    latents: dict[str, Any]  # with the transform from unconstrained coordinates

    def constrain(self, w: dict[str, Array]) -> dict[str, Array]:
        return {name: self.latents[name](value) for name, value in w.items()}

    def unconstrain(self, draw: dict[str, Array]) -> dict[str, Array]:
        return {name: self.latents[name].inv(value) for name, value in draw.items()}


def _find_sites(model: Model, placeholder: Record) -> _Sites:
    _refuse_data_in_priors(model, placeholder)
    one, two, three = (_trace(model, _repeat(placeholder, n)) for n in (1, 2, 3))
    plates = {name for name, n in _plates(two).items() if n == 2 and _plates(three).get(name) == 3}
    if not plates:
        raise ValueError(
            "The model has no plate over records: no plate's length follows the model's arguments, so tacit cannot "
            "tell one record's term from another's. Write: with numpyro.plate('records', x.shape[0]): ... around the "
            "observed sites."
        )
    observed, latents = {}, {}
    for name, site in one.items():
        inside = [frame for frame in site.get("cond_indep_stack", ()) if frame.name in plates]
        if site["type"] == "param":
            raise ValueError(
                f"The model has the parameter {name!r}. A parameter without a prior has no posterior; "
                "write numpyro.sample with a prior instead."
            )
        if site["type"] != "sample":
            continue
        if site["is_observed"] and not inside:
            raise ValueError(
                f"The observed site {name!r} is outside the plate over records ({', '.join(sorted(plates))}). Its "
                "gradient could not be bounded record by record; move it inside the plate."
            )
        if site["is_observed"]:
            observed[name] = float(site["scale"] or 1.0)
        elif inside:
            raise ValueError(
                f"The latent site {name!r} is inside the plate over records: every record would have a latent variable "
                "of its own. Sum it out of the likelihood, or give it to groups that the schema declares."
            )
        elif site["fn"].support.is_discrete:
            raise ValueError(
                f"The latent site {name!r} is discrete and has no gradient; sum it out, for example by a mixture "
                "distribution (numpyro.distributions.MixtureSameFamily)."
            )
        else:
            latents[name] = biject_to(site["fn"].support)
    if not observed:
        raise ValueError(
            "The model observes nothing: pass the records' columns as obs=... inside the plate over records."
        )
    if not latents:
        raise ValueError("The model has no latent site: there is nothing to infer.")
    _refuse_mixed_records(model, placeholder, list(observed))
    return _Sites(observed, latents)


def _refuse_data_in_priors(model: Model, placeholder: Record) -> None:
    """Refuse a model whose public terms are computed from the records."""

    def terms(rows: PyTree) -> list[Array]:
        sites = _trace(model, rows).values()
        public = [site for site in sites if site["type"] == "sample" and not site["is_observed"]]
        # A site in a plate of two may belong to the records: it is looked at, and refused, later.
        apart = [site for site in public if all(frame.size != 2 for frame in site["cond_indep_stack"])]
        return [site["fn"].log_prob(site["value"]) for site in apart]

    jaxpr = jax.make_jaxpr(terms)(_repeat(placeholder, 2)).jaxpr
    tainted = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(atom in tainted for atom in equation.invars if not hasattr(atom, "val")):
            tainted.update(equation.outvars)
    if any(atom in tainted for atom in jaxpr.outvars if not hasattr(atom, "val")):
        raise ValueError(
            "A prior of the model is computed from the records. It would be used outside the wall; take its constants "
            "from the schema or from public knowledge."
        )


def _refuse_mixed_records(model: Model, placeholder: Record, observed: list[str]) -> None:
    """Refuse a model in which one record's term depends on the other records: the wall shows it one at a time."""
    count = 3

    def total(rows: PyTree) -> float:
        trace = _trace(model, rows)
        terms = [trace[name]["fn"].log_prob(trace[name]["value"]) for name in observed]
        return float(sum(jnp.sum(term) for term in terms))

    for spread in (jax.random.normal, jax.random.uniform):  # the second for columns that must be positive

        def made_up(leaf: Array, spread: Any = spread) -> Array:
            shape = (count, *jnp.shape(leaf))
            if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                return jnp.asarray(leaf) + spread(jax.random.key(1), shape)
            return jax.random.bernoulli(jax.random.key(2), shape=shape).astype(jnp.result_type(leaf))

        rows = jax.tree.map(made_up, placeholder)
        # Made-up values outside a distribution's support say nothing, and are nothing to warn of.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                together = total(rows)
                apart = sum(total(jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], rows)) for i in range(count))
            except ValueError:
                continue
        if jnp.isfinite(together) and abs(together - apart) > 1e-3 * (1 + abs(together)):
            raise ValueError(
                "A record's likelihood depends on the other records, for example by a mean over them. A contribution "
                "is made of one record alone, so the model would be another one behind the wall; use public constants."
            )


def _repeat(placeholder: Record, n: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], n, axis=0), placeholder)


def _trace(model: Model, rows: PyTree) -> dict[str, Any]:
    # The key only fills the latents of a trace that is read for its structure.
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    try:
        return numpyro.handlers.trace(seeded).get_trace(*_arguments(rows), **_keywords(rows))
    except Exception as error:
        raise ValueError(
            f"The model does not run on placeholder records: {error}. It must take its records as arguments "
            f"({_signature(rows)}) and must not capture them; a plate's length must come from them, as in x.shape[0]."
        ) from error


def _plates(trace: dict[str, Any]) -> dict[str, int]:
    return {frame.name: frame.size for site in trace.values() for frame in site.get("cond_indep_stack", ())}


def _guide(model: Model, guide: Model | type[AutoGuide] | None, sites: _Sites) -> Model:
    if guide is None:
        guide = AutoNormal
    if isinstance(guide, type) and issubclass(guide, AutoGuide):
        # An AutoGuide evaluates its model at set-up; without the likelihood no placeholder value can disturb it.
        prior = numpyro.handlers.block(model, hide=list(sites.observed))
        return guide(prior, init_loc_fn=init_to_median)  # type: ignore[call-arg]
    return guide


def _parameter_transforms(guide: Model, one: PyTree) -> dict[str, Any]:
    # An AutoGuide keeps what this first call sets up; the key only makes the structure, values come from init.
    seeded = numpyro.handlers.seed(guide, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(*_arguments(one), **_keywords(one))
    return {
        name: biject_to(site["kwargs"].get("constraint", constraints.real))
        for name, site in trace.items()
        if site["type"] == "param"
    }


def _arguments(rows: PyTree) -> tuple[Any, ...]:
    if isinstance(rows, dict):
        return ()
    return tuple(rows) if isinstance(rows, tuple | list) else (rows,)


def _keywords(rows: PyTree) -> dict[str, Any]:
    return rows if isinstance(rows, dict) else {}


def _signature(rows: PyTree) -> str:
    return ", ".join(rows) if isinstance(rows, dict) else f"{len(_arguments(rows))} positional"
