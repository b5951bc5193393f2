"""Clients whose loss is a quadratic: a federation without network and without data."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedunlearn import (
    Classification,
    History,
    Job,
    Outcome,
    Participation,
    Phase,
    Replies,
    Reply,
    Request,
    Schedule,
    State,
    Task,
    Terms,
    unlearn,
)
from fedunlearn.core import ClientId, Failure, Jobs, Mean, Reason, Statistics, Vector, registry
from fedunlearn.core.history import KINDS
from fedunlearn.core.seeds import generator
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.knot import ClusteredPretraining
from fedunlearn.methods.sisa import SlicedPretraining

SHAPES = {"weight": torch.Size((3, 3)), "bias": torch.Size((3,))}
DIMENSION = 12
CLIENTS = tuple(f"site-{number}" for number in range(5))
PUBLIC = "public"
NO_TERMS, EVERYBODY = Terms(), Participation()
FADING = {
    *("ascent", "uce", "unlikelihood", "virtual_teacher", "pseudo_labels"),
    *("boundary_shift", "conflict_aware_ascent"),
}
"""Losses that lead away from what a client knows."""
WORKS = {
    "fisher": lambda curvature: {"fisher": curvature},
    "layer_inputs": lambda curvature: {"weight": torch.outer(curvature[:4], curvature[:4])},
}


def start() -> Vector:
    return torch.randn(DIMENSION, generator=generator("closed form start"))


class Quadratics:
    """Client i minimises ½ (ω − c_i)ᵀ H_i (ω − c_i); other losses ascend it, fading as it grows.

    Training is one step of the rule that the job names. ``absent`` names clients and the exchanges of
    unlearning (measuring is not counted) that they miss.
    """

    task: Task = Classification()

    def __init__(
        self, *, absent: Mapping[ClientId, Collection[int]] = {}, refuses: Collection[ClientId] = ()
    ) -> None:
        self._absent = absent
        self._refuses = refuses
        self.exchanged: list[tuple[Jobs, Replies]] = []
        """What was asked and answered, measuring aside."""
        members = sorted(self.present())
        self._centres = {c: torch.randn(DIMENSION, generator=generator("centre", c)) for c in members}
        self._curvatures = {
            c: torch.rand(DIMENSION, generator=generator("curvature", c)) + 0.1 for c in members
        }

    def present(self) -> frozenset[ClientId]:
        return frozenset({*CLIENTS, PUBLIC})

    def examples(self, client: ClientId) -> int:
        return 10 + (*CLIENTS, PUBLIC).index(client)

    def gradient(self, client: ClientId, params: Vector) -> Vector:
        return self._curvatures[client] * (params - self._centres[client])

    def loss(self, client: ClientId, params: Vector) -> float:
        return 0.5 * float((params - self._centres[client]) @ self.gradient(client, params))

    def exchange(self, jobs: Jobs, terms: Terms = NO_TERMS) -> Replies:
        if all(job.work == "measure" for job in jobs.values()):
            return Replies(
                {c: Reply(None, self.examples(c), self.measurement(c, job)) for c, job in jobs.items()}
            )
        call = len(self.exchanged) + 1
        there = {c: job for c, job in jobs.items() if call not in self._absent.get(c, ())}
        replies = {client: self.perform(client, job, terms) for client, job in there.items()}
        answered = Replies(
            replies, {c: Failure(Reason.ABSENT, "is switched off") for c in jobs if c not in there}
        )
        self.exchanged.append((jobs, answered))
        return answered

    def perform(self, client: ClientId, job: Job, terms: Terms) -> Reply:
        assert client not in self._refuses, f"{client} must not be asked"
        if job.work != "train":
            return Reply(None, self.examples(client), arrays=WORKS[job.work](self._curvatures[client]))
        gradient, loss = self.gradient(client, job.params), self.loss(client, job.params)
        if job.config["loss"] in FADING:
            gradient = -gradient / (1 + loss)
        moved = registry.step[str(job.config["step"])](job)(job.params, gradient, terms.rate(job))
        return Reply(moved, self.examples(client), {"train": {"loss": Mean(loss, 1)}})

    def measurement(self, client: ClientId, job: Job) -> Statistics:
        if job.config.get("on") == "train":
            return {"train": {"loss": Mean(self.loss(client, job.params), 1)}}
        return self.measured(client, job.params)

    def measured(self, client: ClientId, params: Vector) -> Statistics:
        score = Mean(1 / (1 + self.loss(client, params)), 1)
        return {"test": {"accuracy": score, "loss": Mean(0.0, 1)}, "backdoor": {"accuracy": score}}

    def asked(self) -> list[set[ClientId]]:
        """Who was asked in each exchange."""
        return [set(jobs) for jobs, _ in self.exchanged]


class Spoiled(Quadratics):
    """Some clients' replies are spoiled in some exchanges."""

    def __init__(self, spoil: Any, clients: Collection[ClientId], calls: Collection[int]) -> None:
        super().__init__()
        self._spoil, self._clients, self._calls = spoil, clients, calls

    def exchange(self, jobs: Jobs, terms: Terms = NO_TERMS) -> Replies:
        before = len(self.exchanged)
        replies = super().exchange(jobs, terms)
        if before == len(self.exchanged) or before + 1 not in self._calls:
            return replies
        return Replies(
            {c: self._spoil(reply) if c in self._clients else reply for c, reply in replies.items()}
        )


def times(value: float) -> Any:
    """Spoils a reply's numbers by multiplying them."""

    def spoil(reply: Reply) -> Reply:
        arrays = {name: array * value for name, array in reply.arrays.items()}
        moved = None if reply.displacement is None else reply.displacement * value
        return replace(reply, displacement=moved, arrays=arrays)

    return spoil


def drive(phase: Phase, request: Request, state: State, *replies: Replies) -> tuple[list[Jobs], State]:
    """The jobs of one round and the state that it returns, given the replies of its exchanges."""
    round = phase.round(request, state)
    if isinstance(round, State):
        assert not replies
        return [], round
    asked = [next(round)]
    for number, heard in enumerate(replies, start=1):
        try:
            asked.append(round.send(heard))
        except StopIteration as stop:
            assert number == len(replies), "the round ended before all replies were heard"
            return asked, stop.value
    raise AssertionError(f"the round asks for more than {len(replies)} exchanges")


def jobs_of(phase: Phase, request: Request, state: State) -> Jobs:
    """What the first exchange of a round asks."""
    round = phase.round(request, state)
    assert isinstance(round, Generator)
    return next(round)


def fresh(purpose: str) -> State:
    return State(torch.randn(DIMENSION, generator=generator("fresh", purpose)))


@cache
def pretrained(clusters: int = 0, participation: Participation = EVERYBODY, slices: int = 1) -> State:
    """Eight rounds with everybody, every kind of history recorded."""
    origin = fresh("pre-training")
    phase = (
        SlicedPretraining(8, 0.05, shards=clusters, slices=slices)
        if slices > 1
        else ClusteredPretraining(8, 0.05, clusters=clusters)
        if clusters
        else Pretraining(8, 0.05, history=tuple(KINDS))
    )
    return unlearn(
        [phase],
        Request(origin.params, CLIENTS, (), fresh, shapes=SHAPES),
        Quadratics(),
        participation=participation,
    ).state


def recorded(participation: Participation = EVERYBODY) -> History:
    """Every kind of history, those of KNOT and SISA included."""
    plain, clustered = (pretrained(clusters, participation).memory for clusters in (0, 2))
    return History.from_tensors({**plain, **clustered, **pretrained(2, participation, slices=2).memory})


def request(
    targets: tuple[ClientId, ...] = ("site-1",),
    clients: tuple[ClientId, ...] = CLIENTS,
    history: History | None = None,
) -> Request:
    return Request(
        start(), clients, targets, fresh, shapes=SHAPES, history=history or recorded(), public=PUBLIC
    )


METHODS = [entry.name for entry in registry.method]
SCHEDULE = Schedule(unlearn_rounds=4, unlearn_lr=0.05, recover_rounds=3, recover_lr=0.05)
OPTIONS: Mapping[str, dict[str, object]] = {"fused": {"density": 0.9}}
"""A tenth of nine entries is a single one, and its updates differ in length by more than guards allow."""


def phases(name: str, schedule: Schedule = SCHEDULE, **options: object) -> tuple[Phase, ...]:
    return registry.method[name](schedule, **{**OPTIONS.get(name, {}), **options})


def tensors(*things: object) -> dict[str, Tensor]:
    """Copies of all tensors in states, requests, jobs and replies, by where they are."""
    found: dict[str, Tensor] = {}
    for number, thing in enumerate(things):
        for field in ("params", "displacement"):
            if getattr(thing, field, None) is not None:
                found[f"{number} {field}"] = getattr(thing, field).clone()
        for field in ("memory", "history", "arrays", "buffers"):
            held = getattr(thing, field, None) or {}
            for name, tensor in (held.tensors() if isinstance(held, History) else held).items():
                found[f"{number} {field} {name}"] = tensor.clone()
    return found


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) for name, tensor in one.items()
    )


def measured(outcome: Outcome) -> list[dict[str, object]]:
    """The metrics of a run, the seconds apart."""
    return [
        {key: value for key, value in row.items() if not key.startswith("seconds")} for row in outcome.metrics
    ]


class Listening(Quadratics):
    """Remembers the jobs it was given, with their terms, measuring included."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Mapping[str, Job], Terms]] = []

    def exchange(self, jobs, terms=NO_TERMS):
        self.heard.append((dict(jobs), terms))
        return super().exchange(jobs, terms)

    def trained(self) -> list[tuple[Mapping[str, Job], Terms]]:
        return [
            (jobs, terms) for jobs, terms in self.heard if {job.work for job in jobs.values()} == {"train"}
        ]
