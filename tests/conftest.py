"""Options and settings of the whole suite, and how its files are shared out among processes."""

import atexit
import ctypes
import gc
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

import nursery

MEMORY, GROWTH = 500_000_000, 100_000_000  # bytes of a process that are its own; it shares 700 MB more with others
too_much = MEMORY
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
IMPORTED = (  # what tests import most, and takes longest; not what registers with pytest, which wants to import it
    "open_clip",
    "av",
    "mapie.classification",
    "matplotlib.pyplot",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "pyarrow.parquet",
    "relplot",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.utils.estimator_checks",
    "torchmetrics.functional.classification",
    "transformers.models.clip.modeling_clip",
)
# What servers of tests import.
SERVING = (
    "calprompt.serve.server",
    "calprompt.serve.models",
    "calprompt.promises",
    "http.client",
)

# Files whose tests share what takes long to start are done by one process; what takes longest is begun first.
TOGETHER = {
    "ray": ("tests/executors/test_ray.py", "tests/serve/test_ray.py", "tests/sweep/test_ray.py"),
    "browser": ("tests/browser/",),
    "export": ("tests/export/",),
    "report": ("tests/report/",),
    "classifier": ("tests/classifier/",),
}
FIRST = (
    *TOGETHER["ray"],
    "tests/browser/",
    "tests/export/",
    "tests/report/",
    "tests/classifier/",
    "tests/sweep/",
    "tests/serve/",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=Path(__file__).parent / "golden" / "data",
        help="folder of golden cases with a manifest.json (default: the one in the repository)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes long and is left out by `make test`; `make test-all` runs it")
    if not config.getoption("numprocesses", None) or os.environ.get("PYTEST_XDIST_WORKER"):
        prepare()


def prepare() -> None:
    """Set up a process that runs tests; the one that only hands them out needs no torch."""
    import torch

    torch.set_num_threads(int(os.environ.get("CALPROMPT_TEST_THREADS", "1")))  # tiny models: threads only cost
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))  # a copy has no other threads to wait for
    torch.ones(1, requires_grad=True).sum().backward()  # after an export it starts threads: no copy could train
    os.environ["CALPROMPT_CACHE"] = tempfile.mkdtemp(prefix="calprompt-cache-")  # the user's own is left alone
    atexit.register(shutil.rmtree, os.environ["CALPROMPT_CACHE"], ignore_errors=True)
    settings.register_profile("calprompt", deadline=None, derandomize=True, max_examples=40)
    settings.register_profile("thorough", deadline=None, derandomize=True, max_examples=200)
    settings.load_profile(os.environ.get("CALPROMPT_TEST_PROFILE", "calprompt"))
    if LIBC is not None:
        LIBC.mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: what is large goes back to the system as soon as it is freed


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[Any], list[Any]]:
    """Examples in docstrings are those of the package; helpers of tests would be imported twice to look for some."""
    found = yield
    return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: [not item.nodeid.startswith(path) for path in FIRST])


def pytest_collection_finish() -> None:
    """What was imported stays until the end, and is not searched for garbage over and over."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    if sys.modules["__main__"].__doc__ != nursery.COPY:  # which ends without taking anything apart
        gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """At the end of a file, a process that has become larger gives back what it could make again."""
    global too_much
    yield
    if (nextitem is None or nextitem.path != item.path) and own_memory() > too_much:
        from calprompt import pocket

        pocket.sheet.cache_clear()
        gc.collect()
        if LIBC is not None:
            LIBC.malloc_trim(0)
        too_much = max(MEMORY, own_memory() + GROWTH)


def own_memory() -> int:
    """Bytes of this process that it shares with no other; 0 where that is not known."""
    try:
        found = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(1024 * int(size) for size in re.findall(r"Private_\w+: +(\d+) kB", found))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Processes that run tests are copies of one that has imported most of what they import."""
    if sys.platform != "linux":
        return
    folder = tempfile.mkdtemp(prefix="calprompt-nursery-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["CALPROMPT_TEST_SERVERS"] = f"{folder}/servers"
    atexit.register(nursery.start(os.environ["CALPROMPT_TEST_SERVERS"], SERVING).kill)
    os.environ["CALPROMPT_TEST_COPIES"] = f"{folder}/socket"
    atexit.register(nursery.start(os.environ["CALPROMPT_TEST_COPIES"], IMPORTED).kill)
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-S", "-E", nursery.__file__, "join", f"{folder}/socket"])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors, because some tests wait for other processes most of the time."""
    return min(len(os.sched_getaffinity(0)), 8) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file at a time, so that what its tests share is made once; the groups of `TOGETHER` count as a file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name, paths in TOGETHER.items() if nodeid.startswith(paths)), nodeid.split("::")[0])

    config.option.loadscopereorder = False
    return ByFile(config, log)
