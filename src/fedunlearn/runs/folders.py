"""A folder that one process writes: its manifest announces changes, and a second writer ends the first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..core import FedUnlearnError, State
from .files import Cipher, explained, make_folder, tensor_bytes, write
from .manifest import (
    DERIVED,
    MANIFEST,
    METRICS,
    OWNER,
    Entry,
    Manifest,
    Verified,
    entry_of,
    parse,
    problems,
    read_raw,
    refuse,
    require_listed,
    tell_bad,
    without_spare,
)
from .states import state_bytes

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # Windows
    LOCK_EX, flock = 0, None  # type: ignore[assignment, misc]


class Folder:
    """A folder that this process has claimed with ``claim``; with a cipher, its tensors are encrypted."""

    def __init__(self, path: Path, manifest: Manifest, cipher: Cipher | None = None) -> None:
        self.path = path
        self.cipher = cipher
        self._manifest = manifest
        self._ours = {manifest.as_bytes()}

    def __contains__(self, name: str) -> bool:
        """Whether a file of this name has been written."""
        return name in self._manifest.files

    def tensors(self, tensors: Mapping[str, Tensor], **metadata: str) -> bytes:
        """The contents of a file with tensors, which says where it belongs."""
        return self._sealed(tensor_bytes(tensors, **metadata | {OWNER: self._manifest.identity}))

    def state(self, state: State, **metadata: str) -> bytes:
        """The contents of a file with a state, which says where it belongs."""
        return self._sealed(state_bytes(state, **metadata | {OWNER: self._manifest.identity}))

    def _sealed(self, content: bytes) -> bytes:
        return content if self.cipher is None else self.cipher.seal(content)

    def write(
        self,
        contents: Mapping[str, bytes] | None = None,
        *,
        remove: Iterable[str] = (),
        metrics: Entry | None = None,
    ) -> None:
        """Replace files in their order, then remove some; a kill in between does no damage.

        ``metrics`` is what the metrics file begins with from now on; the caller has written it already.
        """
        contents = contents or {}
        with self.alone():
            if self._manifest.pending:  # a write has failed
                self._put(settled(self.path, self._manifest))
            listed = {**self._manifest.files, **({METRICS: metrics} if metrics else {})}
            entries = {name: Entry.of(content) for name, content in contents.items()}
            changed = {name: entry for name, entry in entries.items() if listed.get(name) != entry}
            removed = [name for name in remove if name in listed or (self.path / name).exists()]
            if changed or removed:
                self._put(
                    replace(self._manifest, files=listed, pending={**changed, **dict.fromkeys(removed)})
                )
            for name in changed:
                write(self.path / name, contents[name], private=name.endswith(".safetensors"))
            for name in removed:
                with explained(self.path / name):
                    (self.path / name).unlink(missing_ok=True)
            after = {name: entry for name, entry in {**listed, **changed}.items() if name not in removed}
            if after != self._manifest.files or self._manifest.pending:
                adopted = tuple(name for name in self._manifest.adopted if name in {*after} - {*changed})
                self._put(replace(self._manifest, files=after, pending={}, adopted=adopted))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While this process writes, no other does; it stops here if another has claimed the folder since."""
        with _held(self.path):
            found = read_raw(self.path)
            if found not in self._ours:
                now, was = parse(found) if found else None, self._manifest.epoch
                happened = (
                    f"another process has claimed it since (epoch {now.epoch} after {was})"
                    if now and now.epoch > was
                    else f"its {MANIFEST} was changed or deleted"
                )
                raise FedUnlearnError(
                    f"this process no longer owns {self.path}: {happened}; it stops before it writes again, "
                    "and what it has written is intact",
                    code="in-use",
                )
            yield

    def _put(self, manifest: Manifest) -> None:
        """Write the next manifest; if that fails, the old or the new one is there."""
        new = replace(manifest, number=self._manifest.number + 1, previous=self._manifest.sha256)
        self._ours = {self._manifest.as_bytes(), new.as_bytes()}
        write(self.path / MANIFEST, new.as_bytes())
        self._manifest, self._ours = new, {new.as_bytes()}


def claim(
    path: Path,
    identity: str | None = None,
    *,
    cipher: Cipher | None = None,
    verified: Verified | None = None,
) -> Folder:
    """Open a folder for writing, so that no process that opened it before writes any more.

    A damaged folder is refused, and so is one whose files no manifest lists. Bad checkpoints are removed as
    long as there is a good one. ``identity`` is what the folder is for, from now on; None leaves it as it is.
    Hold the folder's lock.
    """
    with explained(path):
        make_folder(path)
    with _held(path):
        before, found = verified if verified and verified.holds(path) else problems(path)
        refuse(path, before, without_spare(before, found))
        if before is None:
            require_listed(path)
            before = Manifest()
        folder = Folder(path, before, cipher)
        owner = before.identity if identity is None else identity
        folder._put(replace(settled(path, before), identity=owner, epoch=before.epoch + 1))
    if found:
        tell_bad(path, found)
        folder.write(remove=found)
    return folder


def settled(path: Path, manifest: Manifest) -> Manifest:
    """A manifest without announcements: what has been done is listed, what has not is forgotten."""
    files = dict(manifest.files)
    for name, entry in manifest.pending.items():
        if entry is None and not (path / name).exists():
            files.pop(name, None)
        elif entry is not None and (path / name).exists() and entry_of(path / name) == entry:
            files[name] = entry
    for name in DERIVED & files.keys():
        if not (path / name).exists():
            del files[name]
    return replace(manifest, files=files, pending={})


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the folder itself, which nobody deletes as they might its lock file; not on Windows."""
    if not LOCK_EX:
        yield
        return
    with explained(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems lock no folders
            flock(descriptor, LOCK_EX)
        yield
    finally:
        os.close(descriptor)
