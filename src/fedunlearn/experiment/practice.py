"""A desk whose federation is simulated on this machine, to practise the whole way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import nn

from ..config.tables import UserFile
from ..core import ClientId, Federation, FedUnlearnError, Listener, Stage, vectors
from ..core.hashes import module_hash
from ..data import Dataset
from ..erasure import Desk, against_retraining
from ..erasure.settings import SETTINGS
from ..erasure.work import Auditor
from ..report.rerun import toml
from ..runs import write
from ..runs.files import explained, make_folder, tensor_bytes
from ..signing import new_key, public_part
from .pretraining import pretraining
from .reading import read
from .references import Show
from .settings import Erasure, Experiment
from .setup import builder, examples, prepare
from .start_model import read_model

EXPERIMENT = "experiment.toml"


@dataclass(frozen=True)
class PracticeDesk:
    """The simulated federation of a desk with a ``[simulation]``; its data is loaded once."""

    desk: Desk
    gone: bool = False
    """Whether the client that asks has left, so that no audit is possible."""

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment that says which clients hold which data."""
        if self.desk.policy.simulation is None:
            raise FedUnlearnError(
                f"{self.desk.folder / SETTINGS} has no [simulation], so this command cannot reach its "
                "federation: call fedunlearn.erasure in your ServerApp, see docs/erasure/flower.md"
            )
        return _clean(read(self.desk.folder / self.desk.policy.simulation.experiment))

    @cached_property
    def _data(self) -> Dataset:
        return examples(self.experiment)

    @property
    def training_rounds(self) -> int:
        """The rounds that the model was trained for."""
        return self.experiment.pretraining.rounds

    @property
    def retrainings(self) -> int:
        """The number of retrained models that the audit compares with."""
        simulation = self.desk.policy.simulation
        return 0 if self.gone or simulation is None else simulation.retrainings

    @property
    def rounds(self) -> dict[str, tuple[int, int]]:
        """The request and the retrainings of its audit, with their rounds at most."""
        retrainings = {f"retraining-{n}": (0, self.training_rounds) for n in range(1, self.retrainings + 1)}
        return {"request": (0, self.desk.policy.stages.rounds), **retrainings}

    def model(self) -> nn.Module:
        """The model in production."""
        file = self.desk.policy.model
        if file is None:
            raise FedUnlearnError(
                f"{self.desk.folder / SETTINGS}: name the model in production with model = …"
            )
        module = builder(self.experiment, self._data)(0)
        vectors.load(module, read_model(UserFile(path=self.desk.folder / file), module))
        return module

    @contextmanager
    def federation(self, client: ClientId, *, workers: int | None = None) -> Iterator[Federation]:
        """Connect the clients for a request of one of them."""
        erasure = Erasure(level="client", targets=[client])
        setting = prepare(self.experiment.model_copy(update={"request": erasure}), self._data)
        held = setting.population.auditing
        there = {name: data for name, data in held.items() if not (self.gone and name == client)}
        with setting.federation(there, workers, Stage.UNLEARNING) as federation:
            yield federation

    def auditor(self, request: str, federation: Federation, model: nn.Module, show: Show) -> Auditor | None:
        """Compare with retrained models, if the desk's settings ask for any."""
        if not self.retrainings:
            return None
        return against_retraining(
            self.desk,
            request,
            federation,
            model,
            rounds=self.training_rounds,
            number=self.retrainings,
            show=show,
        )


def _clean(experiment: Experiment) -> Experiment:
    if experiment.request.level != "client" or experiment.backdoor.enabled:
        raise FedUnlearnError(
            f'{experiment.name}: a desk answers requests of honest clients: set request.level = "client" and '
            "backdoor.enabled = false"
        )
    return experiment


def make_desk(
    folder: Path, experiment: Path, listeners: Sequence[Listener] = (), *, workers: int | None = None
) -> str:
    """Set up a desk for a simulated federation: keys, the trained model, settings; return its hash.

    The folder must be new or empty; a call that was interrupted can be repeated.
    """
    chosen = _clean(read(experiment))
    # The recorded digest of a model file makes the file unnecessary; code may change.
    resolved = toml(chosen.model_dump(mode="json", exclude={"use": {"__all__": {"sha256"}}})).encode()
    with explained(folder):
        make_folder(folder)
        _require_new(folder, resolved)
    setting = prepare(chosen)
    module = setting.build(0)
    # Trained without the experiment's cache: no copy of the model may outlive a request.
    state = (
        pretraining(setting).train(listeners, workers=workers)
        if chosen.checkpoint is None
        else read_model(chosen.checkpoint, module)
    )
    vectors.load(module, state)
    write(folder / EXPERIMENT, resolved)
    for name in ("controller", *(f"clients/{client}" for client in setting.population.unlearning)):
        secret, public = folder / f"{name}.key", folder / f"{name}.pub"
        if not secret.exists():
            write(secret, new_key(), private=True)
        write(public, public_part(secret))
    write(folder / "model.safetensors", tensor_bytes(module.state_dict()), private=True)
    write(folder / SETTINGS, _settings(chosen, list(setting.population.unlearning)).encode())
    return module_hash(module)


def _require_new(folder: Path, resolved: bytes) -> None:
    """Refuse a folder that holds anything but what an interrupted call for the same experiment has left."""
    if (folder / SETTINGS).exists():
        raise FedUnlearnError(f"{folder} is a desk already: name a new folder")
    begun = folder / EXPERIMENT
    if begun.is_file() and begun.read_bytes() == resolved:
        return
    if any(path.suffix != ".partial" for path in folder.iterdir()):
        raise FedUnlearnError(f"{folder} is not empty: name a new folder")


def _settings(chosen: Experiment, clients: Sequence[ClientId]) -> str:
    plan, recovery, training = chosen.unlearning, chosen.recovery, chosen.training
    keys = "\n".join(f'"{client}" = "clients/{client}.pub"' for client in clients)
    return f"""# A desk for a simulated federation. docs/erasure/desk.md explains every key.
federation = "{chosen.name}"
controller_key = "controller.key"
model = "model.safetensors"
method = ""            # chosen by the plan; or a name, see fedunlearn methods
deadline_days = 30
keep_days = 0          # encrypted models are deleted as soon as the certificate is signed

[schedule]
unlearn_rounds = {plan.rounds}
unlearn_lr = {plan.lr}
recover_rounds = {recovery.rounds}
recover_lr = {recovery.lr}
pretrain_lr = {chosen.pretraining.lr}

[training]
epochs = {training.epochs}
batch_size = {training.batch_size}
decay = {training.decay}
shuffle = {str(training.shuffle).lower()}

[clients]
{keys}

[simulation]
experiment = "{EXPERIMENT}"
retrainings = 2        # a verdict compares with models that were retrained without the client
"""
