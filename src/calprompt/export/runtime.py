"""Run an exported calprompt model: needs onnxruntime, numpy and Pillow, and nothing else.

    python predict.py cat.jpg dog.png                 one line per image
    python predict.py *.jpg --json --sets 0.9         one JSON object per line, with prediction sets

    from predict import Model
    model = Model("folder")                           the folder that this file was exported into
    model.predict_proba(["cat.jpg", "dog.png"])       calibrated probabilities [n, C]
    model.answers("cat.jpg")                          a class, "unsure" or "none of these"
    model.predict_set("cat.jpg", coverage=0.9)        the classes that it may be

    image ── RGB ── resize, crop, normalise ── model.onnx ── features ── logits ─┬─ calibrator ── probabilities
                                                                                 └─ rule ── answers, sets

Every file of the model is checked against its sha256 in model.json before it is used.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import onnxruntime
    from PIL import Image, ImageOps
except ImportError as missing:
    if __name__ != "__main__":
        raise
    print(f"error: {missing}; install what is needed with: pip install onnxruntime numpy pillow", file=sys.stderr)
    sys.exit(2)

from calprompt.data.decoding import as_rgb, decode, from_array, is_array, is_pillow, iterate_images, read
from calprompt.errors import CalpromptError, DamagedFileError, ImageError, NewerFormatError, SettingError
from calprompt.kernel import OPEN_SET_SCORES, SET_SCORES, STEPS, calibrated_logits, resize_and_crop, softmax
from calprompt.promises.rule import ANSWER, Answer, DecisionRule, SetRule, make_answers

FORMAT = 1  # of model.json
RECORD, TOWER, CONDITIONAL, WEIGHTS = "model.json", "model.onnx", "logits.onnx", "weights.npz"


@dataclass(frozen=True, eq=False)
class Batch:
    """Some images, and what the model computed of them.

    Attributes:
        names: Their paths, or "image 3" for the fourth that has none.
        features: [n, D] unit image features, in float32.
        logits: [n, C] in float32, before calibration.
        zero_shot: [n, C] logits of the untuned model; None if the calibrator does not need them.
        probabilities: [n, C] in float64, calibrated.
        unreadable: Images that could not be read, and why; they have no rows.
    """

    names: list[str]
    features: np.ndarray
    logits: np.ndarray
    zero_shot: np.ndarray | None
    probabilities: np.ndarray
    unreadable: dict[str, str]


class Graphs:
    """The ONNX files and the text features of a model: from pixels to logits."""

    def __init__(
        self,
        folder: Path,
        record: dict[str, Any],
        *,
        threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        self.record = record
        with np.load(folder / WEIGHTS, allow_pickle=False) as weights:
            self.weights: dict[str, np.ndarray] = {name: weights[name] for name in weights.files}
        self.tower = open_graph(folder / TOWER, threads, providers)
        self.conditional = None
        if record["conditional"] is not None:
            self.conditional = open_graph(folder / CONDITIONAL, threads, providers)

    def __call__(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Features [n, D], logits [n, C] and, if the calibrator needs them, zero-shot logits of pixels [n, 3, s, s]."""
        if not len(pixels):
            none = np.empty((0, len(self.record["class_names"])), dtype=np.float32)
            return np.empty((0, self.record["dimensions"]), dtype=np.float32), none, none
        features = self.tower.run(None, {"pixels": pixels})[0]
        scale = np.float32(self.record["logit_scale"])
        if self.conditional is None:
            logits = scale * (features @ self.weights["text"].T)
        else:
            few = self.record["conditional"]["batch"]
            parts = (features[start : start + few] for start in range(0, len(features), few))
            logits = np.concatenate([self.conditional.run(None, {"features": part})[0] for part in parts])
        zero_shot = scale * (features @ self.weights["frozen_text"].T) if "frozen_text" in self.weights else None
        return features, logits, zero_shot


class Model:
    """An exported model.

    Images are paths, bytes of image files, PIL images or uint8 arrays [height, width(, 3)]; one or many. Many are taken
    a batch at a time, so that a generator of any length fits in memory.

    Args:
        folder: That it was exported into.
        threads: Threads of onnxruntime; as many as it likes, unless given.
        providers: Execution providers of onnxruntime, such as "CUDAExecutionProvider".

    Attributes:
        class_names: In the order of the columns of logits and probabilities.
        labels: The label of each class in data and, as text, in answers; by default, the class names.
        promises: Promises about the answers.
        rule: When it answers; `rule.withdrawn` says why its promises do not hold, if so.
        record: Everything in model.json.
    """

    def __init__(
        self, folder: str | Path, *, threads: int | None = None, providers: Sequence[str] = ("CPUExecutionProvider",)
    ) -> None:
        self.folder = Path(folder).expanduser()
        self.record = read_record(self.folder)
        check_files(self.folder, self.record["files"])
        self.class_names: tuple[str, ...] = tuple(self.record["class_names"])
        self.labels: tuple[Any, ...] = tuple(self.record["labels"] or self.class_names)
        self.promises: tuple[str, ...] = tuple(self.record["promises"])
        self.batch: int = self.record["batch"]  # images at a time
        self.steps: list[dict[str, Any]] = self.record["calibrator"]["steps"]
        refuse_newer(self.folder / RECORD, self.record)
        self.rule = DecisionRule.from_dict(self.record["rule"])
        self.graphs = Graphs(self.folder, self.record, threads=threads, providers=providers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, {len(self.class_names)} classes)"

    def predict_proba(self, images: Any) -> np.ndarray:
        """Calibrated probabilities [n, C] in float64."""
        rows = [batch.probabilities for batch in self.stream(images)]
        return np.concatenate(rows) if rows else np.empty((0, len(self.class_names)))

    def answers(
        self,
        images: Any,
        *,
        coverage: float | None = None,
        per_class: bool = False,
        min_confidence: float | None = None,
    ) -> list[Answer]:
        """A class, "unsure" or "none of these" for each image.

        Args:
            images: One or many.
            coverage: Coverage of prediction sets, such as 0.9; None: no sets.
            per_class: The coverage holds for each class by itself.
            min_confidence: Instead of the model's own threshold; no promise on errors stands behind it.

        Raises:
            ImageError: for an image that cannot be read.
            SettingError: if there are no sets of this coverage.
        """
        rules = self.rules(coverage, per_class, min_confidence)
        return [answer for batch in self.stream(images) for answer in self.batch_answers(batch, *rules)]

    def predict_set(self, images: Any, coverage: float, *, per_class: bool = False) -> list[tuple[str, ...]]:
        """The classes that each image may be, the most probable first; arguments as `answers` takes them."""
        answers = self.answers(images, coverage=coverage, per_class=per_class)
        return [answer.prediction_set or () for answer in answers]

    def stream(self, images: Any, *, skip_unreadable: bool = False) -> Iterator[Batch]:
        """Batches of images with their logits and probabilities, in constant memory."""
        numbered = enumerate(iterate_images(images)[0])
        while batch := list(itertools.islice(numbered, self.batch)):
            names, pixels, unreadable = self.load(batch, skip_unreadable=skip_unreadable)
            features, logits, zero_shot = self.graphs(pixels)
            probabilities = softmax(calibrated_logits(self.steps, logits, zero_shot))
            yield Batch(names, features, logits, zero_shot, probabilities, unreadable)

    def load(
        self, batch: Sequence[tuple[int, Any]], *, skip_unreadable: bool = False
    ) -> tuple[list[str], np.ndarray, dict[str, str]]:
        """Names and pixels [n, 3, size, size] of numbered images, and those that cannot be read."""
        names, pixels, unreadable = [], [], {}
        for number, image in batch:
            name = str(image) if isinstance(image, (str, Path)) else f"image {number}"
            try:
                picture = open_image(image, upright=self.record["upright"])
                pixels.append(resized_pixels(picture, self.record["preprocessing"]))
                names.append(name)
            except ImageError as error:
                if not skip_unreadable:
                    raise ImageError(error.reason, name) from error
                unreadable[name] = error.reason
        return names, normalise(pixels, self.record["preprocessing"]), unreadable

    def rules(
        self, coverage: float | None, per_class: bool, min_confidence: float | None
    ) -> tuple[DecisionRule, SetRule | None]:
        """The rule of answers and that of sets, by options as `answers` takes them, checked."""
        if per_class and coverage is None:
            raise SettingError("per_class is about sets of classes; give their coverage too")
        if min_confidence is not None and not 0 <= min_confidence <= 1:
            raise SettingError(f"min_confidence must be a probability, from 0 to 1, got {min_confidence}")
        sets = None if coverage is None else self.rule.set_rule(coverage, per_class)
        return self.rule.with_threshold(min_confidence), sets

    def batch_answers(self, batch: Batch, rule: DecisionRule, sets: SetRule | None) -> list[Answer]:
        """The answers for a batch of `stream`."""
        labels = tuple(map(str, self.labels))
        return make_answers(batch.names, batch.logits, batch.probabilities, labels, rule, set_rule=sets)


# Images: from whatever the user has to the input of model.onnx.


def open_image(image: Any, *, upright: bool) -> Image.Image:
    """One image of whatever kind, in RGB; `upright` turns it as its EXIF tag says."""
    if isinstance(image, (str, Path)):
        return decode(read(os.fspath(Path(image).expanduser())), upright=upright)
    if isinstance(image, (bytes, bytearray, memoryview)):
        return decode(bytes(image), upright=upright)
    if is_pillow(image):
        return as_rgb(ImageOps.exif_transpose(image) if upright else image)
    if is_array(image):
        return as_rgb(from_array(np.asarray(image)))
    raise SettingError(f"an image must be a path, bytes, a PIL image or an array; got {type(image).__name__}")


def resized_pixels(image: Image.Image, preprocessing: dict[str, Any]) -> np.ndarray:
    """8-bit pixels [size, size, 3]."""
    size, interpolation, mode = (preprocessing[name] for name in ("size", "interpolation", "resize_mode"))
    return np.asarray(resize_and_crop(image, size, interpolation, mode))


def normalise(images: Sequence[np.ndarray], preprocessing: dict[str, Any]) -> np.ndarray:
    """Input of model.onnx, [n, 3, size, size], from the 8-bit pixels of each image."""
    size = preprocessing["size"]
    stacked = np.stack(images) if images else np.empty((0, size, size, 3), dtype=np.uint8)
    mean, std = (np.asarray(preprocessing[name], dtype=np.float32)[:, None, None] for name in ("mean", "std"))
    values = np.ascontiguousarray(stacked.transpose(0, 3, 1, 2)).astype(np.float32)
    return np.asarray((values / np.float32(255) - mean) / std)


# The folder: read, and checked to be as it was exported.


def read_record(folder: Path) -> dict[str, Any]:
    """What model.json says, if it is whole and of a format that is known here."""
    path = folder / RECORD
    if not folder.is_dir():
        raise SettingError(f"there is no folder {folder}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingError(f"{folder} has no {RECORD}: it is no exported model") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    number = record.get("format") if isinstance(record, dict) else None
    if not isinstance(number, int):
        raise DamagedFileError(f"{path} is damaged: it has no format number")
    if number > FORMAT:
        raise NewerFormatError(
            f"{path} has format {number}, and formats up to {FORMAT} are known here; use the predict.py that was "
            "exported with it"
        )
    if record.get("checksum") != checksum(record):
        raise DamagedFileError(f"{path} is damaged or was edited: its checksum does not fit; export the model again")
    return dict(record)


def refuse_newer(path: Path, record: dict[str, Any]) -> None:
    """Raise for a step of the calibrator or a score of the rule that is not known here."""
    rule = record["rule"]
    open_set = [] if rule["open_set"] is None else [rule["open_set"]["score"]]
    used = (
        ("its calibrator has the step", [step["step"] for step in record["calibrator"]["steps"]], tuple(STEPS)),
        ("its sets have the score", [each["score"] for each in rule["sets"]], SET_SCORES),
        ("its rule has the score", open_set, OPEN_SET_SCORES),
    )
    for what, names, known in used:
        for name in names:
            if name not in known:
                raise NewerFormatError(
                    f"{path}: {what} {name!r}, which is not among {', '.join(known)}; use the predict.py that was "
                    "exported with it"
                )


def checksum(record: dict[str, Any]) -> str:
    """sha256 of a record without its checksum, independent of blanks and order."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def check_files(folder: Path, digests: dict[str, str]) -> None:
    """Raise for a file that is missing or not as it was exported."""
    for name, wanted in digests.items():
        digest = hashlib.sha256()
        try:
            with open(folder / name, "rb") as file:
                while part := file.read(2**20):
                    digest.update(part)
        except OSError as error:
            raise DamagedFileError(f"cannot read {folder / name}: {error.strerror or error}") from error
        if digest.hexdigest() != wanted:
            raise DamagedFileError(
                f"{folder / name} is damaged or was edited: its sha256 is not that in {RECORD}; copy or export the "
                "folder again"
            )


def open_graph(path: Path, threads: int | None, providers: Sequence[str]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:  # onnxruntime has no base class of errors
        reason = " ".join(str(error).split())
        raise SettingError(f"onnxruntime {onnxruntime.__version__} cannot run {path}: {reason}") from error


# The command line.


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answer for each image; returns the exit code, 2 for a mistake of the user's."""
    parser = argparse.ArgumentParser(description="The class of images, with calibrated probabilities.")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--sets", type=float, metavar="COVERAGE", help="also print prediction sets, such as of 0.9")
    parser.add_argument("--per-class", action="store_true", help="sets whose coverage holds for each class by itself")
    parser.add_argument("--min-confidence", type=float, metavar="P", help="instead of the model's own threshold")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of onnxruntime (default: its own choice)")
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).parent, metavar="FOLDER", help="default: where this file is"
    )
    args = parser.parse_args(arguments)
    failed = False
    try:
        model = Model(args.model, threads=args.threads)
        rule, sets = model.rules(args.sets, args.per_class, args.min_confidence)
        width = max(map(len, args.images))
        for batch in model.stream(args.images, skip_unreadable=True):
            for answer in model.batch_answers(batch, rule, sets):
                print(json_line(answer, model) if args.json else text_line(answer, width))
            for name, reason in batch.unreadable.items():
                failed = True
                print(f"error: {printable(name)} ({reason})", file=sys.stderr)
        if not args.json:
            if rule.withdrawn is not None:
                print(printable(f"promises withdrawn: {rule.withdrawn}"))
            elif not rule.promised:
                print("no promise on errors stands behind these answers")
    except CalpromptError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    return 2 if failed else 0


def json_line(answer: Answer, model: Model) -> str:
    label = next(label for label in model.labels if str(label) == answer.class_name)
    return json.dumps({**asdict(answer), "label": label, "withdrawn": model.rule.withdrawn})


def text_line(answer: Answer, width: int) -> str:
    shown = answer.decision if answer.decision != ANSWER else answer.class_name
    guesses = [(answer.class_name, answer.probability)] * (answer.decision != ANSWER)
    if answer.runner_up is not None and answer.runner_up_probability is not None:
        guesses.append((answer.runner_up, answer.runner_up_probability))
    others = ", ".join(f"{name} {100 * share:.1f} %" for name, share in guesses)
    line = f"{answer.name:<{width}}  {shown}"
    if answer.decision == ANSWER:
        line += f" {100 * answer.probability:.1f} %"
    line += f"  ({'then ' if answer.decision == ANSWER else ''}{others})" if others else ""
    if answer.prediction_set is not None:
        line += f"  set: {', '.join(answer.prediction_set)}"
    return printable(line)


def printable(text: str) -> str:
    """Text that standard output can encode."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="backslashreplace").decode(encoding)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # such as of "| head"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
