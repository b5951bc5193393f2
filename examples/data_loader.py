"""A ``DataLoader`` of dicts and a model that returns an object with ``logits``."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fedunlearn as fu

torch.manual_seed(0)
centres = 2 * torch.randn(4, 8)


class Visits(Dataset):
    def __init__(self, shift: int) -> None:
        self.labels = torch.randint(0, 4, (300,))
        self.features = centres[self.labels] + torch.randn(300, 8) + 2 * shift * torch.eye(8)[0]
        self.labels = (self.labels + shift) % 4

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"features": self.features[number], "labels": self.labels[number]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, features: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layers(features))


def client(shift: int) -> fu.ClientData:
    train = DataLoader(Visits(shift), batch_size=50, shuffle=True)
    return fu.ClientData(train, {"test": Visits(shift), "forget": train})


clients = {f"site-{number}": client(shift=2 * (number == 0)) for number in range(5)}
model = Classifier()

server = fu.Server(model, clients, folder="runs/data-loader")
server.train(rounds=40, lr=0.1)
outcome = server.forget("site-0", "fedosd", fu.Schedule(20, 0.05, 10, 0.02))
print("accuracy")
for row in (outcome.metrics[0], outcome.metrics[20], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['forget_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
