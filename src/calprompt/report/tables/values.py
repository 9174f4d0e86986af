"""From rows of results to the values of a table: by group, method, dataset and split, one per seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from calprompt.errors import DataError
from calprompt.report.tables.names import ZERO_SHOT, method_of
from calprompt.results.table import SETTINGS, cell

SAME = 1e-4  # zero-shot is the same for all tuners up to this, as a fraction
FREE = {"seed", "root", "device", "data", "imports"}  # settings that runs of one place may differ in
APART = tuple(name for name in SETTINGS if name not in FREE and name != "classes")

Group = tuple[str, str]  # tuner, backbone
Seeds = dict[int, Mapping[str, Any]]  # seed -> its row


@dataclass(frozen=True)
class Place:
    """Where a value stands.

    Attributes:
        group: Tuner and backbone; two empty names for zero-shot, which all tuners share.
        method: As `method_of` names it.
        dataset: That it was tested on.
        split: base, novel or all.
    """

    group: Group
    method: str
    dataset: str
    split: str


@dataclass
class Values:
    """Rows of results by their place.

    Attributes:
        rows: Place -> seed -> row; a place without seeds was planned and has no result.
    """

    rows: dict[Place, Seeds] = field(default_factory=dict)

    def seeds(self, place: Place, metric: str) -> dict[int, float]:
        """The values of a metric by seed; harmonic is that of base and novel."""
        if place.split == "harmonic":
            base, novel = (self.seeds(Place(place.group, place.method, place.dataset, s), metric) for s in PARTS)
            return {seed: combined(metric, base[seed], novel[seed]) for seed in base if seed in novel}
        found = {seed: row.get(metric) for seed, row in self.rows.get(place, {}).items()}
        return {seed: float(value) for seed, value in sorted(found.items()) if value is not None}

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
    rows: Iterable[Mapping[str, Any]],
    *,
    transfers: bool = False,
    by_backbone: bool = False,
    method: Callable[[Mapping[str, Any]], str | None] = method_of,
) -> Values:
    """Sort rows into places.

    Args:
        rows: Of a table of results; those of runs without results say what was planned.
        transfers: Take the evaluations on other data, under their names, instead of the test images of each run.
        by_backbone: Keep backbones apart, instead of refusing several of them.
        method: Of a row; rows without one are left out.

    Raises:
        DataError: if two runs with different settings would stand in one place.
    """
    values = Values()
    planned: list[Place] = []
    for row in rows:
        name = method(row)
        if name is None or row.get("tuner") is None:
            continue
        group = (str(row["tuner"]), str(row["backbone"]) if by_backbone else "")
        where, _, split = str(row.get("split") or "").rpartition("/")
        if row.get("model") is None:
            planned += [Place(group, name, str(row.get("data")), part) for part in (*PARTS, "all")]
            continue
        if transfers and not where:  # a run that may not have been evaluated on other data yet
            planned.append(Place(group, name, "", split))
        if bool(where) != transfers or split not in (*PARTS, "all"):
            continue
        place = Place(group, name, where or str(row["dataset"]), split)
        seeds = values.rows.setdefault(place, {})
        seed = int(row["seed"])
        if seed in seeds and not name.startswith(ZERO_SHOT):
            _check_same(seeds[seed], row, place)
        seeds.setdefault(seed, row)
    datasets, splits = values.datasets, {place.split for place in values.rows}
    for place in dict.fromkeys(planned):
        for dataset in datasets if transfers else [place.dataset]:
            if place.split in splits:
                values.rows.setdefault(replace(place, dataset=dataset), {})
    return _shared_zero_shot(values)


def _check_same(one: Mapping[str, Any], other: Mapping[str, Any], place: Place) -> None:
    """Raise if two rows of a place are of different runs; the same run may be in several tables."""
    for name in APART:
        first, second = cell(one.get(name)), cell(other.get(name))
        if first != second:
            where = ", ".join((place.group[0], place.method, place.dataset, place.split, f"seed {one['seed']}"))
            raise DataError(
                f"two runs would stand in one place of the table ({where}): their {name} is {first or 'empty'} and "
                f"{second or 'empty'}. Keep the rows of one of them (--filter {name}=VALUE), or give the sweep whose "
                "runs are meant"
            )
    if one.get("fingerprint") != other.get("fingerprint") and one.get("fingerprint") and other.get("fingerprint"):
        raise DataError(
            f"two runs have the same settings and other images or weights: {one.get('run')} and {other.get('run')}; "
            "leave one of them out"
        )


def _shared_zero_shot(values: Values) -> Values:
    """Zero-shot once for all tuners, if they agree about it, as they do under the same template."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for place, seeds in values.rows.items():
        for seed, row in seeds.items():
            if place.method == ZERO_SHOT and row.get("ece") is not None:
                found.setdefault((place.group[1], place.dataset, place.split, seed), []).append(row["ece"])
    same = all(max(errors) - min(errors) <= SAME for errors in found.values())
    if not same or len({backbone for backbone, *_ in found}) > 1:
        return values
    shared: dict[Place, Seeds] = {}
    for place, seeds in values.rows.items():
        new = Place(SHARED, ZERO_SHOT, place.dataset, place.split) if place.method == ZERO_SHOT else place
        kept = shared.setdefault(new, {})
        for seed, row in seeds.items():
            kept.setdefault(seed, row)
    return Values(shared)
