"""Answers as a table, CSV or lines of JSON, written as they come; and images moved by their answers."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from calprompt.cli.shared import output
from calprompt.errors import CalpromptError
from calprompt.files import failing_as
from calprompt.promises.rule import ANSWER
from calprompt.text import os_problem, slug, visible

Writer = Callable[[Any], object]  # takes an answer; None is the end


def create_writer(kind: type, *, as_json: bool, as_csv: bool) -> Writer:
    return _line_writer(kind, sys.stdout, as_json=as_json) if as_json or as_csv else _Table()


def _line_writer(kind: type, file: TextIO, *, as_json: bool, header: bool = True) -> Writer:
    """A writer of lines of JSON, or of rows of CSV."""
    if as_json:
        return lambda answer: answer and file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
    table = csv.DictWriter(file, [field.name for field in fields(kind)], lineterminator="\n")
    if header:
        table.writeheader()
    return lambda answer: answer and table.writerow(_csv_row(answer))


class AnswerFile:
    """A CSV or JSON-lines file that answers are added to; an incomplete last row is removed."""

    SUFFIXES = (".csv", ".jsonl")

    def __init__(self, path: Path, kind: type) -> None:
        self.path, self.columns = path, [field.name for field in fields(kind)]
        self.names: set[str] = set()
        self.as_json = path.suffix.lower() == ".jsonl"
        self.before = 0
        with failing_as(f"cannot write to {path}"):
            self.file = path.open("a+", newline="", encoding="utf-8", errors="surrogateescape")
            self._read()
        self.write = _line_writer(kind, self.file, as_json=self.as_json, header=not self.file.tell())

    def _read(self) -> None:
        self.file.seek(0)
        text = self.file.read()
        end = text.rfind("\n") + 1
        while not self.as_json and text.count('"', 0, end) % 2:  # a line break in a quoted field ends no row
            end = text.rfind("\n", 0, end - 1) + 1
        whole = text[:end]
        if end < len(text):
            self.file.truncate(len(whole.encode("utf-8", errors="surrogateescape")))
        self.file.seek(0, os.SEEK_END)
        try:
            if self.as_json:
                self.names = {str(json.loads(line)["name"]) for line in whole.splitlines()}
            else:
                rows = csv.reader(io.StringIO(whole, newline=""))
                columns = next(rows, self.columns)
                if columns != self.columns:
                    raise ValueError(f"its columns are {', '.join(columns)}")
                self.names = {row[0] for row in rows if len(row) == len(self.columns)}
        except (ValueError, KeyError, TypeError) as error:
            raise CalpromptError(
                f"{self.path} is not a file of such answers ({error}); give another file name"
            ) from error
        self.before = len(self.names)

    def __call__(self, answer: Any) -> None:
        """Add an answer; None is the end."""
        if answer is None:
            self.file.close()
            return
        self.write(answer)
        self.file.flush()


def _csv_row(answer: Any) -> dict[str, Any]:
    row = asdict(answer)
    if isinstance(row.get("prediction_set"), tuple | list):
        row["prediction_set"] = "|".join(row["prediction_set"])
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}


class _Table:
    """Answers as a table, printed 500 rows at a time."""

    ROWS = 500

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def __call__(self, answer: Any) -> None:
        if answer is not None:
            self.rows.append(answer)
        if self.rows and (answer is None or len(self.rows) == self.ROWS):
            self._print()
            self.rows = []

    def _print(self) -> None:
        from calprompt.report.writers import text_table

        decided = hasattr(self.rows[0], "decision")
        sets = getattr(self.rows[0], "prediction_set", None) is not None
        columns = [("image", "left"), ("answer", "left"), ("most probable", "left")] if decided else []
        columns = columns or [("image", "left"), ("class", "left")]
        columns += [("probability", "right"), ("runner-up", "left"), ("", "right")]
        rows = []
        for row in self.rows:
            second = "" if row.runner_up_probability is None else f"{100 * row.runner_up_probability:.1f} %"
            cells = [
                row.name,
                *([row.class_name if row.decision == ANSWER else row.decision] if decided else []),
                row.class_name,
            ]
            cells += [f"{100 * row.probability:.1f} %", row.runner_up or "", second]
            rows.append([visible(text) for text in (*cells, *([", ".join(row.prediction_set)] if sets else []))])
        columns += [("may be", "left")] if sets else []
        output().print(text_table(columns, rows, vertical="top"))


class Mover:
    """Moves images into a folder per answer, and logs every move."""

    LOG = "moved.csv"

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.moved: set[str] = set()
        with failing_as(f"cannot write to {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            new = not (self.folder / self.LOG).exists()
            self.log = (self.folder / self.LOG).open("a", newline="", encoding="utf-8", errors="surrogateescape")
        self.table = csv.writer(self.log, lineterminator="\n")
        if new:
            self.table.writerow(["from", "to", "decision", "class", "probability"])

    def __call__(self, answer: Any) -> None:
        """Move the image of an answer; None is the end."""
        if answer is None:
            self.log.close()
            return
        if answer.name in self.moved:  # listed twice
            return
        self.moved.add(answer.name)
        kind = answer.class_name if answer.decision == ANSWER else answer.decision
        place = self.folder / (slug(kind) or "class")
        source = Path(answer.name).expanduser()
        try:
            place.mkdir(exist_ok=True)
            target = _free(place / source.name)
            shutil.move(os.fspath(source), target)
        except OSError as error:
            raise CalpromptError(
                f"cannot move {source}: {os_problem(error)}; {len(self.moved) - 1} images were moved before, which "
                f"{self.folder / self.LOG} lists"
            ) from error
        self.table.writerow([source, target, answer.decision, answer.class_name, f"{answer.probability:.6f}"])
        self.log.flush()


def _free(path: Path) -> Path:
    """A path that is not taken: the same, or with a number."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return free
