"""Your own model and your own tensors: pre-train, forget a client, recover."""

import torch
from torch import nn

import fedunlearn as fu
from fedunlearn.methods.fedavg import Pretraining

torch.manual_seed(0)
centres = 2 * torch.randn(4, 8)


def client(shift: int) -> fu.ClientData:
    y = torch.randint(0, 4, (600,))
    x = centres[y] + torch.randn(600, 8) + 4 * (shift != 0) * torch.eye(8)[0]
    train, test = (fu.Examples(x[part], (y[part] + shift) % 4) for part in (slice(500), slice(500, None)))
    return fu.ClientData(train, {"test": test})


clients = {f"site-{number}": client(shift=2 * (number == 0)) for number in range(5)}
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
training = fu.LocalTraining(batch_size=50)
request = fu.Request(fu.flatten(model), tuple(clients), targets=("site-0",))
phases = fu.method["fedosd"](fu.Schedule(20, 0.05, 10, 0.02))

with fu.simulate(model, clients) as federation:
    trained = fu.unlearn([Pretraining(40, 0.1)], request, federation, training=training)
    outcome = fu.unlearn(phases, request.starting_from(trained.state), federation, training=training)
for row in (outcome.metrics[0], outcome.metrics[20], outcome.metrics[-1]):
    print(
        f"{row['stage']:<14} forgotten client {row['target_acc']:.2f}   retained clients {row['r_acc']:.2f}"
    )
