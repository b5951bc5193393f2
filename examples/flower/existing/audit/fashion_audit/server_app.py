"""The server: asks the sites whether a model has forgotten one of them as well as a retrained one."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fashion_audit.task import Net
from fedunlearn import audit
from fedunlearn.engines import flower

app = ServerApp()


def read(path: Path) -> Net:
    model = Net()
    model.load_state_dict(torch.load(path))
    return model


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, folder = context.run_config, Path(context.run_config["folder"])
    evidence = audit(
        flower.connect(grid, Net(), clients=4),
        read(folder / config["model"]),
        targets=config["forgotten"],
        retrained=read(folder / config["retrained"]) if config["retrained"] else None,
        original=read(folder / "model.pt"),
    )
    print(*evidence.sentences, sep="\n")
