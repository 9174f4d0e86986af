"""The weight of the moment loss: accuracy and calibration error against lambda. Like the supplement's table of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from calprompt.report.figures.selection import read_series
from calprompt.report.figures.shots import curve_figure
from calprompt.report.figures.weights import tcpt_weights
from calprompt.results.sources import ReportSource


def from_source(source: ReportSource, *, metric: str = "ece") -> Figure:
    """Curves of a source's rows."""

    def group(row: Mapping[str, Any]) -> float | None:
        found = tcpt_weights(str(row["loss"]))
        return None if found is None else found[2]

    series = read_series(source, group, ("accuracy", metric), "weights of the moment loss")
    panels = {key: {"TCPT": points} for key, points in series.points.items()}
    return curve_figure(panels, "weight of the moment loss", note=series.note)
