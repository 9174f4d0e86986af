"""Serve a fitted model, an exported folder (without torch) or a run: a page to drop images on, and a JSON API described
at /openapi.json. Needs pip install calprompt[serve].

examples:
  calprompt serve model
  calprompt serve exported --port 9000 --feedback feedback.db --keep labelled/
  calprompt serve model --host 0.0.0.0 --token-file keys.txt --access-log access.jsonl
  calprompt serve runs/coop-photos-16shot-seed1-0123456789ab --part all
  calprompt serve model --ray auto --replicas 1:4
"""

from __future__ import annotations

import argparse
import os

from calprompt.cli.shared import PARTS, add_flags, add_shared, output, positive, settings_of
from calprompt.errors import Parameter, SettingError
from calprompt.serve.settings import ServeSettings, require_packages

TOKEN = "CALPROMPT_TOKEN"  # environment variable with a token for all requests
OPTIONS = ("classes", "calibrator", "part", "backbone", "device", "imports", "threads")  # of `load_served`
THREADS = "threads of an exported model (default: onnxruntime decides); with --ray: CPUs of a replica (default: 1)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="folder of a fitted model, an exported one or a run; or of several: MODELS/NAME/VERSION",
    )
    add("--classes", nargs="+", metavar="NAME", help="serve these classes instead; promises are withdrawn")
    add("--calibrator", metavar="NAME", help="for a run (default: temperature if it can be fitted, else none)")
    add("--part", choices=PARTS, help="for a run: which of its classes (default: base)")
    add_shared(parser, "backbone", device="the model's; with --ray: cpu")
    add_shared(parser, "imports")
    add("--threads", type=positive, metavar="N", help=THREADS)
    add("--workers", type=positive, default=1, metavar="N", help="processes that serve on the one port (default: 1)")
    add_shared(parser, "ray")
    add("--replicas", metavar="N", help="with --ray: how many, or MIN:MAX to follow the load (default: 1)")
    add("--show-token", action="store_true", help="print the address with the token of CALPROMPT_TOKEN in it")
    add_flags(parser, ServeSettings, leave_out=("token", "keys"))


def run(args: argparse.Namespace) -> None:
    """Load the model, open the port, and serve until it is stopped."""
    settings = ServeSettings(token=os.environ.get(TOKEN) or None, **settings_of(args, ServeSettings))
    if args.replicas is not None and args.ray is None:
        raise SettingError(
            "are those on a Ray cluster; give its address with ", Parameter("ray", "ADDRESS"), parameter="replicas"
        )
    if settings.refit is not None and (args.ray is not None or args.workers > 1):
        raise SettingError("is for one process; elsewhere, fit with 'calprompt fit --add'", parameter="refit")
    if args.ray is not None and args.workers > 1:
        raise SettingError(
            "are processes of this machine; with Ray, give ", Parameter("replicas", "N"), parameter="workers"
        )
    require_packages()
    options = {name: getattr(args, name) for name in OPTIONS}
    console = output()

    def announce(address: str, what: str) -> None:
        shown = f"{address}#token={settings.token}" if args.show_token and settings.token else address
        console.print(f"{what}, at {shown} (stop with Ctrl-C)", markup=False)

    if args.ray is not None:
        from calprompt.serve.on_ray import Replicas, run_on_ray

        replicas = None if args.replicas is None else Replicas.parse(args.replicas)
        run_on_ray(args.model, settings, address=args.ray, replicas=replicas, options=options, announce=announce)
        return
    if args.workers > 1:
        from calprompt.serve.server import run_workers

        run_workers(args.model, options, settings, args.workers, announce=announce)
        return
    from calprompt.serve.models import Models
    from calprompt.serve.server import run_server

    models = Models(args.model, options)
    what = "; ".join(f"{each.name}, {len(each.labels)} classes" for each in models.load_active())
    run_server(models, settings, announce=lambda address: announce(address, what))
