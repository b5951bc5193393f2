"""The tables of an experiment file as frozen values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ..config.options import LARGEST, phases_of
from ..config.tables import (
    Count,
    GuardsPlan,
    Name,
    Natural,
    ParticipationPlan,
    Place,
    Rate,
    Share,
    Table,
    Training,
    UserFile,
)
from ..core import Phase, Precision
from ..methods import Schedule
from ..methods.fedavg import Pretraining
from ..methods.knot import ClusteredPretraining
from ..methods.sisa import SlicedPretraining


class Data(Table):
    """Which examples, and how they are spread over clients."""

    dataset: str = "fashion-demo"
    """Name of a data set; `fedunlearn datasets` lists them."""
    partition: str = "pat-50"
    """`pat-10`, `pat-20`, `pat-50` (a client holds that percentage of the classes), `iid` or `dirichlet`."""
    clients: Annotated[int, Field(ge=2, le=2**63 - 1)] = 10
    """Number of clients."""
    fraction: Share = 1.0
    """Share of the data set that is used."""
    public: Natural = 0
    """Number of public examples, held by no client, for methods that distil."""
    audit: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of each client's examples that nobody trains on, for `fedunlearn audit`; it needs 600 of them."""
    twins: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of each client's examples that only twins train on, the sharper references of an audit."""
    canaries: Natural = 0
    """Number of synthetic examples per client, about half of them trained on, for `fedunlearn audit`."""
    directory: Place | None = None
    """Folder of the data set, if it is not in `FEDUNLEARN_DATA`."""
    options: dict[str, Any] = Field(default={})
    """Options of the partition; `dirichlet` has `alpha` and `minimum`."""


class Backdoor(Table):
    """The trigger that makes forgetting visible."""

    enabled: bool = True
    """If false, forgetting is measured by the accuracy on the data to be forgotten."""
    pretrain_share: Share = 0.8
    """Share of the targets' examples that carry the trigger in pre-training."""
    unlearn_share: Share = 1.0
    """Share of the targets' examples that carry the trigger in unlearning."""
    value: Annotated[float, Field(ge=-LARGEST, le=LARGEST)] = 0.8333
    """Value of the trigger's pixels, as the model sees them."""


class Erasure(Table):
    """What is to be forgotten: clients, some examples of clients, or a class wherever it is held."""

    level: Literal["client", "sample", "class"] = "client"
    """`client`, `sample`, or `class`, which needs `backdoor.enabled = false`."""
    targets: Count | str | list[str] = 1
    """Number of clients, drawn by the seed, or their names: `["client-3"]`."""
    share: Share = 0.1
    """Share of the targets' examples to forget, with `level = "sample"`."""
    label: Natural = 0
    """Class to forget, with `level = "class"`."""
    successive: bool = False
    """Forget the targets one after the other, each with the whole schedule; a later request starts from the
    model that the earlier one left behind."""

    @property
    def requests(self) -> int:
        """How many requests are answered one after the other."""
        if not self.successive or isinstance(self.targets, str):
            return 1
        return self.targets if isinstance(self.targets, int) else len(set(self.targets))


class StagePlan(Table):
    """Post-training: the retained clients repair the damage that unlearning did to their accuracy."""

    rounds: Natural = 100
    """Number of rounds."""
    lr: Rate = 0.01
    """Learning rate before decay."""


class UnlearningPlan(StagePlan):
    """The rounds that unlearn."""

    stop_below: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Unlearning ends early once the ASR, or the accuracy on the forgotten data, falls below this."""


class PretrainingPlan(StagePlan):
    """The FedAvg run that produces ω⁰."""

    rounds: Natural = 2000
    """Number of rounds."""
    lr: Rate = 0.05
    """Learning rate before decay."""
    evaluate_every: Count = 20
    """Rounds between two measurements."""
    history: list[str] = Field(default=[])
    """Kinds of history to record for methods that need it: `norms`, `residuals`, `updates`, `locals`."""
    clusters: Count = 1
    """Number of clusters; if more than one, each cluster trains a model of its own, for `knot`."""
    slices: Count = 1
    """Number of slices of each cluster; if more than one, they join one after the other, for `sisa`."""


class Experiment(Table):
    """Everything that determines a run: read from a TOML file and stored in the run folder as JSON."""

    name: Name = "experiment"
    """Name of the run folder; by default that of the file."""
    seed: Natural = 1
    """Seed of all randomness."""
    method: str = "fedosd"
    """Name of a method; `fedunlearn methods` lists them."""
    model: str = "mlp"
    """Name of a model; `fedunlearn models` lists them."""
    use: list[UserFile] = Field(default=[])
    """Python files to import, which register methods, models, data sets or partitions."""
    checkpoint: UserFile | None = None
    """A safetensors file that replaces pre-training: the `state_dict` of a model, or an `omega0` of a run."""
    options: dict[str, Any] = Field(default={})
    """Options of the method, described on its page."""
    evaluate_every: Count = 1
    """Rounds between two measurements after the request."""
    count_conflicts: bool = False
    """In every round of unlearning, ask all retained clients and count those that the step harms."""
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    """Where clients train: `cpu`, `cuda` or `mps`."""
    precision: Precision = "fp32"
    """Number format of local training: `fp32` or `bf16`."""
    data: Data = Data()
    request: Erasure = Erasure()
    backdoor: Backdoor = Backdoor()
    training: Training = Training()
    participation: ParticipationPlan = ParticipationPlan()
    guards: GuardsPlan = GuardsPlan()
    pretraining: PretrainingPlan = PretrainingPlan()
    unlearning: UnlearningPlan = UnlearningPlan()
    recovery: StagePlan = StagePlan()

    def phases(self) -> tuple[Phase, ...]:
        schedule = Schedule(
            self.unlearning.rounds,
            self.unlearning.lr,
            self.recovery.rounds,
            self.recovery.lr,
            self.pretraining.lr,
        )
        return phases_of(self.method, schedule, self.options)

    def pretraining_phase(self) -> Pretraining:
        plan = self.pretraining
        if plan.slices > 1:
            return SlicedPretraining(plan.rounds, plan.lr, shards=plan.clusters, slices=plan.slices)
        if plan.clusters > 1:
            return ClusteredPretraining(plan.rounds, plan.lr, clusters=plan.clusters)
        return Pretraining(plan.rounds, plan.lr, tuple(sorted(set(plan.history))))

    @property
    def rounds(self) -> tuple[int, int]:
        """The maximum number of rounds: of pre-training, and of all requests together."""
        before = 0 if self.checkpoint else self.pretraining.rounds
        return before, self.request.requests * sum(phase.rounds for phase in self.phases())


def setting_names(table: type[BaseModel] = Experiment, prefix: str = "") -> list[str]:
    """Every key as an override writes it: ``seed``, ``data.partition``."""
    names: list[str] = []
    for key, field in table.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            names += setting_names(inner, f"{prefix}{key}.")
        else:
            names.append(prefix + key)
    return names
