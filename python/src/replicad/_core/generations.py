"""Generations of the durable tier, read and written by a Python program. No torch here, and no store: `replicad ckpt pipe` speaks to stores, and this to
that program, over its standard input and output (internal/durable/pipe has the protocol).

A :class:`Generation` is open for reading, and kept by a lease until it is closed. :func:`begin`, :func:`put` and :func:`commit` write one.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import io
import json
import math
import os
import shutil
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Corrupt, Error, Gone, Invalid, Refused, Version

__all__ = ["Attempt", "Generation", "Out", "Piece", "Run", "Tensor", "begin", "box", "commit", "prefixes", "put"]

#: Of a line, in bytes; and of reads that are asked for before one is answered (pipe.MaxLine, pipe.MaxAhead).
MAX_LINE = 64 << 20
MAX_AHEAD = 64
#: Of what is asked for ahead, in bytes: more keeps the program no busier.
BYTES_AHEAD = 64 << 20
#: What the kernel keeps of a pipe, in bytes: more is moved by one call.
ROOM = 1 << 20
#: Seconds that the program has to end when it was asked to: it takes its lease back.
PATIENCE = 10.0

#: Element types: safetensors' names, and those that torch and numpy share.
DTYPES = {
    "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "BOOL": "bool", "U16": "uint16", "U32": "uint32", "U64": "uint64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "C64": "complex64", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4_X2": "float4_e2m1fn_x2",
}  # fmt: skip
CODES = {name: code for code, name in DTYPES.items()}


@dataclass(frozen=True)
class Piece:
    """What one group, or one rank, has of a tensor. ``at`` is where it begins in the whole; None: it is the whole, or nobody knows."""

    part: str  # group, frozen or private
    index: int  # the group's number; of private ones the rank's
    name: str  # of the region
    shape: tuple[int, ...]
    at: tuple[int, ...] | None
    nbytes: int
    place: tuple[int, int] = (0, 0)  # which file, and which byte of it: to read in order


@dataclass(frozen=True)
class Tensor:
    """A tensor over all ranks. ``shape`` is the whole's; None: the program did not say how the pieces belong together."""

    name: str
    dtype: str
    kind: str  # window, volatile, frozen or private
    shape: tuple[int, ...] | None
    placements: tuple[str, ...]
    mesh: tuple[int, ...]
    pieces: tuple[Piece, ...]
    called: str = ""  # the program's own name, where it is too long for a region


@dataclass(frozen=True)
class Out:
    """A tensor that is written: ``nbytes`` of ``dtype``."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Attempt:
    """A generation that is being written: what each rank and the coordinator go on with."""

    url: str
    job: str
    id: str  # of the run
    fleet: str
    world: int
    plain: dict[str, Any]  # what the program calls it
    recipients: tuple[str, ...] = ()  # to whom it is encrypted; none: as REPLICAD_RECIPIENTS says


# -- the program --------------------------------------------------------------------------------------------------------


def binary(program: str | None = None) -> str:
    """The `replicad` program: as given, as REPLICAD names it, the launcher's, on the path, or beside this interpreter, where the wheel puts it."""
    beside = Path(sys.executable).with_name("replicad")
    found = program or os.environ.get("REPLICAD") or os.environ.get("REPLICAD_PROGRAM") or shutil.which("replicad") or (str(beside) if beside.is_file() else None)
    if found is None:
        raise Gone("no replicad program on the path, which reads and writes generations: install the wheel, or set REPLICAD to the program")
    return found


class _Pipe:
    """A running `replicad ckpt pipe`."""

    def __init__(self, url: str, program: str | None, recipients: Sequence[str] = ()) -> None:
        if not isinstance(url, str) or not url or "\0" in url:
            raise Invalid(f"{url!r} names no store: want a directory, file:///..., s3://..., gs://... or az://...")
        self.command = f"replicad ckpt pipe {url}"
        path = binary(program)
        try:
            # In a session of its own: an interrupt from the terminal is this process's to handle, which then closes the pipe.
            to = [f"--recipient={r}" for r in recipients]
            self._process = subprocess.Popen([path, "ckpt", "pipe", *to, "--", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        except OSError as err:
            raise Gone(f"{path} can't be started: {err}: install the wheel, or set REPLICAD to the program") from err
        assert isinstance(self._process.stdin, io.BufferedWriter)
        assert isinstance(self._process.stdout, io.BufferedReader)
        self._in, self._out = self._process.stdin, self._process.stdout
        for end in (self._in, self._out):
            with contextlib.suppress(OSError):  # more than a user may have
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, ROOM)
        self._end = weakref.finalize(self, _end, self._process)

    def ask(self, request: dict[str, Any], body: Iterable[memoryview] = ()) -> None:
        line = json.dumps(request, ensure_ascii=True, separators=(",", ":")).encode()
        if len(line) >= MAX_LINE:
            raise Invalid(f"{self.command}: a request of {len(line)} bytes, at most {MAX_LINE}")
        with contextlib.suppress(BrokenPipeError):  # the answer says why, or the program's end does
            self._in.write(line + b"\n")
            self.send(body)

    def send(self, body: Iterable[memoryview]) -> None:
        with contextlib.suppress(BrokenPipeError):
            for part in body:
                self._in.write(part)
            self._in.flush()

    def answer(self) -> dict[str, Any]:
        """The next line; what it says went wrong is raised."""
        line = self._out.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise self._gone()
        try:
            said = json.loads(line)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise Version(f"{self.command} answered {line[:100]!r}: are program and package of one release?")
        if "error" in said:
            raise _KINDS.get(said.get("kind"), Refused)(f"{said['error']}")
        return said

    def fill(self, into: memoryview) -> None:
        if self._out.readinto(into) != len(into):
            raise self._gone()

    def _gone(self) -> Error:
        self._in_closed()
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return Gone(f"{self.command} answers no more: what was read or written is not whole: try again")
        how = f"signal {-status} killed it" if status < 0 else f"it ended with status {status}; what it printed says why"
        return Gone(f"{self.command} is gone: {how}: nothing was committed, and what was being read is not whole: try again")

    def _in_closed(self) -> None:
        with contextlib.suppress(OSError):  # what it holds cannot be sent any more
            self._in.close()

    def close(self) -> None:
        """Has the program end, and waits for it. Doing it again does nothing."""
        if self._end.detach() is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self._in.write(b'{"op":"end"}\n')  # the end of its input would not do where a forked process has the pipe too
        self._in_closed()
        _end(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for end in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if end is not None:
                end.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_KINDS: dict[Any, type[Error]] = {"damage": Corrupt, "usage": Invalid}


# -- reading ------------------------------------------------------------------------------------------------------------


def prefixes(name: str) -> list[str]:
    """What a dotted name lies below."""
    return [name[:i] for i, c in enumerate(name) if c == "."]


class Generation:
    """A generation that is open for reading. It belongs to one thread at a time."""

    def __init__(self, url: str, pipe: _Pipe, said: dict[str, Any]) -> None:
        self._pipe = pipe
        self.url = url
        self.root: str = said["root"]  # of the store
        self.where: str = said["where"]
        self.run: str = said["run"]
        self.commit: dict[str, Any] = said["commit"]
        self.job: str = self.commit["job"]
        self.epoch: int = self.commit["generation"]["epoch"]
        self.step: int = self.commit["generation"]["step"]
        self.groups: tuple[int, ...] = tuple(self.commit["layout"]["groups"])
        self.world: int = self.commit["layout"]["world"]
        self.metrics: dict[str, float] = {k: float(v) for k, v in (self.commit.get("metrics") or {}).items()}
        self.notes: dict[str, str] = self.commit.get("notes") or {}
        self.provenance: dict[str, str] = self.commit.get("provenance") or {}
        self.tensors: dict[str, Tensor] = {}
        self._over: set[str] | None = None  # the tensors of which the program said how they lie
        self.private: dict[str, Tensor] = {}
        for t in said["index"].get("tensors") or ():
            tensor = _tensor(t)
            (self.private if tensor.kind == "private" else self.tensors)[tensor.name] = tensor

    @classmethod
    def open(cls, url: str, at: str = "last", job: str | None = None, *, program: str | None = None) -> Generation:
        """Opens one: ``at`` is "last" (the newest that is whole), a step ("1200"; with its epoch "1200.e2"), or "best:METRIC" ("best:METRIC:max" where the
        largest is the best; "best" is "best:loss"). ``url`` may name job, run and generation behind the root, as commands take it."""
        at = at.removeprefix("@")
        pipe = _Pipe(url, program)
        try:
            pipe.ask({"op": "open", "job": job or "", "at": {"last": "", "best": "best:loss"}.get(at, at)})
            pipe.send(())
            return cls(url, pipe, pipe.answer())
        except BaseException:
            pipe.close()
            raise

    def equal(self, name: str) -> bool:
        """Whether a tensor of which the program said nothing is the same in all groups: where it named how others lie, and this is no part of one of those. A
        program that named none may have made the groups by itself, of tensors that differ."""
        if self._over is None:
            self._over = {t.name for t in self.tensors.values() if t.placements}
        return bool(self._over) and not any(prefix in self._over for prefix in prefixes(name))

    def read(self, wanted: Iterable[tuple[Piece, int, memoryview]]) -> None:
        """Fills each buffer from byte ``start`` of a piece on. Many are asked for at once and come in order, so give them in one call; neighbours of a
        part that share a chunk read it once (:attr:`Piece.place` sorts). Each chunk is checked against its digest before a byte of it comes. After an error
        what the buffers hold is not whole, and the generation is closed."""
        for _ in self.fetch(wanted):
            pass

    def fetch(self, wanted: Iterable[tuple[Piece, int, memoryview]]) -> Iterator[None]:
        """As :meth:`read`, a buffer each time. What is asked for ahead is taken from ``wanted`` then, and not before."""
        try:
            yield from self._fetch(iter(wanted))
        except BaseException:
            self.close()
            raise

    def _fetch(self, wanted: Iterator[tuple[Piece, int, memoryview]]) -> Iterator[None]:
        asked: deque[memoryview] = deque()
        ahead = 0
        while True:
            while len(asked) < MAX_AHEAD and ahead < BYTES_AHEAD and (next_ := next(wanted, None)) is not None:
                piece, start, into = next_
                into = into.cast("B")
                self._pipe.ask({"op": "read", "part": piece.part, "index": piece.index, "name": piece.name, "from": start, "bytes": len(into)})
                asked.append(into)
                ahead += len(into)
            if not asked:
                return
            self._pipe.send(())
            into = asked.popleft()
            ahead -= len(into)
            self._receive(into)
            yield

    def _receive(self, into: memoryview) -> None:
        got = 0
        while True:
            n = self._pipe.answer().get("bytes")
            if type(n) is not int or not 0 <= n <= len(into) - got or (n == 0 and got < len(into)):
                raise Version(f"{self._pipe.command} sends {n!r} of {len(into) - got} bytes: are program and package of one release?")
            self._pipe.fill(into[got : got + n])
            got += n
            if got == len(into):
                return

    def load(self, piece: Piece) -> bytearray:
        """A piece whole."""
        b = bytearray(piece.nbytes)
        self.read([(piece, 0, memoryview(b))])
        return b

    def close(self) -> None:
        self._pipe.close()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _tensor(t: dict[str, Any]) -> Tensor:
    part = {"frozen": "frozen", "private": "private"}.get(t["class"], "group")
    pieces = tuple(
        Piece(part, p["index"], t["name"], tuple(p["shape"] or ()), tuple(p["at"]) if p.get("at") is not None else None, p["bytes"], (p["file"], p["from"])) for p in t["pieces"]
    )
    shape = t.get("shape")
    if shape is None and len(pieces) == 1:  # JSON leaves out the shape of a single number
        shape = pieces[0].shape
    return Tensor(
        t["name"],
        DTYPES[t["dtype"]],
        t["class"],
        None if shape is None else tuple(shape),
        tuple(t.get("placements") or ()),
        tuple(t.get("mesh") or ()),
        pieces,
        t.get("whole", t["name"]),
    )


@dataclass(frozen=True)
class Run:
    """Bytes of a piece that are read at once: whole rows of it, of shape ``shape``. ``inner`` of these is wanted, and goes to ``to`` of the box."""

    start: int
    nbytes: int
    shape: tuple[int, ...]
    inner: tuple[slice, ...]
    to: tuple[slice, ...]

    @property
    def whole(self) -> bool:
        """All that is read is wanted."""
        return all(s == slice(0, n) for s, n in zip(self.inner, self.shape, strict=True))


#: Bytes between two rows that are read along rather than asked for apart: a store is asked for chunks of 512 KiB anyway.
GAP = 512 << 10
#: Bytes that are read at once where some of them are not wanted.
MOST = 64 << 20


def box(shape: Sequence[int], itemsize: int, starts: Sequence[int], lengths: Sequence[int]) -> list[Run]:
    """How to read a box of a piece whose elements lie in C order."""
    if 0 in lengths:
        return []
    return list(_box(tuple(shape), itemsize, tuple(starts), tuple(lengths), 0, (), ()))


def _box(shape: tuple[int, ...], itemsize: int, starts: tuple[int, ...], lengths: tuple[int, ...], at: int, above: tuple[int, ...], to: tuple[slice, ...]) -> Iterator[Run]:
    """Runs of a box in what is left of the dimensions, from byte ``at`` on; ``above`` are the dimensions of which one element is looked at."""
    ones = (slice(0, 1),) * len(above)
    if not shape:
        yield Run(at, itemsize, above, ones, to)
        return
    row = math.prod(shape[1:]) * itemsize
    n, first = lengths[0], starts[0]
    inner = math.prod(lengths[1:]) * itemsize
    if inner < row and row - _extent(shape[1:], itemsize, lengths[1:]) >= GAP:
        for i in range(n):  # rows lie so far apart that what is between them costs more than to ask for each
            yield from _box(shape[1:], itemsize, starts[1:], lengths[1:], at + (first + i) * row, (*above, 1), (*to, slice(i, i + 1)))
        return
    most = n if inner == row else max(1, MOST // row)
    within = tuple(slice(s, s + k) for s, k in zip(starts[1:], lengths[1:], strict=True))
    for i in range(0, n, most):
        rows = min(most, n - i)
        whole = tuple(slice(0, k) for k in lengths[1:])
        yield Run(at + (first + i) * row, rows * row, (*above, rows, *shape[1:]), (*ones, slice(0, rows), *within), (*to, slice(i, i + rows), *whole))


def _extent(shape: tuple[int, ...], itemsize: int, lengths: tuple[int, ...]) -> int:
    """Bytes from the first to the last one of a box."""
    strides, stride = [], itemsize
    for n in reversed(shape):
        strides.append(stride)
        stride *= n
    return sum((n - 1) * s for n, s in zip(lengths, reversed(strides), strict=True)) + itemsize


# -- writing ------------------------------------------------------------------------------------------------------------


def begin(
    url: str,
    job: str,
    id: str,
    fleet: str,
    step: int | None,
    world: int,
    began: int,
    made_by: dict[str, str] | None = None,
    *,
    program: str | None = None,
    recipients: tuple[str, ...] = (),
) -> Attempt:
    """Begins generation ``step`` of run ``id`` of a job, which ``fleet`` owns from then on: its name is the same for all generations of the run. None: the step
    after the largest that the job has. ``recipients`` are to whom it is encrypted; without one REPLICAD_RECIPIENTS says."""
    request = {"op": "begin", "job": job, "id": id, "fleet": fleet, "step": step, "world": world, "began": began, "program": made_by or {}}
    return Attempt(url, job, id, fleet, world, _one(url, program, request, recipients), recipients)


def put(attempt: Attempt, rank: int, tensors: Sequence[Out], data: Callable[[], Iterable[memoryview]], layout: bytes, *, program: str | None = None) -> dict[str, Any]:
    """Writes what a rank has: tensors, whose bytes ``data`` gives in their order and is called twice for, since a file begins with the digests of what
    follows; and its layout. The report is :func:`commit`'s."""
    pipe = _Pipe(attempt.url, program, attempt.recipients)
    try:
        listed = [{"name": t.name, "dtype": CODES[t.dtype], "shape": list(t.shape)} for t in tensors]
        pipe.ask({"op": "put", "job": attempt.job, "id": attempt.id, **attempt.plain, "rank": rank, "tensors": listed, "layout": base64.b64encode(layout).decode()}, data())
        if pipe.answer().get("again") is not True:
            raise Version(f"{pipe.command} does not ask for the tensors again: are program and package of one release?")
        pipe.send(data())
        return pipe.answer()
    finally:
        pipe.close()


def commit(
    attempt: Attempt,
    reports: Sequence[dict[str, Any]],
    private: bytes,
    metrics: dict[str, float] | None = None,
    notes: dict[str, str] | None = None,
    provenance: dict[str, str] | None = None,
    *,
    program: str | None = None,
) -> dict[str, Any]:
    """Makes the generation exist, from the reports of all ranks. ``private`` is small state, as a capsule (:data:`STATE`)."""
    said = {k: v if math.isfinite(v) else {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(float(v))] for k, v in (metrics or {}).items()}
    request = {"op": "commit", "job": attempt.job, "id": attempt.id, **attempt.plain, "fleet": attempt.fleet, "reports": list(reports)}
    request |= {"private": base64.b64encode(private).decode(), "metrics": said, "notes": notes or {}, "provenance": provenance or {}}
    return _one(attempt.url, program, request, attempt.recipients)


#: The private region of rank 0 that small state lies in.
STATE = "replicad.dcp"


def _one(url: str, program: str | None, request: dict[str, Any], recipients: Sequence[str]) -> dict[str, Any]:
    pipe = _Pipe(url, program, recipients)
    try:
        pipe.ask(request)
        pipe.send(())
        return pipe.answer()
    finally:
        pipe.close()
