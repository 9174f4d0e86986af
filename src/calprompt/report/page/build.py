"""A report from results: measure, compare, look closely, and put it all into one document."""

from __future__ import annotations

import ast
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import calprompt
from calprompt.evaluation.settings import NONE
from calprompt.progress import Progress, silent
from calprompt.report.page.close_up import (
    MAX_DATASETS,
    class_table,
    confusion_table,
    find_mistakes,
    subjects,
    threshold_table,
)
from calprompt.report.page.comparisons import average_table, compare_datasets, dataset_table, sure_shares, sure_table
from calprompt.report.page.document import Report, ReportSettings, RunIdentity
from calprompt.report.page.drawings import draw_figures
from calprompt.report.page.headline import headline
from calprompt.report.page.measured import Measurements, Result, measure, metric_columns
from calprompt.report.table import COUNT, PLAIN, Cell, Column, Number, Row, Table
from calprompt.results.collecting import row_record
from calprompt.results.methods import Method
from calprompt.results.sources import ReportSource
from calprompt.results.table import CLASSES_FILE
from calprompt.runs.config import RunConfig
from calprompt.runs.folder import Run
from calprompt.text import plural, shorten, visible
from calprompt.training_config import TrainingConfig

NO_FINGERPRINT = str(None)


def build_report(
    source: ReportSource,
    settings: ReportSettings | None = None,
    *,
    near: str | Path | None = None,
    unfinished: Sequence[tuple[str, str, str]] | None = None,
    progress: Progress = silent,
) -> Report:
    """A report on results.

    Args:
        source: Results from `calprompt.results.sources.read_source`.
        settings: Contents of the report.
        near: Folder that the report goes to; places of runs are remembered as seen from there.
        unfinished: Title, status and reason of what has no result; those of the source, unless given.
        progress: Progress callback.

    Raises:
        DamagedFileError: if stored logits are not what was written.
    """
    settings = settings or ReportSettings()
    lacking = source.unfinished if unfinished is None else tuple(unfinished)
    measured = measure(source, _identities(source, near), settings, progress)
    shares = sure_shares(measured, settings)
    levels = compare_datasets(measured, settings, progress)
    sentences, remarks = headline(measured, shares, levels, settings)
    looked_at = subjects(measured)
    resources = None
    if looked_at and not settings.no_images:
        from calprompt.runs.resources import Resources

        resources = Resources()
    mistakes, notes = find_mistakes(looked_at, settings, resources)
    tables = (
        sure_table(shares),
        average_table(measured),
        dataset_table(measured, levels),
        threshold_table(subjects(measured, plain=True), settings),
        class_table(looked_at),
        confusion_table(looked_at),
        results_table(measured, settings),
        run_table(measured, lacking),
    )
    figures, problems = ((), []) if settings.no_figures else draw_figures(source, measured, settings, progress)
    return Report(
        title=visible(settings.title or _title(measured)),
        headline=tuple(sentences),
        remarks=(*remarks, *_remarks(measured, lacking)),
        settings=asdict(settings),
        sources=tuple(
            _place(place, near)
            for place in source.places
            if Path(place).expanduser().is_file() and Path(place).suffix not in (".yaml", ".yml")
        ),
        calibrators=tuple(dict.fromkeys(method.calibrator for method in measured.methods)),
        runs=tuple(measured.runs),
        unfinished=lacking,
        tables=tuple(table for table in tables if table is not None and table.rows),
        figures=tuple(figures),
        mistakes=tuple(mistakes),
        notes=(*notes, *problems, *_notes(measured)),
        version=calprompt.__version__,
        drawn_by=f"matplotlib {version('matplotlib')}" if figures else "",
    )


def _identities(source: ReportSource, near: str | Path | None) -> list[RunIdentity]:
    """Every run of the source once, in the order of its rows."""
    found: dict[tuple[str, str], RunIdentity] = {}
    for row in source.measured.sorted().rows:
        key = str(row.get("run")), str(row.get("fingerprint"))
        if key not in found:
            found[key] = _identity(row, source.run_of.get(key[0]), near)
    return list(found.values())


def _identity(row: Mapping[str, Any], run: Run | None, near: str | Path | None) -> RunIdentity:
    name, fingerprint = str(row.get("run")), str(row.get("fingerprint"))
    if run is not None:
        command = train_command(run.record["config"])
        return RunIdentity(name, fingerprint, run.title, _place(run.folder, near), run.logits_digests, command)
    words = [f"{row.get('tuner')} ({row.get('loss')})", row.get("dataset")]
    words += [plural(int(row["shots"]), "shot")] if row.get("shots") is not None else []
    title = ", ".join(str(word) for word in (*words, f"seed {row.get('seed')}"))
    complete = row.get("backbone") is not None and row.get(CLASSES_FILE) is None
    return RunIdentity(name, fingerprint, title, command=train_command(row_record(row)) if complete else "")


def _place(path: str | Path, near: str | Path | None) -> str:
    """A path as seen from the report's folder, if it is in or beside it; else the whole path."""
    path = Path(path).expanduser().resolve()
    if near is None:
        return str(path)
    near = Path(near).expanduser().resolve()
    inside = path.is_relative_to(near) or path.is_relative_to(near.parent)
    return Path(os.path.relpath(path, near)).as_posix() if inside else str(path)


def _title(measured: Measurements) -> str:
    """What was run, in a line."""
    if len(measured.runs) == 1:
        return measured.runs[0].title
    tuned = (each.short_name for each in measured.methods if not each.is_zero_shot and each.calibrator == NONE)
    return f"{shorten(dict.fromkeys(tuned), 3)} on {shorten(measured.datasets, 3)}"


def _remarks(measured: Measurements, unfinished: Sequence[tuple[str, str, str]]) -> list[str]:
    """What has to be known to read the page."""
    tuned = [result for result in measured.results if not result.method.is_zero_shot]
    seeds = {result.seed for result in tuned}
    runs = {
        place
        for result in measured.results
        for place in result.runs
        if measured.runs[place].fingerprint != NO_FINGERPRINT
    }
    nameless = {  # rows of tables that do not say of which run they are
        (each.method.tuner, each.method.loss, each.method.settings, each.dataset, each.seed)
        for each in tuned
        if not runs.issuperset(each.runs)
    }
    count = len(runs) + len(nameless)
    here = len(measured.stored)
    origin = f"{here} of them have their logits here, the other numbers are from a table of results"
    if here == count:
        origin = "all numbers were computed from stored logits"
    elif not here:
        origin = "all numbers are from a table of results"
    data = plural(len(measured.datasets), "dataset")
    lines = [f"{plural(count, 'run')} on {data}, {plural(len(seeds), 'seed')}; {origin}."]
    of_method: dict[tuple[Method, str], set[Any]] = {}
    for result in tuned:
        of_method.setdefault((result.method, result.dataset), set()).add(result.seed)
    single = list(dict.fromkeys(method.name for (method, _), each in of_method.items() if len(each) == 1))
    if single:
        who = single[0] if len(single) == 1 else plural(len(single), "method")
        lines.append(f"Only one seed on at least one dataset: {who}. How much another seed would differ is not known.")
    if unfinished:
        counts = Counter(status for _, status, _ in unfinished)
        states = ", ".join(f"{number} {status}" for status, number in counts.items())
        lines.append(
            f"{plural(len(unfinished), 'planned run')} without a result ({states}); they are listed under Runs."
        )
    notes = sorted({str(result.row["note"]) for result in tuned if result.row.get("note")})
    lines += [f"Some runs were {note}; they are marked under Runs." for note in notes]
    return lines


def _notes(measured: Measurements) -> list[str]:
    notes = []
    if not measured.stored:
        notes.append(
            "Figures, thresholds, classes and mistakes need stored logits; this report is of a table of results."
        )
    elif len(measured.datasets) > MAX_DATASETS:
        notes.append(f"Classes, thresholds and mistakes are those of the first {MAX_DATASETS} datasets.")
    if len(measured.results) > MAX_ROWS:
        notes.append(
            f"There are {len(measured.results):,} results; a page shows at most {MAX_ROWS:,}. 'calprompt results' "
            "prints them all, and --filter selects some."
        )
    return notes


MAX_ROWS = 5000  # of results on a page; more are left to `calprompt results`
OPTIONAL = {"shots": "shots", "epochs": "epochs", "anchor": "anchor", "backbone": "backbone"}


def results_table(measured: Measurements, settings: ReportSettings) -> Table | None:
    """A row per run, model, calibrator and split; None if there are too many."""
    if len(measured.results) > MAX_ROWS:
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
        f"Percent, but for NLL; {settings.bins} bins; {interval}. A missing number is shown as –, with the "  # noqa: RUF001
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
        *(Column("run", "run"), Column("status", "status"), Column("note", "note"), Column("identity", "fingerprint")),
        Column("seconds", "training, s", PLAIN, "seconds that training took, on the machine of the run", digits=1),
        Column("memory", "memory, MB", PLAIN, "peak memory", digits=0),
    )
    caption = (
        "Every run with the start of its fingerprint, which names all that its result depends on: settings, weights "
        "and images. What was planned and has no result is listed with the reason."
    )
    return Table("runs", "Runs", caption, columns, tuple(rows), ("status",))


FLAGS = {"imports": "--import", "options": "--set"}
WORDS_FOR_NONE = {"shots": "all", "views": "new"}  # for None


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
        if value == _default(field) or (
            not value and not isinstance(value, int | float) and field.name not in WORDS_FOR_NONE
        ):
            continue
        flag = FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
        if isinstance(value, bool):
            words += [flag]
        elif field.name == "options":
            words += [word for name, each in value.items() for word in (flag, f"{name}={_option(each)}")]
        elif field.name == "imports":
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, WORDS_FOR_NONE[field.name] if value is None else str(value)]
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
