"""Audits in comparisons: which runs are audited, what is trained for it, and the table of evidence."""

from __future__ import annotations

import json
import runpy
import shutil
import warnings
from pathlib import Path

import pytest
from support.codes import refused, warned
from support.comparisons import perform
from support.folders import edit

from fedunlearn.evidence import Verdict
from fedunlearn.experiment import audit_run
from fedunlearn.experiment.comparison import Comparison, planned, read_comparison
from fedunlearn.report import evidence_tables, read_evidence
from fedunlearn.runs import read_json, read_outcome

PACKAGED = Path(__file__).parents[2] / "experiments/evidence.toml"
TINY = [
    "data.dataset=fashion-demo",
    "data.fraction=0.5",
    "data.clients=3",
    "training.batch_size=20",
    "pretraining.rounds=4",
    "unlearning.rounds=1",
    "recovery.rounds=1",
    "relearn=2",
]
SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts/store_evidence.py"))
REFERENCES = ("omega0", "retraining-1", "retraining-2")


def tiny(*only: str, seeds: int = 1, more: tuple[str, ...] = ()) -> Comparison:
    return read_comparison(PACKAGED, [*TINY, *more], only=only, seeds=seeds)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on a clean and on a backdoored target."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setenv("FEDUNLEARN_CACHE", str(folder / "cache"))
        wanted = tiny("clean-iid", "backdoor-iid", "finetune", "federaser")
        assert perform(wanted, folder / "runs") == list(planned(wanted, folder / "nothing"))
    return folder


@pytest.fixture
def copied(compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(compared / "cache"))
    return shutil.copytree(compared / "runs", tmp_path / "runs")


def test_the_packaged_file_compares_clean_and_backdoored_targets():
    comparison = read_comparison(PACKAGED)
    assert comparison.seeds == (4, 5, 6)
    assert list(comparison.columns) == [
        f"{kind}-{partition}" for kind in ("clean", "backdoor") for partition in ("pat-20", "pat-50", "iid")
    ]
    assert {len(rows) for rows in comparison.columns.values()} == {10}
    for column, rows in comparison.columns.items():
        for experiment in rows.values():
            assert experiment.backdoor.enabled == column.startswith("backdoor")
            assert experiment.data.partition == column.partition("-")[2]


def test_reference_trainings_are_planned_once_for_what_shares_them(tmp_path):
    wanted = tiny("clean-iid", "backdoor-iid", "clean-pat-50", "finetune", "federaser")
    references = {name: rounds for name, rounds in planned(wanted, tmp_path).items() if "references" in name}
    assert references == {
        **{
            f"{column}/references/seed-4/retraining-{number}": (0, 4)
            for column in ("clean-iid", "clean-pat-50")
            for number in (1, 2)
        },
        **{
            f"{column}/references/seed-4/twin-{number}": (4, 0)
            for column in ("clean-iid", "clean-pat-50", "backdoor-iid")
            for number in (1, 2)
        },
    }
    none = tiny("clean-iid", "finetune", more=("data.audit=0", "data.twins=0"))
    assert list(planned(none, tmp_path)) == ["clean-iid/seed-4/finetune"]
    assert "clean-iid/references/seed-4/twin-1" not in planned(
        tiny("clean-iid", "finetune", more=("data.twins=0",)), tmp_path
    )


def test_runs_omega0_and_both_retrainings_are_audited(compared):
    for column in ("clean-iid", "backdoor-iid"):
        seed, home = compared / "runs" / column / "seed-4", compared / "runs" / column / "references/seed-4"
        runs = {row: read_evidence(seed / row) for row in ("finetune", "federaser")}
        own = {name: read_evidence(home / name) for name in REFERENCES}
        assert all(runs.values())
        assert all(own.values())
        for row, evidence in runs.items():
            assert evidence.models["model"]["sha256"] == read_outcome(seed / row)["model_sha256"]
            assert evidence.models["twin-2"]["rounds"] == evidence.models["retrained"]["rounds"] == 4
            assert evidence.models["retrained"]["number"] == 1
            for name in ("original", "retrained", "again", "twin-1", "twin-2"):
                assert evidence.models[name] == runs["finetune"].models[name]
        first, second = own["retraining-1"].models, own["retraining-2"].models
        assert own["omega0"].models["model"] == own["omega0"].models["original"]
        assert first["model"] == second["retrained"] == runs["finetune"].models["retrained"]
        assert second["model"] == first["retrained"] == runs["finetune"].models["again"]
    clean, marked = (
        read_evidence(compared / "runs" / column / "seed-4/finetune")
        for column in ("clean-iid", "backdoor-iid")
    )
    assert clean.models["retrained"] == marked.models["retrained"]  # the same retained clients
    assert clean.models["twin-1"] != marked.models["twin-1"]


def test_what_is_audited_stays_and_what_is_missing_is_audited(copied):
    wanted = tiny("clean-iid", "backdoor-iid", "finetune", "federaser")
    assert planned(wanted, copied) == {}
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("evidence.json")}
    assert len(before) == 2 * (2 + len(REFERENCES))
    assert perform(wanted, copied) == []
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("evidence.json")} == before
    lost = [copied / "clean-iid/seed-4/federaser", copied / "backdoor-iid/references/seed-4/omega0"]
    texts = [(folder / "evidence.json").read_text() for folder in lost]
    for folder in lost:
        (folder / "evidence.json").unlink()
    assert perform(wanted, copied) == []  # the references are in the cache
    assert [(folder / "evidence.json").read_text() for folder in lost] == texts


def evidence_texts(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("evidence.json")}


@pytest.mark.parametrize("change", [{"margin": 0.4}, {"relearn": 0}, {"twins": 0}, {"relearn": 3}])
def test_evidence_by_another_standard_is_replaced(copied, change):
    before = evidence_texts(copied)
    run = copied / "clean-iid/seed-4/federaser"
    audit_run(run, workers=1, **{"relearn": 2, **change})
    assert (run / "evidence.json").read_text() != before[run / "evidence.json"]
    assert perform(tiny("clean-iid", "finetune", "federaser"), copied) == []
    assert evidence_texts(copied) == before


def test_evidence_against_other_retrainings_is_replaced(copied):
    before = evidence_texts(copied)
    run = copied / "clean-iid/seed-4/federaser"
    values = read_json(run / "evidence.json")
    for changes in ({"sha256": "0" * 64}, {"made": "run"}):
        models = values["models"] | {"again": values["models"]["again"] | changes}
        edit(run, {"evidence.json": json.dumps(values | {"models": models})})
        assert perform(tiny("clean-iid", "finetune", "federaser"), copied) == []
        assert evidence_texts(copied) == before


def test_relearning_is_measured_where_it_is_wanted_later(copied):
    for rounds in (0, 1):
        wanted = tiny("clean-iid", "finetune", more=(f"relearn={rounds}",))
        assert perform(wanted, copied) == []
        _, _, (header, *_) = evidence_tables(wanted.audited(copied, "clean-iid"))
        assert any(name.startswith("Relearn") for name in header) == bool(rounds)


def test_a_retraining_among_the_rows_is_audited_once(copied):
    wanted = tiny("clean-iid", "finetune", "retrain", more=("methods.retrain.options.rounds=4",))
    assert perform(wanted, copied) == ["clean-iid/seed-4/retrain"]
    run = copied / "clean-iid/seed-4/retrain"
    assert "again" not in read_json(run / "evidence.json")["models"]
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("evidence.json")}
    assert perform(wanted, copied) == []
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("evidence.json")} == before


def test_a_run_that_failed_is_skipped_with_a_sentence(copied):
    run = copied / "clean-iid/seed-4/federaser"
    edit(run, {"outcome.json": json.dumps(read_json(run / "outcome.json") | {"status": "diverged"})})
    (run / "evidence.json").unlink()
    with warned("not-audited", says=r"^clean-iid/seed-4/federaser failed, so it is not audited$"):
        assert perform(tiny("clean-iid", "finetune", "federaser"), copied) == []
    assert read_evidence(run) is None
    only = tiny("clean-iid", "federaser", more=("data.dataset=fashion-demo",))
    shutil.rmtree(copied / "clean-iid/references")
    assert planned(only, copied) == {}


def test_the_table_counts_verdicts_and_alarms(copied):
    wanted = tiny("clean-iid", "finetune", "federaser")
    places = wanted.audited(copied, "clean-iid")
    (header, *rows), (clients, *_), (measures, *beside) = evidence_tables(places)
    assert [row[0] for row in rows] == ["ω⁰", "retraining", "second retraining", "finetune", "federaser"]
    assert header[1:6] == ["Verdict", "Hardest alarms", "AUC", "AUC gap", "Hardest AUC gap"]
    assert "ASR gap" not in header
    evidence = {row: read_evidence(folders[0]) for row, folders in places.items()}
    for row in rows:
        (target,) = evidence[row[0]].targets.values()
        assert row[1] == f"{evidence[row[0]].verdict.replace('_', ' ').upper()} 1/1"
        assert row[header.index("AUC gap")] == f"{target.finding.difference:.3f}"
    first, second = (evidence[row].targets for row in ("retraining", "second retraining"))
    for target, found in first.items():
        assert found.finding.difference == pytest.approx(-second[target].finding.difference)
    relearned = [f"Relearn, {attack}" for attack in ("post-training", "fine-tuning")]
    assert clients[1:] == ["Target acc", "Target acc gap", "Worst gap", "Harmed", "n"]
    assert measures[1:] == ["Plain AUC", "JS", "JS floor", "Probe gap", "ToW", *relearned]
    for row in beside:
        (target,) = evidence[row[0]].targets.values()
        assert row[2] == f"{target.distance['model'].forgotten:.3f}"
        floor = target.distance.get("again")
        assert row[3] == ("–" if floor is None else f"{floor.forgotten:.3f}")
        assert row[4] == f"{target.probe['model'].gap:.1%}"
    backdoored, _, others = evidence_tables(tiny("backdoor-iid", "finetune").audited(copied, "backdoor-iid"))
    assert "ASR gap" in backdoored[0]
    assert "ASR, unseen gap" in others[0]

    run = copied / "clean-iid/seed-4/finetune"
    other = shutil.copytree(run, copied / "clean-iid/seed-5/finetune")
    values = read_json(run / "evidence.json")
    (name,) = values["targets"]
    values["targets"][name]["tail"] = values["targets"][name]["finding"] | {"verdict": "over"}
    level = values["targets"][name]["finding"]["reference_auc"]
    values["targets"][name]["finding"] |= {"verdict": "no_signal", "auc": level + 0.25, "difference": 0.25}
    edit(other, {"evidence.json": json.dumps(values)})
    learned = [2.0] * 12 + [0.5] * 9
    values["relearning"] = {
        "posttraining": {"original": 0.0, "model": [2.0] * 21, "retrained": learned},
        "finetuning": {"original": 3.0, "model": [2.0] * 21, "retrained": learned},
        "examples": 100,
    }
    edit(other, {"evidence.json": json.dumps(values)})
    (_, row), _, _ = evidence_tables({"finetune": [run, other]})
    _, _, (measures, measured) = evidence_tables({"finetune": [other]})
    assert measures[-1] == "Relearn, post-training"  # the other attack had nothing to relearn
    assert measured[-1] == "> 20 / 12"
    was = evidence["finetune"]
    assert set(row[1].split(", ")) == {f"{was.verdict.replace('_', ' ').upper()} 1/2", "NO SIGNAL 1/2"}
    assert row[2].startswith("1/")
    mean = (was.targets[name].finding.difference + 0.25) / 2
    assert row[header.index("AUC gap")].startswith(f"{mean:.3f} ±")
    listed = wanted.audited(copied, "clean-iid", listed=True)
    assert [path.parent.name for path in listed["finetune"]] == ["seed-4", "seed-5"]
    assert evidence_tables({"nothing": [copied]}) == []


def test_evidence_is_read_as_it_was_written(copied):
    found = read_evidence(copied / "backdoor-iid/seed-4/finetune")
    ((name, target),) = found.targets.items()
    assert isinstance(target.finding.verdict, Verdict)
    assert target.finding.interval.low < target.finding.auc < target.finding.interval.high
    assert target.finding.gate is target.original.verdict
    assert target.asr.keys() == {"model", "retrained", "original", "again"}
    assert found.influence["accuracy"][name].value == found.to_json()["influence"]["accuracy"][name]["value"]
    assert read_evidence(copied) is None


@pytest.mark.parametrize("text", ["[]", "{}", '{"verdict": "fine"}', "{"])
def test_damaged_evidence_is_refused_in_one_sentence(copied, text):
    run = copied / "clean-iid/seed-4/finetune"
    (run / "evidence.json").write_text(text)
    with refused("damaged", says=r"evidence\.json has .* delete it and audit the run again"):
        read_evidence(run)
    (run / "evidence.json").unlink()
    edit(run, {"evidence.json": text})
    with refused("damaged", "invalid", says=r"evidence\.json is not (JSON|the evidence of an audit)"):
        read_evidence(run)


def test_the_committed_page_is_what_the_stored_evidence_says():
    page = SCRIPT["PAGE"].read_text(encoding="utf-8")
    assert SCRIPT["renewed"](page, SCRIPT["stored"]()) == page, (
        "docs/results.md is out of date: run python scripts/store_evidence.py"
    )
    assert SCRIPT["TABLE"].read_text(encoding="utf-8") == SCRIPT["as_csv"](SCRIPT["stored"]())


def test_evidence_is_stored_and_shown(compared, tmp_path):
    path = tmp_path / "evidence.json"
    assert SCRIPT["store"](compared / "runs", path).startswith("evidence.json: 10 audits, ")
    audits = SCRIPT["stored"](path)
    assert {each["column"] for each in audits} == {"clean-iid", "backdoor-iid"}
    (found,) = [each for each in audits if (each["column"], each["row"]) == ("backdoor-iid", "finetune")]
    run = compared / "runs/backdoor-iid/seed-4/finetune"
    evidence = read_evidence(run)
    ((name, target),) = evidence.targets.items()
    assert found["model_sha256"] == read_outcome(run)["model_sha256"]
    assert found["verdict"] == evidence.verdict
    assert found["difference"] == pytest.approx(target.finding.difference, abs=1e-5)
    own = evidence.influence["accuracy"].pop(name)
    retained = [each.value for each in evidence.influence["accuracy"].values()]
    assert found["target"]["accuracy"]["model"] == pytest.approx(own.value, abs=1e-5)
    assert found["r_acc"] == pytest.approx(sum(retained) / len(retained), abs=1e-5)
    assert found["worst"] == pytest.approx(min(retained), abs=1e-5)
    assert found["asr_unseen"]["retrained"] == pytest.approx(target.asr_unseen["retrained"].share, abs=1e-5)
    assert found["rounds"] == 2
    rounds = {each["row"]: each["rounds"] for each in audits}
    assert (rounds["ω⁰"], rounds["retraining"]) == (0, 4)

    page = SCRIPT["renewed"](SCRIPT["PAGE"].read_text(encoding="utf-8"), audits)
    letter = SCRIPT["LETTERS"][evidence.verdict]
    gap = f"{target.finding.difference:+.3f}".replace("-", "−")
    assert f"| `finetune` | {gap} {letter} 1/1 |" in page
    asr = 100 * (target.asr["model"].share - target.asr["retrained"].share)
    assert f"| `finetune` | {asr:+.1f} |".replace("-", "−") in page
    assert "| second retraining |" in page
    heading, first, *_ = SCRIPT["as_csv"](audits).splitlines()
    assert heading.startswith("column,seed,row,model_sha256,verdict,")
    assert first.split(",")[3] == audits[0]["model_sha256"]
    with refused("invalid", says="has no evidence"):
        SCRIPT["store"](tmp_path, path)
