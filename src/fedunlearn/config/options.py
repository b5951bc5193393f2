"""Options of methods and partitions, checked against the annotations of the functions that take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ..core import FedUnlearnError, Phase, did_you_mean
from ..core.registry import method

LARGEST = 1e38
"""Of a number: clients compute in float32, whose range ends at 3e38."""


def phases_of(name: str, schedule: object, options: Mapping[str, Any]) -> tuple[Phase, ...]:
    """The phases of a method with these options; refused where its function returns something else."""
    what, make = f"method {name!r}", method[name]
    check_options(what, make, options)
    try:
        made = make(schedule, **options)
    except TypeError as error:
        raise FedUnlearnError(f"{what} cannot be made: {error}") from error
    found: tuple[object, ...] = made if isinstance(made, tuple) else (made,)
    for phase in found:
        if not isinstance(phase, Phase):
            raise FedUnlearnError(f"{what} returns {brief(phase)}, which is not a phase: return phases only")
    return made if isinstance(made, tuple) else (made,)


def check_options(what: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Options are the parameters that have a default; their annotations say what they take."""
    parameters, types = inspect.signature(make).parameters.values(), get_type_hints(make)
    known = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    for option, value in options.items():
        if option not in known:
            hint = did_you_mean(option, known) if known else "; it has none"
            if option in (parameter.name for parameter in parameters):
                hint = f": give the parameter {option!r} a default value, which makes it one"
            if option in ("rounds", "lr"):
                hint = ": rounds and rates of both stages are stated in schedule=Schedule(…)"
            raise FedUnlearnError(f"{what} has no option {option!r}{hint}", code="unknown")
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
