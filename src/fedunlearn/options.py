"""Options of methods and partitions, checked against the annotations of the functions that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from .core import FedUnlearnError, did_you_mean

LARGEST = 1e38
"""Of a number: clients compute in float32, whose range ends at 3e38."""


def check_options(what: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Options are the parameters that have a default; their annotations say what they take."""
    parameters, types = inspect.signature(make).parameters.values(), get_type_hints(make)
    known = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    for option, value in options.items():
        if option not in known:
            hint = did_you_mean(option, known) if known else "; it has none"
            raise FedUnlearnError(f"{what} has no option {option!r}{hint}")
        if not _in_range(value):
            raise FedUnlearnError(
                f"{what}, option {option} = {brief(value)}: it must be between {-LARGEST:g} and {LARGEST:g}"
            )
        try:
            TypeAdapter(types[option]).validate_python(value, strict=True)
        except ValidationError as error:
            raise FedUnlearnError(
                f"{what}, option {option} = {brief(value)}: {message(error.errors()[0])}"
            ) from None


def message(problem: ErrorDetails) -> str:
    """What pydantic says about a value, as part of a sentence."""
    said = problem["msg"].removeprefix("Value error, ")
    return said[0].lower() + said[1:]


def _in_range(value: object) -> bool:
    if isinstance(value, int | float):
        return abs(value) <= LARGEST  # not true of NaN
    return not isinstance(value, list) or all(map(_in_range, value))


def brief(value: object) -> str:
    """A value as text of limited length."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python writes, or more levels
        text = f"(a very large {type(value).__name__})"
    return text if len(text) <= 80 else f"{text[:77]}..."
