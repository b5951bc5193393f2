"""A desk for a simulated federation: from the signed request to the certificate and the purge."""

from __future__ import annotations

import shutil
import signal
import tomllib
from pathlib import Path

import pytest
from support.codes import refused
from support.desks import contents
from support.interruptions import stopped

from fedunlearn.core.hashes import module_hash
from fedunlearn.erasure import RequestState, open_desk
from fedunlearn.experiment.practice import PracticeDesk, make_desk
from fedunlearn.signing import request_erasure

WORLD = """
name = "world"
model = "mlp"
[data]
partition = "iid"
clients = 4
fraction = 0.2
audit = 0.3
[backdoor]
enabled = false
[training]
batch_size = 20
[pretraining]
rounds = 6
lr = 0.1
[unlearning]
rounds = 3
lr = 0.05
[recovery]
rounds = 2
lr = 0.05
"""


@pytest.fixture(scope="module")
def made(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk that has received nothing yet."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "world.toml").write_text(WORLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(cache))
        make_desk(folder / "desk", folder / "world.toml", workers=1)
    return folder / "desk"


@pytest.fixture
def desk(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path / "desk")
    return tmp_path / "desk"


def signed(desk: Path, client: str = "client-1", name: str = "request.json", **changes) -> str:
    """Signs a request beside the desk; returns the name of its file."""
    model = changes.pop("model", None) or model_in(desk)
    federation = changes.pop("federation", "world")
    key = desk / "clients" / f"{changes.pop('key', client)}.key"
    document = request_erasure(client, federation, model, key, **changes)
    (desk.parent / name).write_text(document)
    return name


def model_in(desk: Path) -> str:
    """The hash of the model in production."""
    return module_hash(PracticeDesk(open_desk(desk)).model())


def settings(desk: Path, **changes: str) -> None:
    """Changes lines of desk.toml."""
    lines = (desk / "desk.toml").read_text().splitlines()
    for key, value in changes.items():
        lines = [f"{key} = {value}" if line.split(" ")[0] == key else line for line in lines]
    (desk / "desk.toml").write_text("\n".join(lines))


def events(desk: Path) -> list[str]:
    return [entry.event for entry in open_desk(desk).ledger.entries]


def state(desk: Path) -> RequestState:
    return open_desk(desk).cases()[-1].state


def test_the_whole_way(here, desk, tmp_path):
    before = model_in(desk)
    key, out = desk / "clients/client-1.key", tmp_path / "request.json"
    result = here("sign", "client-1", "--federation", "world", "--model", before, "--key", key, "--out", out)
    assert result.returncode == 0, result.stderr
    result = here("plan", "desk", "request.json")
    assert result.returncode == 0, result.stderr
    assert "fast-retrain for client-1" in result.stdout
    assert events(desk) == []
    result = here("erase", "desk", "request.json")
    assert result.returncode == 0, result.stderr
    assert "state        purged" in result.stdout
    assert "Nothing was done" not in result.stdout
    expected = ["received", "authenticated", "admitted", "unlearning", "recovering", "verified", "certified"]
    assert events(desk) == [*expected, "installing", "installed", "purging", "purged"]
    assert model_in(desk) != before
    (place,) = (desk / "requests").iterdir()
    kept = {"certificate.json", "certificate.html", "model.safetensors", "purge.json"}
    assert {path.name for path in place.iterdir()} <= kept
    result = here(
        *("verify", place / "certificate.json", "--key", desk / "controller.pub"),
        *("--model", desk / "model.safetensors", "--ledger", desk / "ledger.jsonl"),
    )
    assert result.returncode == 0, result.stderr
    result = here("requests", "desk")
    assert result.returncode == 0
    assert place.name in result.stdout
    assert "purged" in result.stdout
    again = here("erase", "desk", "request.json")
    assert again.returncode == 0
    assert "Nothing was done: the request was already purged." in again.stdout
    assert "Nothing was done: the request was already purged." in here("purge", "desk", place.name).stdout
    assert events(desk)[-1] == "purged"


def test_a_certified_request_waits_for_its_purge(here, desk):
    settings(desk, retrainings="0", keep_days="7")
    result = here("erase", "desk", signed(desk))
    assert result.returncode == 0, result.stderr
    assert state(desk) is RequestState.CERTIFIED
    before = events(desk)
    again = here("erase", "desk", "request.json")
    assert again.returncode == 0
    told = " ".join(again.stdout.split())
    assert "Nothing was done: the request was already certified." in told
    assert "Next: send the certificate; fedunlearn purge." in told
    assert events(desk) == before


def test_a_forgotten_client_takes_no_part_in_the_next_request(here, desk):
    settings(desk, retrainings="0")
    assert here("erase", "desk", signed(desk)).returncode == 0
    result = here("erase", "desk", signed(desk, "client-2"))
    assert result.returncode == 0, result.stderr
    admitted = [entry for entry in open_desk(desk).ledger.entries if entry.event == "admitted"]
    assert [entry.fields["retained"] for entry in admitted] == [3, 2]
    assert "client-1" not in (desk / "suppressed.json").read_text()


@pytest.mark.wording
@pytest.mark.parametrize(
    ("changes", "reason", "sentence"),
    [
        ({"key": "client-2"}, "unknown-key", "signed with another key"),
        ({"model": "0" * 64}, "other-model", "does not serve"),
    ],
)
def test_a_bad_request_is_refused_with_its_own_reason(here, desk, changes, reason, sentence):
    result = here("erase", "desk", signed(desk, **changes))
    assert result.returncode != 0
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert open_desk(desk).ledger.entries[-1].fields["reason"] == reason
    assert state(desk) is RequestState.REFUSED
    assert not any((desk / "requests").glob("*/*"))


def test_a_request_that_was_interrupted_is_continued_to_the_same_model(here, desk, tmp_path):
    settings(desk, method='"reset"', retrainings="0")
    shutil.copytree(desk, tmp_path / "other")
    request = signed(desk)
    assert here("erase", "other", request).returncode == 0
    with stopped("post-training", 2, signal.SIGTERM):
        result = here("erase", "desk", request)
    assert result.returncode == 143
    assert "continue with: fedunlearn erase desk" in result.stderr
    assert state(desk) is RequestState.RECOVERING
    assert here("requests", "desk").returncode == 0
    identity = open_desk(desk).cases()[0].id
    result = here("erase", "desk", identity)
    assert result.returncode == 0, result.stderr
    assert (desk / "model.safetensors").read_bytes() == (tmp_path / "other/model.safetensors").read_bytes()
    assert events(desk) == events(tmp_path / "other")


@pytest.mark.wording
def test_what_cannot_be_answered_yet_stays_open(here, desk):
    settings(desk, method='"federaser"')
    result = here("erase", "desk", signed(desk))
    assert result.returncode == 2
    assert "cannot be answered yet" in result.stderr
    assert state(desk) is RequestState.AUTHENTICATED
    settings(desk, method='""', retrainings="0")
    result = here("erase", "desk", open_desk(desk).cases()[0].id)
    assert result.returncode == 0, result.stderr


@pytest.mark.wording
def test_a_request_can_be_purged_without_an_answer(here, desk):
    settings(desk, method='"federaser"')
    here("erase", "desk", signed(desk))
    identity = open_desk(desk).cases()[0].id
    result = here("purge", "desk", identity)
    assert result.returncode == 2
    assert "has not been answered" in result.stderr
    result = here("purge", "desk", identity, "--withdrawn")
    assert result.returncode == 0, result.stderr
    assert "Nothing was done" not in result.stdout
    assert state(desk) is RequestState.PURGED
    assert not (desk / "requests" / identity / "key").exists()
    result = here("purge", "desk", "0123")
    assert "there is no request '0123'" in result.stderr


@pytest.mark.wording
def test_a_second_desk_is_not_made_in_the_same_folder(here, desk, tmp_path):
    (tmp_path / "world.toml").write_text(WORLD)
    result = here("desk", "desk", "world.toml")
    assert result.returncode == 2
    assert "is a desk already" in result.stderr


@pytest.mark.wording
@pytest.mark.parametrize("name", ["experiment.toml", "model.safetensors", "controller.key", ".notes"])
def test_a_desk_replaces_no_file_of_the_user(refused_here, tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text(WORLD)
    (tmp_path / "world.toml").write_text(WORLD)
    experiment = "mine/experiment.toml" if name == "experiment.toml" else "world.toml"
    assert "mine is not empty: name a new folder" in refused_here("desk", "mine", experiment)
    assert contents(tmp_path / "mine") == {name: WORLD.encode()}


def test_a_desk_that_was_interrupted_in_training_is_made_by_the_same_command(here, tmp_path):
    (tmp_path / "world.toml").write_text(WORLD)
    with stopped("pre-training", 1, signal.SIGTERM):
        result = here("desk", "desk", "world.toml", "--workers", 1)
    assert result.returncode == 143
    assert "start again with the same command" in result.stderr
    assert here("desk", "desk", "world.toml", "--workers", 1).returncode == 0
    assert here("requests", "desk").returncode == 0


@pytest.mark.wording
def test_a_desk_whose_writing_was_interrupted_is_completed(made, desk, tmp_path):
    world = made.parent / "world.toml"
    (desk / "desk.toml").unlink()
    (desk / ".desk.toml.0123456789abcdef.partial").touch()
    make_desk(desk, world, workers=1)
    left = contents(desk)
    del left[".desk.toml.0123456789abcdef.partial"]
    assert left == contents(made)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / ".experiment.toml.0123456789abcdef.partial").touch()
    make_desk(begun, world, workers=1)
    (begun / "desk.toml").unlink()
    (begun / "controller.key").write_text("no key")
    with refused("key", says=r"begun.controller\.key: the private key is not"):
        make_desk(begun, world, workers=1)


def test_a_desk_finds_the_files_that_its_experiment_names(made, apart, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.py").write_text(
        "from fedunlearn import model\nfrom fedunlearn.models import mlp\nmodel('mine')(mlp)\n"
    )
    shutil.copy(made / "model.safetensors", own / "start.safetensors")
    (own / "clinics.toml").write_text(
        'use = ["mine.py"]\ncheckpoint = "start.safetensors"\n'
        + WORLD.replace('name = "world"\n', "").replace('"mlp"', '"mine"')
    )
    result = apart("desk", "desk", "own/clinics.toml")
    assert result.returncode == 0, result.stderr
    assert "--federation clinics" in result.stdout
    (own / "start.safetensors").unlink()  # the desk has its own model
    result = apart("requests", "desk")
    assert result.returncode == 0, result.stderr


@pytest.mark.wording
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("methode = 'fedosd'", "did you mean 'method'"),
        ("smallest = -1", "smallest = -1"),
        ("seed = 'x'", "seed"),
        ("recipients = [", "is not TOML"),
        ("legal_basis = 'gdpr'", "legal_basis"),
    ],
)
def test_a_wrong_setting_is_named(here, desk, line, sentence):
    (desk / "desk.toml").write_text(line + "\n" + (desk / "desk.toml").read_text())
    result = here("requests", "desk")
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "desk.toml" in result.stderr


def test_the_settings_of_a_made_desk_are_those_of_its_experiment(desk):
    values = tomllib.loads((desk / "desk.toml").read_text())
    assert values["schedule"]["unlearn_rounds"] == 3
    assert values["training"]["batch_size"] == 20
    assert sorted(values["clients"]) == [f"client-{number}" for number in range(4)]


@pytest.mark.wording
def test_commands_say_what_is_not_a_desk(here, tmp_path):
    result = here("requests", "nowhere")
    assert result.returncode == 2
    assert "it is not a desk" in result.stderr
    result = here("verify", "nothing.json", "--key", "nobody.pub")
    assert result.returncode == 2


def test_a_client_that_is_gone_is_not_measured(here, desk):
    result = here("plan", "desk", signed(desk), "--gone")
    assert result.returncode == 0, result.stderr
    result = here("erase", "desk", "request.json", "--gone")
    assert result.returncode == 0, result.stderr
    assert "PROCESS_ONLY" in result.stdout
    (end,) = [entry for entry in open_desk(desk).ledger.entries if entry.event == "verified"]
    assert not {"forget_acc", "loss_target"} & end.fields["measures"].keys()


@pytest.mark.wording
def test_a_control_cannot_answer_a_request(here, desk):
    signed(desk)
    settings(desk, method='"finetune"')
    result = here("plan", "desk", "request.json")
    assert result.returncode == 2
    assert "forgets nothing" in result.stderr


@pytest.mark.wording
def test_requests_tell_reasons_and_withdrawals(here, desk):
    settings(desk, method='"federaser"')
    here("erase", "desk", signed(desk))
    identity = open_desk(desk).cases()[0].id
    assert here("plan", "desk", identity).returncode == 3
    here("purge", "desk", identity, "--withdrawn")
    here("erase", "desk", signed(desk, "client-2", federation="elsewhere"))
    shown = here("requests", "desk").stdout
    assert "purged (withdrawn)" in shown
    assert "refused (other-federation)" in shown
    result = here("erase", "desk", "nothing.json")
    assert "there is neither a file nor a request named nothing.json" in result.stderr


@pytest.mark.wording
@pytest.mark.filterwarnings(
    "ignore:unlearning ended in round 1 of 3", "ignore:the loss on the data to be forgotten"
)
def test_a_failed_request_says_why_and_leaves_production_alone(here, desk):
    before = (desk / "model.safetensors").read_bytes()
    settings(desk, method='"fedosd"', retrainings="0", unlearn_lr="0.3")
    (desk / "desk.toml").write_text(
        (desk / "desk.toml").read_text() + "\n[guards]\nharm = 1e-6\nhalvings = 0\n"
    )
    result = here("erase", "desk", signed(desk))
    assert result.returncode == 3
    assert "The model in production stays as it is: unlearning ended in round 1 of 3" in result.stdout
    assert "stopped by guards: unlearning ended in round 1 of 3" in result.stdout
    assert "rounds will show. Let them run, or stop now" in result.stdout
    assert "is guard_stop" in result.stderr
    assert (desk / "model.safetensors").read_bytes() == before
    assert state(desk) is RequestState.GUARD_STOP
