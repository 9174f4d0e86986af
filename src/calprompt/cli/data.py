"""
The datasets of the field and data of your own: what is available, and whether it is right on disk.

examples:
  calprompt data list
  calprompt data info dtd
  calprompt data check dtd --root /datasets --images
  calprompt data check photos/
  calprompt data inspect photos/ --csv findings.csv --page findings.html
  calprompt data prepare ucf101 --root /datasets
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.shared import DATA, add_action, add_shared, output, positive, say
from calprompt.errors import DataError
from calprompt.progress import show_progress
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.data.catalogue import Entry
    from calprompt.inspection.inspect import Inspection

ROOT = "folder that has the datasets, or that a table's paths are relative to"
CLASSES = "file with the order and names of the classes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        required=True, parser_class=argparse.ArgumentParser, title="commands", metavar="COMMAND"
    )
    add_action(actions, list_datasets, "the datasets of the catalogue")
    parser = add_action(actions, info, "describe a dataset")
    parser.add_argument("name", metavar="NAME", help="name of a dataset, such as dtd")

    parser = add_action(actions, check_data, "check a dataset on disk")
    add = parser.add_argument
    add("data", metavar="NAME|PATH", help="dataset of the catalogue, or a folder, table or split file")
    add("--root", metavar="DIR", help=ROOT)
    add("--classes", metavar="FILE", help=CLASSES)
    add("--base", metavar="FILE", help="file with the names of the base classes, one per line")
    add("--images", action="store_true", help="also decode every image of a dataset of the catalogue")
    add_shared(parser, "quiet")

    parser = add_action(actions, inspect_data, "find mislabelled images, copies, bad pictures and odd classes")
    add = parser.add_argument
    add("data", metavar="DATA", help=DATA)
    add("--against", metavar="DATA", help="images to evaluate on; copies of them are found (default: the test split)")
    add("--csv", metavar="FILE", help="write the findings, a row each; edit the actions and give it to 'fit --fixes'")
    add("--page", metavar="FILE", help="write a self-contained HTML page with thumbnails")
    add("--rows", type=positive, default=10, metavar="N", help="findings of each kind to print (default: 10)")
    add("--backbone", default="pocket-photo", metavar="SPEC", help="backbone for the features (default: pocket-photo)")
    add("--device", default="cpu", help="where to compute (default: cpu)")
    add("--root", metavar="DIR", help=ROOT)
    add("--classes", metavar="FILE", help=CLASSES)
    add("--ignore-exif", action="store_true", help="leave images as they are stored, as with fit --ignore-exif")
    add_shared(parser, "quiet")

    parser = add_action(actions, prepare, "make the files that a dataset needs and that can be derived")
    parser.add_argument("name", metavar="NAME", help="name of a dataset, such as ucf101")
    parser.add_argument("--root", required=True, metavar="DIR", help="folder that has the datasets")
    add_shared(parser, "quiet")


def list_datasets(args: argparse.Namespace) -> None:
    """List the datasets."""
    from calprompt.data.catalogue import ENTRIES
    from calprompt.report.writers import text_table

    numbers = ("classes", "base+novel", "train", "val", "test")
    rows = []
    for entry in ENTRIES:
        counts = entry.counts
        sizes = (_number(size) for size in (counts.train, counts.val, counts.test))
        cut = "-" if counts.cut is None else "{}+{}".format(*counts.cut)
        rows.append((entry.key, entry.title, str(counts.classes), cut, *sizes))
    columns = [("name", "left"), ("dataset", "left"), *((name, "right") for name in numbers)]
    output().print(text_table(columns, rows))


def info(args: argparse.Namespace) -> None:
    """Describe a dataset of the catalogue."""
    from rich.markup import escape
    from rich.table import Table

    from calprompt.data.catalogue import get

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _facts(get(args.name)):
        table.add_row(name, escape(text))
    output().print(table)


def check_data(args: argparse.Namespace) -> None:
    """Check a dataset on disk: list its problems and what to do about them. The exit status is 2 if there are any."""
    from calprompt.data.catalogue import Report, check, get, is_known

    known = is_known(args.data) and (args.root is not None or not Path(args.data).expanduser().exists())
    root = None if args.root is None else Path(args.root).expanduser()
    report = check(get(args.data), root) if known else Report(args.data)
    if not known or (args.images and not report.problems):
        from calprompt.data.checks import find_unreadable, image_digests, overview, two_labels
        from calprompt.data.load import load_dataset, locate

        dataset = load_dataset(args.data, root=args.root, classes=args.classes, base=args.base)
        if not known:
            report.facts, report.notes = overview(dataset, locate(args.data, args.root))
        with show_progress(args.quiet) as progress:
            unreadable = find_unreadable(dataset.splits.values(), progress=progress)
            if not unreadable:
                rows = image_digests(dataset.splits, progress)
                report.notes += [
                    f"in two classes, byte for byte: {line}" for line in two_labels(rows, dataset.class_names)
                ]
        report.problems += [f"{name}: {reason}" for name, reason in sorted(unreadable.items())]
    console = output()
    console.print(report.title, markup=False)
    for mark, lines in (("  ", report.facts), ("  note: ", report.notes), ("  wrong: ", report.problems)):
        for line in lines:
            text = f"{mark}{line}"
            say(text.encode("utf-8", errors="backslashreplace").decode())
    if report.problems:
        raise DataError(f"{report.title}: {plural(len(report.problems), 'problem')}, listed above")
    console.print("  no problems")


def inspect_data(args: argparse.Namespace) -> None:
    """Look for probable mistakes in labelled images: labels that the other images contradict, copies and near-copies,
    pictures that are blurred, dark, blank, tiny or unlike all others, and classes that are too small, too similar or
    really two. Look before you act: hard images are found too.
    """
    from calprompt.data.checks import warn_left_out
    from calprompt.data.labelled import labelled_images
    from calprompt.data.load import locate
    from calprompt.files import check_output, write_output

    csv = None if args.csv is None else check_output(args.csv, (".csv",), parameter="csv")
    page = None if args.page is None else check_output(args.page, (".html", ".htm"), parameter="page")
    options: dict[str, Any] = {"root": args.root, "classes": args.classes, "upright": not args.ignore_exif}
    data = labelled_images(args.data, **options)
    warn_left_out(data, locate(args.data, args.root))
    against = None if args.against is None else labelled_images(args.against, **options)
    import torch

    from calprompt.clip.load import load_backbone
    from calprompt.features.store import FeatureStore
    from calprompt.inspection.inspect import findings_table, inspect_images

    backbone = load_backbone(args.backbone, device=args.device, dtype=torch.float32)
    with show_progress(args.quiet) as progress:
        found = inspect_images(data, backbone, against=against, store=FeatureStore(), progress=progress)
    if csv is not None:
        write_output(csv, findings_table(found.findings).encode("utf-8", errors="surrogateescape"))
    if page is not None:
        from calprompt.inspection.page import render

        write_output(page, render(found).encode("utf-8", errors="backslashreplace"))
    _print_inspection(found, args.rows)
    say(*filter(None, (csv, page)))


def _print_inspection(found: Inspection, rows: int) -> None:
    from calprompt.inspection.inspect import counted
    from calprompt.report.table import PLAIN, Column, Number, Row, Table
    from calprompt.report.writers import terminal_table

    console = output()
    say(*found.sentences)
    if not found.findings:
        return
    columns = [Column(name, name) for name in ("problem", "class", "image", "looks like")]
    lines = []
    for problem, count in counted(found.findings).items():
        for each in [each for each in found.findings if each.problem == problem][:rows]:
            lines.append(Row((problem, each.label, each.file, each.looks_like, Number(each.score))))
        if count > rows:
            lines.append(Row((problem, "", f"… and {count - rows} more", "", "")))
    score = Column("score", "score", PLAIN, digits=2)
    console.print(terminal_table(Table("findings", "", "", (*columns, score), tuple(lines))))


def prepare(args: argparse.Namespace) -> None:
    """Make the files that a dataset of the catalogue needs and that can be derived from what was downloaded."""
    from calprompt.data.catalogue import get

    entry = get(args.name)
    if entry.prepare is None:
        raise DataError(f"nothing of {entry.title} has to be prepared; get it from {entry.source}")
    with show_progress(args.quiet) as progress:
        made = entry.prepare(entry, entry.locate(Path(args.root).expanduser()), progress)
    say(*made)


def _facts(entry: Entry) -> list[tuple[str, str]]:
    counts, templates = entry.counts, entry.templates
    rows = [
        ("name", ", ".join(dict.fromkeys((entry.key, entry.public, *entry.names)))),
        ("dataset", entry.title),
        ("folder", " or ".join(entry.folders)),
        ("contents", entry.layout.expects),
        ("classes", str(counts.classes) + (", {} base and {} novel".format(*counts.cut) if counts.cut else "")),
        ("images", ", ".join(f"{kind} {_number(getattr(counts, kind))}" for kind in ("train", "val", "test"))),
        ("test images", f"base {_number(counts.base_test)}, novel {_number(counts.novel_test)}"),
        ("template", templates["coop"]),
    ]
    others = {"KgCoOp": templates["kgcoop"], "ProGrad": templates["prograd"]}
    rows += [(f"  {tuner}", text) for tuner, text in others.items() if text != templates["coop"]]
    rows += [("get it from", entry.source), ("licence", entry.licence)]
    return rows + ([("prepare makes", entry.prepares)] if entry.prepare is not None else [])


def _number(size: int | None) -> str:
    return "not known" if size is None else f"{size:,}" if size else "-"
