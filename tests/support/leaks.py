"""A9: a scanner that finds secrets in the files of a folder, whatever they are wrapped in.

It looks for names of clients, arrays (models, updates, data), losses of single examples and exact numbers of
examples: in plain files, compressed ones and archives, and inside base64, hexadecimal digits, JSON, HTML and
percent escapes, which may be nested, as in the payload of a DSSE envelope inside a link of a page.

It does not find what is encrypted, rounded to fewer than three digits, or cut into pieces of fewer than
four numbers.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import ArrayLike, NDArray

DEPTH = 4
"""Wrappings within wrappings that are undone."""
ALONE = 200
"""Bytes from which on what was encoded is looked at by itself: it may be compressed."""
WINDOW = 16
"""Bytes of an array in a row that are a leak."""
NUMBERS = 4
"""Decimal numbers in a row that are a leak."""
DIGITS = 3
"""Significant digits below which a decimal number is too common to count."""
TELLING = 6
"""Significant digits from which on a single loss can be a leak."""
CHANCE = 0.05
"""It is one if chance would give fewer matches than this in all numbers of the file that are as precise."""
TEXT = bytes([9, 10, 13, *range(32, 127)])
LARGEST = 1 << 28
"""Bytes of a file, or of what is decompressed, that are looked at."""


@dataclass(frozen=True)
class Secrets:
    """What must not be found."""

    names: tuple[str, ...] = ()
    arrays: Mapping[str, ArrayLike] = field(default_factory=dict)
    """By title: models, updates or data."""
    losses: Mapping[str, ArrayLike] = field(default_factory=dict)
    """By title: one number for each example; a single one is a leak, too."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """By title; below 100, numbers are too common."""


@dataclass(frozen=True)
class Leak:
    """A secret in a file."""

    file: str
    secret: str
    way: str
    """How it is wrapped, and how it is written."""


def scan(folder: Path, secrets: Secrets) -> list[Leak]:
    """Every secret in every file of a folder, each once for each way, and in the names of files."""
    detectors = list(_detectors(secrets))
    found: dict[Leak, None] = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
        name = path.relative_to(folder).as_posix()
        with path.open("rb") as file:
            content = file.read(LARGEST)
        for way, view in _views(content):
            for secret, detect in detectors:
                if told := detect(view):
                    found[Leak(name, secret, f"{way}{told}")] = None
        for secret, detect in detectors:
            if detect(name.encode()):
                found[Leak(name, secret, "name of the file")] = None
    return list(found)


# --- wrappings


def _views(content: bytes, way: str = "", depth: int = DEPTH) -> Iterator[tuple[str, bytes]]:
    """The content as it is and unwrapped, each once."""
    seen: set[bytes] = set()
    waiting = [(way, content, depth)]
    while waiting:
        way, view, left = waiting.pop()
        key = hashlib.sha256(view).digest()
        if key in seen:
            continue
        seen.add(key)
        yield way, view
        if left:
            waiting += [(f"{way}{name} > ", inner, left - 1) for name, inner in _unwrapped(view)]


def _unwrapped(view: bytes) -> Iterator[tuple[str, bytes]]:
    yield from _decompressed(view)
    for name in ("utf-16-le", "utf-16-be"):
        # Text in which every second byte is zero.
        pattern = rb"(?:[\x20-\x7e]\x00){4,}" if name == "utf-16-le" else rb"(?:\x00[\x20-\x7e]){4,}"
        yield from _gathered(name, (run.decode(name).encode() for run in re.findall(pattern, view)))
    if len(view.translate(None, TEXT)) > len(view) / 20:  # of what is not text, only the text in it
        view = b"\n".join(re.findall(rb"[\t\n\r\x20-\x7e]{6,}", view))
    for text in {view, view.replace(b"-", b"+").replace(b"_", b"/")}:
        runs = re.findall(rb"[A-Za-z0-9+/]{8,}", text)
        for start in range(4):  # what stands before it may have been taken for the beginning of it
            yield from _gathered("base64", (_decoded(run[start:]) for run in runs))
    # Mail and PEM break base64 and hexadecimal digits into lines.
    joined = (
        re.sub(rb"\s+", b"", view) if re.search(rb"[A-Za-z0-9+/]{40}\r?\n[A-Za-z0-9+/]{4}", view) else b""
    )
    for text in filter(None, (view, joined)):
        runs = re.findall(rb"(?:[0-9a-fA-F]{2}[:\s]?){8,}", text)
        for start in range(2):
            yield from _gathered("hexadecimal", (_from_hex(run, start) for run in runs))
    if joined:
        yield "lines", joined
    if b"\\" in view:
        yield "JSON", _unescaped(view)
    if b"&" in view and b";" in view:
        yield "HTML", html.unescape(view.decode(errors="replace")).encode()
    if b"%" in view:
        yield "percent", unquote_to_bytes(view)


def _gathered(way: str, parts: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Long parts by themselves, and all short ones together."""
    short = []
    for part in parts:
        if len(part) < ALONE:
            short.append(part)
        else:
            yield way, part
    yield way, b"\n".join(short)


def _from_hex(run: bytes, start: int) -> bytes:
    digits = re.sub(rb"[:\s]", b"", run)[start:]
    return bytes.fromhex(digits[: len(digits) // 2 * 2].decode())


def _decoded(run: bytes) -> bytes:
    """Base64, with or without its padding."""
    whole = len(run) // 4 * 4
    rest = run[whole:]
    return base64.b64decode(run[:whole] + (rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""))


def _decompressed(view: bytes) -> Iterator[tuple[str, bytes]]:
    if view[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(view)) as file:
                yield "gzip", file.read(LARGEST)
        except (OSError, EOFError, zlib.error):
            pass
    if view[:4] == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(io.BytesIO(view)) as archive:
                for name in archive.namelist():
                    yield "zip", name.encode() + b"\n" + archive.open(name).read(LARGEST)
        except (OSError, RuntimeError, zipfile.BadZipFile, zlib.error):
            pass
    if view[:1] == b"\x78":
        with suppress(zlib.error):
            yield "zlib", zlib.decompressobj().decompress(view, LARGEST)


def _unescaped(view: bytes) -> bytes:
    """JSON's escapes undone, also those of escaped JSON."""

    def character(found: re.Match[bytes]) -> bytes:
        return chr(int(found[1], 16)).encode("utf-8", "surrogatepass")

    once = re.sub(rb"\\u([0-9a-fA-F]{4})", character, view.replace(rb"\\u", rb"\u"))
    return once.replace(rb"\"", b'"').replace(rb"\/", b"/").replace(rb"\n", b"\n")


# --- secrets

Detector = Callable[[bytes], str]
"""How the secret is written in a view, or nothing."""


def _detectors(secrets: Secrets) -> Iterator[tuple[str, Detector]]:
    for name in secrets.names:
        yield name, _name(name)
    for title, count in secrets.counts.items():
        assert count >= 100, f"{title} = {count} is too common a number to look for"
        yield title, _count(count)
    for title, array in (*secrets.arrays.items(), *secrets.losses.items()):
        values = np.asarray(array, dtype=np.float64).ravel()
        assert len(values) >= NUMBERS, f"{title} is too short to look for"
        yield title, _bytes(values)
        yield title, _decimals(values, single=title in secrets.losses)


def _name(name: str) -> Detector:
    """The name in any case, and hashes of it that need no key: whoever guesses the name can check them."""
    spelled = re.compile(rb"(?<![0-9A-Za-z])" + re.escape(name.encode()) + rb"(?![0-9A-Za-z])", re.IGNORECASE)
    digests = [hashlib.new(kind, name.encode()) for kind in ("md5", "sha1", "sha256", "sha512")]

    def detect(view: bytes) -> str:
        if spelled.search(view):
            return "name"
        lower = view.lower()
        for digest in digests:
            if digest.digest() in view or digest.hexdigest().encode() in lower:
                return f"{digest.name} of the name"
        return ""

    return detect


def _count(count: int) -> Detector:
    written = "|".join({str(count), f"{count:,}", f"{count:_}", f"{count:,}".replace(",", " ")})
    number = re.compile(
        rf"(?<![0-9A-Za-z.,_]){'(?:' + written + ')'}(?:\.0+)?(?![0-9A-Za-z_]|[.,][0-9])".encode()
    )
    return lambda view: "number" if number.search(view) else ""


def _bytes(values: NDArray[np.float64]) -> Detector:
    """The array as numbers of a type, of which WINDOW bytes in a row are enough."""
    with np.errstate(over="ignore"):
        written = {kind: values.astype(kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8", "<f2")}
    known = np.sort(np.concatenate([_pairs(content) for content in written.values()]))
    bits = min(26, max(16, 4 + len(known).bit_length()))
    table = np.zeros(1 << bits, dtype=bool)
    table[_mixed(known, bits)] = True

    def ours(pairs: NDArray[np.uint64]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, pairs), len(known) - 1)] == pairs
        return found

    def detect(view: bytes) -> str:
        for start in range(4):
            pairs = _pairs(view[start:])
            hits = table[_mixed(pairs, bits)]
            likely = np.flatnonzero(hits[:-2] & hits[2:])
            for at in likely[ours(pairs[likely]) & ours(pairs[likely + 2])]:
                window = view[start + 4 * at : start + 4 * at + WINDOW]
                # Zeros, and any other number over and over, are everywhere.
                if len({window[n : n + 4] for n in range(0, WINDOW, 4)}) > 2:
                    for kind, content in written.items():
                        if window in content:
                            return f"bytes {kind}"
        return ""

    return detect


def _pairs(content: bytes) -> NDArray[np.uint64]:
    """Every eight bytes in steps of four."""
    words = np.frombuffer(content[: len(content) // 4 * 4], "<u4").astype(np.uint64)
    return words[:-1] | words[1:] << np.uint64(32)


def _mixed(pairs: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return pairs * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - bits)


NUMBER = re.compile(rb"(?:-|\xe2\x88\x92)?\d[\d.]{2,40}(?:[eE][-+]?\d{1,2})?")
"""With three digits at least, or nearly."""


def _decimals(values: NDArray[np.float64], *, single: bool) -> Detector:
    """The array in decimal numbers, as precise as they are written; float64 may have been float32 between."""
    exact = _in_decimals(values, single)
    coarse = _in_decimals(values.astype(np.float32).astype(np.float64), single)
    return lambda view: exact(view) or coarse(view)


def _in_decimals(values: NDArray[np.float64], single: bool) -> Detector:
    order = np.argsort(values)
    ordered = values[order]

    def detect(view: bytes) -> str:
        numbers, errors, digits = _numbers(view)
        low = np.searchsorted(ordered, numbers - errors, side="left")
        high = np.searchsorted(ordered, numbers + errors, side="right")
        matching = (high > low) & (digits >= DIGITS)
        if single and (matching & (digits >= TELLING)).any():
            precise = errors[digits >= TELLING]
            finest = errors[matching & (digits >= TELLING)].min()
            if len(values) * 2 * precise[precise <= finest].sum() < CHANCE * (ordered[-1] - ordered[0]):
                return "number"
        for place in np.flatnonzero(matching):
            row = slice(place, place + NUMBERS)
            if not matching[row].all() or len(set(numbers[row])) < 3 or len(numbers[row]) < NUMBERS:
                continue
            at = order[low[place] : high[place]]
            at = at[at <= len(values) - NUMBERS]
            for step in range(1, NUMBERS):
                at = at[np.abs(values[at + step] - numbers[place + step]) <= errors[place + step]]
            if len(at):
                return "numbers"
        return ""

    return detect


@lru_cache(maxsize=1)
def _numbers(view: bytes) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Decimal numbers in a view: values, a unit of the last digit of each, and significant digits."""
    found = []
    for match in NUMBER.finditer(view):
        text = match[0].removeprefix(b"-").removeprefix(b"\xe2\x88\x92").decode().lower()
        mantissa, _, power = text.partition("e")
        whole, _, fraction = mantissa.rstrip(".").partition(".")
        if "." in fraction:
            continue
        value = float(f"{whole}.{fraction or 0}e{power or 0}")
        unit = 10.0 ** (int(power or 0) - len(fraction))
        negative = match[0][:1] in (b"-", b"\xe2")
        found.append(
            (-value if negative else value, max(unit, 1e-12 * value), len((whole + fraction).lstrip("0")))
        )
    values, errors, digits = np.array(found, dtype=np.float64).reshape(-1, 3).T
    return values, errors, digits.astype(np.int64)
