"""Tables of several machines as one: a run that two of them have must have the same numbers in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.results.table import COUNTS, SETTINGS, Table, cell
from calprompt.sweep.folders import DAMAGED, FAILED, FINISHED, INTERRUPTED, MISSING, RUNNING
from calprompt.text import bullets

PLACES = {"root", "classes", "base", "backbone_config", "imports", "exif", "skip_bad"}  # other on every machine
PROGRESS = (FINISHED, RUNNING, INTERRUPTED, FAILED, DAMAGED, MISSING)  # of what two tables say, the first counts
EXACT = 1e-12  # two numbers with all of their digits


def merge_tables(tables: Sequence[Table]) -> Table:
    """One table of several.

    Args:
        tables: Of which the same run may be in more than one. What one table misses and another has is not missing.

    Returns:
        All rows, each once, in the order of all tables.

    Raises:
        CalpromptError: if a run has different numbers in two tables, beyond what their files were rounded to.
    """
    measured: dict[tuple[str, ...], tuple[Mapping[str, Any], Table]] = {}
    others: dict[tuple[str, ...], Mapping[str, Any]] = {}
    conflicts: list[str] = []
    for table in tables:
        for row in table.rows:
            if row.get("model") is None:
                key = (*_settings(row), cell(row.get("split")), cell(row.get("run")) if not row.get("tuner") else "")
                known = others.get(key)
                if known is None or _progress(row) < _progress(known):
                    others[key] = row
                continue
            run = cell(row.get("fingerprint")) or "; ".join(_settings(row))
            key = (run, *(cell(row.get(name)) for name in ("model", "calibrator", "split")))
            if key not in measured:
                measured[key] = (row, table)
            else:
                conflicts += _differences(measured[key], (row, table), table.metrics)
    if conflicts:
        raise CalpromptError(
            "the same run has different numbers in two tables; leave one of them out, or find out why:"
            + bullets(list(dict.fromkeys(conflicts)), limit=8)
        )
    there = {_settings(row) for row, _ in measured.values()}
    evaluated = {(*_settings(row), cell(row.get("split")).partition("/")[0]) for row, _ in measured.values()}

    def is_lacking(row: Mapping[str, Any]) -> bool:
        settings, split = _settings(row), row.get("split")
        return settings not in there if split is None else (*settings, split) not in evaluated

    left = filter(is_lacking, others.values())
    return Table((*(row for row, _ in measured.values()), *left), "merged tables").sorted()


def _settings(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(cell(row.get(name)) for name in SETTINGS if name not in PLACES)


def _progress(row: Mapping[str, Any]) -> tuple[int, bool]:
    """How little a row says: the smaller, the more a run got done; one that has a folder says more than one without."""
    status = row.get("status")
    return (PROGRESS.index(status) if status in PROGRESS else len(PROGRESS), row.get("run") is None)


def _differences(
    one: tuple[Mapping[str, Any], Table], other: tuple[Mapping[str, Any], Table], metrics: Sequence[str]
) -> list[str]:
    """What two rows of one run, model, calibrator and split do not agree on."""
    (first, left), (second, right) = one, other
    found = []
    for name in (*COUNTS, *metrics):
        a, b = first.get(name), second.get(name)
        if a is None and b is None:
            continue
        coarsest = min(table.decimals.get(name, 99) for table in (left, right))
        allowed = max(EXACT, 0.5 * 10.0**-coarsest * (1 + 1e-9))
        if a is None or b is None or abs(a - b) > allowed:
            which = f"{first.get('run')}, {first['model']}, {first['calibrator']}, {first['split']}"
            values = [f"{cell(value) or 'empty'} in {table.source}" for value, table in ((a, left), (b, right))]
            found.append(f"{which}: {name} is {' and '.join(values)}")
    return found
