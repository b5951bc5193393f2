"""What every registered method promises, on closed-form clients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from closed_form import CLIENTS, Quadratics, request

from fedunlearn import Event, Phase, Progress, Replies, Schedule, State, Status, method, unlearn

METHODS = [entry.name for entry in method]
SCHEDULE = Schedule(unlearn_rounds=4, unlearn_lr=0.05, recover_rounds=3, recover_lr=0.05)


def phases(name: str, schedule: Schedule = SCHEDULE) -> tuple[Phase, ...]:
    return method[name](schedule)


def rehearse(name: str, **options: object) -> list[tuple[Phase, State, Replies]]:
    """The phases of a method with the states and replies of their rounds."""
    seen = []
    federation, asked = Quadratics(), request(**options)
    state = State(asked.params)
    for phase in phases(name):
        state = phase.start(asked, state)
        for _ in range(phase.rounds):
            jobs = {c: replace(job, lr=phase.lr) for c, job in phase.ask(asked, state).items()}
            replies = federation.train(jobs)
            seen.append((phase, state, replies))
            state = phase.tell(asked, state, replies)
    return seen


def test_the_methods_of_this_release_are_registered():
    assert {"fedosd", "finetune", "retrain"} <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_ask_is_pure(name):
    for phase, state, _ in rehearse(name):
        before = state.params.clone()
        first, second = phase.ask(request(), state), phase.ask(request(), state)
        assert list(first) == list(second)
        assert all(torch.equal(first[c].params, second[c].params) for c in first)
        assert torch.equal(state.params, before)


@pytest.mark.parametrize("name", METHODS)
def test_tell_is_pure_and_leaves_its_inputs_alone(name):
    for phase, state, replies in rehearse(name):
        params, displacements = state.params.clone(), {c: r.displacement.clone() for c, r in replies.items()}
        first, second = phase.tell(request(), state, replies), phase.tell(request(), state, replies)
        assert torch.equal(first.params, second.params)
        assert torch.equal(state.params, params)
        assert all(torch.equal(replies[c].displacement, displacements[c]) for c in displacements)


@pytest.mark.parametrize("name", METHODS)
def test_going_on_from_any_round_ends_in_the_same_bits(name):
    heard: list[Event] = []
    whole = unlearn(phases(name), request(), Quadratics(), listeners=[heard.append])
    for event in heard:
        saved = event.progress
        state = replace(saved.state, params=saved.state.params.clone())
        rest = unlearn(
            phases(name), request(), Quadratics(), resume=Progress(saved.phase, saved.elapsed_rounds, state)
        )
        assert torch.equal(rest.params, whole.params)
        assert rest.status is whole.status


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name):
    one = unlearn(phases(name), request(), Quadratics())
    other = unlearn(phases(name), request(clients=CLIENTS[::-1]), Quadratics())
    assert torch.equal(one.params, other.params)


@pytest.mark.parametrize("name", METHODS)
def test_zero_rounds_is_the_identity_or_a_fresh_model(name):
    nothing = Schedule(unlearn_rounds=0, recover_rounds=0)
    outcome = unlearn(phases(name, nothing), request(), Quadratics())
    expected = request().fresh("retrain").params if name == "retrain" else request().params
    assert torch.equal(outcome.params, expected)
    assert outcome.status is Status.DONE


@pytest.mark.parametrize("name", METHODS)
def test_two_targets_work(name):
    outcome = unlearn(phases(name), request(targets=("site-1", "site-3")), Quadratics())
    assert outcome.status is Status.DONE
    assert not torch.equal(outcome.params, request().params)


@pytest.mark.parametrize("name", METHODS)
def test_a_missing_retained_client_is_survived(name):
    outcome = unlearn(phases(name), request(), Quadratics(absent={"site-0": range(1, 99)}))
    assert outcome.status is Status.DONE
    assert bool(outcome.params.isfinite().all())


@pytest.mark.parametrize("name", METHODS)
def test_when_nobody_answers_the_run_says_so_and_keeps_the_model(name):
    outcome = unlearn(phases(name), request(), Quadratics(absent={c: [2] for c in CLIENTS}))
    assert outcome.status is Status.MISSING_REPLY
    assert "resume" in outcome.reason
    assert bool(outcome.params.isfinite().all())


@pytest.mark.parametrize("name", [entry.name for entry in method if entry.about["online"] == "retained"])
def test_methods_that_do_without_the_target_never_train_it(name):
    unlearn(phases(name), request(), Quadratics(refuses={"site-1"}))


@pytest.mark.parametrize("name", METHODS)
def test_a_diverging_run_ends_as_diverged_with_the_last_finite_model(name):
    heard: list[Event] = []
    wild = Schedule(unlearn_rounds=0, recover_rounds=400, recover_lr=1e6, pretrain_lr=1e6)
    outcome = unlearn(phases(name, wild), request(), Quadratics(), listeners=[heard.append])
    assert outcome.status is Status.DIVERGED
    assert "learning rate" in outcome.reason
    assert bool(outcome.params.isfinite().all())
    assert torch.equal(outcome.params, heard[-2].progress.state.params)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name):
    about = method.entry(name).about
    assert about["summary"]
    assert about["paper"]
    assert about["online"]
