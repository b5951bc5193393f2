from __future__ import annotations

import struct
import sys
import zlib
from xml.etree import ElementTree

import pytest

from fedunlearn.core import FedUnlearnError
from fedunlearn.report import read_run
from fedunlearn.report.figures import curves

pytest.importorskip("matplotlib")


def test_svg_and_png_are_whole_and_nothing_else_is_left(folder):
    before = set(folder.iterdir())
    svg, png = curves(read_run(folder))
    assert set(folder.iterdir()) - before == {svg, png}
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    check_png(png.read_bytes())


def test_the_same_run_gives_the_same_picture(folder):
    svg, png = curves(read_run(folder))
    first = svg.read_bytes(), png.read_bytes()
    curves(read_run(folder))
    assert (svg.read_bytes(), png.read_bytes()) == first


def test_the_picture_names_what_it_shows(folder):
    svg, _ = curves(read_run(folder))
    drawn = svg.read_text()
    for words in ("R-Acc", "ASR", "unlearning", "post-training", "round", "worst to best retained client"):
        assert f"<!-- {words} -->" in drawn


def test_a_run_without_backdoor_or_without_rounds_can_be_drawn(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"asr"', '"forget_acc"'))
    assert "Forget acc" in curves(read_run(folder))[0].read_text()
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    curves(read_run(folder))


def test_without_matplotlib_one_sentence_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FedUnlearnError, match=r"fedunlearn\[report\]"):
        curves(read_run(folder))


def check_png(content):
    """Signature, then chunks whose checksums are right, the last of them the end."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, kind = 8, b""
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        body = content[place + 4 : place + 8 + length]
        (checksum,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert zlib.crc32(body) == checksum
        place, kind = place + 12 + length, body[:4]
    assert kind == b"IEND"
