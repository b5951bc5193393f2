"""Errors and warnings: a sentence for people, and a stable code for programs."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping
from pathlib import Path

PACKAGE = str(Path(__file__).parents[1])

ERRORS: Mapping[str, str] = {
    "invalid": "A value, a setting or a file is not what it must be.",
    "unknown": "No such name: a client, method, model, data set, option or setting.",
    "usage": "The command line is not understood.",
    "package": "An optional package is missing, or has another version.",
    "environment": "The machine lacks something: a device, a precision, memory or processes.",
    "download": "A data set cannot be downloaded.",
    "missing": "A file or folder does not exist.",
    "file": "A file or folder cannot be read or written.",
    "damaged": "A file is damaged, edited or exchanged.",
    "in-use": "Another process uses the folder, or has taken it over.",
    "occupied": "The folder belongs to another run, request or owner.",
    "unfinished": "The run has not ended, or the request has not been answered.",
    "finished": "The run is finished, or the request is closed.",
    "failed": "The run failed, so there is no model to use.",
    "data": "The examples of a client cannot be used.",
    "changed": "Data or files are not those that the run or the model began with.",
    "other-model": "The model is not the one that the request, the run or the client knows.",
    "model": "The model cannot be trained, unlearned or measured with.",
    "unsuitable": "The method cannot serve this request, model or federation.",
    "history": "The method needs history that was not recorded.",
    "absent": "A client is not present.",
    "client": "A client sent what cannot be used, or differs from the server.",
    "forgotten": "The client has been forgotten already.",
    "not-forgotten": "The client has not been forgotten, or never took part.",
    "not-measured": "A number is needed that no client measures.",
    "not-audited": "The clients cannot measure the evidence.",
    "key": "A key is missing, unreadable or of the wrong kind.",
    "purged": "The key was destroyed, so what it protected cannot be read.",
}
"""The codes of errors; those of ``Refusal``, ``Status`` and ``RequestState`` come in addition."""

WARNINGS: Mapping[str, str] = {
    "absent": "A client is not present, and is left out.",
    "begun-anew": "A step or run starts from the beginning, because what was there does not fit.",
    "continued": "A step continues from the last one, or with the clients that it began with.",
    "changed": "The training data of a client are not those of the training.",
    "effort-unknown": "Nothing is known of the training, so rounds and rate are defaults.",
    "forgotten": "A client that was forgotten here is left out.",
    "history": "History is large, or is dropped.",
    "no-backdoor": "A method goes by a backdoor of the targets, and none is measured.",
    "no-data": "A client joins again without data.",
    "no-manifest": "No manifest lists the files, so damage is not noticed.",
    "no-page": "The page of an audit cannot be written.",
    "no-utility": "No client has a test set, so utility is not measured.",
    "no-reply": "A client failed, and counts as missing.",
    "not-audited": "A model is not audited.",
    "not-better": "Training has not made the model better.",
    "older-checkpoint": "A checkpoint is damaged, and the run continues from the one before.",
    "one-class": "A model predicts the same class for all examples.",
    "outcome": "A sentence of Outcome.warnings: what guards did, and who loses.",
    "repeated": "The call repeats a step and makes no new request.",
    "row-failed": "A row of a comparison failed.",
    "tracker": "A tracker has stopped, and the run continues without it.",
    "unheard": "Retained clients never answered, so nothing reflects them.",
    "version": "A package has another version elsewhere.",
    "waiting": "Another process uses the folder.",
    "workers": "Work is divided among fewer processes, or is repeated.",
}
"""The codes of warnings."""


class FedUnlearnError(Exception):
    """An error the user can fix; the message says what, where and what to do, the code is for programs."""

    code = "invalid"

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        self.code = code or type(self).code


class FedUnlearnWarning(UserWarning):
    """A warning with a stable code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


def warn(message: str, code: str) -> None:
    """Warn with a code; the warning points to the line that called the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(FedUnlearnWarning(message, code), stacklevel=level)


def require(fine: bool, name: str, value: object, expected: str) -> None:
    """Refuses a value with what it must be."""
    if not fine:
        raise FedUnlearnError(f"{name} = {value!r}: it must be {expected}")


def require_type(fine: bool, name: str, value: object, remedy: str) -> None:
    """Refuses a value of the wrong kind with what to give instead."""
    if not fine:
        raise FedUnlearnError(f"{name} is a {type(value).__name__}: {remedy}")


def require_count(name: str, value: object, least: int = 0) -> None:
    """Refuses what is not a whole number of at least ``least``."""
    fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(fine, name, value, f"a whole number, {least} or more")


def require_rate(name: str, value: object) -> None:
    """Refuses what is not a positive, finite number."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    require(fine, name, value, "a positive, finite number")
