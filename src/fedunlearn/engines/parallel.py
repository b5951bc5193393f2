"""Clients in worker processes, one for each core, with data, model and displacements in memory they share.

A round copies the model once and pickles nothing. What a client computes depends on its job alone, so neither
the number of workers nor who is faster changes a bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ..client import data as holdings
from ..client.data import ClientData, Data, as_clients
from ..client.learner import Learner
from ..core import (
    ClientId,
    Failure,
    FedUnlearnError,
    Job,
    Mean,
    Precision,
    Reason,
    Replies,
    Reply,
    Task,
    Terms,
    registry,
    require_count,
)
from ..tasks import Classification
from .memory import Place, SharedMemory
from .sequential import attempt_together, grouped, merge_replies, split_known, training_order
from .workers import Message, Result, WorkerPool


class Parallel:
    """A federation in worker processes; leave it through ``with``, or ``close`` it.

    Workers know what this process knew when they started: its model, its data, its registered losses, step
    rules and works (they restart when another is registered, and when displacements first go to disk).
    Torch's random numbers follow the job; those that a model draws elsewhere, from numpy for instance, depend
    on who trains which client. A reply lies in memory that is used again when nothing in this process refers
    to it.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[ClientId, ClientData | Data],
        *,
        workers: int,
        task: Task = Classification(),
        precision: Precision = "fp32",
    ) -> None:
        require_count("workers", workers, 1)
        self._data = as_clients(data)
        _require_no_processes(self._data)
        self._learner = Learner(model, task, precision=precision)
        self._learner.check(self._data)
        self._memory = SharedMemory()
        self._pool = WorkerPool(
            min(workers, len(self._data)), _Clients(self._learner, self._data, self._memory)
        )
        self._workers = min(workers, len(self._data))
        self._known: tuple[set[str], int] = set(), 0

    def __enter__(self) -> Parallel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the worker processes and makes sure that they work; ``train`` would do so otherwise."""
        self._do([{"do": "try"}] * self._workers, [0] * self._workers)

    def close(self) -> None:
        """Ends the worker processes."""
        self._pool.close()

    @property
    def task(self) -> Task:
        return self._learner.task

    def present(self) -> frozenset[ClientId]:
        return frozenset(self._data)

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        known, missing = split_known(jobs, self._data)
        trained = training_order(known)
        groups = grouped(self._learner, self._data, known, terms)
        given = _distinct(
            tensor
            for job in known.values()
            for tensor in (job.params, *job.arrays.values(), *(job.buffers or {}).values())
        )
        results = [self._learner.empty(1)[0], *self._learner.buffers.values()] if trained else []
        taken = self._memory.take(
            *((tensor.dtype, tensor.shape) for tensor in given.values()),
            *((tensor.dtype, (len(trained), *tensor.shape)) for tensor in results),
        )
        places = _fill(taken[: len(given)], given)
        room = taken[len(given) :]
        row_of = {client: row for row, client in enumerate(trained)}
        messages = [
            {
                **_message(group, known[group[0]], terms, places),
                "results": {
                    client: [place.row(row_of[client]) for place, _ in room]
                    for client in group
                    if client in row_of
                },
            }
            for group in groups
        ]
        efforts = [sum(self._effort(client, known[client]) for client in group) for group in groups]
        found = {
            client: reply
            for answer in self._do(messages, efforts)
            for client, reply in _found(answer).items()
        }
        for row, client in enumerate(trained):
            if isinstance(reply := found[client], Reply):
                displacement, *buffers = (values[row] for _, values in room)
                named = zip(self._learner.buffers, buffers, strict=True)
                found[client] = replace(
                    reply,
                    displacement=displacement,
                    buffers={name: value.clone() for name, value in named},
                )
        return merge_replies(found, missing)

    def _effort(self, client: ClientId, job: Job) -> int:
        """How much a job has to read, so that the longest begin first."""
        held = self._data[client]
        sets = held.evaluations.values() if job.work in ("measure", "audit") else [held.train]
        return sum(holdings.size(data) for data in sets)

    def _do(self, messages: Sequence[Message], sizes: Sequence[int]) -> list[Result]:
        names = {entry.name for names in (registry.loss, registry.step, registry.work) for entry in names}
        known = names, self._memory.files
        if known != self._known:
            self._pool.close()
            self._known = known
        return self._pool.run(messages, sizes)


@dataclass(frozen=True)
class _Clients:
    """What workers do: the jobs of all clients, because any worker may get any of them."""

    learner: Learner
    data: Mapping[ClientId, ClientData]
    memory: SharedMemory

    def __call__(self, message: Message) -> Result:
        if message.get("do") == "try":
            # Where another device has threads for backward passes, a forked process has lost them.
            torch.ones(1, requires_grad=True).sum().backward()
            return {}
        job = Job(
            message["work"],
            self._see(message["params"]),
            self._see_all(message["arrays"]),
            message["config"],
            self._see_all(message["buffers"]),
        )
        terms = Terms(**{**message["terms"], "seed": tuple(message["terms"]["seed"])})
        results = {client: [*map(self._see, places)] for client, places in message["results"].items()}
        rows = {client: row for client, (row, *_) in results.items()}
        found = attempt_together(self.learner, message["clients"], self.data, job, terms, rows)
        answers: dict[ClientId, Result] = {}
        arrays: dict[str, Tensor] = {}
        for client, reply in found.items():
            if isinstance(reply, Failure):
                answers[client] = {"failed": reply.detail}
                continue
            for place, buffer in zip(results.get(client, [])[1:], reply.buffers.values(), strict=True):
                place.copy_(buffer)
            answers[client] = {
                "examples": reply.examples,
                "statistics": {
                    name: {score: [mean.total, mean.count] for score, mean in means.items()}
                    for name, means in reply.statistics.items()
                },
            }
            arrays |= reply.arrays  # only of a client that works alone
        return {"answers": answers, "arrays": arrays}

    def _see(self, place: list[Any]) -> Tensor:
        return self.memory.see(Place(*place))

    def _see_all(self, places: Mapping[str, list[Any]]) -> dict[str, Tensor]:
        return {name: self._see(place) for name, place in places.items()}


def _require_no_processes(clients: Mapping[ClientId, ClientData]) -> None:
    for client, held in clients.items():
        for name, data in {"train": held.train, **held.evaluations}.items():
            if isinstance(data, DataLoader) and data.num_workers:
                raise FedUnlearnError(
                    f"{client}, set {name!r}: its DataLoader starts processes (num_workers = "
                    f"{data.num_workers}), which worker processes may not: use num_workers=0, or one worker"
                )


def _message(
    clients: Sequence[ClientId], job: Job, terms: Terms, places: Mapping[int, Place]
) -> dict[str, Any]:
    return {
        "clients": clients,
        "work": job.work,
        "params": places[id(job.params)],
        "arrays": {name: places[id(array)] for name, array in job.arrays.items()},
        "config": dict(job.config),
        "buffers": {name: places[id(buffer)] for name, buffer in (job.buffers or {}).items()},
        "terms": asdict(terms),
    }


def _found(result: Result) -> dict[ClientId, Reply | Failure]:
    return {
        client: Failure(Reason.FAILED, answer["failed"])
        if "failed" in answer
        else Reply(
            None,
            answer["examples"],
            {
                name: {score: Mean(*mean) for score, mean in means.items()}
                for name, means in answer["statistics"].items()
            },
            result["arrays"],
        )
        for client, answer in result["answers"].items()
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
