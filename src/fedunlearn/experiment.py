"""An experiment as a checked, frozen value, and what it takes to perform it."""

from __future__ import annotations

import inspect
import math
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from torch import nn

from . import models
from .core import (
    ClientData,
    ClientId,
    Examples,
    Federation,
    FedUnlearnError,
    Listener,
    LocalTraining,
    Outcome,
    Phase,
    Precision,
    Request,
    State,
    Status,
    vectors,
)
from .core.registry import dataset as datasets
from .core.registry import did_you_mean
from .core.registry import method as methods
from .core.registry import model as model_names
from .core.registry import partition as partitions
from .core.seeds import derive
from .data import PUBLIC, Population, load, poison, populate, reserve, trigger
from .data.sources import user_cache
from .engines import require, simulate
from .methods import Schedule, history
from .methods.fedavg import Pretraining
from .methods.knot import ClusteredPretraining
from .record import (
    Recorder,
    digest,
    environment,
    fingerprint,
    locked,
    model_hash,
    read_json,
    read_outcome,
    read_state,
    write_json,
    write_state,
    write_tensors,
)
from .run import unlearn

PRETRAINING_VERSION = 2
"""Raised whenever a change of the code changes the bits of a pre-training, so that no old ω⁰ is reused."""

DECISIVE = ("torch", "cpu_capability")
"""What of the environment decides about bits."""

Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Table(BaseModel):
    """A part of an experiment: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Data(Table):
    """Which examples, and how they are spread over clients."""

    dataset: str = "fashion-demo"
    """A name that `fedunlearn datasets` lists."""
    partition: str = "pat-50"
    """`pat-10`, `pat-20`, `pat-50` (each client has so many percent of the classes), `iid` or `dirichlet`."""
    clients: Annotated[int, Field(ge=2)] = 10
    """How many."""
    fraction: Share = 1.0
    """The share of the data set that is used."""
    public: Natural = 0
    """So many examples are kept from all clients, for methods that distil."""
    directory: Path | None = None
    """Where the data set is, if not in `FEDUNLEARN_DATA`."""
    options: dict[str, Any] = {}
    """Of the partition; `dirichlet` has `alpha` and `minimum`."""


class Backdoor(Table):
    """The trigger that makes forgetting visible."""

    enabled: bool = True
    """Without it, what is measured is the accuracy on what is to be forgotten."""
    pretrain_share: Share = 0.8
    """Of the targets' examples, triggered in pre-training."""
    unlearn_share: Share = 1.0
    """Of the targets' examples, triggered in unlearning."""
    value: Annotated[float, Field(allow_inf_nan=False)] = 0.8333
    """Of the trigger's pixels, as the model sees them."""


class Erasure(Table):
    """What is to be forgotten: clients, some examples of clients, or a class wherever it is held."""

    level: Literal["client", "sample", "class"] = "client"
    """`client`, `sample`, or `class`, which needs `backdoor.enabled = false`."""
    targets: Count | str | list[str] = 1
    """How many clients, drawn by the seed, or their names: `["client-3"]`."""
    share: Share = 0.1
    """Of the targets' examples, with `level = "sample"`."""
    label: Natural = 0
    """The class, with `level = "class"`."""


class Training(Table):
    """How clients train locally, in every stage."""

    epochs: Count = 1
    """Passes over the client's data in a round."""
    batch_size: Count = 200
    """Examples in a step."""
    decay: Share = 0.999
    """The learning rate is multiplied by this after every round; both stages of a request count as one."""


class StagePlan(Table):
    """The rounds in which the retained clients repair what unlearning cost them: post-training."""

    rounds: Natural = 100
    """How many."""
    lr: Rate = 0.01
    """The learning rate, before decay."""


class UnlearningPlan(StagePlan):
    """The rounds that forget."""

    stop_below: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Ends it before its rounds are up, once ASR, or the accuracy on what is forgotten, is below this."""


class PretrainingPlan(StagePlan):
    """The FedAvg run that makes ω⁰."""

    rounds: Natural = 2000
    """How many."""
    lr: Rate = 0.05
    """The learning rate, before decay."""
    evaluate_every: Count = 20
    """Rounds between two measurements."""
    history: list[str] = []
    """What is recorded for methods that need it: `norms`, `residuals`, `updates`, `locals`."""
    clusters: Count = 1
    """More than one: every cluster of clients trains a model of its own, for `knot`."""


class Experiment(Table):
    """Everything that determines a run; read from TOML, kept in its folder as JSON."""

    name: Name = "experiment"
    """Of the run folder; that of the file unless given."""
    seed: Natural = 1
    """Decides about everything random."""
    method: str = "fedosd"
    """A name that `fedunlearn methods` lists."""
    model: str = "mlp"
    """A name that `fedunlearn models` lists."""
    options: dict[str, Any] = {}
    """Of the method; its page has them."""
    evaluate_every: Count = 1
    """Rounds between two measurements after the request."""
    count_conflicts: bool = False
    """Asks all retained clients in every round of unlearning, to count those whom the step would harm."""
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    """Where clients train: `cpu`, `cuda` or `mps`."""
    precision: Precision = "fp32"
    """Of local training: `fp32` or `bf16`."""
    data: Data = Data()
    request: Erasure = Erasure()
    backdoor: Backdoor = Backdoor()
    training: Training = Training()
    pretraining: PretrainingPlan = PretrainingPlan()
    unlearning: UnlearningPlan = UnlearningPlan()
    recovery: StagePlan = StagePlan()

    def phases(self) -> tuple[Phase, ...]:
        make = methods[self.method]
        _check_options(f"method {self.method!r}", make, self.options)
        schedule = Schedule(
            self.unlearning.rounds,
            self.unlearning.lr,
            self.recovery.rounds,
            self.recovery.lr,
            self.pretraining.lr,
        )
        return make(schedule, **self.options)

    def pretraining_phase(self) -> Pretraining:
        plan = self.pretraining
        if plan.clusters > 1:
            return ClusteredPretraining(plan.rounds, plan.lr, clusters=plan.clusters)
        return Pretraining(plan.rounds, plan.lr, tuple(sorted(set(plan.history))))


def _check_options(what: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Options are the parameters that have a default; their annotations say what they take."""
    parameters, types = inspect.signature(make).parameters.values(), get_type_hints(make)
    known = [parameter.name for parameter in parameters if parameter.default is not parameter.empty]
    for option, value in options.items():
        if option not in known:
            hint = did_you_mean(option, known) if known else "; it has none"
            raise FedUnlearnError(f"{what} has no option {option!r}{hint}")
        if isinstance(value, float) and not math.isfinite(value):
            raise FedUnlearnError(f"{what}, option {option} = {value!r}: it must be a finite number")
        try:
            TypeAdapter(types[option]).validate_python(value, strict=True)
        except ValidationError as error:
            raise FedUnlearnError(
                f"{what}, option {option} = {value!r}: {_said(error.errors()[0])}"
            ) from None


def read(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """An experiment from a TOML file; overrides look like ``data.partition=iid``."""
    values = parse(path)
    if values.keys() & {"methods", "extends"}:
        raise FedUnlearnError(f"{path} is a comparison: run it with `fedunlearn compare {path}`")
    for text in overrides:
        override(values, text)
    return check({"name": named_after(path), **values}, str(path))


def named_after(path: Path) -> str:
    """The name of an experiment that does not state one: its file's, in letters that a folder may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", path.stem).lstrip("._-") or "experiment"


def parse(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedUnlearnError(f"{path} is not TOML: {error}") from error


def check(values: Mapping[str, Any], source: str) -> Experiment:
    """A valid experiment, or one sentence about the first thing that is wrong with it."""
    try:
        experiment = Experiment.model_validate(values)
    except ValidationError as error:
        raise FedUnlearnError(f"{source}: {first_problem(error, Experiment)}") from None
    try:
        datasets.entry(experiment.data.dataset)
        partition = experiment.data.partition
        _check_options(f"partition {partition!r}", partitions[partition], experiment.data.options)
        model_names.entry(experiment.model)
        _check_needs(experiment)
    except FedUnlearnError as error:
        raise FedUnlearnError(f"{source}: {error}") from None
    return experiment


def _check_needs(experiment: Experiment) -> None:
    """Whether pre-training leaves behind what the method needs."""
    plan, name = experiment.pretraining, experiment.method
    for kind in plan.history:
        if kind not in history.KINDS:
            raise FedUnlearnError(f"unknown history {kind!r}{did_you_mean(kind, history.KINDS)}")
    if plan.history and plan.clusters > 1:
        raise FedUnlearnError(
            "a clustered pre-training records its clusters and no other history: remove one"
        )
    if plan.clusters > experiment.data.clients:
        raise FedUnlearnError(
            f"{experiment.data.clients} clients cannot form {plan.clusters} clusters: "
            f"set clusters in [pretraining] to {experiment.data.clients} at most"
        )
    needed = {kind for phase in experiment.phases() for kind in phase.needs}
    recorded = {"cluster"} if plan.clusters > 1 else set(plan.history)
    for kind in sorted(needed - recorded - ({"public"} if experiment.data.public else set())):
        wanted = {
            "cluster": f"clusters = {max(2, min(5, experiment.data.clients // 2))} in [pretraining]",
            "public": "public = 1000 in [data], examples that no client will hold",
        }.get(kind, f'history = ["{kind}"] in [pretraining]')
        raise FedUnlearnError(f"{name} needs {kind}, and this experiment has none: set {wanted}")
    if needed - {"public"} and not plan.rounds:
        kinds = " and ".join(sorted(needed - {"public"}))
        raise FedUnlearnError(
            f"{name} needs {kinds}, which pre-training records, and here it has no rounds: "
            "set rounds in [pretraining]"
        )
    if experiment.request.level != "client" and needed - {"cluster"}:
        raise FedUnlearnError(f"{name} needs history, which knows whole clients only: use level = 'client'")


def override(values: dict[str, Any], text: str) -> None:
    """Sets what ``table.key=value`` says."""
    key, sign, written = text.partition("=")
    if not sign:
        raise FedUnlearnError(
            f"override {text!r} has no '=': write it as key=value, e.g. seed=2 or data.partition=iid"
        )
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written
    *tables, last = key.strip().split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise FedUnlearnError(f"override {text!r}: {table!r} is a value, not a table")
    values[last] = value


def first_problem(error: ValidationError, table: type[BaseModel] | None) -> str:
    """What is wrong with the values for a table, in words of its keys."""
    problem = error.errors()[0]
    place: list[str] = []
    for part in map(str, problem["loc"]):
        # What follows a field that is no table is pydantic's name for one of its types.
        if table is None:
            break
        place.append(part)
        if part not in table.model_fields:
            return f"unknown key {'.'.join(place)!r}{did_you_mean(part, table.model_fields)}"
        annotation = table.model_fields[part].annotation
        kinds = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type)]
        table = next((one for one in kinds if issubclass(one, BaseModel)), None)
    where = ".".join(place) or "the whole"
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"{where} = {problem['input']!r}: {_said(problem)}"


def _said(problem: ErrorDetails) -> str:
    return problem["msg"][0].lower() + problem["msg"][1:]


@dataclass(frozen=True)
class Setting:
    """An experiment with its data and its model drawn up."""

    experiment: Experiment
    population: Population
    build: Callable[[object], nn.Module]

    @property
    def training(self) -> LocalTraining:
        return LocalTraining(**self.experiment.training.model_dump())

    @property
    def seed(self) -> int:
        return self.experiment.seed

    def federation(
        self, clients: Mapping[ClientId, ClientData], workers: int | None
    ) -> AbstractContextManager[Federation]:
        chosen, public = self.experiment, self.population.public
        members = {**clients, **({PUBLIC: public} if public else {})}
        return simulate(
            self.build(0), members, workers=workers, device=chosen.device, precision=chosen.precision
        )

    def request(self, state: State, clients: Iterable[ClientId], targets: tuple[ClientId, ...]) -> Request:
        """To forget the targets; the memory of the state is the history of the pre-training."""
        return Request(
            state.params,
            tuple(clients),
            targets,
            self.fresh,
            state.buffers,
            shapes=vectors.shapes(self.build(0)),
            history=state.memory,
            public=PUBLIC if self.population.public else None,
            seed=derive("method", self.seed),
        )

    def fresh(self, purpose: str) -> State:
        """A new model for a named purpose; pre-training starts from the one for ``pre-training``."""
        module = self.build((self.seed, purpose))
        return State(vectors.flatten(module), buffers=vectors.buffers(module))


def prepare(experiment: Experiment) -> Setting:
    """Loads the data, spreads it over clients and says how to build the model."""
    source = load(experiment.data.dataset, experiment.data.directory, experiment.data.fraction)
    public: ClientData | None = None
    if experiment.data.public:
        public, source = reserve(source, experiment.data.public, experiment.seed)
    erasure, backdoor = experiment.request, experiment.backdoor
    population = populate(
        source,
        partition=experiment.data.partition,
        clients=experiment.data.clients,
        seed=experiment.seed,
        batch_size=experiment.training.batch_size,
        level=erasure.level,
        targets=erasure.targets,
        share=erasure.share,
        label=erasure.label,
        backdoor=backdoor.enabled,
        pretrain_share=backdoor.pretrain_share,
        unlearn_share=backdoor.unlearn_share,
        value=backdoor.value,
        options=experiment.data.options,
    )
    channels, height, width = source.train.x.shape[1:]
    return Setting(
        experiment,
        replace(population, public=public),
        partial(models.build, experiment.model, source.classes, (channels, height, width)),
    )


def specimen(experiment: Experiment, number: int = 0) -> tuple[Examples, Examples]:
    """A training picture of this number as it is, and with the backdoor's trigger and label on it."""
    source = load(experiment.data.dataset, experiment.data.directory, experiment.data.fraction)
    clean = source.train.take(torch.tensor([number]))
    mark = trigger(experiment.seed, clean.x.shape[1:], experiment.backdoor.value)
    return clean, poison(clean, mark, source.classes, share=1.0, batch_size=1)


def pretrained(
    setting: Setting,
    listeners: Sequence[Listener] = (),
    *,
    checkpoint_seconds: float = 5.0,
    workers: int | None = None,
) -> State:
    """ω⁰: trained once, then shared by every run whose pre-training is determined by the same things.

    The number of rounds is not one of them: more rounds go on where fewer ended; fewer than are there
    begin anew, beside them.
    """
    plan, clients = setting.experiment.pretraining, setting.population.pretraining
    made_with = environment()
    start, module = setting.fresh("pre-training"), setting.build(0)
    identity = fingerprint(
        {
            "version": PRETRAINING_VERSION,
            "start": model_hash(start),
            "clients": {client: digest(data.train._asdict()) for client, data in clients.items()},
            "model": f"{setting.experiment.model}: {module}",
            "training": asdict(setting.training),
            "lr": plan.lr,
            "seed": setting.seed,
            "arithmetic": _arithmetic(setting.experiment),
            **{key: made_with[key] for key in DECISIVE},
            **({"history": sorted(set(plan.history))} if plan.history else {}),
            **({"clusters": plan.clusters} if plan.clusters > 1 else {}),
        }
    )
    folder = cache_directory() / "pretraining" / identity[:20]
    finished = folder / f"model-{plan.rounds}.safetensors"
    with locked(folder / "lock", wait=True):
        if not finished.exists():
            request = setting.request(start, clients, _watched(setting.population))
            if plan.history:
                size = history.size(plan.history, request, plan.rounds) / 1e6
                warnings.warn(
                    f"pre-training records {', '.join(sorted(plan.history))}: {size:.1f} MB in memory, "
                    f"and up to three times that in {folder}",
                    stacklevel=2,
                )
            recorder = Recorder(folder, identity, seconds=checkpoint_seconds)
            if recorder.progress is not None and recorder.progress.elapsed_rounds > plan.rounds:
                recorder = Recorder(folder / f"{plan.rounds}-rounds", identity, seconds=checkpoint_seconds)
            with recorder, setting.federation(clients, workers) as federation:
                outcome = unlearn(
                    (setting.experiment.pretraining_phase(),),
                    request,
                    federation,
                    training=setting.training,
                    seed=derive("pre-training", setting.seed),
                    evaluate_every=plan.evaluate_every,
                    listeners=(recorder, *listeners),
                    resume=recorder.progress,
                )
            if outcome.status.failed:
                raise FedUnlearnError(outcome.reason)
            write_state(finished, outcome.state)
        state, _ = read_state(finished)
    return state


def perform(
    experiment: Experiment,
    folder: Path,
    listeners: Sequence[Listener] = (),
    *,
    checkpoint_seconds: float = 5.0,
    workers: int | None = None,
) -> Outcome:
    """Runs the experiment in a folder, or goes on with what the folder already holds.

    ``workers`` (one for each core, unless given) decides about time, not about the result.
    """
    require(experiment.device, experiment.precision)
    config, made_with = experiment.model_dump(mode="json"), environment()
    setting = prepare(experiment)
    module, phases = setting.build(0), experiment.phases()
    with locked(folder / "lock"):
        _claim(folder, config)
        if not (folder / "omega0.safetensors").exists():
            write_json(folder / "environment.json", made_with)
            omega0 = pretrained(setting, listeners, checkpoint_seconds=checkpoint_seconds, workers=workers)
            needed = history.BESIDE.union(*(phase.needs for phase in phases))
            memory = {
                name: value for name, value in omega0.memory.items() if name.partition(" ")[0] in needed
            }
            write_state(folder / "omega0.safetensors", replace(omega0, memory=memory))
        omega0, _ = read_state(folder / "omega0.safetensors")
        clients = setting.population.unlearning
        request = setting.request(omega0, clients, setting.population.targets)
        identity = fingerprint(
            {
                "config": config,
                "omega0": model_hash(omega0),
                "arithmetic": _arithmetic(experiment),
                **{key: made_with[key] for key in DECISIVE},
            }
        )
        with (
            Recorder(folder, identity, seconds=checkpoint_seconds) as recorder,
            setting.federation(clients, workers) as federation,
        ):
            if recorder.progress is None:
                write_json(folder / "environment.json", made_with)
            outcome = unlearn(
                phases,
                request,
                federation,
                training=setting.training,
                seed=derive("unlearning", experiment.seed),
                evaluate_every=experiment.evaluate_every,
                stop_below=experiment.unlearning.stop_below,
                count_conflicts=experiment.count_conflicts,
                listeners=(recorder, *listeners),
                resume=recorder.progress,
            )
        vectors.load(module, outcome.state)
        write_tensors(folder / "model.safetensors", module.state_dict())
        write_json(
            folder / "outcome.json",
            {
                "status": outcome.status,
                "reason": outcome.reason,
                "model_sha256": model_hash(outcome.state),
            },
        )
    return outcome


def resume(folder: Path, listeners: Sequence[Listener] = (), *, workers: int | None = None) -> Outcome:
    """Goes on with a run that was stopped."""
    return perform(
        check(read_json(folder / "experiment.json"), str(folder)), folder, listeners, workers=workers
    )


def finished(folder: Path) -> bool:
    """Whether the run in a folder has ended, and not in failure."""
    return (folder / "outcome.json").exists() and not Status(read_outcome(folder)["status"]).failed


def cache_directory() -> Path:
    """Where pre-trained models are kept: ``FEDUNLEARN_CACHE``, or the user's cache folder."""
    named = os.environ.get("FEDUNLEARN_CACHE")
    return Path(named) if named else user_cache("FEDUNLEARN_CACHE")


def _arithmetic(experiment: Experiment) -> list[str]:
    """What computes, and in which numbers."""
    card = [torch.cuda.get_device_name()] if experiment.device == "cuda" else []
    return [experiment.device, experiment.precision, *card]


def _watched(population: Population) -> tuple[ClientId, ...]:
    """The clients behind the targets, measured from the start; none where that is everybody."""
    real = {target.partition("#")[0] for target in population.targets}
    return tuple(sorted(real)) if len(real) < len(population.pretraining) else ()


def _claim(folder: Path, config: Mapping[str, Any]) -> None:
    """Takes a new folder for this experiment, or makes sure that an old one is its own and unfinished.

    One in which pre-training has not ended holds nothing yet.
    """
    if not finished(folder) and not (folder / "omega0.safetensors").exists():
        write_json(folder / "experiment.json", config)
    elif (begun := read_json(folder / "experiment.json")) != config:
        if check(begun, str(folder)) == check(config, str(folder)):
            raise FedUnlearnError(f"the run in {folder} was begun by an older fedunlearn: run it anew")
        raise FedUnlearnError(
            f"{folder} holds a run with another configuration: choose another folder with --out"
        )
    if finished(folder):
        raise FedUnlearnError(
            f"the run in {folder} is finished: choose another folder with --out, "
            f"or look at it again with: fedunlearn resume {folder}"
        )
