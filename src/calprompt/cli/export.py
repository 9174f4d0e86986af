"""Write a fitted model as ONNX, with one script that answers as calprompt does: the same probabilities, the same unsure
and none of these, the same sets. Needs pip install calprompt[onnx].

examples:
  calprompt export model exported
  calprompt export model exported-int8 --int8 --data photos/
  python exported/predict.py photo.jpg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from calprompt.cli.shared import add_shared, say
from calprompt.errors import Parameter, SettingError
from calprompt.files import MODEL, require_kind
from calprompt.progress import show_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a fitted model")
    add("out", metavar="OUT", help="folder to create for the exported model")
    add("--classes", nargs="+", metavar="NAME", help="classes to add by name; promises are withdrawn")
    add("--int8", action="store_true", help="round the image tower to 8 bits, measured on the held-out images")
    add("--data", metavar="DATA", help="with --int8: the images that the model was fitted on")
    for flag, what in (("accuracy-drop", "accuracy drops"), ("ece-rise", "calibration error rises")):
        about = f"with --int8: refuse if {what} by more than this fraction (default: 0.01)"
        add(f"--max-{flag}", type=float, default=0.01, metavar="X", help=about)
    add_shared(parser, "backbone", "imports", "quiet")


def run(args: argparse.Namespace) -> None:
    """Export a model and say how to run it."""
    from calprompt.export import require_packages
    from calprompt.export.exporter import check_free

    if args.int8 and args.data is None:
        raise SettingError(
            "is measured on the images that the model was fitted on; say where they are with ",
            Parameter("data", "DATA"),
            parameter="int8",
        )
    if args.int8 and args.classes:
        raise SettingError(
            "and ",
            Parameter("classes"),
            " do not go together: nothing can be measured for added classes",
            parameter="int8",
        )
    for name in ("max_accuracy_drop", "max_ece_rise"):
        if not 0 <= getattr(args, name) <= 1:
            raise SettingError(f"must be a share, from 0 to 1; got {getattr(args, name)}", parameter=name)
    require_kind(args.model, MODEL)
    check_free(Path(args.out).expanduser())
    require_packages()
    from calprompt.classifier.estimator import Classifier

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
    for name, digits in (("accuracy", 4), ("ece", 4), ("nll", 4), ("bytes", 0), ("images_per_second", 1)):
        if name in measured:
            before, after = (f"{measured[name][when]:.{digits}f}" for when in ("before", "after"))
            say(f"{name.replace('_', ' ')}: {before} before, {after} in int8")
    say(f"{args.out}: the exported model; run it with python {args.out}/predict.py IMAGES")
