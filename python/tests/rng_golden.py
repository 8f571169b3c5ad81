"""Golden vectors of generator states, shared with the Go package ``rng``: ``python tests/rng_golden.py`` writes them to
``rng/testdata`` again; a difference from what is checked in is a change of the format, and needs a new version in its magic.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import numpy as np
import torch

from replicad import rng
from replicad._core import rngcodec as codec

DIR = Path(__file__).resolve().parents[2] / "rng" / "testdata"
FAR = 620  # so that the next draws make a twister turn


def named() -> dict[str, object]:
    """One generator of each layout that can be added, each somewhere in its middle."""
    g: dict[str, object] = {"python": random.Random(4), "legacy": np.random.RandomState(5), "torch": torch.Generator().manual_seed(6)}
    for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        g[name] = np.random.Generator(getattr(np.random, name)(7))
        g[name].integers(0, 2**32, 7, np.uint32)  # an odd number: a half is left
    return g


def seeded() -> None:
    """The global generators, with a normal sample left over in each."""
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    for _ in range(FAR):
        random.getrandbits(32)
    np.random.randint(0, 2**32, FAR, np.uint32)
    torch.empty(FAR, dtype=torch.int32).random_()
    random.gauss(0, 1)
    np.random.standard_normal(1)
    torch.randn(1)
    state = torch.get_rng_state()  # no kernel of today leaves a float sample, but the layout has one
    state[5048:5053] = torch.tensor(list(struct.pack("<fB", -0.1, 1)), dtype=torch.uint8)
    torch.set_rng_state(state)


def parts() -> tuple[list[codec.Record], list[str]]:
    """The records of ``full.bin``, and the lines of ``drawn.txt``: what each generator draws next."""
    g = named()
    with rng.preserved():
        try:
            seeded()
            for name, generator in g.items():
                rng.add(name, generator)
            found = codec.parse(rng.get())
            drawn = {
                "python's generator": [random.getrandbits(32) for _ in range(8)],
                "numpy's global generator": np.random.randint(0, 2**32, 8, np.uint32),
                "torch's CPU generator": torch.empty(8, dtype=torch.int32).random_().tolist(),
                "the generator 'python'": [g["python"].getrandbits(32) for _ in range(8)],
                "the generator 'legacy'": g["legacy"].randint(0, 2**32, 8, np.uint32),
                "the generator 'torch'": torch.empty(8, dtype=torch.int32).random_(generator=g["torch"]).tolist(),
            }
            for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
                drawn[f"the generator '{name}'"] = g[name].integers(0, 2**32, 8, np.uint32)
        finally:
            for name in g:
                rng.remove(name)
    records = [r for r in found if r.place < codec.CUDA]
    records += [codec.Record(codec.CUDA, codec.L_TORCH_CUDA, str(i), codec.CUDA_STATE.pack(8 + i, 4 * i)) for i in range(11)]
    for name in ("expert-parallel-rng", "model-parallel-rng"):
        records.append(codec.Record(codec.MEGATRON, codec.L_TORCH_CUDA, name, codec.CUDA_STATE.pack(2718, 2**63)))
    records += [r for r in found if r.place == codec.NAMED]
    lines = [f"{who}: " + " ".join(f"{int(x):08x}" for x in xs) for who, xs in drawn.items()]
    return records, lines


def u32(x: int) -> bytes:
    return struct.pack("<I", x)


def f64(x: float) -> bytes:
    return struct.pack("<d", x)


#: generator; offset in its payload, or from its record's head where negative; bytes; what the refusal says
DAMAGE = [
    ("python's generator", -8, b"\2", "numpy's global generator: a state of python, want RandomState"),
    ("python's generator", -8, b"\6", "it alone, is the first"),
    ("python's generator", -8, b"\0", "has place 0"),
    ("python's generator", -8, b"\7", "a state of python, want seed sequence"),
    ("python's generator", -8, b"\x08", "has place 8"),
    ("python's generator", -7, b"\2", "a state of RandomState, want python"),
    ("python's generator", -7, b"\0", "layout 0"),
    ("python's generator", -7, b"\x0a", "python's generator"),
    ("python's generator", -7, b"\x0b", "layout 11"),
    ("python's generator", -6, b"\0\1", "a name of 256 bytes"),
    ("python's generator", -6, b"\1", "python's generator"),
    ("python's generator", -4, b"\xff\xff\xff\xff", "4294967295 bytes of a state of python, want 2512"),
    ("python's generator", 2496, u32(625), "position 625"),
    ("python's generator", 2500, u32(2), "has_gauss 2"),
    ("python's generator", 2500, u32(0), "a gauss that it says"),
    ("python's generator", 2504, f64(float("nan")), "gauss nan"),
    ("python's generator", 0, bytes(2496), "all words are zero"),
    ("python's generator", 0, b"\xff\xff\xff\x7f" + bytes(2492), "all words are zero"),
    ("numpy's global generator", 2496, u32(2**31), "position 2147483648"),
    ("numpy's global generator", 2504, f64(float("inf")), "gauss inf"),
    ("numpy's global generator", 2500, u32(0), "a gauss that it says"),
    ("torch's CPU generator", 8, u32(0), "left 0"),
    ("torch's CPU generator", 8, u32(624), "left 624 and next"),
    ("torch's CPU generator", 12, u32(0), "seeded 0"),
    ("torch's CPU generator", 12, u32(2), "seeded 2"),
    ("torch's CPU generator", 16, u32(625), "and next 625"),
    ("torch's CPU generator", 20, u32(1), "left "),
    ("torch's CPU generator", 24, bytes(4992), "all words are zero"),
    ("torch's CPU generator", 28, b"\1", "a word above 32 bits"),
    ("torch's CPU generator", 5015, b"\x80", "a word above 32 bits"),
    ("torch's CPU generator", 5016, b"\1", "torch leaves zero"),
    ("torch's CPU generator", 5024, f64(float("-inf")), "normal samples -inf"),
    ("torch's CPU generator", 5032, f64(-0.0), "torch leaves zero"),
    ("torch's CPU generator", 5040, u32(2), "valid marks 2 and 1"),
    ("torch's CPU generator", 5040, u32(0), "a normal sample that it says"),
    ("torch's CPU generator", 5044, u32(1), "torch leaves zero"),
    ("torch's CPU generator", 5048, struct.pack("<f", float("nan")), "normal samples"),
    ("torch's CPU generator", 5052, b"\0", "a normal sample that it says"),
    ("torch's CPU generator", 5052, b"\2", "valid marks 1 and 2"),
    ("torch's CPU generator", 5055, b"\1", "torch leaves zero"),
    ("the generator of CUDA device 3", 8, b"\x0e", "offset 14, want a multiple of 4"),
    ("the generator of CUDA device 3", -1, b"4", "the generator of CUDA device 4: want device 3 here"),
    ("the generator of CUDA device 0", -9, b"\6", "want device 0 here"),
    ("Megatron's generator 'model-parallel-rng'", -18, b"a", "twice or out of order"),
    ("Megatron's generator 'model-parallel-rng'", -18, b"\xff", "name"),
    ("the generator 'MT19937'", 2496, u32(625), "position 625"),
    ("the generator 'MT19937'", 0, bytes(2496), "all words are zero"),
    ("the generator 'PCG64'", 16, b"\0", "an even increment"),
    ("the generator 'PCG64'", 32, u32(2), "has_uint32 2"),
    ("the generator 'PCG64DXSM'", 16, b"\0", "an even increment"),
    ("the generator 'PCG64DXSM'", 32, u32(256), "has_uint32 256"),
    ("the generator 'Philox'", 80, u32(5), "buffer position 5"),
    ("the generator 'Philox'", 84, u32(3), "has_uint32 3"),
    ("the generator 'SFC64'", 32, u32(2), "has_uint32 2"),
    ("the generator 'legacy'", 2500, u32(7), "has_gauss 7"),
    ("the generator 'legacy'", 2504, f64(1.0), "a gauss that it says"),
    ("the generator 'python'", 2496, u32(625), "position 625"),
    ("the generator 'torch'", 8, u32(3), "left 3"),
]


_NO_TEXT = "not the text of a seed sequence"
#: payloads of a seed sequence, and what their refusal says
SEEDS_REFUSED = [
    (b"", _NO_TEXT),
    (b"x", _NO_TEXT),
    (b"[" * 4000, _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":[],"x":0}', _NO_TEXT),
    (b'{"entropy":5,"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"Entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"n_children_spawned":0,"entropy":5,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":[]} ', _NO_TEXT),
    (b'{"entropy": 5,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}{}', _NO_TEXT),
    (b'{"entropy":5.0,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":05,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":-0,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":1e3,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":NaN,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":"5","n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":"\xff","n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":null,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":true,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":[5,[6]],"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":[null],"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":null,"pool_size":4,"spawn_key":[]}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":null}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":0}', _NO_TEXT),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":4,"spawn_key":[null]}', _NO_TEXT),
    (b'{"entropy":-5,"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', "-5, want no number below 0"),
    (b'{"entropy":[1,-2],"n_children_spawned":-1,"pool_size":4,"spawn_key":[-1]}', "-2, want no number below 0"),
    (b'{"entropy":5,"n_children_spawned":4294967296,"pool_size":4,"spawn_key":[]}', "4294967296 children, want fewer than 4294967296"),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":3,"spawn_key":[]}', "a pool of 3, want 4 to 1024"),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":1025,"spawn_key":[]}', "a pool of 1025, want 4 to 1024"),
    (b'{"entropy":5,"n_children_spawned":0,"pool_size":18446744073709551617,"spawn_key":[]}', "a pool of 18446744073709551617, want 4 to 1024"),
    (b'{"entropy":' + b"1" * 4097 + b',"n_children_spawned":0,"pool_size":4,"spawn_key":[]}', "bytes of a state of seed sequence, want at most 4096"),
]


def seeds() -> list[codec.Record]:
    """The records of ``seeds.bin``: seed sequences of every shape, one of them of a child."""
    made = {
        "child": np.random.default_rng(7).spawn(3)[2],
        "list": np.random.Generator(np.random.SFC64([1, 2**70, 0])),
        "long": np.random.Generator(np.random.Philox(2**3000)),
        "number": np.random.default_rng(5),
        "wide": np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence([], pool_size=8, spawn_key=(2**40, 0)))),
    }
    made["number"].spawn(4)
    made["child"].spawn(1)
    with rng.preserved():
        random.seed(0)
        for name, g in made.items():
            rng.add(name, g)
        found = codec.parse(rng.get())
        for name in made:
            rng.remove(name)
    return [r for r in found if r.place in (codec.PYTHON, codec.NAMED, codec.SEEDS)]


def payload_at(records: list[codec.Record]) -> dict[str, int]:
    """Where the payload of each generator begins."""
    out, at = {}, codec.HEAD.size
    for r in records:
        at += codec.RECORD.size + len(r.name.encode())
        out[codec.where(r.place, r.name)] = at
        at += len(r.payload)
    return out


def shortened(patch: bytes) -> str:
    """Hexadecimal, zeros at the end as their number: ``ff+2`` is ``ff0000``."""
    body = patch.rstrip(b"\0")
    return body.hex() + (f"+{len(patch) - len(body)}" if len(body) < len(patch) else "")


def files() -> dict[str, bytes]:
    """Every file of the vectors."""
    records, drawn = parts()
    at = payload_at(records)
    fresh = torch.Generator().manual_seed(2**63)
    plain = [
        codec.Record(codec.PYTHON, codec.L_PYTHON, "", rng._read_python(random.Random(0))),
        codec.Record(codec.NUMPY, codec.L_RANDOM_STATE, "", rng._read_random_state(np.random.RandomState(0))),
        codec.Record(codec.TORCH, codec.L_TORCH_CPU, "", rng._read_torch(fresh)),
    ]
    refused = [f"{at[who] + offset} {shortened(patch)} {reason}" for who, offset, patch, reason in DAMAGE]
    return {
        "full.bin": codec.pack(records),
        "plain.bin": codec.pack(plain),
        "python.bin": codec.pack(plain[:1]),
        "seeds.bin": codec.pack(seeds()),
        "seeds-refused.txt": b"".join(b"%s %s\n" % (payload.hex().encode(), reason.encode()) for payload, reason in SEEDS_REFUSED),
        "drawn.txt": ("\n".join(drawn) + "\n").encode(),
        "refused.txt": ("\n".join(refused) + "\n").encode(),
    }


if __name__ == "__main__":
    for name, content in files().items():
        (DIR / name).write_bytes(content)
        sys.stdout.write(f"{DIR / name}: {len(content)} bytes\n")
