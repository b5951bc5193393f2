"""Progress in the log, for runs without a terminal of their own."""

from __future__ import annotations

import logging
import time

from ..core import Event, Listener, Status
from ..core.scores import headline
from ..measures.metrics import metric


def log_rounds() -> Listener:
    """Log a line for every round: the last measures, their round, the time left, and failures."""
    log = logging.getLogger("fedunlearn")
    began, heard = time.monotonic(), 0
    measured, when = "", ""

    def listen(event: Event) -> None:
        nonlocal began, heard, measured, when
        phase, state, row = event.phases[event.progress.phase], event.progress.state, event.metrics
        place = f"{phase.stage} {state.round}/{phase.rounds}"
        if keys := headline(row):
            measured = ", ".join(f"{metric(key).title} {metric(key).text(float(row[key]))}" for key in keys)
            when = "before" if row["stage"] == "start" else place
        if row["stage"] == "start":
            began = time.monotonic()
            log.info("%s (before)", measured or "nothing is measured")
            return
        heard += 1
        pace = (time.monotonic() - began) / heard
        left = phase.rounds - state.round if state.status is Status.RUNNING else 0
        left += sum(p.rounds for p in event.phases[event.progress.phase + 1 :])
        lost = f"; missing: {row['missing']}" if row.get("missing") else ""
        stopped = "; stopped by guards" if event.progress.guarded.stopped else ""
        scores = f"{measured} ({when}); " if measured else ""
        bad = trouble(event)
        remaining = "" if bad else f", {left * pace:.0f} s left"
        log.info("%s: %s%.1f s a round%s%s%s", place, scores, pace, remaining, lost, stopped)
        if bad:
            log.warning("%s", bad)

    return listen


def trouble(event: Event) -> str:
    """Return the failure of a round and its consequence for the run; empty if there is none."""
    progress, state = event.progress, event.progress.state
    if state.status.failed:
        return f"{event.phases[progress.phase].stage} failed ({state.status}): {state.reason}"
    if not state.reason or state.reason not in progress.guarded.stopped:
        return ""
    left = sum(later.rounds for later in event.phases[progress.phase + 1 :])
    then = f". The request may fail: {left} more rounds will show. Let them run, or stop now (Ctrl-C)"
    return f"stopped by guards: {state.reason}{then if left else ''}"
