"""What every method promises where only some clients take part in a round."""

from __future__ import annotations

import math

import pytest
import torch
from support.closed_form import (
    CLIENTS,
    METHODS,
    NO_TERMS,
    PUBLIC,
    Quadratics,
    equal,
    measured,
    phases,
    recorded,
    request,
    tensors,
)
from support.codes import refused, says

from fedunlearn import Event, Participation, Replies, Request, Status, Terms, unlearn
from fedunlearn.core import Failure, Jobs, Reason
from fedunlearn.methods.fedavg import Averaging, Pretraining

TARGET = "site-1"
DRAWS = {"half": Participation(share=0.5), "three": Participation(count=3, minimum=2)}
DRAWN = {"half": 2, "three": 3}
"""Of the four retained clients."""


def asked(draw: str) -> Request:
    """A request after a pre-training in which only some took part, too."""
    return request(history=recorded(DRAWS[draw]))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("draw", DRAWS)
def test_only_drawn_clients_and_the_targets_are_asked(name, draw):
    given = {"participation": DRAWS[draw]}
    everybody, some = Quadratics(), Quadratics()
    unlearn(phases(name), asked(draw), everybody)
    rounds = []
    outcome = unlearn(
        phases(name), asked(draw), some, probes=[lambda round: rounds.append(round) or {}], **given
    )
    assert not outcome.status.failed
    assert bool(outcome.params.isfinite().all())
    ever: set[str] = set()
    for round, row in zip(rounds, outcome.metrics[1:], strict=True):
        drawn = set(round.request.asked)
        assert len(drawn) == DRAWN[draw]
        asked_now = {client for exchange in round.exchanges for client in exchange.jobs}
        assert asked_now <= drawn | {TARGET, PUBLIC}
        if asked_now - {PUBLIC}:
            ever |= asked_now - {TARGET, PUBLIC}
            assert row["heard"] == len(asked_now - {TARGET, PUBLIC})
            assert row["coverage"] == len(ever) / 4
    assert set(outcome.unheard) == {*CLIENTS} - {TARGET} - ever
    # The target is asked as ever.
    assert [TARGET in clients for clients in some.asked()] == [
        TARGET in clients for clients in everybody.asked()[: len(some.asked())]
    ]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_draws_can_be_repeated_and_resumed(name):
    heard: list[Event] = []
    given = {"participation": DRAWS["half"]}
    whole = unlearn(phases(name), asked("half"), Quadratics(), listeners=[heard.append], **given)
    again = unlearn(phases(name), asked("half"), Quadratics(), **given)
    assert measured(again) == measured(whole)
    for number in (0, len(heard) // 2):
        rest = unlearn(phases(name), asked("half"), Quadratics(), resume=heard[number].progress, **given)
        assert equal(tensors(rest.state), tensors(whole.state))
        assert measured(rest) == measured(whole)[number + 1 :]
        assert rest.unheard == whole.unheard


def draws(participation: Participation, rounds: int = 40, **options: object) -> list[set[str]]:
    federation = Quadratics()
    unlearn([Averaging(rounds, 0.01)], request(), federation, participation=participation, **options)
    return federation.asked()


def test_draws_differ_from_round_to_round_and_by_the_seed_and_reach_everybody():
    seen = draws(DRAWS["half"])
    assert {len(clients) for clients in seen} == {2}
    assert set().union(*seen) == set(CLIENTS) - {TARGET}
    assert len({frozenset(clients) for clients in seen}) == math.comb(4, 2)
    assert draws(DRAWS["half"], seed=1) != seen


@pytest.mark.parametrize("participation", DRAWS.values(), ids=DRAWS)
def test_the_order_of_clients_does_not_decide_who_is_drawn(participation):
    there, back = (participation.draw(clients, "round") for clients in (CLIENTS, CLIENTS[::-1]))
    assert there == back[::-1]


@pytest.mark.parametrize(
    ("participation", "number"),
    [
        (Participation(), 4),
        (Participation(share=0.26), 2),
        (Participation(share=0.25), 1),
        (Participation(share=0.25, minimum=3), 3),
        (Participation(count=2), 2),
        (Participation(count=9), 4),
    ],
)
def test_a_share_is_rounded_up_and_never_below_the_minimum(participation, number):
    assert {len(clients) for clients in draws(participation, 5)} == {number}


def test_everybody_takes_part_in_pre_training_the_targets_included():
    federation = Quadratics()
    unlearn([Pretraining(30, 0.01)], request(), federation, participation=Participation(share=0.6))
    assert {len(clients) for clients in federation.asked()} == {3}
    assert set().union(*federation.asked()) == set(CLIENTS)


def test_where_fewer_answer_than_the_minimum_the_run_can_be_resumed():
    heard: list[Event] = []
    given = {"participation": Participation(minimum=3)}
    few = Quadratics(absent={"site-0": [2], "site-2": [2]})
    outcome = unlearn(phases("fedosd"), request(), few, listeners=[heard.append], **given)
    assert outcome.status is Status.MISSING_REPLY
    assert says(
        outcome.reason,
        "2 of 4 clients sent what can be used in round 2 of unlearning, and the minimum is 3: "
        "site-0, site-2 (absent: is switched off): resume later, when they are back",
    )
    back = unlearn(phases("fedosd"), request(), Quadratics(), resume=heard[-1].progress, **given)
    assert torch.equal(back.params, unlearn(phases("fedosd"), request(), Quadratics()).params)


def test_a_minimum_that_cannot_be_met_is_refused_before_the_first_round():
    with refused("unsuitable", says="4 clients that can train are present and the minimum is 5"):
        unlearn(
            phases("fedosd"),
            request(),
            Quadratics(refuses=CLIENTS),
            participation=Participation(minimum=5),
        )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"share": math.nan}, "share"),
        ({"count": 0}, "count"),
        ({"count": 2.0}, "count"),
        ({"count": 2, "minimum": 3}, "at least the minimum, 3"),
        ({"minimum": 0}, "minimum"),
    ],
)
def test_participation_that_makes_no_sense_is_refused(options, word):
    with refused("invalid", says=word):
        Participation(**options)


def test_without_any_retained_model_of_the_last_round_fupga_says_so():
    once = Participation(count=1)
    lucky = next(seed for seed in range(99) if once.draw(CLIENTS, seed, 0, 7) == (TARGET,))
    asked = request()
    trained = unlearn(
        [Pretraining(8, 0.05, ("locals",))], asked, Quadratics(), participation=once, seed=lucky
    )
    history = asked.history.from_tensors(trained.state.memory)
    with refused("unsuitable", says="no retained client took part in the last round"):
        unlearn(phases("fupga"), request(history=history), Quadratics())


class Unsteady(Quadratics):
    """Of every exchange, one client fails in a way of its own in the first attempts."""

    def __init__(self, reason: Reason, failures: int) -> None:
        super().__init__()
        self._reason = reason
        self._failures = failures
        self.attempts: list[set[str]] = []
        self._left: dict[tuple[object, ...], int] = {}

    def exchange(self, jobs: Jobs, terms: Terms = NO_TERMS) -> Replies:
        replies = super().exchange(jobs, terms)
        if all(job.work == "measure" for job in jobs.values()) or "site-2" not in jobs:
            return replies
        self.attempts.append(set(jobs))
        key = (terms.seed, terms.exchange)
        self._left.setdefault(key, self._failures)
        if not self._left[key]:
            return replies
        self._left[key] -= 1
        kept = {client: reply for client, reply in replies.items() if client != "site-2"}
        return Replies(kept, {**replies.missing, "site-2": Failure(self._reason, "failed")})


REPEATED = [
    *(Reason.FAILED, Reason.STALE, Reason.SHAPE, Reason.DTYPE, Reason.NOT_FINITE, Reason.FIELD),
    *(Reason.NORM, Reason.REPLAY, Reason.COPY),
]


@pytest.mark.parametrize("reason", list(Reason))
def test_a_client_that_fails_is_asked_again_and_one_that_is_silent_is_not(reason):
    steady, unsteady = Quadratics(), Unsteady(reason, failures=1)
    given = {"participation": Participation(redo=1)}
    expected = unlearn(phases("fedosd"), request(), steady, **given)
    outcome = unlearn(phases("fedosd"), request(), unsteady, **given)
    assert {"site-2"} in unsteady.attempts or reason not in REPEATED
    if reason in REPEATED:
        assert equal(tensors(outcome.state), tensors(expected.state))
        assert measured(outcome) == measured(expected)
        assert sum(attempt == {"site-2"} for attempt in unsteady.attempts) == len(unsteady.attempts) / 2
    else:
        assert {"site-2"} not in unsteady.attempts
        assert all(row["missing"] == 1 for row in outcome.metrics[1:])


@pytest.mark.parametrize("redo", [0, 1, 2])
def test_a_client_is_asked_again_as_often_as_the_run_says(redo):
    federation = Unsteady(Reason.FAILED, failures=99)
    outcome = unlearn(phases("fedosd"), request(), federation, participation=Participation(redo=redo))
    assert outcome.unheard == ("site-2",)
    alone = sum(attempt == {"site-2"} for attempt in federation.attempts)
    assert alone == redo * (len(federation.attempts) - alone)


def test_a_negative_number_of_attempts_is_refused():
    with refused("invalid", says="redo = -1: it must be a whole number, 0 or more"):
        Participation(redo=-1)
