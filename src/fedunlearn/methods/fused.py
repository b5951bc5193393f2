"""FUSED: sparse adapters on a frozen model, trained by the retained clients (Zhong et al., CVPR 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..client.steps import Step
from ..core import Job, Phase, Replies, Request, Round, State, require, train
from ..core.registry import method, step
from ..core.seeds import generator
from .fedavg import Averaging
from .schedule import Schedule


@step("masked", summary="a plain step in the entries of a mask; all others stay", part_of="fused")
def masked(job: Job) -> Step:
    """Trains the adapter and nothing else."""
    mask = job.arrays["mask"]
    return lambda params, gradient, lr: torch.where(mask, lr * gradient, 0.0)


@dataclass(frozen=True)
class AdapterTraining(Averaging):
    """ω = ω⁰ + A, where the adapter A has few entries, all in critical layers, and ω⁰ is frozen.

    The mask of A is in the memory. Outside of it the model is ω⁰ to the bit, whatever clients send.
    """

    layers: int = 2
    density: float = 0.1

    needs: ClassVar[frozenset[str]] = frozenset({"shapes"})

    def message_bytes(self, request: Request) -> int:
        return 2 * super().message_bytes(request)

    def round(self, request: Request, state: State) -> Round:
        # Deviation: BatchNorm statistics are those of ω⁰; in the released code they move with the adapter.
        frozen = state.buffers
        if "mask" not in state.memory:
            replies = yield {client: train(state.params, buffers=frozen) for client in request.asked}
            critical = critical_layers(request, replies.some(request.asked), self.layers)
            state = state.remember(mask=sparse(request, critical, self.density))
        mask = state.memory["mask"]
        job = train(state.params, step="masked", arrays={"mask": mask}, buffers=frozen)
        replies = (yield dict.fromkeys(request.asked, job)).some(request.asked)
        overwritten = state.params - replies.average()
        return state.move_to(
            torch.where(mask, overwritten, request.params), adapter_entries=int(mask.count_nonzero())
        )


def critical_layers(request: Request, replies: Replies, number: int) -> list[str]:
    """The weights that local training changes most (Eq. 11-13): Manhattan distance, mean over clients.

    Deviation: divided by the number of entries, or the largest layers would always win.
    """
    change = sum((reply.moved.abs() for reply in replies.values()), torch.zeros_like(request.params))
    pieces = request.pieces(change)
    weights = {name: piece for name, piece in pieces.items() if piece.ndim > 1} or pieces
    return sorted(weights, key=lambda name: float(weights[name].mean()), reverse=True)[:number]


def sparse(request: Request, layers: list[str], density: float) -> Tensor:
    """A random mask (Eq. 23): this share of the entries of each of these layers, rounded up."""
    mask = torch.zeros_like(request.params, dtype=torch.bool)
    pieces = request.pieces(mask)
    for name in layers:
        size = pieces[name].numel()
        drawn = torch.randperm(size, generator=generator(request.seed, "adapter", name))
        pieces[name].view(-1)[drawn[: math.ceil(density * size)]] = True
    return mask


@method(
    "fused",
    paper="Zhong et al., CVPR 2025",
    source="abstract, summaries and paper's code",
    summary="freezes the model and trains sparse adapters on its critical layers without the targets",
)
def fused(schedule: Schedule, *, layers: int = 2, density: float = 0.1) -> tuple[Phase, ...]:
    """``layers`` is the number of critical layers, ``density`` the share of their entries that is trained.

    As in the released code, adapters train at the learning rate of pre-training.
    """
    require(layers >= 1, "layers", layers, "at least 1")
    require(0 < density <= 1, "density", density, "above 0 and at most 1")
    return (AdapterTraining(schedule.rounds, schedule.pretrain_lr, layers, density),)
