"""The numbers of a comparison as data: written, read back, and compared with those of another time."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.files import read_json, write_bytes, write_json
from calprompt.report.comparison import Row

COLUMNS = ("dataset", "split", "method", "metric", "value", "low", "high")
TOLERANCE = 0.05  # percentage points
SHOWN = 20  # numbers that differ, in an error


@dataclass(frozen=True)
class Results:
    """A comparison on several datasets.

    settings  all that the numbers depend on, but weights and pictures
    sizes     dataset -> split -> images and classes
    rows      the numbers, as fractions
    about     what else there is to know: versions, the backbone's fingerprint
    """

    settings: dict[str, Any]
    sizes: dict[str, dict[str, dict[str, int]]]
    rows: tuple[Row, ...]
    about: dict[str, Any]

    def write_json(self, path: Path) -> None:
        """Everything, so that `read` gives it back; no time or place in it, so that equal results are equal files."""
        write_json(path, {**asdict(self), "rows": [asdict(row) for row in self.rows]})

    def write_csv(self, path: Path) -> None:
        """A row a number, as fractions."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.rows)
        write_bytes(path, text.getvalue().encode())

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """What `write_json` wrote."""
        path = Path(path).expanduser()
        held = read_json(path)
        try:
            rows = tuple(Row(**row) for row in held["rows"])
            return cls(held["settings"], held["sizes"], rows, held["about"])
        except (KeyError, TypeError) as error:
            raise CalpromptError(f"{path} is not a table of results, such as demo/table.json: {error}") from error


def check_settings(given: Mapping[str, Any], expected: Results, name: str) -> None:
    """Raise if numbers of these settings cannot equal the expected ones."""
    others = {key: value for key, value in expected.settings.items() if given.get(key) != value}
    if others:
        told = "; ".join(f"{key} {value}, not {given.get(key)}" for key, value in others.items())
        raise CalpromptError(f"{name} is of other settings: {told}")


def check_results(found: Results, expected: Results, name: str, tolerance: float = TOLERANCE) -> int:
    """Raise if a number differs from the expected one by more percentage points; returns how many were compared."""
    check_settings(found.settings, expected, name)
    here, there = ({row.key: row for row in results.rows} for results in (found, expected))
    lines = []
    for key, row in there.items():
        where = ", ".join(key)
        if key not in here:
            lines.append(f"{where}: not there, expected {100 * row.value:.2f}")
            continue
        for end in ("value", "low", "high"):
            got, want = 100 * getattr(here[key], end), 100 * getattr(row, end)
            if not abs(got - want) <= tolerance:
                what = "" if end == "value" else f" ({end} end of the interval)"
                lines.append(f"{where}{what}: {got:.2f}, expected {want:.2f}")
    lines += [f"{', '.join(key)}: not expected" for key in here if key not in there]
    if lines:
        more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        count = (
            f"{len(lines)} of {3 * len(there)} numbers are not those of {name}, within {tolerance:g} percentage points"
        )
        raise CalpromptError("\n  ".join([f"{count}{_reason(found, expected)}:", *lines[:SHOWN], *more]))
    return 3 * len(there)


def _reason(found: Results, expected: Results) -> str:
    """What may be behind it: other weights, other versions."""
    others = [key for key, value in expected.about.items() if found.about.get(key) != value]
    told = [f"{key} {found.about.get(key)} instead of {expected.about[key]}" for key in others]
    return f" ({'; '.join(told)})" if told else ""
