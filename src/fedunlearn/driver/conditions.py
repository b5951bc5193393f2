"""The parts of a run that stay the same from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core import (
    Federation,
    FedUnlearnError,
    LocalTraining,
    Phase,
    Progress,
    Request,
    Stage,
    did_you_mean,
    require,
    require_count,
    require_type,
)
from ..core.errors import warn
from .guards import Guards
from .participation import Participation
from .preconditions import preconditions
from .probes import Probe
from .stopping import StopRule, require_rules


@dataclass(frozen=True)
class Conditions:
    """The settings of a run: training, participation, evaluation, stop rules and guards."""

    training: LocalTraining
    seed: int
    evaluate_every: int
    participation: Participation
    stop: Sequence[StopRule]
    probes: Sequence[Probe]
    guards: Guards | None
    floor: float | None

    def __post_init__(self) -> None:
        require_rules(self.stop)
        require_count("evaluate_every", self.evaluate_every, 1)
        share = isinstance(self.floor, int | float) and 0 <= self.floor <= 1
        require(self.floor is None or share, "floor", self.floor, "a share from 0 to 1, or None")


@dataclass(frozen=True)
class Run:
    """Phases, the request, the federation that carries them out, and the conditions."""

    phases: tuple[Phase, ...]
    request: Request
    federation: Federation
    conditions: Conditions

    def check(self) -> None:
        """Refuse before round one a run that cannot be carried out."""
        request, present = self.request, self.federation.present()
        if absent := sorted({*request.retained} - present):
            known = did_you_mean(absent[0], present - {*request.clients} or present)
            warn(f"client {absent[0]!r} of the request is not present{known}", "absent")
        training, participation = self.conditions.training, self.conditions.participation
        for problem in preconditions(self.phases, request, self.federation, present, training, participation):
            raise FedUnlearnError(problem, code="unsuitable")

    def drawn(self, progress: Progress) -> Request:
        """Return the request of a round: its participants, without targets that a stop rule has released."""
        request = self.request
        if progress.finished:
            request = replace(
                request,
                clients=tuple(c for c in request.clients if c not in progress.finished),
                targets=tuple(t for t in request.targets if t not in progress.finished),
            )
        present = self.federation.present()
        learners = self.phases[progress.phase].learners(request)
        there = tuple(client for client in learners if client in present)
        names = (self.conditions.seed, progress.phase, progress.state.round)
        return replace(request, participants=self.conditions.participation.draw(there, *names))


def require_phases(given: object) -> tuple[Phase, ...]:
    """Refuse anything but a list of phases."""
    remedy = "give a list of phases, such as method['fedosd'](Schedule())"
    require_type(isinstance(given, Sequence) and not isinstance(given, str), "phases", given, remedy)
    assert isinstance(given, Sequence)
    for phase in given:
        require_type(isinstance(phase, Phase), "a phase", phase, remedy)
    return tuple(given)


def from_scratch(phase: Phase) -> bool:
    """Return whether a phase trains a new model: it cannot harm clients by what it has not learned yet."""
    later = phase.stage is Stage.POSTTRAINING and "fresh" in phase.needs
    return phase.stage is Stage.PRETRAINING or later
