"""Jobs and replies as Flower records: tensors as arrays, everything else as one JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ...core import ClientId, Failure, Job, Mean, Reason, Reply, Statistics, Terms

JOB = "train.job"
"""The type of the messages that carry jobs."""
HELLO = "query.hello"
"""The type of the message that asks a node who it is."""


NUMPY = b"\x93NUMPY"
"""How a saved array begins; what else NumPy could load is not accepted."""


@dataclass(frozen=True)
class Head:
    """What goes with the jobs of one message."""

    token: str
    """Repeated by the reply, so that an old one is noticed."""
    fingerprint: str
    """Of the model that the server has; a node that was restarted with another one refuses the jobs."""
    document: str = ""
    """The signed erasure request, if there is one."""


class Unreadable(Exception):
    """Records that do not hold what they should."""

    def __init__(self, detail: str, reason: Reason = Reason.FIELD) -> None:
        super().__init__(detail)
        self.failure = Failure(reason, f"sent {detail}")


class Arrays:
    """Tensors as arrays, each made once: equal tensors of several messages travel as one object."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, Array]] = {}

    def __call__(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._made:
            self._made[id(tensor)] = tensor, Array(tensor.detach().cpu().contiguous().numpy())
        return self._made[id(tensor)][1]


def tensor(array: Array) -> Tensor:
    """A tensor of one's own from an array."""
    if not array.data.startswith(NUMPY):
        raise Unreadable("an array that is not in NumPy's format")
    try:
        return torch.from_numpy(array.numpy())
    except Exception as error:  # NumPy's parser raises many kinds on bytes that are not its own
        raise Unreadable(f"an array that cannot be read ({type(error).__name__})") from None


def text(content: RecordDict, name: str) -> Any:
    """The JSON text in a record."""
    try:
        return json.loads(str(content.config_records[name]["json"]))
    except (KeyError, ValueError, RecursionError) as error:
        raise Unreadable(f"no readable record {name!r} ({error})") from None


def noted(value: Any) -> ConfigRecord:
    """A record with a JSON text."""
    return ConfigRecord({"json": json.dumps(value)})


def pack_jobs(
    jobs: Mapping[ClientId, tuple[str, Job]], terms: Terms, head: Head, arrays: Arrays
) -> RecordDict:
    """The jobs of one node, each with the holding that it is about."""
    content = RecordDict()
    listed = []
    for number, (client, (holding, job)) in enumerate(jobs.items()):
        listed.append(
            {
                "client": client,
                "holding": holding,
                "work": job.work,
                "config": dict(job.config),
                "buffers": job.buffers is not None,
            }
        )
        content[f"tensors {number}"] = ArrayRecord(
            {
                "params": arrays(job.params),
                **{f"array {name}": arrays(value) for name, value in job.arrays.items()},
                **{f"buffer {name}": arrays(value) for name, value in (job.buffers or {}).items()},
            }
        )
    content["jobs"] = noted(
        {
            "jobs": listed,
            "head": asdict(head),
            "terms": {
                "lr": terms.lr,
                "decay": terms.decay,
                "epochs": terms.epochs,
                "batch_size": terms.batch_size,
                "seed": list(terms.seed),
                "exchange": terms.exchange,
            },
            "shuffle": terms.shuffle,  # beside the terms, where nodes with an older version do not look
        }
    )
    return content


def unpack_jobs(content: RecordDict) -> tuple[Iterator[tuple[ClientId, str, Job]], Terms, Head]:
    """The jobs with their clients and holdings, the terms, and what goes with them."""
    read = text(content, "jobs")
    shuffle = bool(read.get("shuffle"))
    terms = Terms(**{**read["terms"], "seed": tuple(read["terms"]["seed"])}, shuffle=shuffle)

    def jobs() -> Iterator[tuple[ClientId, str, Job]]:
        for number, told in enumerate(read["jobs"]):
            held = _tensors(content, f"tensors {number}")
            yield (
                told["client"],
                told["holding"],
                Job(
                    told["work"],
                    held["params"],
                    _named(held, "array "),
                    told["config"],
                    _named(held, "buffer ") if told["buffers"] else None,
                ),
            )

    return jobs(), terms, Head(**read["head"])


def pack_replies(replies: Mapping[ClientId, Reply | Failure], token: str) -> RecordDict:
    """What the jobs of one message came to."""
    content, arrays = RecordDict(), Arrays()
    listed: list[dict[str, Any]] = []
    for number, (client, reply) in enumerate(replies.items()):
        if isinstance(reply, Failure):
            listed.append({"client": client, "failure": reply.detail})
            continue
        statistics = {
            name: {score: [mean.total, mean.count] for score, mean in means.items()}
            for name, means in reply.statistics.items()
        }
        listed.append({"client": client, "examples": reply.examples, "statistics": statistics})
        content[f"tensors {number}"] = ArrayRecord(
            {
                **({"displacement": arrays(reply.displacement)} if reply.displacement is not None else {}),
                **{f"array {name}": arrays(value) for name, value in reply.arrays.items()},
                **{f"buffer {name}": arrays(value) for name, value in reply.buffers.items()},
            }
        )
    content["replies"] = noted({"token": token, "replies": listed})
    return content


def unpack_replies(content: RecordDict, token: str) -> dict[ClientId, Reply | Failure]:
    """The replies in a message; what they hold is checked by the driver's gate."""
    head = text(content, "replies")
    try:
        if head["token"] != token:
            raise Unreadable("the reply to an earlier message", Reason.STALE)
        return {
            str(told["client"]): Failure(Reason.FAILED, str(told["failure"]))
            if "failure" in told
            else _reply(told, _tensors(content, f"tensors {number}"))
            for number, told in enumerate(head["replies"])
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"a reply without {error}") from None


def _reply(told: Mapping[str, Any], held: Mapping[str, Tensor]) -> Reply:
    statistics: Statistics = {
        str(name): {str(score): Mean(*mean) for score, mean in means.items()}
        for name, means in told["statistics"].items()
    }
    return Reply(
        held.get("displacement"),
        told["examples"],
        statistics,
        _named(held, "array "),
        _named(held, "buffer "),
    )


def _tensors(content: RecordDict, name: str) -> dict[str, Tensor]:
    if name not in content.array_records:
        raise Unreadable(f"no record {name!r}")
    return {key: tensor(array) for key, array in content.array_records[name].items()}


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
