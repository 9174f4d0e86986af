"""`calprompt sweep`: a grid of runs, worked on by several processes."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from calprompt.cli.console import output
from calprompt.cli.flags import create_command
from calprompt.errors import SettingError

if TYPE_CHECKING:
    from calprompt.executors import RayExecutor
    from calprompt.sweep import Sweep

EXAMPLES = """\
  calprompt sweep paper/main --dry-run
  calprompt sweep paper/pocket-main --out runs/pocket-main --workers 2
  calprompt sweep mine.yaml --out runs/mine --retry-failed
  calprompt sweep mine.yaml --out runs/mine --ray auto
"""


def add_command(commands: Any) -> None:
    """Add `sweep` to the commands of a parser."""
    parser = create_command(
        commands,
        "sweep",
        help="run a grid of settings, several at a time",
        description="Run a grid of settings: say what there is and what is to be done, then do it with several\n"
        "processes. The same command goes on after an interruption, and finds what is finished. A run that fails\n"
        "does not stop the others; it is listed at the end, and the exit status is 1.",
        examples=EXAMPLES,
    )
    parser.set_defaults(command=sweep)
    add = parser.add_argument
    add("file", metavar="FILE", help="a YAML file, or a name of the package's own, such as paper/main")
    add("--out", default="runs", metavar="FOLDER", help="folder of the runs (default: runs)")
    add("--dry-run", action="store_true", help="only say what would be done")
    add("--retry-failed", action="store_true", help="do runs again that failed before")
    add("--verify", action="store_true", help="look at finished runs again, whether their images have changed")
    add("--workers", type=_positive, metavar="N", help="runs at a time (default: the file's, or all cores)")
    add("--ray", metavar="ADDRESS", help="work on a Ray cluster: auto, HOST:PORT of its head, or local to start one")
    add("--send-back", action="store_true", help="with --ray: workers send runs back, as they do not see --out")
    add("--root", metavar="DIR", help="folder that has the datasets (default: the file's)")
    add("--device", help="cpu, cuda, cuda:1, … (default: the file's)")
    add("--no-cache", action="store_true", help="neither use nor keep image features on disk")
    add("--quiet", action="store_true", help="show no progress")


def sweep(args: argparse.Namespace) -> int:
    """Print the plan, do it, and print what failed."""
    from calprompt.cli.sweep_display import print_end, print_plan, show_sweep
    from calprompt.sweep import plan_sweep, read_sweep, run_sweep

    chosen = read_sweep(args.file, root=args.root, device=args.device)
    plan = plan_sweep(chosen, args.out, workers=args.workers)
    which = {"retry_failed": args.retry_failed, "verify": args.verify}
    send_back = args.send_back or chosen.send_back
    if send_back and args.verify:
        raise SettingError("verify=True looks at runs where they are, and workers that send them back do not see them")
    with nullcontext() if args.ray is None or args.dry_run else _ray_executor(args, chosen) as executor:
        if executor is not None:
            plan = replace(plan, workers=executor.connect())
        print_plan(plan, plan.to_do(**which), output(), whole=args.dry_run)
        if args.dry_run:
            return 0
        with show_sweep(args.quiet) as watch:
            state = run_sweep(
                plan, **which, store=not args.no_cache, executor=executor, send_back=send_back, watch=watch
            )
    return print_end(plan, state, output(), retried=args.retry_failed)


def _ray_executor(args: argparse.Namespace, chosen: Sweep) -> RayExecutor:
    from calprompt.executors import RayExecutor

    workers = args.workers or chosen.workers
    return RayExecutor(args.ray, resources=chosen.resources, threads=chosen.threads, workers=workers)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
