"""A desk whose federation is simulated on this machine, to practise the whole way."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..auditing import Evidence, audit
from ..authority import new_key, public_part
from ..core import ClientId, Federation, FedUnlearnError, Listener, Stage, State, did_you_mean, vectors
from ..core.hashes import module_hash
from ..experiment import Experiment, Setting, prepare, pretrained, read
from ..experiment.checkpoint import read_model
from ..experiment.references import Show, number_of_twins, references
from ..experiment.settings import Erasure, UserFile
from ..experiment.training import CachedTraining
from ..record import write
from ..record.files import make_folder, tensor_bytes
from .desk import Desk
from .settings import SETTINGS


@dataclass(frozen=True)
class Simulated:
    """A connected simulation: what ``erase`` takes."""

    setting: Setting
    federation: Federation
    model: nn.Module
    client: ClientId
    trainings: Mapping[str, CachedTraining]
    """The models that an audit compares with, trained on demand."""
    workers: int | None

    @property
    def rounds(self) -> dict[str, tuple[int, int]]:
        """The request and the models that are to be trained for its audit, with their rounds at most."""
        made = {name: (0, each.phase.rounds) for name, each in self.trainings.items() if not each.kept}
        return {"request": (0, self.setting.experiment.rounds[1]), **made}

    def auditor(self, show: Show, after: State, original: State) -> Evidence:
        """Compares with retrained models, which are trained now unless they are in the cache."""
        made: dict[str, State] = {}
        for name, training in self.trainings.items():
            if training.kept:
                made[name] = training.model()
            else:
                with show(name) as listener:
                    made[name] = training.model([listener], workers=self.workers)
        clients = self.setting.population.auditing
        with self.setting.federation(clients, self.workers, Stage.UNLEARNING) as federation:
            return audit(
                federation,
                after,
                targets=self.client,
                retrained=made.get("retraining-1"),
                again=made.get("retraining-2"),
                original=original,
                references=[state for name, state in made.items() if name.startswith("twin")],
                clients=clients,
            )


@contextmanager
def simulated(desk: Desk, client: ClientId, *, workers: int | None = None) -> Iterator[Simulated]:
    """The federation and the model of a desk with a ``[simulation]``, for a request of a client."""
    chosen, experiment = desk.policy.simulation, _experiment(desk)
    assert chosen is not None
    setting = prepare(experiment)
    clients, targets = setting.population.unlearning, setting.population.targets
    if client not in clients:
        raise FedUnlearnError(f"the simulation has no client {client!r}{did_you_mean(client, clients)}")
    if experiment.backdoor.enabled and (client,) != targets:
        raise FedUnlearnError(
            f"the simulated backdoor is that of {', '.join(targets)}, so nobody else can leave: set "
            "backdoor.enabled = false in the experiment"
        )
    erasure = Erasure(level="client", targets=[client])
    setting = prepare(experiment.model_copy(update={"request": erasure}))
    twins = number_of_twins(experiment) if chosen.retrainings else 0
    with setting.federation(setting.population.unlearning, workers, Stage.UNLEARNING) as federation:
        trainings = references(setting, retrainings=chosen.retrainings, twins=twins)
        yield Simulated(setting, federation, _model(desk, setting), client, trainings, workers)


def production_model(desk: Desk) -> nn.Module:
    """The model in production of a desk with a ``[simulation]``."""
    return _model(desk, prepare(_experiment(desk)))


def _model(desk: Desk, setting: Setting) -> nn.Module:
    if desk.policy.model is None:
        raise FedUnlearnError(f"{desk.folder / SETTINGS}: name the model in production with model = …")
    module = setting.build(0)
    vectors.load(module, read_model(UserFile(path=desk.folder / desk.policy.model), module))
    return module


def _experiment(desk: Desk) -> Experiment:
    if desk.policy.simulation is None:
        raise FedUnlearnError(
            f"{desk.folder / SETTINGS} has no [simulation], so this command cannot reach its federation: "
            "call fedunlearn.erasure in your ServerApp, see docs/erasure/flower.md"
        )
    return read(desk.folder / desk.policy.simulation.experiment)


def make_desk(
    folder: Path, experiment: Path, listeners: Sequence[Listener] = (), *, workers: int | None = None
) -> str:
    """Sets up a desk for a simulated federation: keys, the trained model, settings; returns its hash.

    A command that was interrupted can be repeated; a desk that exists is refused.
    """
    if (folder / SETTINGS).exists():
        raise FedUnlearnError(f"{folder} is a desk already: choose another folder")
    chosen = read(experiment)
    if chosen.request.level != "client":
        raise FedUnlearnError(f"{experiment}: a desk answers requests of clients: set request.level = client")
    make_folder(folder)
    setting = prepare(chosen)
    state = pretrained(setting, listeners, workers=workers)
    module = setting.build(0)
    vectors.load(module, state)
    shutil.copyfile(experiment, folder / "experiment.toml")
    for name in ("controller", *(f"clients/{client}" for client in setting.population.unlearning)):
        secret, public = folder / f"{name}.key", folder / f"{name}.pub"
        if not secret.exists():
            write(secret, new_key(), private=True)
        write(public, public_part(secret))
    write(folder / "model.safetensors", tensor_bytes(module.state_dict()), private=True)
    write(folder / SETTINGS, _settings(chosen, list(setting.population.unlearning)).encode())
    return module_hash(module)


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

[clients]
{keys}

[simulation]
experiment = "experiment.toml"
retrainings = 2        # a verdict compares with models that were retrained without the client
"""
