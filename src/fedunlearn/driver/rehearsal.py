"""The jobs of the first round of each phase, found without asking any client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..core import (
    ClientId,
    Federation,
    Job,
    Jobs,
    Mean,
    MissingReply,
    Phase,
    Replies,
    Reply,
    Request,
    Selective,
    State,
)
from ..core.seeds import generator

SCALE = 1e-3
"""The scale of fake displacements."""


def refusals(phases: Sequence[Phase], request: Request, federation: Federation) -> Iterator[str]:
    """Yield a sentence for each job of a method that the clients of a federation cannot carry out."""
    for jobs in asked(phases, request):
        for client, job in jobs.items():
            if not isinstance(federation, Selective) or client == request.public:
                continue
            if why := federation.refusal(job):
                yield f"this method cannot run on this federation: {why}"


def asked(phases: Sequence[Phase], request: Request) -> Iterator[Jobs]:
    """Yield the jobs of the first round of each phase, which receives fake replies.

    A round is pure, so nothing happens. It ends early if a method needs more than displacements.
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
                if any(not job.trains for job in jobs.values()):
                    break
                jobs = round.send(Replies({client: fake_reply(client, job) for client, job in jobs.items()}))
        except StopIteration as stop:
            state = stop.value
        except MissingReply:
            continue


def fake_reply(client: ClientId, job: Job) -> Reply:
    """Return a displacement of the right shape; the name of the client decides its numbers."""
    random = generator("rehearsal", client)
    moved = torch.randn(job.params.shape, generator=random, dtype=job.params.dtype)
    return Reply(SCALE * moved, 1, {"train": {"loss": Mean(1.0, 1)}}, buffers=job.buffers or {})
