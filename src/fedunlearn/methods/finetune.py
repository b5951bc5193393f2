"""The control for every comparison: continue training without the targets, without unlearning."""

from __future__ import annotations

from ..core import Phase
from ..core.registry import method
from .fedavg import Averaging
from .schedule import Schedule


@method(
    "finetune",
    paper="-",
    summary="control: post-training only, no unlearning",
    kind="control",
    clean_targets="left too much",
)
def finetune(schedule: Schedule) -> tuple[Phase, ...]:
    """Uses the total number of rounds of both stages."""
    return (Averaging(schedule.rounds, schedule.recover_lr),)
