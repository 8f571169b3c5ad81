"""A step is committed when it is asked for, whatever the cadence says and however fast steps are."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon
from nodes import cluster

RANK = """
import ctypes, os, random, signal, sys
import replicad
from replicad import Rank, Region

random.seed(int(sys.argv[1]))
wanted = sorted(random.sample(range(1, 150), 15))
weights, own = (ctypes.c_uint8 * 40960)(), (ctypes.c_uint8 * 4096)()
with Rank.open() as rank:
    rank.register([
        Region("weights", ctypes.addressof(weights), 40960, shape=(40960,)),
        Region("own", ctypes.addressof(own), 4096, shape=(4096,), private=True, changes="any"),
    ])
    rank.attach()
    while (order := rank.join()).initialise:
        rank.seal_initial()
    rank.load()
    rank.ready()
    print("AT", order.step, flush=True)
    assert weights[0] == own[0] == order.step
    for step in range(order.step + 1, 151):
        own[0] = step
        rank.step_enter(step)
        weights[0] = step
        rank.step_exit(step)
        if step in wanted:
            rank.commit(step, 60.0, unchanged=True)
            assert rank.committed == step, (rank.committed, step)
            print("COMMITTED", step, flush=True)
            if order.step == 0 and step == wanted[7]:
                os.kill(os.getpid(), signal.SIGKILL)
    rank.leave()
"""


@pytest.mark.parametrize(("cadence", "slots"), [(1, 4), (1, 2), (7, 3)])
def test_any_step_of_ranks_that_stop_is_committed(daemon: Daemon, cadence: int, slots: int) -> None:
    """Both ranks are killed when they have heard that one is: what they go on from is that one."""
    out = daemon.run(RANK, "5", world=2, flags=("--cadence", str(cadence), "--slots", str(slots))).done()
    committed = [int(s) for s in re.findall(r"^COMMITTED (\d+)$", out, re.M)]
    wanted = sorted(set(committed))
    assert len(wanted) == 15, out
    assert sorted(committed) == sorted([*wanted, *wanted]), out
    assert re.findall(r"^AT (\d+)$", out, re.M) == ["0", "0", str(wanted[7]), str(wanted[7])], out


ALONE = """
import ctypes, os, sys, time
import replicad
from replicad import Rank, Region

weights = (ctypes.c_uint8 * 4096)()
with Rank.open() as rank:
    rank.register([Region("weights", ctypes.addressof(weights), 4096, shape=(4096,))])
    rank.attach()
    while (order := rank.join()).initialise:
        rank.seal_initial()
    rank.load()
    rank.ready()
    if order.step == 0:
        rank.step_enter(1)
        try:
            rank.commit(1)
        except replicad.SessionState as err:
            print("REFUSED", err, flush=True)
        rank.step_exit(1)
        rank.commit(1)
        if rank.number == 1:
            rank.kv_get("go")
            os._exit(3)
        rank.step_enter(2)
        rank.step_exit(2)
        try:
            rank.commit(2, 0.2)
        except replicad.Timeout as err:
            print("LATE", err, flush=True)
        try:
            rank.kv_set("go", b"")
        except replicad.Fenced:
            pass  # the other was gone before this one heard that the key is set
        try:
            rank.commit(2)
        except replicad.Fenced as err:
            print("FENCED", err, flush=True)
        while (order := rank.join()).initialise:
            rank.seal_initial()
        rank.load()
        rank.ready()
    rank.step_enter(order.step + 1)
    rank.step_exit(order.step + 1)
    rank.commit(order.step + 1)
    rank.leave()
    print("DONE", flush=True)
"""


def test_what_ends_the_wait(daemon: Daemon) -> None:
    """A rank that is a step ahead of the other waits in vain, and is told when the other is lost."""
    out = daemon.run(ALONE, world=2).done()
    assert out.count("REFUSED commit step 1: call it between two steps") == 2, out
    assert "LATE commit step 2: committed is 1; `replicad status` shows what the commit waits for" in out
    assert "FENCED commit step 2: epoch 1 is closed" in out
    assert out.count("DONE") == 2


STANDS = """
import ctypes, os, signal
from replicad import Fenced, Rank, Region

weights = (ctypes.c_uint8 * 4096)()
with Rank.open() as rank:
    rank.register([Region("weights", ctypes.addressof(weights), 4096, shape=(4096,))])
    rank.attach()
    while True:
        try:
            while (order := rank.join()).initialise:
                rank.seal_initial()
            rank.load()
            rank.ready()
            print("AT", rank.number, order.epoch, order.step, weights[0], flush=True)
            for step in range(order.step + 1, 9):
                rank.step_enter(step)
                weights[0] = step
                rank.step_exit(step)
                if step == 5 and rank.number == 1 and order.epoch == 1:
                    os.kill(os.getpid(), signal.SIGSTOP)
                rank.commit(step, 60.0)
            rank.leave()
            break
        except Fenced:
            continue
print("DONE", flush=True)
"""


def test_a_rank_that_hangs_while_the_others_wait() -> None:
    """It is found as any hang is. One that waits in the commit stands at the same step, so it may be taken for one too (D29)."""
    with cluster("a", "--hang", "2s") as nodes:
        job = nodes["a"].run(STANDS, world=2)
        nodes["a"].log.until('"kind":"hang"')
        out = job.done()
    assert out.count("DONE") == 2
    ats = re.findall(r"^AT (.*)$", out, re.M)
    assert sorted(ats[:2]) == ["0 1 0 0", "1 1 0 0"]
    assert {at.split()[2] for at in ats[2:]} <= {"4", "5"}, out
    assert all(at.split()[2] == at.split()[3] for at in ats[2:]), out


SESSION = """
import os, signal, sys
import torch
import replicad

staging = sys.argv[1] == "staged"
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.randn(8, 4)
session = replicad.Session(model=model, optimizer=optimizer, staging=staging)
try:
    session.commit()
except replicad.SessionState as err:
    print("REFUSED", err)
start = session.resume()
print("AT", int(start), float(model[0].weight.detach().double().sum()), float(model[1].running_mean.double().sum()), flush=True)
for step in range(start + 1, 14):
    model(x).square().mean().backward()
    with session.step():
        optimizer.step()
        if step == 1:
            try:
                session.commit()
            except replicad.SessionState as err:
                print("REFUSED", err)
    optimizer.zero_grad()
    if step == 11 and start == 0:
        print("COMMITTED", session.commit(timeout=60.0), float(model[0].weight.detach().double().sum()), float(model[1].running_mean.double().sum()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
session.leave()
session.close()
"""


@pytest.mark.parametrize("how", ["in place", "staged"])
def test_a_session_commits(daemon: Daemon, how: str) -> None:
    """With a cadence of fifty steps nothing would be: step 11 is, with its weights and the statistics that go with it."""
    pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")
    out = daemon.run(SESSION, how, flags=("--cadence", "50")).done()
    assert out.count("REFUSED commit before resume") == 2, out
    assert out.count("REFUSED commit inside of step 1: it is open until") == 1, out
    _, again = re.findall(r"^AT (.*)$", out, re.M)
    assert again == re.findall(r"^COMMITTED (.*)$", out, re.M)[0], out
    assert again.split()[0] == "11"


BEHIND = """
import os, signal, sys
import torch
import replicad

daemon, change = int(sys.argv[1]), sys.argv[2] == "changed"
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 4)
session = replicad.Session(model=model, optimizer=optimizer)
session.resume()

def step():
    model(x).square().mean().backward()
    with session.step():
        optimizer.step()
    optimizer.zero_grad()

os.kill(daemon, signal.SIGSTOP)
try:
    while session.stats().private_skipped == 0:
        step()
finally:
    os.kill(daemon, signal.SIGCONT)
if change:
    with torch.no_grad():
        model[1](x)  # a part of the model by itself
try:
    print("COMMITTED", session.commit(timeout=60.0) == session.at, flush=True)
except replicad.Canceled as err:
    print("CANCELED", err, flush=True)
step()
session.leave()
session.close()
"""


@pytest.mark.parametrize(("how", "said"), [("as it was", r"COMMITTED True"), ("changed", r"CANCELED commit step (\d+): step \1 has no private part")])
def test_a_step_that_found_no_room_for_its_own_part(daemon: Daemon, how: str, said: str) -> None:
    """Its copy is made late, unless what is the rank's own has changed since."""
    pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")
    assert daemon.process is not None
    out = daemon.run(BEHIND, str(daemon.process.pid), how).done()
    assert re.search(said, out), out


WRITTEN = """
import torch, replicad

model = torch.nn.Linear(4, 4)
session = replicad.Session(model=model)
session.resume()
for step in range(1, 401):
    with session.step():
        model.weight.data.add_(1)
    session.commit()
print("ENDED", session.committed, flush=True)
session.leave()
session.close()
"""


def test_commit_beside_durable_writes(daemon: Daemon) -> None:
    """A commit whose news comes together with those of a durable write is news all the same."""
    pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")
    job = daemon.run(WRITTEN, flags=("--durable-every", "2"))
    assert "ENDED 400" in job.until("ENDED")
    job.done()


WAITS = """
import time
import torch
import replicad

torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with replicad.Session(model, optimizer) as session:
    at = session.resume()
    print("AT", session.rank.number, int(at), flush=True)
    for step in range(at + 1, 13):
        while session.committed < session.at - 1:  # of two steps one is copied
            time.sleep(0.001)
        model(torch.ones(2, 4)).square().mean().backward()
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
    session.leave()
"""


def test_a_program_may_wait_for_commits(daemon: Daemon) -> None:
    """What is to be committed next was a step to come, which waited for the commit: after a minute all ranks were killed as hanging."""
    text = daemon.run(WAITS, world=2).done()
    assert sorted(re.findall(r"^AT (\d \d+)$", text, re.M)) == ["0 0", "1 0"], text
