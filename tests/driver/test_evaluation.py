"""Evaluation: who measures the model and when, stop rules, and models that are useless."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import CLIENTS, Listening, Quadratics, request
from support.codes import refused

from fedunlearn import Above, Below, Outcome, Schedule, Status, method, unlearn
from fedunlearn.core import Event, Mean
from fedunlearn.methods.fedavg import Averaging, Pretraining

SHORT = Schedule(3, 0.1, 2, 0.01)


def test_r_acc_is_over_retained_clients_only():
    federation = Quadratics()
    outcome = unlearn((), request(), federation)
    scores = [1 / (1 + federation.loss(c, request().params)) for c in CLIENTS if c != "site-1"]
    assert outcome.metrics[0]["r_acc"] == pytest.approx(sum(scores) / 4)
    assert outcome.metrics[0]["r_acc_worst"] == pytest.approx(min(scores))


def test_evaluation_happens_as_often_as_asked_and_at_the_end_of_each_stage():
    phases = method["fedosd"](Schedule(5, 0.05, 5, 0.05))
    outcome = unlearn(phases, request(), Quadratics(), evaluate_every=4)
    assert [row["elapsed"] for row in outcome.metrics if "r_acc" in row] == [0, 4, 5, 8, 10]


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_evaluating_in_steps_that_are_no_number_is_refused(every):
    with refused("invalid", says=r"evaluate_every = .*: it must be a whole number, 1 or more"):
        unlearn(method["fedosd"](SHORT), request(), Quadratics(), evaluate_every=every)


def test_only_present_clients_of_the_request_are_measured():
    class Left(Listening):
        """A client leaves after the first round."""

        def present(self):
            return super().present() - ({"site-3"} if len(getattr(self, "heard", [])) > 1 else set())

    federation = Left()
    outcome = unlearn([Averaging(2, 0.1)], request(clients=CLIENTS[:4]), federation)
    who = [set(jobs) for jobs, _ in federation.heard if next(iter(jobs.values())).work == "measure"]
    assert who == [set(CLIENTS[:4]), set(CLIENTS[:3]), set(CLIENTS[:3])]
    assert "r_acc site-3" in outcome.metrics[0]
    assert "r_acc site-3" not in outcome.metrics[-1]


def falling(name: str = "ascent", rounds: int = 20, **how: object) -> Outcome:
    """A run of 20 rounds of unlearning and three of recovery, evaluated by its stop rules alone."""
    phases = method[name](Schedule(rounds, 0.05, 3, 0.05))
    return unlearn(phases, request(), Quadratics(), **{"evaluate_every": 100, **how})


@pytest.mark.parametrize("name", ["ascent", "ewcsga", "fedosd"])
def test_a_stop_rule_ends_unlearning_and_leaves_the_recovery(name):
    course = [
        row["asr"] for row in falling(name, evaluate_every=1).metrics if row["stage"] != "post-training"
    ]
    bar = (course[0] + min(course)) / 2
    heard: list[Event] = []
    assert not Below("asr", bar).met({"asr": bar}, "site-1")
    assert not Above("asr", bar).met({"asr": bar}, "site-1")
    stopped = falling(name, stop=[Below("asr", bar)], listeners=[heard.append])
    (last,) = [row for row in stopped.metrics if row.get("status") == "converged"]
    assert last["asr"] < bar <= min(course[: last["elapsed"]])
    assert stopped.status is Status.DONE
    assert [row["stage"] for row in stopped.metrics[-3:]] == ["post-training"] * 3
    assert stopped.metrics[-4] is last
    assert torch.equal(stopped.params, falling(name, last["elapsed"]).params)
    (there,) = [event.progress for event in heard if event.metrics is last]
    assert torch.equal(falling(name, stop=[Below("asr", bar)], resume=there).params, stopped.params)
    assert torch.equal(falling(name, stop=[Below("asr", min(course) / 2)]).params, falling(name).params)


def test_any_of_several_stop_rules_counts_and_a_rule_may_look_upwards():
    class Telling(Quadratics):
        def measured(self, client, params):
            return {
                **super().measured(client, params),
                "forget": {"loss": Mean(self.loss(client, params), 1)},
            }

    phases = method["ascent"](Schedule(20, 0.05, 0, 0.05))
    bar = 1.1 * Quadratics().loss("site-1", request().params)
    rules = [Above("loss_target", bar), Below("asr", 0.0)]
    rows = unlearn(phases, request(), Telling(), stop=rules).metrics
    assert rows[-1]["status"] == "converged"
    assert len(rows) < 20
    assert [row["loss_target"] > bar for row in rows] == [False] * (len(rows) - 1) + [True]


def test_what_is_not_measured_cannot_end_unlearning():
    federation = Listening()
    with refused("not-measured", says=r"a stop rule needs 'asrr', which is not measured here"):
        unlearn(method["ascent"](SHORT), request(), federation, stop=[Below("asrr", 0.1)])
    assert not federation.trained()


@pytest.mark.parametrize("where", ["train", "test"])
def test_a_loss_that_no_training_leads_to_is_divergence(where):
    class Absurd(Quadratics):
        def perform(self, client, job, terms):
            reply = super().perform(client, job, terms)
            wild = where == "train" and len(self.exchanged) == 2
            return replace(reply, statistics={"train": {"loss": Mean(7e20, 1)}}) if wild else reply

        def measured(self, client, params):
            wild = where == "test" and len(self.exchanged) == 3
            return {"test": {"loss": Mean(7e20 if wild else 1.0, 1)}}

    outcome = unlearn([Pretraining(5, 0.1)], request(targets=()), Absurd())
    assert outcome.status is Status.DIVERGED
    assert torch.equal(outcome.params, unlearn([Pretraining(2, 0.1)], request(), Quadratics()).params)
