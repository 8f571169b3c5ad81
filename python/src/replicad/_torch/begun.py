"""A run that begins from a generation of another one, of any layout: ``replicad run --from URL``.

What is registered is filled by name, as a restore fills it: of each tensor the rank reads the box that it has, from the pieces that overlap it. Small values come with
it; what is a rank's own has no meaning on ranks that were not there, and is made anew or left out, which is said.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from .kept import TENSORS, Kept
from .layout import NAME as LAYOUT
from .layout import Sharded, grouped
from .optimizers import part
from .tensors import short, some

__all__ = ["begin", "opened"]

#: So many bytes are read at once where they do not go where they belong by themselves.
BATCH = 256 << 20
#: Placements whose pieces are boxes of the whole tensor.
_BOX = re.compile(r"replicate|shard\(\d+\)")
SHARED, OWN = "replicad.shared", "replicad.own"
#: Integers of each size, which hold the bytes of any type.
_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class _Read:
    """A stretch of a piece, and where its bytes go."""

    piece: Piece
    start: int
    nbytes: int
    into: memoryview | None  # None: a buffer, which is made when it is read, and given to ``then``
    then: Callable[[bytearray], None] | None = None


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


def begin(source: Generation, kept: Kept, declared: Declared, rank: int, world: int, leads: bool) -> tuple[list[str], dict[str, Any] | None]:
    """Fills what is registered, and the objects, with what the generation has; returns what of it is not exact, for people, and what is the rank's own (None: the
    program's). :class:`Mismatch` where the program has another state, by name, before a tensor is changed. A rank that does not lead its group reads what is its own:
    what the group has in common comes from the one that does, over the lanes."""
    declared.of(kept.objects.models, kept.objects.optimizers)
    spread = {short(s.name): s for s in kept.sharded}
    fit = _fit(source, kept, declared)
    of = rank % source.world  # whose is what is a rank's own
    laid = _laid(source)
    orders = Orders(laid.get("orders"), kept.layout.own["orders"], source.equal)
    reads: list[_Read] = []
    for region, tensor in fit.found:
        try:
            its = _reads(region, tensor, spread.get(region.name), source.groups[of], orders)
            reads += its if leads or region.private else ()
        except Mismatch as err:
            fit.wrong.append(str(err))
    for region, tensor in fit.own:
        piece = next((p for p in tensor.pieces if p.index == of), None)
        if piece is None or piece.nbytes != region.nbytes or tensor.dtype != region.dtype or piece.shape != tuple(region.shape):
            fit.wrong.append(f"{region.name} is {_words(region.dtype, region.shape)}, was {_words(tensor.dtype, piece.shape if piece else None)} on rank {of}")
        else:
            reads.append(_Read(piece, 0, piece.nbytes, _memory(region)))
    small = _small(source, source.groups[of], of)
    values = _Values(kept, declared, source.world != world, laid.get("groups", {}))
    common = own = None
    if small is None:
        _alone(fit, kept, values)
    else:
        common, own = values.common(small[0]), values.own(small[1], rank if rank >= source.world else None)
    there = [*source.tensors, *source.private, *(values.names(*small) if small else ())]
    values.wrong += declared.idle([*(short(x.name) for x in kept.objects.leaves), *values.names(kept.common(), kept.objects.own())], there)
    _refuse(source, fit, values, declared)
    kept.live.everything()  # what is not read stays as the program has made it, behind stages too
    _read(source, reads)
    kept.staging.back(source.step)
    if common is None or own is None:
        return values.said, None
    kept.objects.set_common(common)
    kept.trained.set(common["trained"])
    kept.objects.set_own(own)
    if fresh := _tensors(source, kept, declared, of):
        values.said.append(f"{some(fresh)} begins as this program has made it")
    if world > source.world:
        values.said.append(f"the generators of {_ranks(source.world, world)}, which the run did not have, are seeded from its seed and the rank's number")
    also = [f"{some([r.name for r, _ in fit.own])}, of a rank's own, are rank {of}'s"] if fit.own and source.world != world else []
    return [*values.said, *also], own


def _ranks(begin: int, end: int) -> str:
    return f"rank {begin}" if end == begin + 1 else f"ranks {begin} to {end - 1}"


# -- what fits ----------------------------------------------------------------------------------------------------------


def _fit(source: Generation, kept: Kept, declared: Declared) -> _Fit:
    fit, used = _Fit(), {SHARED, LAYOUT, OWN}
    used |= {declared.then(short(leaf.name)) for leaf in kept.objects.leaves if leaf.local.numel() == 0}  # of an empty shard there is no region
    used |= {name for name in source.private if name.startswith(TENSORS)}
    for region in kept.table():
        if region.name in (SHARED, LAYOUT, OWN) or region.name.startswith(TENSORS):
            continue
        then = declared.then(region.name)
        tensor = (source.private if region.private else source.tensors).get(then) or source.tensors.get(then)
        if declared.is_fresh(region.name):
            used.add(then)
        elif tensor is None:
            fit.missing.append(region)
        else:
            used.add(then)
            (fit.own if tensor.kind == "private" else fit.found).append((region, tensor))
    for tensors in (source.tensors, source.private):
        fit.extra += [t for name, t in tensors.items() if name not in used and not declared.is_dropped(name) and not kept.objects.derived.has(name)]
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
    of: dict[tuple[str, Any], list[str]] = {}
    for t in extra:
        of.setdefault((t.dtype, t.shape), []).append(t.name)
    was = {r.name: alike[0] for r in missing if len(alike := of.get((r.dtype, tuple(r.shape)), [])) == 1}
    was = {now: then for now, then in was.items() if list(was.values()).count(then) == 1} if len(was) <= 64 else {}
    fresh = [r.name for r in missing if r.name not in was]
    dropped = [t.name for t in extra if t.name not in was.values()]
    remedies = [f"{name}={given!r}" for name, given in (("was", _few(was)), ("fresh", fresh[:3]), ("dropped", dropped[:3])) if given]
    more = [f"and {len(lines) - 8} more"] if len(lines) > 8 else []
    remedy = f". Where that is on purpose, declare it: Session(..., {', '.join(remedies)}); 'head.*' means all below" if remedies else ""
    raise Mismatch(f"step {source.step} of {source.where} is of another program: {'; '.join([*lines[:8], *more])}{remedy}")


def _first(of: list[Any], declared: Declared) -> list[Any]:
    """Those that are no optimizer's state of others among them: it goes with its parameter."""
    names = {x.name for x in of}
    return [x for x in of if not any(p in names for p in declared.parameters(x.name))]


def _few(was: Mapping[str, str]) -> dict[str, str]:
    return dict(list(was.items())[:3])


# -- tensors ------------------------------------------------------------------------------------------------------------


def _memory(region: Region) -> memoryview:
    return memoryview((ctypes.c_uint8 * region.nbytes).from_address(region.address)).cast("B")


def _laid(source: Generation) -> dict[str, Any]:
    """What the program that wrote the generation says of how its tensors lie."""
    layout = source.tensors.get(LAYOUT)
    return capsule.unpack(source.load(layout.pieces[0])) if layout else {"orders": {}}


class Orders:
    """How dimensions lie in memory, then and now, by name; not named: as in the shape."""

    def __init__(self, then: Mapping[str, list[int]] | None, now: Mapping[str, list[int]], equal: Callable[[str], bool]) -> None:
        self._then, self._now, self.equal = then, now, equal

    def odd(self, now: str) -> bool:
        """Whether a tensor lies in another order than its shape's."""
        return now in self._now

    def same(self, then: str, now: str) -> bool:
        """Whether the bytes of a tensor are in the order in which they are wanted. Where nobody has noted the order, it is the program's."""
        return self._then is None or self._then.get(then) == self._now.get(now)

    def put(self, then: str, region: Region, raw: bytearray) -> None:
        """Puts bytes in the order in which they are wanted."""
        size = region.nbytes // max(1, prod(region.shape))
        _ordered(_memory(region), size, region.shape, self._now.get(region.name)).copy_(_ordered(memoryview(raw), size, region.shape, (self._then or {}).get(then)))


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
    if not orders.same(tensor.name, region.name):
        if spread or len(tensor.pieces) > 1 or tuple(region.shape) != tensor.shape or own.nbytes != region.nbytes:
            raise Mismatch(f"{region.name} lies in another order of dimensions than it did (channels_last, or a transposed view), and is sharded, or was: have it contiguous")
        return [_Read(own, 0, own.nbytes, None, lambda raw: orders.put(tensor.name, region, raw))]
    now = spread.placements if spread else ()
    odd = [p for p in (*now, *tensor.placements) if not _BOX.fullmatch(p)]  # pieces that are no boxes of the whole
    as_it_lay = now == tensor.placements and (spread is None or (own.at == spread.offset and tensor.mesh == spread.mesh))
    as_it_lay = as_it_lay and (len(tensor.pieces) == 1 or tensor.shape is not None or orders.equal(tensor.name))
    if (odd or tensor.shape is None) and own.nbytes == region.nbytes and own.shape == tuple(region.shape) and as_it_lay:
        return [_Read(own, 0, own.nbytes, _memory(region))]
    if tensor.shape is None and not tensor.placements and orders.equal(tensor.name) and all(p.shape == own.shape for p in tensor.pieces):
        tensor = replace(tensor, shape=own.shape, pieces=(own,))  # what tensor parallelism leaves plain: each group has the whole, and the same
    if odd:
        raise Mismatch(
            f"{region.name} lies in pieces that are no boxes of the whole ({', '.join(dict.fromkeys(odd))}), and lay otherwise: have as many ranks in the same layout, or "
            "shard it with fully_shard (FSDP2) alone, there and here"
        )
    if tensor.shape is None:
        raise Mismatch(
            f"{region.name} has {len(tensor.pieces)} pieces that are not known to be equal, and nothing says how they belong together: resume the run with its own layout"
        )
    if spread is not None and spread.offset is None:
        raise Mismatch(f"{region.name}: torch does not say where this rank's shard of it begins ({', '.join(spread.placements)}): shard it otherwise")
    whole = spread.shape if spread else region.shape
    if tuple(whole) != tuple(tensor.shape):
        raise Mismatch(f"{region.name} is {_words(region.dtype, tuple(whole))}, was {_words(tensor.dtype, tensor.shape)}")
    want = Box(spread.offset or (), spread.local) if spread else Box((0,) * len(whole), tuple(whole))
    pieces = [Box(p.at if p.at is not None else (0,) * len(p.shape), p.shape) for p in tensor.pieces]
    if pieces[0] == want:
        return [_Read(tensor.pieces[0], 0, region.nbytes, _memory(region))]  # in whatever order its bytes lie
    if orders.odd(region.name):
        raise Mismatch(f"{region.name} lies in another order of dimensions than its shape (channels_last, or a transposed view), and is sharded, or was: have it contiguous")
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
        yield _Read(piece, runs[0].start, region.nbytes, memory)
        return
    into = torch.frombuffer(memory, dtype=_BYTES.get(size, torch.uint8)).view(*want.shape, *(() if size in _BYTES else (size,)))[at]
    for run in box(of.shape, size, starts, cut.shape):

        def put(raw: bytearray, run: Any = run) -> None:
            have = torch.frombuffer(raw, dtype=into.dtype).view(*run.shape, *(() if size in _BYTES else (size,)))
            into[run.to] = have[run.inner]

        yield _Read(piece, run.start, run.nbytes, None, put)


def _read(source: Generation, reads: list[_Read]) -> None:
    """Reads all of it, in the order in which it lies; what goes through a buffer in batches."""
    reads.sort(key=lambda r: (r.piece.part, r.piece.index, r.piece.name, r.start))
    batch: list[_Read] = []
    held = 0
    for i, r in enumerate(reads):
        batch.append(r)
        held += r.nbytes if r.into is None else 0
        if held >= BATCH or i + 1 == len(reads):
            buffers = [None if x.into is not None else bytearray(x.nbytes) for x in batch]
            source.read((x.piece, x.start, memoryview(b) if b is not None else x.into or memoryview(b"")) for x, b in zip(batch, buffers, strict=True))
            for x, b in zip(batch, buffers, strict=True):
                if x.then is not None and b is not None:
                    x.then(b)
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


def _tensors(source: Generation, kept: Kept, declared: Declared, rank: int) -> list[str]:
    """Gives the objects that have tensors of changing size what a rank had; the names of those of which the generation has nothing."""
    fresh = []
    for name, o in kept.objects.tensors.items():
        tensor = source.private.get(f"{TENSORS}{declared.then(name)}")
        piece = None if tensor is None else next((p for p in tensor.pieces if p.index == rank), None)
        if piece is None or declared.is_fresh(name):
            fresh.append(name)
        else:
            o.load_state_dict(_unpacked(source.load(piece)))
    return fresh


def _unpacked(raw: bytearray) -> dict[str, Any]:
    n = min(int.from_bytes(raw[:8], "little"), max(0, len(raw) - 8))
    return capsule.unpack(memoryview(raw)[8 : 8 + n])  # type: ignore[no-any-return]


class _Values:
    """Small values, put together from those of the generation and the program's own where they are fresh."""

    def __init__(self, kept: Kept, declared: Declared, resized: bool, groups: Mapping[str, list[str]]) -> None:
        """``groups`` are the parameters of optimizers' groups, as :func:`replicad._torch.layout.grouped` has them."""
        self._kept, self._declared, self._resized, self._groups = kept, declared, resized, groups
        self.said: list[str] = []
        self.wrong: list[str] = []
        if resized and (zero := [k for k, o in kept.objects.optimizers.items() if part(o) is not o]):
            self.wrong.append(f"{some(zero)} keeps the state of parameters on ranks of their own (ZeroRedundancyOptimizer), which are others here: use FSDP2, or as many ranks")

    @staticmethod
    def names(common: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
        """The objects whose values these are."""
        return [*common, *(name for kind in ("data", "modules", "objects") for name in own[kind])]

    def _merged(self, now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
        """The values of then, by the names of now."""
        out = {}
        for name, value in now.items():
            was = self._declared.then(name)
            if self._declared.is_fresh(name):
                out[name] = value
            elif was in then:
                out[name] = then[was]
            else:
                self.wrong.append(f"{name} is not there")
        used = {self._declared.then(name) for name in now}
        self.wrong += [f"{name} is there alone" for name in then if name not in used and not self._declared.is_dropped(name)]
        return out

    def common(self, then: Mapping[str, Any]) -> dict[str, Any]:
        """What ranks have in common."""
        now = self._kept.common()
        out = self._merged(now, then)
        out["trained"] = self._trained(now["trained"], then["trained"])
        for name, o in self._kept.objects.optimizers.items():
            had = then.get(self._declared.then(name))
            if had is None or self._declared.is_fresh(name):
                continue
            if len(had["groups"]) != len(o.param_groups):
                self.wrong.append(f"{name} has {len(o.param_groups)} parameter groups, had {len(had['groups'])}")
            had = had | {"groups": self._ordered(name, had["groups"])}
            state = {label: kept for label in self._kept.objects.names.values() if (kept := had["state"].get(self._declared.then(label)))}
            out[name] = had | {"state": had["state"] | state}
        return out

    def _ordered(self, name: str, groups: list[Any]) -> list[Any]:
        """The hyperparameters of an optimizer's groups, each with the group that has its parameters now."""
        had = self._groups.get(self._declared.then(name))
        now = grouped(self._kept.objects, lambda n: None if self._declared.is_fresh(n) else self._declared.then(n))[name]
        if had is None or len(had) != len(groups) or len(now) != len(groups) or had == now:
            return groups
        if sorted(had) == sorted(now) and len(set(had)) == len(had):
            return [groups[had.index(digest)] for digest in now]
        if self._declared.dropped:
            self.said.append(f"the hyperparameters of {name} are those of the groups at the same places, of which parameters were dropped")
        else:
            others = ", ".join(str(i) for i, (a, b) in enumerate(zip(had, now, strict=True)) if a != b)
            self.wrong.append(f"{name}: the parameters of group {others} are others than they were, and each group has its own learning rate")
        return groups

    def _trained(self, now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
        """Which parameters are frozen for a while, and which adapters are active: as then, but for what is fresh."""
        rests = []
        for name, _ in self._kept.trained.tensors(True):
            if name in now["resting"] if self._declared.is_fresh(name) else self._declared.then(name) in then["resting"]:
                rests.append(name)
        return {"resting": rests, "adapters": {m: then["adapters"].get(m, active) for m, active in now["adapters"].items()}}

    def own(self, then: Mapping[str, Any], added: int | None) -> dict[str, Any]:
        """What is the rank's own; ``added`` is its number where the generation has no such rank."""
        objects = self._kept.objects
        now = objects.own()
        out = {k: v for k, v in then.items() if k not in ("began", "cadence", "rates")} | {k: self._merged(now[k], then[k]) for k in ("modules", "objects")}
        data = self._merged(now["data"], then["data"])
        out["data"] = {k: data[k] if self._declared.is_fresh(k) else self._place(k, o, data[k]) for k, o in objects.data.items() if k in data}
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
