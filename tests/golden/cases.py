"""Golden training runs: a tuner built from a case's settings must give its features, losses, gradients and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.prompts import TextPrompts
from calprompt.losses import Objective, mean_variance_margin, text_moment_matching
from calprompt.outputs import Outputs
from calprompt.training import training_step
from calprompt.tuners import ProDA, ProGrad, PromptSRC, Tuner
from calprompt.tuners.promptsrc import gaussian_weights
from golden.harness import Golden, backbone, inputs, manifest
from golden.methods import METHODS, Case

DEAD_CODE = "aux/"  # scalars the published trainers compute and throw away
TCPT = {"ce": ("ce", 1.0), "margin": ("margin", 1.0), "moment": ("moments", 1.0), "total": ("loss", 1.0)}


def check_case(golden: Golden, directory: Path) -> None:
    case, world = golden.entry, manifest(directory)
    method = METHODS[case["method"]]
    model = backbone(directory, case["backbone"])
    kind = "vit" if model.is_vit else "rn"

    tuner = method.build(case, model, world["base_class_names"])
    names = method.parameters(tuner)
    check_start(golden, tuner, names)
    if isinstance(tuner, ProDA):
        replay_draws(golden, tuner)

    images = inputs(directory)[f"train_images_{kind}"].flatten(0, 1)
    labels = inputs(directory)["train_labels"].flatten()
    chosen = [torch.tensor(case["batch_image_indices"][b]) for b in case["batch_order"]]
    seen = images if tuner.needs_pixels else model.encode_image(images)
    steps = [(seen[i], labels[i]) for i in chosen]

    check_before(golden, tuner, model, images[chosen[0]], *steps[0])
    check_training(golden, tuner, names, steps)

    test = inputs(directory)[f"test_images_{kind}"]
    test = test if tuner.needs_pixels else model.encode_image(test)
    parts = {"base": tuner}
    if case["novel_evaluated"]:
        parts["novel"] = method.build(case, model, world["novel_class_names"])
        parts["novel"].load_state_dict(tuner.state_dict())
    for part, tuned in parts.items():
        golden.check_if_present(f"test_logits_{part}", tuned.predict([test]))
        golden.check(f"token_ids_{part}", tuned.layout.ids)
        if f"text_features_final_{part}" in golden:
            golden.check(f"text_features_final_{part}", text_features(tuned))
    for name in golden.tensors:
        if name.startswith(DEAD_CODE):
            golden.ignore(name)
    golden.finish()


def objective(case: Case) -> Objective:
    tcpt = case["tcpt"]
    if tcpt is None:
        return Objective.parse("ce")
    return Objective.parse(f"ce + margin(alpha={tcpt['alpha']}, beta={tcpt['beta']}) + {tcpt['lambda_moment']}*moments")


def text_features(tuner: Tuner, image: Tensor | None = None) -> Tensor:
    """As they are recorded: [C, D], ProDA's [C, prompts, D], CoCoOp's [images, C, D]."""
    if isinstance(tuner, ProDA):
        return tuner.prompt_features(range(len(tuner.positions))).transpose(0, 1)
    return tuner.text_features(image)


def raw_text_features(tuner: Tuner, image: Tensor) -> Tensor:
    """The same before normalisation: what the encoder gave, listened to while the features are made."""
    heard: list[Tensor] = []
    encode = Backbone.encode_text

    def listen(backbone: Backbone, prompts: TextPrompts) -> Tensor:
        heard.append(encode(backbone, prompts))
        return heard[-1]

    with patch.object(Backbone, "encode_text", listen):
        text_features(tuner, image)
    raw = torch.cat(heard)  # [N, C, D]
    if isinstance(tuner, ProDA):
        return raw.transpose(0, 1)
    return raw if tuner.text_depends_on_image else raw[0]


def replay_draws(golden: Golden, tuner: ProDA) -> None:
    """Take the prompts the public run took; the first ones twice, for the look before the first step."""
    drawn = golden.take("drawn_prompt_indices").tolist()
    turns = iter([drawn[0], *drawn])
    tuner.draw = lambda: next(turns)  # type: ignore[method-assign]
    positions = [("front", "middle", "end").index(position) for position in tuner.positions]
    golden.check("prompt_positions", torch.tensor(positions))


def check_start(golden: Golden, tuner: Tuner, names: dict[str, str]) -> None:
    """Learnable tensors: the same ones, of the same shape; what starts from words starts the same; then theirs."""
    theirs = golden.group("init")
    state = tuner.state_dict()
    assert set(theirs) == set(names), f"learnable: theirs {sorted(theirs)}, ours {sorted(names)}"
    assert set(names.values()) == set(state)
    for name, ours in names.items():
        assert theirs[name].shape == state[ours].shape, name
    if isinstance(getattr(tuner, "phrase", None), str):
        golden.check("init/prompt_learner.ctx", state["context"])
    tuner.load_state_dict({ours: golden.take(f"init/{name}") for name, ours in names.items()})


@torch.no_grad()
def check_before(golden: Golden, tuner: Tuner, model: Backbone, pixels: Tensor, seen: Tensor, labels: Tensor) -> None:
    """Features, logits and separate losses before the first step."""
    image = tuner.image_features(seen)
    golden.check_if_present("text_features_raw_init", raw_text_features(tuner, image))
    golden.check_if_present("text_features_init", text_features(tuner, image))
    check_raw_image(golden, tuner, model, pixels)
    golden.check_if_present("logits_init", tuner.predict([seen]))
    golden.check_if_present("zs_text_features", tuner.frozen_text)

    outputs = tuner(seen, labels)
    golden.check_if_present("zs_logits_batch0", outputs.zero_shot_logits)
    golden.check_if_present("train_logits_batch0", outputs.logits)
    if tuner.text_depends_on_image:
        golden.check_if_present("train_text_features_batch0", tuner.text_features(image))
    elif isinstance(tuner, ProDA):
        drawn = golden.tensors["drawn_prompt_indices"][0].tolist()
        golden.check("train_text_features_batch0", tuner.prompt_features(drawn).transpose(0, 1))
        check_other_reading(golden, tuner, outputs)
    else:
        golden.check_if_present("train_text_features_batch0", outputs.text)
    if isinstance(tuner, PromptSRC):
        teacher = golden.take("srcteacher_text_features_raw")
        assert float((unit(teacher) - tuner.teacher_text).abs().max()) < 1e-5
        golden.check("srcteacher_image_features_batch0", outputs.frozen_image())


def check_raw_image(golden: Golden, tuner: Tuner, model: Backbone, pixels: Tensor) -> None:
    heard: list[Tensor] = []
    encode = Backbone.encode_image

    def listen(backbone: Backbone, *given: Any) -> Tensor:
        heard.append(encode(backbone, *given))
        return heard[-1]

    if tuner.needs_pixels:
        with patch.object(Backbone, "encode_image", listen):
            tuner.image_features(pixels)
    golden.check_if_present("image_features_raw_init", heard[0] if heard else model.encode_image(pixels))


def check_other_reading(golden: Golden, tuner: ProDA, outputs: Outputs) -> None:
    """Regularisers recorded beside the total, under the other plausible reading."""
    if golden.entry["tcpt"] is None:
        return
    alpha, beta = golden.entry["tcpt"]["alpha"], golden.entry["tcpt"]["beta"]
    mean_logits = tuner.logits(outputs.image, outputs.text)
    golden.check("loss/margin_alt_on_mean_logits", mean_variance_margin(mean_logits, outputs.labels, alpha, beta))
    moments = text_moment_matching(unit(outputs.text), outputs.frozen_text)
    golden.check("loss/moment_alt_on_renormalised_mean", moments)


def check_training(golden: Golden, tuner: Tuner, names: dict[str, str], steps: list[tuple[Tensor, Tensor]]) -> None:
    """Losses, gradients and prompts of all steps."""
    case, curve = golden.entry, []
    settings = case["optimiser"]
    assert (settings["name"], settings["schedule"]) == ("SGD", "constant")
    optimizer = torch.optim.SGD(
        tuner.parameters(),
        **{key: settings[key] for key in ("lr", "momentum", "weight_decay", "dampening", "nesterov")},
    )
    parameters = dict(tuner.named_parameters())
    if isinstance(tuner, ProGrad):
        check_separate_gradients(golden, tuner, names, *steps[0])
    epochs, per_epoch = case["epochs"], case["steps_per_epoch"]
    if isinstance(tuner, PromptSRC):
        golden.check("gpa_weights", gaussian_weights(epochs, *tuner.average), tolerance=1e-6)
    for number, (seen, labels) in enumerate(steps, start=1):
        step = training_step(tuner, optimizer, objective(case), seen, labels)
        values = {name: float(value) for name, value in step.values.items()}
        curve.append(values["loss"])
        if number == 1:
            for name, ours in names.items():
                golden.check_if_present(f"grad/{name}", parameters[ours].grad)
                golden.check_if_present(f"step1/{name}", parameters[ours])
            check_losses(golden, tuner, values)
        if per_epoch and number % per_epoch == 0:
            epoch = number // per_epoch
            for name, ours in names.items():
                golden.check_if_present(f"epoch{epoch}/{name}", parameters[ours])
            tuner.end_epoch(epoch, epochs)
    golden.check("loss_curve", torch.tensor(curve))
    for name, ours in names.items():
        golden.check_if_present(f"final/{name}", parameters[ours])


def check_losses(golden: Golden, tuner: Tuner, values: dict[str, float]) -> None:
    known = TCPT | METHODS[golden.entry["method"]].terms(tuner)
    for name in golden.group("loss"):
        if f"loss/{name}" in golden.seen:
            continue
        if name == "loss_a":  # ProGrad: all but the distillation
            golden.check("loss/loss_a", values["loss"] - values["distillation"])
        elif name == "proda_total":  # ProDA: its own objective
            golden.check("loss/proda_total", values["ce"] + values["prompt_similarity"])
        else:
            ours, weight = known[name]
            golden.check(f"loss/{name}", values[ours] / weight)


def check_separate_gradients(
    golden: Golden, tuner: ProGrad, names: dict[str, str], seen: Tensor, labels: Tensor
) -> None:
    """ProGrad: of the cross-entropy alone and of the distillation alone."""
    outputs = tuner(seen, labels)
    parameters = dict(tuner.named_parameters())
    for kind, loss in (("xe", F.cross_entropy(outputs.logits, labels)), ("kl", outputs.terms["distillation"])):
        for name, ours in names.items():
            (gradient,) = torch.autograd.grad(loss, parameters[ours], retain_graph=True)
            golden.check_if_present(f"grad_{kind}/{name}", gradient)
