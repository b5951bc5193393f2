"""TensorBoard's event files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..measures.metrics import metric
from .tracking import Parameters, Point

_EVENTS = "events.out.tfevents.*"


class EventFile:
    """One event file each time a run starts or resumes; the library's default name would reveal the host."""

    def __init__(self, folder: Path, parameters: Parameters) -> None:
        from torch.utils.tensorboard import summary

        folder.mkdir(parents=True, exist_ok=True)
        self._folder, number = folder, len(list(folder.glob(_EVENTS))) + 1
        self._path = folder / f"events.out.tfevents.{number:08d}.fedunlearn"
        self._append(0, file_version="brain.Event:2")
        if number == 1:
            self._append(0, summary=summary.hparams(dict(parameters), {})[1])

    def last(self, name: str) -> int:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        return max(
            (
                event.step
                for path in self._folder.glob(_EVENTS)
                for event in EventFileLoader(str(path)).Load()
                if any(value.tag == name for value in event.summary.value)
            ),
            default=-1,
        )

    def log(self, points: Sequence[Point]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for step, scalars in points:
            values = [
                Summary.Value(tag=name, simple_value=value, metadata=_explained(name))
                for name, value in scalars.items()
            ]
            self._append(step, summary=Summary(value=values))

    def end(self, step: int, status: str, reason: str) -> None:
        from torch.utils.tensorboard import summary

        self._append(step, summary=summary.text("status", ": ".join(filter(None, (status, reason)))))

    def _append(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = Record(wall_time=time.time(), step=step, **content)
        with self._path.open("ab") as file:
            RecordWriter(file).write(record.SerializeToString())


def _explained(name: str) -> Any:
    """Return the description of a scalar in TensorBoard: the help text of its metric."""
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

    return SummaryMetadata(summary_description=metric(name.split("/")[1]).help)
