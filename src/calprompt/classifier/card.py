"""The model card: README.md of a model's folder, for people and for Hugging Face's hub; and the diagram in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calprompt.classifier.checks import Check
from calprompt.classifier.fitted_model import FittedModel
from calprompt.classifier.summary import division_sentence, none_of_these_sentence, summary
from calprompt.text import shorten

LICENCES = (
    ("/openai", "MIT (OpenAI's CLIP; its authors advise against use without tests in the setting it is meant for)"),
    ("pocket-photo", "see calprompt/pocket/NOTICE.md in the package; its image tower is under Apache-2.0"),
    ("pocket", "see calprompt/pocket/NOTICE.md in the package; the pictures it learned from have several"),
)
LISTED = 50  # classes in a table
FRONT_MATTER = """\
---
library_name: calprompt
pipeline_tag: image-classification
tags: [calprompt, clip, prompt-tuning, calibration]
---"""


def model_card(model: FittedModel) -> str:
    """README.md, with the metadata that the hub reads at its top."""
    check = model.checks[0]
    sections = [
        FRONT_MATTER,
        f"# {model.data}: a classifier of {len(model.labels)} classes\n\n"
        "A CLIP model with tuned prompts and calibrated confidences, made with calprompt.",
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
        lines.append(f"- Classes added by name, of which no image was seen: {shorten(added, LISTED)}.")
    sections = [
        f"# {model.data}: a classifier of {len(labels)} classes",
        _section("What it does, and how sure it was before it was exported", lines),
        _section("Promises and their limits", _promises(model)),
        _section("How it was made", _making(model)),
    ]
    return "\n\n".join(sections) + "\n"


def draw_reliability(model: FittedModel, path: Path) -> None:
    """The reliability diagram before and after calibration."""
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
    """The licence of a backbone's weights, as far as it is known."""
    known = (licence for part, licence in LICENCES if backbone == part or backbone.endswith(part))
    return next(known, "not known to calprompt; look where the weights came from")


def _section(title: str, lines: list[str]) -> str:
    return f"## {title}\n\n" + "\n".join(lines)


def _calibration(model: FittedModel) -> list[str]:
    lines = ["| images | | accuracy | ECE | NLL | mean confidence |", "|---|---|---|---|---|---|"]
    for check in model.checks:
        for name, values in (("before", check.uncalibrated), ("after", check.metrics)):
            confidence = 100 * (values["accuracy"] + values["confidence_gap"])
            lines.append(
                f"| {check.source}, {check.images} | {name} | {100 * values['accuracy']:.1f} % | "
                f"{100 * values['ece']:.1f} % | {values['nll']:.3f} | {confidence:.1f} % |"
            )
    return [
        *lines,
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
    ]


def _classes(model: FittedModel, check: Check) -> list[str]:
    lines = ["| class | read as | tuned on | held out | right |", "|---|---|---|---|---|"]
    for label, name, (tuned, held) in list(zip(model.labels, model.class_names, model.counts, strict=True))[:LISTED]:
        n, right = check.per_class[str(label)]
        lines.append(
            f"| {_cell(label)} | {_cell(name)} | {tuned} | {held} | {f'{right} of {n}' if n else 'not checked'} |"
        )
    if len(model.labels) > LISTED:
        lines.append(f"\nand {len(model.labels) - LISTED} more; images.csv has all.")
    confused = [f"{true} taken for {other} ({count})" for true, other, count in check.most_confused[:5]]
    return [*lines, "", f"Most confused: {shorten(confused)}." if confused else "No image was taken for another class."]


def _findings(model: FittedModel) -> list[str]:
    lines = ["| image | class | problem | looks like | score |", "|---|---|---|---|---|"]
    for each in model.findings[:LISTED]:
        cells = map(_cell, (each.file, each.label, each.problem, each.looks_like))
        lines.append(f"| {' | '.join(cells)} | {each.score:.2f} |")
    if len(model.findings) > LISTED:
        lines.append(f"\nand {len(model.findings) - LISTED} more; findings.csv has all.")
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
        "used, and what was predicted by prompts that had not seen it.",
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


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
