"""Checks for authors of methods: ``check_method`` tries a method on public records and explains what it finds wrong."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Mechanism
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.run.plan import built_for, refuse_unsuited, suited_clip, title_of
from tacit.types import Key, Method, MethodFor, Plan, PyTree, Record, Release, State, is_sparse
from tacit.wall import trace
from tacit.wall.border import refuse_leaks, released
from tacit.wall.data import PrivateData
from tacit.wall.keys import fixed, to_bytes
from tacit.wall.layout import Layout
from tacit.wall.precision import single_precision
from tacit.wall.reference import ReferenceRunner
from tacit.wall.step import Reference

EXTREMES = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-38, 0.0)
"""What numbers of a record are replaced by, one record each."""
SEED, RATE = 1, 0.5
ROUNDING = 1e-5
"""By how much two programs may round apart, relative to the largest number."""


class MethodError(AssertionError):
    """A method does not do what it must: what was found, why it matters, and what to write."""


class Checked(NamedTuple):
    """A method that passed, and what was checked."""

    method: str
    passed: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{self.method}: {len(self.passed)} checks passed", *(f"  {name}" for name in self.passed)])


class _Case(NamedTuple):
    """A method built for its plan, what it is tried on, and the compiled functions."""

    method: Method
    rebuild: Callable[[], Method]
    plan: Plan
    data: PrivateData
    records: PyTree
    count: int
    steps: int
    tolerance: float
    random_draws: bool
    observed: tuple[str, ...]
    key: Key

    @property
    def start(self) -> State:
        """The state before the first step."""
        return jax.jit(lambda key: jax.tree.map(jnp.asarray, self.method.init(key)))(self.key)

    @property
    def mechanism(self) -> Mechanism:
        """A recipe with noise as large as one contribution."""
        clip = suited_clip(self.method, self.plan)
        return Mechanism(RATE, clip, 1.0, self.steps, weights=self.method.suggests.weights)

    def record(self, place: int) -> Record:
        """Return one of the records."""
        return jax.tree.map(lambda leaf: leaf[place], self.records)

    def contributions(self, state: State, records: PyTree) -> PyTree:
        """Return the contributions of all records, computed as one batch."""
        keys = jax.random.split(self.key, len(jax.tree.leaves(records)[0]))
        batch = jax.vmap(lambda record, mine: self.method.contribution(state, record, self.key, mine))
        return jax.jit(batch)(records, keys)

    def after(self, records: PyTree, count: int) -> State:
        """Return the state after all steps on the first ``count`` records, by the reference."""
        state = self.start
        reference = Reference(
            self.method, self.mechanism, self.plan.placeholder, state,
            count=count, record=lambda place: jax.tree.map(lambda leaf: leaf[place], records), key=self.key,
        )  # fmt: skip
        for step in range(self.steps):
            state = reference.advance(state, to_bytes(fixed(SEED)), step)
        return state

    def draw(self, state: State) -> dict[str, Any]:
        """Return one draw together with the point estimates, as a model's functions are given them."""
        points = self.method.point_estimates(state) if self.method.point_estimates else {}
        return {**self.method.draw(state, self.key), **points}


@single_precision
def check_method(
    method: Method | MethodFor,
    records: PyTree,
    *,
    steps: int = 7,
    observed: Sequence[str] = (),
    random_draws: bool = True,
    tolerance: float = 1e-3,
) -> Checked:
    """Check that a method of your own does what ``tacit.fit`` and the wall take for granted.

    The method is built, traced, and run on the records, on records with extreme numbers and on no records, by the
    engine and by the reference. It takes seconds, and can be the body of a test. What it cannot check is the statistics:
    compare with ``tacit.fit_public`` and ``tacit.rehearse``.

    Privacy: none for the records. Use made-up or public ones.

    Parameters
    ----------
    method
        A method, or a `tacit.MethodFor` that builds one.
    records
        A pytree of arrays with a leading axis of records, about 20 of them; all must meet the method's requirements.
    steps
        The number of private steps.
    observed
        Names of the columns that predictions must do without.
    random_draws
        Whether draws under different keys must differ. False for a method that returns one point.
    tolerance
        By how much states may differ relative to their largest number where they are equal but for rounding.

    Returns
    -------
    Checked
        What was checked. A method that fails raises a ``MethodError``.

    Examples
    --------
    >>> import numpy as np
    >>> import tacit
    >>> from tacit.testing import check_method
    >>> records = np.random.default_rng(0).normal(size=(20, 2))
    >>> checked = check_method(tacit.glm("normal"), {"x": records, "y": records[:, 0]}, observed=("y",))
    """
    case = _case(method, records, steps, tuple(observed), random_draws, tolerance)
    for check in CHECKS:
        check(case)
    return Checked(title_of(case.method), tuple(inspect.cleandoc(check.__doc__ or "") for check in CHECKS))


def _case(
    method: Method | MethodFor,
    records: PyTree,
    steps: int,
    observed: tuple[str, ...],
    random_draws: bool,
    tolerance: float,
) -> _Case:
    """Build the method for the plan of the records."""
    if not isinstance(method, Method | MethodFor):
        raise MethodError(
            f"check_method was given a {type(method).__name__}. It checks a tacit.Method, or a tacit.MethodFor that "
            "builds one for a plan. Wrap a function of the plan as tacit.MethodFor(build)."
        )
    records = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), records)
    count = len(jax.tree.leaves(records)[0])
    if count < 2:
        raise ValueError(f"{count} records were given, and the checks compare several. Give about 20.")
    data = PrivateData(records, size=count)
    plan = Plan(data.placeholder, count, steps=steps)
    built = built_for(method, plan)
    refuse_unsuited(built, plan)
    return _Case(
        built, lambda: built_for(method, plan), plan, data, records, count, steps, tolerance, random_draws, observed,
        jax.random.key(SEED),
    )  # fmt: skip


def _check_tracing(case: _Case) -> None:
    """init, contribute, update and draw can be compiled, and leave nothing behind"""
    method, placeholder, key = case.method, case.plan.placeholder, case.key
    wanted = 4 if method.per_record_key else 3
    try:
        inspect.signature(method.contribute).bind(*[None] * wanted)
    except TypeError:
        raise MethodError(
            f"contribute cannot be called with {wanted} arguments, and per_record_key={method.per_record_key}. It takes "
            "(state, record, key), and a record_key after them where per_record_key=True. Change one of the two."
        ) from None
    state = _traced("init", method.init, key)
    contribution = _traced("contribute", method.contribution, state, placeholder, key, key)
    try:
        Layout.of(contribution, method.suggests.weights)
    except (TypeError, ValueError) as error:
        raise MethodError(str(error)) from error
    _traced("update", method.update, state, _release_like(contribution), key)
    drawn = _traced("draw", method.draw, state, key)
    if not isinstance(drawn, dict):
        raise MethodError(
            f"draw returns a {type(drawn).__name__}, and a posterior has names. Return a dictionary from name to array."
        )


def _traced(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Trace a function of the method and return the shapes of its result."""
    try:
        with jax.checking_leaks():
            return jax.eval_shape(lambda *given: function(*given), *arguments)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:300]
        raise MethodError(
            f"{name} cannot be compiled ({type(error).__name__}: {first}). The wall runs it inside one compiled program, "
            "where numbers are known by shape only and nothing may be kept outside of what is returned. Write jnp for "
            "np, jnp.where for if, and return what is to be remembered as part of the state."
        ) from error


def _release_like(contribution: PyTree) -> Release:
    shape, number = released(contribution), jax.ShapeDtypeStruct((), jnp.float32)
    return Release(shape, jax.tree.map(lambda leaf: number, shape), number, shape)  # type: ignore[arg-type]


def _check_leaks(case: _Case) -> None:
    """no function holds the records or calls out of the program"""
    try:
        refuse_leaks(case.method, case.data, case.start, case.key)
    except ValueError as error:
        raise MethodError(str(error)) from error


def _check_purity(case: _Case) -> None:
    """each function is the same program whenever it is traced or built"""
    key, state = case.key, case.start
    again = case.rebuild()
    release = _release_like(jax.eval_shape(case.method.contribution, state, case.plan.placeholder, key, key))
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


def _check_start(case: _Case) -> None:
    """the start is finite, can be saved, and takes nothing from the number of records or the values of one"""
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


def _check_requirements(case: _Case) -> None:
    """each requirement is one truth value, and the records meet it"""
    for need in case.method.requirements:
        shape = _traced("the predicate of a requirement", need.predicate, case.plan.placeholder)
        if getattr(shape, "shape", None) != () or shape.dtype != bool:
            raise MethodError(
                f'The predicate of "{need.message}" returns {shape}, and a record fits or it does not. Return one '
                "truth value: jnp.all(...)."
            )
        fits = np.asarray(jax.jit(jax.vmap(need.predicate))(case.records))
        if not fits.all():
            raise MethodError(
                f"Record {int(np.argmin(fits))} does not meet a requirement: {need.message} Such records contribute "
                "nothing. Give records that fit, or correct the predicate."
            )


def _check_contributions(case: _Case) -> None:
    """a record contributes finite numbers of one shape, alone or in a batch"""
    single = jax.jit(case.method.contribution)
    keys = jax.random.split(case.key, case.count)
    for state in _states(case):
        placeholder = jax.eval_shape(case.method.contribution, state, case.plan.placeholder, case.key, case.key)
        batch = case.contributions(state, case.records)
        for place in range(case.count):
            alone = single(state, case.record(place), case.key, keys[place])
            mine = jax.tree.map(lambda leaf, place=place: leaf[place], batch)
            if not _finite(alone):
                raise MethodError(
                    f"The contribution of record {place} is not finite. The wall counts it as zero, so the record is "
                    "lost without a word. Bound what is divided by, and the arguments of exp and log."
                )
            if apart := _apart(alone, mine, max(case.tolerance, ROUNDING)):
                raise MethodError(
                    f"The contribution of record {place} is another one in a batch (in {apart}). A contribution must "
                    "depend on its record alone, or a neighbour moves more than its own. Use no function with a "
                    "batching rule of its own."
                )
            if _shapes(alone) != _shapes(placeholder):
                raise MethodError(
                    f"A record contributes {_shapes(alone)} and the placeholder {_shapes(placeholder)}. The sum has one "
                    "public shape. Let shapes follow from plan.placeholder only."
                )


def _states(case: _Case) -> Iterator[State]:
    """Yield the start, and a state with noise in it."""
    yield case.start
    yield case.after(case.records, case.count)


def _check_bound(case: _Case) -> None:
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


def _check_update(case: _Case) -> None:
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
    if _shapes(after) != _shapes(start):
        raise MethodError(
            f"update turns a state of {_shapes(start)} into {_shapes(after)}. Steps follow one another in one compiled "
            "program, so shapes and types stay as init made them. Write jnp.int32(0) and jnp.float32(0) in init, and "
            "cast in update."
        )
    if apart := _apart(after, update(start, half, case.key), case.tolerance):
        raise MethodError(
            f"A release at rate 1 and one at rate 0.5 that stand for the same sum over all records, with the same "
            f"noise, lead to different states (in {apart}). The answer would follow the rate. Use release.full in "
            "place of release.total, and release.noise_std / release.rate for the noise in it."
        )


def _total(case: _Case, state: State) -> PyTree:
    """Return the sum of all contributions."""
    each = case.contributions(state, case.records)
    return jax.tree.map(lambda leaf: leaf.dense() if is_sparse(leaf) else leaf.sum(0), each, is_leaf=is_sparse)


def _check_extremes(case: _Case) -> None:
    """extreme records, no records and noise leave a finite state and finite draws"""
    nothing = jax.tree.map(lambda leaf: leaf[:1], case.records)
    trials = {"records that are extreme": (_extreme(case.records), len(EXTREMES)), "no records": (nothing, 0)}
    for what, (records, count) in trials.items():
        state = case.after(records, count)
        for name, numbers in {"state": state, "draw": jax.jit(case.method.draw)(state, case.key)}.items():
            if not _finite(numbers):
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


def _check_draws(case: _Case) -> None:
    """draws are arrays by name, the same for a key and others for another"""
    state = case.after(case.records, case.count)
    draw = jax.jit(jax.vmap(case.method.draw, (None, 0)))
    keys = jax.random.split(case.key, 2)
    two, again = draw(state, keys), draw(state, keys)
    points = case.method.point_estimates(state) if case.method.point_estimates else {}
    if both := sorted(set(two) & set(points)):
        raise MethodError(
            f"{both} are both drawn and estimated as points. Predictions are given both under their names. Rename one."
        )
    if not _same_bits(two, again):
        raise MethodError(
            "Two draws with the same key are different. A posterior could not be computed again. Use the key only."
        )
    differ = [name for name, leaf in two.items() if np.asarray(leaf[0]).tobytes() != np.asarray(leaf[1]).tobytes()]
    if case.random_draws and two and not differ:
        raise MethodError(
            "Draws with different keys are the same, so all intervals have no width. Draw from the key, or say "
            "random_draws=False if the method finds one point."
        )


def _check_saving(case: _Case) -> None:
    """a state that was saved and read again goes on as if nothing had happened"""
    state = case.after(case.records, case.count)
    leaves, structure = jax.tree.flatten(state)
    file = io.BytesIO()
    np.savez(file, *map(np.asarray, leaves))
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        read = jax.tree.unflatten(structure, [jnp.asarray(saved[name]) for name in saved.files])
    if not _same_bits(case.method.draw(state, case.key), case.method.draw(read, case.key)):
        raise MethodError(
            "A state that was saved and read again draws other numbers. A run that is resumed must end with the same "
            "bits. Keep all of the state in arrays of plain types."
        )


def _check_model(case: _Case) -> None:
    """predictions, densities, made-up records and draws have the shapes that they must have"""
    model, key = case.method.model, case.key
    draw = case.draw(case.after(case.records, case.count))
    inputs = case.records
    if case.observed:
        inputs = {name: leaf for name, leaf in inputs.items() if name not in case.observed}
    if model.predict is not None:
        leading = {leaf.shape[:1] for leaf in jax.tree.leaves(_traced("predict", model.predict, draw, inputs, key))}
        if leading != {(case.count,)}:
            raise MethodError(
                f"predict returns arrays with leading axes {sorted(leading)} for {case.count} records. Users match "
                "predictions with their rows. Return one prediction for each row of the inputs."
            )
    if model.log_likelihood is not None:
        _check_density(case, draw)
    if model.simulate is not None:
        made, truth = _traced("simulate", model.simulate, key, case.records)
        if _shapes(made) != _shapes(case.records):
            raise MethodError(
                f"simulate returns records of {_shapes(made)}, and was given {_shapes(case.records)}. A rehearsal "
                "fits the method to them. Replace what the method models, and keep shapes and types."
            )
        drawn = jax.eval_shape(case.method.draw, case.start, key)
        common = set(truth) & set(drawn)
        if drawn and (not common or any(truth[name].shape != drawn[name].shape for name in common)):
            raise MethodError(
                f"simulate draws {_shapes(truth)} from the prior, and the posterior has {_shapes(drawn)}. A rehearsal "
                "compares the two by name. Return what was drawn under the names of draw."
            )
    if model.synthesize is not None:
        table = model.synthesize(draw, 5, key)
        if {len(column) for column in table.values()} != {5}:
            raise MethodError("synthesize was asked for 5 records and returns columns of another length.")


def _check_density(case: _Case, draw: dict[str, Any]) -> None:
    density = case.method.model.log_likelihood
    assert density is not None
    shape = _traced("log_likelihood", density, draw, case.plan.placeholder)
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


def _check_engine(case: _Case) -> None:
    """the engine and the reference come to the same state, and a run cut in two to the same bits"""
    settings: dict[str, Any] = {"secret": fixed(SEED), "key": case.key, "ledgers": [Ledger()], "run": "check"}
    settings |= {"kind": "fit", "title": title_of(case.method), "simulation": True}
    given = (case.method, case.data, case.mechanism)
    fast, slow = Runner(*given, **settings), ReferenceRunner(*given, **settings)
    start, steps = case.start, min(3, case.steps)
    whole, one_by_one = fast.advance(start, 0, steps), slow.advance(start, 0, steps)
    if not _same_bits(whole, fast.advance(fast.advance(start, 0, 1), 1, steps)):
        raise MethodError(
            "A run that is cut in two ends with other bits. An interrupted run could not be resumed. Keep what a step "
            "hands on to the next in the state, and nowhere else."
        )
    if apart := _apart(whole, one_by_one, case.tolerance):
        raise MethodError(
            f"After {steps} steps the engine and the reference have different states (in {apart}). Both add up the same "
            "contributions, so contribute gives other numbers in a batch. If it uses jnp and jax.lax only, please "
            "report this as a bug of tacit."
        )


CHECKS: tuple[Callable[[_Case], None], ...] = (
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


def _finite(tree: PyTree) -> bool:
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def _same_bits(one: PyTree, two: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _apart(one: PyTree, two: PyTree, tolerance: float) -> str:
    """Name the first leaf in which two trees differ by more than the tolerance; empty if there is none."""
    leaves = jax.tree_util.tree_leaves_with_path(one)
    for (path, a), b in zip(leaves, jax.tree.leaves(two), strict=True):
        first, second = np.asarray(a, float), np.asarray(b, float)
        scale = max(1.0, float(np.abs(first).max(initial=0)))
        if not np.allclose(first, second, rtol=0, atol=tolerance * scale):
            return jax.tree_util.keystr(path) or "its only leaf"
    return ""


def _shapes(tree: PyTree) -> str:
    """Describe the shapes and types of a tree by the names of its leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves) or "nothing"
