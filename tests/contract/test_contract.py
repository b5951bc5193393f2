"""What every registered method promises, on closed-form clients."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from closed_form import CLIENTS, DIMENSION, PUBLIC, Broken, Quadratics, request

from fedunlearn import (
    Event,
    FedUnlearnError,
    Phase,
    Progress,
    Replies,
    Schedule,
    State,
    Status,
    method,
    unlearn,
)
from fedunlearn.methods.history import BESIDE
from fedunlearn.record import read_state, write_state

TARGET = "site-1"
METHODS = [entry.name for entry in method]
SCHEDULE = Schedule(unlearn_rounds=4, unlearn_lr=0.05, recover_rounds=3, recover_lr=0.05)
WILD = Schedule(unlearn_rounds=400, unlearn_lr=1e6, recover_rounds=400, recover_lr=1e6, pretrain_lr=1e6)
WILD_BUT = {"fedosd-m3": replace(WILD, unlearn_rounds=0)}
"""Far out no step helps everybody, so the first stage would end there."""
WILD_OPTIONS = {"rapid": {"lr": 1e38}}
BOUNDED = {"federaser"}
"""Its steps are as long as the recorded ones, whatever the learning rate."""


def phases(name: str, schedule: Schedule = SCHEDULE, **options: object) -> tuple[Phase, ...]:
    return method[name](schedule, **options)


def rehearse(name: str, **options: object) -> list[tuple[Phase, State, Replies]]:
    """The phases of a method with the states and replies of their rounds."""
    seen = []
    federation, asked = Quadratics(), request(**options)
    state = State(asked.params)
    for phase in phases(name):
        state = phase.start(asked, state)
        while state.round < phase.rounds and state.status is Status.RUNNING:
            state = replace(state, lr=phase.lr)
            jobs = {c: replace(job, lr=job.lr or phase.lr) for c, job in phase.ask(asked, state).items()}
            replies = federation.train(jobs)
            seen.append((phase, state, replies))
            state = replace(phase.tell(asked, state, replies), round=state.round + 1)
    return seen


def asked_in_each_round(name: str, **options: object) -> list[set[str]]:
    asked = request(**options)
    return [set(phase.ask(asked, state)) for phase, state, _ in rehearse(name, **options)]


def contents(*things: object) -> dict[str, torch.Tensor]:
    """Copies of all tensors in states, requests, jobs and replies, by where they are."""
    found: dict[str, torch.Tensor] = {}
    for number, thing in enumerate(things):
        for field in ("params", "displacement"):
            if hasattr(thing, field):
                found[f"{number} {field}"] = getattr(thing, field).clone()
        for field in ("memory", "history", "arrays", "buffers"):
            for name, tensor in getattr(thing, field, {}).items():
                found[f"{number} {field} {name}"] = tensor.clone()
    return found


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) for name, tensor in one.items()
    )


def measured(outcome) -> list[dict[str, object]]:
    return [
        {key: value for key, value in row.items() if not key.startswith("seconds")} for row in outcome.metrics
    ]


def test_the_methods_of_this_release_are_registered():
    assert {
        *("ascent", "ewcsga", "federaser", "fedkdu", "fedosd", "fedosd-joint", "fedquit", "fedrecovery"),
        *("finetune", "fupga", "knot", "mode", "not", "puf", "rapid", "retrain", "sfu"),
        *(f"fedosd-m{number}" for number in range(1, 7)),
    } <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_ask_is_pure(name):
    asked = request()
    for phase, state, _ in rehearse(name):
        before = contents(asked, state)
        first, second = phase.ask(asked, state), phase.ask(asked, state)
        assert list(first) == list(second)
        for client, job in first.items():
            other = second[client]
            assert equal(contents(job), contents(other))
            assert (job.objective, job.effort, job.lr) == (other.objective, other.effort, other.lr)
        assert equal(contents(asked, state), before)


@pytest.mark.parametrize("name", METHODS)
def test_tell_is_repeatable_and_leaves_its_inputs_alone(name):
    asked = request()
    for phase, state, replies in rehearse(name):
        before = contents(asked, state, *replies.values())
        first, second = phase.tell(asked, state, replies), phase.tell(asked, state, replies)
        assert equal(contents(first), contents(second))
        assert (first.status, first.reason, first.diagnostics) == (
            second.status,
            second.reason,
            second.diagnostics,
        )
        assert equal(contents(asked, state, *replies.values()), before)


@pytest.mark.parametrize("name", METHODS)
def test_a_state_saved_and_loaded_between_any_two_rounds_changes_nothing(name, tmp_path):
    heard: list[Event] = []
    whole = unlearn(phases(name), request(), Quadratics(), listeners=[heard.append])
    for number, event in enumerate(heard):
        write_state(tmp_path / "state", event.progress.state)
        state, _ = read_state(tmp_path / "state")
        rest = unlearn(
            phases(name),
            request(),
            Quadratics(),
            resume=Progress(event.progress.phase, event.progress.elapsed_rounds, state),
        )
        assert equal(contents(rest.state), contents(whole.state))
        assert (rest.status, rest.reason) == (whole.status, whole.reason)
        assert measured(rest) == measured(whole)[number + 1 :]


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name):
    one = unlearn(phases(name), request(targets=(TARGET, "site-2")), Quadratics())
    other = unlearn(phases(name), request(targets=("site-2", TARGET), clients=CLIENTS[::-1]), Quadratics())
    assert equal(contents(one.state), contents(other.state))


@pytest.mark.parametrize("name", METHODS)
def test_zero_rounds_is_the_identity_or_a_fresh_model(name):
    nothing = Schedule(unlearn_rounds=0, recover_rounds=0)
    outcome = unlearn(phases(name, nothing), request(), Quadratics())
    expected = request().fresh("retrain").params if name in ("retrain", "rapid") else request().params
    assert torch.equal(outcome.params, expected)
    assert outcome.status is Status.DONE


@pytest.mark.parametrize("name", METHODS)
def test_without_rounds_of_unlearning_nothing_but_recovery_happens(name):
    outcome = unlearn(phases(name, replace(SCHEDULE, unlearn_rounds=0)), request(), Quadratics())
    assert {row["stage"] for row in outcome.metrics} <= {"start", "post-training"}


@pytest.mark.parametrize("name", METHODS)
def test_two_targets_work(name):
    outcome = unlearn(phases(name), request(targets=(TARGET, "site-3")), Quadratics())
    assert not outcome.status.failed
    assert not torch.equal(outcome.params, request().params)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_nan(name):
    heard: list[Event] = []
    outcome = unlearn(phases(name), request(), Quadratics(), listeners=[heard.append])
    assert outcome.status is Status.DONE
    for event in heard:
        assert all(bool(tensor.isfinite().all()) for tensor in contents(event.progress.state).values())
    for row in outcome.metrics:
        assert all(math.isfinite(value) for value in row.values() if not isinstance(value, str))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("calls", [range(1, 99), [2]])
def test_a_missing_retained_client_is_survived(name, calls):
    outcome = unlearn(phases(name), request(), Quadratics(absent={"site-0": calls}))
    assert outcome.status is Status.DONE
    assert bool(outcome.params.isfinite().all())


@pytest.mark.parametrize("name", METHODS)
def test_a_missing_target_is_refused_until_it_is_back_or_never_asked_for(name):
    rounds = asked_in_each_round(name)
    asked = [number for number, clients in enumerate(rounds, start=1) if TARGET in clients]
    assert bool(asked) is ("targets" in method.entry(name).about["online"])
    heard: list[Event] = []
    outcome = unlearn(
        phases(name), request(), Quadratics(absent={TARGET: range(1, 99)}), listeners=[heard.append]
    )
    if not asked:
        assert outcome.status is Status.DONE
        return
    assert outcome.status is Status.MISSING_REPLY
    assert "resume" in outcome.reason
    # Where it was asked alone, nobody answered.
    assert TARGET in outcome.reason or rounds[asked[0] - 1] == {TARGET}
    assert torch.equal(outcome.params, heard[-2].progress.state.params)
    back = unlearn(phases(name), request(), Quadratics(), resume=heard[-1].progress)
    assert torch.equal(back.params, unlearn(phases(name), request(), Quadratics()).params)


@pytest.mark.parametrize("name", [entry.name for entry in method if "targets" in entry.about["online"]])
def test_one_of_two_targets_is_not_enough(name):
    both = (TARGET, "site-3")
    outcome = unlearn(phases(name), request(targets=both), Quadratics(absent={"site-3": range(1, 99)}))
    assert outcome.status is Status.MISSING_REPLY
    assert "site-3" in outcome.reason


@pytest.mark.parametrize("name", METHODS)
def test_when_nobody_answers_the_run_says_so_and_keeps_the_model(name):
    heard: list[Event] = []
    silent = Quadratics(absent={client: [2] for client in (*CLIENTS, PUBLIC)})
    outcome = unlearn(phases(name), request(), silent, listeners=[heard.append])
    assert outcome.status is Status.MISSING_REPLY
    assert "resume" in outcome.reason
    assert torch.equal(outcome.params, heard[-2].progress.state.params)


@pytest.mark.parametrize("name", [entry.name for entry in method if entry.about["online"] == "retained"])
def test_methods_that_do_without_the_target_never_train_it(name):
    outcome = unlearn(phases(name), request(), Quadratics(refuses={TARGET}))
    assert outcome.status is Status.DONE


@pytest.mark.parametrize("name", sorted(set(METHODS) - BOUNDED))
def test_a_diverging_run_ends_as_diverged_with_the_last_finite_model(name):
    heard: list[Event] = []
    wild = phases(name, WILD_BUT.get(name, WILD), **WILD_OPTIONS.get(name, {}))
    outcome = unlearn(wild, request(), Quadratics(), listeners=[heard.append], evaluate_every=999)
    assert outcome.status is Status.DIVERGED
    assert "learning rate" in outcome.reason
    assert bool(outcome.params.isfinite().all())
    assert torch.equal(outcome.params, heard[-2].progress.state.params)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("call", [2, 4])
def test_an_update_that_is_not_finite_ends_the_run_with_the_last_finite_model(name, value, call):
    heard: list[Event] = []
    outcome = unlearn(phases(name), request(), Broken(call, value), listeners=[heard.append])
    assert outcome.status is Status.DIVERGED
    assert "not finite" in outcome.reason
    assert torch.equal(outcome.params, heard[-2].progress.state.params)
    assert bool(outcome.params.isfinite().all())


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in METHODS for kind in sorted({k for p in phases(name) for k in p.needs})],
)
def test_missing_history_is_refused_before_the_first_round(name, kind):
    poor = {key: value for key, value in request().history.items() if key.partition(" ")[0] != kind}
    asked = replace(request(), history=poor, public=None if kind == "public" else PUBLIC)
    with pytest.raises(FedUnlearnError, match=f"needs {kind}"):
        unlearn(phases(name), asked, Quadratics(refuses={*CLIENTS, PUBLIC}))


@pytest.mark.parametrize("name", METHODS)
def test_declared_history_is_enough(name):
    needed = BESIDE.union(*(phase.needs for phase in phases(name)))
    kept = {key: value for key, value in request().history.items() if key.partition(" ")[0] in needed}
    rich = unlearn(phases(name), request(), Quadratics())
    bare = unlearn(phases(name), replace(request(), history=kept), Quadratics())
    assert torch.equal(bare.params, rich.params)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name):
    about = method.entry(name).about
    assert about["summary"]
    assert about["paper"]
    assert about["online"]


def test_the_closed_form_federation_has_room_for_every_method():
    assert sum(shape.numel() for shape in request().shapes.values()) == DIMENSION
