"""The rule by which a step takes up a folder, continues in it, or gets another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ..core import FedUnlearnError
from ..core.errors import warn
from ..runs import Cipher
from ..runs.running import RunFolder

GROWING = ("training", "participation", "guards")
"""Settings that versions add to."""
ADDED = ("floor",)
"""Settings that version 0.2 did not have."""
ANSWERED_OTHERWISE = (
    "{} has answered this request with other settings ({}), and the model given is its result: repeat the "
    "request with those settings, or give the model from before it"
)
OTHER_START = (
    "{} was begun with other starting weights: seed the model's initialisation with torch.manual_seed, or "
    "choose another folder"
)


@contextmanager
def admitted(
    base: Path, config: Mapping[str, Any], answered: bool, cipher: Cipher | None
) -> Iterator[tuple[RunFolder, dict[str, Any]]]:
    """Open the folder of a step; with the settings that the step began with.

    A step that was stopped keeps the clients that it began with. Other settings or other data get a folder of
    their own, and so do new clients once the step has ended. A request that was answered is only repeated.
    """
    for number in range(1, 1000):
        place = base if number == 1 else base.with_name(f"{base.name}-{number}")
        with RunFolder(place, cipher=cipher, create=False) as run:
            if (begun := _continued(run, config, answered)) is not None:
                yield run, begun
                return
    raise FedUnlearnError(f"{base} has failed too often: choose another folder", code="occupied")


def _continued(run: RunFolder, config: Mapping[str, Any], answered: bool) -> dict[str, Any] | None:
    """The settings to go on with in a folder; None where the step needs another one."""
    place, state = run.path, run.state
    if state == "new":
        if answered:
            _refuse(ANSWERED_OTHERWISE, place.parent, "another method")
        return dict(config)
    begun: dict[str, Any] = run.begun
    new = sorted({*config["data"]["names"]}.difference(begun["data"]["names"])) if not answered else []
    if differ := differences(begun, config):
        if answered and state == "finished":
            _refuse(ANSWERED_OTHERWISE, place.parent, "; ".join(differ))
    elif changed := changed_data(begun, config):
        if state == "begun":
            warn(f"{changed} since {place} was begun, so it begins anew", "begun-anew")
    elif begun["start"] != config["start"]:
        if state != "failed":
            _refuse(OTHER_START, place)
    elif state != "finished" or not new:
        if new:
            told = f"{place} continues with the clients that it began with, without {', '.join(new)}"
            warn(told, "continued")
        return begun
    return None


def _refuse(sentence: str, *facts: object) -> NoReturn:
    raise FedUnlearnError(sentence.format(*facts), code="occupied")


def differences(begun: Mapping[str, Any], config: Mapping[str, Any], *, history: bool = True) -> list[str]:
    """Which settings differ, and how; those that only one of two versions knows are not compared."""
    old, new = _flat(begun), _flat(config)
    return [
        f"{key} was {old.get(key, 'not set')!s:.60} and is {new.get(key, 'not set')!s:.60}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and (history or key != "history")
        and (key in old or key not in ADDED)
        and ((key in old and key in new) or not {key.partition(".")[0]} <= {*GROWING} & {*begun} & {*config})
    ]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by one name each, without those that tell no step from another."""
    found: dict[str, Any] = {}
    for key in config.keys() - {"data", "start", "name"}:
        nested = config[key] if isinstance(config[key], Mapping) else {"": config[key]}
        found |= {f"{key}.{name}".rstrip("."): value for name, value in nested.items()}
    return found


def changed_data(begun: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Says whose examples or evaluation sets are others than before, of the clients that are still there."""
    for kind in ("sha256", "evaluations"):
        before, now = begun["data"].get(kind, {}), config["data"][kind]
        for client in sorted(before.keys() & now.keys()):
            if before[client] != now[client]:
                return f"the data of client {client!r} has changed"
    return ""
