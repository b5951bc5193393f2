"""Tables of settings that several files share, as frozen values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from ..core import LocalTraining
from ..driver import Guards, Participation
from .options import LARGEST


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
    """A part of a file with settings: frozen, and unknown keys are refused."""

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

    def local_training(self) -> LocalTraining:
        return LocalTraining(**dict(self))


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

    def participation(self) -> Participation:
        return Participation(**self.model_dump())


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
