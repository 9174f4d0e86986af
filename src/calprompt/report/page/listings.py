"""Everything in rows: all results, all runs, and what is planned and has no result."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from calprompt.report.page.document import ReportSettings
from calprompt.report.page.measured import Measurements, Result, metric_columns
from calprompt.report.table import COUNT, PLAIN, Cell, Column, Number, Row, Table
from calprompt.results.sources import Unfinished
from calprompt.runs.config import RunConfig
from calprompt.training_config import TrainingConfig

MOST_ROWS = 5000  # of results on a page; more are left to `calprompt results`
OPTIONAL = {"shots": "shots", "epochs": "epochs", "anchor": "anchor", "backbone": "backbone"}


def results_table(measured: Measurements, settings: ReportSettings) -> Table | None:
    """A row per run, model, calibrator and split; None if there are too many."""
    if len(measured.results) > MOST_ROWS:
        return None
    optional = [name for name in OPTIONAL if len({each.row.get(name) for each in measured.results}) > 1]
    rows, shown = [], metric_columns(measured.metrics)
    for result in measured.results:
        cells: list[Cell] = [result.dataset, result.method.name, *(_text(result, name) for name in optional)]
        cells += ["" if result.seed is None else str(result.seed), result.split, Number(result.row.get("images"))]
        rows.append(Row((*cells, *(result.numbers[each.key] for each in shown)), result.runs))
    columns = (
        *(Column("dataset", "dataset"), Column("method", "method")),
        *(Column(name, OPTIONAL[name]) for name in optional),
        *(Column("seed", "seed"), Column("split", "classes")),
        Column("images", "images", COUNT, "test images", minor=True),
        *shown,
    )
    interval = (
        f"below a number is its 95 % interval over test images, from {measured.resamples} resamples"
        if measured.resamples and measured.stored
        else "accuracy has Wilson's 95 % interval over test images below it; for the other numbers, see their means"
    )
    caption = (
        f"Percent, but for NLL; {settings.bins} bins; {interval}. A number that is not there is shown as –, with the "  # noqa: RUF001
        "reason. Chance makes calibration errors of few images larger, and no interval of theirs is known to hold; the "
        "debiased ECE is what very many images would show. The untuned model (zero-shot) is listed once where runs "
        "share it."
    )
    filters = ("dataset", "method", *optional, "seed", "split")
    return Table("results", "All results", caption, columns, tuple(rows), filters, "calprompt evaluate RUN --zero-shot")


def _text(result: Result, name: str) -> str:
    value = result.row.get(name)
    return "" if value is None or result.method.is_zero_shot else str(value)


def run_table(measured: Measurements, unfinished: Sequence[tuple[str, str, str]]) -> Table:
    """A row per run, finished and not."""
    first: dict[int, Mapping[str, Any]] = {}
    for result in measured.results:
        if not result.method.is_zero_shot:
            first.setdefault(result.runs[0], result.row)
    for result in measured.results:
        for place in result.runs:
            first.setdefault(place, result.row)
    rows = []
    for place, run in enumerate(measured.runs):
        row = first.get(place, {})
        memory = row.get("peak_memory_train") or row.get("peak_memory")
        cells: tuple[Cell, ...] = (
            run.title,
            "finished",
            str(row.get("note") or ""),
            run.fingerprint[:12],
            Number(row.get("seconds_train")),
            Number(memory / 1e6 if memory else None),
        )
        rows.append(Row(cells, (place,)))
    empty = Number(None)
    rows += [Row((title, status, reason, "", empty, empty), (), "missing") for title, status, reason in unfinished]
    columns = (
        *(Column("run", "run"), Column("status", "status"), Column("note", "note"), Column("identity", "identity")),
        Column("seconds", "training, s", PLAIN, "seconds that training took, on the machine of the run", digits=1),
        Column("memory", "memory, MB", PLAIN, "peak memory", digits=0),
    )
    caption = (
        "Every run with the start of its fingerprint, which names all that its result depends on: settings, weights "
        "and images. What was planned and has no result is listed with the reason."
    )
    return Table("runs", "Runs", caption, columns, tuple(rows), ("status",))


def unfinished_rows(found: Sequence[Unfinished]) -> tuple[tuple[str, str, str], ...]:
    """Title, status and reason of everything planned that has no result."""
    return tuple((each.title, each.status, str(each.reason or "it was not run")) for each in found)


FLAGS = {"imports": "--import", "options": "--set"}
WORDS = {"shots": "all", "views": "new"}  # for None


def train_command(config: Mapping[str, Any]) -> str:
    """The command line of a run's settings, as its record has them.

    >>> train_command({"backbone": "pocket", "data": "my photos", "shots": None, "training": {"seed": 2}})
    "calprompt train --backbone pocket --data 'my photos' --shots all --seed 2"
    """
    words: list[str] = []
    values = {**config, **config["training"]}
    for field in (*fields(RunConfig), *fields(TrainingConfig)):
        if field.name == "training" or field.name not in values:
            continue
        value = values[field.name]
        if value == _default(field) or (not value and not isinstance(value, int | float) and field.name not in WORDS):
            continue
        flag = FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
        if isinstance(value, bool):
            words += [flag]
        elif field.name == "options":
            words += [word for name, each in value.items() for word in (flag, f"{name}={_option(each)}")]
        elif field.name == "imports":
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, WORDS[field.name] if value is None else str(value)]
    return shlex.join(["calprompt", "train", *words])


def _option(value: Any) -> str:
    """A value that `--set` reads as it is: text without quotes, unless it would be read as something else."""
    if not isinstance(value, str):
        return repr(value)
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value
    return repr(value)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
