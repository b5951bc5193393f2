"""Preconditions of round one, as sentences about those that do not hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from ..core import (
    Accountable,
    ClientId,
    Federation,
    LocalTraining,
    Phase,
    Request,
    Selective,
    Stage,
    requirements,
)
from .participation import Participation
from .rehearsal import refusals

RATES = torch.finfo(torch.float32)


def preconditions(
    phases: Sequence[Phase],
    request: Request,
    federation: Federation,
    present: Collection[ClientId],
    training: LocalTraining,
    participation: Participation,
    *,
    authorised: bool = False,
    rehearse: bool = False,
) -> Iterator[str]:
    """Yield every reason why phases cannot run now, one sentence each: what, where, and what to do.

    ``authorised`` says that the federation is shown the signed request of the target before the run;
    with ``rehearse``, a phase that cannot start raises its error on any federation.
    """
    if request.public and request.public not in present:
        yield f"{request.public!r}, which holds the public data, is not present: add it"
    if not request.targets and any(phase.stage is Stage.UNLEARNING for phase in phases):
        yield "the request names no target, so there is nothing to unlearn: name one"
    elapsed = 0
    for phase in phases:
        elapsed += phase.rounds
        yield from _unusable_rates(phase, training.decay, elapsed)
    yield from too_few(phases, request, present, participation)
    missing = list(requirements.missing(phases, request, federation.task))
    yield from missing
    allowed = federation.authorised if isinstance(federation, Accountable) and not authorised else None
    if request.targets and allowed is not None and request.targets != (allowed,):
        other = next((target for target in request.targets if target != allowed), allowed)
        yield (
            f"{other} has not asked to be forgotten: the signed request is by {allowed}, "
            f"so name {allowed} alone"
        )
    if not missing and (rehearse or isinstance(federation, Selective)):
        yield from refusals(phases, request, federation)


def too_few(
    phases: Sequence[Phase], request: Request, present: Collection[ClientId], participation: Participation
) -> Iterator[str]:
    """Yield a sentence for each phase for which fewer clients are present than the minimum."""
    for phase in phases:
        there = {*present}.intersection(phase.learners(request))
        if len(there) < participation.minimum:
            yield (
                f"{shortage(len(there))} and the minimum is {participation.minimum}: wait for others, or "
                "lower the minimum"
            )


def shortage(count: int) -> str:
    """Return the number of clients that can train now, as the beginning of a sentence."""
    return f"{count} client{'' if count == 1 else 's'} that can train {'is' if count == 1 else 'are'} present"


def _unusable_rates(phase: Phase, decay: float, elapsed: int) -> Iterator[str]:
    """Yield a sentence for each learning rate that can be neither squared nor divided by."""
    last = phase.lr * decay ** max(0, elapsed - 1)
    for rate, when in ((phase.lr, "begins with"), (last, "falls to")):
        if phase.rounds and not RATES.tiny <= rate <= RATES.max:
            yield (
                f"the learning rate of {phase.stage} {when} {rate:.3g} (lr = {phase.lr:g}, decay = "
                f"{decay:g}), and float32 holds {RATES.tiny:.0e} to {RATES.max:.0e}: "
                "change lr or decay, or run fewer rounds"
            )
