"""Groups of clients whose models never mix: what SISA's shards and KNOT's clusters have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core import ClientId, FedUnlearnError, Replies, Request, State, Vector, require_count


def require_separable(state: State, groups: str) -> None:
    """Refuses models whose buffers all groups would share."""
    if any(buffer.is_floating_point() for buffer in state.buffers.values()):
        raise FedUnlearnError(
            f"{groups} share the model's buffers (BatchNorm statistics), so exact unlearning is impossible: "
            "use a model without such buffers",
            code="unsuitable",
        )


def require_groups(clients: int, clusters: int, slices: int, history: Sequence[str]) -> None:
    """Refuses clusters and slices that so many clients cannot form, and history that they do not record."""
    require_count("clusters", clusters, 1)
    require_count("slices", slices, 1)
    if history and clusters * slices > 1:
        key, how = ("slices", "sliced") if slices > 1 else ("clusters", "clustered")
        raise FedUnlearnError(
            f"{how} pre-training records its {key} and no other history: remove {key} or history",
            code="unsuitable",
        )
    if slices > 1 and clusters * slices > clients:
        raise FedUnlearnError(
            f"{clients} clients cannot form {slices} slices in each of {clusters} clusters: lower slices or "
            "clusters",
            code="unsuitable",
        )
    if clusters > clients:
        raise FedUnlearnError(
            f"{clients} clients cannot form {clusters} clusters: set clusters to {clients} at most",
            code="unsuitable",
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
