"""`calprompt sweep`: a grid of runs, worked on by several processes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.console import output
from calprompt.cli.flags import describe, positive
from calprompt.errors import SettingError
from calprompt.files import check_writable
from calprompt.text import plural

if TYPE_CHECKING:
    from rich.console import Console

    from calprompt.executors.protocol import Outcome
    from calprompt.executors.ray import RayExecutor
    from calprompt.sweep.driver import SweepState, Watch
    from calprompt.sweep.sweep_file import Sweep
    from calprompt.sweep.sweep_plan import PlannedCell, SweepPlan

EXAMPLES = """\
  calprompt sweep paper/main --dry-run
  calprompt sweep paper/pocket-main --out runs/pocket-main --workers 2
  calprompt sweep mine.yaml --out runs/mine --retry-failed
  calprompt sweep mine.yaml --out runs/mine --ray auto
"""
STATES = {
    "finished": "finished already",
    "transfer": "finished, but not evaluated on all other data yet",
    "interrupted": "begun and interrupted; they continue",
    "running": "being worked on by another process",
    "failed": "failed before",
    "missing": "not begun",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sweep` to its parser."""
    describe(
        parser,
        "Run a grid of settings: say what there is and what is to be done, then do it with several\n"
        "processes. The same command goes on after an interruption, and finds what is finished. A run that fails\n"
        "does not stop the others; it is listed at the end, and the exit status is 1.",
        EXAMPLES,
    )
    parser.set_defaults(command=sweep)
    add = parser.add_argument
    add("file", metavar="FILE", help="a YAML file, or a name of the package's own, such as paper/main")
    add("--out", default="runs", metavar="FOLDER", help="folder of the runs (default: runs)")
    add("--dry-run", action="store_true", help="only say what would be done")
    add("--retry-failed", action="store_true", help="do runs again that failed before")
    add("--verify", action="store_true", help="look at finished runs again, whether their images have changed")
    add("--workers", type=positive, metavar="N", help="runs at a time (default: the file's, or all cores)")
    add("--ray", metavar="ADDRESS", help="work on a Ray cluster: auto, HOST:PORT of its head, or local to start one")
    add("--send-back", action="store_true", help="with --ray: workers send runs back, as they do not see --out")
    add("--root", metavar="DIR", help="folder that has the datasets (default: the file's)")
    add("--device", help="cpu, cuda, cuda:1, … (default: the file's)")
    add("--no-cache", action="store_true", help="neither use nor keep image features on disk")
    add("--quiet", action="store_true", help="show no progress")


def sweep(args: argparse.Namespace) -> int:
    """Print the plan, do it, and print what failed."""
    from calprompt.sweep.driver import run_sweep
    from calprompt.sweep.sweep_file import read_sweep
    from calprompt.sweep.sweep_plan import plan_sweep

    _check_places(args)
    chosen = read_sweep(args.file, root=args.root, device=args.device)
    plan = plan_sweep(chosen, args.out, workers=args.workers)
    which = {"retry_failed": args.retry_failed, "verify": args.verify}
    send_back = args.send_back or chosen.send_back
    if send_back and args.verify:
        raise SettingError(
            "looks at runs where they are, and workers that send them back do not see them", parameter="verify"
        )
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


def _check_places(args: argparse.Namespace) -> None:
    """Raise for folders, a device or a cluster that no run could use, also where nothing is run yet."""
    from calprompt.executors.ray_cluster import check_reachable

    check_writable(args.out, parameter="out")
    if args.root is not None and not Path(args.root).expanduser().is_dir():
        raise SettingError(f"must be a folder that is there, got {args.root!r}", parameter="root")
    if args.ray is not None and args.dry_run:
        check_reachable(args.ray)


def _ray_executor(args: argparse.Namespace, chosen: Sweep) -> RayExecutor:
    from calprompt.executors.ray import RayExecutor

    workers = args.workers or chosen.workers
    return RayExecutor(args.ray, resources=chosen.resources, threads=chosen.threads, workers=workers)


def print_plan(plan: SweepPlan, todo: Sequence[PlannedCell], console: Console, *, whole: bool = False) -> None:
    """How many runs there are, what is there of them and how long the rest may take; with `whole`, every run."""

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    say(f"{plan.sweep.name}: {plural(len(plan.planned), 'run')} in {plan.out}")
    for status, words in STATES.items():
        if plan.count(status):
            say(f"  {plan.count(status):>5} {words}")
    for found in plan.damaged:
        say(f"  damaged: {found.reason}")
    if whole:
        for each in plan.planned:
            say(f"{each.status:<12} {each.cell.title}{f'   ({each.reason})' if each.reason else ''}")
    seconds = plan.estimate(todo)
    time = "unknown, nothing like some of them was measured here" if seconds is None else f"about {duration(seconds)}"
    workers = f", {plural(plan.workers, 'worker')}" if todo else ""
    say(f"to do: {plural(len(todo), 'run')}{workers}" + (f"; estimated time: {time}" if todo else ""))


def print_end(plan: SweepPlan, state: SweepState, console: Console, *, retried: bool) -> int:
    """What was done and what failed; returns the exit status."""
    if state.done:
        took = f"{plural(state.computed, 'run')} computed in {duration(state.seconds)}"
        estimated = f", estimated were {duration(state.estimate)}" if state.estimate is not None else ""
        console.print(f"{took}{estimated}", markup=False, soft_wrap=True)
    before = [] if retried else [(each.cell.title, each.reason) for each in plan.planned if each.status == "failed"]
    failures = [(outcome.task.title, outcome.reason) for outcome in state.failures] + before
    if not failures:
        return 0
    console.print(f"{plural(len(failures), 'run')} failed; --retry-failed does them again:", markup=False)
    for title, reason in failures:
        console.print(f"  {title}: {reason}", markup=False, soft_wrap=True)
    return 1


@contextmanager
def show_sweep(quiet: bool = False) -> Iterator[Watch]:
    """Shows a sweep on standard error: a live picture on a terminal, a line per run elsewhere."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield lambda state, outcome: None
    elif console.is_terminal:
        with _picture(console) as watch:
            yield watch
    else:
        yield lambda state, outcome: _line(console, state, outcome)


def _line(console: Console, state: SweepState, outcome: Outcome | None) -> None:
    if outcome is None:
        return
    end = "found finished" if outcome.reused else f"{outcome.status}, {outcome.seconds:.1f} s"
    left = state.seconds_left
    rest = f" ({duration(left)} left)" if left and len(state.done) < state.total else ""
    reason = f": {outcome.reason}" if outcome.reason else ""
    line = f"{len(state.done)} of {state.total}  {outcome.task.title}  {end}{reason}{rest}"
    for text in (line, *(f"  warning: {each}" for each in outcome.warnings)):
        console.print(text, markup=False, soft_wrap=True)


@contextmanager
def _picture(console: Console) -> Iterator[Watch]:
    from rich.live import Live
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Table

    bar = Progress(TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    task = bar.add_task("runs", note="")

    def picture(state: SweepState) -> Table:
        grid = Table.grid()
        grid.add_row(bar)
        for title in state.running:
            grid.add_row(f"  [cyan]running[/cyan] {escape(title)}")
        for outcome in state.failures[-5:]:
            grid.add_row(f"  [red]failed[/red] {escape(outcome.task.title)}: {escape(str(outcome.reason))}")
        return grid

    with Live(console=console, refresh_per_second=4) as live:

        def watch(state: SweepState, outcome: Outcome | None) -> None:
            rate = f"{3600 * len(state.done) / state.seconds:.0f} runs/h" if state.done else ""
            left = state.seconds_left
            failed = f"{len(state.failures)} failed" if state.failures else ""
            notes = (rate, f"{duration(left)} left" if left is not None else "", failed)
            bar.update(task, completed=len(state.done), total=state.total, note=", ".join(filter(None, notes)))
            for text in outcome.warnings if outcome else ():
                live.console.print(f"warning: {text}", markup=False, soft_wrap=True)
            live.update(picture(state))

        yield watch


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(8.4), duration(90), duration(7500), duration(200_000)
    ('8 s', '1.5 min', '2.1 h', '2.3 days')
    """
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
