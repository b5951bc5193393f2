"""SFU: ascent in the subspace that the retained clients do not use (Li et al., arXiv 2302.12448)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from ..objectives import Minimise, objective
from ..registry import method
from ..types import (
    ClientId,
    Examples,
    FedUnlearnError,
    Job,
    Objective,
    Phase,
    Replies,
    Request,
    Stage,
    State,
    Status,
)
from .fedavg import Averaging
from .schedule import Schedule, require
from .targets import silent

Bias = Literal["unprojected", "frozen", "augmented"]
POSITIONS = 50
"""Patches of one picture that a convolution's input is represented by."""


@dataclass(frozen=True)
class LayerInputs(Minimise):
    """Uploads R Rᵀ of each layer, the columns of R being its inputs on one batch, and 1 for the bias.

    Deviation: the paper uploads R with its columns scaled at random. The product has the same span, does not
    grow with the batch, and shows no single input.
    """

    @torch.no_grad()
    def upload(self, model: nn.Module, batches: Iterable[Examples]) -> Mapping[str, Tensor]:
        seen: dict[str, Tensor] = {}
        # Before anybody watches: to fetch the first batch, the client may try the model on something else.
        x = next(iter(batches)).x

        def watch(name: str, layer: nn.Module) -> Any:
            def see(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                columns = pad(_columns(layer, inputs[0]), (0, 1), value=1.0)
                seen[name] = seen.get(name, 0) + columns.T @ columns

            return layer.register_forward_pre_hook(see)

        watches = [
            watch(f"{name}.weight" if name else "weight", layer)
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.requires_grad
        ]
        try:
            model(x)
        finally:
            for handle in watches:
                handle.remove()
        return seen


def _columns(layer: nn.Module, x: Tensor) -> Tensor:
    """The vectors that the rows of the layer's weight are multiplied with, one a row."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    assert isinstance(layer, nn.Conv2d)
    if layer.groups != 1 or isinstance(layer.padding, str):
        raise FedUnlearnError(f"SFU does not know the inputs of {layer}: use convolutions without groups")
    patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    chosen = patches[..., :: max(1, -(-patches.shape[-1] // POSITIONS))]
    return chosen.transpose(1, 2).reshape(-1, patches.shape[1])


@objective(
    "layer_inputs",
    summary="uploads second moments of the inputs of each layer; trains nothing",
    part_of="sfu",
)
def _layer_inputs(arrays: Mapping[str, Tensor]) -> Objective:
    return LayerInputs()


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
