"""The checks, each named by what must hold: its docstring is the line that `Checked` prints."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.run.plan import title_of
from tacit.testing.case import EXTREMES, SEED, Case, MethodError, apart, finite, same_bits, shapes, traced
from tacit.types import Method, PyTree, Release, State, is_sparse
from tacit.wall import trace
from tacit.wall.border import refuse_leaks, release_of
from tacit.wall.keys import fixed
from tacit.wall.layout import Layout
from tacit.wall.reference import ReferenceRunner

ROUNDING, BATCHED = 1e-5, 1e-4
"""By how much a norm, and a contribution in a batch, may be rounded apart, relative to the largest number."""


def _check_tracing(case: Case) -> None:
    """init, contribute, update and draw can be compiled, and leave nothing behind"""
    method, placeholder, key = case.method, case.plan.placeholder, case.key
    wanted = 4 if method.per_record_key else 3
    try:
        inspect.signature(method.contribute).bind(*[None] * wanted)
    except TypeError:
        raise MethodError(
            f"contribute cannot be called with {wanted} arguments, and per_record_key={method.per_record_key}. It "
            "takes (state, record, key), and a record_key after them where per_record_key=True. Change one of the two."
        ) from None
    state = traced("init", method.init, key)
    contribution = traced("contribute", method.contribution, state, placeholder, key, key)
    try:
        Layout.of(contribution, method.suggests.weights)
    except (TypeError, ValueError) as error:
        raise MethodError(str(error)) from error
    traced("update", method.update, state, release_of(contribution), key)
    drawn = traced("draw", method.draw, state, key)
    if not isinstance(drawn, dict):
        raise MethodError(
            f"draw returns a {type(drawn).__name__}, and a posterior has names. Return a dictionary from name to array."
        )


def _check_leaks(case: Case) -> None:
    """no function holds the records or calls out of the program"""
    try:
        refuse_leaks(case.method, case.data, case.start, case.key)
    except ValueError as error:
        raise MethodError(str(error)) from error


def _check_purity(case: Case) -> None:
    """each function is the same program whenever it is traced or built"""
    key, state = case.key, case.start
    again = case.rebuild()
    release = release_of(jax.eval_shape(case.method.contribution, state, case.plan.placeholder, key, key))
    functions: dict[str, Callable[[Method], str]] = {
        "init": lambda one: _text(one.init, key),
        "contribute": lambda one: _text(one.contribution, state, case.plan.placeholder, key, key),
        "update": lambda one: _text(one.update, state, release, key),
        "draw": lambda one: _text(one.draw, state, key),
    }
    for name, text in functions.items():
        if not text(case.method) == text(case.method) == text(again):
            raise MethodError(
                f"{name} is another program when it is traced once more. A run that was interrupted could not be "
                "resumed, and would be paid for twice. Draw random numbers by jax.random from the key, and read no "
                "clock, no global variable and no NumPy generator."
            )


def _text(function: Callable[..., Any], *arguments: Any) -> str:
    return trace.lower(jax.jit(lambda *given: function(*given)), *arguments)[1]


def _check_start(case: Case) -> None:
    """the start is finite, and holds arrays that can be saved"""
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.start):
        name = jax.tree_util.keystr(path)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise MethodError(
                f"The state holds a key, in {name}. Checkpoints are arrays, and keys cannot be saved as one. Each "
                "function is given a key; or keep jax.random.key_data(key) and wrap it again where it is used."
            )
        if not np.isfinite(leaf).all():
            raise MethodError(
                f"init returns numbers that are not finite, in {name}. All later states would hold them too. Start "
                "from finite numbers."
            )


def _check_requirements(case: Case) -> None:
    """each requirement is one truth value, and the records meet it"""
    for need in case.method.requirements:
        shape = traced("the predicate of a requirement", need.predicate, case.plan.placeholder)
        if getattr(shape, "shape", None) != () or shape.dtype != bool:
            raise MethodError(
                f'The predicate of "{need.message}" returns {shape}, and a record fits or it does not. Return one '
                "truth value: jnp.all(...)."
            )
        fits = np.asarray(jax.jit(jax.vmap(need.predicate))(case.records))
        if not fits.all():
            raise MethodError(
                f"Record {int(np.argmin(fits))} does not meet a requirement: {need.message} Such records contribute "
                "nothing. Pass records that fit, or correct the predicate."
            )


def _check_contributions(case: Case) -> None:
    """a record contributes finite numbers of one shape, alone or in a batch"""
    single = jax.jit(case.method.contribution)
    keys = jax.random.split(case.key, case.count)
    for state in _states(case):
        placeholder = jax.eval_shape(case.method.contribution, state, case.plan.placeholder, case.key, case.key)
        batch = case.contributions(state, case.records)
        for place in range(case.count):
            alone = single(state, case.record(place), case.key, keys[place])
            mine = jax.tree.map(lambda leaf, place=place: leaf[place], batch)
            if not finite(alone):
                raise MethodError(
                    f"The contribution of record {place} is not finite. The wall counts it as zero, so the record is "
                    "lost without a warning. Bound what is divided by, and the arguments of exp and log."
                )
            if where := apart(alone, mine, BATCHED):
                raise MethodError(
                    f"The contribution of record {place} is another one in a batch (in {where}). A contribution must "
                    "depend on its record alone, or a neighbour moves more than its own. Use no function with a "
                    "batching rule of its own."
                )
            if shapes(alone) != shapes(placeholder):
                raise MethodError(
                    f"A record contributes {shapes(alone)} and the placeholder {shapes(placeholder)}. The sum has one "
                    "public shape. Let shapes follow from plan.placeholder only."
                )


def _states(case: Case) -> Iterator[State]:
    """Yield the start, and a state with noise in it."""
    yield case.start
    yield case.end


def _check_bound(case: Case) -> None:
    """where contributions are declared to be bounded, none exceeds the clip"""
    suggests = case.method.suggests
    if not case.method.bounded:
        return
    if suggests.clip is None:
        raise MethodError(
            "The method says bounded=True and suggests no clip, so nothing says what the bound is. Write "
            "suggests=Suggestions(clip=...)."
        )
    records = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), case.records, _extreme(case.records))
    fits = np.ones(len(jax.tree.leaves(records)[0]), bool)
    for need in case.method.requirements:
        fits &= np.asarray(jax.vmap(need.predicate)(records))
    for state in _states(case):
        each = jax.tree.leaves(case.contributions(state, records), is_leaf=is_sparse)
        weights = suggests.weights or (1.0,) * len(each)
        numbers = [leaf.values if is_sparse(leaf) else leaf for leaf in each]
        squares = [
            weight**2 * np.square(np.asarray(leaf, float)).reshape(len(fits), -1).sum(1)
            for weight, leaf in zip(weights, numbers, strict=True)
        ]
        norm = np.sqrt(sum(squares))
        beyond = fits & np.isfinite(norm) & (norm > suggests.clip * (1 + ROUNDING))
        if beyond.any():
            raise MethodError(
                f"A record contributes a norm of {norm[beyond].max():.4g}, and the method says bounded=True with "
                f"clip={suggests.clip:.4g}. The wall shortens it, and an estimate that counts on the bound is biased. "
                "Clip the record's numbers in contribute, require their bounds, or leave bounded=True out."
            )


def _check_update(case: Case) -> None:
    """update keeps the shapes and types of the state, and goes by the sum over all records"""
    start = case.start
    total = _total(case, start)
    std = jax.tree.map(lambda leaf: jnp.float32(0.01), total)
    whole = Release(total, std, jnp.float32(1), total)
    half = Release(
        jax.tree.map(lambda leaf: leaf / 2, total), jax.tree.map(lambda leaf: leaf / 2, std), jnp.float32(0.5), total
    )
    update = jax.jit(case.method.update)
    after = update(start, whole, case.key)
    if shapes(after) != shapes(start):
        raise MethodError(
            f"update turns a state of {shapes(start)} into {shapes(after)}. Steps follow one another in one compiled "
            "program, so shapes and types stay as init made them. Write jnp.int32(0) and jnp.float32(0) in init, and "
            "cast in update."
        )
    if place := apart(after, update(start, half, case.key), case.tolerance):
        raise MethodError(
            f"A release at rate 1 and one at rate 0.5 that stand for the same sum over all records, with the same "
            f"noise, lead to different states (in {place}). The answer would follow the rate. Use release.full in "
            "place of release.total, and release.noise_std / release.rate for the noise in it."
        )


def _total(case: Case, state: State) -> PyTree:
    """Return the sum of all contributions."""
    each = case.contributions(state, case.records)
    return jax.tree.map(lambda leaf: leaf.dense() if is_sparse(leaf) else leaf.sum(0), each, is_leaf=is_sparse)


def _check_extremes(case: Case) -> None:
    """extreme records, no records and noise leave a finite state and finite draws"""
    nothing = jax.tree.map(lambda leaf: leaf[:1], case.records)
    trials = {"records that are extreme": (_extreme(case.records), len(EXTREMES)), "no records": (nothing, 0)}
    for what, (records, count) in trials.items():
        state = case.after(records, count)
        for name, numbers in {"state": state, "draw": jax.jit(case.method.draw)(state, case.key)}.items():
            if not finite(numbers):
                raise MethodError(
                    f"After {case.steps} steps on {what} the {name} is not finite. The wall counts such records as "
                    "zero, and then there is nothing but noise in the release: sums that cannot be negative are, and "
                    "matrices lose their positive eigenvalues. Bound what is divided by, rooted or factorised."
                )


def _extreme(records: PyTree) -> PyTree:
    """Return records whose numbers are replaced by extreme ones."""

    def replaced(leaf: Any) -> Any:
        rows = jnp.stack([leaf[place % len(leaf)] for place in range(len(EXTREMES))])
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return rows
        values = jnp.asarray(EXTREMES, leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.broadcast_to(values, rows.shape)

    return jax.tree.map(replaced, records)


def _check_draws(case: Case) -> None:
    """draws are arrays by name, the same for a key and others for another"""
    state = case.end
    draw = jax.jit(jax.vmap(case.method.draw, (None, 0)))
    keys = jax.random.split(case.key, 2)
    two, again = draw(state, keys), draw(state, keys)
    points = case.method.point_estimates(state) if case.method.point_estimates else {}
    if both := sorted(set(two) & set(points)):
        raise MethodError(
            f"{both} are both drawn and estimated as points. Predictions are given both under their names. Rename one."
        )
    if not same_bits(two, again):
        raise MethodError(
            "Two draws with the same key are different. A posterior could not be computed again. Use the key only."
        )
    differ = [name for name, leaf in two.items() if np.asarray(leaf[0]).tobytes() != np.asarray(leaf[1]).tobytes()]
    if case.random_draws and two and not differ:
        raise MethodError(
            "Draws with different keys are the same, so all intervals have no width. Draw from the key, or say "
            "random_draws=False if the method finds one point."
        )


def _check_saving(case: Case) -> None:
    """a state that was saved and read again goes on as if nothing had happened"""
    state = case.end
    leaves, structure = jax.tree.flatten(state)
    file = io.BytesIO()
    np.savez(file, *map(np.asarray, leaves))
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        read = jax.tree.unflatten(structure, [jnp.asarray(saved[name]) for name in saved.files])
    if not same_bits(case.method.draw(state, case.key), case.method.draw(read, case.key)):
        raise MethodError(
            "A state that was saved and read again draws other numbers. A run that is resumed must end with the same "
            "bits. Keep all of the state in arrays of plain types."
        )


def _check_model(case: Case) -> None:
    """predictions, densities, made-up records and draws have the shapes that they must have"""
    model, key = case.method.model, case.key
    draw = case.draw(case.end)
    inputs = case.records
    if case.observed:
        inputs = {name: leaf for name, leaf in inputs.items() if name not in case.observed}
    if model.predict is not None:
        leading = {leaf.shape[:1] for leaf in jax.tree.leaves(traced("predict", model.predict, draw, inputs, key))}
        if leading != {(case.count,)}:
            raise MethodError(
                f"predict returns arrays with leading axes {sorted(leading)} for {case.count} records. Users match "
                "predictions with their rows. Return one prediction for each row of the inputs."
            )
    if model.log_likelihood is not None:
        _check_density(case, draw)
    if model.simulate is not None:
        made, truth = traced("simulate", model.simulate, key, case.records)
        if shapes(made) != shapes(case.records):
            raise MethodError(
                f"simulate returns records of {shapes(made)}, and was given {shapes(case.records)}. A rehearsal "
                "fits the method to them. Replace what the method models, and keep shapes and types."
            )
        drawn = jax.eval_shape(case.method.draw, case.start, key)
        common = set(truth) & set(drawn)
        if drawn and (not common or any(truth[name].shape != drawn[name].shape for name in common)):
            raise MethodError(
                f"simulate draws {shapes(truth)} from the prior, and the posterior has {shapes(drawn)}. A rehearsal "
                "compares the two by name. Return what was drawn under the names of draw."
            )
    if model.synthesize is not None:
        table = model.synthesize(draw, 5, key)
        if {len(column) for column in table.values()} != {5}:
            lengths = sorted({len(column) for column in table.values()})
            raise MethodError(
                f"synthesize was asked for 5 records and returns columns of length {lengths}. Analysts get the number "
                "of records they ask for. Return so many in every column."
            )


def _check_density(case: Case, draw: dict[str, Any]) -> None:
    density = case.method.model.log_likelihood
    assert density is not None
    shape = traced("log_likelihood", density, draw, case.plan.placeholder)
    if getattr(shape, "shape", None) != ():
        raise MethodError(
            f"log_likelihood returns {shape} for one record. Selections add it up over the records. Return one number, "
            "the log density of what the record shows."
        )
    found = np.asarray(jax.jit(jax.vmap(density, (None, 0)))(draw, case.records))
    if np.isnan(found).any():
        raise MethodError(
            f"log_likelihood is NaN for record {int(np.argmax(np.isnan(found)))}. Selections would have nothing to go "
            "by. Return a finite number, or minus infinity for what cannot happen."
        )


def _check_engine(case: Case) -> None:
    """the engine and the reference come to the same state, and a run cut in two to the same bits"""
    settings: dict[str, Any] = {"secret": fixed(SEED), "key": case.key, "ledgers": [Ledger()], "run": "check"}
    settings |= {"kind": "fit", "title": title_of(case.method), "simulation": True}
    given = (case.method, case.data, case.mechanism)
    fast, slow = Runner(*given, **settings), ReferenceRunner(*given, **settings)
    start, steps = case.start, min(3, case.steps)
    whole, one_by_one = fast.advance(start, 0, steps), slow.advance(start, 0, steps)
    if not same_bits(whole, fast.advance(fast.advance(start, 0, 1), 1, steps)):
        raise MethodError(
            "A run that is cut in two ends with other bits. An interrupted run could not be resumed. Keep what a step "
            "hands on to the next in the state, and nowhere else."
        )
    if place := apart(whole, one_by_one, case.tolerance):
        raise MethodError(
            f"After {steps} steps the engine and the reference have different states (in {place}). Both add up the "
            "same contributions, so contribute gives other numbers in a batch. If it uses jnp and jax.lax only, please "
            "report this as a bug of tacit."
        )


CHECKS: tuple[Callable[[Case], None], ...] = (
    _check_tracing,
    _check_leaks,
    _check_purity,
    _check_start,
    _check_requirements,
    _check_contributions,
    _check_bound,
    _check_update,
    _check_extremes,
    _check_draws,
    _check_saving,
    _check_model,
    _check_engine,
)
