"""SISA: shards that never mix, sliced with a checkpoint before each slice (Bourtoule et al., S&P 2021)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..core import (
    RETAINED,
    ClientId,
    History,
    Phase,
    Request,
    Role,
    Round,
    Stage,
    State,
    Status,
    Vector,
    require,
    train,
)
from ..core.registry import method
from .fedavg import Pretraining
from .groups import averaged, mean_of, recorded_rows, require_separable
from .schedule import Schedule

Place = tuple[str, int]
"""The name of a client's shard, and its slice in it."""


def places(clients: Iterable[ClientId], shards: int, slices: int) -> dict[ClientId, Place]:
    """Where each client is, assigned in turn in the order of the clients' names."""
    return {c: (f"slice-{n % shards}", n // shards % slices) for n, c in enumerate(sorted(clients))}


def first_round(slice: int, rounds: int, slices: int) -> int:
    """The round in which the clients of a slice join those of the slices before it."""
    return slice * rounds // slices


def slice_of(round: int, rounds: int, slices: int) -> int:
    """The last slice that has joined by a round."""
    return ((round + 1) * slices - 1) // rounds


@dataclass(frozen=True)
class SlicedPretraining(Pretraining):
    """Averaging inside each shard, whose clients join slice by slice; the model is the mean of the shards'.

    It records ``slice-K``, the model of shard K, ``slice-K-S``, that model before slice S > 0 joined, and
    ``slice``, the model before slice 0, which all shards share.
    """

    shards: int = 1
    slices: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= self.slices, "rounds", self.rounds, f"{self.slices} or more, one for a slice")

    def start(self, request: Request, state: State) -> State:
        require_separable(state, "shards")
        where = places(request.clients, self.shards, self.slices)
        rows = {client: torch.tensor([int(name[6:]), slice]) for client, (name, slice) in where.items()}
        decays = torch.ones(self.slices, dtype=torch.float64)
        models = {name: state.params for name, _ in where.values()}
        recorded = History({"slice": rows}, {"slice": state.params, "slice-decays": decays, **models})
        return super().start(request, state).remember(**recorded.tensors())

    def round(self, request: Request, state: State) -> Round:
        where = places(request.clients, self.shards, self.slices)
        models = {name: state.memory[name] for name, _ in where.values()}
        now = slice_of(state.round, self.rounds, self.slices)
        if now and state.round == first_round(now, self.rounds, self.slices):
            decays = state.memory["slice-decays"].clone()
            decays[now] = state.lr / self.lr
            before = {f"{name}-{now}": model for name, model in models.items()}
            state = state.remember(**{**before, "slice-decays": decays})
        joined = [client for client in request.asked if where[client][1] <= now]
        replies = yield {client: train(models[where[client][0]]) for client in joined}
        models = averaged(models, replies, {client: name for client, (name, _) in where.items()})
        return state.move_to(mean_of(models)).remember(**models)


@dataclass(frozen=True)
class SliceRetraining(Phase):
    """Repeats the targets' shards from the slices in which they joined; the rest keeps its exact bits."""

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"slice"})
    asks: ClassVar[frozenset[Role]] = RETAINED

    def start(self, request: Request, state: State) -> State:
        begun, shared = _begun(request), request.history.shared
        models = {name: shared[f"{name}-{slice}" if slice else "slice"] for name, slice in begun.items()}
        first = first_round(min(begun.values(), default=0), self.rounds, len(shared["slice-decays"]))
        return replace(super().start(request, state).remember(**models), round=first)

    def origin(self, request: Request, state: State) -> Vector:
        """The mean of all shards' models before those of the targets are retrained further."""
        return mean_of(_models(request, state))

    def round(self, request: Request, state: State) -> Round:
        where, begun, models = _places(request), _begun(request), _models(request, state)
        decays = request.history.shared["slice-decays"]
        now = slice_of(state.round, self.rounds, len(decays))
        # The rate that the round had in pre-training: the driver counts rounds since the request.
        lr = self.lr * float(decays[min(begun.values(), default=0)])
        again = {name: models[name] for name, slice in begun.items() if slice <= now}
        member = {client: name for client, (name, slice) in where.items() if slice <= now}
        replies = yield {c: train(again[member[c]], lr=lr) for c in request.asked if member.get(c) in again}
        models |= averaged(again, replies, member)
        moved = state.move_to(mean_of(models)).remember(**{name: models[name] for name in begun})
        return moved if begun else moved.halt(Status.CONVERGED, "no other client was in the targets' shards")


def _places(request: Request) -> dict[ClientId, Place]:
    """Where each current client was in pre-training."""
    rows = recorded_rows(request, "slice")
    return {client: (f"slice-{int(row[0])}", int(row[1])) for client, row in rows.items()}


def _begun(request: Request) -> dict[str, int]:
    """The slice from which on each shard is retrained: those that lost a client and still have one.

    The history has no model that knew a client of an earlier request.
    """
    where, shared, begun = _places(request), request.history.shared, dict[str, int]()
    for shard in sorted({where[client][0] for client in request.retained}):
        left = [slice for name, slice in map(where.__getitem__, request.targets) if name == shard]
        if shard not in shared:
            recorded = [s for s in range(len(shared["slice-decays"])) if f"{shard}-{s}" in shared]
            left.append(max(recorded, default=0))
        if left:
            begun[shard] = min(left)
    return begun


def _models(request: Request, state: State) -> dict[str, Vector]:
    """The models of all shards in which somebody is left: retrained ones, else the recorded ones."""
    where, known = _places(request), {**request.history.shared, **state.memory}
    return {name: known[name] for name in {where[client][0] for client in request.retained}}


@method(
    "sisa",
    paper="Bourtoule et al., IEEE S&P 2021",
    source="abstract and summaries",
    summary="repeats the targets' shards from a checkpoint before they joined; pre-training must be sliced",
)
def sisa(schedule: Schedule) -> tuple[Phase, ...]:
    """Needs ``pretraining.slices``. It has no further post-training, which would mix the shards."""
    return (SliceRetraining(schedule.rounds, schedule.pretrain_lr),)
