"""The bytes of generator states: one fixed, versioned layout with one encoding for each state, which the Go package ``rng``
reads too. Nothing here touches a live generator; :mod:`replicad.rng` does.

Layout (little-endian): ``RPRNG001``, u32 number of records; each record is u8 place, u8 layout, u16 length of the name, u32
length of the payload, the name (UTF-8), the payload. Records ascend by place and name, python's own is the first, CUDA
devices are named "0", "1", ... without a gap, a seed sequence has the name of the added generator of numpy's that it is of, and
nothing follows the last record.

===  ================  =====  =============================================================================================
 #   layout            bytes  payload
===  ================  =====  =============================================================================================
 1   PYTHON            2512   624 words u32, position u32 (0 to 624), has_gauss u32 (0, 1), gauss f64 (0 where there is none)
 2   RANDOM_STATE      2512   the same, of numpy's legacy generators
 3   MT19937           2500   624 words u32, position u32
 4   PCG64               40   state u128, increment u128 (odd), has_uint32 u32 (0, 1), uinteger u32
 5   PCG64DXSM           40   the same
 6   PHILOX              92   counter 4 u64, key 2 u64, buffer 4 u64, buffer position u32 (0 to 4), has_uint32 u32, uinteger u32
 7   SFC64               40   a, b, c, counter u64, has_uint32 u32, uinteger u32
 8   TORCH_CPU         5056   torch's own: seed u64, left i32, seeded i32, next u64, 624 words u64, normal x, y, rho f64, its
                              valid i32, 4 zeros, float normal f32, its valid u8, 3 zeros
 9   TORCH_CUDA          16   torch's own: seed u64, offset u64 (a multiple of 4)
10   SEEDS           <=4096   ``{"entropy":E,"n_children_spawned":N,"pool_size":N,"spawn_key":[N,...]}`` without a space, E a number or
                              a list of them: what ``spawn()`` of a numpy generator gives next
===  ================  =====  =============================================================================================

A used half of a PCG64 (``uinteger`` where ``has_uint32`` is 0) and the used part of a Philox buffer stay as numpy reports
them, so that ``bit_generator.state`` compares equal after a restore.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import Corrupt

__all__ = ["LAYOUTS", "MAX_NAME", "MAX_RECORDS", "Record", "fault", "pack", "parse", "where"]

MAGIC = b"RPRNG001"
MAX_RECORDS = 1024  #: far above 16 devices and a name for each loader
MAX_NAME = 255
MAX_POOL = 1024  #: numpy mixes a pool in the square of its size

PYTHON, NUMPY, TORCH, CUDA, MEGATRON, NAMED, SEEDS = range(1, 8)  #: places
L_PYTHON, L_RANDOM_STATE, L_MT19937, L_PCG64, L_PCG64DXSM, L_PHILOX, L_SFC64, L_TORCH_CPU, L_TORCH_CUDA, L_SEEDS = range(1, 11)

#: name and size of each layout; of a seed sequence the most that it may have
LAYOUTS = {
    L_PYTHON: ("python", 2512),
    L_RANDOM_STATE: ("RandomState", 2512),
    L_MT19937: ("MT19937", 2500),
    L_PCG64: ("PCG64", 40),
    L_PCG64DXSM: ("PCG64DXSM", 40),
    L_PHILOX: ("Philox", 92),
    L_SFC64: ("SFC64", 40),
    L_TORCH_CPU: ("torch CPU", 5056),
    L_TORCH_CUDA: ("torch CUDA", 16),
    L_SEEDS: ("seed sequence", 4096),
}
_BIT_GENERATORS = (L_MT19937, L_PCG64, L_PCG64DXSM, L_PHILOX, L_SFC64)
_OF_PLACE = {PYTHON: L_PYTHON, NUMPY: L_RANDOM_STATE, TORCH: L_TORCH_CPU, CUDA: L_TORCH_CUDA, MEGATRON: L_TORCH_CUDA, SEEDS: L_SEEDS}

HEAD = struct.Struct("<8sI")
RECORD = struct.Struct("<BBHI")
MT = struct.Struct("<625I")
MT_GAUSS = struct.Struct("<625IId")
PCG = struct.Struct("<16s16sII")
PHILOX = struct.Struct("<10QIII")
SFC = struct.Struct("<4QII")
CUDA_STATE = struct.Struct("<QQ")

AFTER_WORDS = struct.Struct("<IId")
_TORCH_HEAD = struct.Struct("<QiiQ")
_TORCH_TAIL = struct.Struct("<dddiIfB3s")
_ZEROS = bytes(4992)
_ZERO_F64 = bytes(8)


class Record(NamedTuple):
    """The state of one generator."""

    place: int
    layout: int
    name: str
    payload: bytes


def where(place: int, name: str) -> str:
    """A generator's name in messages."""
    return {
        PYTHON: "python's generator",
        NUMPY: "numpy's global generator",
        TORCH: "torch's CPU generator",
        CUDA: f"the generator of CUDA device {name}",
        MEGATRON: f"Megatron's generator {name!r}",
        SEEDS: f"the seed sequence of the generator {name!r}",
    }.get(place, f"the generator {name!r}")


def fault(layout: int, p: bytes) -> str:
    """What no generator of this layout can hold; empty for a sound state."""
    if what := _size_fault(layout, len(p)):
        return what
    if layout in (L_PYTHON, L_RANDOM_STATE):
        return _twister(p) or _gauss(p)
    if layout == L_MT19937:
        return _twister(p)
    if layout in (L_PCG64, L_PCG64DXSM):
        return _half(p) if p[16] & 1 else "an even increment"
    if layout == L_PHILOX:
        (pos,) = struct.unpack_from("<I", p, 80)
        return _half(p) if pos <= 4 else f"buffer position {pos}, want 0 to 4"
    if layout == L_SFC64:
        return _half(p)
    if layout == L_TORCH_CPU:
        return _torch_cpu(p)
    if layout == L_SEEDS:
        return _seeds(p)
    _, offset = CUDA_STATE.unpack(p)
    return f"offset {offset}, want a multiple of 4" if offset % 4 else ""


def _size_fault(layout: int, size: int) -> str:
    name, want = LAYOUTS[layout]
    fits = size <= want if layout == L_SEEDS else size == want
    return "" if fits else f"{size} bytes of a state of {name}, want {'at most ' if layout == L_SEEDS else ''}{want}"


def _twister(p: bytes) -> str:
    pos = int.from_bytes(p[2496:2500], "little")
    if pos > 624:
        return f"position {pos}, want 0 to 624"
    # 19937 bits count: of the first word only the highest.
    return "all words are zero: it would draw zeros for ever" if p[3] < 0x80 and p[4:2496] == _ZEROS[:2492] else ""


def _gauss(p: bytes) -> str:
    _, has, gauss = AFTER_WORDS.unpack_from(p, 2496)
    if has > 1:
        return f"has_gauss {has}, want 0 or 1"
    if not has:
        return "" if p[2504:] == _ZERO_F64 else "a gauss that it says it does not have"
    return "" if math.isfinite(gauss) else f"gauss {gauss}"


def _half(p: bytes) -> str:
    has = int.from_bytes(p[-8:-4], "little")
    return f"has_uint32 {has}, want 0 or 1" if has > 1 else ""


def _torch_cpu(p: bytes) -> str:
    # torch itself checks 0 < left <= 624 and next <= 624 alone, and reads beyond its words when the two disagree.
    _, left, seeded, nxt = _TORCH_HEAD.unpack_from(p)
    if seeded != 1:
        return f"seeded {seeded}, want 1"
    if not ((left == 1 and nxt == 0) or (1 <= nxt <= 624 and left == 625 - nxt)):
        return f"left {left} and next {nxt}, want 1 and 0 (just seeded) or a sum of 625"
    if any(p[at:5016:8] != _ZEROS[:624] for at in (28, 29, 30, 31)):
        return "a word above 32 bits"
    if p[27] < 0x80 and p[32:5016] == _ZEROS[:4984]:
        return "all words are zero: it would draw zeros for ever"
    _, y, _, has, pad, f, has_f, pad3 = _TORCH_TAIL.unpack_from(p, 5016)
    if p[5016:5024] != _ZERO_F64 or p[5032:5040] != _ZERO_F64 or pad or any(pad3):
        return "something in fields that torch leaves zero"
    if has not in (0, 1) or has_f > 1:
        return f"valid marks {has} and {has_f}, want 0 or 1"
    if (not has and p[5024:5032] != _ZERO_F64) or (not has_f and p[5048:5052] != _ZERO_F64[:4]):
        return "a normal sample that it says it does not have"
    return "" if math.isfinite(y) and math.isfinite(f) else f"normal samples {y} and {f}"


def seeds(entropy: int | list[int], n_children_spawned: int, pool_size: int, spawn_key: list[int]) -> bytes:
    """The payload of a seed sequence."""
    fields = {"entropy": entropy, "n_children_spawned": n_children_spawned, "pool_size": pool_size, "spawn_key": spawn_key}
    return json.dumps(fields, separators=(",", ":")).encode()


def _seeds(p: bytes) -> str:
    no = "not the text of a seed sequence"
    try:
        s = json.loads(p)
        if seeds(**s) != p:
            return no  # spaces, another order, numbers written otherwise: a state has one encoding
    except (ValueError, TypeError, RecursionError):
        return no
    entropy, spawned, pool, key = s.values()
    if type(key) is not list:
        return no
    numbers = [*(entropy if type(entropy) is list else [entropy]), spawned, pool, *key]
    if any(type(n) is not int for n in numbers):
        return no
    if min(numbers) < 0:
        return f"{min(numbers)}, want no number below 0"
    if spawned >= 2**32:
        return f"{spawned} children, want fewer than {2**32}"
    return "" if 4 <= pool <= MAX_POOL else f"a pool of {pool}, want 4 to {MAX_POOL}"


def pack(records: Iterable[Record]) -> bytes:
    """The bytes of sound records that ascend by place and name."""
    out: list[bytes] = []
    for place, layout, name, payload in records:
        raw = name.encode()
        out += (RECORD.pack(place, layout, len(raw), len(payload)), raw, payload)
    return HEAD.pack(MAGIC, len(out) // 3) + b"".join(out)


def parse(b: bytes) -> list[Record]:
    """The records of what :func:`pack` made; :class:`Corrupt` for anything else, naming the generator."""
    if len(b) < HEAD.size or b[:8] != MAGIC:
        raise Corrupt(f"generator states: {len(b)} bytes that begin with {bytes(b[:8])!r}, want {MAGIC!r}")
    _, count = HEAD.unpack_from(b)
    if not 1 <= count <= MAX_RECORDS:
        raise Corrupt(f"generator states: {count} records, want 1 to {MAX_RECORDS}")
    records: list[Record] = []
    last, devices, at = (0, b""), 0, HEAD.size
    for i in range(count):
        if len(b) - at < RECORD.size:
            raise Corrupt(f"generator states: record {i} of {count} is cut short")
        place, layout, n, size = RECORD.unpack_from(b, at)
        at += RECORD.size
        if not PYTHON <= place <= SEEDS or layout not in LAYOUTS or n > MAX_NAME:
            raise Corrupt(f"generator states: record {i} has place {place}, layout {layout} and a name of {n} bytes")
        raw = b[at : at + n]
        try:
            name = raw.decode()
        except UnicodeDecodeError as err:
            raise Corrupt(f"generator states: record {i}: name: {err}") from None
        who = where(place, name)
        if what := _size_fault(layout, size):
            raise Corrupt(f"{who}: {what}")
        if len(b) - at < n + size:
            raise Corrupt(f"{who}: {size} bytes of a state of {LAYOUTS[layout][0]}, but {len(b) - at - n} are there")
        if _OF_PLACE.get(place, layout) != layout:
            raise Corrupt(f"{who}: a state of {LAYOUTS[layout][0]}, want {LAYOUTS[_OF_PLACE[place]][0]}")
        if layout == L_SEEDS and place != SEEDS:
            raise Corrupt(f"{who}: a state of {LAYOUTS[layout][0]}, which is none of a generator")
        if place == SEEDS and not any(r.place == NAMED and r.name == name and r.layout in _BIT_GENERATORS for r in records):
            raise Corrupt(f"{who}: no generator of numpy's has that name")
        if (i == 0) != (place == PYTHON):
            raise Corrupt(f"{who}: is record {i}; python's generator, and it alone, is the first")
        if place == CUDA:
            if name != str(devices) or place < last[0]:
                raise Corrupt(f"{who}: want device {devices} here")
            devices += 1
        elif (place <= TORCH) != (not name):
            raise Corrupt(f"{who}: a name of {n} bytes")
        elif (place, raw) <= last:
            raise Corrupt(f"{who}: is there twice or out of order")
        last = (place, raw)
        payload = b[at + n : at + n + size]
        at += n + size
        if what := fault(layout, payload):
            raise Corrupt(f"{who}: {what}")
        records.append(Record(place, layout, name, payload))
    if at != len(b):
        raise Corrupt(f"generator states: {len(b) - at} bytes after the last record")
    return records
