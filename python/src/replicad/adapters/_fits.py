"""Several trainings in one program: a sweep, or a second stage. Each is a fit of the same job, one after the other, and steps count on.

When the first fit is over its session stays (:mod:`replicad._core.behind`). The next one takes the session over: the job keeps other objects from there on, by an epoch of its
own, as where it grows. The job's recipe says how many fits are over, and what each rank's trainer had in the end: its counters and metrics. A process that comes again goes
through these fits at once with that, and resumes in the one that is under way. Of a fit that is over nothing keeps the weights: to use them in such a process is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from .._core import capsule, connection
from .._torch import unwind
from .._torch.grown import Grown
from ..errors import Mismatch, Refused, SessionState
from ..session import Session, current

__all__ = ["Passed", "ends", "over", "stays", "takes_over"]

log = logging.getLogger("replicad")

#: How many fits have begun in this process, and what the trainer of the one before had in the end.
_begun = 0
_last: Mapping[str, Any] = {}


def _ended() -> list[list[Any]]:
    """What the ranks had at the end of each fit that is over, as the job says."""
    if (session := current()) is not None:
        return session.parts.objects.grown.fits
    return Grown.unpack(connection.connected().recipe()).fits


def over() -> Mapping[str, Any] | None:
    """A fit begins in this process. What this rank's trainer had at its end, where it is over; None: it is to be trained."""
    global _begun
    ended, at, _begun = _ended(), _begun, _begun + 1
    if at >= len(ended):
        return None
    log.warning(
        "replicad: fit %d of this program is over, and this process goes through it at once: metrics and counters are as they were, its weights are in no copy. To use them is an "
        "error (a test, a save): load a checkpoint of the fit, or leave that out where keep.passed is true",
        at + 1,
    )
    return dict(ended[at][connection.connected().number])


class Passed:
    """A module of a fit that is over: its weights are not what the fit has ended with, and to compute with them or to save them is an error. ``trained`` ends that."""

    def __init__(self, model: torch.nn.Module) -> None:
        any_model: Any = model
        self._hooks: list[Any] = [model.register_forward_pre_hook(self._used), any_model.register_state_dict_pre_hook(self._used)]

    def _used(self, model: torch.nn.Module, *_: Any) -> None:
        # Before this process has its rank no recovery counts it, and the next process would only meet it again: the job is kept for the program once it is mended.
        kind = Mismatch if current() is None else SessionState
        raise kind(
            f"{type(model).__name__}: the fit of this module was over when this process began, and the weights that it has ended with are in no copy: what is computed with these, "
            "or saved, would be of others. Skip it where keep.passed is true, or load a checkpoint of the fit first and call keep.passed.trained()"
        )

    def trained(self) -> None:
        """The module has weights that are right."""
        while self._hooks:
            self._hooks.pop().remove()


def ends(state: Mapping[str, Any]) -> None:
    """A fit is over, and its trainer has this: plain values, of which a process that comes again has need."""
    global _last
    _last = dict(state)


def stays() -> Session | None:
    """The session of a fit that is over, which the next one takes over."""
    session = current()
    return session if session is not None and session.life.behind else None


def takes_over(session: Session, given: Mapping[str, Any]) -> None:
    """Has the job keep ``given``, the objects of a fit that begins, in the place of those of the fit before, on all ranks. The beginning of a fit counts as a step."""
    if unwind.blocks:
        raise SessionState("a second fit in a block of replicad.inprocess, which has one: put each fit into a program of its own")
    ended = [*_ended(), _of_all(session, _last)]
    try:
        session.succeed(given, ended)
    except Refused as err:
        raise SessionState(f"fit {len(ended) + 1} can't begin in this job: {err}. Put it into a program of its own, with another --job") from None
    if session.rank.number == 0:
        log.warning(
            "replicad: fit %d of this program begins at step %d, in epoch %d. A process that comes again goes through those before at once, without their weights",
            len(ended) + 1, session.at, session.order.epoch,
        )  # fmt: skip


def _of_all(session: Session, ended: Mapping[str, Any]) -> list[Any]:
    """What the trainers of all ranks had, which the job keeps in one place."""
    rank, of = session.rank, f"fits/{len(_ended())}"
    rank.kv_set(f"{of}/{rank.number}", capsule.pack(dict(ended), "the end of a fit"))
    return [capsule.unpack(rank.kv_get(f"{of}/{r}")) for r in range(rank.world)]
