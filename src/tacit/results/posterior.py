"""The posterior: draws that may be published, with their certificate."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.ledger.record import UNTIED
from tacit.results.draws import Draws
from tacit.results.learnt import UNVALIDATED, Shares
from tacit.results.numbers import Saved, fingerprints
from tacit.results.shown import table
from tacit.system import atomic_write
from tacit.types import Array, Key, Method, MethodFor, PyTree

DRAWS = 1000
DRAWN_NUMBERS = 1 << 22
"""All draws together hold at most so many numbers, but there are ten draws at least."""
PREDICTED_AT_ONCE = 1 << 22
"""So many numbers of the inputs, times draws, are predicted together: hidden layers must fit into memory."""
Axes = Sequence[tuple[str, Sequence[str]]]
"""Name and coordinates of each axis of a site."""


class Posterior(Draws):
    """Draws from a posterior and the certificate of what they reveal.

    Privacy: post-processing. Holds no record, so it may be saved, pickled and published.

    Attributes
    ----------
    draws
        Site name to array, with a leading axis of draws.
    certificate
        What was certified; None when the records were public.
    point_estimates
        What was estimated without a posterior: name to array, or to a pytree of arrays for a network.
    warning
        What a reader of the numbers must know, such as that a rehearsal found the intervals too narrow; or None.
    labels
        Site name to what its numbers are called, for sites that have names: those of a formula.
    axes
        Site name to the name and the coordinates of each of its axes, likewise.
    reason
        Which method was chosen for the model, and why; empty where the user chose it.
    derived
        How the numbers were computed from those that the certificate names; empty where they are those themselves.
    validated
        Where it was measured how often such intervals hold the truth under privacy noise; empty where it was not.
    noise_share
        Site name to the share of each interval's width that is privacy noise, where the method can say it.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> posterior = tacit.Posterior({"slope": np.linspace(0, 1, 101)}, certificate=None)
    >>> print(posterior)
                                 mean      std       5%      95%
    slope                       0.500    0.292    0.050    0.950
    public records: no privacy was bought, no certificate
    """

    def __init__(
        self,
        draws: dict[str, Array],
        certificate: Certificate | None,
        method: Method | None = None,
        point_estimates: dict[str, PyTree] | None = None,
        warning: str | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        reason: str = "",
        axes: Mapping[str, Axes] | None = None,
        derived: str = "",
        validated: str | None = None,
        noise_share: Shares | None = None,
        contraction: Shares | None = None,
    ) -> None:
        if isinstance(method, MethodFor):
            raise TypeError(
                "The method of a posterior must be built for a plan. Write method(tacit.Plan(data.placeholder)), or "
                "with schema.placeholder()."
            )
        source, prior = (method.model.source, method.model.prior) if method else (None, None)
        validated = validated or (method.validated if method else "")
        labels = labels or getattr(source, "labels", {})
        super().__init__(draws, labels, prior, validated, noise_share, contraction)
        self.axes = dict(axes or getattr(source, "axes", {}))
        self.point_estimates = jax.tree.map(np.asarray, point_estimates or {})
        self.certificate = certificate
        self.warning = warning
        self.reason = reason or (method.model.reason if method else "")
        self.derived = derived
        self._method = method

    @property
    def model(self) -> Any:
        """The model that was fitted, such as a formula; None where the method had none, or is not known any more.

        Privacy: public.
        """
        return self._method.model.source if self._method else None

    def predict(self, inputs: PyTree, *, key: Key) -> PyTree:
        """Predict new records: one prediction for each draw, along a leading axis.

        Privacy: post-processing. ``inputs`` are public or your own: the columns of a record without the observed ones.
        """
        if not isinstance(self._method, Method) or self._method.model.predict is None:
            raise ValueError(
                "This posterior does not know its model. Load it with Posterior.load(path, method), where the method "
                "is the one it was fitted by, built for a record: tacit.vi(model)(tacit.Plan(data.placeholder))."
            )
        count = len(next(iter(self.draws.values()))) if self.draws else DRAWS
        keys = jax.random.split(key, count)
        return _predicted(self._method.model.predict, self.draws, self.point_estimates, inputs, keys)

    def synthesize(self, number: int, copies: int, *, key: Key) -> list[dict[str, Any]]:
        """Make up tables of records, each copy from a draw of its own: what an analyst may be given.

        Analyse every copy alike and combine the answers by ``tacit.synthetic.combine``: one copy taken for real
        records says too much.

        Privacy: post-processing.

        Parameters
        ----------
        number
            Records in each copy.
        copies
            How many tables, at least 20 if they are to be combined.
        key
            Of the public randomness.

        Returns
        -------
        list
            Of dictionaries, column to array, with the schema's levels and numbers within its bounds.
        """
        if self._method is None or self._method.model.synthesize is None:
            raise ValueError(
                "This posterior cannot make up records. Fit tacit.marginals(schema), or tacit.conjugate("
                "tacit.families.table(schema)), which can; one that was saved is loaded with its method: "
                "Posterior.load(path, tacit.marginals(schema)(tacit.Plan(schema.placeholder())))."
            )
        if number < 1 or copies < 1:
            raise ValueError(f"number is {number} and copies {copies}. Write how many records and tables to make up.")
        keys, count = jax.random.split(key, copies), len(next(iter(self.draws.values())))
        places = np.arange(copies) * count // max(copies, count)
        draws = [{name: jnp.asarray(value[place]) for name, value in self.draws.items()} for place in places]
        return [self._method.model.synthesize(draw, number, one) for draw, one in zip(draws, keys, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        # A method is made of closures; whoever unpickles brings it along, as with load.
        return {**self.__dict__, "_method": None, "_prior": None, "_contraction": self.contraction}

    def __repr__(self) -> str:
        said = [f"method: {self.reason}"] if self.reason else []
        said += [] if self.has_intervals else [UNVALIDATED]
        said += [self.warning] if self.warning else []
        learnt = self.learnt()
        more = [one.cells() for one in learnt] if any(one.known for one in learnt) else []
        lines = table(self.draws, self.labels, more, intervals=self.has_intervals)
        return "\n".join([*lines, _promise(self.certificate), *said])

    def to_arviz(self) -> Any:
        """Return the draws in ArviZ's format, as ``shown``: with the certificate and never any observed data.

        What a formula names has its names as coordinates: coefficients, and groups by level.

        Privacy: post-processing.
        """
        from tacit.adapters.arviz import inference_data

        return inference_data(self)

    def fingerprints(self) -> dict[str, str]:
        """Return SHA-256 hashes of the draws, of the points, and of what the numbers are called.

        Privacy: post-processing.
        """
        return fingerprints(self.draws, named(self.point_estimates), self.labels, self.axes)

    def verify(self, ledger: Ledger | None = None) -> str:
        """Check the certificate, and that these are the numbers it was issued for; say what was found.

        Raises
        ------
        CertificateError
            If the certificate does not hold, or was issued for other numbers.

        Privacy: post-processing.

        Parameters
        ----------
        ledger
            The ledger to which the run was charged, if it is to be compared too.
        """
        if self.certificate is None:
            raise ValueError("The records were public, so there is no certificate that could be verified.")
        said = self.certificate.verify(ledger, None if self.derived else self)
        return _derived(self.derived) if self.derived else said

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write draws, points and certificate into one ``.npz`` file, all or nothing.

        Privacy: post-processing.
        """
        write_npz(Path(path), _arrays_of(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str], method: Method | None = None) -> Posterior:
        """Read what ``save`` wrote; with the method it was fitted by, it can predict again.

        Without the method, the arrays of a network come back one by one, under their paths.

        A certificate that was tampered with is refused, and so are numbers that it was not issued for. Where it names
        no numbers (a file of an earlier version), or they were computed from those it names, the ``warning`` says so.

        Privacy: post-processing.
        """
        saved = Saved.read(path)
        certificate = Certificate.from_json(saved["certificate"]) if saved["certificate"] else None
        points, warning = saved["points"], saved["warning"] if certificate is None else _checked(certificate, saved)
        if method is not None and (find := method.point_estimates) is not None:
            shapes = jax.eval_shape(lambda key: find(method.init(key)), jax.random.key(0))
            points = jax.tree.unflatten(jax.tree.structure(shapes), [points[name] for name in named(shapes)])
        texts = {"warning": warning or None, "reason": saved["note"], "derived": saved.derived}
        shares = {"noise_share": saved["noise_share"], "contraction": saved["contraction"] if method is None else None}
        named_by = {"labels": saved["labels"], "axes": saved["axes"], "validated": saved["validated"]}
        return cls(saved["draws"], certificate, method, points, **named_by, **texts, **shares)


def _predicted(predict: Any, draws: PyTree, points: PyTree, inputs: PyTree, keys: Key) -> PyTree:
    """Predict the inputs at each draw, as many draws at once as memory allows."""
    numbers = sum(np.size(leaf) for leaf in jax.tree.leaves(inputs))
    together = min(len(keys), max(1, PREDICTED_AT_ONCE // max(1, numbers)))

    def each(draws: PyTree, points: PyTree, keys: Key) -> PyTree:
        return jax.lax.map(
            lambda one: predict({**one[0], **points}, inputs, one[1]), (draws, keys), batch_size=together
        )

    return jax.jit(each)(jax.tree.map(jnp.asarray, draws), jax.tree.map(jnp.asarray, points), keys)


def _promise(certificate: Certificate | None) -> str:
    """Say in a line what was certified."""
    if certificate is None:
        return "public records: no privacy was bought, no certificate"
    promise = f"certified: epsilon {certificate.epsilon:.4g}, delta {certificate.delta:.3g}"
    return f"SIMULATION, {promise}" if certificate.simulation else promise


def _checked(certificate: Certificate, saved: Saved) -> str:
    """Refuse numbers that the certificate was not issued for; return the warning that goes with the others."""
    certificate.verify(posterior=None if saved.derived else saved)
    said = _derived(saved.derived) if saved.derived else "" if certificate.numbers else UNTIED
    return " ".join(filter(None, (saved["warning"], said if said not in saved["warning"] else "")))


def _arrays_of(posterior: Posterior) -> dict[str, Any]:
    """Return what a posterior's ``.npz`` file holds, as `Saved.read` reads it."""
    certificate = "" if posterior.certificate is None else posterior.certificate.to_json()
    texts = {
        "certificate": certificate,
        "warning": posterior.warning or "",
        "note": posterior.reason,
        "derived": posterior.derived,
        "axes": json.dumps(posterior.axes),
        "validated": posterior.validated,
    }
    return {
        **{f"draws/{name}": value for name, value in posterior.draws.items()},
        **{f"points/{name}": value for name, value in named(posterior.point_estimates).items()},
        **{f"contraction/{name}": value for name, value in posterior.contraction.items()},
        **{f"noise_share/{name}": value for name, value in posterior.noise_share.items()},
        **{f"labels/{name}": np.asarray(list(names)) for name, names in posterior.labels.items()},
        **{name: np.asarray(text) for name, text in texts.items()},
    }


def named(points: Mapping[str, PyTree]) -> dict[str, Any]:
    """Name every array of the points, or of other trees, by its path.

    Privacy: public.
    """
    return {
        name + jax.tree_util.keystr(path): leaf
        for name, tree in points.items()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _derived(how: str) -> str:
    return f"These are not the certified numbers, but said to be computed from them: {how}."


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays so that a crash leaves either the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda file: np.savez(file, **arrays))
