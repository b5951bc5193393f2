"""Aligns the metric courses of several runs whose stages end at different rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

Course = Mapping[float, float]
"""Values by round, in ascending order."""


def aligned(
    courses: Sequence[Course], turns: Sequence[float], border: float = 0.0
) -> dict[float, list[float]]:
    """The values of all courses at each round of any course, within the rounds that all courses cover.

    ``turns`` are the last unlearning rounds of the runs; ``border`` is the common one, by default the latest.
    A run that ended unlearning earlier keeps its last value until the border; a run without post-training
    ends where it ended. A run that took more unlearning rounds is compressed to the border. Values between
    the rounds of a run are interpolated linearly.
    """
    border = border or max(turns, default=0.0)
    shifted = [_shifted(course, turn, border) for course, turn in zip(courses, turns, strict=True)]
    if not shifted or not all(shifted):
        return {}
    first, last = max(min(course) for course in shifted), min(max(course) for course in shifted)
    rounds = sorted({at for course in shifted for at in course if first <= at <= last})
    values = np.transpose([np.interp(rounds, [*course], [*course.values()]) for course in shifted]).tolist()
    return dict(zip(rounds, values, strict=True))


def _shifted(course: Course, turn: float, border: float) -> Course:
    if turn <= 0 or turn == border or (turn < border and max(course, default=0.0) <= turn):
        return course
    pace = min(1.0, border / turn)
    before = {at * pace: value for at, value in course.items() if at <= turn}
    held = {border: [*before.values()][-1]} if before else {}
    return before | held | {at + border - turn: value for at, value in course.items() if at > turn}
