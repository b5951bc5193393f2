"""Regression: forget a client whose sensor reads three units too high where nobody else measures."""

import torch
from torch import nn

import fedunlearn as fu

torch.manual_seed(0)
weights = torch.randn(6)


def client(faulty: bool) -> fu.ClientData:
    x = torch.randn(300, 6) + 3 * faulty * torch.eye(6)[0]
    y = x @ weights + 0.1 * torch.randn(300) + 3 * faulty
    train, test = (x[:200], y[:200]), (x[200:], y[200:])
    return fu.ClientData(train, {"test": test, "forget": train} if faulty else {"test": test})


clients = {f"site-{number}": client(faulty=number == 0) for number in range(5)}
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

server = fu.Server(
    model,
    clients,
    folder="runs/regression",
    task=fu.Regression(scale=1.0),
    training=fu.LocalTraining(batch_size=50),
)
server.train(rounds=80, lr=0.02)
outcome = server.forget("site-0", "fedosd", fu.Schedule(30, 0.03, 15, 0.01))
print("mean squared error")
for row in (outcome.metrics[0], outcome.metrics[30], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['forget_mse']:.2f}   retained clients {row['r_mse']:.2f}"
    )
