"""A ``torch.distributed.Store`` that the daemons serve, so that no rank's death takes the rendezvous along; and process groups
made over it, fresh for each epoch.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .errors import Error, Fenced, Timeout
from .rank import Gathering, Rank

log = logging.getLogger("replicad")

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Store", "connections", "cut", "init_process_group", "meet"]

#: As torch's own stores.
DEFAULT_TIMEOUT = timedelta(seconds=300)


#: TCP connections of the communicators of this epoch: descriptor and inode, since a descriptor's number is used again.
_connections: set[tuple[int, int]] = set()


@contextmanager
def connections() -> Iterator[None]:
    """Around what makes communicators (``new_group``, a device mesh): the TCP connections that are opened inside are theirs, and
    :func:`cut` ends them. :func:`init_process_group` does this by itself."""
    before = _tcp()
    try:
        yield
    finally:
        _connections.update(_tcp() - before)


def cut() -> None:
    """Ends the connections of this epoch's communicators. A thread that waits in a Gloo collective comes back with an error at once,
    also where the peer that it waits for is silent: neither ``abort`` nor ``destroy_process_group`` of Gloo frees it."""
    for fd, _ in _connections & _tcp():
        try:
            with socket.socket(fileno=os.dup(fd)) as s:
                if not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # Gloo ends the process when its listener fails
                    s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already
    _connections.clear()


_libc = ctypes.CDLL(None)
#: Linux's number for an option of getsockopt that Python has no name for: a socket's address family.
_SO_DOMAIN = 39


def _tcp() -> set[tuple[int, int]]:
    """Every TCP socket of this process. It opens none itself: it runs where a restart may be raised at any point, and would leave a
    duplicate of somebody's socket behind. (The kernel's list, /proc/net/tcp, takes it 5 ms to write.)"""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            of, fd = os.readlink(f"/proc/self/fd/{name}"), int(name)
            if of.startswith("socket:[") and _option(fd, socket.SO_TYPE) == socket.SOCK_STREAM and _option(fd, _SO_DOMAIN) in (socket.AF_INET, socket.AF_INET6):
                found.add((fd, int(of[8:-1])))
    return found


def _option(fd: int, name: int) -> int:
    """A socket's option; -1 where it has none."""
    value, size = ctypes.c_int(-1), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    return value.value if _libc.getsockopt(fd, socket.SOL_SOCKET, name, ctypes.byref(value), ctypes.byref(size)) == 0 else -1


class Store(dist.Store):  # type: ignore[name-defined, misc]
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

    Each process draws a number, writes it under its rank, reads all of them, and comes to a barrier that is named after them all.
    A process that dies before the barrier is replaced by one that draws another number, which the others read when they look
    again. One that dies after it and before it has attached is nobody's fault to record: its successor draws a higher number,
    which those who wait for their orders notice (:func:`scattered`), so that all meet again.

    Of two processes of a rank (slow to start, it was started elsewhere too) the later one meets the others; were both to write their numbers in
    turn, some would meet the one and some the other. The earlier draws again after YIELD looks, as the later one may be dead. If the earlier
    one has met them all and attaches, the epoch is planned for a gathering that those have left who saw the later one come. The others would
    wait for them: they close that epoch.
    """
    end, epoch, drawn, me, yielded = time.monotonic() + timeout, 0, 0, 0, 0
    mine = f"meet/{rank.number}"
    left, rank.met = rank.met, None
    while True:
        try:
            epoch = rank.scope()
            if epoch != drawn or yielded == YIELD:
                drawn, me, yielded = epoch, rank.kv_add(ARRIVALS, 1), 0
            if rank.kv_check(mine) and int(rank.kv_get(mine, LOOK)) > me:
                yielded += 1
                rank.kv_get(f"{mine}/yields", LOOK)  # which nobody sets
            rank.kv_set(mine, b"%d" % me)
            numbers = [int(rank.kv_get(f"meet/{r}", LOOK)) for r in range(rank.world)]
            if numbers[rank.number] != me:
                continue  # another process of the rank wrote at the same time: it is met, or this one, and not both
            log.debug("replicad: rank %d meets %s for epoch %d", rank.number, numbers, epoch)
            name = hashlib.sha256(repr((epoch, numbers)).encode()).hexdigest()[:16]
            rank.barrier(f"meet/{name}", rank.world, LOOK)
            rank.met = Gathering(epoch, max(numbers))
            return name, epoch
        except (Fenced, Timeout) as err:
            log.debug("replicad: rank %d: %s", rank.number, err)
            if left is not None and left.epoch == epoch == rank.ordered:
                with contextlib.suppress(Error):  # else at the next look
                    rank.fail(f"epoch {epoch} was planned for a gathering that rank {rank.number} had left, since one more process had come to it: all ranks meet again")
            if time.monotonic() >= end:
                raise Timeout(f"not all {rank.world} ranks came together within {timeout} s: {err}") from None


def scattered(rank: Rank) -> bool:
    """Whether all ranks must meet again, asked before the rank's order has come: a process has come to meet the others after the
    gathering that this one is of, in the place of one that died before it had attached; or the epoch that they met for is over."""
    try:
        return rank.met is not None and int(rank.kv_get(ARRIVALS, LOOK)) > rank.met.number
    except Fenced:
        return True
    except Timeout:
        return False


#: Counts those who came to meet for an epoch.
ARRIVALS = "meet/arrivals"
#: sys.excepthook as it was before torch made it say the rank, and after: each group would put one more word before every line of a
#: traceback, and keep one more function for ever.
_excepthooks: tuple[Callable[..., object], Callable[..., object]] | None = None
#: How long a gathering is waited for before the numbers are read again, in seconds.
LOOK = 2.0
#: How many looks a process leaves the meeting to a later one of its rank.
YIELD = 5


def _forget() -> None:
    """Clears what torch has on record of groups, as ``destroy_process_group`` does where there is a default one. A restart may be raised at any
    point of making that: torch then says that there is none, and counts the next one as the second. Groups meet under that number
    in the store, so the ranks on which it was finished would wait for this one for ever."""
    world: Any = dist.distributed_c10d._world
    for record in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state", "pg_flight_recorder_hooks"):
        if (held := getattr(world, record, None)) is not None:
            held.clear()
    torch._C._distributed_c10d._unregister_all_process_groups()
    world.group_count = 0


def init_process_group(over: Session | Rank, backend: str = "gloo", **options: Any) -> None:
    """``torch.distributed.init_process_group`` over the daemons' store. A group of an earlier epoch is destroyed first.

    After ``session.resume()`` the group is of the session's epoch. Before it (with what :func:`replicad.connect` returned,
    where the model is sharded before its state can be registered, or in a block that is run again) all ranks meet for the
    epoch that is to come.
    """
    global _excepthooks
    rank = over if isinstance(over, Rank) else over.rank
    if dist.is_initialized():
        dist.destroy_process_group()
    _forget()
    if _excepthooks is not None and sys.excepthook is _excepthooks[1]:
        sys.excepthook = _excepthooks[0]
    rank.drop()
    joined = None if isinstance(over, Rank) or not over.resumed else over.order
    if joined is not None:
        prefix, what = f"pg/{joined.epoch}", f"epoch {joined.epoch}"
    else:
        name, epoch = meet(rank)
        prefix, what = f"pg/{name}", f"the coming epoch {epoch}"
    plain = sys.excepthook
    try:
        with connections():
            dist.init_process_group(backend, store=Store(rank, prefix), rank=rank.number, world_size=rank.world, **options)
    except (Error, RuntimeError) as err:
        if joined is not None and rank.fenced:
            raise Fenced(f"while the process group of {what} was made: {err}") from err
        raise
    _excepthooks = plain, sys.excepthook
