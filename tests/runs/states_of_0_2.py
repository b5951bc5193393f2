"""Folders in every state, which one version of the package begins and another finishes.

    python tests/runs/states_of_0_2.py begin FOLDER     # with the sources and tests of one version
    python tests/runs/states_of_0_2.py finish FOLDER    # with those of another; prints how each state ends

``begin`` also finishes a copy of each state, so that both print what must be equal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedunlearn as fu
from fedunlearn.data import load
from fedunlearn.erasure.certificate import verify
from fedunlearn.experiment import check, perform

try:
    from support import desks
except ImportError:
    import desks  # type: ignore[import-not-found, no-redef]  # of 0.2

Call = Callable[[Path, list[Any]], str]


class Stop:
    """A listener that raises ``KeyboardInterrupt`` after this round of a stage."""

    def __init__(self, training: bool, elapsed: int) -> None:
        self._moment = (training, elapsed)

    def __call__(self, event: fu.Event) -> None:
        if self._moment == (event.metrics["stage"] == "pre-training", event.metrics["elapsed"]):
            raise KeyboardInterrupt


STATES = {"training": [Stop(True, 3)], "request": [Stop(False, 2)], "finished": []}


def experiment(method: str, folder: Path, listeners: list[Any]) -> str:
    """A run with its cache."""
    values: dict[str, Any] = {
        "name": "earlier",
        "method": method,
        "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 6, "fraction": 0.08},
        "training": {"batch_size": 16},
        "pretraining": {"rounds": 6, "lr": 0.1, "history": ["norms"] if method == "federaser" else []},
        "unlearning": {"rounds": 4, "lr": 0.02},
        "recovery": {"rounds": 4, "lr": 0.02},
    }
    os.environ["FEDUNLEARN_CACHE"] = str(folder / "cache")
    if (folder / "run/outcome.json").exists():
        subprocess.run([sys.executable, "-m", "fedunlearn", "resume", folder / "run"], check=True, stdout=2)
    else:
        perform(check(values, "earlier"), folder / "run", listeners, workers=1)
    found: str = json.loads((folder / "run/outcome.json").read_text())["model_sha256"]
    return found


def sites() -> dict[str, fu.ClientData]:
    data = load("fashion-demo", fraction=0.05)
    parts = [[part.take(slice(n, None, 4)) for part in (data.train, data.test)] for n in range(4)]
    return {f"site-{n}": fu.ClientData(train, {"test": test}) for n, (train, test) in enumerate(parts)}


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def server(folder: Path, listeners: list[Any]) -> str:
    """Training, and one request."""
    training = fu.LocalTraining(batch_size=16)
    ours = fu.Server(module(), sites(), folder=folder, training=training, listeners=listeners, workers=1)
    ours.train(6, 0.1, history=["norms"])
    ours.forget("site-1", "fedosd", fu.Schedule(4, 0.05, 4, 0.05))
    return fu.module_hash(ours.model)


CALLS: dict[str, Call] = {
    **{method: partial(experiment, method) for method in ("fedosd", "federaser", "retrain", "not")},
    "server": server,
}


DESKS = ("received", "unlearning", "certified", "purged", "refused")


def begin_desk(folder: Path, state: str) -> None:
    settings = desks.make(folder) / "desk.toml"
    mild = settings.read_text().replace("unlearn_lr = 0.5", "unlearn_lr = 0.05").replace("floor = 1.0\n", "")
    settings.write_text(mild)
    opened = desks.opened(folder)
    model = desks.production(opened)
    case = desks.receive(opened, desks.document(), desks.module_hash(model))
    if state == "unlearning":
        with suppress(KeyboardInterrupt):
            there = desks.federation()
            judge = partial(desks.judge, there, desks.TARGET)
            desks.erase(opened, case.id, there, model, auditor=judge, listeners=[Stop(False, 2)])
    elif state in ("certified", "purged"):
        desks.answer(opened, desks.document(), to_purge=state == "purged")
    elif state == "refused":
        with suppress(fu.FedUnlearnError):
            desks.receive(opened, desks.document(number=2), "0" * 64)


def finish_desk(folder: Path) -> str:
    """The hash of the model in production, after the request is answered and its certificate verified."""
    opened = desks.opened(folder)
    case = opened.cases()[0]
    if not case.purging:
        case = desks.answer(opened, opened.document(case.id))
    place = opened.place(case.id)
    verify(
        (place / "certificate.json").read_text(), folder / "controller.pub", ledger=folder / "ledger.jsonl"
    )
    return f"{case.entries[-1].event} {desks.module_hash(desks.production(opened))}"


def ends(folder: Path, states: Collection[str]) -> dict[str, str]:
    """How each state ends; a refusal is told, too."""
    found = {}
    with desks.repeatable():
        for name, call in CALLS.items():
            for state in states:
                found[f"{name}: {state}"] = ended(partial(call, folder / name / state, []))
        for state in DESKS:
            found[f"desk: {state}"] = ended(partial(finish_desk, folder / "desk" / state))
    return found


def ended(work: Callable[[], str]) -> str:
    try:
        return work()
    except fu.FedUnlearnError as error:
        return str(error)


def begin(folder: Path) -> None:
    with desks.repeatable():
        for name, call in CALLS.items():
            for state, stop in STATES.items():
                with suppress(KeyboardInterrupt):
                    call(folder / name / state, stop)
        for state in DESKS:
            begin_desk(folder / "desk" / state, state)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    work, folder = sys.argv[1], Path(sys.argv[2]).absolute()
    if work == "begin":
        begin(folder)
        shutil.copytree(folder, own := folder.with_name(f"{folder.name}-own"))
        print(json.dumps(ends(own, STATES)))
    else:
        print(json.dumps(ends(folder, STATES)))
