"""The gate: what clients send is checked here, once, before anything uses it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..core import Buffers, ClientId, Failure, Job, Jobs, Mean, Reason, Replies, Reply, Statistics


class Refused(Exception):
    """A reply that cannot be used."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(reason, detail)


def admit(jobs: Jobs, replies: Replies, buffers: Buffers) -> Replies:
    """The replies that can be used; every other client is missing, with the reason.

    ``buffers`` are those of the model; where the server has none yet, all clients must agree on them.
    """
    accepted: dict[ClientId, Reply] = {}
    missing = dict(replies.missing)
    for client, reply in replies.items():
        try:
            if client not in jobs:
                raise Refused(Reason.UNASKED, "sent a reply without being asked")
            accepted[client] = _checked(jobs[client], reply, buffers)
        except Refused as refused:
            missing[client] = refused.failure
        else:
            if jobs[client].work == "train":
                buffers = buffers or accepted[client].buffers
    for client in jobs:
        if client not in accepted and client not in missing:
            missing[client] = Failure(Reason.ABSENT, "did not answer")
    return Replies(accepted, missing)


def _checked(job: Job, reply: Reply, buffers: Buffers) -> Reply:
    if not isinstance(reply, Reply):
        raise Refused(Reason.FIELD, f"sent a {type(reply).__name__} instead of a reply")
    examples = reply.examples
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 1:
        raise Refused(Reason.FIELD, f"sent examples = {examples!r}, which is not a positive whole number")
    if job.work == "train":
        if not isinstance(reply.displacement, Tensor):
            raise Refused(Reason.FIELD, "sent no displacement")
        _require_like("displacement", reply.displacement, job.params)
        _require_buffers(reply.buffers, buffers)
        if reply.arrays:
            raise Refused(Reason.FIELD, f"sent an array {next(iter(reply.arrays))!r} that nobody asked for")
    elif reply.displacement is not None:
        raise Refused(Reason.FIELD, f"sent a displacement for {job.work!r}, which trains nothing")
    for name, array in reply.arrays.items():
        if not isinstance(array, Tensor):
            raise Refused(Reason.FIELD, f"sent an array {name!r} that is a {type(array).__name__}")
        _require_finite(f"array {name!r}", array)
    return replace(reply, statistics=_valid(reply.statistics))


def _require_like(name: str, value: Tensor, expected: Tensor) -> None:
    if value.shape != expected.shape:
        raise Refused(
            Reason.SHAPE, f"sent a {name} of shape {tuple(value.shape)} instead of {tuple(expected.shape)}"
        )
    if value.dtype != expected.dtype:
        raise Refused(Reason.DTYPE, f"sent a {name} of type {value.dtype} instead of {expected.dtype}")
    _require_finite(name, value, expected)


def _require_finite(name: str, value: Tensor, expected: Tensor | None = None) -> None:
    """Where the model itself is infinite, as attention masks of −∞ are, a reply may be so too."""
    if finite(value) or (
        expected is not None and torch.equal(value.isinf(), expected.isinf()) and not value.isnan().any()
    ):
        return
    raise Refused(Reason.NOT_FINITE, f"sent a {name} that is not finite")


def _require_buffers(sent: Buffers, expected: Buffers) -> None:
    if expected and sent.keys() != expected.keys():
        odd = sorted(sent.keys() ^ expected.keys())[0]
        raise Refused(Reason.FIELD, f"sent other buffers than the model has: {odd!r}")
    for name, value in sent.items():
        if not isinstance(value, Tensor):
            raise Refused(Reason.FIELD, f"sent a buffer {name!r} that is a {type(value).__name__}")
        _require_like(f"buffer {name!r}", value, expected.get(name, value))


def _valid(statistics: Statistics) -> Statistics:
    """The statistics without those that are no numbers; a count below zero refuses the reply."""
    found: dict[str, dict[str, Mean]] = {}
    for name, means in statistics.items():
        if not isinstance(means, Mapping):
            raise Refused(Reason.FIELD, f"sent statistics of {name!r} that are a {type(means).__name__}")
        for score, mean in means.items():
            if not isinstance(mean, Mean) or not isinstance(mean.count, int) or mean.count < 0:
                raise Refused(Reason.FIELD, f"sent a statistic {name} {score} without a valid count")
            if mean.count and isinstance(mean.total, int | float) and math.isfinite(mean.total):
                found.setdefault(name, {})[score] = mean
    return found


def finite(vector: Tensor) -> bool:
    """By its extremes: one pass, without a vector of truth values. Nothing at all is finite."""
    if not vector.numel() or not vector.is_floating_point():
        return True
    least, most = vector.aminmax()
    return math.isfinite(least) and math.isfinite(most)
