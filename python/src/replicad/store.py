"""A ``torch.distributed.Store`` that the daemons serve, so that no rank's death takes the rendezvous along; and process groups
made over it, fresh for each epoch.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from .errors import Error, Fenced, Timeout
from .rank import Rank

log = logging.getLogger("replicad")

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Store", "init_process_group", "meet"]

#: As torch's own stores.
DEFAULT_TIMEOUT = timedelta(seconds=300)


class Store(dist.Store):
    """Keys of one epoch of the job, under a prefix. Values are at most 32 KiB. Every call raises
    :class:`replicad.Fenced` once the epoch is closed."""

    def __init__(self, rank: Rank, prefix: str = "torch", timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__()
        self._rank, self._prefix, self._timeout = rank, prefix, timeout
        # torch's C++ keeps its half of a store alive, but not this one, and can't call it any more once it is gone.
        rank.keep(self)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def set(self, key: str, value: Any) -> None:
        """Sets a key."""
        self._rank.kv_set(self._key(key), value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """Waits for a key, up to the store's timeout."""
        try:
            return self._rank.kv_get(self._key(key), self._timeout.total_seconds())
        except Timeout as err:
            raise dist.DistStoreError(f"wait timeout after {self._timeout.total_seconds()} s for key {key!r}: {err}") from None

    def add(self, key: str, value: int) -> int:
        """Adds to a counter and returns its new value."""
        return self._rank.kv_add(self._key(key), value)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are set."""
        return all(self._rank.kv_check(self._key(k)) for k in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits for keys."""
        seconds = (timeout or self._timeout).total_seconds()
        for key in keys:
            try:
                self._rank.kv_get(self._key(key), seconds)
            except Timeout as err:
                raise dist.DistStoreError(f"wait timeout after {seconds} s for key {key!r}: {err}") from None

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Sets a key that has the expected value, or is missing where nothing is expected; returns what it has then."""
        return self._rank.kv_compare_set(self._key(key), expected.encode(), desired.encode())

    def delete_key(self, key: str) -> bool:
        """Removes a key; whether it was there."""
        return self._rank.kv_delete(self._key(key))

    def set_timeout(self, timeout: timedelta) -> None:
        """How long get and wait wait from now on."""
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        """How long get and wait wait."""
        return self._timeout

    def clone(self) -> Store:
        """A store of the same keys."""
        return Store(self._rank, self._prefix, self._timeout)


def meet(rank: Rank, timeout: float = 600.0) -> tuple[str, int]:
    """Waits until all ranks of the job are here for the epoch that is to come, before it has been planned: new processes that
    have not attached yet, and survivors of the epoch that was closed. Returns a name that this gathering alone has, and the
    epoch.

    Each process writes a number of its own under its rank, reads all of them, and comes to a barrier that is named after them
    all. A process that dies before the barrier is replaced by one that writes another number, which the others read when they
    look again. One that dies after it is missed by whatever is built on the gathering.
    """
    end, me = time.monotonic() + timeout, uuid.uuid4().hex
    while True:
        try:
            epoch = rank.scope()
            log.debug("replicad: rank %d meets for epoch %d", rank.number, epoch)
            rank.kv_set(f"meet/{rank.number}", me.encode())
            ids = [rank.kv_get(f"meet/{r}", LOOK) for r in range(rank.world)]
            log.debug("replicad: rank %d: numbers %s", rank.number, ids)
            name = hashlib.sha256(b",".join(ids)).hexdigest()[:16]
            rank.barrier(f"meet/{name}", rank.world, LOOK)
            return name, epoch
        except (Fenced, Timeout) as err:
            log.debug("replicad: rank %d: %s", rank.number, err)
            if time.monotonic() >= end:
                raise Timeout(f"not all {rank.world} ranks came together within {timeout} s: {err}") from None


#: How long a gathering is waited for before the numbers are read again, in seconds.
LOOK = 2.0


def init_process_group(over: Session | Rank, backend: str = "gloo", **options: Any) -> None:
    """``torch.distributed.init_process_group`` over the daemons' store. A group of an earlier epoch is destroyed first.

    After ``session.resume()`` the group is of the session's epoch. Before it (with what :func:`replicad.connect` returned,
    where the model is sharded before its state can be registered, or in a block that is run again) all ranks meet for the
    epoch that is to come.
    """
    rank = over if isinstance(over, Rank) else over.rank
    if dist.is_initialized():
        dist.destroy_process_group()
    rank.drop()
    joined = None if isinstance(over, Rank) or not over.resumed else over.order
    if joined is not None:
        prefix, what = f"pg/{joined.epoch}", f"epoch {joined.epoch}"
    else:
        name, epoch = meet(rank)
        prefix, what = f"pg/{name}", f"the coming epoch {epoch}"
    try:
        dist.init_process_group(backend, store=Store(rank, prefix), rank=rank.number, world_size=rank.world, **options)
    except (Error, RuntimeError) as err:
        if joined is not None and rank.fenced:
            raise Fenced(f"while the process group of {what} was made: {err}") from err
        raise
