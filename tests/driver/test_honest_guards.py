"""How near honest runs come to the limits of the guards: the calibration in docs/guards.md."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from statistics import median

import pytest
from worlds import forgotten, small

from fedunlearn import Guards, Status
from fedunlearn.client.losses import forgets
from fedunlearn.core import Stage
from fedunlearn.driver import loop
from fedunlearn.driver.guards import Watch, _cosine, _norm

PARTITIONS = ("pat-20", "pat-50", "iid", "dirichlet")
CHOOSING, JUDGING = range(1, 4), range(11, 21)
"""Seeds: the defaults were chosen on some and are judged on others."""
METHODS = ("finetune", "fast-retrain", "federaser", "not", "reset")
FREE = Guards(norm=1e9, target_norm=1e9, amplification=1e9, step=1e9, budget=1e9, harm=1e9)


@dataclass
class Extremes:
    """How near a run came to each limit, in the units of its setting."""

    norm: float = 0.0
    target_norm: float = 0.0
    amplification: float = 0.0
    step: float = 0.0
    budget: float = 0.0
    harm: float = 0.0
    cosine: float = 0.0
    """Of a retained client's update with one that forgets, in absolute value."""

    def reach(self, name: str, value: float) -> None:
        setattr(self, name, max(getattr(self, name), value))

    def __str__(self) -> str:
        return " | ".join(f"{getattr(self, each.name):.3g}" for each in fields(self))


def watching(seen: Extremes) -> type[Watch]:
    """Guards that also take down what they see."""

    class Watching(Watch):
        def screen(self, jobs, replies):
            moved = {c: r.displacement for c, r in replies.items() if r.displacement is not None}
            retained = {c: moved[c] for c in self.request.retained if c in moved}
            typical = median(map(_norm, retained.values())) if retained else 0.0
            for client, update in moved.items():
                if typical:
                    name = "target_norm" if client in self.request.targets else "norm"
                    seen.reach(name, _norm(update) / typical)
                if client in self.request.targets and forgets(jobs[client]):
                    for other in retained:
                        if not forgets(jobs[other]):
                            seen.reach("cosine", abs(_cosine(moved[other], update)))
            return super().screen(jobs, replies)

        def shortened(self, phase, before, origin, after):
            seen.reach("amplification", float(after.diagnostics.get("amplification", 0.0)))
            if phase.stage is Stage.UNLEARNING:
                seen.reach("step", _norm(after.params - origin) / _norm(origin))
            return super().shortened(phase, before, origin, after)

        def harmed(self, losses):
            for client, reference in self.guarded.reference.items():
                if client in losses:
                    seen.reach("harm", (losses[client] - reference) / max(1.0, reference))
            return super().harmed(losses)

        def spend(self, phase, origin, after):
            kept = super().spend(phase, origin, after)
            seen.reach("budget", self.guarded.spent / _norm(self.request.params))
            return kept

    return Watching


@pytest.mark.chaos
@pytest.mark.parametrize("method", ["fedosd", *METHODS])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_honest_runs_stay_within_the_limits(method, partition, monkeypatch):
    warnings.simplefilter("ignore")
    stops: list[int] = []
    seeds = (*CHOOSING, *JUDGING) if method == "fedosd" else (*CHOOSING[:1], *JUDGING[:2])
    for seed in seeds:
        seen = Extremes()
        monkeypatch.setattr(loop, "Watch", watching(seen))
        outcome = forgotten(small(seed, partition, method), {}, FREE)
        assert outcome.status in (Status.DONE, Status.CONVERGED)
        within = all(
            getattr(seen, name) <= getattr(Guards(), name)
            for name in ("norm", "target_norm", "amplification", "step", "budget", "harm")
        )
        row, told = str(seen), "no limit"
        if not within:
            limited = forgotten(small(seed, partition, method), {}, Guards())
            told = f"{limited.status}: {limited.guards}"
            if limited.status.failed:
                stops.append(seed)
        print(f"| {method} | {partition} | {seed} | {row} | {told} |", flush=True)
    assert not set(stops).intersection(JUDGING)
