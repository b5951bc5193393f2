"""A desk with a tiny federation: from the request to the purge in no time, and always to the same bits."""

from __future__ import annotations

import hashlib
import os
import secrets
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from support.erasures import controller_key, public_key
from torch import nn

from fedunlearn import ClientData, Examples, Federation, Replies, State, Terms, audit
from fedunlearn.config.tables import UserFile
from fedunlearn.core import Failure, Jobs, Reason, vectors
from fedunlearn.core.hashes import module_hash
from fedunlearn.core.seeds import generator
from fedunlearn.engines import Sequential
from fedunlearn.erasure import Case, Desk, due, erase, open_desk, purge, receive
from fedunlearn.evidence import Evidence
from fedunlearn.experiment.start_model import read_model
from fedunlearn.runs.files import tensor_bytes
from fedunlearn.server import steps
from fedunlearn.signing import request_erasure

CLIENTS = ("site-0", "site-1", "site-2", "site-10")
TARGET = "site-1"
NO_TERMS = Terms()
FEDERATION = "wards"
NOW = 1_900_000_000.0
SETTINGS = f"""
federation = "{FEDERATION}"
controller_key = "controller.key"
model = "model.safetensors"
method = "fedosd"
smallest = 32
floor = 1.0
{{more}}

[schedule]
unlearn_rounds = 3
unlearn_lr = 0.5
recover_rounds = 3
recover_lr = 0.05

[training]
batch_size = 16

[clients]
{{clients}}
"""


def network(seed: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3))


@cache
def holdings() -> dict[str, ClientData]:
    """Small clients; a quarter of the labels is random, so that there is something to forget."""
    found = {}
    for client in CLIENTS:
        random = generator("desk", client)
        size = 137 if client == TARGET else 37
        x = torch.randn(size, 20, generator=random)
        noise = torch.rand(size, generator=random) < 0.25
        y = torch.where(noise, torch.randint(0, 3, (size,), generator=random), x[:, :3].argmax(1))
        unseen = torch.randn(40, 20, generator=random)
        found[client] = ClientData(Examples(x, y), {"test": Examples(unseen, unseen[:, :3].argmax(1))})
    return found


@cache
def trained() -> bytes:
    """The file of a model that has seen all clients."""
    model = network()
    rows = [held.train for held in holdings().values()]
    x, y = torch.cat([each.x for each in rows]), torch.cat([each.y for each in rows])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return tensor_bytes(model.state_dict())


def federation() -> Federation:
    return Sequential(network(), holdings())


class Unsteady:
    """The same federation, some of whose clients are not there in some exchanges.

    ``absent`` tells of a client and the number of an exchange; measuring and auditing count, too.
    """

    def __init__(self, absent: Callable[[str, int], bool] = lambda client, number: False) -> None:
        self._whole, self._absent = federation(), absent
        self.task = self._whole.task
        self.exchanges = 0
        self.rounds = 0
        """Exchanges in which somebody trained."""

    def present(self) -> frozenset[str]:
        there = self._whole.present()
        return frozenset(client for client in there if not self._absent(client, self.exchanges + 1))

    def exchange(self, jobs: Jobs, terms: Terms = NO_TERMS) -> Replies:
        self.exchanges += 1
        self.rounds += any(job.work == "train" for job in jobs.values())
        there = {client: job for client, job in jobs.items() if not self._absent(client, self.exchanges)}
        replies = self._whole.exchange(there, terms) if there else Replies({})
        lost = {client: Failure(Reason.ABSENT, "is switched off") for client in jobs.keys() - there.keys()}
        return Replies(dict(replies), {**replies.missing, **lost})


def make(folder: Path, more: str = "", clients: tuple[str, ...] = CLIENTS) -> Path:
    """A desk that has heard of nobody yet."""
    (folder / "clients").mkdir(parents=True)
    (folder / "controller.key").write_bytes(controller_key())
    (folder / "controller.pub").write_bytes(public_key())
    for client in clients:
        (folder / "clients" / f"{client}.pub").write_bytes(public_key(client))
    listed = "\n".join(f'"{client}" = "clients/{client}.pub"' for client in clients)
    (folder / "desk.toml").write_text(SETTINGS.format(clients=listed, more=more))
    (folder / "model.safetensors").write_bytes(trained())
    return folder


def opened(folder: Path, now: float = NOW) -> Desk:
    return open_desk(folder, clock=lambda: now)


def production(desk: Desk) -> nn.Module:
    assert desk.policy.model is not None
    model = network()
    vectors.load(model, read_model(UserFile(path=desk.folder / desk.policy.model), model))
    return model


@cache
def first_model() -> str:
    """The hash of the model that a new desk serves."""
    model = network()
    model.load_state_dict(load(trained()))
    return module_hash(model)


@cache
def document(client: str = TARGET, number: int = 0, model: str = "") -> str:
    """A signed request, the same in every run."""
    with pytest.MonkeyPatch.context() as patch:
        nonce = hashlib.sha256(f"{client} {number}".encode()).hexdigest()[:32]
        patch.setattr(secrets, "token_hex", lambda size: nonce)
        return request_erasure(
            client, FEDERATION, model or first_model(), controller_key(client), now=NOW - 60
        )


def judge(there: Federation, client: str, after: State, original: State) -> Evidence:
    """Compares with a model that somebody else trained."""
    other = network(2)
    retrained = State(vectors.flatten(other), buffers=vectors.buffers(other))
    return audit(there, after, targets=client, retrained=retrained, original=original)


def answer(
    desk: Desk,
    text: str,
    there: Federation | None = None,
    *,
    client: str = TARGET,
    to_purge: bool = True,
) -> Case:
    """What the command ``erase`` does; the same call continues after a crash."""
    there = there or federation()
    case = receive(desk, text, module_hash(production(desk)))
    if not case.purging:
        case = erase(
            desk, case.id, there, production(desk), auditor=partial(judge, there, client), engine="simulated"
        )
    if case.purging or (to_purge and due(desk, case)):
        case = purge(desk, case.id)
    return case


@contextmanager
def repeatable() -> Iterator[None]:
    """Secrets are always the same, every round is saved, and the disk need not work."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Keys and what encrypts with them; the names of temporary files stay random.
        fixed, drawn = hashlib.sha512(b"secret").digest(), secrets.token_bytes
        patch.setattr(secrets, "token_bytes", lambda size: fixed[:size] if size in (7, 32) else drawn(size))
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(steps, "run_in", partial(steps.run_in, checkpoint_seconds=0))
        yield


def way(folder: Path, text: str | None = None, client: str = TARGET) -> Case:
    """A request from its receipt to the purge."""
    with repeatable():
        return answer(opened(folder), text or document(client), client=client)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith("lock")
    }


def started(work: Callable[[], object]) -> int:
    """The process of a child that works; it ends with 0 if nothing goes wrong."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child
