"""The handle of the C client as several threads share it: one call at a time, and none in a forked child."""

from __future__ import annotations

import ctypes as c
import os
import threading
import time
import weakref
from collections.abc import Callable

from ..errors import Fork, SessionState
from . import native as n

__all__ = ["RETRY", "SLICE", "Handle"]

#: A C call waits no longer than this, in seconds, before Python looks at signals and deadlines again.
SLICE = 0.1
#: How long a call waits before it asks again, in seconds.
RETRY = 0.02
#: How long a call that goes on waiting leaves the rank to another thread, in seconds: a lock alone goes to who is there first, and that is
#: who has just let it go.
TURN = 0.001


class Handle:
    """A handle, and the lock that serialises its calls. None of them waits longer than SLICE inside C."""

    def __init__(self, handle: c.c_void_p, pid: int) -> None:
        self._lib = n.library()
        self._h = handle
        self._pid = pid
        self.forked()
        self._text = n.ErrorText()
        self._back = threading.Event()  # the daemon is there again
        self._news = threading.Event()  # it has sent something
        self._stop: int | None = None  # ends the watcher, which is there from attach on
        self._closed = False
        _handles.add(self)

    def forked(self) -> None:
        """Makes its locks: in a child nobody holds those of the parent."""
        self._lock = threading.RLock()
        self._write_lock = threading.RLock()  # over a whole write: one that is not answered goes on as the same write, if none came between
        self._fence_lock = threading.Lock()  # over what a closed epoch calls

    @property
    def closed(self) -> bool:
        """Whether it can be used no more, here."""
        return self._closed or self._pid != os.getpid()

    def handle(self) -> c.c_void_p:
        """The C client's handle, for replicad's own modules. :class:`Fork` in another process."""
        if self._pid != os.getpid():
            raise Fork(f"this session belongs to process {self._pid}, and this is process {os.getpid()}: data-loader workers and other children must not use it")
        if self._closed:
            raise SessionState("the session is closed: make another one")
        return self._h

    def _check(self, code: int, op: str) -> None:
        if code != n.OK:
            raise n.failure(op, code, self._text)

    def _nudge(self) -> None:
        """Wakes the watcher of an attached rank whose epoch is closed: the call before may have read the message that was to wake it."""

    def _until_ordered(self) -> None:
        """Leaves the rank to others until :meth:`join` would not wait, or it is to be told again that the rank has stopped."""
        end = time.monotonic() + SLICE
        while (left := end - time.monotonic()) > 0:
            self._news.wait(left)
            self._news.clear()
            with self._lock:
                if self._lib.rp_ordered(self.handle()):
                    return

    def _wait(self, op: str, call: Callable[[int], int], timeout: float | None, leave: Callable[[], None] | None = None) -> None:
        """Calls until it says something other than "not in time"; a daemon that is away may come back. Between two calls the rank is left to
        other threads: for as long as ``leave`` takes, or a moment."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self.handle()
                self._text.text = b""
                code = call(int(SLICE * 1e9))
                err = None if code == n.OK else n.failure(op, code, self._text)
                self._nudge()
                if code == n.EGONE and self._stop is None:  # no watcher before attach
                    self._lib.rp_reconnect(self._h, int(SLICE * 1e9), c.byref(self._text))
            if err is None:
                return
            if code not in (n.ETIMEOUT, n.EAGAIN, n.EGONE):
                raise err
            if end is not None and time.monotonic() >= end:
                raise err
            if code != n.ETIMEOUT:
                self._back.wait(RETRY)
                self._back.clear()
                continue
            time.sleep(TURN)
            if leave:
                leave()

    def _write(self, op: str, call: Callable[[int], int], timeout: float | None) -> None:
        with self._write_lock:
            self._wait(op, call, timeout)


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _forked() -> None:
    """In a child: the parent's sessions are the parent's. The child's copies of their threads do not exist."""
    for handle in list(_handles):
        handle.forked()


os.register_at_fork(after_in_child=_forked)
