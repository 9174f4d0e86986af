"""`calprompt fit`: from a folder of images to a model whose confidence can be acted on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from calprompt.classifier.settings import FitSettings
from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import add_flags, describe, settings_of
from calprompt.cli.train import option_value
from calprompt.errors import SettingError
from calprompt.files import check_writable

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = """\
  calprompt fit photos/ --out model
  calprompt fit photos/ --out model --target-error 0.05 --coverage 0.95
  calprompt fit parts/ --out model --cost "scratched as good: 20" --never-miss scratched 0.01
  calprompt fit labels.csv --out model --backbone weights/ViT-B-16.pt --device cuda
  calprompt fit pocket_photos --out model --backbone pocket
  calprompt fit parts/ --out model --budget 5m --group-by '^[^_]+'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fit` to its parser; its defaults are those of `FitSettings`."""
    describe(
        parser,
        "Divide the images, choose a learner and tune it on some, calibrate, and find out on the others what can be "
        "promised.\nThe same command goes on where it was stopped.",
        EXAMPLES,
    )
    parser.set_defaults(command=fit)
    parser.add_argument(
        "data", metavar="DATA", help="folder with one subfolder per class, a table, or a name of 'calprompt data list'"
    )
    parser.add_argument("--out", required=True, metavar="MODEL", help="folder for the model, which is made")
    parser.add_argument("--overwrite", action="store_true", help="replace a model that is there")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_flags(parser, FitSettings, leave_out=("class_names", "verbose"))


def fit(args: argparse.Namespace) -> None:
    """Fit a classifier, say what it is worth, and write its folder."""
    from calprompt.data.labelled import labelled_images

    settings = settings_of(args, FitSettings)
    options = dict(option_value(text) for text in settings.pop("options", []))
    if "never_miss" in settings:
        settings["never_miss"] = {name: _share(text) for name, text in settings["never_miss"]}
    plain = FitSettings(**settings, options=options or None, verbose=False)
    plain.checked_requests()
    labelled_images(args.data, root=plain.root, classes=plain.classes)
    check_writable(args.out, parameter="out")
    from calprompt.classifier.estimator import Classifier
    from calprompt.classifier.model_folder import check_place
    from calprompt.cli.evaluation_tables import print_check

    check_place(args.out, overwrite=args.overwrite)
    console = output()

    def say(lines: Sequence[str]) -> None:
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)

    model = Classifier(**settings, options=options or None, verbose=False)
    with show_progress(args.quiet) as progress:
        model.fit(args.data, progress=progress, announce=say)
    place = model.save(args.out, overwrite=args.overwrite)  # before anything is printed that nobody may read
    say(["", *model.summary(), ""])
    print_check(model.checks_[0], console)
    say(["", f"{place}: the model; README.md in it says all this again, images.csv which images were wrong"])
    say([f"next: calprompt predict {place} IMAGES"])


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingError(
            f"takes a class and a share, such as scratched 0.01; got {text!r}", parameter="never_miss"
        ) from None
