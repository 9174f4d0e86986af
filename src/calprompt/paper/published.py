"""The numbers that the paper printed: context for ours, never mixed with them.

`published.csv` has every number of every table: which table, split, backbone, tuner, method, metric and dataset.
They are means over three seeds, without intervals. Whether ours agrees follows from the spread of our own seeds.

Some of the printed averages are not the mean of their own row. Ours are compared with that mean, and where the two are
further apart than rounding explains, both are shown.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import mean, stdev

from calprompt.errors import DataError
from calprompt.evaluation.numbers import student_quantile
from calprompt.report.writers import AGREES, AVERAGE_GAP, DIFFERS, NOT_RUN

SEEDS = 3  # behind every published mean
ROUNDING = 0.05  # percentage points that rounding and another processor may account for
AVERAGE = "average"  # in the place of a dataset, or of base and novel
ONE_SEED = "one seed"
OTHER_BACKBONE, OTHER_DATASETS, OTHER_MACHINE = "other backbone", "other datasets", "other machine"  # only context
NO_TEST = "no test"  # of a number whose spread is not known
METRICS = {"mce_weighted": "weighted_mce"}  # as the file calls them -> as the results do
DATASETS = {"imagenet_v2": "imagenetv2"}

Key = tuple[str, str, str, str, str, str]  # split, backbone, tuner, method, metric, dataset


@dataclass(frozen=True)
class PublishedNumber:
    """A number of the paper, in the unit that it was printed in: per cent, seconds, GB or none."""

    table: str  # that it stands in, such as T1 or S_medical
    split: str  # base, novel, all, or average: of base and novel
    backbone: str  # as the paper writes it, such as ViT-B/16
    tuner: str  # as in results; zero_shot, or empty if the table does not say it
    # vanilla (cross-entropy), mbls, temperature, dac, zs_norm, penalty, tcpt, or settings such as alpha=0.1;beta=0.01
    method: str
    metric: str  # as in results, or with _variance behind it
    dataset: str  # as in results, or average
    value: float  # the number

    @property
    def key(self) -> Key:
        """What it is found by within its table."""
        return (self.split, self.backbone, self.tuner, self.method, self.metric, self.dataset)


@cache
def published_numbers() -> tuple[PublishedNumber, ...]:
    """All numbers, in the order of the paper.

    >>> numbers = published_numbers()
    >>> len(numbers), numbers[0].table, numbers[0].dataset, numbers[0].metric, numbers[0].value
    (3147, 'T1', 'imagenet', 'accuracy', 72.4)
    """
    text = (files("calprompt.paper") / "published.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(text.splitlines()):
        row["metric"] = METRICS.get(row["metric"], row["metric"])
        row["dataset"] = DATASETS.get(row["dataset"], row["dataset"])
        found.append(PublishedNumber(**{**row, "value": float(row["value"])}))  # type: ignore[arg-type]
    return tuple(found)


@cache
def published_table(name: str) -> Mapping[Key, float]:
    """The numbers of one table, by what they are of."""
    found: dict[Key, float] = {}
    for number in published_numbers():
        if number.table == name:
            if number.key in found:
                raise DataError(f"published.csv has {', '.join(filter(None, number.key))} of table {name} twice")
            found[number.key] = number.value
    return found


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
