"""Flower apps on the small federations of ``federations.py``, and grids on which things go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from support.federations import PUBLIC, holdings, network
from torch import nn
from torch.nn.functional import cross_entropy

from fedunlearn import Sequential
from fedunlearn.engines import Joined, flower, join
from fedunlearn.maths import unlearning_cross_entropy

CLIENTS = tuple(f"site-{number}" for number in range(5))
FIRST = 100
"""The id of the first node in a grid of this process."""
QUICK = flower.Patience(reply=5.0, absence=0.3)

Handler = Callable[[Message, Context], Message]


def number_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def served(name: str, load: Callable[[Context], flower.Site] | None = None) -> ClientApp:
    """An app whose clients run our code on the data of the federation of that name."""
    data = holdings(name)

    def own(context: Context) -> flower.Site:
        client = f"site-{number_of(context)}"
        return flower.Site(network(name), data[client], name=client)

    app = ClientApp()
    flower.serve(app, load or own)
    return app


def existing(name: str, build: Callable[[], nn.Module] | None = None) -> ClientApp:
    """An app with a training function of its own: two steps of SGD with momentum on all of its data."""
    app, data = ClientApp(), holdings(name)
    build = build or (lambda: network(name))

    def trained(message: Message, context: Context, criterion: Any = cross_entropy) -> Message:
        model, held = build(), data[f"site-{number_of(context)}"].train
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        lr = float(message.content.config_records["config"]["lr"])
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        for _ in range(2):
            optimiser.zero_grad()
            loss = criterion(model(held.x), held.y)
            loss.backward()
            optimiser.step()
        return answer(message, model, {"train_loss": loss.item(), "num-examples": len(held.y)})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return trained(message, context)

    @app.train("uce")
    def forget(message: Message, context: Context) -> Message:
        flower.require_request(message, context)
        return trained(message, context, unlearning_cross_entropy)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model, held = build(), data[f"site-{number_of(context)}"].train
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        right = (model.eval()(held.x).argmax(1) == held.y).float().mean().item()
        metrics = {"eval_acc": right, "forget_acc": right, "num-examples": len(held.y)}
        return answer(message, None, metrics)

    return app


def answer(message: Message, model: nn.Module | None, metrics: Mapping[str, float]) -> Message:
    content = RecordDict({"metrics": MetricRecord(dict(metrics))})
    if model is not None:
        content["arrays"] = ArrayRecord(model.state_dict())
    return Message(content, reply_to=message)


def grid(app: Any, *, names: Sequence[str] = CLIENTS, nodes: int = 5, **config: Any) -> Grid:
    return Grid(app, [{"partition-id": number, **config} for number in range(nodes)], names=names)


def connected(name: str, app: Any = None, **options: Any) -> flower.FlowerFederation:
    return flower.connect(
        grid(app or served(name)),
        network(name),
        clients=5,
        patience=options.pop("patience", QUICK),
        **options,
    )


def with_public(name: str, federation: flower.FlowerFederation) -> Joined:
    here = {PUBLIC: holdings(name, public=True)[PUBLIC]}
    return join(federation, Sequential(network(name), here))


class Grid(flower.LocalGrid):
    """A grid in this process whose nodes can disappear, and whose replies can be held back."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.gone: set[int] = set()
        """Ids of nodes that are neither listed nor reached."""
        self.silent: set[int] = set()
        """Ids of nodes that take messages and never answer."""
        self.pushed: list[Message] = []
        self.listings = 0
        self.on_listing: Callable[[int], None] = lambda number: None
        """Called with the number of times that the nodes have been asked for."""

    def get_nodes(self) -> Iterable[Any]:
        self.listings += 1
        self.on_listing(self.listings)
        return [node for node in super().get_nodes() if node.node_id not in self.gone]

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in super().get_node_ids() if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        accepted = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.pushed.append(message)
            if node in self.silent:
                accepted.append(f"never-{len(self.pushed)}")
            elif node in self.gone:
                accepted.append("")  # as a real SuperLink answers
            else:
                accepted += super().push_messages([message])
        return accepted


class Registered(Grid):
    """A grid whose nodes have keys, as with authenticated SuperNodes."""

    def __init__(self, *arguments: Any, keys: Sequence[bytes], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.keys = list(keys)

    def get_nodes(self) -> Iterable[Any]:
        nodes = list(super().get_nodes())
        for node in nodes:
            node.public_key = self.keys[node.node_id - FIRST]
        return nodes


def new_keys() -> tuple[bytes, bytes]:
    """A private and a public key, as a registered SuperNode has them."""
    key = ec.generate_private_key(ec.SECP384R1())
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )
