"""The model's knowledge of the targets."""

from __future__ import annotations

from ..core import ClientId, Mean, Metrics, Replies, Request

SHORT = {"accuracy": "acc"}
"""Scores that have a shorter name in keys."""


def forgetting(replies: Replies, request: Request) -> Metrics:
    """Attack success on triggered data; scores on what is to be forgotten and on held-out data.

    Several targets are pooled by their counts, and each has its own row beside: ``asr TARGET``. A set that no
    target holds gives no key.
    """
    pooled = _of(replies, request.targets)
    if len(request.targets) > 1:
        for target in request.targets:
            pooled |= {f"{key} {target}": value for key, value in _of(replies, (target,)).items()}
    return pooled


def _of(replies: Replies, targets: tuple[ClientId, ...]) -> Metrics:
    measures: Metrics = {}
    for name, prefix in (("backdoor", "asr"), ("forget", "forget"), ("test", "target")):
        for score, mean in _pooled(replies, targets, name).items():
            if prefix == "asr" and score == "accuracy":
                measures["asr"] = mean.value
            elif prefix != "asr" and score != "loss":
                measures[f"{prefix}_{SHORT.get(score, score)}"] = mean.value
    for name in ("backdoor", "forget"):
        if "loss" in (pooled := _pooled(replies, targets, name)):
            measures["loss_target"] = pooled["loss"].value
            break
    return measures


def _pooled(replies: Replies, targets: tuple[ClientId, ...], name: str) -> dict[str, Mean]:
    sums: dict[str, Mean] = {}
    for target in targets:
        if target in replies:
            for score, mean in replies[target].statistics.get(name, {}).items():
                sums[score] = sums[score] + mean if score in sums else mean
    return sums
