"""Clients whose loss is a quadratic: a federation without network and without data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cache

import torch

from fedunlearn import Job, Replies, Reply, Request, State, unlearn
from fedunlearn.core import Buffers, ClientId, Evaluation, Vector
from fedunlearn.core.seeds import generator
from fedunlearn.methods.fedavg import Pretraining
from fedunlearn.methods.history import KINDS
from fedunlearn.methods.knot import ClusteredPretraining
from fedunlearn.objectives import objective

SHAPES = {"weight": torch.Size((3, 3)), "bias": torch.Size((3,))}
DIMENSION = 12
CLIENTS = tuple(f"site-{number}" for number in range(5))
PUBLIC = "public"
UPLOADS = {
    "fisher": lambda curvature: {"fisher": curvature},
    "layer_inputs": lambda curvature: {"weight": torch.outer(curvature[:4], curvature[:4])},
}


def start() -> Vector:
    return torch.randn(DIMENSION, generator=generator("closed form start"))


class Quadratics:
    """Client i minimises ½ (ω − c_i)ᵀ H_i (ω − c_i); other objectives ascend it, fading with the loss."""

    def __init__(
        self, *, absent: Mapping[ClientId, Collection[int]] = {}, refuses: Collection[ClientId] = ()
    ) -> None:
        self._absent = absent
        self._refuses = refuses
        self._calls = 0
        self._centres = {c: torch.randn(DIMENSION, generator=generator("centre", c)) for c in self.clients}
        self._curvatures = {
            c: torch.rand(DIMENSION, generator=generator("curvature", c)) + 0.1 for c in self.clients
        }

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return (*CLIENTS, PUBLIC)

    def gradient(self, client: ClientId, params: Vector) -> Vector:
        return self._curvatures[client] * (params - self._centres[client])

    def loss(self, client: ClientId, params: Vector) -> float:
        return 0.5 * float((params - self._centres[client]) @ self.gradient(client, params))

    def train(self, jobs: Mapping[ClientId, Job]) -> Replies:
        self._calls += 1
        replies = {}
        for client, job in jobs.items():
            assert client not in self._refuses, f"{client} must not be trained"
            if self._calls in self._absent.get(client, ()):
                continue
            gradient = self.gradient(client, job.params)
            if job.objective not in (None, "cross_entropy", "quasi_newton", "distillation"):
                gradient = -gradient / (1 + self.loss(client, job.params))
            goal = objective[job.objective or "cross_entropy"](job.arrays)
            moved = goal.step(job.params, gradient, job.lr) if job.effort else torch.zeros(DIMENSION)
            arrays = UPLOADS[job.objective](self._curvatures[client]) if job.objective in UPLOADS else {}
            replies[client] = Reply(moved, examples=10 + self.clients.index(client), arrays=arrays)
        return Replies(replies)

    def evaluate(self, params: Vector, buffers: Buffers) -> Evaluation:
        return {
            client: {
                "test_accuracy": 1 / (1 + self.loss(client, params)),
                "test_loss": 0.0,
                "test_examples": 1,
            }
            for client in CLIENTS
        }


class Broken(Quadratics):
    """In one call everybody sends what is no number."""

    def __init__(self, call: int, value: float) -> None:
        super().__init__()
        self._call, self._value = call, value

    def train(self, jobs: Mapping[ClientId, Job]) -> Replies:
        replies = super().train(jobs)
        if self._calls != self._call:
            return replies
        return Replies({c: replace(r, displacement=r.displacement * self._value) for c, r in replies.items()})


def fresh(purpose: str) -> State:
    return State(torch.randn(DIMENSION, generator=generator("fresh", purpose)))


@cache
def pretrained(clusters: int = 0) -> State:
    """Eight rounds with everybody, every kind of history recorded."""
    origin = fresh("pre-training")
    phase = (
        ClusteredPretraining(8, 0.05, clusters=clusters)
        if clusters
        else Pretraining(8, 0.05, history=tuple(KINDS))
    )
    return unlearn([phase], Request(origin.params, CLIENTS, (), fresh, shapes=SHAPES), Quadratics()).state


def request(targets: tuple[ClientId, ...] = ("site-1",), clients: tuple[ClientId, ...] = CLIENTS) -> Request:
    history = {**pretrained().memory, **pretrained(clusters=2).memory}
    return Request(start(), clients, targets, fresh, shapes=SHAPES, history=history, public=PUBLIC)
