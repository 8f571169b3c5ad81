"""A program that torchrun could start, with its own ``init_process_group``: it runs as it is, and comes back after a fault."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from conftest import Daemon, environment
from replicad._core import torchenv
from replicad._core.waiting import NAMES

#: An existing job of DDP with the six lines under it. Rank 1 is killed once, in its fifth step. Argument: how the others go on, in their "process" or "anew".
PROGRAM = """
import json, os, socket, sys
import replicad
replicad.wait_rank()
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def listens(address):
    with socket.socket() as s:
        return s.connect_ex(address) == 0

def told(name):
    return int(os.environ[name])

session, killed = None, sys.argv[0] + ".killed"
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(call=None):
    global session
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    both = dist.new_group([0, 1])
    listening = listens((os.environ["MASTER_ADDR"], told("MASTER_PORT")))
    ddp = DistributedDataParallel(model)
    if session is None:
        session = replicad.Session(model, optimizer)
    start = session.resume()
    for step in range(start + 1, 13):
        if step == 5:
            session.commit()  # a step that finds no free slot is not copied
        optimizer.zero_grad()
        ddp(torch.full((1, 4), float(rank + 1))).sum().backward()
        dist.all_reduce(torch.ones(1), group=both)
        if step == 5 and rank == 1 and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), 9)
        with session.step():
            optimizer.step()
    print(json.dumps({
        "rank": rank, "pid": os.getpid(), "runs": call.runs if call else 1, "from": int(start), "weights": model.weight.detach().sum().item(), "listens": listening,
        "place": [told(n) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")],
        "mine": session.rank is replicad._core.connection.opened(), "noted": len(replicad.store._connections),
    }), flush=True)
    session.leave()

if sys.argv[1] == "process":
    train = replicad.inprocess.wrap(lambda: session)(train)
train()
session.close()
dist.destroy_process_group()
"""


def said(job: Any) -> dict[int, dict[str, Any]]:
    """What each rank printed at its end."""
    return {e["rank"]: e for e in (json.loads(line) for line in job.out.seen if line.startswith("{"))}


@pytest.mark.parametrize("how", ["anew", "process"])
def test_an_existing_job_comes_back(how: str, daemon: Daemon) -> None:
    """The first rank is a process that waited: it had no rank when it started."""
    job = daemon.run(PROGRAM, how, world=2, flags=("--warm", "1"), fresh=True)
    out = job.done()
    ends = said(job)
    assert len({e["weights"] for e in ends.values()}) == 1 and {e["from"] for e in ends.values()} == {4}, out
    assert [ends[r]["place"] for r in (0, 1)] == [[0, 2, 0, 2, 0 if how == "process" else 1], [1, 2, 1, 2, 1]], out
    assert not any(e["listens"] for e in ends.values()), "a rank hosts a store"
    assert all(e["mine"] and e["noted"] > 0 for e in ends.values()), out
    waited = re.search(r": process (\d+) waits for a rank", out)
    assert waited and re.search(rf"rank \d: process {waited[1]} runs", out), out
    assert ends[0]["runs"] == (2 if how == "process" else 1), out


#: One world, and each way to be somebody else: a child, a subprocess, an init_method of one's own, and torchrun's processes below the rank.
OTHERS = """
import multiprocessing, os, subprocess, sys
import torch, torch.distributed as dist
import replicad


def over():
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return type(store).__name__

def child():
    dist.init_process_group("gloo")
    print("child", "OVER", over(), flush=True)

if __name__ == "__main__":
    print("rank", "OVER", dist.init_process_group("gloo") or over(), flush=True)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="env://", rank=0, world_size=1)
    print("named", "OVER", over(), flush=True)
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + os.environ["MASTER_PORT"], rank=0, world_size=1)
    print("tcp", "OVER", over(), flush=True)
    dist.destroy_process_group()
    multiprocessing.get_context("spawn").Process(target=child).start()
    for p in multiprocessing.active_children():
        p.join()
    with replicad.Session(torch.nn.Linear(2, 2)) as session:
        session.resume()
"""


def test_others_are_left_alone(daemon: Daemon) -> None:
    out = daemon.run(OTHERS).done()
    over = dict(line.split(" OVER ") for line in out.splitlines() if " OVER " in line)
    assert over == {"rank": "Store", "named": "Store", "tcp": "TCPStore", "child": "TCPStore"}, out


RANK = {
    "REPLICAD_RANK": "1", "REPLICAD_WORLD": "4", "RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "replicad:job", "REPLICAD_PROCESS": str(os.getpid()),
}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "other", "is_rank"),
    [
        ("env://", {}, True),
        ("env://?rank=1&world_size=4", {}, True),
        ("env://?rank=1", {}, True),
        ("env://", {"TORCHELASTIC_RUN_ID": None}, True),
        ("env://", {"MASTER_ADDR": "head", "MASTER_PORT": "1"}, True),
        ("env://?rank=0&world_size=1", {}, False),
        ("env://?rank=0", {}, False),
        ("env://", {"RANK": "0"}, False),
        ("env://", {"WORLD_SIZE": "2"}, False),
        ("env://", {"RANK": None}, False),
        ("env://", {"TORCHELASTIC_RUN_ID": "none"}, False),
        ("env://", {"REPLICAD_PROCESS": "1"}, False),
        ("env://", {"REPLICAD_RANK": None, "RANK": None}, False),
    ],
)
def test_who_is_the_rank(url: str, other: dict[str, str | None], is_rank: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, *RANK):
        monkeypatch.delenv(name, raising=False)
    for name, value in (RANK | other).items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert torchenv.addressed(url) is is_rank


LAZY = """
import sys
{first}
import replicad
assert {loaded} == ("torch" in sys.modules)
import torch.distributed
print(sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers["env"].__module__)
"""


@pytest.mark.parametrize(("first", "launched"), [("", True), ("import torch", True), ("", False)])
def test_torch_is_not_imported_for_it(first: str, launched: bool) -> None:
    env = environment(REPLICAD_RANK="0") if launched else environment()
    done = subprocess.run([sys.executable, "-c", LAZY.format(first=first, loaded=bool(first))], env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout == ("replicad._core.torchenv\n" if launched else "torch.distributed.rendezvous\n"), done.stderr
