"""Small state without pickle: a tree of plain values, tensors and arrays as one run of bytes.

Layout (little-endian): ``RPCAP001``, u64 length of a JSON text, the JSON text, padding to 64 bytes, the bytes of the blobs,
each at a multiple of 64. In the JSON a plain dict with string keys, a list, a string, a bool, None, an int and a finite float
stand for themselves; everything else is an object with the one key ``$``::

    {"$": "tuple", "v": [...]}       {"$": "dict", "v": [[key, value], ...]}     {"$": "float", "v": "inf"}
    {"$": "counter", "v": [...]}     {"$": "bytes", "at": 0, "n": 3}             {"$": "int", "v": "123456789012345678901"}
    {"$": "tensor" | "array", "dtype": "float32", "shape": [2, 3], "at": 64, "n": 24, "strides": [1, 2]}
    {"$": "ordered", "v": {...} or [[key, value], ...], "meta": ...}

``strides`` count elements, and are there where a tensor or array lies in another order than its shape's: kernels add in the order of memory, so that other strides
are other bits. A dimension of stride 0 is in the bytes once.

Nothing executes on load, lengths are checked before anything is allocated, and what is not in this list is refused with its
path (:class:`replicad.errors.Unsupported`).
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import struct
import sys
from collections import Counter, OrderedDict
from typing import Any

from ..errors import Corrupt, Unsupported

__all__ = ["pack", "unpack"]

MAGIC = b"RPCAP001"
ALIGN = 64
MAX_DEPTH = 64
#: Of a tensor or array; numpy has no more either.
MAX_DIMENSIONS = 64
#: A tensor with gaps between its elements may take so many times the memory of its elements.
LOOSE = 16
#: Element types of tensors. Torch has names of others, of which some end the process when a tensor of them is made from bytes.
TENSORS = frozenset(
    [
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
)
_ARRAY = re.compile(r"[<>|][biufc]\d{1,2}")  # numpy's names of plain types, no others

#: What to make of types that are refused, which would come back as another type.
_PLAIN = (
    (("Size",), "make it a tuple (tuple(x))"),
    (("set", "frozenset"), "make it a list (sorted(x), so that equal sets have equal bytes)"),
    (("deque", "range"), "make it a list (list(x))"),
    (("defaultdict",), "make it a dict (dict(x))"),
    (("dtype", "device"), "make it a text (str(x))"),
    (("complex",), "make it a tuple (x.real, x.imag)"),
    (("Enum",), "make it its value (x.value)"),
)


_TEXT = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
#: Types whose values stand for themselves.
_AS_IT_IS = frozenset((bool, str, type(None)))


def _padded(n: int) -> int:
    return (n + ALIGN - 1) // ALIGN * ALIGN


class _Packer:
    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self.at = 0

    def blob(self, b: bytes) -> dict[str, int]:
        at = self.at
        self.blobs.append(b + bytes(_padded(len(b)) - len(b)))
        self.at += _padded(len(b))
        return {"at": at, "n": len(b)}

    def value(self, v: Any, path: str, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Unsupported(f"{path}: nested deeper than {MAX_DEPTH}: does it contain itself?")
        if v is None or isinstance(v, (bool, str)):
            return str.__str__(v) if isinstance(v, str) else v  # of an enum: its value
        if type(v) is int:
            return v if -(2**53) < v < 2**53 else {"$": "int", "v": str(v)}
        if type(v) is float:
            return v if math.isfinite(v) else {"$": "float", "v": repr(v)}
        if isinstance(v, Counter):
            return {"$": "counter", "v": self.pairs(v, path, depth)}
        if type(v) is dict:
            plain = self.plain(v, path, depth)
            return {"$": "dict", "v": plain} if type(plain) is list else plain
        if type(v) is OrderedDict:
            meta = getattr(v, "_metadata", None)  # of torch's modules: the versions of what is in it
            more = {"meta": self.value(meta, f"{path} _metadata", depth + 1)} if meta is not None else {}
            return {"$": "ordered", "v": self.plain(v, path, depth)} | more
        if type(v) is list:
            return [self.value(x, f"{path}[{i}]", depth + 1) for i, x in enumerate(v)]
        if type(v) is tuple:
            return {"$": "tuple", "v": [self.value(x, f"{path}[{i}]", depth + 1) for i, x in enumerate(v)]}
        if isinstance(v, Opaque):
            return {"$": "bytes"} | self.blob(bytes(v))
        if isinstance(v, (bytes, bytearray)):
            raise Unsupported(f"{path}: {len(v)} bytes of an unknown format: wrap them in replicad.Opaque if loading them is safe")
        return self.other(v, path)

    def plain(self, v: dict[Any, Any], path: str, depth: int) -> Any:
        if all(type(k) is str for k in v) and "$" not in v:
            return {k: x if type(x) in _AS_IT_IS else self.value(x, f"{path}.{k}", depth + 1) for k, x in v.items()}
        return self.pairs(v, path, depth)

    def pairs(self, v: dict[Any, Any], path: str, depth: int) -> list[Any]:
        out = []
        for k, x in v.items():
            if type(k) not in (str, int, bool, float, tuple, type(None)):
                raise Unsupported(f"{path}: a key of type {type(k).__name__}: use strings or numbers")
            out.append([self.value(k, f"{path} key", depth + 1), self.value(x, f"{path}[{k!r}]", depth + 1)])
        return out

    def other(self, v: Any, path: str) -> Any:
        torch, np = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(v, torch.Tensor):
            if v.dim() > MAX_DIMENSIONS:
                raise Unsupported(f"{path}: a tensor of {v.dim()} dimensions, at most {MAX_DIMENSIONS}: reshape it")
            if v.layout != torch.strided or v.is_quantized or type(v) not in (torch.Tensor, torch.nn.Parameter):
                raise Unsupported(f"{path}: a tensor of type {type(v).__name__}, layout {v.layout}: register its inner tensors")
            if (dtype := str(v.dtype).removeprefix("torch.")) not in TENSORS:
                raise Unsupported(f"{path}: a tensor of {dtype}: view it as uint8")
            t, strides = v.detach(), list(v.stride())
            more = {} if not v.numel() or strides == _in_a_row(v.shape) else {"strides": _held(v, strides, path)}
            if more:  # what repeats itself is there once
                for d in (d for d, s in enumerate(strides) if not s):
                    t = t.narrow(d, 0, 1)
            flat = t.to("cpu").resolve_conj().resolve_neg().contiguous().reshape(-1)
            raw = bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
            return {"$": "tensor", "dtype": dtype, "shape": list(v.shape)} | more | self.blob(raw)
        if np is not None and (type(v) is np.ndarray or isinstance(v, np.generic)) and v.dtype.kind in "biufc":
            kind = "array" if isinstance(v, np.ndarray) else "scalar"
            dense = v.copy(order="K") if v.ndim > 1 and not v.flags.c_contiguous else v  # as numpy copies: in the order of memory, without gaps
            more = {} if dense.flags.c_contiguous else {"strides": [s // v.itemsize for s in dense.strides]}
            return {"$": kind, "dtype": v.dtype.str, "shape": list(v.shape)} | more | self.blob(v.tobytes())
        what = f"{type(v).__module__}.{type(v).__qualname__}"
        remedy = "give it a state_dict of plain values and tensors, or leave it out and rebuild it"
        for kinds, plain in _PLAIN:
            if any(c.__qualname__ in kinds and c.__module__ in ("builtins", "collections", "enum", "torch") for c in type(v).__mro__):
                remedy = f"{plain} in state_dict, and what it was again in load_state_dict"
                break
        else:
            if np is not None and isinstance(v, np.ndarray):
                remedy = "make it an array of numbers (numpy.asarray(x), with a mask beside it) in state_dict, and what it was again in load_state_dict"
            elif isinstance(v, dict):
                remedy = "make it a dict (dict(x)) in state_dict, and what it was again in load_state_dict"
            elif isinstance(v, tuple):
                remedy = "make it a tuple or list (tuple(x)) in state_dict, and what it was again in load_state_dict"
        raise Unsupported(f"{path}: {what} can't be kept without pickle: {remedy}")


def _in_a_row(shape: Any) -> list[int]:
    """The strides of what lies in the order of its shape, as torch makes them."""
    out = [1] * len(shape)
    for d in range(len(shape) - 1, 0, -1):
        out[d - 1] = out[d] * max(1, shape[d])
    return out


def _held(t: Any, strides: list[int], path: str) -> list[int]:
    """The strides of a tensor; :class:`Unsupported` where they are not to be had again."""
    what = f"{path}: a tensor of shape {tuple(t.shape)} with strides {tuple(strides)}"
    if not _apart(t.shape, strides):
        raise Unsupported(f"{what} overlaps itself: keep a copy (.contiguous() in state_dict)")
    if _span(t.shape, strides) > LOOSE * _elements(t.shape, strides):
        raise Unsupported(f"{what} is a small part of the memory that it lies in: keep a copy, and train with it (.contiguous(), as the order in memory decides on the last bits)")
    return strides


def _apart(shape: Any, strides: list[int]) -> bool:
    """Whether no two elements are in one place, but for dimensions of stride 0."""
    end = 0
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1 and s):
        if stride <= end:
            return False
        end += stride * (size - 1)
    return True


def _span(shape: Any, strides: list[int]) -> int:
    """How many elements there are from the first to the last, in memory."""
    return 1 + sum(s * (int(n) - 1) for s, n in zip(strides, shape, strict=True))


def _elements(shape: Any, strides: list[int]) -> int:
    """How many elements are in places of their own."""
    return math.prod(int(n) for s, n in zip(strides, shape, strict=True) if s)


class Opaque(bytes):
    """Bytes that a user vouches for: loading them executes nothing."""


def pack(tree: Any, path: str = "state") -> bytes:
    """Encodes a tree; :class:`Unsupported` names the path of what can't be."""
    p = _Packer()
    text = _TEXT(p.value(tree, path)).encode()
    head = MAGIC + struct.pack("<Q", len(text)) + text
    return head + bytes(_padded(len(head)) - len(head)) + b"".join(p.blobs)


class _Unpacker:
    def __init__(self, blobs: memoryview) -> None:
        self.blobs = blobs
        self.at = 0  # of the next blob: each is used once, in order, so what is decoded is no larger than the capsule

    def blob(self, v: dict[str, Any]) -> memoryview:
        at, n = v.get("at"), v.get("n")
        if type(at) is not int or type(n) is not int or at != self.at or n < 0 or at + n > len(self.blobs):
            raise Corrupt(f"capsule: a blob at {reprlib.repr(at)} of {reprlib.repr(n)} bytes in {len(self.blobs)}, want the one at {self.at}")
        self.at += _padded(n)
        return self.blobs[at : at + n]

    def value(self, v: Any, depth: int = 0) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise Corrupt(f"capsule: nested deeper than {2 * MAX_DEPTH}")
        if isinstance(v, list):
            return [self.value(x, depth + 1) for x in v]
        if not isinstance(v, dict):
            return v
        kind = v.get("$")
        if kind is None:
            return {k: self.value(x, depth + 1) for k, x in v.items()}
        inner: Any = v.get("v")
        if kind == "ordered":
            return self.ordered(v, depth)
        if kind in ("dict", "counter", "tuple"):
            if not isinstance(inner, list):
                raise Corrupt(f"capsule: a {kind} of {type(inner).__name__}")
            items = [self.value(x, depth + 1) for x in inner]
            if kind == "tuple":
                return tuple(items)
            if not all(isinstance(x, list) and len(x) == 2 for x in items):
                raise Corrupt(f"capsule: a {kind} whose items are not pairs")
            try:
                return Counter(dict(items)) if kind == "counter" else dict(items)
            except TypeError as err:
                raise Corrupt(f"capsule: a {kind} with a key that can't be one: {str(err)[:200]}") from None
        if kind in ("int", "float"):
            try:
                return int(inner) if kind == "int" else float(inner)
            except (TypeError, ValueError, OverflowError):
                raise Corrupt(f"capsule: {kind} {reprlib.repr(inner)}") from None
        if kind == "bytes":
            return Opaque(self.blob(v))
        return self.array(kind, v)

    def ordered(self, v: dict[str, Any], depth: int) -> Any:
        inner = v.get("v")
        if isinstance(inner, list):
            inner = {"$": "dict", "v": inner}
        elif not isinstance(inner, dict) or "$" in inner:
            raise Corrupt(f"capsule: an ordered dict of {type(inner).__name__}")
        out = OrderedDict(self.value(inner, depth + 1))
        if "meta" in v:
            vars(out)["_metadata"] = self.value(v["meta"], depth + 1)
        return out

    def array(self, kind: Any, v: dict[str, Any]) -> Any:
        dtype, shape, b = v.get("dtype"), v.get("shape"), self.blob(v)
        what = f"of dtype {reprlib.repr(dtype)} and shape {reprlib.repr(shape)}"
        # Capped before they are multiplied: products of long numbers take minutes.
        if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(type(d) is int and 0 <= d < 2**63 for d in shape):
            raise Corrupt(f"capsule: a {reprlib.repr(kind)} {what}")
        strides = v.get("strides")
        if strides is not None:
            what += f" with strides {reprlib.repr(strides)}"
            if not isinstance(strides, list) or len(strides) != len(shape) or not all(type(s) is int and 0 <= s < 2**63 for s in strides) or not _apart(shape, strides):
                raise Corrupt(f"capsule: a {reprlib.repr(kind)} {what}")
            if (n := _elements(shape, strides)) < 1 or _span(shape, strides) > LOOSE * n or (kind != "tensor" and n != math.prod(shape)):
                raise Corrupt(f"capsule: a {reprlib.repr(kind)} {what}")
        if kind == "tensor":
            import torch

            t = getattr(torch, dtype, None) if dtype in TENSORS else None
            n = math.prod(shape) if strides is None else _elements(shape, strides)
            if not isinstance(t, torch.dtype) or n * t.itemsize != len(b):
                raise Corrupt(f"capsule: a tensor {what} in {len(b)} bytes")
            try:
                if not len(b):
                    return torch.empty(shape, dtype=t)
                there = torch.frombuffer(bytearray(b), dtype=t)
                return there.reshape(shape) if strides is None else _strided(torch, there, shape, strides)
            except (TypeError, ValueError, RuntimeError) as err:  # sizes beyond what an index can be, say
                raise Corrupt(f"capsule: a tensor {what}: {str(err)[:200]}") from None
        if kind in ("array", "scalar"):
            import numpy as np

            if not _ARRAY.fullmatch(dtype):
                raise Corrupt(f"capsule: an array {what}")
            try:
                a = np.ndarray(shape, dtype=dtype, buffer=bytes(b))
                if strides is not None and a.nbytes == len(b):
                    made = np.ndarray(shape, dtype=dtype, strides=[s * a.itemsize for s in strides])
                    made[...] = a
                    return made
            except (TypeError, ValueError, OverflowError) as err:
                raise Corrupt(f"capsule: an array {what} in {len(b)} bytes: {str(err)[:200]}") from None
            if a.nbytes != len(b):
                raise Corrupt(f"capsule: an array {what} in {len(b)} bytes")
            return a.copy() if kind == "array" else a[()]
        raise Corrupt(f"capsule: unknown kind {reprlib.repr(kind)}")


def _strided(torch: Any, there: Any, shape: list[int], strides: list[int]) -> Any:
    """A tensor over memory of its own in which its elements lie as they lay."""
    memory = torch.empty(_span(shape, strides), dtype=there.dtype)
    once = [n if s else 1 for s, n in zip(strides, shape, strict=True)]
    memory.as_strided(once, strides).copy_(there.reshape(once))
    return memory.as_strided(shape, strides)


def unpack(b: bytes | bytearray | memoryview) -> Any:
    """Decodes what :func:`pack` made; :class:`Corrupt` for anything else. Bytes after the last blob are ignored."""
    b = memoryview(b).cast("B")
    if len(b) < 16 or bytes(b[:8]) != MAGIC:
        raise Corrupt(f"capsule: {len(b)} bytes that begin with {bytes(b[:8])!r}, want {MAGIC!r}")
    (n,) = struct.unpack("<Q", b[8:16])
    if n > len(b) - 16:
        raise Corrupt(f"capsule: a text of {n} bytes in {len(b)}")
    try:
        tree = json.loads(bytes(b[16 : 16 + n]))
    except (ValueError, RecursionError) as err:
        raise Corrupt(f"capsule: {err}") from None
    return _Unpacker(b[min(_padded(16 + n), len(b)) :]).value(tree)
