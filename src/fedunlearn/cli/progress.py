"""Progress for people: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..core import Event, Stage, Status

QUIET_SECONDS = 10.0


class Display:
    """A listener that shows how far each stage is, with the last ASR and R-Acc, and the time left.

    Where there are many ``runs``, it shows how many are over, and the stages of the present one.
    """

    def __init__(self, console: Console, runs: int = 0) -> None:
        self._console = console
        self._runs, self._run = runs, 0
        live = console.is_terminal and not console.is_dumb_terminal and "CI" not in os.environ
        self._bars = _bars(console) if live else None
        self._all: TaskID | None = None
        self._tasks: dict[int, TaskID] = {}
        self._seen: dict[str, float] = {}
        self._stages: set[Stage] = set()
        self._said_at = time.monotonic()

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def run(self, name: str) -> Iterator[Display]:
        """For one of many runs."""
        self._run += 1
        self._seen, self._stages = {}, set()
        if self._bars is None:
            self._console.print(f"{name} ({self._run} of {self._runs})", highlight=False)
            yield self
            return
        if self._all is None:
            self._all = self._bars.add_task("all runs", total=self._runs, scores="")
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks = {}
        self._bars.update(self._all, scores=name)
        yield self
        self._bars.update(self._all, completed=self._run)

    def __call__(self, event: Event) -> None:
        self._seen |= {key: float(event.metrics[key]) for key in _SHOWN if key in event.metrics}
        phase, state = event.phases[event.progress.phase], event.progress.state
        if event.metrics["stage"] == "start":
            if phase.stage is Stage.PRETRAINING:
                self._stages.add(phase.stage)
            elif not self._runs and Stage.PRETRAINING not in self._stages:
                self._console.print("ω⁰ taken from the cache")
            return
        self._stages.add(phase.stage)
        done, ended = state.round, state.round == phase.rounds or state.status is not Status.RUNNING
        if self._bars is not None:
            self._draw(
                event.progress.phase if phase.stage is not Stage.PRETRAINING else -1,
                phase.stage,
                done,
                done if ended and not state.status.failed else phase.rounds,
            )
        elif ended or time.monotonic() - self._said_at >= QUIET_SECONDS:
            self._said_at = time.monotonic()
            self._console.print(f"{phase.stage} {done}/{phase.rounds}  {self._scores()}", highlight=False)

    def _draw(self, phase: int, stage: str, done: int, rounds: int) -> None:
        assert self._bars is not None
        if phase not in self._tasks:
            # The time left is judged by the rounds seen here, not by those done before a resume.
            self._tasks[phase] = self._bars.add_task(stage, total=rounds, completed=done - 1, scores="")
        self._bars.update(self._tasks[phase], total=rounds, completed=done, scores=self._scores())

    def _scores(self) -> str:
        return "  ".join(f"{_SHOWN[key]} {value:.3f}" for key, value in self._seen.items())


_SHOWN = {"asr": "ASR", "forget_acc": "forget", "r_acc": "R-Acc"}


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<13}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[scores]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=86400,  # seconds: of many runs, one may take an hour
    )
