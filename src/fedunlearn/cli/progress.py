"""Progress for people: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from ..core import Event, Phase, Stage, Status
from ..core.scores import headline
from ..driver.progress import trouble
from ..measures.metrics import metric

QUIET_SECONDS = 10.0
RETRAINING = "retraining"
MEASURED_ROUNDS = 3
"""The rounds of many runs after which their total time is estimated."""

Planned = Mapping[str, tuple[int, int]]
"""By run: the rounds of its pre-training, and those after it. A single run needs no name."""


class Estimate:
    """The rounds that are left, and the time they will take, judged by the rounds seen so far."""

    def __init__(self, planned: Planned, clock: Callable[[], float]) -> None:
        self._left = {(run, part): both[part] for run, both in planned.items() for part in (0, 1)}
        self.total = self.left
        self.measured = 0
        self._seconds = {0: 0.0, 1: 0.0}
        self._rounds = {0: 0, 1: 0}
        self._clock = clock
        self._last = clock()

    @property
    def left(self) -> int:
        return sum(self._left.values())

    def count(self, run: str, event: Event) -> None:
        """Count a round, or the evaluation before the first."""
        now = self._clock()
        phase, state = event.phases[event.progress.phase], event.progress.state
        part = 0 if phase.stage is Stage.PRETRAINING else 1
        if event.metrics["stage"] != "start":
            self._seconds[part] += now - self._last
            self._rounds[part] += 1
            self.measured += 1
        self._last = now
        if part == 1:
            self._left[run, 0] = 0
        here = phase.rounds - state.round if state.status is Status.RUNNING else 0
        self._left[run, part] = here + sum(later.rounds for later in event.phases[event.progress.phase + 1 :])

    def begin(self) -> None:
        """Start a run; its set-up is not part of its first round."""
        self._last = self._clock()

    def end(self, run: str) -> None:
        """End a run, perhaps early."""
        self._left[run, 0] = self._left[run, 1] = 0

    def seconds_left(self) -> float | None:
        """Return the estimate, None before the first round; unseen kinds of rounds count like the others."""
        if not self.measured:
            return None
        mean = sum(self._seconds.values()) / self.measured
        means = [self._seconds[part] / self._rounds[part] if self._rounds[part] else mean for part in (0, 1)]
        return sum(rounds * means[part] for (_, part), rounds in self._left.items())


class Display:
    """Show the rounds done, the last measurements and their round, and the time left."""

    def __init__(
        self, console: Console, planned: Planned, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console, self._clock = console, clock
        self._names = [name for name in planned if name]
        self._begun = 0
        self._estimate = Estimate(planned, clock)
        live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
        self._bars = _bars(console) if live else None
        self._all: TaskID | None = None
        self._tasks: dict[int, TaskID] = {}
        self._scores: dict[str, float] = {}
        self._scored: tuple[str, int] = ("start", 0)
        self._printed_at = clock()
        self._estimated = len(self._names) < 2

    def __enter__(self) -> Display:
        if len(self._names) > 1:
            self._print(f"{len(self._names)} runs, {self._estimate.total:,} rounds at most")
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def run(self, name: str = "") -> Iterator[Callable[[Event], None]]:
        """Yield the listener of one run."""
        self._begun += 1
        self._scores = {}
        self._estimate.begin()
        count = f" ({self._begun} of {len(self._names)})" if self._names else ""
        label = f"{name}{count}" if name else ""
        if self._bars is None:
            if name:
                self._print(label)
        else:
            for task in self._tasks.values():
                self._bars.remove_task(task)
            self._tasks = {}
            self._show_total(label)
        trained = False

        def on_round(event: Event) -> None:
            nonlocal trained
            stage = event.phases[event.progress.phase].stage
            if not name and not trained and stage is not Stage.PRETRAINING:
                self._print("pre-training skipped: ω⁰ exists already")
            trained = True
            self._on_round(name, label, event)

        yield on_round
        self._estimate.end(name)
        self._show_total(label)

    def _on_round(self, run: str, label: str, event: Event) -> None:
        phase, state = event.phases[event.progress.phase], event.progress.state
        begins = event.metrics["stage"] == "start"
        if measured := {key: float(event.metrics[key]) for key in headline(event.metrics)}:
            self._scores = measured
            self._scored = ("start" if begins else _title(phase), state.round)
        self._estimate.count(run, event)
        if begins:
            return
        if not self._estimated and self._estimate.measured >= MEASURED_ROUNDS:
            self._estimated = True
            self._print(f"about {duration(self._estimate.seconds_left() or 0)} in all, by the first rounds")
        ended = state.round == phase.rounds or state.status is not Status.RUNNING
        if self._bars is not None:
            self._draw(
                event.progress.phase if phase.stage is not Stage.PRETRAINING else -1,
                _title(phase),
                state.round,
                state.round if ended and not state.status.failed else phase.rounds,
            )
            self._show_total(label)
        elif ended or self._clock() - self._printed_at >= QUIET_SECONDS:
            self._printed_at = self._clock()
            title = _title(phase)
            parts = [f"{title} {state.round}/{phase.rounds}", self._measurements(title)]
            if (left := self._estimate.seconds_left() or 0) >= 1:
                parts.append(f"about {duration(left)} left")
            self._print("  ".join(filter(None, parts)))
        if bad := trouble(event):
            self._print(bad)

    def _draw(self, phase: int, title: str, done: int, rounds: int) -> None:
        assert self._bars is not None
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(title, total=rounds, text="", left="")
        text = self._measurements(title)
        self._bars.update(self._tasks[phase], total=rounds, completed=done, text=text)

    def _show_total(self, label: str) -> None:
        if self._bars is None:
            return
        if self._all is None:
            self._all = self._bars.add_task("all rounds", total=self._estimate.total, text="", left="")
        seconds = self._estimate.seconds_left()
        self._bars.update(
            self._all,
            completed=self._estimate.total - self._estimate.left,
            text=label,
            left="" if seconds is None else f"ETA {duration(seconds)}",
        )

    def _measurements(self, title: str) -> str:
        """Return the last scores and their round; those of ω⁰ do not apply to a new model."""
        then, number = self._scored
        if not self._scores or (then == "start" and title == RETRAINING):
            return ""
        when = f"round {number}" if then == title else "before" if then == "start" else f"{then} {number}"
        scores = [f"{metric(key).title} {metric(key).text(value)}" for key, value in self._scores.items()]
        return f"{'  '.join(scores)} ({when})"

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _title(phase: Phase) -> str:
    """Return the title of a phase: post-training that trains a new model is retraining."""
    new = phase.stage is Stage.POSTTRAINING and "fresh" in phase.needs
    return RETRAINING if new else phase.stage


def duration(seconds: float) -> str:
    """Return a rough time for people."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return f"{round(seconds)} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{round(minutes / 60 / 24)} days"


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<13}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
        console=console,
    )
