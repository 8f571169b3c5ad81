"""A durable write that a program asks for."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from ..errors import Error, Gone, Refused, Timeout
from . import admin
from .rank import Rank

__all__ = ["save"]

#: So many seconds lie between two looks at the write, and an order may take.
LOOK, ORDER = 0.2, 30.0


def save(rank: Rank, job: UUID, step: int, keep: str, *, call: int, wait: bool, timeout: float | None) -> None:
    """Has a step written that is committed: ``call`` counts the calls of the epoch. Rank 0 orders it and tells the others what came of it, in the
    rendezvous of the epoch. :class:`Refused` on all where the job has nowhere to write, the leader refuses, or the job ends before; :class:`Timeout` after ``timeout`` seconds."""
    end = None if timeout is None else time.monotonic() + timeout
    key = f"replicad.save/{call}"
    if rank.number == 0:
        try:
            _order(rank, job, step, keep, wait, end)
            why = b""
        except Error as err:
            why = f"{type(err).__name__}: {err}".encode()[:1000]
            rank.kv_set(key, why)
            raise
        rank.kv_set(key, why)
        return
    late = None if timeout is None else timeout + ORDER  # rank 0 gives up first, and says why
    if said := rank.kv_get(key, late).decode(errors="replace"):
        raise (Timeout if said.startswith("Timeout: ") else Refused)(f"rank 0 could not have step {step} saved: {said}")


def _order(rank: Rank, job: UUID, step: int, keep: str, wait: bool, end: float | None) -> None:
    is_ = _job(job)
    admin.save(is_["name"], keep, ORDER)
    while wait and is_["durable"]["step"] < step:
        if rank.fenced:
            return  # the rendezvous says so, to all
        error = is_.get("durable_error") or is_.get("durable_pace") or "it is being written"
        if is_["phase"] == "ended":
            raise Refused(f"the job has ended ({is_.get('end_reason', '')}), and step {step} is not on disk: {error}")
        if is_.get("durable_ended"):
            raise Refused(f"step {step} is not on disk, and nothing more is written: {error}")
        if end is not None and time.monotonic() >= end:
            raise Timeout(f"step {step} is not on disk yet: {error}. The daemons go on with it; `replicad status` shows what becomes of it")
        rank.wait_fence(LOOK)
        is_ = _job(job)


def _job(job: UUID) -> dict[str, Any]:
    """What the leader says of the job."""
    found = next((j for j in admin.status()["jobs"] if j["id"] == str(job)), None)
    if found is None:
        raise Gone("the daemon does not know the job any more, and what was saved of it can't be seen: `replicad ckpt ls` of where it writes shows it")
    return found  # type: ignore[no-any-return]
