"""The threads of an attached rank."""

from __future__ import annotations

import ctypes as c
import logging
import os
import select
import threading
import time
from collections.abc import Callable

from ..errors import Corrupt, Invalid
from . import native as n
from .rendezvous import Rendezvous

__all__ = ["Threads", "helpers"]

log = logging.getLogger("replicad")

#: How long the watcher waits between tries to find a daemon that went away, and for its answer, in seconds.
RETRY, ANSWER = 0.02, 2.0

#: How long a rank without a launcher trains on before it says that its daemon is gone, in seconds: one that is started again is back by then.
GONE = 5.0

#: How long a helper waits for a capture before it looks whether it is to end, in seconds.
HELP = 0.5
#: The most threads that copy one capture or load.
MOST = 16


def helpers() -> int:
    """How many threads copy a capture beside the worker, and a load beside the training thread."""
    text = os.environ.get("REPLICAD_CAPTURE_THREADS") or "1"
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MOST):
        raise Invalid(f"REPLICAD_CAPTURE_THREADS={text[:80]!r}: want 1 to {MOST}, how many threads of this rank copy a step (default 1)")
    return int(text) - 1


class Threads(Rendezvous):
    """A rank with its worker, watcher and helpers, and the fields they share with the training thread."""

    def __init__(self, handle: c.c_void_p, pid: int, number: int) -> None:
        super().__init__(handle, pid)
        self.number = number  #: which rank
        self.launched = True  #: whether replicad run or its agent reports that the daemon is gone
        self.threads: list[threading.Thread] = []  #: those that end with the rank
        self._armed = c.c_int()
        self._wake = threading.Event()
        self._quit = threading.Event()
        self._fence = threading.Event()
        self._on_fence: list[Callable[[], None]] = []
        #: Brings a step to where it is copied from; the session sets it.
        self.stage: Callable[[int], None] | None = None
        #: Held while the worker or the training thread runs :attr:`stage`: nothing is loaded meanwhile.
        self.stage_lock = threading.Lock()
        #: Called with the step that is to be copied. replicad.testing breaks things here.
        self.before_capture: Callable[[int], None] | None = None
        self._capture_error: Exception | None = None  # what the worker raised, for the training thread
        #: What to raise where a copy differs from what :meth:`expect` named; None: nothing.
        self.judge: Callable[[str], Exception | None] = Corrupt
        self._arming = 0  # the step whose capture was armed last
        # A step whose private part was left for later: the worker stages it though no capture may be armed.
        self._later = 0

    @property
    def fenced(self) -> bool:
        """Whether the rank's epoch is closed. Any thread may ask; it reads one word."""
        return self._pid == os.getpid() and bool(self._lib.rp_fenced(self._h))

    def _start(self, more: int) -> None:
        """Starts them, with so many helpers, once the rank is attached."""
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wake.set()  # the worker maps the arena's pages, while the state is on its way
        helping = [(self._help_copy, "replicad-helper")] * more
        for target, name in ((self._work, "replicad-worker"), (self._watch, "replicad-watcher"), *helping):
            t = threading.Thread(target=target, name=name, daemon=True)
            t.start()
            self.threads.append(t)

    def _help_copy(self) -> None:
        """A helper: takes chunks of each capture that the worker runs, and of each load."""
        while not self._quit.is_set():
            self._lib.rp_help(self._h, int(HELP * 1e9))

    def _work(self) -> None:
        """The worker: runs armed captures and reports the seals. A capture without a seal is counted."""
        text = n.ErrorText()
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._quit.is_set():
                return
            self._lib.rp_notify(self._h)
            self._look_at_fence()  # that may have read the message which would have woken the watcher
            try:
                if self._armed.value and self.before_capture:
                    self.before_capture(self._arming)
                if self._armed.value or self._later:
                    with self.stage_lock:
                        # It is not cleared here: the training thread may be about to set the next one.
                        # To stage what is staged does nothing.
                        due = self._later or (self._armed.value and self._arming)
                        if due and self.stage:
                            self.stage(due)
            except Exception as err:  # what was to be copied is not ready: the training thread raises it
                self._capture_error = err
                self._lib.rp_cancel(self._h)  # it may be waiting already
                continue
            code = self._lib.rp_capture(self._h, c.byref(text))
            if code == n.OK:
                self._look_at_fence()
            elif code == n.ECORRUPT:
                self._capture_error = self.judge(str(n.failure("copy", code, text)))

    def _watch(self) -> None:
        """The watcher: takes in what the daemon sends, sees the fence, and finds the daemon again."""
        text, stop, told = n.ErrorText(), self._stop, ""
        assert stop is not None

        def readable(seconds: float | None, daemon: bool = True) -> bool:
            fds = [stop, self._lib.rp_fd(self._h)] if daemon else [stop]
            poll = select.poll()
            for fd in fds:
                poll.register(fd, select.POLLIN)
            ready = poll.poll(None if seconds is None else seconds * 1000)
            if self._quit.is_set():
                return False
            if any(fd == stop for fd, _ in ready):  # nudged
                os.eventfd_read(stop)
                self._look_at_fence()
            return True

        while readable(None):
            code = self._lib.rp_notify(self._h)
            self._look_at_fence()
            self._news.set()
            gone = time.monotonic()
            while code == n.EGONE:
                code = self._lib.rp_reconnect(self._h, int(ANSWER * 1e9), c.byref(text))
                self._look_at_fence()
                if code == n.OK:
                    self._wake.set()  # notices that waited
                    self._back.set()
                    if told:
                        back = "replicad: the daemon of rank %d is back, and keeps its steps again"
                        log.warning(back, self.number)
                        told = ""
                    break
                if code == n.ESTOPPED:
                    self._cut()  # superseded: the trainer finds out in its next call
                    return
                if code not in (n.EGONE, n.ETIMEOUT, n.EAGAIN) and text.text.decode(errors="replace") != told:
                    told = text.text.decode(errors="replace")
                    log.warning(
                        "replicad: the daemon that is there now does not take rank %d back, whose steps nobody keeps meanwhile: %s",
                        self.number,
                        told,
                    )
                elif not self.launched and not told and time.monotonic() - gone >= GONE:
                    told = text.text.decode(errors="replace")
                    # With another code there is a daemon, which is slow, or has no leader.
                    remedy = ": `replicad daemon` starts one" if code == n.EGONE else ""
                    none = "replicad: no daemon takes rank %d back, whose steps nobody keeps meanwhile: %s%s"
                    log.warning(none, self.number, told, remedy)
                if not readable(RETRY, daemon=False):
                    return
                code = n.EGONE
            # The training thread may be reading itself, and goes first.
            if not readable(0.001, daemon=False):
                return

    def _look_at_fence(self) -> None:
        if self.fenced:
            self._cut(lambda: self.fenced)  # asked again: a join may have gone on to the next epoch meanwhile

    def _nudge(self) -> None:
        if self._stop is not None and self.fenced and not self._fence.is_set():
            os.eventfd_write(self._stop, 1)

    def _cut(self, still: Callable[[], bool] = lambda: True) -> None:
        with self._fence_lock:
            if self._fence.is_set() or not still():
                return
            self._fence.set()
            calls, self._on_fence = self._on_fence, []
        for call in calls:
            call()
