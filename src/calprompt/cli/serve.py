"""`calprompt serve`: a model behind a web page and a JSON API."""

from __future__ import annotations

import argparse
import os

from calprompt.cli.console import output
from calprompt.cli.flags import add_flags, describe, positive, settings_of
from calprompt.errors import Parameter, SettingError
from calprompt.serve.settings import ServeSettings, require_packages

EXAMPLES = """\
  calprompt serve model
  calprompt serve exported --port 9000 --feedback feedback.db --keep labelled/
  calprompt serve model --host 0.0.0.0 --token-file keys.txt --access-log access.jsonl
  calprompt serve runs/coop-photos-16shot-seed1-0123456789ab --part all
  calprompt serve model --ray auto --replicas 1:4
"""
TOKEN = "CALPROMPT_TOKEN"  # environment variable with a token that may do everything
OPTIONS = ("classes", "calibrator", "part", "backbone", "device", "imports", "threads")  # of `load_served`
THREADS = "of an exported model (default: as onnxruntime likes); with --ray: CPUs of a replica (default: 1)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve` to its parser; its defaults are those of `ServeSettings`."""
    describe(
        parser,
        "Serve a fitted model, an exported folder (without torch) or a run: a page to drop images on, and "
        "a\nJSON API that is described at /openapi.json. Needs pip install calprompt[serve].",
        EXAMPLES,
    )
    parser.set_defaults(command=serve)
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a fitted model, of an exported one, or of a finished run")
    add("--classes", nargs="+", metavar="NAME", help="serve these classes instead; promises are withdrawn")
    add("--calibrator", metavar="NAME", help="of a run (default: temperature if it can be fitted, else none)")
    add("--part", choices=("base", "novel", "all"), help="of a run: which of its classes (default: base)")
    add("--backbone", metavar="SPEC", help="where the same weights are now (default: where they were)")
    add("--device", help="cpu, cuda, cuda:1, … (default: the model's; with --ray: cpu)")
    add(
        "--import",
        action="append",
        metavar="FILE",
        dest="imports",
        help="Python file it needs; none is run unless named",
    )
    add("--threads", type=positive, metavar="N", help=THREADS)
    add("--ray", metavar="ADDRESS", help="serve on a Ray cluster: auto, HOST:PORT of its head, or local to start one")
    add("--replicas", metavar="N", help="with --ray: how many, or MIN:MAX to follow the load (default: 1)")
    add("--show-token", action="store_true", help="print the address with the token of CALPROMPT_TOKEN in it")
    add_flags(parser, ServeSettings, leave_out=("token", "keys"))


def serve(args: argparse.Namespace) -> None:
    """Load the model, open the port, and serve until it is stopped."""
    settings = ServeSettings(token=os.environ.get(TOKEN) or None, **settings_of(args, ServeSettings))
    if args.replicas is not None and args.ray is None:
        raise SettingError(
            "are those on a Ray cluster; give its address with ", Parameter("ray", "ADDRESS"), parameter="replicas"
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
    from calprompt.serve.loading import load_served
    from calprompt.serve.server import run_server

    model = load_served(args.model, **options)
    what = f"{model.name}, {len(model.labels)} classes"
    run_server(model, settings, announce=lambda address: announce(address, what))
