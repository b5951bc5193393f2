"""What each command says about a damaged run folder, a damaged cache, and folders without a manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.folders import drop, forget_manifest

from fedunlearn.experiment import perform, read
from fedunlearn.runs import model_hash, read_manifest, read_outcome, read_state, verify


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def state(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): path.read_bytes() for path in files}


def another_digit(path: Path) -> None:
    """Changes the last digit of a file; it stays valid."""
    content = bytearray(path.read_bytes())
    place = max(place for place, byte in enumerate(content) if chr(byte).isdigit())
    content[place] = ord("1") if content[place] != ord("1") else ord("2")
    path.write_bytes(content)


@pytest.mark.wording
@pytest.mark.parametrize("command", ["report", "resume", "audit", "run"])
@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "environment.json", "experiment.json", "model.safetensors", "omega0.safetensors"],
)
def test_a_command_refuses_a_damaged_folder_and_changes_nothing(refused_here, small, run, command, name):
    another_digit(run / name)
    before = state(run)
    sentence = refused_here(*(["run", small, "--out", run] if command == "run" else [command, run]))
    assert f"{run / name} is not as it was written" in sentence
    assert sentence.endswith(": restore the file, or delete the run folder and run again\n")
    assert state(run) == before


@pytest.mark.wording
def test_a_comparison_refuses_a_damaged_run(here, refused_here, small, tmp_path):
    small.write_text(small.read_text() + "[methods.fedosd]\n[methods.finetune]\n")
    assert here("compare", small, "--out", "both").returncode == 0
    for name in ("model.safetensors", "outcome.json"):
        shutil.copytree(tmp_path / "both", tmp_path / name)
        one, other = (tmp_path / name / f"seed-1/{row}/{name}" for row in ("fedosd", "finetune"))
        shutil.copy(other, one)
        assert f"fedosd/{name} " in refused_here("compare", small, "--out", name)


@pytest.mark.wording
def test_a_model_from_the_cache_is_verified(refused_here, here, small, tmp_path):
    own = {"FEDUNLEARN_CACHE": str(tmp_path / "cache")}
    assert here("run", small, "seed=1", "--out", "one", **own).returncode == 0
    assert here("run", small, "seed=2", "--out", "two", **own).returncode == 0
    kept = {read_manifest(folder).identity: folder for folder in (tmp_path / "cache/pretraining").iterdir()}
    wanted = next(folder for folder in kept.values() if _omega0(folder) == _omega0(tmp_path / "one"))
    other = next(folder for folder in kept.values() if _omega0(folder) == _omega0(tmp_path / "two"))
    model = wanted / "model-4.safetensors"
    whole = model.read_bytes()
    shutil.copy(other / model.name, model)
    sentence = refused_here("run", small, "seed=1", "--out", "three", **own)
    assert f"{model} belongs to another run: delete {wanted}, and its model is trained again" in sentence
    model.write_bytes(whole)
    away = wanted.rename(tmp_path / "away")
    other.rename(wanted)
    assert "holds another training than its name says" in refused_here(
        "run", small, "seed=1", "--out", "four", **own
    )
    shutil.rmtree(wanted)
    away.rename(wanted)
    assert here("run", small, "seed=1", "--out", "five", **own).returncode == 0


def _omega0(folder: Path) -> bytes:
    (path,) = [*folder.glob("omega0.safetensors"), *folder.glob("model-4.safetensors")]
    return model_hash(read_state(path)[0]).encode()


@pytest.mark.wording
@pytest.mark.filterwarnings("default:no manifest says how")
def test_a_folder_without_a_manifest_is_shown_with_a_note(here, refused_here, run):
    assert here("report", run).returncode == 0
    assert "which are as they were written" in (run / "report.html").read_text()
    forget_manifest(run)
    result = here("report", run)
    assert result.returncode == 0
    assert f"note: no manifest says how the files in {run} were written" in result.stdout
    assert "which could not be verified" in (run / "report.html").read_text()
    assert "not continued or audited" in refused_here("audit", run)


@pytest.mark.wording
@pytest.mark.filterwarnings("default:.*continues from the checkpoint before")
def test_a_bad_checkpoint_costs_some_rounds_and_not_the_run(
    here, refused_here, small, whole, cache, tmp_path, monkeypatch
):
    run = tmp_path / "cut"
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(cache))
    perform(read(small), run, checkpoint_seconds=0, workers=1)
    drop(run, "outcome.json")
    _, newest = sorted((run / "checkpoints").iterdir())
    newest.write_bytes(b"")
    assert "has 0 bytes" in refused_here("report", run)
    result = here("resume", run)
    assert result.returncode == 0, result.stderr
    assert f"note: {newest} has 0 bytes" in result.stdout
    assert verify(run).verified
    assert read_outcome(run) == read_outcome(whole)
