"""A run that begins from a generation of another one, of any layout: ``replicad run --from URL``.

What is registered is filled by name, as a restore fills it: of each tensor the rank reads the box that it has, from the pieces that overlap it. Small values come with
it; what is a rank's own has no meaning on ranks that were not there, and is made anew or left out, which is said.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from .. import rng
from .._core import capsule
from .._core.boxes import Box, cover
from .._core.generations import Generation, Piece, Tensor, box
from .._core.region import Region
from ..errors import Mismatch
from . import loaders
from .declared import Declared
from .kept import Kept
from .layout import NAME as LAYOUT
from .layout import Sharded
from .optimizers import part
from .tensors import short, some

__all__ = ["begin", "opened"]

#: So many bytes are read at once where they do not go where they belong by themselves.
BATCH = 256 << 20
SHARED, OWN = "replicad.shared", "replicad.own"
#: Integers of each size, which hold the bytes of any type.
_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class _Read:
    """A stretch of a piece, and where its bytes go."""

    piece: Piece
    start: int
    into: memoryview
    then: Any = None  # called once they are there; None: they lie where they belong


@dataclass
class _Fit:
    """What of the program has something in the generation."""

    found: list[tuple[Region, Tensor]] = field(default_factory=list)
    own: list[tuple[Region, Tensor]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    missing: list[Region] = field(default_factory=list)
    extra: list[Tensor] = field(default_factory=list)


def opened(origin: Mapping[str, Any]) -> Generation:
    """The generation that a job's record says it begins from."""
    g = origin["generation"]
    source = Generation.open(f"{origin['url'].rstrip('/')}/{origin['job']}", f"{g['step']}.e{g['epoch']}")
    if source.where.strip("/") != origin["place"].strip("/"):
        source.close()
        raise Mismatch(f"{origin['url']}: {source.where} lies where {origin['place']} lay when the job began: begin a new job")
    return source


def begin(source: Generation, kept: Kept, declared: Declared, rank: int, world: int) -> list[str]:
    """Fills what is registered, and the objects, with what the generation has; returns what of it is not exact, for people. :class:`Mismatch` where the program has
    another state, by name, before anything is changed."""
    declared.of(kept.objects.models, kept.objects.optimizers)
    spread = {s.name: s for s in kept.sharded}
    orders = Orders(_orders(source), kept.layout.own.get("orders", {}))
    fit = _fit(source, kept, declared)
    of = rank % source.world  # whose is what is a rank's own
    reads = []
    for region, tensor in fit.found:
        try:
            reads += _reads(region, tensor, spread.get(region.name), source.groups[of], orders)
        except Mismatch as err:
            fit.wrong.append(str(err))
    for region, tensor in fit.own:
        piece = next((p for p in tensor.pieces if p.index == of), None)
        if piece is None or piece.nbytes != region.nbytes:
            fit.wrong.append(f"{region.name} is {_words(region.dtype, region.shape)}, was {_words(tensor.dtype, piece.shape if piece else None)} on rank {of}")
        else:
            reads.append(_Read(piece, 0, _memory(region)))
    small = _small(source, source.groups[of], of)
    values = _Values(kept, declared, source.world != world)
    common = values.common(small[0]) if small else kept.common()
    if small is None:
        _alone(fit, kept, values)
    _refuse(source, fit, values, declared)
    _read(source, reads)
    kept.staging.back(source.step)
    if small is None:
        return values.said
    kept.objects.set_common(common)
    kept.trained.set(common["trained"])
    kept.objects.set_own(values.own(small[1], rank if rank >= source.world else None))
    if world > source.world:
        values.said.append(f"the generators of {_ranks(source.world, world)}, which the run did not have, are seeded from its seed and the rank's number")
    return [*values.said, *([f"{some([r.name for r, _ in fit.own])}, of a rank's own, are rank {of}'s"] if fit.own and source.world != world else [])]


def _ranks(begin: int, end: int) -> str:
    return f"rank {begin}" if end == begin + 1 else f"ranks {begin} to {end - 1}"


# -- what fits ----------------------------------------------------------------------------------------------------------


def _fit(source: Generation, kept: Kept, declared: Declared) -> _Fit:
    fit, used = _Fit(), {SHARED, LAYOUT, OWN}
    used |= {declared.then(short(leaf.name)) for leaf in kept.objects.leaves}  # of one that is tied to another, or whose shard here is empty, there is no region
    for region in kept.table():
        if region.name in (SHARED, LAYOUT, OWN):
            continue
        then = declared.then(region.name)
        tensor = (source.private if region.private else source.tensors).get(then)
        if declared.is_fresh(region.name):
            used.add(then)
        elif tensor is None:
            fit.missing.append(region)
        else:
            used.add(then)
            (fit.own if region.private else fit.found).append((region, tensor))
    for tensors in (source.tensors, source.private):
        fit.extra += [t for name, t in tensors.items() if name not in used and not declared.is_dropped(name)]
    return fit


def _words(dtype: str, shape: tuple[int, ...] | None) -> str:
    return f"{dtype} {tuple(shape)}" if shape is not None else f"{dtype} of unknown shape"


def _refuse(source: Generation, fit: _Fit, values: _Values, declared: Declared) -> None:
    """:class:`Mismatch` for all that does not fit, with what would declare it."""
    missing, extra = (_first(of, declared) for of in (fit.missing, fit.extra))
    lines = [*fit.wrong, *values.wrong]
    lines += [f"{r.name} ({_words(r.dtype, r.shape)}) is not there" for r in missing]
    lines += [f"{t.name} ({_words(t.dtype, t.shape)}) is there alone" for t in extra]
    if not lines:
        return
    was: dict[str, str] = {}
    for region in missing:
        alike = [t.name for t in extra if t.shape == region.shape and t.dtype == region.dtype and t.name not in was.values()]
        if len(alike) == 1:
            was[region.name] = alike[0]
    fresh = [r.name for r in missing if r.name not in was]
    dropped = [t.name for t in extra if t.name not in was.values()]
    remedies = [f"{name}={given!r}" for name, given in (("was", _few(was)), ("fresh", fresh[:3]), ("dropped", dropped[:3])) if given]
    more = [f"and {len(lines) - 8} more"] if len(lines) > 8 else []
    remedy = f". Where that is on purpose, declare it: Session(..., {', '.join(remedies)}); 'head.*' means all below" if remedies else ""
    raise Mismatch(f"step {source.step} of {source.where} is of another program: {'; '.join([*lines[:8], *more])}{remedy}")


def _first(of: list[Any], declared: Declared) -> list[Any]:
    """Those that are no optimizer's state of others among them: it goes with its parameter."""
    names = {x.name for x in of}
    return [x for x in of if not any(x.name != n and declared.belongs(x.name, n) for n in names)]


def _few(was: Mapping[str, str]) -> dict[str, str]:
    return dict(list(was.items())[:3])


# -- tensors ------------------------------------------------------------------------------------------------------------


def _memory(region: Region) -> memoryview:
    return memoryview((ctypes.c_uint8 * region.nbytes).from_address(region.address)).cast("B")


def _orders(source: Generation) -> dict[str, list[int]]:
    """The orders of dimensions in memory of those tensors whose own is another than their shape's."""
    layout = source.tensors.get(LAYOUT)
    return capsule.unpack(source.load(layout.pieces[0])).get("orders", {}) if layout else {}


class Orders:
    """How dimensions lie in memory, then and now, by name; not named: as in the shape."""

    def __init__(self, then: Mapping[str, list[int]], now: Mapping[str, list[int]]) -> None:
        self._then, self._now = then, now

    def same(self, then: str, now: str) -> bool:
        """Whether the bytes of a tensor are in the order in which they are wanted."""
        return self._then.get(then) == self._now.get(now)

    def put(self, then: str, region: Region, raw: bytearray) -> None:
        """Puts bytes in the order in which they are wanted."""
        size = region.nbytes // max(1, prod(region.shape))
        _ordered(_memory(region), size, region.shape, self._now.get(region.name)).copy_(_ordered(memoryview(raw), size, region.shape, self._then.get(then)))


def _ordered(memory: memoryview, size: int, shape: tuple[int, ...], order: list[int] | None) -> torch.Tensor:
    """A tensor over memory whose dimensions lie there in an order."""
    order = list(range(len(shape))) if order is None else order
    t = torch.frombuffer(memory, dtype=_BYTES[size]).view(*(shape[d] for d in order))
    return t.permute(*(order.index(d) for d in range(len(order))))


def _reads(region: Region, tensor: Tensor, spread: Sharded | None, group: int, orders: Orders) -> list[_Read]:
    """What a rank reads of one tensor."""
    if tensor.dtype != region.dtype:
        raise Mismatch(f"{region.name} is {region.dtype}, was {tensor.dtype}: make it of that type, or have its copies have it (kept_dtype)")
    own = next((p for p in tensor.pieces if p.index == group), tensor.pieces[0])
    flat = spread is not None and "flat shard" in spread.placements
    if not orders.same(tensor.name, region.name):
        if spread or len(tensor.pieces) > 1 or tuple(region.shape) != tensor.shape or own.nbytes != region.nbytes:
            raise Mismatch(f"{region.name} lies in another order of dimensions than it did (channels_last, or a transposed view), and is sharded, or was: have it contiguous")
        raw = bytearray(own.nbytes)
        return [_Read(own, 0, memoryview(raw), lambda: orders.put(tensor.name, region, raw))]
    if (flat or tensor.shape is None) and own.nbytes == region.nbytes and (spread is None or own.at == spread.offset):
        return [_Read(own, 0, _memory(region))]  # it lies as it lay
    if flat:
        raise Mismatch(
            f"{region.name} is a flat parameter of FSDP1, which lies over another number of ranks: wrap the model with fully_shard (FSDP2), or resume with as many ranks"
        )
    if tensor.shape is None:
        raise Mismatch(f"{region.name}: the run did not say how its pieces belong together (it named groups by itself): resume it with its own layout")
    if spread is not None and spread.offset is None:
        raise Mismatch(f"{region.name}: torch does not say where this rank's shard of it begins ({', '.join(spread.placements)}): shard it otherwise")
    whole = spread.shape if spread else region.shape
    if tuple(whole) != tuple(tensor.shape):
        raise Mismatch(f"{region.name} is {_words(region.dtype, tuple(whole))}, was {_words(tensor.dtype, tensor.shape)}")
    want = Box(spread.offset or (), spread.local) if spread else Box((0,) * len(whole), tuple(whole))
    pieces = [Box(p.at if p.at is not None else (0,) * len(p.shape), p.shape) for p in tensor.pieces]
    if not spread and len(tensor.pieces) == 1 and pieces[0] == want:
        return [_Read(tensor.pieces[0], 0, _memory(region))]  # in whatever order its bytes lie
    cuts = cover(want, pieces)
    if cuts is None:
        raise Mismatch(f"{region.name}: the pieces that the generation has do not give {want.shape} at {want.at} of {tuple(whole)}")
    out: list[_Read] = []
    for cut in cuts:
        out += _boxed(region, want, tensor.pieces[cut.piece], pieces[cut.piece], cut.box)
    return out


def _boxed(region: Region, want: Box, piece: Piece, of: Box, cut: Box) -> Iterator[_Read]:
    """The stretches that give a cut."""
    size = region.nbytes // max(1, want.size)
    starts = tuple(a - b for a, b in zip(cut.at, of.at, strict=True))
    at = tuple(slice(a - b, a - b + n) for a, b, n in zip(cut.at, want.at, cut.shape, strict=True))
    memory = _memory(region)
    if cut == want and (runs := box(of.shape, size, starts, cut.shape)) and len(runs) == 1 and runs[0].nbytes == region.nbytes:
        yield _Read(piece, runs[0].start, memory)
        return
    into = torch.frombuffer(memory, dtype=_BYTES.get(size, torch.uint8)).view(*want.shape, *(() if size in _BYTES else (size,)))[at]
    for run in box(of.shape, size, starts, cut.shape):
        raw = bytearray(run.nbytes)

        def put(raw: bytearray = raw, run: Any = run) -> None:
            have = torch.frombuffer(raw, dtype=into.dtype).view(*run.shape, *(() if size in _BYTES else (size,)))
            into[run.to] = have[run.inner]

        yield _Read(piece, run.start, memoryview(raw), put)


def _read(source: Generation, reads: list[_Read]) -> None:
    """Reads all of it, in the order in which it lies; what goes through a buffer in batches."""
    reads.sort(key=lambda r: (r.piece.part, r.piece.index, r.piece.name, r.start))
    batch: list[_Read] = []
    held = 0
    for i, r in enumerate(reads):
        batch.append(r)
        held += len(r.into) if r.then is not None else 0
        if held >= BATCH or i + 1 == len(reads):
            source.read((x.piece, x.start, x.into) for x in batch)
            for x in batch:
                if x.then is not None:
                    x.then()
            batch, held = [], 0


# -- small values -------------------------------------------------------------------------------------------------------


def _alone(fit: _Fit, kept: Kept, values: _Values) -> None:
    """Of a generation that no session wrote (weights that were imported, a state dict): what is no tensor begins as the program has made it, and so does an optimizer of which
    nothing is there. What is another program's own bookkeeping is nobody's here."""
    fit.extra = [t for t in fit.extra if t.kind != "private"]
    had = {r.name for r, _ in fit.found}
    fresh = [o for o in kept.objects.optimizers if not any(name.startswith(f"{o}.") for name in had)]
    fit.missing = [r for r in fit.missing if not any(r.name.startswith(f"{o}.") for o in fresh)]
    also = f"; and the state of {some(fresh)}" if fresh else ""
    values.said.append(f"it has tensors alone: hyperparameters, schedulers, generators and the loader's place are this program's{also}")


def _small(source: Generation, group: int, rank: int) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What ranks have in common, and what is a rank's own, as the generation has it; None: no session has written it."""
    if (shared := source.tensors.get(SHARED)) is None or (own := source.private.get(OWN)) is None:
        return None
    pieces = next((p for p in shared.pieces if p.index == group), shared.pieces[0]), next((p for p in own.pieces if p.index == rank), own.pieces[0])
    first, second = (_unpacked(source.load(p)) for p in pieces)
    return first, second


def _unpacked(raw: bytearray) -> dict[str, Any]:
    n = min(int.from_bytes(raw[:8], "little"), max(0, len(raw) - 8))
    return capsule.unpack(memoryview(raw)[8 : 8 + n])  # type: ignore[no-any-return]


class _Values:
    """Small values, put together from those of the generation and the program's own where they are fresh."""

    def __init__(self, kept: Kept, declared: Declared, resized: bool) -> None:
        self._kept, self._declared, self._resized = kept, declared, resized
        self.said: list[str] = []
        self.wrong: list[str] = []
        if resized and (zero := [k for k, o in kept.objects.optimizers.items() if part(o) is not o]):
            self.wrong.append(f"{some(zero)} keeps the state of parameters on ranks of their own (ZeroRedundancyOptimizer), which are others here: use FSDP2, or as many ranks")

    def _merged(self, now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
        """The values of then, by the names of now."""
        out = {}
        for name, value in now.items():
            if name in then:
                out[name] = then[name]
            elif self._declared.is_fresh(name):
                out[name] = value
            else:
                self.wrong.append(f"{name} is not there")
        self.wrong += [f"{name} is there alone" for name in then if name not in now and not self._declared.is_dropped(name)]
        return out

    def common(self, then: Mapping[str, Any]) -> dict[str, Any]:
        """What ranks have in common."""
        now = self._kept.common()
        out = self._merged(now, then)
        if self._declared:
            out["trained"] = now["trained"]
        for name, o in self._kept.objects.optimizers.items():
            if name not in then:
                continue
            if len(then[name]["groups"]) != len(o.param_groups):
                self.wrong.append(f"{name} has {len(o.param_groups)} parameter groups, had {len(then[name]['groups'])}")
            state = {label: kept for label in self._kept.objects.names.values() if (kept := then[name]["state"].get(self._declared.then(label)))}
            out[name] = then[name] | {"state": then[name]["state"] | state}
        return out

    def own(self, then: Mapping[str, Any], added: int | None) -> dict[str, Any]:
        """What is the rank's own; ``added`` is its number where the generation has no such rank."""
        objects = self._kept.objects
        now = objects.own()
        out = dict(then) | {k: self._merged(now[k], then[k]) for k in ("modules", "objects")}
        out["data"] = {k: self._place(k, o, then["data"].get(k, now["data"][k])) for k, o in objects.data.items()}
        if len(then["grads"] or b"") != len(now["grads"] or b""):
            out["grads"] = now["grads"]
        if added is not None:
            rng.reseed(added)
            out["rng"], out["asked"] = objects.generators(), None
        if self._resized and out["objects"]:
            self.said.append(f"{some(list(out['objects']))}, of a rank's own, are as another rank had them")
        return out

    def _place(self, name: str, loader: Any, then: Any) -> Any:
        """Where a loader goes on."""
        if loaders.ours(loader):
            loader.take_up(then)
            return loaders.state(loader)
        if self._resized:
            self.said.append(f"{name} goes on where a rank of the other world was: a replicad.data.Loader goes on at the sample")
        return then
