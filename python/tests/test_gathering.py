"""Ranks that meet before the epoch is planned, as sharded models need it, meet again when one of them is lost before that epoch is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import PATIENCE, Daemon
from replicad import Rank, SessionState, Timeout
from replicad._core import gathering
from replicad._core.gathering import ARRIVALS, LAST, LOOK, awaited, meet, scattered
from replicad.testing import Fault, Faults

#: Arguments: how a rank goes on, "inprocess" or "anew"; or "twice": in process, and the process that replaces rank 1 sees one more come to meet the others.
#: And where the first process that replaces rank 1 is killed: when it has "met" the others, or has "said" where it can be reached.
PROGRAM = """
import os, sys
import torch, torch.distributed as dist
import replicad
from replicad import store
from replicad._core.gathering import LAST
from replicad.store import init_process_group

rank, how = int(os.environ["REPLICAD_RANK"]), sys.argv[1]
second = os.path.exists(os.environ["TRAINING_FAULTS"] + "/fault-0")
where = sys.argv[2] if len(sys.argv) > 2 else ""
torch.manual_seed(1)
session, connection = None, replicad.connect()

def killed_after(of, name):
    # Has a function be the last thing that a process does, the first time.
    call = getattr(of, name)
    def last(*args):
        got = call(*args)
        path = os.environ["TRAINING_FAULTS"] + "/killed"
        if rank == 1 and second and not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), 9)
        return got
    setattr(of, name, last)

if where == "met":
    killed_after(store, "meet")
elif where == "said":
    store.GRACE = 0.1
    killed_after(store.Store, "set")

def train(call):
    global session
    init_process_group(session or connection)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if session is None:
        if how == "twice" and rank == 1 and second:
            # Another process of this rank, started elsewhere, has come to meet the others as well: rank 0 sees it, and goes. This one is faster to be the rank.
            connection.kv_set(LAST, b"3:another")
            while connection.kv_get(LAST) == b"3:another":
                pass
        session = replicad.Session(connection=connection, model=model, optimizer=optimizer, staging=True)
    else:
        session.rebind(model=model, optimizer=optimizer)
    replicad.testing.Faults.from_environment(rank).attach(session, model)
    start = session.resume()
    for step in range(start + 1, 11):
        model(torch.ones(1, 4)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
    print("RANK", rank, "FROM", int(start), "HAS", float(model.weight.detach().sum()), flush=True)
    session.leave()

replicad.inprocess.wrap(lambda: session, enabled=how != "anew")(train)()
session.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", [pytest.param("inprocess", marks=pytest.mark.long), "anew"])
def test_a_rank_is_lost_between_the_meeting_and_the_epoch(how: str, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is killed while it trains, and rank 0 while the two recover from that: the group that they met for is no more."""
    # Step 2's copy may be unfinished when rank 1 dies: the recovery goes back to 2 or to 1, never to 0, where rank 0's first resume is.
    Faults([Fault(3, 1, "forward"), Fault(1, 0, "resume")], rank=-1, folder=tmp_path).write()
    monkeypatch.setitem(daemon.env, "TRAINING_FAULTS", str(tmp_path))
    job = daemon.run(PROGRAM, how, world=2)
    out = job.done()
    assert len(list(tmp_path.glob("fault-*"))) == 2
    ends = {line.split("HAS")[1] for line in job.out.seen if "FROM" in line}
    assert len(ends) == 1, out


def test_a_rank_that_left_the_gathering_is_ordered_all_the_same(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes were started for a rank, and the one that met the others became it when they had seen the second and met again: those who wait
    for an epoch without them would wait for ever."""
    Faults([Fault(3, 1, "forward")], rank=-1, folder=tmp_path).write()
    monkeypatch.setitem(daemon.env, "TRAINING_FAULTS", str(tmp_path))
    job = daemon.run(PROGRAM, "twice", world=2)
    out = job.done()
    ends = [line.split("HAS")[1] for line in job.out.seen if "FROM" in line]
    assert len(ends) == 2 and len(set(ends)) == 1, out


@pytest.mark.parametrize(("how", "where"), [("inprocess", "met"), pytest.param("anew", "said", marks=pytest.mark.long)])
def test_a_rank_is_lost_before_the_groups_are_made(how: str, where: str, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has met the others, and they make a group with it: they waited for half an hour."""
    Faults([Fault(3, 1, "forward")], rank=-1, folder=tmp_path).write()
    monkeypatch.setitem(daemon.env, "TRAINING_FAULTS", str(tmp_path))
    job = daemon.run(PROGRAM, how, where, world=2)
    out = job.done()
    assert (tmp_path / "killed").exists()
    ends = [line.split("HAS")[1] for line in job.out.seen if "FROM" in line]
    assert len(ends) == 2 and len(set(ends)) == 1, out


#: The group is made outside of the block, as accelerate's Accelerator() makes it. Rank 1 is killed once, in its third step.
OUTSIDE = """
import torch, torch.distributed as dist
import os, sys
import replicad
from replicad.store import init_process_group

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model, optimizer)

def train(call):
    start = session.resume()
    if not dist.is_initialized():
        init_process_group(session)
    for step in range(start + 1, 6):
        model(torch.ones(1, 4)).sum().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        with session.step():
            optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            session.commit()
            if call.own_faults == 0 and session.order.epoch == 1 and sys.argv[1] == "raises" and rank == 1:
                raise ValueError("once")
            if session.order.epoch == 1 and sys.argv[1] == "killed" and rank == 1:
                os.kill(os.getpid(), 9)
    print("RANK", rank, "FROM", int(start), "RUNS", call.runs, "HAS", float(model.weight.detach().sum()), flush=True)
    session.leave()

replicad.inprocess.wrap(session)(train)()
session.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_lost_rank_makes_its_group_before_its_session(how: str, daemon: Daemon) -> None:
    """The survivor made its group outside of the block: it waited for an order in resume(), and the new process for it. Where no process is lost both go on as they are."""
    job = daemon.run(OUTSIDE, how, world=2)
    out = job.done()
    ends = [line.split() for line in job.out.seen if line.startswith("RANK")]
    assert len(ends) == 2 and len({line[-1] for line in ends}) == 1, out
    assert {(line[3], line[5]) for line in ends} == {("2", "1" if how == "killed" else "2")}, out
    assert ("StaleProcessGroup: resume: the process that takes a lost rank's place" in out) == (how == "killed"), out


class Meeting:
    """Three handles of a job of two ranks, none of them attached: two of rank 1, and one of rank 0."""

    def __init__(self, daemon: Daemon, job: str) -> None:
        self.ranks = [Rank.open(socket=str(daemon.socket), job=job, rank=r, world=2, group=0) for r in (1, 1, 0)]
        self.met: dict[str, object] = {}  #: by name: the gathering, or None after its time, or once its handle is closed

    def come(self, who: str, rank: Rank, seconds: float) -> threading.Thread:
        """Has a rank meet the others, on a thread of its own."""

        def run() -> None:
            try:
                self.met[who] = meet(rank, seconds)
            except (Timeout, SessionState):
                self.met[who] = None

        thread = threading.Thread(target=run)
        thread.start()
        return thread


@pytest.fixture
def meeting(daemon: Daemon) -> Iterator[Meeting]:
    job = daemon.run("import signal; print('WAITS', flush=True); signal.pause()", world=2)
    job.until("WAITS")
    made = Meeting(daemon, job.name)
    yield made
    for rank in made.ranks:
        rank.close()
    daemon.verb("job", "end", job.name, "--dev")


def number(asked: Rank) -> int:
    """What rank 1 drew."""
    return int(asked.kv_get("meet/1").split(b":")[0])


def test_one_of_two_processes_of_a_rank_that_come_at_once_meets_the_others(meeting: Meeting) -> None:
    """The earlier looks before the later one writes, and writes after it: the later one must not go with the earlier one's number."""
    older, newer, other = meeting.ranks
    looked, written = threading.Event(), threading.Event()
    check = older.kv_check

    def late(key: str, timeout: float | None = None) -> bool:
        there = check(key, timeout)
        if not written.is_set():
            looked.set()
            written.wait(PATIENCE)
        return there

    older.kv_check = late  # type: ignore[method-assign]

    other.scope()
    came = [meeting.come("older", older, PATIENCE)]
    assert looked.wait(PATIENCE)
    came.append(meeting.come("newer", newer, PATIENCE))
    while number(other) != 2:
        pass
    written.set()
    while number(other) != 1:
        pass
    came.append(meeting.come("other", other, PATIENCE))
    while sum(thread.is_alive() for thread in came) > 1:
        time.sleep(0.01)
    for rank in (older, newer):  # the one that is left would wait for its time
        rank.close()
    for thread in came:
        thread.join()
    assert meeting.met["other"] is not None
    assert [meeting.met["older"], meeting.met["newer"]].count(meeting.met["other"]) == 1, meeting.met


def test_the_later_of_two_processes_of_a_rank_meets_the_others(meeting: Meeting) -> None:
    """Were both to write their numbers in turn, some of the others would meet the one, and some the other."""
    older, newer, other = meeting.ranks

    other.scope()
    came = [meeting.come("older", older, 3 * LOOK)]
    while number(other) != 1:
        pass
    came.append(meeting.come("newer", newer, PATIENCE))
    while number(other) != 2:
        pass
    numbers, end = set(), time.monotonic() + 1.5 * LOOK
    while time.monotonic() < end:
        numbers.add(number(other))
    assert numbers == {2}
    assert other.kv_get(ARRIVALS) == b"2"
    came.append(meeting.come("other", other, PATIENCE))
    for thread in came:
        thread.join()
    assert meeting.met["older"] is None
    assert meeting.met["newer"] == meeting.met["other"]


def test_a_process_that_meets_is_awaited_in_the_epoch_to_come_alone(meeting: Meeting) -> None:
    """In the epoch that a rank has been in all have met already."""
    one, _, other = meeting.ranks
    assert not awaited(other)
    threads = [meeting.come("one", one, PATIENCE)]
    while not awaited(other):
        pass
    other.ordered = other.scope()
    assert not awaited(other)
    threads.append(meeting.come("other", other, PATIENCE))
    for thread in threads:
        thread.join()
    assert meeting.met["one"] == meeting.met["other"] is not None


def test_a_number_that_is_drawn_again_is_of_another_process(meeting: Meeting) -> None:
    """What the daemon of a lost node had added to the arrivals is not counted any more. The process that replaces its own passed for that one."""
    lost, successor, other = meeting.ranks
    for thread in [meeting.come("lost", lost, PATIENCE), meeting.come("other", other, PATIENCE)]:
        thread.join()
    assert meeting.met["lost"] == meeting.met["other"]
    assert not scattered(other)
    drawn = int(other.kv_get(ARRIVALS))
    successor.scope()
    successor.kv_delete(ARRIVALS)
    successor.kv_delete("meet/1")
    successor.kv_add(ARRIVALS, drawn - 1)
    thread = meeting.come("successor", successor, PATIENCE)
    while not scattered(other):
        pass
    meeting.come("other again", other, PATIENCE).join()
    thread.join()
    assert meeting.met["successor"] == meeting.met["other again"] != meeting.met["lost"]

    other.kv_delete(LAST)  # so does a daemon that takes it along
    assert scattered(other)


def test_who_came_last_and_died_before_it_met_anybody_is_not_waited_for(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token stays, and no other process comes. Who reads it asks again every LOOK, and draws again after YIELD of these."""
    monkeypatch.setattr(gathering, "YIELD", 1)
    one, _, other = meeting.ranks
    reads: list[str] = []

    def dead(rank: Rank, who: str) -> None:
        barrier = rank.barrier

        def passed(name: str, members: int, timeout: float | None = None) -> None:
            barrier(name, members, timeout)
            reads.append(who)
            if reads.count(who) == 1:
                rank.kv_set(LAST, b"9:dead")

        rank.barrier = passed  # type: ignore[method-assign]

    dead(one, "one")
    dead(other, "other")
    for thread in [meeting.come("one", one, PATIENCE), meeting.come("other", other, PATIENCE)]:
        thread.join()
    assert meeting.met["one"] is not None
    assert meeting.met["one"] == meeting.met["other"]
    assert len(reads) < 12, f"{len(reads)} reads of who came last"
