from __future__ import annotations

import json

import pytest
import torch
from closed_form import Quadratics, request

from fedunlearn import FedUnlearnError, Schedule, State, Status, method, unlearn
from fedunlearn.core import Event, Progress
from fedunlearn.record import Recorder, public, read_metrics, read_outcome

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
    left = [tmp_path / "checkpoints/.00000001.safetensors.7.tmp", tmp_path / ".omega0.safetensors.7.tmp"]
    for path in (*left, tmp_path / ".report.html.7.tmp"):
        path.write_bytes(b"half")
    with Recorder(tmp_path, "a"):
        pass
    assert not any(path.exists() for path in left)
    assert (tmp_path / ".report.html.7.tmp").exists()  # somebody may be writing it now


def test_rounds_after_the_last_checkpoint_are_cut_from_the_metrics(tmp_path):
    heard: list[Event] = []
    whole = unlearn(PHASES, request(), Quadratics(), listeners=[heard.append])
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        for event in heard[:4]:
            recorder(event)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "not": "saved"}\n{"half a li')
    assert len(read_metrics(tmp_path)) == 5
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
        recorder(Event(Progress(1, 8, state), PHASES, {"round": 3}))
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
    with pytest.warns(UserWarning, match="damaged|not a whole"):
        assert Recorder(tmp_path, "me").progress.elapsed_rounds == 8
    older.write_bytes(b"")
    with pytest.raises(FedUnlearnError, match="not a whole"):
        Recorder(tmp_path, "me")


def test_metrics_shorter_than_the_checkpoint_says_are_refused(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(FedUnlearnError, match="shorter than when"):
        Recorder(tmp_path, "me")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES, request(), Quadratics(), listeners=[recorder])
    with pytest.raises(FedUnlearnError, match="another run"):
        Recorder(tmp_path, "you")


def test_a_folder_without_metrics_is_no_run(tmp_path):
    with pytest.raises(FedUnlearnError, match="not a run folder"):
        read_metrics(tmp_path)


def test_damaged_metrics_are_named_by_their_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"stage": "start"}\n{"stage": \xff}\n{"cut')
    with pytest.raises(FedUnlearnError, match=r"metrics\.jsonl, line 2 is not JSON"):
        read_metrics(tmp_path)


def test_what_is_no_number_is_left_out_of_the_metrics(tmp_path):
    with Recorder(tmp_path, "x") as recorder:
        recorder(Event(Progress(0, 1, State(torch.zeros(1))), PHASES, {"loss": float("nan"), "asr": 0.5}))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert "loss" not in json.loads(line)
    assert json.loads(line)["asr"] == 0.5


@pytest.mark.parametrize("text", ["{}", "[]", '{"status": "fine"}'])
def test_an_outcome_that_says_nothing_is_refused(tmp_path, text):
    (tmp_path / "outcome.json").write_text(text)
    with pytest.raises(FedUnlearnError, match="does not say how the run ended: restore it, or remove"):
        read_outcome(tmp_path)


def test_what_may_name_a_person_is_not_public():
    assert public({"seed": 1, "data": {"directory": "/home/somebody", "clients": 3}}) == {
        "seed": 1,
        "data": {"clients": 3},
    }
