"""Generations under ``torch.distributed.checkpoint``: a program's ``dcp.load`` reads what a job of replicad's wrote, and its ``dcp.save`` and
``dcp.async_save`` write generations to any store::

    dcp.load(state, storage_reader=replicad.dcp.Reader("s3://bucket/ckpt", job="lm"))
    dcp.save(state, storage_writer=replicad.dcp.Writer("s3://bucket/ckpt", job="lm", step=step))

The program `replicad` does what a store is asked; no daemon and no session is needed. Nothing that is read is ever executed.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import socket
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from ._core import capsule, generations
from ._core.generations import Attempt, Generation, Out, Piece, Tensor, box
from ._core.native import MAX_DIMS
from ._core.provenance import versions
from ._torch.layout import MAX_NAME
from ._torch.tensors import short
from .errors import Corrupt, Invalid, Mismatch, Unsupported

__all__ = ["Names", "Reader", "Writer"]

#: How names of a generation become those of a state dict: a function, which returns None for what is left out, or patterns with one star each. Of
#: patterns the first that fits counts, and a name that none fits stays as it is.
Names = Callable[[str], str | None] | Mapping[str, str]

#: What the package keeps in a generation for itself.
_OURS = frozenset(("replicad.layout", "replicad.shared", "replicad.own", generations.STATE))
_VERSION = 1
#: Placements whose pieces are boxes of the whole tensor: of a flat parameter (FSDP1) those of one dimension.
_BOX = re.compile(r"replicate|shard\(\d+\)|flat shard")


# -- reading ------------------------------------------------------------------------------------------------------------


class Reader(StorageReader):
    """Reads a generation of ``url``: a store's root, behind which job and run may be named, and ``@STEP``. ``at`` is "last" (the newest that is whole),
    a step ("1200", "1200.e2") or "best:loss" ("best:accuracy:max"). ``checkpoint_id``, where ``dcp.load`` is given one, takes its place.

    Names are those of the generation: of a job "model.layers.0.weight" and "optim.model.layers.0.weight.exp_avg", of :class:`Writer` those of the state
    dict. ``names`` says how they become the program's: ``{"model.*": "*"}``, or a function. Of what each rank of a job has for itself, such as buffers, the
    lowest rank's comes, as torch's own writer does it.

    All ranks read the generation that the coordinator found. It is kept by a lease until ``dcp.load`` has ended. Errors come from ``dcp.load``, in its
    ``CheckpointException``: :class:`replicad.Corrupt` names file and chunk. What was loaded by then is not whole.
    """

    def __init__(self, url: str, at: str = "last", job: str | None = None, *, names: Names | None = None, program: str | None = None) -> None:
        self.url, self.at, self.job = url, at, job
        self.program = program
        self._names = _renaming(names)
        self._open: _Opened | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Before a load: which generation, where the program says."""
        if checkpoint_id is not None:
            self.at = str(checkpoint_id)
        self.close()

    def close(self) -> None:
        """Lets the generation go. ``dcp.load`` does it by itself; who has only called :meth:`read_metadata` should."""
        if self._open is not None:
            self._open.generation.close()
            self._open = None

    # Torch asks a reader that takes `kwargs` here once more after an error, which would hide it.
    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Opens the generation, and says what is in it."""
        self.close()
        self._open = self._opened(self.url, self.at, self.job)
        return self._open.metadata

    def _opened(self, url: str, at: str, job: str | None) -> _Opened:
        generation = Generation.open(url, at, job, program=self.program)
        try:
            return _Opened(generation, self._names)
        except BaseException:
            generation.close()
            raise

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Tells all ranks which generation the coordinator has open."""
        g = self._now().generation
        return [replace(p, storage_data=_Where(g.root, g.job, g.run, f"{g.step}.e{g.epoch}", g.where)) for p in plans]

    def _now(self) -> _Opened:
        if self._open is None:
            raise Invalid("replicad.dcp.Reader: read_metadata comes first: dcp.load calls it")
        return self._open

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan asks for, and lets the generation go."""
        try:
            of = plan.storage_data
            if isinstance(of, _Where) and of.where != self._now().generation.where:  # a newer one was committed between two ranks' looks
                self.close()
                self._open = self._opened(f"{of.root}/{of.job}/{of.run}", of.at, None)
            self._now().read(plan.items, planner)
        finally:
            self.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path means this reader by itself: it is given, with its store."""
        return False


@dataclass(frozen=True)
class _Where:
    """Which generation the coordinator found."""

    root: str
    job: str
    run: str
    at: str
    where: str


class _Opened:
    """An open generation, as torch sees it."""

    def __init__(self, generation: Generation, names: Callable[[str], str | None]) -> None:
        self.generation = generation
        self.values, paths = _state(generation)
        self.pieces: dict[str, dict[torch.Size, Piece]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.ordered: set[str] = set()  # tensors whose dimensions lie in the memory of the program that wrote them in another order than in their shape
        entries: dict[str, Any] = {}
        of: dict[str, str] = {}  # names in the generation
        at: dict[str, tuple[Any, ...]] = {}  # where in the state dict
        left: list[str] = []
        layout = generation.tensors.get("replicad.layout")
        ordered = capsule.unpack(generation.load(layout.pieces[0])).get("orders", {}) if layout is not None else {}
        tensors = {t.name: replace(t, shape=t.pieces[0].shape, pieces=t.pieces[:1]) for t in generation.private.values()} | generation.tensors
        whole = {t.called or name: name for name, t in tensors.items() if name not in _OURS}
        for called, new in _renamed([*whole, *self.values], names):
            name = whole.get(called, called)
            of[new] = name
            if new == called in paths:
                at[new] = paths[called]
            if name in ordered:
                self.ordered.add(new)
            if (tensor := tensors.get(name)) is None:
                entries[new] = BytesStorageMetadata()
            elif (entry := self._entry(new, tensor, generation.equal(tensor.name))) is not None:
                entries[new] = entry
            else:
                left.append(name)
        if left:
            more = f" and {len(left) - 4} more" if len(left) > 4 else ""
            warnings.warn(
                f"replicad.dcp: {generation.where}: nobody knows how the pieces of {', '.join(left[:4])}{more} belong together: they are left out. Declare "
                "their layout in the program that wrote them, or read its files, which are safetensors",
                stacklevel=2,
            )
        self.values = {new: self.values[name] for new, name in of.items() if name in self.values}
        self.metadata = Metadata(entries, planner_data={new: at.get(new, (new,)) for new in of if new in entries})

    def _entry(self, name: str, t: Tensor, equal: bool) -> TensorStorageMetadata | None:
        """What torch is told of a tensor; None: nobody knows how its pieces belong together. ``equal``: one of which the program says nothing is the same in all groups."""
        if any(not _BOX.fullmatch(p) for p in t.placements):
            return None  # blocks that are interleaved, partial sums
        if t.shape is not None and (len(t.pieces) == 1 or all(p.at is not None for p in t.pieces)):
            shape = t.shape
        elif equal and not t.placements and all(p.shape == t.pieces[0].shape for p in t.pieces):
            shape = t.pieces[0].shape
            t = replace(t, pieces=t.pieces[:1])
        else:
            return None
        at: dict[torch.Size, Piece] = {}
        chunks = []
        for p in t.pieces:
            offset = torch.Size(p.at if p.at is not None else [0] * len(shape))
            if len(offset) != len(shape) or len(p.shape) != len(shape):
                return None
            size = torch.Size(max(0, min(n, whole - first)) for n, whole, first in zip(p.shape, shape, offset, strict=True))  # the last may be padded
            if offset not in at and (size.numel() > 0 or 0 in shape):  # ranks that hold the same bytes, and empty ends
                at[offset] = p
                chunks.append(ChunkStorageMetadata(offset, size))
        if sum(c.sizes.numel() for c in chunks) != torch.Size(shape).numel():
            return None  # blocks that are interleaved, say
        self.pieces[name], self.dtypes[name] = at, getattr(torch, t.dtype)
        return TensorStorageMetadata(TensorProperties(dtype=self.dtypes[name]), torch.Size(shape), chunks)

    def read(self, items: Iterable[ReadItem], planner: LoadPlanner) -> None:
        """Serves a plan: values at once, tensors in the order in which they lie."""
        tensors: list[tuple[Piece, ReadItem]] = []
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                value = io.BytesIO()
                torch.save(self.values[item.storage_index.fqn], value)  # torch loads what was made here, and nothing that came from a store
                value.seek(0)
                planner.load_bytes(item, value)
            elif (piece := self._piece(item.storage_index)) is not None:
                tensors.append((piece, item))
        tensors.sort(key=lambda of: (of[0].place, *of[1].storage_offsets))
        steps: deque[_Step] = deque()
        for _ in self.generation.fetch(self._steps(tensors, planner, steps)):
            steps.popleft().finish(planner)

    def _piece(self, index: MetadataIndex) -> Piece:
        of = self.pieces.get(index.fqn, {})
        piece = of.get(index.offset) if index.offset is not None else next(iter(of.values()), None)
        if piece is None:
            raise Mismatch(
                f"{self.generation.where} has no piece of {index.fqn} at {index.offset}: ranks found generations of other layouts: name one (at={self.generation.step!r})"
            )
        return piece

    def _steps(self, tensors: list[tuple[Piece, ReadItem]], planner: LoadPlanner, steps: deque[_Step]) -> Iterator[tuple[Piece, int, memoryview]]:
        for piece, item in tensors:
            if item.storage_index.fqn in self.ordered:
                raise Unsupported(
                    f"{item.storage_index.fqn}: its bytes lie in another order of dimensions than its shape (channels_last, or a transposed view): have the program that writes it "
                    "keep it contiguous, or begin a run from the generation (replicad run --from)"
                )
            dtype = self.dtypes[item.storage_index.fqn]
            target = planner.resolve_tensor(item).detach()
            if target.size() != torch.Size(item.lengths):
                raise Mismatch(f"{item.dest_index.fqn}: the plan has {tuple(item.lengths)}, the tensor for it {tuple(target.size())}")
            runs = box(piece.shape, dtype.itemsize, item.storage_offsets, item.lengths)
            if not runs:
                planner.commit_tensor(item, target)
            for i, run in enumerate(runs):
                to = target[run.to] if run.to else target
                direct = run.whole and to.device.type == "cpu" and to.dtype == dtype and to.is_contiguous() and not to.is_conj() and not to.is_neg()
                into = to if direct else torch.empty(run.shape, dtype=dtype)
                steps.append(_Step(item, target, to, None if direct else into[run.inner], i + 1 == len(runs)))
                yield piece, run.start, _memory(into)


@dataclass(frozen=True)
class _Step:
    """What is done with bytes that came."""

    item: ReadItem
    target: torch.Tensor
    to: torch.Tensor
    read: torch.Tensor | None  # None: they came to where they belong
    last: bool

    def finish(self, planner: LoadPlanner) -> None:
        if self.read is not None:
            self.to.copy_(self.read.reshape(self.to.shape))
        if self.last:
            planner.commit_tensor(self.item, self.target)


def _memory(t: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host, where they lie."""
    return memoryview(t.reshape(-1).view(torch.uint8).numpy().data) if t.numel() else memoryview(bytearray())


def _state(g: Generation) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Values that are no tensors, and where in the state dict each entry was, if :class:`Writer` wrote the generation."""
    if (kept := g.private.get(generations.STATE)) is None:
        return {}, {}
    state = capsule.unpack(g.load(kept.pieces[0]))
    values, paths = (state.get("values"), state.get("paths")) if isinstance(state, dict) else (None, None)
    if not isinstance(values, dict) or not isinstance(paths, dict) or not all(isinstance(p, tuple) for p in paths.values()):
        raise Corrupt(f"{g.where}: {generations.STATE} holds no state of replicad.dcp")
    if state.get("version") != _VERSION:
        raise Mismatch(f"{g.where}: {generations.STATE} has version {state.get('version')!r}, this package reads {_VERSION}: read it with the release that wrote it")
    return {name: _given(v) for name, v in values.items()}, paths


def _renaming(names: Names | None) -> Callable[[str], str | None]:
    if names is None:
        return lambda name: name
    if callable(names):
        return names
    rules = []
    for pattern, new in names.items():
        if pattern.count("*") != new.count("*") or pattern.count("*") > 1:
            raise Invalid(f"names: {pattern!r}: {new!r}: want one star in both, as {{'model.*': '*'}}, or none")
        rules.append((re.compile("(.*)".join(map(re.escape, pattern.split("*"))), re.DOTALL), new))

    def rename(name: str) -> str:
        for pattern, new in rules:
            if (m := pattern.fullmatch(name)) is not None:
                return new.replace("*", m[1]) if m.re.groups else new
        return name

    return rename


def _renamed(have: list[str], names: Callable[[str], str | None]) -> Iterator[tuple[str, str]]:
    seen: dict[str, str] = {}
    for name in have:
        new = names(name)
        if new is None:
            continue
        if new in seen:
            raise Invalid(f"names: {seen[new]!r} and {name!r} both become {new!r}: give each a name of its own")
        seen[new] = name
        yield name, new


# -- writing ------------------------------------------------------------------------------------------------------------


class Writer(StorageWriter):
    """Writes a state dict as generation ``step`` of a job, to the store of ``url``. ``checkpoint_id``, where ``dcp.save`` is given one, is the step; without
    either a generation has the number after the largest that the job has in the store, whichever process wrote it.

    ``recipients`` of age encrypt it (default: those in REPLICAD_RECIPIENTS); REPLICAD_IDENTITY names the file with one's key, since who writes reads back. For a
    job whose newest generation is encrypted one that would not be is refused.

    All generations that a process writes for a job are of one run; the next process begins another. Each rank writes one file; the coordinator commits
    when all have. ``metrics`` and ``notes`` are shown by ``replicad ckpt ls`` and ``show``.

    Values that are no tensors are kept where they are None, bool, int, float, str or bytes, or lists, tuples and dicts of those; others are refused by
    name (:class:`replicad.Unsupported`), since nothing is pickled. Each tensor's bytes are read twice: a file begins with their digests.
    """

    def __init__(
        self,
        url: str,
        job: str,
        step: int | None = None,
        *,
        metrics: Mapping[str, float] | None = None,
        notes: Mapping[str, str] | None = None,
        recipients: Sequence[str] = (),
        program: str | None = None,
    ) -> None:
        self.url, self.job, self.step = url, job, step
        self.metrics, self.notes = dict(metrics or {}), dict(notes or {})
        self.recipients, self.program = tuple(recipients), program
        self._begun: Attempt | None = None  # the coordinator's

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Before a save: which step, where the program says."""
        if checkpoint_id is not None:
            try:
                self.step = int(str(checkpoint_id))
            except ValueError:
                raise Invalid(f"checkpoint_id={str(checkpoint_id)!r}: replicad.dcp.Writer takes the step's number there, as checkpoint_id=1200") from None
        self._begun = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Looks whether this can be done at all."""
        if not kwargs.get("use_collectives", True):
            raise Unsupported("use_collectives=False: each rank would commit a generation of its own: leave it out")
        generations.binary(self.program)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Checks all plans, begins the generation, and tells all ranks where they write."""
        if not all(getattr(p, "usable", True) for p in plans):
            raise Unsupported("the planner takes plans of an earlier save (enable_plan_caching), which name that save's files: leave it out")
        laid = _laid(plans)
        run = _run(self.url, self.job)
        self._begun = run.begin(self, len(plans))
        return [replace(p, storage_data=_Share(self._begun, rank, laid)) for rank, p in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's file. A state dict must not change meanwhile."""
        share = plan.storage_data
        if not isinstance(share, _Share):
            raise Invalid(f"{type(planner).__name__} drops the plan's storage_data, which says where a rank writes: keep it")
        values = {item.index.fqn: _value(item, planner) for item in plan.items if item.type == WriteItemType.BYTE_IO}
        items = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        outs = [_out(item) for item in items]

        def data() -> Iterator[memoryview]:
            for item, out in zip(items, outs, strict=True):
                yield _bytes(item, out, planner)

        layout = capsule.pack({"version": 1, "tensors": share.layout(items), "names": _names(items)}, "replicad.layout")
        report = generations.put(share.attempt, share.rank, outs, data, layout, program=self.program)
        results = [WriteResult(item.index, _nbytes(item), None) for item in plan.items]
        done: Future[list[WriteResult]] = Future()
        done.set_result([*results, WriteResult(MetadataIndex(generations.STATE), 0, _Wrote(report, values))])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commits: the generation exists from then on."""
        wrote = [r.storage_data for rank in results for r in rank if isinstance(r.storage_data, _Wrote)]
        if self._begun is None or len(wrote) != self._begun.world:
            raise Invalid(f"replicad.dcp.Writer: {len(wrote)} ranks have written: dcp.save calls prepare_global_plan and write_data first")
        values = {name: v for w in wrote for name, v in w.values.items()}
        paths = {name: tuple(path) for name, path in (metadata.planner_data or {}).items()}
        private = capsule.pack({"version": _VERSION, "values": values, "paths": paths}, "state dict")
        generations.commit(self._begun, [w.report for w in wrote], private, self.metrics, self.notes, versions(), program=self.program)
        self._begun = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """No path means this writer by itself: it is given, with its store."""
        return False


@dataclass(frozen=True)
class _Wrote:
    """What a rank reports to the coordinator."""

    report: dict[str, Any]
    values: dict[str, Any]


@dataclass(frozen=True)
class _Laid:
    """How a tensor lies over ranks: in how many pieces along which dimensions."""

    placements: tuple[str, ...]
    mesh: tuple[int, ...]


@dataclass(frozen=True)
class _Share:
    """What a rank is told: which generation, and its place in it."""

    attempt: Attempt
    rank: int
    laid: dict[str, _Laid]

    def layout(self, items: Iterable[WriteItem]) -> dict[str, Any]:
        """The entries of replicad.layout, as a session writes them."""
        entries = {}
        for item in items:
            if (laid := self.laid.get(item.index.fqn)) is not None and (t := item.tensor_data) is not None:
                place = {"shape": list(t.size), "local": list(t.chunk.sizes), "offset": list(t.chunk.offsets)}
                entries[short(item.index.fqn)] = place | {"placements": list(laid.placements), "mesh": list(laid.mesh)}
        return entries


def _laid(plans: list[SavePlan]) -> dict[str, _Laid]:
    """Checks all that will be written, before anything is; and how tensors of several pieces lie."""
    found: dict[str, list[ChunkStorageMetadata]] = {}
    whole: dict[str, torch.Size] = {}
    for rank, plan in enumerate(plans):
        here = set()
        for item in plan.items:
            name, t = item.index.fqn, item.tensor_data
            if item.type == WriteItemType.BYTE_IO:
                continue
            if t is None:
                raise Invalid(f"{name}: the plan says nothing of its shape")
            _out(item)
            if name in here:
                raise Unsupported(f"{name}: rank {rank} has several pieces of it, and a generation has one of each tensor from a rank: save it as a DTensor")
            here.add(name)
            found.setdefault(name, []).append(t.chunk)
            whole[name] = t.size
    laid = {}
    for name, chunks in found.items():
        size = whole[name]
        dims = [d for d in range(len(size)) if any(c.sizes[d] != size[d] for c in chunks)]
        if dims:
            laid[name] = _Laid(tuple(f"shard({d})" for d in dims), tuple(len({c.offsets[d] for c in chunks}) for d in dims))
        elif len(chunks) > 1:
            laid[name] = _Laid(("replicate",), (len(chunks),))
    return laid


def _names(items: Iterable[WriteItem]) -> dict[str, str]:
    """The whole names of tensors whose names are too long for a region, by those that they have as regions."""
    names = (item.index.fqn for item in items)
    return {s: name for name in names if (s := short(name)) != name}


def _out(item: WriteItem) -> Out:
    """A tensor as it is written; :class:`Unsupported` names what a generation has no room or word for."""
    name, t = item.index.fqn, item.tensor_data
    assert t is not None
    dtype = str(t.properties.dtype).removeprefix("torch.")
    if not 0 < len(name.encode(errors="replace")) <= MAX_NAME or name in _OURS or not name.isprintable():
        raise Unsupported(f"{name!r}: want a name of 1 to {MAX_NAME} bytes that can be printed, and none of {', '.join(sorted(_OURS))}: name the entry otherwise")
    if dtype not in generations.CODES:
        remedy = "torch.view_as_real makes pairs of it" if t.properties.dtype.is_complex else "view it as uint8, or convert it"
        raise Unsupported(f"{name}: generations have no tensors of {dtype}: {remedy}")
    if len(t.chunk.sizes) > MAX_DIMS:
        raise Unsupported(f"{name}: {len(t.chunk.sizes)} dimensions, at most {MAX_DIMS}: reshape it")
    return Out(short(name), dtype, tuple(t.chunk.sizes))


def _nbytes(item: WriteItem) -> int:
    return 0 if (t := item.tensor_data) is None else t.chunk.sizes.numel() * t.properties.dtype.itemsize


def _bytes(item: WriteItem, out: Out, planner: SavePlanner) -> memoryview:
    t = planner.resolve_data(item)
    if not isinstance(t, torch.Tensor) or tuple(t.shape) != out.shape or str(t.dtype) != f"torch.{out.dtype}":
        have = f"{t.dtype} of shape {tuple(t.shape)}" if isinstance(t, torch.Tensor) else type(t).__name__
        raise Mismatch(f"{out.name}: the plan has {out.dtype} of shape {out.shape}, the planner gives {have}")
    return _memory(t.detach().to("cpu").resolve_conj().resolve_neg().contiguous())


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """A value that is no tensor, as it is kept."""
    name, made = item.index.fqn, planner.resolve_data(item)
    if not isinstance(made, io.BytesIO):
        raise Mismatch(f"{name}: the plan has a value, the planner gives {type(made).__name__}")
    made.seek(0)
    try:
        value = _kept(torch.load(made, map_location="cpu", weights_only=True))  # the planner has no other word for values than torch's file
    except Exception as err:
        first = str(err).partition("\n")[0][:200]
        raise Unsupported(f"{name}: it can't be kept without pickle: make it of None, bool, int, float, str, bytes, lists, tuples, dicts and tensors ({first})") from err
    capsule.pack(value, name)  # names what can't be kept
    return value


def _kept(v: Any) -> Any:
    """Plain bytes are for this module to keep: it gives them back as bytes and looks no further."""
    return _mapped(v, lambda x: capsule.Opaque(x) if type(x) is bytes else x)


def _given(v: Any) -> Any:
    return _mapped(v, lambda x: bytes(x) if isinstance(x, capsule.Opaque) else x)


def _mapped(v: Any, leaf: Callable[[Any], Any]) -> Any:
    if type(v) is list:
        return [_mapped(x, leaf) for x in v]
    if type(v) is tuple:
        return tuple(_mapped(x, leaf) for x in v)
    if type(v) is dict:
        return {k: _mapped(x, leaf) for k, x in v.items()}
    return leaf(v)


class _Run:
    """The run of a job that this process writes."""

    def __init__(self) -> None:
        self.id = str(uuid.uuid4())
        self.fleet = f"dcp-{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.began = time.time_ns() // 1_000_000

    def begin(self, w: Writer, world: int) -> Attempt:
        if w.step is not None and (type(w.step) is not int or w.step < 0):
            raise Invalid(f"step={w.step!r}: want a number of 0 or more")
        return generations.begin(w.url, w.job, self.id, self.fleet, w.step, world, self.began, versions(), program=w.program, recipients=w.recipients)


#: By process, store and job. Used by one save at a time, as torch's are.
_runs: dict[tuple[int, str, str], _Run] = {}


def _run(url: str, job: str) -> _Run:
    return _runs.setdefault((os.getpid(), url, job), _Run())
