"""One process, one client after the other: slow, obvious, and the oracle of every other engine."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torch import nn

from .. import methods as _registers_losses_steps_and_works  # noqa: F401
from ..client import data as holdings
from ..client.data import ClientData, Data, as_clients
from ..client.learner import Learner
from ..client.perceptron import ROWS
from ..core import (
    ClientId,
    Failure,
    FedUnlearnError,
    Job,
    Precision,
    Reason,
    Replies,
    Reply,
    Task,
    Terms,
    Vector,
)
from ..core.errors import warn
from ..tasks import Classification
from .workers import out_of_memory

MANY = 32
"""Clients from which on it is worth finding out whether small ones can train together."""


class Sequential:
    """A federation in this process, on the processor or on an accelerator."""

    def __init__(
        self,
        model: nn.Module,
        data: Mapping[ClientId, ClientData | Data],
        *,
        task: Task = Classification(),
        device: str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        self._data = as_clients(data)
        self._learner = Learner(model, task, device, precision)
        self._learner.check(self._data)

    @property
    def task(self) -> Task:
        return self._learner.task

    def present(self) -> frozenset[ClientId]:
        return frozenset(self._data)

    def exchange(self, jobs: Mapping[ClientId, Job], terms: Terms = Terms()) -> Replies:
        known, missing = split_known(jobs, self._data)
        trained = training_order(known)
        rows = dict(zip(trained, self._learner.empty(len(trained)), strict=True))
        found: dict[ClientId, Reply | Failure] = {}
        for group in grouped(self._learner, self._data, known, terms):
            found |= attempt_together(self._learner, group, self._data, known[group[0]], terms, rows)
        return merge_replies(found, missing)


def grouped(
    learner: Learner, data: Mapping[ClientId, ClientData], jobs: Mapping[ClientId, Job], terms: Terms
) -> list[list[ClientId]]:
    """Clients in working order; where there are many, small ones with the same job work together.

    Nobody's result depends on the group.
    """
    groups: list[list[ClientId]] = []
    last, rows = None, 0
    trained = training_order(jobs)
    for client in trained:
        job, size = jobs[client], holdings.size(data[client].train)
        together = len(trained) >= MANY and learner.is_small(data[client], job, terms)
        kind = (id(job.params), terms.rate(job)) if together else None
        if kind is not None and kind == last and rows + size <= ROWS:
            groups[-1].append(client)
            rows += size
        else:
            groups.append([client])
            last, rows = kind, size
    return groups + [[client] for client in sorted(jobs.keys() - set(trained))]


def attempt_together(
    learner: Learner,
    clients: Sequence[ClientId],
    data: Mapping[ClientId, ClientData],
    job: Job,
    terms: Terms,
    rows: Mapping[ClientId, Vector],
) -> dict[ClientId, Reply | Failure]:
    """What the same job comes to with each client of a group."""
    if len(clients) > 1:
        with suppress(Exception):  # One of them fails: each by itself tells which.
            held = [data[client] for client in clients]
            replies = learner.perform_together(held, job, terms, [rows[client] for client in clients])
            return dict(zip(clients, replies, strict=True))
    return {
        client: attempt(learner, client, data[client], job, terms, rows.get(client)) for client in clients
    }


def attempt(
    learner: Learner, client: ClientId, data: ClientData, job: Job, terms: Terms, out: Vector | None
) -> Reply | Failure:
    """What a job comes to; a client whose data or code fails must not end the run of all others."""
    try:
        return learner.perform(client, data, job, terms, out)
    except FedUnlearnError:
        raise  # It would be the same for everybody: a loss that nobody knows, for instance.
    except Exception as error:
        if out_of_memory(error):
            raise
        said = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
        place = traceback.extract_tb(error.__traceback__)[-1]
        return Failure(
            Reason.FAILED, f"failed with {said} ({Path(place.filename).name}, line {place.lineno})"
        )


def merge_replies(found: Mapping[ClientId, Reply | Failure], missing: Mapping[ClientId, Failure]) -> Replies:
    """Replies, and beside them who has none; a warning tells of the first client that failed."""
    failed = {client: each for client, each in found.items() if isinstance(each, Failure)}
    if failed:
        client = min(failed)
        others = f", like {len(failed) - 1} others that failed" if len(failed) > 1 else ""
        warn(f"{client} {failed[client].detail} and counts as missing{others}", "no-reply")
    replies = {client: each for client, each in found.items() if isinstance(each, Reply)}
    return Replies(replies, {**missing, **failed})


def split_known(
    jobs: Mapping[ClientId, Job], data: Mapping[ClientId, ClientData]
) -> tuple[dict[ClientId, Job], dict[ClientId, Failure]]:
    """The jobs of clients that are here, and the failures of those that are not."""
    absent = Failure(Reason.ABSENT, "no such client is in the federation")
    return (
        {client: job for client, job in jobs.items() if client in data},
        {client: absent for client in jobs if client not in data},
    )


def training_order(jobs: Mapping[ClientId, Job]) -> list[ClientId]:
    """Clients that train, those with the same loss side by side: their displacements lie as a matrix."""
    trained = (client for client, job in jobs.items() if job.trains)
    return sorted(trained, key=lambda client: (str(jobs[client].config.get("loss", "task")), client))
