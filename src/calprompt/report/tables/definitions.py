"""The tables of the paper: what stands in each, and the sweep that its runs come from.

A table is drawn by one of the layouts:

    by_dataset    methods down, grouped by tuner; datasets across, and their average     Tables 1, 2, 3 and most others
    by_backbone   methods down; backbones, datasets and metrics across                   medical images
    by_setting    settings down; metrics across, on base and novel classes               alpha and beta, lambda
    costs         methods down; seconds and memory across                                time
    gradients     ratios of gradient norms down; quantiles across                        gradient norms
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calprompt.errors import SettingError
from calprompt.registry import unknown
from calprompt.report.tables.names import METHODS, VANILLA, ZERO_SHOT, method_of
from calprompt.sweep.sweep_file import PACKAGE

Layout = Literal["by_dataset", "by_backbone", "by_setting", "costs", "gradients"]
MethodOf = Callable[[Mapping[str, Any]], str | None]
ACCURACY_ECE = ("accuracy", "ece")
BASELINES = (VANILLA, "zs_norm", "penalty", "tcpt")
HARMONIC = "harmonic"
SPLITS = ("base", "novel", "all", HARMONIC)


@dataclass(frozen=True)
class TableDefinition:
    """A table of the paper.

    Attributes:
        name: Of the table and of its sweep.
        title: What it shows.
        layout: How it is drawn.
        methods: In the order of the paper.
        metrics: In the order of the paper.
        splits: A table each.
        published: Split -> name of the table in the published numbers.
        statistic: mean over seeds, or their variance.
        by_backbone: Whether backbones are kept apart.
        transfers: Whether it is of other data than those that runs were tested on at first.
        method: The method of a row; rows without one are not part of the table.
        mixed: The sweep in which every method has settings of its own, if there is one.
    """

    name: str
    title: str
    layout: Layout = "by_dataset"
    methods: tuple[str, ...] = BASELINES
    metrics: tuple[str, ...] = ACCURACY_ECE
    splits: tuple[str, ...] = ("base", "novel")
    published: Mapping[str, str] = field(default_factory=dict)
    statistic: Literal["mean", "variance"] = "mean"
    by_backbone: bool = False
    transfers: bool = False
    method: MethodOf = method_of
    mixed: tuple[str, ...] = ()

    @property
    def sweeps(self) -> list[str]:
        """Its sweep in all forms: with the settings of the paper, the released ones, both mixed, and on the pocket."""
        forms = (self.name, f"{self.name}-released", *self.mixed, f"pocket-{self.name}")
        return [f"{PACKAGE}/{name}" for name in forms]


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


def method_names(definition: TableDefinition) -> list[str]:
    """Methods that a table can be asked for by name, besides any loss that the results have."""
    return list(dict.fromkeys((*definition.methods, *METHODS)))


@dataclass(frozen=True)
class TableOptions:
    """What is different from the paper's table.

    Attributes:
        splits: base, novel, all or harmonic (the harmonic mean of base and novel accuracy, the mean of errors); those
            of the paper, if empty.
        metrics: In the place of the paper's, if any.
        methods: Only these, such as vanilla and tcpt, or a loss, or "tcpt, temperature"; the paper's, and other losses
            that the results have, if empty.
        spread: With the standard deviation over seeds.
        difference: With the average's paired difference to the plain tuner, and its interval over datasets.
        published: With the paper's numbers.
    """

    splits: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    spread: bool = False
    difference: bool = False
    published: bool = False

    def __post_init__(self) -> None:
        wrong = [split for split in self.splits if split not in SPLITS]
        if wrong:
            raise SettingError(f"must be one of {', '.join(SPLITS)}; got {wrong[0]!r}", parameter="split")
