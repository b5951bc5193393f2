"""A run in its folder: begun, or continued from its last checkpoint, and closed with its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from .core import Federation, Listener, Outcome, Phase, Request, Status, vectors
from .driver import unlearn
from .record import (
    Recorder,
    environment,
    fingerprint,
    model_hash,
    read_outcome,
    write_json,
    write_tensors,
)


def finished(folder: Path) -> bool:
    """Whether the run in a folder has ended, and not in failure."""
    return (folder / "outcome.json").exists() and not Status(read_outcome(folder)["status"]).failed


def run_in(
    folder: Path,
    identity: Mapping[str, Any],
    module: nn.Module,
    phases: Sequence[Phase],
    request: Request,
    federation: Federation,
    *,
    listeners: Sequence[Listener] = (),
    checkpoint_seconds: float = 5.0,
    **options: Any,
) -> Outcome:
    """Runs the phases and records metrics, checkpoints, the final model and the outcome in a folder.

    ``identity`` holds everything that decides the result: a checkpoint of another one is refused. ``module``
    is overwritten with the final model; ``options`` go to ``unlearn``.
    """
    made_with = environment()
    with Recorder(folder, fingerprint(identity), seconds=checkpoint_seconds) as recorder:
        if recorder.progress is None:
            write_json(folder / "environment.json", made_with)
        outcome = unlearn(
            phases,
            request,
            federation,
            listeners=(recorder, *listeners),
            resume=recorder.progress,
            **options,
        )
    vectors.load(module, outcome.state)
    write_tensors(folder / "model.safetensors", module.state_dict())
    write_json(
        folder / "outcome.json",
        {
            "status": outcome.status,
            "reason": outcome.reason,
            "model_sha256": model_hash(outcome.state),
            "unheard": list(outcome.unheard),
            **({"warnings": list(outcome.warnings)} if outcome.warnings else {}),
        },
    )
    return outcome
