"""The request, the methods and the environments of the runs, in sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.registry import method
from .conclusions import in_turn
from .runs import Collection, Run
from .settings import flat, setting, shared, typical

UNTOLD = {("data", "sha256"), ("data", "evaluations")}
"""Settings that hold nothing but digests."""

BACKDOOR = "a backdoor that shows whether the data is forgotten"


def request(collection: Collection) -> list[str]:
    """The request in sentences, limited to the settings that all runs share."""
    config = shared(run.config for run in collection.runs)
    sentences = (
        _trained(config, collection.runs),
        _poisoned(config),
        _requested(config, collection.runs),
        _scheduled(config, collection.runs),
    )
    return [*collection.members, *(sentence for sentence in sentences if sentence)]


def _trained(config: Mapping[str, Any], runs: Sequence[Run]) -> str:
    data = setting(config, "data") or {}
    count = len({name.partition("#")[0] for name in data.get("names", ())}) or data.get("clients")
    clients = f"{count} clients" if count else "Clients"
    model = f" the model {config['model']}" if "model" in config else " a model"
    share = data.get("fraction", 1.0)
    part = f" ({share:.0%} of it)" if isinstance(share, float) and share < 1 else ""
    dataset = f" on {data['dataset']}{part}" if "dataset" in data else ""
    partition = f", partitioned by {data['partition']}" if "partition" in data else ""
    rounds = setting(config, "pretraining", "rounds")
    duration = f", in {rounds} rounds of federated averaging" if rounds else ""
    result = "" if any(run.trains for run in runs) else " The result is ω⁰."
    return f"{clients} trained{model}{dataset}{partition}{duration}.{result}"


def _poisoned(config: Mapping[str, Any]) -> str:
    if not setting(config, "backdoor", "enabled"):
        return ""
    if setting(config, "request", "level") == "client":
        share = setting(config, "backdoor", "pretrain_share")
        part = f"{share:.0%} of its training images" if isinstance(share, float) else "its training images"
        return f"Each client to forget put a trigger and a wrong label on {part}: {BACKDOOR}."
    return f"The data to forget had a trigger and a wrong label: {BACKDOOR}."


def _requested(config: Mapping[str, Any], runs: Sequence[Run]) -> str:
    request = setting(config, "request") or {}
    targets = request.get("targets", 1)
    if isinstance(targets, int):
        who = "one client, chosen by the seed" if targets == 1 else f"{targets} clients, chosen by the seed"
        names = {in_turn(run) for run in runs if run.targets}
        who += f" ({names.pop()})" if len(names) == 1 else ""
    else:
        who = targets if isinstance(targets, str) else ", ".join(map(str, targets))
    if all(run.parts for run in runs):
        names = {in_turn(run) for run in runs}
        who = f"{names.pop()} (Target acc is left out: they have no test data of their own)"
    if request.get("successive"):
        who += (
            ", one after the other, each with the whole schedule. Scores and curves are those of the last "
            "request, which starts from the model that the others left behind; costs are those of all"
        )
    level = request.get("level")
    if level == "class":
        return f"The request: forget class {request.get('label')} at all clients that hold it."
    if level == "sample" and isinstance(request.get("share"), float):
        return f"The request: forget {request['share']:.0%} of the examples of {who}."
    return f"The request: forget {who}." if level == "client" or "examples" in request else ""


def _scheduled(config: Mapping[str, Any], runs: Sequence[Run]) -> str:
    """The method, its schedule and the seed; the planned schedule unless all runs had the same."""
    name = config.get("method")
    begun = {run.config.get("start") for run in runs}
    several = (
        "The steps follow one another" if len(begun) > 1 else "The methods are compared on the same schedule"
    )
    subject = f"The method: {name}" if name else several
    steps = _steps(runs[0])
    planned = not all(run.ended and _steps(run) == steps for run in runs)
    if planned:
        steps = [
            f"{plan['rounds']} rounds of {stage} at learning rate {plan['lr']:g}"
            for key, stage in (("unlearning", "unlearning"), ("recovery", "post-training"))
            if (plan := setting(config, key)) and {"rounds", "lr"} <= plan.keys()
        ]
    schedule = ("planned: " if planned else "") + ", then ".join(steps)
    seed = f"; seed {config['seed']}" if "seed" in config else ""
    return f"{subject}; {schedule}{seed}." if steps else f"{subject}{seed}."


def _steps(run: Run) -> list[str]:
    """The stages of a run, with their rounds and their learning rate before decay."""
    decay, before, steps = setting(run.config, "training", "decay") or 1.0, 0, []
    for stage in ("unlearning", "post-training"):
        rows = [row for row in run.rows if row["stage"] == stage and "lr" in row]
        if rows and (count := int(rows[-1]["elapsed"]) - before):
            rate = float(rows[0]["lr"]) / decay**before
            steps.append(f"{count} round{'s' * (count > 1)} of {run.stage(stage)} at learning rate {rate:g}")
            before += count
    return steps


def methods(collection: Collection) -> list[tuple[str, str, str]]:
    """Name, summary and paper of each method in the runs that is registered."""
    known = {entry.name: entry.about for entry in method}
    used = dict.fromkeys(str(run.config.get("method", "")) for run in collection.runs)
    entries = [(name, known[name]) for name in used if name in known]
    return [(name, about.get("summary", "-"), about.get("paper", "-")) for name, about in entries]


def differing(collection: Collection) -> list[tuple[str, list[str]]]:
    """The settings in which each row differs from most rows; the method only if it is not the row's name."""
    if len(collection.rows) == 1:
        return []
    common = typical([run.config for run in collection.runs])
    if not collection.comparison:
        common = flat(shared(run.config for run in collection.runs))
    found = []
    for row, runs in collection.rows.items():
        config = flat(runs[0].config)
        values = {
            path: value
            for path, value in config.items()
            if value is not None and common.get(path) != value and path[:2] not in UNTOLD
        }
        if ("data", "names") in config:
            values.pop(("data", "clients"), None)  # it counts the virtual clients, too
        if values.get(("method",)) == row:
            del values["method",]
        if collection.comparison:
            values.pop(("seed",), None)
        told = {path: value[:8] if _digest(value) else value for path, value in values.items()}
        found.append((row, [f"{'.'.join(path)} = {value}" for path, value in told.items()]))
    return [(row, changes) for row, changes in found if changes]


def _digest(value: Any) -> bool:
    """Return whether a setting is a SHA-256."""
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def environments(collection: Collection) -> list[tuple[Mapping[str, Any], list[str]]]:
    """Each environment, with its runs."""
    found: list[tuple[Mapping[str, Any], list[str]]] = []
    for row, run in collection.labelled:
        same = [rows for environment, rows in found if environment == run.environment]
        if same:
            same[0].append(row)
        else:
            found.append((run.environment, [row]))
    return found
