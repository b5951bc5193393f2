"""Files that are either whole or not there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..core import FedUnlearnError


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns the system's refusal to write into one sentence."""
    try:
        yield
    except OSError as error:
        raise FedUnlearnError(
            f"cannot write {path}: {error.strerror or error}; "
            "make room or choose another folder: nothing written before is lost"
        ) from error


def write(path: Path, content: bytes) -> None:
    """Replaces a file in one step that survives a crash: temporary file, fsync, rename, fsync of folder."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Writes JSON that people can read and compare."""
    write(path, (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """Writes safetensors with a checksum of tensors and metadata."""
    contiguous: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stored = {other.untyped_storage().data_ptr() for other in contiguous.values()}
        alone = tensor.detach().contiguous()
        # The format has no views: two tensors of one memory are written one by one.
        contiguous[name] = alone.clone() if alone.untyped_storage().data_ptr() in stored else alone
    write(path, save(contiguous, {**metadata, "sha256": _checksum(contiguous, metadata)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file written by ``write_tensors``; a damaged one is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FedUnlearnError(
            f"{path} is not a whole safetensors file ({error}): delete it or restore a copy"
        ) from error
    if "sha256" not in metadata:
        raise FedUnlearnError(f"{path} was not written by fedunlearn (it has no checksum): name another file")
    if metadata.pop("sha256") != _checksum(tensors, metadata):
        raise FedUnlearnError(f"{path} is damaged (its checksum does not match): delete it or restore a copy")
    return tensors, metadata


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    return hashlib.sha256((digest(tensors) + json.dumps(metadata, sort_keys=True)).encode()).hexdigest()


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Holds a folder for this process; the lock goes with the process, however it ends."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                raise FedUnlearnError(
                    f"another process is working in {path.parent}: wait for it, or choose another folder"
                ) from error
            warnings.warn(f"waiting for another process that works in {path.parent}", stacklevel=3)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
