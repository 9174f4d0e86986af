"""What makes two runs the same method, and which runs one number is the mean of.

A method is a tuner, a loss, a calibrator and every other setting of its runs but those of `PER_RUN`. The settings of
`PER_DATASET` belong to the data: a template may differ from dataset to dataset, but where it differs on one dataset it
tells methods apart. A cell is one method on one dataset and split; its runs differ in the seed alone. Methods have the
names of papers: CoOp (with cross-entropy, the plain tuner), CoOp + TCPT (another loss), CoOp + TCPT, temperature (under
a calibrator), CoOp (shots 4) where methods of one name differ in a setting.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from calprompt.errors import DataError
from calprompt.evaluation.settings import NONE, ZERO_SHOT
from calprompt.results.table import COLUMN, PER_DATASET, PER_RUN, SETTINGS, cell
from calprompt.training_config import NAMED

TUNERS = {
    "coop": "CoOp",
    "cocoop": "CoCoOp",
    "maple": "MaPLe",
    "kgcoop": "KgCoOp",
    "proda": "ProDA",
    "prograd": "ProGrad",
    "promptsrc": "PromptSRC",
    "linear-probe": "linear probe",
    "clap": "CLAP",
    "taskres": "TaskRes",
    "clip-adapter": "CLIP-Adapter",
    "tip-adapter": "Tip-Adapter",
    "tip-adapter-f": "Tip-Adapter-F",
}
LOSSES = {
    "ce": "cross-entropy",
    "tcpt": "TCPT",
    "mbls": "MbLS",
    "ce + 0.1*mbls(cosine_margin=0.1)": "MbLS",
    "zs_norm": "ZS-Norm",
    "penalty": "Penalty",
    "margin_only": "CE + margin",
    "moments_only": "CE + moments",
    "margin_l1": "CE + margin + L1",
    "margin_l2": "CE + margin + L2",
    "margin_similarity": "CE + margin + similarity",
    "margin_otpt": "CE + margin + O-TPT",
}
CALIBRATORS = {"temperature": "temp. scaling", "dac": "DAC", "sals": "SaLS"}
HIDDEN_PREFIXES = ("pocket_",)  # beginnings of names that say nothing in a figure
CE, TCPT = "ce", "tcpt"
UNTUNED = ("backbone", "backbone_config", "dtype", "autocast", "protocol", *PER_DATASET)  # what zero-shot depends on
UNTUNED_FITTED = ("shots", "val_shots", "validation")  # and a calibrator that was fitted on validation images
UNTUNED_TOLERANCE = 1e-4  # two measurements of one untuned model differ by less, as fractions
EMPTY_MEANS = {"shots": "all", "views": "new in every epoch", "autocast": "off"}  # what an empty setting stands for

Row = Mapping[str, Any]
Key = TypeVar("Key", bound=Hashable)


def tuner_name(tuner: str) -> str:
    """What people call a tuner."""
    return TUNERS.get(tuner, tuner)


def loss_name(loss: str) -> str:
    """What people call a loss; one without a name is shown as it was written."""
    return LOSSES.get(loss, loss)


def dataset_name(dataset: str) -> str:
    """A dataset's name without what all of its kind begin with.

    >>> dataset_name("pocket_sketch_nature"), dataset_name("oxford_pets")
    ('sketch nature', 'oxford pets')
    """
    for beginning in HIDDEN_PREFIXES:
        dataset = dataset.removeprefix(beginning)
    return dataset.replace("_", " ")


def in_known_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Distinct names, the known ones first and in their order, others as they came."""
    there = list(dict.fromkeys(names))
    first = [name for name in known if name in there]
    return [*first, *(name for name in there if name not in first)]


def method_order(names: Iterable[str]) -> list[str]:
    """Methods in the order of figures: zero-shot, cross-entropy, calibrators, other losses, TCPT last.

    >>> method_order(["TCPT", "MbLS", "DAC", "cross-entropy"])
    ['cross-entropy', 'DAC', 'MbLS', 'TCPT']
    """
    losses = list(dict.fromkeys(name for name in LOSSES.values() if name not in ("cross-entropy", "TCPT")))
    order = in_known_order(names, [ZERO_SHOT, "cross-entropy", *CALIBRATORS.values(), *losses])
    return sorted(order, key=lambda name: name == "TCPT")


@dataclass(frozen=True)
class Method:
    """What is compared on the same data and seeds."""

    tuner: str  # its name, or "zero-shot"
    loss: str  # as it was given; empty for zero-shot
    calibrator: str  # applied after it
    settings: tuple[tuple[str, str], ...] = ()  # name and value of everything else that tells methods apart
    detail: str = ""  # the settings in which it differs from methods of the same name

    @cached_property
    def _hash(self) -> int:
        return hash((self.tuner, self.loss, self.calibrator, self.settings))

    def __hash__(self) -> int:  # of many settings, and methods are keys everywhere
        return self._hash

    @property
    def is_zero_shot(self) -> bool:
        return self.tuner == ZERO_SHOT

    @property
    def is_plain(self) -> bool:
        """Whether it is a tuner with cross-entropy and nothing else."""
        return self.loss == CE and self.calibrator == NONE

    @property
    def tuner_name(self) -> str:
        return tuner_name(self.tuner)

    @property
    def loss_name(self) -> str:
        """What people call its loss; empty for plain cross-entropy."""
        return "" if self.loss in ("", CE) else loss_name(self.loss).removeprefix("CE + ")

    @property
    def added(self) -> str:
        """What it has and the plain tuner has not."""
        return ", ".join(filter(None, (self.loss_name, "" if self.calibrator == NONE else self.calibrator)))

    @property
    def name(self) -> str:
        """What people call it.

        >>> Method("coop", "tcpt", "temperature").name
        'CoOp + TCPT, temperature'
        """
        return f"{self.short_name}{self.detail}"

    @property
    def short_name(self) -> str:
        """The same without the settings in which methods differ."""
        loss = f" + {self.loss_name}" if self.loss_name else ""
        after = "" if self.calibrator == NONE else f", {self.calibrator}"
        return f"{self.tuner_name}{loss}{after}"

    @property
    def label(self) -> str:
        """What figures of one tuner call it: its loss, or a calibrator on cross-entropy or on another loss.

        >>> Method("coop", "ce", "dac").label, Method("coop", "ce", "none", detail=" (shots 4)").label
        ('DAC', 'cross-entropy (shots 4)')
        """
        what = ZERO_SHOT if self.is_zero_shot else loss_name(self.loss)
        if self.calibrator != NONE:
            after = CALIBRATORS.get(self.calibrator, self.calibrator)
            what = after if self.loss == CE else f"{what}, {after}"
        return f"{what}{self.detail}"

    def differences(self, other: Method) -> list[str]:
        """The settings in which two methods differ, in words."""
        ours, theirs = dict(self._identity), dict(other._identity)
        pairs = {name: (ours.get(name, ""), theirs.get(name, "")) for name in (*ours, *theirs)}
        return [
            f"{_word(name)} {_shown(name, one)} or {_shown(name, two)}"
            for name, (one, two) in pairs.items()
            if one != two
        ]

    @property
    def _identity(self) -> tuple[tuple[str, str], ...]:
        return (("tuner", self.tuner), ("loss", self.loss), ("calibrator", self.calibrator), *self.settings)


def methods_of(rows: Iterable[Row]) -> list[Method]:
    """The method of every row; methods of the same name are told apart by what they differ in.

    >>> row = {"tuner": "coop", "loss": "ce", "model": "tuned", "calibrator": "none", "dataset": "toys"}
    >>> [each.name for each in methods_of([row, {**row, "template": "a {}."}, {**row, "loss": "tcpt"}])]
    ['CoOp (template default)', "CoOp (template 'a {}.')", 'CoOp + TCPT']
    """
    every = list(rows)
    telling = _telling(every)
    keys = [tuple(map(row.get, _RAW)) for row in every]
    known = {key: _method(row, telling) for key, row in dict(zip(keys, every, strict=True)).items()}
    details = tell_apart((method.name, method, {"model": key[0]}) for key, method in known.items())
    named = {method: replace(method, detail=detail) for (_, method), detail in details.items()}
    final = {key: named[method] for key, method in known.items()}
    return [final[key] for key in keys]


def tell_apart(methods: Iterable[tuple[Key, Method, Row]]) -> dict[tuple[Key, Method], str]:
    """What to add to the name of each method, so that no two methods have one name."""
    alike: dict[Key, dict[Method, bool]] = {}
    for name, method, row in methods:
        group = alike.setdefault(name, {})
        group[method] = group.get(method, False) or row.get("model") is not None
    details = {}
    for name, group in alike.items():
        every = _differing(group)
        measured = {method for method, is_measured in group.items() if is_measured}
        among_measured = _differing(measured) if len(measured) < len(group) else every
        for method in group:
            details[name, method] = _detail(method, among_measured if method in measured else every)
    return details


def ordered(methods: Iterable[Method]) -> list[Method]:
    """Each method once: the untuned model, then by tuner the plain one and the others, in the order they come in."""
    every = list(dict.fromkeys(methods))
    tuners = list(dict.fromkeys(method.tuner for method in every))
    return sorted(
        every,
        key=lambda each: (not each.is_zero_shot, tuners.index(each.tuner), each.calibrator != NONE, not each.is_plain),
    )


class Cells(Generic[Key]):
    """Rows by cell and seed: what the numbers of tables and figures are means of."""

    def __init__(self) -> None:
        self.rows: dict[Key, dict[int, Row]] = {}
        self.methods: dict[Hashable, Method] = {}

    def add(self, key: Key, row: Row, method: Method, *, group: Hashable = None) -> None:
        """Put a row into its cell."""
        where = f"{method.short_name} on {row.get('dataset')}, {row.get('split')}"
        known = self.methods.setdefault(key if group is None else group, method)
        if known != method:
            raise DataError(
                f"runs of {where} differ in their settings ({'; '.join(known.differences(method))}) and are not "
                "averaged: keep one of them (--filter NAME=VALUE), or give the sweep whose runs are meant"
            )
        seed = int(row.get("seed") or 0)
        other = self.rows.setdefault(key, {}).setdefault(seed, row)
        is_same = row.get("fingerprint") is not None and other.get("fingerprint") == row.get("fingerprint")
        is_same |= other is row or all(other.get(name) == row.get(name) for name in ("accuracy", "ece", "nll"))
        if not method.is_zero_shot and not is_same:  # a run that was repeated has the same numbers
            differing = [name for name in PER_RUN if other.get(name) != row.get(name)]
            words = ", ".join(f"{name} {other.get(name)} or {row.get(name)}" for name in differing)
            raise DataError(
                f"two runs of {where}, seed {seed} have other numbers and the same settings but for "
                f"{words or 'images or weights'}: {other.get('run')} and {row.get('run')}; leave one of them out"
            )


def plain_of(method: Method, methods: Iterable[Method]) -> Method | None:
    """The plain tuner that a method is compared with: of all with this tuner, the one with the most equal settings."""
    if method.is_zero_shot or method.is_plain:
        return None
    candidates = [each for each in methods if each.is_plain and each.tuner == method.tuner]
    own = set(method.settings)
    return max(candidates, key=lambda each: len(own.intersection(each.settings)), default=None)


def headline_pairs(methods: Iterable[Method]) -> list[tuple[Method, Method]]:
    """What the headline compares: plain tuners and the same with TCPT, or with whatever else there is.

    Without a plain tuner it is the untuned model and what there is. The second of a pair is what the page looks at.
    """
    every = list(dict.fromkeys(methods))
    tuned = [each for each in every if not each.is_zero_shot]
    plains = [each for each in every if each.is_plain]
    pairs = [(plain, each) for each in tuned if (plain := plain_of(each, plains)) is not None]
    for wanted in (lambda each: each.loss == TCPT and each.calibrator == NONE, lambda each: each.calibrator == NONE):
        chosen = [pair for pair in pairs if wanted(pair[1])]
        if chosen:
            return [pair for pair in chosen if pair[1].added == chosen[0][1].added]
    if pairs:
        return [pair for pair in pairs if pair[1].added == pairs[0][1].added]
    untuned = next((each for each in every if each.is_zero_shot and each.calibrator == NONE), None)
    uncalibrated = [each for each in tuned if each.calibrator == NONE]
    return [(untuned, each) for each in uncalibrated[:1]] if untuned is not None else []


_RAW = ("model", "calibrator", *(COLUMN[name] for name in SETTINGS if name not in PER_RUN))
_TUNED = tuple(name for name in SETTINGS if name not in {*PER_RUN, *PER_DATASET, "tuner", "loss"})
_NAMED = {text: name for name, text in NAMED.items()}


def _is_untuned(row: Row) -> bool:
    return row.get("model") == ZERO_SHOT


def _telling(rows: Sequence[Row]) -> set[str]:
    """The settings of `PER_DATASET` that differ on one dataset; and "tuner", if tuners have other untuned models.

    Without a template of its own a run has the dataset's for its tuner, so the untuned model may depend on the tuner.
    """
    seen: dict[tuple[Any, str], Any] = {}
    telling: set[str] = set()
    errors: dict[tuple[Any, ...], tuple[float, Any]] = {}
    columns = [COLUMN[name] for name in PER_DATASET]
    for dataset, *values in dict.fromkeys(
        (row.get("dataset") or row.get("data"), *map(row.get, columns)) for row in rows
    ):
        for name, value in zip(PER_DATASET, values, strict=True):
            if seen.setdefault((dataset, name), value) != value:
                telling.add(name)
    for row in rows:
        if _is_untuned(row) and (row.get("calibrator") or NONE) == NONE and row.get("ece") is not None:
            dataset = row.get("dataset") or row.get("data")
            place = (dataset, row.get("split"), row.get("seed"), *(row.get(COLUMN[name]) for name in UNTUNED))
            ece, tuner = errors.setdefault(place, (row["ece"], row.get("tuner")))
            if tuner != row.get("tuner") and abs(ece - row["ece"]) > UNTUNED_TOLERANCE:
                telling.add("tuner")
    return telling


def _method(row: Row, telling: set[str]) -> Method:
    calibrator = str(row.get("calibrator") or NONE)
    names: Iterable[str] = (*_TUNED, *(name for name in PER_DATASET if name in telling))
    if _is_untuned(row):
        fitted = UNTUNED_FITTED if calibrator != NONE else ()
        names = [name for name in (*UNTUNED, *fitted) if name not in PER_DATASET or name in telling]
        names += ["tuner"] if "tuner" in telling and not row.get("template") else []
    settings = [pair for name in names for pair in _values(name, row.get(COLUMN[name]))]
    if _is_untuned(row):
        return Method(ZERO_SHOT, "", calibrator, tuple(settings))
    loss = str(row.get("loss"))
    return Method(str(row.get("tuner")), _NAMED.get(loss, loss), calibrator, tuple(settings))


def _values(name: str, value: Any) -> list[tuple[str, str]]:
    """A setting as text; options of a tuner one by one, and files of one's own without their folders."""
    if name == "options":
        options = json.loads(value or "{}") if not isinstance(value, Mapping) else value
        return [(f"options.{option}", cell(_whole(each))) for option, each in sorted(options.items())]
    if name == "imports" and value:
        paths = json.loads(value) if isinstance(value, str) else value
        return [(name, ", ".join(PurePath(path).name for path in paths))]
    return [(name, cell(value))]


def _whole(value: Any) -> Any:
    """A value whose floats are whole numbers where they can be, so that 15.0 is 15."""
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _differing(methods: Iterable[Method]) -> list[str]:
    """The settings in which methods of one name differ."""
    values: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    total = 0
    for method in methods:
        total += 1
        for name, value in dict(method._identity).items():
            values.setdefault(name, set()).add(value)
            counts[name] = counts.get(name, 0) + 1
    return [name for name, found in values.items() if len(found | ({""} if counts[name] < total else set())) > 1]


def _detail(method: Method, differing: Sequence[str]) -> str:
    """The settings that tell a method from others of the same name, in words."""
    if not differing:
        return ""
    own = dict(method._identity)
    words = (f"{_word(name)} {_shown(name, own.get(name, ''))}" for name in differing)
    return f" ({', '.join(words)})"


def _word(name: str) -> str:
    return name.removeprefix("options.").replace("_", " ")


def _shown(name: str, value: str) -> str:
    """A value in words; sentences in quotation marks."""
    if not value:
        return EMPTY_MEANS.get(name, "default")
    return f"'{value}'" if " " in value and name != "loss" else value
