"""A ``torch.distributed.Store`` that the daemons serve, so that no rank's death takes the rendezvous along; and process groups
made over it, fresh for each epoch. It is behind ``env://`` in a process that ``replicad run`` started (:func:`rendezvous`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ._core import connection, latest
from ._core.gathering import LOOK, meet, scattered
from ._core.latest import Session
from ._core.rank import Rank
from .errors import Again, Error, Fenced, Gone, RegroupNeeded, Timeout

log = logging.getLogger("replicad")

__all__ = ["Store", "connections", "cut", "destroy_process_group", "init_process_group"]

#: As torch's own stores.
DEFAULT_TIMEOUT = timedelta(seconds=300)


#: TCP connections of the communicators of this epoch: descriptor and inode, since a descriptor's number is used again.
_connections: set[tuple[int, int]] = set()


@contextmanager
def connections() -> Iterator[None]:
    """Around what makes communicators (``new_group``, a device mesh): the TCP connections that are opened inside are theirs, and
    :func:`cut` ends them. :func:`init_process_group` does this by itself."""
    if getattr(_noting, "here", False):
        yield
        return
    before, _noting.here = _tcp(), True
    try:
        with _Attendant(_meeting() if _meeting else None):
            yield
    finally:
        _noting.here = False
        _connections.update(_tcp() - before)


#: Whether a thread is inside of :func:`connections`.
_noting = threading.local()


def _note_all_groups() -> None:
    """Has the connections noted of every group that torch makes, whoever asks for it: the program is not to be changed for that."""
    c10d: Any = dist.distributed_c10d
    make = getattr(c10d, _MAKES, None)
    if make is None or getattr(make, "noted", False):
        return

    @functools.wraps(make)
    def noted(*args: Any, **kwargs: Any) -> Any:
        with connections():
            return make(*args, **kwargs)

    noted.noted = True  # type: ignore[attr-defined]
    setattr(c10d, _MAKES, noted)


#: What of torch makes a group, the default one, ``new_group``'s and a device mesh's; a torch that has no such function has only the first noted.
_MAKES = "_new_process_group_helper"


#: The rank that groups are made for.
_meeting: weakref.ref[Rank] | None = None
#: How long what makes groups may go on once the ranks must meet again, in seconds.
GRACE = 30.0


class _Attendant(threading.Thread):
    """Beside a thread that makes groups for a gathering. A peer that died between the meeting and the groups is waited for as long as torch
    allows, half an hour. The store says that all meet again (:meth:`Store.get`); a thread that waits inside of Gloo comes back from
    nothing, so its process ends, and another one takes its arena."""

    def __init__(self, rank: Rank | None) -> None:
        super().__init__(name="replicad-attendant", daemon=True)
        self._rank, self._made = rank, threading.Event()

    def __enter__(self) -> None:
        if self._rank is not None and self._rank.met is not None:
            self.start()

    def __exit__(self, *_: object) -> None:
        self._made.set()

    def run(self) -> None:
        """Until the groups are made."""
        assert self._rank is not None
        with contextlib.suppress(Error):  # the rank was closed
            while not self._made.wait(LOOK):
                if scattered(self._rank) and not self._made.wait(GRACE):
                    log.error("replicad: a process group waits for a rank that died while it was made, and can't be ended: this process ends")
                    os.kill(os.getpid(), signal.SIGKILL)


def cut() -> None:
    """Ends the connections of this epoch's communicators. A thread that waits in a Gloo collective comes back with an error at once,
    also where the peer that it waits for is silent: neither ``abort`` nor ``destroy_process_group`` of Gloo frees it."""
    for fd, _ in _connections & _tcp():
        if _option(fd, socket.SO_ACCEPTCONN) == 0:  # Gloo ends the process when its listener fails
            _libc.shutdown(fd, socket.SHUT_RDWR)  # no duplicate to close: the number may be of something else by now, or a restart be raised here
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
        """Waits for a key, up to the store's timeout. :class:`replicad.errors.RegroupNeeded` where who was to set it is no more."""
        return self._await(key, self._timeout.total_seconds())

    def _await(self, key: str, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            try:
                return self._rank.kv_get(self._key(key), max(0.0, min(LOOK, left)))
            except (Timeout, Gone, Again) as err:
                if left <= LOOK:
                    raise dist.DistStoreError(
                        f"wait timeout after {seconds} s for key {key!r}: {err}. `replicad status` names a rank that is missing; init_process_group(timeout=) sets the time"
                    ) from None
            if scattered(self._rank):
                raise RegroupNeeded(
                    f"a rank's process died before all process groups were made, and key {key!r} is missing. All ranks gather again: let this end the process, or the block"
                )

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
            self._await(key, seconds)

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


#: sys.excepthook as it was before torch made it say the rank, and after: each group would put one more word before every line of a
#: traceback, and keep one more function for ever.
_excepthooks: tuple[Callable[..., object], Callable[..., object]] | None = None


def forget() -> None:
    """Ends what there is of groups of which the default one was never whole."""
    cut()
    _forget()


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
    epoch that is to come. :class:`Fenced` when a rank is lost meanwhile. For a session that is off it is torch's own.
    """
    if not isinstance(over, Rank) and not over.enabled:
        alone: dict[str, Any] = {} if over.order.world > 1 else {"store": torch._C._distributed_c10d.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group(backend, **alone | options)
        return
    rank = over if isinstance(over, Rank) else over.rank
    if dist.is_initialized():
        destroy_process_group()
    _forget()
    with _default_group_of(rank):
        if isinstance(over, Rank) or not over.resumed:
            while not _meet_and_make(rank, backend, options):
                pass
            return
        try:
            _make(rank, f"pg/{over.order.epoch}", backend, options)
        except (Error, RuntimeError) as err:
            if rank.fenced:
                raise Fenced(f"epoch {over.order.epoch} was closed while its process group was made ({err}): call session.resume() next") from err
            raise


@contextmanager
def _default_group_of(rank: Rank) -> Iterator[None]:
    """Around what makes the default group: torch's hook for exceptions is put aside, that would else lie over that of the group before."""
    global _excepthooks, _meeting
    if _excepthooks is not None and sys.excepthook is _excepthooks[1]:
        sys.excepthook = _excepthooks[0]
    rank.drop()
    plain = sys.excepthook
    _meeting = weakref.ref(rank)
    yield
    _excepthooks = plain, sys.excepthook


def rendezvous(timeout: timedelta = DEFAULT_TIMEOUT, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Torch's rendezvous of ``env://``, for the program's own ``torch.distributed.init_process_group``. As with :func:`init_process_group`, all ranks
    meet for the epoch that is to come unless a session here has resumed: then it is of the session's epoch.

    Torch holds this generator for as long as it makes the group, and ends it then.
    """
    _note_all_groups()
    session = latest.session
    if session is not None and session.rank.closed:
        session = None
    rank = connection.connected() if session is None else session.rank
    name = f"pg/{session.order.epoch}" if session is not None and session.resumed else f"pg/{meet(rank, timeout.total_seconds())[0]}"
    made = False
    try:
        with _default_group_of(rank):
            try:
                yield Store(rank, name, timeout), rank.number, rank.world
            except GeneratorExit:
                made = dist.is_initialized()
                if not made:
                    raise
    finally:
        if not made:  # another try begins as the first one did, with this rank as with all
            forget()


#: Before torch 2.8 the groups of the epoch before.
_ended: list[Any] = []


def destroy_process_group() -> None:
    """``torch.distributed.destroy_process_group`` of all groups, which before torch 2.8 (its pull request 154976) hangs now and then: a Gloo group ends
    with the GIL held, and waits for a thread that needs the GIL to free the tensors of the last operation. So groups are let go
    when the next ones end, as that thread has long been idle then."""
    if torch.__version__ < "2.8":
        _ended[:] = list(dist.distributed_c10d._world.pg_map)
    dist.destroy_process_group()


def _make(rank: Rank, prefix: str, backend: str, options: dict[str, Any]) -> None:
    with connections():
        dist.init_process_group(backend, store=Store(rank, prefix), rank=rank.number, world_size=rank.world, **options)


def _meet_and_make(rank: Rank, backend: str, options: dict[str, Any]) -> bool:
    """Has all ranks meet and makes their group; False where one of them died before it was made, or the epoch is closed."""
    name, epoch = meet(rank)
    try:
        _make(rank, f"pg/{name}", backend, options)
        return True
    except Fenced as err:
        why: BaseException = err
    except (Error, RuntimeError) as err:
        if not scattered(rank):
            raise
        why = err
    log.info("replicad: rank %d meets the others again, for not all that met for epoch %d are left: %s", rank.number, epoch, why)
    cut()
    if dist.is_initialized():
        destroy_process_group()
    _forget()
    rank.drop()
    return False
