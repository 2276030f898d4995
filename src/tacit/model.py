"""Reading a NumPyro model: which of its terms belong to one record, and which are public.

    log p(x, z, w) - log q(z, w) = log p(w) - log q(w) + sum_i [log p(x_i, z_i | w) - log q(z_i | x_i, w)]

w are the latents outside the plate over records, z_i those inside it. The terms in the sum are private; everything
before it is public and exact. The plate is found by tracing model and guide on placeholder records, and what could
not be split record by record is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to, constraints
from numpyro.infer.autoguide import AutoDAIS, AutoGuide, AutoGuideList, AutoNormal, AutoSemiDAIS
from numpyro.infer.initialization import init_to_median
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from tacit.types import Array, Key, PyTree, Record

Function = Callable[..., Any]
"""A NumPyro model or guide."""
Values = dict[str, Any]
"""Site name to value: an array, or for the parameters of a network a pytree."""


class Reading:
    """A model and its guide, split at the plate over records.

    Privacy: public. Traces on placeholder records only.

    Parameters
    ----------
    model
        A NumPyro model with one plate over records.
    guide
        A guide, an AutoGuide class, or nothing for ``AutoNormal``.
    placeholder
        A public record of the right shape.

    Attributes
    ----------
    latents
        The latents outside the plate, each with the transform from unconstrained coordinates.
    local
        The names of the latents inside the plate: every record has its own.
    direct
        The names of the parameters that a record's term is computed from, other than through the latents: those of a
        network in the model, or of the part of the guide that looks at a record.
    points
        The names of the parameters that are results in themselves: ``direct``, and those of a prior.
    shown
        The columns of a record that are what an observed site shows, untransformed: their paths, with the site's name.
    clip
        A clip for columns and parameters of unit size: a unit for each latent, and for each number in the record where
        there are parameters, twice over.
    """

    def __init__(self, model: Function, guide: Function | type[AutoGuide] | None, placeholder: Record) -> None:
        self._placeholder = jax.tree.map(jnp.asarray, placeholder)
        self._model = _Run("model", model)
        row = self._repeat(1)
        one = self._model.trace(row)
        two, three = (self._model.structure(self._repeat(n)) for n in (2, 3))
        plates = {name for name, n in _plates(two).items() if n == 2 and _plates(three).get(name) == 3}
        if not plates:
            raise ValueError(
                "The model has no plate over records: no plate's length follows the model's arguments, so tacit cannot "
                "tell one record's term from another's. Write: with numpyro.plate('records', x.shape[0]): ... around "
                "the observed sites."
            )
        self._scales = _scales(one, plates)
        _refuse_subsampling(one, plates)
        self._sort(one, plates)
        self.shown = {
            path: name
            for path, leaf in jax.tree_util.tree_leaves_with_path(row)
            for name in self._observed
            if one[name]["value"] is leaf
        }
        self._guide = _Run("guide", self._set_up(model, guide))
        around = self._guide.trace(self._repeat(1))  # an AutoGuide keeps what this first call sets up
        self._read_guide(around, plates)
        self._transforms = {**_parameter_transforms(one), **_parameter_transforms(around)}
        self._refuse_public_terms_of_rows(plates, two, self._guide.structure(self._repeat(2)))
        self._refuse_data_in_public_terms(plates)
        self._refuse_mixed_records(plates)
        self.direct = self._parameters_of(
            lambda params, draw: self.record_term(params, draw, self._placeholder, jax.random.key(0))
        )
        self.points = sorted({*self.direct, *self._parameters_of(self.log_prior)})
        self.clip = self._suit_clip()

    # Public terms.

    def init(self, key: Key) -> Values:
        """Start the parameters of model and guide, in unconstrained coordinates."""
        found: Values = {}
        for part in (self._model, self._guide):
            trace = part.trace(self._repeat(1), key=key)
            found |= _parameters(trace)
        return {name: self._transforms[name].inv(value) for name, value in found.items()}

    def sample_guide(self, params: Values, key: Key) -> tuple[dict[str, Array], Array]:
        """Draw the latents outside the plate, constrained, and give the guide's log density there."""
        terms, trace = self._guide.log_probs(self._repeat(1), self.constrain_params(params), key)
        log_density = sum((term for name, term in terms.items() if name not in self.local), jnp.asarray(0.0))
        return {name: trace[name]["value"] for name in self.latents}, log_density

    def log_prior(self, params: Values, draw: dict[str, Array]) -> Array:
        """Give the log density of the model's public terms."""
        terms, _ = self._model.log_probs(self._repeat(1), {**self.constrain_params(params), **draw})
        return sum((terms[name] for name in (*self.latents, *self._public)), jnp.asarray(0.0))

    # A record's term.

    def record_term(self, params: Values, draw: dict[str, Array], record: Record, own: Key | None) -> Array:
        """Give log p(x, z | w) - log q(z | x, w) for one record; z is drawn from the guide by the record's own key."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)
        values = {**self.constrain_params(params), **draw}
        log_guide = jnp.asarray(0.0)
        if self.local:
            terms, trace = self._guide.log_probs(rows, values, own)
            log_guide = sum((terms[name] / self._guide_scales[name] for name in self.local), log_guide)
            values |= {name: trace[name]["value"] for name in self.local}
        terms, _ = self._model.log_probs(rows, values)
        private = (*self._observed, *self.local)
        return sum((terms[name] / self._scales[name] for name in private), jnp.asarray(0.0)) - log_guide

    def log_likelihood(self, values: Values, record: Record) -> Array:
        """Give log p(x | w) for one record, at latents and parameters in the model's coordinates; none may be local."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)
        terms, _ = self._model.log_probs(rows, values)
        return sum((terms[name] / self._scales[name] for name in self._observed), jnp.asarray(0.0))

    # Coordinates.

    def constrain(self, w: dict[str, Array]) -> dict[str, Array]:
        """Take latents from unconstrained coordinates to the model's."""
        return {name: self.latents[name](value) for name, value in w.items()}

    def unconstrain(self, draw: dict[str, Array]) -> dict[str, Array]:
        """Take latents from the model's coordinates to unconstrained ones."""
        return {name: self.latents[name].inv(value) for name, value in draw.items()}

    def constrain_params(self, params: Values) -> Values:
        """Take parameters from unconstrained coordinates to those of model and guide."""
        return {name: self._transforms[name](value) for name, value in params.items()}

    def predict(self, values: Values, inputs: PyTree, key: Key) -> dict[str, Array]:
        """Run the model on new inputs at given latents and parameters; latents of a record come from the guide."""
        model_key, guide_key = jax.random.split(key)
        if self.local:
            trace = self._guide.trace(inputs, values, guide_key)
            values = {**values, **{name: trace[name]["value"] for name in self.local}}
        unobserved = self._model._replace(function=numpyro.handlers.uncondition(self._model.function))
        trace = unobserved.trace(inputs, values, model_key)
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

    # Reading and refusing.

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
            inside = _inside(site, plates)
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
            if any(_depends(partial(self._support, name=name), (jax.random.key(0), _parameters(trace)))):
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

    def _set_up(self, model: Function, guide: Function | type[AutoGuide] | None) -> Function:
        automatic = guide is None or isinstance(guide, AutoGuide) or is_class(guide)
        if automatic and self.local:
            raise ValueError(
                f"The latent site {self.local[0]!r} is inside the plate over records: every record has a latent "
                "variable of its own, and an AutoGuide would share one distribution among all of them. Write a guide "
                "that computes its distribution from the record (as a VAE's encoder does), or sum it out of the "
                "likelihood."
            )
        if guide is None and not self.latents:
            return lambda *_, **__: None
        kind = AutoNormal if guide is None else guide
        parts = [kind, *getattr(kind, "_guides", ())]  # of an AutoGuideList
        if any(isinstance(part, AutoDAIS | AutoSemiDAIS) or is_class(part, (AutoDAIS, AutoSemiDAIS)) for part in parts):
            raise ValueError(
                "A DAIS guide evaluates the likelihood of all records in every draw, outside the wall. "
                "Use AutoMultivariateNormal, AutoLowRankMultivariateNormal or a flow (AutoIAFNormal)."
            )
        # An AutoGuide evaluates its model at set-up; without the likelihood no placeholder value can disturb it.
        prior = _every_row(numpyro.handlers.block(model, hide=self._observed))
        if is_class(kind):
            return kind(prior, init_loc_fn=init_to_median)  # type: ignore[no-any-return, call-arg, operator]
        if isinstance(kind, AutoGuide) and not isinstance(kind, AutoGuideList):
            fresh = copy.copy(kind)
            fresh.model, fresh.prototype_trace = prior, None
            return fresh  # type: ignore[no-any-return]
        return kind

    def _read_guide(self, trace: dict[str, Any], plates: set[str]) -> None:
        found = {name: site for name, site in trace.items() if site["type"] == "sample"}
        missing = [name for name in (*self.latents, *self.local) if name not in found]
        if missing:
            raise ValueError(
                f"The guide does not draw the latent site {missing[0]!r} of the model. Add "
                f"numpyro.sample({missing[0]!r}, ...) to it."
            )
        inside = {name for name, site in found.items() if _inside(site, plates)}
        if inside != set(self.local):
            name = sorted(inside ^ set(self.local))[0]
            raise ValueError(
                f"The site {name!r} is inside the plate over records in the {'guide' if name in inside else 'model'} "
                f"only. Put it inside a plate with the same name ({', '.join(sorted(plates))}) in both."
            )
        for name, site in found.items():
            if not site["fn"].has_rsample:
                raise ValueError(
                    f"The guide draws {name!r} from {type(site['fn']).__name__}, through which no gradient flows. "
                    "Use a distribution that can be reparameterised, such as Normal or a transform of it."
                )
        self._guide_scales = _scales(trace, plates)

    def _parameters_of(self, term: Callable[[Values, dict[str, Array]], Array]) -> list[str]:
        """Name the parameters that a term is computed from, other than through the latents."""
        key = jax.random.key(0)
        params = jax.eval_shape(self.init, key)
        draw = jax.eval_shape(lambda params: self.sample_guide(params, key)[0], params)

        def with_one(value: Any, name: str, params: Values, draw: dict[str, Array]) -> Array:
            return term({**params, name: value}, draw)

        others = {"params": params, "draw": draw}
        return [name for name in params if any(_depends(partial(with_one, name=name), params[name], **others))]

    def _suit_clip(self) -> float:
        params = jax.eval_shape(self.init, jax.random.key(0))
        draw = jax.eval_shape(lambda params: self.unconstrain(self.sample_guide(params, jax.random.key(0))[0]), params)
        units = sum(leaf.size for leaf in jax.tree.leaves(draw))
        if self.direct:
            units += sum(jnp.size(leaf) for leaf in jax.tree.leaves(self._placeholder))
        return 2 * math.sqrt(units)

    def _made_up_params(self) -> Values:
        """Give the parameters' start without its zeros, which may hide a term."""
        flat, shaped = ravel_pytree(self.init(jax.random.key(0)))
        halves = 0.5 * jax.random.rademacher(jax.random.key(0), flat.shape)
        return self.constrain_params(shaped(jnp.where(flat == 0, halves, flat)))

    def _refuse_public_terms_of_rows(self, plates: set[str], model: dict[str, Any], guide: dict[str, Any]) -> None:
        """Refuse what is public but follows the number of rows: the public terms are evaluated on one."""
        for part, two in ((self._model, model), (self._guide, guide)):
            for name, site in part.structure(self._repeat(1)).items():
                if site["type"] == "mutable":
                    raise ValueError(
                        f"The {part.kind} has the mutable site {name!r}, which would carry values from record to "
                        "record. Use layers without running statistics."
                    )
                public = site["type"] == "param" or (site["type"] == "sample" and not _inside(site, plates))
                if public and jax.tree.map(jnp.shape, site["value"]) != jax.tree.map(jnp.shape, two[name]["value"]):
                    raise ValueError(
                        f"The site {name!r} of the {part.kind} is outside the plate over records, but its shape "
                        "follows the number of records: each would have an entry of its own. Give it a fixed shape, or "
                        "let the guide compute what a record needs from the record (as a VAE's encoder does)."
                    )
        params = self._made_up_params()

        @jax.jit
        def terms(rows: PyTree) -> tuple[dict[str, Array], dict[str, Array]]:
            draw = {name: site["value"] for name, site in self._guide.trace(self._repeat(1), params).items()}
            values = {**params, **{name: draw[name] for name in self.latents}}
            model, guide = self._model.log_probs(rows, values)[0], self._guide.log_probs(rows, values)[0]
            names = [*self.latents, *self._public]
            return {name: model[name] for name in names}, {name: guide[name] for name in self.latents}

        for one, three in zip(terms(self._repeat(1)), terms(self._repeat(3)), strict=True):
            for name in one:
                if jnp.isfinite(one[name]) and abs(one[name] - three[name]) > 1e-4 * (1 + abs(one[name])):
                    raise ValueError(
                        f"The term of the site {name!r} outside the plate over records follows the number of rows (a "
                        "shape, or a scale). It is public, and that number is not: use a public figure instead, or put "
                        "the term inside the plate."
                    )

    def _refuse_data_in_public_terms(self, plates: set[str]) -> None:
        public, params = [*self.latents, *self._public], self._made_up_params()

        def model_terms(rows: PyTree) -> Any:
            terms, _ = self._model.log_probs(rows, params)
            return [terms[name] for name in public]

        def guide_terms(rows: PyTree) -> Any:
            trace = self._guide.trace(rows)
            return [trace[name]["value"] for name in self.latents]

        rows = self._repeat(2)
        for name, depends in zip(public, _depends(model_terms, rows), strict=True):
            if depends and name in self._public:
                raise ValueError(
                    f"The observed site {name!r} is outside the plate over records ({', '.join(sorted(plates))}). Its "
                    "gradient could not be bounded record by record; move it inside the plate."
                )
            if depends:
                raise ValueError(
                    f"The prior of the model's latent site {name!r} is computed from the records. It would be used "
                    "outside the wall; take its constants from the schema or from public knowledge."
                )
        if any(_depends(guide_terms, rows)):
            raise ValueError(
                "The guide draws a latent outside the plate over records from the records. It would do so outside the "
                "wall; let it depend on parameters only."
            )

    def _refuse_mixed_records(self, plates: set[str]) -> None:
        """Refuse a model in which one record's term depends on the other records: the wall shows it one at a time."""
        count, params = 3, self._made_up_params()

        def total(part: _Run, rows: PyTree, fixed: Values) -> Array:
            terms, trace = part.log_probs(rows, {**params, **fixed})
            scale = _scales(trace, plates)
            return sum((terms[name] / scale[name] for name in scale), jnp.asarray(0.0))

        def place(site: dict[str, Any], i: int) -> Array:
            frame = next(frame for frame in site["cond_indep_stack"] if frame.name in plates)
            return jnp.take(site["value"], jnp.asarray([i]), axis=frame.dim - site["fn"].event_dim)

        @partial(jax.jit, static_argnums=0)
        def together_and_apart(part: _Run, rows: PyTree) -> tuple[Array, Array]:
            trace = part.trace(rows, params)
            shared = {name: trace[name]["value"] for name in self.latents}
            own = [{name: place(trace[name], i) for name in self.local} for i in range(count)]
            together = total(part, rows, {**shared, **{name: trace[name]["value"] for name in self.local}})
            each = [jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], rows) for i in range(count)]
            apart = [total(part, each[i], {**shared, **own[i]}) for i in range(count)]
            return together, jnp.sum(jnp.stack(apart))

        def made_up(leaf: Array, spread: Callable[..., Array]) -> Array:
            shape = (count, *jnp.shape(leaf))
            if jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                return jnp.asarray(leaf) + spread(jax.random.key(1), shape)
            return jax.random.bernoulli(jax.random.key(2), shape=shape).astype(jnp.result_type(leaf))

        for spread in (jax.random.normal, jax.random.uniform):  # the second for columns that must be positive
            rows = jax.tree.map(partial(made_up, spread=spread), self._placeholder)
            for part in (self._model, self._guide) if self.local else (self._model,):
                together, apart = map(float, together_and_apart(part, rows))
                # Made-up values outside a distribution's support say nothing.
                if math.isfinite(together) and abs(together - apart) > 1e-3 * (1 + abs(together)):
                    raise ValueError(
                        "A record's likelihood depends on the other records, for example by a mean over them. A "
                        "contribution is made of one record alone, so the model would be another one behind the wall; "
                        "use public constants."
                    )

    def _repeat(self, n: int) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.repeat(leaf[None], n, axis=0), self._placeholder)


class _Run(NamedTuple):
    """A model or guide that is called on rows of records, with its subsampling of them undone."""

    kind: str
    function: Function

    def trace(self, rows: PyTree, values: Values | None = None, key: Key | None = None) -> dict[str, Any]:
        # Without a key the draws only fill a trace that is read for its structure.
        filled = numpyro.handlers.substitute(self.function, data=values or {})
        seeded = numpyro.handlers.seed(filled, jax.random.key(0) if key is None else key)
        try:
            return numpyro.handlers.trace(_every_row(seeded)).get_trace(*_positional(rows), **_named(rows))
        except Exception as error:
            raise ValueError(
                f"The {self.kind} does not run on placeholder records: {error}. It must take its records as arguments "
                f"({_signature(rows)}) and must not capture them; a plate's length must come from them, as in "
                "x.shape[0]."
            ) from error

    def structure(self, rows: PyTree) -> dict[str, Any]:
        """Give a trace whose values are not computed."""
        traces: list[dict[str, Any]] = []
        jax.eval_shape(lambda rows: traces.append(self.trace(rows)), rows)
        return traces[0]

    def log_probs(
        self, rows: PyTree, values: Values, key: Key | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        seeded = numpyro.handlers.seed(self.function, jax.random.key(0) if key is None else key)
        return compute_log_probs(_every_row(seeded, self.kind == "guide"), _positional(rows), _named(rows), values)


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


def _every_row(function: Function, keys: bool = True) -> Function:
    def call(*rows: Any, **columns: Any) -> Any:
        leaves = jax.tree.leaves((rows, columns))
        with _EveryRow(jnp.shape(leaves[0])[0] if leaves else 0, keys):
            return function(*rows, **columns)

    return call


def _scales(trace: dict[str, Any], plates: set[str]) -> dict[str, float]:
    """Give, for each site inside the plate, the factor by which a plate that subsamples scales it."""
    factor = {name: trace[name]["args"][0] / len(trace[name]["value"]) for name in plates if name in trace}
    scales = {}
    for name, site in trace.items():
        if site["type"] == "sample" and (inside := _inside(site, plates)):
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


def _inside(site: dict[str, Any], plates: set[str]) -> list[str]:
    return [frame.name for frame in site.get("cond_indep_stack", ()) if frame.name in plates]


def _plates(trace: dict[str, Any]) -> dict[str, int]:
    return {frame.name: frame.size for site in trace.values() for frame in site.get("cond_indep_stack", ())}


def _parameters(trace: dict[str, Any]) -> Values:
    return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}


def _parameter_transforms(trace: dict[str, Any]) -> dict[str, Any]:
    return {
        name: biject_to(site["kwargs"].get("constraint", constraints.real))
        for name, site in trace.items()
        if site["type"] == "param"
    }


def _depends(function: Callable[..., Any], argument: PyTree, **others: PyTree) -> list[bool]:
    """Tell which results are computed from the argument; an inner function's results are from all its arguments."""
    jaxpr = jax.make_jaxpr(lambda argument, others: function(argument, **others))(argument, others).jaxpr
    tainted = set(jaxpr.invars[: len(jax.tree.leaves(argument))])
    for equation in jaxpr.eqns:
        if any(atom in tainted for atom in equation.invars if not hasattr(atom, "val")):
            tainted.update(equation.outvars)
    return [not hasattr(atom, "val") and atom in tainted for atom in jaxpr.outvars]


def is_class(guide: Any, kinds: type | tuple[type, ...] = AutoGuide) -> bool:
    """Tell whether a guide is given as a class, to be made into one.

    Privacy: public.
    """
    return isinstance(guide, type) and issubclass(guide, kinds)


def _positional(rows: PyTree) -> tuple[Any, ...]:
    if isinstance(rows, dict):
        return ()
    return tuple(rows) if isinstance(rows, tuple | list) else (rows,)


def _named(rows: PyTree) -> dict[str, Any]:
    return rows if isinstance(rows, dict) else {}


def _signature(rows: PyTree) -> str:
    return ", ".join(rows) if isinstance(rows, dict) else f"{len(_positional(rows))} positional"
