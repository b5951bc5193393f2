from __future__ import annotations

import base64
import copy
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.codes import refused

from fedunlearn.signing import (
    CLOCK_SKEW,
    ERASURE_REQUEST,
    ErasureRequest,
    Refusal,
    Refused,
    check_request,
    key_id,
    opened,
    request_erasure,
    sign,
    use_nonce,
)
from fedunlearn.signing.keys import ORDERS, read_key

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedunlearn[erasure]'")
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

NOW = 1_800_000_000
MODEL = "ab" * 32
EXPECTED = {"client": "site-3", "federation": "clinics", "model_sha256": MODEL}
forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def pair(made):
    return (
        made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


MADE = {
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p384": ec.generate_private_key(ec.SECP384R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
}
PAIRS = {name: pair(made) for name, made in MADE.items()}
PRIVATE, PUBLIC = PAIRS["p384"]
STRANGER, _ = pair(ec.generate_private_key(ec.SECP384R1()))
every_key = pytest.mark.parametrize("name", sorted(PAIRS))


def request(**changes):
    fields = EXPECTED | {"nonce": "0f" * 16, "issued": NOW, "expires": NOW + 3600, "scope": "client"}
    return fields | changes


def signed(**changes):
    return sign(ERASURE_REQUEST, request(**changes), PRIVATE)


def check(document, public=PUBLIC, now=NOW + 60, **changes):
    return check_request(document, **(EXPECTED | changes), public_key=public, now=now)


def edited(document, **changes):
    return json.dumps(json.loads(document) | changes, sort_keys=True, separators=(",", ":"))


def signature(document, **changes):
    """The document with another keyid or sig."""
    [found] = json.loads(document)["signatures"]
    return edited(document, signatures=[found | changes])


def envelope(body, kind=ERASURE_REQUEST, made=MADE["p384"]):
    """Signs any bytes: what a client can do that does not use ``sign``."""
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(body), body)
    r, s = utils.decode_dss_signature(made.sign(message, ec.ECDSA(hashes.SHA384())))
    low = utils.encode_dss_signature(r, min(s, ORDERS["secp384r1"] - s))
    _, public = pair(made)
    entry = {"keyid": key_id(public), "sig": base64.b64encode(low).decode()}
    return edited("{}", payload=base64.b64encode(body).decode(), payloadType=kind, signatures=[entry])


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# --- keys and round trips


@every_key
def test_round_trip_with_keys_in_pem(name):
    private, public = PAIRS[name]
    payload = {"b": [1, 2.5, None, True], "a": "Δ"}
    document = sign("application/x-test+json", payload, private)
    assert opened(document, "application/x-test+json", public) == payload
    assert opened(document, "application/x-test+json", public.decode()) == payload


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
@pytest.mark.parametrize("form", ["RFC4716", "PKCS8", "PEM"])
@pytest.mark.parametrize(("kind", "bits"), [("ecdsa", 256), ("ecdsa", 384), ("ecdsa", 521), ("ed25519", 256)])
def test_round_trip_with_keys_of_ssh_keygen(kind, bits, form, tmp_path):
    path = tmp_path / "key"
    keygen(path, kind, bits, "-m", form)
    document = request_erasure("site-3", "clinics", MODEL, path, now=NOW)
    line = path.with_suffix(".pub")
    as_registered_in_flower = read_key(line, "public").public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    for public in (line, line.read_text(), line.read_bytes(), as_registered_in_flower):
        assert check(document, public).client == "site-3"
        assert key_id(public) == json.loads(document)["signatures"][0]["keyid"]


def keygen(path, kind, bits, *options, passphrase=""):
    command = ["ssh-keygen", "-q", "-t", kind, "-b", str(bits), "-N", passphrase, "-f", path, *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def test_flower_encodes_keys_as_we_read_them():
    flower = pytest.importorskip("flwr.supercore.primitives.asymmetric")
    private, public = flower.generate_key_pairs()
    document = request_erasure("site-3", "clinics", MODEL, flower.private_key_to_bytes(private), now=NOW)
    assert check(document, flower.public_key_to_bytes(public)).issued == NOW


def test_signature_is_dsse():
    document = json.loads(sign("http://example.com/HelloWorld", {}, PRIVATE))
    message = b"DSSEv1 29 http://example.com/HelloWorld 2 {}"
    [entry] = document["signatures"]
    load_pem_public_key(PUBLIC).verify(base64.b64decode(entry["sig"]), message, ec.ECDSA(hashes.SHA384()))
    der = load_pem_public_key(PUBLIC).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert entry["keyid"] == hashlib.sha256(der).hexdigest()
    assert base64.b64decode(document["payload"]) == b"{}"


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_orders_of_curves(curve):
    # (n − 1)·G = −G has the x of G.
    order = ORDERS[curve.name]
    x = [ec.derive_private_key(k, curve).public_key().public_numbers().x for k in (1, order - 1)]
    assert x[0] == x[1]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
@pytest.mark.parametrize("form", ["RFC4716", "PKCS8", "PEM"])
def test_an_encrypted_key_gets_a_sentence(form, tmp_path):
    keygen(tmp_path / "key", "ecdsa", 384, "-m", form, passphrase="correct horse")
    with refused("key", says="encrypted: use a copy without a passphrase"):
        sign("x", {}, tmp_path / "key")


@pytest.mark.parametrize(
    "source",
    [b"", b"\x00\xff" * 40, "no key", "\ud800", PUBLIC[:60], PRIVATE[:60]],
    ids=["empty", "bytes", "text", "surrogate", "half a public key", "half a private key"],
)
def test_what_is_no_key_gets_a_sentence(source):
    with refused("key", says="private key is not a P-256"):
        sign("x", {}, source)
    with refused("key", says="public key is not a P-256"):
        opened("x", "x", source)


def test_unsuitable_keys_get_a_sentence(tmp_path):
    with refused("key", says="private key is not a P-256"):
        sign("x", {}, pair(ec.generate_private_key(ec.SECP256K1()))[0])
    with refused("key", says=r"cannot read the private key .*nowhere: No such file"):
        sign("x", {}, tmp_path / "nowhere")
    (tmp_path / "bad").write_text("no key")
    with refused("key", says=r"bad: the private key is not a P-256"):
        sign("x", {}, tmp_path / "bad")
    with refused("invalid", says="must be a Path, str or bytes"):
        opened("x", "x", None)
    with refused("key", says="private key is not a P-256"):
        sign("x", {}, PUBLIC)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with refused("package", says=r"pip install 'fedunlearn\[erasure\]'"):
        sign("x", {}, PRIVATE)


@pytest.mark.parametrize(
    "payload", [{"a": float("nan")}, {"a": object()}, {9: 1, 10: 2}, {1: 1, "b": 2}, {"a": 10**5000}]
)
def test_only_plain_json_is_signed(payload):
    with refused("invalid", says="not plain JSON"):
        sign("x", payload, PRIVATE)


def test_only_what_can_be_opened_is_signed():
    with refused("invalid", says="exceeds 1048576"):
        sign("x", {"a": "a" * (1 << 20)}, PRIVATE)
    with refused("invalid", says="a media type in ASCII"):
        sign("Δ", {}, PRIVATE)


# --- requests


@every_key
def test_a_request_is_accepted(name):
    private, public = PAIRS[name]
    document = request_erasure("site-3", "clinics", MODEL, private, valid_hours=2, now=NOW)
    found = check(document, public)
    assert found == ErasureRequest("site-3", "clinics", MODEL, found.nonce, NOW, NOW + 7200)
    assert check(document, public, now=NOW + 7199) == found
    assert check(document, public, now=NOW - CLOCK_SKEW) == found


def test_a_request_is_valid_for_a_day_from_now():
    document = request_erasure("site-3", "clinics", MODEL, PRIVATE)
    found = check_request(document, **EXPECTED, public_key=PUBLIC)
    assert found.expires - found.issued == 24 * 3600
    assert document != request_erasure("site-3", "clinics", MODEL, PRIVATE)


def test_the_longest_names_fit():
    longest = EXPECTED | {"client": "𝔸" * 200, "federation": "𝔹" * 200}
    document = request_erasure(*longest.values(), PAIRS["p521"][0], now=NOW)
    assert check(document, PAIRS["p521"][1], **longest).client == "𝔸" * 200


@pytest.mark.parametrize(
    "changes",
    [
        {"client": ""},
        {"client": 3},
        {"federation": "a\nb"},
        {"model_sha256": "AB" * 32},
        {"client": "a" * 201},
    ],
)
def test_bad_arguments_get_a_sentence(changes):
    with refused("bad-fields", says="it must be"):
        request_erasure(*(EXPECTED | changes).values(), PRIVATE)


@pytest.mark.parametrize("hours", [0, -1, 31 * 24 + 1, float("nan"), float("inf"), "1"])
def test_bad_lifetimes_get_a_sentence(hours):
    with refused("invalid", says=r"valid_hours = .* 31 days"):
        request_erasure(*EXPECTED.values(), PRIVATE, valid_hours=hours)


# --- forgeries

DOCUMENT = signed()
OTHER = sign(ERASURE_REQUEST, request(expires=NOW + 7200), PRIVATE)
ENTRY = json.loads(DOCUMENT)["signatures"][0]
STOLEN = sign(ERASURE_REQUEST, request(), STRANGER)


def high_s():
    r, s = utils.decode_dss_signature(base64.b64decode(ENTRY["sig"]))
    return base64.b64encode(utils.encode_dss_signature(r, ORDERS["secp384r1"] - s)).decode()


def later(**changes):
    return edited(DOCUMENT, payload=base64.b64encode(canonical(request(**changes))).decode())


def body(**changes):
    return canonical(request(**changes)).decode()


FORGERIES = {
    # The envelope.
    "empty": ("", "malformed"),
    "not text": (None, "malformed"),
    "bytes": (DOCUMENT.encode(), "malformed"),
    "a number": (17, "malformed"),
    "a parsed envelope": (json.loads(DOCUMENT), "malformed"),
    "not JSON": (DOCUMENT[:-1], "malformed"),
    "a JSON list": ("[]", "malformed"),
    "a JSON string": ('"payload"', "malformed"),
    "a space": (DOCUMENT + " ", "malformed"),
    "keys in another order": (json.dumps(dict(reversed(json.loads(DOCUMENT).items()))), "malformed"),
    "a duplicate key": (DOCUMENT.replace('{"payload"', '{"payload":"","payload"', 1), "malformed"),
    "an unknown key": (edited(DOCUMENT, extra=1), "malformed"),
    "no payload": (edited("{}", payloadType=ERASURE_REQUEST, signatures=[ENTRY]), "malformed"),
    "not base64": (edited(DOCUMENT, payload="*"), "malformed"),
    "base64 without padding": (edited(DOCUMENT, payload="YQ"), "malformed"),
    "base64 with spare bits": (edited(DOCUMENT, payload="YR=="), "malformed"),
    "a list as payload": (edited(DOCUMENT, payload=[]), "malformed"),
    "non-ASCII": (edited(DOCUMENT, payload="Δ").replace("\\u0394", "Δ"), "malformed"),
    "a lone surrogate": (DOCUMENT + "\ud800", "malformed"),
    "nested 1,000 deep": ("[" * 1000 + "]" * 1000, "malformed"),
    "nested 4,000 deep": ("[" * 4000 + "]" * 4000, "malformed"),
    "a huge integer": ("1" * 5000, "malformed"),
    "NaN": ('{"payload":NaN}', "malformed"),
    "9 KB": (DOCUMENT + " " * 8192, "too-large"),
    "1 MB": ("a" * (1 << 20), "too-large"),
    "another payloadType": (edited(DOCUMENT, payloadType="application/vnd.in-toto+json"), "wrong-kind"),
    "signed as another kind": (sign("application/vnd.in-toto+json", request(), PRIVATE), "wrong-kind"),
    "an empty payloadType": (edited(DOCUMENT, payloadType=""), "wrong-kind"),
    "no payloadType": (edited(DOCUMENT, payloadType=None), "malformed"),
    # The signature.
    "a stripped signature": (edited(DOCUMENT, signatures=[]), "not-one-signature"),
    "two signatures": (edited(DOCUMENT, signatures=[ENTRY, ENTRY]), "not-one-signature"),
    "a second signer": (
        edited(DOCUMENT, signatures=[ENTRY, json.loads(STOLEN)["signatures"][0]]),
        "not-one-signature",
    ),
    "signatures of no list": (edited(DOCUMENT, signatures=ENTRY), "malformed"),
    "a signature of no object": (edited(DOCUMENT, signatures=[1]), "malformed"),
    "a signature without keyid": (edited(DOCUMENT, signatures=[{"sig": ENTRY["sig"]}]), "malformed"),
    "a signature with more": (signature(DOCUMENT, more=1), "malformed"),
    "another key": (STOLEN, "unknown-key"),
    "a keyid with line breaks": (signature(DOCUMENT, keyid="a\n" * 999), "unknown-key"),
    "no keyid": (signature(DOCUMENT, keyid=""), "unknown-key"),
    "another key with our keyid": (signature(STOLEN, keyid=ENTRY["keyid"]), "bad-signature"),
    "a swapped signature": (
        signature(DOCUMENT, sig=json.loads(OTHER)["signatures"][0]["sig"]),
        "bad-signature",
    ),
    "an empty signature": (signature(DOCUMENT, sig=""), "bad-signature"),
    "a signature of zeros": (signature(DOCUMENT, sig="MAYCAQACAQA="), "bad-signature"),
    "a signature not in base64": (signature(DOCUMENT, sig="?"), "bad-signature"),
    "a signature with n − s": (signature(DOCUMENT, sig=high_s()), "bad-signature"),
    "a signature with a byte more": (
        signature(DOCUMENT, sig=base64.b64encode(base64.b64decode(ENTRY["sig"]) + b"\0").decode()),
        "bad-signature",
    ),
    "an edited expiry": (later(expires=NOW + 7200), "bad-signature"),
    "an edited client": (later(client="site-4"), "bad-signature"),
    "an edited model": (later(model_sha256="cd" * 32), "bad-signature"),
    "an edited nonce": (later(nonce="00" * 16), "bad-signature"),
    # Payloads that only the client itself can sign.
    "a payload of no object": (envelope(b"[]"), "malformed"),
    "an empty payload": (envelope(b""), "malformed"),
    "a payload with NaN": (envelope(body().replace(str(NOW), "NaN").encode()), "malformed"),
    "a payload with infinity": (envelope(body().replace(str(NOW), "1e999").encode()), "malformed"),
    "a payload with a duplicate key": (
        envelope(body().replace('{"client"', '{"client":"site-4","client"').encode()),
        "malformed",
    ),
    "a payload with a huge integer": (envelope(body().replace(str(NOW), "1" * 4400).encode()), "malformed"),
    "a payload nested 1,000 deep": (envelope(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"), "malformed"),
    "a payload in UTF-16": (envelope(body().encode("utf-16")), "malformed"),
    "a missing field": (
        envelope(canonical({k: v for k, v in request().items() if k != "scope"})),
        "bad-fields",
    ),
    "an unknown field": (signed(extra=1), "bad-fields"),
    "no fields": (envelope(b"{}"), "bad-fields"),
    "another scope": (signed(scope="class"), "bad-fields"),
    "a time of text": (signed(issued=str(NOW)), "bad-fields"),
    "a time of fractions": (signed(issued=NOW + 0.5), "bad-fields"),
    "a time of truth": (signed(issued=True), "bad-fields"),
    "a client of no text": (signed(client=["site-3"]), "bad-fields"),
    "a client with a line break": (signed(client="site-3\n"), "bad-fields"),
    "a short nonce": (signed(nonce="00"), "bad-fields"),
    "a nonce with a path": (signed(nonce="../" * 10 + "ab"), "bad-fields"),
    "a time before 1970": (signed(issued=-1, expires=NOW), "bad-times"),
    "an absurd time": (signed(expires=10**30), "bad-times"),
    "expired when issued": (signed(expires=NOW), "bad-times"),
    "valid for 31 days and a second": (signed(expires=NOW + 31 * 24 * 3600 + 1), "lifetime-too-long"),
    # True requests in the wrong place or at the wrong time.
    "another client": (signed(client="site-4"), "other-client"),
    "part of a client": (signed(client="site-3#forget"), "other-client"),
    "another federation": (signed(federation="banks"), "other-federation"),
    "another model": (signed(model_sha256="cd" * 32), "other-model"),
    "expired": (signed(issued=NOW - 3600, expires=NOW + 60), "expired"),
    "from the future": (signed(issued=NOW + 61 + CLOCK_SKEW), "not-yet-valid"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(name):
    document, reason = FORGERIES[name]
    with pytest.raises(Refused) as caught:
        check(document)
    assert caught.value.reason == reason
    sentence = str(caught.value)
    assert 0 < len(sentence) < 400
    assert "\n" not in sentence


def test_the_document_behind_the_forgeries_is_accepted():
    assert check(DOCUMENT) == ErasureRequest(**request())
    assert check(envelope(canonical(request()))) == ErasureRequest(**request())


def test_forgeries_cover_every_reason():
    at_a_desk = {Refusal.REPLAYED, Refusal.STILL_OPEN, Refusal.FORGOTTEN}
    assert {reason for _, reason in FORGERIES.values()} == set(Refusal) - at_a_desk


def test_a_clock_that_is_no_number_accepts_nothing():
    with refused("not-yet-valid"):
        check(DOCUMENT, now=float("nan"))


@every_key
def test_another_kind_of_key_opens_nothing(name):
    if name != "p384":
        with refused("unknown-key") as caught:
            check(DOCUMENT, PAIRS[name][1])
        assert caught.value.reason is Refusal.UNKNOWN_KEY


@every_key
def test_a_flipped_bit_is_refused(name):
    private, public = PAIRS[name]
    document = sign(ERASURE_REQUEST, request(), private)
    entry = json.loads(document)["signatures"][0]
    payload, sig = base64.b64decode(json.loads(document)["payload"]), base64.b64decode(entry["sig"])
    for position in range(0, len(payload), 5):
        with refused("bad-signature") as caught:
            check(edited(document, payload=flipped(payload, position)), public)
        assert caught.value.reason is Refusal.BAD_SIGNATURE
    for position in range(0, len(sig), 2):
        with refused("bad-signature") as caught:
            check(signature(document, sig=flipped(sig, position)), public)
        assert caught.value.reason is Refusal.BAD_SIGNATURE
    for position in range(0, len(document), 5):
        character = chr(ord(document[position]) ^ 1 << position % 7)
        with refused("bad-signature", "malformed", "unknown-key", "wrong-kind"):
            check(document[:position] + character + document[position + 1 :], public)


def flipped(content, position):
    changed = bytearray(content)
    changed[position] ^= 1 << position % 8
    return base64.b64encode(changed).decode()


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(["p256", "ed25519"]))
def test_any_edit_is_refused(data, name):
    document = ENVELOPES[name]
    start = data.draw(st.integers(0, len(document)))
    end = data.draw(st.integers(start, min(len(document), start + 40)))
    middle = data.draw(
        st.one_of(st.text(max_size=8), st.sampled_from([document[:20], document[start:end] * 2]))
    )
    changed = document[:start] + middle + document[end:]
    assume(changed != document)
    with refused("bad-signature", "malformed", "unknown-key", "wrong-kind"):
        check(changed, PAIRS[name][1])


ENVELOPES = {name: sign(ERASURE_REQUEST, request(), PAIRS[name][0]) for name in ("p256", "ed25519")}


@settings(max_examples=50, deadline=None)
@given(
    payload=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_json_comes_back(payload):
    private, public = PAIRS["ed25519"]
    assert opened(sign("x", {"a": payload}, private), "x", public) == {"a": payload}


@pytest.mark.wording
def test_a_refusal_can_be_copied():  # and so travels between processes
    copied = copy.copy(Refused(Refusal.EXPIRED, "too late"))
    assert (copied.reason, str(copied)) == (Refusal.EXPIRED, "too late")


# --- nonces

REQUEST = ErasureRequest(**request())


def refused_as_replayed(folder, asked, run):
    with pytest.raises(Refused) as caught:
        use_nonce(folder, asked, run)
    return caught.value.reason is Refusal.REPLAYED


def test_a_nonce_belongs_to_the_run_that_used_it_first(tmp_path):
    folder = tmp_path / "deep" / "nonces"
    use_nonce(folder, REQUEST, "run-1")
    use_nonce(folder, REQUEST, "run-1")
    assert refused_as_replayed(folder, REQUEST, "run-2")
    assert refused_as_replayed(folder, REQUEST, "run-")
    # The same nonce in another document is used as well.
    assert refused_as_replayed(folder, replace(REQUEST, expires=NOW + 7200), "run-2")
    use_nonce(folder, replace(REQUEST, nonce="00" * 16), "run-2")
    assert len(list(folder.iterdir())) == 2


def test_a_client_cannot_use_up_the_nonce_of_another(tmp_path):
    use_nonce(tmp_path, replace(REQUEST, client="site-4"), "run-1")
    use_nonce(tmp_path, REQUEST, "run-2")


def test_a_damaged_claim_stays_claimed(tmp_path):
    use_nonce(tmp_path, REQUEST, "run-1")
    [claim] = tmp_path.iterdir()
    claim.write_bytes(b"")
    assert refused_as_replayed(tmp_path, REQUEST, "run-1")


def test_claims_name_no_client(tmp_path):
    use_nonce(tmp_path, REQUEST, "run-1")
    [claim] = tmp_path.iterdir()
    assert "site-3" not in claim.name + claim.read_text()


@pytest.mark.parametrize("run", ["", "a" * 201, None])
def test_a_run_needs_a_name(tmp_path, run):
    with refused("invalid", says="run = "):
        use_nonce(tmp_path, REQUEST, run)


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with refused("file", says=r"cannot record the request in .*; choose a folder"):
        use_nonce(tmp_path / "file", REQUEST, "run-1")


def race(folder, run, barrier, results):
    barrier.wait()
    try:
        use_nonce(folder, REQUEST, run)
        results.put((run, "used"))
    except Refused as error:
        results.put((run, error.reason.value))


@forking
def test_one_of_many_processes_wins(tmp_path):
    fork = multiprocessing.get_context("fork")
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        barrier, results = fork.Barrier(8), fork.Queue()
        # Four runs, each in two processes.
        runs = [f"run-{number % 4}" for number in range(8)]
        processes = [fork.Process(target=race, args=(folder, run, barrier, results)) for run in runs]
        for process in processes:
            process.start()
        found = [results.get(timeout=30) for _ in processes]
        for process in processes:
            process.join(30)
        winners = {run for run, result in found if result == "used"}
        assert len(winners) == 1
        assert sorted(result for _, result in found) == ["replayed"] * 6 + ["used"] * 2
        assert len(list(folder.iterdir())) == 1


def killed(folder, run, name, after):
    """Uses the nonce in a process that is killed before or after a call of the operating system."""
    child = os.fork()
    if child == 0:
        try:
            call = getattr(os, name)

            def die(*arguments, **options):
                if after:
                    call(*arguments, **options)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(os, name, die)
            use_nonce(folder, REQUEST, run)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@forking
@pytest.mark.parametrize(("name", "after"), [("fsync", False), ("fsync", True), ("link", False)])
def test_a_kill_before_the_claim_leaves_the_nonce_free(tmp_path, name, after):
    killed(tmp_path, "run-1", name, after)
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    use_nonce(tmp_path, REQUEST, "run-2")
    assert refused_as_replayed(tmp_path, REQUEST, "run-1")


@forking
@pytest.mark.parametrize(("name", "after"), [("link", True), ("unlink", False), ("close", False)])
def test_a_kill_after_the_claim_keeps_it(tmp_path, name, after):
    killed(tmp_path, "run-1", name, after)
    assert refused_as_replayed(tmp_path, REQUEST, "run-2")
    use_nonce(tmp_path, REQUEST, "run-1")


def test_the_request_is_a_plain_document():
    assert opened(DOCUMENT, ERASURE_REQUEST, PUBLIC) == asdict(REQUEST)
