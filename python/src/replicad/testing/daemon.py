"""A daemon for one test, which ends with the process that started it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

__all__ = ["Daemon"]

#: The longest folder that leaves room for the sockets of `replicad daemon --dev` below a temporary folder in it: a socket's path has at most 107 bytes.
_LONGEST = 107 - len("/replicad-check-12345678/replicad-dev/run/keeper.sock")


class Daemon:
    """`replicad daemon --dev` with its state in a folder, its own temporary one if none is given; the environment for its clients. A guard beside it ends it, its
    keeper and what was started by :meth:`start` when it is left, and also when this process is killed."""

    def __init__(self, binary: str, folder: str | None = None) -> None:
        temporary = folder is None
        if folder is None:
            short = len(os.fsencode(tempfile.gettempdir())) <= _LONGEST
            folder = tempfile.mkdtemp(prefix="replicad-check-", dir=None if short else "/tmp")
        self.binary, self.folder = binary, folder
        # This process's sys.path, as PYTHONPATH: the others import what it does, from where it does.
        self.path = os.pathsep.join(os.path.abspath(p) for p in sys.path)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("REPLICAD_")} | {"XDG_STATE_HOME": folder}
        call = [sys.executable, "-c", "from replicad.testing import daemon; daemon.guard()", *([folder] if temporary else [])]
        # In a session of its own, where no signal for this process's group or terminal finds it.
        self.guard = subprocess.Popen(call, env=self.env | {"PYTHONPATH": self.path}, cwd="/", stdin=subprocess.PIPE, text=True, start_new_session=True)
        self.running: list[subprocess.Popen[str]] = []
        self.drain: threading.Thread | None = None

    def start(self, *command: str, **how: Any) -> subprocess.Popen[str]:
        """Starts a process that does not outlive this one."""
        process = subprocess.Popen([self.binary, *command], text=True, **{"env": self.env, "cwd": self.folder, **how})
        self.running.append(process)
        assert self.guard.stdin is not None
        print(process.pid, file=self.guard.stdin, flush=True)
        return process

    @property
    def home(self) -> Path:
        """Where the daemon keeps everything."""
        return Path(self.folder, "replicad-dev")

    @property
    def durable(self) -> Path:
        """The root of its durable generations."""
        return self.home / "durable"

    def command(self, *command: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Runs the program to its end."""
        return subprocess.run([self.binary, *command], env=self.env, cwd=self.folder, text=True, capture_output=True, timeout=timeout)

    def afresh(self) -> None:
        """Kills all of it. What starts again knows what is durable, and nothing else: its pki is another one."""
        self._bury()
        for path in self.home.iterdir():
            if path.name in ("address", "durable"):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.__enter__()

    def __enter__(self) -> dict[str, str]:
        try:
            self.start("keeper", "--socket", str(self.home / "run" / "keeper.sock"))  # one that the daemon starts is nobody's child
            daemon = self.start("daemon", "--dev", "--wait-keeper", stderr=subprocess.PIPE)
            assert daemon.stderr is not None
            seen = []
            for line in daemon.stderr:
                seen.append(line)
                if '"event":"linked"' in line:
                    self.drain = threading.Thread(target=daemon.stderr.read, daemon=True)
                    self.drain.start()
                    return self.env
            raise RuntimeError("the daemon did not start:\n" + "".join(seen))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self.guard.communicate()  # it ends them all once this pipe is closed, by whatever
        self._bury()  # they have ended, unless somebody ended the guard

    def _bury(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
            if process.stderr is not None:
                if self.drain is not None:
                    self.drain.join()
                process.stderr.close()
        self.running.clear()


def guard() -> None:
    """Ends processes whose ids come on the standard input once that is closed, which is when its other end was left or ended, by SIGKILL too; and removes the folder that was
    given. It asks the last one first: the launcher ends its ranks, and the daemon is still there."""
    running = []
    for line in sys.stdin:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            running.append(os.pidfd_open(int(line)))
    for process in reversed(running):
        for ask, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, ask)
            if select.select([process], [], [], patience)[0]:
                break
    for folder in sys.argv[1:]:
        shutil.rmtree(folder, ignore_errors=True)
