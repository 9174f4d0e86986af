"""A check of a model for a terminal: each class by itself, and what is taken for what."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape

from calprompt.classifier.checks import Check
from calprompt.cli.tables import create_table
from calprompt.metrics.binomial import log_binomial_tail
from calprompt.metrics.selective import UNLIKELY
from calprompt.promises.requests import percent
from calprompt.text import plural, shorten, visible

MATRIX = 12  # classes up to which the whole confusion matrix is shown
LISTED = 20


def print_check(check: Check, console: Console) -> None:
    """The accuracy of each class, and the confusion matrix or the most confused pairs."""
    names = list(check.per_class)
    matrix = len(names) <= MATRIX
    short = [escape(visible(name))[:10] for name in names]
    columns = [("class", "left"), ("images", "right"), ("right", "right")]
    heading = "taken for" if matrix else "most often taken for"
    table = create_table([*columns, *([(name, "right") for name in short] if matrix else [(heading, "left")])])
    worst = sorted(range(len(names)), key=lambda row: _accuracy(check.per_class[names[row]]))
    for row in range(len(names)) if len(names) <= LISTED else worst[:LISTED]:
        n, right = check.per_class[names[row]]
        cells = [escape(visible(names[row])), str(n), percent(round(right / n, 3)) if n else "n/a"]
        if matrix:
            cells += [str(count) if count else "·" for count in check.confusion[row]]
        else:
            wrong = sorted(
                ((count, name) for name, count in zip(names, check.confusion[row], strict=True)), reverse=True
            )
            cells.append(
                escape(shorten((f"{name} ({count})" for count, name in wrong if count and name != names[row]), 3))
            )
        table.add_row(*cells)
    console.print(table)
    if len(names) > LISTED:
        console.print(f"the {LISTED} classes with the most errors of {len(names)}", markup=False)


def outcome_sentences(check: Check) -> list[str]:
    """What was answered of images that no promise was made on, and whether the promises held."""
    found = check.outcomes
    answered, wrong = found["answer"], found["wrong"]
    rate = f", of which {wrong} are wrong ({percent(round(wrong / answered, 3))})" if answered else ""
    lines = [
        f"It answers {answered} of {check.images} images{rate}; {found['unsure']} unsure, "
        f"{found['none of these']} none of these."
    ]
    target = found["target_error"]
    if target is not None and answered:
        lines.append(_verdict(wrong, answered, target))
    if "cost" in found:
        cost = found["cost"]
        lines.append(
            f"Its answers cost {cost['answers']:.3g} per image; answering every image {cost['every_image']:.3g}, and "
            f"with the most probable class {cost['most_probable']:.3g}."
        )
    for name, each in found.get("never_miss", {}).items():
        if each["images"]:
            share = percent(round(each["missed"] / each["images"], 4))
            lines.append(f"Of {plural(each['images'], 'image')} of {name!r}, {each['missed']} are missed ({share}).")
        if each["images"] and each["promised"] is not None:
            lines.append(_verdict(each["missed"], each["images"], each["promised"], "missed"))
    for name, each in found["sets"].items():
        if not each["images"]:
            continue
        share = percent(round(each["covered"] / each["images"], 3))
        about = f"the {each['images']} images of other classes than {shorten(each['excluded'])}"
        which = " per class" if name.endswith("per class") else ""
        promised = "nothing was promised" if each["promised"] is None else f"promised: {percent(each['promised'])}"
        lines.append(
            f"The set{which} contains the truth for {share} of {about if each['excluded'] else 'them'} ({promised}), "
            f"with {each['mean_size']:.1f} classes on average."
        )
    return lines


def _verdict(wrong: int, answered: int, target: float, what: str = "wrong") -> str:
    """Whether a promise on errors holds on images that it was not made on.

    >>> _verdict(5, 100, 0.1), _verdict(11, 100, 0.1), _verdict(30, 100, 0.1)  # doctest: +NORMALIZE_WHITESPACE
    ('These images agree with the promise of at most 10 % wrong.',
     'These images do not speak against the promise of at most 10 % wrong: so many errors may be chance.',
     'The promise of at most 10 % wrong does NOT hold for these images.')
    """
    promise = f"the promise of at most {percent(target)} {what}"
    if wrong <= target * answered:
        return f"These images agree with {promise}."
    at_least = log_binomial_tail(answered - wrong, answered, 1 - target)  # P(Bin(n, target) ≥ wrong)
    if at_least > math.log(UNLIKELY):
        return f"These images do not speak against {promise}: so many errors may be chance."
    return f"{promise[0].upper()}{promise[1:]} does NOT hold for these images."


def _accuracy(counts: tuple[int, int]) -> float:
    n, right = counts
    return right / n if n else 2.0
