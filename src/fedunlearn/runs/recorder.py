"""The recorder: metrics and checkpoints that survive a kill, from which a run resumes."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..core import Callback, Event, FedUnlearnError, Guarded, Metrics, Progress
from ..core.errors import warn
from .files import Cipher, explained, make_folder, remove_partial
from .folders import Folder, claim
from .manifest import METRICS, Entry, usable
from .states import read_state

FORMAT = "fedunlearn checkpoint 2"
KEPT = 2


class Recorder(Callback):
    """Write metrics and checkpoints to a folder, and find where the run stopped.

    It appends metrics every round and saves a checkpoint every ``seconds`` and when it is closed. A killed
    run loses the work since the last checkpoint; its result does not change. Large checkpoints are saved
    less often.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        *,
        seconds: float = 5.0,
        files: Folder | None = None,
        cipher: Cipher | None = None,
        verified: bool = False,
    ) -> None:
        self._path = folder
        self._checkpoints = folder / "checkpoints"
        self._metrics = folder / METRICS
        self._identity = identity
        self._seconds = self._pause = seconds
        self._claimed = files
        self._cipher = files.cipher if files else cipher
        self._verified = verified or files is not None
        self._unsaved: tuple[Progress, Entry] | None = None
        self._saved_at = time.monotonic()
        self.progress, self._length = self._last_good()

    def __enter__(self) -> Self:
        self._folder = self._claimed or claim(self._path, self._identity, cipher=self._cipher)
        with explained(self._metrics):
            for folder in (self._path, self._checkpoints):
                make_folder(folder)
                remove_partial(folder)
            kept = self._metrics.read_bytes()[: self._length] if self._length else b""
            self._digest = hashlib.sha256(kept)
            spare = [path.relative_to(self._path).as_posix() for path in self._saved()[:-KEPT]]
            self._folder.write(metrics=Entry.of(kept), remove=spare)
            with self._folder.alone(), ExitStack() as stack:
                self._file = stack.enter_context(self._metrics.open("ab", buffering=0))
                self._file.truncate(self._length)
                stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            self._save()

    def record(self, event: Event) -> None:
        line = (json.dumps(_finite(event.metrics), allow_nan=False) + "\n").encode()
        with self._folder.alone(), explained(self._metrics):
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._length += len(line)
        self._digest.update(line)
        self._unsaved = event.progress, Entry(self._length, self._digest.hexdigest())
        if time.monotonic() - self._saved_at >= self._pause:
            self._save()

    def _save(self) -> None:
        """Save the state after the last round, and the length of the metrics file at that point."""
        if self._unsaved is None:
            return
        start = time.monotonic()
        with explained(self._metrics):
            os.fsync(self._file.fileno())
        progress, metrics = self._unsaved
        saved = self._saved()
        number = max((int(path.stem) for path in saved), default=0) + 1
        state = self._folder.state(
            progress.state,
            format=FORMAT,
            identity=self._identity,
            phase=str(progress.phase),
            elapsed_rounds=str(progress.elapsed_rounds),
            metrics_bytes=str(metrics.size),
            heard=json.dumps(sorted(progress.heard)),
            finished=json.dumps(sorted(progress.finished)),
            **({} if progress.guarded == Guarded() else {"guarded": json.dumps(asdict(progress.guarded))}),
        )
        self._folder.write(
            {f"checkpoints/{number:08d}.safetensors": state},
            remove=[path.relative_to(self._path).as_posix() for path in saved[: 1 - KEPT]],
            metrics=metrics,
        )
        self._unsaved = None
        self._saved_at = time.monotonic()
        self._pause = max(self._seconds, 20 * (self._saved_at - start)) if self._seconds else 0.0

    def _saved(self) -> list[Path]:
        return sorted(self._checkpoints.glob(f"{'[0-9]' * 8}.safetensors"))

    def _last_good(self) -> tuple[Progress | None, int]:
        """Return the newest undamaged checkpoint, and the length of the metrics file that belongs to it."""
        problem: FedUnlearnError | None = None
        found = self._saved() if self._verified else list(filter(usable(self._path), self._saved()))
        for path in reversed(found):
            try:
                state, metadata = read_state(path, self._cipher)
            except FedUnlearnError as error:
                problem = problem or error
                continue
            if metadata.get("identity") != self._identity:
                raise FedUnlearnError(
                    f"{path} belongs to another run (its configuration, data, torch or processor differs): "
                    "choose another folder",
                    code="occupied",
                )
            if metadata.get("format") != FORMAT:
                warn(f"{path} was written by another version: the run starts again", "begun-anew")
                return None, 0
            length = int(metadata["metrics_bytes"])
            if not self._metrics.exists() or self._metrics.stat().st_size < length:
                raise FedUnlearnError(
                    f"{self._metrics} is shorter than when {path.name} was saved: restore it, or run again "
                    "in another folder",
                    code="damaged",
                )
            if problem is not None:
                message = f"{problem}; the run continues from the previous checkpoint"
                warn(message, "older-checkpoint")
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
    if read.get("unmoved"):  # version 0.2 kept the sentence alone
        unmeasured = read["unmoved"].startswith("nothing is measured")
        read.setdefault("unmoved_code", "unmeasured" if unmeasured else "unmoved")
    return Guarded(seen=seen, **read)


def _finite(metrics: Metrics) -> Metrics:
    """Return the metrics without infinities and NaN, which JSON does not support."""
    return {key: value for key, value in metrics.items() if isinstance(value, str) or math.isfinite(value)}
