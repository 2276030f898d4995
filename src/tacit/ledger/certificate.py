"""The certificate: what was published reveals at most this about any one person, and why.

It is made from the ledger alone, as JSON for programs and as one page of Markdown or HTML for a data
protection officer. :meth:`Certificate.verify` recomputes every number from the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tacit import accounting
from tacit.accounting.explanation import Explanation, up
from tacit.accounting.mechanism import Budget
from tacit.ledger import page
from tacit.ledger.file import Ledger
from tacit.ledger.lines import canonical
from tacit.ledger.markup import Section
from tacit.ledger.record import SIMULATION, CertificateError, Record, Total
from tacit.ledger.totals import cost_of, for_all_runs, recipes, summarise, without_slack
from tacit.ledger.verify import Numbered, verify
from tacit.system import atomic_write


@dataclass(frozen=True)
class Certificate(Record):
    """What a run reveals at most about any one unit, and everything needed to check it.

    Use :meth:`issue`. The digest finds any change to the file, but it is not a signature: someone who
    rewrites the whole file consistently can replace it. They still cannot claim a smaller ε than the recipe
    and charges in the file give, because :meth:`verify` computes it anew; but that the recipe and the charges are
    those of the real run, only the ledger or a signature can show.

    Privacy: post-processing.

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
        The recipe, with the steps actually taken; a step taken again counts again.
    lines
        The ledger's lines of this run. :attr:`looks` gives the charges on them.
    total
        What all runs on the ledger have cost.
    ledger_head, ledger_lines
        The hash of the ledger's last line and the number of lines, at the time of issue.
    simulation
        Whether the secret randomness was fixed, so that nobody is protected.
    caveats
        What the issuer wants to be read. :attr:`notes` adds what follows from the charges.
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
        The ledger's lines that say that charges were lost, and who accepted that.
    refusals
        The ledger's lines that say that records were checked and refused.
    digest
        The hash of all of the above.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> data = tacit.PrivateData({"age": np.full(100, 50.0)})
    >>> answer = tacit.ask(data, lambda record: 1.0, tacit.Budget(1.0, 1e-6), clip=1.0)
    >>> answer.certificate.epsilon <= 1.0
    True
    >>> verdict = answer.certificate.verify(data.ledger)
    """

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
        if isinstance(caveats, str):
            raise CertificateError(
                f"The caveats are one string, {caveats!r}, and would be printed letter by letter; "
                "write a list of sentences."
            )
        draft = cls(
            **_measured(ledger, run, budget, slack),
            budget=budget,
            caveats=tuple(caveats),
            versions=dict(versions or {}),
            created=datetime.now(UTC).date().isoformat(),
            numbers=dict(numbers or {}),
            engine=engine,
            code=code,
            digest="",
        )
        # Once through JSON, so that the digest is that of what a reader will read.
        draft = cls._from_dict(json.loads(canonical(draft.to_dict())))
        return replace(draft, digest=draft.digest_of_content())

    def verify(self, ledger: Ledger | None = None, posterior: Numbered | None = None) -> str:
        """Recompute the certificate from its recipe and charges, and compare it with ledger and numbers if given.

        Without the ledger this shows that the file is whole and that its ε is what its recipe costs. It does
        not show who issued it, nor that no charge was left out: a digest is not a signature. With the ledger it
        also shows that the charges are all charges of the run, and that the ledger was not shortened or rewritten
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
            return verify(self, ledger, posterior)
        except CertificateError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise CertificateError(f"The certificate does not make sense: {error}.") from error

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know besides the caveats; it follows from the charges, so none can be left out."""
        return page.notes(self)

    def explain(self) -> Explanation:
        """Explain what the guarantee means, from the recipe's whole privacy-loss distribution.

        Privacy: post-processing.
        """
        return page.explained(self)

    def __str__(self) -> str:
        return self.to_markdown()

    def __repr__(self) -> str:
        first = f"{SIMULATION}; " if self.simulation else ""
        guarantee = f"ε = {up(self.epsilon, 4)} at δ = {up(self.delta)} per {self.unit}"
        return f"<{first}Certificate of {self.run!r}: {guarantee}>"

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

    def to_markdown(self) -> str:
        """Write the page as Markdown.

        Privacy: post-processing.
        """
        return page.to_markdown(self)

    def to_html(self) -> str:
        """Write the page as one HTML file without references to anything outside it.

        Privacy: post-processing.
        """
        return page.to_html(self)

    def lead(self) -> str:
        """Return the sentence that the page begins with.

        Privacy: post-processing.
        """
        return page.lead(self)

    def figures(self, explanation: Explanation) -> list[tuple[str, str]]:
        """Return the four numbers that the page shows large.

        Privacy: post-processing.
        """
        return page.figures(self, explanation)

    def sections(self, explanation: Explanation) -> list[Section]:
        """Return the sections of the page; a report shows some of them.

        Privacy: post-processing.
        """
        return page.sections(self, explanation)


def _measured(ledger: Ledger, run: str, budget: Budget, slack: float) -> dict[str, Any]:
    """Return what a certificate says of a run by the ledger alone."""
    lines = ledger.lines
    of_run = tuple(line for line in lines if (charge := line.charge) is not None and charge.run == run)
    if not of_run:
        raise CertificateError(
            f"The ledger holds no charge of run {run!r}, so there is nothing to certify; "
            "give the ledger and the identifier that the run was charged to."
        )
    if not 0 < slack < budget.delta:
        raise CertificateError(
            f"The numerical slack is {slack!r} and δ is {budget.delta!r}. No sampler is exact, so the slack is "
            "above 0, and something of δ must be left to certify ε at; pass what the wall computed, and ask for "
            "a larger δ if it is too large."
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
    at = without_slack(budget.delta, slack)
    runs = recipes(charges)
    return {
        "run": run,
        "kind": summary.kind,
        "method": summary.method,
        "unit": summary.unit,
        "adjacency": mechanism.adjacency,
        "epsilon": float(mechanism.cost(at)),
        "delta": float(budget.delta),
        "slack": float(slack),
        "mechanism": mechanism,
        "lines": of_run,
        "total": Total(
            epsilon=cost_of(runs, for_all_runs(budget.delta, slack), mechanism.adjacency),
            delta=float(budget.delta),
            runs=runs,
            composition=accounting.COMPOSITION[mechanism.adjacency],
        ),
        "ledger_head": lines[-1].hash,
        "ledger_lines": len(lines),
        "simulation": summary.simulation,
        "losses": ledger.losses,
        "refusals": tuple(line for line in lines if line.note is not None),
    }


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda file: file.write(text.encode("utf-8")))
