"""Clients in worker processes, one for each core, with data, model and displacements in memory they share.

A round copies the model once and pickles nothing. What a client computes depends on its job alone, so neither
the number of workers nor who is faster changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core import Buffers, ClientData, ClientId, Evaluation, Job, Precision, Replies, Reply, Vector
from ..local import Learner
from ..objectives import objective
from .memory import Place, SharedMemory
from .sequential import in_rows
from .workers import Answer, Crew, Task


class Parallel:
    """A federation in worker processes; leave it through ``with``, or ``close`` it.

    Workers know what this process knew when they started: its model, its data, its registered objectives
    (a later one starts them anew). Torch's random numbers follow the job; those that a model draws elsewhere,
    from numpy for instance, depend on who trains which client. A reply lies in memory that is used again when
    nothing in this process refers to it.
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
        self._workers = workers
        self._objectives: set[str] = set()

    def __enter__(self) -> Parallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the worker processes and makes sure that they work; ``train`` would do so otherwise."""
        self._do([{"do": "try"}] * self._workers, [0] * self._workers)

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
        results = [self._learner.empty(1)[0], *self._learner.buffers.values()]
        taken = self._memory.take(
            *((tensor.dtype, tensor.shape) for tensor in given.values()),
            *((tensor.dtype, (len(jobs), *tensor.shape)) for tensor in results),
        )
        places = _fill(taken[: len(given)], given)
        (displacements, matrix), *buffers = taken[len(given) :]
        tasks = [
            _training(client, jobs[client], places)
            | {
                "displacement": displacements.row(number),
                "results": [place.row(number) for place, _ in buffers],
            }
            for number, client in enumerate(clients)
        ]
        answers = self._do(tasks, [len(self._data[client].train.y) for client in clients])
        return Replies(
            {
                client: Reply(
                    matrix[number],
                    answer["examples"],
                    answer["metrics"],
                    answer["arrays"],
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
                "do": "evaluate",
                "client": client,
                "params": places[id(params)],
                "buffers": {name: places[id(buffer)] for name, buffer in buffers.items()},
            }
            for client in self._data
        ]
        sizes = [
            sum(len(examples.y) for examples in data.evaluations.values()) for data in self._data.values()
        ]
        return {
            client: {name: value for name, value in answer.items() if name != "arrays"}
            for client, answer in zip(self._data, self._do(tasks, sizes), strict=True)
        }

    def _do(self, tasks: Sequence[Task], sizes: Sequence[int]) -> list[Answer]:
        known = {entry.name for entry in objective}
        if known != self._objectives:
            self._crew.close()
            self._objectives = known
        return self._crew.do(tasks, sizes)


@dataclass(frozen=True)
class _Clients:
    """What workers do: the tasks of all clients, because any worker may get any of them."""

    learner: Learner
    data: Mapping[ClientId, ClientData]
    memory: SharedMemory

    def __call__(self, task: Task) -> Answer:
        if task["do"] == "try":
            # Where another device has threads for backward passes, a forked process has lost them.
            torch.ones(1, requires_grad=True).sum().backward()
            return {}
        data = self.data[task["client"]]
        params, buffers = self._see(task["params"]), self._see_all(task["buffers"])
        if task["do"] == "evaluate":
            return self.learner.evaluate(data, params, buffers)
        lr, epochs, batch_size, seed = task["training"]
        job = Job(
            params,
            task["objective"],
            self._see_all(task["arrays"]),
            buffers=buffers,
            lr=lr,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
        )
        reply = self.learner.train(data.train, job, out=self._see(task["displacement"]))
        for place, buffer in zip(task["results"], reply.buffers.values(), strict=True):
            self._see(place).copy_(buffer)
        return {"examples": reply.examples, "metrics": reply.metrics, "arrays": reply.arrays}

    def _see(self, place: list[Any]) -> Tensor:
        return self.memory.see(Place(*place))

    def _see_all(self, places: Mapping[str, list[Any]]) -> dict[str, Tensor]:
        return {name: self._see(place) for name, place in places.items()}


def _training(client: ClientId, job: Job, places: Mapping[int, Place]) -> dict[str, Any]:
    return {
        "do": "train",
        "client": client,
        "params": places[id(job.params)],
        "objective": job.objective,
        "arrays": {name: places[id(array)] for name, array in job.arrays.items()},
        "buffers": {name: places[id(buffer)] for name, buffer in job.buffers.items()},
        "training": [job.lr, job.epochs, job.batch_size, job.seed],
    }


def _distinct(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    """By identity: what many jobs have in common is shared once."""
    return {id(tensor): tensor for tensor in tensors}


def _fill(taken: Sequence[tuple[Place, Tensor]], given: Mapping[int, Tensor]) -> dict[int, Place]:
    places = {}
    for (place, room), (identity, tensor) in zip(taken, given.items(), strict=True):
        room.copy_(tensor)
        places[identity] = place
    return places
