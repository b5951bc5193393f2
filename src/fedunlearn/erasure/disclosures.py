"""Who learns what from an erasure, found in what its phases send to whom."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..core import ClientId, Request
from ..evidence.measures import EXACT
from ..methods.fedosd import ForgettingDescent
from ..methods.fupareto import ParetoDescent
from ..methods.joint import JointDescent
from .costs import PhaseCost

WORKS = {
    "fisher": "the diagonal of the Fisher information on their data",
    "layer_inputs": "second moments of the inputs of each layer on their data",
}


@dataclass(frozen=True)
class Disclosure:
    """What somebody sees of somebody else."""

    who: str
    sees: str


def disclosures(
    method: str, costs: Sequence[PhaseCost], request: Request, present: Collection[ClientId]
) -> Iterator[Disclosure]:
    """What the server, the clients and later observers see."""
    yield from _server(costs, request)
    yield from _retained(costs, request)
    yield from _target(costs, request, present)
    yield Disclosure(
        "whoever holds ω⁰ and the new model",
        "can compare what both say about the target's data: "
        + (
            "the new model knows nothing of it, so a difference shows what ω⁰ knew"
            if method in EXACT
            else "where they differ most is what was unlearned"
        )
        + "; delete ω⁰ and its copies when the request is closed",
    )


def _server(costs: Sequence[PhaseCost], request: Request) -> Iterator[Disclosure]:
    for clients, whose in ((request.retained, "each retained client"), (request.targets, "each target")):
        updates = max((_trainings(costs, client) for client in clients), default=0)
        if updates:
            yield Disclosure(
                "server",
                f"up to {updates:,} updates of {whose}, with training losses and numbers of examples",
            )
        works = {
            job.work
            for cost in costs
            for jobs in cost.first.exchanges
            for client, job in jobs.items()
            if client in clients and job.work not in ("train", "measure")
        }
        for work in sorted(works):
            what = WORKS.get(work, f"what the work {work!r} computes on their data")
            yield Disclosure("server", f"of {whose}, {what}")
    yield Disclosure("server", "sums of losses and scores over evaluation sets, with counts, of every client")


def _retained(costs: Sequence[PhaseCost], request: Request) -> Iterator[Disclosure]:
    others = len(request.retained)
    for cost in costs:
        if not _trained(cost, request.targets):
            continue
        received = _receives(cost, request.retained)
        if isinstance(cost.phase, JointDescent):
            step = "mixed with the mean update of the retained clients"
        elif isinstance(cost.phase, ParetoDescent):
            step = (
                "mixed with those of the retained clients, or, where no step helps everybody, in all but at "
                f"most {others} of {len(request.params):,} dimensions"
            )
        elif isinstance(cost.phase, ForgettingDescent):
            step = f"in all but at most {others} of {len(request.params):,} dimensions, up to its length"
        elif _trained(cost, request.retained):
            step = "mixed with those of the retained clients"
        else:
            step = "as a mean over the targets"
        yield Disclosure(
            "retained clients",
            f"the model of every round of {cost.phase.stage}, and in the step between two of them the "
            f"target's update {step}"
            if received
            else f"the model that {cost.phase.stage} ends with: its distance from ω⁰ is the sum of the "
            f"target's updates, {step}",
        )
    if {"updates", "residuals"} & {need for cost in costs for need in cost.phase.needs}:
        yield Disclosure(
            "retained clients",
            "the model after the server's step: its distance from ω⁰ is the target's recorded contribution",
        )
    if not any(_trained(cost, request.targets) for cost in costs):
        yield Disclosure("retained clients", "the model of every round; no update of a target is in it")
    if others == 1:
        yield Disclosure(
            "everybody who receives a model",
            f"the updates of {request.retained[0]}: nobody else trains, so nothing hides them",
        )


def _target(
    costs: Sequence[PhaseCost], request: Request, present: Collection[ClientId]
) -> Iterator[Disclosure]:
    for cost in costs:
        if _receives(cost, request.targets):
            more = (
                ", and so the part of its own update that the retained clients' updates span"
                if isinstance(cost.phase, ForgettingDescent)
                else ""
            )
            yield Disclosure("target", f"the model of every round of {cost.phase.stage}{more}")
    if {*present} & {*request.targets}:
        yield Disclosure("target", "ω⁰ and the model at the end of every phase, which it is asked to measure")


def _trainings(costs: Sequence[PhaseCost], client: ClientId) -> int:
    return sum(
        int(cost.total(lambda r: sum(client in j and j[client].work == "train" for j in r.exchanges)))
        for cost in costs
    )


def _trained(cost: PhaseCost, clients: Collection[ClientId]) -> bool:
    """Whether these clients train in a phase."""
    exchanges = (*cost.first.exchanges, *cost.later.exchanges)
    return any(
        client in clients and job.work == "train" for jobs in exchanges for client, job in jobs.items()
    )


def _receives(cost: PhaseCost, clients: Collection[ClientId]) -> bool:
    """Whether these clients receive the models of a phase, to train or to try them."""
    return any(client in clients for jobs in cost.later.exchanges for client in jobs)
