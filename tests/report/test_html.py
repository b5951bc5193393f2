"""The HTML report as text: what it says, how large it is, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.codes import refused
from typer.testing import CliRunner

from fedunlearn.cli.commands import app
from fedunlearn.experiment import Experiment
from fedunlearn.experiment.comparison import read_comparison
from fedunlearn.report import (
    collect,
    comparison_tables,
    folders,
    round_table,
    stage_table,
    verdict,
    write_report,
)
from fedunlearn.report import html as module
from fedunlearn.report.figures import curves
from fedunlearn.report.html.comparison import comparison_page
from fedunlearn.report.rerun import recipes, toml
from fedunlearn.report.settings import flat
from fedunlearn.runs import read_metrics

pytest.importorskip("jinja2")
HOSTILE = '<script>window.hacked = 1</script><img src=x onerror="window.hacked=1">'
TEMPLATES = Path(module.__file__).parent / "templates"


@pytest.fixture
def page(tmp_path):
    def made(*folders):
        return write_report(collect(folders), tmp_path / "page.html").read_text()

    return made


def said(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    handle_startendtag = handle_starttag


def test_a_run_is_told_from_request_to_model(page, folder):
    text = said(page(folder))
    for words in (
        "made",
        "The backdoor of the target works on 2.0% of the triggered data (before the request: 90.0%)",
        "10 clients trained the model mlp on fashion-demo, partitioned by pat-20",
        "The method: fedosd; seed 3.",
        "Pan et al., AAAI 2025",
        "The last evaluated round of each stage",
        "fedunlearn run experiment.toml",
        "torch 2.13.0",
        "abc123",
    ):
        assert words in text


def test_a_comparison_has_every_row_with_its_spread(page, comparison):
    text = said(page(comparison))
    for words in (
        "1 of 3 finished rows end with an ASR of at most 10.0%",
        "mean ± standard deviation of 2 runs",
        "method-00 1.5% ±0.7",
        "fedunlearn compare comparison.toml --out again --seeds 2",
        "Best in forgetting and utility together: method-00 (ASR 3.5%, R-Acc 85.0%), then method-01 (ASR",
    ):
        assert words in text


def test_a_run_tells_its_clients_apart_after_each_stage(page, clients_run):
    text = said(page(clients_run))
    assert "client 0 client 2 client 10 ω⁰ 80.0% 70.0% 30.0% unlearned 60.0% 50.0% 10.0%" in text
    assert "post-trained 85.0% 75.0% 35.0%" in text


@pytest.mark.parametrize(
    ("planned", "borders"), [(3, [(0.0, "unlearning"), (3.0, "post-training")]), (1, [])]
)
def test_stages_are_parted_where_most_rows_part_them(comparison, planned, borders):
    for place in comparison.glob("seed-*/*/experiment.json"):
        config = json.loads(place.read_text())
        place.write_text(json.dumps(config | {"unlearning": {"rounds": planned}}))
    first, *_ = comparison_page(collect([comparison]))["plots"]
    assert first.borders == borders
    assert ("begins at another round for method-01." in first.about) == bool(borders)


def test_a_failed_seed_counts_as_it_ended_and_its_row_is_not_the_best(comparison, page):
    assert "method-00 (ASR" in said(page(comparison))
    folder = comparison / "seed-2/method-00"
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))  # start, and a round that was not evaluated
    ended = {"status": "diverged", "reason": "lower it", "model_sha256": "f00"}
    (folder / "outcome.json").write_text(json.dumps(ended))
    text = said(page(comparison))
    assert "method-00 (ASR" not in text
    assert "1 done, 1 failed (diverged)" in text
    assert "a failed run counts with its last numbers" in text
    shown = comparison_page(collect([comparison]))
    (cells,) = [cells for name, _, cells in shown["results"].lines if name == "method-00"]
    asr = dict(zip([heading.title for heading in shown["results"].headings], cells, strict=True))["ASR¹"]
    assert asr.value == pytest.approx((0.01 + json.loads(lines[0])["asr"]) / 2)
    ends = [max(plot.curves[0].values) for plot in shown["plots"]]
    panel, *_ = shown["panels"]
    assert {*ends, max(panel["plot"].curves[0].values)} == {5.0}  # a failed run cuts no curve short


def test_a_report_states_the_schedule_that_ran(folder, page):
    rates = iter([0.1, 0.05, 0.025, 0.0125, 0.00625])  # a decay of a half
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row if row["stage"] == "start" else row | {"lr": next(rates)} for row in lines]
    rows.insert(3, rows[2] | {"status": "missing_reply"})  # tried again after a resume
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = json.loads((folder / "experiment.json").read_text())
    plan = {"unlearning": {"rounds": 9, "lr": 0.1}, "recovery": {"rounds": 7, "lr": 0.1}}
    (folder / "experiment.json").write_text(json.dumps(config | plan | {"training": {"decay": 0.5}}))
    assert (
        "The method: fedosd; 3 rounds of unlearning at learning rate 0.1, then 2 rounds of post-training "
        "at learning rate 0.1; seed 3." in said(page(folder))
    )
    (folder / "outcome.json").unlink()
    assert (
        "The method: fedosd; planned: 9 rounds of unlearning at learning rate 0.1, then 7 rounds of "
        "post-training at learning rate 0.1; seed 3." in said(page(folder))
    )


def test_a_comparison_tells_clients_apart_in_its_first_seed(page, clients_comparison):
    whole = page(clients_comparison)
    text = said(whole)
    assert "Accuracy of each retained client at the end; seed 1" in text
    assert "ω⁰ 80.0% 70.0% 30.0% one 90.0% 80.0% 40.0% two 80.0% 70.0% 30.0%" in text
    shades = [of["style"] for tag, of in Elements(whole).found if tag == "td" and of.get("class") == "heat"]
    assert shades[:4] == ["--heat:80.0%", "--heat:70.0%", "--heat:30.0%", "--heat:90.0%"]


def test_runs_that_do_not_tell_clients_apart_have_no_such_table(page, folder, comparison):
    for found in (folder, comparison):
        assert "Accuracy of each retained client" not in page(found)


def test_a_client_without_a_number_is_damage(page, clients_run):
    path = clients_run / "metrics.jsonl"
    path.write_text(
        re.sub(r'"r_acc client-2": [\d.]+', '"r_acc client-2": "much"', path.read_text(), count=1)
    )
    with refused("invalid", says="line 1 is not a valid row"):
        page(clients_run)


def test_several_runs_are_named_so_that_they_can_be_told_apart(page, tmp_path, comparison):
    one, two = comparison / "seed-1/method-00", comparison / "seed-2/method-00"
    text = said(page(one, two))
    assert "seed-1/method-00" in text
    assert "seed-2/method-00" in text
    assert "2 runs" in text


def test_columns_of_a_comparison_are_put_side_by_side(page, comparison, make_comparison):
    comparison.rename(comparison.with_name("first"))
    (comparison / "trials/method-00").mkdir(parents=True)
    make_comparison(comparison / "one", count=2)
    make_comparison(comparison / "two", count=1)
    text = said(page(comparison))
    for row in ("one/method-00", "one/method-01", "two/method-00"):
        assert row in text
    assert "3 rows" in text
    assert said(page(comparison / "two")).startswith("made, two")


def test_the_same_files_give_the_same_bytes(page, comparison):
    assert page(comparison) == page(comparison)


def test_nothing_in_the_page_points_outside(page, comparison, folder):
    for text in (page(comparison), page(folder / "comparison/seed-1/method-00")):
        for _, attributes in Elements(text).found:
            for name in ("src", "href", "action", "data", "poster", "srcset"):
                assert (attributes.get(name) or "#").startswith(("#", "data:,")), attributes
        assert "http:" not in text
        assert "https:" not in text
        assert "url(" not in text
        assert "@import" not in text


def test_ids_are_unique_and_whatever_is_referred_to_is_there(page, comparison):
    found = [attributes for _, attributes in Elements(page(comparison)).found]
    ids = [attributes["id"] for attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in found:
        wanted = " ".join(attributes.get(name) or "" for name in ("aria-labelledby", "aria-describedby"))
        wanted += " " + (attributes.get("data-tip") or "")
        if (attributes.get("href") or "").startswith("#"):
            wanted += " " + attributes["href"][1:]
        assert set(wanted.split()) <= set(ids)


def test_every_figure_has_words_for_those_who_do_not_see_it(page, comparison):
    for tag, attributes in Elements(page(comparison)).found:
        if tag == "svg" and attributes.get("role") == "img":
            assert attributes.get("aria-labelledby") or attributes.get("aria-label")
        elif tag == "svg":
            assert attributes.get("aria-hidden") == "true" or "overflow" in attributes


def test_whatever_comes_from_files_is_escaped(page, tmp_path, comparison):
    for path in comparison.rglob("experiment.json"):
        config = json.loads(path.read_text())
        data = {**config["data"], "dataset": HOSTILE, HOSTILE: HOSTILE}
        path.write_text(json.dumps({**config, "name": HOSTILE, "method": HOSTILE, "data": data}))
        (path.parent / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
        ended = {"status": "diverged", "reason": HOSTILE, "model_sha256": HOSTILE}
        (path.parent / "outcome.json").write_text(json.dumps(ended))
    (comparison / "seed-1/method-00").rename(comparison / "seed-1/<script>alert(1)<")
    for folder in (comparison, comparison / "seed-1/<script>alert(1)<"):
        text = page(folder)
        tags = [tag for tag, _ in Elements(text).found]
        assert tags.count("script") == 3
        assert "img" not in tags
        assert not any("onerror" in attributes for _, attributes in Elements(text).found)


def test_a_run_that_goes_on_says_so(page, folder):
    (folder / "outcome.json").unlink()
    path = folder / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]) + '{"cut')
    text = said(page(folder))
    assert "This run has not ended." in text
    assert "unfinished: unlearning, round 2 so far" in text


def test_a_run_that_has_measured_nothing_says_so(page, folder):
    (folder / "outcome.json").unlink()
    (folder / "metrics.jsonl").unlink()
    text = said(page(folder))
    assert "Nothing has been measured yet." in text
    assert "unfinished: no measurement yet" in text


def test_a_run_of_no_rounds_is_a_run(page, folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    assert "from 80.0% to 80.0%" in said(page(folder))


def test_a_run_that_failed_says_why(page, folder):
    ended = {"status": "diverged", "reason": "lower the learning rate", "model_sha256": "f00"}
    (folder / "outcome.json").write_text(json.dumps(ended))
    text = said(page(folder))
    assert "This run failed." in text
    assert "failed (diverged): lower the learning rate" in text


def test_an_unfinished_run_does_not_speak_for_its_row(page, comparison):
    (comparison / "seed-2/method-00/outcome.json").unlink()
    (comparison / "seed-2/method-02/outcome.json").unlink()
    (comparison / "seed-1/method-02/outcome.json").unlink()
    text = said(page(comparison))
    assert "1 done, 1 unfinished" in text
    assert "1 of 2 finished rows end with" in text


def test_a_row_that_began_elsewhere_has_an_origin_of_its_own(page, comparison):
    assert "ω⁰ (" not in said(page(comparison))
    for seed in (1, 2):
        path = comparison / f"seed-{seed}/method-02/metrics.jsonl"
        path.write_text(path.read_text().replace('"asr": 0.9', '"asr": 0.7'))
    text = said(page(comparison))
    assert "ω⁰ 90.0%" in text
    assert "ω⁰ (method-02) 70.0%" in text


def clean(folder: Path, rows: dict[str, tuple[float, float | None, float]], before: float) -> Path:
    """A comparison without a backdoor: forget accuracy after unlearning and at the end of each method."""
    for name, (utility, unlearned, end) in rows.items():
        scores = {"r_acc": utility, "r_acc_worst": utility - 0.1, "r_acc_std": 0.1, "r_acc_best": utility}
        steps = [("start", before), ("unlearning", unlearned), ("post-training", end)]
        lines = [
            {"stage": stage, "round": 1, "elapsed": at, "distance": at, "forget_acc": value, **scores}
            for at, (stage, value) in enumerate(steps)
            if value is not None
        ]
        run = folder / "seed-1" / name
        run.mkdir(parents=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "experiment.json").write_text(json.dumps({"name": "clean", "method": name, "seed": 1}))
        ended = {"status": "done", "reason": "", "model_sha256": "abc"}
        (run / "outcome.json").write_text(json.dumps(ended))
    return folder


def test_a_clean_client_is_judged_by_the_distance_to_retraining(page, tmp_path):
    rows = {
        "retrain": (0.85, None, 0.823),
        "ascent": (0.30, 0.0, 0.02),  # the lowest, and the furthest from retraining
        "fedosd": (0.84, 0.333, 0.93),  # it came back
        "puf": (0.80, 0.70, 0.81),
    }
    text = said(page(clean(tmp_path / "c", rows, 0.953)))
    assert (
        "Nearest to retrain in forgetting and utility together: puf (Forget acc -1.3%, R-Acc -5.0%), then "
        "fedosd (Forget acc +10.7%, R-Acc -1.0%), then ascent (Forget acc -80.3%, R-Acc -55.0%). 1 of 3 "
        "finished rows end near the Forget acc of retraining (82.3%). The worse of two distances decides"
    ) in text
    assert "At the end, minus retrain (% are points)" in text
    assert "the line is the Forget acc of retraining" in text
    assert "Up and left" not in text
    assert (
        "fedosd: forgetting relapsed. Forget acc was 33.3% after unlearning and is 93.0% at the end "
        "(retraining: 82.3%)." in text
    )
    for row in ("puf", "ascent", "retrain"):
        assert f"{row}: forgetting relapsed" not in text


def test_the_warnings_of_rows_are_lines_of_the_page(page, comparison):
    path = comparison / "seed-2/method-01/outcome.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"warnings": ["a step was halved"]}))
    text = said(page(comparison))
    assert "Warnings of the rows. method-01: a step was halved (1 of 2 seeds). " in text


def test_one_finished_row_is_one_row(page, tmp_path):
    rows = {"retrain": (0.85, None, 0.50), "puf": (0.80, 0.70, 0.81)}
    text = said(page(clean(tmp_path / "c", rows, 0.953)))
    assert "The finished row does not end near the Forget acc of retraining (50.0%)." in text


def test_a_clean_client_cannot_be_judged_without_retraining(page, tmp_path):
    rows = {"ascent": (0.30, 0.0, 0.02), "puf": (0.80, 0.70, 0.81)}
    text = said(page(clean(tmp_path / "c", rows, 0.953)))
    assert "Without a finished retrain row, Forget acc cannot be judged." in text
    assert "forgetting and utility together" not in text
    assert "Up and left" not in text


@pytest.mark.parametrize(("before", "retrained"), [(0.83, 0.82), (0.5, 0.51)])
def test_a_model_that_remembers_no_more_than_retraining_had_nothing_to_forget(
    page, tmp_path, before, retrained
):
    rows = {"retrain": (0.85, None, retrained), "puf": (0.80, 0.70, 0.81)}
    text = said(page(clean(tmp_path / "c", rows, before)))
    assert f"Nothing can be concluded about forgetting: Forget acc of ω⁰ was {before:.1%}" in text
    assert "forgetting and utility together" not in text


def test_a_backdoor_that_was_never_planted_decides_nothing(page, comparison):
    for path in comparison.rglob("metrics.jsonl"):
        path.write_text(path.read_text().replace('"asr": 0.9', '"asr": 0.012'))
    text = said(page(comparison))
    assert "Nothing can be concluded about forgetting: ASR of ω⁰ was 1.2%" in text
    assert "forgetting and utility together" not in text


def test_the_tile_of_conflicts_names_its_stage(page, folder):
    text = said(page(folder))
    assert "NC in unlearning 0.33 post-training 2.50; maximum per round 3" in text


@pytest.fixture
def read(monkeypatch):
    """The folders whose metrics were read."""
    read = []
    monkeypatch.setattr(folders, "read_metrics", lambda folder: read.append(folder) or read_metrics(folder))
    return read


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_command_reads_the_metrics_of_a_run_once(read, folder, command):
    ended = CliRunner().invoke(app, [command, str(folder)])
    assert ended.exit_code == 0, ended.output
    assert (folder / "report.html").exists()
    assert read == [folder]


def test_everything_that_is_shown_of_a_comparison_is_read_once(read, tmp_path, comparison):
    found = collect([comparison])
    comparison_tables(found.rows)
    round_table(found.rows, [0, 3])
    write_report(found, tmp_path / "page.html")
    (run, *_) = found.runs
    stage_table(run)
    verdict(run)
    curves(run)
    assert sorted(read) == sorted(path.parent for path in comparison.rglob("metrics.jsonl"))


def test_numbers_that_are_not_finite_are_left_out_of_figures(page, folder):
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"distance": 0.6', '"distance": Infinity'))
    values = re.search(r'id="values">(.*?)</script>', page(folder)).group(1)
    assert json.loads(values, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("metrics.jsonl", '{"stage": "start"\n', "line 1 is not JSON"),
        ("metrics.jsonl", "\xff\xfe\n", "line 1 is not JSON"),
        ("metrics.jsonl", "[]\n", "line 1 is not a valid row"),
        (
            "metrics.jsonl",
            '{"stage": "lunch", "round": 1, "elapsed": 1, "distance": 1}\n',
            "not a valid row",
        ),
        (
            "metrics.jsonl",
            '{"stage": "start", "round": 0, "elapsed": 0, "distance": "far"}\n',
            "not a valid row",
        ),
        ("experiment.json", "{", "experiment.json is not JSON"),
        ("experiment.json", "[]", "is not a JSON object"),
        ("outcome.json", "{", "outcome.json is not JSON"),
        ("outcome.json", '{"status": "lunch"}', "does not say how the run ended"),
    ],
)
def test_damage_is_one_sentence(page, folder, name, content, sentence):
    (folder / name).write_text(content, encoding="latin-1")
    with refused("damaged", "invalid", says=sentence):
        page(folder)


def test_a_folder_that_is_no_run_is_refused(page, tmp_path):
    (tmp_path / "empty").mkdir()
    for name, code in (("empty", "invalid"), ("nowhere", "missing")):
        with refused(code, says="name the folder of a run, of a comparison or of a"):
            page(tmp_path / name)


def test_without_jinja2_one_sentence_names_the_extra(page, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with refused("invalid", says=r"fedunlearn\[report\]"):
        page(folder)


def test_the_settings_of_a_run_are_whole(tmp_path):
    config = Experiment(options={"a b": [1, {"c": "d\"'\\"}]}, name="x").model_dump(mode="json")
    back = flat(tomllib.loads(toml(config)))
    assert back == {path: value for path, value in flat(config).items() if value is not None}


def test_the_settings_of_a_comparison_make_the_same_experiments(tmp_path, comparison):
    rows = {
        "fedosd": Experiment(name="all"),
        "retrain": Experiment(name="all", method="retrain"),
        "knot": Experiment(name="all", method="knot", pretraining={"clusters": 5}),
        "slow": Experiment(name="all", unlearning={"lr": 0.001}),
    }
    shutil.rmtree(comparison)
    for seed in (4, 5):
        for row, experiment in rows.items():
            folder = comparison / f"seed-{seed}" / row
            folder.mkdir(parents=True)
            config = experiment.model_copy(update={"seed": seed}).model_dump(mode="json")
            (folder / "experiment.json").write_text(json.dumps(config))
    ((name, text, command),) = recipes(collect([comparison]))
    assert command == f"fedunlearn compare {name} --out again --seeds 2"
    (tmp_path / name).write_text(text)
    again = read_comparison(tmp_path / name, seeds=2)
    assert again.seeds == (4, 5)
    assert {row: each.model_copy(update={"seed": 1}) for row, each in again.columns[""].items()} == rows


@pytest.mark.parametrize(("count", "rounds", "most"), [(1, 200, 300_000), (23, 200, 1_500_000)])
def test_a_page_is_small(page, tmp_path, comparison, count, rounds, most):
    shutil.rmtree(comparison)
    for number in range(count):
        folder = comparison / f"seed-1/row-{number}"
        folder.mkdir(parents=True)
        (folder / "experiment.json").write_text("{}")
        scores = {"asr": 1 / 3, "r_acc": 2 / 3, "r_acc_std": 0.1, "r_acc_worst": 1 / 7, "r_acc_best": 6 / 7}
        row = {"stage": "unlearning", "distance": 1 / 9, "conflicts": 3, **scores}
        lines = [json.dumps({**row, "elapsed": n, "round": n}) + "\n" for n in range(1, 1 + rounds)]
        (folder / "metrics.jsonl").write_text("".join(lines))
    assert len(page(comparison).encode()) < most


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stands_out_in_light_and_in_dark(scheme):
    style = (TEMPLATES / "style.css").read_text()
    roots = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(roots) == 2
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-fA-F]{6});", roots[scheme].replace("#fff;", "#ffffff;")))
    for text in ("ink", "soft", "mark"):
        for ground in ("ground", "sheet", *(["warn"] if text == "ink" else [])):
            bright, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
