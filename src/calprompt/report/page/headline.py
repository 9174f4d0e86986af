"""The headline: what a method changes in ECE and in accuracy, on new classes and on those it was tuned on.

It compares a plain tuner with the same under TCPT, or with whatever else there is. The answer comes first, as a verb;
the numbers and the interval of their difference stand beside it, and so does every dataset or split on which things go
the other way. How often a model is right when it says that it is sure is told below the headline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from calprompt.evaluation.numbers import Number, dataset_means
from calprompt.report.page.comparisons import GAIN, MINUS_PLAIN, SPLITS, Levels, SureShare
from calprompt.report.page.document import ReportSettings
from calprompt.report.page.measured import Measurements
from calprompt.results.methods import Method, headline_pairs

MAX_LISTED = 3  # datasets that are told one by one
UNCLEAR = "does not clearly change"


@dataclass(frozen=True)
class Change:
    """What a method changes in one metric, on a dataset or on the average of several."""

    dataset: str  # which; empty if it is the only one, or an average
    before: float  # of the plain method, as a fraction
    after: float  # of the other one
    difference: Number  # after minus before, with its interval
    lower: tuple[int, int] | None = None  # on how many of how many datasets it is lower, of an average

    @property
    def verb(self) -> str:
        """What the method does, as far as the interval tells."""
        if self.difference.low is None:
            return "changes"
        if not self.difference.excludes_zero:
            return UNCLEAR
        return "lowers" if self.difference.low < 0 else "raises"

    @property
    def numbers(self) -> str:
        low, high = self.difference.low, self.difference.high
        ends = ", without an interval" if low is None or high is None else f" [{_points(low)}, {_points(high)}]"
        count = "" if self.lower is None else f"; lower on {self.lower[0]} of {self.lower[1]} datasets"
        first, second = (f"{100 * value:.2f}" for value in (self.before, self.after))
        return f"{first} to {second}: {_points(self.difference.value or 0)}{ends}{count}"


def headline(
    measured: Measurements, shares: Sequence[SureShare], levels: Mapping[str, Levels], settings: ReportSettings
) -> tuple[list[str], list[str]]:
    """The sentences of the page, and what has to be added to them."""
    pairs = headline_pairs(measured.methods)
    splits = [split for split in SPLITS if any(result.split == split for result in measured.results)]
    sentences, unit = [], ""
    for split in splits:
        sides = [
            {each.dataset for pair in pairs for each in measured.where(method=pair[place], split=split)}
            for place in (0, 1)
        ]
        shared = [dataset for dataset in measured.datasets if all(dataset in side for side in sides)]
        few = len(pairs) == 1 and 0 < len(shared) <= MAX_LISTED
        unit = unit or ("over test images and seeds" if few else "with datasets as the unit")
        ece, accuracy = (
            _each(pairs[0], shared, split, metric, levels) if few else _average(measured, pairs, shared, split, metric)
            for metric in ("ece", "accuracy")
        )
        if ece and accuracy:
            where = f" ({shared[0]})" if len(shared) == 1 else "" if few else f" ({len(shared)} datasets)"
            plain, other = _who(pairs), pairs[0][1].name if pairs[0][0].is_zero_shot else pairs[0][1].added
            sentences.append(
                f"{_start(split)}{where}, {other} {_clauses(ece, f'the ECE of {plain}')}. "
                f"It {_clauses(accuracy, 'its accuracy' if len(accuracy) == 1 else 'accuracy')}."
            )
    if not sentences:
        return _levels_only(measured, splits)
    legend = (
        "ECE and accuracy before and after, in percent, and the difference in percentage points with its 95 % interval "
        f"{unit}. ECE is the mean gap between confidence and accuracy, over {settings.bins} bins: less is better."
    )
    return sentences, [legend, *_sure(shares, pairs, splits[0])]


def _each(
    pair: tuple[Method, Method], datasets: Sequence[str], split: str, metric: str, levels: Mapping[str, Levels]
) -> list[Change]:
    """The change on each dataset, with intervals over test images and seeds."""
    found = []
    first, second = (method.name for method in pair)
    for dataset in datasets:
        here = levels.get(dataset, {})
        keys = ((first, metric), (second, metric), (second, f"{GAIN if pair[0].is_zero_shot else MINUS_PLAIN}{metric}"))
        before, after, gap = (here.get((split, *key), Number()) for key in keys)
        if before.value is not None and after.value is not None and gap.value is not None:
            found.append(Change("" if len(datasets) == 1 else dataset, before.value, after.value, gap))
    return found


def _average(
    measured: Measurements,
    pairs: Sequence[tuple[Method, Method]],
    datasets: Sequence[str],
    split: str,
    metric: str,
) -> list[Change]:
    """The change on average: means over pairs and seeds of each dataset, and Student's interval over datasets."""
    befores: dict[tuple[str, Any], float] = {}
    afters: dict[tuple[str, Any], float] = {}
    for dataset in datasets:
        for pair in pairs:
            before, after = (
                {each.seed: each.numbers[metric].value for each in results}
                for results in (measured.where(method=method, dataset=dataset, split=split) for method in pair)
            )
            if pair[0].is_zero_shot:  # has no seeds, and the same value beside all of them
                before = dict.fromkeys(after, next(iter(before.values()), None))
            for seed, value in after.items():
                if (other := before.get(seed)) is not None and value is not None:
                    befores[dataset, (pair, seed)], afters[dataset, (pair, seed)] = other, value
    if not befores:
        return []
    first, second = dataset_means(befores), dataset_means(afters)
    gaps = [after - before for before, after in zip(first, second, strict=True)]
    lower = None if len(gaps) == 1 else (sum(gap < 0 for gap in gaps), len(gaps))
    return [Change("", mean(first), mean(second), Number.over(gaps), lower)]


def _clauses(changes: Sequence[Change], what: str) -> str:
    """What is changed, dataset by dataset; those with the same verb together.

    >>> changes = [Change("a", 0.1, 0.2, Number(0.1, 0.05, 0.15)), Change("b", 0.2, 0.1, Number(-0.1))]
    >>> _clauses(changes, "the ECE").split(" and ")[1]
    'changes it on b (20.00 to 10.00: -10.00, without an interval)'
    """
    parts: list[str] = []
    for verb in dict.fromkeys(change.verb for change in changes):
        places = [
            f"{f'on {change.dataset} ' if change.dataset else ''}({change.numbers})"
            for change in changes
            if change.verb == verb
        ]
        parts.append(f"{verb} {'it' if parts else what} {_listed(places)}")
    return _listed(parts)


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _sure(shares: Sequence[SureShare], pairs: Sequence[tuple[Method, Method]], split: str) -> list[str]:
    """How often it is right when it says that it is sure, on the first split."""
    chosen = [share for share in shares if share.split == split]
    if not chosen:
        return []
    if len(pairs) == 1 and len(chosen) <= MAX_LISTED:
        return [_sure_sentences(share) for share in chosen]
    columns = zip(*((*(side.right for side in share.sides), share.difference) for share in chosen), strict=True)
    firsts, seconds, gaps = (
        dataset_means({(share.dataset, place): 100 * (each.value or 0) for place, (share, each) in enumerate(both)})
        for both in (zip(chosen, column, strict=True) for column in columns)
    )
    said = " or ".join(f"{100 * level:.0f}" for level in sorted({share.level for share in chosen}))
    before, after = mean(firsts), mean(seconds)
    above = f"{sum(gap > 0 for gap in gaps)} of {len(gaps)}"
    return [
        f"{_start(split)} ({len(gaps)} datasets), {_who(pairs)} is right {before:.0f} times out of 100 when it says "
        f"that it is sure (a confidence of at least {said} %, see the table); {_with(*pairs[0])} {after:.0f} times. "
        f"The mean difference is {Number.over(gaps)} with datasets as the unit; it is above 0 on {above}."
    ]


def _sure_sentences(share: SureShare) -> str:
    """How often both are right, and the fine print."""
    (plain, other), (first, second), gap = share.methods, share.sides, share.difference
    level, chance, interval = f"{100 * share.level:.0f} %", "", ""
    if gap.low is None or gap.high is None:
        chance = " (no interval was computed)"
    else:
        chance = "" if gap.excludes_zero else ", a difference that may be chance"
        interval = f" (95 % interval {100 * gap.low:+.0f} to {100 * gap.high:+.0f})"
    return (
        f"{_start(share.split)} ({share.dataset}), {_name(plain)} is right {_times(first.right)} times out of 100 when "
        f"it says that it is {level} sure or more; {_with(plain, other)} {_times(second.right)} times{chance}. "
        f"{_start_of(_name(plain))} was at least {level} sure on {first.sure:,} of {first.predictions:,} images (it "
        f"said {100 * first.confidence:.0f} % on average; right: {_ends(first.right)}), {other.name} on "
        f"{second.sure:,} of {second.predictions:,} (said {100 * second.confidence:.0f} %; right: "
        f"{_ends(second.right)}). The difference is {100 * (gap.value or 0):+.0f} of 100{interval}."
    )


def _levels_only(measured: Measurements, splits: Sequence[str]) -> tuple[list[str], list[str]]:
    """A sentence where there is nothing to compare with."""
    for split in splits:
        for result in measured.results:
            accuracy, ece = result.numbers["accuracy"], result.numbers["ece"]
            if result.split == split and accuracy.value is not None:
                error = "" if ece.value is None else f" Its ECE is {100 * ece.value:.2f} points."
                text = (
                    f"{_start(split)} ({result.dataset}), {_name(result.method)} is right {_times(accuracy)} times out "
                    f"of 100 ({_ends(accuracy)}).{error}"
                )
                return [text], ["This report has nothing comparable beside it."]
    return ["There is no finished run with results in this report."], []


def _start(split: str) -> str:
    return _start_of(SPLITS[split])


def _start_of(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _name(method: Method) -> str:
    return "the untuned model" if method.is_zero_shot else method.name


def _who(pairs: Sequence[tuple[Method, Method]]) -> str:
    """The plain methods of all pairs."""
    tuners = {plain.tuner_name for plain, _ in pairs}
    if len(pairs) == 1:
        return _name(pairs[0][0])
    return f"{tuners.pop() if len(tuners) == 1 else 'a tuned model'} (mean of {len(pairs)} settings)"


def _with(plain: Method, other: Method) -> str:
    return other.name if plain.is_zero_shot else f"with {other.added}"


def _points(value: float) -> str:
    text = f"{100 * value:+.2f}"
    return text if text.strip("+-0.") else "0.00"


def _times(number: Number) -> str:
    return f"{100 * (number.value or 0):.0f}"


def _ends(number: Number) -> str:
    if number.low is None or number.high is None:
        return f"{_times(number)} of 100, without an interval"
    return f"{100 * number.low:.0f} to {100 * number.high:.0f} of 100"
