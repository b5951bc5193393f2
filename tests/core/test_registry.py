from __future__ import annotations

from support.codes import refused

from fedunlearn import loss, method, step, work
from fedunlearn.core.registry import Registry, did_you_mean


def test_a_name_close_to_a_known_one_is_suggested():
    with refused("unknown", says=r"unknown method 'fedods'; did you mean 'fedosd'\?"):
        method["fedods"]


def test_a_name_close_to_nothing_gets_the_list():
    assert did_you_mean("zzz", ["b", "a"]) == "; known: a, b"


def test_another_number_is_no_misspelling():
    assert did_you_mean("site-9", ["site-1", "site-2"]) == "; known: site-1, site-2"
    assert did_you_mean("sitte-1", ["site-1", "site-2"]) == "; did you mean 'site-1'?"
    assert did_you_mean("sitte-9", ["site-1", "site-2"]) == "; known: site-1, site-2"
    assert did_you_mean("lenet", ["lenet5", "mlp"]) == "; did you mean 'lenet5'?"
    assert did_you_mean("fmnist-pat-5", ["fmnist-pat-50", "mnist-pat-50"]).startswith("; known")


def test_a_long_list_is_cut():
    told = did_you_mean("site-2000", [f"site-{number:03}" for number in range(1000)])
    assert told.endswith("site-038, site-039 and 960 more")


def test_a_name_cannot_be_taken_twice():
    things: Registry[int] = Registry("thing")
    things("one")(1)
    with refused("invalid", says="registered twice"):
        things("one")(2)


def test_losses_step_rules_and_works_are_known_by_the_names_that_jobs_carry():
    assert {"task", "ascent", "uce", "unlikelihood"} <= {entry.name for entry in loss}
    assert {"plain", "clipped"} <= {entry.name for entry in step}
    assert {"fisher", "layer_inputs"} <= {entry.name for entry in work}
    assert all(entry.about["summary"] for names in (loss, step, work) for entry in names)
