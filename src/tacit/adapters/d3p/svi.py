"""The names of d3p.svi: private stochastic variational inference on batches that the script draws."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.svi import SVI
from numpyro.primitives import Messenger

from tacit import accounting
from tacit.adapters.d3p import random
from tacit.adapters.d3p.batch import Batch, Form, explained
from tacit.adapters.d3p.dputil import relation_of, whole_steps
from tacit.adapters.d3p.keys import random_words
from tacit.adapters.d3p.sampling import secret_key
from tacit.adapters.d3p.util import example_count
from tacit.adapters.d3p.warning import warn
from tacit.engine import alias, clip, lattice
from tacit.types import Array, Key, PyTree
from tacit.wall.environment import check_environment
from tacit.wall.precision import rounded, single_precision

__all__ = [
    "DPSVI",
    "DPSVIState",
    "clip_gradient",
    "example_count",
    "full_norm",
    "get_observations_scale",
    "normalize_gradient",
]


Model = Callable[..., Any]


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
        warn(
            "tacit.adapters.d3p gives no certificate: the script draws the batches, so tacit cannot vouch for them. "
            "For a certified posterior write tacit.fit(tacit.vi(model), tacit.PrivateData(...), tacit.Budget(...))."
        )

    @single_precision
    def init(self, rng_key: Any, *args: Any, init_params: dict[str, Any] | None = None, **kwargs: Any) -> DPSVIState:
        """Make the first state from the shapes of a batch.

        Privacy: public. Model and guide are run on made-up records that hold 0.5, or what whole numbers make of it.
        """
        batch = Batch.of(args, kwargs)
        key = self._rng_suite.convert_to_jax_rng_key(rng_key)
        one, constants = batch.made_up(1)
        with explained(batch):
            traces = [self._trace(*batch.made_up(n)) for n in (2, 3)]
        _check_plates(*traces)
        with explained(batch), _without_likelihood(self.guide):
            state = super().init(key, *one, init_params=jax.tree.map(rounded, init_params), **constants)
        self._compiled = jax.jit(self._each, static_argnames="form")
        if state.mutable_state is not None:
            raise ValueError("The model keeps mutable state, which would carry records from step to step; remove it.")
        scale = 1.0
        if self._unscaled:
            scale = get_observations_scale(self.model, one, constants | self.static_kwargs, self.get_params(state))
        return DPSVIState(state.optim_state, rng_key, jnp.float32(scale))

    @single_precision
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
        batch, scale = Batch.of(args, kwargs), svi_state.observation_scale
        key, draw_key, noise_key = self._rng_suite.split(svi_state.rng_key, 3)
        losses, gradients = self._compiled(svi_state, draw_key, batch.rows, batch.constants, form=batch.form)
        mask = jnp.broadcast_to(jnp.asarray(mask, bool), (batch.form.size,))
        vectors = [leaf.reshape(len(leaf), math.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(gradients)]
        secret, length = secret_key(self._rng_suite, noise_key), self._expected or max(batch.form.size, 1)
        rows = jnp.concatenate(vectors, axis=1).astype(jnp.float32) / scale
        total = _noisy_sum(rows, mask, secret, self._clip, self._radius)
        gradient = ravel_pytree(self.optim.get_params(svi_state.optim_state))[1](total * (scale / length))
        new = DPSVIState(self.optim.update(gradient, svi_state.optim_state), key, scale)
        return new, jnp.sum(jnp.where(mask & jnp.isfinite(losses), losses, 0)) / length

    @single_precision
    def stable_update(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> tuple[DPSVIState, Array]:
        """Take a private step, and keep the old parameters if the noisy step leaves the finite numbers.

        Privacy: as ``update``; what to keep is decided after the noise.
        """
        new, loss = self.update(svi_state, *args, **kwargs)
        finite = jnp.all(jnp.isfinite(ravel_pytree(self.optim.get_params(new.optim_state))[0]))
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new.optim_state, svi_state.optim_state)
        return new._replace(optim_state=kept), loss

    @single_precision
    def evaluate(self, svi_state: DPSVIState, *args: Any, **kwargs: Any) -> Array:
        """Return the mean loss over a batch. Privacy: reads records without noise: not for publication."""
        batch, key = Batch.of(args, kwargs), self._rng_suite.split(svi_state.rng_key, 3)[1]
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
        """Return the ε of ``num_iter`` updates, or of epochs of ``1 / q`` updates, at a δ and under a named adjacency.

        Privacy: public. "replace-one", the default as in `approximate_sigma`, covers batches of a fixed size and
        Poisson batches; "add-remove", d3p's and that of `approximate_sigma_remove_relation`, Poisson batches only.
        """
        return accounting.epsilon(*self._recipe(q, num_epochs, num_iter), float(target_delta), *relation_of(adjacency))

    def get_delta(
        self,
        target_epsilon: float,
        q: float,
        num_epochs: float | None = None,
        num_iter: float | None = None,
        adjacency: str = "replace-one",
    ) -> float:
        """Return the δ at an ε; see ``get_epsilon``. Privacy: public."""
        return accounting.delta(*self._recipe(q, num_epochs, num_iter), float(target_epsilon), *relation_of(adjacency))

    def _recipe(self, q: float, num_epochs: float | None, num_iter: float | None) -> tuple[float, float, int]:
        if num_epochs is None and num_iter is None:
            raise ValueError(
                "The number of updates is needed: each of them costs. Write num_iter=1000 or num_epochs=10."
            )
        return float(q), self._dp_scale, whole_steps(num_iter or 0 if num_epochs is None else num_epochs / q)

    def _trace(self, args: Any, kwargs: Any) -> dict[str, Any]:
        sites: dict[str, Any] = {}
        # The key only fills the latents: the trace is read for its structure, and nothing is computed.
        seeded = handlers.trace(handlers.seed(self.model, jax.random.key(0)))
        jax.eval_shape(lambda: sites.update(seeded.get_trace(*args, **kwargs, **self.static_kwargs)))
        return sites

    def _each(
        self, svi_state: DPSVIState, key: Any, rows: list[Array], constants: list[Array], form: Form
    ) -> tuple[Array, PyTree]:
        """Return each record's loss and its gradient, computed from that record alone."""

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
    more, (words,) = random_words(secret, 2 * dimension)
    noise = lattice.noise([dimension], alias.Words(words[None]), more)[0][0]
    return lattice.to_float(lattice.add(total, noise), bound / radius)


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
    """Return the factor by which the plate scales observations, one for all. Privacy: public, on public arguments."""
    seeded = handlers.substitute(handlers.seed(model, jax.random.key(0)), data=params)
    sites = handlers.trace(seeded).get_trace(*model_args, **model_kwargs).values()
    observed = [site for site in sites if site["type"] == "sample" and site["is_observed"]]
    scales = {1.0 if site["scale"] is None else float(site["scale"]) for site in observed} or {1.0}
    if len(scales) > 1:
        raise ValueError(
            f"Observations are scaled by {sorted(scales)}, but a record is clipped as a whole. Use the same N for all "
            "plates over records."
        )
    return scales.pop()


def full_norm(vector_parts: PyTree, ord: Any = 2) -> Array:
    """Return the norm of all leaves as one vector. Privacy: as private as its argument."""
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
