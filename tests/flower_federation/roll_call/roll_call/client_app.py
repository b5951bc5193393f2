"""Answers with what a node knows about itself."""

import json
import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """The node's configuration, after the time that the run asks for."""
    time.sleep(float(context.run_config["seconds"]))
    record = ConfigRecord({"node-config": json.dumps(context.node_config)})
    return Message(RecordDict({"answer": record}), reply_to=message)
