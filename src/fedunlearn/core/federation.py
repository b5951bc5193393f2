"""What an engine is, and how clients train on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from .errors import require, require_count, require_type
from .messages import ClientId, Job, Replies, Terms
from .task import Task

Precision = Literal["fp32", "bf16"]
"""Of the arithmetic of local training; parameters and displacements are float32 either way."""


class Federation(Protocol):
    """Carries jobs to clients and replies back."""

    @property
    def task(self) -> Task:
        """What the clients learn."""
        ...

    def present(self) -> frozenset[ClientId]:
        """The clients that can be asked now."""
        ...

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = ...) -> Replies:
        """Replies of the clients that answered, and reasons for those that did not."""
        ...


def require_federation(given: object) -> None:
    """Refuses what cannot carry jobs to clients."""
    fine = callable(getattr(given, "exchange", None)) and callable(getattr(given, "present", None))
    require_type(fine, "federation", given, "make one with simulate(model, clients)")


@runtime_checkable
class Selective(Protocol):
    """A federation whose clients cannot carry out every job; methods that need one are refused at once."""

    def refusal(self, job: Job) -> str | None:
        """Why a job cannot be carried out, if so."""
        ...


@runtime_checkable
class Accountable(Protocol):
    """A federation that may answer the request of one client only, once it has been authorised to."""

    @property
    def authorised(self) -> ClientId | None:
        """Whose request it is; None if anybody can be the target."""
        ...


@runtime_checkable
class Authorising(Protocol):
    """A federation that must be shown the signed request of a client before it forgets that client."""

    def examine(self, client: ClientId, document: str, **settings: Any) -> object:
        """Refuses a request that ``authorise`` would refuse, and changes nothing."""
        ...

    def authorise(self, client: ClientId, document: str, **settings: Any) -> object:
        """Checks the request; ``FlowerFederation.authorise`` explains the settings."""
        ...


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains: plain SGD over batches of its examples."""

    epochs: int = 1
    batch_size: int = 200
    decay: float = 0.999
    """The learning rate of a phase is multiplied by this after every round of the run."""
    shuffle: bool = True
    """Draw batches anew in every round and local epoch, by the seed. A ``DataLoader`` brings its own."""

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs, 1)
        require_count("batch_size", self.batch_size, 1)
        require(isinstance(self.shuffle, bool), "shuffle", self.shuffle, "True or False")
        require(
            isinstance(self.decay, int | float) and 0 < self.decay <= 1,
            "decay",
            self.decay,
            "above 0 and at most 1",
        )
