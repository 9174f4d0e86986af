"""From a folder of runs to one table: what every run reached, and which runs of the folder's sweeps are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, NotFoundError
from calprompt.evaluation.settings import NONE, TUNED, create_calibrator, normalized_spec
from calprompt.files import canonical_json
from calprompt.progress import Progress, silent
from calprompt.results.table import CLASSES_FILE, COLUMN, MODELS, SPREADS, VERSIONS, Table
from calprompt.runs.config import LATER_SETTINGS, RUN_SETTINGS, TRAINING_SETTINGS, RunConfig
from calprompt.runs.folder import load_run
from calprompt.sweep.expansion import record_key
from calprompt.sweep.sweep_plan import (
    DAMAGED,
    FAILED,
    FINISHED,
    MISSING,
    Found,
    Journal,
    measure_run,
    read_folder,
    read_journals,
    run_folders,
    total_seconds,
)
from calprompt.text import slug

DATA = {"options": "{}", "imports": "[]"}  # settings that stand in a table as JSON, and what an empty cell stands for
FLAGS = tuple(field.name for field in fields(RunConfig) if field.type in ("bool", bool))


def results(out: str | Path, *, calibrators: Sequence[str] | None = None, progress: Progress = silent) -> Table:
    """The table of all runs in a folder.

    A run that is not finished has one row, with its status and the reason; so has a run that a sweep of the folder
    misses. Metrics are empty there.

    Args:
        out: Folder of runs.
        calibrators: Calibrators to measure with; by default, those of the folder's sweeps.
        progress: Progress callback.

    Returns:
        A row per run, model, calibrator and split.

    Raises:
        NotFoundError: if there is no such folder.
    """
    out = Path(out).expanduser()
    if not out.is_dir():
        raise NotFoundError(f"there is no folder of runs at {out}")
    journals = read_journals(out)
    for spec in calibrators or ():
        create_calibrator(normalized_spec(spec))
    wanted = [spec for journal in journals for spec in journal.calibrators] if calibrators is None else calibrators
    specs = list(dict.fromkeys((NONE, *map(normalized_spec, wanted))))
    transfers: dict[str, list[str]] = {}
    for journal in journals:
        for key in journal.cells:
            transfers[key] = list(dict.fromkeys((*transfers.get(key, []), *journal.transfer)))
    rows: list[dict[str, Any]] = []
    there: set[str] = set()
    folders = list(run_folders(out))
    if not folders and not journals:
        raise NotFoundError(f"{out} has no runs in it, and no sweep was begun there; expected a folder of runs")
    for number, found in enumerate(folders):
        progress("reading runs", number, len(folders), found.run.folder.name)
        key = record_key(found.run.record["config"]) if found.status != DAMAGED else ""
        there.add(key)
        rows += _run_rows(found, specs, transfers.get(key, []))
    progress("reading runs", len(folders), len(folders), "")
    return Table((*rows, *_missing_rows(journals, there)), str(out)).sorted()


def run_results(folder: str | Path, *, calibrators: Sequence[str] = ()) -> Table:
    """The table of one run."""
    specs = list(dict.fromkeys((NONE, *map(normalized_spec, calibrators))))
    return Table(tuple(_run_rows(read_folder(Path(folder).expanduser()), specs, [])), str(folder)).sorted()


def _run_rows(found: Found, specs: Sequence[str], transfers: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Rows of a run folder, whatever became of it."""
    record = found.run.record
    if found.status == DAMAGED:
        yield {"run": found.run.folder.name, "status": DAMAGED, "reason": found.reason}
        return
    common = {
        "run": found.run.folder.name,
        "fingerprint": record["fingerprint"],
        "status": found.status,
        "reason": found.reason,
        "note": found.run.note,
        "dataset": record["data"]["name"],
        **setting_columns(record["config"]),
        **{f"version_{name}": record.get("versions", {}).get(name) for name in VERSIONS},
        "processor": record.get("hardware", {}).get("processor"),
    }
    if found.status != FINISHED:
        yield common
        return
    common |= {
        "seconds_train": record.get("timings", {}).get("train"),
        "seconds_total": total_seconds(record),
        "peak_memory": record.get("peak_memory"),
        **_training_columns(record.get("training", {})),
    }
    try:
        run = load_run(found.run.folder)
        measured = measure_run(run, specs)
    except CalpromptError as error:
        yield common | {"status": DAMAGED, "reason": str(error)}
        return
    for row in _measured_rows(measured, specs):  # an anchored run has tuned with a scale of its own
        source = (row["model"] == TUNED and record.get("anchor")) or record["backbone"]
        scale = source.get("logit_scale")
        yield {**common, "logit_scale": None if scale is None else float(scale), **row}
    evaluated = {slug(transfer.name) for transfer in run.transfers}
    for name in transfers:
        if slug(name) not in evaluated:
            yield common | {"status": MISSING, "split": name}


def _training_columns(training: Mapping[str, Any]) -> dict[str, Any]:
    """What training took: seconds of a step and of an epoch, and memory at most."""
    columns = {
        "cpu_seconds_train": training.get("cpu_seconds"),
        "peak_memory_train": training.get("peak_memory"),
        "peak_device_memory": training.get("peak_device_memory"),
    }
    for name, column in SPREADS.items():
        seconds = training.get(name, {})
        columns[column] = seconds.get("median")
        columns |= {f"{column}_{share}": seconds.get(share) for share in ("q10", "q90")}
    return columns


def _measured_rows(measured: Mapping[str, Any], specs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One row per model, calibrator and split, of numbers or of the reason why there are none."""
    run = measured["runs"][0]
    numbers: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in measured["rows"]:
        numbers.setdefault((row["model"], row["calibrator"], row["split"]), {})[row["metric"]] = row["value"]
    for entry in run["calibrators"]:
        model, calibrator = entry["model"], entry["calibrator"]
        if model not in MODELS or calibrator not in specs:
            continue
        for split in dict.fromkeys((*run["splits"], *entry["not_applicable"])):
            values = numbers.get((model, calibrator, split), {})
            kept = {name: value for name, value in values.items() if name not in _ON_DEMAND}
            yield {
                "model": model,
                "calibrator": calibrator,
                "split": split,
                "reason": entry["not_applicable"].get(split),
                **run["splits"].get(split, {}),
                **kept,
            }


_ON_DEMAND = (  # which depend on what was asked for
    *("threshold", "coverage_at_threshold", "error_at_threshold"),
    *("ece_debiased", "ace_debiased", "ece_p_value", "ace_p_value"),
)


def _missing_rows(journals: Sequence[Journal], there: set[str]) -> Iterator[dict[str, Any]]:
    """One row for every cell of the folder's sweeps that has no run folder."""
    seen = set(there)
    for journal in journals:
        for key, config in journal.cells.items():
            if key not in seen:
                seen.add(key)
                reason = journal.failures.get(key)
                yield {"status": FAILED if reason else MISSING, "reason": reason, **setting_columns(config)}


def setting_columns(config: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run as columns; what is no number or text is JSON."""
    flat = {
        **LATER_SETTINGS,
        **{name: value for name, value in config.items() if name != "training"},
        **config["training"],
    }
    flat[CLASSES_FILE] = flat.pop("classes", None)
    return {
        name: canonical_json(value).decode() if isinstance(value, dict | list | bool) else value
        for name, value in flat.items()
    }


def rows_by_run(
    table: Table, key: Callable[[Mapping[str, Any]], str] = record_key
) -> dict[str, list[Mapping[str, Any]]]:
    """All rows of a table that have settings, by the key of their run, which is that of its cell in a sweep."""
    keys: dict[tuple[Any, ...], str] = {}
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in table.rows:
        settings = tuple(row.get(name) for name in COLUMN.values())
        if not row.get("backbone"):
            continue
        if settings not in keys:
            keys[settings] = key(row_record(row))
        runs.setdefault(keys[settings], []).append(row)
    return runs


def row_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row as the record of a run has them; what `setting_columns` made of them, undone."""
    flat = {name: row.get(column) for name, column in COLUMN.items()}
    flat |= {name: json.loads(flat[name] or empty) for name, empty in DATA.items()}
    flat |= {name: flat[name] == "true" for name in FLAGS}
    return {**{name: flat[name] for name in RUN_SETTINGS}, "training": {name: flat[name] for name in TRAINING_SETTINGS}}
