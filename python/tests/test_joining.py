"""A process that no launcher started becomes a rank: an actor, which who made it makes again. `test_ray.py` does so with Ray itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import replicad
from conftest import PATIENCE, ROOT, STARTUP, Daemon, Job, warm
from nodes import cluster
from replicad import Gone, Invalid, Refused, Timeout

# What an actor's class would have: it connects and makes its session once, and `train` is called by whoever made it, again after an exception. Ranks compute the gradients of
# both; a commit stands for a collective. The first rank 1 ends after step 5. The last lines say whether all is as in one process without a fault.
PROGRAM = """
import os, signal, sys
import torch
import replicad

STEPS = 12
job, rank, fault, config = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
where = {"config": config} if config else {"dev": True, "min_copies": 1}


def made():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def update(model, optimizer, step):
    optimizer.zero_grad()
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step))).square().mean().backward()


class Actor:
    def __init__(self):
        connection = replicad.connect(job=job, rank=rank, world=2, **where)
        print("rank", rank, "is", replicad.place(), os.environ["REPLICAD_JOB"] == job, flush=True)
        self.model, self.optimizer = made()
        self.session = replicad.Session(self.model, self.optimizer, connection=connection)

    def train(self):
        print("rank", rank, "begins after step", int(self.session.resume()), flush=True)
        for step in self.session.steps(STEPS):
            update(self.model, self.optimizer, step)
            with self.session.step():
                self.optimizer.step()
            self.session.commit(timeout=60)
            if fault == "dies" and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "waits" and step == 5:
                print("rank", rank, "waits in process", os.getpid(), flush=True)
                signal.pause()
        self.session.leave()


actor = Actor()
while True:
    try:
        actor.train()
        break
    except replicad.Fenced:
        print("rank", rank, "is fenced, in the same process", flush=True)
plain, optimizer = made()
for step in range(1, STEPS + 1):
    update(plain, optimizer, step)
    optimizer.step()
same = all(torch.equal(a, b) for a, b in zip(actor.model.parameters(), plain.parameters()))
print("rank", rank, "END equal" if same else "END differs", flush=True)
"""


def actor(daemon: Daemon, folder: Path, job: str, rank: int, fault: str = "") -> Job:
    """A process that nobody but this test starts."""
    program = folder / "actor.py"
    program.write_text(PROGRAM)
    config = "" if daemon.target == ("--dev",) else daemon.target[1]
    env = {**daemon.env, "REPLICAD": str(ROOT / "bin" / "replicad"), "OMP_NUM_THREADS": "1"}
    process = warm(env).launch([], [sys.executable, str(program), job, str(rank), fault, config], env, folder)
    one = Job.of(process, job, lambda: f"The daemon:\n{daemon.log}")
    daemon.jobs.append(one)
    return one


def test_actors(daemon: Daemon, tmp_path: Path) -> None:
    """Both make the job at once. One is lost, and made again; the other one's method raises, and is called again in its process."""
    job = f"actors-{uuid.uuid4().hex[:8]}"
    stays, lost = actor(daemon, tmp_path, job, 0), actor(daemon, tmp_path, job, 1, "dies")
    assert lost.wait() != 0
    stays.until("is fenced")
    out = actor(daemon, tmp_path, job, 1).done() + "\n" + stays.done()
    assert sorted(re.findall(r"rank (\d) END (\w+)", out)) == [("0", "equal"), ("1", "equal")], out
    assert sorted(re.findall(r"rank (\d) begins after step (\d+)", out)) == [("0", "0"), ("0", "5"), ("1", "5")], out
    assert set(re.findall(r"rank \d is (\(.*)", out)) == {"(0, 2) True", "(1, 2) True"}, out
    assert f"job {job}" in (status := daemon.verb("status", *daemon.target)) and "finished" in status.partition(f"job {job}")[2].partition("\n")[0]


@pytest.mark.long
def test_an_actor_comes_back_on_another_node(tmp_path: Path) -> None:
    """Its own is lost, with the daemon and all memory."""
    with cluster("abc") as nodes:
        stays, lost = actor(nodes["a"], tmp_path, "lm", 0), actor(nodes["b"], tmp_path, "lm", 1, "waits")
        pid = int(lost.until("waits in process").split()[-1])
        nodes["b"].lose(pid)
        stays.until("is fenced")
        out = actor(nodes["c"], tmp_path, "lm", 1).done() + "\n" + stays.done()
        assert sorted(re.findall(r"rank (\d) END (\w+)", out)) == [("0", "equal"), ("1", "equal")], out
        assert sorted(re.findall(r"rank (\d) begins after step (\d+)", out)) == [("0", "0"), ("0", "5"), ("1", "5")], out


AGAIN = """
import os, sys
import replicad

connection = replicad.connect(job="lm", rank=0, world=1, dev=True, min_copies=1, **({"resume": False} if sys.argv[1] == "anew" else {}))
print("connected", flush=True)
if sys.argv[1]:
    sys.exit()
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model, optimizer, connection=connection)
session.resume()
model(torch.ones(2, 4)).sum().backward()
with session.step():
    optimizer.step()
session.commit(timeout=60)
print("made a step", flush=True)
os._exit(1)
"""


def test_a_job_that_was_stopped_is_not_begun_again_unasked(own_daemon: Daemon) -> None:
    """Who made the actor makes it again when the daemon ends its process: that would train from step 0, under the same name."""

    def again(how: str) -> str:
        env = {**own_daemon.env, "REPLICAD": str(ROOT / "bin" / "replicad"), "PYTHONPATH": os.pathsep.join([own_daemon.env["PYTHONPATH"], STARTUP])}
        done = subprocess.run([sys.executable, "-c", AGAIN, how], env=env, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr

    assert "made a step" in again("")
    assert "connected" in again("running")
    own_daemon.verb("job", "end", "lm", *own_daemon.target)
    assert re.search(r'Refused: connect: .*create job "lm": it ended after step \d \(.*connect\(resume=True\).*connect\(resume=False\).*another name', again(""))
    assert "connected" in again("anew")


# An actor that trains until its daemon has gone and come back.
ALONE = """
import os
import torch
import replicad

replicad.connect(job="lm", rank=0, world=1, dev=True, min_copies=1).close()
connection = replicad.connect(job="lm", rank=0)  # the second one finds its place in the environment
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model, optimizer, connection=connection)
session.resume()
print("trains", flush=True)
while not connection.stats().reconnects:
    with session.step():
        optimizer.step()
session.commit(timeout=60)
session.leave()
print("END", flush=True)
"""


def test_an_actor_says_that_its_daemon_is_gone(own_daemon: Daemon, tmp_path: Path) -> None:
    """Nobody else does: no launcher stands beside it."""
    (tmp_path / "actor.py").write_text(ALONE)
    env = {**own_daemon.env, "REPLICAD": str(ROOT / "bin" / "replicad")}
    process = warm(env).launch([], [sys.executable, str(tmp_path / "actor.py")], env, tmp_path)
    one = Job.of(process, "lm", lambda: f"The daemon:\n{own_daemon.log}")
    own_daemon.jobs.append(one)
    one.until("trains")
    assert own_daemon.process is not None
    own_daemon.process.kill()
    own_daemon.log.rest()
    own_daemon.process.wait()
    assert str(own_daemon.socket) in one.until("no daemon takes rank 0 back, whose steps nobody keeps meanwhile")
    own_daemon.start()
    one.until("the daemon of rank 0 is back")
    assert "END" in one.done()


# -- in this process ----------------------------------------------------------------------------------------------------


@pytest.fixture
def there(daemon: Daemon) -> Iterator[str]:
    """This process's environment is that of an actor on the daemon's node, and nothing of it stays. The name for a job."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("REPLICAD_") or name in ("RANK", "WORLD_SIZE")]:
        del os.environ[name]
    os.environ.update(XDG_STATE_HOME=daemon.env["XDG_STATE_HOME"], REPLICAD=str(ROOT / "bin" / "replicad"))
    try:
        yield f"joins-{uuid.uuid4().hex[:8]}"
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_what_a_process_knows_of_its_place(there: str) -> None:
    """All that `replicad run` would have told it, and nothing of another job; flags come through as they are for `replicad exec`."""
    os.environ.update(REPLICAD_GROUP="7", REPLICAD_GROUPS="9,9", REPLICAD_CAPTURE_THREADS="1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "1")  # another launcher's
        rank = replicad.connect(job=there, world=2, dev=True, groups=[0, 1], min_copies=1, require_votes=True, durable_every=None)
    assert (rank.number, rank.world, rank.group, rank.groups, replicad.place()) == (1, 2, 1, (0, 1), (1, 2))
    assert {name: os.environ[f"REPLICAD_{name}"] for name in ("JOB", "RANK", "WORLD", "GROUP", "GROUPS", "CAPTURE_THREADS")} == {
        "JOB": there, "RANK": "1", "WORLD": "2", "GROUP": "1", "GROUPS": "0,1", "CAPTURE_THREADS": "1"
    }  # fmt: skip
    rank.close()
    again = replicad.connect()  # of the same job, by what the first call has found
    assert (again.number, again.world, again.group) == (1, 2, 1)
    again.close()
    with pytest.raises(Refused, match="runs with 2 ranks, not 3"):
        replicad.connect(job=there, rank=0, world=3, dev=True)


def test_groups_that_ranks_name(there: str) -> None:
    rank = replicad.connect(job=there, rank=0, world=2, dev=True, groups="auto")
    assert rank.auto and rank.group is None and "REPLICAD_GROUP" not in os.environ
    rank.close()


def test_what_is_wrong_is_said_before_there_is_a_job(there: str, daemon: Daemon, tmp_path: Path) -> None:
    for options, kind, text in (
        ({"world": 2, "rank": 2, "dev": True}, Invalid, "rank 2 in a world of 2: want 0 to 1"),
        ({"world": 2, "rank": 0, "dev": True, "durable_evry": 5}, Invalid, "unknown flag: --durable-evry"),
        ({"world": 2, "rank": 0, "dev": True, "min_copies": 99}, Invalid, "--min-copies 99: want"),
        ({"world": 2, "dev": True}, Invalid, "rank: REPLICAD_RANK is not set: .*pass rank="),
        ({"rank": 0, "dev": True}, Invalid, "world: REPLICAD_WORLD is not set: .*pass world="),
        ({"world": 2, "rank": 0, "config": "/nowhere.yaml"}, Invalid, "open /nowhere.yaml: no such file"),
        ({"world": 2, "rank": 0, "dev": True, "timeout": 1e-6}, Timeout, f"job '{there}' was neither found nor made within"),
    ):
        with pytest.raises(kind, match=text):
            replicad.connect(job=there, **options)
    with pytest.raises(Invalid, match=r"connect\(dev=...\) is for a process that makes a job, or finds one: name it"):
        replicad.connect(rank=0, world=2, dev=True)
    with pytest.raises(Gone, match="no replicad program on the path"), pytest.MonkeyPatch.context() as patch:
        patch.delenv("REPLICAD")
        patch.setenv("PATH", "")
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        replicad.connect(job=there, rank=0, world=2, dev=True)
    assert "REPLICAD_SOCKET" not in os.environ and there not in daemon.verb("status", *daemon.target)
