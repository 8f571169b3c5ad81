"""The process that a test run's launchers and ranks fork from: it has imported torch once. warm.py starts it and says what is to be run.

For libraries that take long to import it makes a process like itself, which has them too. For each job it makes two processes. The launcher is a child
of the one that runs the tests, and becomes `replicad run`. It has a child of its own, which serves forks to it: every life of every rank, the first one
too. REPLICAD_PRELOAD_FD in the environment of `replicad run` names their socket.

A rank is as a fresh process, but for what leaving.py is for: the interpreter does not take modules apart at the end. torch's compiler is the
real one, since it is imported once only. Its command line in /proc is this process's.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import platform
import signal
import socket
import sys
import traceback
from importlib.machinery import SourceFileLoader
from typing import Any

import leaving
from replicad._preload import replicad_preload

#: The compiler is what a program's first optimizer imports.
TORCHS = ["numpy", "torch", "torch._dynamo", "torch.distributed", "torch.utils.data"]
OURS = ["replicad.session", "replicad.data", "replicad.inprocess", "replicad.parallel"]
#: What Python ignores. A child of a launcher ignores nothing else but what may be ignored for a job in the background.
IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
INHERITED = (signal.SIGHUP, signal.SIGINT)
CLONE_PARENT, CLONE = 0x8000, {"x86_64": 56, "aarch64": 220}
#: With the interpreter's lock held: nobody else may run between a fork and what follows it.
libc = ctypes.PyDLL(None, use_errno=True)


def main(fd: int) -> None:
    """Imports and serves. It returns in ranks alone, at the end of their program."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    gc.disable()
    leaving.first()
    for name in TORCHS:
        importlib.import_module(name)
    atexit.register(ended)  # before ours, so that theirs, which say something, come first
    for name in OURS:
        importlib.import_module(name)
    ready()
    sock.send(b"{}")
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 20, 1)
        if not data:
            os._exit(0)
        job = json.loads(data)
        pid = sibling()
        if pid == 0 and "imports" in job:
            sock = further(job["imports"], fds[0], sock)
        elif pid == 0:
            return run(launched(job, fds[0], sock))
        else:
            os.close(fds[0])
            sock.send(json.dumps({"pid": pid}).encode())


def further(imports: list[str], fd: int, sock: socket.socket) -> socket.socket:
    """Becomes a process that serves beside the one that it forks from, with further imports behind it, by their statements."""
    try:
        sock.close()
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        gc.disable()
        gc.unfreeze()
        for statement in imports:
            exec(statement, {})  # noqa: S102 - those of a test file
        ready()
        sock.send(b"{}")
        return sock
    except BaseException:
        traceback.print_exc()
        os._exit(125)


def ready() -> None:
    """Leaves a process of one thread that can be forked."""
    importlib.import_module("replicad._core.preloading").freeze()
    leaving.last()
    gc.enable()
    for number in signal.valid_signals() - {*IGNORED, *INHERITED}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"imports have left {threads - 1} threads"


def ended() -> None:
    """The last but torch's of a rank's exit handlers. What C++ libraries print of leaks after it is of no interest."""
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def sibling() -> int:
    """Forks a child of this process's parent. Python and libc do not know of it, so it may do no more than fork and exec."""
    pid = int(libc.syscall(CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def launched(job: dict[str, Any], out: int, sock: socket.socket) -> list[str]:
    """Becomes the launcher. It returns in ranks alone: with the program that they run. Without a launcher the process runs the program itself."""
    try:
        if not job["command"]:
            return alone(job, out, sock)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.chdir(job["cwd"])
        if os.fork() == 0:
            ours.close()
            sock.close()
            os.close(out)
            replicad_preload.serve(theirs, job["program"])
            return list(job["program"])
        for number in IGNORED:  # exec would leave it at that
            signal.signal(number, signal.SIG_DFL)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.set_inheritable(ours.fileno(), True)
        os.execve(job["command"][0], job["command"], job["env"] | {"REPLICAD_PRELOAD_FD": str(ours.fileno())})
    except BaseException:
        traceback.print_exc()
        os._exit(125)


def alone(job: dict[str, Any], out: int, sock: socket.socket) -> list[str]:
    """A process that no launcher has started; the program that it runs."""
    sock.close()
    os.chdir(job["cwd"])
    for fd in (1, 2):
        os.dup2(out, fd)
    os.close(out)
    seeded = replicad_preload.TorchSeed()
    seeded.look()
    os.environ.clear()
    os.environ.update(job["env"])
    replicad_preload.fresh_state()
    seeded.again()
    return list(job["program"])


def run(command: list[str]) -> None:
    """Runs a program as ``python PATH ARGUMENT...`` does, with Python's own function for it: its frames are the outermost of every traceback, and
    its end is Python's."""
    path = command[1]
    sys.orig_argv[:], sys.argv[:], sys.path[0] = command, command[1:], os.path.dirname(path)
    main = vars(sys.modules["__main__"])
    builtins = main["__builtins__"]
    main.clear()
    main.update(__name__="__main__", __doc__=None, __package__=None, __spec__=None, __annotations__={}, __builtins__=builtins)
    main["__loader__"] = SourceFileLoader("__main__", path)
    del sys.modules["warmed"], sys.modules["leaving"]
    fopen, play = libc.fopen, ctypes.pythonapi.PyRun_SimpleFileExFlags
    fopen.restype, play.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    if (file := fopen(os.fsencode(path), b"rb")) is None:
        sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}")
    if play(file, os.fsencode(path), 1, None) != 0 and not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        sys.exit(1)  # an interrupt is Python's to end by: it kills itself with the signal


if __name__ == "__main__":
    import warmed

    warmed.main(int(sys.argv[1]))
