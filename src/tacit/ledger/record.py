"""What a certificate holds, and how it is written as JSON and read again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from tacit.accounting.mechanism import Budget, Mechanism
from tacit.ledger.lines import Charge, Line, canonical
from tacit.ledger.totals import Recipe

FORMAT = "tacit-certificate-2"
BEFORE = "tacit-certificate-1"
"""The format before: it names no numbers, no engine, and does not say whose code ran."""
ENGINES = ("fast", "reference")
"""How private steps are computed: compiled for many records at once, or one record at a time (``tacit.wall``)."""
CODES = {
    "tacit": "Contributions were computed by tacit’s own code, which its proofs and tests are about.",
    "user": "Contributions were computed by code of the user’s (a model, a question, a likelihood). The wall checks "
    "that it sees one record at a time, as far as a program can be checked; its author is trusted not to evade that.",
}
UNTIED = (
    "The certificate does not name the numbers that it was issued for: it holds for the run, but whether these are the "
    "run’s numbers it cannot show."
)
MOST_TEXT = 4 << 20
"""A longer file is not read: no run has so many charges."""
SIMULATION = "SIMULATION — the secret randomness was fixed; this protects nobody"


class CertificateError(ValueError):
    """The certificate is not to be relied upon; the message says why in one sentence.

    Privacy: public.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> data = tacit.PrivateData({"age": np.full(100, 50.0)})
    >>> answer = tacit.ask(data, lambda record: 1.0, tacit.Budget(1.0, 1e-6), clip=1.0)
    >>> tampered = answer.certificate.to_json().replace('"epsilon": ', '"epsilon": 0')
    >>> try:
    ...     tacit.Certificate.from_json(tampered).verify()
    ... except tacit.CertificateError:
    ...     print("refused")
    refused
    """


@dataclass(frozen=True)
class Total:
    """What all runs on the ledger together have cost when the certificate was issued.

    Attributes
    ----------
    epsilon, delta
        The guarantee of all runs together; ``delta`` includes the share ``mechanism.RESERVE`` for numerical
        slack.
    runs
        What was added up: a run's identifier, rate, noise multiplier, steps, and the repeats of a selection (see
        ``ledger.totals.recipes``).
    composition
        The rule by which they were added up.

    Privacy: public.
    """

    epsilon: float
    delta: float
    runs: tuple[Recipe, ...]
    composition: str


@dataclass(frozen=True)
class Record:
    """The fields of a certificate, which :class:`tacit.Certificate` explains.

    Privacy: post-processing.
    """

    run: str
    kind: str
    method: str
    unit: str
    adjacency: str
    epsilon: float
    delta: float
    slack: float
    budget: Budget
    mechanism: Mechanism
    lines: tuple[Line, ...]
    total: Total
    ledger_head: str
    ledger_lines: int
    simulation: bool
    caveats: tuple[str, ...]
    versions: dict[str, str]
    created: str
    numbers: dict[str, str]
    engine: str
    code: str
    losses: tuple[Line, ...]
    refusals: tuple[Line, ...]
    digest: str
    format: str = FORMAT

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The charges of this run."""
        return tuple(charge for line in self.lines if (charge := line.charge) is not None)

    @property
    def planned(self) -> int:
        """The steps that the recipe planned."""
        return self.charges[-1].mechanism.steps

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain JSON values.

        Privacy: post-processing.
        """
        since = {
            "numbers": self.numbers,
            "engine": self.engine,
            "code": self.code,
            "losses": [line.to_dict() for line in self.losses],
            "refusals": [line.to_dict() for line in self.refusals],
        }
        return {
            "notice": SIMULATION if self.simulation else "Real run: the secret randomness came from the system",
            "format": self.format,
            "run": self.run,
            "kind": self.kind,
            "method": self.method,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "slack": self.slack,
            "budget": self.budget.to_dict(),
            "mechanism": self.mechanism.to_dict(),
            "lines": [line.to_dict() for line in self.lines],
            "total": {
                "epsilon": self.total.epsilon,
                "delta": self.total.delta,
                "runs": [list(run) for run in self.total.runs],
                "composition": self.total.composition,
            },
            "ledger_head": self.ledger_head,
            "ledger_lines": self.ledger_lines,
            "simulation": self.simulation,
            "caveats": list(self.caveats),
            "versions": self.versions,
            "created": self.created,
            **(since if self.format != BEFORE else {}),
            "digest": self.digest,
        }

    def to_json(self) -> str:
        """Write the certificate as JSON.

        Privacy: post-processing.
        """
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        # The notice belongs on the first line, where a simulation must say so.
        return text.replace("{\n  ", "{ ", 1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote; :meth:`verify` then checks it.

        Privacy: public.
        """
        if len(text) > MOST_TEXT:
            raise CertificateError(
                f"This is not a certificate that tacit wrote: it is longer than {MOST_TEXT} characters."
            )
        try:
            content = json.loads(
                text,
                parse_float=_shortest(float),
                parse_int=_shortest(int),
                parse_constant=_refuse,
                object_pairs_hook=_unique,
            )
            certificate = cls._from_dict(content)
            same = canonical(certificate.to_dict()) == canonical(content)
        except CertificateError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CertificateError(f"This is not a certificate that tacit wrote: {error!r}.") from error
        if not same:
            raise CertificateError("The certificate was changed: it does not read back as the same content.")
        return certificate

    @classmethod
    def _from_dict(cls, content: dict[str, Any]) -> Self:
        if content["format"] not in (FORMAT, BEFORE):
            raise CertificateError(
                f"The certificate has the format {content['format']!r}, and this version reads {FORMAT!r} and "
                f"{BEFORE!r}."
            )
        if content["format"] == BEFORE:
            content = {**content, "numbers": {}, "engine": "", "code": "", "losses": [], "refusals": []}
        values = {field.name: content[field.name] for field in fields(cls)}
        total = content["total"]
        values["budget"] = Budget.from_dict(content["budget"])
        values["mechanism"] = Mechanism.from_dict(content["mechanism"])
        for name in ("lines", "losses", "refusals"):
            values[name] = tuple(Line.from_dict(line) for line in content[name])
        runs = tuple((str(run), rate, noise, steps, *more) for run, rate, noise, steps, *more in total["runs"])
        values["total"] = Total(total["epsilon"], total["delta"], runs, total["composition"])
        values["caveats"] = tuple(content["caveats"])
        return cls(**values)

    def digest_of_content(self) -> str:
        """Return the hash of everything but the digest.

        Privacy: post-processing.
        """
        content = self.to_dict()
        del content["digest"]
        return hashlib.sha256(canonical(content)).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a certificate from its JSON file or the folder it was saved in; :meth:`verify` then checks it.

        Privacy: public.
        """
        path = Path(path)
        file = path / "certificate.json" if path.is_dir() else path
        try:
            with open(file, encoding="utf-8", newline="") as opened:
                text = opened.read(MOST_TEXT + 1)
        except UnicodeDecodeError as error:
            raise CertificateError(f"{file} is not a certificate that tacit wrote: {error}.") from error
        return cls.from_json(text)


def _shortest(kind: type[float] | type[int]) -> Callable[[str], float | int]:
    """Read numbers only in the form Python writes: a further digit could otherwise be changed unseen."""

    def read(text: str) -> float | int:
        value = kind(text)
        if repr(value) != text:
            raise CertificateError(f"The certificate was changed: the number {text} is not as tacit writes it.")
        return value

    return read


def _refuse(text: str) -> float:
    raise CertificateError(f"The certificate was changed: {text} is not a number.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise CertificateError("The certificate was changed: a name occurs twice in one place.")
    return content
