"""What every registered method promises, on closed-form clients."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    METHODS,
    PUBLIC,
    SCHEDULE,
    Quadratics,
    Spoiled,
    drive,
    equal,
    measured,
    phases,
    request,
    tensors,
    times,
)
from support.codes import refused, says

from fedunlearn import Event, Regression, Schedule, Status, method, unlearn
from fedunlearn.core import requirements
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.runs import read_state, write_state

TARGET = "site-1"
WILD = Schedule(unlearn_rounds=40, unlearn_lr=1e6, recover_rounds=400, recover_lr=1e6, pretrain_lr=1e6)
WILD_BUT = {"fedosd-m3": replace(WILD, unlearn_rounds=0)}
"""Far out no step helps everybody, so the first stage would end there."""
BOUNDED = {"federaser", "noisy-finetune", "rapid"}
"""Their steps do not grow with the model: a record, a clip or the learning rate says how long they are."""
WEIGHED = {"mode", "ewcsga"}
"""MoDe guides all clients by their examples, and EWCSGA averages importance by them."""
ALL = range(1, 99)


def test_the_methods_of_this_release_are_registered():
    assert {
        *("ascent", "ewcsga", "fast-retrain", "federaser", "fedkdu", "fedosd", "fedosd-joint", "fedquit"),
        *("fedrecovery", "finetune", "fupga", "knot", "mode", "not", "puf", "rapid", "reset", "retrain"),
        *("noisy-finetune", "sfu", "sisa", "fedcare", "fupareto", "fedmemprune", "fused"),
        *(f"fedosd-m{number}" for number in range(1, 7)),
    } <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_round_is_pure_and_can_be_repeated(name):
    seen = []

    def check(round):
        """Drives the round once more, with the replies that the driver sent."""
        replies = [exchange.replies for exchange in round.exchanges]
        given = (round.request, round.before, *(reply for heard in replies for reply in heard.values()))
        before = tensors(*given)
        asked, after = drive(round.phase, round.request, round.before, *replies)
        assert [list(jobs) for jobs in asked] == [list(exchange.jobs) for exchange in round.exchanges]
        for jobs, exchange in zip(asked, round.exchanges, strict=True):
            for client, job in jobs.items():
                assert equal(tensors(job), tensors(replace(exchange.jobs[client], buffers=None)))
                assert (job.work, job.config) == (exchange.jobs[client].work, exchange.jobs[client].config)
        assert equal(tensors(after), tensors(round.after))
        assert after.diagnostics == round.after.diagnostics
        assert (after.status, after.reason) == (round.after.status, round.after.reason)
        assert equal(tensors(*given), before)
        seen.append(round)
        return {}

    unlearn(phases(name), request(), Quadratics(), probes=[check])
    assert len(seen) == sum(phase.rounds for phase in phases(name))


@pytest.mark.parametrize("name", METHODS)
def test_a_state_saved_and_loaded_between_any_two_rounds_changes_nothing(name, tmp_path):
    heard: list[Event] = []
    whole = unlearn(phases(name), request(), Quadratics(), listeners=[heard.append])
    for number, event in enumerate(heard):
        write_state(tmp_path / "state", event.progress.state)
        state, _ = read_state(tmp_path / "state")
        rest = unlearn(phases(name), request(), Quadratics(), resume=replace(event.progress, state=state))
        assert equal(tensors(rest.state), tensors(whole.state))
        assert (rest.status, rest.reason) == (whole.status, whole.reason)
        assert measured(rest) == measured(whole)[number + 1 :]


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name):
    one = unlearn(phases(name), request(targets=(TARGET, "site-2")), Quadratics())
    other = unlearn(phases(name), request(targets=("site-2", TARGET), clients=CLIENTS[::-1]), Quadratics())
    assert equal(tensors(one.state), tensors(other.state))


@pytest.mark.parametrize("name", METHODS)
def test_zero_rounds_is_the_identity_or_a_fresh_model(name):
    nothing = Schedule(unlearn_rounds=0, recover_rounds=0)
    outcome = unlearn(phases(name, nothing), request(), Quadratics())
    fresh = {"retrain": "retrain", "rapid": "retrain", "fast-retrain": "fast-retrain"}.get(name)
    expected = request().params if fresh is None else request().fresh(fresh).params
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


@pytest.mark.parametrize("name", sorted(set(METHODS) - WEIGHED))
def test_targets_count_equally_however_many_examples_they_hold(name):
    class Unequal(Quadratics):
        def examples(self, client):
            return super().examples(client) * (1000 if client == TARGET else 1)

    asked, alone = request(targets=(TARGET, "site-3")), replace(SCHEDULE, recover_rounds=0)
    plain, unequal = (
        unlearn(phases(name, alone), asked, there).params for there in (Quadratics(), Unequal())
    )
    assert torch.equal(plain, unequal)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_nan(name):
    heard: list[Event] = []
    outcome = unlearn(phases(name), request(), Quadratics(), listeners=[heard.append])
    assert outcome.status is Status.DONE
    for event in heard:
        assert all(bool(tensor.isfinite().all()) for tensor in tensors(event.progress.state).values())
    for row in outcome.metrics:
        assert all(math.isfinite(value) for value in row.values() if not isinstance(value, str))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("calls", [ALL, [2]])
def test_a_missing_retained_client_is_survived(name, calls):
    outcome = unlearn(phases(name), request(), Quadratics(absent={"site-0": calls}))
    assert outcome.status is Status.DONE
    assert bool(outcome.params.isfinite().all())
    if calls == ALL:
        assert "site-0" in outcome.unheard


@pytest.mark.parametrize("name", METHODS)
def test_a_missing_target_ends_the_run_until_it_is_back_unless_it_is_never_asked(name):
    whole = unlearn(phases(name), request(), there := Quadratics())
    asked = [number for number, clients in enumerate(there.asked()) if TARGET in clients]
    assert bool(asked) is ("targets" in requirements.asks(phases(name)))
    heard: list[Event] = []
    outcome = unlearn(phases(name), request(), Quadratics(absent={TARGET: ALL}), listeners=[heard.append])
    if not asked:
        assert torch.equal(outcome.params, whole.params)
        return
    assert outcome.status is Status.MISSING_REPLY
    assert says(outcome.reason, "resume")
    assert TARGET in outcome.missing
    assert torch.equal(outcome.params, heard[-2].progress.state.params)
    back = unlearn(phases(name), request(), Quadratics(), resume=heard[-1].progress)
    assert torch.equal(back.params, whole.params)


@pytest.mark.parametrize("name", [name for name in METHODS if "targets" in requirements.asks(phases(name))])
def test_one_of_two_targets_is_not_enough(name):
    both = (TARGET, "site-3")
    outcome = unlearn(phases(name), request(targets=both), Quadratics(absent={"site-3": ALL}))
    assert outcome.status is Status.MISSING_REPLY
    assert outcome.missing == ("site-3",)


@pytest.mark.parametrize("name", METHODS)
def test_when_nobody_answers_the_run_says_so_and_keeps_the_model(name):
    heard: list[Event] = []
    silent = Quadratics(absent={client: [2] for client in (*CLIENTS, PUBLIC)})
    outcome = unlearn(phases(name), request(), silent, listeners=[heard.append])
    assert outcome.status is Status.MISSING_REPLY
    assert says(outcome.reason, "resume")
    assert torch.equal(outcome.params, heard[-2].progress.state.params)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if requirements.asks(phases(name)) == {"retained"}]
)
def test_methods_that_do_without_the_target_never_ask_it(name):
    outcome = unlearn(phases(name), request(), Quadratics(refuses={TARGET}))
    assert outcome.status is Status.DONE


@pytest.mark.parametrize("name", sorted(set(METHODS) - BOUNDED))
def test_a_diverging_run_ends_as_diverged_with_the_last_finite_model(name):
    heard: list[Event] = []
    wild = phases(name, WILD_BUT.get(name, WILD))
    outcome = unlearn(wild, request(), Quadratics(), listeners=[heard.append], evaluate_every=999)
    assert outcome.status is Status.DIVERGED
    assert says(outcome.reason, "learning rate")
    assert bool(outcome.params.isfinite().all())
    assert torch.equal(outcome.params, heard[-2].progress.state.params)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("value", "call"), [(math.nan, 2), (math.inf, 4)])
def test_where_no_update_is_finite_the_run_ends_with_the_last_finite_model(name, value, call):
    heard: list[Event] = []
    broken = Spoiled(times(value), {*CLIENTS, PUBLIC}, [call])
    outcome = unlearn(phases(name), request(), broken, listeners=[heard.append])
    assert outcome.status is Status.DIVERGED
    assert says(outcome.reason, "not finite")
    assert torch.equal(outcome.params, heard[-2].progress.state.params)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("client", ["site-0", "site-4"])
def test_one_retained_client_that_sends_nan_is_as_good_as_missing(name, client):
    asked = request(targets=("site-2",))
    nan = unlearn(phases(name), asked, Spoiled(times(math.nan), {client}, ALL))
    missing = unlearn(phases(name), asked, Quadratics(absent={client: ALL}))
    assert equal(tensors(nan.state), tensors(missing.state))
    assert (nan.status, nan.reason, nan.unheard) == (missing.status, missing.reason, missing.unheard)
    assert measured(nan) == measured(missing)


@pytest.mark.parametrize(
    ("name", "need"), [(name, need) for name in METHODS for need in sorted(requirements.needs(phases(name)))]
)
def test_a_requirement_that_is_not_met_is_refused_before_the_first_round(name, need):
    asked, federation = request(), Quadratics(refuses={*CLIENTS, PUBLIC})
    if need == "labels":
        federation.task = Regression()
    elif need in ("public", "fresh", "shapes"):
        asked = replace(asked, **{need: {} if need == "shapes" else None})
    else:
        asked = replace(asked, history=asked.history.only(asked.history.kinds - {need}))
    with refused("unsuitable", says=f"needs {need}"):
        unlearn(phases(name), asked, federation)


def test_a_requirement_that_nobody_knows_is_explained():
    class Demanding(Averaging):
        needs = frozenset({"norm"})

    with refused("unsuitable", says="Demanding needs 'norm', which is unknown; did you mean 'norms'"):
        unlearn([Demanding(1, 0.1)], request(), Quadratics())


@pytest.mark.parametrize("name", METHODS)
def test_what_is_declared_is_enough(name):
    needs = requirements.needs(phases(name))
    federation = Quadratics()
    if "labels" not in needs:
        federation.task = Regression()
    bare = replace(
        request(),
        history=request().history.only(requirements.recorded(phases(name))),
        **{
            key: value
            for key, value in {"public": None, "fresh": None, "shapes": {}}.items()
            if key not in needs
        },
    )
    rich = unlearn(phases(name), request(), Quadratics())
    assert torch.equal(unlearn(phases(name), bare, federation).params, rich.params)


SOURCE = "(paper|abstract|summaries|public code|paper's code|its code|ours)"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name):
    about = method.entry(name).about
    assert about["summary"]
    assert about["paper"]
    if about["paper"] != "-":
        assert re.fullmatch(rf"{SOURCE}((, {SOURCE})* and {SOURCE})?", about["source"])


def test_the_closed_form_federation_has_room_for_every_method():
    assert sum(shape.numel() for shape in request().shapes.values()) == DIMENSION
