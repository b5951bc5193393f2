"""Groups of clients whose models never mix: what SISA's shards and KNOT's clusters have in common."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import ClientId, FedUnlearnError, Replies, Request, State, Vector


def require_separable(state: State, groups: str) -> None:
    """Refuses models whose buffers all groups would share."""
    if any(buffer.is_floating_point() for buffer in state.buffers.values()):
        raise FedUnlearnError(
            f"{groups} share the model's buffers (BatchNorm statistics), so exact unlearning is impossible: "
            "use a model without such buffers"
        )


def recorded_rows(request: Request, kind: str) -> dict[ClientId, Tensor]:
    """What pre-training recorded of each current client; of a virtual client, what it did of its real one."""
    return {client: request.history.of(kind, client.partition("#")[0]) for client in request.clients}


def averaged(
    models: Mapping[str, Vector], replies: Replies, member: Mapping[ClientId, str]
) -> dict[str, Vector]:
    """Each group's model after the updates of its members."""
    own = {name: replies.of(c for c in replies if member[c] == name) for name in models}
    return {name: model - own[name].average() if own[name] else model for name, model in models.items()}


def mean_of(models: Mapping[str, Vector]) -> Vector:
    """The model that is served: the plain mean of those of the groups."""
    return torch.stack([models[name] for name in sorted(models)]).mean(0)
