"""A run in its folder: begun, or continued from its last checkpoint, and closed with its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from torch import nn

from ..core import Federation, Listener, Outcome, Phase, Request, Status, Witness, vectors
from ..driver import unlearn
from . import (
    RECOVERY_HINT,
    Cipher,
    Folder,
    Manifest,
    Recorder,
    claim,
    environment,
    fingerprint,
    json_bytes,
    locked,
    model_hash,
    read_json,
    read_metrics,
    read_outcome,
    tell_unverified,
)
from .manifest import Verified, problems, refuse, without_spare


def finished(folder: Path) -> bool:
    """Whether the run in a folder has ended, and not in failure."""
    return (folder / "outcome.json").exists() and not Status(read_outcome(folder)["status"]).failed


class RunFolder:
    """The folder of one run: locked, verified once, and claimed when it is to be written.

    The rule by which a run is admitted looks at ``state`` and ``begun`` before it claims the folder for an
    owner. ``create=False`` makes and locks a new folder only then.
    """

    def __init__(
        self,
        path: Path,
        *,
        cipher: Cipher | None = None,
        ended: Callable[[Path], bool] = finished,
        remedy: str = RECOVERY_HINT,
        wait: bool = False,
        create: bool = True,
    ) -> None:
        self.path = path
        self._cipher, self._remedy, self._wait = cipher, remedy, wait
        self._ended, self._create = ended, create
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._locked = self._create or self.path.exists()
            if self._locked:
                stack.enter_context(locked(self.path / "lock", wait=self._wait))
            manifest, found = self._verified = Verified(*problems(self.path))
            # A run that goes on can do without a bad checkpoint, as long as there is a good one.
            bad = found if self._ended(self.path) else without_spare(manifest, found)
            refuse(self.path, manifest, bad, self._remedy)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def manifest(self) -> Manifest | None:
        """The manifest as it was when the folder was opened."""
        return self._verified.manifest

    @property
    def state(self) -> Literal["new", "begun", "failed", "finished"]:
        """How far the run is; one without a checkpoint has not begun."""
        if finished(self.path):
            return "finished"
        if not any((self.path / "checkpoints").glob("*.safetensors")):
            return "new"
        return "failed" if (self.path / "outcome.json").exists() else "begun"

    @cached_property
    def begun(self) -> Any:
        """The settings that the run began with; a note says if no manifest vouches for them."""
        if self.manifest is None or not self.manifest.verified:
            tell_unverified([self.path])
        return read_json(self.path / "experiment.json")

    def outcome(self, identity: Mapping[str, Any]) -> Outcome:
        """The outcome of a run that has ended."""
        recorder = Recorder(self.path, fingerprint(identity), cipher=self._cipher, verified=True)
        assert recorder.progress is not None
        ended = read_outcome(self.path)
        return Outcome(
            recorder.progress.state,
            Status(ended["status"]),
            ended["reason"],
            tuple(read_metrics(self.path)),
            tuple(ended.get("unheard", ())),
            tuple(ended.get("warnings", ())),
            ended.get("guards"),
        )

    def claim(self, owner: str) -> Folder:
        """Open the folder for writing, for an owner."""
        if not self._locked:
            self._stack.enter_context(locked(self.path / "lock", wait=self._wait))
            self._locked = True
        return claim(self.path, owner, cipher=self._cipher, verified=self._verified)


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
    """Run the phases and record metrics, checkpoints, the final model and the outcome in a folder.

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
    """Write how a run ended, and its final model, with which the module is overwritten."""
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
