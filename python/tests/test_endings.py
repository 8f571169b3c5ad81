"""How programs end, and what they and their launcher say of it: errors that a restart only repeats, programs that do not leave, and the
line that tells of a recovery."""

from __future__ import annotations

import re
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from conftest import Daemon
from replicad._core.reports import ENDING, Reports
from replicad.errors import Error

if TYPE_CHECKING:
    from replicad._core.life import Life
    from replicad._core.rank import Rank

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

#: One rank, or several; what comes after is the test's.
BEGIN = """
import os, sys, torch, replicad
number = int(os.environ["REPLICAD_RANK"])
print("STARTED", number, os.getpid(), flush=True)
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def train(session, step):
    model(torch.ones(2, 4)).square().sum().backward()
    with session.step():
        optimizer.step()
    optimizer.zero_grad()

"""


def test_a_second_resume_says_what_to_do(daemon: Daemon) -> None:
    """It used to advise "go on training", and the next step failed."""
    out = daemon.run(
        BEGIN
        + """
session = replicad.Session(model=model, optimizer=optimizer)
session.resume()
train(session, 1)
session.commit()
try:
    session.resume(timeout=0.2)
except replicad.errors.Timeout as err:
    print("TIMEOUT", err, flush=True)
for call in (session.step().__enter__, session.commit):
    try:
        call()
    except replicad.SessionState as err:
        print("STATE", err, flush=True)
at = session.resume()
train(session, 2)
print("AT", int(at), session.at, flush=True)
session.leave()
session.close()
"""
    ).done()
    said = re.search(r"^TIMEOUT (.*)$", out, re.M)
    assert said and "epoch 1 is still open" in said[1] and "call session.resume() again. No step can be taken before it returns" in said[1], out
    assert "go on training" not in out
    assert re.findall(r"^STATE (a step|commit) before resume, after this rank has stopped: call session.resume\(\) first", out, re.M) == ["a step", "commit"], out
    assert "AT 1 2" in out


def test_close_without_leave_is_said(daemon: Daemon) -> None:
    """A finished program was started again for ever: its end was a loss to the daemon."""
    out = daemon.run(
        BEGIN
        + """
session = replicad.Session(model=model, optimizer=optimizer)
at = session.resume()
train(session, at + 1)
session.commit()
if at:
    session.leave()
session.close()
"""
    ).done()
    assert out.count("STARTED") == 2
    assert out.count("session.close() at step 1 without session.leave(): this rank is missed when its program ends, and started again") == 1, out
    assert re.search(r"rank 0: process \d+ ended with status 0 and has not left the job, so it is started again", out), out


@pytest.mark.parametrize("where", ["attach", "step", "group", "block"])
def test_a_mismatch_is_final(where: str, daemon: Daemon) -> None:
    """A new process would only meet it again: none is started, and the job ends."""
    job = daemon.run(
        BEGIN
        + """
from replicad.store import init_process_group
where = sys.argv[1]
if where == "attach" and number == 1:
    model = torch.nn.Linear(4, 5)
session = replicad.Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1) if where == "attach" else optimizer)

def block(call=None):
    session.resume()
    if where == "group":
        init_process_group(session)
    train(session, 1)
    if number == 1:
        model.weight = torch.nn.Parameter(torch.zeros(4, 4))
    train(session, 2)
    session.commit()

replicad.inprocess.wrap(session)(block)() if where == "block" else block()
""",
        where,
        world=2,
    )
    assert job.wait() == 5, "do not requeue"
    out = str(job.out)
    who, when = ("the program for rank", " before it had the rank") if where == "attach" else ("rank", "")
    assert re.search(rf"do not requeue: {who} \d on node dev ended with status 78{when}, which means that a new process would only end the same way", out), out
    assert "replicad.errors.Mismatch: " in out, "the traceback is printed"
    assert out.count("STARTED") <= 3, out  # the third is on its way when the job ends, if at all


@pytest.mark.parametrize("change", ["width", "import"])
def test_a_changed_program_ends_itself_and_not_the_job(change: str, daemon: Daemon) -> None:
    """Ctrl-C, a changed line, the same command: the job's memory is there for the right program."""
    program = (
        """
import sys
change, until = sys.argv[1], int(sys.argv[2])
if change == "import":
    import no_such_module  # before torch: it is started again several times, as a fresh process
"""
        + BEGIN
        + """
import time
if change == "width":
    model = torch.nn.Linear(4, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
session = replicad.Session(model=model, optimizer=optimizer)
at = session.resume()
print("AT", int(at), at.source, flush=True)
for step in range(at + 1, until + 1):
    train(session, step)
session.commit()
print("COMMITTED", until, flush=True)
if until == 8:
    time.sleep(3600)
session.leave()
session.close()
"""
    )
    first = daemon.run(program, "", "8", world=2)
    first.until("COMMITTED 8")
    first.until("COMMITTED 8")
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
    wrong = daemon.run(program, change, "8", world=2, name=first.name)
    assert wrong.wait() == 6, wrong.out
    out = str(wrong.out)
    assert re.search(r"this launcher ends \(6\), and its job does not: .*kept in memory at step 8: start it with the program that it was started with", out), out
    assert change != "width" or ("before it had the rank" in out and "registers another geometry than the state of group 0 has" in out), out
    assert f'job "{first.name}" is done' not in out
    right = daemon.run(program, "", "12", world=2, name=first.name)
    out = right.done()
    assert re.findall(r"^AT (\d+ \S+)", out, re.M) == ["8 own-ram"] * 2, out


@pytest.mark.parametrize("where", ["forward", "step", "with"])
def test_the_same_exception_again_is_said_at_once(where: str, daemon: Daemon) -> None:
    job = daemon.run(
        BEGIN
        + """
where = sys.argv[1]

def loop(session):
    for step in range(session.resume() + 1, 100):
        if step == 3 and where != "step":
            raise ValueError(f"no such sample: {object()}")
        model(torch.ones(2, 4)).square().sum().backward()
        with session.step():
            optimizer.step()
            if step == 3:
                raise ValueError(f"no such sample: {object()}")
        session.commit()

session = replicad.Session(model=model, optimizer=optimizer)
if where == "with":
    with session:
        loop(session)
else:
    loop(session)
""",
        where,
    )
    of = "in the optimizer step" if where == "step" else "in step"
    job.until(f"rank 0: the same exception at step 3 as before the last restart: {of} 3: ValueError: no such sample: <object object at 0x")
    assert job.printed().count("STARTED") == 2, job.out  # a third process may be on its way since
    daemon.verb("job", "end", job.name, "--dev")
    job.wait()


def test_a_recovery_is_said_in_a_line(daemon: Daemon) -> None:
    """After the traceback of whoever met the loss in a collective, which is announced as expected."""
    out = daemon.run(
        BEGIN
        + """
import signal
session = replicad.Session(model=model, optimizer=optimizer)
at = session.resume()
while session.at < 6:
    try:
        session.rank.barrier(f"step {session.at}", 2)
        if number == 1 and session.at == 4 and at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        train(session, 0)
    except replicad.Fenced:
        session.resume()
session.leave()
session.close()
""",
        world=2,
    ).done()
    lost = re.search(r"replicad run: epoch 1 is closed \(rank 1: process-dead, [^)]*\); recovering\. Tracebacks of collectives that break now are expected", out)
    back = re.search(r"replicad run: recovered: step \d from (own|other nodes') memory, \d+ steps? lost, \d+\.\d s", out)
    assert lost and back and lost.start() < back.start(), out


def test_a_survivor_on_its_way_out_is_no_hang(daemon: Daemon) -> None:
    """It ends in its own time, and is named by that: its exit handlers may have a log to send."""
    out = daemon.run(
        BEGIN
        + """
import atexit, signal, subprocess, time

def a_last_upload():
    until = time.monotonic() + 60
    while time.monotonic() < until:
        text = subprocess.run([sys.argv[1], "status", "--dev"], capture_output=True, text=True).stdout
        if f"process {os.getpid()} on node dev has been on its way out for" in text:
            return print("NAMED", flush=True)
    print("NOT NAMED", text, flush=True)

atexit.register(a_last_upload)
with replicad.Session(model=model, optimizer=optimizer) as session:
    at = session.resume()
    if at.epoch > 1:
        atexit.unregister(a_last_upload)
    while session.at < 6:
        if number == 1 and session.at == 4 and at.epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        session.rank.barrier(f"step {session.at}", 2)
        train(session, 0)
""",
        str(daemon.program),
        world=2,
    ).done()
    assert "NAMED" in out and "NOT NAMED" not in out, out


def test_an_end_that_nobody_heard_is_reported_again() -> None:
    """A daemon that was away as the program began to end took its rank for one that hangs: the report counted as made."""
    heard: list[float] = []
    away = [True]

    def ending(most: float) -> None:
        if away.pop():
            raise Error("it is not connected to its daemon")
        heard.append(most)

    rank, life = SimpleNamespace(attached=True, ending=ending), SimpleNamespace(closed=False, left=False)
    reports = Reports(cast("Rank", rank), cast("Life", life))
    reports.ending()
    away.append(False)
    reports.ending()
    reports.ending()
    assert heard == [ENDING]
