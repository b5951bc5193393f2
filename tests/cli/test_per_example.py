"""The command ``per-example`` on a world of a few seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedunlearn.experiment import read
from fedunlearn.studies.per_example import per_example

WORLD = """
name = "world"
method = "finetune"
model = "mlp-small"
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
rounds = 3
lr = 0.1
[unlearning]
rounds = 1
lr = 0.02
[recovery]
rounds = 1
lr = 0.02
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "world.toml"
    path.write_text(WORLD)
    return path


def test_the_result_does_not_depend_on_workers_or_other_methods(here, world, tmp_path):
    result = here(
        "per-example", world, "--federations", 10, "--method", "fedosd", "--method", "reset", "--workers", 1
    )
    assert result.returncode == 0, result.stderr
    assert "% done, about" in result.stdout
    assert "10 federations" in result.stdout
    found = json.loads((tmp_path / "runs/world/per-example.json").read_text())
    assert list(found["rows"]) == ["fedosd", "reset", "retrain again", "ω⁰"]
    assert found["failed"] == {}
    assert all(row["models"] == 10 and row["difference_error"] > 0 for row in found["rows"].values())
    again = per_example(read(world), ["reset"], federations=10, workers=2).as_dict()["rows"]
    assert again == {name: found["rows"][name] for name in ("retrain again", "ω⁰", "reset")}
    other = per_example(read(world, ["seed=2"]), ["reset"], federations=8, workers=1).as_dict()["rows"]
    assert other["reset"] != again["reset"]


@pytest.mark.wording
def test_a_method_that_fails_does_not_cost_the_others(world):
    found = per_example(read(world, ["unlearning.lr=1e20"]), ["ascent", "retrain"], federations=8, workers=1)
    assert list(found.rows) == ["retrain again", "ω⁰", "retrain"]
    assert list(found.failed) == ["ascent"]
    assert "not finite" in found.failed["ascent"]


@pytest.mark.wording
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backdoor.enabled=true",), "set backdoor.enabled=false"),
        (("data.audit=0",), "set data.audit=0.4"),
        (("data.fraction=0.05", "data.audit=0.05"), "unseen examples, and the test needs 50"),
        (("request.level=sample", "request.share=0.01"), "examples to forget, and the test needs 50"),
        (("--federations", "4"), "federations = 4"),
        (("--method", "fedosdd"), "did you mean 'fedosd'"),
        (("--seed", "2"), "write seed=2"),
    ],
)
def test_what_cannot_be_tested_is_refused(refused_here, world, words, said):
    assert said in refused_here("per-example", world, *words)


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        (["request.level=sample", "request.share=0.5", "data.fraction=0.2"], "finetune"),
        (["request.level=class", "request.label=2", "data.fraction=0.3"], "finetune"),
        (['pretraining.history=["norms"]'], "federaser"),
        (["data.public=100", 'pretraining.history=["updates"]'], "fedkdu"),
        (["participation.share=0.5", "unlearning.stop_below=0.99"], "fedosd"),
        (["model=lenet5", "data.canaries=8"], "finetune"),
    ],
)
def test_whatever_an_experiment_can_say(world, changes, method):
    found = per_example(
        read(world, [*changes, f"method={method}", "pretraining.rounds=2"]), federations=8, workers=1
    )
    assert not found.failed
    assert list(found.rows) == ["retrain again", "ω⁰", method]
    assert found.rows[method] != found.rows["ω⁰"]
