"""The commands `calprompt data list`, `info`, `check` and `prepare`: what there is, and whether it is right on disk."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import with_flags
from calprompt.errors import CalpromptError

if TYPE_CHECKING:
    from calprompt.data.catalogue import Entry

EXAMPLES = """\
examples:
  calprompt data list
  calprompt data info dtd
  calprompt data check dtd --root /datasets --images
  calprompt data check photos/
  calprompt data prepare ucf101 --root /datasets
"""


def add_command(commands: Any) -> None:
    """Add `data` and its four commands to the subparsers of the command line."""
    data = commands.add_parser(
        "data",
        help="datasets: list, info, check, prepare",
        description="The datasets of the field, and data of your own: what there is, and whether it is right on disk.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inside = data.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = inside.add_parser("list", help="the datasets of the catalogue", description="List the datasets.")
    one.set_defaults(command=list_datasets)

    one = inside.add_parser("info", help="all about a dataset", description="Say all about a dataset.")
    one.set_defaults(command=info)
    one.add_argument("name", metavar="NAME", help="of a dataset, such as dtd")

    one = inside.add_parser(
        "check",
        help="say what is wrong with a dataset on disk",
        description="Say everything that is wrong with a dataset on disk, and what to do; exit with 2 if anything is.",
    )
    one.set_defaults(command=check_data)
    one.add_argument("data", metavar="NAME|PATH", help="dataset of the catalogue, or a folder, table or split file")
    one.add_argument("--root", metavar="DIR", help="where the datasets are, or what a table's paths are relative to")
    one.add_argument("--classes", metavar="FILE", help="order and names of the classes of a folder or table")
    one.add_argument("--base", metavar="FILE", help="names of the base classes, one a line")
    one.add_argument("--images", action="store_true", help="decode every image of a dataset of the catalogue, too")
    one.add_argument("--quiet", action="store_true", help="no progress bars")

    one = inside.add_parser(
        "prepare",
        help="make what can be derived: frames, patches, lists, a split",
        description="Make what can be derived in a dataset's folder; 'calprompt data info NAME' says what that is.",
    )
    one.set_defaults(command=prepare)
    one.add_argument("name", metavar="NAME", help="of a dataset, such as ucf101")
    one.add_argument("--root", required=True, metavar="DIR", help="where the datasets are")
    one.add_argument("--quiet", action="store_true", help="no progress bars")


def list_datasets(args: argparse.Namespace) -> None:
    """A table of the catalogue."""
    from rich import box
    from rich.table import Table

    from calprompt.data.catalogue import ENTRIES

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("name")
    table.add_column("dataset")
    for column in ("classes", "base+novel", "train", "val", "test"):
        table.add_column(column, justify="right")
    for entry in ENTRIES:
        counts = entry.counts
        sizes = (_number(size) for size in (counts.train, counts.val, counts.test))
        cut = "-" if counts.cut is None else "{}+{}".format(*counts.cut)
        table.add_row(entry.key, entry.title, str(counts.classes), cut, *sizes)
    output().print(table)


def info(args: argparse.Namespace) -> None:
    """Everything an entry says."""
    from rich.markup import escape
    from rich.table import Table

    from calprompt.data.catalogue import get

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for what, told in _facts(get(args.name)):
        table.add_row(what, escape(told))
    output().print(table)


def check_data(args: argparse.Namespace) -> None:
    """Print what was found, then fail if something is wrong."""
    from calprompt.data.catalogue import Report, check, get, is_known

    known = is_known(args.data) and (args.root is not None or not Path(args.data).expanduser().exists())
    root = None if args.root is None else Path(args.root).expanduser()
    report = Report(args.data)
    if known:
        report = check(get(args.data), root)
    if not known or (args.images and report.ok):
        from calprompt.data import find_unreadable, load_dataset
        from calprompt.data.load import locate
        from calprompt.data.overview import overview

        dataset = load_dataset(args.data, root=args.root, classes=args.classes, base=args.base)
        if not known:
            report.facts, report.notes = overview(dataset, locate(args.data, args.root))
        with show_progress(args.quiet) as progress:
            bad = find_unreadable(dataset.splits.values(), progress=progress)
        report.problems += [f"{name}: {reason}" for name, reason in sorted(bad.items())]
    console = output()
    console.print(report.title, markup=False)
    for mark, lines in (("  ", report.facts), ("  note: ", report.notes), ("  wrong: ", report.problems)):
        for line in lines:
            console.print(mark + with_flags(line, {"protocol": "--protocol"}), markup=False, soft_wrap=True)
    if not report.ok:
        count = "one thing is" if len(report.problems) == 1 else f"{len(report.problems)} things are"
        raise CalpromptError(f"{report.title}: {count} wrong, see above")
    console.print("  all as it must be")


def prepare(args: argparse.Namespace) -> None:
    """Make what can be derived, and say what was made."""
    from calprompt.data.catalogue import get

    entry = get(args.name)
    if entry.prepare is None:
        raise CalpromptError(f"nothing of {entry.title} has to be prepared; get it from {entry.source}")
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
        ("in it", entry.layout.expects),
        ("classes", str(counts.classes) + (", {} base and {} novel".format(*counts.cut) if counts.cut else "")),
        ("images", ", ".join(f"{kind} {_number(getattr(counts, kind))}" for kind in ("train", "val", "test"))),
        ("test images", f"base {_number(counts.base_test)}, novel {_number(counts.novel_test)}"),
        ("template", templates.coop),
    ]
    rows += [
        (f"  {who}", text)
        for who, text in (("KgCoOp", templates.kgcoop), ("ProGrad", templates.prograd))
        if text != templates.coop
    ]
    rows += [("get it from", entry.source), ("licence", entry.licence)]
    return rows + ([("prepare makes", entry.prepares)] if entry.prepare is not None else [])


def _number(size: int | None) -> str:
    return "not known" if size is None else f"{size:,}" if size else "-"
