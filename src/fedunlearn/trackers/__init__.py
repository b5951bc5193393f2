"""Trackers: callbacks that log a run to TensorBoard, MLflow or W&B, by default to local files only."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path

from ..core import FedUnlearnError
from ..core.registry import Registry
from .event_files import EventFile
from .mlflow_store import MLflowRun
from .tracking import Tracking
from .wandb_files import WandbRun

tracker: Registry[Callable[..., Tracking]] = Registry("tracker")


def require(name: str) -> None:
    """Check that a tracker exists and that its package is installed."""
    # MLflow sends telemetry, and W&B reports of errors, unless that is disabled before the import.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    try:
        importlib.import_module(tracker.entry(name).about["imports"])
    except ImportError:
        raise FedUnlearnError(
            f"--track {name} needs a package that is not installed: pip install 'fedunlearn[{name}]'",
            code="package",
        ) from None


@tracker("tensorboard", imports="torch.utils.tensorboard.summary")
def tensorboard(folder: Path, *, runs: Path | None = None) -> Tracking:
    """Event files in the subfolder ``tensorboard`` of the run folder; ``runs`` is ignored."""
    require("tensorboard")
    return Tracking("tensorboard", folder, lambda parameters: EventFile(folder / "tensorboard", parameters))


@tracker("mlflow", imports="mlflow.store.tracking.sqlalchemy_store")
def mlflow(folder: Path, *, runs: Path | None = None) -> Tracking:
    """``mlflow.db`` in ``runs`` (by default the run's parent), or the store in ``MLFLOW_TRACKING_URI``."""
    require("mlflow")
    root, name = _named(folder, runs)
    return Tracking("mlflow", folder, lambda parameters: MLflowRun(folder, root, name, parameters), pause=1.0)


@tracker("wandb", imports="wandb")
def wandb(folder: Path, *, runs: Path | None = None) -> Tracking:
    """Offline files of Weights & Biases in the subfolder ``wandb``; ``WANDB_MODE=online`` also sends them."""
    require("wandb")
    _, name = _named(folder, runs)
    return Tracking("wandb", folder, lambda parameters: WandbRun(folder, name, parameters))


def _named(folder: Path, runs: Path | None) -> tuple[Path, str]:
    """Return the folder of all runs, by default the run's parent, and the run's name in it."""
    root = (runs or folder.resolve().parent).resolve()
    return root, folder.resolve().relative_to(root).as_posix()
