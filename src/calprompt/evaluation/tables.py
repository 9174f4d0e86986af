"""Rows of a table as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def csv_bytes(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> bytes:
    r"""Rows below a line of column names, in UTF-8.

    >>> csv_bytes(("metric", "value"), [{"metric": "ece", "value": 0.1}])
    b'metric,value\nece,0.1\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
