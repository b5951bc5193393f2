from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest
from support.codes import refused

from fedunlearn.report import read_run
from fedunlearn.report.figures import curves

pytest.importorskip("matplotlib")


def test_the_picture_is_whole_and_nothing_else_is_left(folder):
    before = set(folder.iterdir())
    drawn = curves(read_run(folder))
    assert set(folder.iterdir()) - before == {drawn}
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")


def test_the_same_run_gives_the_same_picture(folder):
    path = curves(read_run(folder))
    first = path.read_bytes()
    assert curves(read_run(folder)).read_bytes() == first


def test_the_picture_names_what_it_shows(folder):
    drawn = curves(read_run(folder)).read_text()
    for words in ("R-Acc", "ASR", "unlearning", "post-training", "round", "worst to best retained client"):
        assert f"<!-- {words} -->" in drawn


def test_a_run_without_backdoor_or_without_rounds_can_be_drawn(folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"asr"', '"forget_acc"'))
    assert "Forget acc" in curves(read_run(folder)).read_text()
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    curves(read_run(folder))


def test_without_matplotlib_one_sentence_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused("invalid", says=r"fedunlearn\[report\]"):
        curves(read_run(folder))
