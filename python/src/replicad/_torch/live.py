"""The step whose state is live, as something to be copied.

A tensor that is registered where it lies can be copied once its step has ended. One that has a stage (:mod:`replicad._torch.staging`) has to be
brought there first: by the worker, behind the next forward, if a copy was armed; else by the training thread, before it stops and the
daemon may ask for the live step, or before it asks for a copy itself.
"""

from __future__ import annotations

import logging

from .._core.rank import Rank
from ..errors import Canceled, Error, Mismatch
from .alarm import Alarm
from .staging import Staging
from .watch import digest

__all__ = ["Live"]

log = logging.getLogger("replicad")


class Live:
    """What of a rank's live step is where the C client copies from. The training thread calls it, and the worker :meth:`bring`."""

    def __init__(self, rank: Rank, staging: Staging, alarm: Alarm) -> None:
        self._rank, self._staging, self._alarm = rank, staging, alarm
        self._private: bytes | None = None  # a digest of the step that found no room for the copy of its private part when it was over

    def enter(self, step: int, timeout: float) -> None:
        """The step begins."""
        self._rank.step_enter(step, timeout)

    def exit(self, step: int, *, updated: bool) -> None:
        """The step is over: its private part is copied, or known by its digest, and what is in its place is good to copy from now on."""
        self._alarm.exiting(step)
        self._staging.mark()
        copied = self._rank.step_exit(step, updated=updated, good=not self._staging.on_device, staged=not self._staging)
        self._private = None if copied else self._digest()

    def forget(self) -> None:
        """The private part was written again: it is no longer that of the step's end."""
        self._private = None

    def bring(self, step: int) -> None:
        """Brings an armed step to the stages, on the worker's thread, with the rank's stage lock held."""
        if step > self._staging.step:
            try:
                self._to_stages(step)
            except Mismatch:
                raise
            except Error:  # frozen meanwhile: the capture is not to be
                pass

    def settle(self, step: int) -> str:
        """Brings the live step to the stages, now. It returns nothing, or why it can't be; the daemon copies nothing of this rank then."""
        with self._rank.stage_lock:
            if not self._staging or self._staging.step == step:
                return ""
            try:
                self._staging.mark()
                self._to_stages(step)
            except Mismatch:
                raise
            except (RuntimeError, Error) as err:  # the device is gone: what it held can't be vouched for
                log.warning("replicad: the state of step %d can't be read from the device: %s", step, err)
                self._rank.freeze_good()
                return str(err)
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

    def _to_stages(self, step: int) -> None:
        """The step that has ended, which may be copied then."""
        self._staging.window(step)
        self._alarm.staged(step)
        if self._staging.on_device:
            self._rank.set_good(step)
        self._rank.staged(step)
