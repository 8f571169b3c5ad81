"""``torchrun --rdzv-backend=replicad``: torchrun's agents meet through the daemons, and come back together after faults."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousInfo, RendezvousParameters

from conftest import PATIENCE, ROOT, Daemon, Job, installed, quick
from nodes import cluster
from replicad.adapters import torchrun

#: A loop whose ranks add up their gradients over torchrun's own process group. Arguments: a folder, and what happens in step 8, once: "rank" kills rank 1,
#: "agent" the torchrun of node rank 0, and "spare" has all wait for one. The last lines say whether all is as in one process without a fault.
PROGRAM = """
import os, signal, sys, time
import torch
import torch.distributed as dist
import replicad

STEPS = 16
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, fault = sys.argv[1:]


def say(line):
    os.write(1, f"{line}\\n".encode())  # at once: the ranks of a node share a pipe


def made():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def gradients(model, rank, step):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    return torch.autograd.grad(model(x).square().mean(), list(model.parameters()))


def once(name):
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


model, optimizer = made()
with replicad.Session(model, optimizer) as session:
    session.resume()
    say(f"rank {rank} on {os.environ['REPLICAD_HOST']} begins after step {session.order.step}")
    dist.init_process_group("gloo")
    for step in session.steps(STEPS):
        while step == 8 and fault == "spare" and not os.path.exists(os.path.join(folder, "spare")):
            time.sleep(0.01)
        if step == 8:
            session.commit(timeout=60)
        if step == 8 and fault == "rank" and rank == 1 and once("fault"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 8 and fault == "agent" and rank == 0 and once("fault"):
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()  # for ever, if nobody ends it
        each = gradients(model, rank, step)
        with session.step():
            for p, g in zip(model.parameters(), each):
                all_of_it = [torch.empty_like(g) for _ in range(world)]
                dist.all_gather(all_of_it, g)
                p.grad = sum(all_of_it[1:], all_of_it[0])  # a reduction would add them up in an order of its own
            optimizer.step()
plain, optimizer = made()
for step in range(1, STEPS + 1):
    for p, *each in zip(plain.parameters(), *(gradients(plain, r, step) for r in range(world))):
        p.grad = sum(each[1:], each[0])
    optimizer.step()
same = all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters()))
say(f"rank {rank} END {'equal' if same else 'differs'}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder by which the package of this checkout is installed as far as torchrun looks: with the entry points of its wheel."""
    return installed(tmp_path_factory.mktemp("site"))


def torchruns(daemon: Daemon, site: Path, folder: Path, fault: str, job: str, *flags: str, conf: str = "") -> Job:
    """A torchrun on the node of a daemon."""
    program = folder / "program.py"
    program.write_text(quick(PROGRAM))
    way = "dev=true,min_copies=1" if daemon.target == ("--dev",) else f"config={daemon.target[1]}"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--rdzv-backend=replicad",
        f"--rdzv-id={job}",
        f"--rdzv-conf={way}{conf}",
        "--max-restarts=100",
        *flags,
        str(program),
        str(folder),
        fault,
    ]
    env = daemon.env | {"PYTHONPATH": f"{daemon.env['PYTHONPATH']}{os.pathsep}{site}", "REPLICAD": str(ROOT / "bin" / "replicad"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    one = Job.of(process, job, lambda: f"The daemon:\n{daemon.log}")
    daemon.jobs.append(one)
    return one


def begins(out: str) -> list[tuple[int, int]]:
    return [(int(rank), int(step)) for rank, step in re.findall(r"rank (\d+) on \S+ begins after step (\d+)", out)]


def test_one_node_loses_a_rank(daemon: Daemon, site: Path, tmp_path: Path) -> None:
    out = torchruns(daemon, site, tmp_path, "rank", f"torchrun-{uuid.uuid4().hex[:8]}", "--nproc-per-node=2").done()
    assert sorted(begins(out)) == [(0, 0), (0, 7), (1, 0), (1, 7)], out
    assert re.findall(r"rank \d END (\w+)", out) == ["equal", "equal"], out


def first_to_end(jobs: list[Job]) -> int:
    ends = {os.pidfd_open(job.process.pid): i for i, job in enumerate(jobs)}
    try:
        ended, _, _ = select.select(list(ends), [], [], PATIENCE)
        return ends[ended[0]]
    finally:
        for fd in ends:
            os.close(fd)


@pytest.mark.long
@pytest.mark.parametrize("spare", [True, False])
def test_the_agent_of_node_rank_0_is_killed(spare: bool, site: Path, tmp_path: Path) -> None:
    """A spare takes its place; without one, a torchrun that is started again. The processes that it left behind are gone by then."""
    with cluster("abc") as nodes:
        names = "abc" if spare else "ab"
        flags = ("--nproc-per-node=2", "--nnodes=2:3")
        runs = [torchruns(nodes[name], site, tmp_path, "agent", "lm", *flags) for name in names]
        killed = first_to_end(runs)
        dead = runs.pop(killed)
        assert dead.wait() == -signal.SIGKILL
        assert "torchrun is gone: 2 processes that it left behind were killed" in dead.printed(), dead.out
        if not spare:
            runs.append(torchruns(nodes[names[killed]], site, tmp_path, "agent", "lm", *flags))
        out = "\n".join(one.done() for one in runs)
        assert sorted(re.findall(r"rank (\d) END (\w+)", out)) == [(str(r), "equal") for r in range(4)], out
        assert {step for _, step in begins(out)} == {0, 7}, out


@pytest.mark.long
def test_a_spare_that_nobody_needs_ends_well(site: Path, tmp_path: Path) -> None:
    with cluster("abc") as nodes:
        runs = [torchruns(nodes[name], site, tmp_path, "spare", "lm", "--nproc-per-node=1", "--nnodes=2:3") for name in "abc"]
        until(lambda: any("this torchrun is a spare" in str(one.out) for one in runs))
        (tmp_path / "spare").touch()  # the others may be through with all steps before it has started
        out = "\n".join(one.done() for one in runs)
        assert sorted(re.findall(r"rank (\d) END (\w+)", out)) == [("0", "equal"), ("1", "equal")], out
        assert out.count("this torchrun is a spare: 2 others train") == 1, out
        assert "Traceback" not in out


# -- without processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def make(daemon: Daemon) -> Iterator[Callable[..., torchrun.Handler]]:
    with handlers_of(daemon) as made:
        yield made


@contextmanager
def handlers_of(daemon: Daemon) -> Iterator[Callable[..., torchrun.Handler]]:
    """Makes handlers, as several torchruns on one node would have them."""
    made: list[torchrun.Handler] = []
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("REPLICAD_")]:
        del os.environ[name]
    os.environ.update(XDG_STATE_HOME=daemon.env["XDG_STATE_HOME"], REPLICAD=str(ROOT / "bin" / "replicad"))

    def handler(run_id: str, count: int, /, **conf: str) -> torchrun.Handler:
        daemons = {} if "config" in conf else {"dev": "true"}
        config = daemons | {"min_copies": "1", "world": str(count), "timeout": 900} | conf
        made.append(torchrun.Handler(RendezvousParameters("replicad", "", run_id, count, count + 1, None, **config)))
        return made[-1]

    try:
        yield handler
    finally:
        for one in made:
            one.shutdown()
        os.environ.clear()
        os.environ.update(before)


class Comes(threading.Thread):
    """An agent that wants a round."""

    def __init__(self, handler: torchrun.Handler) -> None:
        super().__init__(daemon=True)
        self.handler, self.got, self.ended = handler, None, None
        self.start()

    def run(self) -> None:
        try:
            self.got = self.handler.next_rendezvous()
        except SystemExit as end:
            self.ended = end.code

    def round(self) -> Any:
        """The round that it is in."""
        self.join(PATIENCE)
        assert self.got is not None, self.ended
        return self.got


def until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end
        os.sched_yield()


def address(info: RendezvousInfo) -> tuple[str, int]:
    assert info.bootstrap_store_info is not None
    return info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port


def test_rounds(make: Callable[..., torchrun.Handler], daemon: Daemon) -> None:
    """Two agents and a spare. One whose processes fail is waited for; one that is gone is replaced."""
    job = f"torchrun-{uuid.uuid4().hex[:8]}"
    handlers = [make(job, 2) for _ in range(2)]
    assert os.environ["REPLICAD_JOB"] == job and os.environ["REPLICAD_SOCKET"] == str(daemon.socket)
    assert all(h.get_backend() == "replicad" and h.get_run_id() == job and h.use_agent_store for h in handlers)
    one, two = sorted((c.round() for c in [Comes(h) for h in handlers]), key=lambda info: info.rank)
    assert (one.rank, two.rank, one.world_size, two.world_size) == (0, 1, 2, 2)
    assert address(one) == address(two)
    one.store.set("k", "v")
    assert two.store.get("k") == b"v"
    a, b = sorted(handlers, key=lambda h: h._server is None)  # by rank: the other one's store serves nobody

    spare = make(job, 2)
    third = Comes(spare)
    assert (a.num_nodes_waiting(), b.num_nodes_waiting()) == (0, 0)
    second = Comes(b)
    until(lambda: a.num_nodes_waiting() > 0)
    again = a.next_rendezvous()
    assert (again.rank, second.round().rank) == (0, 1) and address(again) == address(second.round()) != address(one)
    with pytest.raises(RuntimeError, match="imeout"):
        again.store.set_timeout(timedelta(milliseconds=10))
        again.store.get("k")  # of the round before

    a._agent._process.kill()  # torchrun and what stands for it are gone
    until(lambda: b.num_nodes_waiting() > 0)
    with pytest.raises(RendezvousConnectionError, match="has ended with status -9"):
        until(lambda: bool(a.num_nodes_waiting()))
    kept = b.next_rendezvous()
    assert (kept.rank, third.round().rank) == (1, 0) and address(kept) == address(third.round())


def test_who_waited_for_the_round_before_waits_for_no_other() -> None:
    """That an agent waits was said when this one asked to join, and read afterwards: it left its new round at once, and the processes of all were started again."""
    agent = object.__new__(torchrun._Agent)
    agent._news, agent._ended, agent._rounds, agent.done, agent.waiting = threading.Condition(), False, [], None, 0

    def say(**line: Any) -> None:
        agent._learn({"waiting": 1})
        agent._learn({"round": 2, "rank": 0, "head": "here:1"})

    agent.say = say  # type: ignore[method-assign]
    assert agent.join("here:1")["round"] == 2
    assert agent.waits() == 0
    agent._learn({"waiting": 1})
    assert agent.waits() == 1


def test_a_daemon_that_is_killed_changes_no_round(own_daemon: Daemon) -> None:
    """The next one leads, too, and makes the same round of what the agents say."""
    with handlers_of(own_daemon) as make:
        both = [make("torchrun-daemon", 2) for _ in range(2)]
        first = [c.round() for c in [Comes(h) for h in both]]
        assert own_daemon.process is not None
        own_daemon.process.kill()
        own_daemon.process.wait(PATIENCE)
        own_daemon.launch()
        own_daemon.ready()
        again = Comes(both[1])
        until(lambda: both[0].num_nodes_waiting() > 0)
        kept = both[0].next_rendezvous()
        assert [kept.rank, again.round().rank] == [info.rank for info in first] and address(kept) == address(again.round())


@pytest.mark.long  # five seconds of grace
def test_one_that_ends_closes_the_rendezvous(make: Callable[..., torchrun.Handler], capfd: pytest.CaptureFixture[str]) -> None:
    handlers = [make("torchrun-closed", 2) for _ in range(2)]
    for one in [Comes(h) for h in handlers]:
        one.round()
    assert handlers[0].shutdown()
    assert handlers[1].num_nodes_waiting() == 0
    until(lambda: handlers[1].num_nodes_waiting() > 0)  # its processes would wait for those that nobody starts any more
    last = Comes(handlers[1])
    last.join(PATIENCE)
    assert last.ended == 1 and handlers[1].is_closed()
    assert "replicad: torchrun on node dev has ended, and with it the rendezvous" in capfd.readouterr().err


def test_the_job_ends(make: Callable[..., torchrun.Handler], daemon: Daemon, capfd: pytest.CaptureFixture[str]) -> None:
    job = f"torchrun-{uuid.uuid4().hex[:8]}"
    waits = Comes(make(job, 2))
    daemon.verb("job", "end", "--dev", job)
    waits.join(PATIENCE)
    assert waits.ended == 1 and f'replicad: job "{job}" is over' in capfd.readouterr().err


@pytest.mark.parametrize(
    ("conf", "code", "text"),
    [
        ({"world": "3"}, 1, "runs with 2 ranks"),
        ({"durable_evry": "20"}, 2, "unknown flag: --durable-evry"),
        ({"min_copies": "many"}, 2, 'invalid argument "many" for "--min-copies"'),
        ({"job": "other"}, 2, "what --rdzv-id says"),
        ({"nodes": "3"}, 2, "--nnodes says"),
        ({"timeout": "5"}, 2, "wait for one another without a limit"),
        ({"config": "/nowhere.yaml"}, 3, "/nowhere.yaml"),
    ],
)
def test_refusals(make: Callable[..., torchrun.Handler], daemon: Daemon, capfd: pytest.CaptureFixture[str], conf: dict[str, str], code: int, text: str) -> None:
    """Each is one line."""
    if "world" in conf:
        make("torchrun-refused", 2)
    with pytest.raises(SystemExit) as end:
        make("torchrun-refused", 2, **conf)
    err = capfd.readouterr().err
    assert end.value.code == code and text in err and len(err.splitlines()) == 1, err


def test_where_the_world_comes_from(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    params = RendezvousParameters("replicad", "", "lm", 2, 3, "10.0.0.7", durable_every=20, timeout=900)
    monkeypatch.setattr(sys, "argv", ["torchrun", "--rdzv-backend", "replicad", "--nnodes=2:3", "--nproc-per-node", "4", "train.py", "--nproc-per-node=8"])
    assert torchrun.flags(params) == ["--job=lm", "--nodes=2", "--durable-every=20", "--world=8", "--host=10.0.0.7"]
    for other in (["train.py", "x"], ["prog", "--wrong"], ["torchrun", "--rdzv-backend", "c10d", "train.py"]):
        monkeypatch.setattr(sys, "argv", other)
        with pytest.raises(SystemExit):
            torchrun.flags(params)
        assert "give its number of processes as world=N" in capfd.readouterr().err
    for run in ("none", ""):
        with pytest.raises(SystemExit):
            torchrun.flags(RendezvousParameters("replicad", "", run, 1, 1))
        assert "give --rdzv-id=NAME" in capfd.readouterr().err
