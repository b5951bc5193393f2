"""Run folders as an earlier version wrote them, or as somebody edited them by hand."""

from __future__ import annotations

from pathlib import Path

from fedunlearn.record import read_tensors, write_tensors
from fedunlearn.record.manifest import OWNER


def forget_manifest(folder: Path) -> None:
    """Makes a folder, and those in it, one that was written before there were manifests."""
    for path in folder.rglob("*.safetensors"):
        tensors, metadata = read_tensors(path)
        metadata.pop(OWNER, None)
        write_tensors(path, tensors, **metadata)
    for path in folder.rglob("manifest.json"):
        path.unlink()
