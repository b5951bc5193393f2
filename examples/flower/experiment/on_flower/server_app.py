"""The server of an experiment: the one that ``fedunlearn run`` has, with clients on Flower."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedunlearn import Federation, Stage
from fedunlearn.engines import flower
from fedunlearn.experiment import perform, read

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    experiment = read(Path(context.run_config["experiment"]))

    def clients(model: nn.Module, stage: Stage) -> Federation:
        part = "pretraining" if stage is Stage.PRETRAINING else None
        return flower.connect(grid, model, clients=experiment.data.clients, part=part)

    perform(experiment, Path(context.run_config["folder"]), elsewhere=clients)
