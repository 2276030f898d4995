"""``tacit.testing.check_method`` passes the ridge regression of its page, and finds what is broken in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.testing import MethodError, check_method
from tacit.types import Method, MethodFor, Model, Plan, Release, Requirement, Suggestions

PAGE = Path(__file__).parents[1] / "docs/journeys/add-a-method.md"
RECORDS = {
    "x": np.random.default_rng(0).uniform(-0.7, 0.7, (12, 2)).astype(np.float32),
    "y": np.random.default_rng(1).uniform(-2, 2, 12).astype(np.float32),
}
REMEMBERED: list[Any] = []


def ridge() -> MethodFor:
    """Return the method of the page, as it is printed there."""
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    known: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), known)
    made: MethodFor = known["ridge"](bound=2.0)
    return made


def test_the_ridge_regression_of_the_page_is_short_and_passes() -> None:
    body = PAGE.read_text(encoding="utf-8").split("    def build(plan):\n")[1].split("    return MethodFor")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 40
    checked = check_method(ridge(), RECORDS, observed=["y"])
    assert "13 checks passed" in str(checked)


def broken(change: Callable[[Method], Method]) -> MethodFor:
    return MethodFor(lambda plan: change(ridge()(plan)))


def another_start(method: Method) -> Method:
    return method._replace(init=lambda key: method.init(key)._replace(xy=np.random.default_rng().normal(size=2)))


def key_in_the_state(method: Method) -> Method:
    return Method(
        lambda key: (method.init(key), key),
        lambda state, record, key: method.contribute(state[0], record, key),
        lambda state, release, key: (method.update(state[0], release, key), state[1]),
        lambda state, key: method.draw(state[0], key),
    )


def branches_on_a_record(method: Method) -> Method:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        shorter = {**record, "y": record["y"] / 2}
        return method.contribute(state, shorter if record["y"] > 0 else record, key)

    return method._replace(contribute=contribute)


def remembers(method: Method) -> Method:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        REMEMBERED.append(record["y"])
        return method.contribute(state, record, key)

    return method._replace(contribute=contribute)


def prints(method: Method) -> Method:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        jax.debug.print("{}", record["y"])
        return method.contribute(state, record, key)

    return method._replace(contribute=contribute)


def holds_the_records(method: Method) -> Method:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        mean = jnp.asarray(RECORDS["y"]).mean()
        return method.contribute(state, {**record, "y": record["y"] - mean}, key)

    return method._replace(contribute=contribute)


def divides_by_zero(method: Method) -> Method:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf / jnp.sum(state.xy**2), method.contribute(state, record, key))

    return method._replace(contribute=contribute)


def longer_than_declared(method: Method) -> Method:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        return {"xx": jnp.outer(record["x"], record["x"]), "xy": record["x"] * record["y"]}

    return method._replace(contribute=contribute)


def depends_on_the_batch(method: Method) -> Method:
    @jax.custom_batching.custom_vmap
    def centred(y: Any) -> Any:
        return y

    @centred.def_vmap
    def _(size: int, in_batched: Any, y: Any) -> Any:
        return y - y.mean(), True

    def contribute(state: Any, record: Any, key: Any) -> Any:
        return method.contribute(state, {**record, "y": centred(record["y"])}, key)

    return method._replace(contribute=contribute)


def step_as_a_float(method: Method) -> Method:
    def update(state: Any, release: Release, key: Any) -> Any:
        after = method.update(state, release, key)
        return after._replace(step=after.step * 1.0)

    return method._replace(update=update)


def forgets_the_rate(method: Method) -> Method:
    return method._replace(
        update=lambda state, release, key: method.update(state, release._replace(full=release.total), key)
    )


def forgets_the_rate_of_the_noise(method: Method) -> Method:
    def update(state: Any, release: Release, key: Any) -> Any:
        return method.update(state, release._replace(rate=jnp.ones(())), key)

    return method._replace(update=update)


def root_of_noise(method: Method) -> Method:
    def update(state: Any, release: Release, key: Any) -> Any:
        after = method.update(state, release, key)
        return after._replace(std=jnp.sqrt(jnp.diag(after.xx)))

    return method._replace(update=update)


def factorises_noise(method: Method) -> Method:
    return method._replace(draw=lambda state, key: {"weight": jnp.linalg.cholesky(state.xx) @ state.xy})


def ignores_the_key(method: Method) -> Method:
    return method._replace(draw=lambda state, key: method.draw(state, jax.random.key(0)))


def draws_by_numpy(method: Method) -> Method:
    def draw(state: Any, key: Any) -> Any:
        return {"weight": method.draw(state, key)["weight"] + np.random.default_rng().normal()}

    return method._replace(draw=draw)


def draws_an_array(method: Method) -> Method:
    return method._replace(draw=lambda state, key: method.draw(state, key)["weight"])  # type: ignore[arg-type,return-value]


def modelled(**functions: Any) -> Callable[[Method], Method]:
    return lambda method: method._replace(model=method.model._replace(**functions))


def needs(predicate: Any) -> Callable[[Method], Method]:
    return lambda method: method._replace(requirements=(Requirement("x is small.", predicate),))


BROKEN: dict[str, tuple[Callable[[Method], Method], str]] = {
    "another start each time": (another_start, "init is another program"),
    "a key in the state": (key_in_the_state, "holds a key"),
    "a start that is not finite": (
        lambda method: method._replace(init=lambda key: method.init(key)._replace(xy=jnp.full(2, jnp.nan))),
        "init returns numbers that are not finite",
    ),
    "a branch on a record": (branches_on_a_record, "contribute cannot be compiled"),
    "a list that remembers records": (remembers, "contribute cannot be compiled"),
    "a print": (prints, "calls out of the compiled program"),
    "an array of the records": (holds_the_records, "as many rows as records are declared"),
    "a division by zero": (divides_by_zero, "record 0 is not finite"),
    "contributions longer than declared": (longer_than_declared, "bounded=True"),
    "no clip for a bound": (lambda method: method._replace(suggests=Suggestions()), "suggests no clip"),
    "a contribution that depends on the batch": (depends_on_the_batch, "is another one in a batch"),
    "a record's key that nobody takes": (
        lambda method: method._replace(per_record_key=True),
        "cannot be called with 4 arguments",
    ),
    "weights for other leaves": (
        lambda method: method._replace(suggests=Suggestions(clip=2.0, weights=(1.0,))),
        "1 block weights",
    ),
    "a requirement of two truth values": (needs(lambda record: record["x"] < 1), "one truth value"),
    "a requirement that records do not meet": (needs(lambda record: record["y"] > 0), "does not meet a requirement"),
    "a state of another type": (step_as_a_float, "update turns a state"),
    "the rate forgotten": (forgets_the_rate, "would follow the rate"),
    "the rate of the noise forgotten": (forgets_the_rate_of_the_noise, "would follow the rate"),
    "a root of noise": (root_of_noise, "the state is not finite"),
    "a factorisation of noise": (factorises_noise, "the draw is not finite"),
    "draws that ignore the key": (ignores_the_key, "Draws with different keys are the same"),
    "draws by NumPy": (draws_by_numpy, "draw is another program"),
    "draws without a name": (draws_an_array, "draw returns a"),
    "predictions that need the outcome": (
        modelled(predict=lambda draw, inputs, key: inputs["y"]),
        "predict cannot be compiled",
    ),
    "one prediction for all rows": (
        modelled(predict=lambda draw, inputs, key: (inputs["x"] @ draw["weight"])[:1]),
        "predict returns arrays",
    ),
    "a density of two numbers": (
        modelled(log_likelihood=lambda draw, record: record["x"] * draw["weight"]),
        "log_likelihood returns",
    ),
    "a density that is NaN": (
        modelled(log_likelihood=lambda draw, record: jnp.log(-1 - record["y"] ** 2)),
        "log_likelihood is NaN",
    ),
    "made-up records of another shape": (
        modelled(simulate=lambda key, records: ({**records, "y": records["x"]}, {"weight": jnp.zeros(2)})),
        "simulate returns records",
    ),
    "a prior of other names": (
        modelled(simulate=lambda key, records: (records, {"slope": jnp.zeros(2)})),
        "simulate draws",
    ),
    "a short table": (modelled(synthesize=lambda draw, number, key: {"y": np.zeros(number - 1)}), "synthesize"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found_and_explained(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(MethodError, match=message) as raised:
        check_method(broken(change), RECORDS, steps=4, observed=["y"])
    found = str(raised.value)
    assert found.count(". ") + found.count("; ") >= 1, "what was found, why it matters, what to write"
    assert len(found) < 700


def test_what_is_no_method_is_refused() -> None:
    with pytest.raises(MethodError, match="Wrap a function of the plan"):
        check_method(lambda plan: ridge()(plan), RECORDS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 records"):
        check_method(ridge(), {name: column[:1] for name, column in RECORDS.items()})


def test_one_point_is_allowed_where_it_is_declared() -> None:
    def point(plan: Plan) -> Method:
        method = ridge()(plan)
        return method._replace(draw=lambda state, key: {"weight": state.xy}, model=Model())

    check_method(MethodFor(point), RECORDS, steps=2, random_draws=False)
