"""Verifying a certificate: every number is computed anew, and compared with the ledger and the numbers released."""

from __future__ import annotations

import itertools
import re
from typing import Protocol

from tacit.accounting.mechanism import unprintable
from tacit.ledger.lines import LedgerError
from tacit.ledger.record import CODES, ENGINES, FORMAT, UNTIED, CertificateError, Record
from tacit.ledger.totals import cost_of, for_all_runs, recipes, summarise, without_slack
from tacit.ledger.view import View

NAMED = {"fit": {"state", "draws", "points", "labels"}, "ask": {"answer"}}
NAMED["select"] = {*NAMED["fit"], "score"}
"""The numbers that a certificate of each kind names by their hashes."""
MOST_RECIPES = 500
"""Of more different recipes the cost is not computed anew: it would take many seconds."""
TOLERANCE = 1e-9
"""Two versions of the accounting library may differ in the last bits; a claim may be below by no more than that."""


class Numbered(Protocol):
    """Released numbers that know their hashes: a posterior, an answer, a selection."""

    def fingerprints(self) -> dict[str, str]:
        """Return the hashes of the numbers, by name."""


def verify(certificate: Record, ledger: View | None = None, posterior: Numbered | None = None) -> str:
    """Raise ``CertificateError`` unless a certificate holds; return what was found of its numbers, in a sentence.

    Privacy: post-processing.
    """
    # The digest first: it is cheap, and says most plainly that something was changed.
    if certificate.digest != certificate.digest_of_content():
        raise CertificateError("The certificate was changed: its digest does not belong to its content.")
    _check_texts(certificate)
    _check_charges(certificate)
    epsilon, delta, slack = certificate.epsilon, certificate.delta, certificate.slack
    if not 0 < slack < delta or delta != certificate.budget.delta or delta != certificate.total.delta:
        raise CertificateError(f"The certificate's δ = {delta!r} does not fit its slack {slack!r}, budget or total.")
    at = without_slack(delta, slack)
    cost = float(certificate.mechanism.cost(at))
    if not epsilon >= cost * (1 - TOLERANCE):
        raise CertificateError(
            f"The certificate claims ε = {epsilon!r}, but its recipe costs {cost!r} at δ = {delta!r}."
        )
    repeated = summarise(certificate.charges)[certificate.run].repeated
    if epsilon > certificate.budget.epsilon * (1 + TOLERANCE) and not repeated:
        raise CertificateError(
            f"The certificate states ε = {epsilon!r}, more than the budget of {certificate.budget.epsilon!r}, "
            "although no step was taken again: a run is planned to fit its budget."
        )
    _check_total(certificate)
    if ledger is not None:
        _check_ledger(certificate, ledger)
    return _compare_numbers(certificate, posterior)


def _check_texts(certificate: Record) -> None:
    """Refuse what would be shown as another text than it is, and names of things that do not exist."""
    texts = {
        "run": [certificate.run, *(str(run[0]) for run in certificate.total.runs)],
        "method": [certificate.method],
        "unit": [certificate.unit, certificate.budget.unit],
        "ledger": [
            certificate.ledger_head,
            *(line.time for line in (*certificate.lines, *certificate.losses, *certificate.refusals)),
        ],
        "tag": [charge.tag for charge in certificate.charges],
        "loss": [line.reason for line in certificate.losses],
        "refusal": [text for line in certificate.refusals for text in (line.note or {}).values()],
        "caveats": list(certificate.caveats),
        "versions": [*certificate.versions, *certificate.versions.values()],
        "total": [certificate.total.composition],
        "day": [certificate.created],
        "engine": [certificate.engine],
    }
    for name, given in texts.items():
        if found := next(filter(None, map(unprintable, given)), ""):
            raise CertificateError(
                f"The certificate's {name} holds the character {found}, which cannot be seen or changes the "
                "direction of writing: a page could show another text than it holds."
            )
    if certificate.format == FORMAT:
        if certificate.code not in CODES or certificate.engine not in ENGINES:
            raise CertificateError(
                f"The certificate says that code of {certificate.code!r} ran on the engine {certificate.engine!r}, "
                f"and knows {sorted(CODES)} and {list(ENGINES)}."
            )
        hashes = all(isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one) for one in certificate.numbers.values())
        if not hashes or (certificate.numbers and set(certificate.numbers) != NAMED.get(certificate.kind)):
            raise CertificateError(
                f"The certificate names the numbers {sorted(certificate.numbers)}, which is not what a "
                f"{certificate.kind!r} releases, or not by their hashes."
            )


def _compare_numbers(certificate: Record, posterior: Numbered | None) -> str:
    if not certificate.numbers:
        return UNTIED
    if posterior is None:
        return "The numbers were not given, so that they could not be compared with those of the certificate."
    found = posterior.fingerprints()
    other = [name for name in sorted(found) if certificate.numbers.get(name) != found[name]]
    if other:
        raise CertificateError(
            f"The {' and '.join(other)} are not what the certificate was issued for: they were changed, or belong "
            "to another run."
        )
    return "The numbers are those that the certificate was issued for."


def _check_charges(certificate: Record) -> None:
    charges = certificate.charges
    if not charges or any(charge.run != certificate.run for charge in charges):
        raise CertificateError(f"The certificate's charges are not those of its run {certificate.run!r}.")
    if any(not line.intact for line in certificate.losses) or any(line.loss is None for line in certificate.losses):
        raise CertificateError("A loss on the certificate was changed: its hash does not belong to it.")
    if any(not line.intact or line.note is None for line in certificate.refusals):
        raise CertificateError("A refusal on the certificate was changed: its hash does not belong to it.")
    if not all(line.intact for line in certificate.lines):
        raise CertificateError("A charge on the certificate was changed: its hash does not belong to it.")
    if any(one.seq >= two.seq for one, two in zip(certificate.lines, certificate.lines[1:], strict=False)):
        raise CertificateError("The certificate's charges are not in the ledger's order, each once.")
    if certificate.lines[-1].seq >= certificate.ledger_lines:
        raise CertificateError("The certificate holds a charge that its ledger did not have when it was issued.")
    if (
        certificate.lines[-1].seq == certificate.ledger_lines - 1
        and certificate.lines[-1].hash != certificate.ledger_head
    ):
        raise CertificateError("The certificate's last charge is not the ledger's head that it names.")
    run = summarise(charges)[certificate.run]
    if any(charge.mechanism != run.mechanism or charge.kind != run.kind for charge in charges):
        raise CertificateError("The certificate's charges are of more than one recipe.")
    if run.kind == "select" and len(charges) > 1:
        raise CertificateError("The certificate is of a selection, which is one charge, and holds several.")
    if run.steps != certificate.mechanism.steps:
        raise CertificateError(
            f"The certificate's recipe has {certificate.mechanism.steps} steps, but its charges took {run.steps}."
        )
    if run.looked != certificate.mechanism:
        raise CertificateError("The certificate's recipe is not the one on its charges.")
    said = (
        certificate.kind,
        certificate.method,
        certificate.unit,
        certificate.budget.unit,
        certificate.adjacency,
        certificate.simulation,
    )
    held = (run.kind, run.method, run.unit, run.unit, run.mechanism.adjacency, run.simulation)
    if said != held or any(charge.unit != certificate.unit for charge in charges):
        raise CertificateError(
            "The certificate's kind, method, unit, adjacency or simulation is not that of its charges."
        )
    ahead = (*certificate.lines, *certificate.losses, *certificate.refusals)
    if any(line.seq < 1 for line in ahead) or len({line.seq for line in ahead}) != len(ahead):
        raise CertificateError("The certificate's lines have numbers that no ledger gives them.")
    if any(two.seq == one.seq + 1 and two.prev != one.hash for one, two in itertools.pairwise(certificate.lines)):
        raise CertificateError("The certificate's charges do not follow from one another as a ledger's do.")
    # A header, the run's own charges, losses, refusals; and of every other run one charge at least.
    others = len({run[0] for run in certificate.total.runs} - {certificate.run})
    least = 1 + len(ahead) + others
    if certificate.ledger_lines < least or (certificate.ledger_lines > least and not others):
        raise CertificateError(
            f"The certificate's ledger had {certificate.ledger_lines} lines, and its charges and runs explain "
            f"{'' if not others else 'at least '}{least}: charges were left out, or made up."
        )


def _check_total(certificate: Record) -> None:
    mechanism = certificate.mechanism
    different = len({run[1:] for run in certificate.total.runs})
    if different > MOST_RECIPES:
        raise CertificateError(
            f"The certificate's total is of {different} different recipes, and no more than {MOST_RECIPES} are "
            "added up anew; pass later data a ledger of their own."
        )
    of_run = [run[1:] for run in certificate.total.runs if run[0] == certificate.run]
    if (
        any(one[:2] != (mechanism.rate, mechanism.noise_multiplier) for one in of_run)
        or any(one[3:] != (() if mechanism.repeats is None else (mechanism.repeats,)) for one in of_run)
        or sum(one[2] for one in of_run) < mechanism.steps
    ):
        raise CertificateError("The certificate's total does not hold its own run as its charges have it.")
    total = cost_of(certificate.total.runs, for_all_runs(certificate.delta, certificate.slack), certificate.adjacency)
    if not certificate.total.epsilon >= total * (1 - TOLERANCE):
        raise CertificateError(
            f"The certificate claims ε = {certificate.total.epsilon!r} for all runs together, but they cost {total!r}."
        )


def _check_ledger(certificate: Record, ledger: View) -> None:
    try:
        ledger.verify()
        lines = ledger.lines
    except LedgerError as error:
        raise CertificateError(f"The ledger is broken: {error}") from error
    if len(lines) < certificate.ledger_lines:
        raise CertificateError(
            f"The ledger has {len(lines)} lines but had {certificate.ledger_lines} when the certificate was "
            "issued: it was shortened, or it is another ledger."
        )
    if lines[certificate.ledger_lines - 1].hash != certificate.ledger_head:
        raise CertificateError(
            f"Line {certificate.ledger_lines} of the ledger is not the one the certificate names: the ledger "
            "was rewritten, or it is another ledger."
        )
    then = lines[: certificate.ledger_lines]
    if (
        tuple(line for line in then if (charge := line.charge) is not None and charge.run == certificate.run)
        != certificate.lines
    ):
        raise CertificateError("The charges on the certificate are not all the ledger's charges of this run.")
    if tuple(line for line in then if line.loss is not None) != certificate.losses:
        raise CertificateError("The losses on the certificate are not those that the ledger says were accepted.")
    if tuple(line for line in then if line.note is not None) != certificate.refusals:
        raise CertificateError("The refusals on the certificate are not those that the ledger holds.")
    charges = [charge for line in then if (charge := line.charge) is not None]
    if recipes(charges) != certificate.total.runs:
        raise CertificateError("The runs in the certificate's total are not those on the ledger.")
    later = sum(
        charge.steps
        for line in lines[certificate.ledger_lines :]
        if (charge := line.charge) is not None and charge.run == certificate.run
    )
    if later:
        raise CertificateError(
            f"Run {certificate.run!r} has taken {later} more steps since the certificate was issued: issue a new one."
        )
