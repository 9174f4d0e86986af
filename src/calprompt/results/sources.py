"""What a table, figure or page is made of: run folders, folders of runs, tables of results, and sweeps that choose.

    runs/coop-photos-…            a run                         rows and stored logits
    runs/pocket-main              a folder of runs              rows, stored logits, and what is missing
    results.csv[.xz], .parquet    a table of results            rows
    paper/pocket-main, grid.yaml  a sweep                       chooses its runs from all of the others

Several places are one source: the same run may be in more than one of them, if its numbers are the same. A run whose
folder is here counts as it is there, whatever a table says of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from calprompt.errors import NotFoundError, SettingError
from calprompt.evaluation.models import StoredRun
from calprompt.papers import papers
from calprompt.progress import Progress, silent
from calprompt.registry import unknown
from calprompt.results.collecting import results, rows_by_run, run_results, setting_columns
from calprompt.results.methods import Method, methods_of
from calprompt.results.table import MACHINE, Table, merge_tables, read_table
from calprompt.runs.folder import RECORD, Run, load_run
from calprompt.sweep.expansion import record_key
from calprompt.sweep.sweep_file import Sweep, available, read_sweep
from calprompt.sweep.sweep_plan import FINISHED, MISSING, read_journals, run_folders
from calprompt.text import plural

SWEEPS = (".yaml", ".yml")
TABLES = (".csv", ".xz", ".parquet")
KINDS = (
    "a run folder, a folder of runs, a table of results (.csv, .csv.xz, .parquet) or a sweep (a .yaml file, or a name "
    "such as paper/pocket-main)"
)


class Unfinished(NamedTuple):
    """A planned run, or an evaluation of it on other data, that has no result."""

    title: str  # what it is, in a line
    status: str  # failed, damaged, missing, running or interrupted
    reason: str  # why, as far as that is known


@dataclass(frozen=True)
class ReportSource:
    """Results, and where they are from.

    Attributes:
        title: Names of the places, in a line.
        table: All rows; a run without results has a row with its status, without `model` and metrics.
        folders: Folders of those runs that are finished and here, in the order of the places.
        sweeps: Sweeps that chose the runs; if empty, all runs of the places count.
        places: The places as given.
    """

    title: str
    table: Table
    folders: tuple[Path, ...] = ()
    sweeps: tuple[Sweep, ...] = ()
    places: tuple[str, ...] = ()

    @cached_property
    def measured(self) -> Table:
        """The rows with results: one per run, model, calibrator and split."""
        return self.table.chosen(row for row in self.table.rows if row.get("model") is not None)

    @cached_property
    def _methods(self) -> dict[int, Method]:
        rows = [row for row in self.table.rows if row.get("tuner") is not None]
        return dict(zip(map(id, rows), methods_of(rows), strict=True))

    def method(self, row: Mapping[str, Any]) -> Method:
        """The method of a row of the table; its name tells it from all others of the source."""
        return self._methods[id(row)]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The finished runs whose folders are here, read when they are asked for; `stored_models` has their logits."""
        return tuple(map(load_run, self.folders))

    @cached_property
    def run_of(self) -> dict[str, Run]:
        """The runs by the name that they have in the column `run` of the table."""
        return {run.folder.name: run for run in self.runs}

    @cached_property
    def _stored(self) -> dict[Path, StoredRun]:
        return {}

    def stored(self, run: Run) -> StoredRun:
        """The stored logits of one of the runs, which are read once."""
        return self._stored.setdefault(run.folder, StoredRun(run))

    @cached_property
    def unfinished(self) -> tuple[Unfinished, ...]:
        """Everything planned that has no result."""
        rows = (row for row in self.table.rows if row.get("model") is None and row.get("status") != FINISHED)
        return tuple(
            Unfinished(_title(row), str(row["status"]), str(row.get("reason") or "it was not run")) for row in rows
        )

    def filter(self, **wanted: str) -> ReportSource:
        """The same source with the rows that have some values, as `Table.filter` finds them."""
        table = self.table.filter(**wanted)
        if not table.rows:
            shown = ", ".join(f"{name}={value}" for name, value in wanted.items())
            raise NotFoundError(f"{self.title} has no row with {shown}")
        names = {row.get("run") for row in table.rows}
        return replace(self, table=table, folders=tuple(each for each in self.folders if each.name in names))


def read_source(
    *places: str | Path,
    out: str | Path | None = None,
    usual: Sequence[str] = (),
    calibrators: Sequence[str] | None = None,
    progress: Progress = silent,
) -> ReportSource:
    """Read results from wherever they are.

    Args:
        *places: Run folders, folders of runs, tables of results, and sweeps, in any order. With a sweep, only its runs
            count, and those of its runs that are nowhere are rows with the status missing.
        out: Folder of runs, as `calprompt sweep --out` has it; one more place.
        usual: Names of sweeps. If no place is a sweep, the one of these chooses that the places have most runs of; and
            none, if they have no run of any.
        calibrators: Calibrators to apply to stored logits; by default, those of the sweeps.
        progress: Progress callback.

    Returns:
        The rows of all places, the runs whose folders are here, and what is missing.

    Raises:
        CalpromptError: if a place is not there or is nothing of these, or two places disagree about a run.

    >>> source = read_source("experiments/pocket.csv.xz", "paper/pocket-moments")
    >>> source.title, len(source.sweeps[0].cells), len(source.unfinished), source.runs
    ('pocket.csv.xz, pocket-moments', 18, 0, ())
    """
    given = [str(place) for place in (*places, *([] if out is None else [out]))]
    if not given:
        raise SettingError(f"a report needs at least one place with results: {KINDS}")
    kinds = {place: _kind(place) for place in given}
    sweeps = tuple(read_sweep(place) for place, kind in kinds.items() if kind == "sweep")
    if len(sweeps) == len(kinds):
        raise SettingError(
            f"{given[0]} is a sweep, which has no results of its own; give the folder of its runs too, or a table of "
            "results"
        )
    candidates = () if sweeps else tuple(map(read_sweep, usual))
    found: list[tuple[str, Table]] = []
    folders: list[Path] = []
    for place, kind in kinds.items():
        path = Path(place).expanduser()
        if kind == "table":
            found.append((kind, read_table(path)))
        elif kind == "run":
            specs = _calibrators(path.parent, (*sweeps, *candidates), calibrators)
            found.append((kind, run_results(path, calibrators=specs)))
            folders.append(path)
        elif kind == "folder":
            specs = _calibrators(path, (*sweeps, *candidates), calibrators)
            found.append((kind, results(path, calibrators=specs, progress=progress)))
            folders += [each.run.folder for each in run_folders(path) if each.status == FINISHED]
    # runs whose folders are here are measured on their own logits, by this machine, whatever tables say of them
    measured = (row for kind, table in found if kind != "table" for row in table.rows if row.get("model") is not None)
    here = {row.get("fingerprint") for row in measured}
    tables = [
        table.chosen(row for row in table.rows if row.get("fingerprint") not in here)
        if kind == "table" and here
        else table
        for kind, table in found
    ]
    grouped = [(rows_by_run(table, _key), table) for table in tables] if sweeps or candidates else []
    if candidates:  # the one that most runs are there of; none, if there are none of any
        there = {key for runs, _ in grouped for key in runs}
        counts = [len({_key(cell.record) for cell in sweep.cells} & there) for sweep in candidates]
        sweeps = (candidates[counts.index(max(counts))],) if max(counts) else ()
    if sweeps:
        cells = {_key(cell.record): cell for sweep in sweeps for cell in sweep.cells}
        tables = [table.chosen(row for key in cells for row in runs.get(key, ())) for runs, table in grouped]
        folders = [folder for folder in folders if _key(load_run(folder).record["config"]) in cells]
    table = merge_tables(tables) if len(tables) > 1 else tables[0].sorted()
    if sweeps:
        table = _completed(table, sweeps)
    named = {row.get("run") for row in table.rows if row.get("model") is not None}
    folders = list({folder.resolve(): folder for folder in folders}.values())
    shown = ", ".join(Path(place).name.removesuffix(".yaml") or place for place in given)
    kept = tuple(folder for folder in folders if folder.name in named)
    return ReportSource(shown, table, kept, sweeps, tuple(given))


def _kind(place: str) -> str:
    """run, folder, table or sweep."""
    path = Path(place).expanduser()
    if place in available() or path.suffix in SWEEPS:
        return "sweep"
    if path.suffix in TABLES and not path.is_dir():
        return "table"
    if (path / RECORD).is_file():
        return "run"
    if path.is_dir():
        if any(path.glob(f"*/{RECORD}")) or read_journals(path):
            return "folder"
        inner = sorted({found.parent.parent for found in path.glob(f"*/*/{RECORD}")})
        hint = f"; there are some in {', '.join(map(str, inner[:3]))}" if inner else ""
        raise NotFoundError(f"there are no runs in {path}{hint}")
    if path.parts[0] in papers() and not path.parent.is_dir():
        raise unknown("sweep", place, available())
    if path.exists():
        raise SettingError(f"{place} is not {KINDS}")
    raise NotFoundError(f"there is nothing at {place}; expected {KINDS}")


def _calibrators(out: Path, sweeps: Sequence[Sweep], given: Sequence[str] | None) -> list[str]:
    """What to measure runs of a folder with: what was asked for, or what the sweeps have, there and here."""
    if given is not None:
        return list(given)
    found = [spec for journal in read_journals(out) for spec in journal.calibrators]
    return list(dict.fromkeys([*found, *(spec for sweep in sweeps for spec in sweep.calibrators)]))


def _key(record: Mapping[str, Any]) -> str:
    """What a run is found by: all settings but where its images lie and where it was computed."""
    return record_key({**record, **MACHINE})


def _completed(table: Table, sweeps: Sequence[Sweep]) -> Table:
    """The rows in the order of the sweeps; a run that has none gets one that says so."""
    runs = rows_by_run(table, _key)
    cells = {_key(cell.record): cell for sweep in sweeps for cell in sweep.cells}
    rows: list[Mapping[str, Any]] = []
    wanted = {None, *(str(target.name) for sweep in sweeps for target in sweep.transfer)}
    for key, cell in cells.items():
        known = [row for row in runs.get(key, ()) if row.get("model") is not None or row.get("split") in wanted]
        rows += _identified(known) or [{"status": MISSING, **setting_columns(cell.record)}]
    if not any(row.get("model") is not None for row in rows):
        names = ", ".join(sweep.name for sweep in sweeps)
        raise NotFoundError(f"{table.source} has no result of the {plural(len(cells), 'run')} of {names}")
    return Table(tuple(rows), table.source, table.decimals)


def _identified(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of one run; those of a table that does not say which run give way to those of one that does."""
    places = [tuple(row.get(name) for name in ("model", "calibrator", "split")) for row in rows]
    known = {place for place, row in zip(places, rows, strict=True) if row.get("fingerprint")}
    return [row for place, row in zip(places, rows, strict=True) if row.get("fingerprint") or place not in known]


def _title(row: Mapping[str, Any]) -> str:
    """What a row is of: tuner, loss, data, shots and seed; or the name of the folder, if nothing else is known."""
    words = [str(row[name]) for name in ("tuner", "loss") if row.get(name) is not None]
    words += [str(row.get("dataset") or row["data"])] if row.get("dataset") or row.get("data") else []
    words += [plural(row["shots"], "shot")] if row.get("shots") is not None else []
    words += [f"seed {row['seed']}"] if row.get("seed") is not None else []
    words += [f"on {row['split']}"] if row.get("split") else []
    return ", ".join(words) or str(row.get("run"))
