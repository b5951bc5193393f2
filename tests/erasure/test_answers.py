"""Requests that follow one another, or are tried again."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import replace
from functools import partial

import pytest
from support.codes import refused
from support.desks import (
    TARGET,
    Unsteady,
    answer,
    contents,
    document,
    federation,
    holdings,
    judge,
    make,
    opened,
    production,
    repeatable,
)

from fedunlearn import flatten
from fedunlearn.cli import erasures
from fedunlearn.core.hashes import module_hash
from fedunlearn.erasure import RequestState, against_retraining, conclusion, erase, purge, receive
from fedunlearn.erasure.certificate import read_certificate, verify
from fedunlearn.erasure.keys import Key
from fedunlearn.evidence import Evidence, TargetEvidence
from fedunlearn.evidence.influence import Influence
from fedunlearn.evidence.verdicts import Scores, no_verdict
from fedunlearn.runs import write_tensors
from fedunlearn.server import Server, read_history


@pytest.fixture
def folder(tmp_path):
    with repeatable():
        yield make(tmp_path / "desk")


def change(folder, old, new):
    text = (folder / "desk.toml").read_text()
    assert old in text
    (folder / "desk.toml").write_text(text.replace(old, new))


def received(folder, client=TARGET, number=0):
    desk = opened(folder)
    served = module_hash(production(desk))
    return receive(desk, document(client, number, served), served)


def tried(folder, case, there=None, **options):
    desk, there = opened(folder), there or federation()
    return erase(desk, case.id, there, production(desk), **options)


def failed(folder, case, monkeypatch, **options):
    """Answers a request whose evidence speaks against it."""
    with monkeypatch.context() as patch:
        patch.setattr(conclusion, "_reason", lambda outcome, evidence, floor: "not-forgotten")
        case = tried(folder, case, **options)
    assert case.state is RequestState.ESCALATED
    return case


def test_the_model_before_a_second_request_is_purged_with_it(folder):
    between = {}
    for client in (TARGET, "site-2"):
        between[client] = flatten(production(opened(folder))).numpy().tobytes()
        case = answer(
            opened(folder), document(client, 0, module_hash(production(opened(folder)))), client=client
        )
        assert case.state is RequestState.PURGED
    for model in between.values():
        assert not [name for name, content in contents(folder).items() if model[100:164] in content]


@pytest.mark.parametrize(
    ("old", "new"), [("unlearn_lr = 0.5", "unlearn_lr = 0.4"), ('"fedosd"', '"fast-retrain"')]
)
def test_a_request_that_was_escalated_is_tried_again_with_other_settings(folder, monkeypatch, old, new):
    case = failed(folder, received(folder), monkeypatch)
    change(folder, old, new)
    case = tried(folder, case)
    assert case.state is RequestState.CERTIFIED
    events = [entry.event for entry in case.entries]
    assert events.count("admitted") == events.count("unlearning") == case.attempts == 2


def test_a_model_that_costs_more_than_the_floor_is_not_installed(folder):
    change(folder, '"fedosd"', '"fast-retrain"')
    change(folder, "recover_rounds = 3", "recover_rounds = 0")
    change(folder, "unlearn_rounds = 3", "unlearn_rounds = 1")
    change(folder, "floor = 1.0\n", "")
    before = (folder / "model.safetensors").read_bytes()
    case = tried(folder, received(folder))
    told = case.last("escalated").fields
    assert (told["reason"], told["claim"]) == ("harmed", "ESCALATED")
    assert (folder / "model.safetensors").read_bytes() == before

    (folder / "desk.toml").write_text("floor = 1.0\n" + (folder / "desk.toml").read_text())
    case = tried(folder, case)
    assert case.state is RequestState.CERTIFIED
    assert (folder / "model.safetensors").read_bytes() != before
    document = read_certificate(opened(folder).place(case.id) / "certificate.json")
    safety = verify(document, folder / "controller.pub").predicate.safety
    measures = case.last("verified").fields["measures"]
    assert safety.accuracy_before == round(measures["r_acc_before"], 2)
    assert safety.accuracy_after == round(measures["r_acc"], 2) < safety.accuracy_before - 0.1
    assert safety.guard_events["accuracy-lost"] == 1
    shown = erasures._state(case)
    assert re.fullmatch(r"certified \([A-Z_]+, R-Acc \d\d\.\d% → \d\d\.\d%\)", shown)


@pytest.mark.parametrize("lost", [0.48, 0.52])
def test_an_audit_that_finds_retained_clients_worse_than_retrained_ones_counts(folder, monkeypatch, lost):
    change(folder, "floor = 1.0", "floor = 0.5")
    evidence = Evidence({}, {"accuracy": {"site-2": Influence(0.3, 0.3 + lost, -lost, None, None)}}, {})
    target = TargetEvidence(no_verdict(Scores([1.0] * 9, [1.0] * 9)))
    evidence = replace(evidence, targets={TARGET: target})
    case = tried(folder, received(folder), auditor=lambda after, before: evidence)
    assert (case.state is RequestState.ESCALATED) == (lost > 0.5)


def test_the_next_step_works_at_this_desk(folder):
    """It has no simulation: the commands reach no federation of its own."""
    case = received(folder)
    assert case.next_step == opened(folder).case(case.id).next_step
    assert case.next_step.endswith("then the run of your ServerApp that calls erasure.erase (flwr run)")
    change(folder, "[schedule]", '[simulation]\nexperiment = "experiment.toml"\n[schedule]')
    assert opened(folder).case(case.id).next_step.endswith("then fedunlearn erase")


def test_every_attempt_is_planned(folder, monkeypatch):
    change(folder, '"fedosd"', '"fast-retrain"')
    change(folder, "smallest = 32", "smallest = 1000")
    case = failed(folder, received(folder), monkeypatch)
    change(folder, '"fast-retrain"', '"fedosd"')
    with refused("data", says="cannot be answered yet"):
        tried(folder, case)
    assert opened(folder).case(case.id).state is RequestState.ESCALATED


@pytest.mark.parametrize(
    ("old", "new"), [("unlearn_lr = 0.5", "unlearn_lr = 0.4"), ("floor = 1.0", "floor = 0.9")]
)
def test_settings_stay_while_a_request_is_under_way(folder, old, new):
    class Stop(Exception):
        pass

    def stop(event):
        if event.metrics["round"] == 2:
            raise Stop

    case = received(folder)
    with pytest.raises(Stop):
        tried(folder, case, listeners=[stop])
    change(folder, old, new)
    with refused("changed", says="have changed since request"):
        tried(folder, case)
    change(folder, new, old)
    assert tried(folder, case).state is RequestState.CERTIFIED


def test_a_request_that_another_overtook_is_answered_from_the_new_model(folder, monkeypatch):
    there = federation()
    first = received(folder)

    def auditor(case):
        desk = opened(folder)
        return against_retraining(desk, case.id, there, production(desk), rounds=2)

    failed(folder, first, monkeypatch, auditor=auditor(first))
    second = received(folder, "site-2")
    ends = (RequestState.CERTIFIED, RequestState.ESCALATED)
    assert tried(folder, second, auditor=auditor(second)).state in ends
    first = tried(folder, first, auditor=auditor(first))
    assert first.state in ends
    assert first.last("admitted").fields["retained"] == (2 if opened(folder).forgotten(["site-2"]) else 3)


def recorded(folder, place):
    """A file with what training recorded."""
    server = Server(production(opened(folder)), federation(), folder=place / "training")
    server.train(2, 0.05, history=["norms"])
    write_tensors(place / "history.safetensors", server.history.tensors())
    return place / "history.safetensors"


def test_a_history_is_kept_for_a_second_attempt(folder, monkeypatch, tmp_path):
    path = recorded(folder, tmp_path)
    assert TARGET in read_history(path).rows["norms"]
    case = failed(folder, received(folder), monkeypatch, history=path)
    assert TARGET not in read_history(path).rows["norms"]
    assert set(read_history(path).rows["norms"]) == set(holdings()) - {TARGET}
    change(folder, '"fedosd"', '"federaser"')
    assert tried(folder, case, history=path).state is RequestState.CERTIFIED


def test_a_history_stays_whole_while_the_request_is_not_admitted(folder, tmp_path):
    path = recorded(folder, tmp_path)
    change(folder, '"fedosd"', '"fupga"')  # needs what was not recorded
    with refused("unsuitable", says="cannot be answered yet"):
        tried(folder, received(folder), history=path)
    assert TARGET in read_history(path).rows["norms"]


def test_the_absence_of_others_is_not_blamed_on_the_client(folder):
    change(folder, '"fedosd"', '"fast-retrain"')
    change(folder, "[training]", "[participation]\nminimum = 3\n\n[training]")
    case = received(folder)
    gone = Unsteady(lambda client, number: client == "site-2" and number > 4)
    with refused("missing_reply"):
        tried(folder, case, gone)
    assert opened(folder).case(case.id).state in (RequestState.UNLEARNING, RequestState.RECOVERING)
    assert tried(folder, case).state is RequestState.CERTIFIED


def test_a_failed_request_promises_no_deletion_and_is_not_closed(folder, monkeypatch):
    case = failed(folder, received(folder), monkeypatch)
    document = read_certificate(opened(folder).place(case.id) / "certificate.json")
    told = verify(document, folder / "controller.pub").predicate
    assert told.retention.to_delete == ()
    assert told.request.deadline_met is None
    assert "still open" in (opened(folder).place(case.id) / "certificate.html").read_text()


def test_the_receipt_of_a_purge_is_verified(folder, tmp_path):
    case = answer(opened(folder), document(TARGET))
    place, ledger = opened(folder).place(case.id), folder / "ledger.jsonl"
    text = read_certificate(place / "certificate.json")
    found = verify(text, folder / "controller.pub", ledger=ledger, receipt=place / "purge.json")
    assert any("their key destroyed" in told for told in found.checked)
    other = make(tmp_path / "other")
    second = answer(opened(other), document("site-2"), client="site-2")
    foreign = opened(other).place(second.id) / "purge.json"
    with refused("bad-fields", says="another certificate"):
        verify(text, folder / "controller.pub", receipt=foreign)
    shorter = tmp_path / "shorter.jsonl"
    shorter.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with refused("damaged", says="does not record the purge"):
        verify(text, folder / "controller.pub", ledger=shorter, receipt=place / "purge.json")


def test_only_a_request_that_is_answered_or_withdrawn_is_purged(folder, monkeypatch):
    case = failed(folder, received(folder), monkeypatch)
    with refused("unfinished", says="has not been answered"):
        purge(opened(folder), case.id)
    assert purge(opened(folder), case.id, withdrawn=True).state is RequestState.PURGED


def test_a_run_without_its_manifest_is_refused(folder):
    case = received(folder)
    desk = opened(folder)
    there = federation()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedunlearn.erasure.answer.conclude", lambda *words: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            erase(desk, case.id, there, production(desk), auditor=partial(judge, there, TARGET))
    (manifest,) = desk.place(case.id).glob("run/*/manifest.json")
    manifest.unlink()
    with refused("damaged", says="is missing, so the files"):
        tried(folder, case)


def test_a_pseudonym_is_not_made_with_the_secret_itself():
    secret = bytes(range(32))
    bare = hmac.new(secret, b"a", hashlib.sha256).hexdigest()[:32]
    assert Key(secret).pseudonym("a") not in (bare, Key(secret[::-1]).pseudonym("a"))
