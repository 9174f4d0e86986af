"""`calprompt cache`: what the feature store holds, pruning it, and checking it."""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from calprompt.cli.console import output
from calprompt.errors import CalpromptError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
EXAMPLES = """\
examples:
  calprompt cache show
  calprompt cache prune --older-than 30d
  calprompt cache prune --max-size 5GB --yes
  calprompt cache verify
"""


def add_command(commands: Any) -> None:
    """Add `cache` to the commands of a parser."""
    cache = commands.add_parser(
        "cache",
        help="image features kept for other runs: show, prune, verify",
        description="Image features are kept for other runs in CALPROMPT_CACHE, or in ~/.cache/calprompt/features.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = cache.add_subparsers(title="actions", metavar="ACTION", required=True)
    one = actions.add_parser("show", help="what is there, and what it has saved", description="What is in the store.")
    one.set_defaults(command=show)
    one = actions.add_parser(
        "prune",
        help="remove what is old or too much",
        description="Say what would be removed, or with --yes remove it. Without rules that is what is damaged.",
    )
    one.set_defaults(command=prune)
    add = one.add_argument
    add("--older-than", type=seconds, metavar="SPAN", help="what was not used for so long, such as 30d or 12h")
    add("--max-size", type=size, metavar="SIZE", help="what was not used for longest, to leave so much, such as 5GB")
    add("--backbone", metavar="FP", help="only of the backbone whose fingerprint or name begins like this")
    add("--yes", action="store_true", help="remove it; without this, only say so")
    one = actions.add_parser("verify", help="compare all checksums", description="Compare all checksums.")
    one.set_defaults(command=verify)


def show(args: argparse.Namespace) -> None:
    """Print a row for every space."""
    from calprompt.features.store import FeatureStore, housekeeping

    store = FeatureStore()
    spaces = housekeeping.spaces(store)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("backbone", "fingerprint", "input"):
        table.add_column(column, overflow="fold")
    for column in ("images", "views", "size", "last used", "found again", "time saved"):
        table.add_column(column, justify="right")
    for space in spaces:
        images, views = space.count()
        table.add_row(
            escape(str(space.about.get("name", "?"))),
            space.backbone[:12],
            _input(space.about),
            str(images),
            str(views),
            written_size(space.size),
            f"{written_span(time.time() - space.last_used)} ago",
            str(space.usage.found),
            written_span(space.usage.saved),
        )
    if spaces:
        output().print(table)
    total = sum(space.size for space in spaces)
    output().print(f"{written_size(total)} in {store.folder}", markup=False, soft_wrap=True)


def prune(args: argparse.Namespace) -> None:
    """Print what would go, or let it go."""
    from calprompt.features.store import FeatureStore, housekeeping

    store = FeatureStore()
    going = housekeeping.to_prune(store, older_than=args.older_than, max_size=args.max_size, backbone=args.backbone)
    what = f"{written_size(sum(file.size for file in going))} in {len(going)} files"
    if not going:
        output().print(f"nothing to remove from {store.folder}", markup=False, soft_wrap=True)
    elif args.yes:
        housekeeping.remove(going)
        output().print(f"removed {what} from {store.folder}", markup=False, soft_wrap=True)
    else:
        output().print(f"would remove {what} from {store.folder}; --yes does it", markup=False, soft_wrap=True)


def verify(args: argparse.Namespace) -> None:
    """Print how much is as it was written; what is not is an error."""
    from calprompt.features.store import FeatureStore, housekeeping

    store = FeatureStore()
    results = list(housekeeping.verify(store))
    bad = [f"{file.path} ({said})" for file, said in results if said]
    if bad:
        count = "one file is damaged, and is" if len(bad) == 1 else f"{len(bad)} files are damaged, and are"
        raise CalpromptError(f"{count} not used any more; their features are computed again:\n  " + "\n  ".join(bad))
    total = written_size(sum(file.size for file, _ in results))
    output().print(f"{len(results)} files, {total}: as they were written", markup=False, soft_wrap=True)


def size(text: str) -> int:
    """Bytes.

    >>> size("5GB"), size("1.5 MB"), size("100")
    (5000000000, 1500000, 100)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB or 5GB, got {text!r}")
    return round(float(match[1]) * UNITS[(match[2] or "B").upper()])


def seconds(text: str) -> float:
    """A span of time.

    >>> seconds("30d"), seconds("12h")
    (2592000.0, 43200.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a span such as 30d, 12h or 90m, got {text!r}")
    return float(match[1]) * SPANS[match[2]]


def written_size(number: float) -> str:
    """Bytes as people write them.

    >>> written_size(512), written_size(20_480_000)
    ('512 B', '20.5 MB')
    """
    unit = next((unit for unit in reversed(UNITS) if number >= UNITS[unit]), "B")
    return f"{number:.0f} B" if unit == "B" else f"{number / UNITS[unit]:.1f} {unit}"


def written_span(number: float) -> str:
    """Seconds as people say them.

    >>> written_span(12), written_span(7300)
    ('12 s', '2 h')
    """
    unit = next((unit for unit in ("d", "h", "m") if number >= 2 * SPANS[unit]), "s")
    return f"{number / SPANS[unit]:.0f} {'min' if unit == 'm' else unit}"


def _input(about: dict[str, Any]) -> str:
    """The preprocessing in a word, and what else is not as usual."""
    wanted = about.get("preprocessing", {})
    words = [f"{wanted.get('size', '?')} px", str(wanted.get("interpolation", "?"))]
    if "crop" in wanted:
        words.append(f"crop {wanted['crop']:g}")
    words += [str(about[name]) for name in ("autocast",) if about.get(name)]
    return " ".join(words + ([str(about["dtype"])] if about.get("dtype") not in (None, "float32") else []))
