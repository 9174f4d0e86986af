"""Processes of the tests as copies of one that has imported what takes long: their memory is shared, and imported once.

python nursery.py serve SOCKET MODULE...   # imports the modules; ends when its standard input does
python nursery.py join SOCKET -c CODE      # lends its streams to a copy, which runs the code
"""

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
from importlib import import_module
from types import ModuleType

COPY = "the main module of a copy"


def start(address: str, modules: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """A process that serves, until it is killed or its standard input is closed."""
    command = [sys.executable, __file__, "serve", address, *modules]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()  # it closes this when it listens
    return process


def serve(address: str, modules: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.close(1)  # whoever started this need not wait for what follows
        os.dup2(2, 1)
        for module in modules:
            import_module(module)
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            code, streams, *_ = socket.recv_fds(connection, 1 << 16, 3)
            if os.fork() == 0:
                listener.close()
                run(code.decode(), streams)
            connection.close()
            for stream in streams:
                os.close(stream)
        os._exit(0)


def run(code: str, streams: list[int]) -> None:
    """Become what `python -c CODE` would be, and exit; the connection, which stays open, tells when."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv[:], sys.path[0] = ["-c"], ""
    main = sys.modules["__main__"] = ModuleType("__main__", COPY)
    exec(code, main.__dict__)
    atexit._run_exitfuncs()
    os._exit(0)  # without taking apart, object by object, what was imported


def join(address: str, code: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [code.encode()], [0, 1, 2])
        os.close(0)
        os.close(1)
        connection.recv(1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        join(sys.argv[2], sys.argv[-1])
