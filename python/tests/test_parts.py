"""What is done between a fault and the next run: parts of the user's own that hang or raise whatever they like, in jobs of a real daemon."""

from __future__ import annotations

import re

import pytest

from conftest import Daemon

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

#: Arguments: parts that misbehave, as NAME=HOW.
PARTS = """
import asyncio, os, signal, sys, time
import torch
import replicad

does = dict(arg.split("=") for arg in sys.argv[1:])
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)


def part(name):
    def own():
        print(f"PART {name} of {os.getpid()}", flush=True)
        if name in does:
            DO[does[name]]()

    own.__name__ = name
    return own


def throw(err):
    raise err


DO = {
    "hang": lambda: time.sleep(10000),
    "fenced": lambda: session.rank.kv_get("x", 1.0),  # of an epoch that is closed
    "exit": lambda: sys.exit(1),
    "cancel": lambda: throw(asyncio.CancelledError()),
    "ctrl-c": lambda: os.kill(os.getpid(), signal.SIGINT),
}


hard = 3.0 if "hang" in does.values() else 600.0


@replicad.inprocess.wrap(session, abort=[part("a1"), part("a2")], finalize=[part("f1"), part("f2")], health=[part("h1"), part("h2")], hard=hard)
def train(call):
    start = session.resume()
    print(f"RUN {call.runs} of {os.getpid()} at {int(start)}", flush=True)
    for step in range(start + 1, 7):
        with session.step():
            optimizer.step()
        if step == 3 and call.runs == 1:
            session.commit()
            raise RuntimeError("of this rank, once")
    session.leave()
    print(f"DONE in run {call.runs} of {os.getpid()}", flush=True)


train()
session.close()
"""

ORDER = ["a1", "a2", "f1", "f2", "h1", "h2"]


def ran(out: str) -> list[str]:
    return re.findall(r"^PART (\w+) of", out, re.M)


@pytest.mark.parametrize(("where", "kind"), [("a1", "abort"), *(pytest.param(*at, marks=pytest.mark.long) for at in (("f2", "finalize"), ("h1", "health")))])
def test_a_part_that_hangs_ends_its_process_and_a_new_one_goes_on(where: str, kind: str, daemon: Daemon) -> None:
    out = daemon.run(PARTS, f"{where}=hang").done()
    assert ran(out) == ORDER[: ORDER.index(where) + 1]
    (said,) = re.findall(rf"^replicad: .*\b{kind} part {where}\b.*$", out, re.M)
    assert "`hard`" in said and "<lambda>" in said and "killed" in said and "starts rank 0 anew" in said
    runs = re.findall(r"^RUN (\d+) of (\d+) at (\d+)$", out, re.M)
    assert [(run, at) for run, _, at in runs] == [("1", "0"), ("1", "3")]
    assert runs[0][1] != runs[1][1] and f"DONE in run 1 of {runs[1][1]}" in out


def test_a_part_that_raises_whatever_it_likes_keeps_none_from_running(daemon: Daemon) -> None:
    out = daemon.run(PARTS, "a1=fenced", "a2=cancel", "f1=exit", "f2=cancel").done()
    assert ran(out) == ORDER
    said = re.findall(r"^replicad: (\w+ part \w+: \w+)", out, re.M)
    assert said == ["abort part a1: Fenced", "abort part a2: CancelledError", "finalize part f1: SystemExit", "finalize part f2: CancelledError"]
    assert len(set(re.findall(r"^(?:RUN|PART|DONE) .* of (\d+)", out, re.M))) == 1 and "DONE in run 2" in out


def test_a_health_check_that_fails_ends_the_process_once_all_have_run(daemon: Daemon) -> None:
    out = daemon.run(PARTS, "h1=exit").done()
    assert ran(out) == ORDER
    assert re.search(r"Unhealthy: .*h1: SystemExit: 1", out)
    assert "DONE in run 1" in out and len(set(re.findall(r"^RUN .* of (\d+)", out, re.M))) == 2


def test_ctrl_c_in_a_part_ends_the_program_once_all_have_run(daemon: Daemon) -> None:
    out = daemon.run(PARTS, "a1=ctrl-c").done()
    assert ran(out) == ["a1", "a2"]
    assert re.search(r"^KeyboardInterrupt", out, re.M)
    assert "RUN 2" not in out and "DONE in run 1" in out


#: Arguments: what the abort part does on the fault thread, while rank 1's training thread is blocked in C.
BLOCKED = """
import contextlib, os, sys, threading, time
import torch
import replicad

how = sys.argv[1]
torch.manual_seed(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = replicad.Session(model=model, optimizer=optimizer)


def blocked():  # not on the training thread: its answer may be that the epoch is closed, and the thread would leave the block by that
    with contextlib.suppress(replicad.Fenced):
        session.rank.kv_set("blocked", b"")


def mine():
    print("PART", session.rank.number, flush=True)
    if session.rank.number == 1:
        time.sleep(10000) if how == "hang" else session.rank.kv_get("x", 1.0)


def other():
    print("OTHER", session.rank.number, flush=True)


@replicad.inprocess.wrap(session, abort=[mine, other], finalize=[], health=[], hard=3.0 if session.rank.number == 1 else 600.0)
def train(call):
    start = session.resume()
    for step in range(start + 1, 7):
        with session.step():
            optimizer.step()
        if step == 3 and start == 0:
            session.commit()
            if session.rank.number == 0:
                session.rank.kv_get("blocked")
                raise RuntimeError("of this rank, once")
            threading.Thread(target=blocked, daemon=True).start()
            time.sleep(10000)
    session.leave()
    print("DONE", session.rank.number, int(start), flush=True)


train()
session.close()
"""


@pytest.mark.parametrize("how", ["hang", pytest.param("fenced", marks=pytest.mark.long)])
def test_a_thread_that_stays_blocked_is_ended_whatever_the_abort_parts_do(how: str, daemon: Daemon) -> None:
    out = daemon.run(BLOCKED, how, world=2).done()
    (said,) = re.findall(r"^replicad: .*killed.*$", out, re.M)
    assert "the training thread" in said and "in train" in said and "starts rank 1 anew" in said
    assert ("abort part mine" in said) == (how == "hang")
    assert (out.count("OTHER 1") == 0) == (how == "hang")
    assert "DONE 0 3" in out and "DONE 1 3" in out
