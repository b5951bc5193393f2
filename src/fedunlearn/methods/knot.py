"""KNOT: clusters that never mix, so that one can be retrained alone (Su and Li, INFOCOM 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import (
    ClientId,
    FedUnlearnError,
    History,
    Phase,
    Replies,
    Request,
    Round,
    Stage,
    State,
    Status,
    Vector,
    train,
)
from ..core.registry import method
from .fedavg import Pretraining
from .schedule import Schedule

PREFIX = "cluster-"


def clusters(clients: Iterable[ClientId], count: int) -> dict[ClientId, str]:
    """The name of each client's cluster, dealt out in the order of the clients' names.

    Deviation: the paper groups clients by speed and similarity, for asynchronous rounds.
    """
    return {client: f"{PREFIX}{number % count}" for number, client in enumerate(sorted(clients))}


@dataclass(frozen=True)
class ClusteredPretraining(Pretraining):
    """Averaging inside each cluster; the model is the mean of the clusters'."""

    clusters: int = 5

    def start(self, request: Request, state: State) -> State:
        if any(buffer.is_floating_point() for buffer in state.buffers.values()):
            raise FedUnlearnError(
                "clusters share the model's buffers (BatchNorm statistics), so nothing could be unlearned "
                "exactly: use a model without"
            )
        member = clusters(request.clients, self.clusters)
        models = dict.fromkeys(member.values(), state.params)
        rows = {client: torch.tensor(int(name.removeprefix(PREFIX))) for client, name in member.items()}
        recorded = History({"member": rows}, {"cluster": state.params, **models})
        return super().start(request, state).remember(**recorded.tensors())

    def round(self, request: Request, state: State) -> Round:
        member = clusters(request.clients, self.clusters)
        replies = yield {client: train(state.memory[member[client]]) for client in request.asked}
        models = _averaged(_models(state.memory), replies, member)
        return state.move_to(_mean(models)).remember(**models)


@dataclass(frozen=True)
class ClusterRetraining(Phase):
    """The targets' clusters are trained anew without them; the others stay as they are, to the bit."""

    stage: ClassVar[Stage] = Stage.POSTTRAINING
    needs: ClassVar[frozenset[str]] = frozenset({"cluster"})

    def round(self, request: Request, state: State) -> Round:
        member = _members(request)
        anew = self._anew(request, state, member)
        replies = yield {c: train(anew[member[c]]) for c in request.asked if member[c] in anew}
        anew = _averaged(anew, replies, member)
        peopled = {member[client] for client in request.retained}
        kept = {name: model for name, model in _models(request.history.shared).items() if name in peopled}
        moved = state.move_to(_mean(kept | anew)).remember(**anew)
        return moved if anew else moved.halt(Status.CONVERGED, "nobody else was in the targets' clusters")

    def _anew(self, request: Request, state: State, member: Mapping[ClientId, str]) -> dict[str, Vector]:
        """The models in training: of the clusters that have lost somebody and still have somebody.

        The history has no model of a cluster that an earlier request has taken somebody from.
        """
        hit = {member[target] for target in request.targets}
        hit |= {*member.values()} - _models(request.history.shared).keys()
        start = request.history.shared["cluster"]
        return {
            member[client]: state.memory.get(member[client], start)
            for client in request.retained
            if member[client] in hit
        }


def _members(request: Request) -> dict[ClientId, str]:
    """Who was where in pre-training, whoever has left since; a virtual client follows its real one."""
    real = {client: client.partition("#")[0] for client in request.clients}
    return {c: f"{PREFIX}{int(request.history.of('member', name))}" for c, name in real.items()}


def _models(memory: Mapping[str, Vector]) -> dict[str, Vector]:
    return {name: model for name, model in memory.items() if name.startswith(PREFIX)}


def _averaged(
    models: Mapping[str, Vector], replies: Replies, member: Mapping[ClientId, str]
) -> dict[str, Vector]:
    """Each cluster's model after the updates of its members."""
    own = {name: replies.of(c for c in replies if member[c] == name) for name in models}
    return {name: model - own[name].average() if own[name] else model for name, model in models.items()}


def _mean(models: Mapping[str, Vector]) -> Vector:
    return torch.stack([models[name] for name in sorted(models)]).mean(0)


@method(
    "knot",
    paper="Su and Li, INFOCOM 2023",
    summary="retrains only the targets' cluster; pre-training must have been clustered",
    online="retained",
)
def knot(schedule: Schedule) -> tuple[Phase, ...]:
    """Needs ``pretraining.clusters``; there is no other post-training, which would mix the clusters."""
    return (ClusterRetraining(schedule.rounds, schedule.pretrain_lr),)
