"""The clients' reports of their own training."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Metrics, Replies, Request


def training(exchanges: Sequence[Replies], request: Request) -> Metrics:
    """Mean training loss of targets and of retained clients by examples, each in its own loss."""
    measures: Metrics = {}
    for key, clients in (("train_loss_target", request.targets), ("train_loss_retained", request.retained)):
        means = {
            client: (reply.statistics["train"]["loss"], reply.examples)
            for replies in exchanges
            for client, reply in replies.of(clients).items()
            if "loss" in reply.statistics.get("train", {})
        }
        total = sum(examples for _, examples in means.values())
        if total:
            measures[key] = sum(mean.value * examples for mean, examples in means.values()) / total
    return measures
