"""What lies between the live tensors and the arena, and that no capture is made of what it held a step ago."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from conftest import Daemon

Run = Callable[..., str]

LATE = """
import threading
import torch
import replicad

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
session = replicad.Session(model=model, staging=True)
session.resume()
with session.step():
    model.weight.data.add_(1)
session.commit()

# The worker is awake since the step was entered, has found nothing to bring to the stages yet, and comes to its capture only now.
entered, ended = threading.Event(), threading.Event()
stage = session.rank.stage
def slow(step):
    stage(step)
    if not ended.is_set():
        entered.set()
        ended.wait(60)
session.rank.stage = slow
with session.step():
    assert entered.wait(60)
    model.weight.data.add_(1)
ended.set()
session.commit()
want = model.weight.detach().clone()
session.rank.fail("lost on purpose")
session.rank.wait_fence()
model.weight.data.zero_()
print("AT", int(session.resume()), bool((model.weight == want).all()), float((want - model.weight.detach()).max()))
session.leave()
session.close()
"""


def test_a_worker_that_is_awake_copies_the_step_that_ended(run: Run) -> None:
    """It wakes for the beginning of a step as well, and must not take the stages of the step before for those of this one."""
    assert "AT 2 True 0.0" in run(LATE)


LEAVING = """
import os, threading, time
import torch
import replicad
from replicad._core.admin import status

model = torch.nn.Linear(4, 4, bias=False)
model.weight.data.zero_()
session = replicad.Session(model=model, staging=True)
me = session.rank.number
session.resume()
with session.step():
    model.weight.data.fill_(1)
session.commit()

# The worker comes late to the last step, when the rank has left already.
gone = threading.Event()
session.rank.before_capture = lambda step: gone.wait(60)
with session.step():
    model.weight.data.fill_(2)
try:
    if me == 1:
        while next(r for j in status(10)["jobs"] for r in j["ranks"] if j["name"] == os.environ["REPLICAD_JOB"] and r["rank"] == 0)["state"] != "left":
            time.sleep(0.01)
        session.rank.fail("lost on purpose")
    session.leave()
except replicad.Fenced:
    gone.set()
    model.weight.data.zero_()
    print("AT", me, int(session.resume()), model.weight.unique().tolist())
session.leave()
session.close()
"""


def test_a_rank_that_leaves_copies_its_last_step(daemon: Daemon) -> None:
    """A fault before all have left takes it back to that step, and to its values."""
    out = daemon.run(LEAVING, world=2).done()
    assert sorted(re.findall(r"^AT .*$", out, re.M)) == ["AT 0 2 [2.0]", "AT 1 2 [2.0]"], out


BROKEN = """
import threading
import torch
import replicad

model = torch.nn.Linear(4, 4)
session = replicad.Session(model=model, staging=True)
session.resume()

# What brings the step to its stages fails while the training thread waits for the capture.
entering = threading.Event()
stage = session.rank.stage
def broken(step):
    entering.wait(60)
    raise RuntimeError("the device is gone")
session.rank.stage = broken
enter = session.rank._lib.rp_step_enter
def entered(*args):
    threading.Timer(0.2, entering.set).start()
    return enter(*args)
with session.step():
    model.weight.data.add_(1)
session.rank._lib.rp_step_enter = entered
with session.step(timeout=3600):
    model.weight.data.add_(1)
try:
    with session.step():
        pass
except RuntimeError as err:
    print("TOLD", err)
session.rank._lib.rp_step_enter, session.rank.stage = enter, stage
session.rank._capture_error = None
with session.step():
    model.weight.data.add_(1)
print("COMMITTED", session.commit())
session.leave()
session.close()
"""


def test_a_step_does_not_wait_for_a_capture_whose_stage_failed(run: Run) -> None:
    """The training thread is told, and the capture is given up: it would wait as long as it may for what nobody will do."""
    out = run(BROKEN)
    assert "TOLD the device is gone" in out and "COMMITTED 3" in out, out
