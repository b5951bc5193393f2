"""What a round costs, counted the same way for every method."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..core import ClientId, Job, Metrics, Replies


def cost(jobs: Mapping[ClientId, Job], replies: Replies, seconds: float, server: float) -> Metrics:
    """Local trainings, bytes the server sent and received, wall seconds, and those of the server in them.

    A job without a local epoch is no training, and its reply has no displacement worth sending.
    """
    trained = {client for client, job in jobs.items() if job.epochs > 0}
    return {
        "local_trainings": len(trained),
        "bytes_down": sum(
            size(job.params, *job.arrays.values(), *job.buffers.values()) for job in jobs.values()
        ),
        "bytes_up": sum(
            size(*reply.arrays.values(), *reply.buffers.values())
            + (size(reply.displacement) if client in trained else 0)
            for client, reply in replies.items()
        ),
        "seconds": seconds,
        "seconds_server": server,
    }


def size(*tensors: Tensor) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
