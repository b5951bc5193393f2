"""Methods of one's own: mistakes of their authors, and one phase without a tuple."""

from __future__ import annotations

import pytest

from fedunlearn import FedUnlearnError, Schedule, method
from fedunlearn.config.options import check_options, phases_of
from fedunlearn.methods.fedavg import Averaging

SHORT = Schedule(3, 0.1, 2, 0.01)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda schedule: [Averaging(1, 0.1)], "returns .*Averaging.*, which is not a phase"),
        (lambda schedule: Averaging(1), "cannot be made: .* missing 1 required positional argument: 'lr'"),
    ],
)
def test_mistakes_in_a_method_are_told_to_its_author(monkeypatch, made, told):
    monkeypatch.setattr(method, "_entries", {**method._entries})
    method("mistaken")(made)
    with pytest.raises(FedUnlearnError, match=f"method 'mistaken' {told}"):
        phases_of("mistaken", SHORT, {})


def test_one_phase_needs_no_tuple(monkeypatch):
    monkeypatch.setattr(method, "_entries", {**method._entries})
    method("single")(lambda schedule: Averaging(schedule.rounds, 0.1))
    assert phases_of("single", SHORT, {}) == (Averaging(5, 0.1),)


@pytest.mark.wording
def test_a_parameter_without_a_default_is_no_option():
    with pytest.raises(FedUnlearnError, match="give the parameter 'scale' a default value"):
        check_options("method 'mine'", lambda schedule, scale: (), {"scale": 1})
