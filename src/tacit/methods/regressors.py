"""What a regression's predictor is made of: columns, features made from them, and the effects of groups.

Effects of groups (of clinics, of years) are weights of J - 1 columns that sum to zero over the J levels, beside the
intercept: with J columns the design would be singular. What the intercept found is shared out between it and the
effects' mean by the prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.types import Array, Key, PyTree, Record, Requirement

GRID, SWEEPS = 40, 4
"""Places on the grid of a group's standard deviation; rounds through the groups, if there are several."""

Stds = dict[str, Array]
"""The groups' standard deviations."""


class Regressors:
    """The columns of a regression for one kind of record, and the prior of their weights.

    Privacy: public.
    """

    def __init__(
        self,
        placeholder: Any,
        groups: Mapping[str, int],
        features: Callable[[Array], Array] | None,
        prior_std: Any,
        group_std: float,
    ) -> None:
        self.groups, self.features, self.group_std = dict(groups), features, group_std
        self.rank = np.ndim(placeholder["x"]) if isinstance(placeholder, dict) and "x" in placeholder else 0
        if features is not None and self.rank:
            placeholder = {**placeholder, "x": np.zeros(jax.eval_shape(self.columns, placeholder["x"]).shape)}
        self.single = _columns(placeholder, groups)
        starts = np.cumsum([self.single, *(levels - 1 for levels in groups.values())])
        self.count, self.usual_norm = int(starts[-1]), math.sqrt(self.single + len(groups))
        self.places = dict(zip(groups, starts, strict=False))
        self.contrasts = {name: jnp.asarray(_contrasts(levels)) for name, levels in groups.items()}
        self.prior_variances = _prior_variances(prior_std, self.single)
        self.widest = max(float(np.max(prior_std)), group_std)
        self.middling = {name: jnp.float32(group_std) for name in groups}

    def columns(self, x: Any) -> Array:
        """Return the columns of a record, or of several.

        Privacy: post-processing.
        """
        x = jnp.asarray(x).astype(jnp.float32)
        if self.features is None:
            return x
        if x.ndim > self.rank:
            return jax.vmap(self.columns)(x)
        return jnp.append(1.0, self.features(x)).astype(jnp.float32)

    def design(self, record: Record) -> Array:
        """Return a record's line of the design: its columns, and the contrasts of its groups' levels.

        Privacy: of the record.
        """
        codes = (self.contrasts[name][record[name].astype(jnp.int32)] for name in self.groups)
        return jnp.concatenate([self.columns(record["x"]), *codes])

    def predictor(self, draw: dict[str, Array], inputs: PyTree) -> Array:
        """Return the linear predictor of a draw.

        Privacy: post-processing.
        """
        effects = (draw[name][jnp.asarray(inputs[name]).astype(jnp.int32)] for name in self.groups)
        return sum(effects, self.columns(inputs["x"]) @ draw["w"] + offset(inputs))

    def variances(self, stds: Stds) -> Array:
        """Return the prior's variances of the columns' weights; the intercept has the means of the groups' too.

        Privacy: public.
        """
        levels_of, first = self.groups.items(), self.prior_variances
        means = sum((jnp.square(stds[name]) / levels for name, levels in levels_of), first[0])
        effects = [jnp.full(levels - 1, jnp.square(stds[name])) for name, levels in levels_of]
        return jnp.concatenate([jnp.asarray(first).at[0].set(means), *effects])

    def shared(self, weights: Array, stds: Stds, key: Key) -> dict[str, Array]:
        """Split what the intercept found out between it and the means of the groups' effects, as the prior does.

        Privacy: post-processing.
        """
        groups, single = self.groups, self.single
        variances = {name: jnp.square(std) / groups[name] for name, std in stds.items()}
        of_all = self.variances(stds)[0]
        prior_stds = jnp.sqrt(jnp.stack([self.prior_variances[0], *variances.values()]))
        means = prior_stds * jax.random.normal(key, prior_stds.shape)
        means = means + jnp.square(prior_stds) / of_all * (weights[0] - jnp.sum(means))
        found = {"w": weights[:single] if not groups else weights[:single].at[0].set(means[0])}
        for number, (name, levels) in enumerate(groups.items()):
            along = weights[self.places[name] : self.places[name] + levels - 1]
            found |= {name: self.contrasts[name] @ along + means[1 + number], f"{name}_std": stds[name]}
        return found

    def draw_stds(self, evidence: Callable[[Stds], Array], key: Key) -> Stds:
        """Draw the groups' standard deviations, one after another, on a grid of their logarithms.

        Privacy: post-processing.
        """
        stds, scale = self.middling, self.group_std
        apart = math.log(200) / (GRID - 1)
        grid = 4 * scale * jnp.exp(-apart * jnp.arange(GRID))
        prior = jnp.log(grid) - jnp.square(grid / scale) / 2

        def one_round(stds: Stds, key: Key) -> tuple[Stds, None]:
            for name, name_key in zip(stds, jax.random.split(key, len(stds)), strict=True):
                place, inside = jax.random.split(name_key)
                logs = jax.lax.map(lambda std, name=name, others=stds: evidence({**others, name: std}), grid) + prior
                off = apart * (jax.random.uniform(inside) - 0.5)
                stds = {**stds, name: grid[jax.random.categorical(place, logs)] * jnp.exp(off)}
            return stds, None

        return jax.lax.scan(one_round, stds, jax.random.split(key, SWEEPS if len(stds) > 1 else 1))[0] if stds else {}

    def prior_draw(self, weights_key: Key, stds_key: Key, means_key: Key) -> dict[str, Array]:
        """Draw the weights and effects from their prior.

        Privacy: public.
        """
        stds = {
            name: self.group_std * jnp.abs(jax.random.normal(jax.random.fold_in(stds_key, number)))
            for number, name in enumerate(self.groups)
        }
        weights = jnp.sqrt(self.variances(stds)) * jax.random.normal(weights_key, (self.count,))
        return self.shared(weights, stds, means_key)

    def requirements(self) -> tuple[Requirement, ...]:
        """Return what the groups need of a record.

        Privacy: public.
        """
        return _group_needs(self.groups)[0 if self.features is None else 1 :]


def offset(record: Any) -> Array:
    """Return what a record adds to its predictor.

    Privacy: of the record.
    """
    return jnp.asarray(record.get("offset", 0.0), jnp.float32)


def _prior_variances(prior_std: Any, columns: int) -> np.ndarray:
    if np.ndim(prior_std) and np.shape(prior_std) != (columns,):
        raise ValueError(
            f"prior_std has the shape {np.shape(prior_std)}, and x has {columns} columns. Pass one number, or one for "
            "each column."
        )
    return np.broadcast_to(np.square(np.asarray(prior_std, np.float32)), (columns,))


def _contrasts(levels: int) -> np.ndarray:
    """Return orthonormal columns, one less than there are levels, that sum to zero over the levels."""
    number, column = np.arange(levels)[:, None], np.arange(1, levels)
    return (
        np.where(number < column, 1, np.where(number == column, -column, 0)) / np.sqrt(column * (column + 1))
    ).astype(np.float32)


def _columns(placeholder: Any, groups: Mapping[str, int]) -> int:
    if set(groups) & {"x", "y", "w", "noise", "offset"} or any(levels < 2 for levels in groups.values()):
        raise ValueError(
            f"groups are {dict(groups)}. A group has two levels or more, and is not named x, y, w, noise or offset; "
            'write groups={"clinic": 20}.'
        )
    wanted = {"x", "y", *groups}
    if not isinstance(placeholder, dict) or not wanted <= set(placeholder):
        given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
        more = "".join(f', "{name}": code' for name in groups)
        raise ValueError(f'A regression takes records {{"x": columns, "y": outcome{more}}}; these are {given}.')
    if np.ndim(placeholder["x"]) != 1 or any(np.ndim(placeholder[name]) for name in ("y", *groups)):
        raise ValueError(
            f"A record of a regression has a vector x and a number y; the shapes are {np.shape(placeholder['x'])} and "
            f"{np.shape(placeholder['y'])}. Put all columns into one array x with a line for each record."
        )
    return int(placeholder["x"].shape[0])


def _group_needs(groups: Mapping[str, int]) -> tuple[Requirement, ...]:
    def is_code(record: Record, name: str, levels: int) -> Array:
        code = record[name]
        return (code >= 0) & (code < levels) & (code == jnp.round(code))

    codes = [
        Requirement(
            f"{name} must be a whole number from 0 to {levels - 1}: the code of a level.",
            partial(is_code, name=name, levels=levels),
        )
        for name, levels in groups.items()
    ]
    ones = Requirement(
        "The first column of x must be 1: groups differ from an intercept.", lambda record: record["x"][0] == 1
    )
    return (ones, *codes) if groups else ()
