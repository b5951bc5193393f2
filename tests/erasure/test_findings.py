"""Audits and guards as entries of a certificate: real numbers in, codes and rounded numbers out."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from pydantic import TypeAdapter
from support.attacks import Attacked, copied_from, idle, scaled, stale
from support.audits import SITES, SIZE, TARGET, before, marked, network, retrained, world
from support.closed_form import Quadratics, phases, request
from support.codes import refused

import fedunlearn as fu
from fedunlearn.core import Reason
from fedunlearn.driver import Guards
from fedunlearn.erasure.evidence_entries import canary_entry, evidence_entries, guard_counts, this_environment
from fedunlearn.erasure.predicate import Claimed, Entry, Evidence, verdict_of
from fedunlearn.erasure.vocabulary import EndState, Grade, GuardEvent, Measure, NotTested, Role
from fedunlearn.evidence import Comeback, Relearning, Verdict, canary_finding, exact_bounds

pytestmark = pytest.mark.filterwarnings("ignore:no backdoor")


@pytest.fixture(scope="module")
def audits():
    plain, backdoored = fu.Sequential(network(), world()), fu.Sequential(network(), marked())

    def audit(federation, model, **options):
        given = {"targets": TARGET, "retrained": retrained(), "original": before(), **options}
        return fu.audit(federation, model, **given)

    return {
        "under": audit(plain, before(), again=retrained(4)),
        "fine": audit(plain, retrained(20), again=retrained(4), references=[retrained(5), retrained(6)]),
        "backdoor": audit(backdoored, retrained(20), again=retrained(4), references=[retrained(5)]),
        "no standard": audit(plain, before(), retrained=None),
        "no control": audit(plain, retrained(3), original=None),
    }


def by_measure(entries):
    return {entry.measure: entry for entry in entries}


@pytest.mark.parametrize("name", ["under", "fine", "backdoor", "no standard", "no control"])
def test_a_certificate_holds_what_the_audit_found_and_no_names(audits, name):
    found = audits[name]
    entries, untested = evidence_entries(found)
    section = Evidence(grade=Grade.G1, entries=entries, not_tested=untested)
    alarm = (found.targets[TARGET].tail or found.targets[TARGET].finding).verdict
    expected = alarm if alarm is not None and alarm.alarm else found.verdict
    assert verdict_of(entries) is expected
    Claimed.of(EndState.CERTIFIED, section)
    written = section.model_dump_json()
    for secret in (*SITES, str(SIZE), "site", str(found.targets[TARGET].finding.auc)):
        assert secret not in written
    assert all(len(number.partition(".")[2]) <= 3 for number in re.findall(r"\d+\.\d+", written))


def test_numbers_are_those_of_the_audit(audits):
    entries = by_measure(evidence_entries(audits["under"])[0])
    finding = audits["under"].targets[TARGET].finding
    auc = entries[Measure.AUC]
    assert auc.verdict is Verdict.UNDER
    assert auc.value == round(finding.auc, 3)
    assert auc.reference == round(finding.reference_auc, 3)
    assert auc.difference_interval.level == finding.alarm_interval.level == 0.95
    assert auc.margin == 0.05
    assert auc.n == "100-1k"
    assert auc.definition == "evidence/measures.md#calibrated-auc-and-the-verdict"
    worst = entries[Measure.RETAINED_WORST]
    retained = [each for name, each in audits["under"].influence["accuracy"].items() if name != TARGET]
    assert worst.difference == round(min(each.difference for each in retained), 2)
    assert worst.computed_by is Role.RETAINED


def test_what_was_not_tested_is_told(audits):
    def untested(name):
        return set(evidence_entries(audits[name])[1])

    always = {NotTested.SINGLE_EXAMPLES, NotTested.OTHER_ATTACKS, NotTested.COPIES}
    assert all(always <= untested(name) for name in audits)
    assert untested("backdoor") == always | {NotTested.LOW_FPR, NotTested.CANARIES, NotTested.RELEARNING}
    assert untested("fine") - untested("backdoor") == {NotTested.BACKDOOR}
    assert {NotTested.RETRAINING, NotTested.RETAINED, NotTested.CONTROL} <= untested("no standard")
    assert {NotTested.CONTROL, NotTested.SECOND_RETRAINING} <= untested("no control")
    missing = replace(audits["fine"], missing={"site-2": "did not answer"})
    assert NotTested.SOME_RETAINED in evidence_entries(missing)[1]


def test_every_measure_of_an_audit_has_a_place(audits):
    comeback = Comeback(0.1, (2.0, 1.5, 0.4), (2.0, 1.0, 0.9))
    endless = Comeback(0.1, (2.0, 1.9), (2.0, 1.8))
    canaries = {"model": canary_finding(40, 64), "original": canary_finding(64, 64)}
    target = replace(audits["backdoor"].targets[TARGET], canaries=canaries)
    found = replace(
        audits["backdoor"], targets={TARGET: target}, relearning=Relearning(endless, comeback, 100)
    )
    entries = by_measure(evidence_entries(found)[0])
    assert set(Measure) - entries.keys() == {Measure.TPR_01}
    assert entries[Measure.RELEARN_FINETUNING].value == 2
    assert entries[Measure.RELEARN_FINETUNING].reference is not None
    assert entries[Measure.RELEARN_POSTTRAINING].value is None
    assert entries[Measure.CANARIES].value == round(40 / 64, 2)


def test_no_audit_is_told_as_such():
    entries, untested = evidence_entries(None)
    assert entries == ()
    assert untested[0] is NotTested.EVERYTHING
    section = Evidence(grade=Grade.G3, entries=entries, not_tested=untested)
    assert Claimed.of(EndState.CERTIFIED, section).claim == "PROCESS_ONLY"


def test_a_certificate_is_about_one_target(audits):
    two = replace(
        audits["fine"], targets={**audits["fine"].targets, "site-0": audits["fine"].targets[TARGET]}
    )
    with refused("invalid", says="2 targets"):
        evidence_entries(two)
    assert evidence_entries(two, "site-0")
    with refused("invalid", says="known: site-1"):
        evidence_entries(audits["fine"], "site-7")


@pytest.mark.skipif(not exact_bounds(), reason="needs SciPy")
@pytest.mark.parametrize(
    ("correct", "verdict"), [(64, Verdict.UNDER), (50, Verdict.UNDER), (33, None), (10, Verdict.OVER)]
)
def test_canaries_raise_alarms_and_pass_nothing(correct, verdict):
    entry = canary_entry(canary_finding(correct, 64))
    assert entry.verdict is verdict
    assert entry.interval.level == 0.9
    assert verdict_of([entry]) is verdict


# --- guards


def test_guards_are_counted_without_names():
    attacks = {"site-4": scaled(100), "site-0": stale, "site-2": copied_from("site-1", 0.05)}
    for attack in (attacks, {"site-1": scaled(1e4)}, {"site-3": idle}):
        federation = Attacked(Quadratics(), attack)
        outcome = fu.unlearn(
            phases(
                "fedosd", fu.Schedule(unlearn_rounds=3, unlearn_lr=0.05, recover_rounds=3, recover_lr=0.05)
            ),
            request(),
            federation,
            guards=Guards(step=0.01),
        )
        refused, events = guard_counts(outcome.guards)
        assert refused or events
        assert GuardEvent.OTHER not in events
        assert "site" not in json.dumps([refused, events])


@pytest.mark.parametrize(
    ("codes", "refused", "events"),
    [
        ({"refused:norm": 3, "refused:copy": 1}, {Reason.NORM: 3, Reason.COPY: 1}, {}),
        ({"halved": 2, "stopped:harm": 1}, {}, {GuardEvent.HALVED: 2, GuardEvent.STOPPED: 1}),
        ({"untried": 1, "unmeasured": 2}, {}, {GuardEvent.UNTRIED: 1, GuardEvent.UNMEASURED: 2}),
        ({"unmoved": 1, "cut:step": 4}, {}, {GuardEvent.NOT_FORGOTTEN: 1, GuardEvent.STEP: 4}),
        ({"left_out": 2, "idle": 6}, {}, {GuardEvent.LEFT_OUT: 2, GuardEvent.IDLE: 6}),
        ({"news": 12}, {}, {GuardEvent.OTHER: 12}),
    ],
)
def test_codes_of_guards_have_words(codes, refused, events):
    assert guard_counts(codes) == (refused, events)


def test_this_environment_fits():
    found = this_environment()
    assert found.threads >= 1
    assert TypeAdapter(type(found)).validate_json(found.model_dump_json()) == found


def test_entries_are_the_same_after_json(audits):
    entries, _ = evidence_entries(audits["backdoor"])
    for entry in entries:
        assert Entry.model_validate_json(entry.model_dump_json(exclude_none=True)) == entry
