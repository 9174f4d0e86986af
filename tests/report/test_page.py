"""The report page: its numbers are those of the metrics on stored logits, and its names are text."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import samples
from calprompt.cli.app import create_parser
from calprompt.cli.train import run_settings
from calprompt.errors import SettingError
from calprompt.evaluation.bootstrap import bootstrap_intervals
from calprompt.metrics import debiased_errors, evaluate, predictions
from calprompt.metrics.binomial import share_interval
from calprompt.report.page.build import build_report, train_command
from calprompt.report.page.document import ReportSettings, read_page
from calprompt.report.page.drawings import clean_svg
from calprompt.report.page.render import render_report, write_report
from calprompt.report.table import COUNT, DASH, PERCENT, POINTS, Column, Number
from calprompt.results.sources import read_source
from calprompt.results.table import read_table
from calprompt.runs.config import build_config
from calprompt.runs.folder import load_run
from report import reports

METRICS = ("accuracy", "ece", "ace", "weighted_mce", "nll", "confidence_gap")
HALF = 5.1e-7  # of the last digit of an embedded number
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def stored(loss: str, seed: int, split: str, kind: str = "logits") -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels as they are on disk."""
    for folder in reports.folders():
        config = load_run(folder).record["config"]
        if (config["loss"], config["training"]["seed"]) == (loss, seed):
            tensors = load_file(folder / "logits.safetensors")
            return tensors[f"{split}/{kind}"], tensors[f"{split}/labels"]
    raise AssertionError


def test_page_numbers_equal_metrics_on_stored_logits() -> None:
    page = read_page(reports.written())
    table = next(each for each in page.data["tables"] if each["key"] == "results")
    names = [name for name, _ in table["columns"]]
    seen = 0
    for (embedded, _), shown in zip(table["rows"], page.tables["results"], strict=True):
        row = dict(zip(names, embedded, strict=True))
        if "temperature" in row["method"]:
            continue
        kind = "zero_shot_logits" if row["method"] == "zero-shot" else "logits"
        logits, labels = stored("tcpt" if "TCPT" in row["method"] else "ce", int(row["seed"] or 1), row["split"], kind)
        sample = predictions(logits, labels, from_logits=True)
        values = evaluate(sample, names=METRICS)
        ends = bootstrap_intervals(sample, names=METRICS, resamples=40, seed=(0, *row["split"].encode()))
        error = debiased_errors(sample)["ece"]
        values["ece_debiased"], ends["ece_debiased"] = error.value, (error.low, error.high)
        texts = dict(zip(names, shown, strict=False))
        for metric, value in values.items():
            numbers = row[metric] if isinstance(row[metric], list) else [row[metric]]
            kept = [number for number in numbers if number is not None]
            assert kept == pytest.approx([value, *ends.get(metric, ())], abs=HALF)
            if metric != "nll":
                assert float(texts[metric][0]) == pytest.approx(100 * value, abs=0.00501)
            if metric in ends and metric != "nll":
                low, high = (float(end) for end in texts[metric][1].split(" to "))
                assert (low, high) == pytest.approx([100 * end for end in ends[metric]], abs=0.00501)
            seen += 1
    assert seen == 7 * 10  # two losses, two seeds and zero-shot, on base and novel


def test_means_over_seeds_and_paired_differences() -> None:
    table = reports.report().table("datasets")
    assert table is not None
    rows = {(row["split"], row["method"]): row for row in reports.cells(table)}
    for split in ("base", "novel"):
        means = {}
        for loss, name in (("ce", "CoOp"), ("tcpt", "CoOp + TCPT")):
            values = [evaluate(*stored(loss, seed, split), from_logits=True, names=METRICS) for seed in (1, 2)]
            for metric in ("accuracy", "ece", "ace", "weighted_mce"):
                means[loss, metric] = np.mean([each[metric] for each in values])
                assert rows[split, name][metric].value == pytest.approx(means[loss, metric], abs=HALF)
            assert rows[split, name]["seeds"].value == 2
        difference = rows[split, "CoOp + TCPT"]["difference_ece"]
        assert difference.value == pytest.approx(means["tcpt", "ece"] - means["ce", "ece"], abs=HALF)
        assert difference.low <= difference.high
        assert rows[split, "CoOp"]["difference_ece"].value is None
    accuracies = [rows[split, "CoOp"]["accuracy"].value for split in ("base", "novel")]
    harmonic = 2 * accuracies[0] * accuracies[1] / sum(accuracies)
    assert rows["harmonic mean", "CoOp"]["accuracy"].value == pytest.approx(harmonic, abs=1e-6)


def test_classes_and_mistakes_follow_from_the_logits() -> None:
    report = reports.report()
    logits, labels = stored("tcpt", 1, "novel")
    sample = predictions(logits, labels, from_logits=True)
    table = report.table("classes")
    assert table is not None
    rows = {row["class"]: row for row in reports.cells(table) if row["split"] == "novel"}
    names = load_run(report_folder("tcpt", 1)).record["data"]["class_names"]
    assert set(rows) <= {name for part in names.values() for name in part} if isinstance(names, dict) else set(names)
    for label, row in enumerate(rows.values()):
        true, said = labels == label, sample.predicted == label
        assert row["images"].value == true.sum()
        hits = int((true & said).sum())
        assert (row["found"].value, row["found"].low) == pytest.approx(
            (hits / true.sum(), share_interval(hits, int(true.sum()))[0]), abs=HALF
        )
        if said.any():
            assert row["confidence"].value == pytest.approx(sample.confidence[said].mean(), abs=HALF)
        else:
            assert row["confidence"].value is None
    novel = [each for each in report.mistakes if "novel" in each.group]
    wrong = np.sort(sample.confidence[~sample.correct])[::-1][:3]
    assert [each.confidence.value for each in novel] == pytest.approx(wrong.tolist(), abs=HALF)
    assert all(each.predicted != each.true for each in report.mistakes)


def report_folder(loss: str, seed: int) -> Path:
    configs = {folder: load_run(folder).record["config"] for folder in reports.folders()}
    return next(f for f, c in configs.items() if (c["loss"], c["training"]["seed"]) == (loss, seed))


class Elements(HTMLParser):
    """Every element of a page with its attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_are_text_and_never_markup() -> None:
    html = reports.written().read_text(encoding="utf-8")
    elements = Elements(html)
    scripts = [given for tag, given in elements.found if tag == "script"]
    assert [given.get("type") for given in scripts] == ["application/json", None]
    for tag, given in elements.found:
        assert not [name for name in given if name.startswith("on") or name == "style"], (tag, given)
        assert given.get("src", "data:").startswith("data:image/webp;base64,") or "src" not in given
        assert not str(given.get("href", "#")).lstrip("#").startswith(("http", "javascript", "//"))
    for name in reports.NAMES:
        assert name in elements.text
    assert "photos <b>" in elements.text


def test_the_policy_names_the_one_style_and_the_one_script() -> None:
    html = reports.written().read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    script = re.search(r"<script>(.*?)</script>\n</body>", html, re.DOTALL)
    for kind, found in (("style-src", style), ("script-src", script)):
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy[1]
    assert len(script[1]) < 10_000


def test_pictures_of_mistakes_are_small_and_show_the_named_image() -> None:
    for mistake in reports.report().mistakes:
        assert mistake.picture is not None
        data = base64.b64decode(mistake.picture.partition(",")[2])
        original = Image.open(reports.photos() / mistake.image).convert("RGB")
        shown = Image.open(io.BytesIO(data)).convert("RGB")
        assert shown.size == original.size  # they are smaller than a thumbnail already
        apart = np.abs(np.asarray(shown, float).mean((0, 1)) - np.asarray(original, float).mean((0, 1)))
        assert apart.max() < 8  # WebP loses a little
        assert len(data) < 5000


def test_without_the_data_the_page_has_names_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(reports.folders()[0], moved / "runs" / reports.folders()[0].name)
    folder = moved / "runs" / reports.folders()[0].name
    samples.edit_record(folder, lambda record: record["config"].update(data=str(tmp_path / "gone")))
    report = build_report(read_source(folder), reports.SETTINGS)
    assert report.mistakes
    assert not any(each.picture for each in report.mistakes)
    assert any("pictures of mistakes are left out" in note and "gone" in note for note in report.notes)
    assert "no picture" in render_report(report)
    assert not build_report(read_source(folder), ReportSettings(bootstrap=0, no_images=True)).notes


def test_commands_of_runs_give_their_settings_again() -> None:
    for folder, identity in zip(reports.folders(), reports.report().runs, strict=True):
        config = load_run(folder).record["config"]
        assert identity.name in {each.name for each in reports.folders()}
        args = create_parser().parse_args(shlex.split(train_command(config))[1:])
        again = json.loads(json.dumps(build_config(**run_settings(args)).record()))
        assert again == config


def test_commands_of_tables_and_figures_parse() -> None:
    report = reports.report()
    commands = [each.command for each in (*report.tables, *report.figures) if each.command]
    assert len(commands) >= 3
    for command in commands:
        create_parser().parse_args(shlex.split(command)[1:])


def test_a_single_run_is_compared_with_the_untuned_model() -> None:
    report = build_report(read_source(reports.folders()[0]), ReportSettings(bootstrap=20, no_figures=True))
    assert "the untuned model" in report.headline[0]
    assert "CoOp" in report.headline[0]
    assert any("Only one seed" in line for line in report.remarks)
    assert report.title == load_run(reports.folders()[0]).title


def test_runs_without_results_are_shown_as_such_and_never_as_zeros(tmp_path: Path) -> None:
    table = read_source(reports.runs()).table
    rows = [dict(row) for row in table.rows]
    failed = {**{k: rows[0].get(k) for k in ("tuner", "loss", "data", "shots", "backbone")}, "seed": 7}
    unmeasured = {**rows[0], "seed": 9, "run": "x", "fingerprint": "y", "reason": "it does not apply here"}
    unmeasured |= dict.fromkeys(METRICS)
    more = ({**failed, "status": "failed", "reason": "<i>the loss was not finite"}, unmeasured)
    file = tmp_path / "results.csv"
    file.write_bytes(type(table)((*rows, *more)).to_csv())
    report = build_report(read_source(file), reports.SETTINGS)
    assert any("1 planned run" in line and "1 failed" in line for line in report.remarks)
    html = render_report(report)
    assert "&lt;i&gt;the loss was not finite" in html
    results = report.table("results")
    assert results is not None
    row = next(row for row in reports.cells(results) if row["seed"] == "9")
    assert row["ece"].value is None
    column = next(column for column in results.columns if column.key == "ece")
    assert column.shown(row["ece"]) == (DASH, "it does not apply here")
    datasets = report.table("datasets")
    assert datasets is not None
    plain = next(row for row in reports.cells(datasets) if (row["split"], row["method"]) == ("base", "CoOp"))
    assert plain["seeds"].value == 2


def test_how_numbers_are_written() -> None:
    assert Column("a", "a", PERCENT).shown(Number(0.12345, 0.1, 0.2)) == ("12.35", "10.00 to 20.00")
    assert Column("a", "a", POINTS).shown(Number(-0.0544, -0.12, -0.006)) == ("-5.44*", "-12.00 to -0.60")
    assert Column("a", "a", POINTS).shown(Number(-0.000001)) == ("+0.00", "")
    assert Column("a", "a", COUNT).shown(Number(12345)) == ("12,345", "")
    assert Column("a", "a", PERCENT).shown(Number(None, note="why")) == (DASH, "why")
    assert Column("a", "a", PERCENT).shown(Number(0.48645042)) == ("48.65", "")  # rounded once


def test_figures_keep_their_text_and_lose_what_a_strict_page_refuses() -> None:
    svg = reports.report().figures[0].svg
    assert "style=" not in svg
    assert "xlink" not in svg
    assert ">CoOp + TCPT</text>" in svg
    assert set(re.findall(r'\bid="([^"]*)"', svg)) >= set(re.findall(r"url\(#([^)]*)\)", svg))
    wild = (
        b'<svg xmlns="http://www.w3.org/2000/svg" width="10pt" height="5pt"><script>alert(1)</script>'
        b'<text onclick="alert(2)" style="font: bold 7px \'A\'; fill: red">&lt;b&gt;</text></svg>'
    )
    clean = clean_svg(wild, "f", "a < b")
    assert "alert" not in clean
    assert 'font-weight="bold"' in clean
    assert 'aria-label="a &lt; b"' in clean
    assert ">&lt;b&gt;</text>" in clean


def test_two_thousand_rows_make_a_page_below_two_megabytes() -> None:
    table = read_table(EXPERIMENTS / "paper.csv.xz")
    assert len(table.rows) > 2000
    source = read_source(EXPERIMENTS / "paper.csv.xz")
    html = render_report(build_report(source))
    assert len(html.encode()) < 2_000_000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"errors": (0.0,)}, "errors must be fractions above 0 and below 1, got 0.0"),
        ({"bootstrap": -1}, "bootstrap must be at least 0, got -1"),
        ({"bins": 0}, "bins"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ReportSettings(**settings)  # type: ignore[arg-type]


def test_a_page_is_an_html_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"a report is written as .html, got 'report.pdf'"):
        write_report(reports.report(), tmp_path / "report.pdf")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(SettingError, match="is a folder"):
        write_report(reports.report(), tmp_path / "folder.html")
