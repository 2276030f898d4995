"""What methods share: above all the recursion of those on expected sufficient statistics (VIPS; Park et al. 2020).

    theta <- (1 - pace) theta + pace (prior + release.full),    theta = prior + statistics

The average of what was released is the state, as it came: noise makes it indefinite or negative, and a repaired average
would be biased for ever after. Only a copy is repaired, each time it is used.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from tacit.types import Array, Key, PyTree, Release

MANY = 1 << 16
"""Numbers of which a pass over memory takes longer than to ask whether it is needed."""
EVERY = 8
"""Of so many numbers, one iterate in so many is taken into averages: neighbours are much alike."""
BATCHES, DOUBT = 8, 2.0
"""BatchMeans of a path, at most; and how much more its average varies than so few of them show."""
Pace = Callable[[Array], Array]
"""The weight of a step's release in the average, from the step's number, counted from 0; the first is 1."""


class Running(NamedTuple):
    """A running average of released statistics, each an estimate of the sum over all records.

    ``noise_std`` is the standard deviation of the privacy noise in every number of the average, one scalar a leaf.
    """

    statistics: PyTree
    noise_std: PyTree
    step: Array


def start(statistics: PyTree) -> Running:
    """Return the first statistics, which the first release replaces."""
    statistics = jax.tree.map(jnp.asarray, statistics)
    return Running(statistics, jax.tree.map(lambda leaf: jnp.float32(0), statistics), jnp.int32(0))


def blend(running: Running, release: Release, pace: Pace) -> Running:
    """Take a step's release into the average."""
    weight = pace(running.step)
    mixed = jax.tree.map(lambda old, new: old + weight * (new - old), running.statistics, release.full)
    noise_std = jax.tree.map(
        lambda old, new: jnp.hypot((1 - weight) * old, weight * new / release.rate),
        running.noise_std,
        release.noise_std,
    )
    return Running(mixed, noise_std, running.step + 1)


def uniform_average(step: Array) -> Array:
    """Return every release the same weight: for statistics that do not change between steps."""
    return 1 / (step + 1)


def polynomial_decay(delay: float = 1.0, power: float = 0.7) -> Pace:
    """Return the pace ``(1 + step / delay) ** -power``: 1 at first, then ever slower."""
    return lambda step: (1 + step / delay) ** -power


def block_weights(bounds: Sequence[float], sizes: Sequence[int]) -> tuple[float, ...]:
    """Return the weights, for a clip of 1, that share one release among blocks with the least noise in total.

    A block whose norm is at most B and that has d numbers gets noise of standard deviation s times the multiplier,
    s**2 = B / sqrt(d) * (sum of B sqrt(d) over blocks); the weighted contribution of a record has norm 1 at most.
    """
    total = sum(bound * math.sqrt(size) for bound, size in zip(bounds, sizes, strict=True))
    return tuple((bound / math.sqrt(size) * total) ** -0.5 for bound, size in zip(bounds, sizes, strict=True))


def tail_average(average: PyTree, new: PyTree, step: Array) -> PyTree:
    """Take an iterate into an average whose weights grow like step**3: the start is forgotten, the tail is averaged.

    Of many numbers, after 64 steps, every eighth iterate stands for the eight up to it: a pass over memory costs time.
    """

    def taken(average: PyTree, every: Array | int) -> PyTree:
        share = 4 * every / (step + 4 * every)
        return jax.tree.map(lambda old, new: old + share * (new - old), average, new)

    if not many(new):
        return taken(average, 1)
    every = jnp.where(step < 64, 1, EVERY)
    return when(step % every == 0, lambda old: taken(old, every), average)


class BatchMeans(NamedTuple):
    """Batch means: averages of parameters over batches of consecutive iterates, and how many iterates one takes in.

    When all are in use two become one, and the length doubles: the number of steps need not be known ahead.
    """

    means: PyTree
    length: Array


def start_batch_means(params: PyTree) -> BatchMeans:
    """Return the means of a path that has no step yet."""
    return BatchMeans(jax.tree.map(lambda leaf: jnp.zeros((BATCHES, *jnp.shape(leaf))), params), jnp.int32(1))


def update_batch_means(path: BatchMeans, new: PyTree, step: Array) -> BatchMeans:
    """Take a step's parameters into the mean of the batch that it is in; of many numbers, every eighth step's."""

    def taken(path: BatchMeans, number: Array) -> BatchMeans:
        path = when(number == BATCHES * path.length, halved, path)
        place, within = number // path.length, number % path.length
        means = jax.tree.map(lambda leaf, new: leaf.at[place].add((new - leaf[place]) / (within + 1)), path.means, new)
        return BatchMeans(means, path.length)

    def halved(path: BatchMeans) -> BatchMeans:
        def pairs(means: Array) -> Array:
            return jnp.concatenate([(means[::2] + means[1::2]) / 2, jnp.zeros_like(means[1::2])])

        return BatchMeans(jax.tree.map(pairs, path.means), 2 * path.length)

    if not many(new):
        return taken(path, step)
    return when(step % EVERY == 0, lambda old: taken(old, step // EVERY), path)


def sample_average_error(path: BatchMeans, step: Array, key: Key) -> PyTree:
    """Draw an error of ``tail_average``: deviations of late batch means, with random signs and sizes.

    Their variance, correlations included, is that of the average (batch means; Chen et al. 2020). What moves more
    slowly than a batch is long is not seen.
    """
    used, variance = _late(path, step)
    signs = jnp.where(used, jnp.sqrt(variance) * jax.random.normal(key, used.shape), 0)
    signs = jnp.where(used, signs - jnp.sum(signs) / jnp.maximum(jnp.sum(used), 1), 0)  # so that only deviations count
    return jax.tree.map(lambda means: jnp.tensordot(signs, means, 1), path.means)


def perturbed_average(path: BatchMeans, step: Array) -> PyTree:
    """Return the variance of every number of ``tail_average``, as its path shows it."""
    used, variance = _late(path, step)
    shares = used / jnp.maximum(jnp.sum(used), 1)

    def of(means: Array) -> Array:
        return variance * jnp.tensordot(1.0 * used, jnp.square(means - jnp.tensordot(shares, means, 1)), 1)

    return jax.tree.map(of, path.means)


def _late(path: BatchMeans, step: Array) -> tuple[Array, Array]:
    """Return which batches are whole and late after so many steps, and what a squared deviation of one counts for."""
    taken = -(-step // EVERY) if many(path.means, BATCHES) else step
    done = taken // path.length
    used = (jnp.arange(BATCHES) >= (done + 3) // 4) & (jnp.arange(BATCHES) < done)  # the first come from afar
    number = jnp.sum(used)
    # The average's weights grow like step**3: it is worth 7/16 of its steps.
    variance = DOUBT * 16 / 7 * path.length / jnp.maximum(taken, 1) / jnp.maximum(number - 1, 1)
    return used, variance * (number > 1)


def many(tree: PyTree, copies: int = 1) -> bool:
    """Return whether a tree has so many numbers that passes over them should be few."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree)) >= MANY * copies


def when(wanted: Array, change: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    """Change a tree or leave it where it is in memory: by a loop that runs once or not at all."""
    return jax.lax.fori_loop(0, wanted.astype(jnp.int32), lambda _, old: change(old), tree)


def total(tree: PyTree) -> Array:
    """Return the sum of all numbers in a tree."""
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), jnp.float32(0))


def inner(one: PyTree, two: PyTree) -> Array:
    """Return the inner product of two trees of arrays."""
    return total(jax.tree.map(jnp.multiply, one, two))


def scaled(tree: PyTree, factor: float) -> PyTree:
    """Return a tree of arrays times a factor; itself for 1, so that gradients of dense layers stay outer products."""
    return tree if factor == 1 else jax.tree.map(lambda leaf: factor * leaf, tree)


def mean_of(trees: list[PyTree]) -> PyTree:
    """Return the mean of several trees of arrays; a single one as it is."""
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees) if len(trees) > 1 else trees[0]


def split(key: Key, draws: int) -> list[Key]:
    """Return a key for each draw; the key itself for a single one."""
    return [key] if draws == 1 else list(jax.random.split(key, draws))


def cut_normal(key: Key, low: Array, high: Array) -> Array:
    """Return a standard normal number between two others; one beyond 9 deviations stands for the nearest to that.

    JAX's own gives infinity, once in some millions, where there is no bound above.
    """
    return jax.random.truncated_normal(key, jnp.clip(low, -9, 8.9), jnp.clip(high, -8.9, 9))


def shrink_off_diagonal(matrix: Array, variance: Array) -> tuple[Array, Array]:
    """Draw a noisy mirrored matrix towards its diagonal, by the share of the rest that noise explains (James-Stein).

    Also return the variances of its entries given what was released.
    """
    identity = jnp.eye(len(matrix))
    rest = matrix * (1 - identity)
    noise = variance / 2 * (matrix.size - len(matrix))
    believed = jnp.clip(1 - noise / (jnp.sum(rest**2) + 1e-20), 0, 1)
    return identity * matrix + believed * rest, variance * (identity + believed / 2 * (1 - identity))


def normals(like: PyTree, key: Key) -> PyTree:
    """Return standard normal numbers in the shapes of a tree, of 65536 values of equal probability: quick for millions.

    For public randomness that is averaged over many steps; their variance is 1 to within 1e-4, and none is beyond 4.4.
    """
    leaves, structure = jax.tree.flatten(like)
    table = _quantiles()
    keys = jax.random.bits(key, (2, len(leaves)), jnp.uint32)
    values = [
        table.at[hashed(keys[0, i], keys[1, i], leaf.size) >> 16].get(mode="promise_in_bounds").reshape(leaf.shape)
        for i, leaf in enumerate(leaves)
    ]
    # The barrier: without it they are made again wherever they are used.
    return jax.tree.unflatten(structure, jax.lax.optimization_barrier(values))


@functools.cache
def _quantiles() -> Array:
    with jax.ensure_compile_time_eval():  # a constant of the program: not made again in every segment
        lower = ndtri((jnp.arange(1 << 15, dtype=jnp.float32) + 0.5) / (1 << 16))
        # One more than are used: the wall refuses constants with as many rows as there are records.
        return jnp.concatenate([lower, -lower[::-1], jnp.zeros(1)])


def hashed(first: Array, second: Array, count: int) -> Array:
    """Return uniform 32-bit words, a hash of their places and two keys: quick, and enough for public randomness.

    Two rounds of multiplying and shifting (Wellons 2018, lowbias32), a key ahead of each.
    """
    words = jnp.arange(count, dtype=jnp.uint32)
    for key in (first, second):
        words = words ^ key
        for factor, shift in ((0x7FEB352D, 16), (0x846CA68B, 15)):
            words = (words ^ (words >> shift)) * jnp.uint32(factor)
        words = words ^ (words >> 16)
    return words
