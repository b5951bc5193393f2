"""References that an audit makes on demand: trained once, resumed after a kill, shared where data allows."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from support.codes import refused
from support.folders import edit

from fedunlearn import experiment as experiments
from fedunlearn.experiment import Experiment, check, prepare, pretrained, retraining, twin
from fedunlearn.runs import model_hash, read_metrics

SMALL = {
    "name": "small",
    "model": "mlp-small",
    "data": {"partition": "pat-50", "clients": 4, "fraction": 0.1, "audit": 0.3, "twins": 0.3},
    "training": {"batch_size": 20},
    "pretraining": {"rounds": 4, "lr": 0.05},
    "unlearning": {"rounds": 1, "lr": 0.01},
    "recovery": {"rounds": 1, "lr": 0.01},
}
KINDS = pytest.mark.parametrize("make", [retraining, twin])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small(**changes: object) -> Experiment:
    return check({**SMALL, **changes}, "test")


def trained(make, number: int = 1, **changes: object) -> str:
    return model_hash(make(prepare(small(**changes)), number).model(workers=1))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"participation": {"share": 0.5}},
        {"request": {"level": "sample", "share": 0.5}, "data": {**SMALL["data"], "twins": 0.0}},
        {"request": {"targets": 2}, "backdoor": {"enabled": False}},
    ],
)
def test_a_retraining_is_the_run_with_the_budget_of_omega0(tmp_path, changes):
    for number in (1, 2):
        options = {"rounds": 4, "number": number}
        run = small(method="retrain", options=options, **changes)
        outcome = experiments.perform(run, tmp_path / str(number), workers=1)
        assert trained(retraining, number, **changes) == model_hash(outcome.state)


@KINDS
def test_numbers_differ_and_workers_do_not_matter(make, tmp_path, monkeypatch):
    one, two = trained(make, 1), trained(make, 2)
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another"))
    assert model_hash(make(prepare(small()), 1).model(workers=2)) == one != two


@KINDS
def test_it_is_trained_once_and_a_longer_one_goes_on(make, cache, tmp_path, monkeypatch):
    heard: list[int] = []

    def listen(event: object) -> None:
        heard.append(event.metrics["elapsed"])

    training = make(prepare(small()), 1)
    assert not training.kept
    training.model([listen], workers=1)
    assert heard == [0, 1, 2, 3, 4]
    assert training.kept
    assert [path.name for path in cache.iterdir()] == ["references"]
    training.model([listen], workers=1)
    longer = make(prepare(small(pretraining={"rounds": 6, "lr": 0.05})), 1)
    assert not longer.kept
    grown = model_hash(longer.model([listen], workers=1))
    assert heard == [0, 1, 2, 3, 4, 5, 6]
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another"))
    assert trained(make, pretraining={"rounds": 6, "lr": 0.05}) == grown


@KINDS
def test_it_survives_a_kill_to_the_bit(make, tmp_path, monkeypatch):
    whole, setting = trained(make), prepare(small())
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another"))

    def die() -> None:
        def kill(event: object) -> None:
            if event.metrics["elapsed"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        make(setting, 1).model([kill], workers=1, checkpoint_seconds=0)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    again: list[int] = []
    resumed = make(setting, 1).model([lambda event: again.append(event.metrics["elapsed"])], workers=1)
    assert again == [4]
    assert model_hash(resumed) == whole


def test_retraining_does_not_depend_on_the_targets_data_and_a_twin_does(cache):
    clean, recording = (
        {"backdoor": {"enabled": False}},
        {"pretraining": {**SMALL["pretraining"], "history": ["norms"]}},
    )
    for make, kinds in ((retraining, 1), (twin, 2)):
        models = {trained(make), trained(make, **clean), trained(make, **recording)}
        assert len(models) == kinds
    assert len(list((cache / "references").iterdir())) == 3
    assert trained(retraining, seed=2) != trained(retraining)


def test_a_twin_is_a_pre_training_in_which_only_the_targets_data_differs():
    setting = prepare(small(backdoor={"enabled": False}))
    training = twin(setting, 1)
    (target,) = setting.population.targets
    assert training.request.clients == tuple(setting.population.pretraining)
    for client, held in setting.population.pretraining.items():
        assert (training.clients[client] is held) == (client != target)
    state = training.model(workers=1)
    assert model_hash(state) != model_hash(pretrained(setting, workers=1))
    assert state.memory == {}
    rows = read_metrics(training.folder)
    assert rows[-1].keys() >= {"r_acc", "forget_acc"}
    assert [row["stage"] for row in rows] == ["start", *["pre-training"] * 4]


def test_a_reference_that_diverges_says_so(tmp_path):
    run = small(pretraining={"rounds": 2, "lr": 0.05})
    experiments.perform(run, tmp_path / "run", workers=1)
    path = tmp_path / "run/experiment.json"
    edit(path.parent, {path.name: path.read_text().replace('"lr": 0.05', '"lr": 1e+30')})
    with refused("diverged", says=r"^retraining-1: .*not finite.*lower the learning rate"):
        experiments.audit_run(tmp_path / "run", workers=1)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"data": {"audit": 0.5, "twins": 0.5}},
            "x.toml: audit = 0.5 and twins = 0.5 leave nothing to train on",
        ),
        ({"data": {"twins": 0.6}}, "data.twins = 0.6: input should be less than or equal to 0.5"),
        (
            {"request": {"level": "sample"}},
            "x.toml: twins = 0.3 with level = 'sample': twins replace whole clients",
        ),
    ],
)
def test_settings_that_leave_no_room_for_twins_are_refused_when_they_are_read(changes, sentence):
    with refused("invalid") as problem:
        check({**SMALL, **changes}, "x.toml")
    assert sentence in str(problem.value)


def test_references_of_a_checkpoint_are_refused(tmp_path):
    experiments.perform(small(), tmp_path / "run", workers=1)
    setting = prepare(small(checkpoint=Path(tmp_path / "run/omega0.safetensors")))
    for make in (retraining, twin):
        with refused("invalid", says="nobody knows how long to train a reference"):
            make(setting, 1)
