"""A server in Python: training, requests one after the other, run folders, resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import fedunlearn as fu
from fedunlearn.core.seeds import generator
from fedunlearn.report import collect, write_report

SCHEDULE = fu.Schedule(4, 0.05, 3, 0.05)


def held(number: int) -> fu.ClientData:
    random = generator("server", number)
    x, y = torch.randn(30, 6, generator=random), torch.randint(0, 3, (30,), generator=random)
    return fu.ClientData((x[:20], y[:20]), {"test": (x[20:], y[20:]), "forget": (x[:20], y[:20])})


def server(folder: Path, **options: object) -> fu.Server:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    clients = {f"site-{number}": held(number) for number in range(5)}
    training = fu.LocalTraining(batch_size=10)
    return fu.Server(model, clients, folder=folder, training=training, workers=1, **options)


def test_a_trained_model_forgets_two_clients_one_after_the_other(tmp_path):
    ours = server(tmp_path)
    ours.train(5, 0.1, history=["norms"])
    trained = ours.state.params
    first = ours.forget("site-1", schedule=SCHEDULE)
    assert torch.equal(ours.anchors[0], trained)
    assert torch.equal(ours.state.params, first.params)
    assert set(ours.history.rows["norms"]) == {"site-0", "site-2", "site-3", "site-4"}
    second = ours.forget(["site-3"], "federaser", SCHEDULE)
    assert second.status in (fu.Status.DONE, fu.Status.CONVERGED)
    assert ours.forgotten == ("site-1", "site-3")
    assert ours.clients == ("site-0", "site-2", "site-4")
    assert len(ours.anchors) == 2
    assert torch.equal(fu.flatten(ours.model), second.params)


def test_a_script_that_is_run_again_continues_and_ends_in_the_same_bits(tmp_path):
    def script(folder: Path, *listeners: object) -> torch.Tensor:
        ours = server(folder, listeners=listeners)
        ours.train(5, 0.1)
        ours.forget("site-1", schedule=SCHEDULE)
        return ours.forget("site-2", schedule=SCHEDULE).params

    def interrupt(event: fu.Event) -> None:
        if event.metrics["stage"] == "post-training" and event.metrics["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script(tmp_path / "cut", interrupt)
    assert torch.equal(script(tmp_path / "cut"), script(tmp_path / "whole"))
    again = server(tmp_path / "whole")
    assert len(again.train(5, 0.1).metrics) == 6  # read from the folder


def test_a_failed_request_leaves_the_server_as_it_was(tmp_path):
    ours = server(tmp_path)
    ours.train(2, 0.1)
    before = ours.state
    outcome = ours.forget("site-1", "ascent", fu.Schedule(400, 1e30, 1, 0.1))
    assert outcome.status is fu.Status.DIVERGED
    assert ours.state is before
    assert ours.clients == tuple(f"site-{number}" for number in range(5))
    assert ours.anchors == ()


def test_a_comparison_keeps_the_model_and_can_be_reported(tmp_path):
    ours = server(tmp_path)
    ours.train(3, 0.1)
    before = ours.state
    outcomes = ours.compare(
        "site-1", {"fedosd": {}, "free": {"method": "fedosd", "anchor": "never"}, "retrain": {}}, SCHEDULE
    )
    assert ours.state is before
    assert set(outcomes) == {"fedosd", "free", "retrain"}
    found = collect([tmp_path / "1-compare-site-1"])
    assert set(found.rows) == {"fedosd", "free", "retrain"}
    assert write_report(found, tmp_path / "report.html").exists()


def test_every_step_is_a_run_folder_that_can_be_reported(tmp_path):
    ours = server(tmp_path)
    ours.train(3, 0.1)
    ours.forget("site-1", schedule=SCHEDULE)
    folder = tmp_path / "1-forget-site-1"
    assert json.loads((folder / "outcome.json").read_text())["status"] == "done"
    write_report(collect([folder]), tmp_path / "report.html")
    assert "site-1" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda ours: ours.forget("site-9"), "unknown client 'site-9'; did you mean"),
        (lambda ours: ours.forget("site-1", "fedosdd"), "did you mean 'fedosd'"),
        (lambda ours: ours.forget("site-1", "federaser"), "needs norms"),
        (lambda ours: ours.train(2, 0.1, history=["norm"]), "unknown history 'norm'; did you mean 'norms'"),
        (lambda ours: ours.train(2.5, 0.1), "rounds = 2.5: it must be a whole number"),
        (lambda ours: ours.train(2, -0.1), "lr = -0.1: it must be a positive"),
    ],
)
def test_bad_arguments_end_in_one_sentence(tmp_path, call, sentence):
    with pytest.raises(fu.FedUnlearnError, match=sentence):
        call(server(tmp_path))


def test_a_forgotten_client_cannot_be_forgotten_again(tmp_path):
    ours = server(tmp_path)
    ours.forget("site-1", schedule=SCHEDULE)
    with pytest.raises(fu.FedUnlearnError, match="'site-1' has been forgotten already"):
        ours.forget("site-1", schedule=SCHEDULE)


def test_a_folder_of_other_settings_is_refused(tmp_path):
    server(tmp_path).train(2, 0.1)
    with pytest.raises(fu.FedUnlearnError, match="holds a run with other settings"):
        server(tmp_path).train(3, 0.1)


def test_a_model_that_cannot_be_reset_needs_a_function_that_builds_it(tmp_path):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

    clients = {f"site-{number}": held(number) for number in range(3)}
    with pytest.raises(fu.FedUnlearnError, match=r"'scale'.*build"):
        fu.Server(Scaled(), clients, folder=tmp_path / "a", workers=1).forget("site-1", "retrain", SCHEDULE)
    ours = fu.Server(Scaled(), clients, folder=tmp_path / "b", workers=1, build=Scaled)
    assert ours.forget("site-1", "retrain", SCHEDULE).status is fu.Status.DONE
