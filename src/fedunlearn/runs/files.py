"""Atomic, checksummed files and folder locks."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from ..core import FedUnlearnError
from ..core.errors import warn
from ..core.files import sync_folder
from ..core.hashes import content_hash, digest

SEALED = b"fedunlearn sealed"
"""How the content of an encrypted file begins."""


class Cipher(Protocol):
    """Encrypts what a folder holds of models, and decrypts it; what was altered is refused."""

    def seal(self, content: bytes) -> bytes: ...

    def open(self, content: bytes) -> bytes: ...


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one clear sentence."""
    try:
        yield
    except OSError as error:
        space = "free some space or " if error.errno == errno.ENOSPC else ""
        raise FedUnlearnError(
            f"cannot write {path}: {error.strerror or error}; "
            f"{space}choose another folder; the files written so far are intact",
            code="file",
        ) from error


def make_folder(path: Path) -> None:
    """Create a folder that only its owner can access, unless it exists."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file atomically and durably: temporary file, fsync, rename, fsync of the folder.

    Only its owner can read a private file.
    """
    if path.is_dir():
        raise FedUnlearnError(f"{path} is a folder: name a file")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        try:
            with open(temporary, "xb", opener=_open_private if private else None) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                temporary.replace(path)
            except FileNotFoundError:
                # Another process locked the folder and removed the temporary file as a leftover.
                write(path, content, private=private)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def remove_partial(folder: Path) -> None:
    """Remove partial files of killed processes; call it only while holding the folder's lock."""
    for partial in folder.glob(f".*.{'[0-9a-f]' * 16}.partial"):
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON with sorted keys, for reading and comparing."""
    write(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return what ``write_json`` writes."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Write a private safetensors file with a checksum of tensors and metadata."""
    write(path, tensor_bytes(tensors, **metadata), private=True)


def tensor_bytes(tensors: Mapping[str, Tensor], **metadata: str) -> bytes:
    """Return what ``write_tensors`` writes."""
    contiguous: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stored = {other.untyped_storage().data_ptr() for other in contiguous.values()}
        whole = tensor.detach().contiguous()
        # The format does not allow tensors that share memory, so they are copied.
        contiguous[name] = whole.clone() if whole.untyped_storage().data_ptr() in stored else whole
    return save(contiguous, {**metadata, "sha256": _checksum(contiguous, metadata)})


def read_tensors(path: Path, cipher: Cipher | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors and metadata written by ``write_tensors``; raise an error if the file is damaged."""
    try:
        if cipher is not None:
            content = cipher.open(path.read_bytes())
            tensors, metadata = load(content), _metadata(content)
        else:
            tensors, metadata = read_unverified(path)
    except (SafetensorError, OSError) as error:
        raise FedUnlearnError(
            f"{path} is not a complete safetensors file ({error}): delete it or restore a copy",
            code="damaged",
        ) from error
    if "sha256" not in metadata:
        raise FedUnlearnError(f"{path} was not written by fedunlearn (it has no checksum): name another file")
    if metadata.pop("sha256") != _checksum(tensors, metadata):
        raise FedUnlearnError(
            f"{path} is damaged (its checksum does not match): delete it or restore a copy", code="damaged"
        )
    return tensors, metadata


def read_unverified(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and metadata of any safetensors file.

    The library opens a file twice: if another process has replaced it in between, it is read again.
    """
    while True:
        before = path.stat()
        problem: SafetensorError | None = None
        try:
            with safe_open(path, framework="pt") as file:
                metadata = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, RuntimeError) as error:
            problem = SafetensorError(str(error))
        now = path.stat()
        if (now.st_ino, now.st_mtime_ns) == (before.st_ino, before.st_mtime_ns):
            if problem is not None:
                raise problem
            return tensors, metadata


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, which its library reads from files only."""
    length = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + length]).get("__metadata__") or {})


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    return content_hash((digest(tensors) + json.dumps(metadata, sort_keys=True)).encode())


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a folder; the operating system releases it when the process ends."""
    lock = FileLock(path)
    with explained(path):
        make_folder(path.parent)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            if not wait:
                raise FedUnlearnError(
                    f"another process is using {path.parent}: wait for it, or choose another folder",
                    code="in-use",
                ) from error
            warn(f"waiting for another process that is using {path.parent}", "waiting")
            lock.acquire()
    try:
        with explained(path):
            remove_partial(path.parent)
        yield
    finally:
        lock.release()
