"""The threads of an attached rank."""

from __future__ import annotations

import ctypes as c
import logging
import os
import select
import time
from typing import TYPE_CHECKING

from ..errors import Invalid
from . import native as n

if TYPE_CHECKING:
    from .rank import Rank

__all__ = ["help_copy", "helpers", "watch", "work"]

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


def help_copy(rank: Rank) -> None:
    """A helper: takes chunks of each capture that the worker runs, and of each load."""
    while not rank._quit.is_set():
        rank._lib.rp_help(rank._h, int(HELP * 1e9))


def work(rank: Rank) -> None:
    """The worker: runs armed captures and tells the daemon what was sealed. A capture that ends without a seal is counted."""
    text = n.ErrorText()
    while True:
        rank._wake.wait()
        rank._wake.clear()
        if rank._quit.is_set():
            return
        rank._lib.rp_notify(rank._h)
        rank._look_at_fence()  # that may have read the message which would have woken the watcher
        try:
            if rank._armed.value and rank.before_capture:
                rank.before_capture(rank._arming)
            if rank._armed.value or rank._later:
                with rank.stage_lock:
                    # It is not cleared here: the training thread may be about to set the next one. To stage what is staged does nothing.
                    due = rank._later or (rank._armed.value and rank._arming)
                    if due and rank.stage:
                        rank.stage(due)
        except Exception as err:  # what was to be copied is not ready: the training thread is told, this one goes on
            rank._capture_error = err
            rank._lib.rp_cancel(rank._h)  # it may be waiting already
            continue
        code = rank._lib.rp_capture(rank._h, c.byref(text))
        if code == n.OK:
            rank._look_at_fence()
        elif code == n.ECORRUPT:
            rank._capture_error = rank.judge(str(n.failure("copy", code, text)))


def watch(rank: Rank) -> None:
    """The watcher: takes in what the daemon sends, sees the fence, and finds the daemon again."""
    text, stop, told = n.ErrorText(), rank._stop, ""
    assert stop is not None

    def readable(seconds: float | None, daemon: bool = True) -> bool:
        fds = [stop, rank._lib.rp_fd(rank._h)] if daemon else [stop]
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        if rank._quit.is_set():
            return False
        if any(fd == stop for fd, _ in ready):  # nudged
            os.eventfd_read(stop)
            rank._look_at_fence()
        return True

    while readable(None):
        code = rank._lib.rp_notify(rank._h)
        rank._look_at_fence()
        rank._news.set()
        gone = time.monotonic()
        while code == n.EGONE:
            code = rank._lib.rp_reconnect(rank._h, int(ANSWER * 1e9), c.byref(text))
            rank._look_at_fence()
            if code == n.OK:
                rank._wake.set()  # notices that waited
                rank._back.set()
                if told:
                    log.warning("replicad: the daemon of rank %d is back, and keeps its steps again", rank.number)
                    told = ""
                break
            if code == n.ESTOPPED:
                rank._cut()  # superseded: the trainer finds out in its next call
                return
            if code not in (n.EGONE, n.ETIMEOUT, n.EAGAIN) and text.text.decode(errors="replace") != told:
                told = text.text.decode(errors="replace")
                log.warning("replicad: the daemon that is there now does not take rank %d back, whose steps nobody keeps meanwhile: %s", rank.number, told)
            elif not rank.launched and not told and time.monotonic() - gone >= GONE:
                told = text.text.decode(errors="replace")
                remedy = ": `replicad daemon` starts one" if code == n.EGONE else ""  # else there is one, which is slow, or has no leader
                log.warning("replicad: no daemon takes rank %d back, whose steps nobody keeps meanwhile: %s%s", rank.number, told, remedy)
            if not readable(RETRY, daemon=False):
                return
            code = n.EGONE
        if not readable(0.001, daemon=False):  # the training thread may be reading itself; it is let go first
            return
