"""Prints one line of JSON for every node and round."""

import json
import time

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

DEADLINE = 240.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Asks all nodes once a round."""
    start = time.monotonic()
    while len(list(grid.get_nodes())) < int(context.run_config["nodes"]):
        if time.monotonic() - start > DEADLINE:
            raise TimeoutError("too few nodes are online")
        time.sleep(0.1)
    for number in range(int(context.run_config["rounds"])):
        ask(grid, number)
    if context.run_config["fault"]:
        raise RuntimeError(context.run_config["fault"])


def ask(grid: Grid, number: int) -> None:
    """Pushes one query to each node that is online and prints each answer as it arrives."""
    start = time.monotonic()
    nodes = list(grid.get_nodes())
    messages = [Message(RecordDict(), node.node_id, "query", ttl=DEADLINE) for node in nodes]
    # An error that the SuperLink reports for a lost node does not come from that node.
    pending = dict(zip(grid.push_messages(messages), nodes, strict=True))
    print(f"round {number}: asked {len(pending)} nodes", flush=True)
    while pending:
        if time.monotonic() - start > DEADLINE:
            raise TimeoutError(f"{len(pending)} nodes did not answer")
        for reply in grid.pull_messages(list(pending)):
            node = pending.pop(reply.metadata.reply_to_message_id)
            line = {
                "round": number,
                "name": node.name,
                "status": str(node.status),
                "key": node.public_key.decode(errors="replace"),
                "seconds": round(time.monotonic() - start, 2),
                "own": reply.metadata.src_node_id == node.node_id,
            }
            if reply.has_error():
                line["error"] = f"{reply.error.code}: {reply.error.reason}"
            else:
                line["config"] = json.loads(str(reply.content["answer"]["node-config"]))
            print("ANSWER " + json.dumps(line), flush=True)
        time.sleep(0.1)
