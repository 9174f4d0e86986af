"""Golden training runs: a tuner built from a case's settings must give its features, losses, gradients and prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calprompt.clip import Backbone, unit
from calprompt.losses import Objective
from calprompt.train import training_step
from calprompt.tuners import CoOp, Tuner
from golden.harness import Golden, backbone, inputs, manifest

DEAD_CODE = "aux/"  # scalars the published trainers compute and throw away


@dataclass(frozen=True)
class Adapter:
    """How a method's golden settings and parameter names read here."""

    build: Callable[[dict[str, Any], Backbone, list[str], dict[str, Any]], Tuner]
    parameters: Callable[[Tuner], dict[str, str]]  # theirs -> ours


def build_coop(case: dict[str, Any], model: Backbone, names: list[str], base: dict[str, Any]) -> Tuner:
    options = case["hyperparameters"]
    return CoOp(
        model,
        names,
        context=options["COOP.N_CTX"],
        words=options["COOP.CTX_INIT"] or None,
        position=options["COOP.CLASS_TOKEN_POSITION"],
        class_specific=options["COOP.CSC"],
        **base,
    )


METHODS = {"CoOp": Adapter(build_coop, lambda tuner: {"prompt_learner.ctx": "context"})}


def objective(case: dict[str, Any]) -> Objective:
    tcpt = case["tcpt"]
    if tcpt is None:
        return Objective.parse("ce")
    return Objective.parse(f"ce + margin(alpha={tcpt['alpha']}, beta={tcpt['beta']}) + {tcpt['lambda_moment']}*moments")


def check_case(golden: Golden, directory: Path) -> None:
    case, world = golden.entry, manifest(directory)
    adapter = METHODS[case["method"]]
    model = backbone(directory, case["backbone"])
    kind = case["backbone"].removeprefix("tiny_").removesuffix(".safetensors")
    base, novel = world["base_class_names"], world["novel_class_names"]
    options = {"template": case["zero_shot_template"] or "a photo of a {}."}

    tuner = adapter.build(case, model, base, options)
    names = adapter.parameters(tuner)
    check_start(golden, tuner, names)

    images = inputs(directory)[f"train_images_{kind}"].flatten(0, 1)
    labels = inputs(directory)["train_labels"].flatten()
    chosen = [torch.tensor(case["batch_image_indices"][b]) for b in case["batch_order"]]
    seen = images if tuner.sees_pixels else model.encode_image(images)

    check_before(golden, tuner, model, images[chosen[0]], seen[chosen[0]], labels[chosen[0]])
    check_training(golden, tuner, names, [(seen[i], labels[i]) for i in chosen])

    test = inputs(directory)[f"test_images_{kind}"]
    test = test if tuner.sees_pixels else model.encode_image(test)
    other = adapter.build(case, model, novel, options)
    other.load_state_dict(tuner.state_dict())
    for part, tuned in (("base", tuner), ("novel", other)):
        golden.check_if_present(f"test_logits_{part}", tuned.predict([test]))
        golden.check_if_present(f"text_features_final_{part}", tuned.text_features())
        if isinstance(tuned, CoOp):
            golden.check_if_present(f"token_ids_{part}", tuned.layout.ids)
    for name in golden.tensors:
        if name.startswith(DEAD_CODE):
            golden.ignore(name)
    golden.finish()


def check_start(golden: Golden, tuner: Tuner, names: dict[str, str]) -> None:
    """Learnable tensors: the same ones, of the same shape; what starts from words starts the same; then theirs."""
    theirs = golden.group("init")
    assert set(theirs) == set(names), f"learnable: theirs {sorted(theirs)}, ours {sorted(names)}"
    state = tuner.state_dict()
    assert set(names.values()) == set(state)
    if isinstance(tuner, CoOp) and isinstance(tuner.phrase, str):
        golden.check("init/prompt_learner.ctx", state["context"])
    tuner.load_state_dict({ours: golden.take(f"init/{name}") for name, ours in names.items()})


@torch.no_grad()
def check_before(golden: Golden, tuner: Tuner, model: Backbone, pixels: Tensor, seen: Tensor, labels: Tensor) -> None:
    """Features and logits before the first step."""
    raw = model.encode_text(tuner.layout.fill(tuner.context))[0]
    golden.check_if_present("text_features_raw_init", raw)
    golden.check_if_present("text_features_init", unit(raw))
    golden.check_if_present("image_features_raw_init", model.encode_image(pixels))
    golden.check_if_present("logits_init", tuner.predict([seen]))
    golden.check_if_present("zs_text_features", tuner.frozen_text)
    outputs = tuner(seen, labels)
    golden.check_if_present("zs_logits_batch0", outputs.zero_shot_logits)
    golden.check_if_present("train_logits_batch0", outputs.logits)
    golden.check_if_present("train_text_features_batch0", outputs.text)


def check_training(golden: Golden, tuner: Tuner, names: dict[str, str], steps: list[tuple[Tensor, Tensor]]) -> None:
    """Losses, gradients and prompts of all steps."""
    case, losses = golden.entry, []
    settings = case["optimiser"]
    assert settings["name"] == "SGD"
    assert settings["schedule"] == "constant"
    optimizer = torch.optim.SGD(
        tuner.parameters(),
        lr=settings["lr"],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        dampening=settings["dampening"],
        nesterov=settings["nesterov"],
    )
    parameters = dict(tuner.named_parameters())
    for number, (seen, labels) in enumerate(steps):
        values = training_step(tuner, optimizer, objective(case), seen, labels)
        losses.append(values["loss"])
        if number == 0:
            for name, ours in names.items():
                golden.check(f"grad/{name}", parameters[ours].grad)
                golden.check(f"step1/{name}", parameters[ours])
            ours_of = {"ce": "ce", "margin": "margin", "moment": "moments", "total": "loss"}
            for name in golden.group("loss"):
                golden.check(f"loss/{name}", values[ours_of[name]])
    golden.check("loss_curve", torch.tensor(losses))
    for name, ours in names.items():
        golden.check(f"final/{name}", parameters[ours])
