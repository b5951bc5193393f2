"""How the program ends: one sentence and an exit code, also after Ctrl-C and SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
REPEAT_SECONDS = 5.0
"""Further signals within this time count as the same request: saving may take a moment."""


class Interrupted(KeyboardInterrupt):
    """A request to stop; the exit code says which signal it was."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else "terminated")
        self.code = 128 + number


class Signals:
    """Turns the first Ctrl-C or SIGTERM into ``Interrupted``; a signal that was ignored stays ignored."""

    def __init__(self) -> None:
        self.request: Interrupted | None = None
        self._owner = os.getpid()
        self._last = -REPEAT_SECONDS
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            os._exit(128 + number)  # a worker that has not set its own handlers yet
        before, self._last = self._last, time.monotonic()
        if self._last - before >= REPEAT_SECONDS:
            self.request = Interrupted(number)
            raise self.request

    def ignore(self) -> None:
        """For the end of the process, when nothing is left to stop."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def fail(sentence: str, status: int, code: str = "") -> NoReturn:
    """Ends the program with a code and one sentence on standard error; its end may be a command to paste."""
    if sentence:
        # Only line breaks are replaced: a name that is to be pasted may have two spaces.
        line = re.sub(r"\s*\n\s*", " ", sentence.strip())
        print(f"fedunlearn{code and f' [{code}]'}: {line}", file=sys.stderr)
    sys.exit(status)
