"""An evaluation as tables for a terminal of 100 columns: metrics down, calibrators across."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calprompt.cli.tables import WIDTH, create_table, format_metric
from calprompt.evaluation.models import TUNED
from calprompt.evaluation.run_evaluation import Calibrated, Evaluation, Measured
from calprompt.metrics import metric_info

METRICS = (
    "accuracy",
    "ece",
    "ece_debiased",
    "ece_p_value",
    "ace",
    "ace_debiased",
    "mce",
    "weighted_mce",
    "classwise_ece",
    "nll",
    "brier",
    "confidence_gap",
    "aurc",
)
WITH_INTERVALS = {"ece_debiased": "ECE (debiased)", "ace_debiased": "ACE (debiased)", "ece_p_value": "p if calibrated"}
LABEL = len("keeps predictions")
LONGEST_NAME = 30  # a longer one is folded
LEAST_P = 0.001


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Every table of an evaluation, and what there is to say about it."""
    _print_lines([evaluation.run.title, _sizes(evaluation)], console)
    for table in metric_tables(evaluation):
        console.print(table, "")
    _print_lines(notes(evaluation), console)
    if evaluation.settings.target_error is not None:
        _print_lines([_goal(evaluation)], console)
        for table in selection_tables(evaluation):
            console.print(table, "")
        _print_lines(selection_notes(evaluation), console)


def _print_lines(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(line, markup=False, width=min(WIDTH, console.width))
    console.print()


def metric_tables(evaluation: Evaluation) -> Iterator[Table]:
    """As many tables as it takes to keep within the width."""
    for columns in _packed(evaluation):
        table = create_table([("", "left"), *((escape(_header(each)), "right") for each in columns)])
        for column in table.columns[1:]:
            column.max_width = LONGEST_NAME
        table.add_row("keeps predictions", *(_yes(each.keeps_argmax) for each in columns))
        table.add_row("for novel classes", *(_yes(each.novel) for each in columns), end_section=True)
        for split in evaluation.sizes:
            table.add_row(f"[bold]{split}[/bold]")
            for metric in _metrics(evaluation):
                label = WITH_INTERVALS.get(metric) or metric_info(metric).label
                table.add_row(f"  {label}", *(escape(_cell(each, split, metric)) for each in columns))
            table.add_section()
        yield table


def selection_tables(evaluation: Evaluation) -> Iterator[Table]:
    """Thresholds, and what they do on validation and test images; a table for each of other data."""
    groups: dict[str, list[str]] = {"": ["val"]}
    for split in evaluation.sizes:
        groups.setdefault(split.rpartition("/")[0], []).append(split)
    for where, splits in groups.items():
        columns = [f"{split.rpartition('/')[2]}\n{what}" for split in splits for what in ("coverage", "error")]
        headings = [("", "left"), *((name, "right") for name in ("threshold", *columns))]
        table = create_table(headings, title=escape(where) or None)
        for each in evaluation.calibrated:
            assert each.selection is not None
            threshold, found = each.selection.threshold, each.selection.accepted
            cells = [
                _percent(value)
                for split in splits
                for value in ((found[split].coverage, found[split].error) if split in found else (None, None))
            ]
            table.add_row(escape(_header(each, " ")), "n/a" if threshold is None else f"{threshold:g}", *cells)
        yield table


def notes(evaluation: Evaluation) -> list[str]:
    """What the numbers are, and why some are missing, a line each."""
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
    texts = [_cell(each, split, metric) for each in every for split in splits for metric in metrics]
    texts += [line[:LONGEST_NAME] for each in every for line in _header(each).splitlines()]
    fit = max(1, (WIDTH - LABEL) // (2 + max(map(len, texts))))
    groups = -(-len(every) // fit)
    size = -(-len(every) // groups)
    for start in range(0, len(every), size):
        yield every[start : start + size]


def _sizes(evaluation: Evaluation) -> str:
    parts = [f"{split}: {n} images of {C} classes" for split, (n, C) in evaluation.sizes.items()]
    return "; ".join([*parts, f"fitted on {evaluation.val_images} validation images"])


def _trained(evaluation: Evaluation) -> str:
    return "all classes" if "all" in evaluation.sizes else "the base classes"


def _goal(evaluation: Evaluation) -> str:
    error, level = evaluation.settings.target_error or 0.0, evaluation.settings.confidence_level
    return f"thresholds for an error of at most {100 * error:g} % among accepted, at {100 * level:g} % confidence"


def _cell(each: Calibrated, split: str, metric: str) -> str:
    found = each.values.get(split, {}).get(metric)
    return "n/a" if found is None else _shown(found, metric)


def _metrics(evaluation: Evaluation) -> list[str]:
    """The rows of a split."""
    return [name for name in METRICS if evaluation.settings.bootstrap or name not in WITH_INTERVALS]


def _shown(found: Measured, metric: str) -> str:
    if metric == "ece_p_value":
        return f"{found.value:.3f}" if found.value >= LEAST_P else f"< {LEAST_P}"
    metric = metric.removesuffix("_debiased")
    if found.low is None or found.high is None:
        return format_metric(metric, found.value)
    value, low, high = (format_metric(metric, number) for number in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"


def _header(each: Calibrated, between: str = "\n") -> str:
    return each.calibrator if each.model == TUNED else f"{each.model}{between}{each.calibrator}"


def _yes(promise: bool) -> str:
    return "yes" if promise else "no"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f}"
