"""Small pieces of text that messages and file names are made of."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

NEAR = 0.65  # of difflib's ratio, from which on a known name may be meant
SIZES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # bytes


def shorten(names: Iterable[object], limit: int = 5) -> str:
    """The first names of a list, and how many more there are.

    >>> shorten("abc"), shorten("abcdefgh", 3)
    ('a, b, c', 'a, b, c and 5 more')
    """
    words = [str(name) for name in names]
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def bullets(lines: Sequence[str] | Mapping[str, str], limit: int = 20) -> str:
    """Lines below a heading, indented; a long list is cut and counted. Of a mapping, names with their reasons.

    >>> print("wrong:" + bullets(["a", "b", "c"], limit=2) + bullets({"d.png": "empty"}))
    wrong:
      a
      b
      … and 1 more
      d.png (empty)
    """
    if isinstance(lines, Mapping):
        lines = [f"{name} ({reason})" for name, reason in lines.items()]
    more = [f"… and {len(lines) - limit} more"] if len(lines) > limit else []
    return "".join(f"\n  {line}" for line in [*lines[:limit], *more])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that may be meant by one that is not known; None if none is near.

    >>> nearest("temprature", ["dac", "temperature"]), nearest("zzz", ["dac", "temperature"])
    ('temperature', None)
    """
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=NEAR)
    return spelled[near[0]] if near and spelled[near[0]] != name else None


def plural(count: int, noun: str) -> str:
    """A count and its noun.

    >>> plural(1, "image"), plural(3, "image"), plural(2, "class")
    ('1 image', '3 images', '2 classes')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def format_size(number: float) -> str:
    """Bytes as people write them.

    >>> format_size(512), format_size(20_480_000)
    ('512 B', '20.5 MB')
    """
    unit = next((unit for unit in reversed(SIZES) if number >= SIZES[unit]), "B")
    return f"{number:.0f} B" if unit == "B" else f"{number / SIZES[unit]:.1f} {unit}"


def size_in_bytes(text: str) -> int | None:
    """Bytes of a size as people write it; None if it is none.

    >>> size_in_bytes("5GB"), size_in_bytes("1.5 MB"), size_in_bytes("100"), size_in_bytes("much")
    (5000000000, 1500000, 100, None)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", text.strip(), re.IGNORECASE)
    return None if match is None else round(float(match[1]) * SIZES[(match[2] or "B").upper()])


def slug(name: str) -> str:
    """A name as part of a file name: letters, digits, "_", "-" and "." only.

    >>> slug("my sketches"), slug("..")
    ('my_sketches', '')
    """
    return re.sub(r"[^\w.-]+", "_", name).strip(".")


def visible(text: str) -> str:
    """Text that can be printed anywhere: bytes of a file name that are not UTF-8 are shown with a backslash.

    >>> visible("café"), visible(b"caf\\xe9".decode("utf-8", "surrogateescape"))
    ('café', 'caf\\\\xe9')
    """
    try:
        return text.encode("utf-8", errors="surrogateescape").decode("utf-8", errors="backslashreplace")
    except UnicodeEncodeError:  # half of a surrogate pair that no file name has, such as of JSON's "\ud800"
        return text.encode("utf-8", errors="backslashreplace").decode()


def is_utf8(text: str) -> bool:
    """Whether text can be written down as UTF-8; a file name of other bytes cannot.

    >>> is_utf8("café"), is_utf8("caf\\udce9")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_problem(error: Exception) -> str:
    """The problem of a JSON or YAML file, in one line, from the error of its parser.

    >>> parse_problem(RecursionError("maximum recursion depth exceeded")), parse_problem(ValueError("no\\n value"))
    ('it is nested too deeply', 'no value')
    """
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def os_problem(error: OSError) -> str:
    """The reason of an OSError, and the file it is about.

    >>> os_problem(OSError(28, "No space left on device", "runs/run.json"))
    'runs/run.json: No space left on device'
    """
    return f"{error.filename}: {error.strerror or error}" if error.filename else error.strerror or str(error)
