"""The connection that a process groups over before it has a session."""

from __future__ import annotations

from .rank import Rank

__all__ = ["connected", "opened"]

_opened: Rank | None = None


def opened() -> Rank | None:
    """The connection that groups were made over before there was a session, for the session to go on with."""
    return None if _opened is None or _opened.closed else _opened


def connected() -> Rank:
    """That connection, made now if there is none."""
    global _opened
    if (rank := opened()) is None:
        rank = _opened = Rank.open()
    return rank
