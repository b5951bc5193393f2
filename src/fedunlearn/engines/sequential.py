"""One process, one client after the other: slow, obvious, and the oracle of every other engine."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..local import Learner
from ..types import Buffers, ClientData, ClientId, Evaluation, Job, Replies, Vector


class Sequential:
    """A federation in this process."""

    def __init__(self, model: nn.Module, data: Mapping[ClientId, ClientData]) -> None:
        self._learner = Learner(model)
        self._data = {client: data[client] for client in sorted(data)}

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(self._data)

    def train(self, jobs: Mapping[ClientId, Job]) -> Replies:
        return Replies(
            {client: self._learner.train(self._data[client].train, job) for client, job in jobs.items()}
        )

    def evaluate(self, params: Vector, buffers: Buffers) -> Evaluation:
        return {client: self._learner.evaluate(data, params, buffers) for client, data in self._data.items()}
