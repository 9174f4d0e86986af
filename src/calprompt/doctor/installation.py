"""The installation and the machine: packages, the cache folder and its disk; processor, memory and accelerators.

torch is imported when it is looked at: what is wrong with it must not keep the other checks from being made.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

import calprompt
from calprompt.doctor.examination import NOTE, OK, PROBLEM, Finding, describe, note, ok, problem
from calprompt.files import ENVIRONMENT, cache_root
from calprompt.hardware import claims_amx, processor_name, survives, total_memory
from calprompt.parallel import available_cores
from calprompt.text import format_size, plural, shorten

MODULES = {
    "open_clip_torch": "open_clip",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}  # imported under another name
EXTRAS = {  # what an extra of the package is for
    "onnx": "writes models that run without torch, for 'calprompt export'",
    "ray": "works on a cluster, for 'calprompt sweep --ray', 'calprompt extract --ray' and 'calprompt serve --ray'",
    "serve": "a web page and an API over a model, for 'calprompt serve'",
    "parquet": "writes tables of results as Parquet, for 'calprompt results'",
    "video": "reads the videos of UCF101, for 'calprompt data prepare ucf101'",
    "test": "runs calprompt's own tests",
    "docs": "builds the documentation",
    "pretrain": "draws the pictures that the pocket was trained on",
}
DEVELOPMENT = ("test", "docs", "pretrain")  # extras for those who change calprompt
FIRST = ("numpy", "torch", "torchvision")  # to import: others fail where these do
TOGETHER = ("torch", "torchvision")  # of which every release of one goes with one of the other


def check_installation() -> Iterator[Finding]:
    """The running versions of calprompt and Python."""
    folder = Path(calprompt.__file__).parent
    try:
        installed = metadata.version("calprompt")
    except metadata.PackageNotFoundError:
        yield note(
            "calprompt",
            f"{calprompt.__version__}, run from {folder} without being installed",
            "What it requires cannot be looked up; install it with 'pip install -e .' in its repository.",
        )
    else:
        if installed == calprompt.__version__:
            yield ok("calprompt", f"{installed}, in {folder}")
        else:
            yield note(
                "calprompt",
                f"{calprompt.__version__}, in {folder}, but version {installed} is what is installed",
                "Two copies are in the way of each other; install the one that you want once more.",
            )
    yield ok("Python", f"{platform.python_version()}, {sys.executable}")
    yield ok("system", platform.platform())


def check_packages() -> Iterator[Finding]:
    """Whether every required package is there, and new enough."""
    for name, least in requirements().items():
        version = version_of(name)
        if version is None:
            yield problem(name, "not installed", f"Install it: pip install '{name}{least and f'>={least}'}'")
        elif _numbers(version) < _numbers(least):
            yield problem(name, f"{version}, and calprompt needs {least} or newer", f"pip install --upgrade {name}")
        else:
            yield ok(name, version)


def check_extras() -> Iterator[Finding]:
    """The installed extras, and their purposes."""
    for extra in metadata.metadata("calprompt").get_all("Provides-Extra") or []:
        purpose = EXTRAS.get(extra, "")
        versions = {name: version_of(name) for name in requirements(extra)}
        missing = [name for name, version in versions.items() if version is None]
        if not missing:
            there = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield ok(extra, f"{there}: {purpose}")
            continue
        value = f"not installed ({', '.join(missing)}): {purpose}"
        if extra in DEVELOPMENT:
            yield ok(extra, f"{value}; nothing else needs it")
        else:
            yield note(extra, value, f"If you want that: pip install 'calprompt[{extra}]'")


def check_imports() -> Iterator[Finding]:
    """Whether the required packages can be imported: files that are there may not fit each other."""
    start = time.monotonic()
    names = [name for name in requirements() if version_of(name)]  # what is missing was found before
    names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    failed: dict[str, list[str]] = {}
    for name in names:
        try:
            import_module(MODULES.get(name, name))
        except Exception as error:
            failed.setdefault(describe(error), []).append(name)
    for reason, (name, *others) in failed.items():
        advice = f"Install it again: pip install --force-reinstall {name}"
        if name in TOGETHER:
            advice = "torch and torchvision of one release go together: pip install --upgrade torch torchvision"
        value = f"{reason}; {shorten(others)} cannot be imported either" if others else reason
        yield problem(f"importing {MODULES.get(name, name)}", value, advice)
    if not failed:
        yield ok(
            "importing all", f"{plural(len(names), 'package')} in {time.monotonic() - start:.1f} s, once per command"
        )


def requirements(extra: str = "") -> dict[str, str]:
    """Packages that calprompt requires, or that one of its extras does, with the oldest version that will do.

    >>> requirements()["torch"], requirements("video")
    ('2.4', {'av': '12'})
    """
    found = {}
    for line in metadata.requires("calprompt") or []:
        requirement, _, marker = line.partition(";")
        of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        name = re.match(r"[\w.-]+", requirement)
        if name and (of[1] if of else "") == extra:
            least = re.search(r">=\s*([\w.]+)", requirement)
            found[name[0]] = least[1] if least else ""
    return found


def version_of(name: str) -> str | None:
    """The version of a package that is installed, whether it works or not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers a version begins with, which are compared.

    >>> _numbers("2.15.0+cu132"), _numbers("0.0.6rc1"), _numbers("")
    ((2, 15, 0), (0, 0, 6), ())
    """
    begin = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, begin[0].split("."))) if begin else ()


LARGE_CLIP_BYTES = 2 * 10**9  # bytes that a large CLIP takes
RUN_BYTES = 10**8  # bytes in which a run and its features may not fit
SECONDS = 5.0  # at most, to add up the sizes of files


def check_storage() -> Iterator[Finding]:
    """Where calprompt keeps what it can make again."""
    root = cache_root()
    why = f"{ENVIRONMENT} is set" if os.environ.get(ENVIRONMENT) else f"{ENVIRONMENT} names another place if set"
    obstacle = unwritable(root)
    if obstacle:
        yield problem(
            "cache folder",
            f"{root}: {obstacle}",
            "Every run computes its image features again, and the pocket's pictures cannot be made; set "
            f"{ENVIRONMENT} to a folder that can be written to.",
        )
    else:
        yield ok("cache folder", f"{root} can be written to ({why})")
    size, whole = size_of(root)
    yield ok(
        "cache size", f"{'' if whole else 'more than '}{format_size(size)}; 'calprompt cache show' lists the features"
    )
    yield disk_space("disk space", root)


def disk_space(name: str, folder: Path) -> Finding:
    """How much room the disk of a folder has, whether the folder exists or not."""
    free = shutil.disk_usage(existing(folder)).free
    value = f"{format_size(free)} free for {folder}"
    if free < RUN_BYTES:
        return problem(name, value, "Too little for a run and its features; make room.")
    if free < LARGE_CLIP_BYTES:
        return note(name, value, "Too little for a large CLIP and its features.")
    return ok(name, value)


def unwritable(folder: Path) -> str:
    """Why a folder, or the first one above it that exists, cannot be written to; empty if it can."""
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            return ""
    except OSError as error:
        return f"{error.strerror or error}" if place == folder else f"{place}: {error.strerror or error}"


def existing(path: Path) -> Path:
    """A path, or its nearest ancestor that exists."""
    return next((each for each in (path, *path.absolute().parents) if each.exists()), Path())


def size_of(folder: Path) -> tuple[int, bool]:
    """Bytes of all files in a folder, and whether all were counted in the time there is."""
    total, end = 0, time.monotonic() + SECONDS
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # removed meanwhile
                continue
        if time.monotonic() > end:
            return total, False
    return total, True


CGROUP = Path("/sys/fs/cgroup")  # what a container may use
DEVICES = Path("/dev")
LOW_MEMORY = 2 * 10**9  # bytes of memory in which a ViT-B/16 has little room
THREADS = "OMP_NUM_THREADS"
NO_VECTOR_UNITS = "DEFAULT"  # what torch says of a processor whose wide instructions it cannot use


def check_machine() -> Iterator[Finding]:
    """Processor, threads, load and memory."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if capability == NO_VECTOR_UNITS and platform.machine().lower() in ("x86_64", "amd64"):
        yield note("processor", f"{processor_name()}, without AVX2", "Everything will take several times as long.")
    else:
        yield ok("processor", f"{processor_name()}, {capability}")
    if claims_amx():
        if survives():
            yield ok("half precision", "AMX works")
        else:
            yield note(
                "half precision",
                "the processor reports AMX, but products in half precision fail, as on some virtual machines",
                "Use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts.",
            )
    yield _threads()
    with suppress(OSError, AttributeError):  # Windows has no load
        load, cores = os.getloadavg()[0], usable_cores()
        if load > 1.5 * cores:
            yield note(
                "load",
                f"{load:.1f} on {plural(cores, 'core')}: other programs keep it busy",
                "Everything takes longer meanwhile, and the speeds below are lower than they could be.",
            )
    total, free = memory()
    if total:
        enough = free >= LOW_MEMORY
        advice = "" if enough else "A ViT-B/16 with many classes may not fit: close other programs, or give --chunk N."
        yield Finding("memory", OK if enough else NOTE, f"{format_size(free)} free of {format_size(total)}", advice)


def check_accelerators() -> Iterator[Finding]:
    """Graphics cards that torch can compute on, or why there are none."""
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            yield _cuda(number)
    else:
        yield _no_cuda()
    if sys.platform == "darwin":
        if torch.backends.mps.is_available():
            yield Finding("mps", *_computes("mps", "Apple's graphics processor"))
        else:
            built = "this macOS is too old" if torch.backends.mps.is_built() else "this torch is built without it"
            yield ok("mps", f"not available: {built}")


def usable_cores() -> int:
    """How many cores' worth of time this process gets: those it may use, or less in a container with a quota."""
    cores = available_cores()
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))  # "max" is not a number
    return cores


def memory() -> tuple[int, int]:
    """Bytes of memory in all, and free; zeros if this system does not tell."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        values = {name: 1024 * int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        total, free = values["MemTotal"], values["MemAvailable"]
        with suppress(OSError, ValueError):
            limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))  # "max" is not a number
            used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
            total, free = min(total, limit), min(free, max(0, limit - used))
        return total, free
    total = total_memory() or 0
    return total, total


def _threads() -> Finding:
    import torch

    cores, threads, setting = usable_cores(), torch.get_num_threads(), os.environ.get(THREADS)
    value = f"{plural(cores, 'core')}; torch uses {plural(threads, 'thread')}"
    value += f" ({THREADS}={setting})" if setting else ""
    if setting and not setting.replace(",", "").isdecimal():
        return note("threads", value, f"{THREADS} should be a number; it is ignored.")
    if threads > cores:
        advice = f"Threads that wait for each other can be ten times slower: set {THREADS}={cores}."
        return note("threads", value, advice)
    return ok("threads", value)


def _cuda(number: int) -> Finding:
    import torch

    name = f"cuda:{number}"
    try:
        about = torch.cuda.get_device_properties(number)
        title = f"{about.name}, {format_size(about.total_memory)}, compute capability {about.major}.{about.minor}"
    except Exception as error:
        return problem(name, describe(error), "The driver does not answer as it should; restart the machine.")
    return Finding(name, *_computes(name, title))


def _computes(device: str, title: str) -> tuple[str, str, str]:
    """Status, value and advice, from a small product on the device."""
    import torch

    try:
        right = torch.full((64, 64), 0.5, device=device).matmul(torch.ones(64, 64, device=device)).eq(32).all().item()
    except Exception as error:
        sentence = describe(error).partition(". ")[0]
        return PROBLEM, f"{title}: {sentence}", "Install a build of torch for this card, or compute with --device cpu."
    if not right:
        return PROBLEM, f"{title}: computes wrong numbers", "Compute with --device cpu, and have the card looked at."
    return OK, title, ""


def _no_cuda() -> Finding:
    """Why torch has no graphics card; a problem only where there is one."""
    import torch

    cards = sorted(path.name for path in DEVICES.glob("nvidia[0-9]*"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        if not cards:
            return ok("CUDA", "none; this build of torch is for CPUs only")
        advice = "To use it, install a build of torch with CUDA; until then everything runs on the CPU."
        return note("CUDA", f"not used: {', '.join(cards)} is there, but this build of torch is for CPUs only", advice)
    built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built for ROCm"
    if hidden in ("", "-1", "none"):
        return note("CUDA", f"none; CUDA_VISIBLE_DEVICES={hidden!r} hides all cards", "Unset it to use them.")
    reason = "no card was found"
    try:
        torch.cuda.init()
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    if not cards:
        return ok("CUDA", f"none; {built}, but: {reason}")
    advice = "Update the driver of the card, or install a build of torch for the CUDA version that the driver has."
    return problem("CUDA", f"{', '.join(cards)} is there, but cannot be used: {reason} ({built})", advice)
