"""What the paper says: its names of methods, datasets, backbones and metrics, and the numbers that it printed.

`published.csv` has every number of every table: which table, split, backbone, tuner, method, metric and dataset. They
are means over three seeds, without intervals: context for ours, never mixed with them. Whether ours agrees follows from
the spread of our own seeds. Some of the printed averages are not the mean of their own row. Ours are compared with that
mean, and where the two are further apart than rounding explains, both are shown.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from statistics import mean, stdev
from typing import Any

from calprompt.errors import DataError
from calprompt.evaluation.numbers import student_quantile
from calprompt.metrics import metric_info
from calprompt.report.table import PLAIN, Column
from calprompt.report.writers import AGREES, AVERAGE_GAP, DIFFERS, NOT_RUN
from calprompt.results.methods import tuner_name
from calprompt.training_config import NAMED

ZERO_SHOT, VANILLA = "zero_shot", "vanilla"
METHODS = {
    ZERO_SHOT: "Zero-shot",
    VANILLA: "cross-entropy",
    "mbls": "MbLS",
    "temperature": "Temp. scaling",
    "dac": "DAC",
    "zs_norm": "ZS-Norm",
    "penalty": "Penalty",
    "tcpt": "TCPT",
    "margin": "margin",
    "margin+l1": "margin + L1",
    "margin+moments": "margin + moments",
}
LOSSES = {"ce": VANILLA, "margin_only": "margin", "margin_l1": "margin+l1"}
CALIBRATORS = ("temperature", "dac")  # methods of the paper, when they follow cross-entropy
DATASETS = {
    "imagenet": "INet",
    "caltech101": "Calt",
    "oxford_pets": "Pets",
    "stanford_cars": "Cars",
    "oxford_flowers": "Flow",
    "food101": "Food",
    "fgvc_aircraft": "Air",
    "sun397": "SUN",
    "dtd": "DTD",
    "eurosat": "Euro",
    "ucf101": "UCF",
    "imagenetv2": "INet-V2",
    "imagenet_sketch": "INet-S",
    "imagenet_a": "INet-A",
    "imagenet_r": "INet-R",
    "kather": "Kather",
    "pannuke": "PanNuke",
    "digestpath": "DigestPath",
}
BACKBONES = {
    "ViT-B-16-quickgelu/openai": "ViT-B/16",
    "ViT-B-32-quickgelu/openai": "ViT-B/32",
    "RN50-quickgelu/openai": "RN50",
    "hf-hub:vinid/plip": "PLIP",
    "hf-hub:wisdomik/QuiltNet-B-32": "QuiltNet",
}
SHORT = {"accuracy": "Acc.", "weighted_mce": "MCE"}
_MBLS = re.compile(r"ce \+ 0\.1\*mbls\(.*\)")


def method_of(row: Mapping[str, Any]) -> str:
    """The method of a row: one that the paper has, or loss and calibrator as they are.

    >>> rows = [{"model": "tuned", "loss": "ce", "calibrator": "none"}, {"model": "tuned", "loss": "ce"}]
    >>> [method_of(row | {"calibrator": name}) for row, name in zip(rows, ("none", "dac"))]
    ['vanilla', 'dac']
    >>> method_of({"model": "tuned", "loss": "tcpt", "calibrator": "temperature"})
    'tcpt, temperature'
    """
    calibrator = str(row.get("calibrator") or "none")
    if row.get("model") == "zero-shot":
        return ZERO_SHOT if calibrator == "none" else f"{ZERO_SHOT}, {calibrator}"
    loss = str(row.get("loss"))
    short = {text: name for name, text in NAMED.items()}.get(loss, loss)
    if _MBLS.fullmatch(loss):
        short = "mbls"
    method = LOSSES.get(short, short)
    if calibrator == "none":
        return method
    return calibrator if method == VANILLA and calibrator in CALIBRATORS else f"{method}, {calibrator}"


def method_label(method: str, tuner: str = "") -> str:
    """What a method is called; cross-entropy alone is the plain tuner.

    >>> method_label("vanilla", "coop"), method_label("tcpt"), method_label("focal(gamma=2)")
    ('CoOp', 'TCPT', 'focal(gamma=2)')
    """
    if method == VANILLA and tuner:
        return tuner_name(tuner)
    loss, comma, calibrator = method.partition(", ")
    return f"{METHODS.get(loss, loss)}{comma}{calibrator}"


def backbone_label(backbone: str) -> str:
    """What a backbone is called."""
    return BACKBONES.get(backbone, backbone)


def dataset_label(dataset: str) -> str:
    """What a column is called.

    >>> dataset_label("oxford_flowers"), dataset_label("pocket_animals"), dataset_label("mine")
    ('Flow', 'animals', 'mine')
    """
    return DATASETS.get(dataset, dataset.removeprefix("pocket_"))


def metric_measure(metric: str) -> Column:
    """How the paper writes a metric: in the unit that it is shown in.

    >>> metric_measure("weighted_mce").label, metric_measure("mce").label, metric_measure("nll").digits
    ('MCE', 'MCE (textbook)', 3)
    """
    info = metric_info(metric)
    digits, scale = (2, 100.0) if info.unit == "%" else (3, 1.0)
    label = SHORT.get(metric, info.label)
    return Column(metric, label, PLAIN, info.about, digits=digits, better=info.better, scale=scale)


SEEDS = 3  # behind every published mean
ROUNDING = 0.05  # percentage points that rounding and another processor may account for
AVERAGE = "average"  # in the place of a dataset, or of base and novel
ONE_SEED = "one seed"
OTHER_BACKBONE, OTHER_DATASETS, OTHER_MACHINE = "other backbone", "other datasets", "other machine"  # only context
NO_TEST = "no test"  # of a number whose spread is not known
IN_RESULTS = {"mce_weighted": "weighted_mce", "imagenet_v2": "imagenetv2"}  # what the file calls otherwise

# split (base, novel, all, or average: of base and novel), backbone as the paper writes it, tuner (zero_shot, or empty
# if the table does not say it), method (as `METHODS`, or settings such as alpha=0.1;beta=0.01), metric (or with
# _variance behind it), dataset (or average)
Key = tuple[str, str, str, str, str, str]


@cache
def published_tables() -> Mapping[str, Mapping[Key, float]]:
    """The numbers of every table in the unit that they were printed in: per cent, seconds, GB or none.

    >>> sum(map(len, published_tables().values()))
    3147
    >>> published_tables()["T1"]["base", "ViT-B/16", "zero_shot", "zero_shot", "accuracy", "imagenet"]
    72.4
    """
    text = (files("calprompt.paper") / "published.csv").read_text(encoding="utf-8")
    found: dict[str, dict[Key, float]] = {}
    for table, *words, value in list(csv.reader(text.splitlines()))[1:]:
        split, backbone, tuner, method, metric, dataset = (IN_RESULTS.get(word, word) for word in words)
        key = (split, backbone, tuner, method, metric, dataset)
        if key in found.setdefault(table, {}):
            raise DataError(f"published.csv has {', '.join(filter(None, key))} of table {table} twice")
        found[table][key] = float(value)
    return found


def published_table(name: str) -> Mapping[Key, float]:
    """The numbers of one table, by what they are of."""
    return published_tables().get(name, {})


@cache
def row_means(name: str) -> Mapping[Key, float]:
    """Of every printed average of a table, the mean of the numbers that it is the average of.

    >>> margin = ("novel", "ViT-B/16", "maple", "margin", "ece", "average")
    >>> published_table("ablation_losses")[margin], round(row_means("ablation_losses")[margin], 2)
    (5.09, 6.15)
    """
    table = published_table(name)
    found = {}
    for key in table:
        if AVERAGE in key:  # of a row, of all backbones and datasets, or of base and novel
            free = [place for place, word in enumerate(key) if word == AVERAGE]
            found[key] = mean(
                value
                for other, value in table.items()
                if AVERAGE not in other
                and all(place in free or other[place] == key[place] for place in range(len(key)))
            )
    return found


def is_apart(printed: float, mean_of_row: float) -> bool:
    """Whether a printed average differs from the mean of its row by more than rounding explains."""
    return abs(printed - mean_of_row) > AVERAGE_GAP


def same_backbone(backbone: str, published: str) -> bool:
    """Whether a backbone of the results is the one that the paper means.

    >>> same_backbone("ViT-B-16-quickgelu/openai", "ViT-B/16"), same_backbone("hf-hub:vinid/plip", "PLIP")
    (True, True)
    >>> same_backbone("pocket", "ViT-B/16")
    False
    """
    return published.lower().replace("/", "-") in backbone.lower().replace("/", "-")


def verdict(published: float, ours: Sequence[float]) -> str:
    r"""Whether our seeds agree with a published mean of three others.

        |mean(ours) − published| ≤ rounding + t₀.₉₇₅(n − 1) · s(ours) · √(1/n + 1/3)

    That is the 95 % interval for the difference of two means whose seeds vary alike. Few seeds make it wide: it does
    not say that numbers are the same, but that seeds alone may explain the difference.

    >>> verdict(71.2, [70.9, 71.4, 71.1]), verdict(80.0, [70.9, 71.4, 71.1]), verdict(71.2, [71.0]), verdict(71.2, [])
    ('agrees', 'differs', 'one seed', 'not run')
    """
    if not ours:
        return NOT_RUN
    if len(ours) == 1:
        return AGREES if abs(ours[0] - published) <= ROUNDING else ONE_SEED
    half = student_quantile(len(ours) - 1) * stdev(ours) * math.sqrt(1 / len(ours) + 1 / SEEDS)
    return AGREES if abs(mean(ours) - published) <= ROUNDING + half else DIFFERS


def variance_verdict(published: float, ours: Sequence[float]) -> str:
    """Whether the variance of our seeds agrees with a published one of three: an F-test at 5 %.

    >>> variance_verdict(1.0, [70.0, 71.0, 72.5]), variance_verdict(400.0, [70.0, 71.0, 72.5])
    ('agrees', 'differs')
    """
    from scipy.special import fdtri

    if len(ours) < 2:
        return ONE_SEED if ours else NOT_RUN
    low, high = (float(fdtri(SEEDS - 1, len(ours) - 1, share)) for share in (0.025, 0.975))
    own = stdev(ours) ** 2
    return AGREES if low * own - 0.005 <= published <= high * own + 0.005 else DIFFERS
