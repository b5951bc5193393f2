"""The state of a run between two rounds, and the callbacks that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch import Tensor

from .messages import Buffers, ClientId, Vector
from .scores import forgetting_key, utility_key

if TYPE_CHECKING:
    from .phase import Phase

Metrics = dict[str, float | int | str]


class Status(StrEnum):
    """How a phase, or a run, stands."""

    RUNNING = "running"
    DONE = "done"
    CONVERGED = "converged"
    NO_DIRECTION = "no_direction"
    MISSING_REPLY = "missing_reply"
    DIVERGED = "diverged"
    GUARD_STOP = "guard_stop"
    HARMED = "harmed"

    @property
    def failed(self) -> bool:
        return self not in (Status.RUNNING, Status.DONE, Status.CONVERGED)

    @property
    def final(self) -> bool:
        """Whether a failure is a verdict on a finished run, which nothing is left to try of."""
        return self in (Status.GUARD_STOP, Status.HARMED)


class Stage(StrEnum):
    """The part of the protocol that a phase belongs to."""

    PRETRAINING = "pre-training"
    UNLEARNING = "unlearning"
    POSTTRAINING = "post-training"


@dataclass(frozen=True)
class State:
    """Everything a phase knows between two rounds; what can be saved can be resumed."""

    params: Vector
    round: int = 0
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=dict)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    status: Status = Status.RUNNING
    reason: str = ""
    lr: float = 0.0
    """The learning rate of the round at hand, after decay; the driver fills it in."""

    def step(self, direction: Vector, **diagnostics: float) -> State:
        """Moves the model along a direction (directions are added, displacements subtracted)."""
        return self.move_to(self.params + direction, **diagnostics)

    def move_to(self, params: Vector, **diagnostics: float) -> State:
        """Replaces the model."""
        return replace(self, params=params, diagnostics=diagnostics)

    def remember(self, **memory: Tensor) -> State:
        return replace(self, memory={**self.memory, **memory})

    def halt(self, status: Status, reason: str) -> State:
        """Ends the phase here, with the model as it is."""
        return replace(self, status=status, reason=reason)


@dataclass(frozen=True)
class Guarded:
    """What a run remembers from round to round to judge its end: clients, losses and what the guards did."""

    spent: float = 0.0
    """The length of all steps of unlearning."""
    original: Mapping[ClientId, float] = field(default_factory=dict)
    """The training losses of retained clients with ω⁰."""
    reference: Mapping[ClientId, float] = field(default_factory=dict)
    """The losses that those of this phase are compared with."""
    started: Mapping[str, float] = field(default_factory=dict)
    """What was measured of the targets, and of the retained clients, at first."""
    tests: Mapping[ClientId, int] = field(default_factory=dict)
    """The number of test examples of each retained client."""
    helped: bool = False
    """Whether the targets were asked to take part."""
    unmoved: str = ""
    """Why the targets do not look forgotten, if so."""
    unmoved_code: str = ""
    """The same as a code: ``unmoved``, or ``unmeasured`` if nothing is measured of them."""
    seen: Mapping[str, tuple[ClientId, str]] = field(default_factory=dict)
    """Digests of the updates that were used: whose each was, and for which model."""
    events: Mapping[str, int] = field(default_factory=dict)
    """What the outcome is to tell, and how often it happened."""
    codes: Mapping[str, int] = field(default_factory=dict)
    """The same by codes that name nobody, and updates that were refused without guards too."""
    stopped: str = ""
    """Which phases the guards ended before their last round, and why."""
    left_out: int = 0
    """How many steps in a row the guards have left out."""
    asked: Mapping[ClientId, int] = field(default_factory=dict)
    """In how many rounds each client had work to do."""
    lost: Mapping[ClientId, Mapping[str, tuple[int, str]]] = field(default_factory=dict)
    """By client and reason: in how many of them its work could not be used, and a sentence."""
    worse: str = ""
    """What the retained clients lose by the final model, if it is much."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands: enough to continue from here in another process."""

    phase: int
    elapsed_rounds: int
    state: State
    heard: frozenset[ClientId] = frozenset()
    """The retained clients that have answered in some round."""
    finished: frozenset[ClientId] = frozenset()
    """The targets that a stop rule has released from this phase."""
    guarded: Guarded = Guarded()
    missing: tuple[ClientId, ...] = ()
    """The clients without which the last round could not be completed; not recorded."""


@dataclass(frozen=True)
class Event:
    """One finished round or, with round 0, the start of a run."""

    progress: Progress
    phases: tuple[Phase, ...]
    metrics: Metrics


Listener = Callable[[Event], None]
"""A function that is called with every round after it has been recorded."""


class Callback:
    """A listener with more hooks; its owner enters it, so that an interruption leaves nothing unwritten."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the work."""

    def before_record(self, event: Event) -> None:
        """Run before a round is recorded; runs again after a crash, so it must be idempotent."""

    def record(self, event: Event) -> None:
        """Make a round durable."""

    def after_record(self, event: Event) -> None:
        """Run after a round has been recorded."""

    def __call__(self, event: Event) -> None:
        self.after_record(event)


class Witness(Callback):
    """A function that is called with every round before it is recorded."""

    def __init__(self, function: Listener) -> None:
        self._function = function

    def before_record(self, event: Event) -> None:
        self._function(event)


@dataclass(frozen=True, repr=False)
class Outcome:
    """How a run ended."""

    state: State
    status: Status
    reason: str
    metrics: tuple[Metrics, ...]
    unheard: tuple[ClientId, ...] = ()
    """The retained clients that never answered, which no step could take into account."""
    warnings: tuple[str, ...] = ()
    """Clients that were left out, what the guards did, retained clients that lose, targets not forgotten."""
    guards: Mapping[str, int] | None = None
    """How often the guards did what, by codes that name nobody; None without guards."""
    targets: tuple[ClientId, ...] = ()
    missing: tuple[ClientId, ...] = ()
    """The clients without which the last round could not be completed."""

    @property
    def params(self) -> Vector:
        return self.state.params

    def __repr__(self) -> str:
        """In short: the status, the rounds, and the scores before and after."""
        measured = [row for row in self.metrics if utility_key(row) or forgetting_key(row)]
        first, last = (measured[0], measured[-1]) if measured else ({}, {})
        wanted = dict.fromkeys(("asr", "forget_acc", forgetting_key(first), utility_key(first)))
        keys = [key for key in wanted if key is not None and key in first and key in last]
        scores = [f"{key} {float(first[key]):.3f} → {float(last[key]):.3f}" for key in keys]
        noted = [_counted(len(self.warnings), "warning")] if self.warnings else []
        noted += ["model unchanged"] if self.status.failed else []
        rounds = _counted(int(self.metrics[-1].get("elapsed", 0)), "round") if self.metrics else "no rounds"
        return f"<Outcome: {', '.join([self.status, rounds, *scores, *noted])}>"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
