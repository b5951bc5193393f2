"""SFU: ascent in the subspace that the retained clients do not use (Li et al., arXiv 2302.12448).

What the retained clients upload is in ``uploads.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import (
    ClientId,
    FedUnlearnError,
    Job,
    Phase,
    Replies,
    Request,
    Stage,
    State,
    Status,
)
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import silent

Bias = Literal["unprojected", "frozen", "augmented"]


@dataclass(frozen=True)
class SubspaceAscent(Phase):
    """The targets' ascent, without what would change a layer's output on the retained clients' inputs."""

    energy: float = 0.95
    bias: Bias = "unprojected"
    clip: float = 5.0

    stage: ClassVar[Stage] = Stage.UNLEARNING

    def ask(self, request: Request, state: State) -> Mapping[ClientId, Job]:
        ascent = Job(state.params, "ascent", {"clip": torch.tensor(self.clip)})
        return dict.fromkeys(request.targets, ascent) | {
            client: Job(state.params, "layer_inputs", effort=0) for client in request.retained
        }

    def tell(self, request: Request, state: State, replies: Replies) -> State:
        if lost := silent(request, state, replies):
            return lost
        retained = replies.of(request.retained)
        update = request.pieces(-replies.of(request.targets).mean())
        free = 0
        for name in next(iter(retained.values())).arrays:
            if name not in update:
                raise FedUnlearnError(f"SFU cannot project {name!r}, which several layers share: untie them")
            inputs = sum(reply.arrays[name].double() for reply in retained.values())
            free += self._project(update, name, torch.as_tensor(inputs))
        if free == 0:
            return state.halt(
                Status.NO_DIRECTION,
                f"the retained clients' inputs fill every layer at energy {self.energy:g}, so nothing can be "
                "unlearned: lower the energy",
            )
        return state.step(torch.cat([piece.reshape(-1) for piece in update.values()]), free=free)

    def _project(self, update: dict[str, Tensor], name: str, inputs: Tensor) -> int:
        """Takes a layer's update off the span of its inputs; returns how many dimensions are left."""
        bias = name.removesuffix("weight") + "bias"
        augmented = self.bias == "augmented" and bias in update
        rows = update[name].flatten(1)
        if augmented:
            rows = torch.cat([rows, update[bias].unsqueeze(1)], 1)
        width = rows.shape[1]
        values, basis = torch.linalg.eigh(inputs[:width, :width])
        kept = values.clamp(min=0).flip(0).cumsum(0)
        rank = int((kept < self.energy * kept[-1]).sum()) + 1 if self.energy > 0 else 0
        used = basis[:, width - min(rank, width) :].to(rows.dtype)
        rows = rows - (rows @ used) @ used.T
        update[name] = (rows[:, :-1] if augmented else rows).reshape(update[name].shape)
        if augmented:
            update[bias] = rows[:, -1]
        elif self.bias == "frozen" and bias in update:
            update[bias] = torch.zeros_like(update[bias])
        return width - min(rank, width)


@method(
    "sfu",
    paper="Li et al., arXiv 2302.12448",
    summary="gradient ascent at the targets, off the span of the retained clients' layer inputs",
    online="targets and retained, then retained",
)
def sfu(
    schedule: Schedule, *, energy: float = 0.95, bias: Bias = "unprojected", clip: float = 5.0
) -> tuple[Phase, ...]:
    """``energy`` is the share ε of the inputs' squared singular values that a layer protects; ``bias`` is
    ``augmented`` (projected as the weight of a constant input), ``frozen``, or left ``unprojected``."""
    require(0 <= energy < 1, "energy", energy, "at least 0 and below 1")
    require(clip > 0, "clip", clip, "positive")
    return (
        SubspaceAscent(schedule.unlearn_rounds, schedule.unlearn_lr, energy, bias, clip),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
