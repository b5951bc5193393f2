"""The values that travel between server, clients and listeners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Vector = Tensor
"""One-dimensional: all trainable parameters of a model in module order."""

ClientId = str
"""A stable name, never a position: ``client-3``, or the virtual ``client-3#forget``."""

Buffers = Mapping[str, Tensor]
"""What a model carries beside its parameters (BatchNorm statistics); empty for most models."""

Metrics = dict[str, float | int | str]

Precision = Literal["fp32", "bf16"]
"""Of the arithmetic of local training; parameters and displacements are float32 either way."""


class FedUnlearnError(Exception):
    """Something the user can mend; the message says what, where and what to do."""


class Examples(NamedTuple):
    """Inputs and labels of equal length."""

    x: Tensor
    y: Tensor

    def take(self, index: Tensor) -> Examples:
        return Examples(self.x[index], self.y[index])


@dataclass(frozen=True)
class ClientData:
    """What one client holds: the examples it trains on, and the named sets it evaluates on.

    Sets with a meaning for the measures: ``test`` (clean, never trained on), ``seen`` (clean, trained on),
    ``backdoor`` (triggered, with flipped labels), ``forget`` (what the request asks to forget).
    """

    train: Examples
    evaluations: Mapping[str, Examples] = field(default_factory=dict)


class Status(StrEnum):
    """How a phase, or a run, stands."""

    RUNNING = "running"
    DONE = "done"
    CONVERGED = "converged"
    NO_DIRECTION = "no_direction"
    MISSING_REPLY = "missing_reply"
    DIVERGED = "diverged"

    @property
    def failed(self) -> bool:
        return self in (Status.NO_DIRECTION, Status.MISSING_REPLY, Status.DIVERGED)


class Stage(StrEnum):
    """The part of the protocol that a phase belongs to."""

    PRETRAINING = "pre-training"
    UNLEARNING = "unlearning"
    POSTTRAINING = "post-training"


@dataclass(frozen=True)
class Job:
    """Server to client: train from ``params`` with the named objective.

    A method fills the first five fields; the driver fills the rest.
    """

    params: Vector
    objective: str | None = None
    """By name; None is whatever the federation trains with."""
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    """What the objective is made of."""
    effort: float = 1.0
    """The share of the federation's local epochs, rounded up; 0 asks for the objective's upload alone."""
    lr: float = 0.0
    """Left at 0, the phase's; either decays over the rounds."""
    buffers: Buffers = field(default_factory=dict)
    epochs: int = 1
    batch_size: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Reply:
    """Client to server: the displacement Δ = ω − ω_i of the local training, and how much data made it."""

    displacement: Vector
    examples: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=dict)


class Replies(Mapping[ClientId, Reply]):
    """Replies keyed by client, always in the order of the client's name: arrival does not matter."""

    def __init__(self, replies: Mapping[ClientId, Reply]) -> None:
        self._replies = {client: replies[client] for client in sorted(replies)}

    def __getitem__(self, client: ClientId) -> Reply:
        return self._replies[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def of(self, clients: Iterable[ClientId]) -> Replies:
        """The replies of those clients that answered."""
        wanted = set(clients)
        return Replies({client: reply for client, reply in self.items() if client in wanted})

    def matrix(self) -> Tensor:
        """One displacement a row, to read only: no copy where an engine has laid out the rows like that."""
        rows = [reply.displacement for reply in self.values()]
        first, size = rows[0], len(rows[0])
        together = all(
            row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and row.storage_offset() == first.storage_offset() + number * size
            and row.is_contiguous()
            for number, row in enumerate(rows)
        )
        return first.as_strided((len(rows), size), (size, 1)) if together else torch.stack(rows)

    def mean(self) -> Vector:
        """The plain mean of the displacements."""
        return self._combine([1 / len(self)] * len(self))

    def average(self) -> Vector:
        """The mean of the displacements, weighted by each client's number of examples."""
        return self._combine(self.weights())

    def weights(self) -> list[float]:
        total = sum(reply.examples for reply in self.values())
        return [reply.examples / total for reply in self.values()]

    def _combine(self, weights: list[float]) -> Vector:
        first, *others = self.values()
        total = first.displacement * weights[0]
        for reply, weight in zip(others, weights[1:], strict=True):
            total.add_(reply.displacement, alpha=weight)
        return total


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
    """The learning rate of the round at hand, which the driver fills in."""

    def step(self, direction: Vector, **diagnostics: float) -> State:
        """Moves the model along a direction (directions are added, displacements subtracted)."""
        return self.move_to(self.params + direction, **diagnostics)

    def move_to(self, params: Vector, **diagnostics: float) -> State:
        """Puts the model somewhere else."""
        return replace(self, params=params, diagnostics=diagnostics)

    def remember(self, **memory: Tensor) -> State:
        return replace(self, memory={**self.memory, **memory})

    def halt(self, status: Status, reason: str) -> State:
        """Ends the phase here, with the model as it is."""
        return replace(self, status=status, reason=reason)


@dataclass(frozen=True)
class Request:
    """Who wants to be forgotten, by whom, and from which model ω⁰."""

    params: Vector
    clients: tuple[ClientId, ...]
    targets: tuple[ClientId, ...]
    fresh: Callable[[str], State] | None = None
    """A newly initialised model for a named purpose, for methods that start anew (retraining)."""
    buffers: Buffers = field(default_factory=dict)
    """Left empty, the engine's model brings its own."""
    shapes: Mapping[str, torch.Size] = field(default_factory=dict)
    """Of the model's trainable parameters, in their order in the vector; for methods that look at layers."""
    history: Mapping[str, Tensor] = field(default_factory=dict)
    """What pre-training recorded, by ``kind`` or ``kind client``."""
    public: ClientId | None = None
    """A member of the federation that holds public data: neither target nor retained."""
    seed: int = 0
    """What a method derives its own random numbers from, by names."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.targets) - set(self.clients))
        if unknown:
            raise FedUnlearnError(f"target {unknown[0]!r} is not one of the {len(self.clients)} clients")
        if not self.retained:
            raise FedUnlearnError(
                f"all {len(self.clients)} clients are targets, so nobody is left to keep the model for: "
                "name fewer targets, or delete the model"
            )

    def starting_from(self, state: State) -> Request:
        """The same request to another model, for instance to the one that pre-training ended with."""
        return replace(self, params=state.params, buffers=state.buffers)

    @property
    def retained(self) -> tuple[ClientId, ...]:
        return tuple(client for client in self.clients if client not in self.targets)

    def recorded(self, kind: str, client: ClientId) -> Tensor:
        """What pre-training recorded of that kind about a client."""
        if f"{kind} {client}" not in self.history:
            raise FedUnlearnError(
                f"the history of the pre-training knows no client {client!r}: "
                "methods that need history forget whole clients"
            )
        return self.history[f"{kind} {client}"]

    def pieces(self, vector: Vector) -> dict[str, Tensor]:
        """Views of a vector, one for each trainable parameter of the model, by name."""
        if not self.shapes:
            raise FedUnlearnError("this method looks at layers: give the request the ``shapes`` of the model")
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


@dataclass(frozen=True)
class Phase(ABC):
    """A run of rounds with one rule; its fields are its hyper-parameters.

    ``ask`` says who should do what, ``tell`` hears what came back; neither knows how the
    messages travel, and both are pure functions of their arguments.
    """

    rounds: int
    lr: float

    stage: ClassVar[Stage]
    needs: ClassVar[frozenset[str]] = frozenset()
    """Kinds of history that pre-training must have recorded."""
    forgets: ClassVar[bool] = True
    """Of unlearning: whether it is over once enough is forgotten (``stop_below``)."""

    def start(self, request: Request, state: State) -> State:
        """The state of the first round, given the one that the phase before left behind."""
        return State(state.params, buffers=state.buffers)

    def speakers(self, request: Request) -> tuple[ClientId, ...]:
        """Whose buffers (BatchNorm statistics) the model takes over; targets have no say in them."""
        return request.retained

    @abstractmethod
    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]: ...

    @abstractmethod
    def tell(self, request: Request, state: State, replies: Replies) -> State: ...


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains: plain SGD over a fixed list of batches."""

    epochs: int = 1
    batch_size: int = 200
    objective: str = "cross_entropy"
    """What clients minimise wherever a method asks for nothing else."""
    decay: float = 0.999
    """The learning rate of a phase is multiplied by this after every round of the run."""


class Objective(Protocol):
    """What a client minimises, found by name on every engine."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor: ...

    def step(self, params: Vector, gradient: Vector, lr: float) -> Vector:
        """What one local step subtracts from the parameters; for most objectives ``lr * gradient``."""
        ...

    def upload(self, model: nn.Module, batches: Iterable[Examples]) -> Mapping[str, Tensor]:
        """What goes to the server beside the displacement, from the model as it came, in evaluation mode."""
        ...


Evaluation = Mapping[ClientId, Mapping[str, float]]
"""For each client ``<set>_accuracy``, ``<set>_loss`` and ``<set>_examples`` of its evaluation sets."""


class Federation(Protocol):
    """What an engine is: it carries jobs to clients and replies back."""

    @property
    def clients(self) -> tuple[ClientId, ...]: ...

    def train(self, jobs: Mapping[ClientId, Job]) -> Replies:
        """Replies of the clients that answered; one that is missing has none."""
        ...

    def evaluate(self, params: Vector, buffers: Buffers) -> Evaluation:
        """How a model does on the evaluation sets of all clients."""
        ...


@dataclass(frozen=True)
class Progress:
    """Where a run stands: enough to go on from here in another process."""

    phase: int
    elapsed_rounds: int
    state: State


@dataclass(frozen=True)
class Event:
    """One finished round (or, with round 0, the start of a run), as listeners hear it."""

    progress: Progress
    phases: tuple[Phase, ...]
    metrics: Metrics


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: State
    status: Status
    reason: str
    metrics: tuple[Metrics, ...]

    @property
    def params(self) -> Vector:
        return self.state.params
