"""`calprompt export`: a fitted model as a folder that runs without torch."""

from __future__ import annotations

import argparse
from typing import Any

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import create_command
from calprompt.errors import SettingError

EXAMPLES = """\
  calprompt export model exported
  calprompt export model exported-int8 --int8 --data photos/
  python exported/predict.py photo.jpg
"""


def add_command(commands: Any) -> None:
    """Add `export` to the commands of a parser."""
    parser = create_command(
        commands,
        "export",
        help="a fitted model as a folder that runs with onnxruntime, numpy and Pillow alone",
        description="Write a fitted model as ONNX, with one script that answers as calprompt does: the same "
        "probabilities,\nthe same unsure and none of these, the same sets. Needs pip install calprompt[onnx].",
        examples=EXAMPLES,
    )
    parser.set_defaults(command=export)
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a fitted model")
    add("out", metavar="OUT", help="folder for the exported model, which is made")
    add("--classes", nargs="+", metavar="NAME", help="classes to add by their names; promises are withdrawn")
    add("--int8", action="store_true", help="round the image tower to 8 bits, measured on the held-out images")
    add("--data", metavar="DATA", help="with --int8: the images that the model was fitted on")
    add(
        "--max-accuracy-drop",
        type=float,
        default=0.01,
        metavar="X",
        help="with --int8: refuse if accuracy is lower by more than this share (default: 0.01)",
    )
    add(
        "--max-ece-rise",
        type=float,
        default=0.01,
        metavar="X",
        help="with --int8: refuse if the calibration error is higher by more than this share (default: 0.01)",
    )
    add("--backbone", metavar="SPEC", help="where the same weights are now (default: where they were)")
    add(
        "--import",
        action="append",
        metavar="FILE",
        dest="imports",
        help="Python file it needs; none is run unless named",
    )
    add("--quiet", action="store_true", help="show no progress")


def export(args: argparse.Namespace) -> None:
    """Export a model and say how to run it."""
    from calprompt.classifier.model_folder import read_model
    from calprompt.export.packages import require_packages

    read_model(args.model)
    require_packages()
    if args.int8 and args.data is None:
        raise SettingError(
            "int8 is measured on the images that the model was fitted on; say where they are with data=DATA"
        )
    if args.int8 and args.classes:
        raise SettingError("int8 and classes do not go together: nothing can be measured for added classes")
    from calprompt.classifier import Classifier

    model = Classifier.load(args.model, backbone=args.backbone, device="cpu", imports=args.imports)
    if args.classes:
        model = model.with_classes(args.classes)
    with show_progress(args.quiet) as progress:
        measured = model.export(
            args.out,
            int8=args.int8,
            data=args.data,
            max_accuracy_drop=args.max_accuracy_drop,
            max_ece_rise=args.max_ece_rise,
            progress=progress,
        )
    console = output()
    for name, digits in (("accuracy", 4), ("ece", 4), ("nll", 4), ("bytes", 0), ("images_per_second", 1)):
        if name in measured:
            before, after = (f"{measured[name][when]:.{digits}f}" for when in ("before", "after"))
            console.print(f"{name.replace('_', ' ')}: {before} before, {after} in int8", markup=False)
    console.print(f"{args.out}: the exported model; run it with python {args.out}/predict.py IMAGES", markup=False)
