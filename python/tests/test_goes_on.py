"""What a recovery in process goes on with is what an undisturbed run has: nothing of the broken step, nothing of what was made anew."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from cluster import fsdp2

TRAIN = """
import hashlib, os, signal, sys
import torch
import replicad
from replicad.data import Loader

how, fault = sys.argv[1:3]
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
data = Loader(torch.randn(64, 4), 4, rank=0, world=1, seed=1, num_workers=1 if how == "workers" else 0)
batches = data.endless()  # outside of the block
session = replicad.Session(model=model, optimizer=optimizer, scaler=scaler, data=data)


@replicad.inprocess.wrap(session)
def train(call):
    at = session.resume()
    if at == 0 and how == "sanity":
        trains = model.training
        model.eval()
        if fault == "fault" and call.runs == 1:
            raise RuntimeError("of this rank, in an evaluation before the first step")
        model.train(trains)  # as it was found: Lightning does so
    for step in range(at + 1, 13):
        loss = model(next(batches)).square().mean()
        scaler.scale(loss).backward()
        if how == "amp":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if step in (4, 9) and fault == "fault" and call.runs <= 2 and how not in ("eval", "sanity"):
            raise RuntimeError("of this rank")
        with session.step():
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()  # after the update: the next backward adds to what is there
        if step in (4, 9) and how == "eval":
            model.eval()
            with torch.no_grad():
                model(torch.ones(2, 4))
            if fault == "fault" and call.runs <= 2:
                raise RuntimeError("of this rank, in an evaluation")
            model.train()
    session.leave()


train()
h = hashlib.sha256()
for t in (*model.parameters(), *(v for s in optimizer.state.values() for v in s.values())):
    h.update(t.detach().numpy().tobytes())
print("END", h.hexdigest(), scaler.get_scale(), flush=True)
session.close()
"""


@pytest.mark.parametrize("how", [pytest.param("plain", marks=pytest.mark.long), "amp", "workers", "eval", "sanity"])
def test_gradients_and_scalers_of_a_broken_step(how: str, daemon: Daemon) -> None:
    ends = [re.findall(r"^END (.*)$", daemon.run(TRAIN, how, fault).done(), re.M) for fault in ("none", "fault")]
    assert len(ends[0]) == 1
    assert ends[0] == ends[1]


ANEW = """
import contextlib
import torch
import replicad

torch.set_num_threads(1)


def make():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


now = make()
session = replicad.Session(**now, staging=True)
start = session.resume()
for step in range(start + 1, 4):
    now["model"](torch.ones(2, 4)).square().sum().backward()
    with session.step():
        now["optimizer"].step()
        now["scheduler"].step()
    now["optimizer"].zero_grad()
was = [p.detach().clone() for p in now["model"].parameters()] + [v.clone() for s in now["optimizer"].state.values() for v in s.values()]
with contextlib.suppress(replicad.Fenced):  # the fault may overtake the answer
    session.rank.barrier("three steps", 2)
if session.rank.number == 0:
    session.rank.fail("a fault")
session.rank.wait_fence(60.0)
now = make()
for given in ({"model": now["model"]}, {"optimizer": now["optimizer"]}, {"model": now["model"], "optimizer": now["optimizer"]}):
    try:
        session.rebind(**given)
    except replicad.Mismatch as err:
        print("REFUSED", err, flush=True)
session.rebind(**now)
for call in (session.step().__enter__, session.commit):
    try:
        call()
    except replicad.SessionState as err:
        print("STATE", err, flush=True)
at = session.resume()
have = [p.detach() for p in now["model"].parameters()] + [v for s in now["optimizer"].state.values() for v in s.values()]
print("AT", int(at), all(torch.equal(a, b) for a, b in zip(was, have, strict=True)), now["scheduler"].last_epoch, flush=True)
session.leave()
session.close()
"""


@pytest.mark.parametrize("cadence", [pytest.param("1", marks=pytest.mark.long), "5"])
def test_what_is_made_anew_after_a_fence_is_of_no_step(cadence: str, daemon: Daemon) -> None:
    """Without inprocess: the live step's copy comes from the old tensors, or there is none."""
    out = daemon.run(ANEW, world=2, flags=("--cadence", cadence)).done()
    assert re.findall(r"^AT (.*)$", out, re.M) == ["3 True 3"] * 2, out
    assert out.count("STATE a step before resume, after a rebind: call session.resume() first") == 2, out
    assert out.count("STATE commit before resume, after a rebind: call session.resume() first") == 2, out
    assert out.count("REFUSED rebind: the optimizer's parameters are of no model of the session") == 2, out
    assert out.count("REFUSED rebind: scheduler drives an optimizer that is no longer the session's") == 4, out


OUTSIDE = """
import contextlib, os, sys
import torch
import replicad
from replicad.inprocess.parts import live

how = sys.argv[1]
loader = torch.utils.data.DataLoader(torch.arange(64.0).reshape(16, 4), 4, num_workers=2, persistent_workers=how == "persistent")
model = torch.nn.Linear(4, 4)
session = replicad.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
first = iter(loader)  # before the block


def children():
    count = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            count += len(open(f"/proc/self/task/{task}/children").read().split())
    return count


@replicad.inprocess.wrap(session)
def train(call):
    assert model in list(live(torch.nn.Linear))
    session.resume()
    batch = next(first if call.runs == 1 else iter(loader))
    if call.runs == 1:
        print("CHILDREN", children(), flush=True)
        raise RuntimeError("of this rank")
    print("AGAIN", batch.sum().item(), children(), flush=True)
    session.leave()


train()
session.close()
"""


@pytest.mark.parametrize("how", ["persistent", pytest.param("plain", marks=pytest.mark.long)])
def test_loaders_from_before_the_block(how: str, daemon: Daemon) -> None:
    """Their workers are ended too, and a loader that would go on with its old workers starts others."""
    out = daemon.run(OUTSIDE, how).done()
    assert re.findall(r"^CHILDREN (\d+)$", out, re.M) == ["2"], out
    assert re.search(r"^AGAIN 120.0 [02]$", out, re.M), out


GROUPED = """
import os, signal, sys
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import replicad
from replicad.parallel import ddp
from replicad.store import connections, init_process_group

connection = replicad.connect()
init_process_group(connection)
model = torch.nn.Linear(4, 4)
if sys.argv[1] == "ddp":
    model = ddp(model)
else:
    with connections():
        fully_shard(model, mesh=init_device_mesh("cpu", (connection.world,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer, connection=connection)


@replicad.inprocess.wrap(session)
def train(call):
    start = session.resume()
    print("RUN", call.runs, "from", int(start), flush=True)
    for step in range(start + 1, 7):
        model(torch.ones(2, 4)).sum().backward()
        with session.step():
            optimizer.step()
        if step == 3 and start == 0:
            session.commit()
            if connection.world == 1:
                raise RuntimeError("once")
            if connection.number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    session.leave()


train()
session.close()
"""


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=[fsdp2, pytest.mark.long])])
def test_a_model_whose_groups_went_down_needs_a_new_process(how: str, daemon: Daemon) -> None:
    """It was made outside of the block. In its first forward it failed on every rank, in every run, until the job was given up."""
    out = daemon.run(GROUPED, how).done()
    assert re.findall(r"^RUN (.*)$", out, re.M) == (["1 from 0", "2 from 3", "1 from 3"] if how == "ddp" else ["1 from 0", "1 from 3"]), out
    assert re.search(r"StaleProcessGroup: .* uses process groups that were taken down when the block ended. Make it inside of the block", out), out


@fsdp2
def test_who_is_freed_from_a_collective_of_such_a_model_ends_too(daemon: Daemon) -> None:
    """Its groups are taken down by the fault thread, before it has stopped. The new process of the one that was lost waits for it to meet."""
    out = daemon.run(GROUPED, "fsdp", world=2, flags=("--groups", "auto")).done()
    assert sorted(re.findall(r"^RUN (.*)$", out, re.M)) == ["1 from 0"] * 2 + ["1 from 3"] * 2, out
    assert out.count("StaleProcessGroup: resume: model uses process groups") == 1, out


BLOCK = """
import os, sys, time
import torch
import replicad

how = sys.argv[1]
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)
if how == "outside":
    print("RESUMED", int(session.resume()), flush=True)


@replicad.inprocess.wrap(session)
def train(call):
    print("RUN", call.runs, flush=True)
    if how == "early" and call.runs > 1:
        os.mkdir(os.path.dirname(__file__))  # as a program does that was never run twice
    start = session.at if how == "outside" else session.resume()
    for step in range(start + 1, 7):
        model(torch.ones(2, 4)).sum().backward()
        with session.step():
            optimizer.step()
        if step == 3:
            session.commit()
            if start == 0 and (how != "outside" or session.rank.number == 0):
                raise RuntimeError("once")
            while start == 0:
                time.sleep(0.01)  # as in a collective that the other never comes to
    session.leave()
    if how == "late":
        raise ValueError("after the end")


train()
session.close()
"""


def test_a_block_that_fails_before_it_resumes_gets_a_new_process(daemon: Daemon) -> None:
    """It was run again for ever, without a word, and all others waited."""
    job = daemon.run(BLOCK, "early")
    job.done()
    out = "\n".join(job.out.seen)
    assert re.findall(r"^RUN (.*)$", out, re.M) == ["1", "2", "3", "4", "1"], out
    assert out.count("replicad: the block failed on rank 0") == 4, out
    assert "the block failed 3 times in a row before session.resume() had returned in it, so this process ends" in out
    assert "FileExistsError" in out


def test_a_session_that_was_resumed_outside_of_the_block(daemon: Daemon) -> None:
    """The first run is as good as any: a peer's fault ends it. The next lacks its resume."""
    job = daemon.run(BLOCK, "outside", world=2)
    job.done()
    out = "\n".join(job.out.seen)
    assert sorted(re.findall(r"^RESUMED (.*)$", out, re.M)) == ["0", "0", "3", "3"], out
    assert sorted(re.findall(r"^RUN (.*)$", out, re.M)) == ["1"] * 4 + ["2", "2", "3", "3", "4", "4"], out
    assert "SessionState: a step before resume, after this rank has stopped: call session.resume() first, inside of the block if replicad.inprocess wraps one" in out


def test_what_a_block_raises_after_leave_is_the_programs(daemon: Daemon) -> None:
    job = daemon.run(BLOCK, "late")
    job.wait()
    out = str(job.out)
    assert re.findall(r"^RUN (.*)$", out, re.M) == ["1", "2"], out
    assert "ValueError: after the end" in out and "Stopped" not in out, out


CLEANS = """
import time
import torch
import replicad

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)


@replicad.inprocess.wrap(session)
def train(call):
    start = session.resume()
    try:
        for step in range(start + 1, 4):
            model(torch.ones(2, 4)).sum().backward()
            with session.step():
                optimizer.step()
            if step == 2:
                session.commit()
                if call.runs == 1 and session.rank.number == 0:
                    raise RuntimeError("once")
                while call.runs == 1:
                    time.sleep(0.01)
    finally:
        for _ in range(20 if call.runs == 1 else 0):
            time.sleep(0.02)  # a writer is flushed, weights are put back
        print("CLEANED", call.runs, session.rank.number, flush=True)
    session.leave()


train()
session.close()
"""


def test_who_is_interrupted_cleans_up_undisturbed(daemon: Daemon) -> None:
    out = daemon.run(CLEANS, world=2).done()
    assert sorted(re.findall(r"^CLEANED (.*)$", out, re.M)) == ["1 0", "1 1", "2 0", "2 1"], out
