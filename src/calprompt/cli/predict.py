"""`calprompt predict`: the class of images, with calibrated probabilities, by a finished run."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import create_command
from calprompt.errors import DataError, NotFoundError
from calprompt.text import bullets, shorten, visible

if TYPE_CHECKING:
    from calprompt.predictor import Prediction
    from calprompt.runs import Run

EXAMPLES = """\
  calprompt predict runs/coop-photos-16shot-seed1-0123456789ab cat.jpg dog.png
  calprompt predict runs/coop-photos-16shot-seed1-0123456789ab folder/ --csv > answers.csv
  calprompt predict runs/coop-photos-16shot-seed1-0123456789ab cat.jpg --calibrator "temperature -> dac" --part all
"""


def add_command(commands: Any) -> None:
    """Add `predict` to the commands of a parser."""
    parser = create_command(
        commands,
        "predict",
        help="the class of images, with calibrated probabilities",
        description="Print the most probable class of each image, its calibrated probability, and the runner-up.",
        examples=EXAMPLES,
    )
    parser.set_defaults(command=predict)
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of a finished run")
    add(
        "images", nargs="+", metavar="IMAGES", help="image files, or folders whose images are taken, also in subfolders"
    )
    add(
        "--calibrator",
        metavar="NAME",
        help="fitted on the run's validation images; none: the model's own confidence (default: temperature if the run "
        "has validation images, else none)",
    )
    add(
        "--part",
        choices=("base", "novel", "all"),
        help="classes to tell apart: those the run was tuned on (the default), its novel ones, or all of them",
    )
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--json", action="store_true", help="a JSON object per line")
    style.add_argument("--csv", action="store_true", help="a CSV table")
    add("--backbone", metavar="SPEC", help="where the same weights are now (default: where they were)")
    add("--device", help="cpu, cuda, cuda:1, … (default: the run's)")
    add("--import", action="append", metavar="FILE", dest="imports", help="where a Python file of the run is now")
    add("--skip-bad", action="store_true", help="leave out images that cannot be read")
    add("--quiet", action="store_true", help="show no progress")


def predict(args: argparse.Namespace) -> None:
    """Predict images and print the answers as they come."""
    from calprompt.runs import load_run

    run = load_run(args.run)
    paths = image_paths(args.images)
    calibrator = default_calibrator(run) if args.calibrator is None else args.calibrator
    from calprompt.predictor import Predictor

    predictor = Predictor.from_run(
        run.folder,
        calibrator=calibrator,
        part=args.part,
        backbone=args.backbone,
        device=args.device,
        imports=args.imports,
    )
    skipped: dict[str, str] = {}
    write = _writer(args)
    with show_progress(args.quiet or (sys.stdout.isatty() and not (args.json or args.csv))) as progress:
        for batch in predictor.stream(paths, skip_unreadable=True, progress=progress):
            skipped |= batch.unreadable
            if batch.unreadable and not args.skip_bad:
                continue
            for answer in predictor.answers(batch):
                write(answer)
    write(None)
    if skipped and (not args.skip_bad or len(skipped) == len(set(paths))):
        lines = [f"{name} ({reason})" for name, reason in skipped.items()]
        count = "one image" if len(lines) == 1 else f"{len(lines)} images"
        if args.skip_bad:
            raise DataError(f"no image can be read:{bullets(lines)}")
        raise DataError(f"{count} cannot be read; replace or remove, or leave out with skip_bad=True:{bullets(lines)}")
    if args.json or args.csv:
        for name, reason in skipped.items():
            warnings.warn(f"skipped {name}: {reason}", stacklevel=2)
    else:
        _print_notes(run, calibrator, predictor.class_names, skipped)


def image_paths(places: list[str]) -> list[str]:
    """Image files, and those in folders, in order; raises for a place that is not there, before anything is loaded."""
    from calprompt.data.decoding import SUFFIXES

    found: list[str] = []
    for place in places:
        path = Path(place).expanduser()
        if place and path.is_dir():
            inside = [
                os.path.join(folder, name)
                for folder, _, names in sorted(os.walk(path))
                for name in sorted(names)
                if name.lower().endswith(SUFFIXES) and not name.startswith(".")
            ]
            if not inside:
                raise NotFoundError(f"{path} has no images; expected files ending in {', '.join(SUFFIXES)}")
            found += inside
        elif not place or not path.exists():
            raise NotFoundError(f"there is no image {str(path) if place else repr(place)}")
        else:
            found.append(str(path))
    return found


def default_calibrator(run: Run) -> str:
    """temperature, if there are validation images to fit it on and they are enough; else none."""
    from calprompt.errors import CalpromptError
    from calprompt.evaluation import fitted_calibrator
    from calprompt.evaluation.settings import NONE

    if not run.record["data"].get("images", {}).get("val"):
        return NONE
    try:
        fitted_calibrator(run, "temperature")
    except CalpromptError:
        return NONE
    return "temperature"


def _writer(args: argparse.Namespace) -> Callable[[Prediction | None], None]:
    """Writes an answer; None is the end."""
    from calprompt.predictor import Prediction

    if args.json:
        return lambda answer: None if answer is None else print_line(json.dumps(asdict(answer), ensure_ascii=False))
    if args.csv:
        table = csv.DictWriter(sys.stdout, [field.name for field in fields(Prediction)], lineterminator="\n")
        table.writeheader()
        return lambda answer: None if answer is None else table.writerow(asdict(answer))
    return _Table()


def print_line(text: str) -> None:
    """A line on standard output."""
    sys.stdout.write(f"{text}\n")


class _Table:
    """Answers as a table, printed a screenful at a time so that a long list does not wait for its end."""

    ROWS = 500

    def __init__(self) -> None:
        self.rows: list[Prediction] = []

    def __call__(self, answer: Prediction | None) -> None:
        if answer is not None:
            self.rows.append(answer)
        if self.rows and (answer is None or len(self.rows) == self.ROWS):
            self._print()
            self.rows = []

    def _print(self) -> None:
        from calprompt.cli.tables import create_table

        table = create_table(
            [("image", "left"), ("class", "left"), ("probability", "right"), ("runner-up", "left"), ("", "right")]
        )
        for row in self.rows:
            second = "" if row.runner_up_probability is None else f"{100 * row.runner_up_probability:.1f} %"
            table.add_row(
                *_cells(row.name, row.class_name, f"{100 * row.probability:.1f} %", row.runner_up or "", second)
            )
        output().print(table)


def _cells(*texts: str) -> Iterator[str]:
    from rich.markup import escape

    return (escape(visible(text)) for text in texts)


def _print_notes(run: Run, calibrator: str, class_names: tuple[str, ...], skipped: dict[str, str]) -> None:
    console = output()
    how = "not calibrated" if calibrator == "none" else f"calibrated with {calibrator}"
    lines = [f"{len(class_names)} classes: {shorten(class_names)}; probabilities {how}"]
    if calibrator == "none":
        lines.append("the model's own confidence: nothing says how often it is right when it is this sure")
    elif "novel" in run.record["data"]["class_names"]:
        lines.append("the calibrator was fitted on images of the base classes")
    lines += [f"skipped {name}: {reason}" for name, reason in skipped.items()]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
