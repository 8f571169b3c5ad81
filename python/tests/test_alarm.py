"""Where nothing else notices that copies are made from elsewhere, the alarm does, and the copy does not count; what may change between two steps raises none."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is missing: sessions hold torch's state")

from conftest import Daemon

ALARM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import replicad
from replicad._torch.memory import Memory
from replicad._torch.trained import Trained
from anew import model, optimizer

# As if both had been forgotten.
Memory.check = lambda self, **more: None
Trained.check = Trained.check_places = lambda self, **more: True
Trained.check_early = lambda self: None

how = sys.argv[2]
torch.manual_seed(1)
m = model()
o = optimizer(m)
session = replicad.Session(
    model=m, optimizer=o, scheduler=torch.optim.lr_scheduler.ConstantLR(o, 1.0), staging=how == "stage",
    kept_dtype={"model.0.weight": torch.float64} if how == "converted" else None
)
session.resume()

def step():
    m(torch.ones(2, 4) + torch.randn(2, 4)).square().sum().backward()
    with session.step():
        o.step()
    o.zero_grad()

for _ in range(20):
    step()
    session.commit()
if (compared := session.rank.compared + session._kept.alarm._staged_compared) < 15 or session.noticed:
    raise replicad.Mismatch(f"{compared} compared, {session.noticed}")  # which ends the job
weight = m[0].weight
if how == "moved":
    weight.data = weight.data.clone()
    session.rebind(scheduler=torch.optim.lr_scheduler.ConstantLR(o, 1.0))
    session.resume()
elif how == "turned":
    weight.data = weight.data.t()
elif how == "early":
    m[1].running_mean = m[1].running_mean.clone()
elif how == "stage":  # another object hangs there
    m[0].weight = torch.nn.Parameter(weight.detach().clone())
    o.param_groups[0]["params"][0] = m[0].weight
    o.state[m[0].weight] = o.state.pop(weight)
elif how == "converted":
    other = torch.zeros(4, 4, dtype=torch.float64)
    session._staging._stage[0].copy_(other)
    session._staging.window = lambda step, given_up: setattr(session._staging, "step", step)
first = session.at
try:
    for _ in range(30):
        step()
        session.commit(timeout=60)
except replicad.Mismatch as err:
    print("TOLD", err, flush=True)
    print("AT", session.at, session.committed, session.at <= first + 12, flush=True)
    raise
"""

NAMES = {"moved": "model.0.weight", "turned": "model.0.weight", "early": "model.1.running_mean", "stage": "model.0.weight", "converted": "model.0.weight"}


@pytest.mark.parametrize("how", NAMES)
def test_a_copy_of_other_memory_does_not_count(how: str, daemon: Daemon) -> None:
    job = daemon.run(ALARM, str(Path(__file__).parent), how)
    assert job.wait() == 5, str(job.out)  # as of any refusal that a new process would meet again
    out = str(job.out)
    assert f"TOLD {NAMES[how]}: " in out and "so the step is not kept" in out, out
    at, committed, soon = out.split("\nAT ")[1].split()[:3]
    assert int(committed) <= int(at) and soon == "True", out
    assert "do not requeue" in out


QUIET = """
import sys
import torch
import replicad

class Renormed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.out = torch.nn.Embedding(500, 64, max_norm=0.5), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.out(self.norm(self.embedding(x)))

torch.manual_seed(1)
m = Renormed()
o = torch.optim.AdamW(m.parameters(), lr=0.01)
session = replicad.Session(
    model=m, optimizer=o, extra={"own": torch.optim.lr_scheduler.ConstantLR(o, 1.0)} if sys.argv[1] == "at end" else None,
    staging=sys.argv[1] == "staging", shared_buffers=lambda name: name.endswith("num_batches_tracked"),
)
session.resume()
for i in range(60):
    o.zero_grad()
    m(torch.randint(500, (32,))).square().mean().backward()
    with session.step():
        o.step()
    kept = [p.detach().clone() for p in m.parameters()]
    with torch.no_grad():  # as averages are swapped in and out
        for p in m.parameters():
            p.lerp_(torch.zeros_like(p), 0.5)
        m(torch.arange(32))
        for p, k in zip(m.parameters(), kept):
            p.copy_(k)
    if i % 10 == 9:
        session.commit()
if (compared := session.rank.compared + session._kept.alarm._staged_compared) < 10:
    raise replicad.Mismatch(f"{compared} compared")  # which ends the job
session.leave()
session.close()
print("DONE", flush=True)
"""


@pytest.mark.parametrize("how", ["in place", "staging", "at end"])
def test_what_changes_between_two_steps_is_no_alarm(how: str, daemon: Daemon) -> None:
    """Weights swapped and brought back, embeddings that a forward renormalises, statistics, and private state at either end of a step."""
    assert "DONE" in daemon.run(QUIET, how).done()


GIVEN = """
import sys, threading
import torch
import replicad

torch.manual_seed(1)
m = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False))
o = torch.optim.SGD(m.parameters(), lr=0.1)
session = replicad.Session(model=m, optimizer=o, staging=True, kept_dtype={"model.0.weight": torch.float64} if sys.argv[1] == "converted" else None)
session.resume()

# The worker comes to a step's stages after the program has changed it.
given, stage = threading.Event(), session.rank.stage
given.set()
def late(step):
    given.wait(60)
    stage(step)
session.rank.stage = late

def must(ok, *what):
    if not ok:
        raise replicad.Mismatch(repr(what))  # which ends the job

for step in range(1, 13):
    m(torch.ones(2, 64)).square().mean().backward()
    with session.step():
        o.step()
        given.clear()
        if sys.argv[1] == "turned":
            m[0].weight.data = m[0].weight.data.t()  # the values that the step gives it
    if sys.argv[1] != "turned":
        m[0].weight.data = m[0].weight.data.clamp(-0.1 + step / 200, 0.1 - step / 200)
    given.set()
    o.zero_grad()
    must(session.commit(timeout=60) == step, step)
compared = session.rank.compared + session._kept.alarm._staged_compared
must(compared >= 6, compared)
want = [p.detach().clone() for p in m.parameters()]
session.rank.fail("lost on purpose")
session.rank.wait_fence()
for p in m.parameters():
    p.data = torch.zeros(64, 64)
must(session.resume() == 12, session.at)
must(all(map(torch.equal, m.parameters(), want)), list(m.parameters()), want)
print("NOTICED", list(session.noticed), flush=True)
session.leave()
session.close()
"""


@pytest.mark.parametrize(("how", "noticed"), [("values", ["model.0.weight"]), ("converted", ["model.0.weight"]), ("turned", [])])
def test_a_staged_tensor_may_be_given_other_memory(how: str, noticed: list[str], daemon: Daemon) -> None:
    """The stage is filled from where the tensor lies then. With other values it is a change between two steps like any other: it is named, and the job goes on."""
    assert f"NOTICED {noticed}" in daemon.run(GIVEN, how).done()
