"""Experiments that forget several targets one after the other."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from support.codes import refused, says, warned
from support.desks import started
from support.file_events import watch
from torch import nn

from fedunlearn import Server, load
from fedunlearn import experiment as experiments
from fedunlearn.core.seeds import derive
from fedunlearn.experiment import (
    Experiment,
    audit_run,
    check,
    prepare,
    pretrained,
    recorded,
    retraining,
)
from fedunlearn.experiment.turns import Turn, turns
from fedunlearn.methods import Schedule
from fedunlearn.report import collect, read_run, verdict, write_report
from fedunlearn.report.description import request
from fedunlearn.report.summary import costs, summarise
from fedunlearn.runs import (
    digest,
    model_hash,
    read_json,
    read_metrics,
    read_outcome,
    read_state,
    read_tensors,
)
from fedunlearn.server.surroundings import Surroundings
from fedunlearn.studies.per_example import per_example
from fedunlearn.trackers.tracking import Point, Tracking

SMALL = {
    "name": "small",
    "model": "mlp-small",
    "data": {"partition": "iid", "clients": 4, "fraction": 0.1},
    "request": {"targets": ["client-2", "client-1"], "successive": True},
    "training": {"batch_size": 20},
    "pretraining": {"rounds": 3, "lr": 0.05},
    "unlearning": {"rounds": 2, "lr": 0.01},
    "recovery": {"rounds": 2, "lr": 0.01},
}
KILLED = 9
CLEAN = {"backdoor": {"enabled": False}}

perform, resume = (partial(function, workers=1) for function in (experiments.perform, experiments.resume))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(cache))


@pytest.fixture(scope="module")
def performed(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(cache))
        perform(small(), folder := tmp_path_factory.mktemp("runs") / "whole")
    return folder


def small(**changes: object) -> Experiment:
    return check({**SMALL, **changes}, "test")


def rows(folder: Path) -> list[dict[str, object]]:
    return [
        {key: value for key, value in row.items() if not key.startswith("seconds")}
        for row in read_metrics(folder)
    ]


def results(folder: Path) -> list[object]:
    return [
        (read_outcome(place), rows(place), digest(read_tensors(place / "model.safetensors")[0]))
        for place in (folder / "earlier/1", folder)
    ]


@pytest.mark.filterwarnings("ignore:pre-training records")
@pytest.mark.parametrize(
    "changes", [{}, {"method": "federaser", "pretraining": {**SMALL["pretraining"], "history": ["norms"]}}]
)
def test_an_experiment_does_what_a_server_does(tmp_path, monkeypatch, changes):
    wanted = small(**CLEAN, **changes)
    setting = prepare(wanted)
    start = pretrained(setting, workers=1)
    load(module := setting.build(0), start)
    server = Server(
        module,
        setting.population.unlearning,
        folder=tmp_path / "server",
        training=setting.training,
        build=lambda: nn.Identity(),
        seed=wanted.seed,
        workers=1,
    )
    server.history = server.history.from_tensors(start.memory)
    monkeypatch.setattr(Surroundings, "fresh", lambda _, purpose: setting.fresh(purpose))
    schedule = Schedule(2, 0.01, 2, 0.01, 0.05)
    hardly = warned("outcome", says="the loss on the data to be forgotten has hardly risen")
    with hardly if wanted.method == "fedosd" else nullcontext():
        expected = [
            server.forget(client, wanted.method, schedule, guards=None) for client in ("client-2", "client-1")
        ]

    def as_server(turn: Turn, purpose: str, seed: int) -> int:
        step = turn.number - 1
        return (
            derive("method", seed, step)
            if purpose == "method"
            else derive("request", seed, step, *turn.targets)
        )

    monkeypatch.setattr(Turn, "seed", as_server)
    outcome = perform(wanted, folder := tmp_path / "run")
    assert torch.equal(outcome.state.params, expected[1].state.params)
    assert read_outcome(folder / "earlier/1")["model_sha256"] == model_hash(expected[0].state)
    kept, _ = read_state(folder / "omega0.safetensors")
    assert torch.equal(kept.params, start.params)


def test_targets_are_ordinary_clients_until_their_request_and_gone_after_it():
    setting = prepare(small())
    held = setting.population
    first, second = turns(setting)
    assert (first.targets, second.targets) == (("client-2",), ("client-1",))
    assert first.clients["client-2"] is held.unlearning["client-2"]
    assert first.clients["client-1"] is held.pretraining["client-1"]
    assert second.clients["client-1"] is held.unlearning["client-1"]
    assert list(second.clients) == ["client-0", "client-1", "client-3"]
    assert (
        len({turn.seed(purpose, 1) for turn in (first, second) for purpose in ("method", "unlearning")}) == 4
    )
    start = pretrained(setting, workers=1)
    assert second.request(setting, start, (start.params,)).anchors == (start.params,)


def test_the_last_retraining_is_that_without_all_targets(tmp_path):
    wanted = small(method="retrain", options={"rounds": 3})
    outcome = perform(wanted, tmp_path / "run")
    at_once = small(request={"targets": ["client-1", "client-2"]})
    assert model_hash(retraining(prepare(at_once)).model(workers=1)) == model_hash(outcome.state)


def test_a_kill_at_any_of_its_files_changes_no_bit(performed, tmp_path):
    """Processes die at file events of both requests, and another goes on."""

    def until(folder: Path, last: int) -> list[str]:
        """Runs in a child that dies after so many file events; the paths of those in the run folder."""
        log = tmp_path / "paths"
        log.unlink(missing_ok=True)

        def work() -> None:
            paths: list[str] = []

            def happened(event: str, path: str) -> None:
                paths.append(path)
                if len(paths) == last:
                    os._exit(KILLED)

            with pytest.MonkeyPatch.context() as patch:
                watch(patch, happened)
                perform(small(), folder, checkpoint_seconds=0)
            log.write_text("\n".join(paths))

        _, status = os.waitpid(started(work), 0)
        assert os.waitstatus_to_exitcode(status) == (KILLED if last else 0)
        return [] if last else log.read_text().splitlines()

    paths = until(whole := tmp_path / "whole", 0)
    assert results(whole) == results(performed)
    parts = {
        place: [number for number, path in enumerate(paths, 1) if Path(path).is_relative_to(place)]
        for place in (whole / "earlier", whole)
    }
    parts[whole] = [number for number in parts[whole] if number > parts[whole / "earlier"][-1]]
    for numbers in parts.values():
        assert len(numbers) > 20
        for last in numbers[3 :: len(numbers) // 4]:
            until(tmp_path / "cut", last)
            resume(tmp_path / "cut")
            assert results(tmp_path / "cut") == results(performed)
            shutil.rmtree(tmp_path / "cut")


def test_listeners_hear_the_requests_as_one_run(tmp_path):
    heard = []
    perform(small(), tmp_path / "run", [heard.append])
    after = [event for event in heard if event.metrics["stage"] != "pre-training"]
    named = [event.metrics.get("request") for event in after if len(event.phases) > 1]
    assert named == [1] * 5 + [None] * 5
    assert {len(event.phases) for event in after[-10:]} == {4}
    assert [event.progress.phase for event in after[-10:]] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert small().rounds == (3, 8)


def test_of_several_requests_the_last_is_tracked(tmp_path):
    logged: list[Point] = []

    class Store:
        def last(self, name: str) -> int:
            return -1

        def log(self, points: list[Point]) -> None:
            logged.extend(points)

        def end(self, step: int, status: str, reason: str) -> None:
            assert (step, status) == (4, "done")

    with Tracking("memory", tmp_path / "run", lambda parameters: Store()) as tracking:
        perform(small(), tmp_path / "run", [tracking])
    tracked = [point.scalars["unlearning/asr"] for point in logged if "unlearning/asr" in point.scalars]
    assert tracked == [row["asr"] for row in read_metrics(tmp_path / "run")]


def test_costs_of_all_requests_add_up_and_the_report_says_so(performed, tmp_path):
    run = read_run(performed)
    parts = [costs(read_metrics(place)) for place in (performed / "earlier/1", performed)]
    for key in ("rounds", "local_trainings", "bytes_up", "bytes_down", "seconds"):
        assert summarise(run)[key] == pytest.approx(sum(part[key] for part in parts))
    assert summarise(run)["rounds"] == 8
    assert [each.targets for each in (*run.earlier, run)] == [["client-2"], ["client-1"]]
    assert "client-1 works on" in verdict(run)
    assert [*run.stages] == ["before the last request", "unlearned", "post-trained"]
    assert "client-2, client-1, one after the other" in " ".join(request(collect([performed])))
    write_report(collect([performed]), tmp_path / "report.html")
    write_report(collect([performed / "earlier/1"]), tmp_path / "earlier.html")
    shutil.rmtree(shutil.copytree(performed, tmp_path / "less") / "earlier")
    with refused("invalid", says="earlier/1 is missing, where an earlier request was recorded"):
        read_run(tmp_path / "less")


def test_drawn_targets_are_named_in_the_report(tmp_path):
    wanted = small(request={"targets": 2, "successive": True})
    perform(wanted, tmp_path / "run")
    run = read_run(tmp_path / "run")
    first, second = prepare(wanted).population.targets
    assert [each.targets for each in (*run.earlier, run)] == [[first], [second]]
    assert f"2 clients, chosen by the seed ({first}, then {second})" in " ".join(
        request(collect([run.folder]))
    )


def test_an_audit_examines_all_targets(tmp_path):
    data = {**SMALL["data"], "fraction": 1.0, "audit": 0.5}
    perform(small(data=data), tmp_path / "run")
    found = audit_run(tmp_path / "run", workers=1)
    assert {*found.targets} == {"client-1", "client-2"}
    models = read_json(tmp_path / "run/evidence.json")["models"]
    at_once = prepare(small(data=data, request={"targets": ["client-1", "client-2"]}))
    assert models["original"]["sha256"] == model_hash(pretrained(at_once, workers=1))
    assert models["retrained"]["sha256"] == model_hash(retraining(at_once).model(workers=1))
    assert models["model"]["rounds"] == 8


def test_a_request_that_fails_ends_the_run_and_can_be_tried_again(tmp_path):
    wanted = small(guards={"enabled": True, "budget": 1e-9})
    outcome = perform(wanted, folder := tmp_path / "run")
    assert outcome.status == "guard_stop"
    ended = read_outcome(folder)
    assert (ended["status"], ended["reason"]) == (outcome.status, outcome.reason)
    assert says(outcome.reason, "request 1 of 2 (client-2): ")
    assert ended["model_sha256"] == read_outcome(folder / "earlier/1")["model_sha256"]
    assert not (folder / "metrics.jsonl").exists()
    run = read_run(folder)
    assert run.failed
    assert run.targets == ["client-2"]
    assert summarise(run)["rounds"] == costs(read_metrics(folder / "earlier/1"))["rounds"]
    write_report(collect([folder]), tmp_path / "report.html")
    assert resume(folder).reason == outcome.reason


def test_damage_in_an_earlier_request_is_noticed(performed, tmp_path):
    folder = shutil.copytree(performed, tmp_path / "run")
    (folder / "earlier/1/metrics.jsonl").write_text("")
    with refused("damaged", says=r"earlier/1/metrics\.jsonl"):
        read_run(folder)
    with refused("occupied", says="is a part of the run in"):
        recorded(performed / "earlier/1")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"request": {"successive": True}}, "with one target: name at least two"),
        ({"request": {"successive": True, "targets": ["client-1"] * 2}}, "with one target"),
        ({"request": {"successive": True, "targets": 2, "level": "sample"}}, "use level = 'client'"),
        (
            {"method": "fupga", "pretraining": {**SMALL["pretraining"], "history": ["locals"]}},
            "fupga cannot serve a second request, because the local models",
        ),
    ],
)
def test_what_cannot_be_answered_in_turn_is_refused(changes, sentence):
    with refused("invalid", "unsuitable", says=sentence):
        small(**changes)


def test_clients_elsewhere_and_the_per_example_test_are_refused(tmp_path):
    with refused("unsuitable", says="only simulated"):
        perform(small(), tmp_path / "run", elsewhere=lambda model, stage: None)
    with refused("invalid", says="forgets all targets at once"):
        per_example(small(**CLEAN))


def test_experiments_without_the_key_are_recorded_as_before_so_that_old_runs_go_on():
    at_once = small(request={"targets": 2})
    config = at_once.model_dump(mode="json")
    assert config["request"] == {"level": "client", "targets": 2, "share": 0.1, "label": 0}
    assert small().model_dump(mode="json")["request"]["successive"] is True
    assert check(small().model_dump(mode="json"), "again") == small()
