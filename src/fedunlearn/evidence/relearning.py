"""Relearn time: after how many rounds the forgotten returns, to a model and to a retrained one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Comeback:
    """The fall of the mean loss on the forgotten examples under one attack.

    The forgotten has returned when the loss is at most halfway from that of retraining to that of ω⁰.
    """

    original: float
    """The loss of ω⁰, before any attack."""
    model: tuple[float, ...]
    """After each round, beginning with round 0, before the attack."""
    retrained: tuple[float, ...]

    @property
    def limit(self) -> int:
        """Number of rounds that were tried."""
        return len(self.model) - 1

    @property
    def threshold(self) -> float | None:
        """None where ω⁰ knows no more than retraining: there is nothing to relearn."""
        return (self.original + self.retrained[0]) / 2 if self.original < self.retrained[0] else None

    @property
    def rounds(self) -> int | None:
        """Rounds until the forgotten returns to the model; None if it does not within the limit."""
        return self._reached(self.model)

    @property
    def rounds_retrained(self) -> int | None:
        """The same for the retrained model."""
        return self._reached(self.retrained)

    @property
    def ratio(self) -> float | None:
        """Rounds of the model by those of retraining, where both return: well below 1, it was hidden."""
        if self.rounds is None or self.rounds_retrained is None:
            return None
        return self.rounds / self.rounds_retrained

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        if self.threshold is None:
            return (
                f"there is nothing to relearn, because the loss of ω⁰ ({self.original:.3f}) is not below "
                f"that of retraining ({self.retrained[0]:.3f})."
            )
        if self.rounds == 0:
            ours = "the forgotten is still there before the first round"
        else:
            unit = "round" if self.rounds == 1 else "rounds"
            ours = f"the forgotten comes back after {self.shown(self.rounds)} {unit}"
        return f"{ours}; a retrained model learns it in {self.shown(self.rounds_retrained)}."

    def shown(self, rounds: int | None) -> str:
        """A number of rounds as text: ``3``, or ``> 20``."""
        return f"> {self.limit}" if rounds is None else str(rounds)

    def as_dict(self) -> dict[str, Any]:
        names = ("limit", "threshold", "rounds", "rounds_retrained", "ratio")
        return {**{name: getattr(self, name) for name in names}, **asdict(self)}

    def _reached(self, losses: Sequence[float]) -> int | None:
        if self.threshold is None:
            return None
        return next((number for number, loss in enumerate(losses) if loss <= self.threshold), None)


@dataclass(frozen=True)
class Curves:
    """The mean loss of one model on the forgotten examples, by attack; round 0 is before it."""

    posttraining: tuple[float, ...]
    finetuning: tuple[float, ...]


@dataclass(frozen=True)
class Relearning:
    """The return of the forgotten, by attack."""

    posttraining: Comeback
    finetuning: Comeback
    examples: int
    """Number of examples that fine-tuning teaches at most, per target."""

    @property
    def retrained(self) -> Curves:
        """The curves of the retrained model, which serve for other models, too."""
        return Curves(self.posttraining.retrained, self.finetuning.retrained)

    @property
    def sentences(self) -> tuple[str, ...]:
        return (
            f"Relearning by post-training: {self.posttraining.sentence}",
            f"Relearning by fine-tuning on up to {self.examples} of its examples: {self.finetuning.sentence}",
        )

    def as_dict(self) -> dict[str, Any]:
        """The result as a value that JSON can hold."""
        return {
            "sentences": list(self.sentences),
            "examples": self.examples,
            "posttraining": self.posttraining.as_dict(),
            "finetuning": self.finetuning.as_dict(),
        }
