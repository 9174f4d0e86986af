"""Figures show the numbers they are made of, say how much that is, and refuse what they cannot show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

import samples
from calprompt import run
from calprompt.cli import main
from calprompt.errors import DataError, NotFoundError, SettingError, UnknownNameError
from calprompt.evaluation.models import stored_models
from calprompt.evaluation.numbers import Number
from calprompt.losses import margins as loss_margins
from calprompt.metrics import evaluate, predictions
from calprompt.paper.logit_figures import (
    correlation,
    geometry,
    label_margins,
    margin_figure,
    margin_spread_figure,
    margin_variability,
    text_feature_figure,
)
from calprompt.paper.setting_figures import cost_figure, curve_figure, tcpt_weights
from calprompt.report.figures import draw, figure_info, figure_names
from calprompt.report.figures.confidence import error_figure, error_shares, risk_at, risk_coverage_figure
from calprompt.report.figures.methods import radar_figure
from calprompt.report.reliability import save_figure
from calprompt.results.selection import read_series, stored_runs
from calprompt.results.sources import ReportSource, read_source
from calprompt.results.table import Table

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibex", "jay")
LOGIT_FIGURES = [name for name in figure_names() if figure_info(name).needs != "rows"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two losses and two seeds."""
    place = tmp_path_factory.mktemp("figures")
    data = samples.tensor_file(place / "toys.safetensors", samples.tensors(names=NAMES), NAMES)
    for loss in ("ce", "tcpt"):
        for seed in (1, 2):
            config = samples.config(data, epochs=2, seed=seed, loss=loss)
            run(replace(config, training=replace(config.training, diagnose_every=1)), place / "runs")
    return place / "runs"


@pytest.fixture(scope="module")
def source(folder: Path) -> ReportSource:
    return read_source(folder)


def rows(
    losses: tuple[str, ...] = ("ce", "tcpt"),
    datasets: tuple[str, ...] = ("a", "b", "c"),
    seeds: tuple[int, ...] = (1, 2),
    **settings: Any,
) -> Iterator[dict[str, Any]]:
    """Rows of a table with numbers that all differ."""
    rng = np.random.default_rng(0)
    for loss in losses:
        for dataset in datasets:
            for seed in seeds:
                for split in ("base", "novel"):
                    accuracy, ece = rng.uniform(0.5, 0.9), rng.uniform(0.01, 0.2)
                    yield {
                        **dict.fromkeys(("run", "fingerprint"), f"{loss}-{dataset}-{seed}-{settings}"),
                        **dict.fromkeys(("dataset", "data"), dataset),
                        "status": "finished",
                        "model": "tuned",
                        "calibrator": "none",
                        "seed": seed,
                        "split": split,
                        "tuner": "coop",
                        "loss": loss,
                        "shots": 16,
                        "options": '{"words":"a photo of a"}',
                        "accuracy": accuracy,
                        "ece": ece,
                        "mean_confidence": accuracy + ece,
                        "nll": 1.0,
                        "cpu_seconds_train": 10 * accuracy,
                        "peak_memory_train": 1_000_000_000,
                        **settings,
                    }


def table(*groups: Iterator[dict[str, Any]]) -> ReportSource:
    return ReportSource("a table", Table(tuple(row for group in groups for row in group)))


def by_setting(name: str) -> ReportSource:
    """Results that the figure of that name needs."""
    if name == "shots":
        return table(*(rows(shots=shots) for shots in (4, 16)))
    if name == "phrases":
        return table(*(rows(options=f'{{"words":"{words}"}}') for words in ("a photo of a", "one")))
    if name == "alpha-beta":
        return table(rows(("tcpt", "ce + margin(alpha=0.3, beta=0.05) + 5*moments")))
    if name == "lambda":
        return table(rows(("tcpt", "ce + margin + 8*moments")))
    return table(rows())


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text")))


@pytest.mark.parametrize("name", figure_names())
def test_every_figure_is_small_and_says_how_much_it_shows(name: str, source: ReportSource, tmp_path: Path) -> None:
    drawn = draw(name, source if name in LOGIT_FIGURES else by_setting(name))
    assert re.search(r"\d+ (dataset|run|class)", texts(drawn)), "its sample size"
    path = save_figure(drawn, tmp_path / "figure.svg")
    text = path.read_text("utf-8")
    assert "<text" in text, "text stays text"
    assert len(text) < 250_000
    width, _ = drawn.get_size_inches()
    assert width <= 7.2
    for kind in (".png", ".pdf"):
        assert save_figure(drawn, tmp_path / f"figure{kind}").stat().st_size > 1000


def test_drawing_leaves_the_style_of_the_caller_alone(source: ReportSource) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw("errors", source)
    assert dict(matplotlib.rcParams) == before


def test_unknown_figures_and_options_are_answered_with_the_known_ones(source: ReportSource) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'radar'"):
        draw("rader", source)
    with pytest.raises(UnknownNameError, match=r"option of the figure 'errors'.*Known: bins, methods, split"):
        draw("errors", source, metric="ece")
    with pytest.raises(UnknownNameError, match=r"unknown method 'TCTP'\. Did you mean 'TCPT'"):
        draw("errors", source, methods=["TCTP"])


@pytest.mark.parametrize("name", LOGIT_FIGURES)
def test_a_table_is_not_enough_where_logits_are_needed(name: str) -> None:
    with pytest.raises(NotFoundError, match="stored logits; give the folder of the runs"):
        draw(name, table(rows()))


def test_stored_runs_are_read_once_per_folder(source: ReportSource, folder: Path) -> None:
    stored = stored_runs(source, "novel", zero_shot=True)
    assert list(stored) == ["zero-shot", "cross-entropy", "TCPT"]
    assert [len(runs) for runs in stored.values()] == [1, 2, 2]
    for each in source.runs:
        record = stored_models(each)["tuned"].tests["novel"]
        name = {"ce": "cross-entropy", "tcpt": "TCPT"}[each.record["config"]["loss"]]
        (found,) = [r for r in stored[name] if r.seed == each.record["config"]["training"]["seed"]]
        assert np.array_equal(found.logits, record.logits.double().numpy())
    one = source.filter(seed="1")
    assert {run.seed for runs in stored_runs(one, "base").values() for run in runs} == {1}
    with pytest.raises(NotFoundError, match="has no row with seed=9"):
        source.filter(seed="9")


def test_runs_that_differ_in_something_else_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    data = folder.parent / "toys.safetensors"
    for shots in (2, 4):
        run(samples.config(data, epochs=1, shots=shots), tmp_path / "runs")
    found = stored_runs(read_source(tmp_path / "runs"), "novel")
    assert {name: len(runs) for name, runs in found.items()} == {"TCPT (shots 2)": 1, "TCPT (shots 4)": 1}
    both = draw("radar", table(rows(shots=4), rows(shots=16, template="a {}.")))
    names = {text.get_text() for legend in both.legends for text in legend.get_texts()}
    assert "cross-entropy (shots 4, template default)" in names
    assert "TCPT (shots 16, template 'a {}.')" in names
    with pytest.raises(DataError, match=r"differ in their settings \(template default or 'a \{\}\.'\)"):
        draw("shots", table(rows(shots=4), rows(shots=16), rows(shots=16, seeds=(3,), template="a {}.")))


def test_methods_are_compared_on_what_all_of_them_have(source: ReportSource) -> None:
    lacking = replace(source, folders=source.folders[:-1])  # one seed of one loss
    stored = stored_runs(lacking, "base")
    assert {name: [run.seed for run in runs] for name, runs in stored.items()} == {name: [1] for name in stored}
    part = table(rows(("ce",), seeds=(1, 2, 3)), rows(("tcpt",), seeds=(1, 2)))
    series = read_series(part, lambda row: row["loss"], ("ece",), "losses")
    assert (series.datasets, series.seeds, series.left_out) == (3, 2, 3)
    assert "3 datasets and seeds left out" in series.note


def test_errors_add_up_to_the_error_rate(source: ReportSource) -> None:
    (sample, *_) = [each.sample for each in stored_runs(source, "novel")["TCPT"]]
    shares = error_shares(sample, 10)
    assert shares.sum() == pytest.approx(1 - evaluate(sample)["accuracy"])
    drawn = error_figure({"one": [sample]})
    heights = [patch.get_height() for patch in drawn.axes[0].patches if patch.get_width() < 0.2]
    assert heights[-10:] == pytest.approx(100 * shares)


def test_the_curve_of_risk_ends_at_the_error_rate(source: ReportSource) -> None:
    sample = stored_runs(source, "base")["TCPT"][0].sample
    risks = risk_at(sample, np.array([0.02, 0.5, 1.0]))
    assert risks[-1] == pytest.approx(1 - evaluate(sample)["accuracy"])
    best = np.argsort(-sample.confidence, kind="stable")[: len(sample.labels) // 2]
    assert len(np.unique(sample.confidence)) == len(sample.labels), "no ties here"
    assert risks[1] == pytest.approx((~sample.correct[best]).mean(), abs=1 / len(best))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(2, 40))
def test_margins_equal_those_of_the_loss(seed: int, classes: int, n: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (n,), generator=generator)
    expected = loss_margins(logits, labels).numpy()
    assert label_margins(logits.numpy(), labels.numpy()) == pytest.approx(expected)
    top = logits.topk(2, dim=1).values
    assert margin_variability(logits.numpy()) == pytest.approx(float((top[:, 0] - top[:, 1]).std(correction=0)))


def test_boxes_and_curves_of_margins_have_their_quantiles() -> None:
    values = np.random.default_rng(0).normal(size=2000)
    drawn = margin_figure({"one": values})
    curve, boxes = drawn.axes
    x, y = curve.lines[0].get_data()
    assert np.interp(0, x, y) == pytest.approx(100 * (values < 0).mean(), abs=1)
    assert boxes.get_xticklabels()[0].get_text() == f"{np.median(values):.2f}"
    with pytest.raises(SettingError, match="at least one margin"):
        margin_figure({"one": []})


def test_against_scipy_correlations() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=30)
    y = 0.5 * x + rng.normal(size=30)
    found = correlation(x, y)
    expected = scipy.stats.pearsonr(x, y)
    interval = expected.confidence_interval(0.95)
    assert found == pytest.approx((expected.statistic, interval.low, interval.high), abs=1e-6)
    assert correlation(x[:3], y[:3]) is None
    assert correlation(x, np.ones(30)) is None


def test_geometry_ignores_turns_and_sees_what_collapses() -> None:
    rng = np.random.default_rng(0)
    frozen = rng.normal(size=(12, 6))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert geometry(frozen, frozen @ turn) == pytest.approx(1)
    assert geometry(frozen, 3 * frozen) == pytest.approx(1), "only directions count"
    assert geometry(frozen, rng.normal(size=(12, 6))) < 0.7
    with pytest.raises(SettingError, match=r"must be \[12, 6\], got \[11, 6\]"):
        text_feature_figure(frozen, {"one": frozen[:11]})
    with pytest.raises(SettingError, match="at least 4 classes"):
        text_feature_figure(frozen[:3], {"one": frozen[:3]})


def test_the_same_text_features_get_the_same_places() -> None:
    frozen = np.random.default_rng(0).normal(size=(8, 5))
    tuned = {"one": frozen + 0.1}
    first, second = (text_feature_figure(frozen, tuned).axes[0].collections[0] for _ in range(2))
    assert np.array_equal(first.get_offsets(), second.get_offsets())


def test_a_radar_has_the_means_over_seeds() -> None:
    given = list(rows())
    drawn = draw("radar", table(iter(given)))
    assert [line.get_label() for line in drawn.axes[0].lines] == ["cross-entropy", "TCPT"]
    for axes, split in zip(drawn.axes, ("base", "novel"), strict=True):
        for line, loss in zip(axes.lines, ("ce", "tcpt"), strict=True):
            radii = line.get_ydata()
            expected = [
                np.mean([100 * row["ece"] for row in given if (row["split"], row["loss"], row["dataset"]) == key])
                for key in ((split, loss, dataset) for dataset in "abc")
            ]
            assert radii[:3] == pytest.approx(expected)
            assert radii[3] == radii[0], "closed"
    with pytest.raises(SettingError, match="at least 3 datasets, got 2: a, b"):
        draw("radar", table(rows(datasets=("a", "b"))))


def test_effects_are_the_paired_differences() -> None:
    given = list(rows())
    drawn = draw("effects", table(iter(given)))
    for axes, split in zip(drawn.axes, ("base", "novel"), strict=True):
        levels = [
            [100 * row["ece"] for row in given if (row["loss"], row["split"]) == (loss, split)]
            for loss in ("tcpt", "ce")
        ]
        (bar,) = axes.containers
        assert bar.lines[0].get_xdata()[0] == pytest.approx(np.mean(levels[0]) - np.mean(levels[1]))
    with pytest.raises(NotFoundError, match="nothing to compare with cross-entropy"):
        draw("effects", table(rows(("tcpt",))))


def test_curves_have_means_over_datasets_and_spreads_over_seeds() -> None:
    given = [row for shots in (4, 16) for row in rows(shots=shots)]
    series = read_series(table(iter(given)), lambda row: (row["loss"], row["shots"]), ("accuracy",), "shots")
    point = series.points["novel", "accuracy"]["tcpt", 4]
    by_seed = [
        np.mean(
            [
                100 * row["accuracy"]
                for row in given
                if (row["loss"], row["shots"], row["split"], row["seed"]) == ("tcpt", 4, "novel", seed)
            ]
        )
        for seed in (1, 2)
    ]
    assert (point.value, point.spread) == pytest.approx((np.mean(by_seed), np.std(by_seed, ddof=1)))
    with pytest.raises(NotFoundError, match="has results of 0 pairs of alpha and beta"):
        draw("alpha-beta", table(rows(("ce",))))


def test_weights_are_read_from_the_objective() -> None:
    assert tcpt_weights("ce + margin(alpha=0.2, beta=0.05) + 3*moments") == (0.2, 0.05, 3.0)
    assert tcpt_weights("margin_only") is None
    assert tcpt_weights("ce + margin + 5*moments + 0.1*mbls") is None


def test_runs_without_diagnostics_have_no_gradients(folder: Path, tmp_path: Path) -> None:
    run(samples.config(folder.parent / "toys.safetensors", epochs=1), tmp_path / "runs")
    with pytest.raises(NotFoundError, match=r"has steps\.csv; train with diagnose_every=1"):
        draw("gradients", read_source(tmp_path / "runs"))


def test_gradient_quantiles_follow_from_the_steps(source: ReportSource) -> None:
    values = [step["rho_margin/CE"] for each in source.runs for step in each.steps() if "rho_margin/CE" in step]
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
    assert f"margin / cross-entropy: median {middle:.3g} [{low:.2g}, {high:.2g}]" in texts(draw("gradients", source))


def test_two_tuners_are_distinguished() -> None:
    both = table(rows(), rows(tuner="maple"))
    labels = [line.get_label() for line in draw("radar", both).axes[0].lines]
    assert sorted(labels) == ["CoOp, TCPT", "CoOp, cross-entropy", "MaPLe, TCPT", "MaPLe, cross-entropy"]
    assert {"CoOp", "MaPLe"} <= set(texts(draw("cost", both)).split("\n"))


def test_the_command_writes_the_figure(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "errors.png"
    arguments = ["figure", "errors", str(folder), "--split", "base", "--methods", "TCPT", "--bins", "5"]
    assert main([*arguments, "--out", str(path)]) == 0
    assert capsys.readouterr().out.strip().endswith("errors.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["errors", "nowhere", "--out", "a.gif"], "--out must end in .png or .svg or .pdf, got 'a.gif'"),
        (["eror", "nowhere", "--out", "a.png"], "unknown figure 'eror'. Did you mean 'errors'?"),
        (["errors", "nowhere", "--out", "a.png"], "there is nothing at nowhere"),
        (["errors", "nowhere", "--out", "a.png", "--filter", "seed"], "--filter takes KEY=VALUE"),
    ],
)
def test_invalid_command_lines_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["figure", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("a.png").exists()


def test_plain_arrays_are_enough() -> None:
    """What a user has who never heard of runs."""
    rng = np.random.default_rng(0)
    sample = predictions(rng.normal(size=(60, 4)), rng.integers(4, size=60), from_logits=True)
    assert risk_coverage_figure({"mine": {"A": [sample]}}).axes
    assert radar_figure({"mine": {"A": {"x": 1.0, "y": 2.0, "z": 1.5}}}).axes
    assert cost_figure({"seconds": {"A": {"CoOp": [1.0, 2.0]}}}).axes
    points = {("base", "ece"): {"A": {4: Number(3.0), 8: Number(2.0, spread=0.1)}}}
    assert curve_figure(points, "shots").axes
    assert "n = 5" in texts(margin_spread_figure({"mine": {"A": rng.random((5, 2))}}))
