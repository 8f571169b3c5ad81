"""How a rank's program ends by an exception: what the daemon is told of it, and the exit status by which the launcher knows that a new
process would only end the same way."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType

from ..errors import Again, Mismatch, NoMemory, System

__all__ = ["FINAL", "WANT", "chain", "install", "of_a_collective", "of_a_want", "say_before_the_end", "text"]

#: The exit status of a program that a restart does not mend: its job ends, and is not to be requeued.
FINAL = 78
#: That of a program that was short of something: another try, here or on another node, may find it.
WANT = 75

_WANTS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EDQUOT))
# What extensions and torch raise has the number of the error, or its text, in its own text alone.
_TEXTS = (*(f"(errno {n})" for n in _WANTS), *(os.strerror(n) for n in _WANTS), "can't start new thread")


def chain(err: BaseException) -> Iterator[BaseException]:
    """An exception and those that it came from: a restart finds a thread that is handling the error of a collective as often as not."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [err]
    while left:
        if (e := left.pop()) is not None and e not in seen:
            seen.append(e)
            yield e
            left += [e.__context__, e.__cause__]


def of_a_collective(err: BaseException) -> bool:
    """Whether an exception is a communicator's: a peer may be gone."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    kinds = tuple(k for k in (getattr(dist, n, None) for n in ("DistError", "DistBackendError", "DistNetworkError")) if k)
    for seen in chain(err):
        if kinds and isinstance(seen, kinds):
            return True
        if isinstance(seen, RuntimeError) and any(w in str(seen) for w in ("gloo", "NCCL", "Connection closed by peer", "Connection reset", "Broken pipe", "ProcessGroup")):
            return True
    return False


def of_a_want(err: BaseException) -> bool:
    """Whether an exception came of a want of descriptors, memory, processes or disk, which passes. EAGAIN is one where it ends the program: a
    fork has it, and a read that would wait is handled."""
    if isinstance(err, OSError) and err.errno == errno.EAGAIN:
        return True
    for seen in chain(err):
        if isinstance(seen, (Again, NoMemory, MemoryError)) or (isinstance(seen, OSError) and seen.errno in _WANTS):
            return True
        if isinstance(seen, (RuntimeError, System)) and any(text in str(seen) for text in _TEXTS):
            return True
    return False


def text(err: BaseException) -> str:
    """An exception in a line or a few."""
    return f"{type(err).__name__}: {err}"


_tell: Callable[[BaseException], None] | None = None
_installed = False


def say_before_the_end(tell: Callable[[BaseException], None]) -> None:
    """Has an exception that ends the program given to ``tell``, once it is printed."""
    global _tell
    _tell = tell
    install()


def install() -> None:
    """Has a :class:`Mismatch` end the program with :data:`FINAL`, and a want with :data:`WANT`."""
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def hook(kind: type[BaseException], err: BaseException, where: TracebackType | None) -> None:
        before(kind, err, where)
        if _tell is not None:
            _tell(err)
        status = FINAL if isinstance(err, Mismatch) else WANT if isinstance(err, Exception) and of_a_want(err) else 0
        if status:
            if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:  # torch's hook around this one would not come to print it
                sys.__stderr__.write(sys.stderr.getvalue())
            raise SystemExit(status)

    sys.excepthook = hook
