"""A1: whatever a bad request looks like, it is refused with its own reason, and nothing of it stays."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load
from support.codes import refused
from support.desks import (
    CLIENTS,
    FEDERATION,
    NOW,
    TARGET,
    answer,
    contents,
    document,
    first_model,
    make,
    opened,
    production,
    repeatable,
    trained,
)
from support.erasures import controller_key

from fedunlearn.core.hashes import module_hash
from fedunlearn.erasure import Case, Desk, RequestState, purge, receive
from fedunlearn.erasure.reception import identify
from fedunlearn.runs.files import tensor_bytes
from fedunlearn.signing import ERASURE_REQUEST, Refusal, Refused, sign

DAY = 24 * 3600
WAITING = "site-2"
"""Has handed in a request that is still open."""


@dataclass(frozen=True)
class Bad:
    kind: str
    text: str
    reasons: frozenset[Refusal]


def payload(draw: random.Random, **changes: Any) -> dict[str, Any]:
    fields = {
        "client": TARGET,
        "federation": FEDERATION,
        "model_sha256": first_model(),
        "nonce": draw.randbytes(16).hex(),
        "issued": int(NOW) - 60,
        "expires": int(NOW) + 3600,
        "scope": "client",
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def signed(fields: dict[str, Any], key: str = TARGET, kind: str = ERASURE_REQUEST) -> str:
    return sign(kind, fields, controller_key(key))


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def edited(text: str, **changes: Any) -> str:
    """The envelope with other fields in its payload, and the old signature."""
    envelope = json.loads(text)
    fields = {**json.loads(base64.b64decode(envelope["payload"])), **changes}
    return canonical({**envelope, "payload": base64.b64encode(canonical(fields).encode()).decode()})


def bad(draw: random.Random) -> Iterator[Bad]:
    """One of each kind."""

    def of(kind: str, text: str, *reasons: Refusal) -> Bad:
        return Bad(kind, text, frozenset(reasons))

    fine = signed(payload(draw))
    envelope = json.loads(fine)
    other = draw.choice([client for client in CLIENTS if client not in (TARGET, WAITING)])
    yield of("forged with another client's key", signed(payload(draw), other), Refusal.UNKNOWN_KEY)
    yield of("forged with a new key", signed(payload(draw), f"{draw.random()}"), Refusal.UNKNOWN_KEY)
    stolen = {**json.loads(signed(payload(draw), other))["signatures"][0]}
    stolen["keyid"] = envelope["signatures"][0]["keyid"]
    yield of("stated another key", canonical({**envelope, "signatures": [stolen]}), Refusal.BAD_SIGNATURE)
    yield of("of another client", signed(payload(draw, client=other)), Refusal.UNKNOWN_KEY)
    yield of(
        "of an unknown client",
        signed(payload(draw, client=f"site-{draw.randrange(11, 10**6)}")),
        Refusal.UNKNOWN_KEY,
    )
    past = draw.randrange(61, 30 * DAY)
    yield of(
        "expired",
        signed(payload(draw, issued=int(NOW) - past, expires=int(NOW) - draw.randrange(0, 60))),
        Refusal.EXPIRED,
    )
    later = int(NOW) + draw.randrange(301, 10**6)
    yield of("not yet valid", signed(payload(draw, issued=later, expires=later + 60)), Refusal.NOT_YET_VALID)
    yield of(
        "valid for too long",
        signed(payload(draw, expires=int(NOW) + 32 * DAY + draw.randrange(DAY))),
        Refusal.LIFETIME_TOO_LONG,
    )
    yield of(
        "times reversed",
        signed(payload(draw, issued=int(NOW), expires=int(NOW) - draw.randrange(1, DAY))),
        Refusal.BAD_TIMES,
    )
    yield of("absurd times", signed(payload(draw, expires=1 << draw.randrange(41, 60))), Refusal.BAD_TIMES)
    for name in (f"{FEDERATION}-{draw.randrange(99)}", FEDERATION.upper(), f"{FEDERATION} "):
        yield of("of another federation", signed(payload(draw, federation=name)), Refusal.OTHER_FEDERATION)
    yield of(
        "of another model", signed(payload(draw, model_sha256=draw.randbytes(32).hex())), Refusal.OTHER_MODEL
    )
    for field in payload(draw):
        value: Any = draw.choice(["", None, 7, -1, 1.5, True, [], {}, "x" * 201, "\u202e", "site\n1"])
        whole = payload(draw)
        yield of(
            f"{field} edited",
            edited(fine, **{field: value}),
            Refusal.BAD_SIGNATURE,
            *([Refusal.UNKNOWN_KEY, Refusal.MALFORMED] if field == "client" else []),
        )
        yield of(
            f"{field} nonsense",
            signed({**whole, field: value}),
            Refusal.BAD_FIELDS,
            *([Refusal.UNKNOWN_KEY, Refusal.MALFORMED] if field == "client" else []),
            *([Refusal.BAD_TIMES, Refusal.EXPIRED] if field in ("issued", "expires") else []),
            *([Refusal.LIFETIME_TOO_LONG] if field == "issued" else []),
            *([Refusal.OTHER_FEDERATION] if field == "federation" else []),
        )
        yield of(
            f"without {field}",
            signed({key: held for key, held in whole.items() if key != field}),
            Refusal.MALFORMED if field == "client" else Refusal.BAD_FIELDS,
        )
    yield of("one field more", signed({**payload(draw), f"x{draw.random()}": 1}), Refusal.BAD_FIELDS)
    twice = canonical(payload(draw))[:-1] + f',"client":"{TARGET}"}}'
    doubled = {**envelope, "payload": base64.b64encode(twice.encode()).decode()}
    yield of("a key twice", canonical(doubled), Refusal.MALFORMED)
    yield of("a key of the envelope twice", fine[:-1] + ',"signatures":[]}', Refusal.MALFORMED)
    kind = draw.choice(["application/json", "application/vnd.in-toto+json", ERASURE_REQUEST + "x"])
    yield of("of another kind", signed(payload(draw), kind=kind), Refusal.WRONG_KIND)
    yield of("called another kind", canonical({**envelope, "payloadType": kind}), Refusal.WRONG_KIND)
    yield of("huge", signed({**payload(draw), "more": "x" * draw.choice([8000, 100_000])}), Refusal.TOO_LARGE)
    yield of("huge nonsense", "[" * draw.choice([9000, 10**6]), Refusal.TOO_LARGE)
    yield of("deep", "[" * draw.randrange(1000, 8000), Refusal.MALFORMED)
    for name in ("site-\uff11", "site\u200b-1", "s\u0456te-1", "site-1\u0301", "\u202esite-1", "SITE-1"):
        yield of(f"client {name!r}", signed(payload(draw, client=name)), Refusal.UNKNOWN_KEY)
    raw = json.dumps(payload(draw, client="sité"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    named = {**envelope, "payload": base64.b64encode(raw.encode()).decode()}
    yield of("not escaped", canonical(named), Refusal.MALFORMED)
    yield of("a lone surrogate", fine.replace("sig", "s\ud800g"), Refusal.MALFORMED)
    yield of("a byte-order mark", "\ufeff" + fine, Refusal.MALFORMED)
    for space in ("\n", " ", "\t", "\x00"):
        yield of("a space", draw.choice([fine + space, space + fine]), Refusal.MALFORMED)
    another = json.loads(signed(payload(draw)))
    swapped = canonical({**envelope, "signatures": another["signatures"]})
    yield of("the signature of another request", swapped, Refusal.BAD_SIGNATURE)
    both = [*envelope["signatures"], *another["signatures"]]
    yield of("two signatures", canonical({**envelope, "signatures": both}), Refusal.NOT_ONE_SIGNATURE)
    yield of("no signature", canonical({**envelope, "signatures": []}), Refusal.NOT_ONE_SIGNATURE)
    for signature in ("", "AAAA", base64.b64encode(bytes(64)).decode(), "=" * 8):
        one = [{**envelope["signatures"][0], "sig": signature}]
        yield of(
            "an empty signature",
            canonical({**envelope, "signatures": one, "payload": another["payload"]}),
            Refusal.BAD_SIGNATURE,
            Refusal.MALFORMED,
        )
    loose = envelope["payload"].rstrip("=") + draw.choice(["", "====", "\n"])
    yield of(
        "loose base64",
        canonical({**another, "payload": loose}),
        Refusal.MALFORMED,
        Refusal.BAD_SIGNATURE,
    )
    for _ in range(4):
        place = draw.randrange(len(fine))
        flipped = fine[:place] + chr(ord(fine[place]) ^ 1 << draw.randrange(7)) + fine[place + 1 :]
        yield Bad("a bit flipped", flipped, frozenset(Refusal))
        yield of("cut", fine[: draw.randrange(len(fine))], Refusal.MALFORMED)
    yield of("noise", draw.randbytes(draw.randrange(900)).decode("latin-1"), Refusal.MALFORMED)
    plain = draw.choice(["null", "[]", "0", '"x"', "{}", "{", "NaN", '{"payload":7}', '{"payload":"e30="}'])
    yield of("JSON of something else", f"{plain}{' ' * draw.randrange(99)}", Refusal.MALFORMED)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk with a request that is open."""
    with repeatable():
        found = opened(make(tmp_path / "desk"))
        assert receive(found, document(WAITING), first_model()).state is RequestState.AUTHENTICATED
        yield found


def refusal(desk: Desk, text: str) -> Refusal:
    """Why; and nothing but the reason and a digest stays."""
    before = {name for name in contents(desk.folder) if not name.startswith("ledger.")}
    with pytest.raises(Refused) as refusal:
        receive(desk, text, first_model())
    assert "\n" not in str(refusal.value)
    case = desk.case(identify(text))
    assert case.state is RequestState.REFUSED
    assert case.entries[-1].fields["reason"] == str(refusal.value.reason)
    assert not desk.place(case.id).exists()
    assert {name for name in contents(desk.folder) if not name.startswith("ledger.")} == before
    return refusal.value.reason


def refuse_all(desk: Desk, sets: int) -> Counter[str]:
    found: Counter[str] = Counter()
    seen: set[str] = set()
    for number in range(sets):
        for each in bad(random.Random(f"bad {number}")):
            if each.text in seen:
                continue
            seen.add(each.text)
            reason = refusal(desk, each.text)
            assert reason in each.reasons, (each.kind, reason)
            found[str(reason)] += 1
    accepted = [entry for entry in desk.ledger.entries if entry.event == "authenticated"]
    assert len(accepted) == 1
    for secret in (TARGET, "site-3", "sité"):
        assert secret not in desk.ledger.path.read_text()
    assert receive(desk, signed(payload(random.Random(1))), first_model()).state is RequestState.AUTHENTICATED
    print(f"A1: {found.total():,} bad requests, 0 accepted; {dict(found)}")
    return found


def test_bad_requests_are_refused(desk):
    assert len(refuse_all(desk, 1)) >= 12


@pytest.mark.chaos
def test_hundreds_of_bad_requests_are_refused(desk):
    assert refuse_all(desk, 12).total() >= 500


def test_a_client_has_one_open_request(desk):
    assert refusal(desk, document(WAITING, 1)) is Refusal.STILL_OPEN
    again = receive(desk, document(WAITING), first_model())
    assert [entry.event for entry in again.entries] == ["received", "authenticated"]


def test_what_was_refused_for_one_reason_can_be_refused_for_another_or_accepted(desk):
    early = signed(payload(random.Random(2), issued=int(NOW) + 600, expires=int(NOW) + 1200))
    assert refusal(desk, early) is Refusal.NOT_YET_VALID
    assert refusal(desk, early) is Refusal.NOT_YET_VALID
    late = opened(desk.folder, NOW + DAY)
    with refused("expired"):
        receive(late, early, first_model())
    told = [entry.fields.get("reason") for entry in late.case(identify(early)).entries]
    assert told == [None, "not-yet-valid", "expired"]
    case = receive(opened(desk.folder, NOW + 700), early, first_model())
    assert case.state is RequestState.AUTHENTICATED
    assert case.deadline == int(NOW) + 30 * DAY


def purged(desk: Desk) -> Case:
    case = answer(desk, document())
    assert case.state is RequestState.PURGED
    return case


def test_what_was_answered_is_not_answered_again(desk):
    case, ledger = purged(desk), desk.ledger.path.read_bytes()
    assert receive(desk, document(), first_model()) == case
    assert desk.ledger.path.read_bytes() == ledger
    same_nonce = edited(document(), expires=int(NOW) + 1800)
    fields = json.loads(base64.b64decode(json.loads(same_nonce)["payload"]))
    assert refusal(desk, signed(fields)) is Refusal.FORGOTTEN
    assert refusal(desk, signed(payload(random.Random(3)))) is Refusal.FORGOTTEN


def test_a_nonce_is_used_once(desk):
    """Also by the client itself, and after its first request was withdrawn."""
    purge(desk, desk.cases()[0].id, withdrawn=True)
    fields = json.loads(base64.b64decode(json.loads(document(WAITING))["payload"]))
    longer = signed({**fields, "expires": fields["expires"] + 1}, WAITING)
    assert refusal(desk, longer) is Refusal.REPLAYED


def test_a_client_that_has_joined_anew_is_forgotten_again_about_the_model_trained_since(desk):
    def ask(number: int) -> Case:
        return answer(desk, document(TARGET, number, module_hash(production(desk))))

    purged(desk)
    with refused("forgotten", says="forgotten already: where it has joined anew"):
        ask(1)
    anew = {name: 1.01 * tensor for name, tensor in load(trained()).items()}  # by a training elsewhere
    (desk.folder / "model.safetensors").write_bytes(tensor_bytes(anew))
    other = document("site-10", 0, module_hash(production(desk)))
    assert answer(desk, other, client="site-10").state is RequestState.PURGED
    with refused("forgotten", says="forgotten already"):
        receive(desk, document(TARGET, 2), module_hash(production(desk)))  # about the model before it left
    case = ask(3)
    assert case.state is RequestState.PURGED
    assert case.last("admitted").fields["retained"] == 2  # site-10 stays away
    with refused("forgotten", says="forgotten already"):
        ask(4)
