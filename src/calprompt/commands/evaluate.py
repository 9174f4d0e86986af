"""`calprompt evaluate`: every metric of runs under calibrators, from their stored logits."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.commands.console import output, progress_bars
from calprompt.commands.several import each_run

if TYPE_CHECKING:
    from calprompt.evaluation import Evaluation

EXAMPLE = """\
examples:
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab
  calprompt evaluate runs/* --calibrators temperature "temperature -> dac" --out evaluations.csv
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab --target-error 0.05
"""


def add_command(commands: Any) -> None:
    """Add `evaluate` to the subparsers of the command line; its defaults are those of `EvaluationSettings`."""
    one = commands.add_parser(
        "evaluate",
        help="all metrics of runs under calibrators, with intervals, from their stored logits",
        description="Measure runs again from their stored logits, without the model: every metric with a bootstrap\n"
        "interval, as it is and under calibrators fitted on the validation images.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(command=evaluate)
    add = one.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of a run")
    add("--out", metavar="FILE", help=".json or .csv of all runs (default: evaluation.json in each run's folder)")
    setting = partial(add, default=argparse.SUPPRESS)  # what is not said is left to EvaluationSettings
    setting(
        "--calibrators",
        nargs="+",
        metavar="NAME",
        help="see 'calprompt list', or 'a -> b'; none comes first (default: temperature dac sals)",
    )
    setting("--bins", type=int, metavar="N", help="of the calibration errors (default: 10)")
    setting("--convention", metavar="NAME", help="how to bin: default, tcpt or dac (default: default)")
    setting("--bootstrap", type=int, metavar="N", help="resamples of the images; 0: no intervals (default: 1000)")
    setting("--seed", type=int, help="of the resamples (default: 0)")
    setting("--zero-shot", action="store_true", help="the untuned model as well")
    setting("--target-error", type=float, metavar="X", help="choose a threshold with at most this error, such as 0.05")
    setting("--confidence-level", type=float, metavar="X", help="of that choice (default: 0.95)")
    setting("--import", action="append", metavar="FILE", dest="imports", help="Python file of your own to run first")


def evaluate(chosen: argparse.Namespace) -> None:
    """Evaluate runs from their logits, print a table of each and write the numbers down."""
    from calprompt.evaluation import EvaluationSettings, check_output, evaluate_run, write_evaluations
    from calprompt.evaluation.tables import print_evaluation

    said = {name: value for name, value in vars(chosen).items() if name not in ("command", "runs", "out")}
    for name in ("calibrators", "imports"):
        if name in said:
            said[name] = tuple(said[name])
    settings = EvaluationSettings(**said)
    if chosen.out is not None:
        check_output(chosen.out)
    with progress_bars(quiet=False) as progress:

        def measure(folder: Path) -> tuple[Evaluation, list[Path]]:
            evaluation = evaluate_run(folder, settings, progress=progress)
            return evaluation, write_evaluations([evaluation]) if chosen.out is None else []

        done, left_out = each_run(chosen.runs, measure)
    evaluations = [evaluation for evaluation, _ in done]
    written = [path for _, paths in done for path in paths]
    if chosen.out is not None and evaluations:
        written = write_evaluations(evaluations, chosen.out)  # before a pager may be quit
    console = output()
    for evaluation in evaluations:
        print_evaluation(evaluation, console)
    for path in written:
        console.print(str(path), markup=False, soft_wrap=True)
    if left_out is not None:
        raise left_out
