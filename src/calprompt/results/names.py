"""What people call tuners, losses and datasets: the names that papers use."""

from __future__ import annotations

from collections.abc import Iterable

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
DATASETS = ("pocket_",)  # beginnings of names that say nothing in a figure
ZERO_SHOT, NONE = "zero-shot", "none"


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
    for beginning in DATASETS:
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
