"""Attacks on the demo, with and without guards: the table of docs/guards.md."""

from __future__ import annotations

import time
import warnings

import pytest
from support.attacks import aimed_at, copied_from, idle, mixed, noise, only_after, scaled, stale
from support.worlds import forgotten, world

from fedunlearn import Guards, Outcome

TARGET, VICTIM, BAD, ROUNDS = "client-6", "client-0", "client-9", 20
ATTACKS = {
    "none": {},
    "target × 10": {TARGET: scaled(10)},
    "target × 100": {TARGET: scaled(100)},
    "target × 10⁴": {TARGET: scaled(1e4)},
    "target negated": {TARGET: scaled(-1)},
    "target sends noise": {TARGET: noise},
    "target sends zeros": {TARGET: idle},
    "target repeats its first update": {TARGET: stale},
    "target aims": {TARGET: aimed_at(VICTIM)},
    "target aims × 10": {TARGET: aimed_at(VICTIM, 10)},
    "copy of the target, 5 % noise": {BAD: copied_from(TARGET, 0.05)},
    "the same, negated": {BAD: copied_from(TARGET, 0.05, -1)},
    "mixed with client-0's": {BAD: mixed(TARGET, VICTIM)},
    "exact copy": {BAD: copied_from(TARGET)},
    "sign flips of client-9": {BAD: only_after(ROUNDS, scaled(-1))},
    "sign flips of client-0": {VICTIM: only_after(ROUNDS, scaled(-1))},
    "sign flips × 9": {BAD: only_after(ROUNDS, scaled(-9))},
    "sign flips × 100": {BAD: only_after(ROUNDS, scaled(-100))},
    "zeros": {BAD: idle},
    "first update again": {BAD: stale},
}


def attacked(attacks, guards: Guards | None, lie: bool) -> tuple[Outcome, float]:
    began = time.monotonic()
    assert world()[1].targets == (TARGET,)
    outcome = forgotten(world(), attacks, guards, lie=lie, evaluate_every=1)
    return outcome, time.monotonic() - began


@pytest.mark.chaos
@pytest.mark.parametrize("what", ATTACKS)
def test_an_attack_on_the_demo_is_stopped_or_told_of(what):
    warnings.simplefilter("ignore")
    lies = [("on, lies", Guards(), True)] if what.startswith("sign flips of") else []
    for name, guards, lie in (("off", None, False), ("on", Guards(), False), *lies):
        outcome, seconds = attacked(ATTACKS[what], guards, lie)
        last = outcome.metrics[-1]
        sent = sum(row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in outcome.metrics) / 1e6
        print(
            f"| {what} | {name} | {last['asr']:.2f}, {last['r_acc']:.3f}, {last['r_acc_worst']:.2f} | "
            f"client-0 {last['r_acc client-0']:.2f} | {outcome.status} | {last['elapsed']} | {sent:,.0f} | "
            f"{seconds:.0f} | {outcome.guards} | {'; '.join((*outcome.warnings, outcome.reason))} |",
            flush=True,
        )
        assert bool(outcome.params.isfinite().all())
        if guards is not None:
            assert bool(outcome.warnings) == (what != "none")
            assert last["r_acc_worst"] > 0.1


@pytest.mark.chaos
def test_a_client_that_harms_only_itself_and_lies_about_it_is_not_noticed():
    warnings.simplefilter("ignore")
    attack = {"client-5": only_after(ROUNDS, scaled(-1))}
    for guards in (None, Guards()):
        outcome, _ = attacked(attack, guards, lie=True)
        own = outcome.metrics[-1].pop("r_acc client-5")
        others = [value for key, value in outcome.metrics[-1].items() if key.startswith("r_acc client-")]
        print(
            f"| client-5 flips signs, no loss told | {guards is not None} | {own:.2f} | {min(others):.2f} |"
        )
        assert not outcome.warnings
        assert own < 0.1
        assert min(others) > 0.5
