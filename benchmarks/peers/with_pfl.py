"""pfl: ``FederatedAveraging`` over ``SimulatedBackend`` in one process.

Every user is a ``PyTorchTensorDataset`` that is created once, so pfl keeps its batches; the sampler takes
each user once per round. ``metrics`` is empty, so that pfl's evaluation in the first iteration costs nothing.
"""

import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from protocol import load, parameters, serve
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class Perceptron(nn.Module):
    """The model with the two methods that pfl requires."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        return {}


def main() -> None:
    workload = load(sys.argv[1])
    module = Perceptron(workload.model())
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    users = [PyTorchTensorDataset((x, y)) for x, y in zip(workload.x, workload.y, strict=True)]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(workload.clients)))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    training = NNTrainHyperParams(
        local_batch_size=workload.batch_size, local_num_epochs=1, local_learning_rate=workload.lr
    )
    algorithm = FederatedAveraging()
    rounds = 0

    def play() -> None:
        nonlocal rounds
        rounds += 1  # a second `run` continues where the first ended
        params = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=len(users),
            val_cohort_size=0,
        )
        algorithm.run(params, backend, model, training, send_metrics_to_platform=False)

    note = "FederatedAveraging, SimulatedBackend, one process"
    serve("pfl", "pfl", note, play, lambda: parameters(module))


if __name__ == "__main__":
    main()
