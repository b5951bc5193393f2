"""Two requests, one after the other: does the first client stay forgotten, with and without its anchor?

    python examples/successive_requests.py [SEEDS]

Ten clients hold the embedded Fashion-MNIST; two of them plant a backdoor each. FedOSD forgets one, then
the other. In the second request the anchor of the first keeps post-training from moving back towards the
model that knew it.
"""

import sys
from tempfile import TemporaryDirectory

import torch
from torch import nn

import fedunlearn as fu
from fedunlearn.data import load, poison, populate, trigger

FIRST, SECOND = "client-1", "client-6"
TRAINING = fu.LocalTraining(batch_size=20)


def federation(seed: int) -> dict[str, fu.ClientData]:
    data = load("fashion-demo")
    clients = populate(
        data, partition="pat-50", clients=10, seed=seed, batch_size=20, backdoor=False
    ).pretraining
    held = {
        name: fu.ClientData(one.train, {"test": one.evaluations["test"]}) for name, one in clients.items()
    }
    for number, name in enumerate((FIRST, SECOND)):
        mark = trigger(100 * seed + number, data.train.x.shape[1:])
        poisoned = poison(held[name].train, mark, data.classes, share=1.0, batch_size=20)
        held[name] = fu.ClientData(poisoned, {**held[name].evaluations, "backdoor": poisoned})
    return held


def attack_success(server: fu.Server, client: str, held: dict[str, fu.ClientData]) -> float:
    """How often the client's backdoor works, whether or not the client is still there."""
    job = fu.Job("measure", server.state.params, buffers=server.state.buffers)
    alone = fu.Sequential(server.model, {client: held[client]})
    return alone.exchange({client: job})[client].statistics["backdoor"]["accuracy"].value


def requests(seed: int, anchored: bool, folder: str) -> list[tuple[float, float, float]]:
    """ASR of both clients and R-Acc: after training, after the first request, after the second."""
    held = federation(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    server = fu.Server(model, held, folder=folder, training=TRAINING, seed=seed)
    schedule = fu.Schedule(20, 0.02, 60, 0.1)
    rows = []
    for step in (
        lambda: server.train(rounds=200, lr=0.1),
        # Guards would protect the second backdoor.
        lambda: server.forget(FIRST, "fedosd", schedule, guards=None),
        lambda: server.forget(SECOND, "fedosd", schedule, guards=None),
    ):
        if not anchored:
            server.anchors = ()
        r_acc = step().metrics[-1]["r_acc"]
        rows.append((*(attack_success(server, client, held) for client in (FIRST, SECOND)), r_acc))
    return rows


if __name__ == "__main__":
    print("seed  anchor   trained              first request        second request   (ASR 1 / ASR 2 / R-Acc)")
    for seed in range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 3)):
        for anchored in (True, False):
            with TemporaryDirectory() as folder:
                rows = requests(seed, anchored, folder)
            shown = "   ".join(" / ".join(f"{value:.3f}" for value in row) for row in rows)
            print(f"{seed:<5} {'yes' if anchored else 'no':<6} {shown}", flush=True)
