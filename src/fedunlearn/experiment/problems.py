"""What is wrong with a setting, in the words of the file that holds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ..core import FedUnlearnError
from ..core.registry import did_you_mean

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
                f"{what}, option {option} = {_brief(value)}: it must be between {-LARGEST:g} and {LARGEST:g}"
            )
        try:
            TypeAdapter(types[option]).validate_python(value, strict=True)
        except ValidationError as error:
            raise FedUnlearnError(
                f"{what}, option {option} = {_brief(value)}: {_message(error.errors()[0])}"
            ) from None


def first_problem(error: ValidationError, table: type[BaseModel] | None) -> str:
    """What is wrong with the values for a table, in words of its keys."""
    problem = error.errors()[0]
    place: list[str] = []
    for part in [part for part in problem["loc"] if isinstance(part, str)]:
        # What follows a field that is no table is pydantic's name for one of its types.
        if table is None:
            break
        place.append(part)
        if part not in table.model_fields:
            return f"unknown key {'.'.join(place)!r}{did_you_mean(part, table.model_fields)}"
        annotation = table.model_fields[part].annotation
        kinds = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        table = next((one for one in kinds if issubclass(one, BaseModel)), None)
    where = ".".join(place) or "the whole"
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"{where} = {_brief(problem['input'])}: {_message(problem)}"


def _message(problem: ErrorDetails) -> str:
    said = problem["msg"].removeprefix("Value error, ")
    return said[0].lower() + said[1:]


def _in_range(value: object) -> bool:
    if isinstance(value, int | float):
        return abs(value) <= LARGEST  # not true of NaN
    return not isinstance(value, list) or all(map(_in_range, value))


def _brief(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python writes, or more levels
        text = f"(a very large {type(value).__name__})"
    return text if len(text) <= 80 else f"{text[:77]}..."
