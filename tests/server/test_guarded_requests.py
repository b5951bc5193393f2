"""Guards on the way from a setting to a report."""

from __future__ import annotations

import pytest
import torch
from support.attacks import Attacked, idle, scaled
from support.codes import refused, warned
from support.federations import holdings, network

from fedunlearn import Guards, Schedule, Sequential, Server, forget
from fedunlearn.config.tables import GuardsPlan
from fedunlearn.core.hashes import module_hash
from fedunlearn.experiment.settings import setting_names
from fedunlearn.report import read_run
from fedunlearn.report.conclusions import verdict
from fedunlearn.runs import read_outcome

SHORT = Schedule(2, 0.02, 1, 0.02)


def test_the_table_of_an_experiment_is_off_and_has_the_same_defaults():
    assert GuardsPlan().guards() is None
    assert GuardsPlan(enabled=True).guards() == Guards()
    assert "guards.harm" in setting_names()


def test_a_target_that_does_nothing_is_told_of_by_forget_and_by_the_report(tmp_path):
    model = network("perceptron")
    federation = Attacked(Sequential(model, holdings("perceptron")), {"site-2": idle})
    with warned("outcome", says="the targets' backdoor still works"):
        outcome = forget(federation, model, "site-2", tmp_path, method="fedosd", schedule=SHORT)
    assert outcome.warnings
    folder = next(tmp_path.glob("0-forget-*"))
    assert tuple(read_outcome(folder)["warnings"]) == outcome.warnings
    assert read_outcome(folder)["guards"] == outcome.guards == {"unmoved": 1}
    assert f"Warning: {outcome.warnings[0]}." in verdict(read_run(folder))


@pytest.mark.wording
@pytest.mark.filterwarnings("ignore:the targets' backdoor still works after")
@pytest.mark.filterwarnings("ignore:the update of site-2 was shortened")
def test_a_server_without_guards_takes_every_step(tmp_path):
    models = {}
    for name, guards in (("off", None), ("on", Guards())):
        model = network("perceptron")
        federation = Attacked(Sequential(model, holdings("perceptron")), {"site-2": scaled(1e4)})
        server = Server(model, federation, folder=tmp_path / name)
        outcome = server.forget("site-2", "fedosd", SHORT, guards=guards)
        models[name] = outcome.params
        assert any("shortened" in each for each in outcome.warnings) == (name == "on")
    assert not torch.equal(models["on"], models["off"])


@pytest.mark.filterwarnings("ignore:the targets' backdoor still works after")
@pytest.mark.filterwarnings("ignore:unlearning ended in round 1 of 2")
def test_a_request_that_guards_stop_is_not_answered_and_its_run_is_not_tried_again(tmp_path):
    model = network("perceptron")
    before = module_hash(model)
    federation = Sequential(model, holdings("perceptron"))
    how = {"method": "fedosd", "schedule": SHORT}
    outcomes = []
    for _ in range(2):
        with refused("guard_stop", says="raise the budget") as failed:
            forget(federation, model, "site-2", tmp_path, **how, guards=Guards(budget=1e-9))
        outcomes.append(failed.value.outcome)
    first, again = outcomes
    assert module_hash(model) == before
    assert [row["stage"] for row in first.metrics] == ["start", "unlearning", "post-training"]
    assert again.metrics == first.metrics
    assert torch.equal(again.params, first.params)
    ended = read_outcome(next(tmp_path.glob("0-forget-*")))
    assert (ended["status"], ended["guards"]["stopped:budget"]) == ("guard_stop", 1)
    assert not (tmp_path / "answered.json").exists()
    assert not forget(federation, model, "site-2", tmp_path, **how, guards=None).status.failed
