"""The predicate of an erasure certificate: an in-toto Statement v1 about the model after unlearning.

Nothing personal fits in: texts are codes of ``vocabulary.py`` or short names of software, numbers of a
client's examples are buckets, and no list is longer than 64. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..core import Reason, Stage, Status
from ..evidence import Verdict
from ..evidence.measures import exact_sentence
from .claim import OLDER, Claim, claim_of
from .vocabulary import (
    Artefact,
    Backups,
    Bucket,
    EndState,
    Grade,
    GuardEvent,
    Measure,
    NotTested,
    Purpose,
    Role,
    Scope,
)

KIND = "application/vnd.in-toto+json"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://fedunlearn.org/erasure/v1"
"""A name, not an address: nothing is fetched from it."""

LONGEST = 64

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Pseudonym = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
CODE = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
Code = Annotated[str, Field(pattern=CODE)]
Version = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$")]
Platform = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
Page = Annotated[str, Field(pattern=r"^[a-z0-9/-]{1,64}\.md(#[a-z0-9-]{1,64})?$")]
Sentence = Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,400}$")]
Time = Annotated[int, Field(ge=0, lt=253_402_300_800)]  # the year 10000
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Length = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Option = bool | int | float | Code


class Section(BaseModel):
    """A part of the statement: frozen, of exactly these types; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class RequestFacts(Section):
    """The request, and the times of receipt and answer."""

    id: Identifier
    """Of the request, as in the ledger."""
    pseudonym: Pseudonym
    """A keyed hash of the client's name; without the key, it reveals nothing."""
    scope: Scope
    legal_basis: Identifier
    """A code, such as those of ``LegalBasis``."""
    received: Time
    closed: Time
    deadline: Time
    deadline_met: bool | None = None
    """None while the request is open, because its erasure failed."""

    @model_validator(mode="after")
    def _ordered(self) -> RequestFacts:
        if self.closed < self.received:
            raise ValueError("the request was closed before it was received")
        if self.deadline_met not in (None, self.closed <= self.deadline):
            raise ValueError("deadline_met does not follow from closed and deadline")
        return self


class ModelBefore(Section):
    """The model that had learned the data."""

    sha256: Hash
    """Of its tensors."""


class ModelAfter(Section):
    """The model that the certificate is about."""

    sha256: Hash
    """Of its parameters and buffers, as ``fedunlearn.module_hash`` computes it."""
    file_sha256: Hash
    """Of the bytes of its file, as ``sha256sum`` computes it."""
    format: Literal["safetensors"] = "safetensors"
    parameters: Count
    buffers: Count
    """Number of buffers, such as running means; they come from the retained clients."""


class Participants(Section):
    """The number of retained clients that answered in a round of a stage."""

    fewest: Count
    most: Count

    @model_validator(mode="after")
    def _ordered(self) -> Participants:
        if self.most < self.fewest:
            raise ValueError("fewest is more than most")
        return self


class StageFacts(Section):
    """One stage of the procedure."""

    stage: Stage
    rounds: Count
    planned: Count
    lr: Length
    stop: Status
    """The reason for its end."""
    participants: Participants


class Procedure(Section):
    """The procedure that was carried out."""

    method: Code
    options: Annotated[dict[Code, Option], Field(max_length=LONGEST)] = {}
    mode: Literal["guarded", "faithful"]
    """With guards, or as published."""
    stages: Annotated[tuple[StageFacts, ...], Field(max_length=LONGEST)]
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
    engine: Code
    clients: Count
    """Number of retained clients."""


class Safety(Section):
    """Refusals and actions of the guards, and measures of steps; None if the method has no such number."""

    refused: dict[Reason, Count] = {}
    guard_events: dict[GuardEvent, Count] = {}
    min_sin: Length | None = None
    """Of the angle between the client's update and those of the retained clients."""
    max_amplification: Length | None = None
    max_abs_cos: Length | None = None
    """Between a step and an update of a retained client."""
    displacement: Length | None = None
    """Euclidean distance of the model after to the model before."""
    accuracy_before: Share | None = None
    """Of the retained clients, each on its own test data: their mean with the model before."""
    accuracy_after: Share | None = None


class Range(Section):
    """A confidence interval."""

    low: float
    high: float
    level: Annotated[float, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.high < self.low:
            raise ValueError("low is above high")
        return self

    def within(self, margin: float) -> bool:
        """Whether it lies from −margin to margin; ends are rounded."""
        return -margin <= self.low and self.high <= margin


class Entry(Section):
    """One measure; numbers are rounded, so that no count can be read off them."""

    measure: Measure
    definition: Page
    """Page of the documentation."""
    value: float | None = None
    """None: more rounds than were tried, with relearn times."""
    interval: Range | None = None
    reference: float | None = None
    """The same after retraining."""
    difference: float | None = None
    difference_interval: Range | None = None
    """The one that the verdict rests on."""
    margin: Annotated[float, Field(gt=0, le=1)] | None = None
    """The largest difference that counts as equivalent."""
    n: Bucket | None = None
    """Examples, of the smaller set where two are compared."""
    verdict: Verdict | None = None
    computed_by: Role

    @model_validator(mode="after")
    def _judged(self) -> Entry:
        found, margin = self.difference_interval, self.margin
        fine = {
            Verdict.EQUIVALENT: found is not None and margin is not None and found.within(margin),
            Verdict.UNDER: found is None or found.low >= 0,
            Verdict.OVER: found is None or found.high <= 0,
        }
        if self.verdict is not None and not fine.get(self.verdict, True):
            raise ValueError(f"the verdict {self.verdict} does not follow from its interval")
        return self


class Evidence(Section):
    """The tests that were made, and those that were not."""

    grade: Grade
    entries: Annotated[tuple[Entry, ...], Field(max_length=LONGEST)] = ()
    not_tested: Annotated[tuple[NotTested, ...], Field(min_length=1, max_length=LONGEST)]

    @model_validator(mode="after")
    def _complete(self) -> Evidence:
        found = {entry.measure: entry.verdict for entry in self.entries}
        if len(found) < len(self.entries):
            raise ValueError("a measure is there twice")
        if (
            found.get(Measure.AUC) is Verdict.EQUIVALENT
            and found.get(Measure.AUC_BEFORE) is not Verdict.UNDER
        ):
            raise ValueError("a pass needs a test that finds the data in the model before")
        return self


class Claimed(Section):
    """The one claim, with its words."""

    claim: Claim
    end_state: EndState
    meaning: Sentence
    limits: Annotated[tuple[Sentence, ...], Field(min_length=1, max_length=LONGEST)]

    @classmethod
    def of(cls, end_state: EndState, evidence: Evidence) -> Claimed:
        """The claim that follows."""
        claim = claim_of(end_state, verdict_of(evidence.entries), evidence.grade)
        return cls(claim=claim, end_state=end_state, meaning=claim.meaning, limits=claim.limits)

    @model_validator(mode="after")
    def _worded(self) -> Claimed:
        words = [OLDER.get(sentence, sentence) for sentence in (self.meaning, *self.limits)]
        if words != [self.claim.meaning, *self.claim.limits]:
            raise ValueError(f"the words are not those of the claim {self.claim}")
        return self


class Deletion(Section):
    """An artefact that will be deleted, and the latest time."""

    what: Artefact
    by: Time


class Kept(Section):
    """An artefact that is kept, and the purpose."""

    what: Artefact
    why: Purpose


class Retention(Section):
    """Deleted and kept artefacts."""

    to_delete: Annotated[tuple[Deletion, ...], Field(max_length=LONGEST)] = ()
    key_id: Hash | None = None
    """SHA-256 that names the key whose destruction erases the encrypted files; never the key."""
    kept: Annotated[tuple[Kept, ...], Field(max_length=LONGEST)] = ()
    backups: Backups = Backups.NOT_COVERED
    backups_until: Time | None = None

    @model_validator(mode="after")
    def _dated(self) -> Retention:
        if (self.backups is Backups.EXPIRE) != (self.backups_until is not None):
            raise ValueError("backups_until belongs to backups that expire")
        return self


class Environment(Section):
    """The software and the processor."""

    fedunlearn: Version
    python: Version
    torch: Version
    cpu_capability: Platform
    threads: Count
    platform: Platform


class LedgerHead(Section):
    """The ledger when the certificate was made: SHA-256 of its last line, and its number of lines."""

    head: Hash
    length: Annotated[int, Field(ge=1, lt=1 << 53)]


class Notices(Section):
    """Notices to recipients of the model."""

    recipients_informed: Count


class Predicate(Section):
    """Everything that a certificate says."""

    request: RequestFacts
    model_before: ModelBefore
    model_after: ModelAfter
    procedure: Procedure
    safety: Safety
    evidence: Evidence
    claim: Claimed
    retention: Retention
    environment: Environment
    ledger: LedgerHead
    notices: Notices

    @property
    def exact(self) -> str:
        """The statement that follows from an exact method that ran to its end; else empty."""
        return exact_sentence(self.procedure.method) if self.claim.end_state is EndState.CERTIFIED else ""

    @model_validator(mode="after")
    def _follows(self) -> Predicate:
        if self.claim.claim is not Claimed.of(self.claim.end_state, self.evidence).claim:
            raise ValueError(f"the claim {self.claim.claim} does not follow from end state and evidence")
        return self


class Digest(Section):
    """As in-toto writes digests."""

    sha256: Hash


class Annotations(Section):
    """Further identification of the subject."""

    model_sha256: Hash


class Subject(Section):
    """The model after: the file by its bytes, the model by its tensors."""

    name: Literal["model-after"] = "model-after"
    digest: Digest
    annotations: Annotations


class Statement(Section):
    """An in-toto Statement v1."""

    type: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1)]
    predicate_type: Literal["https://fedunlearn.org/erasure/v1"] = Field(
        default=PREDICATE_TYPE, alias="predicateType"
    )
    predicate: Predicate

    @model_validator(mode="after")
    def _about(self) -> Statement:
        after, [subject] = self.predicate.model_after, self.subject
        if (subject.digest.sha256, subject.annotations.model_sha256) != (after.file_sha256, after.sha256):
            raise ValueError("the subject is not the model after of the predicate")
        return self


def verdict_of(entries: Iterable[Entry]) -> Verdict | None:
    """The verdict of all measures: an alarm of any, else that of the membership test.

    The control is tried on the model before, which is meant to raise an alarm.
    """
    found = {entry.measure: entry.verdict for entry in entries if entry.measure is not Measure.AUC_BEFORE}
    for alarm in (Verdict.UNDER, Verdict.OVER):
        if alarm in found.values():
            return alarm
    return found.get(Measure.AUC)
