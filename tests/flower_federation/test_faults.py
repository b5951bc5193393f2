"""A real deployment whose processes are killed: the run goes on, or ends with a sentence and resumes.

Each test prints a row of the table of faults: ``make faults`` shows them.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deployment import Deployment, is_loopback, until
from support.federations import TRAINING, holdings, network

from fedunlearn import Schedule, Sequential, forget, module_hash
from fedunlearn.runs import read_tensors

pytestmark = pytest.mark.deployment

APP = Path(__file__).parent / "any_method"
ROUNDS = 2
CLIENTS = [f"site-{number}" for number in range(3)]


@pytest.fixture(scope="module")
def shared() -> Iterator[Deployment]:
    with Deployment(
        {client: {"partition-id": number} for number, client in enumerate(CLIENTS)}
    ) as deployment:
        yield deployment


@pytest.fixture
def deployment(shared: Deployment) -> Iterator[Deployment]:
    for name in shared.ended():
        shared.restart(name)
    shared.runs.clear()
    yield shared
    for run in shared.runs:
        shared.stop(run)
    assert all(is_loopback(listener.address) for listener in shared.listeners())


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    """The hash of the model of a run without faults, on the sequential engine."""
    model, data = network("perceptron"), holdings("perceptron")
    forget(
        Sequential(model, {client: data[client] for client in CLIENTS}),
        model,
        ["site-2"],
        tmp_path_factory.mktemp("oracle"),
        method="fedosd",
        schedule=Schedule(ROUNDS, 0.02, ROUNDS, 0.02),
        training=TRAINING,
    )
    return module_hash(model)


class Request:
    """A request on the deployment that can be submitted again."""

    def __init__(self, deployment: Deployment, folder: Path, **config: str | float) -> None:
        self._deployment = deployment
        self._folder = folder / "run"
        self._report = folder / "report.json"
        self._config = {
            "tests": str(Path(__file__).parent.parent),
            "report": str(self._report),
            "folder": str(self._folder),
            "nodes": 3,
            "rounds": ROUNDS,
            **config,
        }
        self.began = time.monotonic()

    def submit(self, **config: str | float) -> int:
        return self._deployment.run(APP, {**self._config, **config})

    def await_round(self, number: int) -> None:
        """Waits until this many rounds are recorded."""
        until(lambda: self.rounds() >= number, 300, f"round {number}")

    def rounds(self) -> int:
        metrics = next(self._folder.glob("*/metrics.jsonl"), None)
        return metrics.read_text().count("\n") - 1 if metrics else -1

    def checkpoints_are_intact(self) -> bool:
        files = sorted(self._folder.glob("*/checkpoints/*.safetensors"))
        return bool(files) and all(read_tensors(file)[0] for file in files)

    def ends(self, run: int, status: str = "finished:completed") -> str:
        found, details = self._deployment.wait(run, 600)
        assert found == status, f"{found}: {details}\n{self._deployment.log(run)}"
        return details

    def model(self) -> str:
        return str(json.loads(self._report.read_text()))


def row(event: str, outcome: str, began: float) -> None:
    print(f"\nFAULT | {event} | {outcome} | {time.monotonic() - began:.0f} s")


def restarted(deployment: Deployment, name: str) -> threading.Thread:
    """Restarts a node while the run goes on: Flower refuses its key for up to a minute."""
    thread = threading.Thread(target=deployment.restart, args=(name,))
    thread.start()
    return thread


def test_a_node_killed_before_its_job(deployment, expected, tmp_path):
    request = Request(deployment, tmp_path)
    began = time.monotonic()
    deployment.kill("site-1")
    back = restarted(deployment, "site-1")
    request.ends(request.submit())
    back.join(300)
    assert request.model() == expected
    row("SuperNode killed before its job, restarted", "waited for, same model", began)


@pytest.mark.parametrize("client", ["site-1", "site-2"], ids=["retained", "target"])
def test_a_node_killed_during_its_job(deployment, expected, tmp_path, client):
    request = Request(deployment, tmp_path)
    run = request.submit()
    request.await_round(1)
    until(lambda: deployment.find("flwr-clientapp", deployment.pid(client)), 120, "a ClientApp works")
    began = time.monotonic()
    deployment.kill(client)
    back = restarted(deployment, client)
    request.ends(run)
    back.join(300)
    assert request.model() == expected
    row(f"SuperNode of {client} killed during its job, restarted", "asked again, same model", began)


def test_a_node_that_ends_between_jobs_and_comes_back(deployment, expected, tmp_path):
    request = Request(deployment, tmp_path)
    run = request.submit()
    request.await_round(1)
    began = time.monotonic()
    deployment.kill("site-0", signal.SIGTERM)
    deployment.restart("site-0")
    request.ends(run)
    assert request.model() == expected
    row("SuperNode ended (SIGTERM), restarted", "asked again, same model", began)


def test_a_client_process_killed(deployment, expected, tmp_path):
    import os

    request = Request(deployment, tmp_path)
    run = request.submit()
    request.await_round(1)
    worker = until(lambda: deployment.find("flwr-clientapp", deployment.pid("site-1")), 120, "a ClientApp")[0]
    time.sleep(2)  # it claims its task first
    began = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    request.ends(run)
    assert request.model() == expected
    row("ClientApp process killed", "asked again, same model", began)


def test_a_retained_node_that_stays_away(deployment, tmp_path):
    request = Request(deployment, tmp_path, absence=5.0)
    run = request.submit()
    request.await_round(1)
    began = time.monotonic()
    deployment.kill("site-1")
    request.ends(run)
    outcome = json.loads(next((tmp_path / "run").glob("*/outcome.json")).read_text())
    assert outcome["status"] == "done"
    row("SuperNode of a retained client killed for good", "run goes on without it", began)


def test_a_target_that_stays_away_and_returns_later(deployment, expected, tmp_path):
    request = Request(deployment, tmp_path, absence=5.0)
    run = request.submit()
    request.await_round(1)
    began = time.monotonic()
    deployment.kill("site-2")
    details = request.ends(run, "finished:failed")
    assert "site-2 failed to answer" in details
    assert request.checkpoints_are_intact()
    row("SuperNode of the target killed for good", f"failed: {details[:90]}", began)
    deployment.restart("site-2")
    request.ends(request.submit(absence=150.0))
    assert request.model() == expected


def test_the_server_killed_in_every_round(deployment, expected, tmp_path):
    request = Request(deployment, tmp_path)
    for number in range(2 * ROUNDS):
        run = request.submit()
        request.await_round(number)
        deployment.kill_server_app()
        began = time.monotonic()
        request.ends(run, "finished:failed")
        row(f"ServerApp killed after round {number}", "failed, checkpoint kept", began)
        if number:
            assert request.checkpoints_are_intact()
    request.ends(request.submit())
    assert request.model() == expected


def test_the_superlink_killed(deployment, expected, tmp_path):
    request = Request(deployment, tmp_path)
    run = request.submit()
    request.await_round(2)
    began = time.monotonic()
    deployment.kill_superlink()
    seconds = deployment.restart_superlink()
    row("SuperLink killed, restarted with its database", f"nodes back after {seconds:.0f} s", began)
    request.ends(run, "finished:failed")
    row("the run of that SuperLink", "failed, checkpoint kept", began)
    assert request.checkpoints_are_intact()
    request.ends(request.submit())
    assert request.model() == expected


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"nodes": 9, "absence": 3.0}, "3 of 9 clients are online: start the SuperNode"),
        ({"methods": "fedsod"}, "unknown method 'fedsod'; did you mean 'fedosd'?"),
        ({"methods": "federaser"}, "CalibratedReplay needs norms"),
    ],
    ids=["too few clients", "unknown method", "no history"],
)
def test_a_request_that_cannot_be_answered_fails_with_its_sentence(deployment, tmp_path, config, said):
    request = Request(deployment, tmp_path)
    assert said in request.ends(request.submit(**config), "finished:failed")
