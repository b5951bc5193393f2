"""How near honest runs come to the limits of the guards: the false alarms of docs/guards.md."""

from __future__ import annotations

import warnings
from statistics import median_low

import pytest
from honest.federations import CALIBRATION, build

from fedunlearn import Guards, Schedule, Server
from fedunlearn.client.losses import forgets
from fedunlearn.core import Stage
from fedunlearn.driver import rounds
from fedunlearn.driver.guardian import COPY, VETO, Guardian, _cosine, _norm

FREE = Guards(norm=1e9, target_norm=1e9, amplification=1e9, step=1e9, budget=1e9, harm=1e9)


def watching(seen: dict[str, float]) -> type[Guardian]:
    """Guards that also take down how near a run comes to each limit, in the units of its setting."""

    def reach(name: str, value: float) -> None:
        seen[name] = max(seen.get(name, 0.0), value)

    class Watching(Guardian):
        def screen(self, jobs, replies):
            self.updates = {c: r.displacement for c, r in replies.items() if r.displacement is not None}
            retained = [c for c in self.request.retained if c in self.updates]
            typical = median_low(_norm(self.updates[c]) for c in retained) if retained else 0.0
            for client, update in self.updates.items() if typical else ():
                name = "target_norm" if client in self.request.targets else "norm"
                reach(name, _norm(update) / typical)
            learning = [c for c in retained if not forgets(jobs[c])]
            for target in self.request.targets:
                if target in self.updates and forgets(jobs[target]) and len(learning) > 1:
                    forget = self.updates[target]
                    counts = abs if self.guarded.spent == 0 else float
                    closest = max(learning, key=lambda c: counts(_cosine(self.updates[c], forget)))
                    cosine = counts(_cosine(self.updates[closest], forget))
                    reach("cosine", cosine)
                    if cosine > COPY:
                        rest = [c for c in learning if c != closest]
                        reach("veto", self._room(forget, rest) / self._room(forget, learning))
            return super().screen(jobs, replies)

        def shortened(self, phase, before, origin, after):
            reach("amplification", float(after.diagnostics.get("amplification", 0.0)))
            if phase.stage is Stage.UNLEARNING:
                reach("step", _norm(after.params - origin) / _norm(origin))
            return super().shortened(phase, before, origin, after)

        def harmed(self, losses):
            for client, reference in self.guarded.reference.items():
                if client in losses:
                    reach("harm", (losses[client] - reference) / max(1.0, reference))
            return super().harmed(losses)

        def spend(self, phase, origin, after):
            kept = super().spend(phase, origin, after)
            reach("budget", self.guarded.spent / _norm(self.request.params))
            return kept

    return Watching


@pytest.mark.chaos
@pytest.mark.parametrize("cell", CALIBRATION[::3], ids=lambda cell: cell.name)
def test_how_near_honest_runs_come_to_the_limits(cell, monkeypatch, tmp_path):
    """What the default call and the matrix of tests/honest judge is another list of federations."""
    warnings.simplefilter("ignore")
    seen: dict[str, float] = {}
    monkeypatch.setattr(rounds, "Guardian", watching(seen))
    module, clients, target = build(cell)
    server = Server(module, clients, folder=tmp_path, training=cell.training, seed=cell.seed, workers=1)
    server.train(cell.rounds, cell.lr)
    outcome = server.forget(target, "fedosd", Schedule(), evaluate_every=100, guards=FREE)
    print(f"| {cell.name} | {', '.join(f'{name} {value:.3g}' for name, value in seen.items())} |", flush=True)
    assert outcome.guards is not None
    assert not any(code.startswith("refused") for code in outcome.guards)
    assert seen["norm"] < Guards().norm
    assert seen.get("veto", 1.0) < VETO
