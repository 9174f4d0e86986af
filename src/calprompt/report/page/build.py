"""A report from results: measure, compare, look closely, and put it all into one document."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import calprompt
from calprompt.progress import Progress, silent
from calprompt.report.page.close_up import MOST, class_table, confusion_table, find_mistakes, subjects, threshold_table
from calprompt.report.page.comparisons import average_table, dataset_table
from calprompt.report.page.document import Report, ReportSettings, RunIdentity
from calprompt.report.page.drawings import draw_figures
from calprompt.report.page.headline import headline
from calprompt.report.page.listings import MOST_ROWS, results_table, run_table, train_command, unfinished_rows
from calprompt.report.page.measured import Measurements, measure
from calprompt.report.page.sure import sure_shares, sure_table
from calprompt.report.table import Table
from calprompt.results.collecting import row_record
from calprompt.results.methods import NONE
from calprompt.results.sources import ReportSource
from calprompt.results.table import CLASSES_FILE
from calprompt.runs.folder import Run
from calprompt.text import plural, shorten, visible

UNNAMED = str(None)


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
        source: As `calprompt.results.sources.read_source` reads it.
        settings: What the report contains; the defaults, unless given.
        near: Folder that the report goes to; places of runs are remembered as seen from there.
        unfinished: Title, status and reason of what has no result; those of the source, unless given.
        progress: Shows how far it is.

    Raises:
        DamagedFileError: if stored logits are not what was written.
    """
    settings = settings or ReportSettings()
    lacking = unfinished_rows(source.unfinished) if unfinished is None else tuple(unfinished)
    measured = measure(source, _identities(source, near), settings, progress)
    shares = sure_shares(measured, settings)
    datasets = dataset_table(measured, settings, progress)
    sentences, remarks = headline(measured, shares, datasets, settings)
    looked_at = subjects(measured)
    resources = None
    if looked_at and not settings.no_images:
        from calprompt.runs.resources import Resources

        resources = Resources()
    mistakes, notes = find_mistakes(looked_at, settings, resources)
    tables = (
        sure_table(shares),
        average_table(measured),
        datasets,
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
        settings=settings.record(),
        sources=tuple(_place(place, near) for place in source.places if _is_table(place)),
        calibrators=tuple(dict.fromkeys(method.calibrator for method in measured.methods)),
        runs=tuple(measured.runs),
        unfinished=lacking,
        tables=tuple(table for table in tables if table is not None and _has_rows(table)),
        figures=tuple(figures),
        mistakes=tuple(mistakes),
        notes=(*notes, *problems, *_notes(measured)),
        version=calprompt.__version__,
        drawn_by=f"matplotlib {version('matplotlib')}" if figures else "",
    )


def _has_rows(table: Table) -> bool:
    return bool(table.rows)


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


def _is_table(place: str) -> bool:
    return Path(place).expanduser().is_file() and Path(place).suffix not in (".yaml", ".yml")


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
        place for result in measured.results for place in result.runs if measured.runs[place].fingerprint != UNNAMED
    }
    nameless = {  # rows of tables that do not say of which run they are
        (each.method.tuner, each.method.loss, each.method.settings, each.dataset, each.seed)
        for each in tuned
        if not runs.issuperset(each.runs)
    }
    count = len(runs) + len(nameless)
    here = len(measured.stored)
    origin = f"the logits of {here} of them are here, the other numbers are from a table of results"
    if here == count:
        origin = "all numbers were computed from stored logits"
    elif not here:
        origin = "all numbers are from a table of results"
    data = plural(len(measured.datasets), "dataset")
    lines = [f"{plural(count, 'run')} on {data}, {plural(len(seeds), 'seed')}; {origin}."]
    single = _single_seeds(measured)
    if single:
        who = single[0] if len(single) == 1 else plural(len(single), "method")
        lines.append(f"A single seed on some dataset: {who}. Nothing says how much another seed would differ.")
    if unfinished:
        states = _counted(status for _, status, _ in unfinished)
        lines.append(
            f"{plural(len(unfinished), 'planned run')} without a result ({states}); they are listed under Runs."
        )
    notes = sorted({str(result.row["note"]) for result in tuned if result.row.get("note")})
    lines += [f"Some runs were {note}; they are marked under Runs." for note in notes]
    return lines


def _single_seeds(measured: Measurements) -> list[str]:
    """Names of methods that have one seed on some dataset."""
    seeds: dict[tuple[Any, str], set[Any]] = {}
    for result in measured.results:
        if not result.method.is_zero_shot:
            seeds.setdefault((result.method, result.dataset), set()).add(result.seed)
    return list(dict.fromkeys(method.name for (method, _), found in seeds.items() if len(found) == 1))


def _counted(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(f"{every.count(word)} {word}" for word in dict.fromkeys(every))


def _notes(measured: Measurements) -> list[str]:
    notes = []
    if not measured.stored:
        notes.append(
            "Figures, thresholds, classes and mistakes need stored logits; this report is of a table of results alone."
        )
    elif len(measured.datasets) > MOST:
        notes.append(f"Classes, thresholds and mistakes are those of the first {MOST} datasets.")
    if len(measured.results) > MOST_ROWS:
        notes.append(
            f"There are {len(measured.results):,} results; a page shows {MOST_ROWS:,} at most. 'calprompt results' has "
            "all of them, and --filter chooses some."
        )
    return notes
