"""What a round costs, counted the same way for every method."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..types import ClientId, Job, Metrics, Replies


def cost(jobs: Mapping[ClientId, Job], replies: Replies, seconds: float) -> Metrics:
    """Local trainings, bytes the server sent and received, and wall seconds."""
    return {
        "local_trainings": len(jobs),
        "bytes_down": sum(
            _bytes(job.params, *job.arrays.values(), *job.buffers.values()) for job in jobs.values()
        ),
        "bytes_up": sum(
            _bytes(reply.displacement, *reply.arrays.values(), *reply.buffers.values())
            for reply in replies.values()
        ),
        "seconds": seconds,
    }


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
