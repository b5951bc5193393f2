"""Reading and comparing the configurations of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """A nested value of a configuration; None if the key is missing, as in older runs."""
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """A configuration as values by path; empty tables are dropped."""
    values: dict[tuple[str, ...], Any] = {}
    for key, value in config.items():
        values |= flat(value, (*above, key)) if isinstance(value, Mapping) else {(*above, key): value}
    return values


def nested(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """The inverse of ``flat``."""
    config: dict[str, Any] = {}
    for path, value in values.items():
        table = config
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return config


def shared(configs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that all configurations share."""
    first, *others = [flat(config) for config in configs]
    return nested(
        {
            path: value
            for path, value in first.items()
            if all(path in other and other[path] == value for other in others)
        }
    )


def typical(configs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], Any]:
    """The most common value of every path that all configurations have."""
    values = [flat(config) for config in configs]
    found = {}
    for path in values[0]:
        if all(config.get(path) is not None for config in values):
            texts = [json.dumps(config[path], sort_keys=True) for config in values]
            found[path] = values[texts.index(max(texts, key=texts.count))][path]
    return found
