"""Every measure of an audit reads alike wherever it is shown, and is explained there."""

from __future__ import annotations

from functools import cache

import pytest
from support.audits import TARGET, before, marked, network, retrained

import fedunlearn as fu
from fedunlearn.evidence import Evidence
from fedunlearn.measures.evidence import MEASURES
from fedunlearn.report.account import further_measures, measures
from fedunlearn.report.audits import TABLES
from fedunlearn.report.glossary import glossary


@cache
def evidence() -> Evidence:
    """An audit of ω⁰ with everything that can be measured but canaries."""
    models = {"retrained": retrained(), "original": before()}
    federation = fu.Sequential(network(), marked())
    found = fu.audit(federation, before(), targets=TARGET, again=retrained(4), **models)
    values = found.to_json()
    curves = {"original": 0.1, "model": [0.2, 0.2], "retrained": [1.0, 0.9]}
    values["relearning"] = {"posttraining": curves, "finetuning": curves, "examples": 10}
    values["targets"][TARGET]["canaries"] = {
        "model": {"correct": 30, "guesses": 40, "bound": None, "reverse": None}
    }
    return Evidence.from_json(values)


@pytest.mark.parametrize("key", [key for key in MEASURES if key != "tpr_01"])
def test_a_measure_reads_alike_wherever_it_is_shown(key):
    measure = MEASURES[key]
    values = measure.of(evidence(), TARGET)
    title, text = measure.metric.title, measure.text(values["model"])
    (line,) = [line for line in measures(evidence(), TARGET) if line[0] == title]
    assert line[1] == text
    assert line[-1] == measure.metric.help
    for other in further_measures(evidence(), TARGET):
        assert other[0] != title or other[1].startswith(text)
    columns = {column.key: column for table in TABLES.values() for column in table}
    for name, column in columns.items():
        if name in (f"audit_{key}", f"audit_{key}_gap", f"audit_{key}_floor"):
            assert column.title.startswith(title)
            assert glossary([name])[name] == (column.title, column.help)
            shown = column.cell([evidence()])[0]
            assert name != f"audit_{key}" or shown.split(" / ")[0] == text


def test_a_value_that_is_only_bounded_says_so():
    text = MEASURES["relearn_posttraining"].text
    values = MEASURES["relearn_posttraining"].of(evidence(), TARGET)
    assert [text(values["model"]), text(values["retrained"])] == ["0", "> 1"]


def test_what_a_file_does_not_hold_is_a_dash():
    assert MEASURES["tpr_01"].of(evidence(), TARGET) == {}
    assert MEASURES["tpr_01"].text(None) == "–"
