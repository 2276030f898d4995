"""A NumPyro model that can make up a record's outcomes from its other columns, and judge them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints

from tacit.models.guided import GuidedModel
from tacit.models.traced import Function, Run, Values, depends
from tacit.types import Array, Key, Record


class SimulatedModel(GuidedModel):
    """A model split at the plate over records, whose observed sites are drawn and judged one record at a time.

    Latents are one vector of unconstrained coordinates.

    Privacy: public. Traces on placeholder records only.

    Parameters
    ----------
    model
        A NumPyro model with one plate over records, without parameters and without latents inside the plate.
    placeholder
        A public record of the right shape, a dictionary.

    Attributes
    ----------
    size
        The number of coordinates.
    covariates
        The columns of a record that its outcomes are drawn from.
    count_of_numbers
        How many outcomes of a record are numbers or counts.
    """

    def __init__(self, model: Function, placeholder: Record) -> None:
        if not isinstance(placeholder, dict):
            raise TypeError(
                "Pair scores make records up, so they need the names of the columns. Pass PrivateData a dictionary or "
                "a table, and a schema."
            )
        super().__init__(model, None, placeholder)
        if self.point_estimates:
            raise ValueError(
                f"The model has the parameters {self.point_estimates} without a prior. Pair scores are for latents: "
                "write numpyro.sample with a prior, or use tacit.vi."
            )
        self._free = Run("model", numpyro.handlers.uncondition(self._model.function))
        one = self._free.trace(self._repeat(1))
        drawn = [name for name in self._observed if type(one[name]["fn"]).__name__ == "Unit"]
        if drawn:
            raise ValueError(
                f"The site {drawn[0]!r} is a numpyro.factor, from which no outcome can be drawn. Write the likelihood "
                "as a distribution, or use tacit.vi."
            )
        self._numeric = [name for name in self._observed if not _of_levels(one[name]["fn"])]
        self.count_of_numbers = sum(jnp.size(one[name]["value"]) for name in self._numeric)
        self.covariates = self._read_covariates()
        draws = jax.jit(jax.vmap(self._prior_draw))(jax.random.split(jax.random.key(0), 500))
        middle = jax.tree.map(lambda leaf: jnp.median(leaf, 0), draws)
        self.start, self._shaped = ravel_pytree(middle)
        self.size = len(self.start)

    def latents_of(self, w: Array) -> dict[str, Array]:
        """Return the latents in the model's own coordinates."""
        return self.constrain(self._shaped(w))

    def outcomes(self, record: Record) -> Values:
        """Return what the observed sites show of one record."""
        trace = self._model.trace(_row(record))
        return {name: trace[name]["value"] for name in self._observed}

    def simulated(self, w: Array, record: Record, key: Key) -> Values:
        """Draw outcomes of one record from its other columns."""
        trace = self._free.trace(_row(record), self.latents_of(w), key)
        return {name: trace[name]["value"] for name in self._observed}

    def numbers(self, outcomes: Values) -> Array:
        """Return those outcomes whose shape a model can have wrong: numbers and counts, not levels; records first."""
        found = [outcomes[name] for name in self._numeric]
        return jnp.concatenate([one.reshape(*one.shape[:2], -1) for one in found], -1).astype(jnp.float32)

    def log_density(self, w: Array, record: Record, outcomes: Values) -> Array:
        """Return the log density of outcomes of one record."""
        terms, _ = self._model.log_probs(_row(record), {**self.latents_of(w), **outcomes})
        return sum((terms[name] / self._scales[name] for name in self._observed), jnp.asarray(0.0))

    def log_prior_at(self, w: Array) -> Array:
        """Return the prior's log density, in unconstrained coordinates."""
        values, draw = self._shaped(w), self.latents_of(w)
        volume = [jnp.sum(self.latents[name].log_abs_det_jacobian(values[name], draw[name])) for name in draw]
        return self.log_prior({}, draw) + sum(volume, jnp.asarray(0.0))

    def _set_up(self, model: Function, guide: Any) -> Function:
        """Return a guide of one point: the checks of a model ask for one, and an AutoGuide takes seconds."""
        if self.local:
            raise ValueError(
                f"The latent site {self.local[0]!r} is inside the plate over records: every record has a latent "
                "variable of its own. Pair scores are for latents outside it; sum it out of the likelihood, or use "
                "tacit.vi with a guide that computes its distribution from the record."
            )
        one = self._model.structure(self._repeat(1))
        shapes = {name: jnp.shape(one[name]["value"]) for name in self.latents}

        def point(*_: Any, **__: Any) -> None:
            for name, shape in shapes.items():
                zeros = jnp.zeros(self.latents[name].inverse_shape(shape))
                numpyro.sample(name, dist.Delta(self.latents[name](zeros), event_dim=len(shape)))

        return point

    def _prior_draw(self, key: Key) -> dict[str, Array]:
        trace = self._free.trace(self._repeat(1), key=key)
        return self.unconstrain({name: trace[name]["value"] for name in self.latents})

    def _read_covariates(self) -> list[str]:
        rows = self._repeat(2)

        def with_one(column: Array, name: str, others: Values) -> list[Array]:
            trace = self._free.trace({**others, name: column})
            return [trace[site]["value"] for site in self._observed]

        used = []
        for name in rows:
            others = {other: column for other, column in rows.items() if other != name}
            if any(
                depends(lambda column, others, name=name: with_one(column, name, others), rows[name], others=others)
            ):
                used.append(name)
        both = [name for name in used if self._shows(name)]
        if both:
            raise ValueError(
                f"The column {both[0]!r} is observed, and another outcome is drawn from it. Pair scores draw all "
                "outcomes of a record together; condition on the column only, or use tacit.vi."
            )
        return used

    def _shows(self, name: str) -> bool:
        """Say whether an observed site shows a column."""
        rows = self._repeat(2)
        others = {other: column for other, column in rows.items() if other != name}

        def shown(column: Array, others: Values) -> list[Array]:
            trace = self._model.trace({**others, name: column})
            return [trace[site]["value"] for site in self._observed]

        return any(depends(shown, rows[name], others=others))


def _row(record: Record) -> Record:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], record)


def _of_levels(distribution: Any) -> bool:
    """Say whether a distribution is of yes and no, or of levels: given its mean, it has no other shape."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution.support is constraints.boolean or "Categorical" in type(distribution).__name__
