"""
Image features are kept for other runs in the folder 'features' of CALPROMPT_CACHE, or of ~/.cache/calprompt if that
is not set.

examples:
  calprompt cache show
  calprompt cache prune --older-than 30d
  calprompt cache prune --max-size 5GB --yes
  calprompt cache verify
  calprompt cache merge /mnt/other-machine/features
"""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

from calprompt.cli.shared import add_action, output, say
from calprompt.errors import DamagedFileError
from calprompt.files import CACHED, cache_folder, check_writable, folder_size
from calprompt.progress import show_progress
from calprompt.text import bullets, format_size, plural, size_in_bytes

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        required=True, parser_class=argparse.ArgumentParser, title="actions", metavar="ACTION"
    )
    add_action(actions, show, "what is in the store, and what it has saved")
    add = add_action(actions, prune, "remove features that are old, or more than you want to keep").add_argument
    add(
        "--older-than", type=parse_span, metavar="SPAN", help="remove what was not used for so long, such as 30d or 12h"
    )
    size = "remove the least recently used until this much is left, such as 5GB"
    add("--max-size", type=parse_size, metavar="SIZE", help=size)
    add("--backbone", metavar="FP", help="only features of backbones whose name or fingerprint starts like this")
    add("--yes", action="store_true", help="remove it; without this, only show what would be removed")
    add_action(actions, verify, "compare all checksums")
    add = add_action(actions, merge, "copy features from the stores of other machines").add_argument
    add("stores", nargs="+", metavar="FROM", help="folder of a store, or the cache folder it is in")
    add("--into", metavar="STORE", help="folder of the store that gets the features (default: the one of 'show')")
    add("-q", "--quiet", action="store_true", help="no progress bar")


def show(args: argparse.Namespace) -> None:
    """Show what is in the store."""
    from calprompt.features import housekeeping
    from calprompt.features.store import FeatureStore
    from calprompt.report.writers import text_table

    store = FeatureStore()
    spaces = housekeeping.spaces(store)
    numbers = ("images", "features", "size", "last used", "found again", "time saved")
    texts = ("backbone", "fingerprint", "input")
    columns = [*((name, "left") for name in texts), *((name, "right") for name in numbers)]
    rows = [
        (
            space.name,
            space.backbone[:12],
            _input(space.about),
            str(space.images),
            str(space.features),
            format_size(space.size),
            f"{format_span(time.time() - space.time)} ago",
            str(space.usage.found),
            format_span(space.usage.saved),
        )
        for space in spaces
    ]
    if spaces:
        output().print(text_table(columns, rows))
    total = sum(space.size for space in spaces)
    say(f"{format_size(total)} in {store.folder}")
    unused = housekeeping.unused(store)
    if unused:
        amount = format_size(sum(file.size for file in unused))
        say(f"{amount} are damaged, and not used; 'calprompt cache prune --yes' removes them")
    for kind, what in CACHED.items():
        folder = cache_folder(kind)
        count, size = folder_size(folder)
        if count:
            say(f"{format_size(size)} in {folder}: {what}")


def prune(args: argparse.Namespace) -> None:
    """Show which features would be removed, or remove them with --yes.

    Without a rule, only damaged files are removed.
    """
    from calprompt.features import housekeeping
    from calprompt.features.store import FeatureStore

    store = FeatureStore()
    files = housekeeping.to_prune(store, older_than=args.older_than, max_size=args.max_size, backbone=args.backbone)
    amount = f"{format_size(sum(file.size for file in files))} in {plural(len(files), 'file')}"
    line = f"would remove {amount} from {store.folder}; --yes does it"
    if not files:
        line = f"nothing to remove from {store.folder}"
    elif args.yes:
        housekeeping.remove(files)
        line = f"removed {amount} from {store.folder}"
    say(line)


def verify(args: argparse.Namespace) -> None:
    """Compare the checksums of all files in the store."""
    from calprompt.features import housekeeping
    from calprompt.features.store import FeatureStore

    results = list(housekeeping.verify(FeatureStore()))
    damaged = [f"{file.path} ({reason})" for file, reason in results if reason]
    if damaged:
        count = "one file is damaged and is" if len(damaged) == 1 else f"{len(damaged)} files are damaged and are"
        raise DamagedFileError(f"{count} not used any more; what is missing is computed again:{bullets(damaged, 100)}")
    total = format_size(sum(file.size for file, _ in results))
    say(f"{plural(len(results), 'file')}, {total}: all checksums are right")


def merge(args: argparse.Namespace) -> None:
    """Copy the features that are missing here from the stores of other machines, whose folders were copied or mounted.

    They are only read. Damaged files are named and left out. If both have a feature, the one here stays; a difference
    that rounding does not explain is reported, and the exit status is 2. Run the same command to resume a merge.
    """
    from calprompt.features.housekeeping import merge_store
    from calprompt.features.store import FeatureStore

    if args.into is not None:
        check_writable(args.into, parameter="into")
    into, problems = FeatureStore(args.into), []
    for source in args.stores:
        with show_progress(args.quiet) as progress:
            report = merge_store(source, into, progress=progress)
        into.close()
        line = f"{source}: {plural(report.copied, 'feature')} copied, {report.same} there already"
        if report.rounded:
            line += f", {report.rounded} there but rounded differently (by {report.largest:.1g} at most)"
        say(f"{line}; into {into.folder}")
        if report.damaged:
            problems.append(f"damaged, and left out:{bullets(report.damaged, 100)}")
        if report.n_conflicts:
            count = plural(report.n_conflicts, "feature")
            heading = f"{count} with a difference that rounding does not explain; {into.folder} keeps its own:"
            problems.append(heading + bullets(report.conflicts, 20))
    if problems:
        raise DamagedFileError("\n".join(problems))


def parse_size(text: str) -> int:
    """Bytes.

    >>> parse_size("5GB"), parse_size("1.5 MB"), parse_size("100")
    (5000000000, 1500000, 100)
    """
    size = size_in_bytes(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB or 5GB, got {text!r}")
    return size


def parse_span(text: str) -> float:
    """A span of time, in seconds.

    >>> parse_span("30d"), parse_span("12h")
    (2592000.0, 43200.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a span such as 30d, 12h or 90m, got {text!r}")
    return float(match[1]) * UNIT_SECONDS[match[2]]


def format_span(number: float) -> str:
    """A readable time span in whole units.

    >>> format_span(12), format_span(7300)
    ('12 s', '2 h')
    """
    unit = next((unit for unit in ("d", "h", "m") if number >= 2 * UNIT_SECONDS[unit]), "s")
    return f"{number / UNIT_SECONDS[unit]:.0f} {'min' if unit == 'm' else unit}"


def _input(about: dict[str, Any]) -> str:
    """The preprocessing in a few words."""
    preprocessing = about.get("preprocessing", {})
    words = [f"{preprocessing.get('size', '?')} px", str(preprocessing.get("interpolation", "?"))]
    if "crop" in preprocessing:
        words.append(f"crop {preprocessing['crop']:g}")
    if about.get("autocast"):
        words.append(str(about["autocast"]))
    if about.get("dtype") not in (None, "float32"):
        words.append(str(about["dtype"]))
    return " ".join(words)
