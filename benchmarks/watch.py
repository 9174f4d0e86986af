"""How often the watch of a promise alarms without a reason, and how soon it finds a change; simulated marks.

    python benchmarks/watch.py              false alarms beside the stated rate; delays of planted changes; sets
    python benchmarks/watch.py --compare    median delays beside those of other choices and of a CUSUM

Clean marks are wrong at exactly the rate that is promised, the worst case that keeps the promise. From a change on they
are wrong two, three or five times as often. A change that is not found within 20,000 marks counts as missed; delays are
over streams without an alarm before the change.

Compared are watches with other weights of changes from the j-th mark on, such as 1/j; with other error rates that are
tried; and "start only", which looks for an error rate that is too high from the first mark on. The CUSUM is made for
three times the promised rate; its limit is such that 1 % of simulated clean streams reach it within 15,000 marks, and
for longer streams it promises nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from calprompt.promises import Watch
from calprompt.promises.watch import RATIOS, weight_from

Marks = NDArray[np.bool_]  # [marks, streams]
Floats = NDArray[np.float64]
Weights = Callable[[int], float]  # of all changes that begin with a mark or later

TARGETS = (0.01, 0.05, 0.1)
TIMES = (2, 3, 5)
CLEAN = (0, 100, 1_000, 10_000)
AFTER = 20_000
FALSE_ALARMS = 0.01


def watch_alarms(
    wrong: Marks,
    target: float,
    false_alarms: float,
    weights: Weights = weight_from,
    odds: Sequence[float] = RATIOS,
) -> NDArray[np.int64]:
    """The mark with which each stream alarms, 0 if none does: `Watch` for many streams at once."""
    ratios = np.array(odds)[:, None]
    if_right, if_wrong = (gain / (1 + target * (ratios - 1)) for gain in (np.ones_like(ratios), ratios))
    found = np.zeros(wrong.shape[1], dtype=np.int64)
    going, sums = np.arange(wrong.shape[1]), np.zeros((len(odds), wrong.shape[1]))
    for number, marks in enumerate(wrong, start=1):
        later = weights(number + 1)
        sums = (sums + (weights(number) - later) / len(odds)) * np.where(marks[going], if_wrong, if_right)
        alarm = sums.sum(axis=0) + later >= 1 / false_alarms
        if alarm.any():
            found[going[alarm]] = number
            going, sums = going[~alarm], sums[:, ~alarm]
            if not len(going):
                break
    return found


def cusum_peaks(wrong: Marks, target: float) -> Floats:
    """The largest value so far of a CUSUM for three times the rate, in logarithms, [marks, streams]."""
    up, down = np.log(3.0), np.log((1 - 3 * target) / (1 - target))
    value, peaks = np.zeros(wrong.shape[1]), np.empty(wrong.shape)
    for number, marks in enumerate(wrong):
        value = np.maximum(value, 0.0) + np.where(marks, up, down)
        peaks[number] = value
    return np.maximum.accumulate(peaks, axis=0)


def streams(target: float, times: float, clean: int, after: int, count: int, seed: int) -> Marks:
    """Marks at the promised rate, and after the change at a multiple of it."""
    rates = np.repeat([target, target * times], [clean, after])
    rng = np.random.default_rng(seed)
    return np.stack([rng.random(count, dtype=np.float32) < rate for rate in rates])


def false_alarms(count: int = 1_000, marks: int = 5_000) -> None:
    print(f"{count} streams of {marks} marks at exactly the promised rate: share with a false alarm")
    for target in TARGETS:
        wrong = streams(target, 1, marks, 0, count, seed=1)
        for stated in (0.01, 0.1):
            alarms = watch_alarms(wrong, target, stated)
            check(wrong[:, :5], alarms[:5], target, stated)
            print(
                f"  promised {target:4.0%}   stated at most {stated:4.0%}   measured {(alarms > 0).mean():5.1%}",
                flush=True,
            )


def check(wrong: Marks, alarms: NDArray[np.int64], target: float, stated: float) -> None:
    """What is simulated here is what the library does."""
    for marks, alarm in zip(wrong.T, alarms.tolist(), strict=True):
        assert (Watch(target, stated).mark_all(marks).broken_at or 0) == alarm


def delays(count: int = 500) -> None:
    print(f"\nchanges, {count} streams each: found, median and 90 % delay in marks; false alarms before the change")
    for target, times, clean in cases():
        alarms = watch_alarms(streams(target, times, clean, AFTER, count, seed=2), target, FALSE_ALARMS)
        early = (alarms > 0) & (alarms <= clean)
        found = share_and_delays(alarms[~early], clean)
        print(
            f"  {target:4.0%} to {target * times:4.0%} after {clean:6} clean marks: {found}; {early.mean():.1%}",
            flush=True,
        )


def share_and_delays(alarms: NDArray[np.int64], clean: int) -> str:
    late = np.where(alarms > 0, alarms - clean, np.inf)
    middle, most = np.quantile(late, [0.5, 0.9], method="inverted_cdf")
    return f"{np.isfinite(late).mean():6.1%} {middle:6.0f} {most:6.0f}"


def compare(count: int = 300) -> None:
    others: dict[str, tuple[Weights, Sequence[float]]] = {
        "watch": (weight_from, RATIOS),
        "1/j": (lambda number: 1 / number, RATIOS),
        "j^-1/2": (lambda number: number**-0.5, RATIOS),
        "j^-1/10": (lambda number: number**-0.1, RATIOS),
        "4 rates": (weight_from, (1.5, 2.5, 5.0, 16.0)),
        "16 rates": (weight_from, tuple(np.geomspace(1.1, 32, 16))),
        "start only": (lambda number: float(number == 1), RATIOS),
    }
    print(f"\nmedian delay in marks, {count} streams each:", ", ".join([*others, "CUSUM"]))
    limits = {
        target: float(np.quantile(cusum_peaks(streams(target, 1, 15_000, 0, 1_000, seed=3), target)[-1], 0.99))
        for target in TARGETS
    }
    for target, times, clean in cases():
        wrong = streams(target, times, clean, AFTER, count, seed=4)
        alarms = [watch_alarms(wrong, target, FALSE_ALARMS, *other) for other in others.values()]
        over = cusum_peaks(wrong, target) >= limits[target]
        alarms.append(np.where(over.any(axis=0), over.argmax(axis=0) + 1, 0))
        shown = [np.median(np.where(own > 0, own - clean, np.inf)[(own == 0) | (own > clean)]) for own in alarms]
        print(
            f"  {target:4.0%} to {target * times:4.0%} after {clean:6}:",
            *(f"{delay:7.0f}" for delay in shown),
            flush=True,
        )


def sets_as_if_promised(count: int = 1_000, marks: int = 5_000, held_out: int = 190) -> None:
    """Why prediction sets are not watched: given its held-out images, a sound model may miss more than 10 %."""
    rng = np.random.default_rng(5)
    inside = math.ceil((held_out + 1) * Fraction(9, 10))
    misses = 1 - rng.beta(inside, held_out + 1 - inside, count)
    wrong = np.stack([rng.random(count) < misses for _ in range(marks)])
    alarms = watch_alarms(wrong, 0.1, FALSE_ALARMS)
    print(
        f"\n{count} models with sets of 90 % coverage from {held_out} held-out images, nothing changed, {marks} marks:"
    )
    print(f"  miss more than 10 %: {(misses > 0.1).mean():.1%}   would alarm: {(alarms > 0).mean():.1%}", flush=True)


def cases() -> list[tuple[float, int, int]]:
    return [(target, times, clean) for target in TARGETS for times in TIMES for clean in CLEAN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="compare with other choices and a CUSUM")
    args = parser.parse_args()
    start = time.process_time()
    if args.compare:
        compare()
    else:
        false_alarms()
        delays()
        sets_as_if_promised()
    print(f"\n{time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
