"""Progress in the log, for runs without a terminal of their own."""

from __future__ import annotations

import logging
import time

from ..core import Event, Listener
from ..core.scores import forgetting_key, utility_key
from ..measure.metrics import metric


def log_rounds() -> Listener:
    """A listener that logs a line for every round: the last measures, their round, and the time left."""
    log = logging.getLogger("fedunlearn")
    began, heard = time.monotonic(), 0
    measured, when = "", ""

    def listen(event: Event) -> None:
        nonlocal began, heard, measured, when
        phase, state, row = event.phases[event.progress.phase], event.progress.state, event.metrics
        place = f"{phase.stage} {state.round}/{phase.rounds}"
        forgotten = forgetting_key(row) or ("target_acc" if "target_acc" in row else None)
        keys = [key for key in (forgotten, utility_key(row)) if key]
        if keys:
            measured = ", ".join(f"{metric(key).title} {metric(key).text(float(row[key]))}" for key in keys)
            when = "before" if row["stage"] == "start" else place
        if row["stage"] == "start":
            began = time.monotonic()
            log.info("%s (before)", measured or "nothing is measured")
            return
        heard += 1
        pace = (time.monotonic() - began) / heard
        left = phase.rounds - state.round + sum(p.rounds for p in event.phases[event.progress.phase + 1 :])
        lost = f"; missing: {row['missing']}" if row.get("missing") else ""
        scores = f"{measured} ({when}); " if measured else ""
        log.info("%s: %s%.1f s a round, %.0f s left%s", place, scores, pace, left * pace, lost)

    return listen
