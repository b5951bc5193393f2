"""What a client does with a job: the SGD loop, and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from . import vectors
from .objectives import objective
from .types import Buffers, ClientData, Examples, Job, LocalTraining, Reply, Vector

if TYPE_CHECKING:
    from torch import Tensor

EVALUATION_BATCH = 1000


class Learner:
    """One model on which any number of clients train in turn; the module given stays untouched."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module)
        self._params = vectors.bind(self._module)
        self._displacement = torch.zeros_like(self._params)
        self._pieces = vectors.views(self._displacement, self._module)
        self._buffers = vectors.buffers(self._module)

    def train(self, examples: Examples, job: Job) -> Reply:
        """Local SGD over consecutive batches in fixed order; returns Δ = ω − ω_i.

        Δ is accumulated by itself and the model is ω − Δ: taken as a difference of float32 models,
        a small Δ would lose most of its digits.
        """
        self._load(job.params, job.buffers)
        self._displacement.zero_()
        self._module.train()
        parameters = vectors.trainable(self._module)
        goal = objective[job.objective or LocalTraining.objective](job.arrays)
        batches = list(zip(examples.x.split(job.batch_size), examples.y.split(job.batch_size), strict=True))
        losses: list[Tensor] = []
        # Dropout draws from torch's global generator: lend it a seed of this job's own.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(job.seed)
            for _ in range(job.epochs):
                for x, y in batches:
                    loss = goal.loss(self._module, x, y)
                    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
                    torch._foreach_add_(self._pieces, gradients, alpha=job.lr)
                    torch.sub(job.params, self._displacement, out=self._params)
                    projected = goal.project(self._params)
                    if projected is not self._params:
                        self._params.copy_(projected)
                        torch.sub(job.params, self._params, out=self._displacement)
                    losses.append(loss.detach() * len(y))
        seen = job.epochs * len(examples.y)
        return Reply(
            self._displacement.clone(),
            len(examples.y),
            {"loss": float(torch.stack(losses).sum()) / seen},
            buffers=vectors.buffers(self._module),
        )

    def evaluate(self, data: ClientData, params: Vector, buffers: Buffers) -> Mapping[str, float]:
        """Accuracy, cross-entropy and size of each evaluation set of one client."""
        self._load(params, buffers)
        self._module.eval()
        scores: dict[str, float] = {}
        with torch.inference_mode():
            for name, (x, y) in data.evaluations.items():
                correct = loss = 0.0
                for inputs, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
                    output = self._module(inputs)
                    correct += float((output.argmax(1) == labels).sum())
                    loss += float(cross_entropy(output, labels, reduction="sum"))
                scores |= {
                    f"{name}_accuracy": correct / len(y),
                    f"{name}_loss": loss / len(y),
                    f"{name}_examples": len(y),
                }
        return scores

    def _load(self, params: Vector, buffers: Buffers) -> None:
        self._params.copy_(params)
        # Without any given, the module's own: what another client's training left must not be seen.
        vectors.load_buffers(self._module, buffers or self._buffers)
