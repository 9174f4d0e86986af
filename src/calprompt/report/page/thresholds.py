"""From which confidence on may it be trusted? Thresholds for chosen error rates, and what they accept."""

from __future__ import annotations

from collections.abc import Sequence

from calprompt.evaluation.run_evaluation import KEEP_SOME
from calprompt.evaluation.selection import Accepted, Selection, select
from calprompt.evaluation.settings import create_calibrator
from calprompt.metrics.binomial import share_interval
from calprompt.report.page.document import COUNT, PERCENT, Cell, Column, Number, Row, Table
from calprompt.report.page.settings import ReportSettings
from calprompt.report.page.subjects import Subject

NO_IMAGES = f"the run has no validation images to choose it on; {KEEP_SOME}"
SPLITS = ("base", "novel", "all")


def threshold_table(chosen: Sequence[Subject], settings: ReportSettings) -> Table | None:
    """A row per subject and error rate.

    Args:
        chosen: Runs to look at.
        settings: Of the report.
    """
    splits = [split for split in SPLITS if any(split in subject.results for subject in chosen)]
    rows = []
    for subject in chosen:
        model = subject.stored.models[subject.model]
        tests = {split: model.tests[split] for split in subject.results}
        for error in settings.errors:
            found = Selection(reason=NO_IMAGES)
            if model.val is not None:
                calibrator = create_calibrator(subject.method.calibrator)
                found = select(calibrator, model.val, tests, target_error=error, seed=settings.seed)
            rows.append(Row(_cells(subject, error, found, splits), (subject.place,)))
    if not rows:
        return None
    columns = [
        *(Column("dataset", "dataset"), Column("method", "method"), Column("error", "wrong at most")),
        Column("threshold", "trust it from", PERCENT, "predictions with this confidence or more are accepted, percent"),
        Column("images", "chosen on", COUNT, "validation images that the threshold was chosen on"),
    ]
    for split in splits:
        columns += [
            Column(f"{split}_accepted", f"{split}: accepted", PERCENT, f"share of {split} test images, percent"),
            Column(f"{split}_wrong", f"{split}: wrong", PERCENT, "share of the accepted ones that is wrong, percent"),
        ]
    caption = (
        "The lowest confidence from which on at most so many predictions are wrong, with 95 % certainty, chosen on "
        "validation images of the classes that were tuned on. It is a promise for such images only: what happens on "
        "novel classes is shown beside it, and may be worse. Below a share is Wilson's 95 % interval. Where there is "
        "no threshold, the reason stands in its place."
    )
    command = "calprompt evaluate RUN --target-error 0.05"
    return Table("thresholds", "When to trust it", caption, tuple(columns), tuple(rows), ("dataset", "method"), command)


def _cells(subject: Subject, error: float, found: Selection, splits: Sequence[str]) -> tuple[Cell, ...]:
    cells: list[Cell] = [subject.dataset, subject.method.name, f"{100 * error:g} %"]
    chosen = found.chosen
    if found.threshold is None or chosen is None:
        images = Number(None) if chosen is None else Number(chosen.images)
        nothing = Number(None)
        return (*cells, Number(None, note=found.reason), images, *(nothing for _ in range(2 * len(splits))))
    cells += [Number(found.threshold), Number(chosen.images)]
    for split in splits:
        accepted = found.tests.get(split)
        cells += [_share(accepted, "accepted"), _share(accepted, "wrong")]
    return tuple(cells)


def _share(accepted: Accepted | None, which: str) -> Number:
    if accepted is None:
        return Number(None, note="it was not evaluated on such classes")
    count, total = (accepted.accepted, accepted.images) if which == "accepted" else (accepted.wrong, accepted.accepted)
    if not total:
        return Number(None, note="nothing is accepted")
    return Number(count / total, *share_interval(count, total))
