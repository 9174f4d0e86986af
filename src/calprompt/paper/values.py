"""From rows of results to the numbers of a table: by group, method, dataset and split, one per seed; and their means.

An average over datasets needs all of them: where one is missing there is no average, because that of the others could
not be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, stdev, variance
from typing import Any

from calprompt.evaluation.numbers import Number
from calprompt.paper.published import (
    AVERAGE,
    CALIBRATORS,
    NOT_RUN,
    VANILLA,
    ZERO_SHOT,
    Key,
    is_apart,
    method_of,
    published_table,
    row_means,
    verdict,
)
from calprompt.report.table import HARMONIC, Column
from calprompt.results.methods import Cells, Method, plain_of, tell_apart
from calprompt.results.sources import ReportSource

Group = tuple[str, str]  # tuner, backbone
Seeds = dict[int, Mapping[str, Any]]  # seed -> its row
BySeed = Mapping[int, float]
Judge = Callable[[float, Sequence[float]], str]


@dataclass(frozen=True)
class Place:
    """Where a value stands."""

    group: Group  # tuner and backbone; two empty names for zero-shot, which all tuners share
    method: str  # as `method_of` names it, and the settings in which methods of that name differ
    dataset: str  # that it was tested on
    split: str  # base, novel or all


@dataclass
class Values:
    """Rows of results by their place."""

    # place -> seed -> row; a place without seeds was planned and has no result
    rows: dict[Place, Seeds] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # method as places have it -> its name without settings
    # group and method as places have it -> the method
    known: dict[tuple[Group, str], Method] = field(default_factory=dict)

    def seeds(self, place: Place, metric: str) -> dict[int, float]:
        """The values of a metric by seed; harmonic and average are of base and novel."""
        if place.split in (HARMONIC, AVERAGE):
            base, novel = (self.seeds(replace(place, split=part), metric) for part in PARTS)
            kind = metric if place.split == HARMONIC else ""
            return {seed: combined(kind, base[seed], novel[seed]) for seed in base if seed in novel}
        found = {seed: row.get(metric) for seed, row in self.rows.get(place, {}).items()}
        return {seed: float(value) for seed, value in sorted(found.items()) if value is not None}

    def shown(self, place: Place, measure: Column) -> dict[int, float]:
        """The values of a measure by seed, in its unit."""
        return {seed: measure.scale * value for seed, value in self.seeds(place, measure.key).items()}

    def number(self, places: Sequence[Place], measure: Column) -> Number:
        """The mean over seeds, and over places if there are several; see `average`."""
        return average([self.shown(place, measure) for place in places])

    def name(self, method: str) -> str:
        """A method without its settings, as the paper has it."""
        return self.names.get(method, method)

    def backbone(self, group: Group) -> str:
        """That the results of a group are of."""
        rows = (row for place, seeds in self.rows.items() if place.group == group for row in seeds.values())
        return str(next(rows, {}).get("backbone", ""))

    @property
    def groups(self) -> list[Group]:
        """Tuners and backbones, without the empty one."""
        return [group for group in dict.fromkeys(place.group for place in self.rows) if group != SHARED]

    @property
    def datasets(self) -> list[str]:
        """In the order of the results."""
        return list(dict.fromkeys(place.dataset for place in self.rows))

    def methods(self, group: Group) -> list[str]:
        """Of a group, in the order of the results."""
        return list(dict.fromkeys(place.method for place in self.rows if place.group == group))

    def chosen(self, groups: Iterable[Group], wanted: Iterable[str]) -> list[str]:
        """The methods of groups that have some names, in the order of the names; each setting is a method."""
        there = [method for group in groups for method in self.methods(group)]
        found = [method for name in wanted for method in there if name in (method, self.names[method])]
        return list(dict.fromkeys(found))

    def listed(
        self,
        groups: Sequence[Group],
        known: Sequence[str],
        wanted: Sequence[str],
        is_planned: Callable[[str], bool] = lambda name: False,
    ) -> list[str]:
        """The methods of a table: those asked for; else those of the paper in its order, then other losses."""
        if wanted:
            return self.chosen(groups, wanted)
        listed = []
        for name in known:
            listed += self.chosen(groups, [name]) or ([name] if is_planned(name) else [])
        others = dict.fromkeys(each for group in groups for each in self.methods(group) if each not in listed)
        hidden = {*CALIBRATORS, *({ZERO_SHOT} - set(known))}
        return [*listed, *(each for each in others if "," not in self.names[each] and self.names[each] not in hidden)]

    def plain(self, group: Group, method: str) -> str:
        """The cross-entropy that a method of a group is compared with: that with the most equal settings."""
        candidates = {self.known[group, each]: each for each in self.chosen([group], [VANILLA])}
        plain = plain_of(self.known[group, method], candidates) if (group, method) in self.known else None
        return candidates[plain] if plain is not None else VANILLA


SHARED: Group = ("", "")
PARTS = ("base", "novel")


def combined(metric: str, base: float, novel: float) -> float:
    """Base and novel as one number: the harmonic mean of accuracies, the mean of anything else.

    >>> round(combined("accuracy", 0.8, 0.6), 4), combined("ece", 0.02, 0.04)
    (0.6857, 0.03)
    """
    if metric == "accuracy":
        return 2 * base * novel / (base + novel) if base + novel else 0.0
    return (base + novel) / 2


def collect(
    source: ReportSource,
    *,
    transfers: bool = False,
    by_backbone: bool = False,
    method: Callable[[Mapping[str, Any]], str | None] = method_of,
) -> Values:
    """Sort rows into places."""
    named = [(row, name) for row in source.table.rows if row.get("tuner") is not None and (name := method(row))]
    groups = {id(row): (str(row["tuner"]), str(row["backbone"]) if by_backbone else "") for row, _ in named}

    def alike(row: Mapping[str, Any], name: str) -> tuple[Any, ...]:
        """What has one name in the table: a method of a group; the untuned model, if it is the same for all tuners."""
        found = source.method(row)
        shared = found.is_zero_shot and "tuner" not in dict(found.settings)
        return (("", groups[id(row)][1]) if shared else groups[id(row)]), name

    details = tell_apart((alike(row, name), source.method(row), row) for row, name in named)
    values, cells = Values(), Cells[Place]()
    values.rows = cells.rows
    planned: list[Place] = []
    for row, name in named:
        group, found = groups[id(row)], source.method(row)
        full = f"{name}{details[alike(row, name), found]}"
        values.names[full] = name
        values.known[group, full] = found
        where, _, split = str(row.get("split") or "").rpartition("/")
        if row.get("model") is None:
            planned += [Place(group, full, str(row.get("data")), part) for part in (*PARTS, "all")]
            continue
        if transfers and not where:  # a run that may not have been evaluated on other data yet
            planned.append(Place(group, full, "", split))
        if bool(where) == transfers and split in (*PARTS, "all"):
            cells.add(Place(group, full, where or str(row["dataset"]), split), row, found)
    datasets, splits = values.datasets, {place.split for place in values.rows}
    for place in dict.fromkeys(planned):
        for dataset in datasets if transfers else [place.dataset]:
            if place.split in splits:
                values.rows.setdefault(replace(place, dataset=dataset), {})
    return _shared_zero_shot(values)


def _shared_zero_shot(values: Values) -> Values:
    """Zero-shot once for all tuners, if they agree about it, as they do under the same template."""
    untuned = [(key, method) for key, method in values.known.items() if values.names[key[1]] == ZERO_SHOT]
    apart = any("tuner" in dict(method.settings) for _, method in untuned)
    if apart or len({group[1] for (group, _), _ in untuned}) > 1:
        return values
    shared: dict[Place, Seeds] = {}
    for place, seeds in values.rows.items():
        is_untuned = values.names[place.method] == ZERO_SHOT
        kept = shared.setdefault(replace(place, group=SHARED) if is_untuned else place, {})
        for seed, row in seeds.items():
            kept.setdefault(seed, row)
    return Values(shared, values.names, values.known)


def variance_number(values: BySeed) -> Number:
    """The variance over seeds, with n − 1 in the denominator; nothing for one seed.

    >>> variance_number({1: 70.0, 2: 72.0, 3: 74.0}).value
    4.0
    """
    seeds = tuple(values.values())
    return Number(variance(seeds) if len(seeds) > 1 else None, seeds=seeds)


def average(by_seed: Sequence[BySeed]) -> Number:
    """The mean over datasets of the means over seeds, with the standard deviation over seeds of that mean.

    >>> average([{1: 70.0, 2: 72.0}])[:1], average([{1: 70.0, 2: 72.0}, {}]).value
    ((71.0,), None)
    """
    if not by_seed or not all(by_seed):
        return Number()
    shared = set.intersection(*(set(each) for each in by_seed))
    complete = all(set(each) == shared for each in by_seed)
    seeds = tuple(mean(each[seed] for each in by_seed) for seed in sorted(shared)) if complete else ()
    total = mean(mean(each.values()) for each in by_seed)
    return Number(total, seeds=seeds, spread=stdev(seeds) if len(seeds) > 1 else None)


def paired_difference(ours: Sequence[BySeed], plain: Sequence[BySeed]) -> Number:
    """A method minus the plain tuner: paired by seed, and an interval over datasets."""
    found = []
    for one, other in zip(ours, plain, strict=True):
        shared = sorted(set(one) & set(other))
        if not shared:
            return Number()
        found.append(mean(one[seed] - other[seed] for seed in shared))
    if not found:
        return Number()
    return Number.over(found)


@dataclass(frozen=True)
class Published:
    """What the paper has in one of its tables; nothing unless it was asked for."""

    numbers: Mapping[Key, float]
    means: Mapping[Key, float]  # of each printed average, the mean of the numbers behind it

    @classmethod
    def read(cls, table: str, wanted: bool) -> Published:
        return cls(published_table(table), row_means(table)) if wanted else cls({}, {})

    def beside(self, number: Number, key: Key, judge: Judge = verdict) -> Number:
        """A number with the published one of a place, if there is one."""
        if key not in self.numbers:
            return number
        printed = self.numbers[key]
        fair = self.means.get(key, printed)
        shown = fair if is_apart(printed, fair) else None
        return number._replace(published=printed, row_mean=shown, verdict=judge(fair, number.seeds))


def only_context(word: str) -> Judge:
    """A judge for numbers that cannot be compared: a word where there is a number of ours, else that it was not run."""
    return lambda published, ours: word if ours else NOT_RUN
