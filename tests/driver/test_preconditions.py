"""Preconditions: runs that are refused before round one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.closed_form import Quadratics, request
from support.codes import refused

from fedunlearn import LocalTraining, Schedule, Status, method, unlearn
from fedunlearn.methods.ewcsga import ElasticAscent
from fedunlearn.methods.fedavg import Pretraining


def test_a_request_without_a_target_cannot_be_unlearned():
    with refused("unsuitable", says="names no target, so there is nothing to unlearn"):
        unlearn(method["ascent"](Schedule(3, 0.1, 2, 0.01)), request(targets=()), Quadratics())
    assert unlearn([Pretraining(1, 0.1)], request(targets=()), Quadratics()).status is Status.DONE


def test_public_data_that_is_not_here_is_refused_before_round_one():
    with refused("unsuitable", says="'site-8', which holds the public data, is not present"):
        unlearn((), replace(request(), public="site-8"), Quadratics())


@pytest.mark.parametrize(
    ("lr", "decay", "said"),
    [
        (1e-200, 1.0, "begins with 1e-200"),
        (1e-320, 1.0, "begins with"),
        (1e-30, 1e-9, "falls to 1e-39"),
        (0.1, 1e-300, "falls to 1e-301"),
        (1e200, 1.0, r"begins with 1e\+200"),
    ],
)
def test_learning_rates_that_cannot_be_computed_with_are_refused(lr, decay, said):
    training = LocalTraining(decay=decay)
    for phase in (Pretraining(2, lr, ("residuals",)), ElasticAscent(2, lr)):
        with refused("unsuitable", says=rf"learning rate of .* {said} .*lr = .*decay = "):
            unlearn([phase], request(), Quadratics(), training=training)
