"""Split the images, choose a learner and tune it on one part, calibrate it, and use the rest to find out what can be
promised. After an interruption, run the same command to resume.

examples:
  calprompt fit photos/ --out model
  calprompt fit photos/ --out model --target-error 0.05 --coverage 0.95
  calprompt fit parts/ --out model --cost "scratched as good: 20" --never-miss scratched 0.01
  calprompt fit labels.csv --out model --backbone weights/ViT-B-16.pt --device cuda
  calprompt fit pocket_photos --out model --backbone pocket
  calprompt fit parts/ --out model --budget 5m --group-by '^[^_]+'
  calprompt fit photos/ --out model-2 --add labelled.zip --against model
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path, PurePosixPath

from calprompt.classifier.settings import FitSettings
from calprompt.cli.shared import DATA, add_flags, add_shared, output, say, settings_of
from calprompt.cli.train import option_value
from calprompt.data.images import FileContent
from calprompt.data.streams import ZIPS
from calprompt.errors import DataError, NotFoundError, Parameter, SettingError
from calprompt.files import FITS, cache_folder, check_writable, failing_as, file_digest, write_bytes
from calprompt.progress import show_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help=DATA)
    add("--out", required=True, metavar="MODEL", help="folder to create for the model")
    feedback = (
        "learn from these images too, such as the page's labelled.zip or the folder of 'calprompt serve --keep'; "
        "nothing is promised on them"
    )
    add("--add", metavar="FEEDBACK", help=feedback)
    against = "with --add: fit as this model was fitted, and say whether the new one is better"
    add("--against", metavar="MODEL", help=against)
    add("--overwrite", action="store_true", help="replace an existing model")
    add_shared(parser, "quiet")
    add_flags(parser, FitSettings, leave_out=("class_names", "verbose"))


def run(args: argparse.Namespace) -> None:
    """Fit a classifier, report how good it is, and write its folder."""
    if args.against is not None and args.add is None:
        raise SettingError(
            "is for a new version; give the images to add with ", Parameter("add", "FEEDBACK"), parameter="against"
        )
    from calprompt.data.labelled import labelled_images

    added = args.add
    settings = settings_of(args, FitSettings)
    options = dict(option_value(text) for text in settings.pop("options", []))
    if options:
        settings["options"] = options
    if "never_miss" in settings:
        settings["never_miss"] = {name: _share(text) for name, text in settings["never_miss"]}
    before = None
    if args.against is not None:
        from calprompt.classifier.model_folder import read_model

        before = read_model(args.against, imports=settings.get("imports"))
        usual = before.parameters()
        if usual["epochs"] == 1:
            usual["lr"] = None  # the only epoch is warm-up, which has its own rate
        settings = {**usual, **settings}
    plain = FitSettings(**settings, verbose=False)
    plain.checked_requests()
    labelled_images(args.data, root=plain.root, classes=plain.classes)
    if added is not None:
        if str(added).lower().endswith(ZIPS):
            added = unpacked(added, Path(plain.work_dir).expanduser() if plain.work_dir else cache_folder(FITS))
        labelled_images(added)
    check_writable(args.out, parameter="out")
    from calprompt.classifier.estimator import Classifier
    from calprompt.classifier.model_folder import check_place
    from calprompt.cli.evaluate import print_check

    check_place(args.out, overwrite=args.overwrite)
    model = Classifier(**settings, verbose=False)
    with show_progress(args.quiet) as progress:
        model.fit(args.data, added=added, progress=progress, announce=lambda lines: say(*lines))
    place = model.save(args.out, overwrite=args.overwrite)  # before printing, which a pager may end
    say("", *model.summary(), "")
    print_check(model.checks_[0], output())
    if before is not None:
        from calprompt.classifier.adding import comparison

        say("", *comparison(model.model_, before))
    say("", f"{place}: the model; README.md in it repeats all this, images.csv lists all images and their answers")
    say(f"next: calprompt predict {place} IMAGES")


def unpacked(path: str | Path, place: Path) -> Path:
    """A zip with a folder per class, such as the page's labelled.zip, as a folder in `place` named by its content."""
    if not Path(path).expanduser().is_file():
        raise NotFoundError(f"there is no file {path} to add")
    folder = place / f"added-{file_digest(Path(path).expanduser())[:16]}"
    if folder.is_dir():
        return folder
    with failing_as(f"cannot write to {place}", "; choose another place with ", Parameter("work_dir", "FOLDER")):
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="adding-", dir=place) as scratch:
            _unpack(Path(path).expanduser(), Path(scratch) / "images")
            if not folder.is_dir():  # it may be there by now, if the same fit was started twice
                (Path(scratch) / "images").rename(folder)
    return folder


def _unpack(path: Path, place: Path) -> None:
    from calprompt.data.streams import streamed_images

    place.mkdir()
    for number, image in enumerate(streamed_images(path)):
        if not isinstance(image, FileContent):
            raise DataError(f"{image.name} cannot be read: {getattr(image, 'reason', 'it is not an image file')}")
        parts = PurePosixPath(image.name.removeprefix(str(path)).lstrip("/")).parts
        if len(parts) < 2:
            raise DataError(f"{path} must have a folder per class, and {image.name} is in none")
        folder = place / parts[-2]
        folder.mkdir(exist_ok=True)
        file = folder / parts[-1]
        write_bytes(file.with_stem(f"{file.stem}-{number}") if file.exists() else file, image.data)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingError(
            f"takes a class and a share, such as scratched 0.01; got {text!r}", parameter="never_miss"
        ) from None
