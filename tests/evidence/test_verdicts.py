import re
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.codes import refused

from fedunlearn.evidence import (
    Estimate,
    Paired,
    Scores,
    Verdict,
    alarm_levels,
    calibrated,
    client_influence,
    corrected,
    decide,
    fisher,
    judge,
    no_verdict,
    tail_alarm,
    tail_finding,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "verdict_error_rates.py"


def compared(difference: float, error: float = 0.01, n: int = 1000) -> Paired:
    one, two = Estimate(0.5 + difference, error), Estimate(0.5, error)
    return Paired(one, two, Estimate(difference, error), n, n)


class World:
    """Losses of several models on the same examples: their common difficulty and noise of their own."""

    def __init__(self, seed: int, n: int = 1000) -> None:
        self.rng, self.n = np.random.default_rng(seed), n
        self.hardness = self.rng.gamma(2, 1, 2 * n) + 1

    def losses(self, remembered: float = 0.0, only_above: float = 0.0) -> Scores:
        values = self.hardness + self.rng.gamma(2, 0.5, 2 * self.n)
        forgotten, unseen = values[: self.n], values[self.n :]
        return Scores(forgotten - remembered * (self.hardness[: self.n] > only_above), unseen)


@pytest.mark.parametrize(
    ("model", "before", "verdict", "said"),
    [
        (compared(0.01), compared(0.08), Verdict.EQUIVALENT, "Equivalent to retraining within ±0.05"),
        (compared(-0.01), compared(0.08), Verdict.EQUIVALENT, "the AUC differs by -0.010"),
        (compared(0.06), compared(0.08), Verdict.UNDER, "Under-forgotten: .* by 0.060"),
        (compared(-0.06), compared(0.08), Verdict.OVER, "Over-forgotten: .* by 0.060"),
        (compared(0.02, 0.02), compared(0.08), Verdict.INCONCLUSIVE, "is not within ±0.05"),
        (compared(0.01, n=599), compared(0.08, n=599), Verdict.INCONCLUSIVE, "needs 600 .* are 599 and 599"),
        (compared(0.01), compared(0.02), Verdict.NO_SIGNAL, "even the model before unlearning equivalent"),
        (compared(0.01), compared(0.03, 0.03), Verdict.NO_SIGNAL, "does not find the client"),
        (compared(0.01), compared(-0.08), Verdict.NO_SIGNAL, "before unlearning over-forgotten"),
        (compared(0.02, 0.02), compared(0.03, 0.03), Verdict.NO_SIGNAL, "cannot certify"),
        (compared(0.01), None, Verdict.NO_SIGNAL, "not tried on the model before unlearning"),
        (compared(0.06), None, Verdict.UNDER, "Under"),
        # An alarm needs no gate and no minimum, but enough examples for the normal approximation.
        (compared(0.06), compared(0.01), Verdict.UNDER, "Under"),
        (compared(0.06, n=30), compared(0.08, n=30), Verdict.UNDER, "Under"),
        (compared(0.06, n=29), compared(0.08, n=29), Verdict.INCONCLUSIVE, "but an alarm needs 30"),
        (compared(0.01, n=29), compared(0.08, n=29), Verdict.INCONCLUSIVE, "needs 600"),
        # Significant, but smaller than the margin.
        (compared(0.03, 0.005), compared(0.08), Verdict.EQUIVALENT, "Equivalent"),
    ],
)
def test_every_verdict(model: Paired, before: Paired | None, verdict: Verdict, said: str) -> None:
    found = decide(model, before)
    assert found.verdict is verdict
    assert found.difference == model.difference.value
    assert found.difference_interval == model.difference.interval(0.90)
    assert found.alarm_interval == model.difference.interval(0.95)
    assert (found.n_forgotten, found.margin) == (model.n_forgotten, 0.05)
    assert re.search(said, found.sentence), found.sentence


def test_the_gate_is_what_the_same_test_says_of_the_model_before() -> None:
    assert decide(compared(0.01), compared(0.08)).gate is Verdict.UNDER
    assert decide(compared(0.01), compared(0.02)).gate is Verdict.EQUIVALENT
    assert decide(compared(0.06), compared(0.03, 0.03)).gate is Verdict.INCONCLUSIVE
    assert [verdict for verdict in Verdict if verdict.alarm] == [Verdict.UNDER, Verdict.OVER]


def test_the_margin_and_the_minimum_are_choices() -> None:
    assert decide(compared(0.01), compared(0.08), margin=0.02).verdict is Verdict.INCONCLUSIVE
    assert decide(compared(0.01, n=300), compared(0.08, n=300), minimum=300).verdict is Verdict.EQUIVALENT
    with refused("invalid", says="margin = 0"):
        decide(compared(0.01), compared(0.08), margin=0)
    with refused("invalid", says="different examples"):
        decide(compared(0.01), compared(0.08, n=999))


def test_calibration_finds_what_plain_losses_hide() -> None:
    world = World(1)
    retrained, twins, before = world.losses(), [world.losses(), world.losses()], world.losses(0.5)
    plain = no_verdict(before)
    judged = judge(before, retrained=retrained, original=world.losses(0.5), references=twins)
    assert plain.interval.high - 0.5 < judged.auc - 0.5
    assert judged.verdict is Verdict.UNDER


@pytest.mark.parametrize("twins", [0, 1, 2])
@pytest.mark.parametrize(
    ("remembered", "verdict"), [(0.0, Verdict.EQUIVALENT), (0.3, Verdict.UNDER), (-0.3, Verdict.OVER)]
)
def test_losses_are_judged(twins: int, remembered: float, verdict: Verdict) -> None:
    world = World(2, n=2000)
    retrained, references = world.losses(), [world.losses() for _ in range(twins)]
    found = judge(
        world.losses(remembered), retrained=retrained, original=world.losses(0.5), references=references
    )
    assert found.verdict is verdict
    assert found.gate is Verdict.UNDER
    assert found.reference_auc == pytest.approx(0.5, abs=0.03)
    # A retrained model that is the only reference has calibrated losses of 0, and is known to be at 0.5.
    assert twins or found.reference_auc == 0.5


def test_a_world_without_memory_gives_no_signal() -> None:
    world = World(3, n=2000)
    assert judge(world.losses(), retrained=world.losses(), original=None).verdict is Verdict.NO_SIGNAL
    found = judge(world.losses(), retrained=world.losses(), original=world.losses(0.02))
    assert found.verdict is Verdict.NO_SIGNAL


def test_without_a_reference_there_is_no_verdict_however_good_it_looks() -> None:
    losses = World(4).losses().unseen
    model, other = Scores(losses, losses), Scores(losses + 1, losses + 1)
    for found in (
        judge(model, retrained=None, original=other, references=[other]),
        no_verdict(model),
    ):
        assert found.verdict is None
        assert found.sentence.startswith("No verdict possible without")
        assert found.difference is found.difference_interval is found.gate is None
        assert found.auc == pytest.approx(0.5)
    with refused("invalid", says="give at least one"):
        calibrated(model, [])


def test_a_model_is_not_its_own_reference() -> None:
    world = World(5)
    model, retrained, before = world.losses(), world.losses(), world.losses(0.5)
    for wrong in (
        {"model": retrained, "retrained": retrained, "original": before},
        {"model": model, "retrained": retrained, "original": retrained},
        {"model": model, "retrained": retrained, "original": before, "references": [model]},
        {"model": model, "retrained": retrained, "original": before, "references": [before]},
    ):
        with refused("invalid", says="have equal losses: give different models"):
            judge(**wrong)  # type: ignore[arg-type]


def test_models_are_compared_on_the_same_examples() -> None:
    world, other = World(6), World(6, n=900)
    with refused("invalid", says="a reference has losses of 900 forgotten and 900 unseen"):
        judge(world.losses(), retrained=world.losses(), original=world.losses(), references=[other.losses()])
    broken = Scores(np.full(1000, np.inf), np.full(1000, np.inf))
    with refused("invalid", says="contain NaN"):
        calibrated(broken, [broken])


def test_the_tail_alarm_sees_what_the_whole_does_not() -> None:
    whole, tail = Counter[Verdict | None](), Counter[Verdict | None]()
    for seed in range(20):
        world = World(seed, n=2000)
        retrained, twins, before = world.losses(), [world.losses(), world.losses()], world.losses(0.5)
        model = world.losses(0.6, only_above=float(np.quantile(world.hardness, 0.93)))
        whole[judge(model, retrained=retrained, original=before, references=twins).verdict] += 1
        tail[tail_alarm(model, retrained=retrained, references=twins).verdict] += 1
    # In 200 worlds the rates were 97 % and 99.5 %.
    assert whole[Verdict.EQUIVALENT] >= 17
    assert tail[Verdict.UNDER] >= 18


def test_the_tail_alarm_has_two_sides() -> None:
    world = World(7, n=2000)
    retrained, twin = world.losses(), world.losses()
    found = tail_alarm(world.losses(-1, only_above=5), retrained=retrained, references=[twin])
    assert found.verdict is Verdict.OVER
    assert found.n_unseen == 200


def test_a_silent_tail_is_not_a_pass() -> None:
    world = World(8)
    found = tail_alarm(world.losses(), retrained=world.losses(), references=[world.losses()])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.sentence.startswith("No alarm among the")
    assert found.margin is None
    with refused("invalid", says="take a larger share"):
        tail_alarm(world.losses(), retrained=world.losses(), references=[world.losses()], share=0.001)


def test_the_tail_alarm_is_rarely_false() -> None:
    alarms = 0
    for seed in range(300):
        world = World(seed, n=600)
        found = tail_alarm(world.losses(), retrained=world.losses(), references=[world.losses()])
        alarms += found.verdict is not Verdict.INCONCLUSIVE
    assert alarms / 300 <= 0.085  # 5 % and three standard errors of the simulation


def test_alarms_about_several_targets_are_corrected() -> None:
    """Each of three is an alarm alone; together only what Holm's levels allow is."""
    found = [compared(difference) for difference in (0.0205, 0.03, -0.021)]
    assert alarm_levels(found) == pytest.approx([1 - 0.05 / 2, 1 - 0.05 / 3, 1 - 0.05 / 2])
    several = [
        tail_finding(pair, level=level).verdict
        for pair, level in zip(found, alarm_levels(found), strict=True)
    ]
    assert [tail_finding(pair).verdict.alarm for pair in found] == [True, True, True]
    assert [verdict.alarm for verdict in several] == [False, True, False]
    # Equivalence does not depend on the level of alarms.
    levels = (0.95, 0.999)
    assert {decide(compared(0.01), compared(0.08), level=each).verdict for each in levels} == {
        Verdict.EQUIVALENT
    }
    # Too few examples are no alarm.
    assert alarm_levels([compared(0.0), compared(0.03, n=29)]) == pytest.approx([0.975, 0.975])
    assert alarm_levels([compared(0.03, error=0.0), compared(0.0, error=0.0)]) == pytest.approx([0.975, 0.95])


def test_false_alarms_of_five_targets_are_as_rare_as_of_one() -> None:
    rng = np.random.default_rng(1)
    alarms = plain = 0
    for _ in range(2000):
        found = [compared(difference) for difference in rng.normal(0, 0.01, 5)]
        levels = alarm_levels(found)
        alarms += any(
            tail_finding(p, level=level).verdict.alarm for p, level in zip(found, levels, strict=True)
        )
        plain += any(tail_finding(pair).verdict.alarm for pair in found)
    assert alarms / 2000 <= 0.065
    assert plain / 2000 > 0.18


def test_influence_is_measured_against_the_noise_of_retraining() -> None:
    first = {"target": 0.485, "a": 0.80, "b": 0.70}
    again = {"target": 0.467, "a": 0.80, "b": 0.71}
    found = client_influence({"target": 0.318, "a": 0.79, "b": 0.72}, first, again)
    assert {client for client, influence in found.items() if influence.beyond} == {"target"}
    assert found["target"].difference == pytest.approx(-0.167)
    assert found["target"].floor == pytest.approx(0.018)
    # A client whose two retrainings agree by chance gets the floor of all.
    assert found["a"].floor == pytest.approx(np.sqrt((0.018**2 + 0.01**2) / 3))


def test_influence_is_rarely_flagged_by_chance() -> None:
    rng, flagged = np.random.default_rng(1), 0
    for _ in range(500):
        runs = [dict(zip("abcdefghij", values, strict=True)) for values in rng.normal(size=(3, 10))]
        flagged += sum(influence.beyond for influence in client_influence(*runs).values())
    assert flagged / 5000 < 0.01


def test_few_examples_show_no_influence_that_many_show() -> None:
    first, again = {"a": 0.80, "b": 0.70, "c": 0.75}, {"a": 0.81, "b": 0.69, "c": 0.75}
    for n, flagged in ((20, set()), (2000, {"b"})):
        found = client_influence({"a": 0.80, "b": 0.60, "c": 0.75}, first, again, dict.fromkeys("abc", n))
        assert {client for client, influence in found.items() if influence.beyond} == flagged
        assert {influence.n for influence in found.values()} == {n}


def test_influence_on_examples_is_rarely_flagged_by_chance() -> None:
    rng, flagged = np.random.default_rng(2), 0
    for _ in range(300):
        runs = [dict(zip("abcdefghij", hits / 50, strict=True)) for hits in rng.binomial(50, 0.8, (3, 10))]
        flagged += any(
            each.beyond for each in client_influence(*runs, dict.fromkeys("abcdefghij", 50)).values()
        )
    assert flagged / 300 <= 0.05


def test_more_audits_make_a_difference_count_less() -> None:
    first, again = {"a": 0.80}, {"a": 0.81}
    found = client_influence({"a": 0.70}, first, again, {"a": 200})
    assert found["a"].beyond
    assert not corrected([found] * 20)[0]["a"].beyond


def test_an_exact_test_of_two_shares() -> None:
    assert fisher(160, 200, 140, 200) == pytest.approx(0.0279469, abs=1e-7)
    assert fisher(0, 5, 5, 5) == pytest.approx(2 / 252)
    assert fisher(7, 10, 7, 10) == 1.0
    assert fisher(10**15, 2 * 10**15, 10**15 - 10, 2 * 10**15) == pytest.approx(1, abs=1e-5)


def test_influence_needs_the_same_clients() -> None:
    with refused("invalid", says="on the same clients"):
        client_influence({"a": 1}, {"a": 1}, {"b": 1})
    with refused("invalid", says="finite"):
        client_influence({"a": np.nan}, {"a": 1}, {"a": 1})


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize(
    ("auc", "verdict", "least", "most"),
    [
        (0.50, Verdict.EQUIVALENT, 0.75, 1.00),
        (0.50, Verdict.UNDER, 0.00, 0.05),
        (0.50, Verdict.OVER, 0.00, 0.05),
        (0.55, Verdict.EQUIVALENT, 0.00, 0.085),
        (0.60, Verdict.EQUIVALENT, 0.00, 0.00),
        (0.60, Verdict.UNDER, 0.99, 1.00),
    ],
)
def test_verdicts_err_as_rarely_as_they_say(
    script: dict[str, Any], auc: float, verdict: Verdict, least: float, most: float
) -> None:
    # Of 300 simulations; the bounds leave room for three standard errors.
    rates = script["simulate"](script["World"](600, 600, auc), simulations=300, seed=1)
    assert least <= rates.verdicts[verdict] <= most
    assert 0.85 <= rates.covered <= 0.95


def test_the_script_prints_a_table(script: dict[str, Any]) -> None:
    rows = script["table"](5, 1, [script["World"](60, 60, 0.5), script["World"](60, 60, 0.5, retrainings=2)])
    assert len(rows.splitlines()) == 4
