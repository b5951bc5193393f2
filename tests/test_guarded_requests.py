"""Guards on the way from a setting to a report."""

from __future__ import annotations

import pytest
import torch
from attacks import Attacked, idle, scaled
from federations import holdings, network

from fedunlearn import Guards, Schedule, Sequential, Server, forget
from fedunlearn.experiment.settings import GuardsPlan, setting_names
from fedunlearn.record import read_outcome
from fedunlearn.report.conclusions import verdict
from fedunlearn.report.runs import read_run

SHORT = Schedule(2, 0.02, 1, 0.02)


def test_the_table_of_an_experiment_is_off_and_has_the_same_defaults():
    assert GuardsPlan().guards() is None
    assert GuardsPlan(enabled=True).guards() == Guards()
    assert "guards.harm" in setting_names()


def test_a_target_that_does_nothing_is_told_of_by_forget_and_by_the_report(tmp_path):
    model = network("perceptron")
    federation = Attacked(Sequential(model, holdings("perceptron")), {"site-2": idle})
    with pytest.warns(UserWarning, match="the targets' backdoor still works"):
        outcome = forget(federation, model, "site-2", tmp_path, schedule=SHORT)
    assert outcome.warnings
    folder = next(tmp_path.glob("0-forget-*"))
    assert tuple(read_outcome(folder)["warnings"]) == outcome.warnings
    assert f"Guards: {outcome.warnings[0]}." in verdict(read_run(folder))


def test_a_server_without_guards_takes_every_step(tmp_path):
    models = {}
    for name, guards in (("off", None), ("on", Guards())):
        model = network("perceptron")
        federation = Attacked(Sequential(model, holdings("perceptron")), {"site-2": scaled(1e4)})
        server = Server(model, federation, folder=tmp_path / name)
        outcome = server.forget("site-2", "fedosd", SHORT, guards=guards)
        models[name] = outcome.params
        assert bool(outcome.warnings) == (name == "on")
    assert not torch.equal(models["on"], models["off"])
