"""What a client does with a job: the SGD loop, and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from . import methods as _registers_objectives  # noqa: F401
from .core import (
    Buffers,
    ClientData,
    Examples,
    Job,
    LocalTraining,
    Objective,
    Precision,
    Reply,
    Vector,
    vectors,
)
from .objectives import Minimise, objective
from .perceptron import fused

if TYPE_CHECKING:
    from torch import Tensor

EVALUATION_BATCH = 200


class Learner:
    """One model on which any number of clients train in turn; the module given stays untouched."""

    def __init__(self, module: nn.Module, device: str = "cpu", precision: Precision = "fp32") -> None:
        self._module = copy.deepcopy(module).to(device)
        self._params = vectors.bind(self._module)
        self._moved = torch.empty_like(self._params)
        self._perceptron = fused(self._module) if precision == "fp32" else None
        self._buffers = vectors.buffers(self._module)
        self._device = torch.device(device)
        self._precision = precision
        self._layout: torch.memory_format | None = None
        if precision == "bf16":
            # Objectives take logarithms, which the few digits of bfloat16 would spoil.
            self._module.register_forward_hook(
                lambda _module, _input, output: output.float() if isinstance(output, torch.Tensor) else output
            )

    @property
    def buffers(self) -> Buffers:
        """What the module carried beside its parameters when it came."""
        return self._buffers

    def empty(self, rows: int) -> Tensor:
        """Room for that many displacements, one a row."""
        return self._params.new_empty(rows, len(self._params), device="cpu")

    def train(self, examples: Examples, job: Job, out: Vector | None = None) -> Reply:
        """Local SGD over consecutive batches in fixed order; returns Δ = ω − ω_i, in ``out`` if given.

        Steps are summed up by themselves and the model is ω − Σ: taken as a difference of float32 models,
        a small Δ would lose most of its digits.
        """
        self._load(job.params, job.buffers)
        out = self.empty(1)[0] if out is None else out
        goal = objective[job.objective or LocalTraining.objective](
            {name: array.to(self._device) for name, array in job.arrays.items()}
        )
        with self._seeded(job.seed):
            arrays = goal.upload(self._module.eval(), self._batches(examples, job.batch_size))
            self._module.train()
            # A criterion of the output alone; any other objective may use gradients of its own meanwhile.
            losses = (
                self._sum_gradients(goal, examples, job, out)
                if type(goal) is Minimise
                else self._sum_steps(goal, examples, job, out)
            )
        return Reply(
            out,
            len(examples.y),
            {"loss": float(torch.stack(losses).sum()) / (job.epochs * len(examples.y))} if losses else {},
            {name: array.cpu() for name, array in arrays.items()},
            {name: buffer.cpu() for name, buffer in vectors.buffers(self._module).items()},
        )

    def _sum_gradients(self, goal: Minimise, examples: Examples, job: Job, out: Vector) -> list[Tensor]:
        """Plain steps: backward passes add to one sum, which the learning rate scales at the end."""
        start = job.params.to(self._device)
        losses: list[Tensor] = []
        # Not in the row of the client: among many that is cold memory, and begins in mid cache line.
        gradients = self._moved.zero_()
        with self._summing(vectors.views(gradients, self._module)):
            for _ in range(job.epochs):
                for x, y in self._batches(examples, job.batch_size):
                    if losses:  # after the last batch nobody needs the model
                        torch.sub(start, gradients, alpha=job.lr, out=self._params)
                    if self._perceptron:
                        loss = self._perceptron.backward(goal.criterion, x, y)
                    else:
                        with self._arithmetic():
                            loss = goal.loss(self._module, x, y)
                        loss.backward()
                    losses.append(loss.detach() * len(y))
        torch.mul(gradients.cpu(), job.lr, out=out)
        return losses

    def _sum_steps(self, goal: Objective, examples: Examples, job: Job, out: Vector) -> list[Tensor]:
        """Steps of the objective's own."""
        start, losses = job.params.to(self._device), []
        moved, parameters = self._moved.zero_(), vectors.trainable(self._module)
        for _ in range(job.epochs):
            for x, y in self._batches(examples, job.batch_size):
                with self._arithmetic():
                    loss = goal.loss(self._module, x, y)
                slopes = torch.autograd.grad(loss, parameters, materialize_grads=True)
                with torch.no_grad():
                    gradient = torch.cat([slope.reshape(-1) for slope in slopes])
                    moved += goal.step(self._params, gradient, job.lr)
                    torch.sub(start, moved, out=self._params)
                losses.append(loss.detach() * len(y))
        out.copy_(moved)
        return losses

    def _batches(self, examples: Examples, size: int) -> Iterator[Examples]:
        for x, y in zip(examples.x.split(size), examples.y.split(size), strict=True):
            yield Examples(self._input(x), y.to(self._device))

    def evaluate(self, data: ClientData, params: Vector, buffers: Buffers) -> Mapping[str, float]:
        """Accuracy, cross-entropy and size of each evaluation set of one client."""
        self._load(params, buffers)
        self._module.eval()
        scores: dict[str, float] = {}
        with torch.inference_mode(), self._seeded(0), self._arithmetic():
            for name, (x, y) in data.evaluations.items():
                correct = loss = 0.0
                for inputs, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
                    output, labels = self._module(self._input(inputs)), labels.to(self._device)
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

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Dropout draws from torch's global generator: lends it a seed of this job's own."""
        if self._device.type == "cpu":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                yield
        else:
            with torch.random.fork_rng(devices=[self._device], device_type=self._device.type):
                torch.manual_seed(seed)
                yield

    @contextmanager
    def _summing(self, pieces: Sequence[Tensor]) -> Iterator[None]:
        """Lets backward passes add the gradient of each parameter to its piece."""
        parameters = vectors.trainable(self._module)
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.grad = None

    def _arithmetic(self) -> AbstractContextManager[object]:
        return (
            nullcontext() if self._precision == "fp32" else torch.autocast(self._device.type, torch.bfloat16)
        )

    def _input(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            return x.to(self._device)
        if self._layout is None:
            self._layout = self._fastest_layout(x.shape[1:])
        return x.to(self._device, memory_format=self._layout)

    def _fastest_layout(self, shape: torch.Size) -> torch.memory_format:
        """Channels-last makes convolutions faster, but a model that calls ``view`` cannot read it."""
        if not any(isinstance(layer, nn.Conv2d) for layer in self._module.modules()):
            return torch.preserve_format
        trial, x = copy.deepcopy(self._module), torch.zeros(2, *shape, device=self._device)
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                for training in (True, False):
                    trial.train(training)(x.to(memory_format=torch.channels_last))
        except (RuntimeError, ValueError):
            return torch.contiguous_format
        return torch.channels_last
