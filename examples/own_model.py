"""Your own model and your own tensors: pre-train, forget a client, recover."""

import torch
from torch import nn

from fedunlearn import (
    ClientData,
    Examples,
    LocalTraining,
    Request,
    Schedule,
    Sequential,
    State,
    flatten,
    method,
    unlearn,
)
from fedunlearn.methods.fedavg import Pretraining

torch.manual_seed(0)
centres = 2 * torch.randn(4, 8)


def client(shift: int) -> ClientData:
    y = torch.randint(0, 4, (600,))
    x = centres[y] + torch.randn(600, 8) + 4 * (shift != 0) * torch.eye(8)[0]
    data = Examples(x, (y + shift) % 4)
    return ClientData(Examples(data.x[:500], data.y[:500]), {"test": Examples(data.x[500:], data.y[500:])})


clients = {f"site-{number}": client(shift=2 * (number == 0)) for number in range(5)}
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
federation = Sequential(model, clients)
training = LocalTraining(batch_size=50)
request = Request(flatten(model), tuple(clients), ("site-0",), fresh=lambda purpose: State(flatten(model)))

trained = unlearn([Pretraining(40, 0.1)], request, federation, training=training)
request = Request(trained.params, tuple(clients), ("site-0",), fresh=request.fresh)
outcome = unlearn(method["fedosd"](Schedule(20, 0.05, 10, 0.02)), request, federation, training=training)
for row in (outcome.metrics[0], outcome.metrics[20], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['target_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
