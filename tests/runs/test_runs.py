from __future__ import annotations

import json
import os

import pytest
import torch
from support.closed_form import Quadratics, request
from support.codes import refused, warned
from support.folders import forget_manifest

from fedunlearn import Schedule, State, Status, method, unlearn
from fedunlearn.core import Event, Progress
from fedunlearn.runs import (
    Recorder,
    claim,
    locked,
    public,
    read_json,
    read_metrics,
    read_outcome,
    write_state,
)
from fedunlearn.runs.recorder import _guarded as restored

PHASES = method["fedosd"](Schedule(5, 0.05, 4, 0.05))


def test_a_recorder_writes_every_round_and_knows_the_last(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        outcome = unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    rows = read_metrics(tmp_path)
    assert rows == [json.loads(json.dumps(row)) for row in outcome.metrics]
    again = Recorder(tmp_path, "me").progress
    assert again.elapsed_rounds == 9
    assert torch.equal(again.state.params, outcome.params)


def test_what_a_kill_left_half_written_is_removed(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    names = ("checkpoints/.00000001.safetensors", ".omega0.safetensors", ".outcome.json", ".report.html")
    for name in names:
        (tmp_path / f"{name}.0123456789abcdef.partial").write_bytes(b"half")
    (tmp_path / ".mine.partial").write_bytes(b"not ours")
    with locked(tmp_path / "lock"), Recorder(tmp_path, "a"):
        left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"lock", "manifest.json", "metrics.jsonl", ".mine.partial"}


def test_a_checkpoint_that_a_kill_left_over_is_removed(tmp_path):
    def saved():
        return sorted(path.name for path in (tmp_path / "checkpoints").glob("*.safetensors"))

    with Recorder(tmp_path, "a run", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    (first, last), files = saved(), claim(tmp_path)
    older = (tmp_path / "checkpoints" / first).read_bytes()
    files.write({"checkpoints/00000001.safetensors": older})  # as before the last save removed it
    with Recorder(tmp_path, "a run") as recorder:
        assert recorder.progress is not None
    assert saved() == [first, last]


def test_a_folder_that_somebody_works_in_keeps_its_temporary_files(tmp_path):
    partial = tmp_path / ".omega0.safetensors.0123456789abcdef.partial"
    with locked(tmp_path / "lock"):
        partial.write_bytes(b"half")
        with refused("in-use", says="another process"), locked(tmp_path / "lock"):
            pass
        assert partial.exists()


def test_only_their_owner_can_read_models_and_run_folders(tmp_path):
    folder, before = tmp_path / "runs/run", os.umask(0)
    try:
        with locked(folder / "lock"), Recorder(folder, "me", seconds=0) as recorder:
            unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
            write_state(folder / "omega0.safetensors", State(torch.zeros(3)))
    finally:
        os.umask(before)
    models = [*folder.rglob("*.safetensors")]
    assert len(models) == 3
    assert {path.stat().st_mode & 0o777 for path in models} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "checkpoints")} == {0o700}


def test_rounds_after_the_last_checkpoint_are_cut_from_the_metrics(tmp_path):
    heard: list[Event] = []
    whole = unlearn(PHASES, request(), Quadratics(), listeners=[heard.append])
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        for event in heard[:4]:
            recorder.record(event)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "not": "saved"}\n{"half a li')
    assert len(read_metrics(tmp_path)) == 4  # nobody can tell whether the last line is as it was written
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        rest = unlearn(PHASES, request(), Quadratics(), listeners=[recorder], resume=recorder.progress)
    assert torch.equal(rest.params, whole.params)
    assert [_timeless(row) for row in read_metrics(tmp_path)] == [_timeless(row) for row in whole.metrics]


def _timeless(row):
    return {key: value for key, value in row.items() if not key.startswith("seconds")}


def test_state_travels_whole(tmp_path):
    state = State(
        torch.randn(7),
        3,
        memory={"stalled": torch.tensor(2)},
        buffers={"bn.mean": torch.ones(2), "bn.count": torch.tensor(5)},
        status=Status.CONVERGED,
        reason="why",
    )
    with Recorder(tmp_path, "me") as recorder:
        recorder.record(Event(Progress(1, 8, state), PHASES, {"round": 3}))
    back = Recorder(tmp_path, "me").progress
    assert (back.phase, back.elapsed_rounds, back.state.round) == (1, 8, 3)
    assert (back.state.status, back.state.reason) == (Status.CONVERGED, "why")
    assert torch.equal(back.state.params, state.params)
    assert back.state.memory == state.memory
    assert torch.equal(back.state.buffers["bn.mean"], state.buffers["bn.mean"])
    assert back.state.buffers["bn.count"] == 5


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    older, newest = sorted((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    with warned(
        "older-checkpoint", says=r"safetensors has [\d,]+ bytes, and .* continues from the checkpoint"
    ):
        assert Recorder(tmp_path, "me").progress.elapsed_rounds == 8
    older.write_bytes(b"")
    with refused("damaged", says=r"safetensors has 0 bytes.*also bad: checkpoints/00000010"):
        Recorder(tmp_path, "me")


def test_a_damaged_checkpoint_without_a_manifest_gives_way_to_the_one_before(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    forget_manifest(tmp_path)
    older, newest = sorted((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    with warned("older-checkpoint", says="not a complete"):
        assert Recorder(tmp_path, "me").progress.elapsed_rounds == 8
    older.write_bytes(b"")
    with refused("damaged", says="not a complete"):
        Recorder(tmp_path, "me")


@pytest.mark.parametrize(
    "name", ["0000001x.safetensors", "1.safetensors", "00000009.txt", "²0000001.safetensors"]
)
def test_foreign_files_among_the_checkpoints_are_ignored(name, tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    (tmp_path / "checkpoints" / name).write_bytes(b"foreign")
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        recorder.record(Event(recorder.progress, PHASES, {"round": 10}))
    assert (tmp_path / "checkpoints" / name).read_bytes() == b"foreign"


def test_metrics_shorter_than_the_checkpoint_says_are_refused(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    (tmp_path / "metrics.jsonl").write_text("")
    with refused("damaged", says=r"metrics\.jsonl has 0 bytes, and 7,\d+ were written"):
        Recorder(tmp_path, "me")
    forget_manifest(tmp_path)
    with refused("damaged", says="shorter than when"):
        Recorder(tmp_path, "me")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    with refused("occupied", says="another run"):
        Recorder(tmp_path, "you")


def test_a_folder_without_metrics_is_no_run(tmp_path):
    with refused("missing", says="not a run folder"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"half a li'])
def test_metrics_without_a_finished_round_have_no_rows(content, tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(content)
    assert read_metrics(tmp_path) == []


def test_json_nested_too_deeply_is_one_sentence(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "outcome.json").write_text(deep)
    (tmp_path / "metrics.jsonl").write_text(deep + "\n")
    with refused("damaged", says=r"outcome\.json is not JSON"):
        read_json(tmp_path / "outcome.json")
    with refused("damaged", says=r"metrics\.jsonl, line 1 is not JSON"):
        read_metrics(tmp_path)


def test_damaged_metrics_are_named_by_their_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"stage": "start"}\n{"stage": \xff}\n{"cut')
    with refused("damaged", says=r"metrics\.jsonl, line 2 is not JSON"):
        read_metrics(tmp_path)


def test_what_is_no_number_is_left_out_of_the_metrics(tmp_path):
    with Recorder(tmp_path, "x") as recorder:
        recorder.record(
            Event(Progress(0, 1, State(torch.zeros(1))), PHASES, {"loss": float("nan"), "asr": 0.5})
        )
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert "loss" not in json.loads(line)
    assert json.loads(line)["asr"] == 0.5


@pytest.mark.parametrize("text", ["{}", "[]", '{"status": "fine"}'])
def test_an_outcome_that_says_nothing_is_refused(tmp_path, text):
    (tmp_path / "outcome.json").write_text(text)
    with refused("damaged", says="does not say how the run ended: restore the file, or delete"):
        read_outcome(tmp_path)


def test_what_may_name_a_person_is_not_public():
    assert public({"seed": 1, "data": {"directory": "/home/somebody", "clients": 3}}) == {
        "seed": 1,
        "data": {"clients": 3},
    }


@pytest.mark.parametrize(
    ("sentence", "code"),
    [
        ("nothing is measured of the targets, so nobody knows whether they are forgotten", "unmeasured"),
        ("the targets' backdoor still works after unlearning: ASR 90.0%, before 95.0%", "unmoved"),
        ("", ""),
    ],
)
def test_a_checkpoint_of_0_2_has_the_code_of_its_sentence(sentence, code):
    assert restored({"unmoved": sentence}).unmoved_code == code
