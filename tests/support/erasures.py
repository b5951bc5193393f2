"""Keys and desks for tests of erasure."""

from __future__ import annotations

import hashlib
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@cache
def controller_key(name: str = "controller") -> bytes:
    """A private key that is the same in every run."""
    secret = hashlib.sha256(f"test key of {name}".encode()).digest()
    key = Ed25519PrivateKey.from_private_bytes(secret)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@cache
def public_key(name: str = "controller") -> bytes:
    """The public part of ``controller_key``."""
    secret = hashlib.sha256(f"test key of {name}".encode()).digest()
    key = Ed25519PrivateKey.from_private_bytes(secret).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
