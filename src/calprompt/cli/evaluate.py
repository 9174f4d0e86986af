"""`calprompt evaluate`: every metric of runs under calibrators, from their stored logits."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.console import output, show_progress
from calprompt.cli.each_run import each_run
from calprompt.cli.flags import add_flags, create_command, flags_of, settings_of, with_flags
from calprompt.errors import SettingError
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.files import write_json

if TYPE_CHECKING:
    from calprompt.evaluation import Evaluation

EXAMPLES = """\
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab
  calprompt evaluate runs/* --calibrators temperature "temperature -> dac" --out evaluations.csv
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab --target-error 0.05
  calprompt evaluate model new_photos/
"""


def add_command(commands: Any) -> None:
    """Add `evaluate` to the commands of a parser; its defaults are those of `EvaluationSettings`."""
    parser = create_command(
        commands,
        "evaluate",
        help="measure a fitted model on new images, or runs under calibrators from their stored logits",
        description="Measure runs again from their stored logits, without the model: every metric, most of them with\n"
        "intervals, as it is and under calibrators fitted on the validation images. Or measure a fitted model on\n"
        "labelled images that it did not learn from, and see whether its promises hold there.",
        examples=EXAMPLES,
    )
    parser.set_defaults(command=evaluate)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="folder of a run; or the folder of a model and labelled images"
    )
    parser.add_argument("--json", action="store_true", help="of a model: what was measured, as JSON")
    parser.add_argument(
        "--out", metavar="FILE", help=".json or .csv of all runs (default: evaluation.json in each run's folder)"
    )
    add_flags(parser, EvaluationSettings)


def evaluate(args: argparse.Namespace) -> None:
    """Evaluate runs from their logits, print a table of each and write the numbers down."""
    from calprompt.classifier.model_folder import is_model
    from calprompt.runs.folder import RECORD

    any_run = any((Path(place).expanduser() / RECORD).is_file() for place in args.runs)
    if is_model(args.runs[0]) or (len(args.runs) == 2 and not any_run):
        _evaluate_model(args)
        return
    from calprompt.cli.evaluation_table import print_evaluation
    from calprompt.evaluation import check_output, evaluate_run, write_evaluations

    settings = EvaluationSettings(**settings_of(args, EvaluationSettings))
    if args.out is not None:
        check_output(args.out)
    with show_progress() as progress:

        def measure(folder: Path) -> tuple[Evaluation, list[Path]]:
            evaluation = evaluate_run(folder, settings, progress=progress)
            return evaluation, write_evaluations([evaluation]) if args.out is None else []

        done, left_out = each_run(args.runs, measure)
    evaluations = [evaluation for evaluation, _ in done]
    written = [path for _, paths in done for path in paths]
    if args.out is not None and evaluations:
        written = write_evaluations(evaluations, args.out)  # before a pager may be quit
    console = output()
    for evaluation in evaluations:
        print_evaluation(evaluation, console)
    for path in written:
        console.print(str(path), markup=False, soft_wrap=True)
    if left_out is not None:
        raise left_out


def _evaluate_model(args: argparse.Namespace) -> None:
    """Measure a fitted model on labelled images, and say whether its promises hold there."""
    if len(args.runs) != 2:
        raise SettingError("a model is evaluated on labelled images: calprompt evaluate MODEL DATA")
    from calprompt.classifier import Classifier
    from calprompt.classifier.checks import band_sentence
    from calprompt.classifier.summary import check_sentences
    from calprompt.cli.app import create_parser
    from calprompt.cli.check_table import outcome_sentences, print_check

    model = Classifier.load(args.runs[0])
    with show_progress() as progress:
        check = model.evaluate(args.runs[1], progress=progress)
    if args.out is not None:
        write_json(Path(args.out), check.to_dict())
    if args.json:
        sys.stdout.write(json.dumps(check.to_dict(), ensure_ascii=False) + "\n")
        return
    console = output()
    lines = [*check_sentences(check, model.backbone), *(f"{band_sentence(band)}." for band in reversed(check.bands))]
    flags = flags_of(create_parser())
    for line in [*lines, *outcome_sentences(check), ""]:
        console.print(with_flags(line, flags), markup=False, soft_wrap=True)
    print_check(check, console)
