"""What is derived from torch's wrappers against the bytes that ranks really have; and what is kept of a layout."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: layouts are PyTorch's")

from torch import nn

from ranks import Ranks
from replicad import Corrupt, Mismatch
from replicad._core import capsule
from replicad._torch.groups import derive
from replicad._torch.layout import NAME, Layout, Sharded, differ, partition, sharded
from replicad._torch.objects import Objects

WORLD = 4


def model() -> nn.Module:
    """Of distinct numbers, so that no two shards happen to be equal."""
    m = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    with torch.no_grad():
        n = 0
        for p in m.parameters():
            p.copy_(torch.arange(n, n + p.numel()).view_as(p))
            n += p.numel()
    return m


def build(layout: str) -> tuple[Any, Any]:
    """A model and its optimizer in a layout."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    m: Any = model()
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    line = init_device_mesh("cpu", (WORLD,))
    kind, _, rest = layout.partition(" ")
    if kind == "plain":
        pass
    elif kind == "fsdp2":
        fully_shard(m, mesh=line)
    elif kind == "hsdp":
        fully_shard(m, mesh=square)
    elif kind == "tp":  # the other dimension is left to DDP
        parallelize_module(m, square["b"], {"0": ColwiseParallel(), "1": ColwiseParallel()})
    elif kind == "tp+fsdp2":
        parallelize_module(m, square["b"], {"0": ColwiseParallel(), "1": ColwiseParallel()})
        fully_shard(m, mesh=square["a"])
    elif kind == "slice":  # shards over the outer dimension, replicas beside
        fully_shard(m, mesh=square["a"])
    elif kind == "fsdp1":
        how = rest.split()[0]
        mesh = square if "HYBRID" in how else None
        m = FullyShardedDataParallel(m, sharding_strategy=ShardingStrategy[how], use_orig_params="orig" in rest, device_mesh=mesh, device_id=torch.device("cpu"))
    elif kind == "partitions":  # as frameworks cut tensors by themselves
        whole, n = torch.cat([p.detach().flatten() for p in m.parameters()]), torch.distributed.get_rank()
        m = nn.ParameterDict({"piece": nn.Parameter(whole.chunk(WORLD)[n].clone())})
        partition(m["piece"], range(WORLD))
    if kind == "zero":
        return m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.AdamW)
    return m, (Factored if rest == "factored" else torch.optim.AdamW)(m.parameters())


class Factored(torch.optim.SGD):
    """Keeps tensors deeper in its state than torch's own do, and for all parameters together."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"factors": [torch.zeros_like(p), {"left": torch.zeros_like(p)}], "count": torch.zeros(())}
        self.state["all"] = {"mean": torch.zeros_like(p)}


def local(t: Any) -> bytes:
    t = t.to_local() if hasattr(t, "to_local") else t
    return bytes(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()) if t.numel() else b""


def rank(number: int, layouts: list[str]) -> dict[str, Any]:
    """One of four processes: what it derives, and a digest of what it has."""
    told = {}
    for layout in layouts:
        m, o = build(layout)
        found = sharded(WORLD, Objects({"model": m, "optimizer": o}, lambda name: False, False))
        held = hashlib.sha256(b"".join(local(p) + b"|" for p in m.parameters())).hexdigest()
        told[layout] = {"derived": list(derive(WORLD, [s.spread for s in found]) or ()), "held": held, "plain": {s.name: s.plain() for s in found}}
    return told


LAYOUTS = {
    "plain": [0, 0, 0, 0],
    "fsdp2": [0, 1, 2, 3],
    "fsdp2 factored": [0, 1, 2, 3],
    "hsdp": [0, 1, 0, 1],
    "tp": [0, 1, 0, 1],
    "tp+fsdp2": [0, 1, 2, 3],
    "slice": [0, 0, 1, 1],
    "fsdp1 FULL_SHARD": [0, 1, 2, 3],
    "fsdp1 FULL_SHARD orig": [0, 1, 2, 3],
    "fsdp1 HYBRID_SHARD": [0, 1, 0, 1],
    "fsdp1 HYBRID_SHARD orig": [0, 1, 0, 1],
    "fsdp1 NO_SHARD": [0, 0, 0, 0],
    "partitions": [0, 1, 2, 3],
    "zero": [0, 1, 2, 3],
}


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    with Ranks(WORLD) as four:
        return four(rank, list(LAYOUTS))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_are_those_of_the_bytes(told: list[dict[str, Any]], layout: str) -> None:
    """Each rank derives the same groups; ranks of one have the same bytes, and of different ones do not. (A ZeroRedundancyOptimizer's ranks
    differ in its state alone.)"""
    for n in range(WORLD):
        assert told[n][layout]["derived"] == LAYOUTS[layout]
    if layout == "zero":
        return
    held = [told[n][layout]["held"] for n in range(WORLD)]
    assert [held.index(h) for h in held] == [LAYOUTS[layout].index(g) for g in LAYOUTS[layout]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_kept_is_equal_in_a_group_and_differs_between_shards(told: list[dict[str, Any]], layout: str) -> None:
    groups = LAYOUTS[layout]
    for a in range(WORLD):
        for b in range(a):
            same = told[a][layout]["plain"] == told[b][layout]["plain"]
            assert same == (groups[a] == groups[b]) or layout == "zero"


def test_shards_and_offsets(told: list[dict[str, Any]]) -> None:
    for n in range(WORLD):
        weight = told[n]["fsdp2"]["plain"]["model.0.weight"]
        assert weight == {"shape": [8, 8], "local": [2, 8], "offset": [2 * n, 0], "placements": ["shard(0)"], "mesh": [4]}
        assert told[n]["hsdp"]["plain"]["optim.model.0.weight.exp_avg"] == {
            "shape": [8, 8],
            "local": [4, 8],
            "offset": [4 * (n % 2), 0],
            "placements": ["replicate", "shard(0)"],
            "mesh": [2, 2],
        }
        factored = told[n]["fsdp2 factored"]["plain"]
        assert all(factored[f"optim.model.0.weight.{path}"] == weight for path in ("factors.0", "factors.1.left")), "whatever it is called, it is a shard"
        assert factored["optim.own.all.mean"] == factored["model.1.bias"] and "optim.model.0.weight.count" not in factored
        flat = told[n]["fsdp1 FULL_SHARD"]["plain"]["model._flat_param"]
        assert flat == {"shape": [108], "local": [27], "offset": [27 * n], "placements": ["flat shard"], "mesh": [4]}
        assert told[n]["partitions"]["plain"] == dict.fromkeys(("model.piece", "optim.model.piece.exp_avg", "optim.model.piece.exp_avg_sq"), flat)
        assert told[n]["fsdp1 FULL_SHARD orig"]["plain"] == {"model._flat_param": flat}
        assert told[n]["zero"]["plain"].keys() == {"optim"}


# -- what is kept --------------------------------------------------------------------------------------------------------


def shard(name: str, offset: int, placements: tuple[str, ...] = ("shard(0)",)) -> Sharded:
    return Sharded(name, (0, 1), (8, 4), (4, 4), (offset, 0), placements, (2,))


def test_the_same_layout() -> None:
    a, b = Layout([shard("w", 0), shard("v", 4)]), Layout([shard("v", 4), shard("w", 0)])
    assert (a.region.name, a.region.changes, a.region.private, a.room) == (NAME, "never", False, 16384)
    ctypes.memmove(a.buffer, Layout([shard("w", 0), shard("v", 4)]).buffer, a.room)  # as a load does
    a.check()
    assert bytes(a.buffer) == bytes(b.buffer)


def test_another_layout_is_named() -> None:
    now, old = Layout([shard("w", 0), shard("v", 4)]), Layout([shard("w", 4), shard("u", 4)])
    before = bytes(now.buffer)
    ctypes.memmove(now.buffer, old.buffer, now.room)
    with pytest.raises(Mismatch) as err:
        now.check()
    assert "w is (4, 4) at (0, 0) of (8, 4), shard(0) over a mesh of 2, was (4, 4) at (4, 0) of (8, 4), shard(0) over a mesh of 2" in str(err.value)
    assert "u is not sharded, was (4, 4)" in str(err.value)
    assert "v is (4, 4) at (4, 0) of (8, 4), shard(0) over a mesh of 2, was not sharded" in str(err.value)
    assert bytes(now.buffer) == before


def test_a_model_made_anew() -> None:
    kept = Layout([shard("w", 0)])
    kept.replaced([shard("w", 0)])
    with pytest.raises(Mismatch, match=r"the session has another layout: w is .*, was "):
        kept.replaced([shard("w", 0, ("shard(1)",))])


def test_many_differences_are_counted() -> None:
    with pytest.raises(Mismatch, match="; and 12 more: shard the model as it was"):
        Layout([]).replaced([shard(f"w{i}", 0) for i in range(20)])


@pytest.mark.parametrize("kept", [7, {}, {"tensors": 1}, {"tensors": {}, "version": 2}, {"tensors": {"w": "odd"}, "version": 1}], ids=str)
def test_what_is_no_layout_of_this_version(kept: Any) -> None:
    now = Layout([shard("w", 0)])
    text = capsule.pack(kept)
    ctypes.memmove(now.buffer, text + bytes(now.room - len(text)), now.room)
    with pytest.raises((Mismatch, Corrupt), match=r"replicad\.layout|another layout"):
        now.check()


def test_room_grows_with_the_model() -> None:
    big = Layout([shard(f"layers.{i}.weight", 0) for i in range(400)])
    assert big.room == 65536
    assert capsule.unpack(bytes(big.buffer)) == big.own
    with pytest.raises(Mismatch):
        differ(big.own, Layout([]).own)
