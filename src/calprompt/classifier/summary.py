"""What a fit did and how sure it is, in sentences: what `fit` ends with and what the model card says."""

from __future__ import annotations

from calprompt.classifier.checks import Check, band_sentence
from calprompt.classifier.fitted_model import FittedModel
from calprompt.evaluation.settings import NONE
from calprompt.inspection.inspect import counted
from calprompt.promises.open_set import OpenSetRule
from calprompt.promises.requests import percent
from calprompt.promises.track_record import DESCRIPTIONS
from calprompt.text import plural


def summary(model: FittedModel) -> list[str]:
    """The whole story, a line each; the first is the division of the images."""
    lines = [division_sentence(model), *check_sentences(model.checks[0], model.config.backbone)]
    lines += [f"{band_sentence(band)}." for band in reversed(model.checks[0].bands)]
    lines += [promise.sentence for promise in model.promises]
    rule = model.rule
    if rule.min_confidence is not None and rule.target_error is None:
        lines.append(
            f"Answers below {percent(round(rule.min_confidence, 6))} are called unsure; no promise stands behind that."
        )
    lines += [none_of_these_sentence(model.rule.open_set)]
    lines += [f"Note: {note.rstrip('.')}." for note in model.notes]
    if model.skipped:
        lines.append(f"Left out: {plural(len(model.skipped), 'image')} that cannot be read.")
    if model.findings:
        found = ", ".join(f"{count} {problem}" for problem, count in counted(model.findings).items())
        lines.append(
            f"Something may be wrong with the images: {found}; findings.csv lists them, and 'calprompt data inspect' "
            "shows them and looks at copies and pictures too."
        )
    return lines


def division_sentence(model: FittedModel) -> str:
    """Which images did what."""
    tuned, held = (sum(pair[place] for pair in model.counts) for place in (0, 1))
    how = "" if model.calibrator_spec == NONE else f", calibrated it with {model.calibrator_spec} by {model.folds}-fold"
    crossed = " cross-fitting on the same images" if how else ""
    kept = f", and kept {held} for promises" if held else ", and kept none for promises"
    return (
        f"Tuned {model.config.tuner} ({model.config.loss}) on {plural(tuned, 'image')} of "
        f"{plural(len(model.labels), 'class')}{how}{crossed}{kept}."
    )


def check_sentences(check: Check, backbone: str) -> list[str]:
    """How good it is, beside what is no merit of its own, and what to think of it."""
    low, high = check.interval
    which = DESCRIPTIONS.get(check.source, f"of {check.source}")
    zero_shot = "" if check.zero_shot is None else f", the untuned model {percent(round(check.zero_shot, 3))}"
    before = ""
    if check.fitted_majority is not None:
        before = (
            f" ({check.fitted_majority_class!r}, the most frequent class when it was fitted, "
            f"{percent(round(check.fitted_majority, 3))})"
        )
    ece = check.metrics["ece"]
    lines = [
        f"On {plural(check.images, 'image')} {which}, it is right on {percent(round(check.accuracy, 3))} "
        f"({100 * low:.0f} to {100 * high:.0f} %); always answering {check.majority_class!r} "
        f"{percent(round(check.majority, 3))}{before}{zero_shot}.",
        f"Its confidence is off by {100 * ece:.1f} points on average (ECE); before calibration "
        f"{100 * check.uncalibrated['ece']:.1f}. A perfectly calibrated model would show about "
        f"{100 * check.chance_ece:.1f} on so many images.",
    ]
    return [*lines, *check.verdict(backbone)]


def none_of_these_sentence(rule: OpenSetRule | None) -> str:
    """How well images of other classes are noticed."""
    if rule is None:
        return "Every image gets one of the classes: there is no 'none of these'."
    rejected, low, high = rule.false_rejects
    first = (
        f"None of these: {100 * rejected:.0f} % of images of its own classes are called so ({100 * low:.0f} to "
        f"{100 * high:.0f} %)"
    )
    if rule.false_accepts is None:
        return f"{first}; how often images of other classes get through is not known, with so few classes to leave out."
    accepted, low, high = rule.false_accepts
    return (
        f"{first}; of images of other classes about {100 * accepted:.0f} % get through ({100 * low:.0f} to "
        f"{100 * high:.0f} %, from leaving out each of {rule.classes} classes)."
    )
