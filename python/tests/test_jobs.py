"""Whole PyTorch jobs through several faults each: the end is bit for bit that of the undisturbed run, and no step is lost.

Which faults come where follows from SEED; `make campaign` runs other seeds and the whole product of jobs and faults.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: the jobs are PyTorch programs")

import cluster
from replicad import testing
from replicad.testing.daemon import Daemon

SEED = int(os.environ.get("SEED", "7"))
SMALL = ("--width", "32", "--batch", "4")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: sockets have names of 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="replicad-t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def told(faults: list[str], report: dict[str, list[dict[str, object]]]) -> None:
    """Every fault happened, in order, and cost no step."""
    assert [f["kind"] for f in report["faults"]] == faults
    assert [f for f in report["faults"] if f["steps_lost"]] == []
    assert [f for f in report["faults"] if f["from"] == "durable"] == []


@pytest.mark.long
def test_gpt_on_two_replicas_started_again(folder: Path) -> None:
    faults = ["rank-backward", "rank-updated", "leader"]
    told(faults, cluster.demo("gpt.py", 2, ",".join(faults), SEED, folder, *SMALL, every=20))


@pytest.mark.long
def test_gpt_on_three_replicas_in_process(folder: Path) -> None:
    faults = ["rank-accumulate", "rank-raise", "node", "rank-resume"]
    told(faults, cluster.demo("gpt.py", 3, ",".join(faults), SEED, folder, *SMALL, "--inprocess", every=30))


#: By job: its program and flags, and the places of its faults, each of which comes once.
JOBS: dict[str, tuple[list[str], list[str]]] = {
    "torchrun": (["gpt.py"], ["backward", "accumulate", "updated"]),
    "fsdp1-orig": (["fsdp1.py", "--width", "32", "--use-orig-params", "1"], ["window", "resume"]),
}


@pytest.mark.long
@pytest.mark.parametrize("job", list(JOBS))
def test_seeded_faults(job: str, folder: Path) -> None:
    """On one node: the GPT under torchrun, and spread over two ranks, of which none has the other's part."""
    (script, *own), places = JOBS[job]
    launcher = "exec" if job == "torchrun" else "run"
    groups = () if job == "torchrun" else ("--groups", "0,1")
    steps, world = 60, 2
    flags = ("--steps", str(steps), "--seed", str(SEED), "--batch", "4", "--pace", "40ms", *own)
    want = cluster.baseline(script, world, *flags)
    plan = testing.Faults.seeded(SEED, world=world, steps=steps, count=len(places), places=places, rank=-1, folder=folder / "faults")
    plan.write()
    command = [cluster.sys.executable, str(cluster.EXAMPLES / script), *flags]
    if job == "torchrun":
        command = [cluster.sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), "--max-restarts", "20", "--monitor-interval", "0.2", *command[1:]]
    with Daemon(str(cluster.REPLICAD), str(folder)) as env:
        got = cluster.call(
            [str(cluster.REPLICAD), launcher, "--dev", "--job", "job", "--world", str(world), "--min-copies", "1", *groups, "--", *command],
            XDG_STATE_HOME=env["XDG_STATE_HOME"], TRAINING_FAULTS=str(folder / "faults"),
        )  # fmt: skip
    print(*plan.happened(), sep="\n")
    assert sorted(f["where"] for f in plan.happened()) == sorted(places)
    assert got.digests() == want.digests()
    resumed = [e for e in got.events if e["event"] == "joined" and e["step"] > 0]
    assert {e["source"] for e in resumed} <= {"own-ram", "peer-ram"}
    for f in plan.happened():  # all processes end: the copy of the step before may just have begun
        after = [e["step"] for e in got.events if e["event"] == "ready" and e["t"] > f["t"]]
        assert after[0] >= f["step"] - 2, (f, after)


#: By job: its program and flags, the replica groups, and its faults in order.
OVER_NODES: dict[str, tuple[list[str], str, list[str]]] = {
    "convnet": (["convnet.py", "--batch", "4"], "0,0", ["rank-window", "node", "rank-capture", "leader"]),
    "fsdp1": (["fsdp1.py", *SMALL, "--inprocess"], "0,1", ["node", "rank-capture"]),
    "zero": (["zero.py", *SMALL, "--inprocess"], "0,1", ["rank-window", "node", "rank-resume"]),
    "lora": (["lora.py", *SMALL, "--inprocess"], "0,0", ["rank-raise", "node", "rank-capture", "leader"]),
}


@pytest.mark.parametrize("job", [job if job == "fsdp1" else pytest.param(job, marks=pytest.mark.long) for job in OVER_NODES])
def test_over_nodes(job: str, folder: Path) -> None:
    """Two ranks on nodes of their own, each of which may be lost. Of FSDP1's shards and ZeRO's optimizer state no other rank has any."""
    (script, *flags), groups, faults = OVER_NODES[job]
    told(faults, cluster.demo(script, 2, ",".join(faults), SEED, folder, *flags, groups=groups, every=20 if job == "fsdp1" else 60))


@pytest.mark.long
@cluster.fsdp2
def test_fsdp2_over_nodes_loses_a_rank_in_backward_and_a_node(folder: Path) -> None:
    """Every rank has a shard that no other has: what a node takes along comes from the memory of those that mirror it."""
    faults = ["rank-backward", "node"]
    report = cluster.demo("fsdp.py", 2, ",".join(faults), SEED, folder, *SMALL, groups="0,1")
    told(faults, report)
    assert report["faults"][-1]["from"] == "peer-ram"


@pytest.mark.long
@cluster.fsdp2
def test_hsdp_two_shards_twice_over_nodes(folder: Path) -> None:
    """Four ranks on three nodes: each shard's other replica has what a lost rank, a lost node or the lost leader had."""
    faults = ["rank-window", "node", "leader"]
    told(faults, cluster.demo("fsdp.py", 4, ",".join(faults), SEED, folder, "--width", "16", "--batch", "2", "--shards", "2", "--inprocess", groups="0,1,0,1", every=25))
