"""Evidence in reports: the account of one audit, and the audits of a comparison."""

from __future__ import annotations

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from support.audits import TARGET
from support.codes import refused

from fedunlearn.report import collect, read_evidence, read_run, write_report
from fedunlearn.report.account import WORDS
from fedunlearn.report.html.evidence import rows_evidence, run_evidence

pytest.importorskip("jinja2")
PARTS = (
    "What was compared",
    "What was measured",
    "Who was harmed?",
    "What can be claimed",
    "What was not tested",
    "What left each client",
)

ROWS = ["ω⁰", "retraining", "second retraining", "method-00", "method-01", "method-02"]


def said(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def section(path) -> str:
    found = re.search(r'<section id="evidence".*?</section>', path.read_text(), re.DOTALL)
    return found[0] if found else ""


def cells(lines, row):
    header, *body = lines
    (line,) = [line for line in body if line[0] == row]
    return dict(zip(header, line, strict=True))


def test_an_auditor_reads_the_verdict_first(audited, tmp_path):
    text = said(section(write_report(collect([audited]), tmp_path / "page.html")))
    evidence = read_evidence(audited)
    assert text.startswith(f"Is it forgotten? UNDER. {WORDS[evidence.verdict]} site-1: Under-forgotten")
    places = [text.index(part) for part in PARTS]
    assert places == sorted(places)
    for sentence in evidence.sentences:
        assert " ".join(sentence.split()) in text
    for how in evidence.models.values():
        assert how["sha256"] in text
    assert "within ±0.05 and the same test finds the target in ω⁰" in text


def test_a_file_with_a_field_that_is_gone_says_the_same(audited):
    """Findings had a slack, for scores that were counted in bins."""
    path = audited / "evidence.json"
    now, values = read_evidence(audited), json.loads(path.read_text())
    for target in values["targets"].values():
        target["finding"]["slack"] = 0.0
    path.write_text(json.dumps(values))
    assert read_evidence(audited).targets == now.targets


def test_evidence_reads_what_it_wrote_with_its_intervals(audited, audit_of):
    evidence, values = read_evidence(audited), audit_of("under")
    written = json.loads(json.dumps(evidence.to_json(), allow_nan=False))
    assert written == values
    assert evidence.targets[TARGET].tpr["1 %"]["model"].interval.level == 0.95
    assert evidence.targets[TARGET].probe["model"].gap_interval is not None
    of_0_2 = {key: value for key, value in values.items() if key != "edition"} | {"later": {"key": 1}}
    for client in of_0_2["influence"]["accuracy"].values():
        del client["n"], client["p_value"]
    (audited / "evidence.json").write_text(json.dumps(of_0_2))
    older = read_evidence(audited)
    assert older.targets == evidence.targets
    assert older.influence["accuracy"][TARGET].beyond == evidence.influence["accuracy"][TARGET].beyond


def test_measures_stand_beside_those_of_the_other_models(audited):
    found, evidence = run_evidence(read_run(audited)), read_evidence(audited)
    ((name, lines),) = found["measures"]
    target = evidence.targets[name]
    assert name == TARGET
    assert lines[0] == ["Measure", "the model", "retraining", "second retraining", "ω⁰", "Meaning"]
    auc = cells(lines, "AUC")
    assert (auc["the model"], auc["ω⁰"]) == (f"{target.finding.auc:.3f}",) * 2
    assert auc["retraining"] == f"{target.finding.reference_auc:.3f}"
    js = cells(lines, "JS")
    assert (js["the model"], js["retraining"]) == (f"{target.distance['model'].forgotten:.3f}", "–")
    assert js["second retraining"] == f"{target.distance['again'].forgotten:.3f}"
    assert cells(lines, "TPR 1 %")["the model"] == f"{target.tpr['1 %']['model'].tpr:.1%}"
    assert cells(lines, "ASR, unseen")["retraining"] == f"{target.asr_unseen['retrained'].share:.1%}"
    assert all(len(line[-1]) > 20 for line in lines[1:])


def test_clients_that_were_harmed_are_marked(audited, audit_of):
    values = audit_of("under")
    harmed = values["influence"]["accuracy"]["site-0"]
    harmed |= {"difference": -0.2, "floor": 0.01, "beyond": True}
    (audited / "evidence.json").write_text(json.dumps(values))
    found = run_evidence(read_run(audited))
    line = cells(found["clients"], "site-0")
    assert line["Differs"].startswith("accuracy worse")
    assert found["clients"][1][0] == f"{TARGET} (target)"
    assert "site-0 (-0.200)" in found["harm"][0]


def test_the_figure_has_the_differences_at_scale(audited):
    figure, evidence = run_evidence(read_run(audited))["intervals"], read_evidence(audited)
    finding = evidence.targets[TARGET].finding
    assert [lane.name for lane in figure.lanes] == [
        "the model",
        "ω⁰, before unlearning",
        "the model, hardest tenth",
    ]
    low, high = figure.band
    assert (low + high) / 2 == pytest.approx(figure.zero, abs=0.01)
    per_unit = (high - low) / (2 * finding.margin)
    (bar,) = figure.lanes[0].bars
    assert bar.at == pytest.approx(figure.zero + per_unit * finding.difference, abs=0.2)
    assert bar.inner[1] == pytest.approx(figure.zero + per_unit * finding.difference_interval.high, abs=0.2)
    assert bar.outer[0] < bar.inner[0] < bar.at < bar.inner[1] < bar.outer[1]
    assert figure.lanes[0].verdict == "UNDER"
    assert all(0 <= end <= 100 for lane in figure.lanes for each in lane.bars for end in each.outer)


def test_what_can_be_claimed_depends_on_the_verdict(audited, audit_of):
    def claimed():
        return {line[0]: line[1] for line in run_evidence(read_run(audited))["claims"][1:]}

    under = claimed()
    alike, more, worse, *never = under
    assert (under[alike], under[more][:3], under[worse]) == ("no", "yes", "not on average")
    (audited / "evidence.json").write_text(json.dumps(audit_of("equivalent")))
    passed = claimed()
    assert passed[alike] == "yes"
    assert passed[more] == passed[worse] == "not on average, beyond the margin"
    assert all(passed[claim].startswith("no: ") for claim in never)
    values = audit_of("equivalent")
    values["targets"][TARGET]["finding"]["verdict"] = "no_signal"
    (audited / "evidence.json").write_text(json.dumps(values))
    assert set(claimed().values()) & {"yes"} == set()
    values = audit_of("under")
    values["targets"]["site-2"] = json.loads(json.dumps(values["targets"][TARGET]))
    for verdict, answer in (("over", "yes"), ("equivalent", "not on average"), ("inconclusive", "not shown")):
        values["targets"]["site-2"]["finding"]["verdict"] = verdict
        (audited / "evidence.json").write_text(json.dumps(values))
        several = claimed()
        assert several[more].startswith("yes")
        assert several[worse].startswith(answer)


def test_relearning_and_canaries_are_shown_where_they_were_measured(audited, audit_of):
    found = run_evidence(read_run(audited))
    assert any(told.startswith("Relearning") for told in found["untested"])
    assert any(told.startswith("Canaries") for told in found["untested"])
    assert not any("canaries" in text or "update" in text for line in found["left"] for text in line)
    values = audit_of("under")
    attack = {"original": 0.2, "model": [1.0, 0.9, 0.8, *[0.3] * 18], "retrained": [1.0] * 21, "later": 1}
    values["relearning"] = {
        "posttraining": attack,
        "finetuning": attack | {"original": 1.0},
        "examples": 100,
    }
    guesses = {"correct": 30, "guesses": 40, "bound": None, "reverse": None}
    values["targets"][TARGET]["canaries"] = {"model": guesses}
    (audited / "evidence.json").write_text(json.dumps(values))
    relearning = read_evidence(audited).relearning
    assert (relearning.posttraining.rounds, relearning.posttraining.rounds_retrained) == (3, None)
    assert relearning.finetuning.threshold is None
    found = run_evidence(read_run(audited))
    assert not any(told.startswith(("Relearning", "Canaries")) for told in found["untested"])
    ((_, lines),) = found["measures"]
    relearned = cells(lines, "Relearn, post-training")
    assert (relearned["the model"], relearned["retraining"]) == ("3", "> 20")
    assert cells(lines, "Canaries")["the model"] == "75.0%"
    revealed = {line[0]: line[1] for line in found["left"]}
    assert "guesses about canaries" in revealed["target"]
    assert "an update on few forgotten examples" in revealed["target"]
    assert "an update in every round" in revealed["retained"]
    values["relearning"]["posttraining"] = attack | {"original": 1.0}
    (audited / "evidence.json").write_text(json.dumps(values))
    nothing = run_evidence(read_run(audited))
    assert not any(told.startswith("Relearning") for told in nothing["untested"])


def test_without_a_retrained_model_there_is_an_account_without_a_verdict(audited, audit_of):
    values = audit_of("under") | {"verdict": None, "influence": {}, "tug_of_war": {}}
    target = values["targets"][TARGET]
    target |= {"finding": target["losses"], "original": None, "tail": None, "distance": {}, "tpr": {}}
    values["models"] = {"model": values["models"]["model"]}
    (audited / "evidence.json").write_text(json.dumps(values))
    found = run_evidence(read_run(audited))
    assert found["conclusion"].startswith("There is no verdict")
    assert found["intervals"] is None
    assert found["clients"] == []
    assert "the loss of each forgotten example with those of unseen examples" in found["test"]
    assert "minus the mean loss" not in found["test"]
    assert found["revealed"].startswith("The clients computed")
    write_report(collect([audited]), audited / "page.html")


def test_a_comparison_says_who_forgets_too_little(audited_comparison, tmp_path):
    collection = collect([audited_comparison])
    found = rows_evidence(collection, {})
    assert found["told"] == [
        "Too little forgotten: ω⁰, method-01, method-02.",
        "Like retraining, within the margin: retraining, second retraining, method-00.",
    ]
    verdicts, clients, measures = found["grids"]
    for grid in (verdicts, clients, measures):
        assert [name for name, *_ in grid.lines] == ROWS
    shown = {name: line[0].text for name, _, line in verdicts.lines}
    assert (shown["method-00"], shown["method-01"]) == ("EQUIVALENT 2/2", "UNDER 2/2")
    assert [heading.title for heading in verdicts.headings][-1] == "ASR gap"
    assert {"JS", "JS floor", "TPR 1 %", "Probe gap", "ToW", "ASR, unseen gap"} <= {
        heading.title for heading in measures.headings
    }
    assert [len(lane.bars) for lane in found["intervals"].lanes] == [2] * 6
    text = write_report(collection, tmp_path / "page.html").read_text()
    for grid in (verdicts, clients, measures):
        for heading in grid.headings:
            assert f'id="g-{heading.term}"' in text


def test_columns_keep_their_references_apart(audited_comparison, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(audited_comparison, tmp_path / "both" / name)
    found = rows_evidence(collect([tmp_path / "both"]), {})
    assert [lane.name for lane in found["intervals"].lanes] == [
        *(f"{column}/{row}" for column in ("first", "second") for row in ROWS[:3]),
        *(f"{column}/{row}" for column in ("first", "second") for row in ROWS[3:]),
    ]


def test_runs_in_the_working_directory_have_their_references(audited_comparison, monkeypatch):
    monkeypatch.chdir(audited_comparison / "seed-1")
    found = rows_evidence(collect([Path("method-00"), Path("method-01")]), {})
    assert [lane.name for lane in found["intervals"].lanes] == ROWS[:5]


def test_runs_that_were_not_audited_look_as_before(folder, comparison, tmp_path):
    for place in (folder, comparison):
        text = write_report(collect([place]), tmp_path / "page.html").read_text()
        for word in ("Is it forgotten?", 'href="#evidence"', 'id="evidence"', "g-audit", "Evidence"):
            assert word not in text


def test_what_clients_and_models_are_called_is_escaped(audited, audit_of):
    hostile = "<script>window.hacked = 1</script>"
    text = json.dumps(audit_of("under")).replace("site-0", hostile).replace(TARGET, hostile + "2")
    (audited / "evidence.json").write_text(text)
    page = section(write_report(collect([audited]), audited / "page.html"))
    assert hostile not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    "change",
    [
        {"relearning": {"posttraining": {"original": "soon", "model": [], "retrained": []}}},
        {"tug_of_war": {"model": {"value": float("nan")}}},
        {"targets": {"site-1": {"finding": {"verdict": "under", "auc": "high"}}}},
        {"models": ["model"]},
    ],
    ids=["words", "nan", "text", "list"],
)
def test_damaged_evidence_is_one_sentence(audited, audit_of, change):
    (audited / "evidence.json").write_text(json.dumps(audit_of("under") | change))
    with refused("invalid", says=r"evidence\.json is not (JSON|the evidence of an audit)"):
        write_report(collect([audited]), audited / "page.html")
