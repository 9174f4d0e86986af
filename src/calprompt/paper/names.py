"""What the paper calls methods, datasets, backbones and metrics; and which of its methods a row of results is of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calprompt.report.table import Column, stored_metric
from calprompt.results.methods import tuner_name
from calprompt.training_config import NAMED

ZERO_SHOT, VANILLA = "zero_shot", "vanilla"
METHODS = {
    ZERO_SHOT: "Zero-shot",
    VANILLA: "cross-entropy",
    "mbls": "MbLS",
    "temperature": "Temp. scaling",
    "dac": "DAC",
    "zs_norm": "ZS-Norm",
    "penalty": "Penalty",
    "tcpt": "TCPT",
    "margin": "margin",
    "margin+l1": "margin + L1",
    "margin+moments": "margin + moments",
}
LOSSES = {"ce": VANILLA, "margin_only": "margin", "margin_l1": "margin+l1"}
CALIBRATORS = ("temperature", "dac")  # methods of the paper, when they follow cross-entropy
DATASETS = {
    "imagenet": "INet",
    "caltech101": "Calt",
    "oxford_pets": "Pets",
    "stanford_cars": "Cars",
    "oxford_flowers": "Flow",
    "food101": "Food",
    "fgvc_aircraft": "Air",
    "sun397": "SUN",
    "dtd": "DTD",
    "eurosat": "Euro",
    "ucf101": "UCF",
    "imagenetv2": "INet-V2",
    "imagenet_sketch": "INet-S",
    "imagenet_a": "INet-A",
    "imagenet_r": "INet-R",
    "kather": "Kather",
    "pannuke": "PanNuke",
    "digestpath": "DigestPath",
}
BACKBONES = {
    "ViT-B-16-quickgelu/openai": "ViT-B/16",
    "ViT-B-32-quickgelu/openai": "ViT-B/32",
    "RN50-quickgelu/openai": "RN50",
    "hf-hub:vinid/plip": "PLIP",
    "hf-hub:wisdomik/QuiltNet-B-32": "QuiltNet",
}
SHORT = {"accuracy": "Acc.", "weighted_mce": "MCE"}
_MBLS = re.compile(r"ce \+ 0\.1\*mbls\(.*\)")


def method_of(row: Mapping[str, Any]) -> str:
    """The method of a row: one that the paper has, or loss and calibrator as they are.

    >>> rows = [{"model": "tuned", "loss": "ce", "calibrator": "none"}, {"model": "tuned", "loss": "ce"}]
    >>> [method_of(row | {"calibrator": name}) for row, name in zip(rows, ("none", "dac"))]
    ['vanilla', 'dac']
    >>> method_of({"model": "tuned", "loss": "tcpt", "calibrator": "temperature"})
    'tcpt, temperature'
    """
    calibrator = str(row.get("calibrator") or "none")
    if row.get("model") == "zero-shot":
        return ZERO_SHOT if calibrator == "none" else f"{ZERO_SHOT}, {calibrator}"
    loss = str(row.get("loss"))
    short = {text: name for name, text in NAMED.items()}.get(loss, loss)
    if _MBLS.fullmatch(loss):
        short = "mbls"
    method = LOSSES.get(short, short)
    if calibrator == "none":
        return method
    return calibrator if method == VANILLA and calibrator in CALIBRATORS else f"{method}, {calibrator}"


def method_label(method: str, tuner: str = "") -> str:
    """What a method is called; cross-entropy alone is the plain tuner.

    >>> method_label("vanilla", "coop"), method_label("tcpt"), method_label("focal(gamma=2)")
    ('CoOp', 'TCPT', 'focal(gamma=2)')
    """
    if method == VANILLA and tuner:
        return tuner_name(tuner)
    loss, comma, calibrator = method.partition(", ")
    return f"{METHODS.get(loss, loss)}{comma}{calibrator}"


def backbone_label(backbone: str) -> str:
    """What a backbone is called."""
    return BACKBONES.get(backbone, backbone)


def dataset_label(dataset: str) -> str:
    """What a column is called.

    >>> dataset_label("oxford_flowers"), dataset_label("pocket_animals"), dataset_label("mine")
    ('Flow', 'animals', 'mine')
    """
    return DATASETS.get(dataset, dataset.removeprefix("pocket_"))


def metric_measure(metric: str) -> Column:
    """How the paper writes a metric.

    >>> metric_measure("weighted_mce").label, metric_measure("mce").label, metric_measure("nll").digits
    ('MCE', 'MCE (textbook)', 3)
    """
    return stored_metric(metric, SHORT.get(metric))
