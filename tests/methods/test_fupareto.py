from __future__ import annotations

import pytest
import torch
from support.backdoors import TRAINING, planted
from support.closed_form import CLIENTS, DIMENSION, drive, request
from support.codes import refused

from fedunlearn import (
    Classification,
    Replies,
    Reply,
    Schedule,
    State,
    Status,
    method,
    unlearn,
)
from fedunlearn.core import Job
from fedunlearn.core.seeds import generator
from fedunlearn.driver.probes import Conflicts
from fedunlearn.methods.fupareto import ParetoDescent, boundary_shift, logit_lead

TARGETS = ("site-1", "site-3")
LOGITS = 3 * torch.randn(60, 5, generator=generator("boundary"))
LABELS = torch.arange(60) % 5


def shift_of(logits: torch.Tensor, margin: float = 0.0) -> torch.Tensor:
    job = Job("train", torch.empty(0), config={"margin": margin})
    return boundary_shift(Classification(), job)(torch.nn.Identity(), (logits, LABELS))


def test_the_lead_is_positive_where_the_label_is_predicted():
    lead = logit_lead(LOGITS, LABELS)
    assert torch.equal(lead > 0, LOGITS.argmax(1) == LABELS)
    beyond = LOGITS.clone()
    beyond[torch.arange(60), LABELS] -= lead + 0.01
    assert float(logit_lead(beyond, LABELS).max()) < 0


def test_only_examples_that_are_still_known_are_pushed_and_only_across_the_nearest_boundary():
    logits = LOGITS.clone().requires_grad_()
    shift_of(logits).backward()
    known = LOGITS.argmax(1) == LABELS
    assert 0 < int(known.sum()) < 60
    assert not logits.grad[~known].any()
    second = LOGITS[known].topk(2).indices[:, 1]
    expected = torch.zeros_like(logits.grad[known])
    expected.scatter_(1, LABELS[known].unsqueeze(1), 1 / 60).scatter_(1, second.unsqueeze(1), -1 / 60)
    assert torch.allclose(logits.grad[known], expected)


def test_a_margin_asks_for_more():
    lead = logit_lead(LOGITS, LABELS)
    assert float(shift_of(LOGITS, 2.0)) == pytest.approx(float((lead + 2).clamp(min=0).mean()))


def replies(seed: object, *, stationary: bool = False) -> Replies:
    moved = {c: torch.randn(DIMENSION, generator=generator("pareto", seed, c)) for c in CLIENTS}
    if stationary:  # the retained clients pull against each other
        moved["site-4"] = -moved["site-0"] - 2 * moved["site-2"]
    return Replies({client: Reply(each, 1) for client, each in moved.items()})


def stepped(heard: Replies) -> tuple[torch.Tensor, State]:
    state = State(request(targets=TARGETS).params)
    _, after = drive(ParetoDescent(9, 0.1, improve_above=0.05), request(targets=TARGETS), state, heard)
    return (after.params - state.params).double(), after


@pytest.mark.parametrize("seed", range(10))
def test_while_a_step_helps_everybody_it_is_taken(seed):
    heard = replies(seed)
    step, after = stepped(heard)
    assert after.diagnostics["expanded"] == 0
    for reply in heard.values():
        assert float(step @ reply.moved.double()) < 0


@pytest.mark.parametrize("seed", range(10))
def test_where_none_does_the_targets_descend_and_the_others_stay(seed):
    heard = replies(seed, stationary=True)
    step, after = stepped(heard)
    assert after.diagnostics["expanded"] == 1
    for client, reply in heard.items():
        slope = float(step @ reply.moved.double()) / float(step.norm() * reply.moved.norm())
        assert slope < -1e-3 if client in TARGETS else abs(slope) < 1e-5


def test_a_loud_target_does_not_drown_a_quiet_one_that_it_conflicts_with():
    heard = dict(replies(1, stationary=True))
    loud = 100 * heard["site-1"].moved
    heard |= {"site-1": Reply(loud, 1), "site-3": Reply(heard["site-3"].moved - 0.01 * loud, 1)}
    step, _ = stepped(Replies(heard))
    assert all(float(step @ heard[target].moved.double()) < 0 for target in TARGETS)
    mean = (heard["site-1"].moved + heard["site-3"].moved) / 2
    assert float(-mean @ heard["site-3"].moved) > 0  # what the mean of both would do


@pytest.mark.parametrize("stationary", [False, True])
def test_a_target_that_has_forgotten_does_not_hold_up_the_other(stationary):
    heard = Replies({**replies(2, stationary=stationary), "site-3": Reply(torch.zeros(DIMENSION), 1)})
    step, after = stepped(heard)
    assert after.status is Status.RUNNING
    assert float(step @ heard["site-1"].moved.double()) < 0


def test_when_all_have_forgotten_unlearning_ends():
    done = dict.fromkeys(TARGETS, Reply(torch.zeros(DIMENSION), 1))
    step, after = stepped(Replies({**replies(3), **done}))
    assert after.status is Status.CONVERGED
    assert not step.any()


def test_the_claim_several_backdoors_are_forgotten_at_once_and_no_retained_loss_rises_to_first_order():
    federation, asked = planted(TARGETS)
    outcome = unlearn(
        method["fupareto"](Schedule(20, 0.05, 5, 0.02)),
        asked,
        federation,
        training=TRAINING,
        evaluate_every=25,
        probes=[Conflicts()],
    )
    before, after = outcome.metrics[0], outcome.metrics[-1]
    unlearning = [row for row in outcome.metrics[1:] if row["stage"] == "unlearning"]
    assert before["asr"] > 0.9
    assert after["asr"] < 0.1
    assert after["r_acc"] >= before["r_acc"] - 0.02
    assert {row["conflicts"] for row in unlearning} == {0}
    for target in TARGETS:
        alone = federation.exchange({target: Job("measure", outcome.params)})[target]
        assert alone.statistics["backdoor"]["accuracy"].value < 0.1


@pytest.mark.parametrize("options", [{"margin": -1.0}, {"improve_above": 1.0}])
def test_options_out_of_range_are_refused(options):
    with refused("invalid", says=next(iter(options))):
        method["fupareto"](Schedule(1, 0.1), **options)
