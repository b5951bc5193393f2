"""The checks before a request is answered: ``erase`` refuses what they find, and a plan lists it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from ..core import (
    Authorising,
    ClientId,
    Federation,
    FedUnlearnError,
    Job,
    LocalTraining,
    Phase,
    Request,
    requirements,
)
from ..core.registry import method as methods
from ..driver import Participation
from ..driver.gate import admit
from ..driver.preconditions import preconditions
from ..evidence.measures import listed
from ..server import ASKS_THE_GONE, NEVER_TRAINED


def about(method: str) -> Mapping[str, str]:
    """Return the registered description of a method; empty for an unknown one."""
    return next((entry.about for entry in methods if entry.name == method), {})


def obstacles(
    method: str,
    phases: Sequence[Phase],
    request: Request,
    federation: Federation,
    present: Collection[ClientId],
    training: LocalTraining,
    participation: Participation,
    *,
    gone: bool,
    begun: bool,
    smallest: int,
) -> Iterator[FedUnlearnError]:
    """Yield everything that keeps a method from running now, as the errors with which a request is refused.

    A run that has begun is continued, whoever of the targets is still there.
    """
    shown = isinstance(federation, Authorising) and not gone
    try:
        for problem in preconditions(
            phases, request, federation, present, training, participation, authorised=shown, rehearse=True
        ):
            yield FedUnlearnError(problem, code="unsuitable")
    except FedUnlearnError as error:
        yield error
    if begun:
        return
    asks_targets = "targets" in requirements.asks(phases)
    took_part = {client for rows in request.history.rows.values() for client in rows}
    for target in request.targets:
        if took_part and target not in took_part:
            yield FedUnlearnError(NEVER_TRAINED.format(target), code="not-forgotten")
        if not gone and target not in present:
            why = f"{method} asks it to help" if asks_targets else "nobody else can audit its data"
            yield FedUnlearnError(
                f"target {target!r} is not present, and {why}: start its client, or say that it is gone",
                code="absent",
            )
    if gone and asks_targets:
        yield FedUnlearnError(ASKS_THE_GONE.format(method), code="unsuitable")
    if asks_targets or requirements.needs(phases) & {"updates", "residuals"}:
        yield from _too_small(request, federation, present, smallest)


def _too_small(
    request: Request, federation: Federation, present: Collection[ClientId], smallest: int
) -> Iterator[FedUnlearnError]:
    """Yield targets whose updates would reveal single examples (docs/flower/what-the-server-sees.md)."""
    job = Job("measure", request.params, buffers=request.buffers)
    jobs = {target: job for target in request.targets if target in present}
    replies = admit(jobs, federation.exchange(jobs), request.buffers) if jobs and smallest else {}
    for target, reply in replies.items():
        if reply.examples < smallest:
            yield FedUnlearnError(
                f"target {target!r} has fewer than {smallest} training examples, and an update of so few "
                "can reveal them: use a method that asks nothing of it, such as fast-retrain",
                code="data",
            )


def cautions(
    method: str,
    phases: Sequence[Phase],
    request: Request,
    present: Collection[ClientId],
    *,
    poisoned: bool,
    trained: int | None,
) -> Iterator[str]:
    """Yield what does not keep a request from being answered, and should be known."""
    before = trained or max(map(len, request.history.rows.get("norms", {}).values()), default=0)
    rounds = sum(getattr(phase, "longest", phase.rounds) for phase in phases if "fresh" in phase.needs)
    if 0 < 2 * rounds < before:
        yield (
            f"the new model gets {rounds} rounds at most, and the present one had {before}: state more under "
            "[schedule], or the retained clients may lose accuracy"
        )
    if absent := [client for client in request.retained if client not in present]:
        yield f"{listed(absent)} will not take part unless back in time, so no step protects them"
    if len(request.retained) == 1:
        yield f"only {request.retained[0]} is retained: the new model is its own"
    if about(method).get("kind") == "control":
        yield f"{method} is a control for comparisons: it is not meant to answer requests"
    if not poisoned:
        yield from sorted({phase.without_backdoor for phase in phases} - {""})
        if said := about(method).get("clean_targets"):
            yield f"of clean targets, {method} {said} in our audits (docs/results.md)"
