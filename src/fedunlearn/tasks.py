"""The tasks that come with the package: classification, multi-label, regression, language modelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from .core import Batch, FedUnlearnError, LabelTask, Task, require_rate
from .core.hashes import digest
from .core.task import Criterion
from .maths import unlearning_cross_entropy

__all__ = ["Classification", "LabelTask", "LanguageModel", "MultiLabel", "Regression", "Task"]


def predict(model: nn.Module, batch: Batch, label: str, input: str | None = None) -> Tensor:
    """The model's output for a batch, its ``logits`` where it returns an object.

    Of a tuple the first part is the input. Of a dict, it is the entry ``input``, or everything but the label
    as keyword arguments.
    """
    if isinstance(batch, Mapping):
        if input is not None:
            output = model(_entry(batch, input))
        else:
            output = model(**{name: value for name, value in batch.items() if name != label})
    elif isinstance(batch, Tensor):
        output = model(batch)
    else:
        output = model(batch[0])
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor):
        raise FedUnlearnError(
            f"the model returns {type(output).__name__}, which is neither a tensor nor has logits: "
            "write a Task of your own for it"
        )
    # Losses take logarithms, which the few digits of bfloat16 would spoil.
    return found.float() if found.dtype == torch.bfloat16 else found


def target(batch: Batch, label: str) -> Tensor:
    """The second part of a tuple, or the entry ``label`` of a dict."""
    if isinstance(batch, Mapping):
        return _entry(batch, label)
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[1]
    raise FedUnlearnError(
        f"a batch is {_described(batch)}: give pairs of inputs and labels, or dicts with a {label!r}"
    )


def _entry(batch: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in batch:
        raise FedUnlearnError(
            f"a batch has the entries {', '.join(map(repr, batch))} and no {name!r}: "
            "name the right one in the task"
        )
    return batch[name]


def _described(batch: Batch) -> str:
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {len(batch)}"
    return f"a {type(batch).__name__}"


@dataclass(frozen=True)
class Classification(LabelTask):
    """One class out of several for each example, by cross-entropy."""

    label: str = "labels"
    """The entry of a dict batch that holds the classes."""
    input: str | None = None
    """The entry that the model takes; without it, all others are its keyword arguments."""

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return predict(model, batch, self.label, self.input)

    def labels(self, batch: Batch) -> Tensor:
        labels = target(batch, self.label)
        if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
            raise FedUnlearnError(
                f"labels are {_kind(labels)}: classification needs one whole number for each example, "
                "in a tensor of shape (N,)"
            )
        return labels if labels.dtype == torch.int64 else labels.long()

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(self.logits(model, batch), self.labels(batch), reduction="none")

    def scores(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return _hits(self.logits(model, batch), self.labels(batch))

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        if not _inherits(self, Classification, "losses", "scores"):
            return super().measure(model, batch)
        logits, labels = self.logits(model, batch), self.labels(batch)
        return cross_entropy(logits, labels, reduction="none"), _hits(logits, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if not _inherits(self, Classification, "losses"):
            return super().loss(model, batch)
        return cross_entropy(self.logits(model, batch), self.labels(batch))

    def unlearning_loss(self, model: nn.Module, batch: Batch, constant: float = 2.0) -> Tensor:
        """Exact where the probability of the label rounds to 1, unlike the transform of the loss."""
        if not _inherits(self, Classification, "losses"):
            return super().unlearning_loss(model, batch, constant)
        return unlearning_cross_entropy(self.logits(model, batch), self.labels(batch), constant=constant)

    def criterion(self, loss: str) -> Criterion | None:
        return _CRITERIA.get(loss) if type(self) is Classification else None


def _inherits(task: Task, shipped: type[Task], *methods: str) -> bool:
    """Whether a task has these methods from a class of this module, whose shortcuts agree with them."""
    return all(getattr(type(task), name) is getattr(shipped, name) for name in methods)


def _hits(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return {"accuracy": logits.argmax(1) == labels}


def _unlikelihood(output: Tensor, labels: Tensor) -> Tensor:
    return unlearning_cross_entropy(output, labels, constant=1.0)


_CRITERIA: Mapping[str, Criterion] = {
    "task": cross_entropy,
    "uce": unlearning_cross_entropy,
    "unlikelihood": _unlikelihood,
}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Any number of labels for each example, by binary cross-entropy; each label is a thing to remember."""

    label: str = "labels"
    input: str | None = None

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._both(model, batch)[0]

    def scores(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return self._both(model, batch)[1]

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        shortcut = _inherits(self, MultiLabel, "losses", "scores")
        return self._both(model, batch) if shortcut else super().measure(model, batch)

    def _both(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits, labels = predict(model, batch, self.label, self.input), target(batch, self.label)
        _require_alike(logits, labels)
        losses = binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
        return losses, {"accuracy": (logits > 0) == (labels > 0.5)}


@dataclass(frozen=True)
class Regression(Task):
    """Numbers, by the negative log-likelihood e²/(2·scale²) of a Gaussian error: half the squared error.

    ``scale`` is the error, in units of the labels, that counts as not knowing: forgetting drives errors
    beyond it and then stops. Take the root mean squared error on held-out data.
    """

    scale: float = 1.0
    label: str = "labels"
    input: str | None = None

    def __post_init__(self) -> None:
        require_rate("scale", self.scale)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._squares(model, batch) / (2 * self.scale**2)

    def scores(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"mse": self._squares(model, batch)}

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        if not _inherits(self, Regression, "losses", "scores"):
            return super().measure(model, batch)
        squares = self._squares(model, batch)
        return squares / (2 * self.scale**2), {"mse": squares}

    def _squares(self, model: nn.Module, batch: Batch) -> Tensor:
        """The squared error of each example, its mean where there are several outputs."""
        output, labels = predict(model, batch, self.label, self.input), target(batch, self.label)
        if output.ndim == labels.ndim + 1 and output.shape[-1] == 1:
            output = output.squeeze(-1)
        _require_alike(output, labels)
        squares = (output - labels.to(output.dtype)).square()
        return squares.flatten(1).mean(1) if squares.ndim > 1 else squares


@dataclass(frozen=True)
class LanguageModel(LabelTask):
    """The next token at every position; each token is a thing to remember.

    A batch is tokens of shape (N, T), a pair of tokens and labels, or a dict. Labels are aligned with the
    tokens: the model's output at position t − 1 predicts the label at t. Without labels, the tokens are
    the labels.
    """

    ignore_index: int = -100
    """Labels with this value are not learned, for instance padding and prompts."""
    label: str = "labels"
    input: str | None = None

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """A row for every token to learn."""
        output, labels = predict(model, batch, self.label, self.input), self._following(batch)
        if output.ndim != 3 or output.shape[:2] != (labels.shape[0], labels.shape[1] + 1):
            raise FedUnlearnError(
                f"the model returns {_kind(output)} for labels of shape "
                f"({labels.shape[0]}, {labels.shape[1] + 1}): a language model returns (N, T, vocabulary)"
            )
        return output[:, :-1][labels != self.ignore_index]

    def labels(self, batch: Batch) -> Tensor:
        labels = self._following(batch)
        return labels[labels != self.ignore_index]

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(self.logits(model, batch), self.labels(batch), reduction="none")

    def scores(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return _hits(self.logits(model, batch), self.labels(batch))

    def measure(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        if not _inherits(self, LanguageModel, "losses", "scores"):
            return super().measure(model, batch)
        logits, labels = self.logits(model, batch), self.labels(batch)
        return cross_entropy(logits, labels, reduction="none"), _hits(logits, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = self.losses(model, batch)
        return losses.sum() / max(1, losses.numel())  # a batch without labels teaches nothing

    def unlearning_loss(self, model: nn.Module, batch: Batch, constant: float = 2.0) -> Tensor:
        if not _inherits(self, LanguageModel, "losses"):
            return super().unlearning_loss(model, batch, constant)
        return unlearning_cross_entropy(self.logits(model, batch), self.labels(batch), constant=constant)

    def _following(self, batch: Batch) -> Tensor:
        if isinstance(batch, Mapping) and self.label not in batch:
            tokens = _entry(batch, self.input or "input_ids")
        else:
            tokens = batch if isinstance(batch, Tensor) else target(batch, self.label)
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise FedUnlearnError(
                f"labels are {_kind(tokens)}: a language model needs tokens of shape (N, T)"
            )
        return tokens[:, 1:].long()


def _require_alike(output: Tensor, labels: Tensor) -> None:
    if output.shape != labels.shape:
        raise FedUnlearnError(
            f"the model returns {_kind(output)} for labels that are {_kind(labels)}: give both one shape"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"


def described(task: Task) -> dict[str, Any]:
    """A task as a value that JSON can hold: its class and its settings, without those that are None."""
    settings = {name: _told(value) for name, value in vars(task).items() if value is not None}
    return {"task": type(task).__name__, **settings}


def _told(value: object) -> Any:
    """A setting as JSON: tensors by their digest, and what cannot be written by its type."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Tensor):
        return digest({"": value.cpu()})
    if isinstance(value, np.ndarray):
        return _told(value.tolist())
    if isinstance(value, nn.Module):
        return [type(value).__name__, _told(value.state_dict())]
    if isinstance(value, Mapping):
        return {str(name): _told(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_told(part) for part in value]
    return type(value).__name__
