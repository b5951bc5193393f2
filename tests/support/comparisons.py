"""Comparisons that are carried out in tests."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

from fedunlearn.experiment.comparison import Comparison, carry_out


def perform(comparison: Comparison, folder: Path) -> list[str]:
    """Carries it out and returns what was trained."""
    ran = []

    @contextmanager
    def show(what):
        ran.append(what)
        yield lambda event: None

    carry_out(comparison, folder, show, workers=1)
    return ran
