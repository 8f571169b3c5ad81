"""What a program does behind the training of a trainer: it saves the model, tests it, predicts. That belongs to the job as well.

A trainer's adapter can't know what follows. So the session stays when the last step is committed: its rank makes no more steps, is not taken for a hang, and leaves when its
program has ended. One that is lost before that is started again as any rank is, goes through the training at once, and does the rest.
"""

from __future__ import annotations

import logging
import os
import sys

from ..errors import Fenced, Stopped
from .latest import Session

__all__ = ["LOST", "MOST", "ends", "stays"]

log = logging.getLogger("replicad")

#: For so many seconds a rank may do what follows: a day, the longest pause that there is.
MOST = 86400.0
#: The exit status of a program that came to its end when another rank had been lost: a new process takes its place, torchrun's agents too have to know.
LOST = 1


def stays(session: Session) -> None:
    """The last step is over. The session's rank stays in its job until its program ends, or calls ``session.leave()``."""
    if not session.enabled:
        session.leave()
        return
    session.commit()
    session.life.behind = MOST
    session.rank.pause(MOST)


def ends(session: Session) -> None:
    """The program of a session that has stayed is over, its exit handlers too."""
    try:
        session.leave()
    except Stopped:
        return
    except Fenced:
        log.warning(
            "replicad: another rank was lost before it had done what follows step %d. This program has come to its end, and is started again: it goes through the training at once "
            "and does what follows again",
            session.at,
        )
    except Exception as err:
        log.error("replicad: leaving the job at the program's end failed, and its rank is started again: %s: %s", type(err).__name__, err)
    else:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(LOST)  # an exit handler can't set the status
