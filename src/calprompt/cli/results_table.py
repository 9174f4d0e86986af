"""What `calprompt results` prints: means of the rows of a table, and how many runs there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table as Picture

from calprompt.cli.tables import create_table, format_metric
from calprompt.data.validation import OWN
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.results import Table

BY = ("tuner", "loss", "model", "calibrator", "split")
METRICS = ("accuracy", "ece", "ace", "nll")


def means_table(table: Table) -> Picture:
    """Mean metrics over everything that is not a column; zero-shot, which tuning does not change, once per tuner.

    Runs that take their validation images from elsewhere have rows of their own.
    """
    from calprompt.metrics import metric_info

    by = (*BY, "validation") if any(row.get("validation") not in (None, OWN) for row in table.rows) else BY
    groups: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for row in table.rows:
        if row.get("model") is None or row.get("accuracy") is None:
            continue
        if row["model"] != "tuned" and row.get("calibrator") != "none":
            continue
        loss = "" if row["model"] != "tuned" else f"{row.get('loss')}{', anchored' * (row.get('anchor') == 'true')}"
        key = tuple(loss if name == "loss" else str(row.get(name) or "") for name in by)
        groups.setdefault(key, []).append({name: row[name] for name in METRICS if row.get(name) is not None})
    columns = [*((name, "left") for name in by), ("rows", "right")]
    columns += [(metric_info(name).label, "right") for name in METRICS]
    notes = sorted({f"; {row['validation']}: {row['note']}" for row in table.rows if row.get("note")})
    caption = "".join(("means in percent, but for NLL", *notes))
    picture = create_table(columns, caption=caption, caption_justify="left")
    for key, rows in groups.items():
        values = [mean(found) if (found := [row[name] for row in rows if name in row]) else None for name in METRICS]
        shown = [format_metric(name, value) for name, value in zip(METRICS, values, strict=True)]
        picture.add_row(*map(escape, key), str(len(rows)), *shown)
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
