"""The control that every comparison needs: go on training without the targets, unlearn nothing."""

from __future__ import annotations

from ..core import Phase
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule


@method("finetune", paper="-", summary="control: post-training only, no unlearning", online="retained")
def finetune(schedule: Schedule) -> tuple[Phase, ...]:
    """As many rounds as a method with both stages has in all."""
    return (Averaging(schedule.rounds, schedule.recover_lr),)
