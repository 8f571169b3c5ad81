"""What says which samples come next, asked and told without drawing from its generators.

torchdata's ``StatefulDataLoader`` makes an iterator when it is asked for its state before it was iterated, which draws a seed (and starts
its workers). One whose state was loaded draws that seed before it puts its sampler's generator back, and never again: where both have one
generator, every later epoch is shuffled otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["buffered", "counts", "numbers", "ours", "room", "set_state", "state", "tells", "versions"]


def _torchdatas(o: Any) -> bool:
    return any(c.__module__.startswith("torchdata.stateful_dataloader") and c.__name__ == "StatefulDataLoader" for c in type(o).__mro__)


def counts(o: Any) -> bool:
    """Whether it counts what it hands out, whoever iterates it."""
    return _torchdatas(o) or ours(o)


def ours(o: Any) -> bool:
    """Whether it is a loader of this package."""
    return any(c.__module__ == "replicad.data" and c.__name__ == "Loader" for c in type(o).__mro__)


def tells(o: Any) -> bool:
    """Whether it says when it is asked for a batch, so that what follows a step can be told from the next one."""
    return callable(getattr(o, "before_a_batch", None))


def numbers(o: Any) -> bool:
    """Whether it says which batch of which epoch it has handed out."""
    return tells(o) and hasattr(o, "epoch") and hasattr(o, "used") and hasattr(o, "__len__")


def state(o: Any) -> Any:
    """Its state; nothing is drawn and no iterator is made for it."""
    if not _torchdatas(o):
        return o.state_dict()
    now = o.state_dict() if o._iterator is not None else o.next_iter_state or {}  # {} is its own word for: from the beginning
    return {"loader": now, "generator": None if o.generator is None else o.generator.get_state()}


def set_state(o: Any, value: Any) -> None:
    """The inverse of :func:`state`."""
    if not _torchdatas(o):
        o.load_state_dict(value)
        return
    o.load_state_dict(value["loader"])
    if o.generator is None:
        return  # it draws from torch's own, which is put back after this
    if value["loader"]:
        o.state_dict()  # makes the iterator, and with it the draws of a beginning, that comes next anyway
    g = value["generator"]
    o.generator.set_state(g if isinstance(g, torch.Tensor) else torch.as_tensor(g))


def versions(data: Mapping[str, Any]) -> dict[str, str]:
    """What loaders of this package say that they read, by their names."""
    return {name: o.version for name, o in data.items() if ours(o) and o.version is not None}


def buffered(o: Any) -> int:
    """How many samples lie in the shuffle buffers of Hugging Face's ``datasets.IterableDataset``, or of one that a loader reads: its state leaves them out. 0: none, or it is
    no such dataset."""
    dataset = getattr(o, "dataset", o)
    if not any(c.__module__.startswith("datasets.") and c.__name__ == "IterableDataset" for c in type(dataset).__mro__):
        return 0
    n, left, seen = 0, [dataset._ex_iterable], 0  # noqa: SLF001 (the library says nowhere else that it buffers)
    while left and seen < 1024:
        x, seen = left.pop(), seen + 1
        if type(x).__name__ == "BufferShuffledExamplesIterable" and x.buffer_size > 1:
            n += x.buffer_size
        left += [y for y in (getattr(x, "ex_iterable", None), *(getattr(x, "ex_iterables", None) or ())) if y is not None]
    return n


def room(o: Any) -> int:
    """How many bytes its state may take beyond what it has before it was iterated."""
    if tells(o):
        return int(getattr(o, "room", 0))
    return (64 << 10) + (8 << 10) * o.num_workers if _torchdatas(o) and o._iterator is None else 0
