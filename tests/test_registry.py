from __future__ import annotations

import pytest

from fedunlearn import FedUnlearnError, method, objective
from fedunlearn.core.registry import Registry, did_you_mean


def test_a_name_close_to_a_known_one_is_suggested():
    with pytest.raises(FedUnlearnError, match=r"unknown method 'fedods'; did you mean 'fedosd'\?"):
        method["fedods"]


def test_a_name_close_to_nothing_gets_the_list():
    assert did_you_mean("zzz", ["b", "a"]) == "; known: a, b"


def test_a_name_cannot_be_taken_twice():
    things: Registry[int] = Registry("thing")
    things("one")(1)
    with pytest.raises(FedUnlearnError, match="registered twice"):
        things("one")(2)


def test_objectives_are_known_by_the_names_that_jobs_carry():
    import fedunlearn.objectives  # noqa: F401

    assert {"cross_entropy", "uce"} <= {entry.name for entry in objective}
