"""The manifest of a folder: what its files must hold, so that damage and mix-ups are noticed.

A manifest announces each change before it is made and confirms it afterwards. Between the two, a file may be
as before or as announced; so a kill leaves a folder that is verified, and everything else is damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from ..core import FedUnlearnError
from ..core.errors import warn
from .files import SEALED, json_bytes, read_tensors

FORMAT = "fedunlearn manifest 1"
MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
"""Grows between two manifests: what a manifest lists is its beginning, and readers stop there."""
DERIVED = frozenset({"evidence.json"})
"""May be deleted, not altered."""
CHECKPOINTS = f"checkpoints/{'[0-9]' * 8}.safetensors"
COVERED = (
    "experiment.json",
    "environment.json",
    "omega0.safetensors",
    "outcome.json",
    "evidence.json",
    "answered.json",
    "server.json",
    "model-[0-9]*.safetensors",
    CHECKPOINTS,
)
"""Files that commands read wherever they find them, so one that no manifest lists is refused."""
OWNER = "belongs_to"
"""What tensors say about the folder that they were written for."""
RECOVERY_HINT = "restore the file, or delete the run folder and run again"
ATTEMPTS = 20


class Entry(NamedTuple):
    """What a file must hold."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Entry:
        return cls(len(content), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What a folder holds, and what was about to change."""

    identity: str = ""
    """What the folder is for."""
    epoch: int = 0
    """How often it was opened for writing; only the last process that opened it may write."""
    number: int = 0
    previous: str = ""
    """SHA-256 of the manifest before this one."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    pending: Mapping[str, Entry | None] = field(default_factory=dict)
    """Announced changes; None removes a file."""
    adopted: tuple[str, ...] = ()
    """Files of version 0.1, which nobody verified; only 0.2 took such folders over."""

    def as_bytes(self) -> bytes:
        values = {
            "format": FORMAT,
            "identity": self.identity,
            "epoch": self.epoch,
            "number": self.number,
            "previous": self.previous,
            "files": {name: entry._asdict() for name, entry in self.files.items()},
            "pending": {name: entry and entry._asdict() for name, entry in self.pending.items()},
            "adopted": sorted(self.adopted),
        }
        return json_bytes({**values, "sha256": hashlib.sha256(json_bytes(values)).hexdigest()})

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.as_bytes()).hexdigest()

    @property
    def verified(self) -> bool:
        """Whether all files have been listed since they were written."""
        return not self.adopted


class Verified(NamedTuple):
    """A manifest, and by name the problems of files that differ from it."""

    manifest: Manifest | None
    problems: Mapping[str, str]

    def holds(self, folder: Path) -> bool:
        """Return whether the manifest is still the same."""
        return read_raw(folder) == (self.manifest and self.manifest.as_bytes())


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, without a look at its files; None if it has none."""
    content = read_raw(folder)
    if content is None:
        return None
    if (manifest := parse(content)) is None:
        raise FedUnlearnError(f"{folder / MANIFEST} {_DAMAGED}: {RECOVERY_HINT}", code="damaged")
    return manifest


def read_raw(folder: Path) -> bytes | None:
    """The bytes of a folder's manifest."""
    try:
        return (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FedUnlearnError(f"cannot read {folder / MANIFEST}: {error.strerror}", code="file") from None


def parse(content: bytes) -> Manifest | None:
    """A manifest from its bytes; None unless every byte is as it was written."""
    try:
        values = json.loads(content)
        manifest = Manifest(
            values["identity"],
            values["epoch"],
            values["number"],
            values["previous"],
            {name: Entry(**entry) for name, entry in values["files"].items()},
            {name: entry and Entry(**entry) for name, entry in values["pending"].items()},
            tuple(values["adopted"]),
        )
        return manifest if manifest.as_bytes() == content else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def verify(
    folder: Path, *, resuming: bool = False, only: str | None = None, remedy: str = RECOVERY_HINT
) -> Manifest | None:
    """Compare the files of a folder with its manifest and refuse a folder in which any of them differs.

    Return None for a folder without a manifest, such as a copy for reports. ``resuming`` puts up with bad
    checkpoints as long as there is a good one. ``only`` looks at one file. ``remedy`` is what to do.
    """
    manifest, found = problems(folder, only)
    refuse(folder, manifest, without_spare(manifest, found) if resuming else found, remedy)
    return manifest


def refuse(
    folder: Path, manifest: Manifest | None, found: Mapping[str, str], remedy: str = RECOVERY_HINT
) -> None:
    """Say what is wrong with the files of a folder, if anything is."""
    if not found:
        return
    listed = len(manifest.files) if manifest else 0
    if len(found) > 2 and 2 * len(found) > listed:
        raise FedUnlearnError(
            f"{folder / MANIFEST} does not describe the files beside it ({', '.join(found)}): either it or "
            f"they are of another run or time, or damaged; {remedy}",
            code="damaged",
        )
    name, problem = next(iter(found.items()))
    others = f"; also bad: {', '.join(list(found)[1:])}" if len(found) > 1 else ""
    if name in DERIVED:
        remedy = "delete it and audit the run again"
    raise FedUnlearnError(f"{folder / name} {problem}{others}: {remedy}", code="damaged")


def require_listed(folder: Path) -> None:
    """Refuse a folder whose files no manifest lists: it can be read, but not written."""
    if read_raw(folder) is None and covered(folder):
        raise FedUnlearnError(
            f"{folder} has no {MANIFEST}, so its files can be reported, but not continued or audited: "
            "restore it, or choose another folder",
            code="damaged",
        )


def without_spare(manifest: Manifest | None, found: Mapping[str, str]) -> dict[str, str]:
    """The problems without those of checkpoints that a run can do without, because a good one is left."""
    listed = [name for name in manifest.files if is_checkpoint(name)] if manifest else []
    if all(name in found for name in listed):
        return dict(found)
    return {name: problem for name, problem in found.items() if not is_checkpoint(name)}


def usable(folder: Path) -> Callable[[Path], bool]:
    """Say which checkpoints of a folder can be used, with a note about the others."""
    manifest, found = problems(folder)
    refuse(folder, manifest, without_spare(manifest, found))
    tell_bad(folder, found)
    return lambda path: path.relative_to(folder).as_posix() not in found


def tell_bad(folder: Path, found: Mapping[str, str]) -> None:
    """Note that checkpoints are left out."""
    for name, problem in found.items():
        warn(f"{folder / name} {problem}; the run continues from the checkpoint before", "older-checkpoint")


def is_checkpoint(name: str) -> bool:
    """Whether this is the name of a checkpoint."""
    return name.startswith("checkpoints/")


def problems(folder: Path, only: str | None = None) -> tuple[Manifest | None, dict[str, str]]:
    """The manifest of a folder, and by name what is wrong with files."""
    for attempt in range(ATTEMPTS):
        content = read_raw(folder)
        if content is None:
            return None, {MANIFEST: _MISSING} if _had_manifest(folder) else {}
        if (manifest := parse(content)) is None:
            return None, {MANIFEST: _DAMAGED}
        found = _compare(folder, manifest, only)
        # Files change after their manifest: where it is the same as before, nobody was writing.
        if not found or read_raw(folder) == content or attempt == ATTEMPTS - 1:
            break
    return manifest, found


_MISSING = "is missing, so the files beside it cannot be verified"
_DAMAGED = "is damaged, edited or of another version, so the files beside it cannot be verified"


def _compare(folder: Path, manifest: Manifest, only: str | None) -> dict[str, str]:
    listed = sorted({*manifest.files, *manifest.pending})
    found = {}
    for name in listed if only is None else [only]:
        allowed = [entry for entry in (manifest.files.get(name), manifest.pending.get(name)) if entry]
        if problem := _problem(folder, name, allowed, manifest):
            found[name] = problem
    return found | {
        name: "is not in the manifest: the manifest is older than it, or it comes from another run"
        for name in covered(folder)
        if name not in listed and name != METRICS and only in (None, name)
    }


def _problem(folder: Path, name: str, allowed: list[Entry], manifest: Manifest) -> str:
    """What is wrong with a file; empty if nothing is."""
    path = folder / name
    try:
        size = path.stat().st_size
        if not allowed:
            return ""
        if name == METRICS:
            if any(entry_of(path, entry.size) == entry for entry in allowed):
                return ""
            size = min(size, allowed[-1].size)
        elif any(entry.size == size for entry in allowed) and entry_of(path) in allowed:
            return ""
    except (FileNotFoundError, NotADirectoryError):
        removed = name in manifest.pending and manifest.pending[name] is None
        empty = name == METRICS and all(
            entry.size == 0 for entry in allowed
        )  # it is listed before it is created
        return "" if name not in manifest.files or removed or empty or name in DERIVED else "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    with suppress(FedUnlearnError):  # damaged: it says nothing about where it belongs
        if path.suffix == ".safetensors" and read_tensors(path)[1].get(OWNER) != manifest.identity:
            return "belongs to another run"
    if size != allowed[-1].size:
        return f"has {size:,} bytes, and {allowed[-1].size:,} were written"
    return "is not as it was written: it is damaged, edited, or of another run or time"


def entry_of(path: Path, size: int | None = None) -> Entry:
    """What a file holds, or its first bytes."""
    total, left = hashlib.sha256(), size
    length = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20 if left is None else min(1 << 20, left)):
            total.update(block)
            length += len(block)
            if left is not None:
                left -= len(block)
    return Entry(length, total.hexdigest())


def covered(folder: Path) -> list[str]:
    """The files of a folder that a manifest should list."""
    names = [*COVERED, METRICS]
    return sorted(path.relative_to(folder).as_posix() for name in names for path in folder.glob(name))


def _owner(path: Path) -> str | None:
    """The folder that tensors were written for; None for other files."""
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get(OWNER)
    except (SafetensorError, OSError):
        return None


def _had_manifest(folder: Path) -> bool:
    """Whether tensors in a folder say that it had a manifest."""
    places = ("omega0.safetensors", "model.safetensors", "model-[0-9]*.safetensors", CHECKPOINTS)
    return any(_owner(path) is not None or _sealed(path) for place in places for path in folder.glob(place))


def _sealed(path: Path) -> bool:
    """Whether a file is encrypted; only folders with a manifest hold such files."""
    try:
        with path.open("rb") as file:
            return file.read(len(SEALED)) == SEALED
    except OSError:
        return False


def tell_unverified(folders: Iterable[Path]) -> None:
    """Note that folders have no manifest, or one that took over files as they were."""
    if named := list(folders):
        where = str(named[0]) if len(named) == 1 else f"{named[0]} and {len(named) - 1} more"
        warn(
            f"no manifest says how the files in {where} were written: damage there is not noticed",
            "no-manifest",
        )
