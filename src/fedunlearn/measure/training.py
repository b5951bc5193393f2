"""What clients report of their own training."""

from __future__ import annotations

from ..core import Metrics, Replies, Request


def training(replies: Replies, request: Request) -> Metrics:
    """Mean training loss of targets and of retained clients by examples, each in its own objective."""
    measures: Metrics = {}
    for key, clients in (("train_loss_target", request.targets), ("train_loss_retained", request.retained)):
        spoken = [reply for reply in replies.of(clients).values() if "loss" in reply.metrics]
        total = sum(reply.examples for reply in spoken)
        if total:
            measures[key] = sum(reply.metrics["loss"] * reply.examples for reply in spoken) / total
    return measures
