"""Relearning: a target is taught some of its forgotten examples, and measures the loss on the rest.

Both jobs name the number of examples to teach and a seed, from which the client draws them. Only an update
and sums over many examples leave the client.
"""

from __future__ import annotations

import torch

from ..core import ClientId, FedUnlearnError, Job, State, Vector, train
from ..core.seeds import generator
from .data import ClientData, Data, own_examples, part, size

FEWEST = 10
"""The fewest examples that a client is taught or measured on: fewer would be revealed."""


def teaching_job(params: Vector, lesson: int, draw: int) -> Job:
    """Return a job to train on that many of the forgotten examples, and on nothing else."""
    return train(params, lesson=lesson, draw=draw)


def measuring_job(model: State, lesson: int, draw: int) -> Job:
    """Return a job to measure the loss on the forgotten examples except those that are taught."""
    return Job("relearn", model.params, config={"lesson": lesson, "draw": draw}, buffers=model.buffers)


def forgotten(data: ClientData) -> Data:
    """Return the examples to be forgotten; for a client with a backdoor, the triggered ones."""
    for name in ("backdoor", "forget"):
        if name in data.evaluations:
            return data.evaluations[name]
    return own_examples(data)


def lesson(client: ClientId, data: ClientData, job: Job) -> Data:
    """Return the forgotten examples that are taught: as many as the job says, but at most half of them."""
    chosen, _ = _divided(client, data, job)
    return part(forgotten(data), chosen)


def rest(client: ClientId, data: ClientData, job: Job) -> Data:
    """Return the other forgotten examples; all of them if nothing is taught."""
    _, left = _divided(client, data, job)
    return part(forgotten(data), left)


def taught(client: ClientId, data: ClientData, asked: int) -> int:
    """Return the number of examples that are taught; refuse if they or the others are few."""
    held = size(forgotten(data))
    count = min(asked, held // 2)
    if (asked and count < FEWEST) or held - count < FEWEST:
        raise FedUnlearnError(
            f"{client} holds {held} forgotten examples and is asked to teach {asked} of them: relearning "
            f"needs {FEWEST} to teach and {FEWEST} others, so that none of them is revealed",
            code="data",
        )
    return count


def _divided(client: ClientId, data: ClientData, job: Job) -> tuple[torch.Tensor, torch.Tensor]:
    count = taught(client, data, int(job.config["lesson"]))
    order = torch.randperm(size(forgotten(data)), generator=generator("lesson", job.config["draw"], client))
    return order[:count].sort().values, order[count:].sort().values
