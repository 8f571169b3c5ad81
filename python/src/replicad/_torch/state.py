"""What a PyTorch training state is made of: tensors that stay where they are, and small values in capsules.

Tensors are registered by address and name, never copied by Python and never pickled (:mod:`replicad._torch.tensors`). What is not a tensor of
fixed address (hyperparameters, schedulers, scalers, samplers, generators, user objects) is packed into capsules: one of what all ranks of
a replica group have in common, one of what is a rank's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from .._core import capsule
from .._core.region import Region
from ..errors import Unsupported
from .optimizers import materialise, optimizer_leaves, optimizer_values, set_optimizer_values
from .tensors import Leaf, leaves, regions
from .wrappers import clean, flat_parameters

__all__ = ["Capsule", "Full", "Leaf", "clean", "materialise", "model_leaves", "optimizer_leaves", "optimizer_values", "regions", "set_optimizer_values"]

#: A capsule's room, as a multiple of what it holds first, and at least this many bytes.
SLACK, LEAST = 4, 16 << 10


def model_leaves(name: str, model: torch.nn.Module, shared_buffers: Callable[[str], bool], window: Collection[str] = ()) -> Iterator[Leaf]:
    """Parameters (frozen where they ask for no gradient and are not in ``window``; the shards of FSDP1's flat parameters in the place of what they are made
    of) and persistent buffers. A buffer is a rank's own unless
    ``shared_buffers`` says that it is equal on every rank of the group: BatchNorm's statistics are not, the count of an average of weights is."""
    flat: set[int] = set()
    for key, wrapper, ids in flat_parameters(model):
        flat |= ids
        p = wrapper._handle.flat_param  # its memory is switched to the whole one during forward and backward; the shard is a tensor of its own
        yield from leaves(f"{name}.{key}", p._local_shard, "window" if p.requires_grad else "never")
    for key, p in model.named_parameters():
        if id(p) not in flat:
            full = f"{name}.{clean(model, key)}"
            yield from leaves(full, p, "window" if p.requires_grad or full in window else "never")
    for prefix, module in model.named_modules():
        for key, b in module.named_buffers(recurse=False):
            if b is None or key in module._non_persistent_buffers_set:
                continue
            full = clean(model, f"{prefix}.{key}" if prefix else key)
            shared = shared_buffers(f"{name}.{full}") or isinstance(module, torch.nn.SyncBatchNorm) or (isinstance(module, AveragedModel) and key == "n_averaged")
            yield from leaves(f"{name}.{full}", b, "any", private=not shared)


class Full(Unsupported):
    """A capsule has no room for what it is to hold."""


class Capsule:
    """A region that holds a tree of small values. Its room is fixed when it is made."""

    def __init__(self, name: str, private: bool, changes: str, read: Callable[..., Any], more: int = 0, room: int = 0, reserve: int = 0, taken: Callable[[], int] = int) -> None:
        """``more`` bytes are what is not there yet may take at most; ``room`` is that of the job's, where it has grown. ``reserve`` bytes are for what never takes more, and takes
        so many now (``taken``)."""
        self.name, self.read = name, read
        first = capsule.pack(read(), name)
        self.reserve, self._taken = reserve, taken
        # A power of two, as another process may have a few bytes more or less when it begins (a number that it draws), and must have the same room.
        self.room = room or (1 << (max(LEAST, SLACK * (len(first) + 8)) - 1).bit_length()) + more + reserve
        self.buffer = (ctypes.c_uint8 * self.room)()
        self._bytes = memoryview(self.buffer).cast("B")  # written to without a call of ctypes', at which another thread may take the interpreter
        self.region = Region(name=name, address=ctypes.addressof(self.buffer), nbytes=self.room, shape=(self.room,), private=private, changes=changes, keep=self.buffer)
        self.used = 0
        self.put(first)

    def write(self, *how: Any) -> Any:
        """Packs what is true now, and returns it. ``how`` is for who reads it."""
        now = self.read(*how)
        self.put(capsule.pack(now, self.name))
        return now

    @property
    def larger(self) -> int:
        """The room that it should have by now: another one where what it holds, or had no room for, takes more than half of it."""
        wanted = self._wanted - min(self.reserve, self._taken())
        return max(self.room, (1 << (4 * wanted - 1).bit_length()) + self.reserve) if wanted > (self.room - self.reserve) // 2 else self.room

    def changed(self) -> Any | None:
        """What is true now, if that is not what was written last, in the form in which :meth:`value` gives that."""
        now = capsule.pack(self.read(), self.name)
        return None if now == self._bytes[8 : self.used] else capsule.unpack(now)

    def put(self, b: bytes) -> None:
        """Has what is packed already."""
        self._wanted = len(b) + 8
        if self._wanted > self.room:
            raise Full(
                f"{self._largest()} of the {len(b)} that small state has now; the session made room for {self.room - 8} ({SLACK} times what it had then, {LEAST} at least): "
                "keep what grows (histories, logs) out of it, or make the session when it has its full size"
            )
        end = len(b) + 8
        self._bytes[:8], self._bytes[8:end] = len(b).to_bytes(8, "little"), b
        if self.used > end:  # equal states must have equal bytes
            self._bytes[end : self.used] = bytes(self.used - end)
        self.used = end

    def _largest(self) -> str:
        """What takes most of it, by name."""
        parts = {f"{k}.{j}" if j else k: x for k, v in self.read().items() for j, x in (v.items() if isinstance(v, dict) else [("", v)])}
        sizes = {k: len(capsule.pack(x, self.name)) for k, x in parts.items()}
        most = max(sizes, key=lambda k: sizes[k])
        return f"{most}: {sizes[most]} bytes"

    def value(self) -> Any:
        """Unpacks what was written or loaded."""
        raw = self._bytes
        n = min(int.from_bytes(raw[:8], "little"), self.room - 8)
        self.used = n + 8
        return capsule.unpack(raw[8 : 8 + n])
