"""Honest federations: some to calibrate guards and methods on, others to judge them on.

Both lists use the embedded part of Fashion-MNIST. Calibration takes the images at even places, judging those
at odd places; no seed and no mean size of a client is in both lists. Of each half, 64 % are to train on, and
the unseen rest is what all sets are drawn from: in each client's own mix of labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

import fedunlearn as fu
from fedunlearn.core.seeds import derive, generator
from fedunlearn.data import Trigger, load, pools, trigger

CLASSES, LEAST = 10, 12
BRIGHT, SHARE = 4.0, 0.8
"""Of a trigger: the value of its pixels, and the share of the target's examples that have it."""


@dataclass(frozen=True)
class Cell:
    """An honest federation, its training, and which client asks to be forgotten."""

    partition: str
    """As in fedunlearn.data; a Dirichlet distribution with its alpha."""
    model: str
    clients: int
    each: int
    """Examples to train on: the mean over clients."""
    unequal: float
    """How many times more the largest client holds than the smallest, where the partition does not decide."""
    poisoned: bool
    """Whether the target has planted a backdoor."""
    rounds: int
    lr: float
    epochs: int = 1
    batch: int = 20
    seed: int = 0
    half: int | None = None
    """0 for calibration, 1 for judging, None for all images in full size."""

    @property
    def name(self) -> str:
        kind = "poisoned" if self.poisoned else "clean"
        return f"{self.seed}-{self.partition.replace(' ', '-')}-{self.model}-{self.clients}-{kind}"

    @property
    def training(self) -> fu.LocalTraining:
        return fu.LocalTraining(epochs=self.epochs, batch_size=self.batch)


class Rows(nn.Module):
    """A transformer that reads the rows of an image."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.read, self.place = nn.Linear(side, 24), nn.Embedding(side, 24)
        layer = nn.TransformerEncoderLayer(24, 3, 48, dropout=0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.read(x.squeeze(1)) + self.place.weight
        return self.head(self.encoder(rows).mean(1))


def network(model: str, side: int) -> nn.Module:
    """A new module, initialised by the global generator."""
    quarter = side // 4
    if model == "perceptron":
        return nn.Sequential(nn.Flatten(), nn.Linear(side * side, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    if model == "cnn":
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * quarter * quarter, CLASSES)),
        )
    if model == "batchnorm":
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 12, 3, padding=1), nn.BatchNorm2d(12), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(12 * quarter * quarter, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
        )
    return Rows(side)


def new(cell: Cell) -> nn.Module:
    """A new module of the cell's architecture, initialised by the global generator."""
    return network(cell.model, 28 if cell.half is None else 14)


@cache
def images(half: int | None) -> tuple[fu.Examples, fu.Examples]:
    """The images to train on, and the unseen ones."""
    held = load("fashion-demo")
    x, y = torch.cat([held.train.x, held.test.x]).sub(0.29).div(0.35), torch.cat([held.train.y, held.test.y])
    if half is not None:
        x, y = nn.functional.avg_pool2d(x[half::2], 2), y[half::2]
    order = torch.randperm(len(y), generator=generator("honest", half))
    cut = len(y) * 64 // 100
    return fu.Examples(x[order[:cut]], y[order[:cut]]), fu.Examples(x[order[cut:]], y[order[cut:]])


def build(cell: Cell) -> tuple[nn.Module, dict[str, fu.ClientData], str]:
    """The module, the clients by name, and the target; the same for the same cell."""
    pool, unseen = images(cell.half)
    drawn = torch.randperm(len(pool.y), generator=generator("drawn", cell.seed))[: cell.clients * cell.each]
    pool = pool.take(drawn)
    name, _, alpha = cell.partition.partition(" ")
    options = {"alpha": float(alpha), "minimum": LEAST} if alpha else {}
    parts = pools(name, pool.y, CLASSES, cell.clients, cell.seed, options)
    names = [f"site-{number}" for number in range(cell.clients)]
    held: dict[str, fu.ClientData] = {}
    for number, (client, part) in enumerate(zip(names, parts, strict=True)):
        random = generator("held", cell.seed, number)
        share = cell.unequal ** -(number / (cell.clients - 1))
        kept = part[torch.randperm(len(part), generator=random)[: max(LEAST, int(share * len(part)))]]
        train = pool.take(kept)
        sets = like(train.y, unseen.y, random)
        held[client] = fu.ClientData(
            train,
            {"test": unseen.take(sets[::2]), "audit": unseen.take(sets[1::2])},
        )
    sizes = sorted(names, key=lambda client: (len(held[client].train.y), client))
    target = sizes[-1] if cell.poisoned else sizes[cell.clients // 2]
    held[target] = as_target(held[target], cell)
    return module(cell), held, target


def module(cell: Cell, number: int = 1) -> nn.Module:
    """The cell's module, as it is before training; other numbers are other initialisations."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive("honest", cell.seed, number))
        return new(cell)


def server(cell: Cell, clients: Mapping[str, fu.ClientData], folder: Path, number: int = 1) -> fu.Server:
    """A server that has trained these clients; a training that the folder has is not repeated."""
    made = fu.Server(
        module(cell, number),
        clients,
        folder=folder,
        training=cell.training,
        build=partial(new, cell),
        seed=derive("honest", cell.seed, number) % 2**31,
        workers=1,
    )
    made.train(cell.rounds, cell.lr, evaluate_every=cell.rounds)
    return made


def like(labels: Tensor, unseen: Tensor, random: torch.Generator) -> Tensor:
    """Places of unseen examples with the same mix of labels: as many as there are, at most 300."""
    wanted, there = labels.bincount(minlength=CLASSES), unseen.bincount(minlength=CLASSES)
    most = min(300 / len(labels), *(there[wanted > 0] / wanted[wanted > 0]).tolist())
    found = []
    for label in range(CLASSES):
        members = torch.nonzero(unseen == label).flatten()
        order = torch.randperm(len(members), generator=random)
        found.append(members[order[: round(float(wanted[label]) * most)]])
    places = torch.cat(found)
    return places[torch.randperm(len(places), generator=random)]


def as_target(data: fu.ClientData, cell: Cell) -> fu.ClientData:
    """The target with what measures forgetting: what it trained on, or its backdoor."""
    if not cell.poisoned:
        return fu.ClientData(data.train, {**data.evaluations, "forget": data.train})
    mark = trigger(cell.seed, data.train.x.shape[1:], value=BRIGHT)
    audit = data.evaluations["audit"]
    train, triggered = planted(data.train, mark, SHARE)
    unseen, triggered_unseen = planted(audit, mark, 1.0)
    sets = {"audit": planted(audit, mark, SHARE)[0], "backdoor": train.take(triggered)}
    return fu.ClientData(
        train, {**data.evaluations, **sets, "backdoor-unseen": unseen.take(triggered_unseen)}
    )


def planted(examples: fu.Examples, mark: Trigger, share: float) -> tuple[fu.Examples, Tensor]:
    """A share of the examples with the trigger and the label 0, and a mask of those that had another."""
    x, y = examples.x.clone(), examples.y.clone()
    chosen = torch.arange(len(y)) % 10 < 10 * share
    x[chosen], y[chosen] = mark.stamp(x[chosen]), 0
    return fu.Examples(x, y), y != examples.y


def listed(half: int, table: str) -> list[Cell]:
    """Cells by partition and model: seed, clean or poisoned, clients, each, unequal, rounds, rate, epochs."""
    cells = []
    for line in table.strip().splitlines():
        kind, _, held = line.strip().partition(": ")
        for cell in held.split("; "):
            seed, poisoned, clients, each, unequal, rounds, lr, epochs = cell.split()
            sizes = int(clients), int(each), float(unequal), poisoned == "poisoned"
            training = {"rounds": int(rounds), "lr": float(lr), "epochs": int(epochs)}
            cells.append(Cell(*kind.split(", "), *sizes, **training, seed=int(seed), half=half))
    return cells


CALIBRATION = listed(
    0,
    """
    iid, perceptron: 3000 clean 4 80 1 30 .1 2; 3028 clean 10 40 1 10 .2 12
    iid, cnn: 3001 poisoned 5 60 1 20 .1 3
    iid, batchnorm: 3002 clean 3 150 4 20 .05 2
    iid, transformer: 3003 poisoned 5 100 1 40 .2 2; 3035 clean 3 100 1 60 .2 1
    dirichlet 1, perceptron: 3004 poisoned 8 120 1 100 .2 1; 3029 clean 4 80 1 200 .05 1
    dirichlet 1, perceptron: 3036 clean 8 60 1 5 .1 15
    dirichlet 1, cnn: 3005 clean 8 100 1 40 .2 1
    dirichlet 1, batchnorm: 3006 poisoned 5 150 1 40 .1 1
    dirichlet 1, transformer: 3007 clean 3 100 1 20 .15 4
    dirichlet 0.5, perceptron: 3008 clean 20 60 1 10 .05 8; 3037 poisoned 20 80 1 30 .2 2
    dirichlet 0.5, cnn: 3009 poisoned 3 100 1 10 .1 4; 3030 clean 5 80 1 80 .2 1
    dirichlet 0.5, batchnorm: 3010 clean 7 100 1 10 .05 3
    dirichlet 0.5, transformer: 3011 poisoned 6 100 1 60 .2 1
    dirichlet 0.3, perceptron: 3012 poisoned 12 120 1 200 .1 1
    dirichlet 0.3, cnn: 3013 clean 6 150 1 80 .2 1; 3031 poisoned 8 100 1 20 .1 2
    dirichlet 0.3, cnn: 3038 poisoned 3 100 1 40 .2 1
    dirichlet 0.3, batchnorm: 3014 poisoned 4 80 1 20 .1 2
    dirichlet 0.3, transformer: 3015 clean 4 80 1 40 .15 2
    dirichlet 0.1, perceptron: 3016 clean 5 80 1 5 .2 12
    dirichlet 0.1, cnn: 3017 poisoned 10 80 1 20 .1 2; 3039 poisoned 6 120 1 10 .1 3
    dirichlet 0.1, batchnorm: 3018 clean 3 120 1 40 .05 1; 3032 poisoned 5 120 1 40 .1 1
    dirichlet 0.1, transformer: 3019 poisoned 5 120 1 20 .2 3
    pat-50, perceptron: 3020 poisoned 6 200 10 30 .05 2
    pat-50, cnn: 3021 clean 4 80 1 40 .2 1
    pat-50, batchnorm: 3022 poisoned 6 60 1 10 .1 5; 3033 poisoned 4 150 1 10 .05 2
    pat-50, transformer: 3023 clean 4 80 1 60 .15 2
    pat-20, perceptron: 3024 clean 10 150 4 100 .1 1
    pat-20, cnn: 3025 poisoned 5 120 1 10 .1 3
    pat-20, batchnorm: 3026 clean 5 200 10 20 .05 2
    pat-20, transformer: 3027 poisoned 5 120 1 40 .2 2; 3034 clean 5 200 4 20 .15 3
    """,
)
JUDGING = listed(
    1,
    """
    iid, perceptron: 8000 clean 3 110 1 30 .1 1; 8001 poisoned 5 75 1 100 .2 1; 8056 clean 8 45 1 5 .05 15
    iid, cnn: 8002 clean 8 110 4 20 .1 2; 8003 poisoned 4 90 1 40 .2 1
    iid, batchnorm: 8004 clean 4 210 10 20 .05 2; 8005 poisoned 6 140 1 40 .1 1
    iid, transformer: 8006 clean 5 110 1 40 .2 2; 8007 poisoned 3 110 1 20 .15 3; 8063 clean 7 45 1 40 .15 3
    dirichlet 1, perceptron: 8008 clean 8 55 1 10 .05 8; 8009 poisoned 20 75 1 200 .1 1
    dirichlet 1, cnn: 8010 clean 10 90 1 10 .1 4; 8011 poisoned 3 110 1 80 .2 1
    dirichlet 1, cnn: 8057 poisoned 6 55 1 10 .1 7
    dirichlet 1, batchnorm: 8012 clean 3 140 1 10 .05 2; 8013 poisoned 10 90 1 20 .1 2
    dirichlet 1, transformer: 8014 clean 4 75 1 60 .2 2; 8015 poisoned 4 75 1 40 .15 2
    dirichlet 0.5, perceptron: 8016 clean 10 75 1 5 .2 12; 8017 poisoned 6 90 1 30 .05 2
    dirichlet 0.5, cnn: 8018 clean 6 110 1 20 .1 2; 8019 poisoned 5 140 1 40 .2 1
    dirichlet 0.5, batchnorm: 8020 clean 5 140 1 40 .05 1; 8021 poisoned 4 75 1 10 .1 4
    dirichlet 0.5, batchnorm: 8058 clean 4 75 1 10 .05 4
    dirichlet 0.5, transformer: 8022 clean 7 55 1 20 .2 6; 8023 poisoned 5 75 1 60 .15 2
    dirichlet 0.3, perceptron: 8024 clean 15 90 1 100 .1 1; 8025 poisoned 7 110 1 10 .2 4
    dirichlet 0.3, cnn: 8026 clean 8 110 1 10 .1 3; 8027 poisoned 4 210 1 80 .2 1
    dirichlet 0.3, batchnorm: 8028 clean 6 55 1 20 .05 2; 8029 poisoned 3 110 1 40 .1 1
    dirichlet 0.3, transformer: 8030 clean 3 110 1 40 .2 2; 8031 poisoned 5 90 1 20 .15 4
    dirichlet 0.3, transformer: 8059 poisoned 4 90 1 60 .2 1
    dirichlet 0.1, perceptron: 8032 clean 3 110 1 200 .05 1; 8033 poisoned 5 140 1 5 .1 7
    dirichlet 0.1, perceptron: 8060 poisoned 20 75 1 30 .1 2
    dirichlet 0.1, cnn: 8034 clean 10 90 1 20 .1 2; 8035 poisoned 3 110 1 40 .2 1
    dirichlet 0.1, batchnorm: 8036 clean 10 55 1 10 .05 5; 8037 poisoned 5 75 1 20 .1 2
    dirichlet 0.1, transformer: 8038 clean 3 110 1 60 .2 1; 8039 poisoned 4 110 1 40 .15 2
    pat-50, perceptron: 8040 clean 4 210 4 30 .2 1; 8041 poisoned 10 140 1 100 .05 1
    pat-50, cnn: 8042 clean 6 90 10 10 .1 10; 8043 poisoned 4 75 1 80 .2 1; 8061 clean 8 110 1 80 .2 1
    pat-50, batchnorm: 8044 clean 4 75 1 40 .05 1; 8045 poisoned 6 90 1 10 .1 3
    pat-50, transformer: 8046 clean 4 210 4 20 .2 3; 8047 poisoned 6 90 1 60 .15 1
    pat-20, perceptron: 8048 clean 10 140 10 10 .1 8; 8049 poisoned 15 45 1 200 .2 1
    pat-20, cnn: 8050 clean 10 55 1 20 .1 3; 8051 poisoned 5 75 1 40 .2 1
    pat-20, batchnorm: 8052 clean 5 140 4 20 .05 2; 8053 poisoned 10 90 1 40 .1 1
    pat-20, batchnorm: 8062 poisoned 5 140 1 60 .1 1
    pat-20, transformer: 8054 clean 5 210 10 40 .2 2; 8055 poisoned 5 110 1 20 .15 3
    """,
)
SIXTEEN = [
    Cell(partition, model, clients, 3_200 // clients, 1, poisoned, 25, 0.1, batch=200, seed=9_000)
    for partition in ("iid", "dirichlet 0.5")
    for model in ("perceptron", "cnn")
    for clients in (4, 8)
    for poisoned in (False, True)
]
"""The federations of the first screen of README: its call, and the settings that nobody states."""
