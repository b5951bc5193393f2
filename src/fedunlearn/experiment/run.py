"""A whole run in its folder: pre-training, unlearning, post-training; begun, or continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from ..core import Federation, FedUnlearnError, History, Listener, Outcome, Stage, State, Vector, requirements
from ..driver import Below, Conflicts
from ..driver.preconditions import too_few
from ..engines import require
from ..runs import (
    Folder,
    earlier,
    environment,
    fingerprint,
    json_bytes,
    model_hash,
    read_json,
    read_state,
    tell_unverified,
    verify,
)
from ..runs.running import RunFolder, conclude, finished, run_in
from .pretraining import pretrained
from .reading import check
from .settings import Experiment
from .setup import Setting, arithmetic, prepare
from .turns import Turn, turns

EARLIER = "earlier request"
"""The kind of a run folder in which a request before the last was answered."""


def perform(
    experiment: Experiment,
    folder: Path,
    listeners: Sequence[Listener] = (),
    *,
    checkpoint_seconds: float = 5.0,
    workers: int | None = None,
    elsewhere: Callable[[nn.Module, Stage], Federation] | None = None,
) -> Outcome:
    """Run the experiment in a folder, or go on with what the folder already holds.

    ``workers`` (one for each core, unless given) decides about time, not about the result, and so does
    ``elsewhere``, which connects with clients on other machines for a stage.

    Successive requests before the last are run in ``earlier/1`` and so on. Where one of them fails, the run
    ends with its status.
    """
    require(experiment.device, experiment.precision)
    if elsewhere is not None and experiment.request.successive:
        raise FedUnlearnError(
            "request.successive = true: clients elsewhere know one request, so successive ones are only "
            "simulated; set it to false, or use fedunlearn.Server with the federation",
            code="unsuitable",
        )
    config = experiment.model_dump(mode="json")
    setting = replace(prepare(experiment), elsewhere=elsewhere)
    _require_enough(setting)
    with RunFolder(folder) as run:
        _require_own(run, config)
        files = run.claim(fingerprint(config))
        if "omega0.safetensors" not in files:
            begun = {"experiment.json": config, "environment.json": environment()}
            files.write({name: json_bytes(value) for name, value in begun.items()})
            omega0 = pretrained(setting, listeners, checkpoint_seconds=checkpoint_seconds, workers=workers)
            history = History.from_tensors(omega0.memory).only(requirements.recorded(experiment.phases()))
            kept = replace(omega0, memory=history.tensors())
            files.write({"omega0.safetensors": files.state(kept)})
        start, _ = read_state(folder / "omega0.safetensors")
        identity = {"config": config, "omega0": model_hash(start), **arithmetic(experiment)}
        answer = partial(
            _answer, setting, listeners=listeners, checkpoint_seconds=checkpoint_seconds, workers=workers
        )
        anchors: tuple[Vector, ...] = ()
        *before, last = turns(setting)
        for turn in before:
            outcome = _answer_earlier(turn, folder, identity, start, anchors, answer)
            if outcome.status.failed:
                reason = f"request {turn.number} of {turn.of} ({turn.targets[0]}): {outcome.reason}"
                failed = replace(outcome, reason=reason)
                conclude(files, setting.build(0), failed)
                return failed
            anchors, start = (*anchors, start.params), turn.next_start(start, outcome.state)
        return answer(last, files, _whole(identity, last, start), start, anchors)


def _require_enough(setting: Setting) -> None:
    """Refuse before pre-training what could not be answered after it; the last request has the fewest."""
    *_, last = turns(setting)
    request = last.request(setting, setting.fresh("pre-training"), ())
    for problem in too_few(setting.experiment.phases(), request, last.clients, setting.participation):
        raise FedUnlearnError(problem, code="unsuitable")


def _answer_earlier(
    turn: Turn,
    folder: Path,
    identity: Mapping[str, Any],
    start: State,
    anchors: tuple[Vector, ...],
    answer: Callable[..., Outcome],
) -> Outcome:
    """A request before the last, in a run folder of its own; one that has ended is read."""
    place, whole = earlier(folder, turn.number), _whole(identity, turn, start)
    config = identity["config"]
    own = {**config["request"], "targets": list(turn.targets), "successive": False}
    with RunFolder(place) as run:
        if run.state == "finished":
            return run.outcome(whole)
        files = run.claim(fingerprint(whole))
        files.write({"experiment.json": json_bytes({**config, "kind": EARLIER, "request": own})})
        return answer(turn, files, whole, start, anchors)


def _whole(identity: Mapping[str, Any], turn: Turn, start: State) -> dict[str, Any]:
    """What decides a request: one of several depends on those before it."""
    return {**identity, **({"request": turn.number, "start": model_hash(start)} if turn.of > 1 else {})}


def _answer(
    setting: Setting,
    turn: Turn,
    files: Folder,
    identity: Mapping[str, Any],
    start: State,
    anchors: tuple[Vector, ...],
    *,
    listeners: Sequence[Listener],
    checkpoint_seconds: float,
    workers: int | None,
) -> Outcome:
    """Run a request in its folder, or what is left of it."""
    experiment = setting.experiment
    with setting.federation(turn.clients, workers, Stage.UNLEARNING) as federation:
        return run_in(
            files,
            identity,
            setting.build(0),
            experiment.phases(),
            turn.request(setting, start, anchors),
            federation,
            listeners=[turn.relayed(listener) for listener in listeners],
            checkpoint_seconds=checkpoint_seconds,
            training=setting.training,
            seed=turn.seed("unlearning", experiment.seed),
            evaluate_every=experiment.evaluate_every,
            participation=setting.participation,
            stop=stop_rules(experiment),
            probes=[Conflicts(ask=experiment.count_conflicts)],
            guards=experiment.guards.guards(),
        )


def stop_rules(experiment: Experiment) -> list[Below]:
    """When unlearning ends early."""
    below = experiment.unlearning.stop_below
    return [Below("asr" if experiment.backdoor.enabled else "forget_acc", below)] if below else []


def resume(folder: Path, listeners: Sequence[Listener] = (), *, workers: int | None = None) -> Outcome:
    """Continue a run that was stopped."""
    return perform(recorded(folder), folder, listeners, workers=workers)


def recorded(folder: Path) -> Experiment:
    """The experiment of a run folder, whose files are verified first."""
    manifest = verify(folder, resuming=not finished(folder))
    config = read_json(folder / "experiment.json")
    if manifest is None or not manifest.verified:
        tell_unverified([folder])
    if isinstance(config, dict) and config.get("kind") == "server":
        raise FedUnlearnError(
            f"a Python script with fedunlearn.Server wrote {folder}: continue or audit it there, by the same "
            "calls or by Server.audit",
            code="occupied",
        )
    if isinstance(config, dict) and config.get("kind") == EARLIER:
        raise FedUnlearnError(
            f"{folder} is a part of the run in {folder.parents[1]}: name that folder", code="occupied"
        )
    return check(config, str(folder))


def _require_own(run: RunFolder, config: Mapping[str, Any]) -> None:
    """Make sure that a folder is new, or that its run is of this experiment and unfinished.

    One in which pre-training has not ended holds nothing yet.
    """
    folder, done = run.path, run.state == "finished"
    holds_something = done or (folder / "omega0.safetensors").exists()
    if holds_something and (begun := read_json(folder / "experiment.json")) != config:
        if check(begun, str(folder)) == check(config, str(folder)):
            raise FedUnlearnError(
                f"the run in {folder} was begun by an older fedunlearn: run it anew", code="occupied"
            )
        raise FedUnlearnError(
            f"{folder} holds a run with another configuration: choose another folder with --out",
            code="occupied",
        )
    if done:
        raise FedUnlearnError(
            f"the run in {folder} is finished: choose another folder with --out, "
            f"or look at it again with: fedunlearn resume {quote(str(folder))}",
            code="finished",
        )
