"""Errors of replicad: one class for each code of the C client, each with the remedy in its text.

:class:`Fenced` and :class:`Stopped` are no faults of the training code. They derive from ``BaseException``, so that a loop
which catches ``Exception`` broadly does not swallow the end of its epoch.
"""

from __future__ import annotations

__all__ = [
    "Again",
    "Canceled",
    "Corrupt",
    "Error",
    "Fenced",
    "Fork",
    "Gone",
    "Invalid",
    "Mismatch",
    "NoMemory",
    "Refused",
    "RegroupNeeded",
    "SessionState",
    "StaleProcessGroup",
    "StaleProgram",
    "Stopped",
    "System",
    "Timeout",
    "Unsupported",
    "Version",
]


class Error(Exception):
    """Base of what replicad reports; ``code`` is the C client's (``RP_E*``), 0 where the package itself refuses."""

    code: int = 0


class Signal(BaseException):
    """Base of what ends an epoch or a rank without being an error of the training code."""

    code: int = 0


class Fenced(Signal):
    """The epoch is closed, because some rank or node was lost: stop, and resume in the next one."""

    code = -1


class RegroupNeeded(Fenced):
    """A process of the gathering died before it was a rank, and another has come: all ranks have to meet again."""


class Stopped(Signal):
    """The job has ended, or another process holds this rank now: exit."""

    code = -13


class Corrupt(Error):
    """Bytes do not hash to what was committed or planned. They were not loaded."""

    code = -2


class Again(Error):
    """Not yet: call again."""

    code = -3


class Timeout(Error):
    """The deadline passed."""

    code = -4


class Gone(Error):
    """No daemon answers. Training may go on; the session looks for it."""

    code = -5


class Fork(Error):
    """A session of another process: children and data-loader workers must not use their parent's."""

    code = -6


class Version(Error):
    """The daemon, the C library and this package are not of one version."""

    code = -7


class Invalid(Error):
    """A bad argument; the text names it."""

    code = -8


class Refused(Error):
    """The daemon refused; the text says why and what to do."""

    code = -9


class NoMemory(Error):
    """Too little memory for the arena that holds the copies."""

    code = -10


class System(Error):
    """A system call failed; the text has its errno."""

    code = -11


class SessionState(Error):
    """A call out of order: a session opened twice, a step nested in a step, a step before resume."""

    code = -12


class StaleProgram(SessionState):
    """What the program holds is of a step that the job goes back over (a parameter group that the step added, say). Running the block again can't help, a new process
    can: it ends the block of :mod:`replicad.inprocess`, and with it the process, which the launcher starts again."""


class StaleProcessGroup(StaleProgram):
    """What the session holds went down with the epoch, a model's process groups say."""


class Canceled(Error):
    """A capture was cancelled, or the live state is no longer known to be good."""

    code = -14


class Unsupported(Error):
    """Registered state holds something that cannot be kept without pickle; the text has its path."""


class Mismatch(Error):
    """The state is of another model or shape than the generation's; the text is the difference by name."""


BY_CODE: dict[int, type[Error] | type[Signal]] = {
    c.code: c for c in (Fenced, Stopped, Corrupt, Again, Timeout, Gone, Fork, Version, Invalid, Refused, NoMemory, System, SessionState, Canceled)
}
