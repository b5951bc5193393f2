"""Requests are answered one after the other: none undoes what another one has erased."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.codes import refused
from support.desks import (
    TARGET,
    Unsteady,
    answer,
    document,
    first_model,
    make,
    opened,
    production,
    repeatable,
)

from fedunlearn.core.hashes import module_hash
from fedunlearn.erasure import Desk, purge, receive
from fedunlearn.erasure.keys import destroy

OTHER = "site-2"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with repeatable():
        yield opened(make(tmp_path / "desk"))


class Gone(Exception):
    """Stands for a crash."""


def interrupted(desk: Desk, number: int) -> None:
    """An answer to the target that crashes in an exchange."""

    def crash(_client: str, now: int) -> bool:
        if now > number:
            raise Gone
        return False

    with pytest.raises(Gone):
        answer(desk, document(), Unsteady(crash))


def test_a_request_waits_until_the_one_before_it_is_finished(desk):
    interrupted(desk, 7)
    with refused("unfinished", "not-ready", says="is unlearning: finish or purge it first"):
        answer(desk, document(OTHER), client=OTHER)
    first = answer(desk, document())
    assert first.state == "purged"
    second = answer(desk, document(OTHER), client=OTHER)
    assert second.state == "purged"
    before, after = first.last("installed"), second.last("admitted")
    assert before.fields["model"] == after.fields["model"]
    assert after.fields["retained"] == 2


def test_a_failed_request_that_was_overtaken_starts_from_the_model_that_is_in_service(desk):
    """Otherwise its answer would bring back the client that was forgotten meanwhile."""
    gone = Unsteady(lambda client, now: client == TARGET and now > 5)
    assert answer(desk, document(), gone).state == "partial"
    assert answer(desk, document(OTHER), client=OTHER).state == "purged"
    served = module_hash(production(desk))
    case = answer(desk, document())
    assert case.state == "purged"
    events = [entry.event for entry in case.entries]
    assert events.count("admitted") == 2
    assert case.last("admitted").fields["model"] == served
    assert case.last("admitted").fields["retained"] == 2


def test_a_failed_request_that_nobody_overtook_goes_on_where_it_was(desk):
    gone = Unsteady(lambda client, now: client == TARGET and now > 5)
    assert answer(desk, document(), gone).state == "partial"
    there, anew = Unsteady(), Unsteady()
    assert answer(desk, document(), there).state == "purged"
    answer(desk, document(OTHER), anew, client=OTHER)
    assert there.rounds == anew.rounds - 1


def test_a_certified_request_is_not_purged_before_its_model_is_in_service(desk, monkeypatch):
    def crash(*_arguments: object) -> None:
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr("fedunlearn.erasure.answer.install", crash)
        with pytest.raises(Gone):
            answer(desk, document())
    (case,) = desk.cases()
    assert case.state == "certified"
    with refused("unfinished", says="is not in service yet"):
        purge(desk, case.id)
    assert answer(desk, document()).state == "purged"


def test_a_request_with_a_lost_key_can_only_be_purged(desk):
    case = receive(desk, document(), first_model())
    destroy(desk.place(case.id) / "key")
    with refused("purged", says="is gone"):
        answer(desk, document())
    assert purge(desk, case.id, withdrawn=True).state == "purged"
