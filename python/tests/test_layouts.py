"""What lies on a rank of a sharded model or optimizer: it is registered where the optimizer updates it, by names that wrappers
don't change, and a load of it is what the next forward computes with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecision, OffloadPolicy, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer

import cluster
from ranks import Ranks
from registered import Registered
from replicad import Mismatch, SessionState, Unsupported
from replicad._torch.memory import Memory
from replicad._torch.objects import Objects
from replicad._torch.staging import Staging
from replicad._torch.state import materialise
from replicad._torch.trained import Trained
from replicad._torch.wrappers import reshard
from replicad.parallel import ddp


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as two:
        yield two


class Block(nn.Module):
    """Sizes that two ranks can't share evenly, and a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(self.norm(x)))) * self.scale[0]


class Net(nn.Module):
    """Two blocks between an embedding and a head with the same weights."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, width), nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def fsdp1(model: nn.Module, orig: bool, strategy: str, **more: Any) -> nn.Module:
    mesh = {"device_mesh": init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))} if strategy == "HYBRID_SHARD" else {}
    return FullyShardedDataParallel(
        model, use_orig_params=orig, sharding_strategy=ShardingStrategy[strategy], auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), **mesh, **more
    )


class Job:
    """A model in some layout with its optimizer, and what is registered of them."""

    def __init__(self, layout: str, seed: int, state_dict: str = "") -> None:
        torch.manual_seed(seed)
        kind, *options = layout.split()
        model: Any = Net()
        if "frozen" in options:
            model.embed.weight.requires_grad_(False)
        forward = model
        if kind == "fsdp1":
            mixed = {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)} if "mixed" in options else {}
            forward = model = fsdp1(model, "orig" in options, options[0], **mixed)
        elif kind == "fsdp2":
            offload = CPUOffloadPolicy(pin_memory=False) if "offloaded" in options else OffloadPolicy()
            for block in (*model.blocks, model):
                fully_shard(block, offload_policy=offload)
        else:
            forward = ddp(model)
        if state_dict:
            FullyShardedDataParallel.set_state_dict_type(model, StateDictType[state_dict])
        if kind == "zero":
            optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1, parameters_as_bucket_view="bucket" in options)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        self.forward, self.model, self.optimizer = forward, model, optimizer
        if "forward" in options:
            self.evaluate()
        self.state = Registered(model, optimizer)

    def evaluate(self) -> None:
        with torch.no_grad():
            self.forward(torch.arange(12).view(4, 3) % 7)

    def train(self, first: int, steps: int) -> list[float]:
        losses = []
        for step in range(first, first + steps):
            x = torch.randint(7, (4, 3), generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            loss = self.forward(x).float().square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return losses


LAYOUTS = [
    *(f"fsdp1 {strategy}{orig}" for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD") for orig in ("", " orig")),
    "fsdp1 FULL_SHARD mixed",
    "fsdp1 NO_SHARD mixed orig",
    "fsdp1 FULL_SHARD orig frozen",
    "fsdp1 FULL_SHARD orig forward",
    "fsdp1 SHARD_GRAD_OP forward",
    pytest.param("fsdp2", marks=cluster.fsdp2),
    pytest.param("fsdp2 forward", marks=cluster.fsdp2),
    pytest.param("fsdp2 offloaded", marks=cluster.fsdp2),
    "ddp",
    "zero",
    "zero bucket",
]


def goes_on(rank: int, layout: str) -> None:
    """Trains on from what is registered: in the objects that it was taken from, which have computed with other weights since, and in
    objects that were made anew."""
    job = Job(layout, seed=1)
    job.train(0, 3)
    kept = job.state.read()
    want = job.train(3, 4), job.state.read()
    assert len(set(want[0])) == 4
    assert all(want[1][0][r.name] != kept[0][r.name] for r in job.state.regions if r.changes == "window"), "the registered memory is what the optimizer updates"
    for evaluated in (False, True):
        if evaluated:
            job.evaluate()
        job.state.load(kept)
        assert (job.train(3, 4), job.state.read()) == want
    other = Job(layout, seed=2)
    assert other.state.table == job.state.table
    assert other.state.read() != kept
    other.evaluate()
    other.state.load(kept)
    assert (other.train(3, 4), other.state.read()) == want


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_load_is_what_training_goes_on_with(ranks: Ranks, layout: str) -> None:
    ranks(goes_on, layout)


def unchanged(rank: int, layout: str) -> None:
    """FSDP puts whole parameters in the place of shards in a forward, and leaves some there where no backward follows. That is no change of what is trained."""
    job = Job(layout, seed=1)
    objects = Objects({"model": job.model, "optimizer": job.optimizer}, lambda _: False, False)
    trained = Trained(objects, Memory(Staging(objects.leaves, False, {})))
    for look in (lambda: None, lambda: job.train(0, 2), job.evaluate, lambda: job.train(2, 1), lambda: reshard([job.model])):
        look()
        trained.check()
    job.model.more = nn.Linear(1, 1)
    with pytest.raises(Mismatch, match=r"^model\.more\.weight, model\.more\.bias was not there"):
        trained.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_wrappers_do_is_no_change_of_what_is_trained(ranks: Ranks, layout: str) -> None:
    ranks(unchanged, layout)


def registered(rank: int, layout: str, state_dict: str) -> list[str]:
    job = Job(layout, 1, state_dict)
    before = job.state.read()
    job.model.state_dict()
    assert job.state.read() == before, "gathering a state_dict does not touch the shards"
    return [r.name for r in job.state.regions]


SHARDS = ["model._flat_param", "model.blocks.0._flat_param", "model.blocks.1._flat_param"]
SCALES = ["model.blocks.0.scale", "model.blocks.1.scale"]
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@pytest.mark.parametrize("kind", ["", "FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"])
def test_names_of_fsdp1(ranks: Ranks, kind: str) -> None:
    """They are of the modules that FSDP shards, whatever state_dict the user has chosen. With ``use_orig_params`` the optimizer's state
    is of the original parameters: of a rank, those of which it has elements."""
    for got in ranks(registered, "fsdp1 FULL_SHARD", kind):
        assert got == [*SHARDS, *SCALES, *(f"optim.{p}.{k}" for p in SHARDS for k in MOMENTS)]
    halves = (["norm.weight", "norm.bias", "up.weight", "up.bias"], ["up.bias", "down.weight", "down.bias"])
    for got, mine in zip(ranks(registered, "fsdp1 FULL_SHARD orig", kind), halves, strict=True):
        of = ["model.embed.weight", *(f"model.blocks.{i}.{p}" for i in range(2) for p in mine)]
        assert got == [*SHARDS, *SCALES, *(f"optim.{p}.{k}" for p in of for k in MOMENTS)]


def test_zero_has_the_state_of_its_part(ranks: Ranks) -> None:
    parts = [[n.removeprefix("optim.").removesuffix(".step") for n in got if n.endswith(".step")] for got in ranks(registered, "zero", "")]
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == sorted(f"model.{k}" for k, _ in Net().named_parameters())


def refused(rank: int) -> list[str]:
    """What can't be kept as it is; each says so before anything is changed."""
    said = []
    model: Any = fsdp1(Net(), True, "FULL_SHARD")
    with FullyShardedDataParallel.summon_full_params(model), pytest.raises(SessionState) as found:
        reshard([model])
    said.append(str(found.value))
    overlapping = ZeroRedundancyOptimizer(Net().parameters(), torch.optim.AdamW, lr=0.1, overlap_with_ddp=True)
    with pytest.raises(Unsupported) as what:
        materialise(overlapping)
    return [*said, str(what.value)]


def test_what_is_refused(ranks: Ranks) -> None:
    for summoned, overlapping in ranks(refused):
        assert summoned.startswith("the model: FSDP is in SUMMON_FULL_PARAMS: leave summon_full_params first")
        assert "updates parameters in backward, outside of session.step()" in overlapping
