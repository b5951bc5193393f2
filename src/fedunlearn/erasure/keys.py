"""A key per request: what is encrypted with it is erased with it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from ..core import FedUnlearnError
from ..core.files import sync_folder
from ..runs import write
from ..runs.files import SEALED, explained

MAGIC = SEALED + b" 1\n"
SEGMENT = 1 << 26
"""Bytes that are encrypted at a time: AES-GCM takes 2 GiB at most."""


class Key:
    """A symmetric key with which a request's models are encrypted (AES-256-GCM) and its client is named."""

    def __init__(self, secret: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise FedUnlearnError(
                "encryption needs cryptography: pip install 'fedunlearn[erasure]'", code="package"
            ) from None
        self._secret = secret
        self._cipher = AESGCM(self._derived(b"encryption"))

    @property
    def id(self) -> str:
        """A digest by which a certificate names the key."""
        return hashlib.sha256(b"fedunlearn key id\n" + self._secret).hexdigest()

    def pseudonym(self, name: str) -> str:
        """Return a pseudonym for a name, which cannot be computed without the key."""
        return hmac.new(self._derived(b"pseudonyms"), name.encode(), hashlib.sha256).hexdigest()[:32]

    def _derived(self, purpose: bytes) -> bytes:
        """A key for one purpose: what one of them reveals says nothing about the other."""
        return hmac.new(self._secret, b"fedunlearn " + purpose, hashlib.sha256).digest()

    def seal(self, content: bytes) -> bytes:
        """Encrypt in segments, each bound to its place and the last one marked: none can go unnoticed."""
        prefix = secrets.token_bytes(7)
        starts = range(0, max(1, len(content)), SEGMENT)
        sealed = [
            self._cipher.encrypt(
                _nonce(prefix, number, last=number == len(starts) - 1),
                content[start : start + SEGMENT],
                MAGIC,
            )
            for number, start in enumerate(starts)
        ]
        return b"".join([MAGIC, prefix, *sealed])

    def open(self, content: bytes) -> bytes:
        """Decrypt what ``seal`` made with this key; refuse anything else."""
        from cryptography.exceptions import InvalidTag

        body = content[len(MAGIC) + 7 :]
        prefix = content[len(MAGIC) : len(MAGIC) + 7]
        starts = range(0, max(1, len(body)), SEGMENT + 16)
        try:
            if not content.startswith(MAGIC) or len(body) < 16:
                raise InvalidTag
            return b"".join(
                self._cipher.decrypt(
                    _nonce(prefix, number, last=number == len(starts) - 1),
                    body[start : start + SEGMENT + 16],
                    MAGIC,
                )
                for number, start in enumerate(starts)
            )
        except InvalidTag:
            raise FedUnlearnError(
                "the encrypted file is damaged, or was encrypted with another key: restore it from a copy",
                code="damaged",
            ) from None


def _nonce(prefix: bytes, number: int, *, last: bool) -> bytes:
    return prefix + number.to_bytes(4, "big") + bytes([last])


def key_in(path: Path) -> Key:
    """Return the key in a file; make one if there is none."""
    if not path.exists():
        write(path, secrets.token_bytes(32), private=True)
    return read_key(path)


def read_key(path: Path) -> Key:
    """Return the key in a file; refuse one that was destroyed."""
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        raise FedUnlearnError(
            f"the key {path.name} is gone, so what was encrypted with it cannot be read", code="purged"
        ) from None
    except OSError as error:
        raise FedUnlearnError(f"cannot read the key {path}: {error.strerror or error}", code="key") from None
    if len(secret) != 32 or not any(secret):
        raise FedUnlearnError(f"the key {path} is damaged: restore it from a copy")
    return Key(secret)


def destroy(path: Path) -> None:
    """Overwrite a key and delete it, durably; a second call after a crash finishes the first."""
    with explained(path):
        if path.exists():
            with path.open("r+b") as file:
                file.write(bytes(32))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
        if path.parent.exists():
            sync_folder(path.parent)
