"""Clients in worker processes, one for each core, with data, model and displacements in memory they share.

A round copies the model once and pickles nothing. What a client computes depends on its job alone, so neither
the number of workers nor who is faster changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..local import Learner
from ..types import Buffers, ClientData, ClientId, Evaluation, Job, Precision, Replies, Reply, Vector
from .memory import Place, SharedMemory
from .sequential import in_rows
from .workers import Answer, Crew, Task


class Parallel:
    """A federation in worker processes; leave it through ``with``, or ``close`` it.

    Workers start with the first round and know what this process knew then: its data, its model and the
    objectives registered by that time.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[ClientId, ClientData],
        *,
        workers: int,
        precision: Precision = "fp32",
    ) -> None:
        self._learner = Learner(model, precision=precision)
        self._data = {client: data[client] for client in sorted(data)}
        self._memory = SharedMemory()
        self._crew = Crew(workers, _Clients(self._learner, self._data, self._memory))

    def __enter__(self) -> Parallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker processes."""
        self._crew.close()

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(self._data)

    def train(self, jobs: Mapping[ClientId, Job]) -> Replies:
        clients = in_rows(jobs)
        given = _distinct(
            tensor
            for job in jobs.values()
            for tensor in (job.params, *job.arrays.values(), *job.buffers.values())
        )
        made = [self._learner.empty(1)[0], *self._learner.buffers.values()]
        taken = self._memory.take(
            *((tensor.dtype, tensor.shape) for tensor in given.values()),
            *((tensor.dtype, (len(jobs), *tensor.shape)) for tensor in made),
        )
        places = _fill(taken, given)
        (displacements, matrix), *buffers = taken[len(given) :]
        tasks = [
            {
                "client": client,
                "params": places[id(job.params)],
                "objective": job.objective,
                "arrays": {name: places[id(array)] for name, array in job.arrays.items()},
                "buffers": {name: places[id(buffer)] for name, buffer in job.buffers.items()},
                "training": [job.lr, job.epochs, job.batch_size, job.seed],
                "displacement": displacements.row(number),
                "made": [place.row(number) for place, _ in buffers],
            }
            for number, client in enumerate(clients)
            for job in [jobs[client]]
        ]
        answers = self._crew.do(tasks, [len(self._data[client].train.y) for client in clients])
        return Replies(
            {
                client: Reply(
                    matrix[number],
                    answer["examples"],
                    answer["metrics"],
                    buffers={
                        name: values[number].clone()
                        for name, (_, values) in zip(self._learner.buffers, buffers, strict=True)
                    },
                )
                for number, (client, answer) in enumerate(zip(clients, answers, strict=True))
            }
        )

    def evaluate(self, params: Vector, buffers: Buffers) -> Evaluation:
        given = _distinct((params, *buffers.values()))
        places = _fill(self._memory.take(*((tensor.dtype, tensor.shape) for tensor in given.values())), given)
        tasks = [
            {
                "client": client,
                "params": places[id(params)],
                "buffers": {name: places[id(buffer)] for name, buffer in buffers.items()},
            }
            for client in self._data
        ]
        sizes = [
            sum(len(examples.y) for examples in data.evaluations.values()) for data in self._data.values()
        ]
        return dict(zip(self._data, self._crew.do(tasks, sizes), strict=True))


@dataclass(frozen=True)
class _Clients:
    """What workers do: the tasks of all clients, because any worker may get any of them."""

    learner: Learner
    data: Mapping[ClientId, ClientData]
    memory: SharedMemory

    def __call__(self, task: Task) -> Answer:
        data = self.data[task["client"]]
        params, buffers = self._see(task["params"]), self._see_all(task["buffers"])
        if "training" not in task:
            return self.learner.evaluate(data, params, buffers)
        lr, epochs, batch_size, seed = task["training"]
        job = Job(
            params, task["objective"], self._see_all(task["arrays"]), buffers, lr, epochs, batch_size, seed
        )
        reply = self.learner.train(data.train, job, out=self._see(task["displacement"]))
        for place, buffer in zip(task["made"], reply.buffers.values(), strict=True):
            self._see(place).copy_(buffer)
        return {"examples": reply.examples, "metrics": reply.metrics}

    def _see(self, place: list[Any]) -> Tensor:
        return self.memory.see(Place(*place))

    def _see_all(self, places: Mapping[str, list[Any]]) -> dict[str, Tensor]:
        return {name: self._see(place) for name, place in places.items()}


def _distinct(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """By identity: what many jobs have in common is shared once."""
    return {id(tensor): tensor for tensor in tensors}


def _fill(taken: Sequence[tuple[Place, Tensor]], given: Mapping[int, Tensor]) -> dict[int, Place]:
    places = {}
    for (place, room), (identity, tensor) in zip(taken, given.items(), strict=False):
        room.copy_(tensor)
        places[identity] = place
    return places
