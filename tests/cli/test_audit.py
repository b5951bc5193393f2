"""The command ``audit`` on folders of finished runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedunlearn.experiment import audit_run, perform, read
from fedunlearn.record import read_outcome

WORLD = """
method = "finetune"
model = "mlp"
[data]
partition = "iid"
clients = 3
fraction = 0.1
audit = 0.4
[backdoor]
enabled = false
[training]
batch_size = 20
[pretraining]
rounds = 12
lr = 0.1
[unlearning]
rounds = 1
lr = 0.01
[recovery]
rounds = 1
lr = 0.01
"""
RETRAIN = ["method=retrain", "options.rounds=12"]
RUNS = {
    "finetune": [],
    "retrain": RETRAIN,
    "again": [*RETRAIN, "options.number=2"],
    "short": ["method=retrain"],
    "other-seed": [*RETRAIN, "seed=2", "pretraining.rounds=1"],
    "other-data": [*RETRAIN, "data.audit=0.3", "pretraining.rounds=1"],
    "backdoor": ["backdoor.enabled=true"],
    "backdoor-retrain": [*RETRAIN, "backdoor.enabled=true"],
    "sample": ["request.level=sample", "request.share=0.5"],
    "sample-retrain": [*RETRAIN, "request.level=sample", "request.share=0.5"],
    "class": ["request.level=class", "request.label=2"],
    "class-retrain": [*RETRAIN, "request.level=class", "request.label=2"],
    "backdoor-no-pool": ["backdoor.enabled=true", "data.audit=0", "pretraining.rounds=1"],
}


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    (folder / "world.toml").write_text(WORLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(cache))
        for name, changes in RUNS.items():
            perform(read(folder / "world.toml", changes), folder / name, workers=1)
    return folder


def evidence(folder: Path) -> dict:
    return json.loads((folder / "evidence.json").read_text())


def test_a_run_is_audited_against_retraining(here, finished):
    run = finished / "finetune"
    result = here("audit", run, "--against", finished / "retrain", "--again", finished / "again")
    assert result.returncode == 0, result.stderr
    found = evidence(run)
    (target,) = found["targets"]
    assert f"target {target}" in result.stdout
    for column in ("JS forgotten", "JS unseen", "probe", "retrained again"):
        assert column in result.stdout
    assert "ASR" not in result.stdout
    assert found["tug_of_war"].keys() == {"model", "original", "again"}
    assert all(sentence in result.stdout.replace("\n", " ") for sentence in found["sentences"])
    assert found["notes"] == []
    assert found["verdict"] == found["targets"][target]["finding"]["verdict"] is not None
    finding = found["targets"][target]["finding"]  # of 160 examples, 64 are unseen and 76 of 96 trained on
    assert (finding["n_forgotten"], finding["n_unseen"]) == (76, 64)
    assert found["influence"]["accuracy"].keys() == {"client-0", "client-1", "client-2"}
    assert all(each["floor"] is not None for each in found["influence"]["accuracy"].values())
    models = {
        name: read_outcome(finished / name)["model_sha256"] for name in ("finetune", "retrain", "again")
    }
    assert found["models"]["model"] == models["finetune"]
    assert found["models"]["retrained"] == models["retrain"]
    assert found["models"]["again"] == models["again"] != models["retrain"]


def test_without_a_retraining_no_verdict_is_possible(here, finished):
    result = here("audit", finished / "finetune", "--workers", 1)
    assert "No verdict possible without a retrained model" in result.stdout
    assert evidence(finished / "finetune")["verdict"] is None


def test_workers_do_not_affect_the_evidence(finished):
    one, two = (audit_run(finished / "finetune", finished / "retrain", workers=number) for number in (1, 2))
    assert one == two


def test_unequal_budgets_are_said(here, finished):
    result = here("audit", finished / "finetune", "--against", finished / "short", "--workers", 1)
    assert "Retraining had 2 rounds and ω⁰ had 12" in result.stdout
    assert "retrain with options.rounds=12" in evidence(finished / "finetune")["notes"][0]


def test_a_backdoor_is_shown_with_its_interval(finished):
    found = audit_run(finished / "backdoor", finished / "backdoor-retrain", workers=1)
    (target,) = found.targets.values()
    assert target.asr.keys() == target.asr_unseen.keys() == {"model", "retrained", "original"}
    assert target.asr["model"].n == 76
    assert target.asr_unseen["model"].n == target.finding.n_unseen == 64


@pytest.mark.parametrize(("level", "targets", "examples"), [("sample", 1, 38), ("class", 3, None)])
def test_samples_and_classes_are_audited_too(finished, level, targets, examples):
    found = audit_run(finished / level, finished / f"{level}-retrain", workers=1)
    assert len(found.targets) == targets
    assert all("#" in target for target in found.targets)
    assert examples in (None, *(each.finding.n_forgotten for each in found.targets.values()))
    assert len(found.influence["accuracy"]) == 3 + targets


def test_what_cannot_be_audited_is_refused_in_one_sentence(refused_here, finished, tmp_path):
    run, retrain = finished / "finetune", finished / "retrain"
    assert "only a retraining is a standard" in refused_here("audit", run, "--against", run)
    assert "differ in seed (1 and 2)" in refused_here("audit", run, "--against", finished / "other-seed")
    assert "differ in data (audit: 0.4 and 0.3)" in refused_here(
        "audit", run, "--against", finished / "other-data"
    )
    assert "name the first with --against" in refused_here("audit", run, "--again", retrain)
    assert "not a run folder" in refused_here("audit", tmp_path)
    assert "the model and the retrained model are equal" in refused_here(
        "audit", retrain, "--against", retrain, "--workers", 1
    )
    assert "set data.audit" in refused_here("audit", finished / "backdoor-no-pool", "--workers", 1)
    copy = shutil.copytree(run, tmp_path / "cut")
    (copy / "outcome.json").unlink()
    assert f"has not ended, so there is no model to audit: finish it with fedunlearn resume {copy}" in (
        refused_here("audit", copy)
    )
