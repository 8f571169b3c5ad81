"""What a program was short of is no failure of it: it ends with a status of its own, and is started again."""

from __future__ import annotations

import errno
import os

import pytest

from conftest import Daemon
from replicad import Mismatch, NoMemory
from replicad._core import ending
from replicad.errors import Again, Refused, System


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT])
def test_wants_of_a_program(number: int) -> None:
    err = RuntimeError("the loader failed")
    err.__cause__ = OSError(number, os.strerror(number))
    assert ending.of_a_want(err)
    assert ending.of_a_want(RuntimeError(f"unable to open shared memory object </torch_1_2>: {os.strerror(number)} ({number})"))
    assert ending.of_a_want(System(f"pidfd_open: {os.strerror(number)} (errno {number})"))


def test_what_is_a_want() -> None:
    fork = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    assert all(map(ending.of_a_want, (Again(), NoMemory(), MemoryError(), RuntimeError("can't start new thread"), fork)))
    after = ValueError("shape")
    after.__context__ = fork  # a read that would wait was handled
    assert not any(map(ending.of_a_want, (Refused(), Mismatch(), OSError(errno.ENOENT, "x"), RuntimeError("shape"), ImportError(), System("recv (errno 5)"), after)))


def test_the_status_of_a_want(daemon: Daemon) -> None:
    """A program that was short of something is started again, more often than one that fails would be."""
    job = daemon.run(
        """
        import errno, os, signal, sys
        import replicad
        with open(sys.argv[0] + ".starts", "a") as f:
            f.write(".")
        if os.path.getsize(sys.argv[0] + ".starts") <= 6:
            raise OSError(errno.ENOSPC, "no space left on device")
        print("ENOUGH", flush=True)
        signal.pause()
        """
    )
    job.until("ENOUGH")
    assert "ended with status 75" in str(job.out)
    daemon.verb("job", "end", job.name, "--dev")
    assert job.wait() != 5
