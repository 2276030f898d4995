"""d3p 0.2.0's interface on tacit's parts: change the imports and keep the script (docs/from-d3p.md).

Names are reachable as in d3p, ``from tacit.compat.d3p.svi import DPSVI``, and flat, ``from tacit.compat.d3p import
DPSVI``. Same scripts, not same numbers: clipping, noise, subsets and accounting are the wall's and the accountant's.

**No certificate comes out of this module.** The script holds the records and draws the batches, so tacit cannot vouch
for what was released: there is no ledger, nothing is sealed, and losses are returned as d3p returns them. The figures
of ``get_epsilon`` and ``approximate_sigma`` hold under conditions that are the script's to meet:

- a batch is drawn afresh for every update by ``poisson_batchify_data`` ("add-remove" or "replace-one") or by
  ``subsample_batchify_data`` without replacement ("replace-one" only);
- the key is secret: ``PRNGKey()`` without a seed, and used for one fit;
- only parameters leave: losses are computed from records without noise;
- all numbers given to model, guide and optimiser are public, the number of records included.
"""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import numpyro.optim
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.svi import SVI
from numpyro.primitives import Messenger

from tacit import accounting
from tacit.types import Array, Key, PyTree
from tacit.wall import alias, clip, lattice, sample
from tacit.wall import random as chacha
from tacit.wall.environment import check_environment

Model = Callable[..., Any]
Sampler = tuple[Callable[..., tuple[int, Any]], Callable[..., Any]]
"""What a batchifier gives: ``init(rng_key) -> (batches an epoch, state)`` and ``get_batch(i, state) -> batch``."""


class NotCertified(UserWarning):
    """Said where a result may be taken for more than it is."""


def _warn(text: str) -> None:
    warnings.warn(text, NotCertified, stacklevel=3)


def _namespace(name: str, *members: Any, **named: Any) -> Any:
    """Make a module of d3p importable: the import system finds it in sys.modules beside this one, as os.path."""
    module = types.ModuleType(f"{__name__}.{name}", f"The names of d3p.{name}; see {__name__}.")
    module.__dict__.update({member.__name__: member for member in members}, **named)
    sys.modules[module.__name__] = module
    return module


# d3p.random ----------------------------------------------------------------------------------------------------------


def PRNGKey(seed: Any = None) -> Key:
    """Make a ChaCha20 key: a secret one from the operating system, or that of a number or of at most 32 bytes.

    Privacy: whoever knows the seed can take the noise off again.
    """
    if seed is None:
        return chacha.fresh()
    try:
        given = seed if isinstance(seed, bytes) else np.asarray(seed).tobytes() if np.ndim(seed) else int(seed)
        return chacha.from_bytes((given if isinstance(given, bytes) else given.to_bytes(32, "little")).ljust(32, b"\0"))
    except (OverflowError, ValueError) as error:
        raise ValueError(
            "A seed must be a number from 0 to 2**256 - 1, or at most 32 bytes: a key has 256 bits. Write PRNGKey() "
            "for a secret one."
        ) from error


def _key(key: Any) -> Key:
    """Give the ChaCha20 key for what a script calls a key; one of jax.random is stretched, with a warning."""
    key = jnp.asarray(key)
    if key.dtype == jnp.uint32:
        key = jax.random.wrap_key_data(key)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(f"A key is needed, not an array of {key.dtype}. Write tacit.compat.d3p.random.PRNGKey().")
    if key.dtype == _CHACHA:
        return key
    _warn(
        "A key of jax.random has 64 bits at most and can be searched: the noise could be taken off again. Write "
        "tacit.compat.d3p.random.PRNGKey() for a secret one."
    )
    return _of_words(jax.random.bits(key, (8,), jnp.uint32))


def _of_words(words: Array) -> Key:
    return jax.random.wrap_key_data(words, impl=chacha.CHACHA20)


_CHACHA = jax.eval_shape(lambda: chacha.fixed(0)).dtype


def _chacha20(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of jax.random that takes the keys of this module.

    Privacy: ``normal`` and ``uniform`` are for scripts. Neither noise nor subsets come from them, for float noise can
    be told apart from other float noise, and ``uniform() <= q`` does not have the rate q.
    """
    return functools.wraps(function)(lambda key, *args, **kwargs: function(_key(key), *args, **kwargs))


split, fold_in, uniform, normal, randint = (
    _chacha20(function)
    for function in (jax.random.split, jax.random.fold_in, jax.random.uniform, jax.random.normal, jax.random.randint)
)


def random_bits(key: Any, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Give random words of 8, 16, 32 or 64 bits. Privacy: as secret as the key."""
    return jax.random.bits(_key(key), shape, f"uint{bit_width}")


def convert_to_jax_rng_key(rng_key: Any) -> Array:
    """Give a key for jax.random. Privacy: for public randomness; it does not show the key it came from."""
    return random_bits(rng_key, 32, (2,))


random = _namespace(
    "random",
    *(PRNGKey, split, fold_in, random_bits, uniform, normal, randint, convert_to_jax_rng_key),
    PRNGState=jax.Array,
)
random.debug = _namespace(
    "random.debug",
    *(jax.random.split, jax.random.fold_in, jax.random.uniform, jax.random.normal, jax.random.randint),
    PRNGKey=lambda seed=None: jax.random.PRNGKey(secrets.randbits(32) if seed is None else seed),
    random_bits=lambda key, bit_width, shape: jax.random.bits(key, shape, f"uint{bit_width}"),
    convert_to_jax_rng_key=lambda rng_key: rng_key,
    PRNGState=jax.Array,
)


# d3p.minibatch -------------------------------------------------------------------------------------------------------


def subsample_batchify_data(
    dataset: PyTree,
    batch_size: int | None = None,
    q: float | None = None,
    with_replacement: bool = False,
    rng_suite: Any = random,
    return_mask: bool = False,
) -> Sampler:
    """Draw batches of a fixed size, uniformly among all subsets of that size.

    Privacy: reads records. The adjacency of such batches is "replace-one"; they cost more than Poisson batches. With
    replacement a record may be in a batch twice, which no figure of this module covers.

    Parameters
    ----------
    dataset
        A tuple or dictionary of arrays with equally many records; a batch has the same form.
    batch_size, q
        The size of a batch, or its share of the records.
    with_replacement
        Whether a batch may hold a record more than once.
    rng_suite
        Where keys come from: this module's ``random`` or another with its functions.
    return_mask
        Whether ``get_batch`` gives ``(batch, mask)``, the mask all true.
    """
    columns, count = _columns(dataset)
    size = _batch_size(batch_size, q, count)
    if with_replacement:
        _warn("With replacement a record may be in a batch twice, which epsilon does not cover; leave it out.")

    def draw(secret: Key) -> Array:
        if with_replacement:
            return jax.random.randint(secret, (size,), 0, count)
        return _subset(secret, count, _rate_for(count, size), size)[0]

    return _sampler(columns, count // size, draw, rng_suite, return_mask)


def poisson_batchify_data(
    dataset: PyTree,
    q: float,
    max_batch_size: int | float,
    handle_oversized_batch: str = "truncate",
    rng_suite: Any = random,
) -> Sampler:
    """Draw Poisson batches: each record is in one independently with probability ``q``.

    ``get_batch`` gives ``(batch, mask)``: the records stand in random slots, and the mask tells them from padding.

    Privacy: reads records. Covered under both adjacencies as long as no batch is cut; empty ones are ordinary.

    Parameters
    ----------
    dataset, rng_suite
        As in `subsample_batchify_data`.
    q
        The rate.
    max_batch_size
        The number of slots. A fraction, d3p's quantile, asks for as many as a batch exceeds with probability 2**-128,
        whatever the fraction: a batch cut at a quantile is no Poisson batch.
    handle_oversized_batch
        "truncate" keeps a random part of a batch that has too many records, "suppress" none of it.
    """
    columns, count = _columns(dataset)
    rate = accounting.check_rate("poisson_batchify_data", float(q))
    needed = sample.room(count, rate) if rate < 1 else count
    whole = isinstance(max_batch_size, int | np.integer)
    if not (max_batch_size >= 1 if whole else 0 < max_batch_size < 1):
        raise ValueError(
            f"max_batch_size={max_batch_size!r} is neither a number of slots nor a fraction below 1. Write {needed}, "
            "which no batch exceeds, or 0.99 for the same."
        )
    if handle_oversized_batch not in ("truncate", "suppress"):
        raise ValueError(
            f"handle_oversized_batch={handle_oversized_batch!r} is unknown. Write 'truncate' or 'suppress'."
        )
    slots = int(max_batch_size) if whole else needed
    if slots < needed:
        _warn(
            f"A batch may have more than max_batch_size={slots} records and is cut then, which epsilon does not cover. "
            f"Write max_batch_size={needed}, which no batch exceeds, or 0.99 for the same."
        )

    def draw(secret: Key) -> Array:
        chosen, size = _subset(secret, count, rate, slots)
        return jnp.where((size > slots) & (handle_oversized_batch == "suppress"), count, chosen)

    return _sampler(columns, max(1, int(1 / rate)), draw, rng_suite, True)


def split_batchify_data(
    dataset: PyTree,
    batch_size: int | None = None,
    q: float | None = None,
    rng_suite: Any = random,
    return_mask: bool = False,
) -> Sampler:
    """Shuffle the records once an epoch and cut them into batches of a fixed size: for test data.

    Privacy: reads records. A pass over shuffled records is no fresh draw for every step: no figure covers it.

    Parameters
    ----------
    dataset, batch_size, q, rng_suite, return_mask
        As in `subsample_batchify_data`.
    """
    columns, count = _columns(dataset)
    size = _batch_size(batch_size, q, count)

    def init(rng_key: Any) -> tuple[int, Array]:
        return count // size, _shuffled(_words(_secret(rng_suite, rng_key), 4 * count)[1][0], jnp.arange(count))

    def get_batch(i: Any, state: Array) -> Any:
        return _rows(columns, jax.lax.dynamic_slice_in_dim(state, i * size, size), return_mask)

    return init, get_batch


def q_to_batch_size(q: float, N: int) -> int:
    """Give the size of a batch with the share ``q`` of the records, rounded down. Privacy: public."""
    return int(N * q * (1 + 2.0**-50))


def batch_size_to_q(batch_size: int, N: int) -> float:
    """Give the share of the records in a batch. Privacy: public."""
    return batch_size / N


def _sampler(columns: PyTree, batches: int, draw: Callable[[Key], Array], rng_suite: Any, with_mask: bool) -> Sampler:
    positions = jax.jit(lambda i, state: draw(_secret(rng_suite, rng_suite.fold_in(state, i))))
    return lambda rng_key: (batches, rng_key), lambda i, state: _rows(columns, positions(i, state), with_mask)


def _rows(columns: PyTree, positions: Array, with_mask: bool) -> Any:
    mask = positions < example_count(jax.tree.leaves(columns)[0])

    def rows(column: Array) -> Array:
        shown = mask.reshape(-1, *[1] * (column.ndim - 1))
        return jnp.where(shown, column.at[positions].get(mode="clip"), jnp.zeros((), column.dtype))

    batch = jax.tree.map(rows, columns)
    return (batch, mask) if with_mask else batch


def _columns(dataset: PyTree) -> tuple[PyTree, int]:
    if not isinstance(dataset, tuple | list | dict):
        raise TypeError(
            f"The data set is a {type(dataset).__name__}, not a tuple or a dictionary of arrays. Write (x, y), or (x,) "
            "for a single array; sealed records (tacit.PrivateData) are for tacit.fit."
        )
    columns = jax.tree.map(jnp.asarray, tuple(dataset) if isinstance(dataset, list) else dataset)
    lengths = {example_count(column) for column in jax.tree.leaves(columns)}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError("A data set needs arrays with equally many records, at least one: a batch cuts all alike.")
    return columns, lengths.pop()


def _batch_size(batch_size: int | None, q: float | None, count: int) -> int:
    if (batch_size is None) == (q is None):
        raise ValueError("A batch needs either a size or a share of the records. Write batch_size=100 or q=0.01.")
    size = int(batch_size) if batch_size is not None else q_to_batch_size(float(q or 0), count)
    if not 1 <= size <= count:
        raise ValueError(
            f"A batch of {size} records cannot be drawn from the data set. Give a size from 1 to the number of "
            "records; if q times that number is below 1, poisson_batchify_data keeps the rate."
        )
    return size


def _secret(rng_suite: Any, key: Any) -> Key:
    """Give the ChaCha20 key that a key of any suite stands for."""
    return _key(key) if rng_suite is random else _of_words(rng_suite.random_bits(key, 32, (8,)))


def _words(secret: Key, *sizes: int) -> tuple[Key, list[Array]]:
    """Draw all random words of a step at once, and a key for more bits: every call of the cipher is compiled apart."""
    words = jax.random.bits(secret, (8 + sum(sizes),), jnp.uint32)
    key, *parts = jnp.split(words, np.cumsum([8, *sizes])[:-1])
    return _of_words(key)[None], parts


@functools.cache
def _rate_for(count: int, size: int) -> float:
    """Give a rate at which a Poisson subset has fewer than ``size`` records with probability at most OVERFULL."""
    rate = size / count
    while rate < 1 and sample.room(count, 1 - rate) > count - size:
        rate *= 1.05
    return min(rate, 1.0)


def _subset(secret: Key, count: int, rate: float, slots: int) -> tuple[Array, Array]:
    """Draw a Poisson subset into random slots, at most ``slots`` of it, and give its size; empty slots hold ``count``.

    Given its size a Poisson subset is uniform, and so is a random part of it: batches of a fixed size are drawn here
    too. Slots are random because a removed record must not move the others: floats may round differently in each.
    """
    digits, room = (sample.digits_for(count), sample.room(count, rate)) if rate < 1 else (0, count)
    more, (words, order, place) = _words(secret, digits * room, 4 * room, 4 * slots)
    drawn = jnp.arange(count, dtype=jnp.int32)
    if rate < 1:
        columns = alias.draw(sample.gap_tables(rate, digits), room, alias.Words(words[None]), more)
        drawn = sample.subsets(columns, count)[0]
    chosen = _shuffled(order, drawn, drawn == count)[:slots]
    padded = jnp.pad(chosen, (0, slots - chosen.size), constant_values=count)
    return _shuffled(place, padded), jnp.sum(drawn < count)


def _shuffled(words: Array, values: Array, last: Any = False) -> Array:
    """Order values by random words of 128 bits, which do not tie, those marked ``last`` at the end."""
    marks = jnp.broadcast_to(last, values.shape).astype(jnp.uint32)
    return jax.lax.sort((marks, *words.reshape(4, -1), values), num_keys=5)[-1]


# d3p.dputil ----------------------------------------------------------------------------------------------------------


def approximate_sigma(
    target_eps: float,
    delta: float,
    q: float,
    num_iter: float,
    tol: float = 1e-4,
    force_smaller: bool = False,
    maxeval: int = 10,
) -> tuple[float, float, int]:
    """Give the noise for a target ε under "replace-one": neighbours have one record exchanged.

    Covers batches of a fixed size drawn without replacement, and Poisson batches. d3p's noise is smaller: it is that
    of Poisson batches, which its README does not draw.

    Privacy: public.

    Parameters
    ----------
    target_eps, delta
        What may be spent.
    q, num_iter
        The share of the records in a batch, and the number of updates.
    tol, force_smaller, maxeval
        Accepted and not needed: the ε of the result never exceeds the target.

    Returns
    -------
    tuple
        The noise multiplier, its certified ε, and 1.
    """
    return _calibrated(target_eps, delta, q, num_iter, "replace-one")


def approximate_sigma_remove_relation(
    target_eps: float,
    delta: float,
    q: float,
    num_iter: float,
    tol: float = 1e-4,
    force_smaller: bool = False,
    maxeval: int = 10,
) -> tuple[float, float, int]:
    """Give the noise for a target ε under "add-remove", for Poisson batches only; see `approximate_sigma`.

    Neighbours have one record more or less. Privacy: public.
    """
    return _calibrated(target_eps, delta, q, num_iter, "add-remove")


def _calibrated(target: float, delta: float, q: float, num_iter: float, adjacency: str) -> tuple[float, float, int]:
    relation, steps = _relation(adjacency), _steps(num_iter)
    sigma = accounting.noise_multiplier(float(target), float(delta), float(q), steps, *relation)
    return sigma, accounting.epsilon(float(q), sigma, steps, float(delta), *relation), 1


def _relation(adjacency: str) -> tuple[str, bool]:
    """Take "replace-one" for batches of a fixed size: their cost bounds that of Poisson batches (joint convexity)."""
    return adjacency, adjacency == "replace-one"


def _steps(num_iter: float) -> int:
    # Rounded up, but not for what a division left over: 10 epochs at q = 0.01 are 1000 steps.
    return math.ceil(float(num_iter) * (1 - 2.0**-40))


# d3p.svi -------------------------------------------------------------------------------------------------------------


class DPSVIState(NamedTuple):
    """The optimiser's state, the secret key of the steps to come, and the factor by which the plate scales a record."""

    optim_state: Any
    rng_key: Any
    observation_scale: Any


class DPSVI(SVI):  # type: ignore[misc]
    """NumPyro's SVI with per-record gradients that are clipped, summed as integers and hidden in lattice noise.

    A record contributes the gradient of its ELBO, with its share of prior and entropy, at a guide draw of its own. The
    noisy sum is divided by the length of the batch, never by the number of records that a mask leaves in it.

    Privacy: reads records in ``update``, ``stable_update``, ``run`` and ``evaluate``; ``init`` reads shapes only. No
    certificate: see the module for the conditions of ``get_epsilon``. One record more or less changes the sum by at
    most the clip, one exchanged by at most twice the clip.

    Parameters
    ----------
    model, guide, optim, per_example_loss
        As in NumPyro's SVI. The model needs a plate over records, ``plate("records", N, x.shape[0])``.
    clipping_threshold
        Bound on the norm of one record's gradient.
    dp_scale
        Noise standard deviation divided by the clip, from `approximate_sigma`. Below 0.032 the lattice adds more.
    rng_suite
        Where keys come from: this module's ``random`` or another with its functions.
    clip_unscaled_observations
        Whether the plate's factor is divided out before the clip, and put back after the noise.
    expected_batch_size
        A public number to divide by instead of the length of the batch. Poisson batches are longer than ``q * N`` by
        their padding, which shortens steps; optimisers that adapt, such as Adam, do not care.
    **static_kwargs
        Constants of model and guide, such as ``N``.
    """

    def __init__(
        self,
        model: Model,
        guide: Model,
        optim: Any,
        per_example_loss: Any,
        clipping_threshold: float,
        dp_scale: float,
        rng_suite: Any = random,
        clip_unscaled_observations: bool = True,
        expected_batch_size: float | None = None,
        **static_kwargs: Any,
    ) -> None:
        super().__init__(model, guide, optim, per_example_loss, **static_kwargs)
        self._clip = _above_zero("clipping_threshold", clipping_threshold)
        self._dp_scale = _above_zero("dp_scale", dp_scale)
        # Small noise would need integers that float32 cannot hold; more noise than asked for is on the safe side.
        self._radius = lattice.radius(max(self._dp_scale, 1.001 * lattice.RHO / lattice.LARGEST_RADIUS))
        given = expected_batch_size is not None
        self._expected = _above_zero("expected_batch_size", expected_batch_size) if given else None
        self._rng_suite, self._unscaled = rng_suite, clip_unscaled_observations
        self._compiled: Callable[..., Any] = _not_yet
        _warn(
            "tacit.compat.d3p gives no certificate: the script draws the batches, so tacit cannot vouch for them. For "
            "a certified posterior write tacit.fit(tacit.vi(model), tacit.PrivateData(...), tacit.Budget(...))."
        )

    def init(self, rng_key: Any, *args: Any, init_params: dict[str, Any] | None = None, **kwargs: Any) -> DPSVIState:
        """Make the first state from the shapes of a batch.

        Privacy: public. Model and guide are run on made-up records that hold 0.5, or what whole numbers make of it.
        """
        batch = _Batch.of(args, kwargs)
        key = self._rng_suite.convert_to_jax_rng_key(rng_key)
        one, constants = batch.made_up(1)
        with _explained(batch):
            traces = [self._trace(*batch.made_up(n)) for n in (2, 3)]
        _check_plates(*traces)
        with _explained(batch), _without_likelihood(self.guide):
            state = super().init(key, *one, init_params=init_params, **constants)
        self._compiled = jax.jit(self._each, static_argnames="form")
        if state.mutable_state is not None:
            raise ValueError("The model keeps mutable state, which would carry records from step to step; remove it.")
        scale = 1.0
        if self._unscaled:
            scale = get_observations_scale(self.model, one, constants | self.static_kwargs, self.get_params(state))
        return DPSVIState(state.optim_state, rng_key, jnp.float32(scale))

    def update(
        self,
        svi_state: DPSVIState,
        *args: Any,
        mask: Any = True,
        forward_mode_differentiation: bool = False,
        **kwargs: Any,
    ) -> tuple[DPSVIState, Array]:
        """Take one private step on a batch; may be traced.

        Privacy: reads records. The new state is private under the module's conditions. **The loss is not**: like d3p's
        it is computed from the records without noise; publish nothing that depends on it.

        Parameters
        ----------
        svi_state
            The state so far.
        *args, **kwargs
            A batch: arrays or pytrees of arrays of one length. Keywords with arrays of that length belong to it; other
            keywords, and numbers, are constants.
        mask
            Which slots of the batch hold records.
        forward_mode_differentiation
            Accepted for NumPyro's ``run``, and not used.

        Returns
        -------
        tuple
            The new state, and the mean loss over the batch, records without a finite loss left out.
        """
        check_environment()
        batch, scale = _Batch.of(args, kwargs), svi_state.observation_scale
        key, draw_key, noise_key = self._rng_suite.split(svi_state.rng_key, 3)
        losses, gradients = self._compiled(svi_state, draw_key, batch.rows, batch.constants, form=batch.form)
        mask = jnp.broadcast_to(jnp.asarray(mask, bool), (batch.form.size,))
        vectors = [leaf.reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(gradients)]
        secret, length = _secret(self._rng_suite, noise_key), self._expected or max(batch.form.size, 1)
        rows = jnp.concatenate(vectors, axis=1).astype(jnp.float32) / scale
        total = _noisy_sum(rows, mask, secret, self._clip, self._radius)
        gradient = ravel_pytree(self.optim.get_params(svi_state.optim_state))[1](total * (scale / length))
        new = DPSVIState(self.optim.update(gradient, svi_state.optim_state), key, scale)
        return new, jnp.sum(jnp.where(mask & jnp.isfinite(losses), losses, 0)) / length

    def stable_update(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> tuple[DPSVIState, Array]:
        """Take a private step, and keep the old parameters if the noisy step leaves the finite numbers.

        Privacy: as ``update``; what to keep is decided after the noise.
        """
        new, loss = self.update(svi_state, *args, **kwargs)
        finite = jnp.all(jnp.isfinite(ravel_pytree(self.optim.get_params(new.optim_state))[0]))
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new.optim_state, svi_state.optim_state)
        return new._replace(optim_state=kept), loss

    def evaluate(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> Array:
        """Give the mean loss over a batch. Privacy: reads records without noise: not for publication."""
        batch, key = _Batch.of(args, kwargs), self._rng_suite.split(svi_state.rng_key, 3)[1]
        losses = self._compiled(svi_state, key, batch.rows, batch.constants, form=batch.form)[0]
        return jnp.sum(jnp.where(jnp.isfinite(losses), losses, 0)) / max(batch.form.size, 1)

    def get_epsilon(
        self,
        target_delta: float,
        q: float,
        num_epochs: float | None = None,
        num_iter: float | None = None,
        adjacency: str = "replace-one",
    ) -> float:
        """Give the ε of ``num_iter`` updates, or of epochs of ``1 / q`` updates, at a δ and under a named adjacency.

        Privacy: public. "replace-one", the default as in `approximate_sigma`, covers batches of a fixed size and
        Poisson batches; "add-remove", d3p's and that of `approximate_sigma_remove_relation`, Poisson batches only.
        """
        return accounting.epsilon(*self._recipe(q, num_epochs, num_iter), float(target_delta), *_relation(adjacency))

    def get_delta(
        self,
        target_epsilon: float,
        q: float,
        num_epochs: float | None = None,
        num_iter: float | None = None,
        adjacency: str = "replace-one",
    ) -> float:
        """Give the δ at an ε; see ``get_epsilon``. Privacy: public."""
        return accounting.delta(*self._recipe(q, num_epochs, num_iter), float(target_epsilon), *_relation(adjacency))

    def _recipe(self, q: float, num_epochs: float | None, num_iter: float | None) -> tuple[float, float, int]:
        if num_epochs is None and num_iter is None:
            raise ValueError(
                "The number of updates is needed: each of them costs. Write num_iter=1000 or num_epochs=10."
            )
        return float(q), self._dp_scale, _steps(num_iter or 0 if num_epochs is None else num_epochs / q)

    def _trace(self, args: Any, kwargs: Any) -> dict[str, Any]:
        sites: dict[str, Any] = {}
        # The key only fills the latents: the trace is read for its structure, and nothing is computed.
        seeded = handlers.trace(handlers.seed(self.model, jax.random.key(0)))
        jax.eval_shape(lambda: sites.update(seeded.get_trace(*args, **kwargs, **self.static_kwargs)))
        return sites

    def _each(
        self, svi_state: DPSVIState, key: Any, rows: list[Array], constants: list[Array], form: _Form
    ) -> tuple[Array, PyTree]:
        """Give each record's loss and its gradient, computed from that record alone."""

        def loss(params: PyTree, key: Key, row: list[Array]) -> Array:
            args, kwargs = form.arguments([number[None] for number in row], constants)
            values = self.constrain_fn(params)
            return self.loss.loss(key, values, self.model, self.guide, *args, **kwargs, **self.static_kwargs)

        # Keys follow the slots, which is harmless as long as they are secret: the records could have had any of them.
        keys = jax.random.split(self._rng_suite.convert_to_jax_rng_key(key), form.size)
        params = self.optim.get_params(svi_state.optim_state)
        return jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(params, keys, rows)


@functools.partial(jax.jit, static_argnames=("bound", "radius"))
def _noisy_sum(vectors: Array, mask: Array, secret: Key, bound: float, radius: int) -> Array:
    """Clip each row, sum the rows that the mask shows, exactly, and add the lattice's noise."""
    integers = jnp.where(mask[:, None], clip.to_integers(vectors, bound, radius), 0)
    count, dimension = integers.shape
    total, exact = lattice.zero(dimension), ((1 << 31) - 1) // (radius + 1)
    for start in range(0, count, exact):
        total = lattice.add(total, jnp.sum(integers[start : start + exact], axis=0))
    more, (words,) = _words(secret, 2 * dimension)
    noise = lattice.noise([dimension], alias.Words(words[None]), more)[0][0]
    return lattice.to_float(lattice.add(total, noise), bound / radius)


class _Form(NamedTuple):
    """How the arguments of an update are made of arrays: hashable, so that compiled programs are found again."""

    tree: Any
    size: int
    rows: tuple[int, ...]  # which leaves have one row a record
    constants: tuple[int, ...]  # which are other arrays
    others: tuple[tuple[int, Any], ...]  # what is not an array

    def arguments(self, rows: Any, constants: Any) -> Any:
        """Put arrays back among the arguments."""
        leaves = dict(self.others) | dict(zip(self.rows + self.constants, [*rows, *constants], strict=True))
        return jax.tree.unflatten(self.tree, [leaves[i] for i in range(len(leaves))])


class _Batch(NamedTuple):
    """The arguments of an update: the arrays of a batch, told from the constants beside them."""

    form: _Form
    rows: list[Array]
    constants: list[Array]

    @staticmethod
    def of(args: Any, kwargs: Any) -> _Batch:
        leaves, tree = jax.tree.flatten((args, kwargs))
        given = [leaf for leaf in jax.tree.leaves(args) if np.ndim(leaf)] or [leaf for leaf in leaves if np.ndim(leaf)]
        lengths = sorted({example_count(leaf) for leaf in given})
        if len(lengths) != 1:
            raise ValueError(
                f"The arrays of a batch have the lengths {lengths}, but a step takes each record apart. Give arrays of "
                "one length, and constant arrays to DPSVI as keywords."
            )
        arrays = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]
        rows = tuple(i for i in arrays if np.ndim(leaves[i]) and example_count(leaves[i]) == lengths[0])
        constants = tuple(i for i in arrays if i not in rows)
        others = tuple((i, leaf) for i, leaf in enumerate(leaves) if i not in arrays)
        form = _Form(tree, lengths[0], rows, constants, others)
        return _Batch(form, [jnp.asarray(leaves[i]) for i in rows], [leaves[i] for i in constants])

    def made_up(self, count: int) -> Any:
        """Give arguments with so many public stand-in records."""
        rows = [jnp.full((count, *row.shape[1:]), 0.5, row.dtype) for row in self.rows]
        return self.form.arguments(rows, self.constants)


@contextlib.contextmanager
def _explained(batch: _Batch) -> Iterator[None]:
    """Say what model and guide were given when they fail."""
    try:
        yield
    except Exception as error:
        shapes = ", ".join(f"{row.dtype}{['n', *row.shape[1:]]}".replace("'", "") for row in batch.rows)
        raise ValueError(
            f"Model or guide do not run on made-up records ({shapes}): {error}. They are called with the arrays of a "
            "batch, of any length; constants go to DPSVI as keywords, such as DPSVI(..., N=len(data))."
        ) from error


class _Unobserved(Messenger):  # type: ignore[misc]
    """Leave observations out of a model's density."""

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            msg["fn"] = msg["fn"].mask(False)


@contextlib.contextmanager
def _without_likelihood(guide: Any) -> Iterator[None]:
    """Show an AutoGuide the prior only: it evaluates its model at set-up, where made-up records mean nothing."""
    autos = [auto for auto in (guide, *getattr(guide, "_guides", ())) if isinstance(auto, AutoGuide)]
    models = [auto.model for auto in autos]
    for auto in autos:
        auto.model = _Unobserved(auto.model)
    try:
        yield
    finally:
        for auto, model in zip(autos, models, strict=True):
            auto.model = model


def _not_yet(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("This DPSVI has made no state yet, so it does not know its parameters. Call init first.")


def _check_plates(two: dict[str, Any], three: dict[str, Any]) -> None:
    """Refuse observations that are in no plate whose length follows the batch's, two records and three."""
    observed = [name for name, site in two.items() if site["type"] == "sample" and site["is_observed"]]
    for name in observed:
        short, long = ({frame.name: frame.size for frame in trace[name]["cond_indep_stack"]} for trace in (two, three))
        if not any(size == 2 and long.get(plate) == 3 for plate, size in short.items()):
            raise ValueError(
                f"The observed site {name!r} is in no plate over records, so the prior would count in full for every "
                "record. Write: with numpyro.plate('records', N, x.shape[0]): ... around it."
            )
    if not observed:
        raise ValueError(
            "The model observes nothing: pass the batch's arrays as obs=... inside the plate over records."
        )


def _above_zero(name: str, value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"{name}={number} must be a finite number above 0: the noise, dp_scale times clipping_threshold, hides "
            f"gradients of at most the norm clipping_threshold. Write e.g. {name}=1.0; for a fit without privacy use "
            "numpyro.infer.SVI."
        )
    return number


def get_observations_scale(model: Model, model_args: Any, model_kwargs: Any, params: Any) -> float:
    """Give the factor by which the plate scales observations, one for all. Privacy: public, on public arguments."""
    seeded = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=params)
    sites = handlers.trace(seeded).get_trace(*model_args, **model_kwargs).values()
    observed = [site for site in sites if site["type"] == "sample" and site["is_observed"]]
    scales = {1.0 if site["scale"] is None else float(site["scale"]) for site in observed} or {1.0}
    if len(scales) > 1:
        raise ValueError(
            f"Observations are scaled by {sorted(scales)}, but a record is clipped as a whole. Give all plates over "
            "records the same N."
        )
    return scales.pop()


def full_norm(vector_parts: PyTree, ord: Any = 2) -> Array:
    """Give the norm of all leaves as one vector. Privacy: as private as its argument."""
    parts = [jnp.ravel(part) for part in jax.tree.leaves(vector_parts)]
    return jnp.linalg.norm(jnp.concatenate(parts), ord=ord) if parts else jnp.float32(0)


def normalize_gradient(gradient_parts: PyTree, ord: Any = 2) -> PyTree:
    """Scale all leaves to norm 1 as one vector. Privacy: as private as its argument."""
    norm = full_norm(gradient_parts, ord)
    return jax.tree.map(lambda part: part / norm, gradient_parts)


def clip_gradient(gradient_parts: PyTree, c: float) -> PyTree:
    """Scale all leaves to norm ``c`` at most as one vector; what is not finite becomes zero.

    Privacy: as private as its argument. In floats, so the bound holds up to rounding; DPSVI clips on the lattice.
    """
    norm = full_norm(gradient_parts)
    factor = jnp.where(jnp.isfinite(norm), jnp.minimum(1, _above_zero("clipping_threshold", c) / norm), 0)
    return jax.tree.map(lambda part: jnp.where(factor > 0, part * factor, 0), gradient_parts)


def example_count(a: Any) -> int:
    """Give the number of records in an array, 1 for a number. Privacy: as private as its argument."""
    return int(np.shape(a)[0]) if np.ndim(a) else 1


def unvectorize_shape(a: Any, d: int) -> tuple[int, ...]:
    """Give the shape of an array, with ones in front up to ``d`` axes. Privacy: as private as its argument."""
    return (1,) * (d - np.ndim(a)) + np.shape(a)


# d3p.modelling -------------------------------------------------------------------------------------------------------


def get_samples_from_trace(trace: dict[str, Any], with_intermediates: bool = False) -> dict[str, Any]:
    """Give the values of a trace's sample sites. Privacy: as private as its argument."""
    sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
    if with_intermediates:
        return {name: (site["value"], site["intermediates"]) for name, site in sites.items()}
    return {name: site["value"] for name, site in sites.items()}


def sample_prior_predictive(
    rng_key: Any,
    model: Model,
    model_args: Any,
    substitutes: dict[str, Any] | None = None,
    with_intermediates: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """Draw once from the prior predictive, with some sites given. Privacy: public."""
    seeded = handlers.seed(handlers.substitute(model, data=substitutes or {}), rng_key)
    return get_samples_from_trace(handlers.trace(seeded).get_trace(*model_args, **kwargs), with_intermediates)


def sample_posterior_predictive(
    rng_key: Any,
    model: Model,
    model_args: Any,
    guide: Model,
    guide_args: Any,
    params: dict[str, Any],
    with_intermediates: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """Draw once from the posterior predictive. Privacy: post-processing of ``params``, on public arguments."""
    model_key, guide_key = jax.random.split(rng_key)
    latents = sample_prior_predictive(guide_key, guide, guide_args, params, with_intermediates, **kwargs)
    values = {name: value[0] if with_intermediates else value for name, value in latents.items()}
    return latents | sample_prior_predictive(
        model_key, model, model_args, params | values, with_intermediates, **kwargs
    )


def sample_multi_prior_predictive(rng_key: Any, n: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Draw ``n`` times; the rest is as in `sample_prior_predictive`. Privacy: public."""
    return jax.vmap(lambda key: sample_prior_predictive(key, *args, **kwargs))(jax.random.split(rng_key, n))


def sample_multi_posterior_predictive(rng_key: Any, n: int, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Draw ``n`` times; the rest is as in `sample_posterior_predictive`. Privacy: post-processing, as there."""
    return jax.vmap(lambda key: sample_posterior_predictive(key, *args, **kwargs))(jax.random.split(rng_key, n))


def map_args_obs_to_shape(obs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    """Give a batch's shape for arguments and the batch as ``obs``. Privacy: as private as its argument."""
    return unvectorize_shape(obs, 2), kwargs, {"obs": obs}


def make_observed_model(model: Model, obs_to_model_args_fn: Model) -> Model:
    """Give the model with observations filled in; the function maps a batch to (args, kwargs, observations).

    Privacy: public.
    """

    def observed(*args: Any, **kwargs: Any) -> Any:
        model_args, model_kwargs, observations = obs_to_model_args_fn(*args, **kwargs)
        return handlers.condition(model, data=observations)(*model_args, **model_kwargs)

    return observed


# d3p.gmm -------------------------------------------------------------------------------------------------------------


class GaussianMixture(dist.MixtureSameFamily):  # type: ignore[misc]
    """A mixture of Gaussians with independent coordinates: NumPyro's MixtureSameFamily by d3p's arguments.

    Privacy: public.

    Parameters
    ----------
    locs, scales
        Means and standard deviations, components along the first axis; one scale may serve all coordinates.
    mixture_probabilities
        The weights of the components.
    validate_args
        As in NumPyro.
    """

    def __init__(self, locs: Any, scales: Any, mixture_probabilities: Any, validate_args: bool | None = None) -> None:
        locs, scales = jnp.asarray(locs), jnp.asarray(scales)
        scales = scales.reshape(scales.shape + (1,) * (locs.ndim - scales.ndim))
        components = dist.Normal(locs, scales, validate_args=validate_args).to_event(locs.ndim - 1)
        weights = dist.CategoricalProbs(jnp.asarray(mixture_probabilities), validate_args=validate_args)
        super().__init__(weights, components, validate_args=validate_args)

    # d3p's names for what NumPyro keeps in the two distributions.
    mixture_probabilities = property(lambda self: self.mixing_distribution.probs)
    locs = property(lambda self: self.component_distribution.mean)
    scales = property(lambda self: jnp.sqrt(self.component_distribution.variance))
    num_components = property(lambda self: self.mixture_size)


# d3p.optimizers ------------------------------------------------------------------------------------------------------


def adadp(
    step_size: float | Callable[[int], float] = 1e-3,
    tol: float = 1.0,
    stability_check: bool = True,
    alpha_min: float = 0.9,
    alpha_max: float = 1.1,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Make ADADP (Koskela and Honkela 2020): the step size follows the error of one step against two halves.

    An even update lays a whole step aside and takes half of it. An odd one takes the other half, compares the two ends,
    and multiplies the step size by ``sqrt(tol / error)``, kept in [alpha_min, alpha_max].

    Privacy: post-processing of noisy gradients.

    Parameters
    ----------
    step_size
        The first step size, or a schedule that gives it at 0.
    tol
        The error that is aimed at.
    stability_check
        Whether two updates with a larger error are taken back.
    alpha_min, alpha_max
        Bounds on one change of the step size.

    Returns
    -------
    tuple
        ``(init, update, get_params)`` as in jax.example_libraries.optimizers; `ADADP` is the same for NumPyro.
    """

    def init(x: PyTree) -> Any:
        return x, jnp.float32(step_size(0) if callable(step_size) else step_size), x, x

    def update(i: Any, g: PyTree, state: Any) -> Any:
        x, size, whole, before = state
        half = jax.tree.map(lambda x, g: x - 0.5 * size * g, x, g)
        ahead = jax.tree.map(lambda x, g: x - size * g, x, g)
        error = full_norm(jax.tree.map(lambda a, b: (a - b) / jnp.maximum(1, jnp.abs(a)), whole, half))
        changed = size * jnp.clip(jnp.sqrt(tol / error), alpha_min, alpha_max)
        kept = jax.tree.map(lambda a, b: jnp.where(stability_check & ~(error <= tol), a, b), before, half)
        even, odd = (half, size, ahead, x), (kept, changed, whole, before)
        return jax.tree.map(lambda a, b: jnp.where(jnp.asarray(i) % 2 == 0, a, b), even, odd)

    return init, update, lambda state: state[0]


class ADADP(numpyro.optim._NumPyroOptim):  # type: ignore[misc]
    """`adadp` as a NumPyro optimiser, with the same arguments. Privacy: post-processing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(adadp, *args, **kwargs)


svi = _namespace(
    "svi", DPSVI, DPSVIState, full_norm, normalize_gradient, clip_gradient, get_observations_scale, example_count
)
minibatch = _namespace(
    "minibatch",
    *(subsample_batchify_data, split_batchify_data, poisson_batchify_data, q_to_batch_size, batch_size_to_q),
)
dputil = _namespace("dputil", approximate_sigma, approximate_sigma_remove_relation)
modelling = _namespace(
    "modelling",
    *(get_samples_from_trace, sample_prior_predictive, sample_posterior_predictive, sample_multi_prior_predictive),
    *(sample_multi_posterior_predictive, map_args_obs_to_shape, make_observed_model),
)
gmm = _namespace("gmm", GaussianMixture)
optimizers = _namespace("optimizers", adadp, ADADP)
util = _namespace(
    "util",
    *(example_count, unvectorize_shape),
    **{f"unvectorize_shape_{d}d": functools.partial(unvectorize_shape, d=d) for d in (1, 2, 3)},
)
_MODULES = (random, svi, minibatch, dputil, modelling, gmm, optimizers, util)
__all__ = sorted(
    {name for module in _MODULES for name in vars(module) if name[0] != "_"} & set(globals()) | {"NotCertified"}
)
