"""Measure runs again from their stored logits, without the model: every metric, most of them with intervals,
uncalibrated and under calibrators fitted on the validation images. Or measure a fitted model on labelled images that
it did not learn from, and see whether its promises hold there.

examples:
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab
  calprompt evaluate runs/* --calibrators temperature "temperature -> dac" --out evaluations.csv
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab --target-error 0.05
  calprompt evaluate model new_photos/
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.shared import add_flags, each_run, output, say, settings_of
from calprompt.errors import Parameter, SettingError
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.files import (
    EXPORT,
    MODEL,
    RUN,
    check_output,
    csv_bytes,
    folder_kind,
    json_bytes,
    require_kind,
    write_output,
)
from calprompt.progress import show_progress

if TYPE_CHECKING:
    from calprompt.classifier.checks import Check
    from calprompt.evaluation.run_evaluation import Evaluation

SUFFIXES = (".json", ".csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run folders; or the folder of a model, and labelled images")
    add("--json", action="store_true", help="print what was measured of a model as JSON")
    add("--out", metavar="FILE", help=".json or .csv of all runs (default: evaluation.json in each run's folder)")
    add_flags(parser, EvaluationSettings)


def run(args: argparse.Namespace) -> None:
    """Evaluate runs from their logits, print a table of each and write the numbers down."""
    kinds = [folder_kind(place) for place in args.runs]
    if MODEL in kinds[:1] or (len(kinds) == 2 and RUN not in kinds and EXPORT not in kinds):
        _evaluate_model(args)
        return
    if args.json:
        raise SettingError(
            "is for models; write what was measured of runs with ", Parameter("out", "FILE"), parameter="json"
        )
    from calprompt.cli.evaluation_tables import print_evaluation
    from calprompt.evaluation.output import write_evaluations
    from calprompt.evaluation.run_evaluation import evaluate_run

    settings = EvaluationSettings(**settings_of(args, EvaluationSettings))
    if args.out is not None:
        check_output(args.out, SUFFIXES, parameter="out")
    with show_progress() as progress:

        def measure(folder: Path) -> tuple[Evaluation, list[Path]]:
            evaluation = evaluate_run(folder, settings, progress=progress)
            return evaluation, write_evaluations([evaluation]) if args.out is None else []

        done, left_out = each_run(args.runs, measure)
    evaluations = [evaluation for evaluation, _ in done]
    written = [path for _, paths in done for path in paths]
    if args.out is not None and evaluations:
        written = write_evaluations(evaluations, args.out)  # before printing, which a pager may end
    console = output()
    for evaluation in evaluations:
        print_evaluation(evaluation, console)
    say(*written)
    if left_out is not None:
        raise left_out


def _evaluate_model(args: argparse.Namespace) -> None:
    """Measure a fitted model on labelled images, and say whether its promises hold there."""
    if len(args.runs) != 2:
        raise SettingError("a model is evaluated on labelled images: calprompt evaluate MODEL DATA")
    place, data = args.runs
    require_kind(place, MODEL)
    for name in settings_of(args, EvaluationSettings):
        raise SettingError(f"is for runs, and {place} is the folder of a model", parameter=name)
    out = None if args.out is None else check_output(args.out, SUFFIXES, parameter="out")
    from calprompt.data.labelled import labelled_images

    labelled_images(data)  # a wrong path is reported before the model is read
    from calprompt.classifier.card import check_sentences
    from calprompt.classifier.checks import band_sentence
    from calprompt.classifier.estimator import Classifier
    from calprompt.cli.evaluation_tables import outcome_sentences, print_check

    model = Classifier.load(place)
    with show_progress() as progress:
        check = model.evaluate(data, progress=progress)
    if out is not None:
        write_output(out, _metrics_table(check) if out.suffix.lower() == ".csv" else json_bytes(check.to_dict()))
    if args.json:
        sys.stdout.write(json.dumps(check.to_dict(), ensure_ascii=False) + "\n")
        return
    console = output()
    lines = [
        *check_sentences(check, str(model.backbone)),
        *(f"{band_sentence(band)}." for band in reversed(check.bands)),
    ]
    say(*[*lines, *outcome_sentences(check), ""])
    print_check(check, console)


def _metrics_table(check: Check) -> bytes:
    """Every metric of a model as CSV: with its calibrator, and without."""
    rows = [
        {"metric": name, "calibrated": value, "uncalibrated": check.uncalibrated[name]}
        for name, value in check.metrics.items()
    ]
    return csv_bytes(("metric", "calibrated", "uncalibrated"), rows)
