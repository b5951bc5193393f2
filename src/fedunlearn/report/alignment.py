"""The courses of several runs as one, where their stages end at different rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Course = Mapping[float, float]
"""Values by round, in order."""


def aligned(
    courses: Sequence[Course], turns: Sequence[float], border: float = 0.0
) -> dict[float, list[float]]:
    """The values of all at each round of any, as far as all go.

    ``turns`` are the rounds that ended unlearning. A run that ended it before ``border``, which is where the
    last did unless given, stays as it is until then, and only then goes on; between its own rounds it goes
    straight. One that does not go on ends where it ended. One whose unlearning took more rounds took several
    for one, and is drawn together.
    """
    border = border or max(turns, default=0.0)
    moved = [_bordered(course, turn, border) for course, turn in zip(courses, turns, strict=True)]
    if not moved or not all(moved):
        return {}
    first, last = max(min(of) for of in moved), min(max(of) for of in moved)
    rounds = sorted({at for of in moved for at in of if first <= at <= last})
    values = np.transpose([np.interp(rounds, [*of], [*of.values()]) for of in moved]).tolist()
    return dict(zip(rounds, values, strict=True))


def _bordered(course: Course, turn: float, border: float) -> Course:
    if turn <= 0 or turn == border or (turn < border and max(course, default=0.0) <= turn):
        return course
    pace = min(1.0, border / turn)
    before = {at * pace: value for at, value in course.items() if at <= turn}
    held = {border: [*before.values()][-1]} if before else {}
    return before | held | {at + border - turn: value for at, value in course.items() if at > turn}
