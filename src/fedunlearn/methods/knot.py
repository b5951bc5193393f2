"""KNOT: clusters that never mix, so that one can be retrained alone (Su and Li, INFOCOM 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    train,
)
from ..core.registry import method
from .fedavg import Pretraining
from .groups import averaged, mean_of, recorded_rows, require_separable
from .schedule import Schedule

PREFIX = "cluster-"


def clusters(clients: Iterable[ClientId], count: int) -> dict[ClientId, str]:
    """The name of each client's cluster, assigned in turn in the order of the clients' names.

    Deviation: the paper groups clients by speed and similarity, for asynchronous rounds.
    """
    return {client: f"{PREFIX}{number % count}" for number, client in enumerate(sorted(clients))}


@dataclass(frozen=True)
class ClusteredPretraining(Pretraining):
    """Averaging inside each cluster; the global model is the mean of the clusters' models."""

    clusters: int = 5

    def start(self, request: Request, state: State) -> State:
        require_separable(state, "clusters")
        member = clusters(request.clients, self.clusters)
        models = dict.fromkeys(member.values(), state.params)
        rows = {client: torch.tensor(int(name.removeprefix(PREFIX))) for client, name in member.items()}
        recorded = History({"member": rows}, {"cluster": state.params, **models})
        return super().start(request, state).remember(**recorded.tensors())

    def round(self, request: Request, state: State) -> Round:
        member = clusters(request.clients, self.clusters)
        replies = yield {client: train(state.memory[member[client]]) for client in request.asked}
        models = averaged(_models(state.memory), replies, member)
        return state.move_to(mean_of(models)).remember(**models)


@dataclass(frozen=True)
class ClusterRetraining(Phase):
    """Retrains the targets' clusters without the targets; all other clusters keep exactly the same bits."""

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"cluster"})
    asks: ClassVar[frozenset[Role]] = RETAINED

    def start(self, request: Request, state: State) -> State:
        started = super().start(request, state)
        return started.remember(**self._retrained(request, started, _members(request)))

    def origin(self, request: Request, state: State) -> Vector:
        """The mean of all clusters' models before those of the targets are retrained further."""
        member = _members(request)
        return mean_of(_kept(request, member) | self._retrained(request, state, member))

    def round(self, request: Request, state: State) -> Round:
        member = _members(request)
        models = self._retrained(request, state, member)
        replies = yield {c: train(models[member[c]]) for c in request.asked if member[c] in models}
        models = averaged(models, replies, member)
        moved = state.move_to(mean_of(_kept(request, member) | models)).remember(**models)
        return (
            moved if models else moved.halt(Status.CONVERGED, "no other client was in the targets' clusters")
        )

    def _retrained(self, request: Request, state: State, member: Mapping[ClientId, str]) -> dict[str, Vector]:
        """The models of the clusters to retrain: those that lost a client and still have one.

        The history has no model of a cluster that lost a client in an earlier request.
        """
        affected = {member[target] for target in request.targets}
        affected |= {*member.values()} - _models(request.history.shared).keys()
        start = request.history.shared["cluster"]
        return {
            member[client]: state.memory.get(member[client], start)
            for client in request.retained
            if member[client] in affected
        }


def _members(request: Request) -> dict[ClientId, str]:
    """The pre-training cluster of each current client."""
    return {client: f"{PREFIX}{int(row)}" for client, row in recorded_rows(request, "member").items()}


def _kept(request: Request, member: Mapping[ClientId, str]) -> dict[str, Vector]:
    """The recorded models of all clusters in which somebody is left."""
    occupied = {member[client] for client in request.retained}
    return {name: model for name, model in _models(request.history.shared).items() if name in occupied}


def _models(memory: Mapping[str, Vector]) -> dict[str, Vector]:
    return {name: model for name, model in memory.items() if name.startswith(PREFIX)}


@method(
    "knot",
    paper="Su and Li, INFOCOM 2023",
    source="summaries",
    summary="retrains only the targets' cluster; pre-training must have been clustered",
)
def knot(schedule: Schedule) -> tuple[Phase, ...]:
    """Needs ``pretraining.clusters``. It has no further post-training, which would mix the clusters."""
    return (ClusterRetraining(schedule.rounds, schedule.pretrain_lr),)
