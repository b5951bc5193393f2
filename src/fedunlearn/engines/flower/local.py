"""A grid in this process: every message really is serialised, and no network, Ray or process is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from flwr.app import Context, Error, Message, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Config = Mapping[str, UserConfigValue]


class LocalGrid(Grid):
    """Calls the ClientApp for each message at once; for tests, and for trying an app out.

    Each node has a configuration, and a name if ``names`` are given, as registered SuperNodes have.
    """

    def __init__(
        self,
        app: ClientApp,
        node_configs: Sequence[Config],
        *,
        names: Sequence[str] = (),
        run_config: Config | None = None,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._app = app
        self._numbers = count(1)
        self._replies: dict[str, Message] = {}
        self._contexts = {
            100 + number: Context(
                run_id=1,
                node_id=100 + number,
                node_config=dict(config),
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for number, config in enumerate(node_configs)
        }
        self._names = dict(zip(self._contexts, names, strict=bool(names)))
        self.set_run(Run.create_empty(1))

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=key, name=self._names.get(key, "")) for key in self._contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            identifier = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = identifier
            self._replies[identifier] = self._answer(_sent(message))
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(each) for each in list(message_ids) if each in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        try:
            return _sent(self._app(message, self._contexts[message.metadata.dst_node_id]))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told), reply_to=message)


def _sent(message: Message) -> Message:
    """The message as it arrives on the other side."""
    return message_from_proto(ProtoMessage.FromString(message_to_proto(message).SerializeToString()))
