"""Golden checks of single pieces: encoders, losses, calibrators, tokenizer, … One function an entry of the manifest."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.plain import open_clip_model
from calprompt.calibrators import DistanceAware, StoredLogits, TemperatureSGD
from calprompt.class_names import fill_template
from calprompt.clip.backbone import Backbone, unit
from calprompt.clip.open_clip_files import Tokenizer
from calprompt.errors import CalpromptError
from calprompt.losses import (
    margin_label_smoothing,
    mean_variance_margin,
    range_penalty,
    text_l1,
    text_l2,
    text_moment_matching,
    zero_shot_normalised_cross_entropy,
)
from calprompt.training import TrainingConfig, learning_rate
from calprompt.tuners import ProGrad
from calprompt.tuners.promptsrc import gaussian_weights
from golden import metrics_case, preprocess_case
from golden.harness import Golden, backbone, inputs, manifest

FLOAT32 = 5e-6  # of the largest number: dozens of units in the last place


def clip_forward(golden: Golden, directory: Path) -> None:
    """Frozen towers: features, every block's output, templates and ensembles."""
    kind = golden.entry["name"].removeprefix("clip_forward_")
    model = model_of(directory, kind)
    images, test = inputs(directory)[f"train_images_{kind}"].flatten(0, 1), inputs(directory)[f"test_images_{kind}"]
    names = manifest(directory)["base_class_names"]
    entry = golden.entry

    image = {"train": model.encode_image(images), "test": model.encode_image(test)}
    for part, features in image.items():
        golden.check(f"image_features_raw_{part}", features)
    for part, prompts in entry["prompts"].items():
        raw = model.encode_strings(prompts)
        golden.check(f"text_features_raw_{part}", raw)
        golden.check(f"text_features_{part}", unit(raw))
        golden.check(f"token_ids_{part}", model.tokenizer(prompts))
    text = unit(model.encode_strings(entry["prompts"]["base"]))
    logits = model.logit_scale * unit(image["test"]) @ text.T
    golden.check("logits_per_image_test_base", logits)
    golden.check("logits_per_text_test_base", logits.T)
    for key, template in entry["templates"].items():
        golden.check_if_present(f"template/{key}/text_features", model.zero_shot(names, template))

    for dataset in sorted({name.split("/")[0] for name in golden.group("ensemble")}):
        templates = list(entry["ensemble7_templates"])
        if dataset != "ImageNet":
            templates.append(entry["templates"][f"zs/{dataset}"])
        ensemble = model.zero_shot(names, templates)
        golden.check_if_present(f"ensemble/{dataset}/text_features", ensemble)
        logits = model.logit_scale * unit(image["test"]) @ ensemble.T
        golden.check_if_present(f"ensemble/{dataset}/test_logits", logits)
    golden.check("ensemble80_raw_mean/text_features_raw", raw_mean(golden, directory, entry["ensemble80_templates"]))
    check_activations(golden, directory, kind)


def model_of(directory: Path, kind: str) -> Backbone:
    """The folder's vision transformer (vit) or residual network (rn)."""
    shapes = manifest(directory)["models"]
    return backbone(directory, next(file for file, shape in shapes.items() if ("patch" in shape) == (kind == "vit")))


def raw_mean(golden: Golden, directory: Path, templates: list[str]) -> Tensor:
    """PromptSRC's teacher: the mean over templates of features that are not normalised."""
    kind = "rn" if golden.entry["name"].endswith("_rn") else "vit"
    model, names = model_of(directory, kind), manifest(directory)["base_class_names"]
    return torch.stack([model.encode_strings([fill_template(t, name) for name in names]) for t in templates]).mean(
        dim=0
    )


def check_activations(golden: Golden, directory: Path, kind: str) -> None:
    """Block outputs of the weights as they were loaded, through open_clip's own forward."""
    model = model_of(directory, kind)
    clip, found = open_clip_model(model.model), {}
    prompts = golden.entry["prompts"]["base"]
    ids = model.tokenizer(prompts)
    ends = ids.argmax(dim=1)
    rows = torch.arange(len(ids))
    hooks = [
        block.register_forward_hook(
            lambda _m, _i, out, n=n: found.__setitem__(f"act/text_block{n}_eot", out[rows, ends])
        )
        for n, block in enumerate(clip.transformer.resblocks)
    ]
    if model.is_vit:
        hooks += [
            block.register_forward_hook(
                lambda _m, _i, out, n=n: found.__setitem__(f"act/visual_block{n}_cls_first8", out[:, 0])
            )
            for n, block in enumerate(clip.visual.transformer.resblocks)
        ]
    else:
        hooks += [
            getattr(clip.visual, f"layer{n}").register_forward_hook(
                lambda _m, _i, out, n=n: found.__setitem__(f"act/visual_layer{n}_mean_first8", out.mean(dim=(2, 3)))
            )
            for n in range(1, 5)
        ]
    clip.encode_text(ids)
    clip.encode_image(inputs(directory)[f"train_images_{kind}"].flatten(0, 1)[:8])
    for hook in hooks:
        hook.remove()
    for name, value in found.items():
        golden.check(name, value)


def tokenizer(golden: Golden, directory: Path) -> None:
    ours = Tokenizer(golden.tensors["token_ids"].shape[1])
    strings = golden.entry["strings"]
    golden.check("token_ids", ours(strings))
    golden.check("encode_lengths", torch.tensor([len(ours.ids(text)) for text in strings]))
    long = golden.entry["truncate_string"]
    golden.check("truncated_token_ids", ours(long, truncate=True))
    if golden.entry["too_long_raises"]:
        with pytest.raises(CalpromptError, match="tokens with its start and end"):
            ours(long)
    for text, decoded in golden.entry["decode_examples"]:
        assert ours.decode(ours.ids(text)) == decoded


def preprocess(golden: Golden, directory: Path) -> None:
    preprocess_case.check(directory, golden.tensors, golden.entry)
    golden.seen.update(golden.tensors)


def metrics(golden: Golden, directory: Path) -> None:
    metrics_case.check(golden.tensors, golden.entry)
    golden.seen.update(golden.tensors)


def schedules(golden: Golden, directory: Path) -> None:
    for name in golden.group("lr"):
        lr, epochs = re.fullmatch(r"(.+)_ep(\d+)", name).groups()
        config = TrainingConfig(lr=float(lr), epochs=int(epochs))
        ours = torch.tensor([learning_rate(e, config) for e in range(1, int(epochs) + 1)], dtype=torch.float64)
        golden.check(f"lr/{name}", ours, tolerance=1e-12)
    for name in golden.group("gpa"):
        epochs, mean, std = re.fullmatch(r"n(\d+)_mean([\d.]+)_std([\d.]+)", name).groups()
        golden.check(f"gpa/{name}", gaussian_weights(int(epochs), float(mean), float(std)), tolerance=1e-12)


def regularizers(golden: Golden, directory: Path) -> None:
    logits, labels = golden.take("logits"), golden.take("labels")
    ties, tie_labels = golden.take("logits_ties"), golden.take("labels_ties")
    tuned, frozen = golden.take("tuned"), golden.take("frozen")
    zero_shot = golden.take("zs_logits")
    golden.take("image")

    def check(name: str, of: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        leaf = of.clone().requires_grad_()
        value = loss(leaf)
        value.backward()
        golden.check(f"{name}/value", value)
        golden.check(f"{name}/grad0", leaf.grad)

    for name in {name.split("/")[0] for name in golden.tensors}:
        if match := re.fullmatch(r"margin_mean_var(?:_(\w+?))?_a([\d.]+)_b([\d.]+)", name):
            kind, alpha, beta = match[1], float(match[2]), float(match[3])
            z, y = {
                None: (logits, labels),
                "ties": (ties, tie_labels),
                "one_sample": (logits[:1], labels[:1]),
                "two_classes": (logits[:, :2], labels.clamp(max=1)),
            }[kind]
            check(name, z, lambda z, y=y, a=alpha, b=beta: mean_variance_margin(z, y, a, b))
        elif match := re.fullmatch(r"mbls_baseline_margin_l1_m([\d.]+)_a([\d.]+)", name):  # with its cross-entropy
            margin, alpha = float(match[1]), float(match[2])
            check(
                name, logits, lambda z, m=margin, a=alpha: F.cross_entropy(z, labels) + a * margin_label_smoothing(z, m)
            )
    check("text_moment_matching", tuned, lambda t: text_moment_matching(t, frozen))
    check("text_moment_matching_scaled", 2 * tuned, lambda t: text_moment_matching(t, 3 * frozen))
    check("text_moment_matching_one_class", tuned[:1], lambda t: text_moment_matching(t, frozen[:1]))
    check("text_moment_matching_two_classes", tuned[:2], lambda t: text_moment_matching(t, frozen[:2]))
    check("text_covariance_match", tuned, lambda t: text_moment_matching(t, frozen, mean_weight=0))
    check("l1_text_mean", tuned, lambda t: text_l1(t, frozen))
    check("l2_text_mean", tuned, lambda t: text_l2(t, frozen))
    check("zsnorm_baseline_eccv_zs", logits, lambda z: zero_shot_normalised_cross_entropy(z, labels, zero_shot))
    check("penalty_baseline_eccv_penalty", logits, lambda z: 10 * range_penalty(z, zero_shot))  # without cross-entropy
    prograd = SimpleNamespace(temperature=1.0)
    check(
        "prograd_kl",
        logits,
        lambda z: ProGrad.terms(prograd, SimpleNamespace(logits=z, zero_shot_logits=zero_shot))["distillation"],  # type: ignore[arg-type]
    )


def dac(golden: Golden, directory: Path) -> None:
    """The public code divides by k, whether there are so many base classes or not."""
    for case, settings in golden.entry["cases"].items():
        features = ("current_tuned", "current_zs", "base_tuned", "base_zs")
        text, frozen, base, base_frozen = (golden.take(f"{case}/{name}") for name in features)
        ours = DistanceAware(k=settings["k"], divisor="k")
        golden.check(f"{case}/class_scale", ours.class_factors(text, frozen, base, base_frozen), tolerance=FLOAT32)
        record = StoredLogits(
            golden.take(f"{case}/logits"),
            text=text,
            frozen_text=frozen,
            base_text=base,
            base_frozen_text=base_frozen,
        )
        golden.check(f"{case}/scaled_logits", ours(record), tolerance=FLOAT32)


def temperature_scaling(golden: Golden, directory: Path) -> None:
    for case, settings in golden.entry["cases"].items():
        image, text = golden.take(f"{case}/image_features"), golden.take(f"{case}/text_features")
        labels = golden.take(f"{case}/labels")
        ours = TemperatureSGD(
            initial=settings["init_logit_scale"],
            **{name: settings[name] for name in ("lr", "epochs", "batch_size", "momentum", "weight_decay")},
        )
        cosines = image @ text.T
        path = ours.descend(cosines, labels)
        golden.check(f"{case}/logit_scale_after_epoch", torch.tensor(path.log_scales), tolerance=5e-6)
        golden.check(f"{case}/loss_per_step", torch.tensor(path.losses), tolerance=5e-6)
        golden.check(f"{case}/lr_per_epoch", torch.tensor(path.rates, dtype=torch.float64), tolerance=1e-12)
        scale = math.exp(ours.initial)  # the same from stored logits, in float64
        fitted = ours.fit(StoredLogits(scale * cosines, labels, logit_scale=scale))
        golden.check(f"{case}/logit_scale_after_epoch", torch.tensor([*path.log_scales[:-1], fitted.log_scale]))


def promptsrc_teacher60(golden: Golden, directory: Path) -> None:
    raw = raw_mean(golden, directory, golden.entry["templates"])
    golden.check("text_features_raw_mean", raw)
    golden.check("text_features", unit(raw))


CHECKS: dict[str, Callable[[Golden, Path], None]] = {
    "clip_forward_vit": clip_forward,
    "clip_forward_rn": clip_forward,
    "tokenizer": tokenizer,
    "preprocess": preprocess,
    "metrics": metrics,
    "schedules": schedules,
    "regularizers": regularizers,
    "promptsrc_teacher60": promptsrc_teacher60,
    "dac": dac,
    "temperature_scaling": temperature_scaling,
}
