"""The paper's ablations M1 to M6: FedOSD's phases with one field changed."""

from __future__ import annotations

import math

from ..core import Phase, require
from ..core.registry import method
from ..maths import common_descent, plain_descent, random_direction
from .fedosd import AnchoredAveraging, Direct, ForgettingDescent, fedosd, steepest
from .schedule import Schedule

PAPER, SOURCE, ONLINE = "Pan et al., AAAI 2025", "paper", "targets and retained, then retained"


def _phases(schedule: Schedule, direction: Direct = steepest) -> tuple[Phase, ...]:
    return (
        ForgettingDescent(schedule.unlearn_rounds, schedule.unlearn_lr, "uce", direction),
        AnchoredAveraging(schedule.recover_rounds, schedule.recover_lr),
    )


@method(
    "fedosd-m1",
    paper=PAPER,
    source=SOURCE,
    summary="FedOSD with gradient ascent in place of the UCE loss",
)
def m1(schedule: Schedule) -> tuple[Phase, ...]:
    """No UCE: the targets maximise the cross-entropy."""
    return fedosd(schedule, objective="ascent")


@method("fedosd-m2", paper=PAPER, source=SOURCE, summary="FedOSD without the orthogonal projection")
def m2(schedule: Schedule) -> tuple[Phase, ...]:
    """No projection: the targets' descent direction is used unchanged."""
    return _phases(schedule, direction=lambda forget, retain, _: plain_descent(forget, retain))


@method(
    "fedosd-m3",
    paper=PAPER,
    source=SOURCE,
    summary="FedOSD with the common descent direction of all clients (MGDA)",
)
def m3(schedule: Schedule, *, match_norm: bool = False) -> tuple[Phase, ...]:
    """``match_norm`` scales the step to the norm of the targets' update, as in FedOSD."""
    return _phases(
        schedule,
        direction=lambda forget, retain, _: common_descent(forget, retain, match_norm=match_norm),
    )


@method(
    "fedosd-m4",
    paper=PAPER,
    source=SOURCE,
    summary="FedOSD with a random orthogonal direction that forgets",
)
def m4(schedule: Schedule, *, spread: float = 1.0, literal: bool = False) -> tuple[Phase, ...]:
    """``spread`` is the length of the random part relative to the steepest; ``literal`` uses it alone."""
    require(spread >= 0, "spread", spread, "zero or more")
    part = math.inf if literal else spread
    return _phases(
        schedule,
        direction=lambda forget, retain, draw: random_direction(forget, retain, draw, spread=part),
    )


@method("fedosd-m5", paper=PAPER, source=SOURCE, summary="FedOSD with plain post-training")
def m5(schedule: Schedule) -> tuple[Phase, ...]:
    """No projection in post-training."""
    return fedosd(schedule, anchor="never")


@method("fedosd-m6", paper=PAPER, source=SOURCE, summary="FedOSD with an unbounded UCE loss")
def m6(schedule: Schedule) -> tuple[Phase, ...]:
    """The loss −log(1 − p) is unbounded as p approaches 1; its gradient in the logits is bounded."""
    return fedosd(schedule, objective="unlikelihood")
