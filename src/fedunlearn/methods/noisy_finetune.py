"""Certified unlearning by noisy fine-tuning (Koloskova et al., ICML 2025), of clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from ..core import (
    RETAINED,
    FedUnlearnError,
    Phase,
    Request,
    Role,
    Round,
    Stage,
    State,
    Vector,
    require,
    train,
)
from ..core.registry import method
from ..core.seeds import generator
from ..maths import gaussian_epsilon, gaussian_mu, noise_sensitivity
from .fedavg import Averaging
from .schedule import Schedule


@dataclass(frozen=True)
class NoisyAveraging(Phase):
    """ω⁰ is clipped to a ball; each round shrinks, adds noise and averages a bounded update."""

    radius: float
    clip: float
    shrink: float
    sigma: float
    delta: float

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"fresh"})
    asks: ClassVar[frozenset[Role]] = RETAINED

    def start(self, request: Request, state: State) -> State:
        if any(buffer.is_floating_point() for buffer in state.buffers.values()):
            raise FedUnlearnError(
                "the model's buffers (BatchNorm statistics) would keep what they know of the targets without "
                "noise, so nothing can be certified: use a model without such buffers",
                code="unsuitable",
            )
        return super().start(request, state)

    def origin(self, request: Request, state: State) -> Vector:
        """The noisy model, from which clients train.

        Deviation: the noise comes before the update instead of after it; the last update is post-processing.
        """
        assert request.fresh is not None
        # Deviation: the ball is around the first model of training, which knows no data, instead of 0.
        centre = request.fresh("pre-training").params
        away = state.params - centre
        away = away if state.round else _clipped(away, self.radius)
        draw = generator(request.seed, "noisy fine-tuning", state.round)
        noise = torch.randn(len(away), generator=draw, dtype=away.dtype)
        return centre + (1 - self.shrink) * away + self.sigma * noise

    def round(self, request: Request, state: State) -> Round:
        noisy = self.origin(request, state)
        replies = (yield {client: train(noisy) for client in request.asked}).some(request.asked)
        # Deviation: one clip of the average, which guards one model as well as a clip of each update.
        moved = noisy - _clipped(replies.average(), self.clip)
        apart = noise_sensitivity(state.round + 1, self.radius, self.clip, self.shrink)
        epsilon = gaussian_epsilon(apart / self.sigma, self.delta)
        certified = torch.tensor(epsilon, dtype=torch.float64)
        return state.move_to(moved, epsilon=epsilon).remember(epsilon=certified)


@dataclass(frozen=True)
class CertifiedAveraging(Averaging):
    """Averaging without noise: what is computed from the noisy model and the retained clients keeps its ε."""

    def start(self, request: Request, state: State) -> State:
        return replace(super().start(request, state), memory=state.memory)

    def round(self, request: Request, state: State) -> Round:
        moved = yield from super().round(request, state)
        return replace(moved, diagnostics={name: float(value) for name, value in state.memory.items()})


def _clipped(vector: Vector, longest: float) -> Vector:
    length = torch.linalg.vector_norm(vector, dtype=torch.float64)
    return vector if length <= longest else vector * float(longest / length)


@method(
    "noisy-finetune",
    paper="Koloskova et al., ICML 2025",
    source="summaries and paper's code",
    summary="certified (ε, δ): clips the model, averages with noise, then without",
)
def noisy_finetune(
    schedule: Schedule,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    sigma: float | None = None,
    radius: float = 1.0,
    clip: float = 0.1,
    shrink: float = 0.5,
) -> tuple[Phase, ...]:
    """``sigma`` is the noise of a round; without one, it follows from the ``epsilon`` to reach at ``delta``.

    ``radius`` is that of the ball around the first model, ``clip`` the longest update of a round and
    ``shrink`` the share of the way back to the first model. Both stages use the rate of pre-training.
    """
    require(epsilon > 0, "epsilon", epsilon, "above 0")
    require(0 < delta < 1, "delta", delta, "above 0 and below 1")
    require(radius > 0, "radius", radius, "above 0")
    require(clip >= 0, "clip", clip, "0 or more")
    require(0 <= shrink < 1, "shrink", shrink, "at least 0 and below 1")
    require(sigma is None or sigma > 0, "sigma", sigma, "above 0")
    rounds, lr = schedule.unlearn_rounds, schedule.pretrain_lr
    if sigma is None:
        apart = noise_sensitivity(max(1, rounds), radius, clip, shrink)
        sigma = apart / gaussian_mu(epsilon, delta)
    return (
        NoisyAveraging(rounds, lr, radius, clip, shrink, sigma, delta),
        CertifiedAveraging(schedule.recover_rounds, lr),
    )
