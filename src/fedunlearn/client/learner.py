"""One model on which clients carry out jobs: training, measuring, and the works of methods."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..core import (
    Batch,
    Buffers,
    ClientId,
    FedUnlearnError,
    Job,
    LabelTask,
    Mean,
    Precision,
    Reply,
    Statistics,
    Task,
    Terms,
    Vector,
    registry,
    vectors,
)
from ..core.rows import empty
from ..evidence import Scores, auc
from ..maths.paging import release_pages
from . import audit, canaries, relearning, trial
from . import data as holdings
from .data import AUDITED, ClientData, Data, Examples
from .outputs import Outputs, distance, outputs, probe
from .perceptron import as_perceptron
from .placement import Placement

EVALUATION_BATCH = 200

Losses: TypeAlias = tuple[list[Tensor], int]
"""The losses of batches, each summed over its examples, and the number of examples."""

FEW = 64
"""The most examples with which clients train together; more fill a matrix product by themselves."""


class Learner:
    """One model on which any number of clients work in turn; the module given stays untouched."""

    def __init__(
        self, module: nn.Module, task: Task, device: str = "cpu", precision: Precision = "fp32"
    ) -> None:
        if not isinstance(module, nn.Module):
            raise FedUnlearnError(
                f"the model is a {type(module).__name__}: give a torch.nn.Module", code="model"
            )
        if not isinstance(task, Task):
            raise FedUnlearnError(f"task = {task!r}: give an instance of a Task, such as Classification()")
        self.task = task
        self._module = copy.deepcopy(module).to(device)
        self._params = vectors.bind(self._module)
        self._moved = torch.empty_like(self._params)
        self._pieces = vectors.views(self._moved, self._module)
        self._parameters = vectors.trainable(self._module)
        self._perceptron = as_perceptron(self._module) if precision == "fp32" else None
        self._buffers = vectors.buffers(self._module)
        self._device = torch.device(device)
        self._precision = precision
        self._placed = Placement(self._module, self._device, self._params.dtype)
        if precision == "bf16":
            # Losses take logarithms, which the few digits of bfloat16 would spoil.
            self._module.register_forward_hook(
                lambda _module, _input, output: output.float() if isinstance(output, torch.Tensor) else output
            )

    @property
    def buffers(self) -> Buffers:
        """The buffers that the module had when it came."""
        return self._buffers

    def empty(self, rows: int) -> Tensor:
        """Return uninitialised memory for that many displacements, one a row."""
        return empty(rows, self._params)

    def perform(
        self, client: ClientId, data: ClientData, job: Job, terms: Terms, out: Vector | None = None
    ) -> Reply:
        """Carry out a job; the displacement of a training is written to ``out`` if given."""
        self._require_shape(job, client)
        self._load(job.params, job.buffers or {})
        if job.trains:
            trained = relearning.lesson(client, data, job) if "lesson" in job.config else data.train
            return self._train(client, trained, job, terms, self.empty(1)[0] if out is None else out)
        examples = holdings.size(data.train)
        if job.work == "measure":
            sets = {name: held for name, held in data.evaluations.items() if name not in AUDITED}
            if job.config.get("on") == "train":
                sets = {"train": data.train}
            elif job.config.get("on") == "forget" and sets.keys().isdisjoint(("forget", "backdoor")):
                return Reply(None, examples, self._remembered(holdings.own_examples(data), sets))
            return Reply(None, examples, self._measure(sets))
        if job.work == "relearn":
            return Reply(None, examples, self._measure({"forgotten": relearning.rest(client, data, job)}))
        if job.work == "audit":
            return self._audit(client, data, job)
        compute = registry.work[job.work]
        with self._seeded(terms.seed_of(client), data.train):
            arrays = compute(self.task, self._module.eval(), self._batches(data.train, terms.batch_size))
        return Reply(None, examples, arrays={name: array.cpu() for name, array in arrays.items()})

    def is_small(self, data: ClientData, job: Job, terms: Terms) -> bool:
        """Return whether a job is one step on a few examples, which ``perform_together`` takes."""
        plain = job.config.get("step", "plain") == "plain" and "lesson" not in job.config
        return (
            job.trains
            and plain
            and self._perceptron is not None
            and self._device.type == "cpu"
            and not self._buffers
            and self.task.criterion(str(job.config.get("loss", "task"))) is cross_entropy
            and terms.passes(job) == 1
            and isinstance(data.train, Examples)
            and len(data.train.y) <= min(terms.batch_size, FEW)
            and self._perceptron.takes(data.train.x)
            and self._perceptron.agrees(len(data.train.y))
        )

    def perform_together(
        self, data: Sequence[ClientData], job: Job, terms: Terms, out: Sequence[Vector]
    ) -> list[Reply]:
        """Carry out the same small job for several clients in one computation, to the same bits."""
        assert self._perceptron is not None
        self._require_shape(job, f"{len(data)} clients")
        self._load(job.params, {})
        batches = [self._placed(held.train) for held in data]
        if isinstance(self.task, LabelTask):
            batches = [Examples(batch.x, self.task.labels(batch)) for batch in batches]
        gradients, lr = self._moved.zero_(), terms.rate(job)
        replies = []
        with self._summing():
            found = self._perceptron.backward_each(cross_entropy, batches)
            for loss, row, batch in zip(found, out, batches, strict=True):
                torch.mul(gradients, lr, out=row)
                gradients.zero_()
                release_pages(row)
                size = len(batch.y)
                replies.append(Reply(row, size, {"train": {"loss": Mean(float(loss * size), size)}}))
        return replies

    def _train(self, client: ClientId, data: Data, job: Job, terms: Terms, out: Vector) -> Reply:
        """Run local SGD over batches and return Δ = ω − ω_i.

        Steps are summed up by themselves and the model is ω − Σ: taken as a difference of float32 models,
        a small Δ would lose most of its digits.
        """
        job = Job(
            job.work,
            job.params,
            {name: array.to(self._device) for name, array in job.arrays.items()},
            job.config,
        )
        plain = job.config.get("step", "plain") == "plain"
        criterion = self.task.criterion(str(job.config.get("loss", "task"))) if plain else None
        run = self._sum_gradients if criterion is not None else self._sum_steps
        with self._seeded(terms.seed_of(client), data):
            self._module.train()
            losses, seen = run(self._epochs(client, data, job, terms), job, terms, out)
        release_pages(out)
        trained = {"loss": Mean(float(torch.stack(losses).sum()), seen)} if losses else {}
        return Reply(
            out,
            holdings.size(data),
            {"train": trained},
            buffers={name: buffer.cpu() for name, buffer in vectors.buffers(self._module).items()},
        )

    def _sum_gradients(self, batches: Iterator[Batch], job: Job, terms: Terms, out: Vector) -> Losses:
        """Take plain steps on a criterion: backward passes add to one sum, which the learning rate scales."""
        name = str(job.config.get("loss", "task"))
        loss, criterion = registry.loss[name](self.task, job), self.task.criterion(name)
        start, lr, seen = job.params.to(self._device), terms.rate(job), 0
        losses: list[Tensor] = []
        # Not in the row of the client: among many that is cold memory, and begins in mid cache line.
        gradients = self._moved.zero_()
        with self._summing():
            for batch in batches:
                if losses:  # the model is not needed after the last batch
                    torch.sub(start, gradients, alpha=lr, out=self._params)
                if self._perceptron and criterion and isinstance(batch, Examples):
                    labels = self.task.labels(batch) if isinstance(self.task, LabelTask) else batch.y
                    found = self._perceptron.backward(criterion, batch.x, labels)
                else:
                    with self._arithmetic():
                        found = loss(self._module, batch)
                    found.backward()
                losses.append(found.detach() * holdings.length(batch))
                seen += holdings.length(batch)
        torch.mul(gradients.cpu(), lr, out=out)
        return losses, seen

    def _sum_steps(self, batches: Iterator[Batch], job: Job, terms: Terms, out: Vector) -> Losses:
        """Take steps on any loss with any step rule."""
        loss = registry.loss[str(job.config.get("loss", "task"))](self.task, job)
        rule = registry.step[str(job.config.get("step", "plain"))](job)
        start, lr, seen = job.params.to(self._device), terms.rate(job), 0
        losses: list[Tensor] = []
        moved = self._moved.zero_()
        for batch in batches:
            with self._arithmetic():
                found = loss(self._module, batch)
            slopes = torch.autograd.grad(found, self._parameters, materialize_grads=True)
            with torch.no_grad():
                gradient = torch.cat([slope.reshape(-1) for slope in slopes])
                moved += rule(self._params, gradient, lr)
                torch.sub(start, moved, out=self._params)
            losses.append(found.detach() * holdings.length(batch))
            seen += holdings.length(batch)
        out.copy_(moved)
        return losses, seen

    def _epochs(self, client: ClientId, data: Data, job: Job, terms: Terms) -> Iterator[Batch]:
        for epoch in range(terms.passes(job)):
            order = terms.order(client, epoch, holdings.size(data))
            yield from self._batches(data, terms.batch_size, order)

    def _batches(self, data: Data, size: int, order: Tensor | None = None) -> Iterator[Batch]:
        for batch in holdings.batches(data, size, order):
            yield self._placed(batch)

    def _measure(self, sets: Mapping[str, Data], kept: dict[str, list[float]] | None = None) -> Statistics:
        """Return sums of losses and scores of each evaluation set, with counts; ``kept`` gets each loss."""
        self._module.eval()
        found: dict[str, dict[str, Mean]] = {}
        with torch.inference_mode(), self._seeded(0, *sets.values()), self._arithmetic():
            for name, data in sets.items():
                sums: dict[str, Mean] = {}
                for batch in self._batches(data, EVALUATION_BATCH):
                    losses, scores = self.task.measure(self._module, batch)
                    if kept is not None:
                        kept.setdefault(name, []).extend(losses.flatten().tolist())
                    for score, values in {"loss": losses, **scores}.items():
                        mean = Mean(float(values.sum()), values.numel())
                        sums[score] = sums[score] + mean if score in sums else mean
                found[name] = {score: mean for score, mean in sums.items() if mean.count}
        return found

    def _remembered(self, own: Data, sets: Mapping[str, Data]) -> Statistics:
        """Measure the examples that a target wants to be forgotten, in addition to its sets.

        An AUC compares their losses with those of unseen examples; only the AUC leaves the client.
        """
        losses: dict[str, list[float]] = {}
        found = self._measure({**sets, "forget": own}, losses)
        known, unseen = losses["forget"], losses.get("test", [])
        if min(len(known), len(unseen)) < 2 or any(map(math.isnan, [*known, *unseen])):
            return found
        separation = Mean(auc(known, unseen) * len(known), len(known))
        return {**found, "forget": {**found["forget"], "auc": separation}}

    def _audit(self, client: ClientId, data: ClientData, job: Job) -> Reply:
        """Measure every model of the job; a target also compares them on its forgotten examples.

        References only calibrate losses.
        """
        compared = audit.compared_sets(client, data) if job.config.get("compare") else None
        measured = audit.measured_sets(data, job, compared)
        statistics: dict[str, Mapping[str, Mean]] = {}
        losses: dict[str, Scores] = {}
        made: dict[str, tuple[Outputs, Outputs]] = {}
        planted: dict[str, Mapping[str, list[float]]] = {}
        for name, (params, buffers) in audit.models_of(job).items():
            self._load(params, buffers)
            if compared is not None:
                losses[name] = Scores(*map(self._losses, compared))
                planted[name] = {each: self._losses(held) for each, held in canaries.of(data).items()}
            if name.startswith(audit.REFERENCE):
                continue
            statistics |= {f"{name} {held}": means for held, means in self._measure(measured).items()}
            if compared is not None and "retrained" in job.arrays:
                forgotten, unseen = map(self._outputs, compared)
                if forgotten is not None and unseen is not None:
                    if not made:
                        audit.require_one_mix(client, forgotten.labels, unseen.labels)
                    made[name] = forgotten, unseen
                    statistics[f"{name} probe"] = probe(forgotten, unseen)
        for name, each in made.items():
            if name != "retrained":
                statistics[f"{name} outputs"] = distance(each, made["retrained"])
        arrays = audit.comparisons(losses) if compared is not None else {}
        statistics |= canaries.guessed(planted, audit.calibrating(planted))
        return Reply(None, holdings.size(data.train), statistics, arrays)

    def _outputs(self, data: Data) -> Outputs | None:
        """Return probabilities and features of each example, if the task has them."""
        self._module.eval()
        with torch.inference_mode(), self._seeded(0, data), self._arithmetic():
            return outputs(self.task, self._module, self._batches(data, EVALUATION_BATCH))

    def _losses(self, data: Data) -> list[float]:
        """Return one loss for each example, in the same order for every model."""
        self._module.eval()
        found: list[Tensor] = []
        with torch.inference_mode(), self._seeded(0, data), self._arithmetic():
            for batch in self._batches(data, EVALUATION_BATCH):
                losses = self.task.losses(self._module, batch)
                if len(losses) == holdings.length(batch):
                    found.append(losses.flatten(1).mean(1) if losses.ndim > 1 else losses)
                else:  # Tokens of one text are not independent: a text counts once.
                    each = (self.task.losses(self._module, one) for one in holdings.batches(batch, 1))
                    found.append(torch.stack([text.mean() for text in each if text.numel()]))
        return [float(loss) for loss in torch.cat(found).double().cpu()]

    def check(self, clients: Mapping[ClientId, ClientData]) -> None:
        """Try the model and the task on the first examples of every set of every client."""
        trial.check(self._module, self.task, self._placed, clients)

    def _require_shape(self, job: Job, whose: str) -> None:
        if job.params.shape != self._params.shape:
            raise FedUnlearnError(
                f"a job brings {job.params.numel():,} parameters and the model of {whose} has "
                f"{self._params.numel():,}: use one model everywhere",
                code="other-model",
            )

    def _load(self, params: Vector, buffers: Buffers) -> None:
        self._params.copy_(params)
        # Without any given, the module's own: what another client's training left must not be seen.
        if self._buffers:
            vectors.load_buffers(self._module, buffers or self._buffers)

    @contextmanager
    def _seeded(self, seed: int, *sets: Data) -> Iterator[None]:
        """Lend a seed to torch's global generator, from which dropout draws, and to those of loaders."""
        for data in sets:
            holdings.reseed(data, seed)
        if self._device.type == "cpu":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                yield
        else:
            with torch.random.fork_rng(devices=[self._device], device_type=self._device.type):
                torch.manual_seed(seed)
                yield

    @contextmanager
    def _summing(self) -> Iterator[None]:
        """Let backward passes add the gradient of each parameter to its piece of ``_moved``."""
        for parameter, piece in zip(self._parameters, self._pieces, strict=True):
            parameter.grad = piece
        try:
            yield
        finally:
            for parameter in self._parameters:
                parameter.grad = None

    def _arithmetic(self) -> AbstractContextManager[object]:
        return (
            nullcontext() if self._precision == "fp32" else torch.autocast(self._device.type, torch.bfloat16)
        )
