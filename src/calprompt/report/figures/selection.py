"""What a figure shows of a source: runs with their stored logits by method, or rows of the table by method.

A method is a loss or a calibrator; if there is more than one tuner, its tuner belongs to the name. Two runs of one
method, dataset and seed that differ in something else are never mixed: the error says in what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calprompt.errors import DataError, NotFoundError, SettingError
from calprompt.evaluation.models import PARTS, TUNED, ZERO_SHOT, stored_models
from calprompt.metrics import Predictions, predictions
from calprompt.metrics.inputs import Floats
from calprompt.registry import unknown
from calprompt.results.names import CALIBRATORS, NONE, dataset_name, method_name, method_order, tuner_name
from calprompt.results.sources import ReportSource
from calprompt.results.table import SETTINGS, cell
from calprompt.runs.folder import Run

NOT_COMPARED = {"data", "root", "seed", "template", "classes", "base", "device", "chunk", "loss", "tuner"}
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run's model on one test split, from its stored logits.

    Attributes:
        method: What it is called.
        dataset: On which.
        seed: Of its training images.
        logits: [N, C].
        sample: Probabilities and labels.
        text: Tuned text features of the classes, [C, D].
        frozen_text: Those of the untuned model.
    """

    method: str
    dataset: str
    seed: int
    logits: Floats
    sample: Predictions
    text: Floats | None = None
    frozen_text: Floats | None = None


def filtered(source: ReportSource, wanted: Mapping[str, str]) -> ReportSource:
    """The part of a source whose rows have some values, as `calprompt results --filter` has them.

    Args:
        source: All of it.
        wanted: Column -> value as text.

    Raises:
        NotFoundError: if nothing is left.
    """
    if not wanted:
        return source
    table = source.table.filter(**wanted)
    shown = ", ".join(f"{name}={value}" for name, value in wanted.items())
    if not table.rows:
        raise NotFoundError(f"{source.title} has no results with {shown}")
    names = {row.get("run") for row in table.rows}
    return replace(source, table=table, folders=tuple(each for each in source.folders if each.name in names))


def tuned_runs(source: ReportSource) -> tuple[Run, ...]:
    """The runs of a source that have stored logits.

    Raises:
        NotFoundError: if there are none, as in a table of results.
    """
    if not source.runs:
        raise NotFoundError(
            f"{source.title} has no run folders, and this figure is made from stored logits; give the folder of the "
            "runs, such as what 'calprompt sweep --out' was given"
        )
    return source.runs


def stored_runs(
    source: ReportSource, split: str, *, methods: Sequence[str] | None = None, zero_shot: bool = False
) -> dict[str, list[StoredRun]]:
    """The runs of every method on one test split, on the datasets and seeds that all of these methods have.

    Args:
        source: With run folders.
        split: base, novel or all.
        methods: Which, in this order; all, unless given.
        zero_shot: With the untuned model too, once per dataset.

    Raises:
        DataError: if two runs of a method are of the same dataset and seed.
        NotFoundError: if there are no run folders, none has that split, or methods share no dataset and seed.
    """
    runs = tuned_runs(source)
    names = method_names([_row(run) for run in runs])
    found: dict[str, list[StoredRun]] = {}
    seen: dict[tuple[str, str, int], Run] = {}
    untuned: dict[str, StoredRun] = {}
    for run, name in zip(runs, names, strict=True):
        models = stored_models(run)
        if split not in models[TUNED].tests:
            continue
        row = _row(run)
        key = name, row["dataset"], row["seed"]
        if key in seen:
            raise _twice(key, _row(seen[key]), row)
        seen[key] = run
        found.setdefault(name, []).append(_stored(name, row, models[TUNED].tests[split]))
        if zero_shot:
            untuned.setdefault(row["dataset"], _stored(ZERO_SHOT, row, models[ZERO_SHOT].tests[split]))
    if not found:
        raise NotFoundError(f"no run of {source.title} was evaluated on {split} classes")
    kept = {name: found[name] for name in chosen(methods, list(found))}
    places = set.intersection(*({(run.dataset, run.seed) for run in runs} for runs in kept.values()))
    if not places:
        raise NotFoundError(f"no dataset and seed of {source.title} has runs of all of {', '.join(kept)}")
    shared = {name: [run for run in runs if (run.dataset, run.seed) in places] for name, runs in kept.items()}
    datasets = {dataset for dataset, _ in places}
    beside = [run for dataset, run in untuned.items() if dataset in datasets]
    return {ZERO_SHOT: beside, **shared} if beside else shared


def splits_of(source: ReportSource) -> list[str]:
    """Which of base, novel and all the rows of a source have."""
    there = {row.get("split") for row in source.measured.rows}
    return [split for split in PARTS if split in there]


def check_split(source: ReportSource, split: str | None) -> list[str]:
    """The splits to draw: the one asked for, or base and novel (or all) as far as they are there."""
    there = splits_of(source)
    if split is not None:
        if split not in there:
            raise unknown("split", split, there)
        return [split]
    return there


def method_names(rows: Rows) -> list[str]:
    """The name of each row's method; with its tuner if there are several."""
    tuners = {row["tuner"] for row in rows if row.get("model") != ZERO_SHOT}
    if len(tuners) < 2:
        return [method_name(row) for row in rows]
    return [
        method_name(row) if row.get("model") == ZERO_SHOT else f"{tuner_name(row['tuner'])}, {method_name(row)}"
        for row in rows
    ]


def chosen(methods: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Methods in the order asked for, or in that of all figures.

    Raises:
        UnknownNameError: if a method is not there.
    """
    if methods is None:
        return method_order(there)
    for name in methods:
        if name not in there:
            raise unknown("method", name, there)
    return list(methods)


def grouped(
    rows: Rows, value: Callable[[Mapping[str, Any]], Any], by: Callable[[Mapping[str, Any]], Any]
) -> dict[Any, dict[tuple[str, int], Any]]:
    """Values of rows by group, and in it by dataset and seed.

    Args:
        rows: Of one split.
        value: Of a row; rows for which it is None are left out.
        by: The group of a row.

    Raises:
        DataError: if a group has two values of one dataset and seed that differ.
    """
    found: dict[Any, dict[tuple[str, int], Any]] = {}
    first: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        what = value(row)
        if what is None:
            continue
        group, place = by(row), (str(row["dataset"]), int(row["seed"]))
        inside = found.setdefault(group, {})
        other = first.setdefault((group, place), row)
        if place in inside and row.get("model") != ZERO_SHOT and other.get("fingerprint") != row.get("fingerprint"):
            raise _twice((str(group), *place), other, row)
        inside[place] = what
    return found


def by_method(rows: Rows, metric: str, methods: Sequence[str] | None = None) -> dict[str, dict[tuple[str, int], float]]:
    """A metric of rows of one split, by method, dataset and seed.

    Args:
        rows: Of one split.
        metric: Which.
        methods: Those that will be shown; without them, the usual ones: losses as they are, and the calibrators of
            the paper on cross-entropy.
    """
    if methods is None:
        rows = [row for row in rows if _is_usual(row)]
    names = dict(zip(map(id, rows), method_names(rows), strict=True))
    return grouped(rows, metric_value(metric), lambda row: names[id(row)])


def uncalibrated(rows: Rows, split: str) -> Rows:
    """The rows of tuned models as they are, on one split."""
    usual = (NONE, None)
    return [row for row in rows if row["model"] == TUNED and row["calibrator"] in usual and row["split"] == split]


def metric_value(metric: str) -> Callable[[Mapping[str, Any]], float | None]:
    """A function that takes a metric from a row, in percent if it is a fraction."""
    from calprompt.metrics import metric_info

    scale = 100.0 if metric_info(metric).unit == "%" else 1.0

    def value(row: Mapping[str, Any]) -> float | None:
        return None if row.get(metric) is None else scale * float(row[metric])

    return value


def metric_label(metric: str) -> str:
    """A metric with its unit, as axes have it.

    >>> metric_label("ece"), metric_label("nll")
    ('ECE, %', 'NLL, nats')
    """
    from calprompt.metrics import metric_info

    info = metric_info(metric)
    return f"{info.label}, {info.unit}" if info.unit else info.label


def options_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The tuner's options of a row."""
    import json

    return dict(json.loads(row.get("options") or "{}"))


def short_datasets(datasets: Iterable[str]) -> dict[str, str]:
    """Names of datasets as figures show them."""
    return {dataset: dataset_name(dataset) for dataset in datasets}


def _is_usual(row: Mapping[str, Any]) -> bool:
    calibrator = row.get("calibrator") or NONE
    return row["model"] == TUNED and (calibrator == NONE or (row["loss"] == "ce" and calibrator in CALIBRATORS))


def _row(run: Run) -> dict[str, Any]:
    """A run's settings as a row of a table has them."""
    config = run.record["config"]
    settings = {**config, **config["training"]}
    flat = {name: settings.get(name) for name in SETTINGS}
    return {**flat, "dataset": run.record["data"]["name"], "model": TUNED, "calibrator": NONE}


def _stored(method: str, row: Mapping[str, Any], record: Any) -> StoredRun:
    def array(tensor: Any) -> Floats | None:
        return None if tensor is None else tensor.double().numpy()

    logits = record.logits.double().numpy()
    sample = predictions(logits, record.given("labels"), from_logits=True)
    text, frozen = array(record.text), array(record.frozen_text)
    return StoredRun(method, str(row["dataset"]), int(row["seed"]), logits, sample, text, frozen)


def _twice(key: tuple[str, str, int], first: Mapping[str, Any], second: Mapping[str, Any]) -> DataError:
    method, dataset, seed = key
    differing = [
        f"{name}={cell(first.get(name)) or 'none'} or {cell(second.get(name)) or 'none'}"
        for name in SETTINGS
        if name not in NOT_COMPARED and cell(first.get(name)) != cell(second.get(name))
    ]
    how = f"which differ in {'; '.join(differing)}" if differing else "with the same settings"
    return DataError(
        f"there are two runs of {method} on {dataset} with seed {seed}, {how}; choose one with a sweep beside the "
        "source, or with --filter KEY=VALUE"
    )


def need(condition: bool, what: str) -> None:
    """Raise `SettingError` with `what` unless a figure has what it needs."""
    if not condition:
        raise SettingError(what)
