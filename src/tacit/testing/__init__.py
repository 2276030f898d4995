"""Checks for authors of methods: ``check_method`` tries a method on public records and explains what it finds wrong.

Here live the checks and what they are run on. No fit needs them, and nothing else imports this package.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.run.plan import built_for, refuse_unsuited, title_of
from tacit.testing.case import SEED, Case
from tacit.testing.case import MethodError as MethodError
from tacit.testing.checks import CHECKS
from tacit.types import Method, MethodFor, Plan, PyTree
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision


class Checked(NamedTuple):
    """A method that passed, and what was checked."""

    method: str
    passed: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join([f"{self.method}: {len(self.passed)} checks passed", *(f"  {name}" for name in self.passed)])


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
    engine and by the reference. It takes seconds, and can be the body of a test. It cannot check the statistics: for
    these, compare with ``tacit.fit_public`` and ``tacit.rehearse``.

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
        By how much states may differ, relative to their largest number, where they are equal but for rounding.
        ``math.inf`` for a method whose ``update`` runs a Markov chain, where the last bits decide about later moves.

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
) -> Case:
    """Build the method for the plan of the records."""
    if not isinstance(method, Method | MethodFor):
        raise MethodError(
            f"check_method was given a {type(method).__name__}. It checks a tacit.Method, or a tacit.MethodFor that "
            "builds one for a plan. Wrap a function of the plan as tacit.MethodFor(build)."
        )
    records = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), records)
    count = len(jax.tree.leaves(records)[0])
    if count < 2:
        raise ValueError(f"{count} records were given, and the checks compare several. Pass about 20.")
    data = PrivateData(records, size=count)
    plan = Plan(data.placeholder, count, steps=steps)
    built = built_for(method, plan)
    refuse_unsuited(built, plan)
    return Case(
        built, lambda: built_for(method, plan), plan, data, records, count, steps, tolerance, random_draws, observed,
        jax.random.key(SEED),
    )  # fmt: skip
