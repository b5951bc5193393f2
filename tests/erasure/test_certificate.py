"""The erasure certificate: its schema, its one claim, what verification refuses, and tampering (A10)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError
from support import certificates
from support.certificates import REQUEST, certified, keys, membership
from support.codes import refused

from fedunlearn import FedUnlearnError
from fedunlearn.erasure.certificate import issue, parsed, read_certificate, verify
from fedunlearn.erasure.claim import GENERAL_LIMITS, OLDER, Claim, claim_of
from fedunlearn.erasure.predicate import (
    KIND,
    PREDICATE_TYPE,
    Claimed,
    Entry,
    Evidence,
    LedgerHead,
    Predicate,
    Range,
    Safety,
    verdict_of,
)
from fedunlearn.erasure.vocabulary import Bucket, EndState, Grade, Measure, NotTested, Role, Worded
from fedunlearn.evidence import Verdict
from fedunlearn.signing import Refusal, key_id, opened, sign

WORDS_OF_0_2 = "ed46374071bf6a9b31648d206503bd7b53f35e5530de8ee7df880922c7d7fdd1"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("certificate"))


def statement(made):
    return opened(made.document, KIND, made.public)


def changed(value, path, new):
    """The value with another leaf at a path of keys."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def refusal(made, **options):
    with pytest.raises(FedUnlearnError) as caught:
        verify(options.pop("document", made.document), options.pop("public", made.public), **options)
    told = str(caught.value)
    assert told
    assert "\n" not in told
    return told


def resigned(made, path, new):
    """A document that the controller's own key signed, with one value changed."""
    return sign(KIND, changed(statement(made), path, new), made.private)


# --- the document


def test_it_is_an_in_toto_statement_in_a_dsse_envelope(made):
    envelope = json.loads(made.document)
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert envelope["signatures"][0]["keyid"] == key_id(made.public)
    found = statement(made)
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == PREDICATE_TYPE
    [subject] = found["subject"]
    assert subject["name"] == "model-after"
    assert subject["digest"] == {"sha256": hashlib.sha256(made.model.read_bytes()).hexdigest()}
    assert subject["annotations"] == {"model_sha256": made.predicate.model_after.sha256}


def test_what_was_issued_is_what_is_read(made):
    found = verify(made.document, made.public, model=made.model, ledger=made.ledger)
    assert found.predicate == made.predicate
    assert found.key_id == key_id(made.public)
    assert len(found.checked) == 4
    assert len(found.unchecked) == 1


def test_what_is_not_given_is_told_as_unchecked(made):
    found = verify(made.document, made.public)
    asked = ("--model", "--ledger", "--receipt")
    assert [option in told for option, told in zip(asked, found.unchecked, strict=True)] == [True] * 3
    assert len(verify(made.document, made.public, ledger=made.ledger).unchecked) == 2


def test_the_same_predicate_gives_the_same_document(made):
    assert issue(made.predicate, made.private) == made.document


def test_a_longer_ledger_still_has_the_certificate(made, tmp_path):
    longer = tmp_path / "ledger.jsonl"
    events = [*certificates.events(12), certificates.recorded(made.document, 12)]
    later = {**events[0], "event": "installed", "fields": {"model": "0c" * 32}}
    longer.write_bytes(certificates.chained([*events, later, later]))
    assert verify(made.document, made.public, ledger=longer).checked


@pytest.mark.wording
def test_a_ledger_that_does_not_record_the_certificate_is_refused(made, tmp_path):
    other = tmp_path / "ledger.jsonl"
    other.write_bytes(certificates.chained(certificates.events(20)))
    assert "does not record this certificate" in refusal(made, ledger=other)


# --- the schema


def leaves(value, path=()):
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path, value


def test_every_object_refuses_unknown_keys(made):
    found = statement(made)
    objects = {path[:-1] for path, _ in leaves(found) if isinstance(path[-1], str)}
    assert len(objects) > 30
    mappings = {("predicate", "safety", "refused"), ("predicate", "safety", "guard_events")}
    mappings.add(("predicate", "procedure", "options"))
    for path in objects - mappings:
        holder = found
        for key in path:
            holder = holder[key]
        with refused("invalid", says="not an erasure certificate"):
            parsed(changed(found, path, {**holder, "more": 1}))


def test_every_value_has_one_type(made):
    found = statement(made)
    for path, value in leaves(found):
        if "options" not in path:
            wrong = 3 if isinstance(value, str) else "3" if not isinstance(value, bool) else 1
            with refused("invalid", says="not an erasure certificate"):
                parsed(changed(found, path, wrong))


def test_no_text_is_free(made):
    """Whatever a text is replaced with: names of people, markup and long texts do not fit."""
    found = statement(made)
    for path, value in leaves(found):
        if isinstance(value, str):
            for text in ("Anna Müller", "<b>", "x" * 401, "", "client 3\n"):
                with refused("invalid", says="not an erasure certificate"):
                    parsed(changed(found, path, text))


def test_no_list_is_longer_than_64(made):
    found = statement(made)
    lists = {path[:i] for path, _ in leaves(found) for i, key in enumerate(path) if isinstance(key, int)}
    assert len(lists) >= 7
    for path in lists:
        holder = found
        for key in path:
            holder = holder[key]
        with refused("invalid", says="not an erasure certificate"):
            parsed(changed(found, path, [holder[0]] * 65))
    with refused("invalid"):
        parsed(changed(found, ("predicate", "procedure", "options"), {f"o{n}": n for n in range(65)}))


@pytest.mark.wording
@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("predicate", "request", "deadline_met"), False, "deadline_met does not follow"),
        (("predicate", "request", "closed"), 5, "closed before it was received"),
        (("predicate", "claim", "claim"), "PROCESS_ONLY", "words are not those of the claim"),
        (("predicate", "claim", "meaning"), "All is well.", "words are not those of the claim"),
        (("predicate", "claim", "end_state"), "partial", "does not follow from end state and evidence"),
        (("predicate", "evidence", "grade"), "G2", "does not follow from end state and evidence"),
        (("predicate", "evidence", "entries", 0, "margin"), 0.01, "does not follow from its interval"),
        (("predicate", "evidence", "entries", 0, "difference_interval", "low"), 0.2, "low is above high"),
        (("predicate", "evidence", "entries", 1, "verdict"), "inconclusive", "finds the data in the model"),
        (("predicate", "evidence", "entries", 1, "measure"), "auc", "twice"),
        (("predicate", "evidence", "not_tested"), [], "not_tested"),
        (("predicate", "retention", "backups"), "not-covered", "backups_until"),
        (("predicate", "ledger", "length"), 0, "length"),
        (("predicate", "procedure", "stages", 0, "participants", "fewest"), 99, "fewest"),
        (("predicate", "model_after", "sha256"), "0" * 64, "subject is not the model after"),
        (("subject", 0, "digest", "sha256"), "0" * 64, "subject is not the model after"),
        (("subject", 0, "name"), "model-before", "subject.0.name"),
        (("_type",), "https://in-toto.io/Statement/v0.1", "_type"),
        (("predicateType",), "https://fedunlearn.org/erasure/v2", "predicateType"),
    ],
)
def test_even_the_controller_cannot_sign_contradictions(made, path, value, told):
    with refused("bad-fields") as caught:
        verify(resigned(made, path, value), made.public)
    assert caught.value.reason is Refusal.BAD_FIELDS
    assert told in str(caught.value)


def test_infinity_and_none_are_no_numbers(made):
    safety = made.predicate.safety.model_dump()
    for value in (float("inf"), float("nan"), -1.0, "1"):
        with pytest.raises(ValidationError):
            Safety(**{**safety, "displacement": value})


def fields(section):
    """The names of all fields of a section and of those within it."""
    for name, field in section.model_fields.items():
        yield field.alias or name
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from fields(part)


def test_the_documentation_has_every_field_and_claim():
    page = (Path(__file__).parents[2] / "docs/erasure/certificate.md").read_text()
    names = {*fields(Predicate), *Claim, *Grade, *Bucket, *Role}
    assert len(names) > 80
    assert [name for name in names if f"`{name}`" not in page] == []


# --- the claim


@pytest.mark.parametrize(
    ("end_state", "verdict", "grade", "claim"),
    [
        (EndState.CERTIFIED, None, Grade.G1, Claim.PROCESS_ONLY),
        (EndState.CERTIFIED, Verdict.EQUIVALENT, Grade.G1, Claim.BEHAVIOURALLY_EQUIVALENT),
        (EndState.CERTIFIED, Verdict.EQUIVALENT, Grade.G2, Claim.INCONCLUSIVE),
        (EndState.CERTIFIED, Verdict.EQUIVALENT, Grade.G3, Claim.INCONCLUSIVE),
        (EndState.CERTIFIED, Verdict.OVER, Grade.G1, Claim.OVER_FORGOTTEN),
        (EndState.CERTIFIED, Verdict.UNDER, Grade.G2, Claim.UNDER_FORGOTTEN),
        (EndState.CERTIFIED, Verdict.INCONCLUSIVE, Grade.G1, Claim.INCONCLUSIVE),
        (EndState.CERTIFIED, Verdict.NO_SIGNAL, Grade.G1, Claim.INCONCLUSIVE),
        *((EndState.PARTIAL, verdict, Grade.G1, Claim.PARTIAL) for verdict in (None, *Verdict)),
        *((EndState.GUARD_STOP, verdict, Grade.G1, Claim.PARTIAL) for verdict in (None, *Verdict)),
        *((EndState.NO_DIRECTION, verdict, Grade.G1, Claim.ESCALATED) for verdict in (None, *Verdict)),
        *(
            (EndState.ESCALATED, verdict, Grade.G1, Claim.ESCALATED)
            for verdict in (None, *Verdict)
            if verdict is not Verdict.UNDER
        ),
        (EndState.ESCALATED, Verdict.UNDER, Grade.G1, Claim.UNDER_FORGOTTEN),
    ],
)
def test_exactly_one_claim_follows(end_state, verdict, grade, claim):
    assert claim_of(end_state, verdict, grade) is claim


def alarm(measure, verdict):
    return Entry(
        measure=measure, definition=measure.page, value=0.6, verdict=verdict, computed_by=Role.TARGET
    )


@pytest.mark.parametrize("measure", [Measure.AUC_HARDEST, Measure.CANARIES])
def test_an_alarm_of_any_measure_forbids_a_pass(measure):
    passed = membership(Verdict.EQUIVALENT)
    assert verdict_of(passed) is Verdict.EQUIVALENT
    assert verdict_of((*passed, alarm(measure, Verdict.OVER))) is Verdict.OVER
    assert verdict_of((alarm(measure, Verdict.UNDER), *passed)) is Verdict.UNDER
    assert verdict_of((alarm(measure, Verdict.UNDER),)) is Verdict.UNDER


def test_the_control_is_meant_to_raise_an_alarm():
    auc, control = membership(Verdict.INCONCLUSIVE)
    assert control.verdict is Verdict.UNDER
    assert verdict_of((auc, control)) is Verdict.INCONCLUSIVE
    assert verdict_of((control,)) is None


@pytest.mark.parametrize("claim", Claim)
def test_every_claim_has_words_and_limits(claim):
    texts = (claim.headline, claim.meaning, *claim.limits)
    assert all(text.isascii() and text.isprintable() and len(text) <= 400 for text in texts)
    assert len(claim.limits) > len(GENERAL_LIMITS)


def test_the_words_of_earlier_certificates_are_accepted():
    earlier = {now: then for then, now in OLDER.items()}
    words = [
        [claim, *(earlier.get(sentence, sentence) for sentence in (claim.meaning, *claim.limits))]
        for claim in Claim
    ]
    assert hashlib.sha256(json.dumps(words).encode()).hexdigest() == WORDS_OF_0_2
    for claim, meaning, *limits in words:
        Claimed(claim=claim, end_state=EndState.CERTIFIED, meaning=meaning, limits=tuple(limits))


@pytest.mark.parametrize("kind", Worded.__subclasses__())
def test_every_code_has_words(kind):
    assert all(each.words and each.words.isprintable() for each in kind)


def test_buckets():
    sizes = [0, 99, 100, 999, 1_000, 9_999, 10_000, 99_999, 100_000, 10**9]
    assert [Bucket.of(size) for size in sizes] == [
        each for each in ("<100", "100-1k", "1k-10k", "10k-100k", ">100k") for _ in range(2)
    ]


def test_a_certificate_of_version_0_2_still_verifies():
    document = read_certificate(Path(__file__).parent / "certificate-0.2.json").strip()
    found = verify(document, keys(1)[1])
    assert found.predicate.claim.claim is Claim.BEHAVIOURALLY_EQUIVALENT
    assert found.predicate.safety.accuracy_before is None


def test_every_kind_of_certificate_verifies(tmp_path):
    for number, (end_state, verdict) in enumerate((e, v) for e in EndState for v in (None, *Verdict)):
        made = certified(tmp_path / str(number), end_state=end_state, verdict=verdict)
        found = verify(made.document, made.public, model=made.model, ledger=made.ledger)
        assert found.predicate.claim.claim is claim_of(end_state, verdict)


def test_a_claim_cannot_be_chosen(made):
    evidence = Evidence(grade=Grade.G1, entries=(), not_tested=(NotTested.EVERYTHING,))
    assert Claimed.of(EndState.CERTIFIED, evidence).claim is Claim.PROCESS_ONLY
    claim = Claim.BEHAVIOURALLY_EQUIVALENT
    chosen = Claimed(claim=claim, end_state=EndState.CERTIFIED, meaning=claim.meaning, limits=claim.limits)
    with pytest.raises(ValidationError, match="does not follow"):
        Predicate(**{**dict(made.predicate), "evidence": evidence, "claim": chosen})
    copied = made.predicate.model_copy(update={"evidence": evidence, "claim": chosen})
    with refused("invalid", says="does not follow"):
        issue(copied, made.private)


# --- refusals


@pytest.mark.wording
def test_another_key_is_refused(made):
    _, stranger = keys(2)
    assert "signed with another key" in refusal(made, public=stranger)


@pytest.mark.wording
def test_a_signature_of_a_stranger_is_refused(made):
    private, _ = keys(2)
    forged = json.loads(issue(made.predicate, private))
    forged["signatures"][0]["keyid"] = key_id(made.public)
    document = certificates.canonical(forged).decode()
    assert "does not match" in refusal(made, document=document)


@pytest.mark.wording
def test_another_kind_of_document_is_refused(made):
    document = sign("application/vnd.other+json", statement(made), made.private)
    assert "is of kind" in refusal(made, document=document)


@pytest.mark.wording
def test_a_document_that_is_no_certificate_is_refused(made):
    told = refusal(made, document=sign(KIND, {"_type": "other"}, made.private))
    assert "not an erasure certificate" in told


@pytest.mark.wording
def test_another_model_is_refused(made, tmp_path):
    other = certified(tmp_path / "other", seed=2)
    assert "is not the certified model" in refusal(made, model=other.model)
    assert "cannot read" in refusal(made, model=tmp_path / "none.safetensors")


@pytest.mark.wording
def test_another_ledger_is_refused(made, tmp_path):
    path = tmp_path / "ledger.jsonl"
    events = certificates.events(12)
    path.write_bytes(certificates.chained([{**event, "time": 1} for event in events]))
    assert "another SHA-256" in refusal(made, ledger=path)
    path.write_bytes(certificates.chained(events[:-1]))
    assert "11 entries, and 12 are named" in refusal(made, ledger=path)
    path.write_bytes(made.ledger.read_bytes()[:-1])
    assert "ends within an entry" in refusal(made, ledger=path)
    path.write_bytes(made.ledger.read_bytes().replace(b"fedosd", b"fedavg"))
    assert "does not follow the entry before it" in refusal(made, ledger=path)
    assert "cannot read" in refusal(made, ledger=tmp_path / "none.jsonl")


@pytest.mark.wording
def test_a_ledger_without_the_request_is_refused(made, tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(
        certificates.chained([{**event, "request": "another"} for event in certificates.events(12)])
    )
    head = hashlib.sha256(path.read_bytes().splitlines()[-1]).hexdigest()
    stated = made.predicate.model_copy(update={"ledger": LedgerHead(head=head, length=12)})
    told = refusal(made, document=issue(stated, made.private), ledger=path)
    assert f"no entry of the request {REQUEST}" in told


def test_files_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_bytes(b"\xff\xfe")
    with refused("invalid", says="not text"):
        read_certificate(path)
    with refused("file", says="cannot read"):
        read_certificate(tmp_path / "none.json")


def test_a_huge_file_is_refused_without_being_read(made, tmp_path):
    path = tmp_path / "certificate.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with refused("too-large") as caught:
        verify(read_certificate(path), made.public)
    assert caught.value.reason is Refusal.TOO_LARGE


def test_ranges_are_ordered():
    with pytest.raises(ValidationError, match="low is above high"):
        Range(low=1.0, high=0.0, level=0.9)
