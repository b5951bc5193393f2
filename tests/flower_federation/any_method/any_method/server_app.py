"""Runs one method after the other and writes the hash of each final model."""

import json
import sys
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedunlearn
from fedunlearn import Sequential
from fedunlearn.engines import flower, join
from fedunlearn.runs import model_hash

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    sys.path.append(str(config["tests"]))
    from support.federations import PUBLIC, TRAINING, forget, holdings, network

    name, found = str(config["model"]), {}
    patience = flower.Patience(float(config["reply"]), float(config["absence"]))
    federation = flower.connect(grid, network(name), clients=int(config["nodes"]), patience=patience)
    if config["folder"]:
        model, rounds = network(name), int(config["rounds"])
        fedunlearn.forget(
            federation,
            model,
            ["site-2"],
            Path(str(config["folder"])),
            method=str(config["methods"]),
            schedule=fedunlearn.Schedule(rounds, 0.02, rounds, 0.02),
            training=TRAINING,
        )
        Path(str(config["report"])).write_text(json.dumps(fedunlearn.module_hash(model)))
        return
    public = {PUBLIC: holdings(name, public=True)[PUBLIC]}
    for how in str(config["methods"]).split():
        started = time.perf_counter()
        members = join(federation, Sequential(network(name), public)) if how == "fedkdu" else federation
        outcome = forget(how, name, members, rounds=int(config["rounds"]))
        found[how] = {
            "sha256": model_hash(outcome.state),
            "status": outcome.status,
            "seconds": time.perf_counter() - started,
        }
        Path(str(config["report"])).write_text(json.dumps(found))
