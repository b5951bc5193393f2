"""Endings: how rounds, phases and runs end, and whether the targets look forgotten by then."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.attacks import Attacked, idle, only_after, scaled
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    Quadratics,
    Spoiled,
    equal,
    measured,
    phases,
    request,
    tensors,
    times,
)
from support.codes import says

from fedunlearn import Guards, Schedule, Status, method, train, unlearn
from fedunlearn.core import Event, Guarded, Mean, Stage
from fedunlearn.driver.endings import unmoved
from fedunlearn.driver.guardian import Guardian
from fedunlearn.methods.fedavg import Averaging

SHORT = Schedule(unlearn_rounds=3, unlearn_lr=0.05, recover_rounds=3, recover_lr=0.05)


TARGET, VICTIM, BAD = "site-1", "site-0", "site-4"


def test_a_step_that_is_not_finite_is_not_taken():
    class Wild(Averaging):
        def round(self, asked, state):
            yield {client: train(state.params) for client in asked.asked}
            return state.step(torch.full((DIMENSION,), torch.nan))

    outcome = unlearn((Wild(3, 0.1),), request(), Quadratics())
    assert outcome.status is Status.DIVERGED
    assert torch.equal(outcome.params, request().params)


@pytest.mark.wording
@pytest.mark.parametrize("spoiled", [{"site-1"}, set(CLIENTS)])
def test_the_learning_rate_alone_is_to_blame_only_where_nobody_stays_finite(spoiled):
    phases = method["fedosd"](SHORT)
    outcome = unlearn(phases, request(), Spoiled(times(float("nan")), spoiled, [2]))
    assert outcome.status is Status.DIVERGED
    assert says(outcome.reason, "sent a displacement that is not finite")
    assert "lower the learning rate (now 0.05)" in outcome.reason
    kept = unlearn(method["fedosd"](Schedule(1, 0.05, 0, 0.05)), request(), Quadratics())
    assert torch.equal(outcome.params, kept.params)
    assert ("check the data of site-1" in outcome.reason) is (spoiled == {"site-1"})
    assert ("as did all other clients" in outcome.reason) is (spoiled != {"site-1"})


@pytest.mark.wording
def test_without_guards_the_outcome_still_tells_that_nothing_was_forgotten():
    outcome = unlearn(phases("fedosd", SHORT), request(), Quadratics())
    (told,) = outcome.warnings
    assert told.startswith("the targets' backdoor still works")
    assert outcome.guards is None


def test_methods_that_need_no_help_of_the_targets_are_not_doubted_without_a_measure():
    guards = Guards(harm=1e6, step=1e6, budget=1e6)
    for name in ("retrain", "fast-retrain", "finetune", "not"):
        outcome = unlearn(phases(name, SHORT), request(), Measured(()), guards=guards)
        assert outcome.guards is not None
        assert not {"unmoved", "unmeasured"} & outcome.guards.keys(), name


class Measured(Quadratics):
    """Of the targets, only some things are measured."""

    def __init__(self, keys):
        super().__init__()
        self.keys = keys

    def measured(self, client, params):
        loss = Mean(self.loss(client, params), 1)
        works = Mean(math.exp(-loss.total / 4), 1)  # .21 with ω⁰
        sets = {"backdoor": {"accuracy": works}, "forget": {"loss": loss}}
        return {name: sets[name] for name in self.keys}

    def perform(self, client, job, terms):
        reply = super().perform(client, job, terms)
        if job.config["loss"] == "uce" and "train" in reply.statistics:
            told = math.exp(-self.loss(client, job.params))
            return replace(reply, statistics={"train": {"loss": Mean(told, 1)}})
        return replace(reply, statistics={}) if "train" not in self.keys and job.work == "train" else reply


LONG = Schedule(unlearn_rounds=20, unlearn_lr=1.0, recover_rounds=0, recover_lr=0.05)


@pytest.mark.parametrize("key", ["backdoor", "forget"])
@pytest.mark.parametrize("attack", [scaled(-1.0), idle], ids=["negated", "idle"])
def test_a_target_that_is_not_forgotten_is_told_of(key, attack):
    guards = Guards(utility=False, budget=1e9, step=1e9)
    honest = unlearn(phases("fedosd", LONG), request(), Measured((key,)), guards=guards)
    assert honest.guards is not None
    assert "unmoved" not in honest.guards
    lazy = unlearn(
        phases("fedosd", LONG), request(), Attacked(Measured((key,)), {TARGET: attack}), guards=guards
    )
    assert lazy.status in (Status.DONE, Status.CONVERGED)
    assert lazy.guards is not None
    assert lazy.guards["unmoved"] == 1


def test_where_nothing_is_measured_the_targets_own_loss_counts_or_nobody_knows():
    guards = Guards(utility=False, budget=1e9, step=1e9)

    class Quiet(Measured):
        def perform(self, client, job, terms):
            return replace(super().perform(client, job, terms), statistics={})

    unknown = unlearn(phases("fedosd", LONG), request(), Quiet(()), guards=guards)
    assert "unmeasured" in (unknown.guards or {})
    own = unlearn(phases("fedosd", LONG), request(), Measured(()), guards=guards)
    assert own.guards is not None
    assert not {"unmoved", "unmeasured"} & own.guards.keys()
    held = unlearn(phases("fedosd", LONG), request(), Attacked(Measured(()), {TARGET: idle}), guards=guards)
    assert "unmoved" in (held.guards or {})


STRICT = Guards(halvings=0, target_norm=1e9, step=1e9)


WILD = {TARGET: only_after(2, scaled(1e6))}


FIVE = Schedule(5, 0.05, 4, 0.05)


def ended(resume=None, listeners=(), attacks=WILD, schedule=FIVE, **options):
    """A run whose unlearning is stopped in its third round."""
    federation = Attacked(Quadratics(**options), attacks)
    federation.trainings = 0 if resume is None else resume.elapsed_rounds
    return unlearn(
        phases("fedosd", schedule), request(), federation, guards=STRICT, resume=resume, listeners=listeners
    )


def test_unlearning_ends_before_a_step_that_harms_and_post_training_repairs_the_model():
    events: list[Event] = []
    outcome = ended(listeners=[events.append])
    kept = next(event for event in events if event.metrics.get("status") == Status.DONE)
    assert kept.progress.state.round == 2
    assert torch.equal(kept.progress.state.params, events[2].progress.state.params)
    assert not torch.equal(kept.progress.state.params, request().params)
    assert [row["stage"] for row in outcome.metrics] == ["start"] + 3 * ["unlearning"] + 4 * ["post-training"]
    assert outcome.guards is not None
    assert outcome.guards["stopped:harm"] == 1
    two = ended(attacks={}, schedule=Schedule(2, 0.05, 4, 0.05))
    assert two.status is Status.DONE
    assert equal(tensors(outcome.state), tensors(two.state))  # as if unlearning had been that short


@pytest.mark.wording
def test_the_run_fails_only_where_it_ends_badly():
    """Here the backdoor still works; where it does not, the same run is done, and tells of its early end."""
    outcome = ended()
    assert outcome.status is Status.GUARD_STOP
    assert outcome.reason.startswith(kept := str(outcome.metrics[3]["reason"]))
    assert outcome.reason == f"{kept}; and {outcome.warnings[-1]}"

    class Forgetful(Quadratics):
        def measured(self, client, params):
            moved = not torch.equal(params, request().params)
            return {"test": {"accuracy": Mean(0.9, 1)}, "backdoor": {"accuracy": Mean(1.0 - moved, 1)}}

    well = unlearn(
        phases("fedosd", FIVE), request(), Attacked(Forgetful(), WILD), guards=STRICT, evaluate_every=9
    )
    assert (well.status, well.warnings) == (Status.DONE, (kept,))


@pytest.mark.parametrize(
    ("after", "floor", "status", "told"),
    [
        (0.85, None, Status.DONE, True),
        (0.85, 0.1, Status.DONE, True),
        (0.75, 0.1, Status.HARMED, True),
        (0.75, None, Status.DONE, True),
        (0.88, 0.1, Status.DONE, False),
    ],
)
@pytest.mark.parametrize("score", ["accuracy", "loss"])
def test_a_model_that_costs_the_retained_clients_more_than_the_floor_is_a_failure(
    score, after, floor, status, told
):
    class Worse(Quadratics):
        def measured(self, client, params):
            value = 0.9 if torch.equal(params, request().params) else after
            mean = {"accuracy": Mean(value, 1), "loss": Mean(1 + 5 * (0.9 - value), 1)}
            return {"test": {score: mean[score]}}

    events: list[Event] = []
    outcome = unlearn(phases("finetune", FIVE), request(), Worse(), floor=floor, listeners=[events.append])
    assert outcome.status is status
    assert bool(outcome.warnings) is told
    assert status.failed is bool(outcome.reason)
    assert not torch.equal(outcome.params, request().params)
    again = unlearn(
        phases("finetune", FIVE), request(), Quadratics(), floor=floor, resume=events[-1].progress
    )
    assert (again.status, again.reason, again.warnings) == (status, outcome.reason, outcome.warnings)


def test_a_run_that_was_stopped_by_guards_resumes_to_the_same_bits_and_stays_failed():
    events: list[Event] = []
    whole = ended(listeners=[events.append])
    for number, event in enumerate(events):
        later = ended(resume=event.progress)
        assert equal(tensors(later.state), tensors(whole.state))
        assert later.status is whole.status
        assert later.reason == whole.reason
        assert later.warnings == whole.warnings
        assert later.guards == whole.guards
        assert measured(later) == measured(whole)[number + 1 :]


@pytest.mark.parametrize("rounds", [4, 0])
def test_a_run_that_guards_have_stopped_is_not_tried_again(rounds):
    """No client is asked: a repaired model is no model to go on unlearning from."""
    events: list[Event] = []
    schedule = replace(FIVE, recover_rounds=rounds)
    whole = ended(listeners=[events.append], schedule=schedule)
    assert whole.status is Status.GUARD_STOP
    again = ended(resume=events[-1].progress, attacks={}, schedule=schedule)
    assert again.metrics == ()
    assert (again.status, again.reason) == (whole.status, whole.reason)
    assert equal(tensors(again.state), tensors(whole.state))


def test_a_repair_that_fails_can_be_tried_again():
    events: list[Event] = []
    whole = ended()
    everybody = {client: [5] for client in CLIENTS}
    broken = ended(absent=everybody, listeners=[events.append])
    assert broken.status is Status.MISSING_REPLY
    assert says(broken.warnings, whole.metrics[3]["reason"])
    assert equal(tensors(ended(resume=events[-1].progress).state), tensors(whole.state))


@pytest.mark.parametrize(
    ("before", "after", "code"), [(-10.0, -10.0, "unmoved"), (-10.0, -8.0, ""), (2.0, 2.1, "unmoved")]
)
def test_a_loss_may_be_negative_and_must_rise_by_a_tenth_all_the_same(before, after, code):
    guarded = Guarded(started={"loss_target": before}, helped=True)
    found = unmoved(guarded, {"loss_target": after}, Stage.UNLEARNING)
    assert found is not None
    assert found[0] == code


def test_the_client_that_a_step_harms_most_is_named_whatever_the_sign_of_its_limit():
    guardian = Guardian(Guards(harm=1.0), request(), Guarded(reference={"site-1": -1.0, "site-2": 1.0}))
    harmed = guardian.harmed({"site-1": 5.0, "site-2": 3.0})
    assert harmed == {"site-1": (5.0, 0.0), "site-2": (3.0, 2.0)}
    assert guardian._worst(harmed)["worst"] == "site-1"
