"""The whole way of an erasure request on Flower: a desk in the ServerApp, keys of the SuperNodes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from erasures import controller_key, public_key
from flower_apps import FIRST, QUICK, Registered, new_keys
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import load_file
from torch import nn

import fedunlearn as fu
from fedunlearn import ClientData, FedUnlearnError, Sequential, request_erasure
from fedunlearn.authority import Refusal, Refused
from fedunlearn.core import Federation, State
from fedunlearn.data import load as load_images
from fedunlearn.engines import flower, join
from fedunlearn.erasure import (
    Case,
    Claim,
    Desk,
    Standing,
    against_retraining,
    erase,
    open_desk,
    plan_erasure,
    purge,
    receive,
    verify,
)
from fedunlearn.record import read_tensors

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "erasure"
SITES = [f"site-{number}" for number in range(3)]
KEYS = {site: new_keys() for site in SITES}
TARGET = "site-2"
SETTINGS = """
federation = "hospitals"
controller_key = "controller.key"
model = "model.safetensors"
method = "fedosd"
[schedule]
unlearn_rounds = 3
unlearn_lr = 0.1
recover_rounds = 2
recover_lr = 0.05
pretrain_lr = 0.1
[training]
batch_size = 20
[clients]
"""
pytestmark = pytest.mark.filterwarnings(
    # True of a few rounds on few examples, and not the subject here.
    "ignore:a step of ",
    "ignore:the update of ",
    "ignore:a step was lengthened",
    "ignore:the targets' own unlearning loss",
    "ignore:the loss on the data to be forgotten",
)


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 8), nn.ReLU(), nn.Linear(8, 10))


def held(number: int) -> ClientData:
    """A hundred images to learn, and others to test and to audit with."""
    images = load_images("fashion-demo").train
    x, y = images.x[number::3], images.y[number::3]
    return ClientData((x[:100], y[:100]), {"test": (x[100:150], y[100:150]), "audit": (x[150:250], y[150:250])})


def client_app() -> ClientApp:
    app = ClientApp()
    flower.serve(app, lambda context: flower.Site(build(), held(int(context.node_config["partition-id"]))))
    return app


def nodes(folder: Path, app: Any = None, names: tuple[str, ...] | list[str] = SITES, **config: Any) -> Registered:
    """Nodes that demand a request signed with their own key before they forget."""
    configs = [
        {"partition-id": number, "erasure-key": str(folder / "clients" / f"{site}.pub")}
        for number, site in enumerate(SITES)
    ]
    keys = [public for _, public in KEYS.values()]
    return Registered(app or client_app(), configs, names=names, keys=keys, run_config=config)


def connected(folder: Path, **options: Any) -> flower.FlowerFederation:
    return flower.connect(nodes(folder, **options), build(), clients=3, patience=QUICK)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """The model in production."""
    federation = Sequential(build(), {site: held(number) for number, site in enumerate(SITES)})
    request = fu.Request(fu.flatten(build()), tuple(SITES), ())
    trained, module = fu.pretrain(request, federation, 4, 0.2), build()
    fu.core.vectors.load(module, State(trained.params))
    return module


def new_desk(folder: Path, settings: str = SETTINGS) -> Path:
    (folder / "clients").mkdir(parents=True)
    (folder / "controller.key").write_bytes(controller_key())
    for site, (_, public) in KEYS.items():
        (folder / "clients" / f"{site}.pub").write_bytes(public)
    listed = "\n".join(f'"{site}" = "clients/{site}.pub"' for site in SITES)
    (folder / "desk.toml").write_text(f"{settings}{listed}\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return new_desk(tmp_path / "desk")


def signed(model: nn.Module, client: str = TARGET, key: str | None = None, **options: Any) -> str:
    return request_erasure(client, "hospitals", fu.module_hash(model), KEYS[key or client][0], **options)


def copy_of(model: nn.Module) -> nn.Module:
    module = build()
    module.load_state_dict(model.state_dict())
    return module


def answered(
    desk: Desk,
    request: str,
    federation: Federation,
    model: nn.Module,
    listener: Callable[[Any], None] = lambda event: None,
    **options: Any,
) -> Case:
    auditor = against_retraining(desk, request, federation, model, rounds=4)
    return erase(
        desk, request, federation, copy_of(model), auditor=auditor, listeners=[listener], **options
    )
