"""Every method ends in the same model on Flower's own engines as on the sequential one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.deployment import Deployment, Processes, Simulation, is_loopback
from support.federations import PUBLIC, forget, holdings, network

from fedunlearn import Sequential, method
from fedunlearn.runs import model_hash

pytestmark = pytest.mark.processes

APP = Path(__file__).parent / "any_method"
TESTS = Path(__file__).parent.parent
METHODS = [entry.name for entry in method if not entry.name.startswith("test")]
DEPLOYED = ("fedosd", "federaser", "fupga", "mode", "not", "sfu")


def expected(how: str, nodes: int, rounds: int) -> str:
    data = holdings("perceptron", public=how == "fedkdu")
    here = {
        client: data[client]
        for client in [*(f"site-{number}" for number in range(nodes)), PUBLIC]
        if client in data
    }
    outcome = forget(how, "perceptron", Sequential(network("perceptron"), here), rounds=rounds)
    assert not outcome.status.failed
    return model_hash(outcome.state)


def hashes(processes: Processes, methods: list[str], nodes: int, rounds: int, report: Path) -> dict[str, str]:
    config = {
        "tests": str(TESTS),
        "report": str(report),
        "methods": " ".join(methods),
        "nodes": nodes,
        "rounds": rounds,
    }
    run = processes.run(APP, config)
    assert processes.wait(run, 900) == ("finished:completed", "N/A"), processes.log(run)
    found = json.loads(report.read_text())
    print({how: round(each["seconds"], 1) for how, each in found.items()})
    return {how: each["sha256"] for how, each in found.items()}


def test_every_method_on_ray(tmp_path):
    with Simulation(5) as simulation:
        found = hashes(simulation, METHODS, 5, 1, tmp_path / "report.json")
    assert found == {how: expected(how, 5, 1) for how in METHODS}


def test_fedosd_on_a_deployment_with_tls_and_authenticated_nodes(tmp_path):
    with Deployment({f"site-{number}": {"partition-id": number} for number in range(3)}) as deployment:
        found = hashes(deployment, ["fedosd"], 3, 1, tmp_path / "report.json")
        assert all(is_loopback(listener.address) for listener in deployment.listeners())
    assert found == {"fedosd": expected("fedosd", 3, 1)}


@pytest.mark.deployment
def test_methods_of_every_kind_on_a_deployment(tmp_path):
    with Deployment({f"site-{number}": {"partition-id": number} for number in range(3)}) as deployment:
        found = hashes(deployment, list(DEPLOYED), 3, 2, tmp_path / "report.json")
    assert found == {how: expected(how, 3, 2) for how in DEPLOYED}
