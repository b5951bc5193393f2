"""Several labels for each example: forget a client whose labels are all inverted."""

import torch
from torch import nn

import fedunlearn as fu

torch.manual_seed(0)
weights = torch.randn(8, 4)


def client(inverted: bool) -> fu.ClientData:
    x = torch.randn(300, 8) + 4 * inverted * torch.eye(8)[0]
    y = ((x @ weights > 0) != inverted).float()
    train, test = (x[:200], y[:200]), (x[200:], y[200:])
    return fu.ClientData(train, {"test": test, "forget": train} if inverted else {"test": test})


clients = {f"site-{number}": client(inverted=number == 0) for number in range(5)}
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

server = fu.Server(
    model, clients, folder="runs/multi-label", task=fu.MultiLabel(), training=fu.LocalTraining(batch_size=50)
)
server.train(rounds=80, lr=0.5)
outcome = server.forget("site-0", "fedosd", fu.Schedule(30, 0.3, 15, 0.1))
print("share of labels that are right")
for row in (outcome.metrics[0], outcome.metrics[30], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['forget_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
