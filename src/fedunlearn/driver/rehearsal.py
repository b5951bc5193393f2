"""A rehearsal: what a method will ask of its clients, found out before anybody is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..core import FedUnlearnError, Job, Jobs, MissingReply, Phase, Replies, Reply, Request, Selective, State
from ..core.seeds import generator

SCALE = 1e-3
"""Of the made-up displacements."""


def check(phases: Sequence[Phase], request: Request, federation: Selective) -> None:
    """Refuses a method that asks for a job which the clients of a federation cannot carry out."""
    for jobs in asked(phases, request):
        for client, job in jobs.items():
            if client != request.public and (why := federation.refusal(job)):
                raise FedUnlearnError(f"this method cannot run on this federation: {why}")


def asked(phases: Sequence[Phase], request: Request) -> Iterator[Jobs]:
    """The jobs of the first round of each phase, which hears made-up replies.

    A round is pure, so nothing happens. It ends early where a method needs more than displacements.
    """
    state = State(request.params, buffers=request.buffers)
    for phase in phases:
        if not phase.rounds:
            continue
        state = replace(phase.start(request, state), lr=phase.lr)
        round = phase.round(request, state)
        if isinstance(round, State):
            state = round
            continue
        try:
            jobs = next(round)
            while True:
                yield jobs
                if any(job.work != "train" for job in jobs.values()):
                    break
                jobs = round.send(Replies({client: _made_up(client, job) for client, job in jobs.items()}))
        except StopIteration as stop:
            state = stop.value
        except MissingReply:
            continue


def _made_up(client: str, job: Job) -> Reply:
    random = torch.randn(job.params.shape, generator=generator("rehearsal", client), dtype=job.params.dtype)
    return Reply(SCALE * random, 1)
