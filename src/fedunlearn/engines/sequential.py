"""One process, one client after the other: slow, obvious, and the oracle of every other engine."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..core import Buffers, ClientData, ClientId, Evaluation, Job, Precision, Replies, Vector
from ..local import Learner


class Sequential:
    """A federation in this process, on the processor or on an accelerator."""

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[ClientId, ClientData],
        *,
        device: str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        self._learner = Learner(model, device, precision)
        self._data = {client: data[client] for client in sorted(data)}

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(self._data)

    def train(self, jobs: Mapping[ClientId, Job]) -> Replies:
        rows = self._learner.empty(len(jobs))
        return Replies(
            {
                client: self._learner.train(self._data[client].train, jobs[client], out=row)
                for client, row in zip(in_rows(jobs), rows, strict=True)
            }
        )

    def evaluate(self, params: Vector, buffers: Buffers) -> Evaluation:
        return {client: self._learner.evaluate(data, params, buffers) for client, data in self._data.items()}


def in_rows(jobs: Mapping[ClientId, Job]) -> list[ClientId]:
    """Clients with the same task side by side: their displacements are a matrix as they lie."""
    return sorted(jobs, key=lambda client: (jobs[client].objective or "", client))
