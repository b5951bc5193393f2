"""EWCSGA: gradient ascent with elastic weight consolidation (Wu et al., IEEE Network 2022)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..client.steps import Step, clipped
from ..core import (
    EVERYBODY,
    TARGETS,
    Batch,
    Job,
    Jobs,
    LabelTask,
    Phase,
    Replies,
    Request,
    Role,
    Round,
    Stage,
    State,
    Vector,
    require,
    train,
    vectors,
)
from ..core.registry import method, step, work
from .fedavg import Averaging
from .schedule import Schedule


@work("fisher", summary="the diagonal of the Fisher information", part_of="ewcsga")
def fisher(task: LabelTask, model: nn.Module, batches: Iterator[Batch]) -> Mapping[str, Tensor]:
    """The mean over batches of (∇ log p(ŷ|x))², where ŷ is the model's own prediction."""
    parameters = vectors.trainable(model)
    squares = []
    for batch in batches:
        logits = task.logits(model, batch)
        loss = cross_entropy(logits, logits.detach().argmax(1))
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        squares.append(torch.cat([gradient.reshape(-1) for gradient in gradients]).square())
    return {"fisher": sum(squares[1:], squares[0]) / len(squares)}


@step(
    "elastic",
    summary="a clipped step, plus a quadratic penalty on the distance to an anchor",
    part_of="ewcsga",
)
def elastic(job: Job) -> Step:
    """A descent step on −L + λ/2 Σ F_k (ω_k − ω⁰_k)².

    The sign follows the paper's text; ascent on its formula, taken literally, would maximise the penalty.
    Deviation: λ F_k is capped at 1/η, where one step returns to ω⁰; a larger value would overshoot.
    """
    ascend, anchor = clipped(job), job.arrays["anchor"]
    stiffness = float(job.config["penalty"]) * job.arrays["fisher"]

    def rule(params: Vector, gradient: Vector, lr: float) -> Vector:
        pull = stiffness.clamp(max=1 / lr) * (params - anchor)
        return ascend(params, gradient, lr) + lr * pull

    return rule


@dataclass(frozen=True)
class ElasticAscent(Phase):
    """Ascent at the targets; the more a parameter matters at ω⁰, the more its change is penalised."""

    penalty: float = 5000.0
    clip: float = 5.0
    whose: Literal["target", "retained"] = "target"

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"labels"})
    reveals: ClassVar[tuple[str, ...]] = (
        "server: of each client that it asks in the first round, the diagonal of the Fisher information",
    )

    @property
    def asks(self) -> frozenset[Role]:
        return TARGETS if self.whose == "target" else EVERYBODY

    def message_bytes(self, request: Request) -> int:
        return 3 * super().message_bytes(request)

    def round(self, request: Request, state: State) -> Round:
        if "fisher" not in state.memory:
            state = state.remember(fisher=(yield from self._importance(request, state)))
        job = train(
            state.params,
            "ascent",
            "elastic",
            arrays={"anchor": request.params, "fisher": state.memory["fisher"]},
            clip=self.clip,
            penalty=self.penalty,
        )
        replies = yield dict.fromkeys(request.targets, job)
        return state.step(-replies.every(request.targets).mean())

    def _importance(self, request: Request, state: State) -> Generator[Jobs, Replies, Vector]:
        """The importance of each parameter, measured on the examples of the asked clients."""
        asked = request.targets if self.whose == "target" else request.asked
        replies = yield dict.fromkeys(
            asked, Job("fisher", request.params, expects={"fisher": request.params.shape})
        )
        known = replies.every(asked) if self.whose == "target" else replies.some(asked)
        parts = zip(known.values(), known.weights(), strict=True)
        return sum((reply.arrays["fisher"] * share for reply, share in parts), torch.zeros_like(state.params))


@method(
    "ewcsga",
    paper="Wu et al., IEEE Network 2022",
    source="summaries",
    summary="gradient ascent at the targets with an elastic-weight-consolidation penalty",
)
def ewcsga(
    schedule: Schedule,
    *,
    penalty: float = 5000.0,
    clip: float = 5.0,
    fisher: Literal["target", "retained"] = "target",
) -> tuple[Phase, ...]:
    """``penalty`` is λ; ``fisher`` selects whose data the first round computes the Fisher diagonal on."""
    require(clip > 0, "clip", clip, "positive")
    require(penalty >= 0, "penalty", penalty, "zero or more")
    return (
        ElasticAscent(schedule.unlearn_rounds, schedule.unlearn_lr, penalty, clip, fisher),
        Averaging(schedule.recover_rounds, schedule.recover_lr),
    )
