"""The headline: what the results mean, in a sentence that does not need the vocabulary of the field.

It compares a plain tuner with the same under TCPT, or with whatever else there is, on classes that were never seen if
there are any. It says whether a difference may be chance, and what the numbers are of.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from calprompt.report.page.document import Number
from calprompt.report.page.measured import Measurements, Result
from calprompt.report.page.sure import SPLITS, SureShare
from calprompt.results.intervals import Interval
from calprompt.results.methods import Method, headline_pairs

FEW = 3  # datasets that have a sentence each


def headline(measured: Measurements, shares: Sequence[SureShare]) -> tuple[list[str], list[str]]:
    """The sentences of the page, and what has to be added to them.

    Args:
        measured: All results.
        shares: Of all datasets and splits.
    """
    split = next((split for split in SPLITS if any(result.split == split for result in measured.results)), None)
    pairs = headline_pairs(measured.methods)
    if split is None or not pairs:
        return _levels_only(measured, split)
    chosen = [share for share in shares if share.split == split]
    datasets = list(dict.fromkeys(share.dataset for share in chosen))
    if not chosen or len(datasets) < len({each.dataset for each in measured.results if each.split == split}):
        return _average_sentence(measured, pairs, split)
    if len(datasets) <= FEW and len(pairs) == 1:
        return [_sentence(share) for share in chosen], [_fine_print(share) for share in chosen]
    return _many(chosen, pairs, split)


def _sentence(share: SureShare) -> str:
    plain, other = share.methods
    (first, second), level = (_times(side.right) for side in share.sides), f"{100 * share.level:.0f} %"
    return (
        f"{_start(share.split)} ({share.dataset}), {_name(plain)} is right {first} times out of 100 when it says that "
        f"it is {level} sure or more; {_with(plain, other)} {second} times{_verdict(share.difference)}."
    )


def _verdict(difference: Number) -> str:
    """What to think of a difference, in words."""
    if difference.low is None:
        return ", and how sure that is was not computed"
    if difference.excludes_zero:
        return ""
    return ", a difference that may be chance"


def _fine_print(share: SureShare) -> str:
    plain, other = share.methods
    (first, second), (plain_right, other_right) = share.sides, (_ends(side.right) for side in share.sides)
    gap = share.difference
    low, high = gap.low, gap.high
    interval = "" if low is None or high is None else f" (95 % interval {100 * low:+.0f} to {100 * high:+.0f})"
    return (
        f"{share.dataset}: {_name(plain)} was so sure in {first.sure:,} of {first.predictions:,} predictions (it said "
        f"{100 * first.confidence:.0f} % on average; right: {plain_right}), {other.name} in {second.sure:,} of "
        f"{second.predictions:,} (said {100 * second.confidence:.0f} %; right: {other_right}). The difference is "
        f"{100 * (gap.value or 0):+.0f} of 100{interval}."
    )


def _many(
    shares: Sequence[SureShare], pairs: Sequence[tuple[Method, Method]], split: str
) -> tuple[list[str], list[str]]:
    """One sentence over many datasets: means over tuners of each dataset, and an interval over datasets."""
    by_dataset: dict[str, list[SureShare]] = {}
    for share in shares:
        by_dataset.setdefault(share.dataset, []).append(share)
    firsts, seconds = (
        Interval.of(
            [mean(100 * (each.sides[place].right.value or 0) for each in group) for group in by_dataset.values()]
        )
        for place in (0, 1)
    )
    gaps = [mean(100 * (each.difference.value or 0) for each in group) for group in by_dataset.values()]
    gap = Interval.of(gaps)
    plain, other = pairs[0]
    who = _who(pairs)
    end = "" if gap.clear else ", a difference that may be chance"
    sentence = (
        f"{_start(split)} ({len(by_dataset)} datasets), {who} is right {firsts.mean:.0f} times out of 100 "
        f"when it says that it is sure; {_with(plain, other)} {seconds.mean:.0f} times{end}."
    )
    higher = sum(value > 0 for value in gaps)
    levels = sorted({share.level for share in shares})
    said = " or ".join(f"{100 * level:.0f}" for level in levels)
    fine = (
        f"Sure is a confidence of at least {said} %, see the table. The mean difference is {gap} with datasets as the "
        f"unit; it is above 0 on {higher} of {len(gaps)}."
    )
    return [sentence], [fine]


def _average_sentence(
    measured: Measurements, pairs: Sequence[tuple[Method, Method]], split: str
) -> tuple[list[str], list[str]]:
    """Where logits are not here, or nothing is sure: accuracy and mean confidence."""
    chosen: list[tuple[dict[str, list[Result]], Method]] = []
    for place in (0, 1):
        by_dataset: dict[str, list[Result]] = {}
        for pair in pairs:
            for result in measured.where(method=pair[place], split=split):
                if result.numbers["confidence_gap"].value is not None:
                    by_dataset.setdefault(result.dataset, []).append(result)
        chosen.append((by_dataset, pairs[0][place]))
    shared = [dataset for dataset in chosen[0][0] if dataset in chosen[1][0]]
    if not shared:
        return _levels_only(measured, split)

    def level(place: int, metric: str, dataset: str) -> float:
        return 100 * mean(each.numbers[metric].value or 0.0 for each in chosen[place][0][dataset])

    accuracy, gap = (
        [Interval.of([level(p, m, d) for d in shared]) for p in (0, 1)] for m in ("accuracy", "confidence_gap")
    )
    change = Interval.of([abs(level(1, "confidence_gap", d)) - abs(level(0, "confidence_gap", d)) for d in shared])
    plain, other = pairs[0]
    data = shared[0] if len(shared) == 1 else f"{len(shared)} datasets"
    who = _who(pairs)
    end = "" if change.clear else ", a difference that may be chance"
    sentence = (
        f"{_start(split)} ({data}), {who} is right {accuracy[0].mean:.0f} times out of 100 and says "
        f"{accuracy[0].mean + gap[0].mean:.0f}; {_with(plain, other)} it is right {accuracy[1].mean:.0f} times and "
        f"says {accuracy[1].mean + gap[1].mean:.0f}{end}."
    )
    clear = "" if change.half is not None else "; one dataset cannot show what others would"
    fine = (
        "What it says is its mean confidence, in percent. The distance between the two, whatever its sign, changes by "
        f"{change} points with datasets as the unit{clear}."
    )
    return [sentence], [fine]


def _levels_only(measured: Measurements, split: str | None) -> tuple[list[str], list[str]]:
    """A sentence where there is nothing to compare with."""
    results = [each for each in measured.results if each.split == split and each.numbers["accuracy"].value is not None]
    if split is None or not results:
        return ["There is no finished run with results in this report."], []
    result = results[0]
    accuracy = result.numbers["accuracy"]
    text = (
        f"{_start(split)} ({result.dataset}), {_name(result.method)} is right {_times(accuracy)} times out "
        f"of 100 ({_ends(accuracy)})."
    )
    return [text], ["There is nothing of the same kind in this report to compare it with."]


def _start(split: str) -> str:
    return f"{SPLITS[split][0].upper()}{SPLITS[split][1:]}"


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


def _times(number: Number) -> str:
    return f"{100 * (number.value or 0):.0f}"


def _ends(number: Number) -> str:
    if number.low is None or number.high is None:
        return f"{_times(number)} of 100, without an interval"
    return f"{100 * number.low:.0f} to {100 * number.high:.0f} of 100"
