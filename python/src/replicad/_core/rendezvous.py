"""What ranks tell each other through the daemons: keys, values and barriers of one epoch."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass

from . import native as n
from .handle import Handle

__all__ = ["Gathering", "Rendezvous"]


@dataclass(frozen=True)
class Gathering:
    """All ranks have met for an epoch before it was planned. ``last`` is the token of the latest rank."""

    epoch: int
    last: bytes


class Rendezvous(Handle):
    """The rendezvous of the epoch that ``join`` named last, or :meth:`scope` since. Any thread may ask."""

    def scope(self, timeout: float | None = None) -> int:
        """Makes the epoch to come the one whose rendezvous is asked, until the next :meth:`join`, and returns it. New
        processes meet in it before :meth:`attach`, and after a :class:`Fenced` the others meet them. :class:`Fenced` from the
        rendezvous then means that it was closed before it was opened: call this again."""
        epoch = c.c_uint64()
        self._wait("scope", lambda ns: self._lib.rp_scope(self._h, c.byref(epoch), ns, c.byref(self._text)), timeout)
        return epoch.value

    def kv_set(self, key: str, value: bytes, timeout: float | None = None) -> None:
        """Sets a key of the epoch's rendezvous; at most 32 KiB."""
        self._write(f"set {key!r}", lambda ns: self._lib.rp_kv_set(self._h, key.encode(), value, len(value), ns, c.byref(self._text)), timeout)

    def kv_add(self, key: str, delta: int, timeout: float | None = None) -> int:
        """Adds to a decimal number (no key: to 0) and returns the sum. It counts once, whatever becomes of daemon and leader."""
        total = c.c_int64()
        self._write(f"add to {key!r}", lambda ns: self._lib.rp_kv_add(self._h, key.encode(), delta, c.byref(total), ns, c.byref(self._text)), timeout)
        return total.value

    def kv_compare_set(self, key: str, expected: bytes, desired: bytes, timeout: float | None = None) -> bytes:
        """Sets a key to ``desired`` if it holds ``expected`` (no key: if that is empty) and returns what it holds then. Both
        values together have at most 32 KiB."""
        room, size = c.create_string_buffer(n.MAX_VALUE), c.c_size_t()

        def call(ns: int) -> int:
            size.value = n.MAX_VALUE
            return int(self._lib.rp_kv_compare_set(self._h, key.encode(), expected, len(expected), desired, len(desired), room, c.byref(size), ns, c.byref(self._text)))

        self._write(f"compare and set {key!r}", call, timeout)
        return room.raw[: size.value]

    def kv_delete(self, key: str, timeout: float | None = None) -> bool:
        """Removes a key of the epoch's rendezvous and tells whether it was there."""
        deleted = c.c_int()
        self._write(f"delete {key!r}", lambda ns: self._lib.rp_kv_delete(self._h, key.encode(), c.byref(deleted), ns, c.byref(self._text)), timeout)
        return bool(deleted.value)

    def kv_check(self, key: str, timeout: float | None = None) -> bool:
        """Tells whether a key of the epoch's rendezvous is set."""
        there = True

        def call(ns: int) -> int:
            nonlocal there
            code = int(self._lib.rp_kv_check(self._h, key.encode(), ns, c.byref(self._text)))
            there = code != n.EAGAIN
            return code if there else n.OK  # "not set" is an answer

        self._wait(f"check {key!r}", call, timeout)
        return there

    def kv_get(self, key: str, timeout: float | None = None) -> bytes:
        """Waits for a key of the epoch's rendezvous."""
        room, size = c.create_string_buffer(n.MAX_VALUE), c.c_size_t()

        def call(ns: int) -> int:
            size.value = n.MAX_VALUE
            return int(self._lib.rp_kv_get(self._h, key.encode(), room, c.byref(size), ns, c.byref(self._text)))

        self._wait(f"get {key!r}", call, timeout)
        return room.raw[: size.value]

    def barrier(self, name: str, members: int, timeout: float | None = None) -> None:
        """Waits until that many ranks came to the barrier in this epoch."""
        self._wait(f"barrier {name!r}", lambda ns: self._lib.rp_barrier(self._h, name.encode(), members, ns, c.byref(self._text)), timeout)
