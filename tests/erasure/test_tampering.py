"""A10: whatever is changed in a certificate, its model file or its ledger, nothing of it verifies."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.certificates import Certified, canonical, certified, chained, events
from support.codes import refused

from fedunlearn import FedUnlearnError
from fedunlearn.erasure.certificate import issue, read_certificate, verify
from fedunlearn.erasure.predicate import KIND
from fedunlearn.signing import key_id, sign


@dataclass(frozen=True)
class Handed:
    """What a verifier is given, as bytes."""

    document: bytes
    public: bytes
    model: bytes
    ledger: bytes


Tamper = Callable[[random.Random, Handed, Certified], Handed]
"""From what was handed out and from another certificate of the same or another controller."""


def flipped(random: random.Random, content: bytes) -> bytes:
    place = random.randrange(8 * len(content))
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def cut(random: random.Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content))]


def moved(random: random.Random, content: bytes) -> bytes:
    """Two stretches of it in each other's place."""
    while True:
        a, b, c = sorted(random.sample(range(len(content) + 1), 3))
        changed = content[:a] + content[b:c] + content[a:b] + content[c:]
        if changed != content:
            return changed


def envelope(handed: Handed) -> dict:
    return json.loads(handed.document)


def with_envelope(handed: Handed, **changes) -> Handed:
    return replace(handed, document=canonical(envelope(handed) | changes))


def with_payload(handed: Handed, body: bytes) -> Handed:
    return with_envelope(handed, payload=base64.b64encode(body).decode())


def payload(handed: Handed) -> bytes:
    return base64.b64decode(envelope(handed)["payload"])


def flip_document(random, handed, other):
    return replace(handed, document=flipped(random, handed.document))


def cut_document(random, handed, other):
    return replace(handed, document=cut(random, handed.document))


def move_in_document(random, handed, other):
    return replace(handed, document=moved(random, handed.document))


def extend_document(random, handed, other):
    more = random.choice([b" ", b"\n", b"}", b"\0", handed.document, b"\xef\xbb\xbf"])
    return replace(handed, document=random.choice([handed.document + more, more + handed.document]))


def flip_payload(random, handed, other):
    return with_payload(handed, flipped(random, payload(handed)))


def cut_payload(random, handed, other):
    return with_payload(handed, cut(random, payload(handed)))


def leaves(value) -> Iterator[tuple[dict | list, str | int]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        if isinstance(value[key], dict | list):
            yield from leaves(value[key])
        yield value, key


def edit_payload(random, handed, other):
    """One value of the statement is another one, or missing."""
    statement = json.loads(payload(handed))
    holder, key = random.choice(list(leaves(statement)))
    old = holder[key]
    if random.random() < 0.3 or isinstance(old, dict | list):
        del holder[key]
    elif isinstance(old, bool):
        holder[key] = not old
    elif isinstance(old, str):
        holder[key] = old[:-1] + ("0" if old[-1:] != "0" else "1")
    else:
        holder[key] = old + 1
    return with_payload(handed, canonical(statement))


def reencode_payload(random, handed, other):
    """The same values, written otherwise."""
    statement = json.loads(payload(handed))
    written = random.choice(
        [
            json.dumps(statement, indent=random.randrange(5)),
            json.dumps(dict(random.sample(list(statement.items()), len(statement))), separators=(",", ": ")),
            json.dumps(statement, sort_keys=True),
            payload(handed).decode().replace("a", "\\u0061", random.randrange(1, 50)),
            payload(handed).decode() + " " * random.randrange(1, 9),
            payload(handed).decode().replace('{"', '{"_type":"x","', 1),
        ]
    )
    return with_payload(handed, written.encode())


def reencode_base64(random, handed, other):
    text = envelope(handed)["payload"]
    place = random.randrange(len(text))
    written = random.choice(
        [
            text[:place] + random.choice("\n \t\r") + text[place:],
            text.rstrip("=") + "=" * random.randrange(3, 5),
            base64.b32encode(payload(handed)).decode(),
            payload(handed).hex(),
            text[:place] + "-_" + text[place:],
        ]
    )
    return with_envelope(handed, payload=written)


def flip_signature(random, handed, other):
    [found] = envelope(handed)["signatures"]
    changed = base64.b64encode(flipped(random, base64.b64decode(found["sig"]))).decode()
    return with_envelope(handed, signatures=[found | {"sig": changed}])


def swap_signature(random, handed, other):
    """Signatures of another document, none, or too many."""
    [ours], [theirs] = envelope(handed)["signatures"], json.loads(other.document)["signatures"]
    chosen = random.choice(
        [
            [theirs],
            [theirs | {"keyid": ours["keyid"]}],
            [ours | {"keyid": theirs["keyid"]}],
            [ours, ours],
            [ours, theirs],
            [],
            [ours | {"sig": ""}],
            [ours | {"sig": ours["sig"].lower()}],
            [ours | {"keyid": flipped(random, ours["keyid"].encode()).decode(errors="replace")}],
            [ours | {"more": random.randrange(9)}],
        ]
    )
    return with_envelope(handed, signatures=chosen)


def swap_kind(random, handed, other):
    kinds = [KIND.upper(), KIND + " ", "application/json", "", f"x{random.randrange(99)}/{KIND}", KIND[:-1]]
    return with_envelope(handed, payloadType=random.choice(kinds))


def swap_key(random, handed, other):
    return replace(handed, public=other.public)


def swap_payload(random, handed, other):
    return with_envelope(handed, payload=json.loads(other.document)["payload"])


def sign_anew(random, handed, other):
    """Somebody else signs an edited certificate, and may pretend to be the controller."""
    statement = json.loads(payload(edit_payload(random, handed, other)))
    forged = json.loads(sign(KIND, statement, other.private))
    if random.random() < 0.5:
        forged["signatures"][0]["keyid"] = key_id(handed.public)
    return replace(handed, document=canonical(forged))


def flip_model(random, handed, other):
    return replace(handed, model=flipped(random, handed.model))


def cut_model(random, handed, other):
    return replace(handed, model=cut(random, handed.model))


def swap_model(random, handed, other):
    return replace(handed, model=random.choice([other.model.read_bytes(), handed.model + b"\0", b""]))


def flip_ledger(random, handed, other):
    return replace(handed, ledger=flipped(random, handed.ledger))


def cut_ledger(random, handed, other):
    return replace(handed, ledger=cut(random, handed.ledger))


def reorder_ledger(random, handed, other):
    lines = handed.ledger.splitlines(keepends=True)
    while (shuffled := random.sample(lines, len(lines))) == lines:
        pass
    return replace(handed, ledger=b"".join(shuffled))


def remove_from_ledger(random, handed, other):
    lines = handed.ledger.splitlines(keepends=True)
    gone = set(random.sample(range(len(lines)), random.randint(1, len(lines))))
    return replace(handed, ledger=b"".join(line for n, line in enumerate(lines) if n not in gone))


def edit_ledger(random, handed, other):
    """An event says something else: alone, or with a chain that is computed anew behind it."""
    told = events(len(handed.ledger.splitlines()))
    place = random.randrange(len(told))
    told[place] = told[place] | {"time": random.randrange(1 << 31)}
    if random.random() < 0.5:
        return replace(handed, ledger=chained(told))
    lines = handed.ledger.splitlines()
    lines[place] = canonical(json.loads(lines[place]) | told[place])
    return replace(handed, ledger=b"\n".join(lines) + b"\n")


def insert_in_ledger(random, handed, other):
    lines = handed.ledger.splitlines(keepends=True)
    more = random.choice([random.choice(lines), b"\n", b"{}\n", b"null\n", b"x", other.ledger.read_bytes()])
    place = random.randrange(len(lines))
    return replace(handed, ledger=b"".join([*lines[:place], more, *lines[place:]]))


TAMPERINGS: list[Tamper] = [
    flip_document,
    cut_document,
    move_in_document,
    extend_document,
    flip_payload,
    cut_payload,
    edit_payload,
    reencode_payload,
    reencode_base64,
    flip_signature,
    swap_signature,
    swap_kind,
    swap_key,
    swap_payload,
    sign_anew,
    flip_model,
    cut_model,
    swap_model,
    flip_ledger,
    cut_ledger,
    reorder_ledger,
    remove_from_ledger,
    edit_ledger,
    insert_in_ledger,
]


def verifies(folder: Path, handed: Handed) -> bool:
    """What a verifier finds, with files as it was handed them; only a sentence may say no."""
    document, model, ledger = (folder / name for name in ("certificate.json", "model", "ledger.jsonl"))
    for path, content in ((document, handed.document), (model, handed.model), (ledger, handed.ledger)):
        path.write_bytes(content)
    told = ""
    try:
        verify(read_certificate(document), handed.public, model=model, ledger=ledger)
    except FedUnlearnError as refused:
        told = str(refused) or "refused without a word\n"
    assert "\n" not in told
    return not told


def tampered(folder: Path, count: int) -> tuple[Counter[str], list[str]]:
    """Every way in turn; how often each was tried, and which verified."""
    made, other = certified(folder / "ours"), certified(folder / "other", seed=2, late=True)
    handed = Handed(made.document.encode(), made.public, made.model.read_bytes(), made.ledger.read_bytes())
    # Of the same controller, a certificate about another model: as genuine as the one at hand.
    own = replace(other, document=issue(other.predicate, made.private), public=other.public)
    assert verifies(folder, handed)
    assert verify(own.document, made.public, model=own.model)
    tried: Counter[str] = Counter()
    passed = []
    for number in range(count):
        tamper = TAMPERINGS[number % len(TAMPERINGS)]
        generator = random.Random(f"{tamper.__name__} {number}")
        changed = tamper(generator, handed, own if number // len(TAMPERINGS) % 2 else other)
        if changed == handed:  # the key id of another certificate of the same controller
            continue
        tried[tamper.__name__] += 1
        if verifies(folder, changed):
            passed.append(f"{tamper.__name__} {number}")
    assert verifies(folder, handed)
    return tried, passed


def test_tampering_is_noticed(tmp_path):
    tried, passed = tampered(tmp_path, 240)
    assert sum(tried.values()) >= 200
    assert min(tried.values()) >= 8
    assert passed == []


def test_every_region_of_the_document_is_protected(tmp_path):
    """A bit of every eighth byte, in turn; no region is left out."""
    made = certified(tmp_path / "ours")
    content = made.document.encode()
    for place in range(0, len(content), 8):
        changed = bytearray(content)
        changed[place] ^= 1 << (place // 8) % 7  # the eighth bit would make it no text
        with refused("bad-signature", "malformed", "unknown-key", "wrong-kind"):
            verify(bytes(changed).decode(), made.public)


@pytest.mark.chaos
def test_thousands_of_tamperings(tmp_path):
    tried, passed = tampered(tmp_path, 12_000)
    total = sum(tried.values())
    print(f"A10: {len(passed)} of {total:,} verify")
    for kind, count in tried.items():
        print(f"  {kind} {count:,}")
    assert total >= 2_000
    assert passed == []


@pytest.mark.chaos
def test_every_bit_of_the_document(tmp_path):
    made = certified(tmp_path / "ours")
    content, passed = made.document.encode(), 0
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        (tmp_path / "certificate.json").write_bytes(changed)
        try:
            verify(read_certificate(tmp_path / "certificate.json"), made.public)
            passed += 1
        except FedUnlearnError:
            pass
    print(f"A10: {passed} of {8 * len(content):,} documents with one flipped bit verify")
    assert passed == 0
