"""What travels between server and clients: jobs one way, replies the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import torch
from torch import Tensor

from ..maths.paging import release_pages
from .errors import require
from .rows import empty
from .seeds import derive, generator

Vector = Tensor
"""One-dimensional: all trainable parameters of a model in module order."""

ClientId = str
"""A stable name, never a position: ``site-3``, or the virtual ``site-3#forget``."""

Buffers: TypeAlias = Mapping[str, Tensor]
"""What a model carries beside its parameters (BatchNorm statistics); empty for most models."""

ConfigValue = float | int | str | bool


@dataclass(frozen=True)
class Job:
    """Server to client: a work by name, the model to start from, and what the work needs.

    ``train``, ``measure``, ``audit`` and ``relearn`` are works of every client; methods register their own.
    """

    work: str
    params: Vector
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    buffers: Buffers | None = None
    """None: those of the round's own model, which the driver fills in, and merges from the replies."""
    expects: Mapping[str, torch.Size] = field(default_factory=dict)
    """The arrays that a method's own work may send back, by name; a reply with others is refused."""

    @property
    def trains(self) -> bool:
        """Whether the client trains the model, so that its reply is a displacement."""
        return self.work == "train"


def train(
    params: Vector,
    loss: str = "task",
    step: str = "plain",
    *,
    arrays: Mapping[str, Tensor] | None = None,
    buffers: Buffers | None = None,
    **config: ConfigValue,
) -> Job:
    """A job of local training: which loss to minimise, and by which step rule.

    ``config`` holds settings of the loss and the step rule; ``lr`` replaces the phase's learning rate before
    decay, and ``effort`` is the share of the local epochs, rounded up. A model other than the round's own
    brings its ``buffers``.
    """
    effort = config.get("effort", 1)
    require(isinstance(effort, int | float) and 0 < effort <= 1, "effort", effort, "above 0 and at most 1")
    return Job("train", params, arrays or {}, {"loss": loss, "step": step, **config}, buffers)


@dataclass(frozen=True)
class Terms:
    """What the driver adds to the jobs of one exchange: learning rate, epochs, batch size and seed."""

    lr: float = 0.01
    decay: float = 1.0
    """What learning rates are multiplied by in this round."""
    epochs: int = 1
    batch_size: int = 200
    seed: tuple[int, ...] = (0,)
    """Numbers that each client derives its own seed from."""
    exchange: int = 0
    """Which one of its round."""
    shuffle: bool = False
    """Whether clients visit their examples in a new order in each local epoch."""

    def rate(self, job: Job) -> float:
        """The learning rate of a job in this round."""
        return float(job.config.get("lr", self.lr)) * self.decay

    def passes(self, job: Job) -> int:
        """Local epochs: the job's share of them, rounded up."""
        return math.ceil(float(job.config.get("effort", 1)) * self.epochs - 1e-9)

    def seed_of(self, client: ClientId) -> int:
        """The seed of one client's local training in this exchange."""
        return derive(
            *self.seed, client, f"local training {self.exchange}" if self.exchange else "local training"
        )

    def order(self, client: ClientId, epoch: int, examples: int) -> Tensor | None:
        """The order of so many examples in a local epoch of a client; None for the one they are held in."""
        if not self.shuffle or examples <= self.batch_size:
            return None
        return torch.randperm(examples, generator=generator("batches", self.seed_of(client), epoch))


@dataclass(frozen=True)
class Mean:
    """A mean that adds up over clients: only its sum and its count leave a client."""

    total: float
    count: int

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        return self.total / self.count


Statistics: TypeAlias = Mapping[str, Mapping[str, Mean]]
"""By set of examples, then by name of the score: ``statistics["test"]["accuracy"]``."""


@dataclass(frozen=True)
class Reply:
    """Client to server: what a job came to."""

    displacement: Vector | None
    """Δ = ω − ω_i of local training; None where nothing was trained."""
    examples: int
    """How many the client holds for training."""
    statistics: Statistics = field(default_factory=dict)
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    buffers: Buffers = field(default_factory=dict)

    @property
    def moved(self) -> Vector:
        """The displacement of a job that trained."""
        assert self.displacement is not None
        return self.displacement


class Reason(StrEnum):
    """Why a client has no reply that can be used."""

    ABSENT = "absent"
    FAILED = "failed"
    LATE = "late"
    STALE = "stale"
    UNASKED = "unasked"
    SHAPE = "shape"
    DTYPE = "dtype"
    NOT_FINITE = "not_finite"
    FIELD = "field"
    NORM = "norm"
    REPLAY = "replay"
    COPY = "copy"

    @property
    def refusal(self) -> bool:
        """Whether the client sent something that cannot be used."""
        return self not in (Reason.ABSENT, Reason.FAILED, Reason.LATE)

    @property
    def repeatable(self) -> bool:
        """Whether the client is there and may do better when it is asked again."""
        return self not in (Reason.ABSENT, Reason.LATE, Reason.UNASKED)


LONGEST_DETAIL = 300


@dataclass(frozen=True)
class Failure:
    """What went wrong with a client's reply, as a code and as a sentence."""

    reason: Reason
    detail: str

    def __post_init__(self) -> None:
        # A client may have written it: one line that terminals and files can take.
        start = self.detail[: 2 * LONGEST_DETAIL]
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in start).split())
        shown = line if len(line) <= LONGEST_DETAIL else f"{line[: LONGEST_DETAIL - 2]} …"
        object.__setattr__(self, "detail", shown)


class MissingReply(Exception):
    """A round cannot be completed without clients that failed to answer."""

    def __init__(self, sentence: str, clients: Iterable[ClientId] = ()) -> None:
        super().__init__(sentence)
        self.clients = tuple(clients)


class Replies(Mapping[ClientId, Reply]):
    """Replies keyed by client, always in the order of the clients' names: arrival does not matter."""

    def __init__(
        self, replies: Mapping[ClientId, Reply], missing: Mapping[ClientId, Failure] | None = None
    ) -> None:
        self._replies = {client: replies[client] for client in sorted(replies)}
        self.missing: Mapping[ClientId, Failure] = dict(missing or {})
        """Who was asked and has no usable reply, and why."""

    def __getitem__(self, client: ClientId) -> Reply:
        return self._replies[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def with_later(self, later: Replies) -> Replies:
        """These replies and those of clients that were asked again."""
        again = {*later, *later.missing}
        return Replies(
            {**self, **later}, {**{c: f for c, f in self.missing.items() if c not in again}, **later.missing}
        )

    def of(self, clients: Iterable[ClientId]) -> Replies:
        """The replies of those clients that answered."""
        wanted = set(clients)
        return Replies(
            {client: reply for client, reply in self.items() if client in wanted},
            {client: failure for client, failure in self.missing.items() if client in wanted},
        )

    def every(self, clients: Iterable[ClientId]) -> Replies:
        """The replies of all these clients; the round ends if one is missing."""
        wanted = list(clients)
        for client in wanted:
            if client not in self:
                raise MissingReply(
                    f"{client} {self._why(client)}, and this method cannot unlearn "
                    f"without it: {self.remedy(client)} and resume",
                    [each for each in wanted if each not in self],
                )
        return self.of(wanted)

    def some(self, clients: Iterable[ClientId]) -> Replies:
        """The replies of those clients that answered; the round ends if nobody did."""
        wanted = list(clients)
        found = self.of(wanted)
        if not found:
            first = next((client for client in wanted if client in self.missing), "")
            raise MissingReply(
                f"no retained client has a reply that can be used ({first} {self._why(first)}): "
                f"{self.remedy(first)} and resume",
                wanted,
            )
        return found

    def remedy(self, client: ClientId) -> str:
        """What to do about a client without a reply, by the reason: bring it back, or fix what it did."""
        away = client not in self.missing or not self.missing[client].reason.repeatable
        return "bring it back" if away else "fix that"

    def _why(self, client: ClientId) -> str:
        if client not in self.missing:
            return "failed to answer"
        failure = self.missing[client]
        return failure.detail if failure.reason.refusal else f"failed to answer ({failure.detail})"

    def matrix(self) -> Tensor:
        """One displacement a row, to read only: no copy where an engine has laid out the rows like that."""
        rows = [reply.moved for reply in self.values()]
        first, size = rows[0], len(rows[0])
        together = all(
            row.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and row.storage_offset() == first.storage_offset() + number * size
            and row.is_contiguous()
            for number, row in enumerate(rows)
        )
        if together:
            return first.as_strided((len(rows), size), (size, 1))
        copied = empty(len(rows), first)
        for row, copy in zip(rows, copied, strict=True):
            copy.copy_(row)
            release_pages(row)
            release_pages(copy)
        return copied

    def mean(self, changed: Callable[[Vector], Vector] = lambda moved: moved) -> Vector:
        """The plain mean of the displacements, each one changed by a function; one at a time is held."""
        return self._combine([1 / len(self)] * len(self), changed)

    def average(self) -> Vector:
        """The mean of the displacements, weighted by each client's number of examples."""
        return self._combine(self.weights())

    def weights(self) -> list[float]:
        total = sum(reply.examples for reply in self.values())
        return [reply.examples / total for reply in self.values()]

    def merged_buffers(self, before: Buffers) -> Buffers:
        """Averages the float buffers of clients that trained; integer ones (counters) follow the first.

        One that nobody has changed stays as it is: rounding would let it drift.
        """
        trained = Replies({client: reply for client, reply in self.items() if reply.displacement is not None})
        if not trained:
            return before
        merged = {}
        for name, first in next(iter(trained.values())).buffers.items():
            values = [reply.buffers[name] for reply in trained.values()]
            unchanged = before.get(name, first)
            if all(torch.equal(value, unchanged) for value in values) or not first.is_floating_point():
                merged[name] = first
            else:
                merged[name] = sum(
                    (value * weight for value, weight in zip(values, trained.weights(), strict=True)),
                    torch.zeros_like(first),
                )
        return merged

    def _combine(
        self, weights: list[float], changed: Callable[[Vector], Vector] = lambda moved: moved
    ) -> Vector:
        first, *others = self.values()
        total = changed(first.moved) * weights[0]
        for reply, weight in zip(others, weights[1:], strict=True):
            total.add_(changed(reply.moved), alpha=weight)
            release_pages(reply.moved)
        return total
