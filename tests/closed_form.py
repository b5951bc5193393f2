"""Clients whose loss is a quadratic: a federation without network and without data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from fedunlearn import Job, Replies, Reply, Request, State
from fedunlearn.seeds import generator
from fedunlearn.types import Buffers, ClientId, Evaluation, Vector

DIMENSION = 12
CLIENTS = tuple(f"site-{number}" for number in range(5))


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
        self._centres = {c: torch.randn(DIMENSION, generator=generator("centre", c)) for c in CLIENTS}
        self._curvatures = {
            c: torch.rand(DIMENSION, generator=generator("curvature", c)) + 0.1 for c in CLIENTS
        }

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return CLIENTS

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
            if job.objective not in (None, "cross_entropy"):
                gradient = -gradient / (1 + self.loss(client, job.params))
            replies[client] = Reply(job.lr * gradient, examples=10 + CLIENTS.index(client))
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


def request(targets: tuple[ClientId, ...] = ("site-1",), clients: tuple[ClientId, ...] = CLIENTS) -> Request:
    def fresh(purpose: str) -> State:
        return State(torch.randn(DIMENSION, generator=generator("fresh", purpose)))

    return Request(start(), clients, targets, fresh)
