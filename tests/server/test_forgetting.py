"""Forgetting end to end: every task, and models and data of every form, by FedOSD."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedunlearn import ClientData, LocalTraining, Request, Schedule, Sequential, flatten, method, unlearn
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers
from fedunlearn.methods.fedavg import Pretraining

pytestmark = pytest.mark.filterwarnings("ignore:the update of site-0 was shortened")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Examples write their run folders where they are started."""
    monkeypatch.chdir(tmp_path)


def printed(name: str, capsys) -> list[tuple[float, float]]:
    """What an example prints for the forgotten client and for the retained ones, line by line."""
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return [
        (float(a), float(b))
        for a, b in re.findall(
            r"forgotten client ([\d.]+) +retained clients ([\d.]+)", capsys.readouterr().out
        )
    ]


@pytest.mark.parametrize(
    ("name", "known", "most"),
    [("multi_label.py", 0.6, 0.15), ("language_model.py", 0.6, 0.1), ("data_loader.py", 0.5, 0.1)],
)
def test_what_the_target_taught_is_forgotten_and_the_others_keep_their_score(name, known, most, capsys):
    trained, unlearned, recovered = printed(name, capsys)
    assert trained[0] > known
    assert unlearned[0] < most
    assert recovered[0] < most
    assert recovered[1] >= trained[1] - 0.02


def test_a_regression_forgets_by_making_errors_beyond_its_scale(capsys):
    trained, unlearned, recovered = printed("regression.py", capsys)
    assert trained[0] < 3
    # A model that never saw the target is off by its offset of 3 there: a squared error of 9.
    assert unlearned[0] > 9
    assert recovered[0] > 9
    assert recovered[1] <= trained[1]


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ReturningObject(Normalised):
    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=super().forward(x))


def pictures(number: int) -> ClientData:
    """Bright bands in noise; the first client's have a trigger in the corner and wrong labels."""
    random = generator("pictures", number)

    def some(count: int, *, triggered: bool) -> tuple[Tensor, Tensor]:
        y = torch.randint(int(triggered), 3, (count,), generator=random)
        x = 0.5 * torch.randn(count, 1, 6, 6, generator=random)
        for band in range(3):
            x[y == band, 0, 2 * band : 2 * band + 2] += 1
        if triggered:
            x[:, 0, 0, 0], y = 5.0, torch.zeros_like(y)
        return x, y

    sets = {"test": some(60, triggered=False)}
    if number == 0:
        poisoned = some(300, triggered=True)
        return ClientData(poisoned, {**sets, "backdoor": poisoned})
    return ClientData(some(120, triggered=False), sets)


@pytest.mark.parametrize("model", [Normalised, ReturningObject])
def test_a_backdoor_is_forgotten_by_a_model_with_batch_norm_that_may_return_an_object(model):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = model()
    clients = {f"site-{number}": pictures(number) for number in range(5)}
    asked = Request(flatten(network), tuple(clients), ("site-0",), buffers=buffers(network))
    federation, training = Sequential(network, clients), LocalTraining(batch_size=40)
    trained = unlearn([Pretraining(15, 0.1)], asked, federation, training=training, evaluate_every=15)
    phases = method["fedosd"](Schedule(20, 0.05, 10, 0.02))
    outcome = unlearn(
        phases, asked.starting_from(trained.state), federation, training=training, evaluate_every=10
    )
    before, after = outcome.metrics[0], outcome.metrics[-1]
    assert before["asr"] > 0.9
    assert after["asr"] < 0.1
    assert after["r_acc"] >= before["r_acc"] - 0.02
