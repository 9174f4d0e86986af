"""Fill the feature store with what 'calprompt train' and 'calprompt sweep' look up: the features of all images of a
dataset, and of the random crops used for training. Stored features are skipped, so the same command resumes after an
interruption. Unreadable images are listed at the end, and the exit status is then 1.

examples:
  calprompt extract photos/ --backbone pocket --backbone ViT-B-16-quickgelu/openai
  calprompt extract imagenet --root datasets --backbone ViT-B-16-quickgelu/openai --ray auto --device cuda
"""

from __future__ import annotations

import argparse
from pathlib import Path

from calprompt.cli.shared import add_flags, add_shared, positive, say, settings_of
from calprompt.data.dataset import SPLITS
from calprompt.errors import NotFoundError
from calprompt.extraction import ExtractionSettings
from calprompt.progress import show_progress
from calprompt.text import bullets, plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="folder, CSV, JSON, or a name of 'calprompt data list'")
    add("--backbone", action="append", required=True, metavar="SPEC", help="as in 'calprompt train'; may be repeated")
    add("--split", action="append", choices=SPLITS, help="train, val or test; may be repeated (default: all)")
    add_flags(parser, ExtractionSettings, leave_out=("data", "backbones", "splits"))
    add("--workers", type=positive, metavar="N", help="processes (default: all cores, or one with an accelerator)")
    add_shared(parser, "ray")
    add("--cpus", type=positive, default=1, metavar="N", help="with --ray: CPUs of a worker (default: 1)")
    add("--send-back", action="store_true", help="with --ray: workers send features back, without a shared store")
    add_shared(parser, "quiet")


def run(args: argparse.Namespace) -> int:
    """Fill the store, and print what was there and what was computed."""
    from calprompt.extraction import extract as run_extraction
    from calprompt.extraction import plan_extraction
    from calprompt.parallel import available_cores

    given = settings_of(args, ExtractionSettings)
    given |= {"data": args.data, "backbones": tuple(args.backbone), "splits": tuple(args.split or SPLITS)}
    settings = ExtractionSettings(**given)
    if args.ray is None:
        for spec in settings.backbones:  # names are looked up by the workers, which have open_clip loaded
            if spec.startswith((".", "/", "~")) and not Path(spec).expanduser().exists():
                raise NotFoundError(f"no file or folder {spec}")
    plan = plan_extraction(settings)
    on_cpu = settings.device == "cpu"
    if args.ray is None:
        with show_progress(args.quiet) as progress:
            state = run_extraction(
                plan, workers=args.workers or (available_cores() if on_cpu else 1), progress=progress
            )
    else:
        from calprompt.executors.protocol import WorkerResources
        from calprompt.executors.ray import RayExecutor

        resources = WorkerResources(args.cpus, gpus=1 if settings.device.startswith("cuda") else 0)
        with (
            RayExecutor(args.ray, resources=resources, workers=args.workers) as executor,
            show_progress(args.quiet) as progress,
        ):
            state = run_extraction(plan, executor=executor, send_back=args.send_back, progress=progress)
    images = ", ".join(f"{count} {name}" for name, count in plan.images.items())
    rate = f" ({state.computed / state.seconds:,.0f} per second)" if state.computed and state.seconds else ""
    say(
        f"{plural(plan.features, 'feature')} of {images} images: {state.computed} computed in {state.seconds:.1f} "
        f"s{rate}, {state.found} were there"
    )
    if not state.unreadable:
        return 0
    unreadable = dict(sorted(state.unreadable.items()))
    say(f"{plural(len(unreadable), 'image')} cannot be read:{bullets(unreadable, 100)}")
    return 1
