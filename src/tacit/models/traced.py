"""The trace of a NumPyro model: which of its sites belong to one record, and what it says of public ones.

    log p(x, z, w) = log p(w) + sum over records of log p(x_i, z_i | w)

w are the latents outside the plate over records, z_i those inside it. The plate is found by tracing the model on
placeholder records of several numbers. What a method adds, a guide, is read in ``tacit.model``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import biject_to
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from tacit.types import Array, Key, Model, PyTree, Record

Function = Callable[..., Any]
"""A NumPyro model or guide."""
Values = dict[str, Any]
"""Site name to value: an array, or for the parameters of a network a pytree."""


class TracedModel:
    """A NumPyro model, split at the plate over records.

    Privacy: public. Traces on placeholder records only.

    Parameters
    ----------
    model
        A NumPyro model with one plate over records.
    placeholder
        A public record of the right shape.

    Attributes
    ----------
    plates
        The names of the plates over records.
    latents
        The latents outside the plate, each with the transform from unconstrained coordinates.
    local
        The names of the latents inside the plate: every record has its own.
    shown
        The columns of a record that are what an observed site shows, untransformed: their paths, with the site's name.
    """

    def __init__(self, model: Function, placeholder: Record) -> None:
        self._placeholder = jax.tree.map(jnp.asarray, placeholder)
        self._model = Run("model", model)
        row = self._repeat(1)
        one = self._model.trace(row)
        two, three = (self._model.structure(self._repeat(n)) for n in (2, 3))
        self.plates = {name for name, n in _plates(two).items() if n == 2 and _plates(three).get(name) == 3}
        if not self.plates:
            raise ValueError(
                "The model has no plate over records: no plate's length follows the model's arguments, so tacit cannot "
                "tell one record's term from another's. Write: with numpyro.plate('records', x.shape[0]): ... around "
                "the observed sites."
            )
        self._scales = plate_scales(one, self.plates)
        _refuse_subsampling(one, self.plates)
        self._sort(one, self.plates)
        self.shown = {
            path: name
            for path, leaf in jax.tree_util.tree_leaves_with_path(row)
            for name in self._observed
            if one[name]["value"] is leaf
        }

    def known(self) -> Model:
        """Return what a method can tell of the model."""
        return Model(
            self.predict,
            None if self.local else self.log_likelihood,
            self.simulate if self.generative else None,
            self.prior,
            source=self._model.function,
        )

    def log_likelihood(self, values: Values, record: Record) -> Array:
        """Return log p(x | w) for one record, at latents and parameters in the model's space; none may be local."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)
        terms, _ = self._model.log_probs(rows, values)
        return sum((terms[name] / self._scales[name] for name in self._observed), jnp.asarray(0.0))

    def predict(self, values: Values, inputs: PyTree, key: Key) -> dict[str, Array]:
        """Run the model on new inputs at given latents and parameters."""
        unobserved = self._model._replace(function=numpyro.handlers.uncondition(self._model.function))
        trace = unobserved.trace(inputs, values, jax.random.split(key)[0])
        wanted = [name for name, site in trace.items() if name in self._observed or site["type"] == "deterministic"]
        return {name: trace[name]["value"] for name in wanted}

    def simulate(self, key: Key, rows: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """Draw the latents from the prior, and from them what the model observes; the other columns stay."""
        unobserved = self._model._replace(function=numpyro.handlers.uncondition(self._model.function))
        trace = unobserved.trace(rows, key=key)
        paths, structure = jax.tree_util.tree_flatten_with_path(rows)
        leaves = [
            jnp.asarray(trace[self.shown[path]]["value"], leaf.dtype).reshape(leaf.shape)
            if path in self.shown
            else leaf
            for path, leaf in paths
        ]
        return jax.tree.unflatten(structure, leaves), {name: trace[name]["value"] for name in self.latents}

    def prior(self, key: Key) -> dict[str, Array]:
        """Draw the latents from the prior."""
        trace = self._model.trace(self._repeat(1), key=key)
        return {name: trace[name]["value"] for name in self.latents}

    @property
    def generative(self) -> bool:
        """Whether all that the model observes are columns as they are, so that it can make up records."""
        return set(self.shown.values()) == set(self._observed)

    def _sort(self, trace: dict[str, Any], plates: set[str]) -> None:
        self.latents: dict[str, Any] = {}
        self.local: list[str] = []
        self._observed: list[str] = []
        self._public: list[str] = []  # observed sites outside the plate: constraints that no record takes part in
        for name, site in trace.items():
            inside = plates_around(site, plates)
            if site["type"] != "sample":
                continue
            if site["is_observed"]:
                (self._observed if inside else self._public).append(name)
                continue
            if site["fn"].support.is_discrete:
                raise ValueError(
                    f"The latent site {name!r} is discrete and has no gradient; sum it out, for example by a mixture "
                    "distribution (numpyro.distributions.MixtureSameFamily)."
                )
            if inside:
                self.local.append(name)
                continue
            self.latents[name] = biject_to(site["fn"].support)
            if any(depends(partial(self._support, name=name), (jax.random.key(0), parameters(trace)))):
                raise ValueError(
                    f"The support of the latent site {name!r} depends on other latents or parameters, so it has no "
                    "fixed unconstrained coordinates. Write it by a transform: draw u from a fixed support, for "
                    f"example Uniform(0, 1), and numpyro.deterministic({name!r}, low + (high - low) * u)."
                )
        if not self._observed:
            raise ValueError(
                "The model observes nothing inside the plate over records: pass the records' columns as obs=... there. "
                "A site outside the plate over records could not be bounded record by record."
            )
        if not self.latents and not self.local and not any(site["type"] == "param" for site in trace.values()):
            raise ValueError("The model has no latent site and no parameter: there is nothing to infer.")

    def _support(self, given: tuple[Key, Values], name: str) -> list[Any]:
        leaves = jax.tree.leaves(self._model.trace(self._repeat(1), given[1], given[0])[name]["fn"].support)
        return [leaf for leaf in leaves if isinstance(leaf, jax.Array)]

    def _repeat(self, n: int) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], n, axis=0), self._placeholder)


class Run(NamedTuple):
    """A model or guide that is called on rows of records, with its subsampling of them undone."""

    kind: str
    function: Function

    def trace(self, rows: PyTree, values: Values | None = None, key: Key | None = None) -> dict[str, Any]:
        """Return the trace of the function on some records, at values of its sites."""
        # Without a key the draws only fill a trace that is read for its structure.
        filled = numpyro.handlers.substitute(self.function, data=values or {})
        seeded = numpyro.handlers.seed(filled, jax.random.key(0) if key is None else key)
        try:
            return numpyro.handlers.trace(every_row(seeded)).get_trace(*_positional(rows), **_named(rows))
        except Exception as error:
            raise ValueError(
                f"The {self.kind} does not run on placeholder records: {error}. It must take its records as arguments "
                f"({_signature(rows)}) and must not capture them; a plate's length must come from them, as in "
                "x.shape[0]."
            ) from error

    def structure(self, rows: PyTree) -> dict[str, Any]:
        """Return a trace whose values are not computed."""
        traces: list[dict[str, Any]] = []
        jax.eval_shape(lambda rows: traces.append(self.trace(rows)), rows)
        return traces[0]

    def log_probs(
        self, rows: PyTree, values: Values, key: Key | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the log densities of the sites, and the trace."""
        seeded = numpyro.handlers.seed(self.function, jax.random.key(0) if key is None else key)
        return compute_log_probs(every_row(seeded, self.kind == "guide"), _positional(rows), _named(rows), values)


class _EveryRow(Messenger):  # type: ignore[misc]
    """Let a plate over records hold every row it is given: subsets are drawn by the wall, not by the model.

    ``keys`` says whether random keys may be asked for; in a model they would be the same in every step.
    """

    def __init__(self, length: int, keys: bool) -> None:
        self.length, self.keys = length, keys
        super().__init__()

    def process_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "prng_key" and not self.keys:
            raise ValueError(
                "The model asks for a random key (numpyro.prng_key, dropout), but a record's term must be a function "
                "of the record and the latents. Write the randomness as a latent, or put it into the guide."
            )
        if message["type"] == "plate" and self.length in message["args"]:
            message["args"] = (message["args"][0], self.length)
            message["value"] = jnp.arange(self.length)


def every_row(function: Function, keys: bool = True) -> Function:
    """Wrap a function so that its plate over records holds every row.

    Privacy: public.
    """

    def call(*rows: Any, **columns: Any) -> Any:
        leaves = jax.tree.leaves((rows, columns))
        with _EveryRow(jnp.shape(leaves[0])[0] if leaves else 0, keys):
            return function(*rows, **columns)

    return call


def plate_scales(trace: dict[str, Any], plates: set[str]) -> dict[str, float]:
    """Return, for each site inside the plate, the factor by which a plate that subsamples scales it.

    Privacy: public.
    """
    factor = {name: trace[name]["args"][0] / len(trace[name]["value"]) for name in plates if name in trace}
    scales = {}
    for name, site in trace.items():
        if site["type"] == "sample" and (inside := plates_around(site, plates)):
            scales[name] = 1.0
            for plate in inside:
                scales[name] *= factor[plate]
    return scales


def _refuse_subsampling(trace: dict[str, Any], plates: set[str]) -> None:
    for name, site in trace.items():
        if site["type"] == "plate" and name not in plates and site["args"][1] not in (None, site["args"][0]):
            raise ValueError(
                f"The plate {name!r} subsamples, but it is not the plate over records. Only records are subsampled, by "
                "the wall; leave its subsample_size out."
            )


def plates_around(site: dict[str, Any], plates: set[str]) -> list[str]:
    """Name the plates over records that a site is in.

    Privacy: public.
    """
    return [frame.name for frame in site.get("cond_indep_stack", ()) if frame.name in plates]


def _plates(trace: dict[str, Any]) -> dict[str, int]:
    return {frame.name: frame.size for site in trace.values() for frame in site.get("cond_indep_stack", ())}


def parameters(trace: dict[str, Any]) -> Values:
    """Return the parameters of a trace.

    Privacy: public.
    """
    return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}


def depends(function: Callable[..., Any], argument: PyTree, **others: PyTree) -> list[bool]:
    """Return which results are computed from the argument; an inner function's results are from all its arguments.

    Privacy: public.
    """
    jaxpr = jax.make_jaxpr(lambda argument, others: function(argument, **others))(argument, others).jaxpr
    tainted = set(jaxpr.invars[: len(jax.tree.leaves(argument))])
    for equation in jaxpr.eqns:
        if any(atom in tainted for atom in equation.invars if not hasattr(atom, "val")):
            tainted.update(equation.outvars)
    return [not hasattr(atom, "val") and atom in tainted for atom in jaxpr.outvars]


def _positional(rows: PyTree) -> tuple[Any, ...]:
    if isinstance(rows, dict):
        return ()
    return tuple(rows) if isinstance(rows, tuple | list) else (rows,)


def _named(rows: PyTree) -> dict[str, Any]:
    return rows if isinstance(rows, dict) else {}


def _signature(rows: PyTree) -> str:
    return ", ".join(rows) if isinstance(rows, dict) else f"{len(_positional(rows))} positional"
