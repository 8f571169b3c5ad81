"""How the tensors of a model lie over the ranks, as torch says it: which ranks hold the same bytes, and where in the whole tensor each
rank's shard is.

Regions know local shapes alone. What they are shards of is kept beside them, as one small frozen region that all ranks of a replica
group have in common, ``replicad.layout``: a generation of another layout, whose shards might have the very same shapes, is refused
with the difference by name.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .._core import capsule
from .._core.region import Region
from ..errors import Corrupt, Mismatch
from .groups import Spread, everywhere, grid, on_mesh
from .objects import Objects
from .optimizers import named, optimizer_tensors, part
from .tensors import short
from .wrappers import clean, flat_parameters

__all__ = ["Layout", "Sharded", "differences", "grouped", "laid", "partition", "sharded"]

VERSION = 1
NAME = "replicad.layout"
#: The least room of the region, in bytes. It is a power of two, so that a small difference is told by the layout's text, not by its size.
LEAST = 16 << 10
#: Of a tensor's whole name, in bytes (format.MaxName).
MAX_NAME = 4096
#: What a tensor has of :func:`partition`.
PARTITION = "_replicad_partition"


@dataclass(frozen=True)
class Sharded:
    """A tensor that a wrapper laid over ranks. ``shape`` is the whole tensor's, ``local`` that of this rank's shard, which begins at
    ``offset`` (None where torch doesn't say); ``placements`` has one word for each dimension of the ``mesh``, whose shape that is."""

    name: str
    spread: Spread
    shape: tuple[int, ...]
    local: tuple[int, ...]
    offset: tuple[int, ...] | None
    placements: tuple[str, ...]
    mesh: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        """What is kept of it: equal on all ranks that hold the same bytes."""
        at = None if self.offset is None else list(self.offset)
        return {"shape": list(self.shape), "local": list(self.local), "offset": at, "placements": list(self.placements), "mesh": list(self.mesh)}


#: How the plain tensors of optimizers lie over the ranks, where a library lays them so and torch knows nothing of it.
_laid: weakref.WeakKeyDictionary[torch.optim.Optimizer, Spread] = weakref.WeakKeyDictionary()


def laid(optimizer: torch.optim.Optimizer, spread: Spread) -> None:
    """An adapter knows which ranks have the same tensors as this one in an optimizer, and in the models beside it."""
    _laid[optimizer] = spread


def sharded(world: int, objects: Objects) -> list[Sharded]:
    """What of models and optimizers is laid over ranks: DTensors, FSDP1's parameters, what a ZeroRedundancyOptimizer keeps, and what an adapter says is. Any other
    tensor is equal on all ranks."""
    out = []
    for model, m in objects.models.items():
        flat: set[int] = set()
        for key, wrapper, ids in flat_parameters(m):
            flat |= ids
            out.append(_flat(world, f"{model}.{key}", wrapper))
        for key, p in m.named_parameters():
            if id(p) not in flat:
                out += _dtensors(world, f"{model}.{clean(m, key)}", p)
    for optimizer, o in objects.optimizers.items():
        if (spread := _laid.get(o)) is not None:
            out.append(Sharded(optimizer, spread, (), (), None, ("by rank",), (len(set(spread)),)))
        inner = part(o)
        if inner is not o:  # each rank has the state of parameters of its own
            ranks = _ranks(o.process_group)
            out.append(Sharded(optimizer, on_mesh(world, ranks, (len(ranks),), (True,)), (), (), None, ("by parameter",), (len(ranks),)))
        for path, t, _ in optimizer_tensors(optimizer, o, objects.names):
            out += _dtensors(world, path, t)
        out += _partitions(world, optimizer, inner, objects.names)
    return [s for s in out if not objects.derived.has(s.name)]


def _dtensors(world: int, name: str, t: torch.Tensor) -> Iterator[Sharded]:
    """The DTensors that a tensor is made of, by the names that :func:`.tensors.leaves` gives them: itself, or attributes of another wrapper."""
    if (s := _dtensor(world, name, t)) is not None:
        yield s
    elif hasattr(type(t), "__tensor_flatten__"):
        for attribute in t.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            yield from _dtensors(world, f"{name}.{attribute}", getattr(t, attribute))


def _dtensor(world: int, name: str, t: torch.Tensor) -> Sharded | None:
    mesh: Any = getattr(t, "device_mesh", None)
    placements: Any = getattr(t, "placements", None)
    if mesh is None or placements is None:
        return None
    local: Any = t._local_tensor  # type: ignore[attr-defined]
    shape, root = tuple(mesh.mesh.shape), _root(mesh)
    spread = on_mesh(
        world,
        mesh.mesh.flatten().tolist(),
        shape,
        [not p.is_replicate() for p in placements],
        None if root is None else (root.mesh.flatten().tolist(), tuple(root.mesh.shape)),
    )
    return Sharded(name, spread, tuple(t.shape), tuple(local.shape), _offset(t, mesh, placements), tuple(map(_word, placements)), shape)


def _word(placement: Any) -> str:
    """A placement in words that do not change with torch's."""
    if placement.is_replicate():
        return "replicate"
    if placement.is_partial():
        return "partial"
    factor: Any = getattr(placement, "split_factor", None)  # of FSDP2 over tensor parallelism: blocks are interleaved
    return f"shard({placement.dim})" if factor is None else f"shard({placement.dim}, every {factor})"


def _offset(t: torch.Tensor, mesh: Any, placements: Any) -> tuple[int, ...] | None:
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as compute

        return tuple(int(n) for n in compute(t.shape, mesh, placements)[1])
    except (ImportError, NotImplementedError, RuntimeError, ValueError):
        return None  # of a partial sum, or of a torch that has another name for it


def _root(mesh: Any) -> Any:
    """The mesh that a mesh is a slice of, by the name that this torch has for it."""
    if (find := getattr(mesh, "_get_root_mesh", None)) is not None:
        return find()
    resources: Any = getattr(sys.modules[type(mesh).__module__], "_mesh_resources", None)
    return resources.get_root_mesh(mesh) if hasattr(resources, "get_root_mesh") else None


def _flat(world: int, name: str, wrapper: Any) -> Sharded:
    """The flat parameter of an FSDP1 wrapper: one dimension, cut into pieces of one size, of which the last are padded."""
    row, how, handle = _ranks(wrapper.process_group), wrapper.sharding_strategy.name, wrapper._handle
    words: tuple[str, ...]
    mesh: tuple[int, ...]
    if how == "NO_SHARD":
        spread, words, mesh = everywhere(world), ("replicate",), (len(row),)
    elif "HYBRID" in how:
        column = _ranks(wrapper._inter_node_pg)
        spread, words, mesh = grid(world, row, column), ("replicate", "flat shard"), (len(column), len(row))
    else:
        spread, words, mesh = on_mesh(world, row, (len(row),), (True,)), ("flat shard",), (len(row),)
    local, whole = tuple(handle.flat_param._sharded_size), tuple(handle.flat_param._unpadded_unsharded_size)
    return Sharded(name, spread, whole, local, (handle.rank * local[0] if handle.uses_sharded_strategy else 0,), words, mesh)


def partition(t: torch.Tensor, ranks: Sequence[int]) -> None:
    """Says of an optimizer's parameter that it is a flat tensor's piece, of which each of the ``ranks`` has one, in their order: for adapters of frameworks that cut tensors by
    themselves, as nothing of torch's says it."""
    setattr(t, PARTITION, tuple(ranks))


def _partitions(world: int, name: str, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[Sharded]:
    """The parameters of which that was said, and what the optimizer has of each of their elements."""
    if not any(hasattr(p, PARTITION) for group in optimizer.param_groups for p in group["params"]):
        return
    for label, p in named(optimizer, names):
        if (ranks := getattr(p, PARTITION, None)) is not None:
            n, at = p.numel(), ranks.index(torch.distributed.get_rank())
            of = [f"{name}.{label}.{key}" for key, t in optimizer.state.get(p, {}).items() if isinstance(t, torch.Tensor) and t.shape == p.shape]
            for path in (label if id(p) in names else f"{name}.{label}", *of):
                yield Sharded(path, on_mesh(world, ranks, (len(ranks),), (True,)), (n * len(ranks),), (n,), (at * n,), ("flat shard",), (len(ranks),))


def _ranks(group: Any) -> list[int]:
    return list(torch.distributed.get_process_group_ranks(group))


def grouped(objects: Objects, then: Callable[[str], str | None] = str) -> dict[str, list[str]]:
    """Which parameters the groups of each optimizer have: a digest of their names in each. ``then`` says what they were called; None: it was not there."""
    out = {}
    for name, o in objects.optimizers.items():
        named = [[then(objects.names.get(id(p), f"param.{i}")) for p in group["params"]] for i, group in enumerate(o.param_groups)]
        out[name] = [hashlib.sha256("\n".join(sorted(n for n in names if n is not None)).encode(errors="replace")).hexdigest()[:16] for names in named]
    return out


# -- what is kept -------------------------------------------------------------------------------------------------------


class Layout:
    """The region that keeps a layout. It is written when the session is made, captured once, and compared when a generation was
    loaded over it."""

    def __init__(self, of: Iterable[Sharded], orders: Mapping[str, list[int]] | None = None, groups: Mapping[str, list[str]] | None = None, names: Iterable[str] = ()) -> None:
        self.own = _tree(of)
        self.own["groups"] = {name: list(digests) for name, digests in (groups or {}).items()}  # for a run that begins from this one's generation
        self.own["orders"] = dict(orders or {})  # for those who read a generation's tensors without this program; none is said, too
        self.own["names"] = {short(n): n for n in names if short(n) != n and len(n.encode(errors="replace")) <= MAX_NAME}  # whole, for exports
        text = capsule.pack(self.own, NAME)
        self.room = max(LEAST, 1 << (len(text) - 1).bit_length())
        self._text = text + bytes(self.room - len(text))
        self.buffer = (ctypes.c_uint8 * self.room).from_buffer_copy(self._text)
        self.region = Region(name=NAME, address=ctypes.addressof(self.buffer), nbytes=self.room, shape=(self.room,), changes="never", keep=self.buffer)

    def check(self) -> None:
        """After a load: :class:`Mismatch` if what was loaded is of another layout; the region then has its own again."""
        loaded = bytes(self.buffer)
        if loaded == self._text:
            return
        ctypes.memmove(self.buffer, self._text, self.room)
        differ(capsule.unpack(loaded), self.own)

    def replaced(self, of: Iterable[Sharded]) -> None:
        """:class:`Mismatch` if the layout of what takes the registered tensors' place is another one."""
        differ(self.own, _tree(of), "the session")


def _tree(of: Iterable[Sharded]) -> dict[str, Any]:
    return {"version": VERSION, "tensors": {short(s.name): s.plain() for s in sorted(of, key=lambda s: s.name)}}


def differ(have: Any, now: Any, whose: str = "the generation") -> None:
    """:class:`Mismatch` if a kept layout is not this one, with the difference by name."""
    if not isinstance(have, dict) or not isinstance(have.get("tensors"), dict):
        raise Corrupt(f"{NAME}: no layout: {have!r:.100}")
    if have.get("version") != now["version"]:
        raise Mismatch(f"{NAME}: {whose} has version {have.get('version')!r} of it, this package writes {now['version']}: resume with the release that wrote it")
    if found := differences(have["tensors"], now["tensors"]):
        more = [f"and {len(found) - 8} more"] if len(found) > 8 else []
        raise Mismatch(f"{whose} has another layout: {'; '.join([*found[:8], *more])}: shard the model as it was, over as many ranks and in the same order")


def differences(have: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two layouts differ, a line a name."""
    out = []
    for name in [*have, *(n for n in now if n not in have)]:
        a, b = have.get(name), now.get(name)
        if a is None or b is None:
            out.append(f"{name} is not sharded, was {_words(a)}" if b is None else f"{name} is {_words(b)}, was not sharded")
        elif a != b:
            out.append(f"{name} is {_words(b)}, was {_words(a)}")
    return out


def _words(of: Any) -> str:
    try:
        at = "" if of["offset"] is None else f" at {tuple(of['offset'])}"
        return f"{tuple(of['local'])}{at} of {tuple(of['shape'])}, {', '.join(of['placements'])} over a mesh of {'x'.join(map(str, of['mesh']))}"
    except (KeyError, TypeError):
        return repr(of)[:100]
