"""Run folders without manifests, or as somebody edited them by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedunlearn.runs import claim, read_tensors, write_tensors
from fedunlearn.runs.manifest import OWNER


def forget_manifest(folder: Path) -> None:
    """Makes a folder, and those in it, one that never had a manifest."""
    for path in folder.rglob("*.safetensors"):
        tensors, metadata = read_tensors(path)
        metadata.pop(OWNER, None)
        write_tensors(path, tensors, **metadata)
    for path in folder.rglob("manifest.json"):
        path.unlink()


def edit(folder: Path, contents: Mapping[str, str]) -> None:
    """Changes files of a run folder as the program would, so that only their contents are unusual."""
    claim(folder).write({name: text.encode() for name, text in contents.items()})


def drop(folder: Path, *names: str) -> None:
    """Removes files of a run folder as if they had never been written."""
    claim(folder).write(remove=names)
