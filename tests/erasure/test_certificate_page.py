"""The page of an erasure certificate, in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("cryptography")
from support.certificates import certified
from support.chromium import program

from fedunlearn.erasure.certificate_page import TONES, certificate_page
from fedunlearn.erasure.claim import Claim
from fedunlearn.erasure.vocabulary import EndState, Grade
from fedunlearn.evidence import Verdict

KINDS = {
    Claim.BEHAVIOURALLY_EQUIVALENT: {},
    Claim.PROCESS_ONLY: {"verdict": None, "grade": Grade.G3},
    Claim.UNDER_FORGOTTEN: {"verdict": Verdict.UNDER, "late": True},
    Claim.OVER_FORGOTTEN: {"verdict": Verdict.OVER},
    Claim.INCONCLUSIVE: {"verdict": Verdict.NO_SIGNAL},
    Claim.PARTIAL: {"end_state": EndState.GUARD_STOP},
    Claim.ESCALATED: {"end_state": EndState.NO_DIRECTION, "verdict": None},
}
every_claim = pytest.mark.parametrize("claim", Claim)
in_a_browser = pytest.mark.skipif(
    program() is None, reason="chromium is not installed: apt-get install chromium"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for claim, kind in KINDS.items():
        made = certified(folder / claim, **kind)
        (folder / f"{claim}.html").write_text(made.page, encoding="utf-8")
        found[claim] = made, folder / f"{claim}.html"
    return found


def test_every_claim_has_a_tone():
    assert TONES.keys() == KINDS.keys() == set(Claim)
    assert [claim for claim, tone in TONES.items() if tone == "good"] == [Claim.BEHAVIOURALLY_EQUIVALENT]


def test_the_name_of_the_signer_is_escaped(pages):
    made, _ = pages[Claim.PARTIAL]
    page = certificate_page(made.predicate, "<script>x</script>", made.document)
    assert "<script" not in page
    assert "&lt;script&gt;x" in page


@in_a_browser
@every_claim
def test_it_tells_the_claim_and_asks_nobody(browser, pages, claim):
    made, path = pages[claim]
    browser.open(path)
    for event in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
        assert browser.said(event) == []
    asked = {event["request"]["url"] for event in browser.said("Network.requestWillBeSent")}
    assert asked <= {path.as_uri(), "data:,"}
    assert browser.run("document.scripts.length") == 0
    assert browser.run("document.querySelector('h1').textContent") == claim.headline
    assert browser.run("document.querySelectorAll('h1').length") == 1
    shown = browser.run("document.body.innerText")
    predicate = made.predicate
    for text in (
        claim.meaning,
        *claim.limits,
        predicate.request.id,
        predicate.request.pseudonym,
        predicate.model_before.sha256,
        predicate.model_after.sha256,
        predicate.model_after.file_sha256,
        predicate.ledger.head,
        json.loads(made.document)["signatures"][0]["keyid"],
        "21 September 2026",
        "Missed by 10 days" if claim is Claim.UNDER_FORGOTTEN else "Met, 27 days before the deadline",
        "fedunlearn verify certificate.json --key controller.pub",
        *(entry.measure.heading for entry in predicate.evidence.entries),
        *(each.words for each in predicate.evidence.not_tested),
        predicate.evidence.grade.words[1:],
    ):
        assert text in shown, text
    assert not re.search(r"None|nan|\bundefined\b|\{\{", shown)


@in_a_browser
@every_claim
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_cut_off(browser, pages, claim, width):
    browser.open(pages[claim][1], width=width, height=900)
    assert browser.run("document.documentElement.scrollWidth") == width
    beyond = browser.run(
        "[...document.querySelectorAll('main *')].filter((each) => {"
        "const box = each.getBoundingClientRect(), floats = getComputedStyle(each).position === 'absolute';"
        "return box.width && !floats && !each.closest('thead') &&"
        "(box.right > innerWidth + 1 || box.left < -1); }).map((each) => each.outerHTML.slice(0, 90))"
    )
    assert beyond == []
    cells = "[...document.querySelectorAll('tbody :is(td, th)')]"
    narrow = f"{cells}.filter((cell) => cell.scrollWidth > cell.clientWidth)"
    assert browser.run(f"{narrow}.map((cell) => cell.innerText)") == []


@in_a_browser
def test_the_signed_document_can_be_saved_from_the_page(browser, pages):
    made, path = pages[Claim.BEHAVIOURALLY_EQUIVALENT]
    browser.open(path)
    link = "document.querySelector('a[download]')"
    kind, _, body = browser.run(f"{link}.href").partition(",")
    assert kind == "data:application/json;base64"
    assert base64.b64decode(body).decode() == made.document
    assert browser.run(f"{link}.download") == "certificate.json"


@in_a_browser
def test_the_interval_lies_where_its_numbers_say(browser, pages):
    browser.open(pages[Claim.BEHAVIOURALLY_EQUIVALENT][1])
    boxes = browser.run(
        "Object.fromEntries([['band', '.band'], ['reach', '.lane.good .reach'], ['zero', '.zero'],"
        "['before', '.lane.control .reach']].map(([name, selector]) => {"
        "const box = document.querySelector(selector).getBoundingClientRect();"
        "return [name, [box.left, box.right]]; }))"
    )
    scale = (boxes["band"][1] - boxes["band"][0]) / 0.1
    for name, (low, high) in {"reach": (-0.019, 0.027), "before": (0.111, 0.179)}.items():
        assert boxes[name][0] == pytest.approx(boxes["zero"][0] + scale * low, abs=1.5)
        assert boxes[name][1] == pytest.approx(boxes["zero"][0] + scale * high, abs=1.5)


def luminance(written):
    numbers = [float(number) / 255 for number in re.findall(r"[\d.]+", written)][:3]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in numbers]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@every_claim
def test_every_text_is_legible(browser, pages, scheme, claim):
    browser.media(prefers_color_scheme=scheme)
    try:
        browser.open(pages[claim][1])
        found = browser.run(
            "[...document.querySelectorAll('.sheet *')].filter((each) => [...each.childNodes]"
            ".some((node) => node.nodeType === 3 && node.textContent.trim())).map((each) => {"
            "let ground = each; while (/, 0\\)$|transparent/.test(getComputedStyle(ground).backgroundColor))"
            "ground = ground.parentElement;"
            "return [getComputedStyle(each).color, getComputedStyle(ground).backgroundColor]; })"
        )
    finally:
        browser.media()
    assert len(found) > 60
    for ink, ground in {tuple(each) for each in found}:
        light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


@in_a_browser
def test_it_prints_on_a4(browser, pages):
    browser.open(pages[Claim.BEHAVIOURALLY_EQUIVALENT][1])
    browser.media("print")
    try:
        assert browser.run("getComputedStyle(document.querySelector('.save')).display") == "none"
        assert browser.run("getComputedStyle(document.querySelector('.hero')).printColorAdjust") == "exact"
        made = browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
    finally:
        browser.media()
    pdf = base64.b64decode(made["data"])
    assert pdf.startswith(b"%PDF")
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert 2 <= len(sizes) <= 4
    for width, height in sizes:
        assert (float(width), float(height)) == pytest.approx((595, 842), abs=2)


def test_a_page_without_a_browser_has_everything(pages):
    made, path = pages[Claim.BEHAVIOURALLY_EQUIVALENT]
    page = path.read_text(encoding="utf-8")
    assert hashlib.sha256(made.model.read_bytes()).hexdigest() in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "src=" not in page
    assert path.stat().st_size < 60_000
