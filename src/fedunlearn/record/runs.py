"""The folder of a run: metrics, checkpoints that survive a kill, and how a run resumes from them."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ..core import Event, FedUnlearnError, Guarded, Metrics, Progress, State, Status
from .files import explained, make_folder, read_tensors, remove_partial, write_tensors

FORMAT = "fedunlearn checkpoint 2"
KEPT = 2
RECOVERY_HINT = "restore the file, or delete the run folder and run again"


def environment() -> dict[str, str]:
    """The environment that affects the bits and the duration of a run, besides configuration and seed."""
    return {
        "fedunlearn": version("fedunlearn"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
        "byteorder": sys.byteorder,
    }


def read_json(path: Path) -> Any:
    """Reads a file of a run folder written by ``write_json``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise FedUnlearnError(
            f"{path.parent} has no {path.name}, so it is not a run folder, or it is damaged: name another "
            "folder, or delete it and run again"
        ) from None
    except (ValueError, RecursionError) as error:
        raise FedUnlearnError(f"{path} is not JSON ({error}): {RECOVERY_HINT}") from None


def read_outcome(folder: Path) -> dict[str, Any]:
    """How the run in a folder ended."""
    ended = read_json(folder / "outcome.json")
    if (
        not isinstance(ended, dict)
        or ended.get("status") not in list(Status)
        or not isinstance(ended.get("model_sha256"), str)
        or not isinstance(ended.get("warnings", []), list)
    ):
        raise FedUnlearnError(f"{folder / 'outcome.json'} does not say how the run ended: {RECOVERY_HINT}")
    return ended


def public(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without paths, which do not affect results and may contain a person's name."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cleaned(item) for key, item in value.items() if key not in ("directory", "path")}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return {key: cleaned(value) for key, value in config.items()}


def read_metrics(folder: Path) -> list[Metrics]:
    """The rows that a run has written so far; an incomplete last line is ignored."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise FedUnlearnError(
            f"{folder} has no metrics.jsonl, so it is not a run folder: name the folder of a run"
        )
    rows: list[Metrics] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise FedUnlearnError(
                    f"{path}, line {number} is not JSON ({error}): restore it, or run again in another folder"
                ) from None
    return rows


def write_state(path: Path, state: State, **metadata: str) -> None:
    """Writes a state: parameters, memory, buffers, round and status."""
    tensors = {
        "params": state.params,
        **{f"memory {name}": value for name, value in state.memory.items()},
        **{f"buffer {name}": value for name, value in state.buffers.items()},
    }
    progress = {"round": state.round, "status": state.status, "reason": state.reason}
    write_tensors(path, tensors, **metadata, state=json.dumps(progress))


def read_state(path: Path) -> tuple[State, dict[str, str]]:
    """Reads a state and its metadata, written by ``write_state``."""
    tensors, metadata = read_tensors(path)
    if "state" not in metadata:
        raise FedUnlearnError(f"{path} has tensors, but not the state of a run: name another file")

    def named(prefix: str) -> dict[str, torch.Tensor]:
        return {
            name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
        }

    progress = json.loads(metadata.pop("state"))
    state = State(
        tensors["params"],
        progress["round"],
        memory=named("memory "),
        buffers=named("buffer "),
        status=Status(progress["status"]),
        reason=progress["reason"],
    )
    return state, metadata


class Recorder:
    """A listener that writes metrics and checkpoints to a folder, and finds where the run stopped.

    It appends metrics every round and saves a checkpoint every ``seconds`` and when it is closed. A killed
    run loses the work since the last checkpoint; its result does not change. Large checkpoints are saved
    less often.
    """

    def __init__(self, folder: Path, identity: str, *, seconds: float = 5.0) -> None:
        self._checkpoints = folder / "checkpoints"
        self._metrics = folder / "metrics.jsonl"
        self._identity = identity
        self._seconds = self._pause = seconds
        self._unsaved: tuple[Progress, int] | None = None
        self._saved_at = time.monotonic()
        self.progress, self._length = self._last_good()

    def __enter__(self) -> Recorder:
        with explained(self._metrics):
            for folder in (self._metrics.parent, self._checkpoints):
                make_folder(folder)
                remove_partial(folder)
            self._file = self._metrics.open("ab", buffering=0)
            self._file.truncate(self._length)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._save()

    def __call__(self, event: Event) -> None:
        line = (json.dumps(_finite(event.metrics), allow_nan=False) + "\n").encode()
        with explained(self._metrics):
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._length += len(line)
        self._unsaved = event.progress, self._length
        if time.monotonic() - self._saved_at >= self._pause:
            self._save()

    def _save(self) -> None:
        """Saves the state after the last round, and the length of the metrics file at that point."""
        if self._unsaved is None:
            return
        start = time.monotonic()
        with explained(self._metrics):
            os.fsync(self._file.fileno())
        progress, length = self._unsaved
        number = max((int(path.stem) for path in self._files()), default=0) + 1
        write_state(
            self._checkpoints / f"{number:08d}.safetensors",
            progress.state,
            format=FORMAT,
            identity=self._identity,
            phase=str(progress.phase),
            elapsed_rounds=str(progress.elapsed_rounds),
            metrics_bytes=str(length),
            heard=json.dumps(sorted(progress.heard)),
            finished=json.dumps(sorted(progress.finished)),
            **({} if progress.guarded == Guarded() else {"guarded": json.dumps(asdict(progress.guarded))}),
        )
        for path in self._files()[:-KEPT]:
            path.unlink()
        self._unsaved = None
        self._saved_at = time.monotonic()
        self._pause = max(self._seconds, 20 * (self._saved_at - start)) if self._seconds else 0.0

    def _files(self) -> list[Path]:
        return sorted(self._checkpoints.glob(f"{'[0-9]' * 8}.safetensors"))

    def _last_good(self) -> tuple[Progress | None, int]:
        """The newest undamaged checkpoint, and the length of the metrics file that belongs to it."""
        problem: FedUnlearnError | None = None
        for path in reversed(self._files()):
            try:
                state, metadata = read_state(path)
            except FedUnlearnError as error:
                problem = problem or error
                continue
            if metadata.get("identity") != self._identity:
                raise FedUnlearnError(
                    f"{path} belongs to another run (its configuration, data, torch or processor differs): "
                    "choose another folder"
                )
            if metadata.get("format") != FORMAT:
                warnings.warn(f"{path} was written by another version: the run starts again", stacklevel=3)
                return None, 0
            length = int(metadata["metrics_bytes"])
            if not self._metrics.exists() or self._metrics.stat().st_size < length:
                raise FedUnlearnError(
                    f"{self._metrics} is shorter than when {path.name} was saved: restore it, or run again "
                    "in another folder"
                )
            if problem is not None:
                warnings.warn(f"{problem}; the run continues from the previous checkpoint", stacklevel=3)
            progress = Progress(
                int(metadata["phase"]),
                int(metadata["elapsed_rounds"]),
                state,
                frozenset(json.loads(metadata["heard"])),
                frozenset(json.loads(metadata["finished"])),
                _guarded(json.loads(metadata.get("guarded", "{}"))),
            )
            return progress, length
        if problem is not None:
            raise problem
        return None, 0


def _guarded(read: dict[str, Any]) -> Guarded:
    seen = {digest: (client, model) for digest, (client, model) in read.pop("seen", {}).items()}
    return Guarded(seen=seen, **read)


def _finite(metrics: Metrics) -> Metrics:
    """The metrics without infinities and NaN, which JSON does not support."""
    return {key: value for key, value in metrics.items() if isinstance(value, str) or math.isfinite(value)}
