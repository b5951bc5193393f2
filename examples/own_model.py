"""Your own model and your own tensors: train, forget a client, let the others recover."""

import torch
from torch import nn

import fedunlearn as fu

torch.manual_seed(0)
centres = 2 * torch.randn(4, 8)


def client(shift: int) -> fu.ClientData:
    y = torch.randint(0, 4, (600,))
    x = centres[y] + torch.randn(600, 8) + 4 * (shift != 0) * torch.eye(8)[0]
    y = (y + shift) % 4
    return fu.ClientData((x[:500], y[:500]), {"test": (x[500:], y[500:])})


clients = {f"site-{number}": client(shift=2 * (number == 0)) for number in range(5)}
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))

server = fu.Server(model, clients, folder="runs/own-model", training=fu.LocalTraining(batch_size=50))
server.train(rounds=40, lr=0.1)
outcome = server.forget("site-0", "fedosd", fu.Schedule(20, 0.05, 10, 0.02))

for row in (outcome.metrics[0], outcome.metrics[20], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['target_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
