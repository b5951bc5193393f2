"""Runs a Flower app in this process: ``python in_process.py APP NODES KEY=VALUE …``.

Keys are those of the app's run configuration. Nothing is started: no SuperLink, no SuperNode, no Ray.
"""

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

from fedunlearn.engines import flower

Value = str | int | float


def run(app: Path, nodes: int, config: Mapping[str, Value], names: Sequence[str] = ()) -> None:
    """Calls the ServerApp with a grid that calls the ClientApp; ``names`` are those of registered nodes."""
    about = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    if unknown := config.keys() - about["config"].keys():
        raise SystemExit(f"the app has no key {min(unknown)!r}: it has {', '.join(about['config'])}")
    sys.path.insert(0, str(app))
    client, server = (
        getattr(import_module(module), name)
        for module, name in (about["components"][side].split(":") for side in ("clientapp", "serverapp"))
    )
    config = {**about["config"], **config}
    configs = [{"partition-id": number, "num-partitions": nodes} for number in range(nodes)]
    grid = flower.LocalGrid(client, configs, names=names, run_config=config)
    server(grid, Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config))


def value(text: str) -> Value:
    """A number where it is one."""
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = dict(word.split("=", 1) for word in sys.argv[3:])
    run(Path(sys.argv[1]), int(sys.argv[2]), {key: value(text) for key, text in given.items()})
