"""The memory of a server: its completed steps, and which of them a script repeats."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import runs as record
from ..core import ClientId, FedUnlearnError, History, State, vectors
from ..core.errors import warn
from ..runs.running import finished
from .admission import OTHER_START, changed_data, differences
from .steps import Knowledge, Step
from .surroundings import Surroundings

LOG = logging.getLogger("fedunlearn")
JOURNAL, ORIGIN = "server.json", "omega0.safetensors"
"""The completed steps, and the model before the first one."""
ANSWERED = "answered.json"
"""The requests that ``forget`` has answered in a folder, in their order."""

Entry = Mapping[str, Any]
"""A completed step: its kind (train, forget or rejoin), its folder and its targets."""


class Memory:
    """What is known now, and the steps that led there.

    A script that repeats its calls repeats the steps of the folder, from the first one on; any other call is
    a new step after the last one.
    """

    def __init__(self, given: Knowledge, surroundings: Surroundings, folder: Path | None) -> None:
        self.known = self.given = given
        self.surroundings = surroundings
        self.entries = [] if folder is None else _entries(folder)
        self._origin = given.state
        if folder is not None:
            self._recall(folder)
        self.end = self.known if self.entries else None
        """What is known after the last recorded step, while a script may still repeat its calls."""
        self.left_out = {*self.known.forgotten}
        """Forgotten clients that this process was not told to forget."""

    @property
    def first(self) -> bool:
        """Whether the next call may be the first one of a script that is run again."""
        return self.end is not None and self.known.steps == len(self.entries)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A call that is refused or fails leaves no trace: a script goes on repeating its steps."""
        before = self.known, self.end, {*self.left_out}
        try:
            yield
        except BaseException:
            self.known, self.end, self.left_out = before
            raise

    def before(self, targets: tuple[ClientId, ...]) -> Knowledge:
        """What was known before these targets were forgotten; what is known if they were not."""
        if not {*targets} & {*self.known.forgotten}:
            return self.known
        earlier = self.known.without(targets)
        # A script that begins with a comparison is run again.
        return self.given if earlier is self.known and self.first else earlier

    def warned(self, step: Step) -> None:
        """Record that a step has warned of forgotten clients."""
        if step.returning:
            self.left_out.clear()

    def _recall(self, folder: Path) -> None:
        """Continue from the last recorded step."""
        if self.entries and (kept := folder / ORIGIN).exists():
            self._origin, _ = record.read_state(kept, self.surroundings.cipher)
            self.known = Knowledge(self._origin)
        for number, entry in enumerate(self.entries):
            place, state = folder / entry["step"], None
            if entry["step"]:
                if not finished(place):
                    raise FedUnlearnError(
                        f"{place}, a step that {JOURNAL} lists, is missing: restore it", code="damaged"
                    )
                record.verify(place)
                begun = record.read_json(place / "experiment.json")
                if begun["architecture"] != vectors.architecture(self.surroundings.module):
                    raise FedUnlearnError(
                        f"{place} has a model of another architecture: choose another folder",
                        code="other-model",
                    )
                unknown = begun["start"] != record.model_hash(self.known.state)
                if unknown and not number and entry["kind"] == "forget":
                    raise FedUnlearnError(
                        f"nobody kept the model with which {place} began: load it into the module, or choose "
                        "another folder",
                        code="missing",
                    )
                present, names = self.surroundings.data.keys(), begun["data"]["names"]
                if present and present.isdisjoint(names):
                    raise FedUnlearnError(
                        f"{place} was made with {', '.join(names[:5])}, none of which is here: choose "
                        "another folder",
                        code="occupied",
                    )
                last = max(place.glob("checkpoints/*.safetensors"))
                state, _ = record.read_state(last, self.surroundings.cipher)
            self.known = self.known.after(entry, folder, state, self.surroundings.data)
        if self.entries and self.entries[-1]["kind"] == "forget":  # a kill may have left rows
            self.erase_rows(folder, self.entries[-1]["targets"])

    def repeated(
        self, kind: str, make: Callable[[], Step], plan: Callable[[Step], Mapping[str, Any]]
    ) -> Path | None:
        """The folder of the step that a call repeats; for any other, what is known moves to the last step."""
        if self.end is None:
            return None
        if first := self.first:
            self.known, self.end = self.given, self.known
        end, step, entry = self.end, make(), self.entries[self.known.steps]
        targets, folder = step.targets, step.folder
        place = folder / str(entry["step"])
        differ, others = list[str](), ""
        same = [kind, [*targets]] == [entry["kind"], entry["targets"]]
        if same and entry["step"]:
            begun, config = record.read_json(place / "experiment.json"), step.config(plan(step))
            differ = differences(begun, config, history=False)
            others = changed_data(begun, config)
            if kind == "train" and (new := {*config["data"]["names"]}.difference(begun["data"]["names"])):
                others = f"{', '.join(sorted(new))} took no part in it"
            if not differ and not others and begun["start"] != config["start"]:
                raise FedUnlearnError(OTHER_START.format(place), code="occupied")
        if differ or others or not same:
            self.known, self.end = end, None
            last = self.entries[-1]["step"] or f"after {', '.join(self.entries[-1]['targets'])} joined anew"
            told = f"{kind} continues from the last step of {folder}, {last}"
            if differ and not others and kind == "train":
                why = f"because it does not repeat {place.name} ({'; '.join(differ)})"
                warn(f"{told}, {why}: to train from the start choose another folder", "continued")
            else:
                LOG.info("%s%s", told, others and f": it does not repeat {place.name} ({others})")
            return None
        if first and (later := sorted({*end.forgotten} - {*targets})):
            warn(
                f"this script repeats the steps of {folder} from the first one on: until it has "
                f"repeated them all, server.model may be one that still knows {', '.join(later)}",
                "repeated",
            )
        later_on = [each for each in self.entries[self.known.steps :] if each["kind"] == "rejoin"]
        rejoined = {client for each in later_on for client in each["targets"]}
        if kind == "forget" and (again := sorted(rejoined & {*targets})):
            warn(
                f"this call repeats {place.name}, from before {', '.join(again)} joined anew, and makes no "
                "new request: to forget them now, let forget be the first call of a new process",
                "repeated",
            )
        return place

    def complete(self, kind: str, made: Step, place: Path | None = None, state: State | None = None) -> None:
        """Move on after a step, and record it unless it is repeated."""
        folder, targets = made.folder, made.targets
        step = place.relative_to(folder).as_posix() if place else ""
        entry: Entry = {"kind": kind, "step": step, "targets": list(targets)}
        if self.end is None:
            entries, path = [*self.entries, entry], folder / JOURNAL
            with record.locked(folder / "lock", wait=True):
                if path.exists() and record.read_json(path) != self.entries:
                    raise FedUnlearnError(
                        f"another Server has completed a step in {folder} meanwhile: make this one "
                        "again, and repeat the call",
                        code="in-use",
                    )
                files = record.claim(folder, cipher=self.surroundings.cipher)
                if not self.known.steps:
                    self._origin = self.known.state
                origin = {} if ORIGIN in files else {ORIGIN: files.state(self._origin)}
                files.write({**origin, JOURNAL: record.json_bytes(entries)})
            self.entries = entries
        self.known = self.known.after(entry, folder, state, self.surroundings.data)
        self.warned(made)
        self.left_out -= {*targets}
        if self.known.steps == len(self.entries):
            self.end = None

    def erase_rows(self, folder: Path, clients: tuple[ClientId, ...]) -> None:
        """Remove what earlier steps recorded about forgotten clients from their checkpoints."""
        cipher = self.surroundings.cipher
        for step in sorted(folder.glob("*-train*")):
            changed = {}
            for path in sorted((step / "checkpoints").glob("*.safetensors")):
                state, metadata = record.read_state(path, cipher)
                left = History.from_tensors(state.memory).without(clients).tensors()
                if left.keys() != state.memory.keys():
                    changed[path.relative_to(step).as_posix()] = replace(state, memory=left), metadata
            if changed:
                with record.locked(step / "lock"):
                    files = record.claim(step, cipher=cipher)
                    files.write({name: files.state(left, **more) for name, (left, more) in changed.items()})


def _entries(folder: Path) -> list[Entry]:
    """The completed steps in a folder; an earlier version left nothing but their folders."""
    if (folder / ANSWERED).exists():
        raise FedUnlearnError(
            f"{folder} belongs to forget(…): use that, or choose another folder", code="occupied"
        )
    record.verify(folder)
    if (folder / JOURNAL).exists():
        return list(record.read_json(folder / JOURNAL))
    found, here, model = list[Entry](), [""], None
    while here:
        places = [*folder.glob(f"{len(found)}-train*"), *folder.glob(f"{len(found)}-forget-*")]
        begun = {place: record.read_json(place / "experiment.json") for place in places if finished(place)}
        here = [place.name for place, config in begun.items() if model in (None, config["start"])]
        if len(here) > 1:
            names = " and ".join(sorted(here))
            raise FedUnlearnError(
                f"which of {names} in {folder} counts? Move the others elsewhere", code="occupied"
            )
        for step in here:
            targets = begun[folder / step].get("request", {}).get("targets", [])
            found.append({"kind": "forget" if targets else "train", "step": step, "targets": targets})
            model = record.read_outcome(folder / step)["model_sha256"]
    return found
