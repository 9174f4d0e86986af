"""What a watch of a promise has to say, in one sentence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from calprompt.promises.conformal import as_fraction
from calprompt.promises.requests import ERROR, Requests
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.promises.watch import Watch

DOUBT = 10.0  # evidence from which on the sentence speaks of it; reached by at most one in ten models that keep it


def watch_sentence(watch: Watch) -> str:
    """What was marked, and what follows for the promise."""
    promise = f"'{Requests(watch.target_error).words(ERROR)}'"
    if not watch.marked:
        return f"No answer was marked yet, so nothing is known about {promise}."
    answers = f"{plural(watch.marked, 'answer')} that {_were(watch.marked)} marked"
    counts = f"Of {answers}, {watch.wrong} {_were(watch.wrong)} wrong"
    wrong, length = telling_stretch(watch.recent, watch.target_error)
    if watch.broken_at is not None:
        return (
            f"{counts}: the promise {promise} no longer holds (the alarm came with mark {watch.broken_at}, when "
            f"{wrong} of the last {length} were wrong; if the promise did hold, an alarm would come at most once in "
            f"{math.floor(1 / watch.false_alarms)} models)."
        )
    if watch.evidence >= DOUBT:
        return f"{counts}, {wrong} of the last {length}; that speaks against {promise}, but may still be chance."
    if watch.wrong > as_fraction("target_error", watch.target_error) * watch.marked:
        return f"{counts}; that is more than {promise} allows on average, but may still be chance."
    if watch.marked > len(watch.recent):
        counts += f" ({watch.recent.count('1')} of the last {len(watch.recent)})"
    return f"{counts}; nothing speaks against {promise}."


def telling_stretch(recent: str, target_error: float) -> tuple[int, int]:
    """How many are wrong of how many of the latest marks, for as many as speak most against the promise.

    These are the marks with the largest likelihood ratio of their own error rate to the promised one. All of them, if
    no number of the latest marks has more errors than promised.

    >>> telling_stretch("0100000000000000101101", 0.1), telling_stretch("1000", 0.5)
    ((4, 6), (1, 4))
    """
    best, found = 0.0, (recent.count("1"), len(recent))
    wrong = 0
    for length, mark in enumerate(reversed(recent), start=1):
        wrong += mark == "1"
        rate = wrong / length
        if rate > target_error:
            gain = wrong * math.log(rate / target_error)
            if rate < 1:
                gain += (length - wrong) * (math.log1p(-rate) - math.log1p(-target_error))
            if gain > best:
                best, found = gain, (wrong, length)
    return found


def _were(count: int) -> str:
    return "was" if count == 1 else "were"
