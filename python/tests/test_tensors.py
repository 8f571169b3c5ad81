"""Tensors and arrays in capsules."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from replicad import Invalid, Unsupported
from replicad._core import native as _native
from replicad._core.capsule import pack, unpack
from replicad._torch.tensors import Leaf, orders, regions
from test_capsule import decodes_or_corrupt


def bits(t: Any) -> bytes:
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if t.numel() else b""


DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (2, 0, 3)], ids=str)
def test_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    n = int(np.prod(shape)) * dtype.itemsize
    t = (
        torch.frombuffer(bytearray(b & (1 if dtype == torch.bool else 255) for b in random.Random(1).randbytes(n)), dtype=dtype).reshape(shape)
        if n
        else torch.empty(shape, dtype=dtype)
    )
    got = unpack(pack({"t": [t]}))["t"][0]
    assert got.dtype == dtype
    assert got.shape == t.shape
    assert bits(got) == bits(t)


def test_layouts() -> None:
    base = torch.randn(4, 6, dtype=torch.complex64)
    for t in (base.t(), base[:, ::2], base[1], base.conj(), base.conj().imag, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(3).expand(4, 3)):
        got = unpack(pack(t))
        assert torch.equal(got, t)
        assert bits(got) == bits(t.resolve_conj().resolve_neg())
    p = torch.nn.Parameter(torch.randn(3))
    assert torch.equal(unpack(pack(p)), p.detach())


@pytest.mark.parametrize("t", [torch.eye(3).to_sparse()], ids=["coo"])
def test_sparse_is_refused(t: torch.Tensor) -> None:
    with pytest.raises(Unsupported, match=r"state\.x\[1\]: a tensor of type Tensor, layout"):
        pack({"x": [0, t]})


@pytest.mark.parametrize("dtype", ["bool", "int8", "<i4", ">i4", "uint64", "float16", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,), (2, 0, 3)], ids=str)
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    a = np.array(np.arange(int(np.prod(shape))).reshape(shape) % 2, dtype=dtype)
    got = unpack(pack([a]))[0]
    assert got.dtype == a.dtype
    assert got.shape == a.shape
    assert np.array_equal(got, a)
    got[...] = 0  # a loaded array can be written to


def test_scalars_of_numpy() -> None:
    for v in (np.float64(0.1), np.float32(0.1), np.int64(-3), np.bool_(True), np.complex64(1 + 2j)):
        got = unpack(pack([v]))[0]
        assert type(got) is type(v)
        assert got == v


@pytest.mark.parametrize("a", [np.array(["x"]), np.array([None]), np.array([1], dtype="M8[s]"), np.zeros(2, dtype="i4,f4")], ids=["text", "object", "time", "record"])
def test_arrays_of_other_things(a: Any) -> None:
    with pytest.raises(Unsupported, match=r"state: numpy\.ndarray"):
        pack(a)


def test_every_prefix_and_every_flipped_byte() -> None:
    packed = pack({"t": torch.randn(3, 2, dtype=torch.float64), "e": torch.empty(0, 7), "h": torch.ones(5, dtype=torch.bfloat16), "a": np.arange(5), "s": np.float32(1)})
    for n in range(len(packed)):
        decodes_or_corrupt(packed[:n])
    for i in range(len(packed)):
        for new in {packed[i] ^ 1, packed[i] ^ 0x80, packed[i] ^ 0x0F, 0, ord("9"), ord("q")} - {packed[i]}:
            decodes_or_corrupt(packed[:i] + bytes([new]) + packed[i + 1 :])


def test_dtypes_that_capsules_do_not_know() -> None:
    with pytest.raises(Unsupported, match=r"state\.x: a tensor of bits8: view it as uint8"):
        pack({"x": torch.zeros(8, dtype=torch.uint8).view(torch.bits8)})


@pytest.mark.parametrize("dtype", [k for k, v in vars(torch).items() if isinstance(v, torch.dtype)])
def test_every_name_of_a_dtype_decodes_or_is_corrupt(dtype: str) -> None:
    packed = pack({"t": torch.zeros(8, dtype=torch.uint8)}).replace(b'"uint8"', f'"{dtype}"'.encode())
    body = packed[16:].split(b"}}")[0] + b"}}"
    for shape in (b"[8]", b"[4]", b"[2]", b"[1]", b"[16]"):
        text = body.replace(b"[8]", shape)
        head = packed[:8] + len(text).to_bytes(8, "little") + text
        decodes_or_corrupt(head + bytes(-len(head) % 64) + bytes(64))


def test_regions_of_shared_memory() -> None:
    """Against the rule said plainly: one that lies within another is that one's, any other overlap is refused."""
    rand = random.Random(1)
    base = torch.zeros(64)
    for _ in range(300):
        cuts = [sorted(rand.sample(range(65), 2)) for _ in range(rand.randrange(1, 7))]
        want: list[list[int]] | None = []
        for a, b in cuts:
            if any(x <= a and b <= y for x, y in want):
                continue
            if any(a < y and x < b for x, y in want):
                want = None
                break
            want.append([a, b])
        leaves = [Leaf(f"t{i}", base[a:b], "window") for i, (a, b) in enumerate(cuts)]
        if want is None:
            with pytest.raises(Unsupported, match="shares a part of its memory with t"):
                regions(leaves)
        else:
            assert [[(r.address - base.data_ptr()) // 4, (r.address - base.data_ptr() + r.nbytes) // 4] for r in regions(leaves)] == want


def test_names_that_are_no_text() -> None:
    """A buffer may have any name. What is no UTF-8 is refused as a region; a long one is named by its digest and what is text of it."""
    (region,) = regions([Leaf("model.\udcff", torch.ones(4), "window")])
    with pytest.raises(Invalid, match="its name is not UTF-8"):
        region.fill(_native.Region())
    (region,) = regions([Leaf("model." + "\udcff" + "x" * 127, torch.ones(4), "window")])
    assert region.fill(_native.Region()).endswith(b"~" + b"x" * 110)


def test_orders_in_memory() -> None:
    """Whoever reads a generation without the program must know whose bytes are not in the order of the shape."""
    image = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    of = {
        "plain": torch.zeros(2, 3),
        "image": image,
        "turned": torch.zeros(2, 3, 1).permute(1, 0, 2),
        "one": torch.zeros(4, 1).t(),
        "number": torch.zeros(()),
        "nothing": torch.zeros(0, 3).t(),
    }
    assert orders(Leaf(name, t, "window") for name, t in of.items()) == {"image": [0, 2, 3, 1], "turned": [1, 0, 2]}
