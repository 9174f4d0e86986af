"""A metric is one function: once registered, it is in `results`, `table` and `report`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calprompt.cli import main
from calprompt.metrics import Predictions, metrics
from calprompt.report.page.document import read_page
from report import rows as sample_rows


@pytest.fixture
def metric() -> Iterator[str]:
    @metrics.register("error_rate", label="error rate", about="share of wrong predictions, percent")
    def error_rate(sample: Predictions) -> float:
        return float(1 - sample.correct.mean())

    yield "error_rate"
    del metrics._things["error_rate"], metrics._info["error_rate"]


def test_a_new_metric_is_in_results_table_and_report(metric: str, tmp_path: Path, capsys: Any) -> None:
    path = sample_rows.write_rows(tmp_path / "results.csv", "paper/pocket-lambda")
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},{metric}", *(f"{line},0.1234" for line in lines), ""]))
    assert main(["results", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "error" in shown
    assert "12.34" in shown
    assert main(["table", "lambda", str(path), "--metric", metric]) == 0
    shown = capsys.readouterr().out
    assert "error rate" in shown
    assert "12.34" in shown
    out = tmp_path / "report.html"
    assert main(["report", str(path), "--out", str(out), "--no-figures", "--quiet"]) == 0
    table = next(each for each in read_page(out).data["tables"] if each["key"] == "results")
    place = [key for key, _ in table["columns"]].index(metric)
    assert {tuple(row[0][place]) for row in table["rows"]} == {(0.1234,)}
