"""A desk whose federation is simulated on this machine, to practise the whole way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..core import ClientId, Federation, FedUnlearnError, Listener, Stage, State, did_you_mean, vectors
from ..core.hashes import module_hash
from ..experiment import Experiment, Setting, prepare, read
from ..experiment.checkpoint import read_model
from ..experiment.pretraining import pretraining
from ..experiment.references import Show
from ..experiment.settings import Erasure, UserFile
from ..report.rerun import toml
from ..runs import write
from ..runs.files import explained, make_folder, tensor_bytes
from ..signing import new_key, public_part
from .desk import Desk
from .retraining import against_retraining
from .settings import SETTINGS
from .work import Auditor

EXPERIMENT = "experiment.toml"


@dataclass(frozen=True)
class Simulated:
    """A connected simulation: what ``erase`` takes."""

    federation: Federation
    model: nn.Module
    training_rounds: int
    """That the model was trained for."""
    retrainings: int
    rounds: Mapping[str, tuple[int, int]]
    """The request and the retrainings of its audit, with their rounds at most."""

    def auditor(self, desk: Desk, request: str, show: Show) -> Auditor | None:
        """Compares with retrained models, if the desk's settings ask for any."""
        if not self.retrainings:
            return None
        rounds, number = self.training_rounds, self.retrainings
        return against_retraining(
            desk, request, self.federation, self.model, rounds=rounds, number=number, show=show
        )


@contextmanager
def simulated(
    desk: Desk, client: ClientId, *, gone: bool = False, workers: int | None = None
) -> Iterator[Simulated]:
    """The federation and the model of a desk with a ``[simulation]``, for a request of a client."""
    experiment = _experiment(desk)
    assert desk.policy.simulation is not None
    clients = prepare(experiment).population.unlearning
    if client not in clients:
        raise FedUnlearnError(f"the simulation has no client {client!r}{did_you_mean(client, clients)}")
    erasure = Erasure(level="client", targets=[client])
    setting = prepare(experiment.model_copy(update={"request": erasure}))
    made = 0 if gone else desk.policy.simulation.retrainings
    trained = experiment.pretraining.rounds
    retraining = {f"retraining-{number}": (0, trained) for number in range(1, made + 1)}
    rounds = {"request": (0, desk.policy.stages.rounds), **retraining}
    there = {
        name: data for name, data in setting.population.auditing.items() if not (gone and name == client)
    }
    with setting.federation(there, workers, Stage.UNLEARNING) as federation:
        yield Simulated(federation, _model(desk, setting), trained, made, rounds)


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
    return _clean(read(desk.folder / desk.policy.simulation.experiment))


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
    """Sets up a desk for a simulated federation: keys, the trained model, settings; returns its hash.

    The folder must be new or empty; a call that was interrupted can be repeated.
    """
    chosen = _clean(read(experiment))
    # The recorded digest of a model file makes the file unnecessary; code may change.
    resolved = toml(chosen.model_dump(mode="json", exclude={"use": {"__all__": {"sha256"}}})).encode()
    with explained(folder):
        make_folder(folder)
        _require_new(folder, resolved)
    setting = prepare(chosen)
    state = _trained(setting, listeners, workers)
    module = setting.build(0)
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
    """Refuses a folder that holds anything but what an interrupted call for the same experiment has left."""
    if (folder / SETTINGS).exists():
        raise FedUnlearnError(f"{folder} is a desk already: name a new folder")
    begun = folder / EXPERIMENT
    if begun.is_file() and begun.read_bytes() == resolved:
        return
    if any(path.suffix != ".partial" for path in folder.iterdir()):
        raise FedUnlearnError(f"{folder} is not empty: name a new folder")


def _trained(setting: Setting, listeners: Sequence[Listener], workers: int | None) -> State:
    """The model as an experiment trains it, but without its cache: no copy may outlive a request."""
    if setting.experiment.checkpoint is not None:
        return read_model(setting.experiment.checkpoint, setting.build(0))
    return pretraining(setting).train(listeners, workers=workers)


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
