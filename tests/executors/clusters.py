"""A Ray cluster on this machine for tests: two nodes, with a worker each, and a GPU that only Ray believes in.

It is started once for all tests, in a folder of its own, and ended with the process that started it.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

OBJECT_STORE = 80_000_000  # bytes; Ray takes no less than 75 MB
START = 180.0  # seconds that a node may take to start
os.environ |= {  # Ray reads these once, when it is imported
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # a busy machine would give nice workers nothing
    "RAY_memory_monitor_refresh_ms": "0",  # other programs' use of memory is no concern of these tests
}


@cache
def cluster() -> Any:
    """The cluster, with workers that import what tests import; this process is connected to it."""
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets are in it, whose paths must be short
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    os.environ |= {"RAY_TMPDIR": folder, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    import ray
    from ray.cluster_utils import Cluster

    _be_patient()
    head = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(started.shutdown)
    restore(started)
    ray.init(started.address, log_to_driver=False, logging_level="ERROR")
    atexit.register(ray.shutdown)
    return started


def lose_node(started: Any) -> None:
    """Kill the second node with all of its processes."""
    (node,) = started.worker_nodes
    started.remove_node(node, allow_graceful=False)


def restore(started: Any) -> None:
    """Two nodes again."""
    if not started.worker_nodes:
        started.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)


def _be_patient() -> None:
    """Wait longer for a node than the 30 seconds that Ray does, which are too few on a busy machine."""
    from ray._private import services

    look = services.get_node

    def get_node(*args: Any) -> Any:
        end = time.monotonic() + START
        while True:
            try:
                return look(*args)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    services.get_node = get_node
