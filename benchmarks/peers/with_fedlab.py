"""FedLab: ``StandalonePipeline`` with its FedAvg handler and serial trainer in one process.

FedLab averages without weights by default, so the trainer uploads its number of examples and the handler
passes it to FedLab's own ``fedavg_aggregate``. ``get_dataloader`` returns precomputed batches, which is
faster than a ``DataLoader``.

FedLab imports torchvision for datasets that are not used here, and the published torchvision does not load
with a CPU build of torch, so an empty module replaces it.
"""

import sys
from types import ModuleType

sys.modules["torchvision"] = ModuleType("torchvision")
sys.modules["torchvision.transforms"] = sys.modules["torchvision"].transforms = ModuleType("transforms")

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402
from fedlab.utils import Aggregators  # noqa: E402
from protocol import Batches, Workload, load, parameters, serve  # noqa: E402
from torch import Tensor  # noqa: E402


class Resident(FedDataset):
    """All batches of all clients, in memory."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.num = len(workload.clients)
        self._batches = [workload.batches(client) for client in workload.clients]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Batches:
        return self._batches[id]


class Trainer(FedAvgSerialClientTrainer):
    """Uploads the number of examples with the parameters."""

    def train(self, model_parameters: Tensor, train_loader: Batches) -> list[Tensor | int]:
        return [*super().train(model_parameters, train_loader), sum(len(y) for _, y in train_loader)]


class Handler(FedAvgServerHandler):
    """Averages by the number of examples."""

    def global_update(self, buffer: list[list[Tensor | int]]) -> None:
        models, examples = zip(*buffer, strict=True)
        self.set_model(Aggregators.fedavg_aggregate(list(models), list(examples)))


class Pipeline(StandalonePipeline):
    """Trains without evaluation."""

    def evaluate(self) -> None:
        pass


def main() -> None:
    workload = load(sys.argv[1])
    model = workload.model()
    trainer = Trainer(model, num_clients=len(workload.clients))
    trainer.setup_dataset(Resident(workload))
    trainer.setup_optim(epochs=1, batch_size=workload.batch_size, lr=workload.lr)
    handler = Handler(model, global_round=0, sample_ratio=1.0)
    pipeline = Pipeline(handler, trainer)

    def play() -> None:
        handler.global_round += 1
        pipeline.main()

    note = "StandalonePipeline, serial trainer, one process; torchvision replaced by an empty module"
    serve("fedlab", "fedlab", note, play, lambda: parameters(handler.model))


if __name__ == "__main__":
    main()
