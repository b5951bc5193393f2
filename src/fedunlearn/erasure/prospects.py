"""Which evidence an erasure can have, told before it begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ..client.audit import audit_job
from ..core import ClientId, Federation, Replies, Request, Selective, State
from ..evidence.measures import EXACT
from ..evidence.verdicts import MINIMUM

BUCKETS = (32, 100, 300, 1000)
"""Numbers of examples are told as ranges between these."""
PROCESS_ONLY, EQUIVALENT = "PROCESS_ONLY", "BEHAVIOURALLY_EQUIVALENT"


@dataclass(frozen=True)
class Prospects:
    """What can be shown afterwards (docs/evidence/claims.md)."""

    claim: str
    """The most that can be claimed."""
    examples: Mapping[ClientId, str]
    """Training examples of each target that told them, as a range."""
    unseen: Mapping[ClientId, str]
    """Test examples of each target, as a range; a set ``audit`` is not looked at before the audit."""
    possible: tuple[str, ...]
    impossible: tuple[str, ...]
    """Each with its reason."""


def bucket(count: int) -> str:
    """A number as a range: the exact one is nobody's business."""
    if count < BUCKETS[0]:
        return f"< {BUCKETS[0]}"
    if count >= BUCKETS[-1]:
        return f"≥ {BUCKETS[-1]:,}"
    low, high = next((low, high) for low, high in pairwise(BUCKETS) if count < high)
    return f"{low}–{high - 1}"


def prospects(
    method: str,
    federation: Federation,
    request: Request,
    present: Collection[ClientId],
    replies: Replies | None,
    *,
    gone: bool,
    retrainings: int,
    canaries: bool,
) -> Prospects:
    """What an audit will be able to say, as far as the replies to a first measurement tell."""
    heard = {} if replies is None else {t: replies[t] for t in request.targets if t in replies}
    examples = {target: reply.examples for target, reply in heard.items()}
    unseen = {
        target: max(mean.count for mean in reply.statistics["test"].values())
        for target, reply in heard.items()
        if reply.statistics.get("test")
    }
    possible = ["the record of the run: settings, models' digests, metrics of every round"]
    if method in EXACT:
        possible.append(
            f"{method} is exact, so that this record is enough: nobody who trained the new model has seen "
            "the target's data"
        )
    impossible = list(_without_audit(federation, request, present, gone, retrainings))
    judged = not impossible
    if replies is not None and any("test" in replies[c].statistics for c in request.retained if c in replies):
        possible.append("the accuracy of every retained client with a test set, before and after")
    if any("backdoor" in reply.statistics for reply in heard.values()):
        possible.append("the success of the target's backdoor, before and after")
    if judged:
        possible.append(
            f"a verdict against {retrainings} retraining{'s' if retrainings > 1 else ''}, with the alarm on "
            "the hardest examples and the influence on every client, if the target stays until the audit"
        )
        if retrainings == 1:
            impossible.append("how far chance moves the numbers: that needs a second retraining")
        impossible += _too_few(examples, unseen)
    if canaries:
        possible.append("a lower bound on what the model remembers of the planted canaries")
    else:
        impossible.append("canaries: none were planted at enrolment, and they cannot be added now")
    return Prospects(
        EQUIVALENT if judged and not _hopeless(examples) else PROCESS_ONLY,
        {target: bucket(count) for target, count in examples.items()},
        {target: bucket(count) for target, count in unseen.items()},
        tuple(possible),
        tuple(impossible),
    )


def _without_audit(
    federation: Federation,
    request: Request,
    present: Collection[ClientId],
    gone: bool,
    retrainings: int,
) -> Iterator[str]:
    """Why there can be no verdict."""
    if gone:
        yield "a verdict: the target is gone, and nobody else holds its data"
    elif absent := [target for target in request.targets if target not in present]:
        yield f"a verdict, unless {absent[0]} comes back: nobody else holds its data"
    if retrainings < 1:
        yield "a verdict: it compares with a retrained model, and none is planned"
    if isinstance(federation, Selective):
        state = State(request.params, buffers=request.buffers)
        if why := federation.refusal(audit_job(state, compare=True)):
            yield f"a verdict: {why}"


def _too_few(examples: Mapping[ClientId, int], unseen: Mapping[ClientId, int]) -> Iterator[str]:
    """Judged by ranges alone, so that no more than these is told."""
    for target, count in examples.items():
        held = [count, unseen.get(target, 0)]
        if min(map(_least, held)) >= MINIMUM:
            continue
        what = "EQUIVALENT" if min(held) >= BUCKETS[0] else "EQUIVALENT, or even an alarm,"
        chance = "may be" if count >= BUCKETS[2] else "will be"
        others = bucket(held[1]) if target in unseen else "no"
        yield (
            f"{what} {chance} out of reach: it needs {MINIMUM} forgotten and {MINIMUM} unseen examples, and "
            f"{target} has {bucket(count)} and {others} test examples"
            + (" (its set 'audit', which counts too, is not known here)" if _least(held[1]) < MINIMUM else "")
        )


def _hopeless(examples: Mapping[ClientId, int]) -> bool:
    """Whether a target surely has too few examples to be called equivalent."""
    return any(count < BUCKETS[2] for count in examples.values())


def _least(count: int) -> int:
    """The least number in the range of a count."""
    return max((edge for edge in BUCKETS if edge <= count), default=0)
