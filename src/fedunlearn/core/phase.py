"""A phase: a run of rounds with one rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from .errors import require_count, require_rate
from .messages import ClientId, Job, Replies, Vector
from .request import Request
from .state import Stage, State

Jobs: TypeAlias = Mapping[ClientId, Job]

Role = Literal["targets", "retained"]

EVERYBODY: frozenset[Role] = frozenset({"targets", "retained"})
TARGETS: frozenset[Role] = frozenset({"targets"})
RETAINED: frozenset[Role] = frozenset({"retained"})
NOBODY: frozenset[Role] = frozenset()

Round: TypeAlias = Generator[Jobs, Replies, State]
"""Yields jobs, receives replies, as often as the method exchanges messages; returns the next state."""


@dataclass(frozen=True)
class Phase(ABC):
    """A run of rounds with one rule; its fields are its hyper-parameters.

    A round is pure: no clock, no transport, no randomness but ``request.seed``. Clients that failed to answer
    are in ``replies.missing``.
    """

    rounds: int
    lr: float

    stage: ClassVar[Stage]
    needs: ClassVar[frozenset[str]] = frozenset()
    """Requirements by name, checked before round one: see ``requirements.py``."""
    without_backdoor: ClassVar[str] = ""
    """A warning for requests in which no backdoor of the targets is measured."""

    exchanges: ClassVar[int] = 1
    """The exchanges of a round, at most; the first round of a phase may have one more."""
    reveals: ClassVar[tuple[str, ...]] = ()
    """What others learn from it about a client, beyond the models themselves: ``who: what``."""

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds)
        require_rate("lr", self.lr)

    @property
    def asks(self) -> frozenset[Role]:
        """Whose clients a round may ask; a phase that asks no target can run without them."""
        return EVERYBODY

    def message_bytes(self, request: Request) -> int:
        """The size of the largest job or reply: by default that of the model."""
        return sum(each.numel() * each.element_size() for each in (request.params, *request.buffers.values()))

    def start(self, request: Request, state: State) -> State:
        """The state of the first round, given the one that the phase before left behind."""
        return State(state.params, buffers=state.buffers)

    def learners(self, request: Request) -> tuple[ClientId, ...]:
        """Whose training becomes the model's: participants and buffers come from them."""
        return request.retained

    def origin(self, request: Request, state: State) -> Vector:
        """The model that the step of the next round starts from, which guards measure steps against."""
        return state.params

    @abstractmethod
    def round(self, request: Request, state: State) -> Round | State:
        """One round: a generator that exchanges messages, or the next state where the server works alone."""
