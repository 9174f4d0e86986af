"""Processes of the tests as copies of one that has imported what takes long: their memory is shared, and imported once.

python nursery.py serve SOCKET MODULE...   # imports the modules; ends when its standard input does
python nursery.py join SOCKET -c CODE      # lends its streams to a copy, which runs the code
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import IO, TYPE_CHECKING

COPY = "the main module of a copy"


def start(address: str, modules: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """A process that serves, until it is killed or its standard input is closed."""
    command = [sys.executable, __file__, "serve", address, *modules]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # it closes this when it listens
    return process


def serve(address: str, modules: list[str]) -> None:
    copies: dict[int, socket.socket] = {}
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.close(1)  # whoever started this need not wait for what follows
        os.dup2(2, 1)
        for module in modules:
            import_module(module)
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        while True:
            ready = select.select([listener, sys.stdin, ended], [], [])[0]
            if sys.stdin in ready:
                os._exit(0)
            if ended in ready:
                ended.recv(4096)
                for pid in list(copies):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        with copies.pop(pid) as connection, suppress(OSError):
                            connection.send(b"%d\n" % os.waitstatus_to_exitcode(status))
            if listener in ready:
                connection, _ = listener.accept()
                given, streams, *_ = socket.recv_fds(connection, 1 << 16, 3)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for each in (listener, ended, wakes, connection, *copies.values()):
                        each.close()
                    run(**json.loads(given), streams=streams)
                copies[pid] = connection
                with suppress(OSError):
                    connection.send(b"%d\n" % pid)
                for stream in streams:
                    os.close(stream)


def run(code: str, arguments: list[str], environment: dict[str, str], folder: str, streams: list[int]) -> None:
    """Become what `python -c CODE ARGUMENT...` would be, and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:], sys.path[0] = ["-c", *arguments], ""
    main = sys.modules["__main__"] = ModuleType("__main__", COPY)
    status = 0
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(status & 255)  # without taking apart, object by object, what was imported


def join(address: str, code: str) -> None:
    with _ask(address, code, [], os.environ, (0, 1, 2)) as connection:
        os.close(0)
        os.close(1)
        while connection.recv(64):  # the number of the process, then its exit code
            pass


def _ask(
    address: str, code: str, arguments: list[str], environment: Mapping[str, str], streams: tuple[int, int, int]
) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    given = {"code": code, "arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}
    socket.send_fds(connection, [json.dumps(given).encode()], streams)
    return connection


class Copy:
    """What of `subprocess.Popen` the tests need, for a copy that runs `python -c CODE ARGUMENT...`; output is text."""

    def __init__(
        self, address: str, code: str, *arguments: str, env: Mapping[str, str], stderr: "IO[str] | int | None" = None
    ) -> None:
        reads, writes = os.pipe()
        self.stdout = open(reads)  # noqa: SIM115
        self.returncode: int | None = None
        with open(os.devnull, "r+") as nothing:
            errors = 2 if stderr is None else nothing.fileno() if isinstance(stderr, int) else stderr.fileno()
            self._connection = _ask(address, code, list(arguments), env, (nothing.fileno(), writes, errors))
        os.close(writes)
        self._told = self._connection.makefile("r")
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """The exit code, minus the signal that ended it, or None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.returncode = int(self._told.readline())
            self._told.close()
            self._connection.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a copy", timeout or 0.0)
            select.select([self._connection], [], [], left)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def calprompt(*arguments: str, env: Mapping[str, str] | None = None) -> "Process":
    """`calprompt ARGUMENT...`: a copy of the process that those of the tests are copies of, if there is one."""
    environment = dict(os.environ if env is None else env)
    if ready := os.environ.get("CALPROMPT_TEST_COPIES"):
        return Copy(ready, "import sys; from calprompt.cli import main; sys.exit(main())", *arguments, env=environment)
    command = [sys.executable, "-m", "calprompt", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment)


if TYPE_CHECKING:
    Process = subprocess.Popen[str] | Copy


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        join(sys.argv[2], sys.argv[-1])
