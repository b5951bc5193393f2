"""Runs that are told to stop at a certain round."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

from fedunlearn.cli.progress import Display


@contextmanager
def stopped(stage, number, *signals):
    """Sends the signals to this process when it has done a round."""
    whole = Display.run

    @contextmanager
    def run(display, name=""):
        with whole(display, name) as hear:

            def listener(event):
                hear(event)
                if (event.metrics["stage"], event.metrics["round"]) == (stage, number):
                    for each in signals:
                        os.kill(os.getpid(), each)

            yield listener

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Display, "run", run)
        yield
