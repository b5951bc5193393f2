"""Terminals: narrow ones, and those that know no Greek."""

from __future__ import annotations

import re

import pytest

from fedunlearn import method
from fedunlearn.cli.console import out, print_table

TABLE = [
    ["", "ASR after unlearning", "accuracy of the retained", "worst client", "distance", "conflicts"],
    ["fedosd", "0.012 ±0.003", "0.912 ±0.010", "0.871 ±0.020", "1.234", "0.00"],
    ["retrain", "0.001 ±0.001", "0.923 ±0.012", "0.880 ±0.017", "5.432", "-"],
]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_is_split_to_fit_and_no_word_is_broken(width, monkeypatch, capsys):
    monkeypatch.setattr(out, "width", width)
    print_table(TABLE)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert "|" not in shown
    for cell in (cell for line in TABLE for cell in line if cell):
        assert cell in shown
    parts = shown.strip().split("\n\n")
    assert all(re.search(r"^fedosd +\d", part, re.MULTILINE) for part in parts)
    assert (len(parts) == 1) is (width == 120)


def test_an_ascii_terminal_gets_other_characters_instead_of_an_error(fedunlearn, small):
    result = fedunlearn("run", small, "--out", "Übung", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^w0 +\d", result.stdout, re.MULTILINE)
    assert "report  Ubung/report.html" in result.stdout
    refusal = fedunlearn("é", PYTHONIOENCODING="ascii")
    assert refusal.stderr == "fedunlearn [usage]: No such command 'e'.\n"


def test_methods_fit_eighty_columns(here):
    lines = here("methods", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 2 * len([*method]) + 3
