"""SFU: ascent in the subspace that the retained clients do not use (Li et al., arXiv 2302.12448)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from ..core import (
    Batch,
    FedUnlearnError,
    Job,
    Phase,
    Replies,
    Request,
    Round,
    Stage,
    State,
    Status,
    Task,
    require,
    train,
)
from ..core.registry import method, work
from .fedavg import Averaging
from .schedule import Schedule

POSITIONS = 50
"""Number of patches of one image that represent a convolution's input."""

Bias = Literal["unprojected", "frozen", "augmented"]


@work("layer_inputs", summary="second moments of the inputs of each layer", part_of="sfu")
@torch.no_grad()
def layer_inputs(task: Task, model: nn.Module, batches: Iterator[Batch]) -> Mapping[str, Tensor]:
    """R Rᵀ of each layer; the columns of R are its inputs on one batch, extended by a 1 for the bias.

    Deviation: the paper uploads R with randomly scaled columns. The product has the same span, does not
    grow with the batch, and reveals no single input.
    """
    moments: dict[str, Tensor] = {}
    # Fetched before the hooks are registered, because the client may run the model to fetch a batch.
    batch = next(batches)

    def observe(name: str, layer: nn.Module) -> Any:
        def accumulate(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            columns = pad(_columns(layer, inputs[0]), (0, 1), value=1.0)
            moments[name] = moments.get(name, 0) + columns.T @ columns

        return layer.register_forward_pre_hook(accumulate)

    layers = {
        f"{name}.weight" if name else "weight": layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.requires_grad
    }
    tied = sorted(layers.keys() - dict(model.named_parameters()).keys())
    if tied:
        raise FedUnlearnError(
            f"SFU cannot project {tied[0]!r}, which several layers share: untie them", code="unsuitable"
        )
    hooks = [observe(name, layer) for name, layer in layers.items()]
    try:
        task.losses(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return moments


def _columns(layer: nn.Module, x: Tensor) -> Tensor:
    """The vectors that the rows of the layer's weight are multiplied with, one per row."""
    if isinstance(layer, nn.Linear):
        return x.reshape(-1, x.shape[-1])
    assert isinstance(layer, nn.Conv2d)
    if layer.groups != 1 or isinstance(layer.padding, str):
        raise FedUnlearnError(
            f"SFU does not support {layer}: use convolutions without groups and with numeric padding",
            code="unsuitable",
        )
    patches = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    chosen = patches[..., :: max(1, -(-patches.shape[-1] // POSITIONS))]
    return chosen.transpose(1, 2).reshape(-1, patches.shape[1])


@dataclass(frozen=True)
class SubspaceAscent(Phase):
    """The targets' ascent, projected so that no layer's output on the retained clients' inputs changes."""

    energy: float = 0.95
    bias: Bias = "unprojected"
    clip: float = 5.0

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"shapes"})
    reveals: ClassVar[tuple[str, ...]] = (
        "server: of each retained client, second moments of the inputs of each layer",
    )

    def message_bytes(self, request: Request) -> int:
        return max(
            super().message_bytes(request),
            sum(shape.numel() for shape in _moments(request.shapes).values()) * request.params.element_size(),
        )

    def round(self, request: Request, state: State) -> Round:
        ascent = train(state.params, "ascent", "clipped", clip=self.clip)
        inputs = Job("layer_inputs", state.params, expects=_moments(request.shapes))
        replies = yield dict.fromkeys(request.targets, ascent) | dict.fromkeys(request.asked, inputs)
        update = request.pieces(-replies.every(request.targets).mean())
        free = 0
        for name, moments in _summed(replies.some(request.asked)).items():
            free += self._project(update, name, moments)
        if free == 0:
            return state.halt(
                Status.NO_DIRECTION,
                f"the retained clients' inputs span every layer at energy {self.energy:g}, so nothing can be "
                "unlearned: lower the energy",
            )
        return state.step(torch.cat([piece.reshape(-1) for piece in update.values()]), free=free)

    def _project(self, update: dict[str, Tensor], name: str, inputs: Tensor) -> int:
        """Projects a layer's update off the span of its inputs; returns the number of free dimensions."""
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


def _moments(shapes: Mapping[str, torch.Size]) -> dict[str, torch.Size]:
    """The shapes of the second moments of each layer's inputs, extended by the 1 for the bias."""
    widths = {name: shape[1:].numel() + 1 for name, shape in shapes.items() if len(shape) > 1}
    return {name: torch.Size((width, width)) for name, width in widths.items()}


def _summed(replies: Replies) -> dict[str, Tensor]:
    """The second moments of each layer, summed over the clients."""
    sums: dict[str, Tensor] = {}
    for reply in replies.values():
        for name, inputs in reply.arrays.items():
            sums[name] = sums[name] + inputs.double() if name in sums else inputs.double()
    return sums


@method(
    "sfu",
    paper="Li et al., arXiv 2302.12448",
    source="summaries and public code",
    summary="gradient ascent at the targets, off the span of the retained clients' layer inputs",
)
def sfu(
    schedule: Schedule, *, energy: float = 0.95, bias: Bias = "unprojected", clip: float = 5.0
) -> tuple[Phase, ...]:
    """``energy`` is the protected share ε of the squared singular values of a layer's inputs; ``bias`` is
    ``augmented`` (projected as the weight of a constant input), ``frozen``, or ``unprojected``."""
    require(0 <= energy < 1, "energy", energy, "at least 0 and below 1")
    require(clip > 0, "clip", clip, "positive")
    return (
        SubspaceAscent(schedule.unlearn_rounds, schedule.unlearn_lr, energy, bias, clip),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
