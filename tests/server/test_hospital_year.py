"""A hospital's year: who joins, leaves and comes back, in one folder and in many processes.

Every step is right, or refused in a sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from support.attacks import Attacked, scaled
from support.codes import refused, warned
from support.file_events import Listener, watch
from torch import nn

import fedunlearn as fu
from fedunlearn.core.seeds import generator
from fedunlearn.runs import read_json, read_state, verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:the loss on the data to be forgotten has hardly risen"),
    pytest.mark.filterwarnings("ignore:the targets' own unlearning loss has hardly fallen"),
    pytest.mark.filterwarnings("ignore:the update of .* was shortened"),
]

SHORT = fu.Schedule(2, 0.05, 2, 0.05)
SIZES = {"basel": 30, "bern": 40, "geneva": 33, "one-class": 20, "three-patients": 3}


def ward(name: str, size: int) -> fu.ClientData:
    random = generator("ward", name)
    x = torch.randn(size + 10, 6, generator=random)
    y = (x[:, 0] > 0).long() * (name != "one-class")
    return fu.ClientData((x[:size], y[:size]), {"test": (x[size:], y[size:])})


def hospitals(**sizes: int) -> dict[str, fu.ClientData]:
    return {name: ward(name, size) for name, size in {**SIZES, **sizes}.items()}


def server(folder: Path, seed: int | None = 0, **sizes: int) -> fu.Server:
    """A new server, as a new process makes it; without a seed, its model is initialised otherwise."""
    torch.manual_seed(99 if seed is None else seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    training = fu.LocalTraining(batch_size=10)
    return fu.Server(model, hospitals(**sizes), folder=folder, training=training, workers=1)


def took_part(step: Path) -> set[str]:
    return set(read_json(step / "experiment.json")["data"]["names"])


def digest(ours: fu.Server) -> str:
    return fu.module_hash(ours.model)


def march(folder: Path) -> dict[str, object]:
    """What a process of its own does: it knows only the folder."""
    ours = server(folder, seed=None)
    before = digest(ours)
    ours.forget("geneva", "fedosd", SHORT)
    return {"before": before, "after": digest(ours), "forgotten": ours.forgotten, "clients": ours.clients}


def in_new_process(folder: Path) -> dict[str, object]:
    code = (
        "import json, sys, test_hospital_year as year; print(json.dumps(year.march(year.Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(folder)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def january(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("year") / "hospital"
    server(folder).train(4, 0.1, history=["norms"])
    return folder


@pytest.fixture(scope="module")
def spring(january: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After the first withdrawal, in a process of its own."""
    folder = Path(shutil.copytree(january, tmp_path_factory.mktemp("spring") / "hospital"))
    trained = digest(server(folder))
    told = in_new_process(folder)
    assert told["before"] == trained  # of the year before, not the initial model
    assert told["forgotten"] == ["geneva"]
    assert set(told["clients"]) == SIZES.keys() - {"geneva"}
    assert digest(server(folder, seed=None)) == told["after"]
    return folder


@pytest.fixture
def folder(spring: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(spring, tmp_path / "hospital"))


def test_a_second_withdrawal_in_a_new_process_leaves_the_first_client_out(folder):
    ours = server(folder, seed=None)
    with warned("forgotten", says=r"geneva: forgotten in .* server\.rejoin"):
        ours.forget("bern", "fedosd", SHORT)
    assert took_part(folder / "2-forget-bern-fedosd") == SIZES.keys() - {"geneva"}
    assert ours.forgotten == ("geneva", "bern")
    assert len(ours.anchors) == 2  # of both requests, the first of which is another process's
    assert not {"geneva", "bern"} & set(ours.history.rows["norms"])
    for path in (folder / "0-train/checkpoints").iterdir():
        assert not [name for name in read_state(path)[0].memory if "geneva" in name or "bern" in name]


@pytest.mark.filterwarnings("ignore:.*geneva. forgotten in")
def test_a_forgotten_client_never_trains_again_whatever_is_called(folder):
    for call in (
        lambda ours: ours.train(2, 0.05),
        lambda ours: ours.forget("bern", "retrain", SHORT, rounds=1, floor=None),
        lambda ours: ours.compare("basel", {"finetune": {}}, SHORT),
    ):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="train continues|this training records no")
            call(server(folder, seed=None))
    steps = [each.parent for each in folder.rglob("experiment.json") if each.parent.name != "0-train"]
    assert len(steps) == 4
    for step in steps:
        if step.name != "1-forget-geneva-fedosd":
            assert "geneva" not in took_part(step), step
    with refused("forgotten", says="'geneva' has been forgotten already"):
        server(folder).forget("geneva", "fedosd", SHORT)


def test_a_comparison_starts_before_the_last_withdrawal_and_leaves_the_server_after_it(folder):
    ours = server(folder, seed=None)
    before = digest(ours)
    assert "geneva" in ours.compare("geneva", ["fedosd"], SHORT)["fedosd"].targets
    assert ours.forgotten == ("geneva",)
    assert digest(ours) == before
    assert "geneva" in took_part(folder / "1-compare-geneva/seed-0/fedosd")
    with warned("forgotten", says="geneva: forgotten in"):
        ours.forget("bern", "fedosd", SHORT)
    assert "bern" in ours.compare("bern", ["fedosd"], SHORT)["fedosd"].targets
    assert ours.forgotten == ("geneva", "bern")
    with refused("forgotten", says="'geneva' has been forgotten already"):
        ours.compare("geneva", ["fedosd"], SHORT)


@pytest.mark.filterwarnings("ignore:train continues from the last step")
def test_a_client_joins_anew_is_trained_and_can_be_forgotten_again(folder):
    ours = server(folder, seed=None)
    ours.rejoin("geneva")
    with refused("not-forgotten", says="'geneva' has joined anew, but has not trained since"):
        ours.forget("geneva", "fedosd", SHORT)
    ours = server(folder, seed=None)
    assert ours.forgotten == ()
    ours.train(2, 0.1, history=["norms"])
    assert "geneva" in took_part(folder / "3-train")
    server(folder, seed=None).forget("geneva", "fedosd", SHORT)
    assert server(folder, seed=None).forgotten == ("geneva",)
    with refused("not-forgotten", says="'bern' has not been forgotten here"):
        server(folder, seed=None).rejoin("bern")


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"davos": 25}, "davos took no part in it"),
        ({"basel": 45}, "the data of client 'basel' has changed"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*geneva. forgotten in")
def test_a_new_client_and_grown_data_are_trained_on(folder, sizes, reason, caplog):
    before = digest(server(folder))
    ours = server(folder, **sizes)
    with caplog.at_level("INFO", "fedunlearn"):
        ours.train(4, 0.1, history=["norms"])
    assert "1-forget-geneva-fedosd: it does not repeat 0-train" in caplog.text
    assert reason in caplog.text
    begun = read_json(folder / "2-train/experiment.json")
    assert begun["start"] == before
    assert set(begun["data"]["names"]) == {*SIZES, *sizes} - {"geneva"}
    assert not ours.forget(next(iter(sizes)), "fedosd", SHORT).status.failed
    assert not server(folder, **sizes).forget("bern", "fedosd", SHORT).status.failed


def test_a_script_that_is_run_again_repeats_its_steps_from_the_first_one_on(folder):
    last = digest(server(folder))
    ours = server(folder)
    with warned("repeated", says=r"this script repeats the steps .*still knows geneva"):
        ours.train(4, 0.1, history=["norms"])
    assert digest(ours) != last
    ours.forget("geneva", "fedosd", SHORT)
    assert digest(ours) == last
    assert not list(folder.glob("2-*"))
    other = server(folder, seed=None)
    with refused("occupied", says="begun with other starting weights: seed"):
        other.train(4, 0.1, history=["norms"])
    assert digest(other) == last


def test_a_copied_and_a_renamed_folder_continue_to_the_same_bits(folder, tmp_path):
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    renamed = folder.rename(tmp_path / "another name")
    found = set()
    for place in (copied, renamed):
        with warned("repeated", says="this script repeats"):
            (ours := server(place)).train(4, 0.1, history=["norms"])
        ours.forget("geneva", "fedosd", SHORT)
        ours.forget("bern", "fedosd", SHORT)
        found.add(digest(ours))
    assert len(found) == 1


def test_a_killed_step_continues_with_its_clients_and_begins_anew_with_other_data(january, tmp_path):
    def cut(event: fu.Event) -> None:
        if event.metrics["stage"] == "post-training":
            raise KeyboardInterrupt

    def begun(name: str) -> Path:
        place = Path(shutil.copytree(january, tmp_path / name))
        ours = server(place)
        object.__setattr__(ours._surroundings, "listeners", (cut,))
        with pytest.raises(KeyboardInterrupt):
            ours.forget("geneva", "fedosd", SHORT)
        return place

    (whole := server(Path(shutil.copytree(january, tmp_path / "whole")))).forget("geneva", "fedosd", SHORT)
    with warned("continued", says="continues with the clients that it began with, without davos"):
        (ours := server(begun("new client"), davos=20)).forget("geneva", "fedosd", SHORT)
    assert digest(ours) == digest(whole)
    with warned("begun-anew", says=r"data of client 'bern' has changed since .* it begins anew"):
        (ours := server(begun("grown"), bern=50)).forget("geneva", "fedosd", SHORT)
    assert digest(ours) != digest(whole)
    assert (tmp_path / "grown/1-forget-geneva-fedosd-2/outcome.json").exists()
    (ours := server(begun("another method"))).forget("geneva", "retrain", SHORT, rounds=2)
    assert ours.forgotten == ("geneva",)


def test_two_processes_cannot_both_complete_the_next_step(january, tmp_path):
    folder = Path(shutil.copytree(january, tmp_path / "hospital"))
    first, second = server(folder), server(folder)
    first.forget("geneva", "fedosd", SHORT)
    with refused("in-use", says="another Server has completed a step"):
        second.forget("bern", "fedosd", SHORT)
    assert server(folder).forgotten == ("geneva",)


def test_without_a_folder_the_memory_ends_with_the_server():
    ours = fu.Server(nn.Linear(6, 2), hospitals(), training=fu.LocalTraining(batch_size=10), workers=1)
    ours.train(1, 0.1)
    ours.forget("bern", "fedosd", SHORT)
    place = ours._folder
    assert (place / "server.json").exists()
    del ours
    assert not place.exists()


def test_the_first_step_may_be_a_request_about_a_model_that_came_from_elsewhere(tmp_path):
    (first := server(tmp_path)).forget("geneva", "fedosd", SHORT)
    later = server(tmp_path, seed=None)
    assert digest(later) == digest(first)
    assert torch.equal(later.anchors[0], first.anchors[0])
    assert later._memory.known.last is not None
    assert torch.equal(later._memory.known.last.before.state.params, first.anchors[0])


def test_a_folder_of_version_0_2_is_read(folder, tmp_path):
    """It had no journal, and its steps say nothing of the shuffling that later versions do."""
    ours = server(folder)
    for name in ("server.json", "omega0.safetensors", "manifest.json"):
        (folder / name).unlink()
    assert digest(server(folder, seed=None)) == digest(ours)
    assert server(folder, seed=None).forgotten == ("geneva",)
    shutil.copytree(folder / "1-forget-geneva-fedosd", folder / "1-forget-geneva-other")
    with refused("occupied", says="which of 1-forget-geneva-fedosd and 1-forget-geneva-other"):
        server(folder)
    (request := tmp_path / "request").mkdir()
    shutil.copytree(folder / "1-forget-geneva-fedosd", request / "0-forget-geneva-fedosd")
    with refused("missing", says=r"nobody kept the model with which .* began"):
        server(request, seed=None)


def test_a_missing_value_is_refused_by_its_row_and_can_be_corrected(tmp_path):
    clients = hospitals()
    whole, (x, y) = clients["bern"], clients["bern"].train
    clients["bern"] = fu.ClientData((x.index_fill(0, torch.tensor([35]), torch.nan), y), {})
    with refused("data", says=r"bern, set 'train': row 35 .*: a number is not finite"):
        fu.Server(nn.Linear(6, 2), clients, folder=tmp_path, workers=1).train(3, 0.1)
    corrected = {**clients, "bern": whole}
    assert fu.Server(nn.Linear(6, 2), corrected, folder=tmp_path, workers=1).train(3, 0.1).unheard == ()


def test_a_missing_value_elsewhere_takes_one_hospital_out_and_everybody_is_told_which(tmp_path):
    model = nn.Linear(6, 2)
    elsewhere = Attacked(fu.Sequential(model, hospitals()), {"bern": scaled(float("nan"))})
    ours = fu.Server(model, elsewhere, folder=tmp_path)
    with (
        warned("unheard", says="never heard in this step, so nothing in it reflects them: bern"),
        warned("outcome", says="bern was left out of 3 of 3 rounds: sent .* not finite"),
    ):
        ours.train(3, 0.1)
    with refused("not-forgotten", says="'bern' never took part in training here"):
        ours.forget("bern", "fedosd", SHORT)


def test_with_batch_norm_a_last_batch_of_one_keeps_nobody_out(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    clients = {name: ward(name, size) for name, size in {"basel": 31, "bern": 30, "geneva": 21}.items()}
    ours = fu.Server(model, clients, folder=tmp_path, training=fu.LocalTraining(batch_size=10), workers=1)
    assert ours.train(3, 0.1).unheard == ()
    assert {row["heard"] for row in ours.train(1, 0.1).metrics[1:]} == {3}


def test_a_single_class_and_three_patients_are_trained_with_and_forgotten(folder):
    ours = server(folder, seed=None)
    with warned("forgotten", says="geneva: forgotten"):
        ours.forget("one-class", "fedosd", SHORT)
    ours.forget("three-patients", "fedosd", SHORT)
    assert ours.clients == ("basel", "bern")


def work(folder: Path, happened: Listener = lambda event, path: None) -> str:
    """A year in short."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watch(patch, happened)
        ours = server(folder)
        ours.train(1, 0.1, history=["norms"])
        ours.forget("geneva", "fedosd", fu.Schedule(1, 0.05, 1, 0.05))
        ours.rejoin("geneva")
        ours.train(1, 0.2, history=["norms"])
        return digest(ours)


@pytest.mark.parametrize("every", [25, pytest.param(2, marks=pytest.mark.chaos)])
def test_a_kill_between_any_two_writes_leaves_a_folder_that_continues(tmp_path, every):
    moments: list[Path] = []
    copying, number = False, 0

    def keep(event: str, path: str) -> None:
        nonlocal copying, number
        if not copying and event != "fsync":
            copying, number = True, number + 1
            if number % every == 0 or "server.json" in path:
                place = tmp_path / f"killed {len(moments)}"
                moments.append(Path(shutil.copytree(tmp_path / "whole", place)))
            copying = False

    end = work(tmp_path / "whole", keep)
    assert len(moments) > 20
    for moment in moments:
        before = server(moment, seed=None)  # whatever was killed, it opens, and knows what was completed
        steps = read_json(moment / "server.json") if (moment / "server.json").exists() else []
        assert len(before._memory.entries) >= len(steps)
        assert work(moment) == end, moment
        verify(moment)


@pytest.mark.parametrize("number", [3, 15, 30, 45, 60])
def test_a_killed_process_is_continued_by_another(tmp_path, number):
    child = os.fork()
    if child == 0:
        left = number

        def strike(event: str, _path: str) -> None:
            nonlocal left
            left -= event == "replace"
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        work(tmp_path / "killed", strike)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert work(tmp_path / "killed") == work(tmp_path / "whole")


@pytest.mark.filterwarnings(
    "ignore:train continues from the last step", "ignore:this script repeats the steps"
)
def test_a_withdrawal_after_joining_anew_is_a_request_of_its_own(folder):
    server(folder, seed=None).rejoin("geneva")
    ours = server(folder)
    ours.train(4, 0.1, history=["norms"])
    with warned("repeated", says="repeats 1-forget-geneva-fedosd, from before geneva joined anew"):
        ours.forget("geneva", "fedosd", SHORT)
    assert server(folder).forgotten == ()
    server(folder).train(2, 0.1, history=["norms"])
    server(folder, seed=None).forget("geneva", "fedosd", SHORT)
    assert server(folder).forgotten == ("geneva",)


def test_who_joins_anew_is_not_audited_and_needs_data(folder):
    ours = server(folder, seed=None)
    ours.rejoin("geneva")
    with refused("not-forgotten", says="or who was has joined anew"):
        ours.audit()
    left = {name: data for name, data in hospitals().items() if name != "basel"}
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    others = fu.Server(model, left, folder=folder, training=fu.LocalTraining(batch_size=10), workers=1)
    others.forgotten = ("basel",)
    with warned("no-data", says="'basel' joins anew without data here"):
        others.rejoin("basel")


def test_a_target_with_other_data_than_it_trained_with_is_told_of(january, tmp_path):
    folder = Path(shutil.copytree(january, tmp_path / "hospital"))
    with warned("changed", says="the training data of basel is not that of 0-train"):
        server(folder, seed=None, basel=45).forget("basel", "fedosd", SHORT)


def test_a_training_that_does_not_help_is_told_of(tmp_path):
    with warned("not-better", says="training has not made the model better"):
        server(tmp_path).train(1, 1e-12)
