"""Guards: what a cheating client cannot do, and what honest clients never notice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support.attacks import Attacked, aimed_at, copied_from, idle, mixed, noise, only_after, scaled, stale
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    METHODS,
    Quadratics,
    equal,
    measured,
    phases,
    request,
    tensors,
)
from support.codes import refused

from fedunlearn import Guards, Outcome, Phase, Reply, Schedule, Status, unlearn
from fedunlearn.core import Event, Mean, Reason, Replies, Stage
from fedunlearn.core.seeds import generator
from fedunlearn.methods.fedosd import AnchoredAveraging
from fedunlearn.runs import Recorder

SHORT = Schedule(unlearn_rounds=3, unlearn_lr=0.05, recover_rounds=3, recover_lr=0.05)


TARGET, VICTIM, BAD = "site-1", "site-0", "site-4"


DEFAULT = Guards()


POST = 3
"""Exchanges of training before FedOSD's post-training."""


def run(attacks=None, *, guards=DEFAULT, lie=False, name="fedosd", **options):
    """A run against attackers, with the replies that its rounds were given."""
    seen: list[Replies] = []

    def watch(round):
        seen.extend(exchange.replies for exchange in round.exchanges)
        return {}

    federation = Attacked(Quadratics(), attacks or {}, lie=lie)
    found = unlearn(
        options.pop("phases", None) or phases(name, SHORT),
        request(),
        federation,
        guards=guards,
        probes=[watch],
        **options,
    )
    return found, seen


def codes(outcome: Outcome) -> Mapping[str, int]:
    """The counts of what the guards did."""
    assert outcome.guards is not None
    return outcome.guards


def losses(outcome: Outcome) -> dict[str, float]:
    return {client: Quadratics().loss(client, outcome.params) for client in CLIENTS}


@pytest.mark.parametrize("name", METHODS)
def test_without_cheats_guards_change_no_bit(name):
    """They only note that nothing was forgotten in three rounds."""
    plain = unlearn(phases(name, SHORT), request(), Quadratics())
    guarded = unlearn(phases(name, SHORT), request(), Quadratics(), guards=Guards(harm=10.0, step=1.0))
    assert equal(tensors(plain.state), tensors(guarded.state))
    assert guarded.status is plain.status
    assert codes(guarded).keys() <= {"unmoved"}


REFUSED = {
    "a hundred times too long": (scaled(100), Reason.NORM),
    "the same again": (stale, Reason.REPLAY),
    "the target's": (copied_from(TARGET), Reason.COPY),
    "the target's with noise": (copied_from(TARGET, 0.05), Reason.COPY),
    "the opposite of the target's": (copied_from(TARGET, 0.05, -1.0), Reason.COPY),
    "another client's": (copied_from("site-2"), Reason.COPY),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_update_is_as_good_as_none(what):
    attack, reason = REFUSED[what]
    outcome, seen = run({BAD: attack})
    refused = [number for number, replies in enumerate(seen, 1) if BAD in replies.missing]
    assert refused
    assert {replies.missing[BAD].reason for replies in seen if BAD in replies.missing} == {reason}
    missing = unlearn(
        phases("fedosd", SHORT), request(), Quadratics(absent={BAD: refused}), guards=Guards(utility=False)
    )
    assert equal(tensors(outcome.state), tensors(missing.state))


def test_an_honest_update_of_zero_is_used_and_told_of():
    outcome, seen = run({BAD: idle})
    assert not any(replies.missing for replies in seen)
    assert codes(outcome)["idle"] == 6


@pytest.mark.parametrize("attack", [copied_from(TARGET), scaled(100), scaled(1e-9)])
def test_a_rule_that_would_refuse_half_of_the_clients_refuses_nobody(attack):
    _, seen = run({BAD: attack, VICTIM: attack}, guards=Guards(utility=False))
    assert not any(replies.missing for replies in seen[:1])


def test_all_rules_together_refuse_at_most_half_of_the_clients():
    attacks = {BAD: scaled(100), VICTIM: copied_from("site-2"), "site-3": copied_from(TARGET, 0.05)}
    for chosen, expected in (
        ({"site-3"}, {"site-3"}),
        ({BAD, VICTIM}, {BAD, "site-2"}),  # of two that are equal, the second is refused
        ({BAD, VICTIM, "site-3"}, {BAD, "site-2"}),
    ):
        _, seen = run({client: attacks[client] for client in chosen}, guards=Guards(utility=False))
        assert seen[0].missing.keys() == expected


def test_more_data_may_make_a_longer_update():
    def larger(seen):
        return replace(seen.sends(seen.own.moved * 30), examples=20 * seen.own.examples)

    assert not any(replies.missing for replies in run({BAD: larger})[1][:1])
    assert run({BAD: scaled(30)})[1][0].missing[BAD].reason is Reason.NORM


def test_two_honest_clients_of_which_the_model_does_not_move_may_repeat_themselves():
    """A step of zero leaves the model as it is, and training on it comes to the same."""

    class Still(AnchoredAveraging):
        def round(self, request, state):
            yield from super().round(request, state)
            return state

    steady, _ = run(phases=(Still(3, 0.05),))
    assert steady.status is Status.DONE
    assert not any(code.startswith("refused") for code in codes(steady))


@pytest.mark.parametrize("power", range(2, 9))
def test_a_target_cannot_step_further_than_its_bound(power):
    outcome, seen = run({TARGET: scaled(10.0**power)}, guards=Guards(utility=False, step=100.0, budget=1e6))
    for replies in seen[:POST]:
        norms = sorted(float(replies[c].moved.norm()) for c in CLIENTS if c != TARGET and c in replies)
        middle = (norms[1] + norms[2]) / 2
        assert float(replies[TARGET].moved.norm()) <= 2 * middle * (1 + 1e-6)
    assert "shortened" in codes(outcome)


def test_steps_and_their_sum_have_limits():
    outcome, _ = run({TARGET: scaled(1e6)}, name="ascent", guards=Guards(utility=False, step=0.01))
    start = float(request().params.norm())
    assert outcome.metrics[1]["distance"] == pytest.approx(0.01 * start, rel=1e-4)
    assert outcome.metrics[1]["step_share"] < 1e-3
    stopped, _ = run(
        {TARGET: scaled(1e6)}, name="ascent", guards=Guards(utility=False, step=0.01, budget=0.025)
    )
    assert stopped.status is Status.GUARD_STOP
    assert [row["round"] for row in stopped.metrics if row["stage"] == "unlearning"] == [1, 2, 2]
    assert codes(stopped)["stopped:budget"] == 1


@pytest.mark.wording
def test_an_amplified_step_is_cut_and_the_client_behind_it_named():
    outcome, _ = run({BAD: mixed(TARGET, VICTIM)}, guards=Guards(utility=False))
    cut = [row for row in outcome.metrics if row.get("amplification", 0) > 10]
    assert cut
    for row in cut:
        assert row["step_share"] == pytest.approx(10 / row["amplification"], rel=1e-3)
    told = next(each for each in outcome.warnings if "lengthened more than 10 times" in each)
    assert f"without {BAD} " in told or f"without {VICTIM} " in told


def limit(client: str, harm: float) -> float:
    reference = Quadratics().loss(client, request().params)
    return reference + harm * max(1.0, reference)


@pytest.mark.parametrize("lie", [False, True])
def test_no_honest_client_ends_beyond_the_limit(lie):
    """The target aims at a victim with more force than its bound allows, for as long as it takes."""
    schedule = Schedule(40, 0.3, 0, 0.05)
    attack = {TARGET: aimed_at(VICTIM, 50.0)}
    free = unlearn(phases("ascent", schedule), request(), Attacked(Quadratics(), attack))
    assert losses(free)[VICTIM] > 10 * limit(VICTIM, 0.5)
    outcome, _ = run(attack, phases=phases("ascent", schedule), guards=Guards(harm=0.5, budget=1e9), lie=lie)
    assert codes(outcome)["stopped:harm"] == 1
    assert outcome.metrics[-1]["elapsed"] == 4
    assert all(losses(outcome)[c] <= limit(c, 0.5) * (1 + 1e-5) for c in CLIENTS if c != TARGET)
    assert "halved" in codes(outcome)


@pytest.mark.parametrize("until", [5, 99])
def test_harmful_steps_of_post_training_are_left_out_and_three_in_a_row_end_it(until):
    """The client lies in exchanges five and six, or for ever."""
    attack = only_after(POST + 1, lambda seen: seen.sends(seen.own.moved * (-9 if lying(seen) else 1)))

    def lying(seen):
        return seen.federation.trainings <= until

    heard: list[Event] = []
    outcome, _ = run(
        {BAD: attack},
        guards=Guards(harm=0.01, norm=1e9, halvings=2),
        listeners=[heard.append],
        phases=phases("fedosd", replace(SHORT, recover_rounds=30, recover_lr=0.3)),
    )
    assert outcome.metrics[-1]["elapsed"] == (7 if until == 99 else 33)
    assert torch.equal(heard[6].progress.state.params, heard[5].progress.state.params)
    assert ("stopped:harm" in codes(outcome)) is (until == 99)


def test_a_step_that_is_halved_moves_half_as_far():
    class Touchy(Quadratics):
        """Measures twice the loss for one proposal."""

        trials = 0

        def measurement(self, client, job):
            found = super().measurement(client, job)
            if job.config.get("on") == "train" and client == VICTIM:
                self.trials += 1
                if self.trials == 2:
                    return {"train": {"loss": Mean(1e6, 1)}}
            return found

    plain = unlearn(phases("finetune", SHORT), request(), Quadratics())
    halved = unlearn(phases("finetune", SHORT), request(), Touchy(), guards=Guards())
    assert halved.metrics[1]["step_share"] == pytest.approx(0.5)
    assert halved.metrics[1]["distance"] == pytest.approx(plain.metrics[1]["distance"] / 2, rel=1e-5)


def test_a_loss_that_is_not_finite_counts_as_harm():
    class Broken(Quadratics):
        trials = 0

        def measurement(self, client, job):
            found = super().measurement(client, job)
            if job.config.get("on") == "train":
                self.trials += 1
                if self.trials > len(CLIENTS) - 1:
                    return {"train": {"loss": Mean(math.nan, 1)}}
            return found

    outcome = unlearn(phases("finetune", SHORT), request(), Broken(), guards=Guards())
    assert outcome.status is Status.GUARD_STOP
    assert torch.equal(outcome.params, request().params)


def test_clients_that_measure_nothing_are_told_of():
    class Silent(Quadratics):
        asked = 0

        def measurement(self, client, job):
            if job.config.get("on") != "train":
                return super().measurement(client, job)
            self.asked += 1
            return {}

    federation = Silent()
    outcome = unlearn(phases("finetune", SHORT), request(), federation, guards=Guards())
    assert outcome.status is Status.DONE
    assert codes(outcome)["untried"] == 1
    assert federation.asked == len(CLIENTS) - 1  # once: there is no point in asking again


def test_the_trial_of_a_step_is_one_exchange_and_its_bytes_are_counted():
    plain, _ = run(guards=None)
    guarded, _ = run(guards=Guards(harm=10.0))
    models = [
        (row["bytes_down"] - other["bytes_down"]) / (4 * DIMENSION)
        for row, other in zip(guarded.metrics[1:], plain.metrics[1:], strict=True)
    ]
    assert models == [
        8,
        4,
        4,
        8,
        4,
        4,
    ]  # four retained clients; the first round of a phase also asks what was
    assert [row["bytes_up"] for row in guarded.metrics[1:]] == [row["bytes_up"] for row in plain.metrics[1:]]
    cheap, _ = run(guards=Guards(utility=False))
    assert [row["bytes_down"] for row in cheap.metrics[1:]] == [r["bytes_down"] for r in plain.metrics[1:]]


ATTACKS = {
    "shortened": {TARGET: scaled(1e4)},
    "refused": {BAD: stale, VICTIM: only_after(2, scaled(100))},
    "amplified": {BAD: mixed(TARGET, VICTIM)},
}


@pytest.mark.parametrize("what", ATTACKS)
def test_a_guarded_run_resumes_from_its_checkpoints_to_the_same_bits(what, tmp_path):
    whole = unlearn(
        phases("fedosd", SHORT), request(), Attacked(Quadratics(), ATTACKS[what]), guards=Guards()
    )
    for stop in range(1, 6):

        class Killed(Exception):
            pass

        def until(event: Event, stop: int = stop) -> None:
            if event.progress.elapsed_rounds == stop:
                raise Killed

        folder = tmp_path / str(stop)
        federation = Attacked(Quadratics(), ATTACKS[what])
        with pytest.raises(Killed), Recorder(folder, "one") as recorder:
            unlearn(
                phases("fedosd", SHORT), request(), federation, guards=Guards(), listeners=[recorder, until]
            )
        again = Recorder(folder, "one").progress
        assert again is not None
        later = unlearn(phases("fedosd", SHORT), request(), federation, guards=Guards(), resume=again)
        assert equal(tensors(later.state), tensors(whole.state))
        assert later.warnings == whole.warnings
        assert measured(later) == measured(whole)[stop + 1 :]


CODES = {
    "refused:norm": {BAD: scaled(100)},
    "refused:replay": {BAD: stale},
    "refused:copy": {BAD: copied_from(TARGET)},
    "refused:not_finite": {BAD: scaled(math.nan)},
    "refused:shape": {BAD: lambda seen: seen.sends(seen.own.moved[:-1])},
    "refused:dtype": {BAD: lambda seen: seen.sends(seen.own.moved.double())},
    "refused:field": {BAD: lambda seen: Reply(None, 1)},
    "shortened": {TARGET: scaled(1e4)},
    "cut:amplification": {BAD: mixed(TARGET, VICTIM)},
}


@pytest.mark.parametrize("code", CODES)
def test_what_guards_did_is_counted_by_codes_that_name_nobody(code):
    outcome, seen = run(CODES[code])
    assert codes(outcome)[code] >= 1
    assert not any(client in key for key in codes(outcome) for client in CLIENTS)
    if code.startswith("refused:"):
        missing = [failure.reason for replies in seen for failure in replies.missing.values()]
        assert codes(outcome)[code] == missing.count(Reason(code.partition(":")[2]))
    honest, _ = run()
    assert code not in codes(honest)
    assert run(CODES[code], guards=None)[0].guards is None


@pytest.mark.parametrize("seed", range(30))
def test_post_training_never_returns_whatever_a_client_sends(seed):
    """The server projects updates itself, so that a client cannot claim to have done it."""
    draw = generator("liar", seed)
    lie = torch.randn(DIMENSION, generator=draw) * 10 ** float(torch.rand((), generator=draw) * 4 - 3)
    towards = seed % 2 == 0

    def attack(seen):
        away = seen.job.params - request().params
        return seen.sends(lie + (away * 0.5 if towards else 0))

    outcome, _ = run({BAD: attack}, guards=None, phases=(Moved(1, 0.05), AnchoredAveraging(6, 0.05)))
    distances = [row["distance"] for row in outcome.metrics]
    assert all(later >= before * (1 - 1e-6) for before, later in pairwise(distances[1:]))


class Moved(Phase):
    """Starts post-training away from ω⁰."""

    stage = Stage.UNLEARNING

    def round(self, request, state):
        return state.step(torch.ones(DIMENSION) * 0.1)


def test_bad_settings_are_refused():
    for bad in (
        {"norm": 0.5},
        {"harm": 0},
        {"halvings": -1},
        {"budget": math.nan},
        {"amplification": 0.1},
        {"utility": 1},
    ):
        with refused("invalid", says=next(iter(bad))):
            Guards(**bad)


def displaces(change):
    return lambda seen: seen.sends(change(seen.own.moved))


CHAOS = {
    "nan": displaces(lambda d: d * math.nan),
    "inf": displaces(lambda d: d * math.inf),
    "1e38": displaces(lambda d: torch.full_like(d, 1e38)),
    "1e14": displaces(lambda d: torch.full_like(d, 1e14)),
    "subnormal": displaces(lambda d: torch.full_like(d, 1e-42)),
    "zero": idle,
    "wrong shape": displaces(lambda d: d[:-1]),
    "wrong type": displaces(torch.Tensor.double),
    "empty": displaces(lambda d: d[:0]),
    "none": lambda seen: Reply(None, 1),
    "scaled": scaled(1e6),
    "negated": scaled(-1.0),
    "noise": noise,
    "aimed": aimed_at(VICTIM, 10.0),
    "stale": stale,
    "copied": copied_from(TARGET, 0.05),
    "sign flip": scaled(-9.0),
}


ENDS = {*Status} - {Status.RUNNING}


UNUSABLE = {
    **dict.fromkeys(("nan", "inf", "1e38"), "refused:not_finite"),
    **dict.fromkeys(("wrong shape", "empty"), "refused:shape"),
    "wrong type": "refused:dtype",
    "none": "refused:field",
}


def survive(name: str, what: str, who: str, after: int, schedule: Schedule) -> None:
    """No error, a typed end, a finite model; what no model can use is refused, with its code."""
    federation = Attacked(Quadratics(), {who: only_after(after, CHAOS[what])}, lie=True)
    outcome = unlearn(phases(name, schedule), request(), federation, guards=Guards())
    assert outcome.status in ENDS
    assert bool(outcome.params.isfinite().all())
    assert outcome.reason or not outcome.status.failed
    if what in UNUSABLE and federation.cheats:
        assert codes(outcome)[UNUSABLE[what]] == federation.cheats


SAMPLE = [
    pytest.param(what, name, 2 * ((row + column // 4) % 2), id=f"{what}-{name}")
    for row, name in enumerate(METHODS)
    for column, what in enumerate(CHAOS)
    if (row // 2 + column) % 4 == 0
]
"""A quarter of all pairs, each in one stage: every method meets four kinds, every kind seven methods."""


@pytest.mark.parametrize(("what", "name", "after"), SAMPLE)
def test_no_bad_update_breaks_a_method(what, name, after):
    for who in (TARGET, BAD):
        survive(name, what, who, after, Schedule(2, 0.05, 2, 0.05))


@pytest.mark.chaos
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("what", CHAOS)
def test_no_bad_update_breaks_a_method_in_any_round(what, name):
    for who in CLIENTS[:4]:
        for after in range(14):
            survive(name, what, who, after, Schedule(7, 0.05, 7, 0.05))
    print(f"R10 | {name} | {what} | 56 of 56 runs ended with a status and a finite model")
