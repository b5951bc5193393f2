"""How to reproduce a run or a comparison: its settings as TOML, and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .runs import Collection
from .settings import flat, nested, typical


def recipes(collection: Collection) -> list[tuple[str, str, str]]:
    """Name and content of each file of settings, and the command that runs it, if there is one."""
    if collection.comparison:
        return [_comparison(collection)]
    alone = len(collection.rows) == 1
    named = {"experiment" if alone else _file_name(row): runs for row, runs in collection.rows.items()}
    return [
        _script(name, run.config) if "kind" in run.config else _single(name, run.config)
        for name, runs in named.items()
        for run in runs[:1]
    ]


def _single(name: str, config: Mapping[str, Any]) -> tuple[str, str, str]:
    settings = {key: value for key, value in config.items() if key != "use"}
    return f"{name}.toml", toml(settings), f"fedunlearn run {name}.toml --out again{_own_code(config)}"


def _script(name: str, config: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{name}.json", json.dumps(config, indent=2, ensure_ascii=False), ""


def _own_code(config: Mapping[str, Any]) -> str:
    """The files of the user's own code, whose paths a report does not show."""
    return " --use YOUR_FILE.py" * len(config.get("use") or [])


def _comparison(collection: Collection) -> tuple[str, str, str]:
    """The most common settings, then the changes of each row; the row's name is its default method."""
    first = collection.runs[0].config
    if first.get("kind") == "server":
        return _script("comparison", first)
    rows = {
        row: {key: value for key, value in runs[0].config.items() if key != "use"}
        for row, runs in collection.rows.items()
    }
    seeds = {run.seed for run in collection.runs}
    for config in rows.values():
        config.pop("seed", None)
    common = typical(list(rows.values()))
    common.pop(("method",), None)
    differing = {
        row: nested(
            {path: value for path, value in flat(config).items() if value not in (None, common.get(path))}
        )
        for row, config in rows.items()
    }
    for row, changes in differing.items():
        if changes.get("method") == row:
            del changes["method"]
    text = toml({**nested(common), "seed": min(seeds), "methods": differing})
    several = f" --seeds {max(seeds) - min(seeds) + 1}" if len(seeds) > 1 else ""
    command = f"fedunlearn compare comparison.toml --out again{several}{_own_code(first)}"
    return "comparison.toml", text, command


def toml(config: Mapping[str, Any], above: tuple[str, ...] = ()) -> str:
    """A configuration as TOML, without the settings that are None."""
    values = [(key, value) for key, value in config.items() if not isinstance(value, Mapping)]
    tables = [(key, value) for key, value in config.items() if isinstance(value, Mapping)]
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in values if value is not None]
    for key, table in tables:
        path = (*above, key)
        body = toml(table, path)
        # A table of tables needs no heading; an empty table has a meaning only among the methods.
        bare = body.startswith("\n[") or (not body and above != ("methods",))
        lines.append(body if bare else f"\n[{'.'.join(map(_key, path))}]\n{body}")
    return "".join(lines)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    # JSON and TOML write strings, numbers and booleans in the same way.
    return json.dumps(value, ensure_ascii=False)


def _file_name(row: str) -> str:
    return re.sub(r"[^\w.-]+", "_", row)
