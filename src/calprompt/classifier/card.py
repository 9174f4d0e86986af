"""What a fit did and how sure it is, in sentences: what `fit` ends with, and the model card of its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calprompt import tuners
from calprompt.classifier.checks import Check, band_sentence
from calprompt.classifier.fitted_model import FittedModel
from calprompt.evaluation.settings import NONE
from calprompt.inspection.inspect import listed
from calprompt.promises.requests import percent
from calprompt.promises.rule import OpenSetRule
from calprompt.promises.track_record import DESCRIPTIONS
from calprompt.text import plural, shorten

LICENCES = (
    ("/openai", "MIT (OpenAI's CLIP; its authors advise against use without tests in the setting it is meant for)"),
    ("pocket-photo", "see calprompt/pocket/NOTICE.md in the package; its image tower is under Apache-2.0"),
    ("pocket", "see calprompt/pocket/NOTICE.md in the package; the pictures it learned from have several"),
    ("pocket-vit", "see calprompt/pocket/NOTICE.md in the package; the pictures it learned from have several"),
)
MOST_ROWS = 50  # classes in a table
FRONT_MATTER = """\
---
library_name: calprompt
pipeline_tag: image-classification
tags: [calprompt, clip, prompt-tuning, calibration]
---"""


def summary(model: FittedModel) -> list[str]:
    """The whole story, a line each; the first is the division of the images."""
    lines = [division_sentence(model)]
    if model.choice is not None:
        lines += model.choice.sentences()
    lines += check_sentences(model.checks[0], model.config.backbone)
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
        lines.append(
            f"Worth a look: {listed(model.findings)}. They are in findings.csv; 'calprompt data inspect' shows them, "
            "and looks for copies and bad pictures too."
        )
    return lines


def division_sentence(model: FittedModel) -> str:
    tuned, held = (sum(pair[place] for pair in model.counts) for place in (0, 1))
    how = "" if model.calibrator_spec == NONE else f", calibrated it with {model.calibrator_spec} by {model.folds}-fold"
    crossed = " cross-fitting on the same images" if how else ""
    return (
        f"Fitted {model.config.tuner} to {plural(tuned, 'image')} of {plural(len(model.labels), 'class')}"
        f"{how}{crossed}, and kept {held or 'none'} for promises."
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


def model_card(model: FittedModel) -> str:
    """README.md, with the metadata that the hub reads at its top."""
    check = model.checks[0]
    sections = [
        FRONT_MATTER,
        f"# {model.data}: a classifier of {len(model.labels)} classes\n\n"
        "A CLIP model fitted to labelled images, with calibrated confidences, made with calprompt.",
        _section("What it does, and how sure it is", [f"- {line}" for line in summary(model)]),
        _section("Calibration", _calibration(model)),
        _section("Promises and their limits", _promises(model)),
        _section("Classes", _classes(model, check)),
        *([_section("What may be wrong with the images", _findings(model))] if model.findings else []),
        _section("How it was made", _making(model)),
        _section("Use", _use()),
    ]
    return "\n\n".join(sections) + "\n"


def export_card(model: FittedModel, labels: Sequence[object]) -> str:
    """card.md of an exported model: what it promises as it is exported, and what was measured before."""
    added = [str(label) for label in labels if label not in model.labels]
    lines = [f"- {line}" for line in summary(model)]
    if added:
        lines.append(f"- Classes added by name, of which no image was seen: {shorten(added, MOST_ROWS)}.")
        lines += [f"- {line}" for line in _added_classes(model)]
    sections = [
        f"# {model.data}: a classifier of {len(labels)} classes",
        _section("What it does, and how sure it was before it was exported", lines),
        _section("Promises and their limits", _promises(model)),
        _section("How it was made", _making(model)),
    ]
    return "\n\n".join(sections) + "\n"


def draw_reliability(model: FittedModel, path: Path) -> None:
    from calprompt.report.reliability import logits_panel, reliability_figure, save_figure

    source = model.checks[0].source
    part = model.checked
    after = np.log(np.clip(model.probabilities(part), 1e-300, None))
    panels = {
        f"{source} ({len(part)} images)": {
            "before calibration": logits_panel(part.logits.astype(np.float64), part.labels),
            "after calibration": logits_panel(after, part.labels),
        }
    }
    save_figure(reliability_figure(panels), path)


def licence_of(backbone: str) -> str:
    known = (licence for part, licence in LICENCES if backbone == part or backbone.endswith(part))
    return next(known, "not known to calprompt; look where the weights came from")


def _section(title: str, lines: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines)


def _calibration(model: FittedModel) -> list[str]:
    rows = []
    for check in model.checks:
        for name, values in (("before", check.uncalibrated), ("after", check.metrics)):
            confidence = values["accuracy"] + values["confidence_gap"]
            accuracy, ece, sure = (f"{100 * share:.1f} %" for share in (values["accuracy"], values["ece"], confidence))
            rows.append((f"{check.source}, {check.images}", name, accuracy, ece, f"{values['nll']:.3f}", sure))
    return [
        *_table(("images", "", "accuracy", "ECE", "NLL", "mean confidence"), rows),
        "",
        "![Reliability diagram before and after calibration](reliability.png)",
        "",
        "The bars are how often answers of a confidence were right; on the dashed line, as often as they say.",
    ]


def _promises(model: FittedModel) -> list[str]:
    lines = [f"- {promise.sentence}" for promise in model.promises] or ["- Nothing was asked for."]
    lines.append(f"- {none_of_these_sentence(model.rule.open_set)}")
    return [
        *lines,
        "",
        "Promises hold for images drawn as these were: the same source, the same proportions of classes, each image by "
        "itself. They hold one by one, not all at once. They do not hold for images from elsewhere, for classes added "
        "later, or for many pictures of one object, which are not independent.",
        *_added_classes(model),
    ]


def _added_classes(model: FittedModel) -> list[str]:
    if not tuners.get(model.config.tuner).learns_by_class:
        return []
    return [
        f"{model.config.tuner} learns weights of each class. A class that is added by name has those of the untuned "
        "model, beside learned ones of the others, and the calibrator has seen no image of it: its confidence, and "
        "which images it takes from the others, are not calibrated. Measure them with 'calprompt evaluate', or fit the "
        "model again with images of the class.",
    ]


def _classes(model: FittedModel, check: Check) -> list[str]:
    rows = []
    for label, name, (tuned, held) in zip(model.labels, model.class_names, model.counts, strict=True):
        n, right = check.per_class[str(label)]
        rows.append((label, name, tuned, held, f"{right} of {n}" if n else "not checked"))
    confused = [f"{true} taken for {other} ({count})" for true, other, count in check.most_confused[:5]]
    return [
        *_table(("class", "read as", "learned from", "held out", "right"), rows, "images.csv"),
        "",
        f"Most confused: {shorten(confused)}." if confused else "No image was taken for another class.",
    ]


def _findings(model: FittedModel) -> list[str]:
    found = model.findings
    rows = [(each.file, each.label, each.problem, each.looks_like, f"{each.score:.2f}") for each in found]
    lines = _table(("image", "class", "problem", "looks like", "score"), rows, "findings.csv")
    return [*lines, "", "Look before you act: hard images are found too."]


def _making(model: FittedModel) -> list[str]:
    config, training = model.config, model.config.training
    options = "".join(f", {name} = {value}" for name, value in config.options.items())
    return [
        f"- {division_sentence(model)}",
        f"- Backbone: {model.backbone['name']}, fingerprint {model.backbone['fingerprint'][:16]}; its weights are not "
        f"in this folder. Licence: {licence_of(config.backbone)}.",
        f"- Tuner {config.tuner}{options}; loss {config.loss}; {training.epochs} epochs, batches of "
        f"{training.batch_size}, learning rate {training.lr}, seed {training.seed}; template {model.template!r}.",
        f"- Data: {model.data}, {sum(model.totals)} images; images.csv of the fitted model says how each was "
        "used, and what was predicted for it by a fit that had not seen it.",
        f"- Time: {model.seconds:.0f} s.",
    ]


def _use() -> list[str]:
    return [
        "```python",
        "import calprompt",
        "",
        'classifier = calprompt.Classifier.load("this folder")',
        'classifier.answer("photo.jpg")  # class, calibrated probability, or unsure, or none of these',
        "```",
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], file: str = "") -> list[str]:
    """A table in Markdown; a long one is cut, and `file` has the rest."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows[:MOST_ROWS]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    more = [f"\nand {len(rows) - MOST_ROWS} more; {file} has all."] if len(rows) > MOST_ROWS else []
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *lines, *more]
