"""A run in its folder: begun, or continued from its last checkpoint, and closed with its outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..core import Federation, Listener, Outcome, Phase, Request, Status, Witness, vectors
from ..driver import unlearn
from . import (
    Cipher,
    Folder,
    Recorder,
    environment,
    fingerprint,
    json_bytes,
    model_hash,
    read_metrics,
    read_outcome,
)


def finished(folder: Path) -> bool:
    """Whether the run in a folder has ended, and not in failure."""
    return (folder / "outcome.json").exists() and not Status(read_outcome(folder)["status"]).failed


def run_in(
    folder: Folder,
    identity: Mapping[str, Any],
    module: nn.Module,
    phases: Sequence[Phase],
    request: Request,
    federation: Federation,
    *,
    listeners: Sequence[Listener] = (),
    witnesses: Sequence[Listener] = (),
    checkpoint_seconds: float = 5.0,
    **options: Any,
) -> Outcome:
    """Runs the phases and records metrics, checkpoints, the final model and the outcome in a folder.

    ``identity`` holds everything that decides the result: a checkpoint of another one is refused. ``module``
    is overwritten with the final model; ``options`` go to ``unlearn``. ``witnesses`` run before a
    round is recorded; they may run twice after a crash, and never miss a round.
    """
    made_with = environment()
    recording = Recorder(folder.path, fingerprint(identity), seconds=checkpoint_seconds, files=folder)
    with recording as recorder:
        if recorder.progress is None:
            folder.write({"environment.json": json_bytes(made_with)})
        outcome = unlearn(
            phases,
            request,
            federation,
            listeners=(*map(Witness, witnesses), recorder, *listeners),
            resume=recorder.progress,
            **options,
        )
    conclude(folder, module, outcome)
    return outcome


def conclude(folder: Folder, module: nn.Module, outcome: Outcome) -> None:
    """Writes how a run ended, and its final model, with which the module is overwritten."""
    vectors.load(module, outcome.state)
    ended = {
        "status": outcome.status,
        "reason": outcome.reason,
        "model_sha256": model_hash(outcome.state),
        "unheard": list(outcome.unheard),
        **({"warnings": list(outcome.warnings)} if outcome.warnings else {}),
        **({} if outcome.guards is None else {"guards": dict(outcome.guards)}),
    }
    folder.write(
        {"model.safetensors": folder.tensors(module.state_dict()), "outcome.json": json_bytes(ended)}
    )


def concluded(folder: Path, identity: Mapping[str, Any], cipher: Cipher | None = None) -> Outcome:
    """The outcome of a run that has ended, from its folder."""
    progress = Recorder(folder, fingerprint(identity), cipher=cipher).progress
    assert progress is not None
    ended = read_outcome(folder)
    return Outcome(
        progress.state,
        Status(ended["status"]),
        ended["reason"],
        tuple(read_metrics(folder)),
        tuple(ended.get("unheard", ())),
        tuple(ended.get("warnings", ())),
        ended.get("guards"),
    )
