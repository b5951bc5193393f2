"""The command ``audit`` on folders of finished runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.audits import TARGET, before, network, retrained, world
from support.folders import drop

from fedunlearn import Sequential, audit
from fedunlearn.cli.audits import _target_table
from fedunlearn.experiment import audit_run, perform, read
from fedunlearn.runs import model_hash, read_outcome, read_state

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
FAST = ["method=fast-retrain", "options.rounds=4"]
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
    "twins": ["data.twins=0.3"],
    "twins-fedosd": ["data.twins=0.3", "method=fedosd"],
    "backdoor-no-pool": ["backdoor.enabled=true", "data.audit=0"],
    "backdoor-no-pool-fast": [*FAST, "backdoor.enabled=true", "data.audit=0"],
    "backdoor-no-pool-again": [*FAST, "backdoor.enabled=true", "data.audit=0", "options.number=2"],
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
    for column in ("JS", "JS, unseen", "Probe", "second retraining"):
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
    retrain = {"made": "run", "method": "retrain", "rounds": 12}
    assert models["again"] != models["retrain"]
    assert found["models"] == {
        "model": {"sha256": models["finetune"], "made": "run", "method": "finetune", "rounds": 2},
        "original": {
            "sha256": model_hash(read_state(run / "omega0.safetensors")[0]),
            "made": "pre-training",
            "rounds": 12,
        },
        "retrained": {"sha256": models["retrain"], "number": 1, **retrain},
        "again": {"sha256": models["again"], "number": 2, **retrain},
    }


@pytest.mark.parametrize(("model", "told"), [(retrained(3), "no alarm"), (before(), "alarm: UNDER")])
def test_the_hardest_tenth_raises_an_alarm_or_none(model, told):
    found = audit(
        Sequential(network(), world()), model, targets=TARGET, retrained=retrained(), original=before()
    )
    table = {line[0]: line[-1] for line in _target_table(found.targets[TARGET])}
    assert table["model, hardest examples"] == told
    assert table["ω⁰"] == "UNDER"


def test_without_a_named_retraining_two_are_made_once_with_the_budget_of_omega0(here, finished):
    copies = [shutil.copytree(finished / "finetune", finished / f"copy-{number}") for number in (1, 2)]
    named = audit_run(copies[0], finished / "retrain", again=finished / "again", workers=1)
    result = here("audit", *copies, "--workers", 1)
    assert result.returncode == 0, result.stderr
    assert "2 runs, 24 rounds at most" in result.stdout
    assert result.stdout.count("retraining-1 (1 of 2)") == 1  # the second run takes it from the cache
    for copy in copies:
        assert result.stdout.count(f"evidence  {copy / 'evidence.json'}") == 1
        found = evidence(copy)
        assert found["sentences"] == list(named.sentences)
        for name, run, number in (("retrained", "retrain", 1), ("again", "again", 2)):
            assert found["models"][name] == {
                "sha256": read_outcome(finished / run)["model_sha256"],
                "made": "on demand",
                "rounds": 12,
                "number": number,
            }


def test_twins_calibrate_where_the_data_has_room_for_them(here, finished):
    result = here("audit", finished / "twins", finished / "twins-fedosd", "--workers", 1)
    assert result.returncode == 0, result.stderr
    assert "4 runs, 48 rounds at most" in result.stdout
    ours, theirs = (evidence(finished / name)["models"] for name in ("twins", "twins-fedosd"))
    assert list(ours) == ["again", "model", "original", "retrained", "twin-1", "twin-2"]
    hashes = {made["sha256"] for made in ours.values()}
    assert len(hashes) == 6
    assert all(theirs[name] == ours[name] for name in ours if name != "model")
    assert ours["twin-2"].items() >= {"made": "on demand", "rounds": 12, "number": 2}.items()
    target = evidence(finished / "twins")["targets"]
    none = audit_run(finished / "twins", twins=0, workers=1)
    assert list(evidence(finished / "twins")["models"]) == ["again", "model", "original", "retrained"]
    ((name, found),) = none.targets.items()
    assert found.finding.auc != target[name]["finding"]["auc"]
    assert found.losses.auc == target[name]["losses"]["auc"]


def test_a_retraining_is_compared_with_the_second(finished):
    found = audit_run(finished / "retrain", workers=1)
    assert found.sentences[0].startswith("This model never saw the data that was to be forgotten: retrain")
    assert found.notes == ("The model is the first retraining, so it is compared with the second.",)
    models = evidence(finished / "retrain")["models"]
    assert models["model"]["sha256"] == read_outcome(finished / "retrain")["model_sha256"]
    assert models["retrained"]["number"] == 2
    assert "again" not in models
    second = audit_run(finished / "again", workers=1)
    assert evidence(finished / "again")["models"]["retrained"]["number"] == 1
    differences = [each.targets[t].finding.difference for each in (found, second) for t in each.targets]
    assert all(difference is not None for difference in differences)


def test_compare_audits_its_runs_and_shows_the_evidence(here, finished, tmp_path):
    (tmp_path / "compare.toml").write_text(WORLD + "[methods.finetune]\n")
    result = here("compare", tmp_path / "compare.toml", "--workers", 1, "--out", tmp_path / "runs")
    assert result.returncode == 0, result.stderr
    table = result.stdout[result.stdout.index("Hardest alarms") :]
    lasting = (tmp_path / "runs/comparison.md").read_text()
    for row in ("ω⁰", "retraining", "second retraining", "finetune"):
        assert f"\n{row} " in table
        assert f"\n| {row} | " in lasting[lasting.index("Hardest alarms") :]
    assert evidence(tmp_path / "runs/seed-1/finetune")["models"]["retrained"]["made"] == "on demand"


@pytest.mark.wording
def test_a_checkpoint_has_no_known_budget_so_a_retraining_must_be_named(here, finished, refused_here):
    start = finished / "finetune" / "omega0.safetensors"
    run = finished / "started"
    perform(read(finished / "world.toml", [f"checkpoint={start}"]), run, workers=1)
    result = here("audit", run, "--workers", 1)
    assert "No verdict possible without a retrained model" in result.stdout
    assert "a verdict needs a retraining that is named with --against" in result.stdout.replace("\n", " ")
    found = evidence(run)
    assert found["verdict"] is None
    assert found["models"]["original"]["made"] == "checkpoint"
    assert audit_run(run, finished / "retrain", workers=1).verdict is not None
    assert "use no twins" in refused_here("audit", run, "--against", finished / "retrain", "--twins", 1)


def test_workers_do_not_affect_the_evidence(finished):
    one, two = (audit_run(finished / "finetune", finished / "retrain", workers=number) for number in (1, 2))
    assert one == two


def test_the_margin_can_be_chosen(here, finished):
    run = finished / "finetune"
    here("audit", run, "--against", finished / "retrain", "--margin", 0.02, "--workers", 1)
    (target,) = evidence(run)["targets"].values()
    assert target["finding"]["margin"] == 0.02


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


def test_without_examples_for_audits_a_backdoored_target_is_compared_on_its_test_set(finished):
    run, *standards = (finished / f"backdoor-no-pool{name}" for name in ("", "-fast", "-again"))
    found = audit_run(run, standards[0], again=standards[1], workers=1)
    (target,) = found.targets.values()
    assert target.asr_unseen["model"].n == target.finding.n_unseen == 32  # of 160 examples
    assert target.finding.n_forgotten == 128
    assert target.original is not None
    assert target.original.auc > target.finding.reference_auc


def test_a_fast_retraining_is_a_standard_and_said_to_be_one(finished):
    run, *standards = (finished / f"backdoor-no-pool{name}" for name in ("", "-fast", "-again"))
    found = audit_run(run, standards[0], again=standards[1], workers=1)
    models = evidence(run)["models"]
    assert [models[name]["number"] for name in ("retrained", "again")] == [1, 2]
    assert models["retrained"]["sha256"] != models["again"]["sha256"]
    assert "Retraining was fast-retrain with 4 rounds, not the training of ω⁰ with 12" in found.notes[0]
    first = audit_run(standards[0], standards[0], again=standards[1], workers=1)
    assert first.notes[-1] == "The model is the first retraining, so it is compared with the second."


@pytest.mark.parametrize(
    ("level", "targets", "examples", "members"), [("sample", 1, 38, 3), ("class", 3, None, 6)]
)
def test_samples_and_classes_are_audited_too(finished, level, targets, examples, members):
    found = audit_run(finished / level, finished / f"{level}-retrain", workers=1)
    assert len(found.targets) == targets
    assert all("#" in target for target in found.targets)
    assert examples in (None, *(each.finding.n_forgotten for each in found.targets.values()))
    assert len(found.influence["accuracy"]) == members  # the unseen data of a sample is its client's


@pytest.mark.wording
def test_what_cannot_be_audited_is_refused_in_one_sentence(refused_here, finished, tmp_path):
    run, retrain = finished / "finetune", finished / "retrain"
    assert "only a retraining is a standard" in refused_here("audit", run, "--against", run)
    assert "the same seed (1 and 2)" in refused_here("audit", run, "--against", finished / "other-seed")
    assert "do not have the same data (audit: 0.4 and 0.3)" in refused_here(
        "audit", run, "--against", finished / "other-data"
    )
    assert "set data.twins" in refused_here("audit", run, "--twins", 2)
    assert "between 0 and 0.5" in refused_here("audit", run, "--margin", 5)
    assert "name the first with --against" in refused_here("audit", run, "--again", retrain)
    assert "not a run folder" in refused_here("audit", tmp_path)
    assert "the model and the retrained model are equal" in refused_here(
        "audit", retrain, "--against", retrain, "--workers", 1
    )
    copy = shutil.copytree(run, tmp_path / "cut")
    drop(copy, "outcome.json")
    assert f"has not ended, so there is no model to audit: finish it with fedunlearn resume {copy}" in (
        refused_here("audit", copy)
    )
