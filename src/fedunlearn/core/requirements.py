"""What methods need beside clients: stated by name in ``Phase.needs``, checked before round one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from .history import KINDS
from .phase import Phase, Role
from .registry import did_you_mean
from .request import Request
from .task import LabelTask, Task

REMEDIES = {
    "public": "let the request name a member of the federation that holds public data",
    "fresh": "give the request a function `fresh` that returns newly initialised models",
    "shapes": "give the request the shapes of the model's parameters: fedunlearn.shapes(model)",
    "labels": "use a task that predicts one label out of several, such as Classification",
    "cluster": "pre-train in clusters",
    "slice": "pre-train in slices",
    **{kind: f'pre-train with history = ["{kind}"], on Flower with flower.Recording' for kind in KINDS},
}


def needs(phases: Sequence[Phase]) -> frozenset[str]:
    """What some phase of a method needs."""
    return frozenset().union(*(phase.needs for phase in phases))


def asks(phases: Sequence[Phase]) -> frozenset[Role]:
    """Whose clients the rounds of a method may ask."""
    return frozenset[Role]().union(*(phase.asks for phase in phases if phase.rounds))


def online(phases: Sequence[Phase]) -> str:
    """Return who is asked, phase after phase, such as ``targets, then retained``."""
    asked = (" and ".join(sorted(phase.asks, reverse=True)) for phase in phases)
    return ", then ".join(who for who, _ in groupby(asked) if who)


def recorded(phases: Sequence[Phase]) -> frozenset[str]:
    """The part of the needs that pre-training has to leave behind."""
    return needs(phases) & {*KINDS, "cluster", "slice"}


def missing(
    phases: Sequence[Phase],
    request: Request,
    task: Task,
    method: str = "",
    remedies: Mapping[str, str] = REMEDIES,
) -> Iterator[str]:
    """What the request lacks of the needs of its method: a sentence for each."""
    there = {
        *request.history.kinds,
        *(["public"] if request.public else []),
        *(["fresh"] if request.fresh else []),
        *(["shapes"] if request.shapes else []),
        *(["labels"] if isinstance(task, LabelTask) else []),
    }
    part = next((target for target in request.targets if "#" in target), None)
    for phase in phases:
        if part and (history := sorted(phase.needs & KINDS.keys())):
            what = f"{method or type(phase).__name__} needs {history[0]}, recorded of whole clients only"
            yield f"{what}, and {part!r} is a part of one: use another method, or forget the client"
            continue
        for need in sorted(phase.needs - there):
            what = f"{method or type(phase).__name__} needs"
            if need in remedies:
                yield f"{what} {need}, and the request has none: {remedies[need]}"
            else:
                yield f"{what} {need!r}, which is unknown{did_you_mean(need, remedies)}"
