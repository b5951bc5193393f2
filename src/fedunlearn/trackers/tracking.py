"""A callback that logs each round of a run once, to a store that outlives the process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from ..core import Callback, Event, Metrics, Stage, Status
from ..core.errors import warn
from ..runs import public, read_json, read_metrics

Parameters = Mapping[str, str | int | float | bool]


class Point(NamedTuple):
    """All numbers of one finished round."""

    step: int
    scalars: Mapping[str, float]


class Store(Protocol):
    """The place where a tracker keeps one run."""

    def last(self, name: str) -> int:
        """Return the last step of a scalar, or -1."""
        ...

    def log(self, points: Sequence[Point]) -> None: ...

    def end(self, step: int, status: str, reason: str) -> None: ...


class Tracking(Callback):
    """Log each round once, however often the run is stopped and resumed.

    A resumed run repeats the rounds after its checkpoint with identical results, so rounds in the store are
    skipped, and missing rounds are read from ``metrics.jsonl``. If the store fails, the tracker warns and
    stops; the run continues. Of successive requests, the last is tracked.
    """

    def __init__(
        self, name: str, folder: Path, begin: Callable[[Parameters], Store], *, pause: float = 0.0
    ) -> None:
        self._name, self._folder, self._begin, self._pause = name, folder, begin, pause
        self._store: Store | None = None
        self._last: dict[str, int] = {}
        self._waiting: list[tuple[str, Metrics]] = []
        self._wrote_at = 0.0
        self._broken = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or self._store is not None or self._waiting:
            self._attempt(lambda: self._finish(kind))

    def after_record(self, event: Event) -> None:
        if "request" in event.metrics:
            return
        training = event.phases[event.progress.phase].stage is Stage.PRETRAINING
        self._waiting.append((Stage.PRETRAINING if training else Stage.UNLEARNING, event.metrics))
        # The run's own rounds can wait, because its folder has them; those of shared pre-training cannot.
        if training or time.monotonic() - self._wrote_at >= self._pause:
            self._attempt(self._write)

    def _attempt(self, work: Callable[[], None]) -> None:
        if not self._broken:
            try:
                work()
            except Exception as problem:
                self._broken = True
                reason = (str(problem).splitlines() or [""])[0] or type(problem).__name__
                warn(
                    f"{self._name} has stopped ({reason}) and the run continues without it; add the missing "
                    f"rounds later with: fedunlearn resume {quote(str(self._folder))} --track {self._name}",
                    "tracker",
                )
        if self._broken:
            self._waiting.clear()

    def _write(self, *, complete: bool = False) -> None:
        if self._store is None:
            self._store = self._begin(_parameters(self._folder))
        groups = {group for group, _ in self._waiting} | ({Stage.UNLEARNING} if complete else set())
        for group in groups - set(self._last):
            self._last[group] = self._store.last(f"{group}/round")
            if group == Stage.UNLEARNING and (self._folder / "metrics.jsonl").exists():
                self._waiting[:0] = [(group, row) for row in read_metrics(self._folder)]
        points, reached = [], dict(self._last)
        for group, row in self._waiting:
            step = int(row["elapsed"])
            # A failed round is not a step: the run repeats it.
            if step > reached[group] and not Status(str(row.get("status", "running"))).failed:
                points.append(Point(step, dict(_scalars(group, row))))
                reached[group] = step
        if points:
            self._store.log(points)
        self._last, self._wrote_at = reached, time.monotonic()
        self._waiting.clear()

    def _finish(self, kind: type[BaseException] | None) -> None:
        if kind is not None:
            self._last.clear()  # the interruption may have come between a write and its bookkeeping
        self._write(complete=True)
        assert self._store is not None
        outcome = self._folder / "outcome.json"
        if kind is not None:
            status, reason = "interrupted" if issubclass(kind, KeyboardInterrupt) else "error", ""
        elif outcome.exists():
            ended = read_json(outcome)
            status, reason = ended["status"], ended["reason"]
        else:
            status, reason = Status.DONE, ""
        self._store.end(max(self._last.get(Stage.UNLEARNING, 0), 0), status, reason)


def _scalars(group: str, row: Metrics) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row by name, except the elapsed rounds, which are the step."""
    for key, value in row.items():
        if key != "elapsed" and not isinstance(value, str):
            measure, _, client = key.partition(" ")
            name = f"{group}-clients/{measure}/{client}" if client else f"{group}/{measure}"
            yield re.sub(r"[^\w\-./ ]", ".", name), float(value)


def _parameters(folder: Path) -> Parameters:
    """Return the experiment of a run folder as one flat table."""
    path = folder / "experiment.json"
    return dict(_flat("", public(read_json(path)))) if path.exists() else {}


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterable[tuple[str, str | int | float | bool]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float) else json.dumps(value)
