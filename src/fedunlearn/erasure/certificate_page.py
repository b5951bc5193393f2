"""An erasure certificate as a page for people, made from the signed document alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..core import Reason, Stage, Status
from ..evidence import Verdict
from ..report.html.filling import rendered
from .claim import Claim
from .predicate import Entry, Predicate, Range, Retention, StageFacts
from .vocabulary import Artefact, Backups, Bucket, EndState, LegalBasis, Measure

DAY = 24 * 3600
NO_BREAK = "\N{NO-BREAK SPACE}"
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)

TONES = {
    Claim.BEHAVIOURALLY_EQUIVALENT: "good",
    Claim.PROCESS_ONLY: "plain",
    Claim.INCONCLUSIVE: "open",
    Claim.PARTIAL: "open",
    Claim.OVER_FORGOTTEN: "bad",
    Claim.UNDER_FORGOTTEN: "bad",
    Claim.ESCALATED: "bad",
}
"""Each tone has a colour and a sign."""

VERDICTS = {
    Verdict.EQUIVALENT: ("good", "equivalent"),
    Verdict.UNDER: ("bad", "under-forgotten"),
    Verdict.OVER: ("bad", "over-forgotten"),
    Verdict.INCONCLUSIVE: ("open", "inconclusive"),
    Verdict.NO_SIGNAL: ("open", "no signal"),
}

SIZES = {
    Bucket.TENS: "fewer than 100 examples",
    Bucket.HUNDREDS: "100 to 1,000 examples",
    Bucket.THOUSANDS: "1,000 to 10,000 examples",
    Bucket.TENS_OF_THOUSANDS: "10,000 to 100,000 examples",
    Bucket.MORE: "more than 100,000 examples",
}

STAGES = {
    Stage.UNLEARNING: "Unlearning",
    Stage.POSTTRAINING: "Post-training by the retained clients",
    Stage.PRETRAINING: "Training",
}

STOPS = {
    Status.DONE: "all rounds done",
    Status.CONVERGED: "the stop rule was met",
    Status.NO_DIRECTION: "no further step without harm",
    Status.MISSING_REPLY: "a participant was missing",
    Status.DIVERGED: "the model diverged",
    Status.GUARD_STOP: "a guard stopped it",
    Status.HARMED: "the retained clients lost too much",
    Status.RUNNING: "not finished",
}

REASONS = {
    Reason.NOT_FINITE: "not finite",
    Reason.NORM: "too long",
    Reason.REPLAY: "sent before",
    Reason.COPY: "a copy",
}

ROUNDS = (Measure.RELEARN_POSTTRAINING, Measure.RELEARN_FINETUNING)
"""Measures that are numbers of rounds."""
SHARES = (
    Measure.PROBE,
    Measure.BACKDOOR,
    Measure.BACKDOOR_UNSEEN,
    Measure.CANARIES,
    Measure.RETAINED_MEAN,
    Measure.RETAINED_WORST,
)
"""Measures with two decimals; the others have three."""

COMMAND = (
    "fedunlearn verify certificate.json --key controller.pub \\\n"
    "    --model model.safetensors --ledger ledger.jsonl --receipt purge.json"
)


def certificate_page(predicate: Predicate, signer: str, document: str) -> str:
    """Return one self-contained HTML file about a certificate, with the ID of the key that signed it."""
    return rendered("certificate.html", _page(predicate, signer, document), "fedunlearn.erasure")


def _page(predicate: Predicate, signer: str, document: str) -> dict[str, Any]:
    """Everything that the template shows."""
    request, claim, entries = predicate.request, predicate.claim.claim, predicate.evidence.entries
    after = predicate.model_after
    safety = predicate.safety
    basis = {str(each): each.words for each in LegalBasis}.get(request.legal_basis, request.legal_basis)
    return {
        "claim": claim,
        "meaning": predicate.claim.meaning,
        "exact": predicate.exact,
        "tone": TONES[claim],
        "end": predicate.claim.end_state,
        "ended_well": predicate.claim.end_state is EndState.CERTIFIED,
        "request": request,
        "basis": basis,
        "closed": day(request.closed),
        "span": _span(predicate),
        "grade": predicate.evidence.grade,
        "rows": [_row(entry) for entry in entries],
        "lanes": _lanes(entries),
        "not_tested": predicate.evidence.not_tested,
        "limits": predicate.claim.limits,
        "models": [
            ("Model before", "tensors", predicate.model_before.sha256),
            ("Model after", "tensors", after.sha256),
            ("Model after", "file", after.file_sha256),
        ],
        "after": after,
        "procedure": predicate.procedure,
        "options": [f"{name} = {_option(value)}" for name, value in predicate.procedure.options.items()],
        "stages": [_stage(stage) for stage in predicate.procedure.stages],
        "refused": [
            (REASONS.get(reason, reason.replace("_", " ")), count) for reason, count in safety.refused.items()
        ],
        "events": [(event.words, count) for event, count in safety.guard_events.items()],
        "numbers": list(_numbers(predicate)),
        "deletions": list(_deletions(predicate.retention)),
        "kept": [(_capital(each.what.words), each.why.words) for each in predicate.retention.kept],
        "backups": _backups(predicate.retention),
        "key": predicate.retention.key_id,
        "environment": _environment(predicate),
        "ledger": predicate.ledger,
        "informed": predicate.notices.recipients_informed,
        "signer": signer,
        "command": COMMAND,
        "download": base64.b64encode(document.encode()).decode(),
    }


def day(seconds: int) -> str:
    """A date, in UTC."""
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at.day} {MONTHS[at.month - 1]} {at.year}"


def clock(seconds: int) -> str:
    """A time of day, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M} UTC"


def _span(predicate: Predicate) -> dict[str, Any]:
    """From receipt to deadline: places in percent, and in words."""
    request = predicate.request
    end = max(request.closed, request.deadline, request.received + 1)
    whole = end - request.received
    answered = "Tried" if request.deadline_met is None else "Answered"
    times = {"Received": request.received, answered: request.closed, "Deadline": request.deadline}
    left = request.deadline - request.closed
    days = abs(left) // DAY
    spare = f"{days} day{'' if days == 1 else 's'}" if days else "less than a day"
    return {
        "closed": 100 * (request.closed - request.received) / whole,
        "deadline": 100 * max(0, request.deadline - request.received) / whole,
        "met": request.deadline_met,
        "words": _standing(request.deadline_met, spare),
        "points": [
            (name, day(at), clock(at)) for name, at in sorted(times.items(), key=lambda each: each[1])
        ],
    }


def _standing(met: bool | None, spare: str) -> str:
    if met is None:
        return "The request is still open"
    return f"Met, {spare} before the deadline" if met else f"Missed by {spare}"


def _row(entry: Entry) -> dict[str, Any]:
    """A line of the table of evidence."""
    tone, word = VERDICTS[entry.verdict] if entry.verdict else ("", "")
    if entry.measure is Measure.AUC_BEFORE and entry.verdict:
        tone, word = ("good", "data found") if entry.verdict is Verdict.UNDER else ("open", "data not found")
    decimals = 2 if entry.measure in SHARES else 3
    return {
        "entry": entry,
        "value": _number(entry, entry.value, decimals),
        "interval": _interval(entry.interval, decimals),
        "reference": _number(entry, entry.reference, decimals),
        "difference": "" if entry.difference is None else _text(entry.difference, decimals, "+"),
        "difference_interval": _interval(entry.difference_interval, decimals),
        "size": SIZES[entry.n] if entry.n else "",
        "tone": tone,
        "verdict": word,
    }


def _number(entry: Entry, value: float | None, decimals: int) -> str:
    if entry.measure in ROUNDS:
        return "not seen" if value is None else f"{value:.0f}"
    return "" if value is None else _text(value, decimals)


def _interval(found: Range | None, decimals: int = 3) -> str:
    if found is None:
        return ""
    ends = f"{_text(found.low, decimals)} to {_text(found.high, decimals)}".replace(" ", NO_BREAK)
    return f"{ends}, {100 * found.level:.3g}{NO_BREAK}%"


def _text(value: float, decimals: int, plus: str = "") -> str:
    return f"{plus if value > 0 else '−' if value < 0 else ''}{abs(value):.{decimals}f}"


@dataclass(frozen=True)
class Lane:
    """An interval of the figure; places in percent."""

    name: str
    text: str
    low: float
    at: float
    high: float
    tone: str


def _lanes(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """The differences to retraining of the membership tests, in one frame with the margin."""
    tests = (Measure.AUC, Measure.AUC_HARDEST, Measure.AUC_BEFORE)
    shown = [
        (entry, entry.difference, found)
        for measure in tests
        for entry in entries
        if entry.measure is measure and entry.difference is not None
        for found in [entry.difference_interval]
        if found is not None
    ]
    margin = next((entry.margin for entry, *_ in shown if entry.margin), None)
    if not shown or margin is None:
        return None
    low = min(-margin, *(found.low for *_, found in shown))
    high = max(margin, *(found.high for *_, found in shown))
    room = 0.06 * (high - low)
    low, high = low - room, high + room

    def place(value: float) -> float:
        return 100 * (value - low) / (high - low)

    names = {Measure.AUC: "This model", Measure.AUC_HARDEST: "This model, hardest tenth"}
    names[Measure.AUC_BEFORE] = "The model before"
    return {
        "lanes": [
            Lane(
                names[entry.measure],
                f"{_text(difference, 3, '+')} ({_interval(found)})",
                place(found.low),
                place(difference),
                place(found.high),
                "control"
                if entry.measure is Measure.AUC_BEFORE
                else VERDICTS[entry.verdict][0]
                if entry.verdict
                else "plain",
            )
            for entry, difference, found in shown
        ],
        "margin": (place(-margin), place(margin)),
        "zero": place(0.0),
        "text": f"{margin:g}",
    }


def _stage(stage: StageFacts) -> dict[str, str]:
    fewest, most = stage.participants.fewest, stage.participants.most
    return {
        "name": STAGES[stage.stage],
        "rounds": f"{stage.rounds:,} of {stage.planned:,}",
        "lr": f"{stage.lr:g}",
        "clients": f"{fewest}" if fewest == most else f"{fewest} to {most}",
        "stop": STOPS[stage.stop],
    }


def _option(value: bool | int | float | str) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _numbers(predicate: Predicate) -> Iterator[tuple[str, str]]:
    safety = predicate.safety
    for name, value in (
        ("Smallest sine between the client's update and the others", safety.min_sin),
        ("Largest amplification of a step", safety.max_amplification),
        ("Largest cosine of a step with a retained client", safety.max_abs_cos),
        ("Distance between model before and after", safety.displacement),
    ):
        if value is not None:
            yield name, f"{value:.3g}"
    if safety.accuracy_before is not None and safety.accuracy_after is not None:
        accuracies = f"{safety.accuracy_before:.2f} before, {safety.accuracy_after:.2f} after"
        yield "Accuracy of the retained clients", accuracies


def _deletions(retention: Retention) -> Iterator[tuple[str, str]]:
    for deletion in retention.to_delete:
        verb = "destroyed" if deletion.what is Artefact.KEY else "deleted"
        yield _capital(deletion.what.words), f"to be {verb} by {day(deletion.by)}"


def _backups(retention: Retention) -> str:
    if retention.backups is Backups.EXPIRE and retention.backups_until is not None:
        return f"Backups are overwritten by {day(retention.backups_until)}."
    return f"{_capital(retention.backups.words)}."


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _environment(predicate: Predicate) -> list[tuple[str, str]]:
    found = predicate.environment
    return [
        ("fedunlearn", found.fedunlearn),
        ("Python", found.python),
        ("PyTorch", found.torch),
        ("Platform", f"{found.platform}, {found.cpu_capability}"),
        ("Threads", str(found.threads)),
        ("Seed", str(predicate.procedure.seed)),
        ("Engine", predicate.procedure.engine),
    ]
