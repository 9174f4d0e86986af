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
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.shared import add_flags, each_run, output, say, settings_of
from calprompt.errors import Parameter, SettingError
from calprompt.evaluation.settings import TUNED, EvaluationSettings
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
from calprompt.report.table import PERCENT, PLAIN, Cell, Column, Number, Row, Table, metric_column
from calprompt.report.writers import WIDTH, terminal_table
from calprompt.text import plural, shorten, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Picture

    from calprompt.classifier.checks import Check
    from calprompt.evaluation.run_evaluation import Calibrated, Evaluation

SUFFIXES = (".json", ".csv")
METRICS = (
    *("accuracy", "ece", "ece_debiased", "ece_p_value", "ace", "ace_debiased", "mce", "weighted_mce", "classwise_ece"),
    *("nll", "brier", "confidence_gap", "aurc"),
)
WITH_INTERVALS = {"ece_debiased": "ECE (debiased)", "ace_debiased": "ACE (debiased)", "ece_p_value": "p if calibrated"}
LABEL_WIDTH = len("keeps predictions")
LONGEST_NAME = 30  # a longer one is folded
SMALLEST_P = 0.001
MAX_MATRIX = 12  # classes up to which the whole confusion matrix is shown
MAX_LISTED = 20


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


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Every table of an evaluation, and what there is to say about it."""
    sizes = [f"{split}: {n} images of {C} classes" for split, (n, C) in evaluation.sizes.items()]
    sizes.append(f"fitted on {evaluation.val_images} validation images")
    _print_lines([evaluation.run.title, "; ".join(sizes)], console)
    for table in metric_tables(evaluation):
        console.print(table, "")
    _print_lines(notes(evaluation), console)
    error, level = evaluation.settings.target_error, evaluation.settings.confidence_level
    if error is not None:
        goal = f"thresholds for an error of at most {100 * error:g} % among accepted, at {100 * level:g} % confidence"
        _print_lines([goal], console)
        for table in selection_tables(evaluation):
            console.print(table, "")
        _print_lines(selection_notes(evaluation), console)


def _print_lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(line, markup=False, width=min(WIDTH, console.width))
    console.print()


def metric_tables(evaluation: Evaluation) -> Iterator[Picture]:
    """As many tables as it takes to keep within the width."""
    for shown in _packed(evaluation):
        columns = [Column("metric", ""), *(Column(each.calibrator, _header(each), PERCENT) for each in shown)]
        rows = [
            Row(("keeps predictions", *(_yes(each.keeps_argmax) for each in shown))),
            Row(("for novel classes", *(_yes(each.novel) for each in shown))),
        ]
        for split in evaluation.sizes:
            for metric in _metrics(evaluation):
                measure = _measure(metric)
                cells = (_cell(each, split, metric) for each in shown)
                rows.append(Row((f"  {measure.label}", *cells), group=split, measure=measure))
        picture = terminal_table(Table("metrics", "", "", tuple(columns), tuple(rows)))
        for column in picture.columns[1:]:
            column.max_width = LONGEST_NAME
        yield picture


def selection_tables(evaluation: Evaluation) -> Iterator[Picture]:
    """Thresholds, and what they do on validation and test images; a table for each of other data."""
    groups: dict[str, list[str]] = {"": ["val"]}
    for split in evaluation.sizes:
        groups.setdefault(split.rpartition("/")[0], []).append(split)
    for where, splits in groups.items():
        names = [f"{split.rpartition('/')[2]}\n{what}" for split in splits for what in ("coverage", "error")]
        columns = [Column("calibrator", ""), *(Column(name, name, PERCENT) for name in ("threshold", *names))]
        rows = []
        for each in evaluation.calibrated:
            assert each.selection is not None
            threshold, found = each.selection.threshold, each.selection.accepted
            cells = [
                Number(value)
                for split in splits
                for value in ((found[split].coverage, found[split].error) if split in found else (None, None))
            ]
            rows.append(Row((_header(each, " "), "n/a" if threshold is None else f"{threshold:g}", *cells)))
        yield terminal_table(Table("thresholds", where, "", tuple(columns), tuple(rows)))


def notes(evaluation: Evaluation) -> list[str]:
    """Explanations of the numbers, and why some are missing, a line each."""
    settings = evaluation.settings
    interval = f"[95 % interval, from {settings.bootstrap} resamples]; " if settings.bootstrap else ""
    lines = [
        f"percent, but NLL (nats) and Brier (0 to 2); {interval}{settings.bins} bins, convention "
        f"{settings.convention}; confidence gap is mean confidence minus accuracy: + is over-confident, "
        "- under-confident"
    ]
    if settings.bootstrap:
        lines.append(
            "debiased is what very many images would show: on few, chance makes ECE and ACE larger; p if calibrated is "
            "how often a perfectly calibrated model shows such an ECE on as many images"
        )
    if not evaluation.val_images:
        lines.append("the run has no validation images: no calibrator can be fitted, no threshold chosen")
    if evaluation.run.note is not None:
        lines.append(f"{evaluation.run.note}: fitted calibrators have seen the images of {_trained(evaluation)}")
    reasons: dict[str, list[str]] = {}
    for each in evaluation.calibrated:
        for split, reason in each.reasons.items():
            reasons.setdefault(reason, []).append(f"{split}, {_header(each, ' ')}")
    lines += [f"n/a ({'; '.join(places)}): {reason}" for reason, places in reasons.items()]
    return lines


def selection_notes(evaluation: Evaluation) -> list[str]:
    """What is guaranteed and what is not, and why there is no threshold."""
    lines = [
        f"The guarantee is for images drawn like the validation images, of {_trained(evaluation)}; the other columns "
        "show what happened on test images."
        + (" On novel classes nothing is guaranteed." if "novel" in evaluation.sizes else "")
    ]
    if evaluation.run.note is not None:
        lines.append(f"{evaluation.run.note}: those of {_trained(evaluation)} are the ones the threshold is chosen on.")
    if any("/" in split for split in evaluation.sizes):
        lines.append("On other data nothing is guaranteed, of whichever classes.")
    if any(each.selection is not None and each.selection.fitted_on for each in evaluation.calibrated):
        lines.append("Fitted calibrators saw half of the validation images for this; the threshold is from the others.")
    for each in evaluation.calibrated:
        if each.selection is not None and each.selection.reason is not None:
            lines.append(f"n/a ({_header(each, ' ')}): {each.selection.reason}")
    return lines


def _packed(evaluation: Evaluation) -> Iterator[Sequence[Calibrated]]:
    """Calibrators in groups of about the same size that fit beside the labels."""
    every = evaluation.calibrated
    splits, metrics = evaluation.sizes, _metrics(evaluation)
    texts = [
        _measure(metric).line(_cell(each, split, metric)) for each in every for split in splits for metric in metrics
    ]
    texts += [line[:LONGEST_NAME] for each in every for line in _header(each).splitlines()]
    fit = max(1, (WIDTH - LABEL_WIDTH) // (2 + max(map(len, texts))))
    groups = -(-len(every) // fit)
    size = -(-len(every) // groups)
    for start in range(0, len(every), size):
        yield every[start : start + size]


def _trained(evaluation: Evaluation) -> str:
    return "all classes" if "all" in evaluation.sizes else "the base classes"


def _cell(each: Calibrated, split: str, metric: str) -> Cell:
    found = each.values.get(split, {}).get(metric)
    if found is None or found.value is None:
        return Number()
    if metric == "ece_p_value":
        return f"{found.value:.3f}" if found.value >= SMALLEST_P else f"< {SMALLEST_P}"
    return Number(found.value, found.low, found.high)


def _measure(metric: str) -> Column:
    return metric_column(metric.removesuffix("_debiased").removesuffix("_p_value"), label=WITH_INTERVALS.get(metric))


def _metrics(evaluation: Evaluation) -> list[str]:
    """The rows of a split."""
    return [name for name in METRICS if evaluation.settings.bootstrap or name not in WITH_INTERVALS]


def _header(each: Calibrated, between: str = "\n") -> str:
    return each.calibrator if each.model == TUNED else f"{each.model}{between}{each.calibrator}"


def _yes(promise: bool) -> str:
    return "yes" if promise else "no"


def print_check(check: Check, console: Console) -> None:
    """The accuracy of each class, and the confusion matrix or the most confused pairs."""
    from calprompt.promises.requests import percent

    names = list(check.per_class)
    matrix = len(names) <= MAX_MATRIX
    columns = [Column("class", "class"), Column("images", "images", PLAIN, digits=0), Column("right", "right", PLAIN)]
    if matrix:
        columns += [Column(name, visible(name)[:10], PLAIN) for name in names]
    else:
        columns.append(Column("confused", "most often taken for"))
    shares = [right / n if n else 2.0 for n, right in check.per_class.values()]
    worst = sorted(range(len(names)), key=shares.__getitem__)
    rows = []
    for row in range(len(names)) if len(names) <= MAX_LISTED else worst[:MAX_LISTED]:
        n, right = check.per_class[names[row]]
        cells: list[Cell] = [visible(names[row]), Number(n), percent(round(right / n, 3)) if n else "n/a"]
        if matrix:
            cells += [str(count) if count else "·" for count in check.confusion[row]]
        else:
            wrong = sorted(zip(check.confusion[row], names, strict=True), reverse=True)
            cells.append(shorten((f"{name} ({count})" for count, name in wrong if count and name != names[row]), 3))
        rows.append(Row(tuple(cells)))
    console.print(terminal_table(Table("classes", "", "", tuple(columns), tuple(rows))))
    if len(names) > MAX_LISTED:
        console.print(f"the {MAX_LISTED} classes with the most errors of {len(names)}", markup=False)


def outcome_sentences(check: Check) -> list[str]:
    """The answers to images that no promise was made on, and whether the promises held."""
    from calprompt.promises.requests import percent

    found = check.outcomes
    answered, wrong = found["answer"], found["wrong"]
    rate = (
        f", of which {wrong} {'is' if wrong == 1 else 'are'} wrong ({percent(round(wrong / answered, 3))})"
        if answered
        else ""
    )
    lines = [
        f"It answers {answered} of {check.images} images{rate}; {found['unsure']} unsure, "
        f"{found['none of these']} none of these."
    ]
    target = found["target_error"]
    if target is not None and answered:
        lines.append(_verdict(wrong, answered, target))
    if "cost" in found:
        cost = found["cost"]
        lines.append(
            f"Its answers cost {cost['answers']:.3g} per image; answering every image {cost['every_image']:.3g}, and "
            f"with the most probable class {cost['most_probable']:.3g}."
        )
    for name, each in found.get("never_miss", {}).items():
        if each["images"]:
            share = percent(round(each["missed"] / each["images"], 4))
            lines.append(f"Of {plural(each['images'], 'image')} of {name!r}, {each['missed']} are missed ({share}).")
        if each["images"] and each["promised"] is not None:
            lines.append(_verdict(each["missed"], each["images"], each["promised"], "missed"))
    for name, each in found["sets"].items():
        if not each["images"]:
            continue
        share = percent(round(each["covered"] / each["images"], 3))
        about = f"the {each['images']} images of other classes than {shorten(each['excluded'])}"
        which = " per class" if name.endswith("per class") else ""
        promised = "nothing was promised" if each["promised"] is None else f"promised: {percent(each['promised'])}"
        lines.append(
            f"The set{which} contains the truth for {share} of {about if each['excluded'] else 'them'} ({promised}), "
            f"with {each['mean_size']:.1f} classes on average."
        )
    return lines


def _verdict(wrong: int, answered: int, target: float, what: str = "wrong") -> str:
    """Whether a promise on errors holds on images that it was not made on.

    >>> _verdict(5, 100, 0.1), _verdict(11, 100, 0.1), _verdict(30, 100, 0.1)  # doctest: +NORMALIZE_WHITESPACE
    ('These images agree with the promise of at most 10 % wrong.',
     'These images do not speak against the promise of at most 10 % wrong: so many errors may be chance.',
     'The promise of at most 10 % wrong does NOT hold for these images.')
    """
    from calprompt.metrics.binomial import log_binomial_tail
    from calprompt.metrics.selective import SIGNIFICANCE
    from calprompt.promises.requests import percent

    promise = f"the promise of at most {percent(target)} {what}"
    if wrong <= target * answered:
        return f"These images agree with {promise}."
    at_least = log_binomial_tail(answered - wrong, answered, 1 - target)  # P(Bin(n, target) ≥ wrong)
    if at_least > math.log(SIGNIFICANCE):
        return f"These images do not speak against {promise}: so many errors may be chance."
    return f"{promise[0].upper()}{promise[1:]} does NOT hold for these images."
