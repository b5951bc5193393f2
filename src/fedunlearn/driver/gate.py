"""The gate: replies of clients are checked here, once, before anything uses them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Size, Tensor

from ..core import Buffers, ClientId, Failure, Job, Jobs, Mean, Reason, Replies, Reply, Statistics
from ..core.task import valid_score
from ..maths.paging import release_pages

MOST = 2**63 - 1
"""The largest count."""
MOST_SCORES = 50
"""The most sets, and scores of a set, in one reply."""
LARGEST_MEAN = 1e30
"""The largest mean: such means can be added, averaged and squared."""
LARGEST = {torch.float32: 1e15, torch.float64: 1e150}
"""The largest number in displacements and arrays, by type: norms of long vectors of these are finite."""


class Refused(Exception):
    """A reply that cannot be used."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.failure = Failure(reason, detail)


def admit(jobs: Jobs, replies: Replies, buffers: Buffers) -> Replies:
    """Return the usable replies; every other client is missing, with the reason.

    ``buffers`` are those of the model; if the server has none yet, those that most clients send.
    """
    accepted: dict[ClientId, Reply] = {}
    missing = dict(replies.missing)
    buffers = buffers or _agreed(jobs, replies)
    for client, reply in replies.items():
        try:
            if client not in jobs:
                raise Refused(Reason.UNASKED, "sent a reply without being asked")
            accepted[client] = _checked(jobs[client], reply, buffers)
        except Refused as refused:
            missing[client] = refused.failure
    for client in jobs:
        if client not in accepted and client not in missing:
            missing[client] = Failure(Reason.ABSENT, "did not answer")
    return Replies(accepted, missing)


def _agreed(jobs: Jobs, replies: Replies) -> Buffers:
    """Return the buffers of the first client among those that agree with the most."""
    sent = [
        reply.buffers
        for client, reply in replies.items()
        if client in jobs
        and jobs[client].trains
        and isinstance(reply, Reply)
        and isinstance(reply.buffers, Mapping)
        and all(isinstance(value, Tensor) for value in reply.buffers.values())
    ]
    kinds = [tuple((n, v.shape, v.dtype) for n, v in sorted(held.items())) for held in sent]
    return sent[kinds.index(Counter(kinds).most_common(1)[0][0])] if sent else {}


def _checked(job: Job, reply: Reply, buffers: Buffers) -> Reply:
    if not isinstance(reply, Reply):
        raise Refused(Reason.FIELD, f"sent a {type(reply).__name__} instead of a reply")
    if not _count(reply.examples, 1):
        raise Refused(
            Reason.FIELD, f"sent examples = {reply.examples!r}, which is not a positive whole number"
        )
    for name, held in (
        ("statistics", reply.statistics),
        ("arrays", reply.arrays),
        ("buffers", reply.buffers),
    ):
        if not isinstance(held, Mapping):
            raise Refused(Reason.FIELD, f"sent {name} that are a {type(held).__name__}")
    if job.trains:
        if not isinstance(reply.displacement, Tensor):
            raise Refused(Reason.FIELD, "sent no displacement")
        _require_kind("displacement", reply.displacement, job.params)
        _require_bounded("displacement", reply.displacement)
        _require_buffers(reply.buffers, buffers)
        if reply.arrays:
            raise Refused(Reason.FIELD, f"sent an array {next(iter(reply.arrays))!r} that was not requested")
    elif reply.displacement is not None:
        raise Refused(Reason.FIELD, f"sent a displacement for {job.work!r}, which trains nothing")
    else:
        _require_arrays(reply.arrays, job.expects)
    return replace(
        reply,
        displacement=None if reply.displacement is None else reply.displacement.detach(),
        statistics=_valid(reply.statistics),
        arrays={name: array.detach() for name, array in reply.arrays.items()},
        buffers={name: buffer.detach() for name, buffer in reply.buffers.items()} if job.trains else {},
    )


def _require_shape(name: str, value: Tensor, expected: Size) -> None:
    if value.shape != expected:
        raise Refused(
            Reason.SHAPE, f"sent a {name} of shape {tuple(value.shape)} instead of {tuple(expected)}"
        )


def _require_kind(name: str, value: Tensor, expected: Tensor) -> None:
    _require_shape(name, value, expected.shape)
    if (value.dtype, value.layout, value.device) != (expected.dtype, expected.layout, expected.device):
        kinds = [f"{each.dtype}, {each.layout} on {each.device}" for each in (value, expected)]
        raise Refused(Reason.DTYPE, f"sent a {name} of type {kinds[0]} instead of {kinds[1]}")


def _require_arrays(sent: Mapping[str, Tensor], expected: Mapping[str, Size]) -> None:
    if expected and not sent:
        raise Refused(Reason.FIELD, f"sent no array {next(iter(expected))!r}")
    for name, array in sent.items():
        if not isinstance(array, Tensor):
            raise Refused(Reason.FIELD, f"sent an array {name!r} that is a {type(array).__name__}")
        if expected:
            if name not in expected:
                raise Refused(Reason.FIELD, f"sent an array {name!r} that was not requested")
            _require_shape(f"array {name!r}", array, expected[name])
        if array.dtype not in LARGEST or array.layout != torch.strided or array.device.type != "cpu":
            raise Refused(
                Reason.DTYPE,
                f"sent an array {name!r} of type {array.dtype}, {array.layout} on {array.device} "
                "instead of float32 or float64, torch.strided on cpu",
            )
        _require_bounded(f"array {name!r}", array)


def _require_bounded(name: str, value: Tensor) -> None:
    if not value.numel():
        return
    least, most = map(float, value.detach().aminmax())
    release_pages(value)
    if not (math.isfinite(least) and math.isfinite(most)):
        raise Refused(Reason.NOT_FINITE, f"sent a {name} that is not finite")
    if (largest := max(-least, most)) > LARGEST[value.dtype]:
        raise Refused(Reason.NOT_FINITE, f"sent a {name} with numbers up to {largest:.0e}, too large to use")


def _require_buffers(sent: Buffers, expected: Buffers) -> None:
    if sent.keys() != expected.keys():
        odd = sorted(sent.keys() ^ expected.keys())[0]
        raise Refused(Reason.FIELD, f"sent other buffers than the model has: {odd!r}")
    for name, value in sent.items():
        if not isinstance(value, Tensor):
            raise Refused(Reason.FIELD, f"sent a buffer {name!r} that is a {type(value).__name__}")
        _require_kind(f"buffer {name!r}", value, expected[name])
        # Where the model itself is infinite, as attention masks of −∞ are, a reply may be so too.
        if not finite(value) and (
            not torch.equal(value.isinf(), expected[name].isinf()) or value.isnan().any()
        ):
            raise Refused(Reason.NOT_FINITE, f"sent a buffer {name!r} that is not finite")
        if name.endswith("running_var") and bool((value < 0).any()):
            raise Refused(Reason.FIELD, f"sent a buffer {name!r} with a negative variance")


def _valid(statistics: Statistics) -> Statistics:
    """Return the usable statistics; a count below zero refuses the reply."""
    usable: dict[str, dict[str, Mean]] = {}
    if len(statistics) > MOST_SCORES or any(
        isinstance(means, Mapping) and len(means) > MOST_SCORES for means in statistics.values()
    ):
        raise Refused(Reason.FIELD, f"sent more than {MOST_SCORES} statistics")
    for name, means in statistics.items():
        if not isinstance(means, Mapping):
            raise Refused(Reason.FIELD, f"sent statistics of {name!r} that are a {type(means).__name__}")
        for score, mean in means.items():
            if not isinstance(mean, Mean) or not _count(mean.count, 0):
                raise Refused(Reason.FIELD, f"sent a statistic {name} {score} without a valid count")
            if (score == "loss" or valid_score(score)) and _usable(score, mean):
                usable.setdefault(name, {})[score] = mean
    return usable


def _usable(score: str, mean: Mean) -> bool:
    if not mean.count or not isinstance(mean.total, int | float):
        return False
    least, most = (0, 1) if score == "accuracy" else (-LARGEST_MEAN, LARGEST_MEAN)
    return least * mean.count <= mean.total <= most * mean.count


def all_losses_non_finite(sent: Replies, admitted: Replies) -> bool:
    """Return whether clients measured losses and none of them is usable."""
    tried = any("loss" in means for client in admitted for means in sent[client].statistics.values())
    return tried and not any("loss" in m for reply in admitted.values() for m in reply.statistics.values())


def _count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


def finite(vector: Tensor) -> bool:
    """Return whether all numbers are finite, by the extremes: one pass, without a vector of truth values."""
    if not vector.numel() or not vector.is_floating_point():
        return True
    least, most = vector.detach().aminmax()
    return math.isfinite(least) and math.isfinite(most)
