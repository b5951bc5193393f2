"""The plan of an erasure: what the method declares, and what keeps the request from being answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..client.audit import audit_job
from ..config.options import phases_of
from ..core import (
    ClientId,
    Federation,
    FedUnlearnError,
    LocalTraining,
    Phase,
    Request,
    Selective,
    State,
    requirements,
)
from ..driver import Guards, Participation
from ..evidence.measures import EXACT, listed
from ..evidence.verdicts import MINIMUM
from ..methods import Recommendation, Schedule, recommend
from .claim import Claim
from .plan_checks import about, cautions, obstacles


@dataclass(frozen=True)
class PhasePlan:
    """A phase; messages and bytes are bounds for all its rounds together."""

    stage: str
    rounds: int
    lr: float
    targets: tuple[ClientId, ...]
    """The targets that must answer in every round."""
    retained: int
    """The number of retained clients that a round asks."""
    messages: int
    """Jobs sent to clients, each answered by one reply."""
    bytes_down: int
    bytes_up: int

    @property
    def cost(self) -> str:
        """The bounds in words."""
        return (
            f"at most {self.rounds:,} rounds at rate {self.lr:g}; each asks targets {len(self.targets)}, "
            f"retained {self.retained:,}; at most {self.messages:,} messages, "
            f"{self.bytes_down / 1e6:,.1f} MB down, {self.bytes_up / 1e6:,.1f} MB up"
        )


@dataclass(frozen=True)
class Plan:
    """A preview of an erasure; nothing has happened yet."""

    method: str
    why: str
    targets: tuple[ClientId, ...]
    phases: tuple[PhasePlan, ...]
    """Empty for a method that cannot be made."""
    retained: int
    """The number of retained clients."""
    minimum: int
    """The retained clients that must answer in every round."""
    absent: tuple[ClientId, ...]
    """Clients of the request that are not present now."""
    needs: tuple[str, ...]
    """Requirements of the method other than clients."""
    reveals: tuple[str, ...]
    """Disclosures, as ``who: what``."""
    claim: str
    """The most that can be claimed afterwards (docs/evidence/claims.md)."""
    evidence: tuple[str, ...]
    no_evidence: tuple[str, ...]
    cautions: tuple[str, ...]
    """Warnings that do not stop ``erase``."""
    problems: tuple[str, ...] = ()
    """Everything for which ``erase`` refuses the request now."""
    codes: tuple[str, ...] = ()
    """The code of each problem; ``erase`` refuses with the first."""
    seconds: float | None = None
    """The time of all rounds, from the last recorded run of the desk; None without one."""

    @property
    def ready(self) -> bool:
        """Whether ``erase`` would begin now."""
        return not self.problems

    @property
    def asks_targets(self) -> bool:
        """Whether some round asks a target."""
        return any(phase.targets for phase in self.phases)

    def refused(self, problems: Iterable[FedUnlearnError]) -> Plan:
        """Return the plan with more problems, which come first."""
        codes = {str(problem): problem.code for problem in problems}
        codes = {**codes, **dict(zip(self.problems, self.codes, strict=True))}
        return replace(self, problems=tuple(codes), codes=tuple(codes.values()))

    def total(self, field: str) -> int:
        """The sum of a field of all phases, such as ``bytes_down``."""
        return sum(getattr(phase, field) for phase in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a value that JSON can hold."""
        return {**asdict(self), "sentences": list(self.sentences)}

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Cost, time, presence, disclosure and evidence, by title."""
        helping = listed(self.targets) + " in every round of unlearning" if self.asks_targets else "no target"
        online = f"{helping}; at least {self.minimum} of {self.retained} retained clients in every round; "
        time = "measured on the first round"
        if self.seconds is not None:
            time = f"about {self.seconds:.3g} s for the rounds, at the pace of the desk's last recorded run"
        return (
            *((phase.stage, phase.cost) for phase in self.phases),
            ("not counted", "clients that are asked again, and trials of steps that guards halve"),
            ("time", time),
            ("online", online + (f"absent now: {listed(self.absent)}" if self.absent else "all are present")),
            ("needs", ", ".join(self.needs) or "nothing but the clients"),
            *(("reveals", each) for each in self.reveals),
            ("evidence", f"at most {self.claim}"),
            *(("evidence", each) for each in self.evidence),
            *(("no evidence", each) for each in self.no_evidence),
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The plan in plain words, problems first."""
        return (
            *(f"Problem: {each}." for each in self.problems),
            f"Method: {self.method}, because {self.why}.",
            *(f"{title.capitalize()}: {fact}." for title, fact in self.facts),
            *(f"Caution: {each}." for each in self.cautions),
        )


def make_plan(
    federation: Federation,
    request: Request,
    method: str | None = None,
    schedule: Schedule = Schedule(),
    *,
    options: Mapping[str, Any] = {},
    training: LocalTraining = LocalTraining(),
    participation: Participation = Participation(redo=2),
    guards: Guards | None = Guards(),
    gone: bool = False,
    begun: bool = False,
    poisoned: bool = False,
    smallest: int = 128,
    retrainings: int = 0,
    trained: int | None = None,
) -> Plan:
    """Return what ``forget`` with the same settings will do; the model and the clients stay as they are.

    Without a ``method``, ``recommend`` chooses one, by ``gone`` and ``poisoned``. A target whose
    updates the method uses measures the model once: fewer than ``smallest`` training examples are a problem.
    ``begun`` says that the run has recorded rounds already. ``retrainings`` is the number of retrained models
    of the audit, and ``trained`` the number of rounds of the model's training, if no history records it.
    """
    present = federation.present()
    recorded, said = request.history.kinds, about(method or "").get("summary", "nothing is known of it")
    chosen, why, recommended = (
        recommend(poisoned=poisoned, gone=gone, recorded=recorded)
        if method is None
        else Recommendation(method, f"you named it: {said}")
    )
    phases: tuple[Phase, ...] = ()
    problems: list[FedUnlearnError] = []
    try:
        phases = phases_of(chosen, schedule, {**recommended, **options})
    except FedUnlearnError as error:
        problems.append(error)
    else:
        problems += obstacles(
            chosen,
            phases,
            request,
            federation,
            present,
            training,
            participation,
            gone=gone,
            begun=begun,
            smallest=smallest,
        )
    impossible = tuple(_no_verdict(federation, request, present, gone, retrainings))
    return Plan(
        chosen,
        why,
        request.targets,
        tuple(_phase(phase, request, present, participation, guards) for phase in phases),
        len(request.retained),
        participation.minimum,
        tuple(client for client in request.clients if client not in present),
        tuple(sorted(requirements.needs(phases))),
        tuple(_reveals(chosen, phases, request, guards)) if phases else (),
        Claim.PROCESS_ONLY if impossible else Claim.BEHAVIOURALLY_EQUIVALENT,
        tuple(_evidence(chosen, retrainings, judged=not impossible)),
        impossible,
        tuple(cautions(chosen, phases, request, present, poisoned=poisoned, trained=trained)),
    ).refused(problems)


def _phase(
    phase: Phase,
    request: Request,
    present: Collection[ClientId],
    participation: Participation,
    guards: Guards | None,
) -> PhasePlan:
    """Count every round as if all whom the phase may ask answered, with the extra exchange of its first."""
    retained = [client for client in request.retained if client in present]
    targets = request.targets if "targets" in phase.asks else ()
    everybody = len(targets) + (len(retained) if "retained" in phase.asks else 0)
    drawn = len(participation.draw(retained, "plan")) if "retained" in phase.asks else 0
    rounds, size = phase.rounds, Phase.message_bytes(phase, request)
    worked = (rounds * phase.exchanges * (len(targets) + drawn) + everybody) if rounds else 0
    # Guards try the step of every round, and the model before the first one.
    tried = (rounds + 1) * len(retained) if guards is not None and rounds else 0
    # All clients measure the model at the end of every phase and at the start of the run.
    measured = 2 * (len(retained) + len(request.targets)) if rounds else 0
    return PhasePlan(
        str(phase.stage),
        rounds,
        phase.lr,
        targets if rounds else (),
        drawn,
        worked + tried + measured,
        worked * phase.message_bytes(request) + (tried + measured) * size,
        worked * phase.message_bytes(request),
    )


def _reveals(method: str, phases: Sequence[Phase], request: Request, guards: Guards | None) -> Iterator[str]:
    """Say what the server, the clients and later observers learn."""
    for phase in (phase for phase in phases if phase.rounds):
        for role in sorted(phase.asks):
            whose = "the targets" if role == "targets" else "the retained clients"
            yield f"server: the updates of {whose} in {phase.rounds:,} rounds of {phase.stage}, with losses"
        if "retained" in phase.asks or guards is not None:
            yield f"retained clients: the model of every round of {phase.stage}"
        if "targets" in phase.asks:
            yield f"targets: the model of every round of {phase.stage}"
            if "retained" in phase.asks or guards is not None:
                yield "retained clients: the targets' update in each step, as the method mixes it"
            else:
                yield "retained clients: the sum of the targets' updates, from ω⁰ and the new model"
        yield from phase.reveals
    yield "server: sums of losses and scores over evaluation sets, with counts, of every client"
    if len(request.retained) == 1:
        yield f"all who receive a model: the updates of {request.retained[0]}, because nobody else trains"
    difference = "what ω⁰ knew of the target's data" if method in EXACT else "what was unlearned"
    yield (
        f"whoever holds ω⁰ and the new model: {difference}, so delete ω⁰ and its copies when the request "
        "is closed"
    )


def _no_verdict(
    federation: Federation, request: Request, present: Collection[ClientId], gone: bool, retrainings: int
) -> Iterator[str]:
    """Say why no verdict is possible."""
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


def _evidence(method: str, retrainings: int, *, judged: bool) -> Iterator[str]:
    """Say what can be shown afterwards."""
    yield "the record of the run: settings, models' digests, metrics of every round"
    if method in EXACT:
        yield f"{method} is exact, so this record is enough: only clients without the target's data trained"
    yield "the scores of every client with a test set or a backdoor, before and after"
    if judged:
        floor = "" if retrainings > 1 else "; how far chance moves it, only a second retraining tells"
        yield (
            f"a verdict against {retrainings} retrained models, if the target stays until the audit and has "
            f"{MINIMUM} forgotten and {MINIMUM} unseen examples{floor}"
        )
