"""Stored results of the benchmark: a closed format, a digest for each cell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...config.problems import first_problem
from ...config.tables import Name
from ...core import FedUnlearnError, Status
from ...evidence import Verdict
from ...report.audits import REFERENCES
from ...runs import write
from .plan import grid, protocol_digest, requests, seeds

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
UNSTABLE = {"digest", "seconds", "time"}
"""Keys of a cell that its digest leaves out: the wall time differs from one repetition to the next."""


class Part(BaseModel):
    """A part of a file of results: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Cell(Part):
    """One method on one request with one seed; or a reference, which has no costs."""

    request: Name
    method: Name
    seed: int
    environment: str = ""
    """Key of the environment; empty for references and refused cells."""
    status: Status | Literal["refused"] = Status.DONE
    reason: str = ""
    """Why a cell failed or was refused."""
    rate: float | None = None
    model_sha256: Digest | None = None
    verdict: Verdict | None = None
    difference: float | None = None
    """AUC minus that of retraining; of several targets, the one that is furthest from it."""
    difference_interval: tuple[float, float] | None = None
    tail: Verdict | None = None
    asr: float | None = None
    asr_retrained: float | None = None
    r_acc: float | None = None
    r_acc_retrained: float | None = None
    worst: float | None = None
    worst_retrained: float | None = None
    harmed: tuple[str, ...] | None = None
    """Retained clients that lose more than the noise floor explains."""
    harm: float | None = None
    """The largest loss of accuracy of a retained client against retraining."""
    epsilon: float | None = None
    """What a certified method promises."""
    rounds: int | None = None
    local_trainings: int | None = None
    work: float | None = None
    """Local trainings as a share of those of one retraining."""
    bytes: int | None = None
    stored: int | None = None
    seconds: float | None = None
    time: float | None = None
    """Seconds as a share of those of one retraining."""
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.request}/seed-{self.seed}/{self.method}"

    @property
    def ran(self) -> bool:
        """Whether there is a run that can be repeated."""
        return bool(self.environment)

    def repeatable(self) -> str:
        """The SHA-256 of what can be repeated to the bit."""
        return digest(self.model_dump(mode="json", exclude=UNSTABLE))


class Submitted(Part):
    """The Python file of a submission, which lies beside the results."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+\.py$")
    sha256: Digest


class About(Part):
    """What a listing says about a method."""

    paper: str
    source: str
    summary: str
    online: str
    needs: tuple[str, ...]
    tuned: bool
    """Whether it uses the learning rates that the trials choose."""
    file: Submitted | None = None


class Tuning(Part):
    """What the trials chose: a rate for each method and kind of target."""

    seed: int
    rates: tuple[float, ...]
    chosen: dict[Name, dict[str, float]]


class Results(Part):
    """A file of results."""

    format: Literal["fedunlearn benchmark 1"] = "fedunlearn benchmark 1"
    protocol: Digest
    seeds: tuple[int, ...]
    tuning: Tuning
    environments: dict[str, dict[str, str]]
    requests: dict[Name, dict[str, Any]]
    methods: dict[Name, About]
    results: tuple[Cell, ...]

    @property
    def submitted(self) -> frozenset[str]:
        """The methods of a submission."""
        return frozenset(name for name, about in self.methods.items() if about.file)


def read_results(path: Path) -> Results:
    """Stored results that follow this protocol, and whose cells are as they were written."""
    try:
        found = Results.model_validate(json.loads(path.read_bytes()))
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror}", code="file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FedUnlearnError(
            f"{path} is not JSON ({error}): restore it, or run fedunlearn benchmark again", code="damaged"
        ) from None
    except ValidationError as error:
        raise FedUnlearnError(
            f"{path} holds no results of the benchmark ({first_problem(error, Results)}): make them with "
            "fedunlearn benchmark"
        ) from None
    if found.protocol != protocol_digest():
        raise FedUnlearnError(
            f"{path} was made with another version of the protocol, so its results are not comparable: run "
            "fedunlearn benchmark again"
        )
    if problem := _departure(found):
        raise FedUnlearnError(
            f"{path} does not have the protocol's {problem}: restore it, or run fedunlearn benchmark again",
            code="damaged",
        )
    for cell in found.results:
        if problem := _problem(cell, found):
            raise FedUnlearnError(f"{path}: {cell.name} {problem}")
    return found


def _departure(found: Results) -> str:
    """In what the head of a file differs from the protocol; empty if in nothing."""
    known, tuning = requests(), grid()
    if any(known.get(name) != request for name, request in found.requests.items()):
        return "requests"
    if found.seeds != seeds():
        return "seeds"
    return "" if (found.tuning.seed, [*found.tuning.rates]) == (tuning.seed, tuning.rates) else "tuning"


def _problem(cell: Cell, among: Results) -> str:
    """What is wrong with a cell; empty if nothing is."""
    if cell.digest != cell.repeatable():
        return "was changed after it was written: its digest does not match"
    if cell.request not in among.requests or cell.seed not in among.seeds:
        return "is not a request and seed of the protocol"
    if cell.rate is not None and cell.rate not in grid().rates:
        return f"has a learning rate of {cell.rate}, which is not in the grid"
    if (cell.method in REFERENCES) == (cell.method in among.methods):
        return "has a method that the file does not describe, or that is named like a reference"
    repeatable = cell.ran and cell.rounds is not None and cell.model_sha256 is not None
    if cell.method not in REFERENCES and cell.status != "refused" and not repeatable:
        return "lacks its environment, rounds or model, so it cannot be checked"
    if cell.ran and digest(among.environments.get(cell.environment, {}))[:8] != cell.environment:
        return "has an environment that the file does not describe, or that was changed"
    return ""


def write_results(path: Path, results: Results) -> None:
    """Writes results with one line for each cell, so that a difference is easy to read."""
    values = results.model_dump(mode="json")
    cells = [cell.model_dump(mode="json") | {"digest": cell.repeatable()} for cell in results.results]
    head = json.dumps({**values, "results": []}, indent=1, ensure_ascii=False, sort_keys=True)
    lines = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in cells)
    write(path, head.replace('"results": []', f'"results": [\n{lines}\n ]').encode() + b"\n")


def merge(files: Sequence[Path]) -> Results:
    """The results of several files as one.

    Of a submission, only what it says of its own methods is taken; where there are only submissions, their
    references, too. Two files that contradict each other are an error.
    """
    parts = [(path, read_results(path)) for path in files]
    references = REFERENCES.keys() if all(part.submitted for _, part in parts) else set()
    cells: dict[str, Cell] = {}
    about: dict[str, About] = {}
    chosen: dict[str, dict[str, float]] = {}
    environments: dict[str, dict[str, str]] = {}
    for path, part in parts:
        wanted = part.submitted | references if part.submitted else part.methods.keys() | REFERENCES.keys()
        for cell in part.results:
            if cell.method not in wanted:
                continue
            if cells.setdefault(cell.name, cell).repeatable() != cell.repeatable():
                raise _contradiction(path, cell.name)
            if cell.ran:
                environments[cell.environment] = part.environments[cell.environment]
        for name, described in part.methods.items():
            if name not in wanted:
                continue
            if part.submitted and about.get(name, described) != described:
                raise _contradiction(path, name)
            about[name] = described
            chosen.setdefault(name, {}).update(part.tuning.chosen.get(name, {}))
    first = parts[0][1]
    known = {name for _, part in parts for name in part.requests}
    return first.model_copy(
        update={
            "tuning": first.tuning.model_copy(update={"chosen": {k: v for k, v in chosen.items() if v}}),
            "environments": environments,
            "requests": {name: request for name, request in requests().items() if name in known},
            "methods": about,
            "results": tuple(cells.values()),
        }
    )


def _contradiction(path: Path, about: str) -> FedUnlearnError:
    return FedUnlearnError(f"{path} contradicts another file about {about}: remove one of the two")


def digest(value: Mapping[str, Any]) -> str:
    """The SHA-256 of a value's JSON."""
    return sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
