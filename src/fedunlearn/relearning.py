"""Relearning: how many rounds pass until the forgotten returns, beside a retrained model that never knew it.

A model that only hides what it should forget relearns it faster than one that never saw it. Two attacks: the
retained clients go on training (post-training), or the target teaches some of its own examples (fine-tuning)
and the loss on its other examples is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar

from .auditing import Model, as_state, present_targets
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
    require_count,
)
from .core.seeds import derive
from .core.threads import one_thread
from .driver import Participation, unlearn
from .driver.gate import admit
from .evidence import Comeback, Curves, Relearning
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


def relearn(
    federation: Federation,
    model: Model,
    *,
    targets: ClientId | Sequence[ClientId],
    retrained: Model | Curves,
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
    change. Several targets are taught at once, and their losses are pooled. The curves of a retrained model
    that were measured before can stand for it.

    The targets must be present. They reveal sums of losses and, while they are taught, updates.
    """
    require_count("rounds", rounds, 1)
    require_count("examples", examples, 1)
    named = present_targets(federation, targets)
    if isinstance(retrained, Curves) and {len(each) for each in astuple(retrained)} != {rounds + 1}:
        raise FedUnlearnError(
            f"the curves of the retrained model were not measured in {rounds} rounds: give the model itself",
            code="not-audited",
        )
    before, draw = as_state(original), derive("relearning", seed)
    if isinstance(federation, Selective) and (why := federation.refusal(measuring_job(before, 0, draw))):
        raise FedUnlearnError(f"relearning cannot be measured with these clients: {why}", code="not-audited")
    members = tuple(sorted({*named, *(federation.present() if clients is None else clients)}))

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
            raise FedUnlearnError(f"relearning was not measured: {outcome.reason}", code="not-audited")
        return tuple(losses)

    def curves(of: Model) -> Curves:
        start, own = as_state(of), Teaching(rounds, lr, examples, draw)
        return Curves(
            curve(start, Averaging(rounds, lr), 0, training=training, participation=participation),
            curve(start, own, examples, training=replace(training, epochs=1)),
        )

    with one_thread():
        ours = curves(model)
        theirs = retrained if isinstance(retrained, Curves) else curves(retrained)
        return Relearning(
            Comeback(loss(before, 0), ours.posttraining, theirs.posttraining),
            Comeback(loss(before, examples), ours.finetuning, theirs.finetuning),
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
            raise FedUnlearnError(
                f"relearning was not measured, {target} {why}: try again", code="not-audited"
            )
        means.append(found)
    return sum(means[1:], means[0]).value
