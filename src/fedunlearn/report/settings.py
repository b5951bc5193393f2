"""Configurations of runs: single values, and what several have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def setting(config: Mapping[str, Any], *keys: str) -> Any:
    """A value deep in a configuration; None where an older one has no such key."""
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flat(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """A configuration as values by their path; empty tables vanish."""
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
    """What all configurations have in common."""
    first, *others = [flat(config) for config in configs]
    return nested(
        {
            path: value
            for path, value in first.items()
            if all(path in other and other[path] == value for other in others)
        }
    )


def typical(configs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], Any]:
    """For every path that all configurations have, the value that most of them have there."""
    values = [flat(config) for config in configs]
    found = {}
    for path in values[0]:
        if all(of.get(path) is not None for of in values):
            texts = [json.dumps(of[path], sort_keys=True) for of in values]
            found[path] = values[texts.index(max(texts, key=texts.count))][path]
    return found
