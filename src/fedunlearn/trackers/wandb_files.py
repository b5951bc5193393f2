"""Runs in the files of Weights & Biases, which leave this machine only where ``WANDB_MODE`` says so."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import Status
from ..runs import read_json, write_json
from .tracking import Parameters, Point


class WandbRun:
    """A W&B run, identified by ``wandb.json`` in the run folder; each start adds a file to ``wandb``.

    Training and unlearning count their rounds separately, but W&B wants one rising step. ``GROUP/elapsed`` is
    therefore the axis of a group, and the step counts all rounds of all files.
    """

    def __init__(self, folder: Path, name: str, parameters: Parameters) -> None:
        import wandb

        path = folder / "wandb.json"
        stored = read_json(path) if path.exists() else {}
        self._last: dict[str, int] = {}
        self._next = 0
        for row in _rows(folder / "wandb", stored.get("run_id", "")):
            self._note(row)
            self._next = max(self._next, int(row["_step"]) + 1)
        mode: Any = os.environ.get("WANDB_MODE") or "offline"
        project = os.environ.get("WANDB_PROJECT") or str(parameters.get("name", "fedunlearn"))
        self._run = wandb.init(
            mode=mode,
            id=stored.get("run_id"),
            resume="allow" if mode == "online" else None,
            project=re.sub(r"[/\\#?%:]", "-", project),
            name=name,
            dir=str(folder),
            config=dict(parameters),
            reinit="create_new",
            settings=wandb.Settings(
                # Nothing about the machine, its user and the code.
                host="",
                username="",
                program="",
                disable_git=True,
                disable_code=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
                # Nothing in the terminal.
                console="off",
                silent=True,
                symlink=False,
            ),
        )
        self._files = folder / "wandb"
        self._file = Path(self._run.settings.sync_file)
        write_json(path, {"run_id": self._run.id})

    def last(self, name: str) -> int:
        return self._last.get(name, -1)

    def log(self, points: Sequence[Point]) -> None:
        for step, scalars in points:
            group = next(iter(scalars)).partition("/")[0].removesuffix("-clients")
            if f"{group}/round" not in self._last:
                for names in (f"{group}/*", f"{group}-clients/*"):
                    self._run.define_metric(names, step_metric=f"{group}/elapsed")
            row = {f"{group}/elapsed": step, **scalars}
            # If an interruption comes before the next line, W&B drops the second row with the same step.
            self._run.log(row, step=self._next, commit=True)
            self._next += 1
            self._note(row)

    def _note(self, row: Mapping[str, Any]) -> None:
        """Remember the step of each scalar: W&B writes later than it says."""
        (step,) = (int(value) for name, value in row.items() if name.endswith("/elapsed"))
        self._last |= dict.fromkeys(row, step)

    def end(self, step: int, status: str, reason: str) -> None:
        self._run.summary.update({"status": status, "reason": reason})
        failed = status in ("interrupted", "error") or Status(status).failed
        self._run.finish(exit_code=int(failed))
        # W&B writes its file in another process, and does not wait for it. A run that goes on reads the file.
        patience = time.monotonic() + 30
        while self._file.exists() and not any(record.HasField("exit") for record in _records(self._file)):
            if time.monotonic() > patience:
                raise TimeoutError(f"{self._file.name} is incomplete")
            time.sleep(0.01)
        for logs in self._files.glob("*run-*/logs"):  # they name paths
            shutil.rmtree(logs, ignore_errors=True)


def _rows(folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that earlier starts of a run have logged."""
    for path in sorted(folder.glob(f"*run-*/run-{run_id}.wandb")):
        for record in _records(path):
            if record.HasField("history"):
                items = record.history.item
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(path: Path) -> Iterator[Any]:
    """Yield the records of a W&B file, up to a kill that cut it off."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    try:
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            yield Record.FromString(data)
    except AssertionError:
        return
    finally:
        store.close()
