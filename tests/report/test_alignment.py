"""Courses of runs whose unlearning ended at different rounds."""

import pytest

from fedunlearn.report.alignment import aligned


def test_who_stopped_early_waits_for_the_others():
    early = {0.0: 0.9, 2.0: 0.0, 10.0: 0.8}
    late = {0.0: 0.9, 2.0: 0.8, 5.0: 0.1, 10.0: 0.2, 13.0: 0.3}
    assert aligned([early, late], [2.0, 5.0]) == {
        0.0: [0.9, 0.9],
        2.0: [0.0, 0.8],
        5.0: [0.0, 0.1],
        10.0: [pytest.approx(0.5), 0.2],
        13.0: [0.8, 0.3],
    }


def test_all_wait_for_a_border_that_none_has_reached():
    assert aligned([{0.0: 0.9, 2.0: 0.0, 3.0: 0.5}], [2.0], 50.0) == {
        0.0: [0.9],
        2.0: [0.0],
        50.0: [0.0],
        51.0: [0.5],
    }


def test_several_rounds_for_one_are_drawn_together():
    assert aligned([{0.0: 0.9, 2.0: 0.5, 4.0: 0.0, 5.0: 0.1}], [4.0], 2.0) == {
        0.0: [0.9],
        1.0: [0.5],
        2.0: [0.0],
        3.0: [0.1],
    }


def test_a_run_that_is_still_unlearning_ends_the_course():
    assert list(aligned([{0.0: 1.0, 1.0: 0.5}, {0.0: 1.0, 1.0: 0.6, 3.0: 0.0, 4.0: 0.1}], [1.0, 3.0])) == [
        0.0,
        1.0,
    ]


def test_what_a_run_never_measured_has_no_course():
    assert aligned([{}, {0.0: 1.0}], [0.0, 0.0]) == {}
    assert aligned([], []) == {}
