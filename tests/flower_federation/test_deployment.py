"""The harness of ``deployment.py``: Flower's processes start, answer, fail, come back and end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.deployment import (
    Deployment,
    DeploymentError,
    Processes,
    Simulation,
    is_loopback,
    process_table,
    until,
)

pytestmark = pytest.mark.processes

APP = Path(__file__).parent / "roll_call"


def answers(log: str) -> list[dict]:
    """What the ServerApp printed about each answer."""
    return [
        json.loads(line.removeprefix("ANSWER ")) for line in log.splitlines() if line.startswith("ANSWER ")
    ]


def assert_loopback(processes: Processes) -> None:
    listeners = processes.listeners()
    assert processes.port in {listener.port for listener in listeners}
    assert [listener for listener in listeners if not is_loopback(listener.address)] == []


def assert_gone(processes: Processes, pids: set[int]) -> None:
    assert not pids & set(process_table())
    assert processes.tree() == []
    assert not processes.folder.exists()


def test_nodes_answer_under_their_registered_names_and_nothing_is_left() -> None:
    """One deployment for all of it, because starting one takes half the time."""
    with Deployment({"site-1": {"label": "first one"}, "site-2": {"label": "second"}}) as deployment:
        assert deployment.statuses() == {"site-1": "online", "site-2": "online"}
        run = deployment.run(APP, {"nodes": 2})
        assert deployment.wait(run) == ("finished:completed", "N/A")
        found = {answer["name"]: answer for answer in answers(deployment.log(run))}
        assert {name: answer["config"] for name, answer in found.items()} == deployment.nodes
        for name, answer in found.items():
            registered = serialization.load_ssh_public_key(deployment.public_key(name).read_bytes())
            assert serialization.load_pem_public_key(answer["key"].encode()) == registered

        run = deployment.run(APP, {"rounds": 0, "fault": "No node is called 'site-9'."})
        assert deployment.wait(run) == (
            "finished:failed",
            "ServerApp failed with exception: No node is called 'site-9'.",
        )

        assert_loopback(deployment)
        pids = {process.pid for process in deployment.tree()}
        assert len(pids) == 6  # a SuperLink and two SuperNodes, each with a SuperExec
    assert_gone(deployment, pids)


def test_an_app_that_is_no_app_is_refused(tmp_path: Path) -> None:
    with Simulation(2) as simulation:
        with pytest.raises(DeploymentError, match="pyproject"):
            simulation.run(tmp_path)
        assert_loopback(simulation)
        pids = {process.pid for process in simulation.tree()}
        assert pids
    assert_gone(simulation, pids)


@pytest.mark.deployment
def test_a_simulation_stays_on_loopback_and_nothing_is_left() -> None:
    with Simulation(2) as simulation:
        run = simulation.run(APP, {"nodes": 2, "seconds": 3.0})
        until(lambda: len(simulation.find("ray::IDLE")) > 1, 60, "Ray's workers run")
        assert_loopback(simulation)
        pids = {process.pid for process in simulation.tree()}
        assert simulation.wait(run) == ("finished:completed", "N/A")
        configs = [answer["config"] for answer in answers(simulation.log(run))]
        assert sorted(config["partition-id"] for config in configs) == [0, 1]
    assert_gone(simulation, pids)


@pytest.fixture(scope="module")
def shared() -> Iterator[Deployment]:
    with Deployment(["site-1", "site-2", "site-3"]) as deployment:
        yield deployment


@pytest.fixture
def three(shared: Deployment) -> Iterator[Deployment]:
    """Three nodes online and no run, whatever the test before has left."""
    for name in shared.ended():
        shared.restart(name)
    shared.runs.clear()
    yield shared
    for run in shared.runs:
        shared.stop(run)


@pytest.mark.deployment
class TestFaults:
    """Each prints the seconds that Flower took; ``-s`` or ``-rP`` shows them."""

    def test_a_killed_node_comes_back(self, three: Deployment) -> None:
        start = time.monotonic()
        three.kill("site-3")
        three.await_status("site-3", "offline")
        noticed = time.monotonic() - start
        seconds, attempts = three.restart("site-3")
        print(
            f"SuperNode killed: offline after {noticed:.1f} s, back in {seconds:.1f} s, attempts {attempts}"
        )
        run = three.run(APP, {"nodes": 3})
        assert three.wait(run)[0] == "finished:completed"
        assert len(answers(three.log(run))) == 3

    def test_a_killed_node_that_returns_at_once_is_refused_for_a_minute(self, three: Deployment) -> None:
        three.kill("site-3")
        seconds, attempts = three.restart("site-3")
        print(f"SuperNode killed: accepted again after {seconds:.1f} s, attempts {attempts}")
        assert attempts > 1

    def test_a_node_that_says_farewell_may_return_at_once(self, three: Deployment) -> None:
        three.kill("site-3", signal.SIGTERM)
        print(f"SuperNode ended: offline {three.await_status('site-3', 'offline'):.1f} s later")
        seconds, attempts = three.restart("site-3")
        print(f"SuperNode ended: back {seconds:.1f} s later, attempts {attempts}")
        assert attempts == 1

    def test_a_node_killed_at_work_is_missing(self, three: Deployment) -> None:
        run = three.run(APP, {"nodes": 3, "seconds": 15.0})
        node = three.pid("site-3")
        until(lambda: three.find("flwr-clientapp", node), 60, "a ClientApp works")
        start = time.monotonic()
        three.kill("site-3")
        assert three.wait(run) == ("finished:completed", "N/A")
        print(f"SuperNode killed at work: noticed after {time.monotonic() - start:.1f} s")
        found = {answer["name"]: answer for answer in answers(three.log(run))}
        print(found["site-3"])
        assert "error" in found["site-3"]
        assert "error" not in found["site-1"]

    def test_a_killed_client_app_is_an_error_reply(self, three: Deployment) -> None:
        run = three.run(APP, {"nodes": 3, "seconds": 15.0})
        app = until(lambda: three.find("flwr-clientapp", three.pid("site-2")), 60, "a ClientApp works")[0]
        time.sleep(3)  # it claims its task first
        start = time.monotonic()
        os.kill(app, signal.SIGKILL)
        assert three.wait(run)[0] == "finished:completed"
        print(f"ClientApp killed: noticed after {time.monotonic() - start:.1f} s")
        found = {answer["name"]: answer for answer in answers(three.log(run))}
        print(found["site-2"])
        assert "error" in found["site-2"]

    def test_a_killed_server_app_fails_the_run(self, three: Deployment) -> None:
        run = three.run(APP, {"nodes": 3, "rounds": 100, "seconds": 1.0})
        until(lambda: "running" in three.status(run)[0], 60, "the run begins")
        start = time.monotonic()
        three.kill_server_app()
        status, details = three.wait(run)
        print(f"ServerApp killed: {status} {details!r} after {time.monotonic() - start:.1f} s")
        assert status == "finished:failed"

    def test_nodes_return_to_a_superlink_that_was_killed(self, three: Deployment) -> None:
        run = three.run(APP, {"nodes": 3, "rounds": 100, "seconds": 1.0})
        until(lambda: "running" in three.status(run)[0], 60, "the run begins")
        before = dict(three.ids)
        start = time.monotonic()
        three.kill_superlink()
        print(f"SuperLink killed: all nodes back after {three.restart_superlink():.1f} s")
        status, details = three.wait(run)
        print(f"SuperLink killed: {status} {details!r} after {time.monotonic() - start:.1f} s")
        assert status == "finished:failed"
        run = three.run(APP, {"nodes": 3})
        assert three.wait(run)[0] == "finished:completed"
        print(f"SuperLink killed: next run complete after {time.monotonic() - start:.1f} s")
        assert {answer["name"] for answer in answers(three.log(run))} == set(before)
