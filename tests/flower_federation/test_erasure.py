"""The whole way of an erasure request on a deployment with TLS, with processes killed in between.

It prints the seconds of each step: ``make faults`` shows them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from support.deployment import Deployment, until

from fedunlearn import Sequential, module_hash
from fedunlearn.erasure import Claim, RequestState, against_retraining, erase, open_desk, receive
from fedunlearn.signing import new_key, public_part

pytestmark = pytest.mark.deployment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "flower" / "erasure"
SITES = [f"site-{number}" for number in range(3)]
TARGET, KILLED = "site-2", "site-1"


@contextmanager
def step(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"\nSTEP | {what} | {time.monotonic() - began:.1f} s")


def fedunlearn(folder: Path, *words: str) -> str:
    """A command in a process that knows nothing of this one but where the package is."""
    done = subprocess.run(
        [sys.executable, "-m", "fedunlearn", *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """Three nodes that demand a request signed with their own key before they forget."""
    made = Deployment({site: {"partition-id": number} for number, site in enumerate(SITES)})
    made.nodes = {
        site: {**config, "federation": "hospitals", "erasure-key": str(made.public_key(site))}
        for site, config in made.nodes.items()
    }
    with made:
        yield made


def new_desk(folder: Path, deployment: Deployment) -> Path:
    (folder / "clients").mkdir(parents=True)
    shutil.copy(EXAMPLE / "desk.toml", folder)
    (folder / "controller.key").write_bytes(new_key())
    (folder / "controller.pub").write_bytes(public_part(folder / "controller.key"))
    for site in SITES:
        shutil.copy(deployment.public_key(site), folder / "clients")
    return folder


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules of the app in this process: server and client."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from desk_app import client_app, server_app

    yield server_app, client_app
    for name in [name for name in sys.modules if name.startswith("desk_app")]:
        del sys.modules[name]


def completed(deployment: Deployment, run: int) -> str:
    status, details = deployment.wait(run, 600)
    assert status == "finished:completed", f"{details}\n{deployment.log(run)}"
    return deployment.log(run)


def rounds(folder: Path, runs: str) -> int:
    """How many some runs have recorded; the first line is about the model before them."""
    files = folder.glob(f"{runs}/**/metrics.jsonl")
    return sum(max(0, file.read_text().count("\n") - 1) for file in files)


def test_a_request_from_the_signature_to_the_certificate(deployment, example, tmp_path):
    print(f"\nSTEP | SuperLink, registration, nodes | {deployment.seconds}")
    folder, began = new_desk(tmp_path / "desk", deployment), time.monotonic()
    request = folder / "request.json"
    config = {"desk": str(folder), "request": str(request)}

    with step("training, 3 rounds"):
        told = completed(deployment, deployment.run(EXAMPLE, {**config, "mode": "train"}))
    model = next(line.split()[1] for line in told.splitlines() if line.startswith("model "))

    with step("the client signs"):
        key = str(deployment.private_key(TARGET))
        words = ["--federation", "hospitals", "--model", model, "--key", key, "--out", str(request)]
        fedunlearn(tmp_path, "sign", TARGET, *words, "--days", "31")

    with step("plan"):
        told = completed(deployment, deployment.run(EXAMPLE, {**config, "mode": "plan"}))
    assert "Method: fast-retrain" in told
    assert "Evidence: at most BEHAVIOURALLY_EQUIVALENT." in told
    assert not (folder / "ledger.jsonl").exists()

    run = deployment.run(EXAMPLE, {**config, "mode": "erase"})
    with step("erase, until the first round"):
        until(lambda: rounds(folder, "requests/*/run"), 600, "the first round")
    with step(f"SuperNode of {KILLED} killed, restarted; until a round of retraining"):
        deployment.kill(KILLED)
        back = threading.Thread(target=deployment.restart, args=(KILLED,))
        back.start()
        until(lambda: rounds(folder, "requests/*/retrained"), 600, "the first round of retraining")
        back.join(300)
    with step("ServerApp killed, until Flower says so"):
        deployment.kill_server_app()
        assert deployment.wait(run, 600)[0] == "finished:failed"
    with step("submitted again: retraining, audit, certificate, purge"):
        completed(deployment, deployment.run(EXAMPLE, {**config, "mode": "erase"}))
    print(f"\nSTEP | all but the start of processes | {time.monotonic() - began:.1f} s")

    (case,) = open_desk(folder).cases()
    place = folder / "requests" / case.id
    assert case.state is RequestState.PURGED
    certified = case.last("certified")
    assert certified is not None
    assert certified.fields["claim"] == Claim.BEHAVIOURALLY_EQUIVALENT
    assert sorted(path.name for path in place.iterdir()) == [
        "certificate.html",
        "certificate.json",
        "model.safetensors",
        "purge.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()

    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    for file in (folder / "controller.pub", folder / "ledger.jsonl", *place.iterdir()):
        shutil.copy(file, elsewhere)
    with step("verified on another machine's copy"):
        files = ["--key", "controller.pub", "--model", "model.safetensors", "--ledger", "ledger.jsonl"]
        told = fedunlearn(elsewhere, "verify", "certificate.json", *files)
    assert f"The certificate of request {case.id} is genuine." in told
    assert "Claim  BEHAVIOURALLY_EQUIVALENT" in told

    assert certified.fields["model"] == without_faults(example, folder, tmp_path / "simulated", request)


def without_faults(example, desk: Path, folder: Path, request: Path) -> str:
    """The hash of the model that the sequential engine ends with, from the same settings and request."""
    server_app, client_app = example
    shutil.copytree(desk / "clients", folder / "clients")
    for name in ("desk.toml", "controller.key"):
        shutil.copy(desk / name, folder)
    opened, model = open_desk(folder), server_app.build()
    held = {site: client_app.held(number) for number, site in enumerate(SITES)}
    federation = Sequential(model, held)
    model = server_app.trained(opened, federation, model)
    case = receive(opened, request.read_text().strip(), module_hash(model))
    auditor = against_retraining(opened, case.id, federation, model, rounds=server_app.ROUNDS)
    case = erase(opened, case.id, federation, model, auditor=auditor)
    assert case.state is RequestState.CERTIFIED
    return module_hash(model)
