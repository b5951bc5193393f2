"""FedRecovery: subtract the targets' weighted residuals (Zhang et al., IEEE TIFS 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ..core import NOBODY, FedUnlearnError, Phase, Request, Role, Stage, State, Status, require
from ..core.registry import method
from ..core.seeds import generator
from .fedavg import Averaging
from .schedule import Schedule


@dataclass(frozen=True)
class ResidualSubtraction(Phase):
    """ω⁰ − c Σ p_t δ_t + z, where ω^{t+1} − δ_t is where round t would have led without the targets."""

    scale: float = 1.0
    weighting: Literal["normalized", "mean_one"] = "normalized"
    noise: float = 0.0

    stage: ClassVar[Stage] = Stage.UNLEARNING
    needs: ClassVar[frozenset[str]] = frozenset({"residuals"})
    asks: ClassVar[frozenset[Role]] = NOBODY
    reveals: ClassVar[tuple[str, ...]] = (
        "retained clients: the targets' recorded contribution, as the distance of the new model from ω⁰",
    )

    def round(self, request: Request, state: State) -> State:
        shares = {target: float(request.history.of("share", target)) for target in request.targets}
        rounds, weight = request.history.shared["residuals"].tolist()
        if sum(shares.values()) >= 1:
            raise FedUnlearnError(
                "the targets were the only clients in their last rounds: retrain instead", code="unsuitable"
            )
        if weight == 0:
            return state.halt(
                Status.CONVERGED, "pre-training did not change the model, so there is nothing to subtract"
            )
        residual = sum(
            (share * request.history.of("residuals", target) for target, share in shares.items()),
            torch.zeros_like(state.params),
        ) / (weight * (1 - sum(shares.values())))
        factor = self.scale * (rounds if self.weighting == "mean_one" else 1)
        sample = torch.randn(len(residual), generator=generator(request.seed, "fedrecovery"))
        return state.step(self.noise * sample - factor * residual)


def noise_for(epsilon: float, beta: float, bound: float) -> float:
    """The σ of the Gaussian mechanism that hides a difference of norm ``bound`` with (ε, β)."""
    if not (epsilon > 0 and 0 < beta < 1 and bound >= 0):
        raise FedUnlearnError(
            f"privacy = [{epsilon:g}, {beta:g}, {bound:g}]: epsilon must be positive, beta in (0, 1), "
            "and the bound zero or more"
        )
    log = math.log(1 / beta)
    return bound / (math.sqrt(2) * (math.sqrt(log + epsilon) - math.sqrt(log)))


@method(
    "fedrecovery",
    paper="Zhang et al., IEEE TIFS 2023",
    source="summaries",
    summary="subtracts the targets' weighted residuals from the model, in one server step",
)
def fedrecovery(
    schedule: Schedule,
    *,
    scale: float = 1.0,
    weighting: Literal["normalized", "mean_one"] = "normalized",
    noise: float = 0.0,
    privacy: list[float] | None = None,
) -> tuple[Phase, ...]:
    """``noise`` is a standard deviation; ``privacy`` = [ε, β, bound of the difference] computes it.

    The guarantee holds only with the bound that the paper derives, and only relative to a retrained model
    with the same noise.
    """
    if privacy is not None:
        if len(privacy) != 3:
            raise FedUnlearnError(f"privacy = {privacy}: give [epsilon, beta, bound]")
        noise = noise_for(*privacy)
    require(noise >= 0, "noise", noise, "zero or more")
    once, rest = schedule.in_one_round
    return (
        ResidualSubtraction(once, schedule.unlearn_lr, scale, weighting, noise),
        Averaging(rest, schedule.recover_lr),
    )
