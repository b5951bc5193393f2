from __future__ import annotations

import getpass
import json
import math
import shutil
import socket
import sys

import numpy as np
import pytest
from support.codes import refused, warned
from support.folders import drop

from fedunlearn import trackers
from fedunlearn.core import Event, FedUnlearnError, Phase, Progress, Stage, State
from fedunlearn.experiment import check, perform
from fedunlearn.experiment import resume as go_on
from fedunlearn.runs import read_metrics

SMALL = {
    "name": "tiny",
    "data": {"clients": 4, "fraction": 0.02},
    "training": {"batch_size": 20},
    "pretraining": {"rounds": 4, "lr": 0.05, "evaluate_every": 2},
    "unlearning": {"rounds": 3, "lr": 0.01},
    "recovery": {"rounds": 2, "lr": 0.01},
}


def installed(name):
    return pytest.param(
        name,
        marks=pytest.mark.skipif(
            not there(name), reason=f"{name} is not installed: pip install 'fedunlearn[{name}]'"
        ),
    )


def there(name):
    try:
        trackers.require(name)
    except FedUnlearnError:
        return False
    return True


every = pytest.mark.parametrize("name", [installed("tensorboard"), installed("mlflow"), installed("wandb")])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    for variable in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """MLflow takes seconds to make a store; one test makes its own."""
    if not there("mlflow"):
        return None
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    SqlAlchemyStore(f"sqlite:///{path}", "mlflow-artifacts:/")
    return path


@pytest.fixture
def runs(tmp_path, empty_store):
    folder = tmp_path / "runs"
    folder.mkdir()
    if empty_store is not None:
        shutil.copy(empty_store, folder / "mlflow.db")
    return folder


def tracked(name, run):
    """All scalars as {name: [(step, value)]}, the parameters and the status, by the library's own reader."""
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
        reader.Reload()
        scalars = {
            tag: [(point.step, point.value) for point in reader.Scalars(tag)]
            for tag in reader.Tags()["scalars"]
        }
        content = reader.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        hparams = HParamsPluginData.FromString(content).session_start_info.hparams
        parameters = {key: getattr(value, value.WhichOneof("kind")) for key, value in hparams.items()}
        return (
            scalars,
            parameters,
            reader.Tensors("status/text_summary")[-1].tensor_proto.string_val[0].decode(),
        )
    if name == "wandb":
        return read_wandb(run)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run.parent / 'mlflow.db'}")
    found = client.get_run(json.loads((run / "mlflow.json").read_text())["run_id"])
    scalars = {
        key: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, key)]
        for key in found.data.metrics
    }
    return scalars, found.data.params, found.data.tags["status"]


def read_wandb(run):
    """The files that `wandb sync` would send, in the order of their starts."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    run_id = json.loads((run / "wandb.json").read_text())["run_id"]
    scalars, parameters, status, steps = {}, {}, None, []
    for path in sorted(run.glob(f"wandb/offline-run-*/run-{run_id}.wandb")):
        reader = DataStore()
        reader.open_for_scan(str(path))
        while data := reader.scan_data():
            record = Record.FromString(data)
            if record.HasField("run"):
                assert record.run.run_id == run_id
                parameters |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            for item in record.summary.update:
                key = item.key or "/".join(item.nested_key)
                status = json.loads(item.value_json) if key == "status" else status
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if row:
                steps.append(row["_step"])
                (elapsed,) = (row[key] for key in row if key.endswith("/elapsed"))
            for key, value in row.items():
                if not key.startswith("_") and not key.endswith("/elapsed"):
                    scalars.setdefault(key, []).append((elapsed, value))
        reader.close()
    assert steps == list(range(len(steps)))  # one rising step in all files, as if nothing had been stopped
    return scalars, parameters, status


def expected(name, rows, group="unlearning"):
    scalars = {}
    for row in rows:
        for key, value in row.items():
            if key != "elapsed" and not isinstance(value, str):
                measure, _, client = key.partition(" ")
                tag = f"{group}-clients/{measure}/{client}" if client else f"{group}/{measure}"
                value = float(np.float32(value)) if name == "tensorboard" else float(value)
                scalars.setdefault(tag, []).append((row["elapsed"], value))
    return scalars


def of(scalars, group):
    return {
        tag: points for tag, points in scalars.items() if tag.partition("/")[0] in (group, f"{group}-clients")
    }


def timeless(scalars):
    return {tag: points for tag, points in scalars.items() if "seconds" not in tag}


@every
def test_a_run_is_tracked_number_by_number(name, runs):
    pretraining = []

    def listen(event):
        if event.phases[0].stage is Stage.PRETRAINING:
            pretraining.append(event.metrics)

    run = runs / "one"
    with trackers.tracker[name](run) as tracker:
        perform(check(SMALL, "x"), run, [tracker, listen], workers=1)
    scalars, parameters, status = tracked(name, run)
    rows = read_metrics(run)
    assert len(rows) == 6
    assert of(scalars, "unlearning") == expected(name, rows)
    assert of(scalars, "pre-training") == expected(name, pretraining, "pre-training")
    assert [step for step, _ in scalars["pre-training/round"]] == [0, 1, 2, 3, 4]
    assert any(tag.startswith("unlearning-clients/r_acc/client-") for tag in scalars)
    assert set(scalars) == {*of(scalars, "unlearning"), *of(scalars, "pre-training")}
    assert float(parameters["unlearning.lr"]) == 0.01
    assert parameters["data.partition"] == "pat-50"
    assert status == "done"


@every
@pytest.mark.parametrize("stage", [Stage.PRETRAINING, Stage.UNLEARNING])
def test_a_run_that_goes_on_from_an_earlier_checkpoint_has_every_step_once(name, stage, runs, tmp_path):
    def stop(event):
        if event.phases[event.progress.phase].stage is stage and event.progress.elapsed_rounds == 3:
            raise KeyboardInterrupt

    run, wanted = runs / "cut", check(SMALL, "x")
    with pytest.raises(KeyboardInterrupt), trackers.tracker[name](run) as tracker:
        perform(wanted, run, [tracker, stop], checkpoint_seconds=0, workers=1)
    assert tracked(name, run)[2] == "interrupted"
    (folder,) = [run] if stage is Stage.UNLEARNING else tmp_path.glob("cache/pretraining/*")
    last = max((folder / "checkpoints").iterdir())
    drop(folder, f"checkpoints/{last.name}")  # as if killed: the last tracked round is not in a checkpoint
    with trackers.tracker[name](run) as tracker:
        go_on(run, [tracker], workers=1)
    scalars, _, status = tracked(name, run)
    assert status == "done"
    assert timeless(of(scalars, "unlearning")) == timeless(expected(name, read_metrics(run)))
    for group, last in (("pre-training", 4), ("unlearning", 5)):
        assert [step for step, _ in scalars[f"{group}/round"]] == list(range(last + 1))
        for tag, points in of(scalars, group).items():
            steps = [step for step, _ in points]
            assert steps == sorted(set(steps)), tag


@every
def test_rounds_that_were_not_tracked_are_added_later(name, runs):
    run, wanted = runs / "late", check(SMALL, "x")
    perform(wanted, run, workers=1)
    for _ in range(2):  # the second time there is nothing to add
        with trackers.tracker[name](run):
            pass
        assert tracked(name, run)[0] == expected(name, read_metrics(run))


@every
def test_a_run_that_is_refused_leaves_nothing(name, tmp_path):
    with refused("invalid"), trackers.tracker[name](tmp_path / "runs/none"):
        raise FedUnlearnError("no")
    assert not list(tmp_path.iterdir())


def test_a_run_of_a_comparison_goes_on_in_its_store(runs):
    run = runs / "column/seed-1/row"
    events(trackers.tracker["mlflow"](run, runs=runs), run, {"seed": 1})
    before = json.loads((run / "mlflow.json").read_text())
    assert before["store"] == "../../../mlflow.db"
    with trackers.tracker["mlflow"](run):  # as `resume` does, which knows nothing of a comparison
        pass
    assert json.loads((run / "mlflow.json").read_text()) == before
    assert not (run.parent / "mlflow.db").exists()


@every
def test_nothing_personal_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "my-own-machine")
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "somebody-known")
    assert getpass.getuser() == "somebody-known"
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    monkeypatch.chdir(home)
    run = home / "runs/one"
    events(trackers.tracker[name](run), run, {"data": {"directory": str(home)}, "seed": 1})
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "experiment.json"]
    assert len(files) >= 1
    for path in files:
        for word in ("my-own-machine", "somebody-known", "home-of-somebody", "test_trackers"):
            assert word not in path.name
            assert word.encode() not in path.read_bytes(), (path, word)
    if name == "mlflow":
        import sqlite3

        with sqlite3.connect(home / "runs/mlflow.db") as store:
            assert store.execute("select distinct user_id, source_name from runs").fetchall() == [
                ("unknown", "")
            ]
            assert not store.execute(
                "select * from tags where key in ('mlflow.user', 'mlflow.source.name')"
            ).fetchall()
        store.close()


class Idle(Phase):
    stage = Stage.UNLEARNING

    def round(self, request, state):
        return state


def events(tracker, run, config, rows=None):
    """Lets a tracker hear rounds that nobody has computed."""
    run.mkdir(parents=True)
    (run / "experiment.json").write_text(json.dumps(config))
    rows = rows or [{"elapsed": step, "round": step, "stage": "unlearning", "asr": 0.5} for step in range(3)]
    with tracker:
        for row in rows:
            tracker(Event(Progress(0, row["elapsed"], State(None)), (Idle(3, 0.1),), row))


@every
def test_odd_rows(name, runs):
    """A failed round is no step; a number that is none, and names with signs that MLflow refuses."""
    first = {"elapsed": 1, "round": 1, "loss": math.nan, "r_acc client-3#keep": 0.25}
    failed = {"elapsed": 1, "round": 1, "loss": 3.0, "status": "diverged", "reason": "too fast"}
    run = runs / "odd"
    events(trackers.tracker[name](run), run, {}, [first, failed, {"elapsed": 2, "round": 2, "loss": 2.0}])
    scalars, _, _ = tracked(name, run)
    assert scalars["unlearning-clients/r_acc/client-3.keep"] == [(1, 0.25)]
    (step, loss), second = scalars["unlearning/loss"]
    assert (step, math.isnan(loss), second) == (1, True, (2, 2.0))


@pytest.mark.wording
@every
def test_a_broken_tracker_is_left_behind(name, runs):
    run, wanted = runs / "one", check(SMALL, "x")
    obstacle = runs / "mlflow.db" if name == "mlflow" else run / name
    kept = obstacle.with_name("kept")
    if name == "mlflow":
        obstacle.rename(kept)
        obstacle.mkdir()
    else:
        run.mkdir()
        obstacle.write_text("in the way")
    with (
        warned("tracker", says=f"{name} has stopped") as said,
        trackers.tracker[name](run) as tracker,
    ):
        outcome = perform(wanted, run, [tracker], workers=1)
    ours = [str(warning.message) for warning in said if "has stopped" in str(warning.message)]
    assert len(ours) == 1
    assert "\n" not in ours[0]
    assert f"fedunlearn resume {run} --track {name}" in ours[0]
    assert outcome.status == "done"
    assert len(read_metrics(run)) == 6
    if name == "mlflow":
        obstacle.rmdir()
        kept.rename(obstacle)
    else:
        obstacle.unlink()
    with trackers.tracker[name](run):
        pass
    assert tracked(name, run)[0] == expected(name, read_metrics(run))


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("mlflow", "sqlalchemy"), ("wandb", "wandb")],
)
def test_a_missing_package_gets_one_sentence(name, package, tmp_path, monkeypatch):
    for module in list(sys.modules):
        if module.partition(".")[0] == package or module.startswith(("torch.utils.tensorboard", "mlflow")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with refused("package", says=rf"pip install 'fedunlearn\[{name}\]'$"):
        trackers.tracker[name](tmp_path)


def test_an_unknown_tracker():
    with refused("unknown", says="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        trackers.require("tensorbord")
