"""Runs in an MLflow store."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ..core import Status
from ..runs import read_json, write_json
from .tracking import Parameters, Point

_ARTIFACTS = "mlflow-artifacts:/"
_BATCH = 1000


class MLflowRun:
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
