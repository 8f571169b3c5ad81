"""`replicad run --from URL`: a new run begins from a generation of another world and layout, with every value that has a meaning there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import Daemon

#: Trains to a step. It prints what it resumes from, the loss of each step over all ranks, and at its beginning and end the digest of the whole state, gathered.
TRAIN = """
import hashlib, json, sys
import torch, torch.distributed as dist, replicad
from replicad.parallel import ddp
from torch import nn
from torch.distributed.fsdp import fully_shard

from replicad._core import generations

asked, fetch = [0], generations.Generation.fetch

def counted(self, wanted):
    wanted = list(wanted)
    asked[0] += sum(len(into) for _, _, into in wanted)
    return fetch(self, wanted)

generations.Generation.fetch = counted
layout, last, batch, change = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(11)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 20), nn.LayerNorm(20), nn.Linear(20, 7)
        self.register_buffer("seen", torch.zeros(3))
        self.mix = nn.Parameter(torch.randn(2, 3, 2, 2))
        if change == "channels":
            self.mix = nn.Parameter(self.mix.detach().contiguous(memory_format=torch.channels_last))
        if change == "renamed":
            self.out = self.down
            del self.down
            self.adapter = nn.Parameter(torch.full((2,), 5.0))
        if change == "wider":
            self.up = nn.Linear(6, 24)

    def forward(self, x):
        head = self.out if change == "renamed" else self.down
        x = head(torch.tanh(self.norm(self.up(x)))) + 0 * self.mix.sum()
        return x + 0 * self.adapter.sum() if change == "renamed" else x

model = Net()
if layout == "ddp":
    forward = ddp(model)
else:
    fully_shard(model.up)
    forward = fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
if change.startswith("groups"):
    halves = [{"params": list(model.up.parameters()), "lr": 0.01}, {"params": [p for n, p in model.named_parameters() if not n.startswith("up")], "lr": 0.02}]
    optimizer = torch.optim.AdamW(halves[::-1] if change == "groups swapped" else halves)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
data = [torch.randn(6, generator=torch.Generator().manual_seed(i)) for i in range(96)]
loader = replicad.data.Loader(data, batch, seed=3)
declared = dict(was={"out.*": "down.*"}, fresh=["adapter"]) if change == "renamed" else {}

def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t

def digest():
    names = {id(p): n for n, p in model.named_parameters()}
    tensors = {n: whole(p.detach()) for n, p in model.named_parameters()}
    for p, state in optimizer.state.items():
        tensors |= {f"{names[id(p)]}.{k}": whole(v) for k, v in state.items()}
    h = hashlib.sha256()
    tensors = {n.replace("out.", "down."): t for n, t in tensors.items() if "adapter" not in n}
    for n in sorted(tensors):
        h.update(n.encode() + tensors[n].contiguous().numpy().tobytes())
    weights = hashlib.sha256(b"".join(whole(p.detach()).contiguous().numpy().tobytes() for p in model.parameters()))
    return [h.hexdigest()[:16], weights.hexdigest()[:16]]

kept = forward if layout == "ddp" else model
with replicad.Session(kept, optimizer, scheduler=scheduler, data=loader, shared_buffers=lambda n: True, staging=change == "renamed", **declared) as session:
    at = session.resume()
    now, place = digest(), [loader.epoch, loader.used * batch * world]
    begins = {"at": int(at), "source": at.source, "told": at.told, "digest": now[0], "weights": now[1], "lr": optimizer.param_groups[0]["lr"], "place": place}
    begins["adapter"] = whole(model.adapter.detach()).tolist() if change == "renamed" else None
    draws = torch.randn(2).tolist()
    losses, batches = [], loader.endless()
    for step in session.steps(last):
        optimizer.zero_grad()
        x = torch.stack(list(next(batches)))
        loss = forward(x).square().mean()
        loss.backward()
        with session.step():
            optimizer.step()
            scheduler.step()
        dist.all_reduce(loss.detach_())
        losses.append(float(loss) / world)
    if last > at:
        session.save(wait=True)
    ends = digest()[0]
    if rank == 0:
        print("RAN", json.dumps(begins | {"losses": losses, "ends": ends}), flush=True)
    kept_bytes = sum(t.numel() * 4 for t in [*model.parameters(), *model.buffers(), *(v for s in optimizer.state.values() for v in s.values())])
    print("DREW", json.dumps([rank, [draws, asked[0], kept_bytes]]), flush=True)
dist.destroy_process_group()
"""


class Run:
    """One run to its end, and what it printed."""

    def __init__(self, daemon: Daemon, layout: str, world: int, last: int, *flags: str, change: str = "", batch: int = 0) -> None:
        groups = ("--groups", "auto") if layout != "ddp" else ()
        self.job = daemon.run(TRAIN, layout, str(last), str(batch or 24 // world), change or "none", world=world, flags=("--durable-every", "0", *flags, *groups))
        out = self.job.done()
        (ran,) = (line for line in out.splitlines() if "RAN {" in line)
        self.is_: dict[str, Any] = json.loads(ran.split("RAN ", 1)[1])
        self.out = out
        drew = dict(json.loads(line.split("DREW ", 1)[1]) for line in out.splitlines() if "DREW [" in line)
        self.drew = {rank: draws for rank, (draws, _, _) in drew.items()}
        self.asked = {rank: (asked, kept) for rank, (_, asked, kept) in drew.items()}  # bytes of the other run that a rank asked for, and those of its tensors
        self.url = f"{daemon.dir}/replicad-dev/durable/{self.job.name}"


def test_other_worlds_and_layouts(daemon: Daemon) -> None:
    """DDP 4 -> 2, -> FSDP2 on 3, -> 2, -> DDP 1: after each change the state is that of before to the bit, and the losses are those of a run that never changed."""
    each, runs, losses = 2, [], []
    way = (("ddp", 4), ("ddp", 2), ("fsdp2", 3), ("fsdp2", 2), ("ddp", 1))
    for i, (layout, world) in enumerate(way):
        runs.append(run := Run(daemon, layout, world, each * (i + 1), *(("--from", runs[-1].url) if runs else ())))
        losses += run.is_["losses"]
        if i > 0:
            assert (run.is_["at"], run.is_["source"]) == (each * i, "from")
            assert run.is_["digest"] == runs[-2].is_["ends"], "parameters and optimizer state, to the bit"
            assert run.is_["place"] == [each * i // 4, 24 * (each * i % 4)]
            assert f"step {each * i} of " in run.is_["told"]
            assert f"from: step {each * i} of " in run.out, "the launcher says it"
    straight = Run(daemon, "ddp", 2, each * len(way))
    assert losses == pytest.approx(straight.is_["losses"], rel=1e-5), "the same samples, in another order of sums"


def test_the_same_layout_is_the_same_run(daemon: Daemon) -> None:
    """To the bit: losses, state, generators."""
    whole, first = Run(daemon, "ddp", 2, 6), Run(daemon, "ddp", 2, 3)
    second = Run(daemon, "ddp", 2, 6, "--from", first.url + "@3")
    assert first.is_["losses"] + second.is_["losses"] == whole.is_["losses"]
    assert second.is_["ends"] == whole.is_["ends"]
    (leads, tensors), (follows, _) = second.asked[0], second.asked[1]
    assert leads - follows == tensors, "what a group has in common leaves the store once, and goes on over the lanes"
    third = Run(daemon, "ddp", 3, 3, "--from", first.url)
    assert third.drew[0] == second.drew[0] and third.drew[2] not in (third.drew[0], third.drew[1]), "an added rank draws others"
    assert "the generators of rank 2, which the run did not have, are seeded" in third.is_["told"]
    assert third.out.count("the generators of rank 2") == 2, "the warning, once, and what resume() returned"


def test_what_was_changed_on_purpose(daemon: Daemon) -> None:
    first = Run(daemon, "ddp", 2, 3)
    second = Run(daemon, "fsdp2", 2, 4, "--from", first.url, change="renamed")
    assert second.is_["digest"] == first.is_["ends"]
    assert second.is_["adapter"] == [5.0, 5.0], "what is fresh stays as the program has made it, behind stages too"
    for name in ("out.* was down.*", "adapter is fresh"):
        assert name in second.is_["told"]
    shown = json.loads(daemon.verb("ckpt", "show", second.url, "--json"))
    assert "out.* was down.*" in json.dumps(shown), "it is recorded"


def test_another_order_of_dimensions(daemon: Daemon) -> None:
    """channels_last, and back: the values count, not the bytes' order."""
    first = Run(daemon, "ddp", 1, 2)
    second = Run(daemon, "ddp", 1, 3, "--from", first.url, change="channels")
    third = Run(daemon, "fsdp2", 2, 3, "--from", first.url)
    fourth = Run(daemon, "ddp", 1, 4, "--from", second.url)
    assert [second.is_["digest"], third.is_["digest"], fourth.is_["digest"]] == [first.is_["ends"], first.is_["ends"], second.is_["ends"]]


def test_imported_weights(daemon: Daemon, tmp_path: Path) -> None:
    """Exported as Hugging Face has them, and imported: the weights are those, and the rest begins."""
    first = Run(daemon, "fsdp2", 2, 2)
    daemon.verb("ckpt", "export", first.url, str(tmp_path / "hf"), "--to", "hf")
    root, job = f"{daemon.dir}/replicad-dev/durable", f"imported-{os.getpid()}"
    daemon.verb("ckpt", "import", str(tmp_path / "hf"), "--to", root, "--job", job, "--step", "7")
    second = Run(daemon, "ddp", 2, 8, "--from", f"{root}/{job}")
    third = Run(daemon, "ddp", 2, 3, "--from", first.url)
    assert second.is_["at"] == 7 and "it has tensors alone" in second.is_["told"]
    assert second.is_["place"] == [0, 0] and second.is_["lr"] == 0.05
    assert second.is_["weights"] == third.is_["weights"]


def test_another_program_is_refused_by_name(daemon: Daemon) -> None:
    first = Run(daemon, "ddp", 1, 3)
    job = daemon.run(TRAIN, "ddp", "6", "24", "wider", flags=("--durable-every", "0", "--from", first.url))
    assert job.wait() != 0
    out = job.printed()
    assert "model.up.weight is float32 (24, 6), was float32 (20, 6)" in out, out
    undeclared = TRAIN.replace("declared = dict", "declared = {} and dict")
    job = daemon.run(undeclared, "ddp", "6", "24", "renamed", flags=("--durable-every", "0", "--from", first.url))
    assert job.wait() != 0
    out = job.printed()
    assert "Session(..., was={'model.out.weight': 'model.down.weight'" in out, out
    assert "fresh=['model.adapter'" in out


def test_groups_in_another_order(daemon: Daemon) -> None:
    """Each keeps its own learning rate."""
    first = Run(daemon, "ddp", 1, 2, change="groups")
    second = Run(daemon, "ddp", 1, 3, "--from", first.url, change="groups swapped")
    third = Run(daemon, "ddp", 1, 3, "--from", first.url, change="groups")
    assert (second.is_["lr"], third.is_["lr"]) == (0.01, 0.005), "of the second, and of the first, after two steps"
    assert second.is_["ends"] == third.is_["ends"]


def test_a_loader_of_another_name_does_not_begin_again(daemon: Daemon) -> None:
    """Its place would be lost in silence."""
    first = Run(daemon, "ddp", 1, 3)
    program = TRAIN.replace("data=loader", 'data={"train": loader}')
    job = daemon.run(program, "ddp", "5", "24", "none", flags=("--durable-every", "0", "--from", first.url))
    assert job.wait() != 0
    assert "data.train is not there; data is there alone" in job.printed()
    declared = program.replace('if change == "renamed" else {}\n', 'if change == "renamed" else dict(was={"data.train": "data"})\n')
    job = daemon.run(declared, "ddp", "5", "24", "none", flags=("--durable-every", "0", "--from", first.url))
    (ran,) = (line for line in job.done().splitlines() if "RAN {" in line)
    assert json.loads(ran.split("RAN ", 1)[1])["place"] == [0, 72]


def test_a_rank_that_is_lost_does_not_begin_again(daemon: Daemon) -> None:
    """The generation is read once: what the run has itself counts from then on."""
    first = Run(daemon, "ddp", 2, 3)
    kill = "if step == 6 and rank == 1 and at == 3: session.commit(); os.kill(os.getpid(), signal.SIGKILL)"
    crash = TRAIN.replace("        losses.append", f"        {kill}\n        losses.append").replace("import hashlib", "import os, signal, hashlib")
    job = daemon.run(crash, "ddp", "9", "12", "none", world=2, flags=("--durable-every", "0", "--from", first.url))
    out = job.done()
    (ran,) = (line for line in out.splitlines() if "RAN {" in line)
    is_ = json.loads(ran.split("RAN ", 1)[1])
    assert is_["at"] > 3 and is_["source"] != "from"
    whole = Run(daemon, "ddp", 2, 9)
    assert is_["ends"] == whole.is_["ends"]


#: Has a buffer of samples that is the rank's own, and 16-bit weights that follow from others.
OWN = """
import sys
import torch, replicad

last = int(sys.argv[1])

class Buffer:
    rows = torch.zeros(1)
    def state_dict(self):
        return {"rows": self.rows}
    def load_state_dict(self, state):
        self.rows = state["rows"]

class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.full, self.bits = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    def rebuild(self):
        with torch.no_grad():
            self.bits.weight.copy_(self.full.weight)

model, buffer = Half(), Buffer()
optimizer = torch.optim.SGD(model.full.parameters(), lr=0.5)
session = replicad.Session(model, optimizer, extra={"buffer": replicad.own(buffer, most=4096)}, derived={"model.bits.weight": model.rebuild} if sys.argv[2] == "derived" else None)
with session:
    at = session.resume()
    same = torch.equal(model.bits.weight, model.full.weight.bfloat16())
    print("HAS", int(at), at.told, buffer.rows.tolist(), same, flush=True)
    for step in session.steps(last):
        model.full(torch.ones(1, 2)).sum().backward()
        with session.step():
            optimizer.step()
        model.rebuild()
        buffer.rows = torch.full((step,), float(step))
    if last > at:
        session.save(wait=True)
"""


@pytest.mark.long
def test_what_is_a_ranks_own_and_what_follows(daemon: Daemon) -> None:
    before = daemon.run(OWN, "3", "kept", flags=("--durable-every", "0"))
    before.done()
    url = f"{daemon.dir}/replicad-dev/durable/{before.name}"
    out = daemon.run(OWN, "3", "derived", flags=("--durable-every", "0", "--from", url)).done()
    assert re.search(r"^HAS 3 .* \[3\.0, 3\.0, 3\.0\] True$", out, re.M), out
