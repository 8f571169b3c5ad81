"""What a session says of itself, on real sessions: those of the examples' layouts, and such as lack something."""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import replicad
from conftest import ROOT, Daemon
from replicad import Mismatch, Rank, rng
from replicad._torch import device, explain
from replicad._torch.explain import Explanation, _cuda
from replicad.data import Loader

#: A session over the GPT of the examples, plain or sharded as an argument says; each rank prints what it explains, before anything runs.
PROGRAM = f"""
import argparse, json, os, signal, sys
sys.path.insert(0, {str(ROOT / "examples" / "torch")!r})
import torch
import fsdp, gpt, replicad, sharded
from replicad.store import init_process_group

shards = int(sys.argv[1])
torch.set_num_threads(1)
text = gpt.Text(16)
connection = replicad.connect()
rank, world = connection.number, connection.world
if shards:
    init_process_group(connection)
    training = sharded.Training(fsdp.FSDP2(), argparse.Namespace(seed=1, length=16, width=16, layers=1, steps=10, shards=shards, state_mb=0), world, len(text.alphabet))
    model, optimizer, schedule = training.model, training.optimizer, training.schedule
else:
    torch.manual_seed(1)
    model = gpt.GPT(len(text.alphabet), 16, 16, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1.0)


def say(what):
    if what == "BEFORE":
        os.write(1, f"{{session.explain()}}\\n".encode())
    os.write(1, f"{{what}} {{json.dumps(session.explain().as_dict())}}\\n".encode())


try:
    session = replicad.Session(connection=connection, model=model, optimizer=optimizer, scheduler=schedule, data=replicad.data.Loader(text, 4))
except replicad.Mismatch as err:
    os.write(1, f"MISMATCH {{err}}\\n".encode())
    signal.pause()  # until the test ends the job, which would end by itself where each process of the rank did
say("BEFORE")
session.resume()
if not shards:
    init_process_group(session)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    say("DDP")
    ddp = None
    ddp = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True)
    say("VIEWS")
    ddp = None
    ddp = replicad.parallel.ddp(model, gradient_as_bucket_view=True)
    say("PINNED_VIEWS")
    ddp = None
    ddp = replicad.parallel.ddp(model)
    say("PINNED")
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    say("PLAIN_HOOK")
    ddp = None
    ddp = replicad.parallel.ddp(model, find_unused_parameters=False)
    ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    say("HOOK")
session.leave()
session.close()
"""


def told(out: str, what: str) -> dict[int, dict[str, Any]]:
    """By rank: what it explained."""
    found = [json.loads(text) for text in re.findall(rf"^{what} (.*)$", out, re.M)]
    return {e["rank"]: e for e in found}


def verdict(of: dict[str, Any], what: str) -> dict[str, Any]:
    return dict(next(v for v in of["exact"] if v["what"] == what))


@pytest.mark.parametrize(
    ("world", "shards", "groups", "members"),
    [pytest.param(2, 2, [0, 1], [[0], [1]], id="fsdp"), pytest.param(4, 2, [0, 1, 0, 1], [[0, 2], [1, 3], [0, 2], [1, 3]], id="hsdp", marks=pytest.mark.long)],
)
def test_sharded(daemon: Daemon, world: int, shards: int, groups: list[int], members: list[list[int]]) -> None:
    job = daemon.run(PROGRAM, str(shards), world=world, flags=("--groups", "auto"))
    before = told(job.done(), "BEFORE")
    assert sorted(before) == list(range(world))
    whole = sum(p.numel() for p in sized().parameters()) * 4
    for rank, e in before.items():
        assert e["groups"]["derived"] == groups
        assert e["groups"]["members"] == members[rank]
        assert "shard(0) over a mesh of" in e["groups"]["reason"]
        assert "the ranks name their groups" in e["groups"]["verdict"]["reason"]
        kept = {(k["what"], k["whose"]): k for k in e["kept"]}
        assert abs(kept["parameters", "group"]["bytes"] - whole / shards) <= whole / shards / 10
        assert kept["optimizer state", "group"]["bytes"] >= 2 * kept["parameters", "group"]["bytes"]
        own = kept["small values", "rank"]["bytes"]
        assert e["copies"]["replicas"] == world // shards - 1
        assert e["copies"]["mirrored"] == (own if world > shards else e["capture_bytes"])
        assert e["missing"] == []
        assert e["bit_exact"] is True


def sized() -> nn.Module:
    import sys

    sys.path.insert(0, str(ROOT / "examples" / "torch"))
    import gpt

    return gpt.GPT(len(gpt.Text(16).alphabet), 16, 16, 1)


def test_three_plain_replicas(daemon: Daemon) -> None:
    out = daemon.run(PROGRAM, "0", world=3).done()
    for rank, e in told(out, "BEFORE").items():
        assert (e["rank"], e["world"]) == (rank, 3)
        assert e["groups"]["derived"] == e["groups"]["given"] == [0, 0, 0]
        assert e["copies"]["replicas"] == 2
        assert verdict(e, "sums over ranks")["ok"] is None
        sums = verdict(e, "sums over ranks")
        assert "no DistributedDataParallel of this model is made yet" in sums["reason"]
        assert sums["remedy"].startswith("wrap the model first, with replicad.parallel.ddp(model)")
        assert sums["remedy"].endswith("then call session.explain() again")
        assert e["bit_exact"] is None
    assert len(re.findall(r"^bit-exact +\?  not known yet: what is marked with \? below decides", out, re.M)) == 3
    for e in told(out, "DDP").values():
        assert verdict(e, "sums over ranks")["ok"] is False
        assert "lays its buckets out anew after its first step (find_unused_parameters=False)" in verdict(e, "sums over ranks")["reason"]
        assert e["bit_exact"] is False
    for e in told(out, "VIEWS").values():
        views = verdict(e, "sums over ranks")
        assert views["ok"] is e["bit_exact"] is None
        assert "multiplies gradients by 1/3" in views["reason"]
        assert "replicad.parallel.ddp(model, gradient_as_bucket_view=True)" in views["remedy"]
    for what in ("PINNED", "PINNED_VIEWS", "PLAIN_HOOK"):
        assert len(told(out, what)) == 3
        for e in told(out, what).values():
            assert verdict(e, "sums over ranks")["ok"] is True
            assert e["bit_exact"] is True
    for e in told(out, "HOOK").values():
        assert "what powerSGD_hook carries from step to step in its PowerSGDState is not kept" in verdict(e, "communication hook")["reason"]
        assert e["bit_exact"] is False


#: Sessions over one model in several layouts, one after the other, whose gradients nobody sums yet but where the layout itself does.
LAYOUTS = """
import os, torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
import replicad
from replicad.store import init_process_group

init_process_group(connection := replicad.connect())
square, line = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")), init_device_mesh("cpu", (4,))
columns = {"0": ColwiseParallel(), "2": ColwiseParallel()}


def part_in_fsdp(m):
    fully_shard(m[2], mesh=line)


layouts = {
    "zero": lambda m: None,
    "tensor parallel": lambda m: parallelize_module(m, square["b"], columns) and None,
    "fsdp in each half": lambda m: fully_shard(m, mesh=square["b"]) and None,
    "a part in fsdp": part_in_fsdp,
    "fsdp2": lambda m: fully_shard(m, mesh=line) and None,
    "fsdp2 over tensor parallel": lambda m: fully_shard(parallelize_module(m, square["b"], columns), mesh=square["a"]) and None,
    "fsdp1": lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu")),
    "fsdp1 with originals": lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu"), use_orig_params=True),
    "one replica": lambda m: parallelize_module(m, line, columns) and None,
}


def explained(name, model, optimizer):
    global connection
    session = replicad.Session(connection=connection, model=model, optimizer=optimizer, staging=True)
    for found in (v for v in session.explain().exact if v.what == "sums over ranks"):
        os.write(1, f"SUMS {name}: {found.ok}, {found.reason} -> {found.remedy}\\n".encode())
    session.close()
    connection = replicad.connect()


for name, layout in layouts.items():
    m = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    m = layout(m) or m
    o = ZeroRedundancyOptimizer(m.parameters(), torch.optim.SGD, lr=0.1) if name == "zero" else torch.optim.SGD(m.parameters(), lr=0.1)
    explained(name, m, o)
for name, wrapped in {"one of two models": lambda g, d: g, "both models": lambda g, d: nn.ModuleList([g, d])}.items():
    g, d = nn.Linear(8, 8), nn.Linear(8, 4)
    ddp = replicad.parallel.ddp(wrapped(g, d))
    explained(name, {"g": g, "d": d}, torch.optim.SGD([*g.parameters(), *d.parameters()], lr=0.1))
print("EXPLAINED", flush=True)
import signal; signal.pause()
"""


def test_who_sums_gradients(daemon: Daemon) -> None:
    """That something is sharded says nothing of sums: a ZeroRedundancyOptimizer leaves them to DDP, and so does a mesh that is not of all ranks."""
    job = daemon.run(LAYOUTS, world=4, flags=("--groups", "0,1,2,3"))
    for _ in range(4):
        job.until("EXPLAINED")
    out = job.printed()  # each rank's lines come before its word that it has explained
    job.kill()
    daemon.verb("job", "end", job.name, "--dev")
    unknown = ("zero", "tensor parallel", "fsdp in each half", "a part in fsdp")
    for layout in ("fsdp2", "fsdp2 over tensor parallel", "fsdp1", "fsdp1 with originals", "one replica"):
        assert len(re.findall(f"^SUMS {layout}: True, ", out, re.M)) == 4, out
    for layout in unknown:
        assert (
            len(
                re.findall(
                    rf"^SUMS {layout}: None, 4 ranks, and no DistributedDataParallel of this model is made yet.* -> .*wrap the model first, with replicad.parallel.ddp", out, re.M
                )
            )
            == 4
        ), out
    pinned = "True, DDP over 4 ranks keeps its buckets as they were first laid out -> \n"
    assert len(re.findall(f"^SUMS both models: {pinned}", out, re.M)) == out.count("SUMS both models") == 4
    assert len(re.findall(f"^SUMS one of two models: {pinned}", out, re.M)) == 4
    assert len(re.findall(r"^SUMS one of two models: None, 4 ranks, and no DistributedDataParallel of all of model.d is made yet", out, re.M)) == 4


def test_groups_that_put_shards_together(daemon: Daemon) -> None:
    """It would be a dispute at the first step; it is said before anything is claimed, with the groups that fit."""
    job = daemon.run(PROGRAM, "2", world=2, flags=("--groups", "0,0"))
    text = job.until("MISMATCH")
    assert "ranks 0 and 1 are in one replica group (--groups 0,0), but hold different parts of model." in text
    assert "start the job with --groups 0,1, or with --groups auto" in text
    job.kill()
    daemon.verb("job", "end", job.name, "--dev")


# -- sessions of this process, beside ranks that wait --------------------------------------------------------------------

Open = Callable[..., Explanation]


@pytest.fixture(scope="module", autouse=True)
def strangers() -> Iterator[None]:
    """Generators that other tests have left in this process are no program's here."""
    gc.collect()
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState)
    left = [x for o in gc.get_objects() for x in (o, *gc.get_referents(o)) if type(x) in kinds]
    added = rng.added
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "added", lambda g: any(g is x for x in left) or added(g))
        yield


@pytest.fixture(scope="module")
def jobs(daemon: Daemon) -> Iterator[Callable[[int], str]]:
    """Jobs whose processes wait, by world: a session of this process says hello for one of their ranks and claims nothing."""
    started: dict[int, Any] = {}

    def job(world: int) -> str:
        if world not in started:
            started[world] = daemon.run("import signal; print('WAITS', flush=True); signal.pause()", world=world)
            started[world].until("WAITS")
        return str(started[world].name)

    yield job
    for j in started.values():
        daemon.verb("job", "end", j.name, "--dev")


@pytest.fixture
def opened(daemon: Daemon, jobs: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Explains a session over what it is given."""
    sessions: list[replicad.Session] = []

    def call(world: int = 1, groups: str = "", **what: Any) -> Explanation:
        if groups:
            monkeypatch.setenv("REPLICAD_GROUPS", groups)
        close()
        connection = Rank.open(socket=str(daemon.socket), job=jobs(world), rank=0, world=world, group=0)
        sessions.append(replicad.Session(connection=connection, **what))
        return sessions[-1].explain()

    def close() -> None:
        while sessions:
            sessions.pop().close()

    yield call
    close()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def loader() -> Loader:
    return Loader(list(range(16)), 2)


def missing(e: Explanation) -> dict[str, str]:
    return {v.what: v.reason for v in e.missing}


def test_kept(opened: Open) -> None:
    m = model()
    m[0].requires_grad_(False)
    e = opened(model=m, optimizer=torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1, momentum=0.9), data=loader(), extra={"losses": Counts()})
    kept = {(k.what, k.when, k.whose): (k.count, k.bytes) for k in e.kept}
    assert kept["frozen parameters", "once", "group"] == (2, 4 * (32 + 8))
    assert kept["parameters", "each step", "group"] == (4, 4 * (8 + 8 + 16 + 2))
    assert kept["optimizer state", "each step", "group"] == (4, 4 * (8 + 8 + 16 + 2))
    assert kept["buffers", "each step", "rank"] == (3, 4 * (8 + 8) + 8)
    assert e.capture_bytes == sum(b for (_, when, _), (_, b) in kept.items() if when == "each step")
    assert e.copies.replicas == 0
    assert e.copies.mirrored == e.capture_bytes
    assert e.data == ("replicad.data.Loader",)
    assert "torch's CPU generator" in e.generators
    assert e.extra == ("losses",)
    assert e.missing == ()
    assert e.bit_exact is True
    assert re.search(r"frozen parameters +2 +160 B +once +equal in the group", str(e))
    assert json.loads(json.dumps(e.as_dict()))["capture_bytes"] == e.capture_bytes


def test_memory_is_said_before_it_is_taken(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few pages of what the daemon then reserves for slots, the rank's own part, what is kept once, and the staging of small values."""
    m = torch.nn.Linear(512, 512)
    for slots, given in ((4, ""), (2, "2")):
        monkeypatch.setenv("REPLICAD_SLOTS", given)
        e = opened(model=m, optimizer=torch.optim.AdamW(m.parameters()), data=loader())
        shared = sum(k.bytes for k in e.kept if k.when == "each step" and k.whose == "group")
        assert e.memory.slots == slots and e.memory.stages == 0
        assert slots * shared < e.memory.arena < 1.3 * slots * shared
        assert slots * shared < e.memory.mirror < 1.3 * slots * shared  # no other rank has it
        assert e.memory.least <= e.memory.arena and (e.memory.least == e.memory.arena) is (slots == 2)
    assert "memory" in str(e) and "2 slots" in str(e) and "with --slots 2" not in str(e)
    e = opened(model=m, staging=True)
    assert e.memory.stages == 4 * (512 * 512 + 512)
    assert "for stages of tensors" in str(e)
    e = opened(world=2, groups="0,0", model=m)
    assert 0 < e.memory.mirror < 512 * 512 * 4  # the rank's own part alone: the other rank has the group's
    assert "for each rank like this one that this node mirrors" in str(e)


class Counts:
    def state_dict(self) -> dict[str, int]:
        return {"n": 0}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_nothing_but_a_model(opened: Open) -> None:
    e = opened(model=model(), keep_rng=False)
    assert missing(e).keys() == {"optimizer", "data", "generators"}
    assert e.bit_exact is False
    assert [v.what for v in e.exact if v.ok is False] == ["missing", "generators", "data"]
    assert all(v.remedy for v in e.missing)
    assert "NO  generators" in str(e)


def test_optimizers_and_what_hangs_on_them(opened: Open) -> None:
    m, other = model(), nn.Linear(2, 2)
    o = torch.optim.SGD([*m[0].parameters(), *other.parameters()], lr=0.1)
    torch.optim.lr_scheduler.StepLR(o, 1)
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    e = opened(model=m, optimizer=o, data=loader())
    assert missing(e).keys() == {"optim", "scaler"}
    reasons = [v.reason for v in e.missing]
    assert "2 of its parameters are of no registered model: they are kept by their place in it" in e.advice[0].reason
    assert any("a learning-rate scheduler hangs on it that is not registered" in r for r in reasons)
    assert "4 parameters (model.1.weight, model.1.bias, model.2.weight, ...) ask for a gradient, but no registered optimizer has them" in e.advice[1].reason
    assert e.bit_exact is False
    assert "NO  missing: what a restart would not have (optim, scaler) begins anew" in str(e)
    del scaler


def test_an_optimizer_of_what_a_model_follows_from(opened: Open) -> None:
    m = model().bfloat16()
    whole = [torch.nn.Parameter(p.detach().float()) for p in m.parameters()]
    e = opened(model=m, optimizer=torch.optim.SGD(whole, lr=0.1), data=loader(), derived={"model.*": list})
    assert [v.what for v in e.advice] == ["derived"]


def test_what_is_not_known_of_an_optimizer(opened: Open) -> None:
    class Counting(torch.optim.AdamW):
        seen = 0

        def step(self, closure: Any = None) -> Any:
            self.seen += 1
            return super().step(closure)

    m = model()
    for kind, known in ((torch.optim.AdamW, True), (Counting, None)):
        e = opened(model=m, optimizer=kind(m.parameters()), data=loader())
        assert e.bit_exact is known
        assert any("keeps a count in self.seen, which no copy holds" in v.reason and v.what == "optim" for v in e.exact) is not known


def test_an_average_of_weights(opened: Open) -> None:
    m = model()
    average = torch.optim.swa_utils.AveragedModel(m)
    parts = {"optimizer": torch.optim.SGD(m.parameters(), lr=0.1), "data": loader()}
    e = opened(model={"model": m, "average": average}, **parts)
    assert (e.missing, e.advice, e.bit_exact) == ((), (), True), str(e)
    e = opened(model=m, **parts)
    assert missing(e).keys() == {"average"}
    assert e.bit_exact is False
    del average


def test_generators_of_the_programs_own(opened: Open) -> None:
    m = model()
    parts = {"model": m, "optimizer": torch.optim.SGD(m.parameters(), lr=0.1), "data": loader()}

    def own() -> list[tuple[bool | None, str]]:
        return [(v.ok, v.reason.partition(" of the program's own")[0]) for v in opened(**parts).exact if "of the program's own" in v.reason]

    assert own() == []
    made = {"a": torch.Generator(), "b": np.random.default_rng(1), "c": np.random.RandomState(1)}
    assert own() == [(None, "1 numpy.random._generator.Generator, 1 numpy.random.mtrand.RandomState, 1 torch._C.Generator")]
    try:
        for name, generator in made.items():
            replicad.rng.add(name, generator)
        assert own() == []
    finally:
        for name in made:
            replicad.rng.remove(name)


def test_generators_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the session's devices are kept. On another one that the process uses the draws begin anew; of one that it does not use there are none."""
    own = [torch.Generator() for _ in range(3)]
    monkeypatch.setattr(device, "cuda", SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 3, default_generators=own, holds_context=lambda i: i in (0, 1)))
    assert explain._of_devices() == own
    monkeypatch.setattr(rng, "session_devices", lambda: [1])
    assert explain._of_devices() == own[1:]
    monkeypatch.setattr(device, "cuda", torch.cuda)
    assert explain._of_devices() == []


def test_what_a_restart_in_process_does_not_see_to(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> dict[str, str]:
        return {v.what: v.reason for v in opened(model=model()).advice if v.what in ("graphs", "collectives")}

    for name in explain._ASIDE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert found() == {}
    monkeypatch.setitem(sys.modules, "deep_ep", ModuleType("deep_ep"))
    assert list(found()) == ["collectives"] and found()["collectives"].startswith("DeepEP is in use: a restart in process aborts torch's process groups alone")

    symmetric = ModuleType("symmetric")
    symmetric._group_name_to_store = {"0": None}
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", symmetric)
    assert found()["collectives"].startswith("DeepEP, torch's symmetric memory are in use")

    class Graph:
        def __init__(self) -> None:
            self.held: list[Any] = []

    monkeypatch.setattr(device, "graphs", lambda: Graph)
    graph = Graph()
    assert found()["graphs"].startswith("1 CUDA graph is there: a restart in process resets those that its block captured") and graph


def test_a_generator_that_only_a_list_holds(opened: Open) -> None:
    m = model()
    parts = {"model": m, "optimizer": torch.optim.SGD(m.parameters(), lr=0.1), "data": loader()}
    held = [torch.Generator(), np.random.default_rng(1)]
    own = [v.reason.partition(" of the program's own")[0] for v in opened(**parts).exact if "of the program's own" in v.reason]
    assert own == ["1 numpy.random._generator.Generator, 1 torch._C.Generator"]
    del held


class Sampler(torch.utils.data.RandomSampler):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def test_a_sampler_behind_workers(opened: Open) -> None:
    numbers = list(range(16))
    sampler = Sampler(numbers)
    kept = torch.utils.data.DataLoader(numbers, 2, sampler=sampler, num_workers=2)
    m = model()
    e = opened(model=m, optimizer=torch.optim.SGD(m.parameters(), lr=0.1), data=sampler)
    assert "Sampler feeds a DataLoader with 2 workers" in missing(e)["data"]
    assert [v.ok for v in e.exact if v.what == "data"] == [None]
    assert e.bit_exact is False
    del kept


def test_groups_that_are_too_fine(opened: Open) -> None:
    m = model()
    e = opened(3, "0,1,2", model=m, optimizer=torch.optim.SGD(m.parameters(), lr=0.1), data=loader())
    assert e.groups.derived == (0, 0, 0)
    assert e.groups.given == (0, 1, 2)
    assert e.groups.members == (0, 1, 2)
    assert e.groups.verdict.remedy == "start the job with --groups 0,0,0"
    assert e.copies.replicas == 0
    assert "a step are sent to mirrors though another rank has them" in str(e)


def test_the_launcher_says_nothing_of_groups(opened: Open) -> None:
    e = opened(3, model=model())
    assert e.groups.given is None
    assert e.groups.derived == (0, 0, 0)
    assert e.groups.verdict.ok is None


def test_groups_of_another_job(monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    monkeypatch.setenv("REPLICAD_GROUPS", "0,1")
    with pytest.raises(replicad.Invalid, match=r"REPLICAD_GROUPS='0,1' in a world of 3: want one group for each rank"):
        opened(3, model=model())


def test_threads(opened: Open) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = next(v for v in opened(model=model()).exact if v.what == "threads")
        assert found.reason == "2 threads share sums on the CPU: a replacement must have as many"
        assert "OMP_NUM_THREADS=2" in found.remedy
    finally:
        torch.set_num_threads(before)


def test_cuda_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert [(v.what, v.ok) for v in _cuda()] == [("cudnn", False), ("cuda", None)]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    try:
        torch.use_deterministic_algorithms(True)
        assert [(v.what, v.ok) for v in _cuda()] == [("cublas", None)]
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        assert [(v.what, v.ok) for v in _cuda()] == [("cuda", True)]
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_odd_mesh_with_groups_auto() -> None:
    from replicad._torch.groups import on_mesh, settle

    rank: Any = type("R", (), {"groups": None, "group": None, "world": 4, "number": 0, "name_group": lambda *_: pytest.fail("named")})()
    with pytest.raises(Mismatch, match="--groups auto: rank 0 does not know which part of w each rank holds, since its mesh is not of all 4 ranks: give --groups by number"):
        settle(rank, {"w": on_mesh(4, [0, 1], (2,), (True,))})
