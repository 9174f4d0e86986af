"""The commands `calprompt data list`, `info`, `check` and `prepare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import add_actions, create_action, describe
from calprompt.errors import DataError
from calprompt.text import plural

if TYPE_CHECKING:
    from calprompt.data.catalogue import Entry

EXAMPLES = """\
  calprompt data list
  calprompt data info dtd
  calprompt data check dtd --root /datasets --images
  calprompt data check photos/
  calprompt data prepare ucf101 --root /datasets
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `data` and its four commands to its parser."""
    describe(
        parser,
        "The datasets of the field and data of your own: what there is, and whether it is right on disk.",
        EXAMPLES,
    )
    actions = add_actions(parser, title="commands", metavar="COMMAND")

    parser = create_action(actions, "list", help="the datasets of the catalogue", description="List the datasets.")
    parser.set_defaults(command=list_datasets)

    parser = create_action(
        actions, "info", help="describe a dataset", description="Describe a dataset of the catalogue."
    )
    parser.set_defaults(command=info)
    parser.add_argument("name", metavar="NAME", help="of a dataset, such as dtd")

    parser = create_action(
        actions,
        "check",
        help="check a dataset on disk",
        description="Check a dataset on disk: list everything that is wrong with it and what to do. Exits with 2 if\n"
        "something is.",
    )
    parser.set_defaults(command=check_data)
    add = parser.add_argument
    add("data", metavar="NAME|PATH", help="dataset of the catalogue, or a folder, table or split file")
    add("--root", metavar="DIR", help="folder that has the datasets, or that a table's paths are relative to")
    add("--classes", metavar="FILE", help="file with the order and names of the classes")
    add("--base", metavar="FILE", help="file with the names of the base classes, one per line")
    add("--images", action="store_true", help="also decode every image of a dataset of the catalogue")
    add("--quiet", action="store_true", help="show no progress")

    parser = create_action(
        actions,
        "prepare",
        help="make what a dataset needs and can be derived",
        description="Make what a dataset of the catalogue needs and what can be derived from what was downloaded.",
    )
    parser.set_defaults(command=prepare)
    parser.add_argument("name", metavar="NAME", help="of a dataset, such as ucf101")
    parser.add_argument("--root", required=True, metavar="DIR", help="folder that has the datasets")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def list_datasets(args: argparse.Namespace) -> None:
    """Print a table of the catalogue."""
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
    """Print everything the catalogue knows of a dataset."""
    from rich.markup import escape
    from rich.table import Table

    from calprompt.data.catalogue import get

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _facts(get(args.name)):
        table.add_row(name, escape(text))
    output().print(table)


def check_data(args: argparse.Namespace) -> None:
    """Print what was found, then fail if something is wrong."""
    from calprompt.data.catalogue import Report, check, get, is_known

    known = is_known(args.data) and (args.root is not None or not Path(args.data).expanduser().exists())
    root = None if args.root is None else Path(args.root).expanduser()
    report = check(get(args.data), root) if known else Report(args.data)
    if not known or (args.images and report.ok):
        from calprompt.data.load import load_dataset, locate
        from calprompt.data.overview import overview
        from calprompt.data.unreadable import find_unreadable, image_digests, two_labels

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
            console.print(text.encode("utf-8", errors="backslashreplace").decode(), markup=False, soft_wrap=True)
    if not report.ok:
        raise DataError(f"{report.title}: {plural(len(report.problems), 'problem')}, listed above")
    console.print("  no problems")


def prepare(args: argparse.Namespace) -> None:
    """Make what can be derived, and print what was made."""
    from calprompt.data.catalogue import get

    entry = get(args.name)
    if entry.prepare is None:
        raise DataError(f"nothing of {entry.title} has to be prepared; get it from {entry.source}")
    with show_progress(args.quiet) as progress:
        made = entry.prepare(entry, entry.locate(Path(args.root).expanduser()), progress)
    for line in made:
        output().print(line, markup=False, soft_wrap=True)


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
        ("template", templates.coop),
    ]
    others = {"KgCoOp": templates.kgcoop, "ProGrad": templates.prograd}
    rows += [(f"  {tuner}", text) for tuner, text in others.items() if text != templates.coop]
    rows += [("get it from", entry.source), ("licence", entry.licence)]
    return rows + ([("prepare makes", entry.prepares)] if entry.prepare is not None else [])


def _number(size: int | None) -> str:
    return "not known" if size is None else f"{size:,}" if size else "-"
