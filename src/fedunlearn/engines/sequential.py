"""One process, one client after the other: slow, obvious, and the oracle of every other engine."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from .. import methods as _registers_losses_steps_and_works  # noqa: F401
from ..client.data import ClientData, Data, as_clients
from ..client.learner import Learner
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
from ..tasks import Classification
from .workers import out_of_memory


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
        return sorted_out(
            {
                client: attempt(
                    self._learner, client, self._data[client], known[client], terms, rows.get(client)
                )
                for client in [*trained, *sorted(known.keys() - rows.keys())]
            },
            missing,
        )


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


def sorted_out(found: Mapping[ClientId, Reply | Failure], missing: Mapping[ClientId, Failure]) -> Replies:
    """Replies, and beside them who has none; a warning tells of the first client that failed."""
    failed = {client: each for client, each in found.items() if isinstance(each, Failure)}
    if failed:
        client = min(failed)
        others = f", like {len(failed) - 1} others that failed" if len(failed) > 1 else ""
        warnings.warn(f"{client} {failed[client].detail} and counts as missing{others}", stacklevel=3)
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
    trained = (client for client, job in jobs.items() if job.work == "train")
    return sorted(trained, key=lambda client: (str(jobs[client].config.get("loss", "task")), client))
