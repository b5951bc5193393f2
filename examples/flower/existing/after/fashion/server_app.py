"""The server: federated averaging, then the trained weights go to a file."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fashion.task import Net
from fedunlearn import Schedule, forget
from fedunlearn.engines import flower

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, folder = context.run_config, Path(context.run_config["folder"])
    torch.manual_seed(0)  # the first weights
    model = Net()
    if config["forget"]:
        model.load_state_dict(torch.load(folder / "model.pt"))
        federation = flower.connect_existing(grid, model, clients=4)
        plan = Schedule(pretrain_lr=config["learning-rate"])
        options = {"method": "retrain", "rounds": config["num-server-rounds"], "evaluate_every": 5}
        forget(federation, model, [config["forget"]], folder, schedule=plan, **options)
        torch.save(model.state_dict(), folder / f"model-without-{config['forget']}.pt")
        return
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, min_available_nodes=4)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    torch.save(result.arrays.to_torch_state_dict(), folder / "model.pt")
