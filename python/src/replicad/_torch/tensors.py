"""Tensors of the training state as what is kept of them: dense memory by name and address.

A tensor that is a wrapper around others (quantised, sharded, two in one) is kept by its inner tensors. What is neither dense nor
says what it is made of is refused with its name.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from .._core.native import DTYPES
from .._core.region import Region
from ..errors import Unsupported

__all__ = ["Leaf", "dense", "leaves", "orders", "regions", "short", "some"]

#: Where the memory of a leaf may lie. What is not host memory has a stage there (:mod:`replicad._torch.staging`).
DEVICES = ("cpu", "cuda")
#: So many names are in a message.
MOST = 4


@dataclass(frozen=True)
class Leaf:
    """A dense tensor of the training state. ``changes`` and ``private`` are as in :class:`replicad._core.region.Region`."""

    name: str
    tensor: torch.Tensor
    changes: str
    private: bool = False

    def __post_init__(self) -> None:
        if why := refusal(self.tensor):
            raise Unsupported(f"{self.name}: {why}")

    @property
    def local(self) -> torch.Tensor:
        """Its memory on this rank."""
        return self.tensor.detach()


def leaves(name: str, t: torch.Tensor, changes: str, private: bool = False) -> Iterator[Leaf]:
    """The dense tensors that a tensor consists of on this rank: itself; the shard of a DTensor, by the DTensor's name; those of
    another wrapper subclass, by the names of its attributes. What such a class says besides (``__tensor_flatten__``'s context: block
    sizes, shapes) is made anew by the program, as shapes are."""
    if (shard := getattr(t, "_local_tensor", None)) is not None:
        yield from leaves(name, shard, changes, private)
    elif hasattr(type(t), "__tensor_flatten__"):
        for attribute in t.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            yield from leaves(f"{name}.{attribute}", getattr(t, attribute), changes, private)
    else:
        yield Leaf(name, t, changes, private)


def refusal(t: torch.Tensor) -> str:
    """Why the memory of a tensor can't be kept as it lies, and what helps; empty if it can."""
    if torch.nn.parameter.is_lazy(t):
        return "has no shape yet: run a forward first"
    if t.layout != torch.strided or t.is_quantized:
        return f"layout {t.layout}, {t.dtype}: use the dense tensors that it is made of"
    if type(t).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and type(t).__torch_dispatch__ is not torch.nn.Parameter.__torch_dispatch__:
        return f"a {type(t).__qualname__} does not say which tensors it is made of: it needs __tensor_flatten__ and __tensor_unflatten__"
    if t.device.type not in DEVICES:
        return f"lies on the device {t.device}: " + ("give it memory first (to_empty)" if t.is_meta else f"only {' and '.join(DEVICES)} are supported")
    if not dense(t):
        return f"shape {tuple(t.shape)} with strides {t.stride()} has gaps or overlaps itself: make it contiguous"
    return ""


def dense(t: torch.Tensor) -> bool:
    """Whether a tensor fills its span of memory without gaps and overlaps, in whatever order of dimensions."""
    if t.is_contiguous():
        return True
    want = 1
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n != 1):
        if stride != want:
            return False
        want *= size
    return True


def orders(of: Iterable[Leaf]) -> dict[str, list[int]]:
    """The order of dimensions in memory, the outermost first, of tensors that keep another one than their shape's, by the names of their regions."""
    return {short(leaf.name): sorted(range(t.dim()), key=lambda d: -t.stride()[d] if t.shape[d] != 1 else 0) for leaf in of if not (t := leaf.local).is_contiguous()}


def regions(of: Iterable[Leaf]) -> list[Region]:
    """Regions of CPU tensors by address. A tensor that lies within another's memory (tied weights) is registered once."""
    out: list[Region] = []
    starts: list[int] = []  # of what is registered, in order; no two of them overlap
    spans: list[tuple[int, Leaf]] = []  # end and leaf, beside
    for leaf in of:
        t = leaf.local
        nbytes = t.numel() * t.element_size()
        if nbytes == 0:
            continue
        if t.device.type != "cpu":
            raise Unsupported(f"{leaf.name}: lies on the device {t.device}: register its stage in host memory")
        start, end = t.data_ptr(), t.data_ptr() + nbytes
        at = bisect.bisect_right(starts, start)
        for began, (ended, other) in zip(starts[max(at - 1, 0) : at + 1], spans[max(at - 1, 0) : at + 1], strict=True):
            if began <= start and end <= ended:
                if other.changes == "never" != leaf.changes:
                    raise Unsupported(f"{leaf.name}: shares the memory of {other.name}, which is frozen: set requires_grad on both, or on neither")
                break
            if start < ended and began < end:
                raise Unsupported(f"{leaf.name}: shares a part of its memory with {other.name}: register the whole that both are views of")
        else:
            starts.insert(at, start)
            spans.insert(at, (end, leaf))
            dtype, shape = _typed(t)
            out.append(Region(name=short(leaf.name), address=start, nbytes=nbytes, dtype=dtype, shape=shape, private=leaf.private, changes=leaf.changes, keep=t))
    return out


def _typed(t: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Type and shape of a region: complex numbers are pairs, and types that regions have no name for are bytes."""
    dtype, shape = str(t.dtype).removeprefix("torch."), tuple(t.shape)
    if t.is_complex():
        dtype, shape = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}[dtype], (*shape, 2)
    return (dtype, shape) if dtype in DTYPES else ("uint8", (t.numel() * t.element_size(),))


def short(name: str) -> str:
    """What a region is called: names beyond 127 bytes keep their end, which tells more, and a digest of the whole."""
    raw = name.encode(errors="surrogatepass")  # a short name that is no text is refused as a region
    if len(raw) <= 127:
        return name
    return f"{hashlib.sha256(raw).hexdigest()[:16]}~{raw[-110:].decode(errors='ignore')}"


def some(names: list[str]) -> str:
    """The first of the names, and how many more there are."""
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")
