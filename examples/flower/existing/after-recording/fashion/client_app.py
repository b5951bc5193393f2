"""The client: trains and evaluates on the data of its site."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fashion import task
from fedunlearn.engines import flower

app = ClientApp()
flower.introduce(app, lambda context: f"site-{context.node_config['partition-id']}")


def load(msg: Message, context: Context):
    """The model with the weights of the server, and the data of the site."""
    model = task.Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    config = context.run_config
    loaders = task.load_data(config["data"], context.node_config["partition-id"], config["batch-size"])
    return model, *loaders


@app.train()
def train(msg: Message, context: Context) -> Message:
    model, loader, _ = load(msg, context)
    config = msg.content["config"]
    torch.manual_seed(config["server-round"])  # the order of the images
    loss = task.train(model, loader, context.run_config["local-epochs"], config["lr"])
    metrics = {"train_loss": loss, "num-examples": len(loader.dataset)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model, seen, loader = load(msg, context)
    loss, accuracy = task.test(model, loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    metrics["forget_loss"], _ = task.test(model, seen)  # on what the site trained on
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
