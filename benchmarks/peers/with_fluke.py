"""fluke: its ``FedAVG`` with its own clients, server and data loaders in one process.

The server weights clients by their number of examples. Evaluation is switched off, and so is ``finalize``,
which would evaluate all clients after every run and close fluke's cache.

fluke imports torchvision for datasets that are not used here, and the published torchvision does not load
with a CPU build of torch, so an empty module replaces it.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


class Empty(ModuleType):
    """Whatever is imported from it is a class without content."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


for name in ("torchvision", "torchvision.transforms", "torchvision.datasets", "torchvision.models"):
    sys.modules[name] = Empty(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)

from fluke import FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402
from protocol import load, parameters, serve  # noqa: E402
from torch.nn import CrossEntropyLoss  # noqa: E402


class Averaging(FedAVG):
    """Trains without evaluation."""

    def finalize(self) -> None:
        pass


def main() -> None:
    workload = load(sys.argv[1])
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimizer = OptimizerConfigurator(
        {"name": "SGD", "lr": workload.lr}, {"name": "StepLR", "step_size": sys.maxsize}
    )
    clients = [
        Client(
            client,
            FastDataLoader(x, y, num_labels=10, batch_size=workload.batch_size),
            None,
            optimizer,
            CrossEntropyLoss(),
            local_epochs=1,
        )
        for client, (x, y) in enumerate(zip(workload.x, workload.y, strict=True))
    ]
    server = Server(workload.model(), None, clients, weighted=True)
    algorithm = Averaging(len(clients), None, {}, clients, server)

    def play() -> None:
        algorithm.run(1, 1.0)

    note = "FedAVG, one process; torchvision replaced by an empty module"
    serve("fluke", "fluke-fl", note, play, lambda: parameters(server.model))


if __name__ == "__main__":
    main()
