"""What comes from files, peers and shared memory, changed at random: it decodes or it is Corrupt, and never anything else.

The seeds are the same each time. Where a format has a structure the change is one of that structure, so that it reaches what is behind the first
checks. ``REPLICAD_MUTATIONS`` multiplies the rounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
import tracemalloc
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: its generators and tensors are among what is decoded")

import rng_golden
from replicad._core import rngcodec
from replicad._core.capsule import ALIGN, MAGIC, Opaque, pack, unpack
from replicad._torch.state import Capsule
from replicad.errors import Corrupt

ROUNDS = int(os.environ.get("REPLICAD_MUTATIONS", "1"))

#: What a value of JSON is replaced by.
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 63, 64, 65, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 10**300, 1.5, -0.0, 1e308, "", "$", "9" * 5000, "nan", "1e999",
    "\ud800", "\0", "float32", "complex32", "uint8",
    "<f8", ">c16", "|b1", "<f16", "|i0", "<u99", [], {}, [[]], [0], [2**40, 2**40], [1] * 40, [0] * 70, {"$": "tuple", "v": []}, {"$": "int", "v": "7"}, {"$": "dict", "v": []},
    {"$": "counter", "v": [[1, 2]]}, {"$": "tensor"}, {"$": "array"}, {"$": "scalar"}, {"$": "bytes"}, {"$": "float", "v": "-inf"},
    {"$": []}, {"$": {}},
]  # fmt: skip


def nodes(tree: Any) -> list[tuple[Any, Any]]:
    """Each place in a tree of JSON, as the container and the key."""
    found, left = [], [tree]
    while left:
        at = left.pop()
        for key in list(at) if isinstance(at, dict) else range(len(at)):
            found.append((at, key))
            if isinstance(at[key], (dict, list)):
                left.append(at[key])
    return found


def changed(rng: random.Random, tree: Any) -> Any:
    """The tree with up to three places replaced, exchanged, removed or given another name."""
    tree = [json.loads(json.dumps(tree))]
    for _ in range(rng.randrange(1, 4)):
        places = nodes(tree)
        at, key = rng.choice(places)
        other, there = rng.choice(places)
        match rng.randrange(5):
            case 0 | 1:
                at[key] = json.loads(json.dumps(rng.choice(ODD)))
            case 2:
                at[key] = json.loads(json.dumps(other[there]))
            case 3 if isinstance(at, dict):
                at[rng.choice(["$", "v", "at", "n", "dtype", "shape", "x"])] = at.pop(key)
            case 4 if isinstance(at, dict):
                del at[key]
            case _ if type(at[key]) is int:
                at[key] += rng.choice([-1, 1, 64, -64, 8])
    return tree[0] if tree else None


def joined(text: bytes, blobs: bytes) -> bytes:
    head = MAGIC + struct.pack("<Q", len(text)) + text
    return head + bytes(-len(head) % ALIGN) + blobs


def parted(packed: bytes) -> tuple[Any, bytes]:
    (n,) = struct.unpack("<Q", packed[8:16])
    return json.loads(packed[16 : 16 + n]), packed[16 + n + -(16 + n) % ALIGN :]


def sample() -> Any:
    tree: dict[str, Any] = {"a": [1, 2.5, None, True], "b": Opaque(b"0123456789" * 9), "c": (1, (2, "x")), "d": {1: "one", (2, 3): Opaque(b"two")}, "e": 2**70, "f": float("inf")}
    with contextlib.suppress(ImportError):
        import numpy as np

        tree |= {"g": np.arange(6, dtype="<f8").reshape(2, 3), "h": np.float32(2), "i": np.array([], dtype="|b1")}
    with contextlib.suppress(ImportError):
        import torch

        tree |= {"j": torch.arange(6, dtype=torch.bfloat16).reshape(3, 2), "k": torch.empty(0, 4), "l": torch.tensor(1.5 + 2j)}
    return tree


@pytest.mark.filterwarnings("ignore:ComplexHalf support")  # of torch
def test_capsules() -> None:
    tree, blobs = parted(pack(sample()))
    rng, decoded, refused, longest = random.Random(5), 0, 0, 0
    tracemalloc.start()
    try:
        for _ in range(2250 * ROUNDS):
            text = json.dumps(changed(rng, tree)).encode()
            rest = blobs[: rng.randrange(len(blobs) + 1)] if rng.random() < 0.1 else blobs
            try:
                value = unpack(joined(text, rest))
            except Corrupt as err:
                refused += 1
                longest = max(longest, len(str(err)))
            else:
                decoded += 1
                del value
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert min(decoded, refused) > 200, f"{decoded} decoded, {refused} refused"
    assert longest < 400
    assert peak < 4 << 20, f"{peak} bytes at the most for a capsule of {len(blobs)}"


def test_region_of_a_capsule() -> None:
    """The region is memory that a load fills: any length may stand there."""
    state = {"step": 1, "names": ["a", "b"]}
    c = Capsule("small", False, "any", lambda: state)
    good, rng, decoded = bytes(c.buffer), random.Random(6), 0
    for _ in range(3000 * ROUNDS):
        b = bytearray(good)
        n = rng.choice([0, 1, 8, 15, 16, len(b) - 8, len(b), 2**32, 2**63, 2**64 - 1, c.used - 8, rng.randrange(len(b))])
        b[:8] = n.to_bytes(8, "little")
        for _ in range(rng.randrange(3)):
            b[rng.randrange(8, c.used if 8 < c.used <= len(b) else len(b))] = rng.randrange(256)
        c.buffer[:] = b
        with contextlib.suppress(Corrupt):
            c.value()
            decoded += 1
        assert c.used <= c.room
    assert decoded > 100


def records_of(b: bytes) -> list[list[Any]]:
    return [[r.place, r.layout, r.name.encode(), r.payload] for r in rngcodec.parse(b)]


def written(count: int, records: list[list[Any]], rng: random.Random) -> bytes:
    """Records as bytes, whatever is in them; now and then with a length that is not theirs."""
    out = [rngcodec.HEAD.pack(rngcodec.MAGIC, count % 2**32)]
    for place, layout, name, payload in records:
        sizes = [len(name), len(payload)]
        if rng.random() < 0.02:
            sizes[rng.randrange(2)] = rng.choice([0, 1, 255, 2**15, sizes[1] + 1])
        out += [rngcodec.RECORD.pack(place % 256, layout % 256, sizes[0] % 2**16, sizes[1] % 2**32), name, payload]
    return b"".join(out)


def test_generator_states() -> None:
    """What parses is written again as the same bytes: a state has one encoding."""
    rng, parsed, refused = random.Random(7), 0, 0
    for file in ("plain.bin", "full.bin", "python.bin", "seeds.bin"):
        good = records_of((rng_golden.DIR / file).read_bytes())
        for _ in range(250 * ROUNDS):
            records = [list(r) for r in good]
            for _ in range(rng.randrange(1, 3)):
                r = rng.choice(records)
                match rng.randrange(6):
                    case 0:
                        r[rng.randrange(2)] += rng.choice([-1, 1, 7])
                    case 1:
                        r[2] = rng.choice([b"", b"0", b"x" * 255, b"\xff", rng.choice(good)[2]])
                    case 2:
                        r[3] = rng.choice(good)[3]
                    case 3:
                        records.insert(rng.randrange(len(records) + 1), list(rng.choice(records)))
                    case 4 if len(records) > 1:
                        records.remove(r)
                    case _ if r[3]:
                        b = bytearray(r[3])
                        at = rng.choice([rng.randrange(len(b)), len(b) - 1 - rng.randrange(min(16, len(b)))])
                        b[at] = rng.choice([0, 1, 255, rng.randrange(256)])
                        r[3] = bytes(b)
            b = written(len(records) + rng.choice([0] * 20 + [1, -1, 2**31]), records, rng)
            try:
                again = rngcodec.parse(b)
            except Corrupt:
                refused += 1
                continue
            parsed += 1
            assert rngcodec.pack(again) == b
    assert min(parsed, refused) > 100, f"{parsed} parsed, {refused} refused"


def test_the_tree_reaches_every_kind() -> None:
    """The sample has every kind of value that the reader of capsules knows, so that changes reach each."""
    pytest.importorskip("torch")
    pytest.importorskip("numpy")
    tree, _ = parted(pack(sample()))
    kinds = {at["$"] for at, key in nodes([tree]) if key == "$"}
    assert kinds == {"tuple", "dict", "bytes", "int", "float", "array", "scalar", "tensor"}
