"""Errors and warnings are expected by their codes; their words are compared unless they are scrambled."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest

from fedunlearn.core import Failure, FedUnlearnError, FedUnlearnWarning, MissingReply, Outcome, State
from fedunlearn.signing import Refused


def refused(*codes: str, says: str | None = None) -> pytest.RaisesExc[FedUnlearnError]:
    """Expects an error with one of these codes."""
    words = None if _scrambled() else says
    return pytest.raises(FedUnlearnError, match=words, check=lambda error: error.code in codes)


def warned(code: str, says: str | None = None) -> Any:
    """Expects a warning with this code."""
    return pytest.warns(FedUnlearnWarning, match=f"^{code}$" if _scrambled() else says)


def scramble() -> None:
    """Replaces every error, every warning and every sentence of an outcome by its code."""
    for kind in (FedUnlearnError, FedUnlearnWarning, Refused):
        kind.__str__ = lambda self: str(self.code)
    MissingReply.__str__ = lambda self: "missing_reply"
    Failure.__post_init__ = lambda self: object.__setattr__(self, "detail", str(self.reason))
    halt, made = State.halt, Outcome.__init__
    State.halt = lambda self, status, reason: halt(self, status, str(status))

    @wraps(made)
    def coded(self, *args: Any, **fields: Any) -> None:
        made(self, *args, **fields)
        object.__setattr__(self, "reason", self.reason and str(self.status))
        object.__setattr__(self, "warnings", ("outcome",) * len(self.warnings))

    Outcome.__init__ = coded


def says(sentence: object, *words: str) -> bool:
    """Whether a sentence has all these words; a scrambled one has none to compare."""
    return _scrambled() or all(each in str(sentence) for each in words)


def _scrambled() -> bool:
    return str(FedUnlearnError("words")) != "words"
