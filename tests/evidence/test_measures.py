"""Measures beside the verdict, and what is said about them."""

from __future__ import annotations

import pytest

from fedunlearn.evidence import TailCounts, client_influence, newcombe, rates, tail_rate, wilson
from fedunlearn.evidence.influence import influence_sentence
from fedunlearn.evidence.measures import (
    rate_sentence,
    tail_sentence,
)


def test_rates_have_their_gap_to_retraining() -> None:
    found = rates({"model": (30, 100), "retrained": (10, 100), "original": (90, 100)})
    assert found["model"].gap == pytest.approx(0.2)
    assert found["model"].gap_interval == newcombe(30, 100, 10, 100)
    assert found["original"].interval == wilson(90, 100)
    assert found["retrained"].gap is found["retrained"].gap_interval is None
    assert rates({"model": (30, 100)})["model"].gap is None
    assert rate_sentence("it succeeds on", "unseen", found) == (
        "it succeeds on 0.300 of 100 unseen examples (95 % interval [0.219, 0.396]), after retraining on "
        "0.100; the difference is +0.200 ([0.090, 0.306])."
    )


def test_rates_in_the_tail_are_told_by_model() -> None:
    found = {name: tail_rate(TailCounts(hits, 500, 10, 1000)) for name, hits in (("model", 40), ("again", 5))}
    told = tail_sentence("1 %", found)
    assert told.startswith("at 1 % false alarms an attack finds 0.080 of them in the model")
    assert told.endswith("0.010 after another retraining.")


def influenced(**values: float) -> dict:
    return client_influence(values, dict.fromkeys(values, 0.8), dict.fromkeys(values, 0.81))


def test_those_who_were_harmed_are_named_first() -> None:
    found = influenced(a=0.70, b=0.80, c=0.50, d=0.90, u=0.60)
    assert influence_sentence("accuracy", found, ["u"]).endswith(
        "noise floor of two retrainings, worse than after retraining: c (-0.300), target u (-0.200), "
        "a (-0.100); better than after retraining: d (+0.100)."
    )
    assert influence_sentence("loss", found, ["u"]).endswith(
        "worse than after retraining: d (+0.100); better than after retraining: c (-0.300), "
        "target u (-0.200), a (-0.100)."
    )
    assert "no client differs" in influence_sentence("accuracy", influenced(a=0.80, b=0.81), ["b"])


def test_many_clients_are_counted() -> None:
    found = influenced(**{f"site-{number:02}": 0.5 + number / 1000 for number in range(40)})
    told = influence_sentence("accuracy", found, [])
    assert told.count("site-") == 10
    assert told.endswith("site-09 (-0.291) and 30 others.")
