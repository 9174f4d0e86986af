"""What `calprompt results` prints: means of the rows of a table, and how many runs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table as Picture

from calprompt.cli.tables import create_table, format_metric
from calprompt.data.splits import OWN
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.results.table import Table

METRICS = ("accuracy", "ece", "ace", "nll")


def means_table(table: Table) -> Picture:
    """Means over the datasets and seeds of every method; zero-shot, which tuning does not change, once per tuner.

    Methods of one tuner, loss and calibrator that differ in other settings have rows of their own, which say in what.
    """
    from calprompt.metrics import metric_info
    from calprompt.results.methods import methods_of

    rows = [row for row in table.rows if row.get("model") is not None]
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for row, method in zip(rows, methods_of(rows), strict=True):
        if row.get("accuracy") is None or (method.is_zero_shot and method.calibrator != "none"):
            continue
        loss = "" if method.is_zero_shot else f"{row.get('loss')}{', anchored' * (row.get('anchor') == 'true')}"
        validation = [f"validation {row['validation']}"] if row.get("validation") not in (None, OWN) else []
        settings = method.detail.removeprefix(" (").removesuffix(")") or ", ".join(validation)
        place = (row["tuner"], loss, row["model"], method.calibrator, row["split"], settings)
        groups.setdefault(place, []).append({name: row[name] for name in METRICS if row.get(name) is not None})
    apart = any(key[-1] for key in groups)
    by = ("tuner", "loss", "model", "calibrator", "split", *(("settings",) if apart else ()))
    columns = [*((name, "left") for name in by), ("rows", "right")]
    columns += [(metric_info(name).label, "right") for name in METRICS]
    notes = sorted({f"; {row['validation']}: {row['note']}" for row in table.rows if row.get("note")})
    caption = "".join(("means in percent, but for NLL", *notes))
    picture = create_table(columns, caption=caption, caption_justify="left")
    for key, found in groups.items():
        values = [mean(there) if (there := [row[name] for row in found if name in row]) else None for name in METRICS]
        shown = [format_metric(name, value) for name, value in zip(METRICS, values, strict=True)]
        picture.add_row(*map(escape, key[: len(by)]), str(len(found)), *shown)
    return picture


def status_lines(table: Table) -> Iterator[str]:
    """How many runs have which status, and why some have no results."""
    status: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for number, row in enumerate(table.rows):
        name = str(row.get("run") or f"row {number}")
        status.setdefault(name, str(row.get("status")))
        if row.get("model") is None and row.get("status") != "finished":
            title = ", ".join(str(row[key]) for key in ("tuner", "loss", "data", "seed") if row.get(key) is not None)
            split = f", {row['split']}" if row.get("split") else ""
            reasons[f"{name}{split}"] = f"{row['status']}: {title or name}{split}" + (
                f": {row['reason']}" if row.get("reason") else ""
            )
    counts = Counter(status.values())
    notes = Counter({str(row.get("run")): str(row["note"]) for row in table.rows if row.get("note")}.values())
    yield f"{plural(len(table.rows), 'row')} of {plural(len(status), 'run')}: " + ", ".join(
        f"{count} {name}" for name, count in sorted(counts.items())
    )
    for note, count in sorted(notes.items()):
        yield f"{note}: {plural(count, 'run')}; fitted calibrators have seen the images they are measured on"
    shown = list(reasons.values())
    yield from shown[:10]
    if len(shown) > 10:
        yield f"… and {len(shown) - 10} more that are not finished"
