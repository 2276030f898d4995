"""The certificate: what was published reveals at most this about any one person, and why.

It is made from the ledger alone, as JSON for programs and as one page of Markdown or HTML for a data
protection officer. :meth:`Certificate.verify` recomputes every number from the file.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from tacit import accounting
from tacit.accounting.explanation import PRIORS, Explanation, explain, percent, trade_off, up
from tacit.accounting.mechanism import RESERVE, Budget, Mechanism, unprintable
from tacit.ledger.file import Ledger
from tacit.ledger.lines import Charge, LedgerError, Line, canonical
from tacit.ledger.totals import Recipe, recipes, summarise
from tacit.system import atomic_write

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
NAMED = {"fit": {"state", "draws", "points", "labels"}, "ask": {"answer"}}
NAMED["select"] = {*NAMED["fit"], "score"}
"""The numbers that a certificate of each kind names by their hashes."""
UNTIED = (
    "The certificate does not name the numbers that it was issued for: it holds for the run, but whether these are the "
    "run’s numbers it cannot show."
)
MOST_TEXT = 4 << 20
"""A longer file is not read: no run has so many looks."""
MOST_RECIPES = 500
"""Of more different recipes the cost is not computed anew: it would take many seconds."""
SIMULATION = "SIMULATION — the secret randomness was fixed; this protects nobody"

# Two versions of the accounting library may differ in the last bits; a claim may be below by no more than
# that.
_TOLERANCE = 1e-9

ADJACENCY = {
    "add-remove": "add or remove one",
    "replace-one": "replace one by any other",
}


class Numbered(Protocol):
    """Released numbers that know their hashes: a posterior, an answer, a selection."""

    def fingerprints(self) -> dict[str, str]:
        """Return the hashes of the numbers, by name."""


class CertificateError(ValueError):
    """The certificate is not to be relied upon; the message says why in one sentence."""


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
        ``ledger.recipes``).
    composition
        The rule by which they were added up.

    Privacy: public.
    """

    epsilon: float
    delta: float
    runs: tuple[Recipe, ...]
    composition: str


@dataclass(frozen=True)
class Certificate:
    """What a run reveals at most about any one unit, and everything needed to check it.

    Use :meth:`issue`. The digest finds any change to the file, but it is not a signature: someone who
    rewrites the whole file consistently can replace it. They still cannot claim a smaller ε than the recipe
    and looks in the file give, because :meth:`verify` computes it anew; but that the recipe and the looks are
    those of the real run, only the ledger or a signature can show.

    Attributes
    ----------
    run, kind, method
        Which run, ``"fit"``, ``"ask"`` or ``"select"``, and what was computed in public words.
    unit, adjacency
        Who is protected, and what counts as a neighbouring data set.
    epsilon, delta, slack
        The guarantee. ``delta`` includes the ``slack`` for inexact sampling; ε is certified at the rest.
    budget
        What was asked for.
    mechanism
        The recipe, with the steps actually looked at; a step looked at again counts again.
    lines
        The ledger's lines of this run. :attr:`looks` gives the looks on them.
    total
        What all runs on the ledger have cost.
    ledger_head, ledger_lines
        The hash of the ledger's last line and the number of lines, at the time of issue.
    simulation
        Whether the secret randomness was fixed, so that nobody is protected.
    caveats
        What the issuer wants to be read. :attr:`notes` adds what follows from the looks.
    versions
        Of the software that ran.
    created
        When it was issued, UTC.
    numbers
        SHA-256 of what was released, by name (``tacit.results.numbers``): of a fit its last state, draws, points and
        labels; of a question its answer. Empty in certificates of the format before, or where no numbers were given.
    engine
        How private steps were computed.
    code
        Whose code computed contributions: ``"tacit"`` or ``"user"``; empty where it is not known.
    losses
        The ledger's lines that say that looks were lost, and who accepted that.
    refusals
        The ledger's lines that say that records were checked and refused.
    digest
        The hash of all of the above.

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

    # Making one

    @classmethod
    def issue(
        cls,
        *,
        ledger: Ledger,
        run: str,
        budget: Budget,
        slack: float,
        versions: Mapping[str, str] | None = None,
        caveats: Iterable[str] = (),
        numbers: Mapping[str, str] | None = None,
        code: Literal["tacit", "user"] = "user",
        engine: Literal["fast", "reference"] = "fast",
    ) -> Certificate:
        """Certify a run by what the ledger says about it.

        Parameters
        ----------
        ledger
            The ledger to which the run was charged.
        run
            The run's identifier.
        budget
            What was asked for; the certificate states ε at its δ.
        slack
            The part of δ that stands for inexact sampling, as computed by the wall.
        versions
            Of the software that ran.
        caveats
            Sentences to be printed.
        numbers
            Hashes of what was released, by name.
        code
            Whose code computed contributions (``tacit.ledger.provenance.whose``).
        engine
            How steps were computed, as in ``tacit.fit``.

        Privacy: post-processing.
        """
        lines = ledger.lines
        of_run = tuple(line for line in lines if (charge := line.charge) is not None and charge.run == run)
        if not of_run:
            raise CertificateError(
                f"The ledger holds no look of run {run!r}, so there is nothing to certify; "
                "give the ledger and the identifier that the run was charged to."
            )
        if not 0 < slack < budget.delta:
            raise CertificateError(
                f"The numerical slack is {slack!r} and δ is {budget.delta!r}. No sampler is exact, so the slack is "
                "above 0, and something of δ must be left to certify ε at; give what the wall computed, and ask for "
                "a larger δ if it is too large."
            )
        if isinstance(caveats, str):
            raise CertificateError(
                f"The caveats are one string, {caveats!r}, and would be printed letter by letter; "
                "write a list of sentences."
            )
        charges = [charge for line in lines if (charge := line.charge) is not None]
        summary = summarise(charges)[run]
        if budget.unit != summary.unit:
            raise CertificateError(
                f"The budget protects each {budget.unit!r} and the run was charged for each "
                f"{summary.unit!r}: an ε for one says nothing about the other; write Budget(..., "
                f"unit={summary.unit!r})."
            )
        mechanism = summary.looked
        at = _without_slack(budget.delta, slack)
        runs = recipes(charges)
        draft = cls(
            run=run,
            kind=summary.kind,
            method=summary.method,
            unit=summary.unit,
            adjacency=mechanism.adjacency,
            epsilon=float(mechanism.cost(at)),
            delta=float(budget.delta),
            slack=float(slack),
            budget=budget,
            mechanism=mechanism,
            lines=of_run,
            total=Total(
                epsilon=_sum(runs, _for_all_runs(budget.delta, slack), mechanism.adjacency),
                delta=float(budget.delta),
                runs=runs,
                composition=accounting.COMPOSITION[mechanism.adjacency],
            ),
            ledger_head=lines[-1].hash,
            ledger_lines=len(lines),
            simulation=summary.simulation,
            caveats=tuple(caveats),
            versions=dict(versions or {}),
            created=datetime.now(UTC).date().isoformat(),
            numbers=dict(numbers or {}),
            engine=engine,
            code=code,
            losses=ledger.losses,
            refusals=tuple(line for line in lines if line.note is not None),
            digest="",
        )
        # Once through JSON, so that the digest is that of what a reader will read.
        draft = cls._from_dict(json.loads(canonical(draft.to_dict())))
        return replace(draft, digest=draft._digest())

    # Checking one

    def verify(self, ledger: Ledger | None = None, posterior: Numbered | None = None) -> str:
        """Recompute the certificate from its recipe and looks, and compare it with ledger and numbers if given.

        Without the ledger this shows that the file is whole and that its ε is what its recipe costs. It does
        not show who issued it, nor that no look was left out: a digest is not a signature. With the ledger it
        also shows that the looks are all looks of the run, and that the ledger was not shortened or rewritten
        since. With the posterior it also shows that its numbers are those that the certificate was issued for.

        Parameters
        ----------
        ledger
            The ledger to which the run was charged.
        posterior
            The posterior, answer or selection that came with the certificate.

        Returns
        -------
        str
            What was found of the numbers, in a sentence: that they are the certificate's, that they were not given, or
            that the certificate names none.

        Raises
        ------
        CertificateError
            With one sentence that says what is wrong.

        Privacy: post-processing.
        """
        try:
            return self._verify(ledger, posterior)
        except CertificateError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise CertificateError(f"The certificate does not make sense: {error}.") from error

    def _verify(self, ledger: Ledger | None, posterior: Numbered | None) -> str:
        # The digest first: it is cheap, and says most plainly that something was changed.
        if self.digest != self._digest():
            raise CertificateError("The certificate was changed: its digest does not belong to its content.")
        self._verify_texts()
        self._verify_charges()
        if not 0 < self.slack < self.delta or self.delta != self.budget.delta or self.delta != self.total.delta:
            raise CertificateError(
                f"The certificate's δ = {self.delta!r} does not fit its slack {self.slack!r}, budget or total."
            )
        at = _without_slack(self.delta, self.slack)
        cost = float(self.mechanism.cost(at))
        if not self.epsilon >= cost * (1 - _TOLERANCE):
            raise CertificateError(
                f"The certificate claims ε = {self.epsilon!r}, but its recipe costs {cost!r} at δ = {self.delta!r}."
            )
        repeated = summarise(self.charges)[self.run].repeated
        if self.epsilon > self.budget.epsilon * (1 + _TOLERANCE) and not repeated:
            raise CertificateError(
                f"The certificate states ε = {self.epsilon!r}, more than the budget of {self.budget.epsilon!r}, "
                "although no step was looked at again: a run is planned to fit its budget."
            )
        self._verify_total()
        if ledger is not None:
            self._verify_ledger(ledger)
        return self._verify_numbers(posterior)

    def _verify_texts(self) -> None:
        """Refuse what would be shown as another text than it is, and names of things that do not exist."""
        texts = {
            "run": [self.run, *(str(run[0]) for run in self.total.runs)],
            "method": [self.method],
            "unit": [self.unit, self.budget.unit],
            "ledger": [self.ledger_head, *(line.time for line in (*self.lines, *self.losses, *self.refusals))],
            "tag": [charge.tag for charge in self.charges],
            "loss": [line.reason for line in self.losses],
            "refusal": [text for line in self.refusals for text in (line.note or {}).values()],
            "caveats": list(self.caveats),
            "versions": [*self.versions, *self.versions.values()],
            "total": [self.total.composition],
            "day": [self.created],
            "engine": [self.engine],
        }
        for name, given in texts.items():
            if found := next(filter(None, map(unprintable, given)), ""):
                raise CertificateError(
                    f"The certificate's {name} holds the character {found}, which cannot be seen or changes the "
                    "direction of writing: a page could show another text than it holds."
                )
        if self.format == FORMAT:
            if self.code not in CODES or self.engine not in ENGINES:
                raise CertificateError(
                    f"The certificate says that code of {self.code!r} ran on the engine {self.engine!r}, and knows "
                    f"{sorted(CODES)} and {list(ENGINES)}."
                )
            hashes = all(isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one) for one in self.numbers.values())
            if not hashes or (self.numbers and set(self.numbers) != NAMED.get(self.kind)):
                raise CertificateError(
                    f"The certificate names the numbers {sorted(self.numbers)}, which is not what a {self.kind!r} "
                    "releases, or not by their hashes."
                )

    def _verify_numbers(self, posterior: Numbered | None) -> str:
        if not self.numbers:
            return UNTIED
        if posterior is None:
            return "The numbers were not given, so that they could not be compared with those of the certificate."
        found = posterior.fingerprints()
        other = [name for name in sorted(found) if self.numbers.get(name) != found[name]]
        if other:
            raise CertificateError(
                f"The {' and '.join(other)} are not what the certificate was issued for: they were changed, or belong "
                "to another run."
            )
        return "The numbers are those that the certificate was issued for."

    def _verify_charges(self) -> None:
        charges = self.charges
        if not charges or any(charge.run != self.run for charge in charges):
            raise CertificateError(f"The certificate's looks are not those of its run {self.run!r}.")
        if any(not line.intact for line in self.losses) or any(line.loss is None for line in self.losses):
            raise CertificateError("A loss on the certificate was changed: its hash does not belong to it.")
        if any(not line.intact or line.note is None for line in self.refusals):
            raise CertificateError("A refusal on the certificate was changed: its hash does not belong to it.")
        if not all(line.intact for line in self.lines):
            raise CertificateError("A look on the certificate was changed: its hash does not belong to it.")
        if any(one.seq >= two.seq for one, two in zip(self.lines, self.lines[1:], strict=False)):
            raise CertificateError("The certificate's looks are not in the ledger's order, each once.")
        if self.lines[-1].seq >= self.ledger_lines:
            raise CertificateError("The certificate holds a look that its ledger did not have when it was issued.")
        if self.lines[-1].seq == self.ledger_lines - 1 and self.lines[-1].hash != self.ledger_head:
            raise CertificateError("The certificate's last look is not the ledger's head that it names.")
        run = summarise(charges)[self.run]
        if any(charge.mechanism != run.mechanism or charge.kind != run.kind for charge in charges):
            raise CertificateError("The certificate's looks are of more than one recipe.")
        if run.kind == "select" and len(charges) > 1:
            raise CertificateError("The certificate is of a selection, which is one look, and holds several.")
        if run.steps != self.mechanism.steps:
            raise CertificateError(
                f"The certificate's recipe has {self.mechanism.steps} steps, but its looks took {run.steps}."
            )
        if run.looked != self.mechanism:
            raise CertificateError("The certificate's recipe is not the one on its looks.")
        said = (self.kind, self.method, self.unit, self.budget.unit, self.adjacency, self.simulation)
        held = (run.kind, run.method, run.unit, run.unit, run.mechanism.adjacency, run.simulation)
        if said != held or any(charge.unit != self.unit for charge in charges):
            raise CertificateError(
                "The certificate's kind, method, unit, adjacency or simulation is not that of its looks."
            )
        ahead = (*self.lines, *self.losses, *self.refusals)
        if any(line.seq < 1 for line in ahead) or len({line.seq for line in ahead}) != len(ahead):
            raise CertificateError("The certificate's lines have numbers that no ledger gives them.")
        if any(two.seq == one.seq + 1 and two.prev != one.hash for one, two in itertools.pairwise(self.lines)):
            raise CertificateError("The certificate's looks do not follow from one another as a ledger's do.")
        # A header, the run's own looks, losses, refusals; and of every other run one look at least.
        others = len({run[0] for run in self.total.runs} - {self.run})
        least = 1 + len(ahead) + others
        if self.ledger_lines < least or (self.ledger_lines > least and not others):
            raise CertificateError(
                f"The certificate's ledger had {self.ledger_lines} lines, and its looks and runs explain "
                f"{'' if not others else 'at least '}{least}: looks were left out, or made up."
            )

    def _verify_total(self) -> None:
        mechanism = self.mechanism
        different = len({run[1:] for run in self.total.runs})
        if different > MOST_RECIPES:
            raise CertificateError(
                f"The certificate's total is of {different} different recipes, and no more than {MOST_RECIPES} are "
                "added up anew; give later data a ledger of their own."
            )
        of_run = [run[1:] for run in self.total.runs if run[0] == self.run]
        if (
            any(one[:2] != (mechanism.rate, mechanism.noise_multiplier) for one in of_run)
            or any(one[3:] != (() if mechanism.repeats is None else (mechanism.repeats,)) for one in of_run)
            or sum(one[2] for one in of_run) < mechanism.steps
        ):
            raise CertificateError("The certificate's total does not hold its own run as its looks have it.")
        total = _sum(self.total.runs, _for_all_runs(self.delta, self.slack), self.adjacency)
        if not self.total.epsilon >= total * (1 - _TOLERANCE):
            raise CertificateError(
                f"The certificate claims ε = {self.total.epsilon!r} for all runs together, but they cost {total!r}."
            )

    def _verify_ledger(self, ledger: Ledger) -> None:
        try:
            ledger.verify()
            lines = ledger.lines
        except LedgerError as error:
            raise CertificateError(f"The ledger is broken: {error}") from error
        if len(lines) < self.ledger_lines:
            raise CertificateError(
                f"The ledger has {len(lines)} lines but had {self.ledger_lines} when the certificate was "
                "issued: it was shortened, or it is another ledger."
            )
        if lines[self.ledger_lines - 1].hash != self.ledger_head:
            raise CertificateError(
                f"Line {self.ledger_lines} of the ledger is not the one the certificate names: the ledger "
                "was rewritten, or it is another ledger."
            )
        then = lines[: self.ledger_lines]
        if tuple(line for line in then if (charge := line.charge) is not None and charge.run == self.run) != self.lines:
            raise CertificateError("The looks on the certificate are not all the ledger's looks of this run.")
        if tuple(line for line in then if line.loss is not None) != self.losses:
            raise CertificateError("The losses on the certificate are not those that the ledger says were accepted.")
        if tuple(line for line in then if line.note is not None) != self.refusals:
            raise CertificateError("The refusals on the certificate are not those that the ledger holds.")
        charges = [charge for line in then if (charge := line.charge) is not None]
        if recipes(charges) != self.total.runs:
            raise CertificateError("The runs in the certificate's total are not those on the ledger.")
        later = sum(
            charge.steps
            for line in lines[self.ledger_lines :]
            if (charge := line.charge) is not None and charge.run == self.run
        )
        if later:
            raise CertificateError(
                f"Run {self.run!r} has looked at {later} more steps since the certificate was issued: issue a new one."
            )

    # GuidedModel one

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The looks of this run."""
        return tuple(charge for line in self.lines if (charge := line.charge) is not None)

    @property
    def planned(self) -> int:
        """The steps that the recipe planned."""
        return self.charges[-1].mechanism.steps

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know besides the caveats; it follows from the looks, so none can be left out."""
        notes = []
        run = summarise(self.charges)[self.run]
        if run.steps < self.planned:
            whole = float(replace(self.mechanism, steps=self.planned).cost(_without_slack(self.delta, self.slack)))
            notes.append(
                f"The run stopped after {run.steps} of {self.planned} planned steps, and ε counts those. "
                "That is right if nothing released had a say in when to stop; if it had, count the whole "
                f"recipe: ε = {up(whole, 4)}."
            )
        if run.repeated:
            notes.append(
                f"{run.repeated} steps were looked at again, because they could not be replayed (another "
                "key, program or version). They are counted again."
            )
        if self.epsilon > self.budget.epsilon:
            notes.append(
                f"The run cost ε = {up(self.epsilon, 4)}, more than the ε = {up(self.budget.epsilon, 4)} asked for."
            )
        for line in self.losses:
            notes.append(
                f"Looks at these data were lost from the ledger and are in no total: {line.lost}. That was accepted on "
                f"{_when(line.time)}, with the words: {line.reason}"
            )
        if self.refusals:
            notes.append(
                f"Records were checked and refused {len(self.refusals)} times. Each refusal told whoever asked that "
                "some record was not what a method needs, which ε does not count."
            )
        if not self.numbers:
            notes.append(UNTIED)
        return tuple(notes)

    def explain(self) -> Explanation:
        """Say what the guarantee means, from the recipe's whole privacy-loss distribution.

        Privacy: post-processing.
        """
        return explain(self.epsilon, self.delta, self.mechanism, slack=self.slack, unit=self.unit)

    def __str__(self) -> str:
        return self.to_markdown()

    def __repr__(self) -> str:
        first = f"{SIMULATION}; " if self.simulation else ""
        guarantee = f"ε = {up(self.epsilon, 4)} at δ = {up(self.delta)} per {self.unit}"
        return f"<{first}Certificate of {self.run!r}: {guarantee}>"

    # Writing and reading files

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
    def from_json(cls, text: str) -> Certificate:
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
    def _from_dict(cls, content: dict[str, Any]) -> Certificate:
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

    def _digest(self) -> str:
        content = self.to_dict()
        del content["digest"]
        return hashlib.sha256(canonical(content)).hexdigest()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write certificate.json, .md and .html into a folder, each whole or not at all.

        Returns
        -------
        Path
            The JSON file.

        Privacy: post-processing.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "certificate.md", self.to_markdown())
        _write(folder / "certificate.html", self.to_html())
        _write(folder / "certificate.json", self.to_json())
        return folder / "certificate.json"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Certificate:
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

    # The page

    def to_markdown(self) -> str:
        """Write the page as Markdown.

        Privacy: post-processing.
        """
        parts = [f"**{SIMULATION}**", ""] if self.simulation else []
        parts += ["# Privacy certificate", "", _markdown(self.lead()), ""]
        for section in self.sections(self.explain()):
            parts += [f"## {section.title}", ""]
            for block in section.blocks:
                parts += [*_markdown_block(block), ""]
        return "\n".join(parts)

    def to_html(self) -> str:
        """Write the page as one HTML file without references to anything outside it.

        Privacy: post-processing.
        """
        explanation = self.explain()
        escape = html.escape
        # A comment may precede the doctype: so the first line says it, and not only the first that is shown.
        first = f"<!-- {SIMULATION} -->\n" if self.simulation else ""
        title = f"{SIMULATION}: " if self.simulation else ""
        banner = f'<p class="banner" role="alert">{SIMULATION}</p>\n' if self.simulation else ""
        tiles = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in self.figures(explanation)
        )
        body = []
        for section in self.sections(explanation):
            blocks = "\n".join(html_block(block) for block in section.blocks)
            if section.curve:
                blocks += "\n" + _curve(self.mechanism, self.slack)
            body.append(f'<section class="{section.style}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>')
        head = (
            '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}Privacy certificate {escape(self.run)}</title>\n<style>{_STYLE}</style>"
        )
        top = f"<h1>Privacy certificate</h1>\n<p>{escape(self.lead())}</p>\n<dl>{tiles}</dl>"
        main = "\n".join(body)
        return (
            f'{first}<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{banner}'
            f"<header>\n{top}\n</header>\n<main>\n{main}\n</main>\n</body>\n</html>\n"
        )

    def lead(self) -> str:
        """Return the sentence that the page begins with.

        Privacy: post-processing.
        """
        neighbours = f"{ADJACENCY[self.adjacency]} {self.unit}"
        guarantee = f"ε = {up(self.epsilon, 4)} at δ = {up(self.delta)} (neighbouring data: {neighbours})"
        if self.simulation:
            return (
                f"Run {self.run} ({self.method}) was a simulation. With secret randomness the same recipe "
                f"would give each {self.unit} {guarantee}; with the fixed randomness used here it protects "
                "nobody."
            )
        what = {"ask": "The answer", "select": "The best outcome"}.get(self.kind, "The posterior")
        return (
            f"{what} of run {self.run} ({self.method}) may be published with this guarantee for each "
            f"{self.unit}: {guarantee}."
        )

    def figures(self, explanation: Explanation) -> list[tuple[str, str]]:
        """Return the four numbers that the page shows large.

        Privacy: post-processing.
        """
        return [
            ("ε", up(self.epsilon, 4)),
            ("δ", up(self.delta)),
            ("attacker’s advantage", up(explanation.advantage)),
            ("found at 1% false alarms", percent(explanation.true_positive_rates[0])),
        ]

    def sections(self, explanation: Explanation) -> list[Section]:
        """Return the sections of the page; a report shows some of them.

        Privacy: post-processing.
        """
        unit = self.unit
        warnings = [*self.notes, *self.caveats]
        runs = len({run for run, *_ in self.total.runs})
        errors = [
            (percent(fpr), percent(tpr))
            for fpr, tpr in zip(explanation.false_positive_rates, explanation.true_positive_rates, strict=True)
        ]
        sections = [
            Section("Who is protected", [explanation.protected]),
            Section(
                "Against what",
                [
                    f"Against anyone who wants to know {explanation.question}, sees everything published, "
                    "and may know all the other data, the method, this recipe, and have any computer that "
                    "cannot break the ciphers (ChaCha20, AES-256) from which the secret randomness is made."
                ],
            ),
            Section(
                "How much",
                [
                    explanation.about_odds,
                    Table(
                        ("Belief before", "at most after"),
                        [(percent(prior), percent(explanation.probability(prior))) for prior in PRIORS],
                    ),
                    explanation.about_delta,
                    explanation.about_errors[0],
                    Table(("Attacker’s false positives", "true positives, at most"), errors),
                    explanation.about_source,
                ],
                curve=True,
            ),
            Section(
                "All runs together",
                [
                    f"When this was issued, the ledger held {runs} {'run' if runs == 1 else 'runs'} on these data, "
                    f"this one included; together they cost ε = {up(self.total.epsilon, 4)} at δ = "
                    f"{up(self.total.delta)}. Rule: {self.total.composition.rstrip('.')}."
                ],
            ),
            Section("What is not protected", [_not_protected(unit, self.adjacency)]),
            Section("The recipe", [Table((), self._recipe())]),
            Section(
                "All looks at the data",
                [Table(("Line", "Day (UTC)", "Steps", "Looks", "Tag"), self._rows())],
                style="wide",
            ),
            Section("For the record", [Table((), self._identity())], style="wide"),
        ]
        if warnings:
            sections.insert(0, Section("Please note", [warnings], style="warning"))
        return sections

    def _recipe(self) -> list[tuple[str, str]]:
        recipe = self.mechanism
        asked = f"ε = {self.budget.epsilon:g} at δ = {self.budget.delta:g}, per {self.budget.unit}"
        rows = [
            ("Certified ε", f"{self.epsilon!r}"),
            ("at δ, slack included", f"{self.delta!r}"),
            ("Asked for", asked),
            ("Neighbouring data", f"{ADJACENCY[self.adjacency]} {self.unit} ({self.adjacency})"),
            ("Rate: chance to be in a step’s subset", f"{recipe.rate!r}"),
            ("Clip: bound on a contribution", f"{recipe.clip!r}"),
            ("Noise multiplier", f"{recipe.noise_multiplier!r}"),
            ("Noise standard deviation", _number(recipe.noise_std)),
            ("Steps looked at (planned)", f"{recipe.steps} ({self.planned})"),
            ("Numerical slack, part of δ", f"{self.slack!r}"),
        ]
        if recipe.repeats is not None:
            rows.append(
                (
                    "Runs of all these steps, of which the best is shown",
                    f"a secret number, Poisson with mean {recipe.repeats!r} but not 0",
                )
            )
        weights = recipe.to_dict().get("weights")
        if weights is not None:
            rows.append(("Block weights", json.dumps(weights, ensure_ascii=False)))
        return rows

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the looks, those that follow one another put together."""
        groups: list[list[tuple[Line, Charge]]] = []
        for line, charge in zip(self.lines, self.charges, strict=True):
            if groups and groups[-1][-1][1].tag == charge.tag and groups[-1][-1][1].stop == charge.first:
                groups[-1].append((line, charge))
            else:
                groups.append([(line, charge)])
        rows: list[tuple[str, ...]] = []
        for group in groups:
            (line, charge), (end, last) = group[0], group[-1]
            rows.append(
                (
                    _span(str(line.seq + 1), str(end.seq + 1)),
                    _span(_when(line.time), _when(end.time)),
                    f"{charge.first} to {last.stop - 1}",
                    str(len(group)),
                    charge.tag[:8],
                )
            )
        return rows

    def _identity(self) -> list[tuple[str, str]]:
        return [
            ("Run", f"{self.run} ({self.kind}: {self.method})"),
            ("Issued", self.created),
            ("Randomness", "fixed: a simulation" if self.simulation else "secret: a real run"),
            ("Ledger", f"line {self.ledger_lines}, head {self.ledger_head}"),
            ("Whose code", CODES.get(self.code, "Not said: the certificate is of a format that did not say it.")),
            ("Engine", self.engine or "not said"),
            *((f"SHA-256 of the {name}", value) for name, value in sorted(self.numbers.items())),
            ("Digest", self.digest),
            (
                "Versions",
                ", ".join(f"{name} {version}" for name, version in sorted(self.versions.items())) or "none given",
            ),
            (
                "To check",
                "tacit certificate verify RUN computes ε anew, and compares the hashes with the numbers in the run’s "
                "folder.",
            ),
        ]


# The page's parts: a text is a paragraph, a list of texts a bulleted list.


@dataclass(frozen=True)
class Table:
    """A table of a page; without a head its first column is one.

    Privacy: post-processing.
    """

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


Block = str | list[str] | Table


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Privacy: post-processing.
    """

    title: str
    blocks: list[Block]
    style: Literal["text", "warning", "wide"] = "text"
    curve: bool = False


def _not_protected(unit: str, adjacency: str) -> list[str]:
    size = (
        f"The number of {unit}s: it is public under this adjacency."
        if adjacency == "replace-one"
        else f"The number of {unit}s, where it was declared public."
    )
    return [
        "What the data say about people in general. That smokers fall ill more often may be learned, and "
        "applied to anyone, in the data or not.",
        "The data from those who run the code or can read that machine’s memory, disk or keys.",
        "Side channels such as run time, memory use, energy or network traffic.",
        f"A person behind several {unit}s as well as one behind a single {unit}: for k of them count k "
        "times ε or more.",
        size,
        "Anything published from the same data outside this ledger: tables, plots, earlier studies.",
        "Settings chosen by looking at the data (bounds, priors, the recipe), and error messages about "
        "malformed data, which the curator sees and must not publish.",
    ]


def _markdown(text: str) -> str:
    # Names come from users: they must not become markup or break a table.
    for sign in "\\`*_<>|[]#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _markdown_block(block: Block) -> list[str]:
    if isinstance(block, str):
        return [_markdown(block)]
    if isinstance(block, list):
        return [f"- {_markdown(item)}" for item in block]
    width = len(block.head) or len(block.rows[0])
    lines = [block.head or ("",) * width, ("---",) * width]
    rows = [tuple(_markdown(cell) for cell in row) for row in block.rows]
    return ["| " + " | ".join(row) + " |" for row in [*lines, *rows]]


def html_block(block: Block) -> str:
    """Write a part of a page as HTML.

    Privacy: post-processing.
    """
    escape = html.escape
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, list):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block) + "</ul>"
    if not block.head:
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in block.rows
        )
        return f'<table class="facts"><tbody>{rows}</tbody></table>'
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in block.head)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _curve(mechanism: Mechanism, slack: float) -> str:
    """Draw the best attacker's true positives against false positives, with the coin flip's diagonal."""
    fpr, tpr = trade_off(mechanism, slack)
    size, left, top = 200.0, 46.0, 8.0
    path = " ".join(f"{left + size * x:.1f},{top + size * (1 - y):.1f}" for x, y in zip(fpr, tpr, strict=True))
    low, high, right, base = f"{left:g}", f"{top:g}", f"{left + size:g}", f"{top + size:g}"
    ticks = "".join(
        f'<text x="{left + size * t:.0f}" y="{top + size + 13:.0f}" text-anchor="middle">{t:.0%}</text>'
        f'<text x="{left - 5:.0f}" y="{top + size * (1 - t) + 4:.0f}" text-anchor="end">{t:.0%}</text>'
        for t in (0.0, 0.5, 1.0)
    )
    words = "True positives of the best attacker against false positives; the dashed diagonal is a coin flip"
    middle = f"{top + size / 2:.0f}"
    return (
        f'<figure><svg viewBox="0 0 262 246" role="img" aria-label="{words}">'
        f'<polygon class="gain" point_estimates="{low},{base} {path} {right},{high}"/>'
        f'<path class="axes" d="M{low},{high} V{base} H{right}"/>'
        f'<path class="coin" d="M{low},{base} L{right},{high}"/>'
        f'<polyline class="best" point_estimates="{path}"/>{ticks}'
        f'<text x="{left + size / 2:.0f}" y="240" text-anchor="middle">false positives</text>'
        f'<text transform="translate(10 {middle}) rotate(-90)" text-anchor="middle">true positives</text>'
        f"</svg><figcaption>{words}. The shaded area is all that an attacker gains.</figcaption></figure>"
    )


_STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1d2327; --soft: #5b656d; --rule: #d5dade; --page: #fff; --tile: #f3f5f6;
  --best: #0b6e8a; --gain: #0b6e8a26; --warn: #9a2a00; --warn-page: #fff3ea;
}
@media (prefers-color-scheme: dark) { :root {
  --ink: #e4e8ea; --soft: #9fabb3; --rule: #3a434a; --page: #14181b; --tile: #1e2428;
  --best: #5cc4e0; --gain: #5cc4e033; --warn: #ffb38a; --warn-page: #2e1d14;
} }
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 60rem;
  background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
h1 { margin: 0 0 .4rem; font-size: 1.7rem; line-height: 1.2; }
h2 { margin: 0 0 .35rem; font-size: 1.05rem; line-height: 1.3; break-after: avoid; }
p, ul, table, figure { margin: 0 0 .7rem; }
ul { padding-left: 1.15rem; }
li { margin-bottom: .25rem; }
table, figure, li { break-inside: avoid; }
header > p { max-width: 44rem; font-size: 1.06rem; }
dl { display: grid; grid-template-columns: repeat(4, 1fr); gap: .6rem; margin: 1rem 0; }
@media (max-width: 40rem) { dl { grid-template-columns: repeat(2, 1fr); } }
dl div { padding: .55rem .8rem; background: var(--tile); border-radius: .4rem; }
dt { color: var(--soft); font-size: .82rem; }
dd { margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
main { columns: 2 24rem; column-gap: 2.2rem; }
section { margin-bottom: 1.1rem; }
section.wide, section.warning { column-span: all; }
section.wide { padding-top: .6rem; }
section.warning, .banner {
  padding: .7rem 1rem; color: var(--warn); background: var(--warn-page); border-left: .3rem solid var(--warn);
}
section.warning ul { margin: 0; }
.banner { margin: 0 0 1.2rem; font-weight: 700; }
table { width: 100%; border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .5rem .22rem 0; border-bottom: 1px solid var(--rule); }
th, td { text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
.facts th { width: 45%; }
.wide .facts th { width: 7rem; }
.wide .facts td { overflow-wrap: anywhere; }
figure { max-width: 19rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 10px; }
figcaption { color: var(--soft); font-size: .82rem; line-height: 1.35; }
.axes { fill: none; stroke: var(--rule); }
.coin { fill: none; stroke: var(--soft); stroke-dasharray: 4 4; }
.best { fill: none; stroke: var(--best); stroke-width: 2; }
.gain { fill: var(--gain); }
@page { size: A4; margin: 11mm; }
@media print {
  :root {
    color-scheme: light;
    --ink: #000; --soft: #444; --rule: #bbb; --page: #fff; --tile: #f3f5f6;
    --best: #0b6e8a; --gain: #0b6e8a26; --warn: #9a2a00; --warn-page: #fff3ea;
  }
  html { font-size: 7.8pt; }
  body { max-width: none; padding: 0; line-height: 1.3; }
  main { columns: 2; column-gap: 7mm; }
  h1 { font-size: 15pt; }
  h2 { font-size: 9.4pt; }
  dd { font-size: 12pt; }
  dl { margin: 1.5mm 0 2mm; grid-template-columns: repeat(4, 1fr); }
  p, ul, table, figure { margin-bottom: 1.4mm; }
  li { margin-bottom: .3mm; }
  section { margin-bottom: 1.6mm; }
  section.wide { padding-top: 1mm; }
  header > p { max-width: none; }
  figure { display: flex; gap: 3mm; align-items: center; max-width: none; }
  svg { width: 38mm; flex: none; }
  th, td { padding: .3mm 1.5mm .3mm 0; }
}
"""


def _sum(runs: Sequence[Recipe], delta: float, adjacency: str) -> float:
    return float(accounting.spent([run[1:] for run in runs], delta, adjacency))


def _without_slack(delta: float, slack: float) -> float:
    # The next float below: the difference itself may round up to more than is left.
    return math.nextafter(delta - slack, 0.0) if slack else delta


def _for_all_runs(delta: float, slack: float) -> float:
    # Other runs have a slack as well, which the ledger does not know: keep the share that every recipe leaves
    # for it.
    return min(_without_slack(delta, slack), delta * (1 - RESERVE))


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _when(time: str) -> str:
    return time[:16].replace("T", " ")


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} – {last}"


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


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda file: file.write(text.encode("utf-8")))
