"""Small federations with real images, in which attacks and guards are measured."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from support.attacks import Attack, Attacked

import fedunlearn
from fedunlearn import Guards, Outcome, Request, unlearn
from fedunlearn.core import ClientId, Stage
from fedunlearn.core.seeds import derive
from fedunlearn.driver.probes import Probe
from fedunlearn.experiment import Setting, prepare, pretrained, read

LEARNED = ("pretraining.rounds=75", "pretraining.lr=0.1", "unlearning.lr=0.02")
"""How the federation of docs/guards.md was trained and is asked to forget."""
SMALL = ("data.fraction=0.5", "pretraining.rounds=60", "recovery.rounds=10")


@cache
def world(*overrides: str) -> tuple[Setting, Request]:
    """The demo with other settings, as far as ω⁰."""
    demo = Path(fedunlearn.__file__).parent / "demo.toml"
    setting = prepare(read(demo, [*LEARNED, *overrides]))
    population = setting.population
    return setting, setting.request(pretrained(setting, workers=1), population.unlearning, population.targets)


def small(seed: int, partition: str = "pat-20", method: str = "fedosd") -> tuple[Setting, Request]:
    """Ten clients with 200 examples each."""
    history = ('pretraining.history=["norms"]',) if method == "federaser" else ()
    return world(*SMALL, *history, f"seed={seed}", f"data.partition={partition}", f"method={method}")


def forgotten(
    where: tuple[Setting, Request],
    attacks: Mapping[ClientId, Attack],
    guards: Guards | None,
    *,
    lie: bool = False,
    evaluate_every: int = 100,
    probes: tuple[Probe, ...] = (),
) -> Outcome:
    """A run in a world in which some clients cheat."""
    setting, request = where
    with setting.federation(setting.population.unlearning, 1, Stage.UNLEARNING) as federation:
        return unlearn(
            setting.experiment.phases(),
            request,
            Attacked(federation, attacks, lie=lie),
            training=setting.training,
            seed=derive("unlearning", setting.seed),
            evaluate_every=evaluate_every,
            guards=guards,
            probes=probes,
        )
