"""Several labels for each example: forget a client whose labels are all inverted."""

import torch
from torch import nn

import fedunlearn as fu
from fedunlearn.methods.fedavg import Pretraining

torch.manual_seed(0)
weights = torch.randn(8, 4)


def client(inverted: bool) -> fu.ClientData:
    x = torch.randn(300, 8) + 4 * inverted * torch.eye(8)[0]
    y = ((x @ weights > 0) != inverted).float()
    train, test = (x[:200], y[:200]), (x[200:], y[200:])
    return fu.ClientData(train, {"test": test, "forget": train} if inverted else {"test": test})


clients = {f"site-{number}": client(inverted=number == 0) for number in range(5)}
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
training = fu.LocalTraining(batch_size=50)
request = fu.Request(fu.flatten(model), tuple(clients), targets=("site-0",))
phases = fu.method["fedosd"](fu.Schedule(30, 0.3, 15, 0.1))

with fu.simulate(model, clients, task=fu.MultiLabel()) as federation:
    trained = fu.unlearn([Pretraining(80, 0.5)], request, federation, training=training)
    outcome = fu.unlearn(phases, request.starting_from(trained.state), federation, training=training)
print("share of labels that are right")
for row in (outcome.metrics[0], outcome.metrics[30], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['forget_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
