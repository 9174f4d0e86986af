"""The folder of an exported model: written in full or not at all.

    model.json     class names, preprocessing, calibrator, rule, promises, versions, sha256 of the model's files
    model.onnx     normalised pixels [n, 3, size, size] -> unit features [n, D]
    logits.onnx    unit features -> logits [n, C]; only where they are more than a product with text features
    weights.npz    text features; frozen ones too, if the calibrator needs zero-shot logits
    predict.py     runs it
    README.md      says how
    card.md        what the model is for, if its owner wrote that down

This file and `runtime.py`, which reads the folder, are the only code that knows these names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, SettingError
from calprompt.files import EXPORT, RECORDS, file_digest, replaced_folder, write_bytes, write_json
from calprompt.sealed_files import sealed

RECORD = RECORDS[EXPORT]
SCRIPT, README, CARD = "predict.py", "README.md", "card.md"
FOR_PEOPLE = (SCRIPT, README, CARD)  # not verified: whoever has the folder may change them


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its place at the end, or is removed if anything goes wrong."""
    out = Path(out).expanduser()
    check_free(out)
    try:
        with replaced_folder(out) as folder:
            yield folder
            check_free(out)  # it may have been written meanwhile
    except OSError as error:
        raise CalpromptError(f"cannot write {out}: {error.strerror or error}") from error


def check_free(out: Path) -> None:
    """Raise unless `out` is not there, or an empty folder."""
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise SettingError(f"{out} exists already; choose another folder, or remove it first")


def write_folder(folder: Path, record: dict[str, Any], *, card: str | None = None) -> None:
    """Add to the model's files what describes them: the script, the pages for people, and model.json."""
    from calprompt.export import runtime

    own = (*FOR_PEOPLE, RECORD)
    digests = {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.name not in own}
    write_bytes(folder / SCRIPT, script().encode())
    if card is not None:
        write_bytes(folder / CARD, card.encode())
    write_bytes(folder / README, readme(record, card is not None).encode())
    write_json(folder / RECORD, sealed({**record, "files": digests}, runtime.FORMAT))


def script() -> str:
    """The script of an exported folder: `runtime.py` with the files that it shares with the library in it."""
    from calprompt import errors, kernel, notebook, records
    from calprompt.data import decoding
    from calprompt.export import runtime
    from calprompt.promises import rule

    lines, nodes = source(runtime)
    ours = [node for node in nodes if is_of_library(node)]
    shared = []
    for module in (errors, kernel, notebook, records, decoding, rule):
        part, own = source(module)
        left_out = {number for node in own if is_left_out(node) for number in spanned(node)}
        kept = "".join(line for number, line in enumerate(part, start=1) if number not in left_out)
        title = module.__name__.replace(".", "/")
        shared.append(f"# What follows is {title}.py of the library.\n\n\n{kept.strip()}\n\n\n")
    first, last = ours[0].lineno, spanned(ours[-1])[-1]
    return "".join([*lines[: first - 1], *shared, *lines[last:]])


def source(module: Any) -> tuple[list[str], list[ast.stmt]]:
    """The lines of a module, and its statements."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return text.splitlines(keepends=True), ast.parse(text).body


def spanned(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def is_of_library(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "calprompt"


def is_left_out(node: ast.stmt) -> bool:
    """Whether the script has no use for a statement: docstrings, and imports of what is in it or only for checkers."""
    future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    for_checkers = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return future or for_checkers or text or is_of_library(node)


def readme(record: dict[str, Any], has_card: bool) -> str:
    """How to use the folder, in a few lines."""
    names = list(map(str, record["labels"] or record["class_names"]))
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    lines = [
        "# An image classifier",
        "",
        f"It tells {len(names)} classes apart: {shown}. Exported by calprompt {record['versions']['calprompt']}.",
        "",
        "It needs Python 3.10 or newer, onnxruntime, numpy and Pillow, and nothing else:",
        "",
        "```",
        "pip install onnxruntime numpy pillow",
        f"python {SCRIPT} IMAGE…",
        f"python {SCRIPT} IMAGE… --json",
        "```",
        "",
        "From Python, with this folder on the path:",
        "",
        "```python",
        "from predict import Model",
        "",
        'model = Model("this folder")',
        'model.predict_proba(["cat.jpg", "dog.png"])  # calibrated probabilities, one row per image',
        'model.answers("cat.jpg")                     # a class, "unsure" or "none of these"',
        "```",
        "",
    ]
    withdrawn = record["rule"]["withdrawn"]
    if withdrawn is not None:
        lines += [f"What was promised of its answers does not hold: {withdrawn}", ""]
    elif record["promises"]:
        lines += ["What is promised of its answers:", "", *(f"- {text}" for text in record["promises"]), ""]
    if has_card:
        lines += [f"What it is for, and how it was made: [{CARD}]({CARD}).", ""]
    return "\n".join(lines)
