"""The cost of a round, counted alike for every method, and the clients that it reaches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from ..core import ClientId, Jobs, Metrics, Replies, Request


def cost(exchanges: Sequence[tuple[Jobs, Replies]], seconds: float, server: float) -> Metrics:
    """Local trainings, bytes the server sent and received, wall seconds, and those of the server in them."""
    return {
        "local_trainings": sum(job.trains for jobs, _ in exchanges for job in jobs.values()),
        "bytes_down": sum(
            size(job.params, *job.arrays.values(), *(job.buffers or {}).values())
            for jobs, _ in exchanges
            for job in jobs.values()
        ),
        "bytes_up": sum(
            size(*reply.arrays.values(), *reply.buffers.values())
            + (size(reply.displacement) if reply.displacement is not None else 0)
            for jobs, replies in exchanges
            for reply in replies.of(jobs).values()
        ),
        "seconds": seconds,
        "seconds_server": server,
    }


def coverage(
    exchanges: Sequence[tuple[Jobs, Replies]],
    heard: Collection[ClientId],
    ever_heard: Collection[ClientId],
    request: Request,
) -> Metrics:
    """The number of retained clients that answered in this round, and the share that has answered at all.

    Clients that were asked in vain are counted as ``missing``.
    """
    if not any(jobs for jobs, _ in exchanges):
        return {}
    lost = {client for jobs, replies in exchanges for client in jobs if client not in replies}
    return {
        "heard": len(heard),
        "coverage": len(set(ever_heard) & set(request.retained)) / len(request.retained),
        **({"missing": len(lost)} if lost else {}),
    }


def size(*tensors: Tensor) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
