"""Hashes of the final models of all methods on a small federation, which a refactoring must not change.

    python scripts/model_hashes.py before.json                         # with the old code
    python scripts/model_hashes.py after.json --against before.json    # with the new code; lists differences

Each experiment runs twice with its own ω⁰: without a break, and interrupted (once in pre-training, if that is
not cached yet, then twice after the request) and resumed. Both must end with the same model and write the
same metrics. So do two years of a ``Server``, plain and encrypted, and two requests through ``forget``. No
sentence is a part of what is compared. The hashes depend on the processor and on the version of torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedunlearn as fu
from fedunlearn import Event, FedUnlearnError, method, model
from fedunlearn.data import load
from fedunlearn.engines import Sequential
from fedunlearn.erasure.keys import Key
from fedunlearn.experiment import check, perform

Values = dict[str, Any]
Result = dict[str, Any]

BASE: Values = {
    "name": "oracle",
    "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 6, "fraction": 0.08},
    "training": {"batch_size": 16},
    "pretraining": {"rounds": 6, "lr": 0.1, "evaluate_every": 2},
    "unlearning": {"rounds": 4, "lr": 0.02},
    "recovery": {"rounds": 4, "lr": 0.02},
}

OWN: dict[str, Values] = {
    "federaser": {"pretraining": {"history": ["norms"]}},
    "fedrecovery": {"pretraining": {"history": ["residuals"]}},
    "fupga": {"pretraining": {"history": ["locals"]}, "unlearning": {"lr": 0.2}},
    "fedkdu": {"pretraining": {"history": ["updates"]}, "data": {"public": 40}},
    "knot": {"pretraining": {"clusters": 2}},
    "sisa": {"pretraining": {"slices": 2}},
    "fedosd-m1": {"unlearning": {"lr": 0.002}},
}
"""The history that a method needs, and rates that reach FUPGA's ball and do not diverge."""

DIRICHLET = {"partition": "dirichlet", "options": {"alpha": 0.5, "minimum": 30}}

STOPPED: Values = {
    "count_conflicts": True,
    "pretraining": {"rounds": 120, "lr": 0.2, "evaluate_every": 20},
    "unlearning": {"rounds": 8, "lr": 0.01, "stop_below": 0.3},
}
"""Trained to an ASR of .75, so that unlearning stops before its last round."""

VARIANTS: dict[str, Values] = {
    "mode guidance=none": {"options": {"guidance": "none"}},
    "mode guidance=target": {"options": {"guidance": "target"}},
    "ewcsga fisher=retained": {"options": {"fisher": "retained"}},
    "federaser layerwise": {"options": {"layerwise": True}},
    # Needs two epochs, because half of one epoch is rounded up to one.
    "federaser effort=.5": {"options": {"effort": 0.5}, "training": {"epochs": 2}},
    "fedrecovery noise": {"options": {"weighting": "mean_one", "noise": 0.01}},
    "fupga radius=ibm": {"options": {"radius": "ibm"}},
    "sfu bias=frozen": {"options": {"bias": "frozen"}},
    "sfu bias=augmented": {"options": {"bias": "augmented"}},
    "puf round=regular": {"options": {"round": "regular", "scale": 2.0}},
    "not layers": {"options": {"layers": ["3.weight", "5.bias"]}},
    "fedquit rounds=3": {"options": {"rounds": 3}},
    "fedkdu epochs=2": {"options": {"epochs": 2}},
    "fedosd anchor=always": {"options": {"anchor": "always"}},
    "fedosd anchor=never": {"options": {"anchor": "never"}},
    "fedosd objective=ascent, diverging": {"options": {"objective": "ascent"}},
    "fedosd-m3 match_norm": {"options": {"match_norm": True}},
    "fedosd-m4 literal": {"options": {"literal": True}},
    "fedosd level=sample": {"request": {"level": "sample", "share": 0.3}},
    "fedosd level=class": {"request": {"level": "class", "label": 3}, "backdoor": {"enabled": False}},
    "fedosd without backdoor": {"backdoor": {"enabled": False}},
    "fedosd two targets": {"request": {"targets": 2}},
    "federaser two targets": {"request": {"targets": 2}},
    "knot two targets": {"request": {"targets": 2}},
    "fedosd dirichlet": {"data": DIRICHLET},
    "federaser dirichlet": {"data": DIRICHLET},
    "fedosd seed=2": {"seed": 2, "evaluate_every": 3},
    "ascent conflicts, stop_below=.3": STOPPED,
    "fedosd conflicts, stop_below=.3": STOPPED | {"unlearning": STOPPED["unlearning"] | {"lr": 0.03}},
    "fedkdu conflicts, stop_below=.3": STOPPED,
}
"""Further options and requests, named by method; each with the perceptron, most with one epoch."""


@model("batch-norm-dropout", summary="a small convolution with BatchNorm and dropout", inputs="any")
def batch_norm_dropout(classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """A model with what a perceptron lacks: buffers, random numbers and two memory layouts."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 4, 4, stride=4),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(4 * (height // 4) * (width // 4), 24),
        nn.ReLU(),
        nn.Linear(24, classes),
    )


class Interruptions:
    """A listener that raises ``KeyboardInterrupt`` once after each of these rounds."""

    def __init__(self) -> None:
        self._left = {("pre-training", 3), ("request", 2), ("request", 5)}
        self.after_request = 0

    def __call__(self, event: Event) -> None:
        stage = "pre-training" if event.metrics["stage"] == "pre-training" else "request"
        if (moment := (stage, event.metrics["elapsed"])) in self._left:
            self._left.remove(moment)
            self.after_request += stage == "request"
            raise KeyboardInterrupt


def experiments() -> Iterator[tuple[str, Values]]:
    """Every experiment with its name."""
    names = [entry.name for entry in method]
    for partition, network, epochs in product(("pat-50", "iid"), ("mlp", "batch-norm-dropout"), (1, 2)):
        for name in names:
            changes = {"model": network, "data": {"partition": partition}, "training": {"epochs": epochs}}
            yield f"{name}/{partition}/{network}/E={epochs}", _of(name, changes)
    for title, changes in VARIANTS.items():
        values = _of(title.split()[0], changes)
        epochs = values["training"].get("epochs", 1)
        yield f"{title}/{values['data']['partition']}/mlp/E={epochs}", values


def _of(name: str, changes: Values) -> Values:
    return _merged(_merged({**BASE, "method": name}, OWN.get(name, {})), changes)


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """The values with the changes applied, table by table."""
    return {**values} | {
        key: _merged(values[key], value) if isinstance(values.get(key), dict) else value
        for key, value in changes.items()
    }


def result(values: Values, folder: Path) -> Result:
    """The result of an experiment, and whether it is the same if interrupted and resumed."""
    stop = Interruptions()

    def straight(run: Path) -> None:
        perform(check(values, "oracle"), run, workers=1)

    def resumed(run: Path) -> None:
        while True:
            try:
                perform(check(values, "oracle"), run, [stop], workers=1)
            except KeyboardInterrupt:
                continue
            return

    expected = _ending(straight, folder / "straight")
    same = _ending(resumed, folder / "resumed") == expected
    return {**expected, "resumed": "same" if same else "differs", "interruptions": stop.after_request}


def _ending(work: Callable[[Path], None], folder: Path) -> Result:
    os.environ["FEDUNLEARN_CACHE"] = str(folder / "cache")
    run = folder / "run"
    try:
        work(run)
        outcome = json.loads((run / "outcome.json").read_text())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except FedUnlearnError:
        return {"refused": True}
    finally:
        shutil.rmtree(run, ignore_errors=True)
    told = ("seconds", "reason")
    measured = [{key: row[key] for key in sorted(row) if not key.startswith(told)} for row in rows]
    return {
        "sha256": outcome["model_sha256"],
        "status": outcome["status"],
        "rounds": len(rows) - 1,
        "metrics": hashlib.sha256(json.dumps(measured).encode()).hexdigest(),
    }


def _sites() -> dict[str, fu.ClientData]:
    data = load("fashion-demo", fraction=0.05)
    parts = [[part.take(slice(n, None, 4)) for part in (data.train, data.test)] for n in range(4)]
    return {f"site-{n}": fu.ClientData(train, {"test": test}) for n, (train, test) in enumerate(parts)}


def _module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def a_year(folder: Path, listeners: list[Any], cipher: Any = None) -> str:
    """Train, two withdrawals, a client that joins anew, and a training with it."""
    training = fu.LocalTraining(batch_size=16)
    ours = fu.Server(
        _module(), _sites(), folder=folder, training=training, listeners=listeners, cipher=cipher, workers=1
    )
    ours.train(6, 0.1, history=["norms"])
    ours.forget("site-1", floor=None)
    ours.forget("site-2", "federaser", fu.Schedule(3, 0.05, 3, 0.05), floor=None)
    ours.rejoin("site-1")
    ours.train(4, 0.1)
    return fu.module_hash(ours.model)


def two_requests(folder: Path, listeners: list[Any]) -> str:
    """Two requests about one model that a federation has trained elsewhere."""
    module, schedule = _module(), fu.Schedule(4, 0.05, 4, 0.05)
    federation = Sequential(module, _sites())
    for target, name in (("site-0", "fedosd"), ("site-3", "not")):
        options: Values = {"method": name, "schedule": schedule, "floor": None, "listeners": listeners}
        fu.forget(federation, module, target, folder, **options)
    return fu.module_hash(module)


CALLS: dict[str, Callable[..., str]] = {
    "Server": a_year,
    "Server, encrypted": lambda folder, listeners: a_year(folder, listeners, Key(bytes(32))),
    "forget": two_requests,
}


def called(work: Callable[..., str], folder: Path) -> Result:
    """The model of a script, and whether it is the same if the script is interrupted and run again."""
    stop, again = Interruptions(), ""
    expected = work(folder / "straight", [])
    while not again:
        try:
            again = work(folder / "resumed", [stop])
        except KeyboardInterrupt:
            continue
    resumed = "same" if again == expected else "differs"
    return {"sha256": expected, "resumed": resumed, "interruptions": stop.after_request}


def differences(found: Mapping[str, Result], expected: Mapping[str, Result]) -> list[str]:
    """One line for each experiment with an unexpected result."""
    lines = []
    for name in sorted(found.keys() | expected.keys()):
        one, other = expected.get(name, {}), found.get(name, {})
        keys = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        if keys:
            lines.append(f"{name}: " + ", ".join(f"{key} {one.get(key)} -> {other.get(key)}" for key in keys))
    return lines


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="where to write the hashes, as JSON")
    parser.add_argument("--against", type=Path, help="a file of an earlier run")
    parser.add_argument("--only", default="", help="run only experiments whose names contain this text")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # the size of a history
    torch.set_num_threads(1)
    began, found = time.monotonic(), dict[str, Result]()
    with tempfile.TemporaryDirectory() as folder:
        for name, values in experiments():
            if chosen.only in name:
                found[name] = result(values, Path(folder))
                print(f"{name}: {found[name].get('sha256', 'refused')}", flush=True)
        for name, work in CALLS.items():
            if chosen.only in name:
                found[name] = called(work, Path(folder) / name)
                print(f"{name}: {found[name]['sha256']}", flush=True)
    chosen.file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    failed = [name for name, one in found.items() if one["resumed"] != "same"]
    refused = sum("refused" in one for one in found.values())
    print(
        f"{len(found)} cases in {time.monotonic() - began:.0f} s, {refused} refused, "
        f"{len({one.get('sha256') for one in found.values()} - {None})} different models, "
        f"{len(failed)} changed by a resume"
    )
    if chosen.against is not None:
        expected = json.loads(chosen.against.read_text())
        failed += differences(found, {name: one for name, one in expected.items() if chosen.only in name})
        print(f"as in {chosen.against}" if not failed else "")
    print("\n".join(failed), end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
