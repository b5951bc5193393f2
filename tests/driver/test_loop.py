"""The loop: phases, events, resuming, and what may lie beside the parameters."""

from __future__ import annotations

import torch
from support.closed_form import CLIENTS, Quadratics, measured, request
from support.codes import says, warned

from fedunlearn import Below, Schedule, Status, method, unlearn
from fedunlearn.core import Event
from fedunlearn.methods.fedavg import Averaging, Pretraining

SHORT = Schedule(3, 0.1, 2, 0.01)


def test_pre_training_with_equal_clients_is_one_central_gradient_step():
    class Equal(Quadratics):
        def gradient(self, client, params):
            return super().gradient("site-0", params)

    outcome = unlearn((Pretraining(1, 0.1),), request(), Equal())
    expected = request().params - 0.1 * Quadratics().gradient("site-0", request().params)
    assert torch.allclose(outcome.params, expected, atol=1e-6)


def test_listeners_hear_the_start_and_every_round_and_resume_from_any_of_them():
    heard: list[Event] = []
    phases = method["mode"](SHORT)
    outcome = unlearn(phases, request(), Quadratics(), listeners=[heard.append], evaluate_every=2)
    assert [(event.progress.phase, event.progress.state.round) for event in heard] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
    ]
    assert [event.metrics for event in heard] == list(outcome.metrics)
    assert {event.phases for event in heard} == {phases}
    for number, event in enumerate(heard):
        again = unlearn(phases, request(), Quadratics(), resume=event.progress, evaluate_every=2)
        assert torch.equal(again.params, outcome.params)
        rest = measured(outcome)[number + 1 :] if number else measured(outcome)[1:]
        assert measured(again) == rest


def test_a_run_resumed_at_its_end_says_why_it_ended():
    heard: list[Event] = []
    phases = method["ascent"](Schedule(20, 0.05, 0, 0.05))[:1]
    how = {"stop": [Below("asr", 1.0)]}
    ended = unlearn(phases, request(), Quadratics(), listeners=[heard.append], **how)
    assert says(ended.reason, "every target meets a stop rule: Below(key='asr', value=1.0)")
    again = unlearn(phases, request(), Quadratics(), resume=heard[-1].progress, **how)
    assert (again.status, again.reason) == (ended.status, ended.reason)


def test_threads_are_as_before_afterwards():
    threads = torch.get_num_threads()
    unlearn((Averaging(1, 0.1),), request(), Quadratics())
    assert torch.get_num_threads() == threads


def test_a_client_that_is_not_here_is_named_and_waited_for():
    phases = method["finetune"](Schedule(1, 0.1, 1, 0.1))
    with warned("absent", says="client 'site-7' of the request is not present"):
        outcome = unlearn(phases, request(clients=(*CLIENTS, "site-7")), Quadratics())
    assert outcome.status is Status.DONE
    assert outcome.unheard == ("site-7",)
    assert torch.equal(outcome.params, unlearn(phases, request(), Quadratics()).params)


def test_the_learning_rate_of_a_phase_without_rounds_does_not_matter():
    assert unlearn([Averaging(0, 1e-300)], request(), Quadratics()).status is Status.DONE
