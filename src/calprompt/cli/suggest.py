"""List the images whose labels would teach a model most, the most useful first: those that it is unsure of, unlike
those that have a label, and unlike each other. docs/practitioners.md says what that is worth.

examples:
  calprompt suggest model inbox/
  calprompt suggest model inbox/ -n 50 --out label-these.csv
  calprompt suggest model inbox/ -n 50 --labelled photos/
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calprompt.cli.predict import image_paths
from calprompt.cli.shared import add_shared, positive, say
from calprompt.errors import DataError
from calprompt.files import MODEL, check_output, csv_bytes, require_kind, write_bytes
from calprompt.progress import show_progress
from calprompt.text import bullets, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calprompt.classifier.estimator import Classifier
    from calprompt.progress import Progress

COLUMNS = ("image", "predicted", "probability", "unsure")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a fitted model")
    add("images", nargs="+", metavar="IMAGES", help="image files, or folders (searched recursively)")
    add("-n", type=positive, default=50, metavar="N", dest="number", help="how many images (default: 50)")
    add("--labelled", nargs="+", metavar="IMAGES", help="images that have a label already, such as those of the fit")
    add("--out", metavar="FILE", help="write them to this CSV file, with the column label to fill in")
    add_shared(parser, "backbone", "device", "imports", "quiet")


def run(args: argparse.Namespace) -> None:
    """Predict all images, choose among them, and list the choice."""
    require_kind(args.model, MODEL)
    out = None if args.out is None else check_output(args.out, (".csv",), parameter="out")
    images = list(image_paths(args.images))
    labelled = [] if args.labelled is None else list(image_paths(args.labelled))
    from calprompt.classifier.estimator import Classifier
    from calprompt.classifier.suggesting import entropy
    from calprompt.classifier.suggesting import suggest as choose

    model = Classifier.load(args.model, backbone=args.backbone, device=args.device, imports=args.imports)
    with show_progress(args.quiet) as progress:
        known = seen(model, labelled, progress)[1] if labelled else None
        names, features, probabilities, unreadable = seen(model, images, progress)
    if not names:
        raise DataError(f"no image can be read:{bullets(unreadable)}")
    chosen = choose(features, probabilities, args.number, labelled=known)[: args.number]
    unsure, best = entropy(probabilities), probabilities.argmax(axis=1)
    columns = COLUMNS if out is None else (*COLUMNS, "label")
    rows = [
        {
            "image": names[place] if out is None else Path(names[place]).absolute(),
            "predicted": model.classes_[best[place]],
            "probability": f"{probabilities[place].max():.3f}",
            "unsure": f"{unsure[place]:.3f}",
        }
        for place in chosen
    ]
    if out is None:
        sys.stdout.write(csv_bytes(columns, rows).decode())
    else:
        write_bytes(out, csv_bytes(columns, rows))
        say(f"{out}: {plural(len(rows), 'image')} of {len(names)} to label, the most useful first")
        say(f"next: fill in the column label, then calprompt fit DATA --add {out} --against {args.model} --out NEW")
    if unreadable:
        raise DataError(
            f"{plural(len(unreadable), 'image')} cannot be read; the list is of the others:{bullets(list(unreadable))}"
        )


def seen(
    model: Classifier, images: list[str], progress: Progress
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64], dict[str, str]]:
    """Names, image features and probabilities of images, and those that cannot be read."""
    names: list[str] = []
    unreadable: dict[str, str] = {}
    features, probabilities = [], []
    for _, batch in model.stream(images, skip_unreadable=True, progress=progress):
        names += batch.names
        features.append(batch.features.double().numpy())
        probabilities.append(batch.probabilities)
        unreadable |= batch.unreadable
    return names, np.concatenate(features), np.concatenate(probabilities), unreadable
