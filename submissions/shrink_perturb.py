"""Shrink and perturb: keep a part of the trained model, mix in a new one, and train on with server momentum.

Ash and Adams (On Warm-Starting Neural Network Training, NeurIPS 2020) shrink a trained model and add a new
initialisation before they train it on more data. Here the model is mixed with a new one before it trains on
without the targets' examples. The mixing weakens everything that the model knows, the targets' part included.
The retained clients restore their own part, and nobody restores the targets'. It is not exact: an audit must
say what is left.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

import fedunlearn as fu


@dataclass(frozen=True)
class ShrinkAndPerturb(fu.Phase):
    """ω ← keep · ω + (1 − keep) · ω', where ω' is a new random model. Only the server works."""

    keep: float = 0.3

    stage: ClassVar[fu.Stage] = fu.Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})

    def round(self, request: fu.Request, state: fu.State) -> fu.State:
        assert request.fresh is not None
        fresh = request.fresh("shrink-perturb")
        mixed = self.keep * state.params + (1 - self.keep) * fresh.params
        return replace(state.move_to(mixed), buffers=fresh.buffers)


@dataclass(frozen=True)
class FallingMomentum(fu.Phase):
    """Averages the retained clients with Nesterov's momentum; the learning rate falls in the second half."""

    momentum: float = 0.8

    stage: ClassVar[fu.Stage] = fu.Stage.POSTTRAINING

    def round(self, request: fu.Request, state: fu.State) -> fu.Round:
        rate = self.lr * min(1.0, 2 * (self.rounds - state.round) / self.rounds)
        replies = yield {client: fu.train(state.params, lr=rate) for client in request.asked}
        mean = replies.some(request.asked).average()
        velocity = self.momentum * state.memory.get("velocity", torch.zeros_like(mean)) + mean
        return state.step(-mean - self.momentum * velocity).remember(velocity=velocity)


@fu.method(
    "shrink-perturb",
    paper="ours, after Ash and Adams, 2020",
    source="ours",
    summary="mixes the model with a new one, then trains on without the targets, with server momentum",
    online="retained",
)
def shrink_perturb(
    schedule: fu.Schedule, *, keep: float = 0.3, momentum: float = 0.8
) -> tuple[fu.Phase, ...]:
    """``keep`` is the share of the trained model that stays. ``momentum`` is that of the server."""
    once, rest = schedule.in_one_round
    return (
        ShrinkAndPerturb(once, schedule.unlearn_lr, keep),
        FallingMomentum(rest, schedule.recover_lr, momentum),
    )
