"""Capsules: what goes in comes out, what can't is refused with its path, and hostile bytes are Corrupt and nothing else."""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest

from replicad import Corrupt, Opaque, Unsupported
from replicad._core.capsule import MAGIC, MAX_DEPTH, pack, unpack


def same(a: Any, b: Any) -> bool:
    """Equal in type, value and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def text(rng: random.Random) -> str:
    return "".join(rng.choice('abc$"\\\n\0é漢😀\ud800') for _ in range(rng.randrange(8)))


def value(rng: random.Random, depth: int = 0) -> Any:
    """A random tree of all that a capsule takes without torch or numpy."""
    leaves: list[Any] = [
        None, True, False, 0, -1, rng.randrange(-(2**70), 2**70), 2**53, -(2**53), 0.0, -0.0, rng.random(), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300),
        math.inf, -math.inf, math.nan, text(rng), Opaque(rng.randbytes(rng.randrange(200))),
    ]  # fmt: skip
    kind = rng.randrange(9) if depth < 5 else 8
    n = rng.randrange(4)
    if kind == 0:
        return [value(rng, depth + 1) for _ in range(n)]
    if kind == 1:
        return tuple(value(rng, depth + 1) for _ in range(n))
    if kind in (2, 3):
        return {text(rng): value(rng, depth + 1) for _ in range(n)}
    if kind == 4:
        return {rng.choice([1, -7, 2.5, None, "x", (1, "y"), True, 2**60]): value(rng, depth + 1) for _ in range(n)}
    if kind == 5:
        return Counter({text(rng): rng.randrange(9) for _ in range(n)})
    return rng.choice(leaves)


@pytest.mark.parametrize("seed", range(300))
def test_round_trip(seed: int) -> None:
    tree = value(random.Random(seed))
    packed = pack(tree)
    assert same(unpack(packed), tree)
    assert pack(unpack(packed)) == packed, "equal states have equal bytes"
    assert same(unpack(packed + bytes(100)), tree), "a capsule's room is larger than it"
    assert same(unpack(bytearray(packed)), tree)
    assert same(unpack(memoryview(packed)), tree)


def test_the_comparison_can_fail() -> None:
    for a, b in [(0.0, -0.0), (1, True), (1, 1.0), ([1], (1,)), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (Opaque(b"x"), b"x"), (Counter("a"), {"a": 1})]:
        assert not same(a, b)


def test_ordered_dicts_and_enums_of_text() -> None:
    class Mode(str, Enum):
        MIN = "min"

    assert unpack(pack({"mode": Mode.MIN, "groups": OrderedDict([("b", 1), ("a", 2)])})) == {"mode": "min", "groups": {"b": 1, "a": 2}}
    assert list(unpack(pack(OrderedDict([("b", 1), ("a", 2)])))) == ["b", "a"]


class Thing:
    """What pickle would take."""


class Pair(NamedTuple):
    """A tuple with names."""

    a: int
    b: int


def test_refusal_of_torchs_types() -> None:
    torch = pytest.importorskip("torch")
    for value, text in ((torch.Size([1]), "make it a tuple"), (torch.float32, "make it a text"), (torch.device("cpu"), "make it a text")):
        with pytest.raises(Unsupported, match=rf"state\.a: torch\.\w+ can't be kept without pickle: {text}"):
            pack({"a": value})


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"scheduler": [{"lambda": lambda x: x}]}, r"state\.scheduler\[0\]\.lambda: .*function can't be kept without pickle: give it a state_dict"),
        ({"a": (1, {2: Thing()})}, r"state\.a\[1\]\[2\]: .*Thing can't be kept"),
        ({"a": {1, 2}}, r"state\.a: builtins\.set can't be kept without pickle: make it a list \(sorted\(x\)"),
        ({"a": deque()}, r"state\.a: collections\.deque .*make it a list \(list\(x\)\) in state_dict, and what it was again in load_state_dict"),
        ({"a": defaultdict(int)}, r"state\.a: collections\.defaultdict .*make it a dict"),
        ({"a": IntEnum("Number", "ONE")(1)}, r"state\.a: .*Number .*make it its value \(x\.value\)"),
        ({"a": Pair(1, 2)}, r"state\.a: .*Pair .*make it a tuple or list \(tuple\(x\)\)"),
        ({"a": b"raw"}, r"state\.a: 3 bytes of an unknown format: wrap them in replicad\.Opaque"),
        ({"a": 1j}, r"state\.a: builtins\.complex .*make it a tuple \(x\.real, x\.imag\)"),
        ({frozenset(): 1}, r"state: a key of type frozenset"),
        ({(Thing(),): 1}, r"state key\[0\]: .*Thing"),
    ],
)
def test_refusal_names_the_path(tree: Any, path: str) -> None:
    with pytest.raises(Unsupported, match=path):
        pack(tree)


def test_trees_that_contain_themselves() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unsupported, match="does it contain itself"):
        pack(loop)
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert unpack(pack(deep)) == deep
    with pytest.raises(Unsupported):
        pack([deep])


def raw(tree: Any, blobs: bytes = b"") -> bytes:
    """A capsule with any JSON in it."""
    body = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    head = MAGIC + struct.pack("<Q", len(body)) + body
    return head + bytes(-len(head) % 64) + blobs


def decodes_or_corrupt(b: bytes) -> None:
    with contextlib.suppress(Corrupt):
        unpack(b)


def test_every_prefix_and_every_flipped_byte() -> None:
    """Whatever happens to one byte, or to the end, either something decodes or it is Corrupt; and nothing large is made of it."""
    packed = pack({"a": [1, 2.5, None, {"$": "x", "y": math.inf}], "b": Opaque(b"0123456789" * 9), "c": (Counter("aab"), 2**60), "d": {1: "eins", 2: Opaque(b"zwei")}})
    rng = random.Random(1)
    tracemalloc.start()
    try:
        for n in range(len(packed)):
            decodes_or_corrupt(packed[:n])
        with pytest.raises(Corrupt):
            unpack(packed[:-64])
        for i in range(len(packed)):
            for new in {packed[i] ^ 1, packed[i] ^ 0x80, packed[i] ^ 0xFF, 0, 0xFF, ord("9"), rng.randrange(256)} - {packed[i]}:
                decodes_or_corrupt(packed[:i] + bytes([new]) + packed[i + 1 :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, f"{peak} bytes at the most for a capsule of {len(packed)}"


@pytest.mark.parametrize(
    "tree",
    [
        b"[" * 100_000,
        b"[" * 200 + b"]" * 200,
        b'{"$":"int","v":1e999}',
        b'{"$":"int","v":Infinity}',
        b'{"$":"float","v":"' + b"9" * 10 + b'x"}',
        b'{"$":"float","v":' + b"9" * 400 + b"}",
        b"9" * 10_000,
        b"\xff\xfe",
        {"$": "tuple"},
        {"$": "dict", "v": [[1]]},
        {"$": "dict", "v": [[[1], 2]]},
        {"$": "dict", "v": [[{"$": "tuple", "v": [[]]}, 2]]},
        {"$": "counter", "v": {"a": 1}},
        {"$": "bytes", "at": 0, "n": 2**63},
        {"$": "bytes", "at": -64, "n": 64},
        {"$": "bytes", "at": 1, "n": 1},
        {"$": "bytes", "at": True, "n": 1},
        {"$": "bytes", "n": 1},
        [{"$": "bytes", "at": 0, "n": 64}] * 2,  # one blob many times would make much of little
        {"$": "unknown", "at": 0, "n": 0},
        {"$": ["dict"], "v": []},
        {"$": 1, "at": 0, "n": 0},
        {"$": "tensor", "at": 0, "n": 4, "dtype": "load", "shape": [1]},
        {"$": "tensor", "at": 0, "n": 4, "dtype": "float32", "shape": [2]},
        {"$": "tensor", "at": 0, "n": 4, "dtype": "float32", "shape": [-1]},
        {"$": "tensor", "at": 0, "n": 4, "dtype": "float32", "shape": [1.0]},
        {"$": "tensor", "at": 0, "n": 0, "dtype": "float32", "shape": [0, 2**70]},
        {"$": "tensor", "at": 0, "n": 0, "dtype": "float32", "shape": [0, 2**62, 2**62]},
        {"$": "tensor", "at": 0, "n": 4, "dtype": "float32", "shape": [1] * 65},
        {"$": "tensor", "at": 0, "n": 0, "dtype": "float32", "shape": [0, 2**63]},
        {"$": "tensor", "at": 0, "n": 4, "dtype": "x" * 10_000, "shape": [1]},
        {"$": "x" * 10_000, "at": 0, "n": 0},
        {"$": "int", "v": "x" * 10_000},
        {"$": "bytes", "at": "x" * 10_000, "n": 1},
        {"$": "array", "at": 0, "n": 4, "dtype": "<f4", "shape": [1] * 10_000},
        {"$": "array", "at": 0, "n": 8, "dtype": "O", "shape": [1]},
        {"$": "array", "at": 0, "n": 8, "dtype": "|O8", "shape": [1]},
        {"$": "array", "at": 0, "n": 8, "dtype": "<f8,<f8", "shape": [1]},
        {"$": "array", "at": 0, "n": 8, "dtype": "<f3", "shape": [1]},
        {"$": "array", "at": 0, "n": 8, "dtype": "<f8", "shape": [2]},
        {"$": "array", "at": 0, "n": 8, "dtype": "<f8", "shape": []} | {"n": 16},
        {"$": "array", "at": 0, "n": 0, "dtype": "<f8", "shape": [0, 2**70]},
        {"$": "array", "at": 0, "n": 0, "dtype": "<f8", "shape": [0] * 100},
    ],
    ids=lambda tree: repr(tree)[:100],
)
def test_hostile_trees(tree: Any) -> None:
    """8 MB took 107 s and made an error of 8 MB: sizes were multiplied before they were capped."""
    if isinstance(tree, dict) and tree.get("$") == "tensor":
        pytest.importorskip("torch")
    if isinstance(tree, dict) and tree.get("$") == "array":
        pytest.importorskip("numpy")
    with pytest.raises(Corrupt) as info:
        unpack(raw(tree, bytes(64)))
    assert len(str(info.value)) < 400


def test_many_dimensions() -> None:
    torch = pytest.importorskip("torch")
    t = torch.zeros([1] * 64)
    assert unpack(pack({"t": t}))["t"].shape == t.shape
    with pytest.raises(Unsupported, match=r"state\.t: a tensor of 65 dimensions"):
        pack({"t": torch.zeros([1] * 65)})


def test_lengths_beyond_the_end() -> None:
    for n in (2**63, 2**64 - 1, 1000):
        with pytest.raises(Corrupt, match="a text of"):
            unpack(MAGIC + struct.pack("<Q", n) + bytes(100))
    for b in (b"", b"RPCAP001", b"RPCAP002" + bytes(100), bytes(64)):
        with pytest.raises(Corrupt):
            unpack(b)
