"""A training whose model is kept: carried out once, then taken from the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..client.data import ClientData
from ..core import ClientId, FedUnlearnError, Listener, Phase, Progress, Request, State, history
from ..core.errors import warn
from ..data.sources import user_cache
from ..driver import Participation, unlearn
from ..methods import Pretraining
from ..runs import Manifest, Recorder, digest, fingerprint, model_hash, read_state, tell_unverified
from ..runs.running import RunFolder
from .setup import Setting, arithmetic

PRETRAINING_VERSION = 2
"""Raised whenever a change of the code changes the bits of a training, so that no old model is reused."""


@dataclass(frozen=True)
class CachedTraining:
    """One phase on a federation; every run for which the same things decide it shares its model.

    The number of rounds is not one of them: more rounds continue where fewer ended; fewer rounds start anew
    beside them.
    """

    setting: Setting
    clients: Mapping[ClientId, ClientData]
    request: Request
    phase: Phase
    seed: int
    identity: str
    kind: str
    """The subfolder of the cache."""

    @property
    def folder(self) -> Path:
        return cache_directory() / self.kind / self.identity[:20]

    @property
    def kept(self) -> bool:
        """Whether the model is in the cache."""
        return self._file.exists()

    @property
    def _file(self) -> Path:
        return self.folder / f"model-{self.phase.rounds}.safetensors"

    def model(
        self,
        listeners: Sequence[Listener] = (),
        *,
        checkpoint_seconds: float = 5.0,
        workers: int | None = None,
    ) -> State:
        """The trained model; a training that was cut off continues."""
        folder, rounds = self.folder, self.phase.rounds
        remedy = f"delete {folder}, and its model is trained again"
        with RunFolder(folder, ended=lambda _: self.kept, remedy=remedy, wait=True) as run:
            self._require_own(run.manifest, remedy)
            if not self.kept:
                self._announce_history()
                files = run.claim(self.identity)
                recorder = Recorder(folder, self.identity, seconds=checkpoint_seconds, files=files)
                if recorder.progress is not None and recorder.progress.elapsed_rounds > rounds:
                    recorder = Recorder(
                        folder / f"{rounds}-rounds", self.identity, seconds=checkpoint_seconds
                    )
                with recorder:
                    trained = self.train((recorder, *listeners), workers=workers, resume=recorder.progress)
                files.write({self._file.name: files.state(trained)})
            state, _ = read_state(self._file)
        return state

    def train(
        self,
        listeners: Sequence[Listener] = (),
        *,
        workers: int | None = None,
        resume: Progress | None = None,
    ) -> State:
        """The trained model, without a look at the cache."""
        setting = self.setting
        with setting.federation(self.clients, workers, self.phase.stage) as federation:
            outcome = unlearn(
                (self.phase,),
                self.request,
                federation,
                training=setting.training,
                seed=self.seed,
                evaluate_every=setting.experiment.pretraining.evaluate_every,
                participation=setting.participation,
                listeners=listeners,
                resume=resume,
            )
        if outcome.status.failed:
            raise FedUnlearnError(outcome.reason, code=outcome.status)
        return outcome.state

    def _require_own(self, manifest: Manifest | None, remedy: str) -> None:
        """Refuse a folder that was moved here from another training."""
        if manifest is not None and manifest.identity != self.identity:
            raise FedUnlearnError(
                f"{self.folder} holds another training than its name says: {remedy}", code="occupied"
            )
        if (self.kept and manifest is None) or not (manifest is None or manifest.verified):
            tell_unverified([self.folder])

    def _announce_history(self) -> None:
        kinds = self.phase.history if isinstance(self.phase, Pretraining) else ()
        if kinds:
            request = self.request
            numbers = len(self.clients), len(request.params), len(request.shapes), self.phase.rounds
            warn(
                f"pre-training records {', '.join(kinds)}: {history.size(kinds, *numbers) / 1e6:.1f} MB in "
                f"memory, and up to three times that in {self.folder}",
                "history",
            )


def identify(setting: Setting, start: State, clients: Mapping[ClientId, ClientData], **more: Any) -> str:
    """A digest of what decides a training: the first model, who trains on which data, and how."""
    share = setting.participation
    return fingerprint(
        {
            "version": PRETRAINING_VERSION,
            "start": model_hash(start),
            "clients": {client: digest(data.train._asdict()) for client, data in clients.items()},
            "model": f"{setting.experiment.model}: {setting.build(0)}",
            "training": {**setting.experiment.training.model_dump(), "objective": "cross_entropy"},
            "lr": setting.experiment.pretraining.lr,
            "seed": setting.seed,
            **arithmetic(setting.experiment),
            **({"participation": asdict(share)} if share != Participation() else {}),
            **more,
        }
    )


def cache_directory() -> Path:
    """Where trained models are kept: ``FEDUNLEARN_CACHE``, or the user's cache folder."""
    named = os.environ.get("FEDUNLEARN_CACHE")
    return Path(named) if named else user_cache("FEDUNLEARN_CACHE")
