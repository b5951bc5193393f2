"""The plan of an erasure: what will happen, what it costs and shows, and what stands in its way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core import (
    ClientId,
    Federation,
    FedUnlearnError,
    LocalTraining,
    Phase,
    Request,
    Stage,
    requirements,
)
from ..driver import Guards, Participation, StopRule
from ..driver.preconditions import preconditions
from ..evidence.measures import listed
from ..measure.cost import size
from ..methods import Recommendation, Schedule, recommend
from ..methods.fedosd import ForgettingDescent
from ..methods.joint import JointDescent
from ..methods.recovering import RecoveringAveraging
from ..methods.sfu import SubspaceAscent
from ..methods.sisa import SliceRetraining
from .costs import (
    NEVER,
    PhaseCost,
    Timing,
    estimate,
    evaluation_bytes,
    evaluations,
    measure_round,
    rehearse,
)
from .disclosures import Disclosure, disclosures
from .obstacles import about, absent_targets, cautions, phases_of, too_short, too_small
from .prospects import Prospects, prospects

ESTIMATED = (ForgettingDescent, RecoveringAveraging, SubspaceAscent, SliceRetraining)
"""Phases that may end before their rounds are up, or in which clients may train or send less than at most."""


@dataclass(frozen=True)
class PhasePlan:
    """A phase: numbers are of all its rounds together, as ``metrics.jsonl`` will add them up."""

    stage: str
    rounds: int
    lr: float
    """That it begins with; it decays from round to round."""
    asked: int
    """Clients that train in a round."""
    targets: tuple[ClientId, ...]
    """Targets that must answer in every round."""
    retained: tuple[ClientId, ...]
    """Retained clients that are asked, or that participants are drawn from."""
    exchanges: int
    messages: int
    """To clients; each of them is answered by one reply."""
    local_trainings: int
    bytes_down: int
    bytes_up: int
    trials: int
    """Of the exchanges, those in which the utility guard tries a step."""
    halvings: int
    """Exchanges that the guard adds at most, if it halves every step as often as it may."""
    exact: bool
    """Whether a run in which nobody fails and no step is halved exchanges exactly this.

    Else it is the most, for phases that can end early; with KNOT and drawn participants it is about this.
    """


@dataclass(frozen=True)
class Online:
    """Who must be there."""

    needed: tuple[ClientId, ...]
    """Clients without which no round of some phase can be completed."""
    minimum: int
    """Of the retained clients, in every round."""
    retained: int
    missing: tuple[ClientId, ...]
    """Of the clients of the request, those that are not there now."""


@dataclass(frozen=True)
class Recorded:
    """What the server has stored, and what the method needs of it."""

    needed: tuple[str, ...]
    present: tuple[str, ...]
    missing: tuple[str, ...]
    clients: int
    """Number of clients that the history describes."""
    bytes: int
    """Of the history."""
    anchors: int
    """Models of earlier requests."""


@dataclass(frozen=True)
class Plan:
    """What an erasure will be, before anything has happened."""

    method: str
    why: str
    targets: tuple[ClientId, ...]
    phases: tuple[PhasePlan, ...]
    """Empty where a problem keeps the method from being rehearsed."""
    measurements: int
    """How often all clients that are present measure the model, beside the rounds."""
    measured_messages: int
    measured_bytes: int
    """What is sent for that; metrics do not count it."""
    online: Online
    seconds: float | None
    """An estimate; None if nothing was timed."""
    timing: Timing | None
    """The exchanges that it was estimated from."""
    recorded: Recorded
    reveals: tuple[Disclosure, ...]
    evidence: Prospects
    cautions: tuple[str, ...]
    """What does not stand in the way, and should be known."""
    problems: tuple[str, ...]
    """Every precondition that fails: what, where, and what to do."""

    @property
    def ready(self) -> bool:
        return not self.problems

    def total(self, field: str) -> int:
        """A number of all phases together, such as ``bytes_down``."""
        return sum(getattr(phase, field) for phase in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """The plan as a value that JSON can hold."""
        return {**asdict(self), "sentences": list(self.sentences)}

    @property
    def sentences(self) -> tuple[str, ...]:
        """The plan in plain words, problems first."""
        told = [f"Problem: {problem}." for problem in self.problems]
        told.append(f"Method: {self.method}, because {self.why}.")
        if self.phases:
            bound = "" if all(phase.exact for phase in self.phases) else "at most "
            told.append(
                f"Cost: {bound}{self.total('rounds'):,} rounds, {self.total('exchanges'):,} exchanges, "
                f"{self.total('messages'):,} messages, {megabytes(self.total('bytes_down'))} down and "
                f"{megabytes(self.total('bytes_up'))} up; beside the rounds, {self.measurements} "
                f"measurements ({megabytes(self.measured_bytes)})."
            )
        if self.seconds is not None and self.timing is not None:
            told.append(
                f"Time: about {self.seconds:.3g} s, from a training exchange with {self.timing.clients} "
                f"clients that took {self.timing.training:.2g} s."
            )
        told.append(f"Online: {online_sentence(self)}.")
        told.append(f"Recorded: {recorded_sentence(self.recorded)}.")
        told += [f"Reveals: {each.who}: {each.sees}." for each in self.reveals]
        told.append(f"Evidence: at most {self.evidence.claim}.")
        told += [f"Evidence: {each}." for each in self.evidence.possible]
        told += [f"No evidence: {each}." for each in self.evidence.impossible]
        told += [f"Caution: {each}." for each in self.cautions]
        return tuple(told)


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
    stop: Sequence[StopRule] = (),
    evaluate_every: int | None = None,
    gone: bool = False,
    poisoned: bool = False,
    trusted: bool = True,
    smallest: int = 128,
    retrainings: int = 0,
    canaries: bool = False,
    measured: bool = True,
    trained: int | None = None,
) -> Plan:
    """What ``forget`` with the same settings will do; the model and the clients stay as they are.

    Without a ``method``, ``recommend`` chooses one, by ``gone``, ``poisoned`` and ``trusted``. If
    ``measured``, the clients are asked: all measure the model, and retained ones train it once, for the time
    and for the sizes of the targets; a target with fewer than ``smallest`` training examples is a problem.
    ``retrainings`` is how many retrained models an audit will have, and ``canaries`` whether the targets have
    planted some. ``trained`` is how many rounds the model was trained for; a recorded history may tell it.
    """
    present = federation.present()
    chosen, why, recommended = _chosen(request, method, gone, poisoned, trusted)
    phases, problems = phases_of(chosen, schedule, {**recommended, **options})
    problems += preconditions(phases, request, federation, present, training, participation)
    expected = present if gone else present | {*request.targets}
    costs: tuple[PhaseCost, ...] = ()
    if not list(requirements.missing(phases, request, federation.task)):
        try:
            # Targets that a method asks are counted even if they are gone: that is a problem of its own.
            everybody = present | {*request.targets}
            costs = rehearse(phases, request, federation.task, everybody, training, participation, guards)
        except FedUnlearnError as error:
            problems.append(str(error))
    helping = tuple(target for target in request.targets if any(_works(cost, target) for cost in costs))
    problems += absent_targets(chosen, helping, request, present, gone)
    found = None
    if measured and present & {*request.clients}:
        lr = phases[0].lr if phases else schedule.recover_lr
        found = measure_round(federation, request, present, lr, training, participation)
    if helping or requirements.needs(phases) & {"updates", "residuals"}:
        problems += too_small(found, request, smallest)
    count = evaluations(costs, NEVER if evaluate_every is None else evaluate_every, bool(stop))
    measuring = sum(client in expected for client in request.clients)
    timing = None if found is None else found.timing
    return Plan(
        chosen,
        why,
        request.targets,
        tuple(_phase(cost, request, expected, participation, guards, bool(stop)) for cost in costs),
        count,
        count * measuring,
        count * measuring * evaluation_bytes(request),
        Online(
            helping,
            participation.minimum,
            len(request.retained),
            tuple(client for client in request.clients if client not in present),
        ),
        estimate(costs, count, timing) if timing is not None and costs else None,
        timing,
        _recorded(phases, request),
        tuple(disclosures(chosen, costs, request, present)) if costs else (),
        prospects(
            chosen,
            federation,
            request,
            present,
            None if found is None else found.replies,
            gone=gone,
            retrainings=retrainings,
            canaries=canaries,
        ),
        (*too_short(phases, request, trained), *cautions(chosen, phases, request, present, found, poisoned)),
        tuple(dict.fromkeys(problems)),
    )


def _chosen(
    request: Request, method: str | None, gone: bool, poisoned: bool, trusted: bool
) -> Recommendation:
    if method is None:
        return recommend(poisoned=poisoned, gone=gone, trusted=trusted, recorded=request.history.kinds)
    summary = about(method).get("summary", "")
    return Recommendation(method, f"you named it{f': {summary}' if summary else ''}")


def _recorded(phases: Sequence[Phase], request: Request) -> Recorded:
    needed, history = requirements.recorded(phases), request.history
    return Recorded(
        tuple(sorted(needed)),
        tuple(sorted(needed & history.kinds)),
        tuple(sorted(needed - history.kinds)),
        len({client for rows in history.rows.values() for client in rows}),
        size(*history.tensors().values()),
        len(request.anchors),
    )


def _works(cost: PhaseCost, client: ClientId) -> bool:
    """Whether a client takes part in rounds, beside the trials of guards."""
    exchanges = (*cost.first.exchanges, *cost.later.exchanges)
    return any(client in jobs and jobs[client].work != "measure" for jobs in exchanges)


def _phase(
    cost: PhaseCost,
    request: Request,
    present: Collection[ClientId],
    participation: Participation,
    guards: Guards | None,
    watched: bool,
) -> PhasePlan:
    phase, later = cost.phase, cost.later
    asked = {client for jobs in later.exchanges for client in jobs if _works(cost, client)}
    pool = tuple(client for client in request.retained if client in present)
    drawn = participation.draw(pool, "plan")
    retained = tuple(client for client in pool if client in asked)
    early = isinstance(phase, ESTIMATED) and not isinstance(phase, JointDescent)
    stopped = watched and phase.stage is Stage.UNLEARNING
    tried = int(cost.total(lambda round: round.trials > 0))
    return PhasePlan(
        str(phase.stage),
        cost.rounds,
        phase.lr,
        len(asked),
        tuple(target for target in request.targets if _works(cost, target)),
        pool if retained and len(drawn) < len(pool) else retained,
        int(cost.total(lambda round: sum(map(bool, round.exchanges)))),
        int(cost.total(lambda round: round.messages)),
        int(cost.total(lambda round: round.local_trainings)),
        int(cost.total(lambda round: round.bytes_down)),
        int(cost.total(lambda round: round.bytes_up)),
        int(cost.total(lambda round: round.trials)),
        tried * guards.halvings if guards is not None else 0,
        not early and not stopped and (len(drawn) == len(pool) or len(retained) in (0, len(drawn))),
    )


def online_sentence(plan: Plan) -> str:
    """Who must be there, in words."""
    told = [
        f"{listed(plan.online.needed)} in every round of unlearning"
        if plan.online.needed
        else "no target has to help",
        f"at least {plan.online.minimum} of {plan.online.retained} retained clients in every round",
    ]
    told.append(
        f"missing now: {listed(plan.online.missing)}" if plan.online.missing else "everybody is there"
    )
    return "; ".join(told)


def recorded_sentence(recorded: Recorded) -> str:
    """What is stored, in words."""
    needs = (
        f"the method needs {', '.join(recorded.needed)}" if recorded.needed else "the method needs nothing"
    )
    lacks = f", and {', '.join(recorded.missing)} is missing" if recorded.missing else ""
    kept = (
        f"; the history describes {recorded.clients} clients in {megabytes(recorded.bytes)}"
        if recorded.clients
        else "; no history is stored"
    )
    earlier = f", and {recorded.anchors} models of earlier requests" if recorded.anchors else ""
    return f"{needs}{lacks}{kept}{earlier}"


def megabytes(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 5e4 else f"{count / 1e3:,.1f} kB"
