"""Requests one after the other, and several targets in one request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    METHODS,
    Quadratics,
    drive,
    equal,
    jobs_of,
    measured,
    phases,
    recorded,
    request,
    tensors,
)
from support.codes import refused, says

from fedunlearn import (
    Below,
    Event,
    Phase,
    Replies,
    Request,
    Schedule,
    State,
    Status,
    unlearn,
)
from fedunlearn.core import Mean, Metrics, requirements
from fedunlearn.core.seeds import generator
from fedunlearn.maths import distance, project_off
from fedunlearn.methods.fedosd import AnchoredAveraging

TARGET, NEXT, OTHER = "site-1", "site-2", "site-3"
BOTH = (TARGET, OTHER)


def following(first: Request, params: torch.Tensor, *targets: str, anchors: bool = True) -> Request:
    """The request that follows another one: its targets have left, its model is an anchor."""
    return replace(
        first,
        params=params,
        clients=tuple(client for client in first.clients if client not in first.targets),
        targets=targets,
        history=first.history.without(first.targets),
        anchors=(*first.anchors, first.params) if anchors else (),
    )


def test_a_second_request_does_not_begin_with_models_that_knew_the_first_target():
    first = request()
    second = following(first, unlearn(phases("fupga"), first, Quadratics()).params, NEXT)
    with refused("unsuitable", says="needs locals"):
        unlearn(phases("fupga"), second, Quadratics())


@pytest.mark.parametrize("name", sorted({*METHODS} - {"fupga"}))
def test_a_second_request_works_on_the_model_of_the_first(name):
    first = request()
    left = unlearn(phases(name), first, Quadratics()).params
    second = following(first, left, NEXT)
    federation = Quadratics(refuses={TARGET})
    outcome = unlearn(phases(name), second, federation)
    assert outcome.status is Status.DONE
    assert bool(outcome.params.isfinite().all())
    assert not torch.equal(outcome.params, left)
    assert not any(row.endswith(f"/{TARGET}") for row in second.history.tensors())
    third = following(second, outcome.params, OTHER)
    assert len(third.anchors) == 2
    assert not unlearn(phases(name), third, Quadratics(refuses={TARGET, NEXT})).status.failed


OF_TARGETS = {"updates", "residuals", "cluster", "slice"}
"""Kinds of history whose rows a method reads of its targets."""


@pytest.mark.parametrize("name", [n for n in METHODS if requirements.recorded(phases(n)) & OF_TARGETS])
def test_a_client_that_was_forgotten_cannot_be_named_again(name):
    asked = request(targets=(NEXT, TARGET), history=recorded().without([TARGET]))
    with refused("history", says=f"no .* of client '{TARGET}'"):
        unlearn(phases(name), asked, Quadratics())


@pytest.mark.parametrize("scale", [0.02, 0.5])
@pytest.mark.parametrize("anchor", ["reverting", "always"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_post_training_comes_no_closer_to_any_anchor(scale, anchor, count):
    heard: list[Event] = []
    earlier = [
        request().params + scale * torch.randn(DIMENSION, generator=generator("anchor", number))
        for number in range(count)
    ]
    asked = replace(request(), anchors=tuple(earlier))
    unlearn(
        phases("fedosd", Schedule(10, 0.3, 30, 0.05), anchor=anchor),
        asked,
        Quadratics(),
        listeners=[heard.append],
    )
    models = [event.progress.state.params for event in heard if event.progress.phase == 1]
    assert len(models) == 30
    for each in (asked.params, *earlier):
        for one, other in pairwise(models):
            assert distance(other, each) >= distance(one, each) * (1 - 1e-6)


def test_without_its_anchor_a_second_request_leads_back_to_the_first_model():
    def closest(anchors: bool) -> float:
        first = request()
        left = unlearn(phases("fedosd", Schedule(10, 3.0, 10, 0.05)), first, Quadratics())
        heard: list[Event] = []
        second = following(first, left.params, NEXT, anchors=anchors)
        unlearn(phases("fedosd", Schedule(2, 0.05, 60, 0.1)), second, Quadratics(), listeners=[heard.append])
        away = [distance(e.progress.state.params, first.params) for e in heard if e.progress.phase == 1]
        return min(away) / away[0]

    assert closest(anchors=True) >= 1 - 1e-6
    assert closest(anchors=False) < 0.9


def test_one_anchor_is_the_paper_to_the_bit():
    state = State(request().params + torch.randn(DIMENSION, generator=generator("away")))
    phase = AnchoredAveraging(1, 0.05)
    replies = Quadratics().exchange(jobs_of(phase, request(), state))
    _, after = drive(phase, request(), state, replies)
    away = state.params - request().params
    projected = {
        client: replace(reply, displacement=project_off(reply.moved, away))
        for client, reply in replies.items()
    }
    assert any(not torch.equal(projected[client].moved, replies[client].moved) for client in replies)
    assert torch.equal(after.params, state.params - Replies(projected).mean())


def test_knot_forgets_one_after_the_other_as_exactly_as_both_at_once():
    first = request()
    left = unlearn(phases("knot"), first, Quadratics()).params
    second = unlearn(phases("knot"), following(first, left, "site-0"), Quadratics())
    at_once = unlearn(phases("knot"), request(targets=(TARGET, "site-0")), Quadratics())
    assert torch.equal(second.params, at_once.params)


def test_an_anchor_of_another_model_is_refused():
    with refused("other-model", says="anchor 0 has 3 numbers and the model 12"):
        replace(request(), anchors=(torch.zeros(3),))


@dataclass(frozen=True)
class After:
    """Releases each target after a number of rounds of its own."""

    rounds: dict[str, int] = field(default_factory=lambda: {TARGET: 1, OTHER: 3})

    def met(self, metrics: Metrics, target: str) -> bool:
        return metrics.get("round", 0) >= self.rounds[target]


def unlearning(name: str) -> Phase:
    return phases(name)[0]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in METHODS
        if unlearning(name).stage == "unlearning" and unlearning(name).rounds > 3 and name != "noisy-finetune"
    ],  # that one never asks a target
)
def test_a_target_that_meets_its_rule_is_no_longer_asked(name):
    heard, given = [], {"stop": [After()]}
    rounds: list[set[str]] = []

    def watch(round):
        rounds.append({client for exchange in round.exchanges for client in exchange.jobs})
        return {}

    outcome = unlearn(
        phases(name), request(BOTH), Quadratics(), listeners=[heard.append], probes=[watch], **given
    )
    assert outcome.status is Status.DONE or name == "fedosd-joint"
    told = [row for row in outcome.metrics if row["stage"] == "unlearning"]
    assert [row.get("status") for row in told] == [None, None, Status.CONVERGED]
    assert says(told[-1]["reason"], "stop rule")
    assert [clients & set(BOTH) for clients in rounds[:3]] == [set(BOTH), {OTHER}, {OTHER}]
    assert not any(clients & set(BOTH) for clients in rounds[3:])
    for number, event in enumerate(heard):
        rest = unlearn(phases(name), request(BOTH), Quadratics(), resume=event.progress, probes=(), **given)
        assert equal(tensors(rest.state), tensors(outcome.state))
        assert measured(rest) == measured(outcome)[number + 1 :]


def test_each_target_is_judged_by_its_own_measure():
    free = unlearn(phases("ascent"), request(BOTH), Quadratics())
    rows = [row for row in free.metrics if row["stage"] == "unlearning"]
    least = {target: min(float(row[f"asr {target}"]) for row in rows) for target in BOTH}
    low, high = sorted(BOTH, key=least.__getitem__)
    limit = (least[low] + least[high]) / 2
    heard: list[Event] = []
    unlearn(
        phases("ascent"), request(BOTH), Quadratics(), listeners=[heard.append], stop=[Below("asr", limit)]
    )
    finished = [event.progress.finished for event in heard if event.metrics["stage"] == "unlearning"]
    assert finished[-1] == {low}
    for event in heard:
        if event.metrics["stage"] == "unlearning":
            assert (low in event.progress.finished) >= (float(event.metrics[f"asr {low}"]) < limit)


class Unmeasured(Quadratics):
    """One target fails to be measured after the start; the other one has forgotten everything."""

    def __init__(self) -> None:
        super().__init__()
        self.evaluations = 0

    def exchange(self, jobs, terms):
        replies = super().exchange(jobs, terms)
        if any(job.work != "measure" for job in jobs.values()):
            return replies
        self.evaluations += 1
        found = {
            client: reply for client, reply in replies.items() if client != TARGET or self.evaluations == 1
        }
        forgotten = {"backdoor": {"accuracy": Mean(0.0, 1)}}
        return Replies(found | {OTHER: replace(replies[OTHER], statistics=forgotten)})


def test_a_target_that_is_not_measured_is_not_released_by_what_others_have_forgotten():
    heard: list[Event] = []
    outcome = unlearn(
        phases("ascent"), request(BOTH), Unmeasured(), listeners=[heard.append], stop=[Below("asr", 0.5)]
    )
    assert outcome.status is Status.DONE
    assert {event.progress.finished for event in heard if event.metrics["stage"] == "unlearning"} == {
        frozenset({OTHER})
    }


def test_a_round_without_a_measure_does_not_end_the_run():
    outcome = unlearn(phases("ascent"), request(), Unmeasured(), stop=[Below("asr", -1.0)])
    assert outcome.status is Status.DONE


def test_a_rule_on_what_is_never_measured_is_refused_at_once():
    with refused("not-measured", says="'forget_acc', which is not measured here"):
        unlearn(phases("ascent"), request(), Quadratics(refuses=CLIENTS), stop=[Below("forget_acc", 0.5)])
