"""The settings of a desk, ``desk.toml``: who may ask, how requests are answered, what is kept how long."""

from __future__ import annotations

import tomllib
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ..config.options import check_options
from ..config.problems import first_problem
from ..config.tables import Count, GuardsPlan, Natural, ParticipationPlan, Place, Rate, Table, Training
from ..core import FedUnlearnError
from ..core.registry import method as methods
from ..methods import Schedule
from .plan_checks import about
from .vocabulary import LegalBasis

SETTINGS = "desk.toml"


class Stages(Table):
    """Rounds and learning rates of the method."""

    unlearn_rounds: Natural = Schedule.unlearn_rounds
    """Rounds of unlearning."""
    unlearn_lr: Rate = Schedule.unlearn_lr
    """Learning rate of unlearning."""
    recover_rounds: Natural = Schedule.recover_rounds
    """Rounds of recovery."""
    recover_lr: Rate = Schedule.recover_lr
    """Learning rate of recovery."""
    pretrain_lr: Rate = Schedule.pretrain_lr
    """Learning rate of methods that train a new model."""


class DeskGuards(GuardsPlan):
    """Limits on what a single client can do to the model; on."""

    enabled: bool = True
    """If false, the guards are off."""


class DeskTraining(Training):
    """Local training of clients, in every stage."""

    shuffle: bool = True
    """If false, batches are visited in one fixed order; state how the model was trained."""


class Simulation(Table):
    """A federation that is simulated on this machine, to practise."""

    experiment: Place
    """The experiment file that says which clients hold which data."""
    retrainings: Annotated[int, Field(ge=0, le=2)] = 2
    """Models retrained without the target, as long as the model was trained: a verdict needs one."""


class Policy(Table):
    """The settings by which a desk answers requests."""

    federation: Annotated[str, Field(min_length=1, max_length=200)]
    """The name that requests state."""
    controller_key: Place
    """The private key that signs certificates and the ledger."""
    clients: dict[str, Place] = Field(default={})
    """Public key of each client that may ask."""
    model: Place | None = None
    """The model in production: a safetensors file, replaced when a request is certified."""
    method: str = ""
    """Name of a method; if empty, the plan chooses one."""
    options: dict[str, Any] = Field(default={})
    """Options of the method."""
    seed: Natural = 1
    """Seed of all randomness."""
    deadline_days: Count = 30
    """Days to answer a request, counted from its receipt."""
    keep_days: Natural = 0
    """Days for which encrypted models and histories are kept after certification."""
    smallest: Natural = 128
    """A client with fewer examples is not asked to unlearn: its updates would reveal them."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The accuracy that retained clients may lose; a model that costs them more is not installed."""
    legal_basis: LegalBasis = LegalBasis.NOT_STATED
    """A code for why data is erased, printed on the certificate."""
    recipients: Natural = 0
    """Number of recipients of the model who are informed of the erasure."""
    backup_days: Natural = 0
    """Days until backups of the desk and the model expire, printed on the certificate."""
    schedule: Stages = Stages()
    training: DeskTraining = DeskTraining()
    participation: ParticipationPlan = ParticipationPlan(redo=2)
    guards: DeskGuards = DeskGuards()
    simulation: Simulation | None = None

    @property
    def stages(self) -> Schedule:
        return Schedule(**self.schedule.model_dump())

    @property
    def conditions(self) -> dict[str, Any]:
        """The settings of a run, as ``forget`` takes them."""
        return {
            "schedule": self.stages,
            "training": self.training.local_training(),
            "participation": self.participation.participation(),
            "guards": self.guards.guards(),
        }


def read_policy(folder: Path) -> Policy:
    """The settings of the desk in a folder; paths in them are relative to it."""
    path = folder / SETTINGS
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedUnlearnError(
            f"{folder} has no {SETTINGS}, so it is not a desk: make one with: "
            f"fedunlearn desk {quote(str(folder))}",
            code="missing",
        ) from None
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror or error}", code="file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FedUnlearnError(f"{path} is not TOML: {error}") from None
    try:
        policy = Policy(**values)
    except ValidationError as error:
        raise FedUnlearnError(f"{path}: {first_problem(error, Policy)}") from None
    if policy.method:
        try:
            if about(policy.method).get("kind") == "control":
                raise FedUnlearnError(
                    f"{policy.method} is a control for comparisons and forgets nothing: choose another method"
                )
            check_options(f"method {policy.method!r}", methods[policy.method], policy.options)
        except FedUnlearnError as error:
            raise FedUnlearnError(f"{path}: {error}", code=error.code) from None
    elif policy.options:
        raise FedUnlearnError(f"{path}: options belong to a method: name it with method = …")
    return policy
