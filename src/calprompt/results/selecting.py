"""The rows of a table that belong to a sweep, found by their settings; whoever made the runs, and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from calprompt.results.table import CLASSES_FILE, Table
from calprompt.runs.config import RunConfig
from calprompt.runs.recipes import RUN, TRAINING
from calprompt.sweep.expansion import Cell, record_key

DATA = {"options": "{}", "imports": "[]"}  # settings that stand in a table as JSON, and what an empty cell stands for
FLAGS = tuple(field.name for field in fields(RunConfig) if field.type in ("bool", bool))
COLUMNS = tuple(CLASSES_FILE if name == "classes" else name for name in (*RUN, *TRAINING))


def rows_of(table: Table, cells: Iterable[Cell]) -> Table:
    """The rows of the runs of a sweep.

    Args:
        table: Results of any runs.
        cells: Of the sweep, such as `read_sweep(file).cells`.

    Returns:
        The rows whose settings are those of a cell, run by run in the order of the sweep.
    """
    runs = rows_by_run(table)
    rows = (row for cell in cells for row in runs.get(cell.key, ()))
    return Table(tuple(rows), table.source, table.decimals)


def rows_by_run(
    table: Table, key: Callable[[Mapping[str, Any]], str] = record_key
) -> dict[str, list[Mapping[str, Any]]]:
    """All rows of a table that have settings, by the key of their run, which is that of its cell in a sweep.

    Args:
        table: Results of any runs.
        key: Of the record of a run; that of all settings, unless given.
    """
    keys: dict[tuple[Any, ...], str] = {}
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in table.rows:
        settings = tuple(row.get(name) for name in COLUMNS)
        if not row.get("backbone"):
            continue
        if settings not in keys:
            keys[settings] = key(row_record(row))
        runs.setdefault(keys[settings], []).append(row)
    return runs


def row_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row as the record of a run has them; what `setting_columns` made of them, undone.

    Args:
        row: Of a table.
    """
    flat = {name: row.get(CLASSES_FILE if name == "classes" else name) for name in (*RUN, *TRAINING)}
    flat |= {name: json.loads(flat[name] or empty) for name, empty in DATA.items()}
    flat |= {name: flat[name] == "true" for name in FLAGS}
    return {**{name: flat[name] for name in RUN}, "training": {name: flat[name] for name in TRAINING}}
