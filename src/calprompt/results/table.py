"""The table of results: a row per run, model, calibrator and split, with every metric, every setting and what it took.

Rows are in an order of their own, whoever made them in whatever order, and are written as the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields
from itertools import islice
from pathlib import Path
from sys import intern
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, SettingError
from calprompt.evaluation.settings import PARTS, TUNED, ZERO_SHOT
from calprompt.files import csv_bytes
from calprompt.registry import unknown
from calprompt.runs.config import LATER_SETTINGS, RUN_SETTINGS, TRAINING_SETTINGS, RunConfig
from calprompt.sweep.sweep_plan import DAMAGED, FAILED, FINISHED, INTERRUPTED, MISSING, RUNNING
from calprompt.text import bullets
from calprompt.training_config import TrainingConfig

IDENTITY = ("run", "fingerprint", "status", "reason", "dataset", "model", "calibrator", "split")
NOTE = "note"  # what has to stand beside the numbers, such as that test images validated
COUNTS = ("images", "classes")
CLASSES_FILE = "classes_file"  # the setting `classes`, since `classes` counts them
SETTINGS = (*RUN_SETTINGS, *TRAINING_SETTINGS)
MACHINE = {"root": None, "device": "cpu"}  # settings that are other on every machine, and what they are taken for
PER_RUN = ("seed", *MACHINE, "chunk", "diagnose_every")  # settings in which runs of one cell may differ
PER_DATASET = ("data", "classes", "base", "template", "validation", "exif", "skip_bad")  # of one method, by dataset
PLACES = {"root", "backbone_config", "imports", "classes", "base", "exif", "skip_bad"}  # other on every machine
VERSIONS = ("calprompt", "torch", "open_clip", "python")
SPREADS = {"step_seconds": "seconds_step", "epoch_seconds": "seconds_epoch"}  # of a run's record -> columns
TIMES = (
    *("seconds_train", "cpu_seconds_train", "seconds_total"),
    *(f"{column}{end}" for column in SPREADS.values() for end in ("", "_q10", "_q90")),
    *("peak_memory", "peak_memory_train", "peak_device_memory"),
)
COLUMN = {name: CLASSES_FILE if name == "classes" else name for name in SETTINGS}  # setting -> its column
BEFORE: dict[str, type] = {**dict.fromkeys((*IDENTITY, NOTE), str), **dict.fromkeys(COUNTS, int)}  # metrics
_HINTS = {each.name: str(each.type) for each in (*fields(RunConfig), *fields(TrainingConfig))}
AFTER: dict[str, type] = {
    **{COLUMN[name]: {"int": int, "flo": float}.get(_HINTS[name][:3], str) for name in SETTINGS},
    "logit_scale": float,
    **dict.fromkeys((*(f"version_{name}" for name in VERSIONS), "processor"), str),
    **{name: int if name.startswith("peak_") else float for name in TIMES},
}
TYPES = BEFORE | AFTER  # of the columns that are no metrics, which are floats
MODELS = (TUNED, ZERO_SHOT)
CHUNK = 2000  # lines of a file that are read at a time
XZ = ".xz"  # of compressed files
PROGRESS = (FINISHED, RUNNING, INTERRUPTED, FAILED, DAMAGED, MISSING)  # of what two tables say, the first counts
FLOAT_TOLERANCE = 1e-12  # two numbers with all of their digits


@dataclass(frozen=True)
class Table:
    """Results as rows.

    Attributes:
        rows: Column -> value; what is not known is None or not there, and never 0.
        source: Name of the table in error messages.
        decimals: Column -> digits behind the point that a file rounded its numbers to.
        checked: Whether rows are those of another table, whose numbers have their types.
    """

    rows: tuple[Mapping[str, Any], ...]
    source: str = "results"
    decimals: Mapping[str, int] = field(default_factory=dict)
    checked: InitVar[bool] = False

    def __post_init__(self, checked: bool) -> None:
        if not checked:
            object.__setattr__(self, "rows", tuple(map(_with_numbers, self.rows)))

    def chosen(self, rows: Iterable[Mapping[str, Any]]) -> Table:
        """A table of some of its rows."""
        return Table(tuple(rows), self.source, self.decimals, checked=True)

    @property
    def columns(self) -> list[str]:
        """Identity, note, counts, metrics, settings, the logit scale, versions, hardware, times."""
        found = set().union(*{tuple(row) for row in self.rows})
        return [*BEFORE, *sorted(found - TYPES.keys()), *AFTER]

    @property
    def metrics(self) -> list[str]:
        """The columns that are metrics."""
        return [name for name in self.columns if name not in TYPES]

    def sorted(self) -> Table:
        """The same rows in the order of all tables."""
        return self.chosen(_in_order(self.rows))

    def filter(self, **wanted: str) -> Table:
        """The rows that have some values, given as text."""
        columns = self.columns if wanted else []
        for name in wanted:
            if name not in columns and not name.startswith("options."):
                raise unknown("column", name, columns)

        def has(row: Mapping[str, Any], name: str, text: str) -> bool:
            value = row.get(name)
            if name.startswith("options."):
                value = json.loads(row.get("options") or "{}").get(name.removeprefix("options."))
            return cell(value) == text or (isinstance(value, float) and value == _number(text))

        return self.chosen(row for row in self.rows if all(has(row, name, text) for name, text in wanted.items()))

    def to_csv(self, *, times: bool = True) -> bytes:
        """The table as CSV in UTF-8; the same rows are the same bytes."""
        columns = [name for name in self.columns if times or name not in TIMES]
        return csv_bytes(columns, ({name: cell(row.get(name)) for name in columns} for row in self.rows))

    def to_parquet(self, *, times: bool = True) -> bytes:
        """The table as a Parquet file, with numbers as numbers."""
        arrow, parquet = _pyarrow()
        columns = [name for name in self.columns if times or name not in TIMES]
        kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
        data = {
            name: arrow.array([row.get(name) for row in self.rows], type=kinds[TYPES.get(name, float)])
            for name in columns
        }
        stream = io.BytesIO()
        parquet.write_table(arrow.table(data), stream)
        return stream.getvalue()


def read_table(path: str | Path) -> Table:
    """A table from a CSV or Parquet file that `calprompt results` wrote.

    Args:
        path: The file; CSV may be compressed, as .csv.xz.

    Raises:
        CalpromptError: if it is not there, or is no such table.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise NotFoundError(f"there is no table or folder of runs at {path}")
    if path.suffix == ".parquet":
        _, parquet = _pyarrow()
        try:
            stored = tuple(parquet.read_table(path).to_pylist())
        except (OSError, ValueError) as error:
            raise DamagedFileError(f"{path} is not a Parquet file of results: {error}") from error
        _check_columns(stored[0] if stored else IDENTITY, path)
        return Table(stored, str(path))
    rows: list[Mapping[str, Any]] = []
    decimals: dict[str, int] = {}
    try:
        opened = lzma.open if path.suffix == XZ else open
        with opened(path, "rt", newline="", encoding="utf-8") as file:
            lines = csv.reader(file)
            names = next(lines, [])
            _check_columns(names, path)
            while chunk := list(islice(lines, CHUNK)):
                wrong = [place for place, line in enumerate(chunk) if line and len(line) != len(names)]
                if wrong:
                    raise DamagedFileError(
                        f"{path} is not a table of results: line {len(rows) + 2 + wrong[0]} has {len(chunk[wrong[0]])} "
                        f"cells instead of {len(names)}"
                    )
                rows += _parsed(names, [line for line in chunk if line], decimals)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, lzma.LZMAError) as error:
        raise DamagedFileError(f"cannot read the table {path}: {error}") from error
    except ValueError as error:
        if isinstance(error, CalpromptError):
            raise
        raise DamagedFileError(f"{path} is not a table of results: {error}") from error
    return Table(tuple(rows), str(path), decimals, checked=True)


def _check_columns(columns: Iterable[str], path: Path) -> None:
    lacking = [name for name in IDENTITY if name not in columns]
    if lacking:
        raise DamagedFileError(f"{path} is not a table of results, it has no column {lacking[0]}")


def _parsed(names: Sequence[str], lines: Sequence[Sequence[str]], decimals: dict[str, int]) -> list[dict[str, Any]]:
    """Rows from lines of a file: equal texts, of which settings have many, become one value.

    Settings that the file does not have get what they stand for; digits behind points are noted in `decimals`.
    """
    if not lines:
        return []
    columns = {
        name: _values(name, texts, decimals) for name, texts in zip(names, zip(*lines, strict=True), strict=True)
    }
    tuners = columns.get("tuner", [None] * len(lines))
    for name, value in LATER_SETTINGS.items():
        if name not in names:
            usual = cell(value) if TYPES[name] is str else value
            columns[name] = [None if tuner is None else usual for tuner in tuners]
    if len(lines) == CHUNK:  # of a large file: half the memory of a row may be for what is empty in all of them
        columns = {k: column for k, column in columns.items() if k not in TYPES or any(v is not None for v in column)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(name: str, texts: Sequence[str], decimals: dict[str, int]) -> list[Any]:
    different = set(texts) - {""}
    known: dict[str, Any] = {"": None}
    kind = TYPES.get(name, float)
    if kind is str:
        known |= {text: intern(text) for text in different}
        return [known[text] for text in texts]
    for text in different:
        known[text] = int(text) if kind is int and text.lstrip("-").isdecimal() else float(text)
    decimals[name] = max([decimals.get(name, 0), *map(_digits, different)])
    return [known[text] for text in texts]


def _digits(text: str) -> int:
    """Digits behind the point of a number as it is written."""
    if "e" not in text:
        return len(text) - 1 - point if (point := text.find(".")) >= 0 else 0
    digits, _, exponent = text.partition("e")
    return len(digits.partition(".")[2]) - int(exponent)


def packed(data: bytes, path: str | Path) -> bytes:
    """What to write into a file: compressed if it is called .xz, else as it is."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if Path(path).suffix == XZ else data


def cell(value: Any) -> str:
    """A value as text; numbers with all of their digits.

    >>> cell(0.1), cell(None), cell(16), cell(True), cell({"context": 4}), cell("tcpt")
    ('0.1', '', '16', 'true', '{"context":4}', 'tcpt')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, separators=(",", ":"), sort_keys=True)


def _with_numbers(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row whose whole numbers are floats where others of the column are, such as a weight decay of 0."""
    wrong = [name for name, value in row.items() if type(value) is int and TYPES.get(name, float) is float]
    return {**row, **{name: float(row[name]) for name in wrong}} if wrong else row


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _in_order(rows: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Rows by data, tuner, loss, shots and seed, then by everything else that tells rows apart."""
    raws = [tuple(map(row.get, _ORDER)) for row in rows]
    comparable = {raw: tuple(map(_comparable, raw)) for raw in set(raws)}
    settings = {raw: place for place, raw in enumerate(sorted(comparable, key=comparable.__getitem__))}
    inside: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    places = []
    for number, (row, raw) in enumerate(zip(rows, raws, strict=True)):
        key = (row.get("model"), row.get("calibrator"), row.get("split"))
        if key not in inside:
            model, calibrator, split = key
            where, _, part = str(split or "").rpartition("/")
            known = (_rank(MODELS, model), calibrator not in (None, "none"), calibrator, where, _rank(PARTS, part))
            inside[key] = tuple(map(_comparable, (*known, str(split or ""))))
        places.append((settings[raw], inside[key], number))
    return (rows[number] for *_, number in sorted(places))


_ORDER = ("dataset", "data", "tuner", "loss", "shots", "seed", *SETTINGS, "fingerprint", "run")


def _rank(known: Sequence[str], name: Any) -> int:
    return known.index(name) if name in known else len(known)


def _comparable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (0, 0.0, "") if value is None else (2, 0.0, cell(value))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise SettingError(
            "Parquet files need the package pyarrow: pip install 'calprompt[parquet]'; or write it as CSV"
        ) from error
    return pyarrow, parquet


def merge_tables(tables: Sequence[Table]) -> Table:
    """One table of several.

    Args:
        tables: Tables to merge. A run may be in several; a run that is missing from one counts if another has it.

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
        allowed = max(FLOAT_TOLERANCE, 0.5 * 10.0**-coarsest * (1 + 1e-9))
        if a is None or b is None or abs(a - b) > allowed:
            which = f"{first.get('run')}, {first['model']}, {first['calibrator']}, {first['split']}"
            values = [f"{cell(value) or 'empty'} in {table.source}" for value, table in ((a, left), (b, right))]
            found.append(f"{which}: {name} is {' and '.join(values)}")
    return found
