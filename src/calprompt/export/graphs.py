"""A predictor's computations as ONNX graphs, and how far they are from torch's.

tower         pixels [n, 3, size, size] -> unit features [n, D], under the tuner's visual prompts if it has any
conditional   unit features [n, D] -> logits [n, C], where they are not scaled cosines with one set of text features
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calprompt.errors import CalpromptError, SettingError
from calprompt.export import quiet
from calprompt.tuners import Tuner

LARGEST_DIFFERENCE = 1e-4  # how far features and probabilities may be from torch's
LARGEST_BATCH = 2**16
LOGITS_BATCH = 256  # images of logits.onnx at a time, where no class tokens are encoded
CPU_AT_ONCE = 2**19  # numbers of a batch of class tokens, about a processor's cache


class Tower(nn.Module):
    """From pixels to the unit features that a tuner compares with its text."""

    def __init__(self, tuner: Tuner) -> None:
        super().__init__()
        self.tuner, self.visual = tuner, tuner.backbone.model.visual

    def forward(self, pixels: Tensor) -> Tensor:
        tuner = self.tuner
        return tuner.image_features(pixels if tuner.needs_pixels else tuner.backbone.encode_image(pixels))


class Conditional(nn.Module):
    """From unit features to logits, for tuners with text features for each image or with logits of their own."""

    def __init__(self, tuner: Tuner) -> None:
        super().__init__()
        self.tuner, self.model = tuner, tuner.backbone.model

    def forward(self, features: Tensor) -> Tensor:
        return self.tuner.logits(features, self.tuner.text_features(features))


def write_tower(tuner: Tuner, path: Path) -> None:
    size, backbone = tuner.backbone.preprocessing.size, tuner.backbone
    pixels = torch.zeros(2, 3, size, size, dtype=torch.float32, device=backbone.device)
    write_graph(Tower(tuner), pixels, path, "pixels", "features", "image tower")


def write_conditional(tuner: Tuner, path: Path) -> None:
    features = torch.full((2, tuner.backbone.embed_dim), 0.1, device=tuner.backbone.device)
    write_graph(Conditional(tuner), features, path, "features", "logits", "text tower")


def write_graph(module: nn.Module, example: Tensor, path: Path, source: str, target: str, what: str) -> None:
    """Write a module of one input and one output, with any number of images at a time."""
    tuner: Any = module.tuner
    training = tuner.training
    try:
        with torch.no_grad(), quiet(), tuner.backbone.limited_threads():
            module.eval()
            module(example)  # what it computes once is computed now, and not traced
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                input_names=[source],
                output_names=[target],
                dynamic_shapes=({0: torch.export.Dim("n", min=1, max=LARGEST_BATCH)},),
                verbose=False,
            )
            assert program is not None
            forget_sources(program.model)
            program.save(path)
    except CalpromptError:
        raise
    except Exception as error:  # torch, onnxscript and onnx have their own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CalpromptError(
            f"the {what} of {type(tuner).__name__} on backbone {tuner.backbone.name!r} cannot be written as ONNX: "
            f"{reason}"
        ) from error
    finally:
        tuner.train(training)


def forget_sources(model: Any) -> None:
    """Remove what the exporter notes of this machine: stack traces with its paths."""
    parts: list[Any] = [model, model.graph, *model.graph.inputs, *model.graph.outputs]
    parts += [part for node in model.graph.all_nodes() for part in (node, *node.outputs)]
    parts += [*model.graph.initializers.values(), *model.functions.values()]
    for part in parts:
        part.metadata_props.clear()


def needs_logits(tuner: Tuner) -> bool:
    """Whether logits are more than a product of image and text features, so that they need a graph."""
    return tuner.text_depends_on_image or tuner.own_logits


def conditional_batch(tuner: Tuner) -> int:
    """How many images logits.onnx takes at a time, so that their class tokens fit a processor's cache."""
    if not tuner.text_depends_on_image:
        return LOGITS_BATCH
    tokens = len(tuner.layout.prefix) + len(tuner.layout.rest)
    return max(1, CPU_AT_ONCE // (tokens * tuner.backbone.text_width))


def check_precision(tuner: Tuner) -> None:
    """Raise for a backbone that does not compute in float32, as the exported model does."""
    backbone = tuner.backbone
    if backbone.dtype != torch.float32 or backbone.autocast is not None:
        how = str(backbone.autocast or backbone.dtype).removeprefix("torch.")
        raise SettingError(
            f"an exported model computes in float32, and this backbone in {how}: probabilities would not be the same. "
            "Load it in float32 to export it; calprompt.export.quantize_folder makes it smaller afterwards"
        )
