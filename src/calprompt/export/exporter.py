"""From a predictor to a folder that runs without torch: checked against the predictor, written in full or not at all.

    model.json     class names, preprocessing, calibrator, rule, promises, versions, sha256 of the model's files
    model.onnx     normalised pixels [n, 3, size, size] -> unit features [n, D]
    logits.onnx    unit features -> logits [n, C]; only where they are more than a product with text features
    weights.npz    text features; frozen ones too, if the calibrator needs zero-shot logits
    predict.py     runs it
    README.md      says how
    card.md        what the model is for, if its owner wrote that down

This file and `runtime.py`, which reads the folder, are the only code that knows these names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import calprompt
from calprompt.errors import CalpromptError, SettingError
from calprompt.export import EXPORTING, require_packages
from calprompt.files import EXPORT, RECORDS, failing_as, file_digest, replaced_folder, write_bytes, write_json
from calprompt.kernel import STEPS, softmax
from calprompt.progress import Progress, silent
from calprompt.promises import DecisionRule, ImageWatch, TrackRecord
from calprompt.sealed_files import sealed

if TYPE_CHECKING:
    from calprompt.predictor import Predictor

STAGES = ("image tower", "text", "check")
PLAIN = (str, int, float, bool, type(None))
BATCH = 32  # images per call of model.onnx
RECORD = RECORDS[EXPORT]
SCRIPT, README, CARD = "predict.py", "README.md", "card.md"
FOR_PEOPLE = (SCRIPT, README, CARD)  # not verified: whoever has the folder may change them


def export_predictor(
    predictor: Predictor,
    out: str | Path,
    *,
    rule: DecisionRule,
    labels: Sequence[Any] | None = None,
    promises: Sequence[str] = (),
    card: str | None = None,
    track_record: TrackRecord | None = None,
    weak_classes: Sequence[str] = (),
    image_watch: ImageWatch | None = None,
    progress: Progress = silent,
) -> Path:
    """Write a predictor into a folder that runs with onnxruntime, numpy and Pillow alone.

    The folder answers as the predictor does: same decoding, same preprocessing, same calibrator, same rule. Before it
    is handed over, its features and probabilities of random images are compared with the predictor's.

    Args:
        predictor: Predictor to export, with its calibrator.
        out: The folder, which must not exist or be empty.
        rule: When the model answers, is unsure, or says none of these; `DecisionRule()` always answers.
        labels: The label of each class in data and, as text, in answers: text or numbers, one per class.
        promises: Promises about the answers, one sentence each.
        card: A model card in Markdown, kept beside the model.
        track_record: How often its answers were right on held-out images; stored with the model.
        weak_classes: Classes most of whose held-out images it is wrong on; stored with the model.
        image_watch: Compares images with the held-out ones; kept with the model, for `calprompt serve`.
        progress: Progress callback.

    Returns:
        The folder.

    Raises:
        SettingError: if `out` is not empty, or something cannot be exported; the message says what.
        CalpromptError: if the exported model does not compute what the predictor does.
    """
    require_packages()
    from calprompt.export import graphs, runtime

    out, tuner = Path(out).expanduser(), predictor.tuner
    check_free(out)
    graphs.check_precision(tuner)
    check_rule(rule, len(predictor.class_names))
    steps, preprocessing = calibrator_steps(predictor), predictor.backbone.preprocessing.to_dict()
    record = {
        "class_names": list(predictor.class_names),
        "labels": plain_labels(labels, len(predictor.class_names)),
        "preprocessing": {  # nothing of training
            name: preprocessing[name] for name in ("size", "mean", "std", "interpolation", "resize_mode")
        },
        "upright": predictor.upright,
        "logit_scale": float(predictor.backbone.logit_scale),
        "dimensions": predictor.backbone.embed_dim,
        "batch": BATCH,
        "conditional": {"batch": graphs.conditional_batch(tuner)} if graphs.needs_logits(tuner) else None,
        "calibrator": {"name": None if predictor.calibrator is None else predictor.calibrator.name, "steps": steps},
        "rule": rule.to_dict(),
        "promises": [str(promise) for promise in promises],
        "track_record": None if track_record is None else track_record.to_dict(),
        "weak_classes": list(weak_classes),
        "image_watch": None if image_watch is None else image_watch.fresh_record(),
        "tuner": type(tuner).__name__,
        "backbone": {"name": predictor.backbone.name, "fingerprint": predictor.backbone.fingerprint},
        "versions": {
            "calprompt": calprompt.__version__,
            **{name: version(name) for name in ("torch", *EXPORTING, "numpy", "pillow")},
        },
        "quantization": None,
    }
    with new_folder(out) as folder:
        progress("exporting", 0, len(STAGES), STAGES[0])
        graphs.write_tower(tuner, folder / runtime.TOWER)
        progress("exporting", 1, len(STAGES), STAGES[1])
        if graphs.needs_logits(tuner):
            graphs.write_conditional(tuner, folder / runtime.CONDITIONAL)
        np.savez(folder / runtime.WEIGHTS, **text_weights(predictor))
        progress("exporting", 2, len(STAGES), STAGES[2])
        record["difference"] = measured_difference(predictor, folder, record)
        write_folder(folder, record, card=card)
    progress("exporting", len(STAGES), len(STAGES), "")
    return out


def calibrator_steps(predictor: Predictor) -> list[dict[str, Any]]:
    """What the calibrator does, as the steps that `kernel` computes; raises if that cannot be."""
    import torch

    if predictor.calibrator is None:
        return []
    if "zero_shot_logits" in predictor.calibrator.needs and predictor.tuner.needs_pixels:
        raise SettingError(
            f"the calibrator {predictor.calibrator.name!r} compares with the untuned model, and "
            f"{type(predictor.tuner).__name__} changes the image tower: the export would need both towers. Choose "
            "another calibrator, such as temperature"
        )
    none = torch.empty(0, len(predictor.class_names))
    steps = predictor.calibrator.export(predictor.stored_logits(none, torch.empty(0, predictor.backbone.embed_dim)))
    return check_steps(steps, f"the calibrator {predictor.calibrator.name!r}")


def check_steps(steps: list[dict[str, Any]], who: str) -> list[dict[str, Any]]:
    for step in steps:
        if step.get("step") not in STEPS or not isinstance(step.get("keeps_argmax"), bool):
            raise SettingError(
                f"{who} gives the step {step}, which cannot be exported: expected keeps_argmax and a step that "
                f"calprompt/kernel.py computes: {', '.join(STEPS)}"
            )
    return steps


def text_weights(predictor: Predictor) -> dict[str, Any]:
    """Text features as float32 arrays, those that the model needs."""
    import torch

    tuner, weights = predictor.tuner, {}
    if not tuner.text_depends_on_image:
        with torch.no_grad(), predictor.backbone.limited_threads():
            weights["text"] = tuner.text_features().float().cpu().numpy()
    if predictor.calibrator is not None and "zero_shot_logits" in predictor.calibrator.needs:
        weights["frozen_text"] = tuner.frozen_text.float().cpu().numpy()
    return weights


def measured_difference(predictor: Predictor, folder: Path, record: dict[str, Any]) -> dict[str, float]:
    """How far features and uncalibrated probabilities of random images are from the predictor's; raises if too far."""
    import torch

    from calprompt.export import graphs, runtime

    exported = runtime.Graphs(folder, record, threads=1)
    size, tuner = record["preprocessing"]["size"], predictor.tuner
    differences = {"features": 0.0, "probabilities": 0.0}
    for number, n in enumerate((1, 3, 8)):
        pixels = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(number))
        with torch.no_grad(), predictor.backbone.limited_threads():
            features = graphs.Tower(tuner)(pixels.to(predictor.backbone.device))
            logits = tuner.predict_features(features).float().cpu().numpy()
        ours, our_logits, _ = exported(pixels.numpy())
        pairs = {
            "features": (features.float().cpu().numpy(), ours),
            "probabilities": tuple(softmax(each.astype(np.float64)) for each in (logits, our_logits)),
        }
        for name, (torch_says, onnx_says) in pairs.items():
            differences[name] = max(differences[name], float(np.abs(torch_says - onnx_says).max()))
    for name, difference in differences.items():
        if not difference <= graphs.LARGEST_DIFFERENCE:
            raise CalpromptError(
                f"the exported model does not compute what the predictor does: its {name} differ by {difference:.1e}, "
                f"and {graphs.LARGEST_DIFFERENCE:.0e} is the most that is accepted. On a GPU that rounds to TF32, load "
                "it with the device cpu to export it"
            )
    return differences


def check_rule(rule: DecisionRule, classes: int) -> None:
    if not isinstance(rule, DecisionRule):
        raise SettingError(f"must be a DecisionRule, got {type(rule).__name__}", parameter="rule")
    for each in rule.sets:
        if len(each.quantiles) not in (1, classes):
            raise SettingError(
                f"the rule of sets of coverage {each.coverage} is for {len(each.quantiles)} classes, and the predictor "
                f"has {classes}"
            )


def plain_labels(labels: Sequence[Any] | None, classes: int) -> list[Any] | None:
    """Labels as JSON has them; raises if there are not as many as classes, or they are of another kind."""
    if labels is None:
        return None
    found = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if len(found) != classes:
        raise SettingError(f"must be one for each of {classes} classes, got {len(found)}", parameter="labels")
    strange = [label for label in found if not isinstance(label, PLAIN) or label != label]
    if strange:
        raise SettingError(f"must be text or numbers to be exported, got {strange[0]!r}", parameter="labels")
    return found


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its place at the end, or is removed if anything goes wrong."""
    out = Path(out).expanduser()
    check_free(out)
    with failing_as(f"cannot write {out}"), replaced_folder(out) as folder:
        yield folder
        check_free(out)  # it may have been written meanwhile


def check_free(out: Path) -> None:
    """Raise unless `out` is not there, or an empty folder."""
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise SettingError(f"{out} exists already; choose another folder, or remove it first")


def write_folder(folder: Path, record: dict[str, Any], *, card: str | None = None) -> None:
    """Add to the model's files what describes them: the script, the pages for people, and model.json."""
    from calprompt.export import runtime

    own = (*FOR_PEOPLE, RECORD)
    digests = {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name not in own}
    write_bytes(folder / SCRIPT, script().encode())
    if card is not None:
        write_bytes(folder / CARD, card.encode())
    write_bytes(folder / README, readme(record, card is not None).encode())
    write_json(folder / RECORD, sealed({**record, "files": digests}, runtime.FORMAT))


def script() -> str:
    """The script of an exported folder: `runtime.py` with the files that it shares with the library in it."""
    from calprompt import errors, kernel, notebook, records
    from calprompt.data import decoding
    from calprompt.export import runtime
    from calprompt.promises import rule

    lines, nodes = source(runtime)
    ours = [node for node in nodes if is_of_library(node)]
    shared = []
    for module in (errors, kernel, notebook, records, decoding, rule):
        part, own = source(module)
        left_out = {number for node in own if is_left_out(node) for number in spanned(node)}
        kept = "".join(line for number, line in enumerate(part, start=1) if number not in left_out)
        title = module.__name__.replace(".", "/")
        shared.append(f"# What follows is {title}.py of the library.\n\n\n{kept.strip()}\n\n\n")
    first, last = ours[0].lineno, spanned(ours[-1])[-1]
    return "".join([*lines[: first - 1], *shared, *lines[last:]])


def source(module: Any) -> tuple[list[str], list[ast.stmt]]:
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return text.splitlines(keepends=True), ast.parse(text).body


def spanned(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def is_of_library(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "calprompt"


def is_left_out(node: ast.stmt) -> bool:
    """Whether the script has no use for a statement: docstrings, and imports of what is in it or only for checkers."""
    future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    for_checkers = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return future or for_checkers or text or is_of_library(node)


def readme(record: dict[str, Any], has_card: bool) -> str:
    names = list(map(str, record["labels"] or record["class_names"]))
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    lines = [
        "# An image classifier",
        "",
        f"It tells {len(names)} classes apart: {shown}. Exported by calprompt {record['versions']['calprompt']}.",
        "",
        "It needs Python 3.10 or newer, onnxruntime, numpy and Pillow, and nothing else:",
        "",
        "```",
        "pip install onnxruntime numpy pillow",
        f"python {SCRIPT} IMAGE…",
        f"python {SCRIPT} IMAGE… --json",
        "```",
        "",
        "From Python, with this folder on the path:",
        "",
        "```python",
        "from predict import Model",
        "",
        'model = Model("this folder")',
        'model.predict_proba(["cat.jpg", "dog.png"])  # calibrated probabilities, one row per image',
        'model.answers("cat.jpg")                     # a class, "unsure" or "none of these"',
        "```",
        "",
    ]
    withdrawn = record["rule"]["withdrawn"]
    if withdrawn is not None:
        lines += [f"What was promised of its answers does not hold: {withdrawn}", ""]
    elif record["promises"]:
        lines += ["What is promised of its answers:", "", *(f"- {text}" for text in record["promises"]), ""]
    if has_card:
        lines += [f"What it is for, and how it was made: [{CARD}]({CARD}).", ""]
    return "\n".join(lines)
