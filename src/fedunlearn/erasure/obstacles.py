"""What stands in the way of an erasure beside the preconditions of its run, and what should be known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..core import ClientId, FedUnlearnError, Phase, Replies, Request
from ..core.registry import method as methods
from ..evidence.measures import listed
from ..methods import Schedule
from ..methods.recovering import RecoveringAveraging
from ..options import check_options
from .costs import Measured

CLEAN_TARGETS = {
    **dict.fromkeys(("fedosd", "finetune", "fedquit", "fupga"), "left too much"),
    **dict.fromkeys(("federaser", "mode", "not"), "forgot enough and harmed retained clients"),
    "fedosd-joint": "forgot too much and ruined the model",
}
"""What audits found about methods where the target had no backdoor (docs/evidence/results.md)."""


def about(method: str) -> Mapping[str, str]:
    """What a listing says about a method; nothing about one that nobody knows."""
    return next((entry.about for entry in methods if entry.name == method), {})


def phases_of(
    method: str, schedule: Schedule, options: Mapping[str, Any]
) -> tuple[tuple[Phase, ...], list[str]]:
    """The phases of a method, or why there are none."""
    try:
        make = methods[method]
        check_options(f"method {method!r}", make, options)
        return tuple(make(schedule, **options)), []
    except FedUnlearnError as error:
        return (), [str(error)]


def absent_targets(
    method: str,
    helping: Collection[ClientId],
    request: Request,
    present: Collection[ClientId],
    gone: bool,
) -> Iterator[str]:
    """Targets that are not there; ``helping`` names those that the method asks."""
    if gone and helping:
        yield (
            f"{method} asks the targets to help, and they are gone: use a method that does not, such as "
            "fast-retrain, retrain or federaser"
        )
    for target in () if gone else request.targets:
        if target not in present:
            why = f"{method} asks it to help" if target in helping else "nobody else can audit its data"
            yield f"target {target!r} is not present, and {why}: start its client, or say that it is gone"


def too_small(found: Measured | None, request: Request, smallest: int) -> Iterator[str]:
    """Single examples can be read from an update of few (docs/flower/what-the-server-sees.md)."""
    replies = Replies({}) if found is None else found.replies
    for target in request.targets:
        if target in replies and replies[target].examples < smallest:
            yield (
                f"target {target!r} has fewer than {smallest} training examples, and an update of so few "
                "can reveal them: use a method that asks nothing of it, such as fast-retrain"
            )


def too_short(phases: Sequence[Phase], request: Request, trained: int | None) -> Iterator[str]:
    """Warn of a new model that is trained for far fewer rounds than the one that it replaces."""
    recorded = [len(row) for row in request.history.rows.get("norms", {}).values()]
    before = trained or max(recorded, default=0)
    new = [phase for phase in phases if "fresh" in phase.needs]
    rounds = sum(each.longest if isinstance(each, RecoveringAveraging) else each.rounds for each in new)
    if 0 < 2 * rounds < before:
        yield (
            f"the new model gets {rounds} rounds at most, and the present one had {before}: state more under "
            "[schedule], or the retained clients may lose accuracy"
        )


def cautions(
    method: str,
    phases: Sequence[Phase],
    request: Request,
    present: Collection[ClientId],
    found: Measured | None,
    poisoned: bool,
) -> Iterator[str]:
    """What does not stand in the way."""
    if absent := [client for client in request.retained if client not in present]:
        yield f"{listed(absent)} will not take part unless back in time, so no step protects them"
    if len(request.retained) == 1:
        yield f"only {request.retained[0]} is retained: the new model is its own"
    if about(method).get("summary", "").startswith("control"):
        yield f"{method} is a control for comparisons: it is not meant to answer requests"
    if not poisoned and method in CLEAN_TARGETS:
        yield f"of clean targets, {method} {CLEAN_TARGETS[method]} in our audits (docs/evidence/results.md)"
    if found is None:
        yield "nothing was measured: neither the time nor the number of the target's examples is known"
        return
    for client, why in sorted(found.failed.items()):
        yield f"{client} {why} when it was asked for this plan"
    heard = [found.replies[target] for target in request.targets if target in found.replies]
    if heard and not any("backdoor" in reply.statistics for reply in heard):
        yield from sorted({phase.without_backdoor for phase in phases} - {""})
