"""A method whose posterior is known in closed form, for rehearsals and selections: the mean of normal records."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

import tacit
from tacit.types import Model, Suggestions

SCHEMA = tacit.Schema({"y": {"low": -6, "high": 6}}, size=200)


def mean_of(size: int, *, aware: bool = True, shift: float = 0.0) -> tacit.Method:
    """Infer mu of y ~ N(mu, 1), mu ~ N(0, 1), from averaged sums; ``aware`` of the noise in them or not."""

    def init(key):
        return jnp.float32(0), jnp.float32(0), jnp.float32(0)

    def contribute(state, record, key):
        return record["y"]

    def update(state, release, key):
        total, variance, step = state
        share = 1 / (step + 1)
        noise = (release.noise_std / release.rate) ** 2
        return (
            total + share * (release.full - total),
            variance + share**2 * (noise - variance * (2 / share - 1)),
            step + 1,
        )

    def draw(state, key):
        total, variance, _ = state
        spread = size + (variance if aware else 0.0)  # of the sum around size * mu
        precision = 1 + size**2 / spread
        mean = size * total / spread / precision
        return {"mu": mean + shift + jax.random.normal(key) / jnp.sqrt(precision)}

    def log_likelihood(draw, record):
        return -((record["y"] - draw["mu"]) ** 2) / 2 - math.log(2 * math.pi) / 2

    def simulate(key, records):
        one, other = jax.random.split(key)
        mu = jax.random.normal(one)
        return {**records, "y": mu + jax.random.normal(other, records["y"].shape)}, {"mu": mu}

    suggests = Suggestions(clip=6.0, rate=1.0, steps=2)
    model = Model(log_likelihood=log_likelihood, simulate=simulate)
    return tacit.Method(init, contribute, update, draw, suggests=suggests, model=model)
