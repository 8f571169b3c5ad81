"""Many restarts in process leave nothing behind: descriptors, threads and children are exactly what they were, memory nearly."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from conftest import Daemon

#: Restarts in which pools and caches fill: those behind them are looked at.
WARM = 10

#: Two ranks take turns in raising an exception in the third step of a run, so that two are committed in between: recoveries that get
#: nowhere are bounded. What is held is counted when a run has resumed, and nothing but what outlives runs should be there.
PROGRAM = """
import contextlib, gc, json, mmap, os, subprocess, sys, tempfile, threading, time
import torch, torch.distributed as dist
from torch.nn import functional as F
import replicad
from replicad.data import Loader
from replicad.parallel import ddp
from replicad.store import init_process_group

tempfile.gettempdir()  # it writes a file to try the folder, once in a process: a restart that was raised in there left its descriptor, in one of some 500 restarts
torch.set_num_threads(1)
restarts, leak = int(sys.argv[1]), sys.argv[2:] == ["leak"]
rank, world = int(os.environ["REPLICAD_RANK"]), int(os.environ["REPLICAD_WORLD"])
kept, forgotten, children, usual = [], threading.Event(), [], []

def keep():
    kept.append((os.open("/dev/null", os.O_RDONLY), mmap.mmap(-1, 1 << 20, prot=mmap.PROT_READ), bytearray(os.urandom(1 << 20)), [[] for _ in range(1000)]))
    threading.Thread(target=forgotten.wait, daemon=True).start()
    children.append(subprocess.Popen(["sleep", "1000"]))

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((8,), float(i)) + torch.randn(8), torch.zeros(2)

def threads():
    "The kernel has a thread for a moment after it was joined: one that does not go is told from it by waiting."
    end = time.monotonic() + 20
    while (now := len(os.listdir("/proc/self/task"))) > (usual or [now])[-1] and not leak and time.monotonic() < end:
        time.sleep(0.005)
    usual.append(now)
    return now

def held():
    gc.collect()
    with open("/proc/self/statm") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/maps") as f:
        maps = sum(1 for _ in f)
    children = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/self/task/{task}/children") as f:  # of one that has just ended
            children += len(f.read().split())
    opened = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}  # which one stays, when one does
    return {
        "opened": [*opened.values()], "descriptors": len(os.listdir("/proc/self/fd")), "threads": threads(), "children": children,
        "maps": maps, "resident": resident, "objects": len(gc.get_objects()),
    }

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = Loader(Data(), 2, rank=rank, world=world, num_workers=1)
last = 2 * restarts + 2
with replicad.Session(model=model, optimizer=optimizer, data=loader) as session:
    @replicad.inprocess.wrap(session)
    def train(call):
        start = session.resume()
        print(json.dumps({"rank": rank, "run": call.runs, "step": start, "source": start.source, **held()}), flush=True)
        init_process_group(session)
        net = ddp(model)
        batches = loader.endless()
        for step in range(start + 1, last + 1):
            x, y = next(batches)
            F.mse_loss(net(x), y).backward()
            if step == start + 3 and call.runs % world == rank:
                if leak:
                    keep()
                raise RuntimeError(f"run {call.runs} ends")
            with session.step():
                optimizer.step()
            optimizer.zero_grad()
            if step == start + 2:
                session.commit()  # however busy the machine is: a run of which nothing counts is a recovery that gets nowhere, and its process is started again
        session.leave()

    train()
    dist.destroy_process_group()
    for child in children:
        child.kill()
        child.wait()
"""


def rows(daemon: Daemon, *args: str) -> list[list[dict[str, int]]]:
    """What each rank held when it had resumed, run by run."""
    job = daemon.run(PROGRAM, *args, world=2)
    job.done()
    printed = [json.loads(line) for line in job.out.seen if line.startswith("{")]
    return [[e for e in printed if e["rank"] == r] for r in (0, 1)]


def growing(held: list[dict[str, int]]) -> list[str]:
    """What is not flat: the least of the first runs against the least of the last, as a batch may be on its way when descriptors are counted, and the
    count of objects goes up and down with weak references that are cleared a handful at a time."""
    third = len(held) // 3
    before, after = ({what: min(e[what] for e in part) for what in ("descriptors", "threads", "children", "objects", "maps")} for part in (held[:third], held[-third:]))
    first, last = held[0], held[-1]
    return [
        *(what for what in ("descriptors", "threads", "children") if after[what] != before[what]),
        *(["maps"] if after["maps"] > before["maps"] + 4 else []),  # a run has some more or less, by how its threads take turns
        *(["resident"] if last["resident"] > first["resident"] + len(held) * (16 << 10) else []),
        *(["objects"] if after["objects"] > before["objects"] + len(held) else []),
    ]


@pytest.mark.parametrize("restarts", [40, pytest.param(400, marks=pytest.mark.long)])
def test_restarts_leave_nothing_behind(restarts: int, daemon: Daemon) -> None:
    for held in rows(daemon, str(WARM + restarts)):
        print(*held, sep="\n")
        assert len(held) > WARM + restarts and {e["source"] for e in held[1:]} == {"own-ram"}
        assert growing(held[WARM:]) == []
        assert held[-1]["children"] == 0


def test_what_a_restart_keeps_is_seen(daemon: Daemon) -> None:
    for held in rows(daemon, "9", "leak"):
        assert growing(held[2:]) == ["descriptors", "threads", "children", "maps", "resident", "objects"], held


TAKEN = """
import os, time
import torch, replicad
from multiprocessing.resource_sharer import DupFd
from replicad.data import Loader

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = Loader(torch.utils.data.TensorDataset(torch.ones(64, 2)), 2, num_workers=1)
session = replicad.Session(model=model, optimizer=optimizer, data=loader)
detach, opened = DupFd.detach, []

def late(self):
    fd = detach(self)
    if len(opened) == 1 and session.rank.fenced is False:
        opened.append(os.path.realpath(f"/proc/self/fd/{fd}"))
        session.rank.fail("the test breaks the epoch")
        session.rank.wait_fence(60)
        time.sleep(0.5)  # the restart is raised here, or waits
    return fd

DupFd.detach = late

@replicad.inprocess.wrap(session)
def train(call):
    start, batches = session.resume(), loader.endless()
    if call.runs == 1:
        opened.append("resumed")
    for step in range(start + 1, 6):
        (x,) = next(batches)
        model(x).sum().backward()
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
    session.leave()
    return call.runs

runs = train()
print("RUNS", runs, "LEFT", [f for f in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{f}") in opened])
session.close()
"""


def test_a_batch_that_comes_from_a_worker_leaves_no_descriptor(daemon: Daemon) -> None:
    """A restart between the moment at which a batch's memory has arrived and the one at which somebody owns it: one in 320 restarts, without help."""
    assert "RUNS 2 LEFT []" in daemon.run(TAKEN).done()
