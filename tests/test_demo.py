"""The demonstration on tiny things: its files, stopping and going on, and comparing with numbers of another time."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import samples
from calprompt.cli import main
from calprompt.cli.compare import print_results
from calprompt.cli.shared import settings_of
from calprompt.demo import DemoSettings, check_results, run_demo
from calprompt.errors import CalpromptError
from calprompt.report.page.check import check_report
from calprompt.results.compare import Results, Row
from calprompt.runs.folder import load_run

RECIPE = "tuner: coop\noptions: {context: 2}\nshots: 4\nviews: 2\nbatch_size: 8\nlr: 0.01\nepochs: 2\n"
DOCS = Path(__file__).parents[1] / "docs"


def settings(folder: Path, **more: Any) -> DemoSettings:
    recipe = folder / "tiny.yaml"
    recipe.write_text(RECIPE)
    given = {"data": (str(samples.pictures()),), "seeds": 2, "resamples": 50, **more}
    return DemoSettings(backbone=str(samples.backbone()), recipe=str(recipe), **given)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def printed(results: Results, width: int = 120) -> str:
    text = io.StringIO()
    print_results(results, Console(width=width, highlight=False, file=text))
    return text.getvalue()


class Stop(KeyboardInterrupt):
    """Raised by a progress report."""


def test_the_demo_end_to_end_stopped_and_continued(tmp_path: Path) -> None:
    straight = run_demo(settings(tmp_path), tmp_path / "straight")
    assert straight.computed == 4
    written = ["table.csv", "table.json", "reliability-photos.png", "report.html"]
    assert [path.name for path in straight.files] == written
    assert sorted(contents(tmp_path / "straight")) == sorted(path.name for path in straight.files)

    def stop(what: str, done: int, total: int, note: str = "") -> None:
        runs = tmp_path / "stopped" / "runs"
        if what == "training" and done == 1 and len(list(runs.glob("*/run.json"))) == 3:
            raise Stop

    with pytest.raises(Stop):
        run_demo(settings(tmp_path), tmp_path / "stopped", progress=stop)
    assert contents(tmp_path / "stopped") == {}
    told: list[tuple[str, int, int]] = []
    again = run_demo(
        settings(tmp_path),
        tmp_path / "stopped",
        progress=lambda what, done, total, note="": told.append((what, done, total)),
    )
    assert again.computed == 2  # of the two others one was half done
    assert [done for what, done, _ in told if what == "runs"] == [0, 1, 2, 3, 4]
    pages = [contents(tmp_path / name).pop("report.html") for name in ("stopped", "straight")]
    assert all(b"CoOp + TCPT" in page for page in pages)  # which differ in how long training took
    assert check_report(tmp_path / "stopped" / "report.html").differences == ()
    for name in written[:-1]:
        assert contents(tmp_path / "stopped")[name] == contents(tmp_path / "straight")[name]
    third = run_demo(settings(tmp_path), tmp_path / "stopped")
    assert (third.computed, third.results) == (0, straight.results)

    rows = list(csv.DictReader((tmp_path / "straight" / "table.csv").open()))
    values = {(row["split"], row["method"], row["metric"]): float(row["value"]) for row in rows}
    runs = [load_run(path.parent) for path in (tmp_path / "straight" / "runs").glob("*/run.json")]
    one_bin = run_demo(settings(tmp_path, bins=1), tmp_path / "stopped").results
    in_one = {row.key: row.value for row in one_bin.rows}
    for name, loss in (("CoOp", "ce"), ("CoOp + TCPT", "tcpt")):
        of_method = [each for each in runs if each.record["config"]["loss"] == loss]
        assert sorted(each.record["config"]["training"]["seed"] for each in of_method) == [1, 2]
        for split in ("base", "novel"):
            for metric in ("accuracy", "ece", "ace", "mce", "weighted_mce"):
                mean = np.mean([each.metrics[split][metric] for each in of_method])
                assert values[split, name, metric] == pytest.approx(mean)
            gap = np.mean([abs(each.metrics[split]["confidence_gap"]) for each in of_method])
            assert in_one["photos", split, name, "ece"] == pytest.approx(gap)
    untuned = {each.metrics["zero_shot"]["novel"]["ece"] for each in runs}
    assert [values["novel", "zero-shot", "ece"]] == pytest.approx(list(untuned))
    assert {method for _, method, _ in values} == {"zero-shot", "CoOp", "CoOp + TCPT", "CoOp + TCPT minus CoOp"}
    for (split, method, metric), value in values.items():
        if method == "CoOp + TCPT minus CoOp":
            difference = values[split, "CoOp + TCPT", metric] - values[split, "CoOp", metric]
            assert value == pytest.approx(difference, abs=1e-12)
    assert values["novel", "CoOp + TCPT minus CoOp", "ece"] != 0
    assert Results.read(tmp_path / "straight" / "table.json") == straight.results


def toys(**changes: float) -> Results:
    """Results without any runs; `changes` are added to values, by method and metric as in CoOp_ece."""
    rows = []
    for method in ("zero-shot", "CoOp", "CoOp + TCPT", "CoOp + TCPT minus CoOp"):
        for metric in ("accuracy", "ece", "ace", "mce", "weighted_mce"):
            for split in ("base", "novel"):
                value = 0.5 + changes.get(f"{method}_{metric}", 0.0)
                rows.append(Row("toys", split, method, metric, value, 0.4, 0.6))
    return Results(
        {"data": ["toys"], "seeds": 2, "bins": 10, "resamples": 50},
        {"toys": {split: {"images": 9, "classes": 3} for split in ("base", "novel")}},
        tuple(rows),
        {"weights": "a", "torch": "2"},
    )


def test_differing_numbers_are_listed() -> None:
    assert check_results(toys(CoOp_ece=0.0004), toys(), "old.json") == 120
    with pytest.raises(CalpromptError) as raised:
        check_results(toys(CoOp_ece=0.0006), replace(toys(), about={"weights": "b", "torch": "2"}), "old.json")
    assert str(raised.value).splitlines() == [
        "2 of 120 numbers differ from old.json by more than 0.05 percentage points (weights a instead of b):",
        "  toys, base, CoOp, ece: 50.06, expected 50.00",
        "  toys, novel, CoOp, ece: 50.06, expected 50.00",
    ]
    assert check_results(toys(CoOp_ece=0.0006), toys(), "old.json", tolerance=0.1) == 120
    first, *others = toys().rows
    for end in ("low", "high"):
        moved = replace(toys(), rows=(replace(first, **{end: 0.51}), *others))
        with pytest.raises(CalpromptError, match=rf"zero-shot, accuracy \({end} end of the interval\): 51.00"):
            check_results(moved, toys(), "old.json")
    with pytest.raises(CalpromptError, match=r"old.json has other settings: seeds 2, not 3"):
        check_results(replace(toys(), settings={**toys().settings, "seeds": 3}), toys(), "old.json")
    with pytest.raises(CalpromptError, match=r"toys, novel, CoOp \+ TCPT minus CoOp, weighted_mce: missing"):
        check_results(replace(toys(), rows=toys().rows[:-1]), toys(), "old.json")
    with pytest.raises(CalpromptError, match="weighted_mce: not expected"):
        check_results(toys(), replace(toys(), rows=toys().rows[:-1]), "old.json")


def test_the_table_marks_what_excludes_zero_and_fits_a_narrow_terminal() -> None:
    text = printed(toys())
    lines = [line.split() for line in text.splitlines()]
    assert ["CoOp", "50.00", *["[40.00,", "60.00]", "50.00"] * 3, "[40.00,", "60.00]"] in lines
    assert text.count("+50.00* [+40.00, +60.00]") == 8
    narrow = printed(toys(), width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert (narrow.count("+50.00*"), narrow.count("[+40.00, +60.00]")) == (8, 8)


def test_the_command_checks_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tiny = settings(tmp_path)
    own = {"backbone": tiny.backbone, "recipe": tiny.recipe, "resamples": tiny.resamples}
    monkeypatch.setattr("calprompt.cli.demo.settings_of", lambda *given: {**own, **settings_of(*given)})
    data, out = samples.feature_file(), tmp_path / "out"
    command = ["demo", "--quiet", "--out", str(out), "--data", str(data), "--seeds", "1", "--epochs", "1"]
    assert main(command) == 0
    told = capsys.readouterr()
    assert told.err == ""
    names = ("table.csv", "table.json", "reliability-toys.png", "report.html")
    page = f"open {out / 'report.html'} in a browser to see all of it"
    assert told.out.splitlines()[-5:] == [*(str(out / name) for name in names), page]

    committed = tmp_path / "committed.json"
    committed.write_bytes((out / "table.json").read_bytes())
    assert main([*command, "--check", str(committed)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("116 numbers equal those of ")

    held = json.loads(committed.read_text())
    held["rows"][0]["value"] += 0.01
    committed.write_text(json.dumps(held))
    assert main([*command, "--check", str(committed)]) == 2
    told = capsys.readouterr()
    assert "1 of 116 numbers differ from" in told.err
    assert "toys, base, zero-shot, accuracy: " in told.err

    assert main([*command[:-1], "2", "--check", str(committed)]) == 2
    told = capsys.readouterr()
    assert (told.out, "has other settings: epochs 1, not 2" in told.err) == ("", True)
    assert main([*command, "--check", str(samples.backbone() / "open_clip_config.json")]) == 2
    assert "is not a table of results" in capsys.readouterr().err


def test_invalid_settings_are_reported_before_anything_runs(tmp_path: Path) -> None:
    for wrong, message in (
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"data": ()}, "data must be one or more different datasets, got none"),
        ({"data": ("a", "a")}, "data must be one or more different datasets, got a, a"),
    ):
        with pytest.raises(CalpromptError, match=message):
            DemoSettings(**wrong)  # type: ignore[arg-type]
    other = tmp_path / "photos"
    other.symlink_to(samples.pictures())
    with pytest.raises(CalpromptError, match="are both called photos; rename one"):
        run_demo(settings(tmp_path, data=(str(samples.pictures()), str(other))), tmp_path / "out")
    with pytest.raises(CalpromptError, match="there is no data at nowhere"):
        run_demo(settings(tmp_path, data=(str(samples.pictures()), "nowhere")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_page_shows_the_committed_numbers() -> None:
    table = [line.rstrip() for line in printed(Results.read(DOCS / "demo.json")).splitlines()]
    page = [line.rstrip() for line in (DOCS / "demo.md").read_text(encoding="utf-8").splitlines()]
    assert "\n".join(table).strip() in "\n".join(page)


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "demo.md").read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(block, {})
    assert (tmp_path / "reliability.png").is_file()
