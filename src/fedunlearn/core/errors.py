"""The error that every expected problem ends in, and checks that raise it."""

from __future__ import annotations

import math


class FedUnlearnError(Exception):
    """An error the user can fix; the message says what, where and what to do."""


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
