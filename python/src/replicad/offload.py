"""Letting go of memory between two steps: staged tensors live in their stages meanwhile."""

from __future__ import annotations

import torch

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
        spans: dict[int, tuple[torch.UntypedStorage, list[tuple[int, int]]]] = {}
        for leaf in staging.live:
            t = leaf.local
            storage = t.untyped_storage()
            start = int(t.storage_offset()) * t.element_size()
            spans.setdefault(storage.data_ptr(), (storage, []))[1].append((start, start + t.numel() * t.element_size()))
        self._released: list[tuple[torch.UntypedStorage, int, torch.UntypedStorage | None]] = []
        for storage, parts in spans.values():
            if storage.nbytes() and storage.resizable():
                # What lies beside the registered tensors has no stage.
                rest = None if _covered(parts) == storage.nbytes() else torch.UntypedStorage(storage.nbytes()).copy_(storage)  # type: ignore[no-untyped-call]
                self._released.append((storage, storage.nbytes(), rest))
                storage.resize_(0)
        self.nbytes = sum(n for _, n, _ in self._released)  #: given back
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # else the allocator keeps it from other processes

    def back(self) -> None:
        """Takes the memory again, and the values into it; the addresses may be others."""
        for storage, nbytes, rest in self._released:
            storage.resize_(nbytes)
            if rest is not None:
                storage.copy_(rest)
        self._released.clear()
        self._staging.back(self.step)


def _covered(parts: list[tuple[int, int]]) -> int:
    """How many bytes these spans cover together."""
    total = end = 0
    for a, b in sorted(parts):
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total
