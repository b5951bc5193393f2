"""The ledger: typed events in a chain whose end is signed."""

from __future__ import annotations

import json
import os

import pytest
from support.codes import refused
from support.erasures import controller_key

from fedunlearn.erasure import RequestState
from fedunlearn.erasure.ledger import FIELDS, GENESIS, Ledger, head_at, read

DIGEST = "ab" * 32


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.jsonl", controller_key(), clock=lambda: 1_000.0)


def filled(ledger, count=5):
    for number in range(count):
        ledger.append(f"r{number}", "refused", document=DIGEST, reason="expired")
    return ledger


def again(ledger):
    return Ledger(ledger.path, controller_key(), clock=lambda: 2_000.0)


def test_entries_form_a_chain_that_another_process_reads(ledger):
    filled(ledger)
    entries = again(ledger).entries
    assert [entry.number for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry.previous for entry in entries] == [GENESIS, *(entry.sha256 for entry in entries[:-1])]
    assert read(ledger.path) == entries
    assert ledger.head == (entries[-1].sha256, 5)
    assert head_at(entries, 0) == GENESIS
    assert head_at(entries, 3) == entries[2].sha256


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("gossip", {}),
        ("received", {"client": "hospital-3"}),
        ("refused", {"reason": "a sentence about Mr Smith"}),
        ("refused", {"reason": "x" * 65}),
        ("verified", {"measures": {"loss": float("nan")}}),
        ("verified", {"measures": [0.1, 0.2]}),
        ("verified", {"measures": {f"m{n}": n for n in range(65)}}),
        ("purged", {"files": -1}),
        ("purged", {"files": True}),
    ],
)
def test_an_event_tells_codes_digests_and_numbers_only(ledger, event, fields):
    with refused("invalid", "unknown"):
        ledger.append("r", event, **fields)
    assert ledger.entries == ()


def lines_of(ledger):
    return ledger.path.read_bytes().splitlines(keepends=True)


EDITS = {
    "first removed": lambda lines: lines[1:],
    "last removed": lambda lines: lines[:-1],
    "all removed": lambda lines: [],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "repeated": lambda lines: [*lines, lines[-1]],
    "edited": lambda lines: [*lines[:2], lines[2].replace(b"expired", b"forged!"), *lines[3:]],
    "last edited": lambda lines: [*lines[:-1], lines[-1].replace(b"expired", b"too-old")],
    "spelt otherwise": lambda lines: [json.dumps(json.loads(lines[0])).encode() + b"\n", *lines[1:]],
    "no JSON": lambda lines: [*lines[:2], b"{\n", *lines[3:]],
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_ledger_is_refused(ledger, edit):
    filled(ledger)
    ledger.path.write_bytes(b"".join(EDITS[edit](lines_of(ledger))))
    with refused("damaged", says="restore"):
        _ = again(ledger).entries
    with refused("damaged", says="restore"):
        again(ledger).append("r", "installed", model=DIGEST)


def test_an_entry_that_somebody_appends_with_a_right_chain_is_refused(ledger, tmp_path):
    filled(ledger)
    stranger = tmp_path / "copy" / "ledger.jsonl"
    stranger.parent.mkdir()
    stranger.write_bytes(ledger.path.read_bytes())
    stranger.with_name("ledger.head.json").write_bytes(ledger.path.with_name("ledger.head.json").read_bytes())
    Ledger(stranger, controller_key(), clock=lambda: 3_000.0).append("r9", "installed", model=DIGEST)
    ledger.path.write_bytes(stranger.read_bytes())
    with refused("damaged", says="signed head"):
        _ = again(ledger).entries


def test_a_head_signed_with_another_key_is_refused(ledger, tmp_path):
    filled(ledger)
    with refused("damaged", says="another key"):
        _ = Ledger(ledger.path, controller_key("somebody else")).entries


def test_a_line_that_a_kill_cut_off_is_removed_before_the_next(ledger):
    filled(ledger, 2)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole + b'{"event":"insta')
    assert len(again(ledger).entries) == 2
    again(ledger).append("r", "installed", model=DIGEST)
    assert ledger.path.read_bytes().startswith(whole)
    assert len(again(ledger).entries) == 3


@pytest.mark.parametrize("moment", ["announced", "appended"])
def test_a_kill_between_entry_and_head_does_no_harm(ledger, moment, monkeypatch):
    filled(ledger, 2)
    entries = ledger.entries

    class Killed(BaseException):
        pass

    signed = Ledger._sign_head

    def sign_and_die(self, head, length, announced=""):
        if moment == "appended" and not announced:
            raise Killed
        signed(self, head, length, announced)
        if moment == "announced":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "_sign_head", sign_and_die)
        with pytest.raises(Killed):
            again(ledger).append("r", "installed", model=DIGEST)
    found = again(ledger).entries
    assert found[:2] == entries
    assert len(found) == (2 if moment == "announced" else 3)
    again(ledger).append("r", "installed", model=DIGEST)
    assert len(again(ledger).entries) == len(found) + 1


def test_a_ledger_without_its_head_is_refused(ledger):
    filled(ledger)
    os.unlink(ledger.path.with_name("ledger.head.json"))
    with refused("damaged", says="is missing"):
        _ = again(ledger).entries


def test_an_announced_entry_can_be_removed_until_it_is_settled(ledger):
    filled(ledger, 2)
    announced = ledger.head
    ledger.append("r9", "refused", document=DIGEST, reason="expired")
    whole = ledger.path.read_bytes()
    shorter = b"".join(whole.splitlines(keepends=True)[:-1])
    ledger._sign_head(*announced, announced=ledger.head[0])  # as a kill would have left it
    ledger.path.write_bytes(shorter)
    assert len(again(ledger).entries) == 2
    ledger.path.write_bytes(whole)
    again(ledger).settle()
    assert len(again(ledger).entries) == 3
    ledger.path.write_bytes(shorter)
    with refused("damaged", says="entries were removed"):
        _ = again(ledger).entries


WORDS = """received refused authenticated admitted unlearning verified recovering certified partial
no_direction guard_stop escalated purged"""


def test_the_words_of_states_never_change():
    """Ledgers of earlier versions hold them."""
    assert list(RequestState) == WORDS.split()
    assert FIELDS.keys() == {*WORDS.split(), "installing", "installed", "purging"}


def test_what_a_state_means():
    for state in RequestState:
        assert state.failed + state.under_way <= state.open
        assert (RequestState.PURGED in state.next) is (state.accepted and state is not RequestState.PURGED)
