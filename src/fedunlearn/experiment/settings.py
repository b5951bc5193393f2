"""The tables of an experiment file as frozen values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ..config.options import LARGEST, phases_of
from ..core import Phase, Precision
from ..driver import Guards
from ..methods import Schedule
from ..methods.fedavg import Pretraining
from ..methods.knot import ClusteredPretraining
from ..methods.sisa import SlicedPretraining


def _openable(path: Path) -> Path:
    if "\0" in str(path):
        raise ValueError("a path cannot contain a NUL character")
    return path


Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=LARGEST)]
Count = Annotated[int, Field(ge=1, le=2**63 - 1)]
Natural = Annotated[int, Field(ge=0, le=2**63 - 1)]
Place = Annotated[Path, AfterValidator(_openable)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Table(BaseModel):
    """A part of an experiment: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _as_recorded(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without defaults of settings that are newer than some runs, so that these can go on."""
        values: dict[str, Any] = serialise(self)
        fields = type(self).model_fields
        newer = {key for key in ("successive", "shuffle") if key in fields}
        return {k: v for k, v in values.items() if k not in newer or v != fields[k].default}


class UserFile(Table):
    """A file of the user's own; its SHA-256 is recorded, so that a change is noticed."""

    path: Place
    """Relative to the experiment file; in an override, to the working directory."""
    sha256: str = ""
    """Recorded in the run folder."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, str | Path | dict):
            raise ValueError("a file is named by a string")
        return value if isinstance(value, dict) else {"path": value}


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
    options: dict[str, Any] = {}
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


class Training(Table):
    """How clients train locally, in every stage."""

    epochs: Count = 1
    """Passes over a client's data per round."""
    batch_size: Count = 200
    """Examples per step."""
    decay: Share = 0.999
    """Factor of the learning rate after every round; unlearning and recovery share one count of rounds."""
    shuffle: bool = False
    """If true, batches are drawn anew in every round and epoch; the paper's code visits a fixed list."""


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
    history: list[str] = []
    """Kinds of history to record for methods that need it: `norms`, `residuals`, `updates`, `locals`."""
    clusters: Count = 1
    """Number of clusters; if more than one, each cluster trains a model of its own, for `knot`."""
    slices: Count = 1
    """Number of slices of each cluster; if more than one, they join one after the other, for `sisa`."""


class ParticipationPlan(Table):
    """Who takes part in a round, in every stage; targets are always asked to unlearn."""

    share: Share = 1.0
    """Share of the clients that train in a round, drawn by the seed and rounded up."""
    count: Count | None = None
    """Number of clients that train in a round, instead of a share."""
    minimum: Count = 1
    """The run stops, to be resumed later, when fewer are present or answer."""
    redo: Natural = 0
    """How often a client that failed, or sent what cannot be used, is asked again."""


class GuardsPlan(Table):
    """Limits on what a single client can do to the model after the request; off, as in papers."""

    enabled: bool = False
    """If true, the guards are on."""
    norm: Annotated[float, Field(ge=1, le=LARGEST)] = Guards.norm
    """A retained client's update longer than so many times the median is refused."""
    target_norm: Rate = Guards.target_norm
    """A target's update is shortened to so many times the median of the retained clients."""
    amplification: Annotated[float, Field(ge=1, le=LARGEST)] = Guards.amplification
    """A step that the method has lengthened more is shortened to this factor."""
    step: Rate = Guards.step
    """A longer step of unlearning, as a share of the model's length, is shortened to it."""
    budget: Rate = Guards.budget
    """Unlearning stops once its steps together are so many times as long as ω⁰."""
    utility: bool = Guards.utility
    """If true, retained clients measure every step on their training data before it is taken."""
    harm: Rate = Guards.harm
    """Share by which their training loss may rise; below 1, the number."""
    halvings: Natural = Guards.halvings
    """How often a step that harms more is halved before the run stops."""

    def guards(self) -> Guards | None:
        return Guards(**self.model_dump(exclude={"enabled"})) if self.enabled else None


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
    use: list[UserFile] = []
    """Python files to import, which register methods, models, data sets or partitions."""
    checkpoint: UserFile | None = None
    """A safetensors file that replaces pre-training: the `state_dict` of a model, or an `omega0` of a run."""
    options: dict[str, Any] = {}
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
