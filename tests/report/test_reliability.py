"""Reliability diagrams show what the metrics say, and are written whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from calprompt.errors import CalpromptError
from calprompt.metrics import Predictions, evaluate, predictions, reliability_table, smooth_calibration_error
from calprompt.report.reliability import (
    Panel,
    confidence_panel,
    logits_panel,
    reliability_figure,
    runs_panel,
    save_figure,
)


def drawn(seed: int, n: int = 300, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    logits = 2 * rng.normal(size=(n, classes))
    logits[np.arange(n), labels] += 1.5
    return logits, labels


def given(seed: int) -> Predictions:
    return predictions(*drawn(seed), from_logits=True)


def grid() -> dict[str, dict[str, Panel]]:
    return {
        "base": {"A": logits_panel(*drawn(0)), "B": logits_panel(*drawn(1))},
        "novel": {"B": logits_panel(*drawn(2))},
    }


CONFIDENCES = [(given(seed).confidence, given(seed).correct) for seed in range(3)]  # of the panels of `grid`


def heights(axes: Axes) -> dict[float, float]:
    """Up to where the bars of an axes reach, by their left edges."""
    tops: dict[float, float] = {}
    for bar in axes.patches:
        left = round(bar.get_x(), 9)
        tops[left] = max(tops.get(left, 0.0), bar.get_y() + bar.get_height())
    return tops


def test_a_panel_holds_the_numbers_of_the_metrics() -> None:
    panel, expected = logits_panel(*drawn(0)), reliability_table(*drawn(0), from_logits=True)
    assert panel.table.rows() == expected.rows()
    values = evaluate(*drawn(0), from_logits=True)
    assert (panel.accuracy, panel.ece) == pytest.approx((values["accuracy"], values["ece"]))
    assert panel.confidence == pytest.approx(values["mean_confidence"])
    assert panel.share.sum() == pytest.approx(1)
    same = confidence_panel([(given(0).confidence, given(0).correct)])
    assert same.table.rows() == expected.rows()


def test_a_panel_of_several_runs_has_all_images_and_the_mean_of_the_errors() -> None:
    runs = [given(seed) for seed in range(3)]
    panel = runs_panel(runs, n_bins=10)
    every = predictions(*(np.concatenate(parts) for parts in zip(*map(drawn, range(3)), strict=True)), from_logits=True)
    assert panel.table.rows() == reliability_table(every).rows()
    assert panel.ece == pytest.approx(np.mean([evaluate(each)["ece"] for each in runs]))
    assert panel.accuracy == pytest.approx(np.mean([evaluate(each)["accuracy"] for each in runs]))


def test_runs_of_unequal_sizes_have_equal_weight_as_in_tables() -> None:
    """Not by their images: a table has the mean over datasets."""
    large, small = predictions(*drawn(0, 300), from_logits=True), predictions(*drawn(1, 40), from_logits=True)
    panel = runs_panel([large, small])
    values = [evaluate(each) for each in (large, small)]
    for name, value in (("accuracy", panel.accuracy), ("mean_confidence", panel.confidence), ("ece", panel.ece)):
        assert value == pytest.approx(np.mean([each[name] for each in values]))


def test_bars_reach_to_accuracy_or_confidence_whichever_is_more() -> None:
    panels = grid()
    figure = reliability_figure(panels)
    assert len(figure.axes) == 6  # three diagrams, each with a histogram; one place is empty
    for number, panel in enumerate([panels["base"]["A"], panels["base"]["B"], panels["novel"]["B"]]):
        diagram, histogram = figure.axes[2 * number : 2 * number + 2]
        table = panel.table
        held = table.count > 0
        expected = np.maximum(table.accuracy, table.confidence)[held]
        assert heights(diagram) == pytest.approx(dict(zip(table.lower[held].round(9), expected, strict=True)))
        gaps = [bar.get_height() for bar in diagram.patches if bar.get_hatch()]
        assert sorted(gaps) == pytest.approx(sorted(table.gap[table.gap > 0]))
        assert [bar.get_height() for bar in histogram.patches] == pytest.approx(100 * panel.share)
        smooth = smooth_calibration_error(*CONFIDENCES[number])
        assert diagram.texts[0].get_text().split("\n") == [
            f"accuracy {100 * panel.accuracy:.2f} %",
            f"ECE {100 * panel.ece:.2f} % (10 bins)",
            f"SmoothECE {100 * smooth:.2f} %",
            "n = 300",
        ]
    assert len({axes.get_ylim() for axes in figure.axes[1::2]}) == 1
    assert pyplot.get_fignums() == []


def look(bar: Any) -> tuple[Any, ...]:
    return bar.get_facecolor()[:3], bar.get_edgecolor()[:3], bar.get_hatch()


def test_legends_describe_what_is_drawn() -> None:
    bins = ((0.9, 10, 10), (0.6, 18, 2), (0.3, 1, 4))  # confidence, right, wrong
    confidence = [sure for sure, right, wrong in bins for _ in range(right + wrong)]
    panel = confidence_panel(
        [(confidence, [hit for _, right, wrong in bins for hit in right * [True] + wrong * [False]])]
    )
    figure = reliability_figure({"base": {"A": panel}})
    legend, (diagram, histogram) = figure.legends[0], figure.axes
    told = {text.get_text(): each for text, each in zip(legend.get_texts(), legend.legend_handles, strict=True)}
    table, seen = panel.table, set()
    for bar in diagram.patches:
        number = int(np.abs(table.lower - bar.get_x()).argmin())
        gap = "over-confident by" if table.confidence[number] > table.accuracy[number] else "under-confident by"
        kind, few = gap if bar.get_hatch() else "accuracy", bool(table.count[number] < 10)
        assert look(bar) == look(told[kind])
        assert bar.get_alpha() == (told["fewer than 10 images"].get_alpha() if few else 1)
        seen |= {kind, few}
    assert seen == {"accuracy", "over-confident by", "under-confident by", True, False}
    assert look(told["fewer than 10 images"]) == look(told["accuracy"])
    for kind, place in (("mean confidence", panel.confidence), ("mean accuracy", panel.accuracy)):
        (style,) = (line.get_linestyle() for line in histogram.lines if line.get_xdata()[0] == place)
        assert style == told[kind].get_linestyle()
    assert told["mean confidence"].get_linestyle() != told["mean accuracy"].get_linestyle()


def test_all_diagrams_have_one_size() -> None:
    figure = reliability_figure(grid(), title="toys")
    sizes = {tuple(np.round(axes.get_position().size * figure.get_size_inches(), 6)) for axes in figure.axes[::2]}
    assert len(sizes) == 1
    width, height = sizes.pop()
    assert width == pytest.approx(height)


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_legend_is_on_the_figure_and_under_the_panels(columns: int) -> None:
    figure = reliability_figure({"novel": {str(number): logits_panel(*drawn(number)) for number in range(columns)}})
    figure.draw_without_rendering()
    legend, histogram = figure.legends[0].get_window_extent(), figure.axes[1].get_tightbbox()
    assert histogram is not None
    assert (legend.x0 >= 0, legend.y0 >= 0) == (True, True)
    assert legend.x1 <= figure.bbox.x1
    assert legend.y1 <= histogram.y0


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_figures_are_written_atomically_and_reproducibly(tmp_path: Path, suffix: str) -> None:
    panels = {"base": {"A": logits_panel(*drawn(0))}}
    path = save_figure(reliability_figure(panels), tmp_path / "new" / f"figure{suffix}")
    again = save_figure(reliability_figure(panels), tmp_path / f"again{suffix}")
    assert path.read_bytes() == again.read_bytes()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    if suffix == ".png":
        pixels = np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("L"))
        assert min(pixels.shape) > 500
        assert pixels.std() > 20


def test_invalid_input_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match=r"written as .png, .svg, .pdf; got 'figure.gif'"):
        save_figure(Figure(), tmp_path / "figure.gif")
    with pytest.raises(CalpromptError, match="no panels to draw"):
        reliability_figure({"base": {}})
    with pytest.raises(CalpromptError, match="at least one run"):
        runs_panel([])


def test_the_band_of_chance_has_what_a_calibrated_model_does() -> None:
    """95 of 100 bins of a model whose confidences are exactly right, and few of one that is over-confident."""
    rng = np.random.default_rng(0)
    inside, outside = [], []
    for _ in range(60):
        confidence = rng.uniform(0.2, 1, 800)
        for right, found in ((confidence, inside), (confidence**2.5, outside)):
            panel = confidence_panel([(confidence, rng.random(800) < right)], n_bins=10)
            (low, high), filled = panel.chance, panel.table.count > 0
            assert (low[filled] <= panel.table.confidence[filled] + 1e-12).all()
            assert (panel.table.confidence[filled] <= high[filled] + 1e-12).all()
            assert np.isnan(low[~filled]).all()
            accuracy = panel.table.accuracy[filled]
            found += list((low[filled] <= accuracy) & (accuracy <= high[filled]))
    assert 0.93 <= np.mean(inside) <= 1, "discrete, so somewhat more than 95 %"
    assert np.mean(outside) < 0.5


def test_the_same_images_in_several_runs_do_not_narrow_the_band() -> None:
    one, three = runs_panel([given(0)]), runs_panel([given(0)] * 3)
    assert (one.repeats, three.repeats) == (1, 3)
    for ends in zip(one.chance, three.chance, strict=True):
        np.testing.assert_array_equal(*ends)
    assert runs_panel([given(0), given(1)]).repeats == 1, "other images"
    assert "n = 300 \N{MULTIPLICATION SIGN} 3" in {
        text.get_text().split("\n")[-1] for text in reliability_figure({"a": {"b": three}}).axes[0].texts
    }
