"""Models that run elsewhere: a folder with an ONNX file and one script, for onnxruntime, numpy and Pillow.

    export_predictor(predictor, "folder", rule=rule)      writes the folder
    OnnxPredictor("folder").predict_proba("cat.jpg")      runs it from here, without torch
    python folder/predict.py cat.jpg                      runs it anywhere, without calprompt

Importing this package takes neither torch nor onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.lazy import lazy_exports

if TYPE_CHECKING:
    from calprompt.export.exporter import export_predictor
    from calprompt.export.onnx_predictor import OnnxPredictor
    from calprompt.export.quantization import quantize_folder

__all__ = ["OnnxPredictor", "export_predictor", "quantize_folder"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "exporter": ("export_predictor",),
        "onnx_predictor": ("OnnxPredictor",),
        "quantization": ("quantize_folder",),
    },
)
