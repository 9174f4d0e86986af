"""An exported model with an image tower in int8: smaller, and measured before it is handed over.

    model.onnx ── ranges of activations on some images ── int8 ── logits ── refit ── calibrator and rule of their own
                                                                   │
                                      accuracy, ECE and NLL on labelled images, before and after ── refused, or written

Weights and activations of matrix products are rounded to 8 bits, one scale per channel of the weights and one range per
activation (static quantisation, QDQ). So are the convolutions of other networks. The one convolution of a vision
transformer, which makes patches of an image, is not: it is a small part of the work, and rounding it costs accuracy.
Nor are the first convolutions of a network with depthwise ones, whose channels have very unlike ranges: with them
rounded, features of EfficientNet-Lite0 had a cosine of 0.70 with those in float, without them 0.993.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import CalpromptError, SettingError
from calprompt.export import quiet, require_packages
from calprompt.export.exporter import CARD, check_free, check_rule, check_steps, new_folder, write_folder
from calprompt.kernel import calibrated_logits, softmax
from calprompt.metrics import accuracy, expected_calibration_error, negative_log_likelihood
from calprompt.metrics.inputs import check_labels
from calprompt.parallel import batched
from calprompt.progress import Progress, silent
from calprompt.promises import DecisionRule, ImageWatch, TrackRecord

Refit = Callable[
    [NDArray[np.float32], NDArray[np.float32] | None], tuple[list[dict[str, Any]], DecisionRule, Sequence[str]]
]
METHOD = "static int8 (QDQ), one scale per channel of the weights"
RANGE_IMAGES = 256  # whose activations the ranges are taken from
ROUNDING = 1e-12  # of shares, such as 0.625 - 0.615
TIMED_CALLS = 7  # calls of each model, in turns
STAGES = ("ranges of activations", "logits", "speed")
EARLY_CONVOLUTIONS = 6  # convolutions of a network with depthwise ones that stay in float


def quantize_folder(
    folder: str | Path,
    out: str | Path,
    images: Sequence[Any],
    labels: Sequence[int] | NDArray[Any],
    *,
    refit: Refit,
    max_accuracy_drop: float = 0.01,
    max_ece_rise: float = 0.01,
    range_images: Sequence[Any] | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write an exported model again with its image tower in int8, if it is still good enough.

    Args:
        folder: That `export_predictor` wrote.
        out: The new folder, which must not exist or be empty.
        images: Labelled images that the prompts were not tuned on: paths, bytes, PIL images or uint8 arrays.
        labels: The number of each image's class.
        refit: Given the int8 model's logits [n, C] of the images, and the zero-shot ones if its calibrator needs them,
            fits the calibrator and the rule again; returns the calibrator's steps, as `Calibrator.export` gives them,
            the rule, and what is promised with it, in sentences.
        max_accuracy_drop: Largest allowed drop in accuracy on the images, as a fraction.
        max_ece_rise: Largest allowed rise in calibration error on the images, as a fraction.
        range_images: Images that the ranges of activations are taken from; `images`, unless given. Promises that
            `refit` makes are sound only if these are others.
        progress: Progress callback.

    Returns:
        What was measured: accuracy, ece, nll, bytes and images_per_second (of one thread), each `before` and `after`;
        model.json has it too.

    Raises:
        CalpromptError: if accuracy or calibration suffers more than is allowed; nothing is written then.
        SettingError: if an argument does not make sense, or the model is in int8 already.
    """
    require_packages()
    from calprompt.export import runtime

    folder, out, images = Path(folder).expanduser(), Path(out).expanduser(), list(images)
    check_free(out)
    with new_folder(out) as new:
        model = runtime.Model(folder, threads=1)
        if not images:
            raise SettingError("must be at least one", parameter="images")
        y = check_labels(labels, len(images), len(model.class_names))
        if model.record["quantization"] is not None:
            raise SettingError(f"{folder} is in int8 already")
        if any(name.startswith(f"{runtime.TOWER}.") for name in model.record["files"]):
            raise SettingError(f"the image tower in {folder} is larger than 2 GB, which cannot be quantised")
        progress("quantising", 0, len(STAGES), STAGES[0])
        ranges = images if range_images is None else list(range_images)
        operators = write_int8(model, ranges, folder / runtime.TOWER, new / runtime.TOWER)
        for name in model.record["files"]:
            if name != runtime.TOWER:
                shutil.copyfile(folder / name, new / name)
        progress("quantising", 1, len(STAGES), STAGES[1])
        int8 = runtime.Graphs(new, model.record, threads=1)
        before = np.concatenate([batch.probabilities for batch in model.stream(images)])
        logits, zero_shot = computed(model, int8, images)
        steps, rule, promises = refit(logits, zero_shot)
        check_steps(steps, "refit")
        check_rule(rule, len(model.class_names))
        after = softmax(calibrated_logits(steps, logits, zero_shot))
        measured: dict[str, Any] = {
            name: {"before": metric(before, y), "after": metric(after, y)}
            for name, metric in (
                ("accuracy", accuracy),
                ("ece", expected_calibration_error),
                ("nll", negative_log_likelihood),
            )
        }
        check_quality(measured, max_accuracy_drop, max_ece_rise)
        progress("quantising", 2, len(STAGES), STAGES[2])
        measured["bytes"] = {
            "before": (folder / runtime.TOWER).stat().st_size,
            "after": (new / runtime.TOWER).stat().st_size,
        }
        measured["images_per_second"] = speeds(model, int8, images)
        record = {name: value for name, value in model.record.items() if name not in ("format", "files", "checksum")}
        track_record, watch = record.get("track_record"), record.get("image_watch")
        if track_record is not None:
            taken = None if rule.open_set is None else rule.open_set.accepts(logits)
            found = TrackRecord.of(track_record["source"], after, y, taken)
            track_record = None if found is None else found.to_dict()
        record |= {
            "calibrator": {"name": record["calibrator"]["name"], "steps": steps},
            "rule": rule.to_dict(),
            "promises": [str(promise) for promise in promises],
            "track_record": track_record,
            "image_watch": watch and ImageWatch.from_record(watch).compared_with(logits).fresh_record(),
            "difference": None,
            "quantization": {"method": METHOD, "operators": operators, "images": len(images), **measured},
        }
        card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).exists() else None
        write_folder(new, record, card=card)
    progress("quantising", len(STAGES), len(STAGES), "")
    return dict(record["quantization"])


def write_int8(model: Any, images: Sequence[Any], source: Path, target: Path) -> list[str]:
    """Write the int8 tower; returns the kinds of operators that were rounded."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        """Pixels of some images, those of all classes if they are in order."""

        def __init__(self) -> None:
            self.batches = pixel_batches(model, images[:: max(1, len(images) // RANGE_IMAGES)])

        def get_next(self) -> dict[str, Any] | None:
            return next(({"pixels": batch} for batch in self.batches), None)

    nodes = onnx.load(source, load_external_data=False).graph.node
    patches_alone = sum(node.op_type == "Conv" for node in nodes) < 2  # the convolution of a vision transformer
    operators = ["MatMul", "Gemm", *([] if patches_alone else ["Conv"])]
    prepared = target.with_name("prepared.onnx")
    with quiet():
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(target),
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=operators,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=nodes_to_keep(onnx.load(prepared)),
        )
    prepared.unlink()
    return operators


def nodes_to_keep(model: Any) -> list[str]:
    """The first convolutions of a network with depthwise ones."""
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    grouped = any(field.name == "group" and field.i > 1 for node in convolutions for field in node.attribute)
    return [node.name for node in convolutions[:EARLY_CONVOLUTIONS]] if grouped else []


def computed(model: Any, graphs: Any, images: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Logits and, if there are any, zero-shot logits of images by other graphs than the model's own."""
    parts = [graphs(pixels)[1:] for pixels in pixel_batches(model, images)]
    zero_shot = [part[1] for part in parts if part[1] is not None]
    return np.concatenate([part[0] for part in parts]), np.concatenate(zero_shot) if zero_shot else None


def pixel_batches(model: Any, images: Sequence[Any]) -> Iterator[NDArray[np.float32]]:
    for batch in batched(enumerate(images), model.batch):
        yield model.load(batch)[1]


def speeds(model: Any, int8: Any, images: Sequence[Any]) -> dict[str, float]:
    """Images per second in one thread, of both models in turns, by the median."""
    pixels = next(pixel_batches(model, images))
    seconds: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(TIMED_CALLS):
        for name, graphs in (("before", model.graphs), ("after", int8)):
            start = time.perf_counter()
            graphs.tower.run(None, {"pixels": pixels})
            seconds[name].append(time.perf_counter() - start)
    return {name: len(pixels) / float(np.median(each)) for name, each in seconds.items()}


def check_quality(measured: dict[str, Any], max_accuracy_drop: float, max_ece_rise: float) -> None:
    (right, right_now), (error, error_now) = (
        (measured[name]["before"], measured[name]["after"]) for name in ("accuracy", "ece")
    )
    drop, rise = right - right_now, error_now - error
    if drop > max_accuracy_drop + ROUNDING or rise > max_ece_rise + ROUNDING:
        raise CalpromptError(
            "the int8 model is not good enough, and was not written: accuracy "
            f"{100 * right:.2f} % before and {100 * right_now:.2f} % after (accepted: {max_accuracy_drop:g} lower), "
            f"calibration error {100 * error:.2f} % before and {100 * error_now:.2f} % after "
            f"(accepted: {max_ece_rise:g} higher)"
        )
