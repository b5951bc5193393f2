"""``--track`` as a user types it."""

from __future__ import annotations

import json

import pytest

COMPARED = "\n[methods.fedosd]\n[methods.finetune]\n"


def test_run_then_resume_with_both_trackers(apart, small, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = apart("run", small, "--track", "tensorboard", "--track", "mlflow")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    run = tmp_path / "runs/small"
    asr = [json.loads(line)["asr"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [point.value for point in events.Scalars("unlearning/asr")] == pytest.approx(asr, abs=1e-6)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs/mlflow.db'}")
    found = client.get_run(json.loads((run / "mlflow.json").read_text())["run_id"])
    assert (found.info.run_name, found.info.status) == ("small", "FINISHED")
    history = client.get_metric_history(found.info.run_id, "unlearning/asr")
    assert [(point.step, point.value) for point in history] == list(enumerate(asr))
    assert apart("resume", "runs/small", "--track", "mlflow").returncode == 0
    assert len(client.get_metric_history(found.info.run_id, "unlearning/asr")) == len(asr)


def test_compare(here, small, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    small.write_text(small.read_text() + COMPARED)
    result = here("compare", small, "--track", "tensorboard", "--out", "both")
    assert result.returncode == 0, result.stderr
    assert {path.parent.parent.name for path in tmp_path.glob("both/**/events.out.tfevents.*")} == {
        "fedosd",
        "finetune",
    }


@pytest.mark.wording
@pytest.mark.parametrize("command", ["run", "compare"])
def test_an_unknown_tracker_is_refused_before_anything_runs(command, refused_here, small, tmp_path):
    said = refused_here(command, small, "--track", "mlfow")
    assert said == "fedunlearn [unknown]: unknown tracker 'mlfow'; did you mean 'mlflow'?\n"
    assert not (tmp_path / "runs").exists()
