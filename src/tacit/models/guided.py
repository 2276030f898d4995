"""Read a NumPyro model with its guide: which of their terms belong to one record, and which are public.

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
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import biject_to, constraints
from numpyro.infer.autoguide import AutoDAIS, AutoGuide, AutoGuideList, AutoNormal, AutoSemiDAIS
from numpyro.infer.initialization import init_to_median

from tacit.models.refusals import refuse_what_is_not_split
from tacit.models.traced import (
    Function,
    Run,
    TracedModel,
    Values,
    depends,
    every_row,
    parameters,
    plate_scales,
    plates_around,
)
from tacit.types import Array, Key, PyTree, Record


class GuidedModel(TracedModel):
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
    plates, latents, local, shown
        As of the `TracedModel`.
    direct
        The names of the parameters that a record's term is computed from, other than through the latents: those of a
        network in the model, or of the part of the guide that looks at a record.
    points
        The names of the parameters that are results in themselves: ``direct``, and those of a prior.
    clip
        A clip for columns and parameters of unit size: a unit for each latent, and for each number in the record where
        there are parameters, twice over.
    """

    def __init__(self, model: Function, guide: Function | type[AutoGuide] | None, placeholder: Record) -> None:
        super().__init__(model, placeholder)
        one = self._model.trace(self._repeat(1))
        self._guide = Run("guide", self._set_up(model, guide))
        around = self._guide.trace(self._repeat(1))  # an AutoGuide keeps what this first call sets up
        self._read_guide(around, self.plates)
        self._transforms = {**_parameter_transforms(one), **_parameter_transforms(around)}
        refuse_what_is_not_split(self)
        self.direct = self._parameters_of(
            lambda params, draw: self.record_term(params, draw, self._placeholder, jax.random.key(0))
        )
        self.point_estimates = sorted({*self.direct, *self._parameters_of(self.log_prior)})
        self.clip = self._suit_clip()

    # Public terms.

    def init(self, key: Key) -> Values:
        """Start the parameters of model and guide, in unconstrained coordinates."""
        found: Values = {}
        for part in (self._model, self._guide):
            trace = part.trace(self._repeat(1), key=key)
            found |= parameters(trace)
        return {name: self._transforms[name].inv(value) for name, value in found.items()}

    def sample_guide(self, params: Values, key: Key) -> tuple[dict[str, Array], Array]:
        """Draw the latents outside the plate, constrained, and return the guide's log density there."""
        terms, trace = self._guide.log_probs(self._repeat(1), self.constrain_params(params), key)
        log_density = sum((term for name, term in terms.items() if name not in self.local), jnp.asarray(0.0))
        return {name: trace[name]["value"] for name in self.latents}, log_density

    def log_prior(self, params: Values, draw: dict[str, Array]) -> Array:
        """Return the log density of the model's public terms."""
        terms, _ = self._model.log_probs(self._repeat(1), {**self.constrain_params(params), **draw})
        return sum((terms[name] for name in (*self.latents, *self._public)), jnp.asarray(0.0))

    # A record's term.

    def record_term(self, params: Values, draw: dict[str, Array], record: Record, record_key: Key | None) -> Array:
        """Return log p(x, z | w) - log q(z | x, w) for one record; z is drawn from the guide by the record's key."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)
        values = {**self.constrain_params(params), **draw}
        log_guide = jnp.asarray(0.0)
        if self.local:
            terms, trace = self._guide.log_probs(rows, values, record_key)
            log_guide = sum((terms[name] / self._guide_scales[name] for name in self.local), log_guide)
            values |= {name: trace[name]["value"] for name in self.local}
        terms, _ = self._model.log_probs(rows, values)
        private = (*self._observed, *self.local)
        return sum((terms[name] / self._scales[name] for name in private), jnp.asarray(0.0)) - log_guide

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
        if self.local:
            trace = self._guide.trace(inputs, values, jax.random.split(key)[1])
            values = {**values, **{name: trace[name]["value"] for name in self.local}}
        return super().predict(values, inputs, key)

    # Reading the guide.

    def _set_up(self, model: Function, guide: Function | type[AutoGuide] | None) -> Function:
        automatic = guide is None or is_kind(guide, AutoGuide)
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
        if any(is_kind(part, (AutoDAIS, AutoSemiDAIS)) for part in parts):
            raise ValueError(
                "A DAIS guide evaluates the likelihood of all records in every draw, outside the wall. "
                "Use AutoMultivariateNormal, AutoLowRankMultivariateNormal or a flow (AutoIAFNormal)."
            )
        # An AutoGuide evaluates its model at set-up; without the likelihood no placeholder value can disturb it.
        prior = every_row(numpyro.handlers.block(model, hide=self._observed))
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
        inside = {name for name, site in found.items() if plates_around(site, plates)}
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
        self._guide_scales = plate_scales(trace, plates)

    def _parameters_of(self, term: Callable[[Values, dict[str, Array]], Array]) -> list[str]:
        """Name the parameters that a term is computed from, other than through the latents."""
        key = jax.random.key(0)
        params = jax.eval_shape(self.init, key)
        draw = jax.eval_shape(lambda params: self.sample_guide(params, key)[0], params)

        def with_one(value: Any, name: str, params: Values, draw: dict[str, Array]) -> Array:
            return term({**params, name: value}, draw)

        others = {"params": params, "draw": draw}
        return [name for name in params if any(depends(partial(with_one, name=name), params[name], **others))]

    def _suit_clip(self) -> float:
        params = jax.eval_shape(self.init, jax.random.key(0))
        draw = jax.eval_shape(lambda params: self.unconstrain(self.sample_guide(params, jax.random.key(0))[0]), params)
        units = sum(leaf.size for leaf in jax.tree.leaves(draw))
        if self.direct:
            units += sum(jnp.size(leaf) for leaf in jax.tree.leaves(self._placeholder))
        return 2 * math.sqrt(units)


def _parameter_transforms(trace: dict[str, Any]) -> dict[str, Any]:
    return {
        name: biject_to(site["kwargs"].get("constraint", constraints.real))
        for name, site in trace.items()
        if site["type"] == "param"
    }


def is_class(guide: Any, kinds: type | tuple[type, ...] = AutoGuide) -> bool:
    """Return whether a guide is given as a class, to be made into one.

    Privacy: public.
    """
    return isinstance(guide, type) and issubclass(guide, kinds)


def is_kind(guide: Any, kinds: type | tuple[type, ...]) -> bool:
    """Return whether a guide is of one of these kinds, or such a class.

    Privacy: public.
    """
    return isinstance(guide, kinds) or is_class(guide, kinds)
