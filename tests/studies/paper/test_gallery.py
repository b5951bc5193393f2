"""Figures of a comparison: what is drawn is what was measured."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from itertools import pairwise
from math import isnan
from statistics import fmean
from xml.etree import ElementTree

import pytest
import torch
from support.codes import refused

from fedunlearn import Examples, Status
from fedunlearn.experiment import Data, Experiment, specimen
from fedunlearn.methods import method
from fedunlearn.studies.paper import gallery
from fedunlearn.studies.paper.gallery import style
from fedunlearn.studies.paper.gallery.line_labels import apart
from fedunlearn.studies.paper.gallery.selection import seeds, select
from fedunlearn.studies.paper.results import Result, Results

pytest.importorskip("matplotlib")

ROWS = ["retrain", "mode", "fedosd"]
ACCURACY = {"retrain": 0.4, "mode": 0.6, "fedosd": 0.8}


def scores(asr, r_acc, distance):
    clients = {f"r_acc client-{number}": r_acc + 0.01 * number for number in (0, 2, 10)}
    ends = {"r_acc_worst": r_acc - 0.05, "r_acc_best": r_acc + 0.1}
    return {"asr": asr, "r_acc": r_acc, "distance": distance, **ends, **clients}


def result(row, seed=1, column="mnist-pat-20", **changes):
    utility, shift = ACCURACY.get(row, 0.5), 0.02 * (seed - 1)
    made = Result(
        column=column,
        row=row,
        seed=seed,
        rate=0.01,
        status=Status.DONE,
        model_sha256="abc",
        before=scores(0.9, 0.85, 0.0),
        unlearned={} if row == "retrain" else scores(0.04, utility - 0.2, 2.0),
        recovered=scores(0.01, utility + shift, 3.0),
        cost={
            "local_trainings": 100.0 * seed,
            "seconds": 12.0,
            "bytes_up": 3e6,
            "bytes_down": 5e6,
            "bytes_stored": 4e6,
            **({} if row == "retrain" else {"conflicts": 2.5}),
        },
        course={
            "rounds": [0.0, 5.0, 10.0],
            "asr": [0.9, 0.04, 0.01],
            "r_acc": [0.85, utility - 0.2, utility + shift],
            "distance": [0.0, 2.0, 3.0],
        },
        turn=0.0 if row == "retrain" else 5.0,
    )
    return replace(made, **changes)


def of(runs):
    data = {"dataset": "mnist", "partition": "pat-20", "clients": 10}
    settings = {run.column: {"data": data, "training": {"epochs": 1}, "unlearning": 5} for run in runs}
    return Results("laptop", settings, {}, {}, runs)


@pytest.fixture
def results():
    return of(
        [result(row, seed, column) for column in ("mnist-pat-20", "b") for row in ROWS for seed in (1, 2)]
    )


@pytest.fixture
def drawn(monkeypatch):
    """The figures themselves, which are not written."""
    from matplotlib import pyplot

    figures = []

    def keep(figure, paths):
        figures.append(figure)
        return paths

    monkeypatch.setattr(style, "save", keep)
    yield figures
    pyplot.close("all")


def pair():
    x = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    return Examples(x, torch.tensor([3])), Examples(x.clamp(max=0.5), torch.tensor([8]))


FIGURES = {
    "curves": lambda results, path: gallery.curves(results, "b", ROWS, path),
    "tradeoff": lambda results, path: gallery.tradeoff(results, ["mnist-pat-20", "b"], ROWS, path),
    "radar": lambda results, path: gallery.radar(results, ["b"], ROWS, path),
    "clients": lambda results, path: gallery.clients(results, "b", ROWS, path),
    "conflict_bars": lambda results, path: gallery.conflict_bars(results, ["b"], ROWS, path),
    "costs": lambda results, path: gallery.costs(results, "b", ROWS, path),
    "triggers": lambda results, path: gallery.triggers({"digits": pair()}, path),
}


def text(figure):
    from matplotlib.text import Text

    return [found.get_text().replace("\n", " ") for found in figure.findobj(Text)]


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def widths(axes):
    return [round(bar.get_width(), 6) for bar in axes.patches]


def test_every_figure_is_drawn_here():
    assert set(FIGURES) == set(gallery.__all__) - {"draw"}


@pytest.mark.parametrize("name", FIGURES)
def test_svg_and_pdf_are_whole_undated_and_the_same_again(name, results, tmp_path):
    svg, pdf = FIGURES[name](results, tmp_path / "a.b")
    assert {path.name for path in tmp_path.iterdir()} == {"a.b.svg", "a.b.pdf"}
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in pdf.read_bytes()
    assert "dc:date" not in svg.read_text()
    first = svg.read_bytes(), pdf.read_bytes()
    FIGURES[name](results, tmp_path / "a.b")
    assert (svg.read_bytes(), pdf.read_bytes()) == first


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_beyond_the_paper(name, results, tmp_path, drawn):
    FIGURES[name](results, tmp_path / "a")
    (figure,) = drawn
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < width + 0.02
    assert box.y1 < height + 0.02


def test_curves_are_means_in_a_band_with_the_end_of_unlearning_marked(results, tmp_path, drawn):
    gallery.curves(results, "b", ROWS, tmp_path / "a")
    asr, r_acc, distance = drawn[0].axes
    assert lines(r_acc)["fedosd"].get_xdata().tolist() == [0, 5, 10]
    assert lines(r_acc)["fedosd"].get_ydata() == pytest.approx([0.85, 0.6, 0.81])
    assert lines(asr)["mode"].get_ydata() == pytest.approx([0.9, 0.04, 0.01])
    assert lines(distance)["mode"].get_ydata() == pytest.approx([0, 2, 3])
    bands = [band.get_paths()[0].vertices[:, 1] for band in r_acc.collections]
    assert any({0.8, 0.82} <= {round(float(y), 6) for y in band} for band in bands)
    hollow = [line for line in r_acc.lines if line.get_markerfacecolor() == "white"]
    assert sorted((line.get_xdata()[0], round(line.get_ydata()[0], 6)) for line in hollow) == [
        (5, 0.4),
        (5, 0.6),
    ]
    assert {"ASR", "R-Acc", "Distance", "round", "FedOSD", "Retraining"} <= set(text(drawn[0]))
    assert any("Mean of 2 seeds, bands from the lowest to the highest" in words for words in text(drawn[0]))


def test_post_training_begins_at_one_place_where_seeds_stop_unlearning_at_others(tmp_path, drawn):
    course = {
        "rounds": [0.0, 1.0, 2.0, 4.0],
        "asr": [0.9, 0.5, 0.1, 0.3],
        "r_acc": [0.8] * 4,
        "distance": [0.0, 1, 2, 1],
    }
    later = {"rounds": [0.0, 1.0, 2.0, 3.0, 5.0], "asr": [0.9, 0.7, 0.3, 0.0, 0.1]}
    later |= {"r_acc": [0.8] * 5, "distance": [0.0, 1, 2, 3, 1]}
    runs = [
        result("mode", turn=2.0, stopped=True, course=course),
        result("mode", seed=2, turn=3.0, stopped=True, course=later),
    ]
    gallery.curves(of(runs), "mnist-pat-20", ["mode"], tmp_path / "a")
    asr = drawn[0].axes[0]
    assert lines(asr)["mode"].get_xdata().tolist() == [0, 1, 2, 3, 5, 7]
    assert lines(asr)["mode"].get_ydata() == pytest.approx([0.9, 0.6, 0.2, 0.05, 0.05, 0.2])
    (hollow,) = [line for line in asr.lines if line.get_markerfacecolor() == "white"]
    assert hollow.get_xdata()[0] == 3  # by then all have


def test_rows_with_fewer_seeds_are_not_said_to_have_more():
    few, many = [result("mode")], [result("fedosd"), result("fedosd", seed=2)]
    assert seeds([select(of(few), "mnist-pat-20", ["mode"])]) == ""
    assert seeds([select(of(many), "mnist-pat-20", ["fedosd"])]) == "Mean of 2 seeds"
    assert seeds([select(of([*few, *many]), "mnist-pat-20", ["mode", "fedosd"])]) == "Mean of up to 2 seeds"


def test_who_unlearns_in_one_round_post_trains_from_there(tmp_path, drawn):
    course = {"rounds": [0.0, 1.0, 10.0], "asr": [0.9, 0.5, 0.1], "r_acc": [0.8] * 3, "distance": [0.0, 1, 2]}
    gallery.curves(of([result("mode", turn=1.0, course=course)]), "mnist-pat-20", ["mode"], tmp_path / "a")
    assert lines(drawn[0].axes[0])["mode"].get_xdata().tolist() == [0, 1, 10]
    assert any("MoDe starts post-training in round 2." in words for words in text(drawn[0]))


def test_who_trains_anew_does_not_begin_with_what_is_to_be_forgotten(tmp_path, drawn):
    gallery.curves(of([result("retrain", turn=0.0)]), "mnist-pat-20", ["retrain"], tmp_path / "a")
    assert lines(drawn[0].axes[0])["retrain"].get_xdata().tolist() == [5, 10]


def test_names_at_the_ends_of_curves_do_not_touch(tmp_path, drawn):
    rows = list(style.NAMES)[:8]
    gallery.curves(of([result(row) for row in rows]), "mnist-pat-20", rows, tmp_path / "a")
    drawn[0].draw_without_rendering()
    for axes in drawn[0].axes:
        places = sorted(of.get_position()[1] for of in axes.texts if of.get_text() in style.NAMES.values())
        height = axes.get_window_extent().height * 72 / drawn[0].dpi
        assert len(places) == 8
        assert all((high - low) * height > style.SMALL for low, high in pairwise(places))


def test_far_distances_are_logarithmic_and_leave_out_zero(tmp_path, drawn):
    far = result("mode")
    far = replace(far, course={**far.course, "distance": [0.0, 30.0, 60.0]})
    gallery.curves(of([result("fedosd"), far]), "mnist-pat-20", ["fedosd", "mode"], tmp_path / "a")
    distance = drawn[0].axes[2]
    assert distance.get_yscale() == "log"
    assert lines(distance)["mode"].get_xdata().tolist() == [5, 10]
    assert "Distance (log)" in text(drawn[0])


def test_the_trade_off_leads_from_hollow_to_filled_marks(results, tmp_path, drawn):
    gallery.tradeoff(results, ["mnist-pat-20", "b"], ROWS, tmp_path / "a")
    for axes in drawn[0].axes:
        found = {}
        for line in axes.lines:
            fill = "hollow" if line.get_markerfacecolor() == "white" else "filled"
            found[line.get_label(), fill] = (line.get_xdata()[0], line.get_ydata()[0])
        assert found["FedOSD", "hollow"] == pytest.approx((0.04, 0.6))
        assert found["FedOSD", "filled"] == pytest.approx((0.01, 0.81))
        assert ("Retraining", "hollow") not in found
        assert found["ω⁰", "filled"] == pytest.approx((0.9, 0.85))
        arrows = [(words.xyann, words.xy) for words in axes.texts if words.get_text() == ""]
        assert arrows[-1] == (pytest.approx((0.04, 0.6)), pytest.approx((0.01, 0.81)))
    assert [axes.get_title(loc="left") for axes in drawn[0].axes] == ["mnist-pat-20", "b"]


def test_a_trade_off_needs_a_backdoor(tmp_path):
    without = replace(
        result("mode"), unlearned={"r_acc": 0.5}, recovered={"r_acc": 0.5}, before={"r_acc": 0.8}
    )
    with refused("invalid", says="choose a column with a backdoor"):
        gallery.tradeoff(of([without]), ["mnist-pat-20"], ["mode"], tmp_path / "a")


def test_the_radar_has_a_spoke_for_each_row_and_the_mean_over_seeds(results, tmp_path, drawn):
    gallery.radar(results, ["b"], ROWS, tmp_path / "a")
    (axes,) = drawn[0].axes
    names = [tick.get_text() for tick in axes.get_xticklabels()]
    assert names == ["ω⁰", "Retraining", "MoDe", "FedOSD"]
    runs = {row: results.of("b", row) for row in ("retrain", "mode", "fedosd")}
    for label, above in (("mean", 0.0), ("worst client", -0.05), ("best client", 0.1)):
        ends = [
            fmean((run.unlearned or run.recovered)["r_acc"] + above for run in of) for of in runs.values()
        ]
        assert list(lines(axes)[label].get_ydata())[1:4] == pytest.approx(ends)


def test_a_number_that_was_not_measured_is_a_gap_in_the_radar(tmp_path, drawn):
    without = result("mode", column="b", unlearned={"asr": 0.1, "r_acc": 0.5})
    gallery.radar(of([without]), ["b"], ["mode"], tmp_path / "a")
    (axes,) = drawn[0].axes
    assert isnan(lines(axes)["worst client"].get_ydata()[1])
    assert lines(axes)["mean"].get_ydata()[1] == 0.5


def test_runs_that_do_not_tell_clients_apart_are_refused_in_a_sentence(tmp_path):
    old = of([result("mode", column="b", recovered={"asr": 0.0, "r_acc": 0.5})])
    with refused("missing", says=r"column 'b' have no accuracy of each client: run them again"):
        FIGURES["clients"](old, tmp_path / "a")


def test_the_heat_map_writes_every_client_after_each_stage(results, tmp_path, drawn):
    gallery.clients(results, "b", ROWS, tmp_path / "a")
    unlearned, recovered = drawn[0].axes
    cells = [[words.get_text() for words in axes.texts] for axes in (unlearned, recovered)]
    assert cells[0] == ["85", "87", "95", "–", "–", "–", "40", "42", "50", "60", "62", "70"]
    assert cells[1] == ["85", "87", "95", "40", "42", "50", "60", "62", "70", "80", "82", "90"]
    assert [tick.get_text() for tick in unlearned.get_yticklabels()] == ["ω⁰", "Retraining", "MoDe", "FedOSD"]
    assert [tick.get_text() for tick in recovered.get_xticklabels()] == ["0", "2", "10"]


def test_conflicts_stand_beside_those_of_the_paper(results, tmp_path, drawn):
    gallery.conflict_bars(results, ["mnist-pat-20"], [*ROWS, "sfu"], tmp_path / "a")
    (axes,) = drawn[0].axes
    assert widths(axes) == [2.5, 3.47, 2.5, 0.0]
    assert [bool(bar.get_hatch()) for bar in axes.patches] == [False, True, False, True]
    assert any("Not counted: Retraining. Not run: SFU." in words for words in text(drawn[0]))


def test_conflicts_that_the_paper_does_not_print_stand_alone(results, tmp_path, drawn):
    results.settings["b"]["data"]["dataset"] = "fmnist"
    gallery.conflict_bars(results, ["b"], ROWS, tmp_path / "a")
    assert widths(drawn[0].axes[0]) == [2.5, 2.5]
    assert not any("paper" in words for words in text(drawn[0]))


def test_uncounted_conflicts_are_refused(results, tmp_path):
    with refused("missing", says="set count_conflicts = true"):
        gallery.conflict_bars(results, ["b"], ["retrain"], tmp_path / "a")


def test_costs_are_means_of_what_was_counted(results, tmp_path, drawn):
    gallery.costs(results, "b", ROWS, tmp_path / "a")
    found = {axes.get_title(loc="left"): widths(axes)[0] for axes in drawn[0].axes}
    assert found == {"Trainings": 150, "Seconds": 12, "Exchanged, MB": 8, "Stored, MB": 4}
    assert [list(line.get_xdata()) for line in drawn[0].axes[0].lines[:2]] == [[100, 200], [100, 200]]


def test_rows_without_runs_are_left_out_and_said(tmp_path, drawn):
    found = of(
        [result("mode"), result("fedosd", status=Status.DIVERGED), result("mode", 2, status=Status.DIVERGED)]
    )
    rows = ["mode", "fedosd", "sfu"]
    gallery.costs(found, "mnist-pat-20", rows, tmp_path / "a")
    assert len(drawn[0].axes[0].patches) == 1
    assert any(words == "Failed: MoDe (1 of 2 seeds), FedOSD. Not run: SFU." for words in text(drawn[0]))
    with refused("missing", says="no finished run of fedosd, sfu: name other rows"):
        gallery.costs(found, "mnist-pat-20", ["fedosd", "sfu"], tmp_path / "a")
    with refused("unknown", says=r"known: .*mnist-pat-20"):
        gallery.costs(found, "mnist-pat-2", rows, tmp_path / "a")


def test_triggers_show_both_pictures_and_both_labels(tmp_path, drawn):
    clean, triggered = pair()
    gallery.triggers({"digits": (clean, triggered)}, tmp_path / "a")
    above, below = drawn[0].axes
    low, high = clean.x.min(), clean.x.max()
    for axes, picture in ((above, clean), (below, triggered)):
        assert torch.allclose(
            torch.tensor(axes.images[0].get_array()), (picture.x[0, 0] - low) / (high - low)
        )
    assert (above.get_xlabel(), below.get_xlabel()) == ("label 3", "label 3 → 8")
    with refused("invalid", says="name at least one dataset"):
        gallery.triggers({}, tmp_path / "a")


def test_a_specimen_wears_the_trigger_of_the_experiment():
    clean, triggered = specimen(Experiment(data=Data(dataset="fashion-demo")), 3)
    changed = (clean.x != triggered.x)[0, 0].nonzero()
    assert clean.x.shape == triggered.x.shape == (1, 1, 28, 28)
    assert len(changed) > 0
    assert changed.min() >= 24
    assert changed.max() <= 26
    assert (int(clean.y) + 5) % 10 == int(triggered.y)


def test_each_method_looks_like_no_other_and_the_same_everywhere():
    assert {entry.name for entry in method} <= set(style.NAMES)
    rows = [*style.NAMES, *(f"mine-{number}" for number in range(64 - len(style.NAMES)))]
    looks = [style.style(row, rows) for row in rows]
    assert len({(of.colour, of.marker) for of in looks}) == len(rows)
    first = looks[:8]
    assert len({of.marker for of in first}) == len({of.colour for of in first}) == 8
    assert style.style("fedosd") == style.style("fedosd", ["mine", "fedosd"])
    variants = [row for row in rows if row.startswith("fedosd")]
    assert len({style.style(row).colour for row in variants}) == len(variants)


def test_places_are_moved_apart_no_further_than_needed():
    assert apart([0.5, 0.1, 0.9], 0.2, 0, 1) == pytest.approx([0.5, 0.1, 0.9])
    assert apart([0.5, 0.5], 0.2, 0, 1) == pytest.approx([0.4, 0.6])
    assert apart([0.0, 0.0, 0.05], 0.1, 0, 1) == pytest.approx([0.0, 0.1, 0.2])
    crowded = sorted(apart([0.9, 0.95, 1.0, 0.97], 0.1, 0, 1))
    assert crowded[-1] == pytest.approx(1)
    assert all(high - low == pytest.approx(0.1) for low, high in pairwise(crowded))


def test_without_matplotlib_one_sentence_names_the_extra(results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with refused("invalid", says=re.escape("fedunlearn[report]")):
        gallery.costs(results, "b", ROWS, tmp_path / "a")
