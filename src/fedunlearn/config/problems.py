"""What is wrong with a setting, in the words of the file that holds it."""

from __future__ import annotations

from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError

from ..core import did_you_mean
from .options import brief, message


def first_problem(error: ValidationError, table: type[BaseModel] | None) -> str:
    """What is wrong with the values for a table, in words of its keys."""
    problem = error.errors()[0]
    place: list[str] = []
    keyed = False
    for part in [part for part in problem["loc"] if isinstance(part, str)]:
        if keyed:
            place.append(part)
            keyed = False
            continue
        # What follows a field that is no table is pydantic's name for one of its types.
        if table is None:
            break
        place.append(part)
        if part not in table.model_fields:
            above = ".".join(place[:-1])
            known = [f"{above}.{field}" if above else field for field in table.model_fields]
            return f"unknown key {'.'.join(place)!r}{did_you_mean('.'.join(place), known)}"
        annotation = table.model_fields[part].annotation
        keyed = get_origin(annotation) is dict and problem["loc"][-1] != "[key]"
        kinds = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        table = next((one for one in kinds if issubclass(one, BaseModel)), None)
    where = ".".join(place) or "the whole"
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"{where} = {brief(problem['input'])}: {message(problem)}"
