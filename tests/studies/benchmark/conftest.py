"""A benchmark with two requests and two rounds, carried out once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.comparisons import perform

from fedunlearn.core.registry import method
from fedunlearn.experiment import code
from fedunlearn.studies.benchmark import gather, protocol, write_results
from fedunlearn.studies.benchmark import plan as module

SMALL = """
model = "mlp-small"
seed = 11
evaluate_every = 1000
[data]
dataset = "fashion-demo"
fraction = 0.4
clients = 3
partition = "iid"
audit = 0.4
[training]
batch_size = 20
[pretraining]
rounds = 4
lr = 0.1
evaluate_every = 1000
[unlearning]
rounds = 1
[recovery]
rounds = 1
[grid]
rates = [0.01, 0.1]
share = 1.0
seed = 10
columns = ["clean", "backdoored"]
rule = "retraining"
[columns.clean]
backdoor.enabled = false
[columns.backdoored]
[columns.successive]
backdoor.enabled = false
request = { targets = 2, successive = true }
"""
ROWS = """
extends = "benchmark.toml"
[methods.retrain]
[methods.finetune]
[methods.fupga]
pretraining.history = ["locals"]
"""
SUBMITTED = '''
"""One step against the targets' update."""
from dataclasses import dataclass
from typing import ClassVar

import fedunlearn as fu


@dataclass(frozen=True)
class StepBack(fu.Phase):
    stage: ClassVar[fu.Stage] = fu.Stage.UNLEARNING

    def round(self, request, state):
        replies = yield {target: fu.train(state.params) for target in request.targets}
        return state.step(replies.every(request.targets).mean())


@fu.method("step-back", paper="-", source="ours", summary="a step back")
def step_back(schedule: fu.Schedule) -> tuple[fu.Phase, ...]:
    """No options."""
    once, rest = schedule.in_one_round
    return StepBack(once, schedule.unlearn_lr), fu.Averaging(rest, schedule.recover_lr)
'''


@dataclass(frozen=True)
class Submission:
    """A method that a stranger brings, and the results of it."""

    file: Path
    results: Path
    runs: Path
    ran: list[str]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(method, "_entries", {**method._entries})
    monkeypatch.setattr(code, "_imported", {*code._imported})


@pytest.fixture(scope="module")
def small_protocol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The small protocol takes the place of the packaged one."""
    folder = tmp_path_factory.mktemp("protocol")
    (folder / "benchmark.toml").write_text(SMALL)
    (folder / "benchmark-methods.toml").write_text(ROWS)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setenv("FEDUNLEARN_CACHE", str(folder / "cache"))
        patch.setattr(method, "_entries", {**method._entries})
        patch.setattr(code, "_imported", {*code._imported})
        patch.setattr(module, "PROTOCOL", folder / "benchmark.toml")
        patch.setattr(module, "METHODS", folder / "benchmark-methods.toml")
        module._whole.cache_clear()
        yield folder
    module._whole.cache_clear()


@pytest.fixture(scope="module")
def submission(small_protocol: Path, tmp_path_factory: pytest.TempPathFactory) -> Submission:
    """What ``fedunlearn benchmark step_back.py`` does, page and console aside."""
    folder = tmp_path_factory.mktemp("submission")
    file = folder / "step_back.py"
    file.write_text(SUBMITTED)
    wanted = protocol((), file)
    ran = perform(wanted, folder / "runs")
    write_results(folder / "step_back.json", gather(wanted, folder / "runs"))
    return Submission(file, folder / "step_back.json", folder / "runs", ran)
