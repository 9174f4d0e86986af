"""The numbers of a comparison as files: written, read, and compared with expected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, SettingError
from calprompt.evaluation.tables import csv_bytes
from calprompt.files import read_json, write_bytes, write_json
from calprompt.results.comparison import Row
from calprompt.text import bullets

COLUMNS = ("dataset", "split", "method", "metric", "value", "low", "high")
TOLERANCE = 0.05  # percentage points


@dataclass(frozen=True)
class Results:
    """A comparison on several datasets.

    Attributes:
        settings: Everything that the numbers depend on, except weights and images.
        sizes: Dataset -> split -> number of images and classes.
        rows: The numbers, as fractions.
        about: Versions and the backbone's fingerprint.
    """

    settings: dict[str, Any]
    sizes: dict[str, dict[str, dict[str, int]]]
    rows: tuple[Row, ...]
    about: dict[str, Any]

    def write_json(self, path: Path) -> None:
        """Write everything, for `read`; without times and paths, so that equal results are equal files."""
        write_json(path, {**asdict(self), "rows": [asdict(row) for row in self.rows]})

    def write_csv(self, path: Path) -> None:
        """Write one row per number, as fractions."""
        write_bytes(path, csv_bytes(COLUMNS, (asdict(row) for row in self.rows)))

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """Read what `write_json` wrote.

        Raises:
            NotFoundError: if there is no such file.
            DamagedFileError: if it is not a table of results.
        """
        path = Path(path).expanduser()
        payload = read_json(path)
        try:
            rows = tuple(Row(**row) for row in payload["rows"])
            return cls(payload["settings"], payload["sizes"], rows, payload["about"])
        except (KeyError, TypeError) as error:
            raise DamagedFileError(f"{path} is not a table of results, such as demo/table.json: {error}") from error


def check_settings(settings: Mapping[str, Any], expected: Results, name: str) -> None:
    """Raise `SettingError` if numbers of these settings cannot equal the expected ones, those of the file `name`."""
    differences = [
        f"{key} {value}, not {settings.get(key)}"
        for key, value in expected.settings.items()
        if settings.get(key) != value
    ]
    if differences:
        raise SettingError(f"{name} is of other settings: {'; '.join(differences)}")


def check_results(results: Results, expected: Results, name: str, tolerance: float = TOLERANCE) -> int:
    """Compare results with expected ones.

    Args:
        results: To compare.
        expected: To compare with.
        name: Of the file with the expected results, for errors.
        tolerance: In percentage points.

    Returns:
        How many numbers were compared.

    Raises:
        CalpromptError: if a number differs by more than the tolerance.
        SettingError: if the settings differ.
    """
    check_settings(results.settings, expected, name)
    rows, expected_rows = ({row.key: row for row in table.rows} for table in (results, expected))
    lines = []
    for key, expected_row in expected_rows.items():
        where = ", ".join(key)
        if key not in rows:
            lines.append(f"{where}: missing, expected {100 * expected_row.value:.2f}")
            continue
        for end in ("value", "low", "high"):
            value, expected_value = 100 * getattr(rows[key], end), 100 * getattr(expected_row, end)
            if not abs(value - expected_value) <= tolerance:
                what = "" if end == "value" else f" ({end} end of the interval)"
                lines.append(f"{where}{what}: {value:.2f}, expected {expected_value:.2f}")
    lines += [f"{', '.join(key)}: not expected" for key in rows if key not in expected_rows]
    if lines:
        raise CalpromptError(
            f"{len(lines)} of {3 * len(expected_rows)} numbers are not those of {name}, within {tolerance:g} "
            f"percentage points{_reason(results, expected)}:{bullets(lines)}"
        )
    return 3 * len(expected_rows)


def _reason(results: Results, expected: Results) -> str:
    """What may explain differences: other weights, other versions."""
    differences = [
        f"{key} {results.about.get(key)} instead of {value}"
        for key, value in expected.about.items()
        if results.about.get(key) != value
    ]
    return f" ({'; '.join(differences)})" if differences else ""
