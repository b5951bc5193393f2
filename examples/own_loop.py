"""FedOSD in your own training loop, with ``fedunlearn.maths`` only."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedunlearn.maths import orthogonal_direction, project_off, unlearning_cross_entropy

torch.manual_seed(0)
centres = 3 * torch.randn(4, 8)
clients = []
for _ in range(5):
    y = torch.randint(0, 4, (200,))
    clients.append((centres[y] + torch.randn(200, 8), y))
x, y = clients[0]
# The client to forget has shifted inputs and wrong labels.
clients[0] = (x + 6 * torch.eye(8)[0], (y + 2) % 4)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
parameters = list(model.parameters())


def gradient(loss):
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])


def move(step):
    with torch.no_grad():
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters) + step, parameters)


def accuracy(data):
    return float((model(data[0]).argmax(1) == data[1]).float().mean())


def report(when):
    kept = sum(accuracy(client) for client in clients[1:]) / 4
    print(f"{when:<16} forgotten client {accuracy(clients[0]):.2f}   retained clients {kept:.2f}")


for _ in range(300):  # ordinary federated training: the mean of all gradients
    move(-0.1 * torch.stack([gradient(cross_entropy(model(x), y)) for x, y in clients]).mean(0))
report("trained")

start = nn.utils.parameters_to_vector(parameters).detach().clone()
forget, retained = clients[0], clients[1:]
for _ in range(60):  # unlearning: descend the unlearning loss, orthogonally to every retained gradient
    g_u = gradient(unlearning_cross_entropy(model(forget[0]), forget[1]))
    G = torch.stack([gradient(cross_entropy(model(x), y)) for x, y in retained])
    move(0.1 * orthogonal_direction(g_u, G).vector)
report("unlearned")

for _ in range(60):  # post-training: retained clients only, never back to the start
    away = nn.utils.parameters_to_vector(parameters).detach() - start
    G = [project_off(gradient(cross_entropy(model(x), y)), away) for x, y in retained]
    move(-0.1 * torch.stack(G).mean(0))
report("post-trained")
