"""The leaderboard: its numbers, its order, and its page in a real browser."""

from __future__ import annotations

import copy
import json
import math
from html import unescape
from statistics import fmean, stdev

import pytest
from scipy import stats
from support.chromium import program
from support.codes import refused

from fedunlearn.report import markdown
from fedunlearn.studies.benchmark import leaderboard_tables, write_leaderboard
from fedunlearn.studies.benchmark.board import read_board
from fedunlearn.studies.benchmark.leaderboard import columns, fixed, line, t_quantile

pytest.importorskip("jinja2")

HOSTILE = '<img src=x onerror="window.hacked=1">'
SCRIPT = "</script><script>window.hacked=1</script>"
SEEDS = [11, 12, 13]
REQUESTS = {
    "clean-iid": {"kind": "clean", "partition": "iid", "targets": 1, "participation": 1.0},
    "clean-pat-50": {"kind": "clean", "partition": "pat-50", "targets": 3, "participation": 0.2},
    "backdoored-pat-50": {"kind": "backdoored", "partition": "pat-50", "targets": 1, "participation": 1.0},
}
# Distance of the AUC and of R-Acc to retraining, work, and who must be online.
METHODS = {
    "near": (0.01, -0.02, 0.3, "retained"),
    "near-m1": (0.01, -0.05, 0.3, "retained"),
    "far": (0.2, 0.01, 0.1, "targets, then retained"),
    HOSTILE: (0.02, -0.01, 0.8, "targets and retained"),
}
REFERENCES = {
    "omega0": (0.4, 0.02, 0.0, ""),
    "retraining-1": (0.0, 0.0, 1.0, ""),
    "retraining-2": (0.004, 0.0, 1.0, ""),
}


def cell(method, request, seed):
    distance, kept, work, _ = {**METHODS, **REFERENCES}[method]
    place, turn = list(REQUESTS).index(request), SEEDS.index(seed) - 1
    difference = distance * (1 + 0.1 * turn) * (-1 if place == 1 and distance < 0.1 else 1) + 0.001 * place
    verdict = "equivalent" if abs(difference) < 0.05 else "under"
    if place == 0:  # nothing can be seen of the target
        verdict = "no_signal"
    backdoored = REQUESTS[request]["kind"] == "backdoored"
    return {
        "request": request,
        "method": method,
        "seed": seed,
        "environment": "ab12cd34",
        "status": "done",
        "reason": "",
        "rate": 0.02,
        "model_sha256": f"{place}{turn + 1}" * 32,
        "verdict": None if method == "retraining-1" else verdict,
        "difference": difference,
        "difference_interval": [difference - 0.02, difference + 0.02],
        "tail": "under" if method == "far" else "inconclusive",
        "asr": 0.01 + distance if backdoored else None,
        "asr_retrained": 0.01 if backdoored else None,
        "r_acc": 0.8 + kept + 0.004 * turn + 0.001 * place,
        "r_acc_retrained": 0.8,
        "worst": 0.7 + 2 * kept,
        "worst_retrained": 0.7,
        "harmed": ["client-3"] if kept < -0.03 and place else [],
        "harm": max(0.0, -kept),
        "epsilon": None,
        "rounds": 60,
        "local_trainings": 570,
        "work": work,
        "bytes": int(1.5e9 * work),
        "stored": 203560 if method == "near" else 0,
        "seconds": 10.0,
        "time": 1.25 * work,
        "digest": "0" * 64,
    }


def made():
    """The results of 4 methods, one with a failed cell, another with a missing one, and of 3 references."""
    common = {"clients": 10, "successive": False, "rounds": 60, "pretraining": 240}
    results = [
        cell(method, request, seed)
        for method in (*METHODS, *REFERENCES)
        for request in REQUESTS
        for seed in SEEDS
        if (method, request, seed) != ("far", "clean-iid", 13)
    ]
    (failed,) = (
        r for r in results if (r["method"], r["request"], r["seed"]) == (HOSTILE, "clean-pat-50", 12)
    )
    failed |= {"status": "diverged", "reason": SCRIPT, "verdict": None, "tail": None, "harmed": None}
    failed |= dict.fromkeys(("difference", "r_acc", "worst", "harm", "work", "bytes", "stored", "time"))
    return {
        "format": "fedunlearn benchmark 1",
        "protocol": "5e" * 32,
        "seeds": SEEDS,
        "tuning": {
            "seed": 10,
            "rates": [0.005, 0.02],
            "chosen": {"near": {"clean": 0.02, "backdoored": 0.005}},
        },
        "environments": {"ab12cd34": {"cores": "2", "torch": "2.13.0"}},
        "requests": {name: {**common, **request} for name, request in REQUESTS.items()},
        "methods": {
            name: {
                "paper": "-",
                "source": "ours",
                "summary": f"about {name}",
                "online": online,
                "needs": [],
                "file": None,
            }
            for name, (*_, online) in METHODS.items()
        },
        "results": results,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("board") / "benchmark.json"
    path.write_text(json.dumps(made()))
    return path


def lines(results, which="All requests"):
    header, *body = [[unescape(text) for text in row] for row in leaderboard_tables(results)[which]]
    return {row[0]: dict(zip(header, row, strict=True)) for row in body}


def test_means_are_over_requests_then_over_seeds(results):
    row = lines(results)["far"]
    found = [r for r in made()["results"] if r["method"] == "far"]
    by_seed = [fmean(abs(r["difference"]) for r in found if r["seed"] == seed) for seed in SEEDS]
    half = stats.t.ppf(0.975, 2) * stdev(by_seed) / math.sqrt(3)
    assert row["|Δ AUC|"] == f"{fmean(by_seed):.3f} ±{half:.3f}"
    kept = [100 * fmean(r["r_acc"] - 0.8 for r in found if r["seed"] == seed) for seed in SEEDS]
    half = stats.t.ppf(0.975, 2) * stdev(kept) / math.sqrt(3)
    assert row["Δ R-Acc"] == f"+{fmean(kept):.1f} ±{half:.1f}"
    assert row["Δ ASR"] == "+20.0 ±0.0"
    assert (row["Work"], row["Time"], row["Moved"], row["Stored"]) == ("10.0%", "12.5%", "150.0 MB", "0 B")
    assert (row["Online"], row["Source"], row["Failed"]) == ("targets, then retained", "ours", "1/9")


def test_harm_and_stored_bytes(results):
    rows = lines(results)
    assert (rows["near-m1"]["Loss"], rows["near-m1"]["Harm"]) == ("5.0", "67%")
    assert (rows["near"]["Loss"], rows["near"]["Harm"], rows["near"]["Stored"]) == ("2.0", "0%", "203.6 kB")


def test_columns_that_nobody_fills_are_left_out(results, tmp_path):
    assert "ε" not in leaderboard_tables(results)["All requests"][0]
    values = made()
    values["results"][0]["epsilon"] = 2.5
    (tmp_path / "b.json").write_text(json.dumps(values))
    assert lines(tmp_path / "b.json")["near"]["ε"] == "2.50"


def test_the_order_is_that_of_the_rule(results):
    """Where ω⁰ is not found, nothing counts; a failed cell is not equivalent; ties go by R-Acc."""
    rows = lines(results)
    assert list(rows) == ["near", "near-m1", HOSTILE, "far", "ω⁰", "retraining", "second retraining"]
    assert [row["Equivalent"] for row in rows.values()] == ["6/6", "6/6", "5/6", "0/6", "0/6", "–", "6/6"]
    verdicts = [row["Verdicts"] for row in rows.values()]
    assert verdicts[:4] == ["6 E 3 ?", "6 E 3 ?", "5 E 3 ? 1 ×", "6 U 2 ? 1 ×"]


def test_tables_are_of_all_requests_and_of_each_kind(results):
    tables = leaderboard_tables(results)
    assert list(tables) == ["All requests", "Clean requests", "Backdoored requests"]
    assert lines(results, "Clean requests")["near"]["Δ ASR"] == "–"
    text = markdown(tables["All requests"])
    assert "<" not in text
    assert {line.count("|") for line in text.splitlines()} == {len(tables["All requests"][0]) + 1}


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 31])
def test_quantiles_are_those_of_student(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-12)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.125, 2, "+0.13"), (-2.5, 0, "−3"), (-0.04, 1, "0.0"), (1.005, 2, "+1.00")],
)
def test_numbers_are_rounded_as_scripts_do(value, digits, text):
    assert fixed(value, digits, signed=True) == text


def test_one_seed_has_no_interval(tmp_path):
    values = made()
    values["seeds"], values["results"] = [11], [r for r in values["results"] if r["seed"] == 11]
    (tmp_path / "b.json").write_text(json.dumps(values))
    assert "±" not in markdown(leaderboard_tables(tmp_path / "b.json")["All requests"])
    write_leaderboard(tmp_path / "b.json", tmp_path / "b.html")


def test_where_nothing_can_be_told_r_acc_orders(tmp_path):
    values = made()
    for result in values["results"]:
        result["verdict"] = "no_signal"
    (tmp_path / "b.json").write_text(json.dumps(values))
    rows = lines(tmp_path / "b.json")
    assert list(rows)[:4] == ["far", HOSTILE, "near", "near-m1"]
    assert {row["Equivalent"] for row in rows.values()} == {"–"}
    write_leaderboard(tmp_path / "b.json", tmp_path / "b.html")
    assert "the audit finds the target in no ω⁰" in (tmp_path / "b.html").read_text()


def broken(change):
    values = copy.deepcopy(made())
    change(values)
    return json.dumps(values)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "JSONDecodeError"),
        ("[]", "TypeError"),
        (broken(lambda v: v.update(format="other")), "its format is 'other'"),
        (broken(lambda v: v["results"].append(v["results"][0])), "two results of"),
        (broken(lambda v: v["results"][0].update(request="x")), "is not listed"),
        (broken(lambda v: v["methods"].pop("near")), "the method of the result of"),
        (broken(lambda v: v["results"][0].update(r_acc=math.nan)), "r_acc of near on clean-iid is nan"),
        (broken(lambda v: v["results"][0].update(verdict="best")), "'best' is not a valid Verdict"),
        (broken(lambda v: v["tuning"].pop("rates")), "KeyError: 'rates'"),
        (broken(lambda v: v.update(seeds=[])), "no seed"),
    ],
)
def test_bad_results_end_in_one_sentence(tmp_path, text, said):
    (tmp_path / "b.json").write_text(text)
    with refused("invalid", says=r"does not hold the results of a benchmark .*: name the JSON") as caught:
        leaderboard_tables(tmp_path / "b.json")
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with refused("invalid", says=r"nothing\.json cannot be read \(No such file"):
        write_leaderboard(tmp_path / "nothing.json", tmp_path / "b.html")


# In a browser.

needs_browser = pytest.mark.skipif(
    program() is None, reason="chromium is not installed: apt-get install chromium"
)
CELLS = (
    "[...document.querySelectorAll('#board > tbody > tr:not(.detail)')].map((row) =>"
    "[...row.cells].map((cell) => [cell.textContent.trim(), cell.title]))"
)


@pytest.fixture(scope="module")
def page(results):
    path = results.with_name("board.html")
    write_leaderboard(results, path)
    return path


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    return browser


def names(browser):
    rows = "[...document.querySelectorAll('#ranked > tr:not(.detail)')]"
    return browser.run(f"{rows}.map((row) => row.cells[0].textContent.trim())")


def texts(browser):
    """The table as the Markdown tables have it."""
    return [[text.strip() for text, _ in row] for row in browser.run(CELLS)]


def served(results, which):
    return [list(row.values()) for row in lines(results, which).values()]


@needs_browser
def test_the_script_computes_what_the_server_did(browser, page, results):
    browser.script(allowed=False)
    try:
        browser.open(page)
        still = browser.run(CELLS)
        assert browser.run("document.querySelector('.no-js').checkVisibility()")
        assert not browser.run("document.querySelector('.filters').checkVisibility()")
        assert not browser.run("document.querySelector('#trade').checkVisibility()")
    finally:
        browser.script(allowed=True)
    browser.open(page)
    assert browser.run(CELLS) == still
    assert texts(browser) == served(results, "All requests")
    assert not browser.run("document.querySelector('.no-js').checkVisibility()")
    for event in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        assert browser.said(event) == []
    assert browser.run("performance.getEntriesByType('resource').length") == 0
    browser.click("[data-tag=kind][value=backdoored]")
    assert texts(browser) == served(results, "Clean requests")
    assert "4 of 4 methods on 2 of 3 requests." in browser.run(
        "document.getElementById('status').textContent"
    )
    browser.click("[data-tag=kind][value=backdoored]")
    browser.click("[data-tag=kind][value=clean]")
    assert texts(browser) == served(results, "Backdoored requests")
    browser.click("[type=reset]")
    browser.run("new Promise((done) => setTimeout(done, 20))")
    assert browser.run(CELLS) == still


@needs_browser
def test_columns_sort_by_mouse_and_keyboard(opened):
    assert names(opened) == ["near", "near-m1", HOSTILE, "far"]
    heads = opened.run(
        "[...document.querySelectorAll('#board > thead th')].map((th) => th.textContent.trim())"
    )
    kept = f"#board > thead th:nth-child({heads.index('Δ R-Acc') + 1})"
    assert opened.run("document.querySelector('#board > thead th:nth-child(2)').ariaSort") == "descending"
    opened.click(f"{kept} button")
    assert names(opened) == ["far", HOSTILE, "near", "near-m1"]
    assert opened.run(f"document.querySelector('{kept}').ariaSort") == "descending"
    opened.key("Enter", "\r")
    assert names(opened) == ["near-m1", "near", HOSTILE, "far"]
    assert opened.run("document.querySelectorAll('thead th[aria-sort]:not([aria-sort=none])').length") == 1
    for number in range(1, len(heads) + 1):
        opened.run(f"document.querySelector('#board > thead th:nth-child({number}) button').click()")
        assert sorted(names(opened)) == sorted(METHODS)


@needs_browser
def test_methods_are_filtered(opened):
    opened.click("[data-only=gone]")
    assert names(opened) == ["near", "near-m1"]
    opened.click("[data-only=whole]")
    assert names(opened) == ["near"]
    assert opened.run("document.querySelectorAll('#plot .point').length") == 3  # near, ω⁰, second retraining
    opened.click("[data-only=gone]")
    assert names(opened) == ["near", HOSTILE, "far"]
    opened.run("document.querySelectorAll('.filters details').forEach((part) => { part.open = true; })")
    opened.click('[data-every=""]')
    assert names(opened) == []
    for number in range(3):
        opened.click(f'[data-request="{number}"]')
    assert opened.run("document.getElementById('status').textContent") == "No request is selected."


@needs_browser
def test_points_are_where_the_numbers_are(opened, results):
    """On square-root axes: of all requests, or of the backdoored ones where ASR is shown."""
    read = (
        "[...document.querySelectorAll('#plot .point')].map((point) => {"
        "const mark = point.firstElementChild;"
        "return [Number(point.dataset.row), parseFloat(mark.getAttribute('x') ?? mark.getAttribute('cx')),"
        "parseFloat(mark.getAttribute('y') ?? mark.getAttribute('cy'))]; })"
    )
    board = read_board(results)
    methods, keys = [*board.methods, *board.references], [column.key for column in columns(board)]
    for key, requests in (("auc", board.requests), ("asr", ["backdoored-pat-50"])):
        opened.click(f"[name=axis][value={key}]")
        points = {methods[row]: at for row, *at in opened.run(read)}
        assert points.keys() == {*methods} - {"retraining-1"}
        for place, which in enumerate((key, "r_acc")):
            values = {name: line(board, name, requests)[keys.index(which)].value for name in points}
            roots = {name: math.copysign(math.sqrt(abs(value)), value) for name, value in values.items()}
            (low, start), (high, end) = ((name, roots[name]) for name in ("near-m1", "omega0"))
            scale = (points[high][place] - points[low][place]) / (end - start)
            assert (scale > 0) == (place == 0)  # down is positive in SVG
            for name, at in points.items():
                assert at[place] == pytest.approx(
                    points[low][place] + scale * (roots[name] - start), abs=1e-6
                )
    assert opened.run("document.querySelectorAll('#plot .whisker').length") == 2 * 6
    opened.focus("#plot")
    opened.key("End")
    told = opened.run("document.getElementById('tip').textContent")
    assert told.startswith("ω⁰: Δ ASR +40.0 ±0.0, Δ R-Acc +2.2 ±")


@needs_browser
def test_a_row_opens_and_a_name_is_a_name(opened):
    opened.click("#ranked tr:nth-child(3) .open")
    assert opened.run("document.activeElement.textContent") == HOSTILE
    assert opened.run("document.activeElement.ariaExpanded") == "true"
    rows = "[...document.querySelectorAll('.detail tbody tr')]"
    detail = opened.run(f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert [row[0] for row in detail] == list(REQUESTS)
    assert [row[1] for row in detail] == ["???", "E×E", "EEE"]
    assert detail[1][-1] == f"diverged: {SCRIPT}"
    assert opened.run("document.querySelector('.detail .letter.l4').title") == f"seed 12: diverged: {SCRIPT}"
    opened.click("[data-tag=partition][value=iid]")
    assert opened.run("document.querySelectorAll('.detail tbody tr').length") == 2
    opened.click("#board > thead th:first-child button")
    assert opened.run("document.querySelectorAll('.detail').length") == 1
    assert opened.run("document.querySelectorAll('.detail [aria-sort]').length") == 0
    assert (
        opened.run("typeof window.hacked + document.querySelectorAll('#board img, #plot img').length")
        == "undefined0"
    )
    assert opened.said("Log.entryAdded") == []


@needs_browser
@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_cut_off(browser, page, width):
    browser.open(page, width=width, height=800)
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    browser.run("document.querySelector('.open').click()")
    assert browser.run("document.documentElement.scrollWidth") == width
    box = "document.querySelector('.scroll:has(#board)')"
    fits = browser.run(f"{box}.scrollWidth <= {box}.clientWidth")
    assert fits == (width == 1280)


@needs_browser
def test_paper_gets_the_table_and_the_plot(opened):
    opened.media("print")
    try:
        assert opened.run("document.querySelector('#plot').checkVisibility()")
        assert not opened.run("document.querySelector('.filters').checkVisibility()")
        assert opened.pdf().startswith(b"%PDF")
    finally:
        opened.media()


def test_the_page_says_how_it_was_measured(page):
    text = page.read_text()
    for said in ("5e" * 32, "11, 12, 13", "one of 0.005, 0.02, chosen with seed 10, which is not scored"):
        assert said in text
    for said in (
        "61 of 63 ended",
        "10 min in these cells",
        "ab12cd34",
        "62 cells",
        "There is no combined score",
    ):
        assert said in text
    assert "innerHTML" not in text
