"""The Flower apps in ``examples/flower``: copied and run, in this process and on Ray."""

from __future__ import annotations

import importlib.util
import logging
import random
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.deployment import Simulation
from torch import nn

import fedunlearn as fu
from fedunlearn import FedUnlearnError
from fedunlearn.core import requirements
from fedunlearn.core.history import KINDS
from fedunlearn.driver.rehearsal import asked
from fedunlearn.engines import flower
from fedunlearn.experiment import perform, read
from fedunlearn.runs import read_metrics, read_outcome

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "flower"
EXISTING = EXAMPLES / "existing"
TRAINING = {"learning-rate": 0.02, "num-server-rounds": 10}
SITES = [f"site-{number}" for number in range(4)]

SMALL = """
model = "mlp"
data = { clients = 4, fraction = 0.05 }
training.batch_size = 10
pretraining.rounds = 1
unlearning.rounds = 2
recovery.rounds = 1
evaluate_every = 3
"""


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copied(app: str, folder: Path) -> Path:
    return shutil.copytree(EXAMPLES / app, folder, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture(scope="module")
def run() -> Callable[..., None]:
    """Runs an app in this process; its modules do not stay for the next app, which may have the same ones."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    runner = imported(EXAMPLES / "in_process.py")

    def start(app: Path, nodes: int, config: Mapping[str, Any], names: Sequence[str] = ()) -> None:
        before = set(sys.modules)
        random.seed(0)  # Flower draws the order of clients, and thereby of sums, from it
        try:
            runner.run(app, nodes, config, names)
        finally:
            sys.path.remove(str(app))
            for name in {*sys.modules} - before:
                if str(app) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]

    return start


@pytest.fixture(scope="module")
def trained(run: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with half of the images, a trained model and the history of its training."""
    folder = tmp_path_factory.mktemp("trained")
    imported(EXISTING / "make_data.py").write(folder / "data", share=2)
    run(copied("existing/after-recording", folder / "app"), 4, {**TRAINING, **places(folder)})
    return folder


def places(folder: Path) -> dict[str, str]:
    return {"data": str(folder / "data"), "folder": str(folder)}


def accuracies(run: Path) -> dict[str, tuple[float, float]]:
    """Of the target and of the others, at the start and after each stage."""
    return {
        row["stage"]: (row["target_acc"], row["r_acc"]) for row in read_metrics(run) if "target_acc" in row
    }


def assert_forgotten(run: Path) -> None:
    """The target alone holds two classes; a model that never saw them does not recognise them."""
    found = accuracies(run)
    assert found["start"][0] > 0.2
    assert found["post-training"][0] <= 0.1
    assert found["post-training"][1] > found["start"][1] - 0.1


def added(before: Path, after: Path) -> list[str]:
    """The lines that ``diff`` marks with +; a changed line is one of them."""
    files = sorted(path.relative_to(after) for path in after.rglob("*") if path.suffix in (".py", ".toml"))
    assert files == sorted(
        path.relative_to(before) for path in before.rglob("*") if path.suffix in (".py", ".toml")
    )
    lines = [
        line
        for name in files
        for line in unified_diff(
            (before / name).read_text().splitlines(), (after / name).read_text().splitlines(), lineterm=""
        )
    ]
    return [line for line in lines if line.startswith("+") and not line.startswith("+++")]


def difference(before: str, after: str, name: str) -> str:
    """What ``diff`` shows with two lines around each change."""
    lines = unified_diff(
        *((EXISTING / app / name).read_text().splitlines() for app in (before, after)),
        *(f"{app}/{name}" for app in (before, after)),
        lineterm="",
        n=2,
    )
    return "\n".join(line.rstrip() for line in lines)


def without_introduction(app: Path) -> None:
    """The app for nodes that are registered under their names."""
    file = app / "fashion" / "client_app.py"
    lines = file.read_text().splitlines(keepends=True)
    left = [line for line in lines if "introduce(" not in line and "engines import flower" not in line]
    assert len(lines) - len(left) == 2
    file.write_text("".join(left))


class TestExistingApp:
    def test_before_knows_nothing_of_us(self):
        assert not [path for path in (EXISTING / "before").rglob("*.*") if b"fedunlearn" in path.read_bytes()]

    def test_forgetting_takes_few_lines(self, tmp_path):
        assert len(added(EXISTING / "before", EXISTING / "after")) <= 20
        registered = copied("existing/after", tmp_path / "app")
        without_introduction(registered)
        assert len(added(EXISTING / "before", registered)) <= 15

    def test_before_trains(self, run, trained, tmp_path):
        config = {"data": str(trained / "data"), "folder": str(tmp_path), "num-server-rounds": 1}
        run(copied("existing/before", tmp_path / "app"), 4, config)
        assert (tmp_path / "model.pt").exists()

    def test_forgets_a_site_and_can_be_called_again(self, run, trained, tmp_path):
        app = copied("existing/after", tmp_path / "app")
        without_introduction(app)
        config = {**places(trained), **TRAINING, "forget": "site-3"}
        run(app, 4, config, names=SITES)
        folder, weights = trained / "0-forget-site-3-retrain", trained / "model-without-site-3.pt"
        assert_forgotten(folder)
        rows = [row for row in read_metrics(folder) if "loss_target" in row]
        assert [row["round"] for row in rows] == [0, 5, 10]
        assert rows[-1]["loss_target"] > 2 * rows[0]["loss_target"]
        first, told = torch.load(weights), (folder / "outcome.json").read_bytes()

        weights.unlink()
        run(app, 4, config, names=SITES)
        assert all(torch.equal(value, first[name]) for name, value in torch.load(weights).items())
        assert (folder / "outcome.json").read_bytes() == told

    def test_fedosd_and_an_audit_of_it(self, run, trained, tmp_path, capsys):
        app, config = copied("existing/after", tmp_path / "app"), {**places(trained), "forget": "site-3"}
        run(app, 4, {**config, **TRAINING})
        run(copied("existing/after-fedosd", tmp_path / "fedosd"), 4, config)
        assert_forgotten(trained / "0-forget-site-3-fedosd")
        files = {"model": "model-without-site-3-fedosd.pt", "retrained": "model-without-site-3.pt"}
        capsys.readouterr()
        run(
            copied("existing/audit", tmp_path / "audit"),
            4,
            {**places(trained), **files, "forgotten": "site-3"},
        )
        told = capsys.readouterr().out
        assert told.startswith(
            "site-3: Inconclusive: a verdict of equivalence needs 600 forgotten and 600 unseen examples"
        )
        assert "ToW (tug of war) is" in told

    def test_the_audit_has_the_model_and_the_data_of_the_app(self):
        files = EXISTING / "audit" / "fashion_audit" / "task.py", EXISTING / "before" / "fashion" / "task.py"
        assert len({file.read_text() for file in files}) == 1

    def test_replays_what_was_recorded(self, run, trained, tmp_path):
        app = copied("existing/after-recording", tmp_path / "app")
        for _ in range(2):  # the history has no rows of the target the second time
            run(app, 4, {**places(trained), "forget": "site-3"})
            assert_forgotten(trained / "0-forget-site-3-federaser")

    def test_an_absent_site_is_refused_by_name(self, run, trained, tmp_path):
        with pytest.raises(
            FedUnlearnError, match=r"'site-33' is not present \(present: site-0, site-1, site-2\)"
        ):
            run(copied("existing/after", tmp_path / "app"), 4, {**places(trained), "forget": "site-33"})


def test_from_nothing(run, tmp_path):
    app = copied("from_scratch", tmp_path / "app")
    lines = [line for path in app.rglob("*.py") for line in path.read_text().splitlines() if line.strip()]
    assert len(lines) < 60
    config = {"folder": str(tmp_path)}
    run(app, 4, config)
    with pytest.warns(UserWarning, match="the update of site-3 was shortened to 2 times the median"):
        run(app, 4, {**config, "forget": "site-3"})
    rows = [row for row in read_metrics(tmp_path / "1-forget-site-3-fedosd") if "forget_acc" in row]
    page = (ROOT / "docs/flower/from-scratch.md").read_text()
    shown = re.findall(r"^\| (?:trained|FedOSD), .* \| ([\d.]+) % \| ([\d.]+) % \|$", page, re.MULTILINE)
    found = [(100 * row["forget_acc"], 100 * row["r_acc"]) for row in (rows[0], rows[-2], rows[-1])]
    for ours, printed in zip(found, shown, strict=True):
        assert ours == pytest.approx([*map(float, printed)], abs=3)  # another processor may round differently
    assert rows[-1]["r_acc"] > rows[0]["r_acc"] - 0.02


@pytest.mark.parametrize(
    "request_", ["", 'request.level = "sample"', 'request.level = "class"\nbackdoor.enabled = false']
)
def test_an_experiment_ends_in_the_same_bits(run, tmp_path, monkeypatch, request_):
    file = tmp_path / "small.toml"
    file.write_text(f"{SMALL}{request_}\n")
    expected = by_itself(file, tmp_path, monkeypatch)
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "other cache"))  # it trains anew
    config = {"experiment": str(file), "folder": str(tmp_path / "flower")}
    run(copied("experiment", tmp_path / "app"), 4, config)
    assert read_outcome(tmp_path / "flower")["model_sha256"] == expected


def by_itself(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hash of the model that ``fedunlearn run`` ends with."""
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(folder / "cache"))
    perform(read(file), folder / "run", workers=1)
    return str(read_outcome(folder / "run")["model_sha256"])


class TestPages:
    """The pages show the examples as they are."""

    @pytest.mark.parametrize(
        ("before", "after", "name"),
        [
            *(("before", "after", f"fashion/{name}.py") for name in ("client_app", "server_app")),
            ("before", "after", "pyproject.toml"),
            ("after", "after-recording", "fashion/server_app.py"),
        ],
    )
    def test_the_diff_is_the_difference(self, before, after, name):
        page = (ROOT / "docs/flower/existing-app.md").read_text()
        assert f"```diff\n{difference(before, after, name)}\n```" in page

    def test_the_diff_is_complete(self):
        page = (ROOT / "docs/flower/existing-app.md").read_text()
        shown = page[: page.index("## A site that planted a backdoor")]
        lines = [
            line
            for block in re.findall(r"^```diff\n(.*?)^```$", shown, re.M | re.S)
            for line in block.splitlines()
        ]
        plus = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
        assert sorted(plus) == sorted(
            line.rstrip() for line in added(EXISTING / "before", EXISTING / "after")
        )
        assert f"**{len(plus)} lines**" in page
        fedosd, recording = (
            added(EXISTING / "after", EXISTING / app) for app in ("after-fedosd", "after-recording")
        )
        assert f"{len(fedosd)} lines more than `after`" in page
        assert {4: "Four"}[len(recording)] + " more lines" in page

    def test_the_files_are_those_of_the_examples(self):
        page = (ROOT / "docs/flower/from-scratch.md").read_text()
        shown = re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', page, re.M | re.S)
        files = [f"from_scratch/scratch/{name}.py" for name in ("client_app", "server_app", "model")]
        assert shown == [(Path(file).name, (EXAMPLES / file).read_text()) for file in files]

    def test_the_readme_forgets_a_site(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (block,) = re.findall(
            r'^```python title="forget.py"\n(.*?)^```$', (ROOT / "README.md").read_text(), re.M | re.S
        )
        (tmp_path / "forget.py").write_text(block)
        shown = runpy.run_path(str(tmp_path / "forget.py"))
        model = nn.Sequential(nn.Linear(4, 3))
        shown["forget_site"](flower.LocalGrid(nudging(), [{}] * 4, names=SITES), model)
        assert read_outcome(tmp_path / "runs/site-3/0-forget-site-3-retrain")["status"] == "done"

    def test_the_table_of_methods_is_what_an_app_can_run(self, tmp_path):
        page = (ROOT / "docs/flower/existing-app.md").read_text()
        table = page[page.index("## Which methods work") : page.index("Eleven methods")]
        rows = dict(re.findall(r"^\| (.*?) \| (`.*?) \|$", table, re.MULTILINE))
        shown = {
            name: {*re.findall(r'train\("(\w+)"', has)} or ({OURS} if "serve" in has else set())
            for has, names in rows.items()
            for name in re.findall(r"`([a-z0-9-]+)`", names)
        }
        assert shown == needs(tmp_path)
        assert len([name for name, losses in shown.items() if not losses]) == 11
        assert len([name for name, losses in shown.items() if losses <= {"uce"}]) == 16


OURS = "our client code"


def nudging() -> ClientApp:
    """An app whose training moves every weight a little."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {
            name: value + 0.1 for name, value in message.content["arrays"].to_torch_state_dict().items()
        }
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = {"eval_acc": 0.5, "eval_loss": 1.0, "forget_loss": 1.0, "num-examples": 1}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def needs(folder: Path) -> dict[str, set[str]]:
    """For every method the losses that a ClientApp needs handlers for, found out without asking a client."""
    model = nn.Sequential(nn.Linear(4, 3))
    grid = flower.LocalGrid(nudging(), [{}] * 4, names=SITES)
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=4)
    recording = flower.Recording(strategy, model, folder / "history", list(KINDS))
    recording.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=1, train_config=ConfigRecord({"lr": 0.1})
    )
    federation = flower.connect_existing(grid, model, losses=(), clients=4)
    state = fu.State(fu.flatten(model))
    request = fu.Request(
        state.params,
        tuple(SITES),
        ("site-3",),
        lambda purpose: state,
        shapes=fu.shapes(model),
        history=recording.history,
        public="public",
    )

    def needed(phases: Sequence[fu.Phase]) -> set[str]:
        if list(requirements.missing(phases, request, federation.task)):
            return {OURS}  # knot and sisa: clusters and slices cannot be recorded
        jobs = [job for jobs in asked(phases, request) for client, job in jobs.items() if client != "public"]
        refused = [said for job in jobs if (said := federation.refusal(job))]
        return {found[1] if (found := re.search(r"app.train\('(\w+)'\)", said)) else OURS for said in refused}

    return {entry.name: needed(fu.method[entry.name](fu.Schedule(1, 0.01, 1, 0.01))) for entry in fu.method}


@pytest.mark.deployment
def test_on_ray(run, trained, tmp_path, monkeypatch):
    """One SuperLink for three runs: Flower's own training, a request, an experiment."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    expected = by_itself(file, tmp_path, monkeypatch)
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "other cache"))
    app = copied("existing/after", tmp_path / "app")
    shutil.copy(trained / "model.pt", tmp_path / "model.pt")
    config = {"data": str(trained / "data"), "folder": str(tmp_path), "forget": "site-3"}
    here = tmp_path / "here"
    here.mkdir()
    shutil.copy(trained / "model.pt", here / "model.pt")
    run(app, 4, {**config, "folder": str(here)})

    with Simulation(4) as simulation:
        ours = simulation.run(app, config)
        assert simulation.wait(ours) == ("finished:completed", "N/A")
        name = "0-forget-site-3-retrain"
        assert_forgotten(tmp_path / name)
        assert read_outcome(tmp_path / name) == read_outcome(here / name)

        config = {"data": str(trained / "data"), "folder": str(tmp_path), "num-server-rounds": 1}
        before = simulation.run(copied("existing/before", tmp_path / "before"), config)
        assert simulation.wait(before)[0] == "finished:completed"

        config = {"experiment": str(file), "folder": str(tmp_path / "flower")}
        experiment = simulation.run(copied("experiment", tmp_path / "experiment"), config)
        assert simulation.wait(experiment) == ("finished:completed", "N/A")
        assert read_outcome(tmp_path / "flower")["model_sha256"] == expected
