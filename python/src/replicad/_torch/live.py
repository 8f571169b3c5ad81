"""The step whose state is live, as something to be copied.

A tensor that is registered where it lies can be copied once its step has ended. One that has a stage (:mod:`replicad._torch.staging`) has to be
brought there first: by the worker, behind the next forward, if a copy was armed; else by the training thread, before it stops and the
daemon may ask for the live step, or before it asks for a copy itself.

On a device a step that has ended on the host may still be under way. It is vouched for, and its private part copied, once the device is through with it and every
communicator is free of error after that (:mod:`replicad._torch.communicators`): by the worker at each step, or by the training thread as above.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from .._core.rank import Rank
from ..errors import Canceled, Corrupt, Error, Mismatch, StaleProgram
from . import device
from .alarm import Alarm
from .communicators import Communicators, Seen
from .staging import Staging
from .watch import digest

__all__ = ["Live"]

log = logging.getLogger("replicad")

#: So many seconds a device has to end what it was given, once nothing of it waits for other ranks: as long as a part of :mod:`replicad.inprocess` has.
DRAIN = 60.0
#: So many seconds after the epoch was closed a device may still take to end a step. One that takes longer waits for the rank that was lost, as a rule.
GRACE = 0.25


@dataclass(frozen=True)
class Ended:
    """A step that has ended on the host: what the device has to pass for it to have ended there, and what was known when it began."""

    step: int
    mark: device.Mark
    since: Seen


class Live:
    """What of a rank's live step is where the C client copies from. The training thread calls it, and the worker :meth:`bring`."""

    def __init__(self, rank: Rank, staging: Staging, alarm: Alarm, say: Callable[[str, str], None]) -> None:
        """``say`` names, once, what nothing can be kept of, with what to do about it."""
        self._rank, self._staging, self._alarm, self._say = rank, staging, alarm, say
        self._relaxed = False  # the worker
        self._private: bytes | None = None  # a digest of the step that found no room for the copy of its private part when it was over
        self._ended: Ended | None = None  # on a device: the live step, if it was not loaded
        self._vouched = -1  # the step that was vouched for last
        self._closed: float | None = None  # when the epoch was seen to be closed while a device was waited for
        self._streams = device.Streams(staging.devices)
        self._communicators = Communicators()
        self._since = self._communicators.now()

    def begin(self) -> None:
        """State was loaded: the first step of an epoch begins."""
        self._ended, self._vouched, self._closed, self._private = None, -1, None, None
        self._since = self._communicators.now()

    def enter(self, step: int, timeout: float) -> None:
        """The step begins."""
        self._rank.step_enter(step, timeout)
        self._streams.begin()

    def stepped(self) -> None:
        """An optimizer has launched its update, on the stream that is current or on one that it switched to."""
        self._streams.note()

    def exit(self, step: int, *, updated: bool) -> None:
        """The step is over: its private part is copied, or known by its digest, and what is in its place is good to copy from now on."""
        self._alarm.exiting(step)
        on_device, good = self._staging.on_device, True
        if on_device:
            since, self._since = self._since, self._communicators.now()
            self._ended = Ended(step, self._streams.end(), since)
            good = self._staging.at_once and self._passed(self._ended)
        later = on_device and not self._staging.at_once
        copied = self._rank.step_exit(step, updated=updated, good=good, staged=not self._staging, private_later=later)
        self._private = None if copied else self._digest()

    def drain(self, free: Callable[[], None]) -> None:
        """Returns once the device has done all that it was given: a copy to a stage that was queued before an epoch was closed would write over what is loaded there.
        ``free`` ends what waits for ranks that were lost. :class:`StaleProgram` where the device does not come to an end: a new process has a context of its own."""
        mark, began, freed = self._staging.given(), time.monotonic(), False

        def given_up() -> str:
            nonlocal freed
            waited = time.monotonic() - began
            if waited > GRACE and not freed:
                freed = True
                free()
            return f"not within {DRAIN:g} s" if waited > DRAIN else ""

        try:
            mark.wait(given_up)
        except (Canceled, RuntimeError) as err:
            raise StaleProgram(f"resume: {err}: this process ends, and a new one takes its place") from err

    def everything(self) -> None:
        """Brings all that is live to the stages, now: it is what the job begins with, or goes on with as more. :class:`Corrupt` where it can't be vouched for."""
        self.sound()
        self._staging.all(self.given_up)

    def sound(self) -> None:
        """Waits until the device is through with all that it was given. :class:`Corrupt` where what it has computed since the last step can't be vouched for."""
        self._streams.end().wait(self.given_up)
        if self._staging.on_device and (fault := self._communicators.fault(self._since)):
            raise Corrupt(f"what this rank has on its device may be anything: {fault.why}")

    def forget(self) -> None:
        """The private part was written again: it is no longer that of the step's end."""
        self._private = None

    def bring(self, step: int) -> None:
        """Vouches for the step that has ended, and brings it to the stages if it was armed, on the worker's thread, with the rank's stage lock held."""
        if self._staging.on_device and not self._relaxed:
            self._relaxed = True
            device.relax()
        try:
            self._vouch(step)
            if step > self._staging.step and self._rank.armed(step):
                self._to_stages(step)
        except Mismatch:
            raise
        except Error:  # frozen meanwhile: the capture is not to be
            pass

    def settle(self, step: int) -> str:
        """Brings the live step to the stages, now. It returns nothing, or why it can't be; the daemon copies nothing of this rank then."""
        if not self._staging:
            return ""
        try:
            if self._staging.on_device and self._ended is not None:
                self._ended.mark.wait(self.given_up)  # without the lock, which a worker that waits for the same holds
            with self._rank.stage_lock:
                self._vouch(step)
                if self._staging.step != step:
                    self._to_stages(step)
        except Mismatch:
            raise
        except (RuntimeError, Error) as err:  # the device is gone, or waits for who is: what it held can't be vouched for
            log.warning("replicad: the state of step %d can't be read from the device: %s", step, err)
            self._rank.freeze_good()
            return str(err)
        return ""

    def last_moment(self, step: int) -> None:
        """The good word is about to be frozen: a device that is about to end the live step gets the time for it, which may save the step."""
        end = time.monotonic() + GRACE
        with contextlib.suppress(RuntimeError, Error):  # what is wrong with it is said elsewhere
            if self._ended is not None and self._ended.step == step:
                self._ended.mark.wait(lambda: "it has had its time" if time.monotonic() > end or self._rank.frozen else "")
                with self._rank.stage_lock:
                    self._vouch(step)

    def given_up(self) -> str:
        """Why a device is waited for no longer, or nothing. A collective that waits for a rank that was lost never ends by itself."""
        if self._rank.frozen:
            return "the good word is frozen"
        if self._rank.closing:
            return "the session is closed"
        if not self._rank.fenced:
            self._closed = None
        elif self._closed is None:
            self._closed = time.monotonic()
        elif time.monotonic() - self._closed > GRACE:
            self._rank.freeze_good()
            return "the epoch is closed, and it may wait for the rank that was lost"
        return ""

    def commit(self, step: int, timeout: float | None) -> None:
        """Has the live step copied, and waits until the whole job has committed it (:meth:`replicad.Session.commit`)."""
        self.ready(step, "commit")
        self._rank.commit(step, timeout, unchanged=self._unchanged)

    def seal(self, step: int, timeout: float) -> None:
        """Has the live step copied, once it is settled; :class:`Canceled` where its private part has no copy."""
        self._rank.seal(step, timeout, unchanged=self._unchanged)

    def ready(self, step: int, what: str) -> None:
        """For what needs the live step in its stages. :class:`Canceled` where it can't be brought there."""
        if not self._rank.armed(step) and (why := self.settle(step)):  # of an armed step the worker has the copying
            raise Canceled(f"{what}: the state of step {step} can't be read from the device: {why}")

    @property
    def _unchanged(self) -> bool:
        """Whether the private part is what it was when its copy was due. The rest of it is in capsules and stages, which are written
        when a step is over."""
        return self._private == self._digest()

    def _digest(self) -> bytes:
        return b"".join(digest(x.local) for x in self._staging.fixed if x.private)

    def _passed(self, ended: Ended) -> bool:
        """Waits until the device is through with a step. Whether it can be vouched for."""
        ended.mark.wait(self.given_up)
        fault = self._communicators.fault(ended.since)
        if self._rank.frozen:  # asked last: whoever aborts on purpose freezes before
            return False
        if fault is None:
            return True
        self._rank.freeze_good()
        text = f"nothing is kept of step {ended.step} and of what follows: what the device has computed may be anything: {fault.why}"
        if not fault.lost:  # a new process could tell no better
            self._say("device", text)
        elif not self._rank.fenced:
            self._rank.fail(text)
        return False

    def _vouch(self, step: int) -> None:
        """Says that a step which has ended is good, and has its private part copied. :class:`Canceled` where it can't be vouched for."""
        ended = self._ended
        if ended is None or ended.step != step or self._vouched == step:
            return
        if not self._passed(ended):
            raise Canceled(f"step {step} can't be vouched for")
        self._rank.set_good(step)
        self._rank.private_staged(step)
        self._vouched = step

    def _to_stages(self, step: int) -> None:
        """The step that has ended, which may be copied then."""
        self._staging.window(step, self.given_up)
        self._alarm.staged(step)
        self._rank.staged(step)
