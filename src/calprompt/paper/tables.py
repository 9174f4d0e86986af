"""The tables of the paper: what stands in each, what it calls methods and datasets, and the sweep of its runs.

A table is drawn by one of the layouts:

    by_dataset    methods down, grouped by tuner; datasets across, and their average     Tables 1, 2, 3 and most others
    by_backbone   methods down; backbones, datasets and metrics across                   medical images
    by_setting    settings down; metrics across, on base and novel classes               alpha and beta, lambda
    costs         methods down; seconds and memory across                                time
    gradients     ratios of gradient norms down; quantiles across                        gradient norms
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from calprompt.paper.published import VANILLA, ZERO_SHOT, method_of
from calprompt.registry import unknown
from calprompt.report.table import Table, TableOptions

if TYPE_CHECKING:
    from calprompt.results.sources import ReportSource

Layout = Literal["by_dataset", "by_backbone", "by_setting", "costs", "gradients"]
COSTS, GRADIENTS = "costs", "gradients"  # layouts of training itself
MethodOf = Callable[[Mapping[str, Any]], str | None]
ACCURACY_ECE = ("accuracy", "ece")
BASELINES = (VANILLA, "zs_norm", "penalty", "tcpt")


@dataclass(frozen=True)
class TableDefinition:
    """A table of the paper."""

    name: str  # of the table and of its sweep
    title: str  # what it shows
    layout: Layout = "by_dataset"  # how it is drawn
    methods: tuple[str, ...] = BASELINES  # in the order of the paper
    metrics: tuple[str, ...] = ACCURACY_ECE  # in the order of the paper
    splits: tuple[str, ...] = ("base", "novel")  # a table each
    published: Mapping[str, str] = field(default_factory=dict)  # split -> name of the table in the published numbers
    statistic: Literal["mean", "variance"] = "mean"  # mean over seeds, or their variance
    by_backbone: bool = False  # whether backbones are kept apart
    transfers: bool = False  # whether it is of other data than those that runs were tested on at first
    method: MethodOf = method_of  # the method of a row; rows without one are not part of the table
    mixed: tuple[str, ...] = ()  # the sweep in which every method has settings of its own, if there is one

    @property
    def sweeps(self) -> list[str]:
        """Its sweep in all forms: with the settings of the paper, the released ones, both mixed, and on the pocket."""
        forms = (self.name, f"{self.name}-released", *self.mixed, f"pocket-{self.name}")
        return [f"paper/{name}" for name in forms]

    def make(self, source: ReportSource, options: TableOptions | None = None) -> list[Table]:
        """The tables of a source; see `make_tables`."""
        return make_tables(self.name, source, options)


def _part_of_tcpt(row: Mapping[str, Any]) -> str | None:
    """The parts of TCPT's sum, by which the whole is margin + moments."""
    method = method_of(row)
    return "margin+moments" if method == "tcpt" else method


def _weights(pattern: str, names: tuple[str, ...], usual: tuple[str, ...]) -> MethodOf:
    """Methods that are settings of TCPT, such as alpha=0.1;beta=0.01."""
    form = re.compile(pattern)

    def setting(row: Mapping[str, Any]) -> str | None:
        if row.get("model") == "zero-shot" or row.get("calibrator") not in (None, "none"):
            return None
        if method_of(row) == "tcpt":
            values = usual
        elif found := form.fullmatch(str(row.get("loss"))):
            values = found.groups()
        else:
            return None
        return ";".join(f"{name}={float(value):g}" for name, value in zip(names, values, strict=True))

    return setting


def _each(table: str) -> dict[str, str]:
    return {split: f"{table}_{split}" for split in ("base", "novel")}


_FOUND = (
    TableDefinition(
        "main",
        "Accuracy and calibration on {split} classes",
        methods=(ZERO_SHOT, VANILLA, "mbls", "temperature", "dac", "zs_norm", "penalty", "tcpt"),
        published={"base": "T1", "novel": "T2"},
        mixed=("main-mixed",),
    ),
    TableDefinition(
        "ablation",
        "Parts of TCPT, on {split} classes",
        methods=(VANILLA, "margin", "margin+l1", "margin+moments"),
        splits=("novel",),
        published={"novel": "ablation_losses"},
        method=_part_of_tcpt,
    ),
    TableDefinition(
        "tuners",
        "Accuracy and calibration on {split} classes, more tuners",
        methods=(ZERO_SHOT, VANILLA, "zs_norm", "penalty", "dac", "tcpt"),
        published={"base": "S1", "novel": "S2"},
    ),
    TableDefinition(
        "shifts",
        "Accuracy and calibration on {split} classes under distribution shifts",
        published=_each("S_shift"),
        transfers=True,
    ),
    TableDefinition(
        "ace-mce",
        "Weighted maximum and adaptive calibration error on {split} classes",
        methods=(VANILLA, "dac", "zs_norm", "penalty", "tcpt"),
        metrics=("weighted_mce", "ace"),
        published=_each("S_mce_ace"),
    ),
    TableDefinition(
        "medical",
        "Accuracy and calibration on all classes of images far from pretraining",
        layout="by_backbone",
        methods=(VANILLA, "mbls", "zs_norm", "penalty", "tcpt"),
        splits=("all",),
        published={"all": "S_medical"},
        by_backbone=True,
    ),
    TableDefinition(
        "alpha-beta",
        "The weights alpha and beta of the margin loss, means over datasets",
        layout="by_setting",
        methods=tuple(f"alpha={alpha};beta={beta}" for beta in (0.01, 0.05) for alpha in (0.1, 0.2, 0.3)),
        splits=(),
        published={"": "S_alpha_beta"},
        method=_weights(
            r"ce \+ margin\(alpha=([\d.]+), beta=([\d.]+)\) \+ 5\*moments", ("alpha", "beta"), ("0.1", "0.01")
        ),
    ),
    TableDefinition(
        "lambda",
        "The weight lambda of the moments, means over datasets",
        layout="by_setting",
        methods=tuple(f"lambda_mom={weight}" for weight in (1, 3, 5, 8, 10)),
        splits=(),
        published={"": "S_lambda_mom"},
        method=_weights(r"ce \+ margin \+ ([\d.]+)\*moments", ("lambda_mom",), ("5",)),
    ),
    TableDefinition(
        "variance",
        "Variance over seeds on {split} classes",
        splits=("novel",),
        published={"novel": "S_variance"},
        statistic="variance",
    ),
    TableDefinition(
        "backbones",
        "Accuracy and calibration on {split} classes with other backbones",
        published=_each("S_backbone"),
        by_backbone=True,
    ),
    TableDefinition(
        "time",
        "Time and memory of training",
        layout="costs",
        methods=(VANILLA, "tcpt"),
        metrics=(),
        splits=(),
        published={"": "S_compute"},
    ),
    TableDefinition(
        "gradients",
        "Ratios of gradient norms over all training steps",
        layout="gradients",
        methods=("tcpt",),
        metrics=(),
        splits=(),
        published={"": "S_grad_ratios"},
    ),
)
TABLES = {table.name: table for table in _FOUND}


def table_definition(name: str) -> TableDefinition:
    """The table of a name.

    >>> table_definition("main").sweeps
    ['paper/main', 'paper/main-released', 'paper/main-mixed', 'paper/pocket-main']
    """
    if name not in TABLES:
        raise unknown("table", name, list(TABLES))
    return TABLES[name]


def make_tables(name: str, source: ReportSource, options: TableOptions | None = None) -> list[Table]:
    """The tables of a name, one per split.

    Args:
        name: Name of the table, such as main; see `calprompt table --help`.
        source: Results: `read_source(places, usual=table_definition(name).sweeps)`.
        options: Changes to the paper's table.

    Returns:
        Tables as data, for the writers of `calprompt.report.writers`.

    Raises:
        CalpromptError: if there is no such table, or the results have nothing of it.

    >>> from calprompt.results.sources import read_source
    >>> source = read_source("experiments/paper.csv.xz", "paper/pocket-lambda")
    >>> [(table.key, len(table.rows)) for table in make_tables("lambda", source)]
    [('lambda', 5)]
    """
    from calprompt.paper.layouts import backbone_table, cost_table, dataset_table, gradient_table, setting_table
    from calprompt.paper.values import collect

    definition, options = table_definition(name), options or TableOptions()
    if definition.layout in (COSTS, GRADIENTS):
        _check_methods(options.methods, definition.methods)
        return [(cost_table if definition.layout == COSTS else gradient_table)(definition, source, options)]
    values = collect(
        source, transfers=definition.transfers, by_backbone=definition.by_backbone, method=definition.method
    )
    _check_methods(options.methods, {place.method for place in values.rows})
    if definition.layout == "by_setting":
        return [setting_table(definition, values, options)]
    splits = options.splits or definition.splits
    layout = backbone_table if definition.layout == "by_backbone" else dataset_table
    return [layout(definition, values, split, options) for split in splits]


def _check_methods(wanted: Iterable[str], there: Iterable[str]) -> None:
    """Raise for a method that the results do not have."""
    there = list(there)
    for name in wanted:
        if name not in there:
            raise unknown("method", name, there)
