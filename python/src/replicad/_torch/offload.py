"""Letting go of memory between two steps: staged tensors live in their stages meanwhile."""

from __future__ import annotations

import torch

from . import device
from .staging import Staging

__all__ = ["Offload"]


class Offload:
    """The memory of a session's staged tensors, given back to the device (or the host) until :meth:`back`.

    The tensors stay what they are, with empty storages: nothing may read them. Memory that can't be given back (mapped files, memory
    shared with numpy or other processes) stays.
    """

    def __init__(self, staging: Staging) -> None:
        staging.all()
        self._staging, self.step = staging, staging.step
        self.nbytes = 0  #: given back
        self._released: list[tuple[torch.UntypedStorage, int, torch.UntypedStorage | None]] = []

    def release(self) -> None:
        """Gives the memory back. Whatever stops it on the way, :meth:`back` takes again what was given."""
        spans: dict[int, tuple[torch.UntypedStorage, list[tuple[int, int]]]] = {}
        for leaf in self._staging.live:
            t = leaf.local
            storage = t.untyped_storage()
            start = int(t.storage_offset()) * t.element_size()
            spans.setdefault(storage.data_ptr(), (storage, []))[1].append((start, start + t.numel() * t.element_size()))
        for storage, parts in spans.values():
            if nbytes := storage.nbytes() if storage.resizable() else 0:
                # What lies beside the registered tensors has no stage.
                rest = None if _covered(parts) == nbytes else torch.UntypedStorage(nbytes).copy_(storage)  # type: ignore[no-untyped-call]
                self._released.append((storage, nbytes, rest))
                storage.resize_(0)
                self.nbytes += nbytes
        device.drop_cache()  # else the allocator keeps it from other processes

    def back(self) -> None:
        """Takes the memory again, and the values into it; the addresses may be others."""
        while self._released:
            storage, nbytes, rest = self._released[-1]
            storage.resize_(nbytes)
            if rest is not None:
                storage.copy_(rest)
            self._released.pop()  # once it has its memory: what runs out of it here can be tried again
        self._staging.back(self.step)


def _covered(parts: list[tuple[int, int]]) -> int:
    """How many bytes these spans cover together."""
    total = end = 0
    for a, b in sorted(parts):
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total
