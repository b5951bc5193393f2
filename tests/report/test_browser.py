"""The HTML report in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.chromium import program

from fedunlearn.report import collect, write_report

pytest.importorskip("jinja2")
pytestmark = pytest.mark.skipif(
    program() is None, reason="chromium is not installed: apt-get install chromium"
)
TABLE = "#results table"


@pytest.fixture
def run(browser, tmp_path, folder):
    path = write_report(collect([folder]), tmp_path / "page.html")
    browser.open(path)
    return path


@pytest.fixture
def rows(browser, tmp_path, comparison):
    path = write_report(collect([comparison]), tmp_path / "page.html")
    browser.open(path)
    return path


def column(browser, place, table=TABLE):
    lines = f"[...document.querySelector('{table}').tBodies[0].rows]"
    return browser.run(f"{lines}.map((row) => row.cells[{place}].innerText.trim())")


def shown(browser, selector):
    seen = "({width, height}) => width + height > 0"  # of a hidden <g>, checkVisibility() says that it shows
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].filter((each) => each.checkVisibility())"
        f".map((each) => each.getBoundingClientRect()).some({seen})"
    )


def tip(browser):
    return browser.run(
        "document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"
    )


@pytest.mark.parametrize("kind", ["run", "rows"])
def test_it_loads_without_a_complaint_and_asks_nobody(browser, request, kind):
    path = request.getfixturevalue(kind)
    assert browser.run("document.getElementById('main').innerText.length") > 500
    for event in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        assert browser.said(event) == []
    assert {event["request"]["url"] for event in browser.said("Network.requestWillBeSent")} <= {
        path.as_uri(),
        "data:,",
    }
    assert browser.run("performance.getEntriesByType('resource').length") == 0


def test_tables_sort_by_mouse(browser, rows):
    assert column(browser, 0) == ["ω⁰", "method-00", "method-01", "method-02"]
    browser.click(f"{TABLE} th:nth-child(5) button")  # ASR², which ω⁰ does not have
    assert column(browser, 0) == ["method-00", "method-01", "method-02", "ω⁰"]
    assert browser.run(f"document.querySelector('{TABLE} th:nth-child(5)').ariaSort") == "ascending"
    browser.click(f"{TABLE} th:nth-child(5) button")
    assert column(browser, 0) == ["method-02", "method-01", "method-00", "ω⁰"]
    assert browser.run(f"document.querySelector('{TABLE} th:nth-child(5)').ariaSort") == "descending"
    assert (
        browser.run(f"document.querySelectorAll('{TABLE} th:not([aria-sort=none])[aria-sort]').length") == 1
    )


@pytest.mark.parametrize(("key", "text"), [("Enter", "\r"), (" ", " ")])
def test_tables_sort_by_keyboard(browser, rows, key, text):
    browser.focus(f"{TABLE} th button")
    browser.key(key, text)
    browser.key(key, text)
    assert column(browser, 0) == ["ω⁰", "method-02", "method-01", "method-00"]
    assert browser.run("document.activeElement.innerText.trim()") == "Row"


def test_rows_come_and_go_in_the_figures(browser, rows):
    curve = '[data-plot="r_acc"] [data-row="1"]'
    assert shown(browser, curve)
    browser.click('[data-toggle="1"]')
    assert not shown(browser, curve)
    assert not shown(browser, '[data-plot="trade"] [data-row="1"]')
    assert shown(browser, '[data-plot="r_acc"] [data-row="2"]')
    browser.key(" ", " ")
    assert shown(browser, curve)
    browser.click('[data-all=""]')
    assert not shown(browser, '[data-plot="r_acc"] [data-row]')
    browser.click('[data-all="1"]')
    assert shown(browser, curve)


def test_values_are_read_by_pointer_and_by_keyboard(browser, run):
    browser.point('[data-plot="scores"]')
    assert tip(browser).startswith("Round")
    browser.key("Escape")
    assert tip(browser) == ""
    browser.focus("[data-plot=scores]")
    browser.key("End")
    assert tip(browser).split() == ["Round", "5", "R-Acc", "85.0", "%", "ASR", "2.0", "%"]
    assert shown(browser, ".live .cursor")


def test_values_are_read_by_finger(browser, run):
    browser.open(run, width=360, height=740)
    browser.tap('[data-plot="scores"]')
    assert tip(browser).startswith("Round")
    browser.tap("#h-rounds")
    assert tip(browser) == ""


def test_points_are_read_by_pointer_and_by_keyboard(browser, rows):
    browser.focus("[data-plot=trade]")
    browser.key("ArrowRight")
    assert tip(browser) == "method-00: ASR 3.5%, R-Acc 85.0%"
    browser.point('[data-plot="trade"]')
    assert "R-Acc" in tip(browser)


def test_every_number_is_explained_to_the_keyboard_too(browser, run):
    for _ in range(40):
        browser.key("Tab")
        if browser.run("document.activeElement.matches('.cards .term')"):
            break
    assert tip(browser).startswith("Attack success rate")
    browser.key("Enter", "\r")
    assert browser.run("location.hash") == "#g-asr"
    assert browser.run("document.querySelector('dd:target').checkVisibility()")


def test_the_first_stop_of_the_keyboard_skips_to_the_content(browser, run):
    browser.key("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().left") >= 0
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("kind", ["run", "rows"])
def test_a_phone_never_scrolls_sideways(browser, request, kind):
    path = request.getfixturevalue(kind)
    browser.open(path, width=360, height=740)
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == 360
    assert browser.run("(scrollTo(99, 0), scrollX)") == 0


def wide(folder):
    """Three seeds of rows with every column that a comparison has."""
    for path in folder.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        more = {"bytes_down": 9e8, "bytes_stored": 2e9, "coverage": 0.75}
        clients = {f"r_acc client-{number}": 0.5 for number in range(1, 10)}
        lines = [row | more | (clients if "r_acc" in row else {}) for row in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_no_column_is_cut_off_on_a_laptop(browser, tmp_path, make_comparison):
    folder = wide(make_comparison(tmp_path / "rows", count=3, seeds=3))
    browser.open(write_report(collect([folder]), tmp_path / "page.html"), width=1280, height=800)
    boxes = browser.run(
        "[...document.querySelectorAll('.scroll:has(.sortable)')]"
        ".map((box) => [box.scrollWidth, box.clientWidth])"
    )
    assert len(boxes) == 3
    assert all(needed <= there for needed, there in boxes), boxes


def test_row_names_stay_in_sight_on_a_phone(browser, tmp_path, make_comparison):
    folder = wide(make_comparison(tmp_path / "rows", count=3, seeds=3))
    browser.open(write_report(collect([folder]), tmp_path / "page.html"), width=360, height=740)
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    moved = browser.run(
        "[...document.querySelectorAll('.scroll')].flatMap((box) => { box.scrollLeft = 999;"
        "const left = box.getBoundingClientRect().left;"
        "return [...box.querySelectorAll('tr > th:first-child')].map((name) => ["
        "box.scrollLeft > 0, name.getBoundingClientRect().left - left,"
        "name.offsetWidth / box.clientWidth]); })"
    )
    assert any(scrolled for scrolled, *_ in moved)
    for _, left, share in moved:
        assert left == pytest.approx(1, abs=1)  # the border of the box
        assert share < 0.5


def test_paper_gets_everything_but_what_needs_a_hand(browser, rows):
    assert not shown(browser, "pre")
    browser.media("print")
    try:
        assert shown(browser, "pre")
        assert browser.run("document.querySelector('pre').getBoundingClientRect().height") > 50
        for selector in ("nav", "[data-toggle]", ".copy", "[data-all]", ".skip"):
            assert not shown(browser, selector)
        assert browser.pdf().startswith(b"%PDF")
    finally:
        browser.media()
    assert not shown(browser, "pre")


def test_dark_follows_the_reader(browser, run):
    def ground():
        return browser.run("getComputedStyle(document.body).backgroundColor")

    browser.media(prefers_color_scheme="light")
    light = ground()
    browser.media(prefers_color_scheme="dark")
    dark = ground()
    browser.media()
    assert (light, dark) == ("rgb(251, 250, 248)", "rgb(20, 22, 26)")


def test_without_scripts_nothing_is_missing(browser, rows):
    browser.script(allowed=False)
    try:
        browser.open(rows)
        for selector in (TABLE, "[data-plot] path", ".panel path", ".glossary dd"):
            assert shown(browser, selector)
        for selector in ("[data-toggle]", "[data-all]", ".copy"):
            assert not shown(browser, selector)
        assert browser.run("document.documentElement.className") == ""
    finally:
        browser.script(allowed=True)


def test_a_name_is_a_name_and_not_a_program(browser, tmp_path, folder):
    hostile = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    config = {**json.loads((folder / "experiment.json").read_text()), "name": hostile}
    (folder / "experiment.json").write_text(json.dumps(config))
    browser.open(write_report(collect([folder]), Path(tmp_path / "page.html")))
    assert browser.run("document.querySelector('h1').textContent") == hostile
    assert browser.run("typeof window.hacked") == "undefined"
    assert browser.said("Log.entryAdded") == []


CELLS = "#clients td.heat"


def luminance(red, green, blue):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colour(written):
    """What a browser says of a colour: of 255 as rgb(), of 1 as color(srgb)."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", written)][:3]
    return numbers if written.startswith("color(srgb") else [number / 255 for number in numbers]


@pytest.mark.parametrize(
    ("kind", "scheme"), [("screen", "light"), ("screen", "dark"), ("print", "light"), ("print", "dark")]
)
def test_clients_are_legible_in_their_shades(browser, tmp_path, clients_comparison, kind, scheme):
    browser.media(kind, prefers_color_scheme=scheme)
    try:
        browser.open(write_report(collect([clients_comparison]), tmp_path / "page.html"))
        cells = browser.run(
            f"[...document.querySelectorAll('{CELLS}')].map((cell) => [Number(cell.dataset.value),"
            "getComputedStyle(cell).backgroundColor, getComputedStyle(cell).color,"
            "getComputedStyle(cell).printColorAdjust])"
        )
    finally:
        browser.media()
    assert len(cells) == 9
    shades = {}
    for value, ground, ink, printed in cells:
        light, dark = sorted((luminance(*colour(ground)), luminance(*colour(ink))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
        assert kind == "screen" or printed == "exact"
        shades[value] = luminance(*colour(ground))
    ordered = [shades[value] for value in sorted(shades)]
    darker = kind == "print" or scheme == "light"
    assert len(ordered) > 3
    assert ordered == sorted(ordered, reverse=darker)
    assert len(set(ordered)) == len(ordered)


def test_clients_are_sorted_and_reached_from_the_top(browser, tmp_path, clients_comparison):
    browser.open(write_report(collect([clients_comparison]), tmp_path / "page.html"))
    assert shown(browser, "nav a[href='#clients']")
    assert column(browser, 0, "#clients table") == ["ω⁰", "one", "two"]
    browser.click("#clients th:nth-child(2) button")
    assert column(browser, 0, "#clients table") == ["ω⁰", "two", "one"]
    browser.point("#clients tbody tr:nth-child(2) td")
    hovered = browser.run(f"getComputedStyle(document.querySelectorAll('{CELLS}')[3]).backgroundColor")
    browser.point("h1")
    assert hovered == browser.run(
        f"getComputedStyle(document.querySelectorAll('{CELLS}')[3]).backgroundColor"
    )


def test_older_runs_show_no_clients(browser, run):
    assert not shown(browser, "#clients")
    assert not shown(browser, "nav a[href='#clients']")


@pytest.fixture
def audited_pages(browser, tmp_path, audited, audited_comparison):
    return {
        "run": write_report(collect([audited]), tmp_path / "run.html"),
        "rows": write_report(collect([audited_comparison]), tmp_path / "rows.html"),
    }


@pytest.mark.parametrize("kind", ["run", "rows"])
@pytest.mark.parametrize("width", [390, 1200])
def test_evidence_is_readable_on_phones_and_laptops(browser, audited_pages, kind, width):
    browser.open(audited_pages[kind], width=width, height=800)
    assert browser.said("Log.entryAdded") == []
    assert browser.run("performance.getEntriesByType('resource').length") == 0
    assert browser.run("document.documentElement.scrollWidth") == width
    assert shown(browser, "nav a[href='#evidence']")
    assert shown(browser, "#evidence .inner")
    boxes = browser.run(
        "[...document.querySelectorAll('#evidence .scroll')].map((box) => [box.scrollWidth, box.clientWidth])"
    )
    assert len(boxes) == {"run": 5, "rows": 3}[kind]
    assert width < 1000 or all(needed <= there for needed, there in boxes), boxes
    texts = browser.run(
        "[...document.querySelectorAll('#evidence .lanes .name')].map((text) => {"
        "const box = text.getBoundingClientRect(); return [box.left, box.right, box.top, box.bottom]; })"
    )
    for number, (left, right, top, bottom) in enumerate(texts):
        assert 0 <= left < right <= width
        for other in texts[:number]:
            assert right <= other[0] or other[1] <= left or bottom <= other[2] + 4 or other[3] <= top + 4


def test_the_band_of_the_margin_is_printed(browser, audited_pages):
    browser.open(audited_pages["run"])
    browser.media("print")
    try:
        assert shown(browser, "#evidence .margin")
        style = "getComputedStyle(document.querySelector('#evidence .margin'))"
        assert browser.run(f"{style}.printColorAdjust") == "exact"
        assert shown(browser, "#evidence details li")
        assert browser.pdf().startswith(b"%PDF")
    finally:
        browser.media()


def test_evidence_needs_no_script(browser, audited_pages):
    browser.script(allowed=False)
    try:
        browser.open(audited_pages["rows"])
        for selector in ("#evidence .inner", "#evidence .margin", "#evidence table"):
            assert shown(browser, selector)
    finally:
        browser.script(allowed=True)


def test_verdicts_are_explained_and_sorted(browser, audited_pages):
    browser.open(audited_pages["rows"])
    table = "#evidence table"
    browser.click(f"{table} th:nth-child(2) button")
    assert column(browser, 1, table) == sorted(column(browser, 1, table))
    browser.point(f"{table} th:nth-child(3) button")
    assert tip(browser).startswith("Audits in which the hardest tenth")
