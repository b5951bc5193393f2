"""What the model still knows of the targets."""

from __future__ import annotations

from ..core import Evaluation, Metrics, Request


def forgetting(evaluation: Evaluation, request: Request) -> Metrics:
    """Attack success on triggered data; accuracy on what is to be forgotten and on clean held-out data.

    Several targets are pooled by their number of examples; a set that no target holds gives no key.
    """
    measures: Metrics = {}
    for key, name in (
        ("asr", "backdoor_accuracy"),
        ("forget_acc", "forget_accuracy"),
        ("target_acc", "test_accuracy"),
    ):
        pooled = _pooled(evaluation, request, name)
        if pooled is not None:
            measures[key] = pooled
    for name in ("backdoor_loss", "forget_loss"):
        pooled = _pooled(evaluation, request, name)
        if pooled is not None:
            measures["loss_target"] = pooled
            break
    return measures


def _pooled(evaluation: Evaluation, request: Request, name: str) -> float | None:
    size = name.rsplit("_", 1)[0] + "_examples"
    rows = [evaluation[target] for target in request.targets if name in evaluation.get(target, {})]
    total = sum(row[size] for row in rows)
    return sum(row[name] * row[size] for row in rows) / total if total else None
