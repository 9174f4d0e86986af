"""`calprompt show`: print the table of a run again."""

from __future__ import annotations

import argparse

from calprompt.cli.flags import describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `show` to its parser."""
    describe(parser, "Print the table of a run.")
    parser.set_defaults(command=show)
    parser.add_argument(
        "run", metavar="RUN", help="folder of a run, such as runs/coop-photos-16shot-seed1-0123456789ab"
    )


def show(args: argparse.Namespace) -> None:
    """Print the results in a run folder."""
    from calprompt.cli.run_table import print_run
    from calprompt.runs.folder import load_run

    print_run(load_run(args.run))
