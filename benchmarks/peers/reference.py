"""The reference: FedAvg as a plain PyTorch loop, without a framework."""

import sys

import torch
from protocol import epoch, learner, load, parameters, serve


def main() -> None:
    workload = load(sys.argv[1])
    model, optimizer = learner(sys.argv[1])
    batches = [workload.batches(client) for client in workload.clients]
    total = sum(len(y) for y in workload.y)
    current = [parameter.detach().clone() for parameter in model.parameters()]

    @torch.no_grad()
    def assign(values: list[torch.Tensor]) -> None:
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)

    def play() -> None:
        average = [torch.zeros_like(value) for value in current]
        for client in workload.clients:
            assign(current)
            epoch(model, optimizer, batches[client])
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.add_(parameter.detach(), alpha=len(workload.y[client]) / total)
        current[:] = average
        assign(current)

    serve("plain", "torch", "PyTorch loop, torch.optim.SGD, one process", play, lambda: parameters(model))


if __name__ == "__main__":
    main()
