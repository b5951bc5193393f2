"""What is wrong with a setting, in the words of the file that holds it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ..core import FedUnlearnError
from ..core.registry import did_you_mean


def check_options(what: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Options are the parameters that have a default; their annotations say what they take."""
    parameters, types = inspect.signature(make).parameters.values(), get_type_hints(make)
    known = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    for option, value in options.items():
        if option not in known:
            hint = did_you_mean(option, known) if known else "; it has none"
            raise FedUnlearnError(f"{what} has no option {option!r}{hint}")
        if isinstance(value, float) and not math.isfinite(value):
            raise FedUnlearnError(f"{what}, option {option} = {value!r}: it must be a finite number")
        try:
            TypeAdapter(types[option]).validate_python(value, strict=True)
        except ValidationError as error:
            raise FedUnlearnError(
                f"{what}, option {option} = {value!r}: {_message(error.errors()[0])}"
            ) from None


def first_problem(error: ValidationError, table: type[BaseModel] | None) -> str:
    """What is wrong with the values for a table, in words of its keys."""
    problem = error.errors()[0]
    place: list[str] = []
    for part in map(str, problem["loc"]):
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
    return f"{where} = {problem['input']!r}: {_message(problem)}"


def _message(problem: ErrorDetails) -> str:
    return problem["msg"][0].lower() + problem["msg"][1:]
