"""What a session says about losses is what becomes of them."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replicad
from conftest import Daemon, environment
from nodes import cluster
from replicad._core.feasible import Feasible, feasible

JOB = uuid.UUID("11111111-2222-3333-4444-555555555555")


def known() -> dict[str, Any]:
    """What the leader says of two replicas on nodes a and b; c would take over for either, and d is silent."""
    parts = [{"part": "group 0", "nodes": ["a", "b"]}, {"part": "private 0", "nodes": ["a", "c", "d"]}, {"part": "private 1", "nodes": ["b", "c"]}]
    losses = [{"of": "process", "nodes": []}] + [{"of": f"node {n}", "nodes": [n]} for n in "abcd"]
    job = {
        "id": str(JOB), "phase": "open", "position": {"epoch": 1, "step": 12}, "parts": parts, "losses": losses, "silent": ["d"],
        "ranks": [{"rank": 0, "group": 0, "node": "a"}, {"rank": 1, "group": 0, "node": "b"}, {"rank": 2, "group": 1, "node": "c"}],
    }  # fmt: skip
    return {"leader": "b", "jobs": [job]}


def after(change: Callable[[dict[str, Any]], object]) -> Feasible:
    said = copy.deepcopy(known())
    change(said)
    return feasible(said, JOB, 0, 13)


def test_every_loss_can_be_recovered() -> None:
    f = after(lambda s: None)
    assert f
    assert (f.step, f.live, list(f.nodes)) == (12, 13, ["a", "b"])
    assert f.rank.holders == {"group 0": ("a", "b"), "private 0": ("a", "c"), "private 1": ("b", "c")}
    assert f.node.holders == {"group 0": ("b",), "private 0": ("c",), "private 1": ("b", "c")}
    assert str(f) == (
        "step 12 is committed, 13 is live\nloss of rank 0: on from step 12, from a, b, c\nloss of node a: on from step 12, from b, c\nloss of node b: on from step 12, from a, c"
    )


@pytest.mark.parametrize(
    ("of", "rank", "node", "other"),
    [("process", False, True, True), ("node a", True, False, True), ("node b", True, True, False), ("node c", True, True, True)],
    ids=["the process", "its node", "another of the group", "another group's"],
)
def test_why_not(of: str, rank: bool, node: bool, other: bool) -> None:
    """The leader's reasons are taken as they are; those of nodes without a rank of the group don't matter here."""
    why = ["private 0 of step 12 is held by a alone", "1 of 3 voters would be left"]
    f = after(lambda s: next(loss for loss in s["jobs"][0]["losses"] if loss["of"] == of).update(why=why))
    assert (bool(f.rank), bool(f.node), bool(f.nodes["b"])) == (rank, node, other)
    assert f.nodes["a"] == f.node
    assert bool(f) is (rank and node and other)
    if not f:
        loss = next(loss for loss in (f.rank, *f.nodes.values()) if not loss)
        assert loss.why == tuple(why)
        assert str(loss).endswith(": private 0 of step 12 is held by a alone; 1 of 3 voters would be left")


@pytest.mark.parametrize(
    "change",
    [lambda s: s.update(leader=""), lambda s: s["jobs"][0].update(parts=None, losses=None), lambda s: s["jobs"][0].pop("losses"), lambda s: s.update(jobs=[])],
    ids=["no leader", "not opened", "too large to say", "another job"],
)
def test_nothing_is_guessed(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(replicad.Again, match="no leader has reported who holds which part"):
        after(change)


def test_what_cannot_be_asked(daemon: Daemon, tmp_path: Path) -> None:
    """No daemon; a daemon of another user."""
    ask = "import os, replicad._core.admin\n{}\ntry:\n    print(replicad._core.admin.status()['node'])\nexcept replicad.Error as err:\n    print(type(err).__name__, err)"

    def asked(socket: Path, first: str = "") -> str:
        return subprocess.run([sys.executable, "-c", ask.format(first)], env=environment(REPLICAD_SOCKET=str(socket)), check=True, capture_output=True, text=True).stdout

    assert asked(daemon.socket) == "dev\n"
    assert re.match(rf"Gone no daemon answers on {tmp_path}/admin.sock .*REPLICAD_ADMIN_SOCKET", asked(tmp_path / "ranks.sock"))
    if os.geteuid() == 0:
        assert "Refused the admin socket" in asked(daemon.socket, "os.setuid(65534)")


LOOP = """
import os, pathlib, sys, time
import torch
import replicad

told = pathlib.Path(sys.argv[1])
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
session = replicad.Session(model=model, optimizer=optimizer)


def say(what):
    f = session.feasible()
    print("RANK", session.order.rank, what, int(bool(f)), f.step, f.live, os.getpid(), str(f).replace(chr(10), " | "), flush=True)
    return f


def last():
    "The step at which both stop, once the test has said it: far enough ahead that none is there yet."
    return int((told / "end").read_text()) if (told / "end").exists() else 1 << 30


def train():
    start = session.resume()
    print("AT", session.order.rank, int(start), start.source, flush=True)
    while session.at < last():
        model(torch.ones(2, 4)).square().mean().backward()
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
        session.commit(timeout=60.0)
        say("says")
        time.sleep(0.1)  # stands for a larger model


while True:
    try:
        train()
        session.leave()
        break
    except replicad.Fenced:
        continue
session.close()
"""


def test_a_node_is_lost_as_it_was_said(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")
    with cluster("abc") as nodes:
        jobs = {n: nodes[n].run(LOOP, str(tmp_path), world=2, name="job", flags=("--min-copies", "2", "--ranks", r)) for n, r in (("a", "0"), ("b", "1"))}
        first = jobs["a"].until("RANK 0 says 0")
        assert "loss of node b: 1 processes would have to start elsewhere (ranks 1), other nodes offer none" in first
        assert re.search(r"loss of rank 0: on from step (\d+), from", first)
        spare = nodes["c"].run(LOOP, str(tmp_path), world=2, name="job", flags=("--min-copies", "2", "--spare"), fresh=True)
        now = jobs["a"].until("RANK 0 says 1")
        promised = re.search(r"loss of node b: on from step (\d+), from ([abc, ]+)$", now)
        assert promised, now
        assert "b" not in promised[2]
        pid = int(jobs["b"].until("RANK 1 says 1").split()[6])
        nodes["b"].lose(pid)
        came = spare.until("AT 1").split()
        assert int(came[2]) >= int(promised[1])
        assert came[3] == "peer-ram"
        after = jobs["a"].until("1 of 3 voters would be left, which is no majority")
        assert "RANK 0 says 0" in after
        (tmp_path / "saying").write_text(str(int(after.split()[4]) + 30))
        (tmp_path / "saying").rename(tmp_path / "end")
        jobs["a"].done()
        spare.done()
