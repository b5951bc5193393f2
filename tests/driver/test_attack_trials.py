"""Many trials of vetoes and free riders in a federation whose clients hold one quadratic each: A4 and A6."""

from __future__ import annotations

import pytest
from support.attacks import Attacked, copied_from, idle, mixed
from support.closed_form import CLIENTS, Quadratics, equal, phases, request, tensors

from fedunlearn import Guards, Schedule, Status, unlearn

TARGET = "site-1"
RETAINED = tuple(client for client in CLIENTS if client != TARGET)
SCHEDULE = Schedule(unlearn_rounds=3, unlearn_lr=0.05, recover_rounds=0, recover_lr=0.05)


def against(attacks):
    return unlearn(phases("fedosd", SCHEDULE), request(), Attacked(Quadratics(), attacks), guards=Guards())


def without(client: str):
    absent = Quadratics(absent={client: range(1, 100)})
    return unlearn(phases("fedosd", SCHEDULE), request(), absent, guards=Guards())


def harmless(outcome) -> bool:
    """No step touches a client whose update was used."""
    return all(row.get("max_cosine", 0.0) <= 1e-6 for row in outcome.metrics)


@pytest.mark.parametrize("client", RETAINED)
def test_a4_a_veto_is_as_good_as_a_client_that_is_absent(client):
    expected, held = without(client), 0
    for trial in range(25):
        sign = 1.0 if trial % 2 else -1.0
        outcome = against({client: copied_from(TARGET, 0.002 * (trial + 1), sign)})
        assert outcome.guards is not None
        held += (
            outcome.guards["refused:copy"] == SCHEDULE.unlearn_rounds
            and equal(tensors(outcome.state), tensors(expected.state))
            and harmless(outcome)
        )
    print(f"A4 | copies with up to 5 % noise | {client} | {held} of 25 refused")
    assert held == 25


@pytest.mark.parametrize("client", RETAINED)
def test_a4_a_veto_that_hides_behind_another_client_is_told_of(client):
    told = named = 0
    for trial in range(25):
        third = [other for other in RETAINED if other != client][trial % 3]
        outcome = against({client: mixed(TARGET, third, 0.002 * (trial + 1))})
        assert outcome.guards is not None
        assert harmless(outcome)
        told += "cut:amplification" in outcome.guards or outcome.status is Status.NO_DIRECTION
        named += any(f"without {who} " in each for each in outcome.warnings for who in (client, third))
    print(f"A4 | mixed with another's, up to 5 % noise | {client} | {told} of 25 told, {named} named")
    assert told >= 20


@pytest.mark.parametrize("client", RETAINED)
def test_a6_a_free_rider_is_as_good_as_a_client_that_is_absent(client):
    expected = without(client)
    # Of two equal updates, that of the later name is refused.
    copies = {other: copied_from(other) for other in CLIENTS if other < client or other == TARGET}
    riders = {"zeros": idle, **copies}
    for what, attack in riders.items():
        outcome = against({client: attack})
        print(f"A6 | {client} | {what} | {outcome.guards}")
        assert equal(tensors(outcome.state), tensors(expected.state)), what
