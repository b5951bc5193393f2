"""Keys of signed documents, and the signatures that they make and check.

A key is Ed25519, or ECDSA on P-256, P-384 or P-521 with SHA-384. A ``Path`` names a key file; ``str`` or
``bytes`` is the key itself.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..core.errors import FedUnlearnError, require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
    PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

KeySource: TypeAlias = Path | str | bytes

# The order n of each curve. If (r, s) signs a message, so does (r, n − s): only the smaller s is valid here.
ORDERS = {
    "secp256r1": 2**256 - 2**224 + 2**192 - 0x4319055258E8617B0C46353D039CDAAF,
    "secp384r1": 2**384 - 0x389CB27E0BC8D220A7E5F24DB74F58851313E695333AD68D,
    "secp521r1": 2**521 - 0x5AE79787C40D069948033FEB708F65A2FC44A36477663B851449048E16EC79BF7,
}


def key_id(public_key: KeySource) -> str:
    """SHA-256 of the key's DER SubjectPublicKeyInfo in hex: the keyid of its signatures."""
    return id_of(read_key(public_key, "public"))


def new_key() -> bytes:
    """A new private key (Ed25519, in PEM form)."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_part(private_key: KeySource) -> bytes:
    """The public key of a private one, in PEM form: what others verify its documents with."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public: PublicKey = read_key(private_key, "private").public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def encoded(content: bytes) -> str:
    """Return bytes in base64."""
    return base64.b64encode(content).decode()


def decoded(text: str) -> bytes:
    """Return the bytes in base64 of one spelling; refuse any other with ``ValueError``."""
    content = base64.b64decode(text, validate=True)
    if encoded(content) != text:
        raise ValueError("not canonical")
    return content


def make_signature(key: PrivateKey, message: bytes) -> str:
    """Return the signature of a message."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils

    if isinstance(key, ed25519.Ed25519PrivateKey):
        return encoded(key.sign(message))
    r, s = utils.decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA384())))
    return encoded(utils.encode_dss_signature(r, min(s, ORDERS[key.curve.name] - s)))


def verifies(key: PublicKey, text: str, message: bytes) -> bool:
    """Whether a signature fits a message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils

    try:
        signature = decoded(text)
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
            return True
        key.verify(signature, message, ec.ECDSA(hashes.SHA384()))
        return utils.decode_dss_signature(signature)[1] <= ORDERS[key.curve.name] // 2
    except (InvalidSignature, ValueError):
        return False


def id_of(key: PublicKey) -> str:
    """Return the SHA-256 of a key, as ``key_id``."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_key(source: KeySource, which: Literal["private", "public"]) -> Any:
    """Return the private or public key of a source."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    except ImportError:
        sentence = "signed documents need cryptography: pip install 'fedunlearn[erasure]'"
        raise FedUnlearnError(sentence, code="package") from None
    require(isinstance(source, Path | str | bytes), f"{which} key", type(source), "a Path, str or bytes")
    try:
        content = source.expanduser().read_bytes() if isinstance(source, Path) else source
    except OSError as error:
        raise FedUnlearnError(
            f"cannot read the {which} key {source!s}: {error.strerror or error}", code="key"
        ) from None
    content = content.encode(errors="replace") if isinstance(content, str) else content
    where = f"{source}: " if isinstance(source, Path) else ""
    key: object = None
    try:
        if which == "private":
            openssh = b"BEGIN OPENSSH PRIVATE KEY" in content
            load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
            key = load(content, None)
        elif b"BEGIN PUBLIC KEY" in content:  # Flower's NodeInfo.public_key has this form.
            key = serialization.load_pem_public_key(content)
        else:
            key = serialization.load_ssh_public_key(content)
    except TypeError:
        raise FedUnlearnError(
            f"{where}the private key is encrypted: use a copy without a passphrase", code="key"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        pass
    if which == "public" and b"PRIVATE KEY" in content and b"-----END" in content:
        raise FedUnlearnError(
            f"{where}this is a private key: give the public one, the file that ends in .pub", code="key"
        )
    if isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) and key.curve.name in ORDERS:
        return key
    raise FedUnlearnError(
        f"{where}the {which} key is not a P-256, P-384, P-521 or Ed25519 key in OpenSSH or PEM form; "
        "give the right file, or make a key with ssh-keygen -t ecdsa -b 384",
        code="key",
    )
