"""Refuse a model whose terms are not split at the plate over records: what is public must not follow the records."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.models.traced import Run, Values, depends, plate_scales, plates_around
from tacit.types import Array, PyTree

if TYPE_CHECKING:
    from tacit.models.guided import GuidedModel


def refuse_what_is_not_split(guided: GuidedModel) -> None:
    """Refuse public terms that follow the rows or the data, and terms of one record that follow others.

    Privacy: public. Traces and made-up records only.
    """
    _refuse_public_terms_of_rows(guided)
    _refuse_data_in_public_terms(guided)
    _refuse_mixed_records(guided)


def _refuse_public_terms_of_rows(guided: GuidedModel) -> None:
    """Refuse what is public but follows the number of rows: the public terms are evaluated on one."""
    for part in (guided._model, guided._guide):
        two = part.structure(guided._repeat(2))
        for name, site in part.structure(guided._repeat(1)).items():
            if site["type"] == "mutable":
                raise ValueError(
                    f"The {part.kind} has the mutable site {name!r}, which would carry values from record to "
                    "record. Use layers without running statistics."
                )
            public = site["type"] == "param" or (site["type"] == "sample" and not plates_around(site, guided.plates))
            if public and jax.tree.map(jnp.shape, site["value"]) != jax.tree.map(jnp.shape, two[name]["value"]):
                raise ValueError(
                    f"The site {name!r} of the {part.kind} is outside the plate over records, but its shape "
                    "follows the number of records: each would have an entry of its own. Use a fixed shape, or "
                    "let the guide compute what a record needs from the record (as a VAE's encoder does)."
                )
    params = _made_up_params(guided)

    @jax.jit
    def terms(rows: PyTree) -> tuple[dict[str, Array], dict[str, Array]]:
        draw = {name: site["value"] for name, site in guided._guide.trace(guided._repeat(1), params).items()}
        values = {**params, **{name: draw[name] for name in guided.latents}}
        model, guide = guided._model.log_probs(rows, values)[0], guided._guide.log_probs(rows, values)[0]
        names = [*guided.latents, *guided._public]
        return {name: model[name] for name in names}, {name: guide[name] for name in guided.latents}

    for one, three in zip(terms(guided._repeat(1)), terms(guided._repeat(3)), strict=True):
        for name in one:
            if jnp.isfinite(one[name]) and abs(one[name] - three[name]) > 1e-4 * (1 + abs(one[name])):
                raise ValueError(
                    f"The term of the site {name!r} outside the plate over records follows the number of rows (a "
                    "shape, or a scale). It is public, and that number is not: use a public figure instead, or put "
                    "the term inside the plate."
                )


def _refuse_data_in_public_terms(guided: GuidedModel) -> None:
    public, params = [*guided.latents, *guided._public], _made_up_params(guided)

    def model_terms(rows: PyTree) -> Any:
        terms, _ = guided._model.log_probs(rows, params)
        return [terms[name] for name in public]

    def guide_terms(rows: PyTree) -> Any:
        trace = guided._guide.trace(rows)
        return [trace[name]["value"] for name in guided.latents]

    rows = guided._repeat(2)
    for name, dependent in zip(public, depends(model_terms, rows), strict=True):
        if dependent and name in guided._public:
            raise ValueError(
                f"The observed site {name!r} is outside the plate over records ({', '.join(sorted(guided.plates))}). "
                "Its gradient could not be bounded record by record; move it inside the plate."
            )
        if dependent:
            raise ValueError(
                f"The prior of the model's latent site {name!r} is computed from the records. It would be used "
                "outside the wall; take its constants from the schema or from public knowledge."
            )
    if any(depends(guide_terms, rows)):
        raise ValueError(
            "The guide draws a latent outside the plate over records from the records. It would do so outside the "
            "wall; let it depend on parameters only."
        )


def _refuse_mixed_records(guided: GuidedModel) -> None:
    """Refuse a model in which one record's term depends on the other records: the wall shows it one at a time."""
    count, params = 3, _made_up_params(guided)

    def total(part: Run, rows: PyTree, fixed: Values) -> Array:
        terms, trace = part.log_probs(rows, {**params, **fixed})
        scale = plate_scales(trace, guided.plates)
        return sum((terms[name] / scale[name] for name in scale), jnp.asarray(0.0))

    def place(site: dict[str, Any], i: int) -> Array:
        frame = next(frame for frame in site["cond_indep_stack"] if frame.name in guided.plates)
        return jnp.take(site["value"], jnp.asarray([i]), axis=frame.dim - site["fn"].event_dim)

    @partial(jax.jit, static_argnums=0)
    def together_and_apart(part: Run, rows: PyTree) -> tuple[Array, Array]:
        trace = part.trace(rows, params)
        shared = {name: trace[name]["value"] for name in guided.latents}
        record_key = [{name: place(trace[name], i) for name in guided.local} for i in range(count)]
        together = total(part, rows, {**shared, **{name: trace[name]["value"] for name in guided.local}})
        each = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], rows) for i in range(count)]
        apart = [total(part, each[i], {**shared, **record_key[i]}) for i in range(count)]
        return together, jnp.sum(jnp.stack(apart))

    def made_up(leaf: Array, spread: Callable[..., Array]) -> Array:
        shape = (count, *jnp.shape(leaf))
        if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return jnp.asarray(leaf) + spread(jax.random.key(1), shape)
        return jax.random.bernoulli(jax.random.key(2), shape=shape).astype(jnp.result_type(leaf))

    for spread in (jax.random.normal, jax.random.uniform):  # the second for columns that must be positive
        rows = jax.tree.map(partial(made_up, spread=spread), guided._placeholder)
        for part in (guided._model, guided._guide) if guided.local else (guided._model,):
            together, apart = map(float, together_and_apart(part, rows))
            # Made-up values outside a distribution's support say nothing.
            if math.isfinite(together) and abs(together - apart) > 1e-3 * (1 + abs(together)):
                raise ValueError(
                    "A record's likelihood depends on the other records, for example by a mean over them. A "
                    "contribution is made of one record alone, so the model would be another one behind the wall; "
                    "use public constants."
                )


def _made_up_params(guided: GuidedModel) -> Values:
    """Return the parameters' start without its zeros, which may hide a term."""
    flat, shaped = ravel_pytree(guided.init(jax.random.key(0)))
    halves = 0.5 * jax.random.rademacher(jax.random.key(0), flat.shape)
    return guided.constrain_params(shaped(jnp.where(flat == 0, halves, flat)))
