"""Attacks on small federations, in lists that end with a count: A2, A3 and A5 of docs/guards.md."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from statistics import median

import pytest
from support.attacks import aimed_at, noise, only_after, scaled
from support.worlds import forgotten, small

from fedunlearn import Guards, Outcome, Status
from fedunlearn.core import ClientId, Metrics, Stage
from fedunlearn.driver.probes import FinishedRound

SEEDS = range(1, 11)
ROUNDS = 20
"""Exchanges of training before post-training."""
TARGET_KINDS = {
    **{f"× 1e{power}": scaled(10.0**power) for power in (1, 2, 4, 6, 8)},
    "negated": scaled(-1.0),
    "noise": noise,
}
FLIPS = {"sign flip": scaled(-1.0), "× 100": scaled(100.0), "NaN": scaled(math.nan)}
TALLY: Counter[str] = Counter()


@pytest.fixture(scope="module", autouse=True)
def _summary(request) -> Iterator[None]:
    yield
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for key in sorted({key.partition(":")[0] for key in TALLY}):
            print(f"\n{key}: {TALLY[key + ': held']} of {TALLY[key + ': all']}", flush=True)


def count(name: str, held: bool) -> bool:
    TALLY[f"{name}: all"] += 1
    TALLY[f"{name}: held"] += held
    return held


@cache
def honest(seed: int) -> Metrics:
    outcome = forgotten(small(seed), {}, Guards())
    assert outcome.status is Status.DONE
    assert outcome.guards is not None
    assert not any(code.startswith("stopped") for code in outcome.guards)
    return outcome.metrics[-1]


def attacked(name: str, seed: int, what: str, attacks) -> Outcome:
    """A guarded run, after which every step is known to have been as short as it must be."""
    warnings.simplefilter("ignore")
    guards = Guards()

    def bounded(round: FinishedRound) -> Metrics:
        if round.phase.stage is Stage.UNLEARNING:
            moved = [reply.moved for e in round.exchanges for c, reply in e.replies.items() if c in retained]
            length = float((round.after.params - round.before.params).norm())
            longest = min(
                guards.step * float(round.before.params.norm()),
                guards.target_norm * median(float(update.norm()) for update in moved),
            )
            assert count(f"{name} steps within the cap", length <= longest * (1 + 1e-5))
        return {}

    where = small(seed)
    retained = where[1].retained
    outcome = forgotten(where, attacks, guards, probes=(bounded,))
    assert bool(outcome.params.isfinite().all())
    last, before = outcome.metrics[-1], honest(seed)
    print(
        f"| {name} | {seed} | {what} | {outcome.status} | {last['asr']:.2f} | {last['r_acc']:.3f} "
        f"({before['r_acc']:.3f}) | {last['r_acc_worst']:.2f} ({before['r_acc_worst']:.2f}) | "
        f"{outcome.guards} |",
        flush=True,
    )
    return outcome


def within(outcome: Outcome, seed: int, key: str, points: float) -> bool:
    return float(outcome.metrics[-1][key]) >= float(honest(seed)[key]) - points / 100 - 1e-9


@pytest.mark.chaos
@pytest.mark.parametrize("seed", SEEDS)
def test_a2_a_target_that_sends_something_else(seed):
    _, request = small(seed)
    (target,) = request.targets
    kinds = {**TARGET_KINDS, "another client's": aimed_at(request.retained[-1])}
    for what, attack in kinds.items():
        outcome = attacked("A2", seed, what, {target: attack})
        erased = float(outcome.metrics[-1]["asr"]) <= float(outcome.metrics[0]["asr"]) / 2
        assert count("A2 forgotten or told", erased or bool(outcome.guards))
        count("A2 worst client within 3 points", within(outcome, seed, "r_acc_worst", 3))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", SEEDS)
def test_a3_a_target_that_aims_at_a_client(seed):
    _, request = small(seed)
    (target,) = request.targets
    for victim in request.retained[:8]:
        outcome = attacked("A3", seed, victim, {target: aimed_at(victim)})
        erased = float(outcome.metrics[-1]["asr"]) <= float(outcome.metrics[0]["asr"]) / 2
        assert count("A3 forgotten or told", erased or bool(outcome.guards))
        count("A3 victim within 3 points", within(outcome, seed, f"r_acc {victim}", 3))
        count("A3 worst client within 3 points", within(outcome, seed, "r_acc_worst", 3))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("number", [1, 2])
def test_a5_clients_that_spoil_post_training(seed, number):
    _, request = small(seed)
    cheats: tuple[ClientId, ...] = request.retained[-number:]
    for what, attack in FLIPS.items():
        name = f"A5 {what} × {number} of 9"
        outcome = attacked(name, seed, what, dict.fromkeys(cheats, only_after(ROUNDS, attack)))
        count(f"{name}, R-Acc within 2 points", within(outcome, seed, "r_acc", 2))
        assert outcome.guards is not None
        count(f"{name}, told", bool(outcome.guards))
        if what != "sign flip":
            assert any(code.startswith("refused") for code in outcome.guards)
