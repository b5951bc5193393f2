"""The geometry of the figures in an HTML report; templates turn it into SVG.

Positions are percentages of the plot, so that a figure scales to any width while its text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ..alignment import aligned
from ..runs import Run

POINTS = 250
"""The maximum number of points of a curve; longer curves are thinned."""

COLOURS, DASHES = 7, ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Style:
    """The look of a row in every figure; the first 28 rows are distinct, even in greyscale."""

    colour: int
    dash: str
    marker: int


def style(number: int) -> Style:
    """The colour, line and marker of the row with this number."""
    turn = number // COLOURS
    return Style(number % COLOURS, DASHES[turn % len(DASHES)], (number + turn) % COLOURS)


@dataclass(frozen=True)
class Axis:
    """The range, ticks and scale of an axis."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    bend: Callable[[float], float] = float

    def place(self, value: float) -> float:
        """The position of a value, in percent from the low end."""
        low, high = self.bend(self.low), self.bend(self.high)
        return round(100 * (self.bend(value) - low) / ((high - low) or 1), 2)

    def marks(self) -> list[tuple[float, str]]:
        return [(self.place(value), text) for value, text in self.ticks]


@dataclass(frozen=True)
class Curve:
    """One line: its row, its name, and values by round."""

    row: int
    name: str
    values: Mapping[float, float]
    style: Style


@dataclass(frozen=True)
class Plot:
    """Curves over the rounds in one frame."""

    key: str
    title: str
    about: str
    x: Axis
    y: Axis
    percent: bool
    curves: Sequence[Curve]
    borders: Sequence[tuple[float, str]] = ()
    band: tuple[Mapping[float, float], Mapping[float, float]] | None = None
    bars: Mapping[float, float] = field(default_factory=dict)

    def line(self, curve: Curve) -> str:
        """An SVG path in a box of 1000 × 1000."""
        return "M" + " ".join(self._at(x, y) for x, y in curve.values.items())

    def area(self) -> str:
        """The band between two curves as an SVG path."""
        if self.band is None:
            return ""
        below, above = self.band
        around = [*below.items(), *reversed([*above.items()])]
        return "M" + " ".join(self._at(x, y) for x, y in around) + "Z"

    def columns(self) -> list[tuple[float, float]]:
        """Position and height of each bar that is not zero."""
        return [(self.x.place(x), self.y.place(y)) for x, y in self.bars.items() if y > 0]

    def stages(self) -> list[tuple[float, float, str]]:
        """The start, middle and name of each stage."""
        starts = [self.x.place(at) for at, _ in self.borders]
        ends = [*starts[1:], 100.0]
        return [
            (start, (start + end) / 2, name)
            for start, end, (_, name) in zip(starts, ends, self.borders, strict=False)
        ]

    def values(self) -> dict[str, Any]:
        """The data that the script needs to show values under the pointer."""
        rounds = sorted({x for curve in self.curves for x in curve.values})
        return {
            "x": rounds,
            "places": [self.x.place(x) for x in rounds],
            "percent": self.percent,
            "curves": [
                {
                    "row": curve.row,
                    "name": curve.name,
                    "y": [None if x not in curve.values else round(curve.values[x], 4) for x in rounds],
                }
                for curve in self.curves
            ],
        }

    def table(self, most: int) -> tuple[list[float], list[tuple[str, list[float | None]]]]:
        """At most ``most`` rounds, without zero bars, and the values of each curve in these rounds."""
        seen = sorted({x for curve in self.curves for x, y in curve.values.items() if y or not self.bars})
        rounds = thinned(seen, most)
        return rounds, [(curve.name, [curve.values.get(x) for x in rounds]) for curve in self.curves]

    def _at(self, x: float, y: float) -> str:
        return f"{10 * self.x.place(x):.0f},{1000 - 10 * self.y.place(y):.0f}"


def series(runs: Sequence[Run], key: str) -> dict[float, float]:
    """A metric by round, averaged over the runs of one row."""
    each = [
        {
            float(row["elapsed"]): float(row[key])
            for row in run.rows
            if math.isfinite(float(row.get(key, math.nan)))
        }
        for run in runs
    ]
    values = aligned(each, [run.turn for run in runs])
    return {at: fmean(values[at]) for at in thinned(list(values), POINTS)}


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most ``most`` of the values, evenly spaced, always including the first and the last."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(number * step)] for number in range(most)]


def rounds(last: float) -> Axis:
    """An axis of rounds."""
    return Axis(0, last or 1, tuple((tick, f"{tick:g}") for tick in ticks(last or 1, 5, whole=True)))


def shares(values: Iterable[float], *, whole: bool = True) -> Axis:
    """An axis of percentages: from 0 to 100 %, or the range of the values."""
    seen = [*values]
    if whole or not seen:
        return Axis(0, 1, tuple((mark, f"{mark:.0%}") for mark in (0, 0.25, 0.5, 0.75, 1)))
    step = 0.2 if max(seen) - min(seen) > 0.4 else 0.1 if max(seen) - min(seen) > 0.15 else 0.05
    low, high = math.floor(min(seen) / step - 0.1), math.ceil(max(seen) / step + 0.1)
    marks = [min(1.0, step * number) for number in range(max(0, low), min(high, round(1 / step)) + 1)]
    return Axis(marks[0], marks[-1], tuple((mark, f"{mark:.0%}") for mark in marks))


def amounts(values: Iterable[float], *, whole: bool = False) -> Axis:
    """An axis from zero to a round number above the values."""
    most = max(values, default=0.0) or 1.0
    marks = ticks(most, 4, whole=whole)
    if marks[-1] < most:
        marks.append(marks[-1] + marks[1])
    return Axis(0, marks[-1], tuple((mark, f"{mark:g}") for mark in marks))


def magnitudes(values: Iterable[float]) -> Axis:
    """A logarithmic axis around positive values."""
    seen = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(seen))), math.ceil(math.log10(max(seen)))
    marks = [10.0**power for power in range(low, max(high, low + 1) + 1)]
    return Axis(marks[0], marks[-1], tuple((mark, f"{mark:g}") for mark in marks), math.log10)


def roots() -> Axis:
    """Percentages on a square-root scale, which spreads small values."""
    marks = (0, 0.01, 0.05, 0.15, 0.3, 0.6, 1)
    return Axis(0, 1, tuple((mark, f"{mark:.0%}") for mark in marks), math.sqrt)


def ticks(most: float, count: int, *, whole: bool = False) -> list[float]:
    """Round numbers from zero up to the largest value."""
    size = 10.0 ** math.floor(math.log10(most / count))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * count >= most * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    return [round(step * number, 10) for number in range(int(most / step + 1e-9) + 1)]


def borders(run: Run) -> list[tuple[float, str]]:
    """The round after which each stage begins, and its name."""
    starts: dict[str, float] = {}
    for row in run.rows:
        if row["stage"] != "start":
            starts.setdefault(run.stage(str(row["stage"])), float(row["elapsed"]) - 1)
    return [(at, name) for name, at in starts.items()]


@dataclass(frozen=True)
class Point:
    """One row in the scatter plot: its end, and the end of its unlearning if it has both stages."""

    row: int
    name: str
    x: float
    y: float
    before: tuple[float, float] | None
    style: Style | None
    text: str
    label: tuple[float, float, str] | None = None


def scattered(points: Sequence[Point], width: float = 800, height: float = 420) -> list[Point]:
    """The points with label positions that do not overlap; crowded points have no label."""
    taken = [(p.x * width / 100 - 6, (100 - p.y) * height / 100 - 6, 12.0, 12.0) for p in points]
    placed = []
    for point in points:
        label = None
        for option in BESIDE:
            box = _box(point, option, width, height)
            inside = box[0] > -30 and box[0] + box[2] < width + 30
            if inside and not any(_overlap(box, other) for other in taken):
                label = option
                taken.append(box)
                break
        placed.append(replace(point, label=label))
    return placed


BESIDE = (
    (10.0, 4.0, "start"),
    (-10.0, 4.0, "end"),
    (0.0, -10.0, "middle"),
    (0.0, 19.0, "middle"),
    (8.0, -8.0, "start"),
    (8.0, 16.0, "start"),
    (-8.0, -8.0, "end"),
    (-8.0, 16.0, "end"),
)
"""Possible label positions: pixels to the right of and below the point, and the text anchor."""

Box = tuple[float, float, float, float]


def _box(point: Point, label: tuple[float, float, str], width: float, height: float) -> Box:
    """Left, top, width and height of a label, in a plot of this size."""
    dx, dy, anchor = label
    length = 6.8 * len(point.name)
    left = point.x * width / 100 + dx - {"start": 0, "end": length, "middle": length / 2}[anchor]
    return left, (100 - point.y) * height / 100 + dy - 11, length, 14.0


def _overlap(one: Box, two: Box) -> bool:
    return (
        one[0] < two[0] + two[2]
        and two[0] < one[0] + one[2]
        and one[1] < two[1] + two[3]
        and two[1] < one[1] + one[3]
    )
