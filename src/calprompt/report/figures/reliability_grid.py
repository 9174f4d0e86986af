"""Reliability diagrams of a source: a row for base and novel classes, a column for every method.

Like the paper's Figure 2 (left), the first panels of Figure 5, and the supplement's figure of the moment loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from calprompt.report.figures import selection
from calprompt.report.figures.style import sample_text
from calprompt.report.reliability import BINS, Panel, reliability_figure, runs_panel
from calprompt.results.sources import ReportSource


def from_source(
    source: ReportSource,
    *,
    methods: Sequence[str] | None = None,
    split: str | None = None,
    bins: int = BINS,
    zero_shot: bool = False,
) -> Figure:
    """The diagrams of a source's stored logits: images of all datasets and seeds together."""
    panels: dict[str, dict[str, Panel]] = {}
    datasets: set[str] = set()
    seeds: set[int] = set()
    for part in selection.check_split(source, split):
        stored = selection.stored_runs(source, part, methods=methods, zero_shot=zero_shot)
        panels[part] = {name: runs_panel([run.sample for run in runs], n_bins=bins) for name, runs in stored.items()}
        datasets |= {run.dataset for runs in stored.values() for run in runs}
        seeds |= {run.seed for runs in stored.values() for run in runs}
    note = f"images of {sample_text(datasets=len(datasets), seeds=len(seeds))} together"
    return reliability_figure(panels, note=note)
