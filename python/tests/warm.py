"""Jobs whose ranks fork from one process that has imported torch: see warmed.py, which is that process."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from pace import patient


class Warm:
    """The process, for as long as the tests run, with torch behind it. It is a program of its own, or forks from another one (:meth:`with_imports`)."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes] | Launched) -> None:
        self._sock, self._process = sock, process
        self._answer()

    @classmethod
    def begin(cls, env: dict[str, str]) -> Warm:
        """Starts the program. What libraries see of the environment when they are loaded they see here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("warmed.py")), str(theirs.fileno())],
                env=env | {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"},
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        return cls(ours, process)

    def with_imports(self, imports: Sequence[str]) -> Warm:
        """A further process, which has these imports behind it as well, and torch's from this one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._sock, [json.dumps({"imports": list(imports)}).encode()], [theirs.fileno()])
            return Warm(ours, Launched(self._answer()["pid"]))

    def _answer(self) -> dict[str, int]:
        data = self._sock.recv(1 << 10)
        assert data, f"the process that jobs fork from ended with {self._process.wait(patient(60))}"
        return dict(json.loads(data))

    def launch(self, command: Sequence[str], program: Sequence[str], env: dict[str, str], cwd: Path) -> Launched:
        """Starts ``replicad run ... -- PROGRAM``, whose whole command line is ``command``; without one, the program alone."""
        job = {"command": list(command), "program": list(program), "env": env, "cwd": str(cwd)}
        r, w = os.pipe()
        try:
            socket.send_fds(self._sock, [json.dumps(job).encode()], [w])
        finally:
            os.close(w)
        return Launched(self._answer()["pid"], open(r))

    def end(self) -> None:
        """Ends the process, after the last job."""
        self._sock.close()
        self._process.wait(patient(60))


class Launched:
    """What tests use of a ``subprocess.Popen``, for a child that another process has started."""

    def __init__(self, pid: int, stdout: IO[str] | None = None) -> None:
        self.pid, self.stdout, self.returncode = pid, stdout, None
        self._fd = os.pidfd_open(pid)
        self.returncode: int | None

    def poll(self) -> int | None:
        """The exit status, once there is one."""
        if self.returncode is None and (ended := os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)):
            self._end(ended.si_code, ended.si_status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit status."""
        if self.poll() is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if not poll.poll(timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        code = self.poll()
        assert code is not None
        return code

    def _end(self, how: int, status: int) -> None:
        self.returncode = status if how == os.CLD_EXITED else -status
        os.close(self._fd)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """Kills the process."""
        self.send_signal(signal.SIGKILL)
