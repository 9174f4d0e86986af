"""Run a grid of settings with several processes, after saying what is finished and what is left. The same command
resumes after an interruption. A run that fails does not stop the others; it is listed at the end, and the exit status
is 1.

examples:
  calprompt sweep paper/main --dry-run
  calprompt sweep paper/pocket-main --out runs/pocket-main --workers 2
  calprompt sweep mine.yaml --out runs/mine --retry-failed
  calprompt sweep mine.yaml --out runs/mine --ray auto
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.shared import add_shared, positive, say
from calprompt.errors import SettingError
from calprompt.files import check_writable
from calprompt.hardware import total_memory
from calprompt.text import format_size, plural

if TYPE_CHECKING:
    from rich.console import Console

    from calprompt.executors.protocol import Outcome
    from calprompt.executors.ray import RayExecutor
    from calprompt.sweep.driver import SweepState, Watch
    from calprompt.sweep.sweep_file import Sweep
    from calprompt.sweep.sweep_plan import PlannedCell, SweepPlan

STATES = {
    "finished": "finished already",
    "transfer": "finished, but not evaluated on all other data yet",
    "interrupted": "interrupted; they will resume",
    "running": "running in another process",
    "failed": "failed before",
    "missing": "not started",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="a YAML file, or a built-in name such as paper/main")
    add("--out", default="runs", metavar="FOLDER", help="folder of the runs (default: runs)")
    add("--dry-run", action="store_true", help="only say what would be done")
    add("--retry-failed", action="store_true", help="repeat runs that failed before")
    add("--verify", action="store_true", help="check whether the images of finished runs have changed")
    workers = "runs at a time, on each device (default: the file's, or all cores)"
    add("--workers", type=positive, metavar="N", help=workers)
    add_shared(parser, "ray")
    add("--send-back", action="store_true", help="with --ray: workers send runs back, because they cannot see --out")
    add("--root", metavar="DIR", help="folder that has the datasets (default: the file's)")
    add("--devices", metavar="LIST", help="GPUs to spread the runs over, such as cuda:0,cuda:1")
    add_shared(parser, "no_cache", "quiet", device="the file's")


def run(args: argparse.Namespace) -> int:
    """Print the plan, do it, and print what failed."""
    from calprompt.sweep.driver import run_sweep
    from calprompt.sweep.sweep_file import read_sweep
    from calprompt.sweep.sweep_plan import plan_sweep

    _check_places(args)
    devices = None if args.devices is None else [each.strip() for each in args.devices.split(",")]
    chosen = read_sweep(args.file, root=args.root, device=args.device, devices=devices)
    if chosen.devices and args.ray is not None:
        raise SettingError(
            "is for this machine; a Ray cluster hands out GPUs itself: use device: cuda and resources: {gpus: 0.5}",
            parameter="devices",
        )
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
        print_plan(plan, plan.to_do(**which), whole=args.dry_run, on_ray=args.ray is not None)
        if args.dry_run:
            return 0
        with show_sweep(args.quiet) as watch:
            state = run_sweep(
                plan, **which, store=not args.no_cache, executor=executor, send_back=send_back, watch=watch
            )
    return print_end(plan, state, retried=args.retry_failed)


def _check_places(args: argparse.Namespace) -> None:
    """Raise for folders or a cluster that no run could use, also with --dry-run."""
    from calprompt.executors.ray import check_reachable

    check_writable(args.out, parameter="out")
    if args.root is not None and not Path(args.root).expanduser().is_dir():
        raise SettingError(f"must be a folder that is there, got {args.root!r}", parameter="root")
    if args.ray is not None and args.dry_run:
        check_reachable(args.ray)


def _ray_executor(args: argparse.Namespace, chosen: Sweep) -> RayExecutor:
    from calprompt.executors.ray import RayExecutor

    workers = args.workers or chosen.workers
    return RayExecutor(args.ray, resources=chosen.resources, threads=chosen.threads, workers=workers)


def print_plan(plan: SweepPlan, todo: Sequence[PlannedCell], *, whole: bool = False, on_ray: bool = False) -> None:
    """How many runs there are, what is there of them, how long the rest may take and where; with `whole`, every run."""
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
    if not todo:
        say("to do: 0 runs")
        return
    places = plan.sweep.devices
    where = f" ({plan.sweep.resources} each)" if on_ray else ""
    where = f" ({plan.workers // len(places)} on each of {', '.join(places)})" if places else where
    say(f"to do: {plural(len(todo), 'run')}, {plural(plan.workers, 'worker')}{where}; estimated time: {time}")
    if whole:
        say(memory_plan(plan, todo))


def memory_plan(plan: SweepPlan, todo: Sequence[PlannedCell]) -> str:
    """The memory that concurrent runs may take together, if each takes as much as the largest measured run."""
    most = [each.memory for each in todo if each.memory is not None]
    if not most:
        return "memory: unknown, nothing like these runs was measured in this folder"
    words = f"memory: a run takes up to {format_size(max(most))}"
    words += f", {plural(plan.workers, 'worker')} up to {format_size(plan.workers * max(most))}"
    there = total_memory()
    words += f" ({format_size(there)} here)" if there else ""
    on_device = [each.device_memory for each in todo if each.device_memory is not None]
    if on_device:
        at_a_time = plan.workers // max(1, len(plan.sweep.devices))
        words += f"; on a GPU up to {format_size(max(on_device))}, {format_size(at_a_time * max(on_device))} together"
    unknown = len(todo) - len(most)
    return words + (f"; unknown for {plural(unknown, 'run')}" if unknown else "")


def print_end(plan: SweepPlan, state: SweepState, *, retried: bool) -> int:
    """Print finished and failed runs; returns the exit status."""
    if state.done:
        took = f"{plural(state.computed, 'run')} computed in {duration(state.seconds)}"
        estimated = f", estimated were {duration(state.estimate)}" if state.estimate is not None else ""
        say(f"{took}{estimated}")
    before = [] if retried else [(each.cell.title, each.reason) for each in plan.planned if each.status == "failed"]
    failures = [(outcome.task.title, outcome.reason) for outcome in state.failures] + before
    if not failures:
        return 0
    say(f"{plural(len(failures), 'run')} failed; --retry-failed does them again:")
    for title, reason in failures:
        say(f"  {title}: {reason}")
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
    """A readable time span.

    >>> duration(8.4), duration(90), duration(7500), duration(200_000)
    ('8 s', '1.5 min', '2.1 h', '2.3 days')
    """
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
