"""A9: the leak scanner finds every planted secret, and none where there is none."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import json
import zipfile
from collections.abc import Callable
from urllib.parse import quote

import numpy as np
import pytest
import torch
from safetensors.torch import save
from support.audits import SITES, SIZE, TARGET, before, network, retrained, world
from support.certificates import canonical, certified
from support.leaks import Secrets, scan
from torch.nn.functional import cross_entropy

import fedunlearn as fu
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import load
from fedunlearn.erasure.certificate import issue
from fedunlearn.erasure.certificate_page import certificate_page
from fedunlearn.erasure.evidence_entries import evidence_entries
from fedunlearn.erasure.predicate import Claimed, Evidence
from fedunlearn.erasure.vocabulary import EndState, Grade
from fedunlearn.signing import key_id, sign

NAME = "clinic-north-3"
COUNT = 6173
MODEL = torch.randn(400, generator=generator("leaks", "model")).numpy()
LOSSES = torch.rand(150, generator=generator("leaks", "losses"), dtype=torch.float64).numpy() * 3
SECRETS = Secrets(
    names=(NAME, "client-3"),
    arrays={"model before": MODEL},
    losses={"losses": LOSSES},
    counts={"examples": COUNT},
)

NAMES: dict[str, Callable[[], bytes]] = {
    "plain": NAME.encode,
    "in capitals": NAME.upper().encode,
    "in a word": f"audit_of_{NAME}_2".encode,
    "escaped": lambda: "".join(f"\\u{ord(letter):04x}" for letter in NAME).encode(),
    "entities": lambda: "".join(f"&#{ord(letter)};" for letter in NAME).encode(),
    "percent": lambda: "".join(f"%{ord(letter):02X}" for letter in NAME).encode(),
    "base64": lambda: base64.b64encode(NAME.encode()),
    "base64 without padding": lambda: base64.b64encode(NAME.encode()).rstrip(b"="),
    "base64 behind letters": lambda: b"key" + base64.b64encode(NAME.encode()),
    "hexadecimal": NAME.encode().hex().encode,
    "SHA-256": lambda: hashlib.sha256(NAME.encode()).hexdigest().encode(),
    "SHA-1, capitals": lambda: hashlib.sha1(NAME.encode()).hexdigest().upper().encode(),  # noqa: S324
    "base64 of JSON": lambda: base64.b64encode(json.dumps({"client": NAME, "n": 1}).encode()),
}
PART = MODEL[100:130]
ARRAYS: dict[str, Callable[[], bytes]] = {
    "base64": lambda: base64.b64encode(PART.tobytes()),
    "base64 for addresses": lambda: base64.urlsafe_b64encode(PART.tobytes()),
    "base64 in lines": lambda: base64.encodebytes(PART.tobytes()),
    "base64 of float64": lambda: base64.b64encode(PART.astype(np.float64).tobytes()),
    "base64 of big-endian": lambda: base64.b64encode(PART.astype(">f4").tobytes()),
    "base64 from the middle of a number": lambda: base64.b64encode(PART.tobytes()[3:]),
    "six numbers": lambda: base64.b64encode(PART[:6].tobytes()),
    "hexadecimal": lambda: PART.tobytes().hex().encode(),
    "hexadecimal with colons": lambda: PART.tobytes().hex(":").encode(),
    "JSON": lambda: json.dumps(PART.tolist()).encode(),
    "JSON of float64": lambda: json.dumps(PART.astype(np.float64).tolist()).encode(),
    "eight digits": lambda: " ".join(f"{value:.8g}" for value in PART).encode(),
    "four digits": lambda: ",".join(f"{value:.4g}" for value in PART[:8]).encode(),
    "powers of ten": lambda: ";".join(f"{value:.5e}" for value in PART[:8]).encode(),
    "typographic minus": lambda: " ".join(f"{value:.4f}" for value in PART).replace("-", "−").encode(),
}
RAW: dict[str, Callable[[], bytes]] = {
    "float32": PART.tobytes,
    "float64": lambda: PART.astype(np.float64).tobytes(),
    "big-endian": lambda: PART.astype(">f4").tobytes(),
    "float16": lambda: PART.astype(np.float16).tobytes(),
    "from the middle of a number": lambda: PART.tobytes()[1:],
    "UTF-16": lambda: NAME.encode("utf-16-le"),
}
LOST: dict[str, Callable[[], bytes]] = {
    "one": lambda: repr(float(LOSSES[7])).encode(),
    "one, six digits": lambda: f"{LOSSES[10]:.6g}".encode(),
    "one, eight digits": lambda: f"{LOSSES[11]:.8g}".encode(),
    "one, float32 in between": lambda: repr(float(np.float32(LOSSES[12]))).encode(),
    "JSON": lambda: json.dumps(LOSSES[:20].tolist()).encode(),
    "four digits": lambda: json.dumps([round(value, 4) for value in LOSSES[20:28].tolist()]).encode(),
    "base64": lambda: base64.b64encode(LOSSES[:20].tobytes()),
    "base64 of float32": lambda: base64.b64encode(LOSSES[:20].astype(np.float32).tobytes()),
    "sorted": lambda: json.dumps(sorted(LOSSES.tolist())[:5]).encode(),
}
COUNTS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: b"6173",
    "comma": lambda: b"6,173",
    "float": lambda: b"6173.0",
    "base64": lambda: base64.b64encode(b'{"n": 6173}'),
}


def archive(snippet: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("notes.txt", b"see " + snippet + b" there")
    return held.getvalue()


def envelope(snippet: bytes) -> bytes:
    payload = {"event": "round", "detail": snippet.decode(), "number": 12}
    return sign("application/x-test+json", payload, PRIVATE).encode()


PRIVATE = certified.__globals__["keys"](5)[0]
FILES: dict[str, Callable[[bytes], bytes]] = {
    "run.log": lambda snippet: b"round 1 done\nvalue " + snippet + b" after\nround 2 done\n",
    "outcome.json": lambda snippet: json.dumps({"a": [1, {"b": f"x {snippet.decode()} y"}]}).encode(),
    "ledger.jsonl": lambda snippet: (
        b'{"number":1}\n' + canonical({"number": 2, "text": snippet.decode()}) + b"\n"
    ),
    "certificate.json": envelope,
    "page.html": lambda snippet: b"<p>" + html.escape(snippet.decode()).encode() + b"</p>",
    "link.html": lambda snippet: (
        b'<a href="data:application/json;base64,' + base64.b64encode(envelope(snippet)) + b'">Save</a>'
    ),
    "escaped.html": lambda snippet: b'<a href="?q=' + quote(snippet).encode() + b'">see</a>',
    "log.gz": lambda snippet: gzip.compress(b"value " + snippet + b" after"),
    "archive.zip": archive,
    "model.safetensors": lambda snippet: save({"w": torch.zeros(8)}, {"note": snippet.decode()}),
}
BINARY: dict[str, Callable[[bytes], bytes]] = {
    "memory.bin": lambda snippet: bytes(37) + snippet + bytes(20),
    "aligned.bin": lambda snippet: bytes(64) + snippet,
    "memory.gz": lambda snippet: gzip.compress(b"x" + snippet),
    "inner.json": lambda snippet: json.dumps({"blob": base64.b64encode(b"ab" + snippet).decode()}).encode(),
}
KINDS = {NAME: NAMES, "model before": ARRAYS, "losses": LOST, "examples": COUNTS}
PLANTINGS = [
    (secret, encoding, file, FILES[file], encoded)
    for secret, encodings in KINDS.items()
    for encoding, encoded in encodings.items()
    for file in FILES
] + [
    (NAME if encoding == "UTF-16" else "model before", encoding, file, BINARY[file], encoded)
    for encoding, encoded in RAW.items()
    for file in BINARY
]


def test_all_planted_secrets_are_found(tmp_path):
    missed = []
    for number, (secret, encoding, file, wrap, encoded) in enumerate(PLANTINGS):
        folder = tmp_path / str(number) / "requests"
        folder.mkdir(parents=True)
        (folder / file).write_bytes(wrap(encoded()))
        found = {(leak.file, leak.secret) for leak in scan(folder.parent, SECRETS)}
        if found != {(f"requests/{file}", secret)}:
            missed.append((secret, encoding, file, sorted(found)))
    print(f"A9: {len(PLANTINGS) - len(missed)} of {len(PLANTINGS)} planted secrets are found")
    assert len(PLANTINGS) >= 50
    assert missed == []


def test_what_only_looks_like_a_secret_is_none(tmp_path):
    other = torch.randn(4000, generator=generator("leaks", "another")).numpy()
    near = {"names": ["client-30", "my-client-31", "clinic-north-35"], "n": [61730, 16173, 617, 6.173]}
    (tmp_path / "near.json").write_text(json.dumps(near))
    (tmp_path / "other.json").write_text(json.dumps(other.tolist()))
    (tmp_path / "other.bin").write_bytes(other.tobytes() + bytes(4096) + np.ones(64, np.float32).tobytes())
    (tmp_path / "many.json").write_text(json.dumps([round(abs(float(value)), 6) for value in other]))
    (tmp_path / "few.json").write_text(json.dumps([round(value, 1) for value in LOSSES.tolist()]))
    (tmp_path / "digests.txt").write_text(
        "\n".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(500))
    )
    assert scan(tmp_path, SECRETS) == []


def test_names_of_files_are_looked_at(tmp_path):
    (tmp_path / f"{NAME}.txt").write_text("nothing")
    [leak] = scan(tmp_path, SECRETS)
    assert leak.way == "name of the file"


def test_common_numbers_are_refused(tmp_path):
    (tmp_path / "x").write_text("x")
    with pytest.raises(AssertionError, match="too common"):
        scan(tmp_path, Secrets(counts={"examples": 12}))
    with pytest.raises(AssertionError, match="too short"):
        scan(tmp_path, Secrets(arrays={"bias": [1.0]}))


@pytest.fixture(scope="module")
def real():
    """The losses of the target, and the audit that clients made with them."""
    federation, model = fu.Sequential(network(), world()), network()
    load(model, retrained(20))
    with torch.no_grad():
        examples = world()[TARGET].train
        losses = cross_entropy(model.eval()(examples.x), examples.y, reduction="none")
    found = fu.audit(
        federation,
        retrained(20),
        targets=TARGET,
        retrained=retrained(),
        original=before(),
        again=retrained(4),
    )
    return found, losses


def test_a_certificate_of_a_real_audit_leaks_nothing(tmp_path, real):
    audit, losses = real
    made = certified(tmp_path / "made")
    entries, untested = evidence_entries(audit)
    section = Evidence(grade=Grade.G1, entries=entries, not_tested=untested)
    stated = made.predicate.model_copy(
        update={"evidence": section, "claim": Claimed.of(EndState.CERTIFIED, section)}
    )
    document = issue(stated, made.private)
    place = tmp_path / "published"
    place.mkdir()
    (place / "certificate.json").write_text(document)
    page = certificate_page(stated, key_id(made.public), document)
    (place / "certificate.html").write_text(page, encoding="utf-8")
    secrets = Secrets(
        names=SITES,
        arrays={"model before": before().params, "examples": world()[TARGET].train.x},
        losses={"losses": losses},
        counts={"examples": SIZE},
    )
    assert scan(place, secrets) == []
    (place / "evidence.json").write_text(json.dumps(audit.to_json()))
    assert {leak.secret for leak in scan(place, secrets)} >= {*SITES, "examples"}
