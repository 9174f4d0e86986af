"""Print what each image shows: the class with its calibrated probability, and the runner-up. A fitted model also says
when it is unsure, and when an image shows none of its classes.

examples:
  calprompt predict model photo.jpg
  calprompt predict model inbox/ --sets 0.9 --csv > answers.csv
  calprompt predict model inbox/ --move-into sorted/
  calprompt predict model today/ --watch watch.json --csv > today.csv
  calprompt predict model archive.zip clip.mp4 --resume answers.csv
  calprompt predict model inbox/ --follow --resume answers.csv
  find /archive -name '*.jpg' | calprompt predict model - --json > answers.jsonl
  calprompt predict model photo.jpg --classes "toad" "tree frog"
  calprompt predict runs/coop-photos-16shot-seed1-0123456789ab photo.jpg --calibrator "temperature -> dac" --part all
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.answers import AnswerFile, Mover, Writer, create_writer
from calprompt.cli.shared import PARTS, add_shared, say
from calprompt.data.streams import (
    VIDEOS,
    NamedImages,
    arrivals,
    is_stream,
    names_in,
    require_video_decoder,
    stop_on_interrupt,
    streamed_images,
)
from calprompt.errors import DataError, NotFoundError, Parameter, SettingError
from calprompt.files import MODEL, RUN, WORDS, check_output, check_writable, require_kind
from calprompt.progress import show_progress
from calprompt.text import bullets, plural, shorten

if TYPE_CHECKING:
    from calprompt.classifier.estimator import Classifier
    from calprompt.predictor import PredictionBatch
    from calprompt.progress import Progress
    from calprompt.promises import ImageWatch, SetRule
    from calprompt.runs.folder import Run

STDIN = "-"
READ_BYTES = 1 << 16  # bytes of a list that are read at a time
MODEL_OPTIONS = ("sets", "per_class", "move_into", "min_confidence", "watch")
RUN_OPTIONS = ("calibrator", "part")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a fitted model, or of a finished run")
    images = "image files, folders (searched recursively), zip and tar files, videos, or - for paths on standard input"
    add("images", nargs="+", metavar="IMAGES", help=images)
    add("--resume", metavar="FILE", help="append answers to this .csv or .jsonl file, and skip images already in it")
    add("--follow", action="store_true", help="keep answering images as they arrive in the folders, until Ctrl-C")
    add("--seconds", type=float, default=1.0, metavar="X", help="seconds between frames of a video (default: 1)")
    add("--classes", nargs="+", metavar="NAME", help="classes to add by name; promises are withdrawn")
    add = parser.add_argument_group("for models").add_argument
    unsure = "answer 'unsure' below this confidence (default: the model's threshold)"
    add("--min-confidence", type=float, metavar="X", help=unsure)
    add("--sets", type=float, metavar="COVERAGE", help="add prediction sets with this coverage, such as 0.9")
    add("--per-class", action="store_true", help="sets whose coverage holds for each class separately")
    add(
        "--move-into",
        metavar="DIR",
        help="move each image into a subfolder named after its answer, listed in moved.csv",
    )
    watch = "state of the watch for images unlike those of the fit: a JSON file that is read, continued and saved"
    add("--watch", metavar="FILE", help=watch)
    add = parser.add_argument_group("for runs").add_argument
    calibrator = (
        "fitted on the run's validation images; none: the model's own confidence (default: temperature if the run has "
        "validation images, else none)"
    )
    add("--calibrator", metavar="NAME", help=calibrator)
    add(
        "--part",
        choices=PARTS,
        help="classes to choose from: those of the tuning (base), novel, or all (default: base)",
    )
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--json", action="store_true", help="a JSON object per line")
    style.add_argument("--csv", action="store_true", help="a CSV table")
    add_shared(parser, "backbone", "device", "imports")
    parser.add_argument("--skip-bad", action="store_true", help="skip images that cannot be read")
    add_shared(parser, "quiet")


def run(args: argparse.Namespace) -> None:
    """Predict images and print the answers as they come."""
    kind = require_kind(args.model, MODEL, RUN)
    not_for = RUN_OPTIONS if kind == MODEL else MODEL_OPTIONS
    for name in not_for:
        if getattr(args, name) not in (None, False):
            other = WORDS[RUN if kind == MODEL else MODEL]
            raise SettingError(f"is for {other}, and {args.model} is the folder of {WORDS[kind]}", parameter=name)
    resume = None if args.resume is None else check_output(args.resume, AnswerFile.SUFFIXES, parameter="resume")
    if resume is not None and (args.json or args.csv):
        raise SettingError("writes to its own file; leave out --json and --csv", parameter="resume")
    if not 0 < args.seconds < 1e9:
        raise SettingError(f"must be above 0, got {args.seconds}", parameter="seconds")
    if args.follow:
        others = [place for place in args.images if not Path(place).expanduser().is_dir()]
        if others:
            raise SettingError(f"takes folders, and {others[0]} is not one", parameter="follow")
    if args.move_into is not None and any(is_stream(place) for place in args.images):
        raise SettingError("takes image files; those in archives and videos cannot be moved", parameter="move_into")
    images = [] if args.follow else image_paths(args.images, args.seconds)
    batches = _Batches(args)
    answering = (_answering_model if kind == MODEL else _answering_run)(args, Path(args.model).expanduser(), batches)
    quiet = args.quiet or (sys.stdout.isatty() and not (args.json or args.csv))  # answers appear as they come
    with show_progress(quiet) as progress, stop_on_interrupt(args.follow) as stop:
        parts = batches.parts(images, answering.kind, stop)
        batches.write(itertools.chain.from_iterable(answering.stream(part, progress) for part in parts), answering)
    _finish(args, batches, answering.notes())


@dataclass
class _Answering:
    """A model or a run that answers images."""

    kind: type  # type of its answers
    stream: Callable[[Iterable[Any], Progress], Iterator[tuple[list[Any], PredictionBatch]]]  # the answers, in batches
    notes: Callable[[], list[str]]  # the explanation of the answers, when all are given
    mover: Writer | None = None  # what moves images by their answers


def _answering_model(args: argparse.Namespace, folder: Path, batches: _Batches) -> _Answering:
    from calprompt.promises.rule import Answer

    if args.min_confidence is not None and not 0 <= args.min_confidence <= 1:
        raise SettingError(f"must be a share, from 0 to 1; got {args.min_confidence}", parameter="min_confidence")
    if args.sets is not None and not 0 < args.sets < 1:
        raise SettingError(f"must be a fraction above 0 and below 1, got {args.sets}", parameter="sets")
    if args.per_class and args.sets is None:
        raise SettingError("is about sets; give ", Parameter("sets", "X"), " too", parameter="per_class")
    if args.move_into is not None:
        check_writable(args.move_into, parameter="move_into")
    from calprompt.classifier.estimator import Classifier

    model = Classifier.load(folder, backbone=args.backbone, device=args.device, imports=args.imports)
    if args.classes:
        model = model.with_classes(args.classes)
    model.rule_ = model.rule_.with_threshold(args.min_confidence)
    sets = None if args.sets is None else model.set_rule(args.sets, args.per_class)
    mover = None if args.move_into is None else Mover(args.move_into)
    watched = _Watched(model, args.watch)

    def stream(images: Iterable[Any], progress: Progress) -> Iterator[tuple[list[Any], PredictionBatch]]:
        return watched.passed(model.stream(images, set_rule=sets, skip_unreadable=True, progress=progress))

    def notes() -> list[str]:
        lines = watched.finish()
        if args.json or args.csv:
            for line in lines if watched.alarm else ():
                warnings.warn(line, stacklevel=2)
        return [*_model_notes(model, batches, sets), *lines]

    return _Answering(Answer, stream, notes, mover)


def _answering_run(args: argparse.Namespace, folder: Path, batches: _Batches) -> _Answering:
    from calprompt.evaluation.predicting import default_calibrator
    from calprompt.runs.folder import load_run

    run = load_run(folder)
    calibrator = default_calibrator(run) if args.calibrator is None else args.calibrator
    from calprompt.predictor import Prediction, Predictor

    predictor = Predictor.from_run(
        run,
        calibrator=calibrator,
        part=args.part,
        class_names=args.classes,
        backbone=args.backbone,
        device=args.device,
        imports=args.imports,
    )

    def stream(images: Iterable[Any], progress: Progress) -> Iterator[tuple[list[Any], PredictionBatch]]:
        for batch in predictor.stream(images, skip_unreadable=True, progress=progress):
            yield predictor.answers(batch), batch

    return _Answering(Prediction, stream, lambda: _run_notes(run, calibrator, predictor.class_names))


class _Watched:
    """Watches whether images are like those of the fit.

    Folders are often sorted, class by class or day by day, and a watch takes images in random order. So their scores
    are gathered and compared in the order of their digests, which is as good as random and always the same.
    """

    TOGETHER = 10_000  # images whose scores are kept

    def __init__(self, model: Classifier, path: str | None) -> None:
        self.path = None if path is None else Path(path).expanduser()
        self.watch: ImageWatch | None = None
        self.waiting: list[tuple[str, list[float]]] = []
        self.why = ""
        try:
            self.watch = model.image_watch()
        except SettingError as error:
            self.why = str(error) if model.rule_.withdrawn is None else ""  # reported with the promises
            if self.path is not None:
                raise SettingError(f"watch={self.path} has nothing to keep. {error}") from error
        if self.watch is not None and self.path is not None:
            self.watch = self.watch.resumed(self.path)
            self.watch.save(self.path)  # fails before the first image if it cannot be written

    @property
    def alarm(self) -> bool:
        return self.watch is not None and self.watch.changed

    def passed(self, stream: Iterable[tuple[Any, PredictionBatch]]) -> Iterator[tuple[Any, PredictionBatch]]:
        """The same batches, whose scores are watched."""
        for answers, batch in stream:
            yield answers, batch
            if self.watch is not None:
                scores: list[list[float]] = self.watch.scores(batch.logits.numpy()).tolist() if batch.names else []
                self.waiting += zip(batch.digests, scores, strict=True)
                if len(self.waiting) >= self.TOGETHER:
                    self._compare()

    def finish(self) -> list[str]:
        """Sentences on whether the images have changed."""
        from calprompt.promises.image_watch import ADVICE, SUSPICIOUS_EVIDENCE

        self._compare()
        if self.watch is None:
            return [self.why] if self.why else []
        if self.path is not None:
            self.watch.save(self.path)
        if self.watch.changed:
            return [self.watch.sentence, ADVICE]
        return [self.watch.sentence] if self.path is not None or self.watch.evidence >= SUSPICIOUS_EVIDENCE else []

    def _compare(self) -> None:
        if self.watch is not None and self.waiting:
            digests, scores = zip(*sorted(self.waiting), strict=True)
            self.watch.see_scores(scores, digests)
        self.waiting = []


class _Batches:
    """Writes answers as they come and remembers what could not be read."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.skipped: dict[str, str] = {}
        self.answered = 0
        self.decisions: dict[str, int] = {}
        self.file: AnswerFile | None = None

    def parts(self, images: Iterable[Any], kind: type, stop: threading.Event) -> Iterator[Iterable[Any]]:
        """The images to answer, without those that were answered before: all at once, or as they arrive."""
        args = self.args
        if args.resume is not None:
            self.file = AnswerFile(Path(args.resume).expanduser(), kind)
        done = set() if self.file is None else self.file.names
        if args.follow:
            yield from arrivals(args.images, stop, done=done, failed=self.skipped, leave_out=args.move_into)
        elif self.file is None:
            yield images
        else:
            new: Iterable[Any] = (item for item in images if _is_new(item, done))
            if isinstance(images, NamedImages):
                new = NamedImages(new, list(set(images.names).difference(done)))
            yield list(new) if isinstance(images, list) else new

    def write(self, batches: Iterable[tuple[list[Any], PredictionBatch]], answering: _Answering) -> None:
        first = next(iter_ := iter(batches), None)  # which opens the file of answers
        table = self.args.csv or (self.args.follow and not self.args.json)
        write: Writer = self.file or create_writer(answering.kind, as_json=self.args.json, as_csv=table)
        mover = answering.mover
        for answers, batch in itertools.chain([] if first is None else [first], iter_):
            for answer in answers:
                self.skipped.pop(answer.name, None)
            self.skipped |= batch.unreadable
            for answer in answers:
                write(answer)
                self.answered += 1
                if hasattr(answer, "decision"):
                    self.decisions[answer.decision] = self.decisions.get(answer.decision, 0) + 1
                if mover is not None:
                    mover(answer)
            if self.args.follow:
                sys.stdout.flush()
        write(None)
        if mover is not None:
            mover(None)


def _finish(args: argparse.Namespace, batches: _Batches, notes: list[str]) -> None:
    """Report unreadable images, and explain the answers."""
    if batches.skipped and (not args.skip_bad or not batches.answered):
        count = "one image" if len(batches.skipped) == 1 else f"{len(batches.skipped)} images"
        if args.skip_bad:
            raise DataError(f"no image can be read:{bullets(batches.skipped)}")
        raise DataError(
            f"{count} cannot be read, and the others are answered; replace or remove, or leave out with ",
            Parameter("skip_bad", True),
            f":{bullets(batches.skipped)}",
        )
    if args.json or args.csv or (args.follow and args.resume is None):
        for name, reason in batches.skipped.items():
            warnings.warn(f"skipped {name}: {reason}", stacklevel=2)
        return
    if batches.file is not None:
        before = f", beside {batches.file.before} from before" if batches.file.before else ""
        notes = [f"{batches.file.path}: {plural(batches.answered, 'new answer')}{before}", *notes]
    say(*[*notes, *(f"skipped {name}: {reason}" for name, reason in batches.skipped.items())])


def image_paths(places: list[str], seconds: float = 1.0) -> Iterable[Any]:
    """Image files, those in folders, archives and videos, and those listed on standard input, in order.

    A missing file is an error before any image is read.
    """
    from calprompt.data.decoding import SUFFIXES, count_left_out

    found: list[str] = []
    for place in places:
        path = Path(place).expanduser()
        if place == STDIN:
            continue
        if place and path.is_dir():
            there = [
                os.path.join(folder, name)
                for folder, _, names in sorted(os.walk(path))
                for name in sorted(names)
                if not name.startswith(".")
            ]
            inside = [name for name in there if name.lower().endswith(SUFFIXES)]
            left = [name for name in there if not name.lower().endswith(SUFFIXES)]
            if not inside:
                others = f"; it has {count_left_out(left)}" if left else ""
                raise NotFoundError(f"{path} has no images; expected files ending in {', '.join(SUFFIXES)}{others}")
            if left:
                warnings.warn(f"{path}: left out, {count_left_out(left)}: {shorten(left)}", stacklevel=2)
            found += inside
        elif not place or not path.exists():
            raise NotFoundError(f"there is no image {str(path) if place else repr(place)}")
        else:
            found.append(str(path))
    if any(is_stream(path) for path in found):
        if any(path.lower().endswith(VIDEOS) for path in found):
            require_video_decoder()
        files: Iterable[Any] = itertools.chain.from_iterable(
            streamed_images(path, seconds=seconds) if is_stream(path) else [path] for path in found
        )
        names = [names_in(path) if is_stream(path) else [path] for path in found]
        if None not in names and STDIN not in places:
            files = NamedImages(files, [name for group in names for name in group or ()])
    else:
        files = found
    return itertools.chain(files, _listed()) if STDIN in places else files


def _is_new(item: Any, done: set[str]) -> bool:
    """Whether an image was not answered yet; one that is listed twice is answered once."""
    name = item if isinstance(item, str) else item.name
    if name in done:
        return False
    done.add(name)
    return True


def _listed() -> Iterator[str]:
    """Paths on standard input: one per line, or separated by NUL bytes as `find -print0` writes them."""
    stream: Any = sys.stdin.buffer
    rest = stream.read1(READ_BYTES)
    separator = b"\0" if b"\0" in rest else b"\n"
    while chunk := stream.read1(READ_BYTES):
        *whole, rest = (rest + chunk).split(separator)
        yield from _paths(whole)
    yield from _paths(rest.split(separator))


def _paths(lines: list[bytes]) -> Iterator[str]:
    for line in lines:
        path = line.rstrip(b"\r\n")
        if b"\0" in path:
            raise DataError(
                "some paths on standard input are separated by NUL bytes and some by lines; use one of the two"
            )
        if path.strip():
            yield os.fsdecode(path)


def _model_notes(model: Classifier, batches: _Batches, sets: SetRule | None) -> list[str]:
    from calprompt.promises.rule import DECISIONS

    counts = ", ".join(f"{batches.decisions[kind]} {kind}" for kind in DECISIONS if kind in batches.decisions)
    counts = counts.replace(" answer", " answered")
    names = [str(label) for label in model.classes_.tolist()]
    lines = [f"{plural(batches.answered, 'image')}: {counts or 'none'}; {len(names)} classes: {shorten(names)}"]
    if model.rule_.withdrawn is not None:
        lines.append(f"nothing is promised for these answers: {model.rule_.withdrawn}")
        return lines
    shown = {"error": model.rule_.promised, "sets": sets is not None and not sets.per_class}
    shown["sets per class"] = sets is not None and sets.per_class
    lines += [promise.sentence for promise in model.promises_ if shown.get(promise.kind, True)]
    if not model.rule_.promised:
        lines.append("No promise on errors stands behind these answers.")
    return lines


def _run_notes(run: Run, calibrator: str, class_names: tuple[str, ...]) -> list[str]:
    how = "not calibrated" if calibrator == "none" else f"calibrated with {calibrator}"
    lines = [f"{len(class_names)} classes: {shorten(class_names)}; probabilities {how}"]
    if calibrator == "none":
        lines.append("the model's own confidence: nothing says how often it is right when it is this sure")
    elif "novel" in run.record["data"]["class_names"]:
        lines.append("the calibrator was fitted on images of the base classes")
    return lines
