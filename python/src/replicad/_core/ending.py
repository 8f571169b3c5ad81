"""How a rank's program ends by an exception: what the daemon is told of it, and the exit status by which the launcher knows that a new
process would only end the same way."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from types import TracebackType

from ..errors import Mismatch

__all__ = ["FINAL", "chain", "of_a_collective", "say_before_the_end", "text"]

#: The exit status of a program that a restart does not mend: its job ends, and is not to be requeued.
FINAL = 78


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


def text(err: BaseException) -> str:
    """An exception in a line or a few."""
    return f"{type(err).__name__}: {err}"


def say_before_the_end(tell: Callable[[BaseException], None]) -> None:
    """Has an exception that ends the program given to ``tell``, once it is printed. A :class:`Mismatch` ends it with :data:`FINAL`."""
    before = sys.excepthook

    def hook(kind: type[BaseException], err: BaseException, where: TracebackType | None) -> None:
        before(kind, err, where)
        tell(err)
        if isinstance(err, Mismatch):
            if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:  # torch's hook around this one would not come to print it
                sys.__stderr__.write(sys.stderr.getvalue())
            raise SystemExit(FINAL)

    sys.excepthook = hook
