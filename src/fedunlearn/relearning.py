"""Relearning: how many rounds pass until the forgotten returns, beside a retrained model that never knew it.

A model that only hides what it should forget relearns it faster than one that never saw it. Two attacks: the
retained clients go on training (post-training), or the target teaches some of its own examples (fine-tuning)
and the loss on its other examples is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from .auditing import Model, as_state
from .client.relearning import measuring_job, teaching_job
from .core import (
    ClientId,
    Federation,
    FedUnlearnError,
    Job,
    LocalTraining,
    Phase,
    Request,
    Round,
    Selective,
    Stage,
    State,
    did_you_mean,
    require_count,
)
from .core.seeds import derive
from .core.threads import one_thread
from .driver import Participation, unlearn
from .driver.gate import admit
from .methods import Averaging

ROUNDS = 20
EXAMPLES = 100


@dataclass(frozen=True)
class Teaching(Phase):
    """The targets alone train, each on some of the examples that were forgotten."""

    lesson: int = EXAMPLES
    draw: int = 0

    stage: ClassVar[Stage] = Stage.POSTTRAINING

    def learners(self, request: Request) -> tuple[ClientId, ...]:
        return request.targets

    def round(self, request: Request, state: State) -> Round:
        job = teaching_job(state.params, self.lesson, self.draw)
        replies = yield dict.fromkeys(request.targets, job)
        return state.step(-replies.every(request.targets).average())


@dataclass(frozen=True)
class Comeback:
    """How the mean loss on the forgotten examples falls under one attack.

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
class Relearning:
    """How soon the forgotten returns, by attack."""

    posttraining: Comeback
    finetuning: Comeback
    examples: int
    """Number of examples that fine-tuning teaches, per target."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return (
            f"Relearning by post-training: {self.posttraining.sentence}",
            f"Relearning by fine-tuning on {self.examples} of its examples: {self.finetuning.sentence}",
        )

    def as_dict(self) -> dict[str, Any]:
        """The result as a value that JSON can hold."""
        return {
            "sentences": list(self.sentences),
            "examples": self.examples,
            "posttraining": self.posttraining.as_dict(),
            "finetuning": self.finetuning.as_dict(),
        }


def relearn(
    federation: Federation,
    model: Model,
    *,
    targets: ClientId | Sequence[ClientId],
    retrained: Model,
    original: Model,
    lr: float,
    training: LocalTraining = LocalTraining(),
    participation: Participation = Participation(),
    seed: int = 0,
    rounds: int = ROUNDS,
    examples: int = EXAMPLES,
    clients: Iterable[ClientId] | None = None,
) -> Relearning:
    """Measure how many rounds pass until the forgotten returns, to a model and to a retrained one.

    ``lr`` is the learning rate of both attacks, usually that of the recovery. Fine-tuning trains one local
    epoch per round on ``examples`` of the forgotten ones, drawn by the seed (at most half of them), and
    measures the loss on the others. Post-training measures the loss on all of them. The models given do not
    change. Several targets are taught at once, and their losses are pooled.

    The targets must be present. They reveal sums of losses and, while they are taught, updates.
    """
    named = (targets,) if isinstance(targets, str) else tuple(targets)
    require_count("rounds", rounds, 1)
    require_count("examples", examples, 1)
    present = federation.present()
    for target in named:
        if target not in present:
            raise FedUnlearnError(
                f"target {target!r} is not present{did_you_mean(target, present)}: it must take part, "
                "because nobody else holds its data"
            )
    reference, before, draw = as_state(retrained), as_state(original), derive("relearning", seed)
    if isinstance(federation, Selective) and (why := federation.refusal(measuring_job(before, 0, draw))):
        raise FedUnlearnError(f"relearning cannot be measured with these clients: {why}")
    members = tuple(sorted({*named, *(present if clients is None else clients)}))

    def loss(state: State, lesson: int) -> float:
        return _loss(federation, named, measuring_job(state, lesson, draw))

    def curve(start: State, phase: Phase, lesson: int, **options: Any) -> tuple[float, ...]:
        losses: list[float] = []
        outcome = unlearn(
            (phase,),
            Request(start.params, members, named, buffers=start.buffers),
            federation,
            seed=seed,
            evaluate_every=rounds,
            probes=(),
            listeners=[lambda event: losses.append(loss(event.progress.state, lesson))],
            **options,
        )
        if outcome.status.failed:
            raise FedUnlearnError(f"relearning was not measured: {outcome.reason}")
        return tuple(losses)

    def attack(phase: Phase, lesson: int, **options: Any) -> Comeback:
        ours, theirs = (curve(start, phase, lesson, **options) for start in (as_state(model), reference))
        return Comeback(loss(before, lesson), ours, theirs)

    with one_thread():
        return Relearning(
            attack(Averaging(rounds, lr), 0, training=training, participation=participation),
            attack(Teaching(rounds, lr, examples, draw), examples, training=replace(training, epochs=1)),
            examples,
        )


def _loss(federation: Federation, targets: Sequence[ClientId], job: Job) -> float:
    """The mean loss on the forgotten examples of all targets."""
    jobs = dict.fromkeys(targets, job)
    replies = admit(jobs, federation.exchange(jobs), job.buffers or {})
    means = []
    for target in targets:
        found = replies[target].statistics.get("forgotten", {}).get("loss") if target in replies else None
        if found is None:
            why = replies.missing[target].detail if target in replies.missing else "sent no loss"
            raise FedUnlearnError(f"relearning was not measured, {target} {why}: try again")
        means.append(found)
    return sum(means[1:], means[0]).value
