"""Trackers: listeners that log a run to TensorBoard or MLflow, by default to local files only."""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from .core import Event, FedUnlearnError, Metrics, Stage, Status
from .core.registry import Registry
from .measure.metrics import metric
from .record import public, read_json, read_metrics, write_json

Parameters = Mapping[str, str | int | float | bool]


class Point(NamedTuple):
    """All numbers of one finished round."""

    step: int
    scalars: Mapping[str, float]


class Store(Protocol):
    """Where a tracker keeps one run."""

    def last(self, name: str) -> int:
        """The last step of a scalar, or -1."""
        ...

    def log(self, points: Sequence[Point]) -> None: ...

    def end(self, step: int, status: str, reason: str) -> None: ...


class Tracking:
    """A listener that logs each round once, however often the run is stopped and resumed.

    A resumed run repeats the rounds after its checkpoint with identical results, so rounds in the store are
    skipped, and missing rounds are read from ``metrics.jsonl``. If the store fails, the tracker warns and
    stops; the run continues. Of successive requests, the last is tracked.
    """

    def __init__(
        self, name: str, folder: Path, begin: Callable[[Parameters], Store], *, pause: float = 0.0
    ) -> None:
        self._name, self._folder, self._begin, self._pause = name, folder, begin, pause
        self._store: Store | None = None
        self._last: dict[str, int] = {}
        self._waiting: list[tuple[str, Metrics]] = []
        self._wrote_at = 0.0
        self._broken = False

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or self._store is not None or self._waiting:
            self._attempt(lambda: self._finish(kind))

    def __call__(self, event: Event) -> None:
        if "request" in event.metrics:
            return
        training = event.phases[event.progress.phase].stage is Stage.PRETRAINING
        self._waiting.append((Stage.PRETRAINING if training else Stage.UNLEARNING, event.metrics))
        # The run's own rounds can wait, because its folder has them; those of shared pre-training cannot.
        if training or time.monotonic() - self._wrote_at >= self._pause:
            self._attempt(self._write)

    def _attempt(self, work: Callable[[], None]) -> None:
        if not self._broken:
            try:
                work()
            except Exception as problem:
                self._broken = True
                reason = (str(problem).splitlines() or [""])[0] or type(problem).__name__
                warnings.warn(
                    f"{self._name} has stopped ({reason}) and the run continues without it; add the missing "
                    f"rounds later with: fedunlearn resume {self._folder} --track {self._name}",
                    stacklevel=4,
                )
        if self._broken:
            self._waiting.clear()

    def _write(self, *, complete: bool = False) -> None:
        if self._store is None:
            self._store = self._begin(_parameters(self._folder))
        groups = {group for group, _ in self._waiting} | ({Stage.UNLEARNING} if complete else set())
        for group in groups - set(self._last):
            self._last[group] = self._store.last(f"{group}/round")
            if group == Stage.UNLEARNING and (self._folder / "metrics.jsonl").exists():
                self._waiting[:0] = [(group, row) for row in read_metrics(self._folder)]
        points, reached = [], dict(self._last)
        for group, row in self._waiting:
            step = int(row["elapsed"])
            # A failed round is not a step: the run repeats it.
            if step > reached[group] and not Status(str(row.get("status", "running"))).failed:
                points.append(Point(step, dict(_scalars(group, row))))
                reached[group] = step
        if points:
            self._store.log(points)
        self._last, self._wrote_at = reached, time.monotonic()
        self._waiting.clear()

    def _finish(self, kind: type[BaseException] | None) -> None:
        if kind is not None:
            self._last.clear()  # the interruption may have come between a write and its bookkeeping
        self._write(complete=True)
        assert self._store is not None
        outcome = self._folder / "outcome.json"
        if kind is not None:
            status, reason = "interrupted" if issubclass(kind, KeyboardInterrupt) else "error", ""
        elif outcome.exists():
            ended = read_json(outcome)
            status, reason = ended["status"], ended["reason"]
        else:
            status, reason = Status.DONE, ""
        self._store.end(max(self._last.get(Stage.UNLEARNING, 0), 0), status, reason)


tracker: Registry[Callable[..., Tracking]] = Registry("tracker")


def require(name: str) -> None:
    """Checks that a tracker exists and that its package is installed."""
    # MLflow sends telemetry unless it is disabled before the import.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        importlib.import_module(tracker.entry(name).about["imports"])
    except ImportError:
        raise FedUnlearnError(
            f"--track {name} needs a package that is not installed: pip install 'fedunlearn[{name}]'"
        ) from None


@tracker("tensorboard", imports="torch.utils.tensorboard.summary")
def tensorboard(folder: Path, *, runs: Path | None = None) -> Tracking:
    """Event files in the subfolder ``tensorboard`` of the run folder; ``runs`` is ignored."""
    require("tensorboard")
    return Tracking("tensorboard", folder, lambda parameters: _EventFile(folder / "tensorboard", parameters))


@tracker("mlflow", imports="mlflow.store.tracking.sqlalchemy_store")
def mlflow(folder: Path, *, runs: Path | None = None) -> Tracking:
    """``mlflow.db`` in ``runs`` (by default the run's parent), or the store in ``MLFLOW_TRACKING_URI``."""
    require("mlflow")
    root = (runs or folder.resolve().parent).resolve()
    name = folder.resolve().relative_to(root).as_posix()
    return Tracking(
        "mlflow", folder, lambda parameters: _MLflowRun(folder, root, name, parameters), pause=1.0
    )


class _EventFile:
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


class _MLflowRun:
    """A run in an MLflow store, identified by ``mlflow.json`` in the run folder."""

    def __init__(self, folder: Path, runs: Path, name: str, parameters: Parameters) -> None:
        from mlflow.exceptions import MlflowException
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from mlflow.tracking import MlflowClient

        path = folder / "mlflow.json"
        stored = read_json(path) if path.exists() else {}
        location: dict[str, str] = {}
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            # A run of a comparison keeps its store, even if it is resumed on its own.
            database = (
                Path(os.path.normpath(folder / stored["store"])) if "store" in stored else runs / "mlflow.db"
            )
            uri, location = f"sqlite:///{database}", {"store": os.path.relpath(database, folder)}
            # Tried first, because MLflow retries for minutes if the database cannot be opened.
            with closing(sqlite3.connect(database)) as connection:
                connection.execute("pragma schema_version")
            logging.getLogger("alembic").setLevel(logging.WARNING)
            logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
            # Created here, because MLflow would store paths of this machine in it.
            SqlAlchemyStore(uri, _ARTIFACTS)
        self._client = MlflowClient(tracking_uri=uri)
        try:
            self._id = str(stored["run_id"])
            self._client.update_run(self._id, status="RUNNING")
        except (KeyError, MlflowException):
            self._id = self._create(name, str(parameters.get("name", "fedunlearn")), parameters)
            write_json(path, {"run_id": self._id} | location)

    def _create(self, name: str, experiment: str, parameters: Parameters) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(experiment)
        parent = found.experiment_id if found else self._client.create_experiment(experiment, _ARTIFACTS)
        run_id = str(self._client.create_run(parent, run_name=name).info.run_id)
        values = [Param(key, str(value)) for key, value in parameters.items()]
        for start in range(0, len(values), 100):
            self._client.log_batch(run_id, params=values[start : start + 100])
        return run_id

    def last(self, name: str) -> int:
        return max((metric.step for metric in self._client.get_metric_history(self._id, name)), default=-1)

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        now, batch = int(1000 * time.time()), list[Any]()
        for step, scalars in points:
            # Keep a round in one batch if it fits, so that it is logged completely or not at all.
            if len(batch) + len(scalars) > _BATCH:
                self._send(batch)
                batch = []
            batch += [Metric(name, value, now, step) for name, value in scalars.items()]
        self._send(batch)

    def _send(self, batch: list[Any]) -> None:
        for start in range(0, len(batch), _BATCH):
            self._client.log_batch(self._id, batch[start : start + _BATCH])

    def end(self, step: int, status: str, reason: str) -> None:
        self._client.set_tag(self._id, "status", status)
        self._client.set_tag(self._id, "reason", reason)
        aborted = {"interrupted": "KILLED", "error": "FAILED"}
        ended = aborted.get(status) or ("FAILED" if Status(status).failed else "FINISHED")
        self._client.set_terminated(self._id, ended)


_EVENTS = "events.out.tfevents.*"
_ARTIFACTS = "mlflow-artifacts:/"
_BATCH = 1000


def _scalars(group: str, row: Metrics) -> Iterator[tuple[str, float]]:
    """The numbers of a row by name, except the elapsed rounds, which are the step."""
    for key, value in row.items():
        if key != "elapsed" and not isinstance(value, str):
            measure, _, client = key.partition(" ")
            name = f"{group}-clients/{measure}/{client}" if client else f"{group}/{measure}"
            yield re.sub(r"[^\w\-./ ]", ".", name), float(value)


def _explained(name: str) -> Any:
    """The description of a scalar in TensorBoard: the help text of its metric."""
    from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

    return SummaryMetadata(summary_description=metric(name.split("/")[1]).help)


def _parameters(folder: Path) -> Parameters:
    """The experiment of a run folder as one flat table."""
    path = folder / "experiment.json"
    return dict(_flat("", public(read_json(path)))) if path.exists() else {}


def _flat(prefix: str, table: Mapping[str, Any]) -> Iterable[tuple[str, str | int | float | bool]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{key}.", value)
        elif value is not None:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float) else json.dumps(value)
